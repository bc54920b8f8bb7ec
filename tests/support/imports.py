"""What a module imports, read from its syntax: top level, inside functions, and under TYPE_CHECKING alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.repository import ROOT

ROOTS = {
    "quorum": ROOT / "quorum",
    "fifo": ROOT / "fifo",
    "quorum_selectors": ROOT / "selectors" / "quorum_selectors",
    "pyspark_quorum": ROOT / "spark" / "pyspark_quorum",
}


@dataclass(frozen=True, slots=True)
class Import:
    """`module` (dotted) is imported in `file` at `line`; typing_only: under `if TYPE_CHECKING`."""

    module: str
    file: Path
    line: int
    typing_only: bool

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module of the product that is written by hand, in order."""
    for package, folder in ROOTS.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            name = ".".join((package, *(part for part in parts if part != "__init__")))
            if not name.startswith("quorum.v1"):
                yield name, file


def imports_of(file: Path) -> list[Import]:
    found: list[Import] = []
    _visit(ast.parse(file.read_text(encoding="utf-8"), str(file)), file, False, found)
    return found


def _visit(node: ast.AST, file: Path, typing_only: bool, found: list[Import]) -> None:
    if isinstance(node, ast.Import):
        found.extend(Import(alias.name, file, node.lineno, typing_only) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{file}:{node.lineno}: a relative import; write it in full"
        assert node.module is not None
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            found.append(Import(whole if is_module(whole) else node.module, file, node.lineno, typing_only))
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.body:
            _visit(child, file, True, found)
        for child in node.orelse:
            _visit(child, file, typing_only, found)
    else:
        for child in ast.iter_child_nodes(node):
            _visit(child, file, typing_only, found)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def is_module(name: str) -> bool:
    """Whether a dotted name is a module or package of this repository (and not something inside one)."""
    package, _, rest = name.partition(".")
    if package not in ROOTS:
        return False
    path = ROOTS[package].joinpath(*rest.split(".")) if rest else ROOTS[package]
    return path.is_dir() or path.with_suffix(".py").is_file()
