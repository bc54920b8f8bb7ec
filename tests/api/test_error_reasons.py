"""docs/errors.md names every reason that the service gives, with its codes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from quorum.api import status
from quorum.api.status import Code
from support.repository import ROOT

CODES = {
    "invalid": Code.INVALID_ARGUMENT,
    "unavailable": Code.UNAVAILABLE,
    "_unauthenticated": Code.UNAUTHENTICATED,
    "denied": Code.PERMISSION_DENIED,
    "exhausted": Code.RESOURCE_EXHAUSTED,
}
"""Functions that are called with a reason as the first argument, and the code that they give it."""
OWN_CODES = ("Refused", "BatchError", "TogetherTooLarge")
"""The same, for those whose code follows from the reason."""
FOLDERS = ("quorum/api", "quorum/node", "quorum/catalog", "fifo")
ONLY_SHOWN = {"NO_TARGET", "NO_ANSWER", "FAILED"}
"""Problems of dead-letter targets, which no client receives as an error."""


def given() -> Iterator[tuple[str, Code]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield from _of_call(node)
    for reason, (code, _) in status._ENDED.items():
        yield "session_" + reason, code
    yield from status._REFUSED.items()


def _of_call(call: ast.Call) -> Iterator[tuple[str, Code]]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if not call.args:
        return
    if name in CODES:
        yield from ((word, CODES[name]) for word in _words(call.args[0]))
    elif name == "Refused":
        for word in _words(call.args[0]):
            yield word, status._REFUSED.get(word, Code.FAILED_PRECONDITION)
    elif name in OWN_CODES:
        for word in _words(call.args[0]):
            yield word, Code.RESOURCE_EXHAUSTED if word in status.TOO_LARGE else Code.INVALID_ARGUMENT
    elif name == "make" and isinstance(call.args[0], ast.Attribute) and len(call.args) > 1:
        yield from ((word, Code[call.args[0].attr]) for word in _words(call.args[1]))


def _words(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _words(node.body)
        yield from _words(node.orelse)


def test_the_page_names_every_reason_with_its_codes_and_no_other() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    _, _, tables = page.partition("## Requests")
    told: dict[str, set[str]] = defaultdict(set)
    for reasons, codes in re.findall(r"^\| (`[A-Z_`, ]+) \| (`[A-Z_`, ]+) \|", tables, re.MULTILINE):
        for word in re.findall(r"`([A-Z_]+)`", reasons):
            told[word].update(re.findall(r"`([A-Z_]+)`", codes))
    found: dict[str, set[str]] = defaultdict(set)
    for reason, code in given():
        if reason.upper() not in ONLY_SHOWN:
            found[reason.upper()].add(code.name)
    assert told == found
