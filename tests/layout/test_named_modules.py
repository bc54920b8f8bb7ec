"""A Python module that a docstring, a comment or a page names exists."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from support.repository import ROOT

FILES = {
    path.relative_to(ROOT).as_posix()
    for folder in ("fifo", "quorum", "selectors", "spark", "tests")
    for path in (ROOT / folder).rglob("*.py")
}
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FILE = re.compile(r"(?<![\w/.*<>-])(?:[a-z_]\w*/)*[a-z_]\w*\.py\b")
MODULE = re.compile(r"(?<![\w/.])(?:api|node|replication)\.[a-z_]+\b(?!\.py\b)")
NOT_PYTHON = ("node.json", "node.toml")


def prose(source: str) -> Iterator[str]:
    """The comments and docstrings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and token.string.startswith('"""')
        if is_docstring or token.type == tokenize.COMMENT:
            yield token.string


def package_of(name: str) -> str:
    """Where a module names another one by the end of its path; tests and pages name any module so."""
    parts = name.split("/")
    if parts[0] == "quorum":
        return "/".join(parts[:2]) + "/"
    return f"{parts[0]}/" if parts[0] in ("fifo", "selectors", "spark") else ""


def unknown_files(name: str, text: str) -> list[str]:
    """The files that do not exist, neither below the root or `quorum` nor in the package of the module `name`."""
    near = [file for file in FILES if file.startswith(package_of(name))]
    return [
        found
        for found in FILE.findall(text)
        if not {found, f"quorum/{found}"} & FILES
        and not any(f"/{file}".endswith(f"/{found}") for file in near)
    ]


def unknown_modules(text: str) -> list[str]:
    """The modules and folders of packages in `quorum` that do not exist, such as node.leases."""
    return [
        found
        for found in MODULE.findall(text)
        if found not in NOT_PYTHON
        and not {f"quorum/{found.replace('.', '/')}{end}" for end in (".py", "/__init__.py")} & FILES
    ]


def test_the_modules_that_docstrings_and_comments_name_exist() -> None:
    problems = []
    for name in sorted(FILES):
        texts = list(prose((ROOT / name).read_text(encoding="utf-8")))
        problems += [f"{name}: {each}" for text in texts for each in unknown_files(name, text)]
        if not name.startswith("tests/"):
            problems += [f"{name}: {each}" for text in texts for each in unknown_modules(text)]
    assert problems == []


def test_the_modules_that_pages_name_exist() -> None:
    """A file without a folder may be the reader's own."""
    problems = [
        f"{page.name}: {each}"
        for page in PAGES
        for each in unknown_files("", page.read_text(encoding="utf-8"))
        if "/" in each
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("name", "text", "is_known"),
    [
        ("quorum/api/session/publisher.py", "session_routes.py finds what each group gets", True),
        ("quorum/api/session/publisher.py", "routes.py finds it, which is in quorum/client only", False),
        ("quorum/catalog/lease_times.py", "ended (node/cluster/lease_times.py)", True),
        ("quorum/catalog/lease_times.py", "ended (node/lease_times.py)", False),
        ("fifo/limits.py", "a budget of read_costs.py", True),
        ("tests/node/test_member_bodies.py", "after damage (healer.py)", False),
    ],
)
def test_the_rule_notices_a_file_that_is_not_there(name: str, text: str, is_known: bool) -> None:
    assert (unknown_files(name, text) == []) == is_known


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("the bodies of node.repair", True),
        ("the bodies of node.session_table", False),
        ("see replication.configuration, and node.json", True),
        ("see replication.connection.", False),
    ],
)
def test_the_rule_notices_a_module_that_is_not_there(text: str, is_known: bool) -> None:
    assert (unknown_modules(text) == []) == is_known
