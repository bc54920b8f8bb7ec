"""docs/README.md leads to every page."""

from __future__ import annotations

import re

from support.repository import ROOT

DOCS = ROOT / "docs"


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\(([\w.-]+\.md)\)", index)
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert pages <= set(named)
    assert all((DOCS / name).is_file() for name in named)
