"""Every test and every broken build that docs/safety.md and docs/faults.md name exists, and every build is named."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from simulator.broken.canaries import CANARIES
from support.raft.ablations import RULES
from support.repository import ROOT

NAMED = re.compile(r"`(tests/[a-z_/]+\.py)(?:::(test_[a-z0-9_]+))?`")


PAGES = ("safety.md", "faults.md")
FAULTS = 51


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def named(page: str) -> list[tuple[str, str]]:
    """(file, test), the test empty where a whole file is named."""
    return NAMED.findall(text_of(page))


@cache
def functions_of(file: str) -> frozenset[str] | None:
    """The names of the functions of a file; None if it does not exist."""
    path = ROOT / file
    if not path.exists():
        return None
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return frozenset(each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_the_page_names_exists(page: str) -> None:
    missing = []
    for file, test in named(page):
        functions = functions_of(file)
        if functions is None or (test and test not in functions):
            missing.append(f"{file}::{test}")
    assert missing == []


def test_every_promise_names_a_test() -> None:
    page = text_of("safety.md")
    promises = re.findall(r"^\| (\d+) \|.*$", page, re.MULTILINE)
    assert [int(each) for each in promises] == list(range(1, len(promises) + 1))
    for line in re.findall(r"^\| \d+ \|.*$", page, re.MULTILINE):
        assert NAMED.search(line), line
    assert len(named("safety.md")) > 40


def test_every_fault_names_a_test_or_says_that_there_is_none() -> None:
    rows = re.findall(r"^\| (\d+) \|[^|]*\|(.*)\|$", text_of("faults.md"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, FAULTS + 1))
    for number, covered in rows:
        assert (
            NAMED.search(covered) or "*missing*" in covered or "no feature" in covered or "partly" in covered
        ), number


def test_every_broken_build_stands_beside_the_promise_that_it_breaks() -> None:
    rows = re.findall(r"^\| ([^|]+) \| \"([^|]+)\" \|", text_of("safety.md"), re.MULTILINE)
    assert sorted((name, promise) for promise, name in rows) == sorted(
        (each.name, each.promise) for each in (*CANARIES, *RULES)
    )
    builds = {name for _, name in rows}
    for page in PAGES:
        for clause in re.findall(r"canar(?:y|ies) ((?:\"[^\"]+\"(?:, )?)+)", text_of(page)):
            assert set(re.findall(r'"([^"]+)"', clause)) <= builds, clause
