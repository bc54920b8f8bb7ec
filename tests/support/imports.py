"""The imports of a module, read from its syntax: at the top level, inside functions, and under TYPE_CHECKING."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from support.repository import ROOT

ROOTS = {
    "quorum": ROOT / "quorum",
    "fifo": ROOT / "fifo",
    "quorum_selectors": ROOT / "selectors" / "quorum_selectors",
    "pyspark_quorum": ROOT / "spark" / "pyspark_quorum",
}

INSTRUMENTS = {"simulator": ROOT / "tests" / "simulator"}
"""Applications that are part of the tests."""


@dataclass(frozen=True, slots=True)
class Import:
    """`module` (dotted) is imported in `file` at `line`.

    typing_only: under `if TYPE_CHECKING`. in_function: carried out when a function runs, not when `file` is imported.
    """

    module: str
    file: Path
    line: int
    typing_only: bool
    in_function: bool = False

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def modules(roots: Mapping[str, Path] = ROOTS) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module of the product, or under other roots, that is written by hand, in order."""
    for package, folder in roots.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            name = ".".join((package, *(part for part in parts if part != "__init__")))
            if not name.startswith("quorum.v1"):
                yield name, file


def imports_of(file: Path) -> list[Import]:
    found: list[Import] = []
    _visit(ast.parse(file.read_text(encoding="utf-8"), str(file)), Import("", file, 0, False), found)
    return found


def _visit(node: ast.AST, place: Import, found: list[Import]) -> None:
    """Append the imports in `node`; `place` has the file and the flags that hold here."""
    if isinstance(node, ast.Import):
        found.extend(replace(place, module=alias.name, line=node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{place.file}:{node.lineno}: a relative import; write it in full"
        assert node.module is not None
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            module = whole if is_module(whole) else node.module
            found.append(replace(place, module=module, line=node.lineno))
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.body:
            _visit(child, replace(place, typing_only=True), found)
        for child in node.orelse:
            _visit(child, place, found)
    else:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            place = replace(place, in_function=True)
        for child in ast.iter_child_nodes(node):
            _visit(child, place, found)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def is_module(name: str) -> bool:
    """Whether a dotted name is a module or package of this repository (and not something inside one)."""
    package, _, rest = name.partition(".")
    root = ROOTS.get(package) or INSTRUMENTS.get(package)
    if root is None:
        return False
    path = root.joinpath(*rest.split(".")) if rest else root
    return path.is_dir() or path.with_suffix(".py").is_file()
