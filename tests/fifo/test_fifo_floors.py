"""The modules of `fifo` stand on floors: no circle among their imports, those for types included, and none upwards."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "fifo"

LANGUAGE = "language"
"""The modules at the top that all others may use."""
LANGUAGE_MODULES = [
    "batch_times",
    "budgets",
    "codec",
    "commands",
    "effects",
    "frozen_dataclasses",
    "index_sets",
    "kinds",
    "layouts",
    "limits",
    "number_ranges",
    "numbering",
    "outcome_hash",
    "producers",
    "records",
    "results",
    "shares",
    "stretches",
    "versions",
]
FLOORS = (
    (LANGUAGE,),
    ("messages",),
    ("consumers",),
    ("embargo",),
    ("pins", "queue_transactions", "staging", "subscriptions"),
    ("queue_machine",),
    ("targets",),
    ("transactions",),
    ("decisions",),
    ("group_state",),
    ("group_machine",),
    ("queries", "persistence"),
)
"""The rooms of each floor, from below. A room is a folder, or a module at the top."""
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


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


def sources_in(folder: Path) -> dict[str, str]:
    """The modules of a package by dotted name, those of its folders too, and their text."""
    return {
        ".".join((folder.name, *path.relative_to(folder).with_suffix("").parts)): path.read_text()
        for path in sorted(folder.rglob("*.py"))
        if path.stem != "__init__"
    }


def test_there_is_no_circle() -> None:
    sources = sources_in(FOLDER)
    assert {"fifo.commands", "fifo.messages.messages"} <= sources.keys()
    assert unfinished({name: imports_of(source, sources) for name, source in sources.items()}) == {}


def test_nothing_is_imported_for_types_alone() -> None:
    assert [path.name for path in FOLDER.rglob("*.py") if "TYPE_CHECKING" in path.read_text()] == []


def test_a_circle_would_be_noticed(tmp_path: Path) -> None:
    texts = {
        "fifo/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fifo.folder.b import B",
        "fifo/folder/__init__.py": "",
        "fifo/folder/b.py": "def b():\n    from fifo import a",
        "fifo/c.py": "import fifo.a",
        "fifo/d.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    sources = sources_in(tmp_path / "fifo")
    found = unfinished({name: imports_of(source, sources) for name, source in sources.items()})
    assert sorted(found) == ["fifo.a", "fifo.c", "fifo.folder.b"]


def room_of(module: str) -> str:
    room = module.split(".")[1]
    return LANGUAGE if room in LANGUAGE_MODULES else room


def upward(sources: Mapping[str, str]) -> list[str]:
    """The imports that lead neither into the own room nor to a lower floor."""
    return [
        f"{name} -> {target}"
        for name, source in sources.items()
        for target in sorted(imports_of(source, sources))
        if room_of(name) != room_of(target) and FLOOR_OF[room_of(target)] >= FLOOR_OF[room_of(name)]
    ]


def test_imports_lead_to_lower_floors() -> None:
    assert upward(sources_in(FOLDER)) == []


def test_every_room_has_a_floor() -> None:
    assert {room_of(name) for name in sources_in(FOLDER)} == FLOOR_OF.keys()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("fifo.commands", "fifo.messages.blocks"),
        ("fifo.messages.messages", "fifo.consumers.consumer"),
        ("fifo.messages.messages", "fifo.queue_machine"),
        ("fifo.pins", "fifo.staging"),
        ("fifo.group_machine", "fifo.persistence.snapshot"),
        ("fifo.queries.queues", "fifo.persistence.snapshot"),
    ],
)
def test_an_import_upwards_or_to_a_neighbour_would_be_noticed(name: str, target: str) -> None:
    assert upward({name: f"def f():\n    import {target}", target: ""}) == [f"{name} -> {target}"]
    assert upward({name: "", target: ""}) == []
