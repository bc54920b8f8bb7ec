"""What the text of the machines must not have. (Imports are tested with the layout.)"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fifo

FOLDER = Path(fifo.__file__).parent
FILES = sorted(
    # it gives records the __hash__ that the standard library would give them
    file
    for file in FOLDER.rglob("*.py")
    if file.name != "frozen_dataclasses.py"
)


def sets_in_use(tree: ast.AST) -> list[int]:
    """Lines where a set is made, but for those that are sorted at once."""
    sorted_at_once = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sorted"
        for argument in node.args
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if id(node) not in sorted_at_once
        and (
            isinstance(node, ast.Set | ast.SetComp)
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("set", "frozenset", "hash", "id")
            )
        )
    ]


def test_modules_in_folders_are_looked_at() -> None:
    assert {FOLDER / "commands.py", FOLDER / "messages" / "blocks.py"} <= set(FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_no_machine_uses_a_set_or_an_object_hash(file: Path) -> None:
    assert sets_in_use(ast.parse(file.read_text())) == []


@pytest.mark.parametrize("text", ["x = {1, 2}", "for x in set(y): pass", "list({a for a in b})", "hash('a')"])
def test_the_rule_would_notice(text: str) -> None:
    assert sets_in_use(ast.parse(text))
