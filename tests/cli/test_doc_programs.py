"""Every Python program in README.md and docs/ runs as it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.members.served import served_in_a_thread
from support.repository import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PRINTED_URL = "quorum://127.0.0.1:7400"
OTHERS = re.compile(r"^(async |await |with |for |def |client\.|consumer\.)")
"""A first line of Python that is no program by itself."""


def blocks(page: Path) -> Iterator[str]:
    """The indented blocks of a page, without their indent."""
    lines: list[str] = []
    for line in [*page.read_text(encoding="utf-8").splitlines(), "end"]:
        if line.startswith("    ") or (not line and lines):
            lines.append(line[4:])
        elif lines:
            yield "\n".join(lines).strip("\n") + "\n"
            lines = []


PROGRAMS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page))
    if block.startswith(("import ", "from "))
]


def test_there_is_no_python_that_cannot_be_pasted() -> None:
    found = [f"{page.name}: {block}" for page in PAGES for block in blocks(page) if OTHERS.match(block)]
    assert found == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_printed_program_runs(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with served_in_a_thread() as url:
        monkeypatch.setenv("QUORUM_URL", url)
        exec(compile(program.replace(PRINTED_URL, url), "<page>", "exec"), {"__name__": "__main__"})
