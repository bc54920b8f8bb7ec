"""docs/errors.md names every reason that the service gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from quorum.api import status
from support.repository import ROOT

PLACES = {
    "Refused": 0,
    "invalid": 0,
    "unavailable": 0,
    "_unauthenticated": 0,
    "denied": 0,
    "BatchError": 0,
    "TogetherTooLarge": 0,
    "exhausted": 0,
    "make": 1,
}
"""Functions that are called with a reason, and the place of the reason among their arguments."""
FOLDERS = ("quorum/api", "quorum/node", "quorum/catalog", "fifo")
ONLY_SHOWN = {"NO_TARGET", "NO_ANSWER", "FAILED"}
"""Problems of dead-letter targets, which no client receives as an error."""


def given() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                place = PLACES.get(name, len(node.args))
                if place < len(node.args):
                    yield from _words(node.args[place])
    yield from ("session_" + reason for reason in status._ENDED)
    yield from status._REFUSED


def _words(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _words(node.body)
        yield from _words(node.orelse)


def test_the_page_names_every_reason_and_no_other() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    _, _, tables = page.partition("## Requests")
    first_columns = re.findall(r"^\| (`[A-Z_`, ]+) \|", tables, re.MULTILINE)
    told = {word for column in first_columns for word in re.findall(r"`([A-Z_]+)`", column)}
    assert told == {reason.upper() for reason in given()} - ONLY_SHOWN
