"""The modules of `fifo` stand on floors: no circle among their imports, those for types included."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "fifo"


def imports_of(source: str, modules: Mapping[str, object]) -> set[str]:
    """Which of these modules a source imports, wherever the import stands."""
    named: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            named += [node.module, *[f"{node.module}.{alias.name}" for alias in node.names]]
    return {name for name in named if name in modules}


def unfinished(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """What is left when modules are taken away whose imports are all taken away: circles, and what stands on them."""
    left = {name: set(found) for name, found in imports.items()}
    while free := [name for name, found in left.items() if not found & left.keys()]:
        for name in free:
            del left[name]
    return left


def test_there_is_no_circle() -> None:
    sources = {
        f"fifo.{path.stem}": path.read_text() for path in FOLDER.glob("*.py") if path.stem != "__init__"
    }
    assert "fifo.messages" in sources
    assert unfinished({name: imports_of(source, sources) for name, source in sources.items()}) == {}


def test_nothing_is_imported_for_types_alone() -> None:
    assert [path.name for path in FOLDER.rglob("*.py") if "TYPE_CHECKING" in path.read_text()] == []


def test_a_circle_would_be_noticed() -> None:
    sources = {
        "fifo.a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fifo.b import B",
        "fifo.b": "def b():\n    from fifo import a",
        "fifo.c": "import fifo.a",
        "fifo.d": "",
    }
    found = unfinished({name: imports_of(source, sources) for name, source in sources.items()})
    assert sorted(found) == ["fifo.a", "fifo.b", "fifo.c"]
