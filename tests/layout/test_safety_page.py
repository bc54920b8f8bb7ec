"""Every test that docs/safety.md names exists."""

from __future__ import annotations

import ast
import re

from support.repository import ROOT

NAMED = re.compile(r"`(tests/[a-z_/]+\.py)(?:::(test_[a-z0-9_]+))?`")


def named() -> list[tuple[str, str]]:
    """(file, test), the test empty where a whole file is named."""
    return NAMED.findall((ROOT / "docs" / "safety.md").read_text(encoding="utf-8"))


def test_every_test_that_the_page_names_exists() -> None:
    missing = []
    for file, test in named():
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
        functions = {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        if not path.exists() or (test and test not in functions):
            missing.append(f"{file}::{test}")
    assert missing == []


def test_every_promise_names_a_test() -> None:
    page = (ROOT / "docs" / "safety.md").read_text(encoding="utf-8")
    promises = re.findall(r"^\| (\d+) \|.*$", page, re.MULTILINE)
    assert [int(each) for each in promises] == list(range(1, len(promises) + 1))
    for line in re.findall(r"^\| \d+ \|.*$", page, re.MULTILINE):
        assert NAMED.search(line), line
    assert len(named()) > 40
