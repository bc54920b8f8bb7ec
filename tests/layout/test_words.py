"""The words of docs/glossary.md: the places it names exist, and the words that they replaced do not come back."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.repository import ROOT

PACKAGES = ("quorum", "fifo", "selectors/quorum_selectors", "spark")
GENERATED = ROOT / "quorum" / "v1"
PLACE = re.compile(r"`((?:fifo|quorum|docs|selectors)[\w/.]*)`")

RETIRED = frozenset(
    [
        "asleep",
        "awake",
        "begin_life",
        "begin_office",
        "came_back",
        "candidacy",
        "carrying_out",
        "complain",
        "complaint",
        "damage_care",
        "disk_watch",
        "door",
        "durable_reader",
        "end_office",
        "excepting",
        "fate",
        "feeder",
        "forget_held",
        "forgotten",
        "found_cluster",
        "healer",
        "hear_standing",
        "in_line",
        "is_shut",
        "is_spent",
        "is_there_for",
        "let_go",
        "let_lie",
        "librarian",
        "look_after",
        "meet_member",
        "mend_memory",
        "mend_wait_s",
        "mender",
        "office",
        "open_reader",
        "parked",
        "printing",
        "put_back",
        "ran_out",
        "reader_state",
        "roster",
        "runs_for_office",
        "stand_in_line",
        "standing_question",
        "take_out",
        "taking",
        "tickets",
        "vouched",
        "wellknown",
    ]
)
"""Names of things that have another name now, in lower case and with underscores."""

PROSE = {
    "whoever": "the client, the member, ...",
    "somebody": "the client, the member, ...",
    "whom": "the client, the member, ...",
    "anew": "again",
    "mended": "repaired",
    "none of whose": "two sentences",
    "are looked at": "are read, checked, evaluated, ...",
}
"""What makes a sentence hard to read, and what to write instead."""


def sources() -> list[Path]:
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in found if GENERATED not in path.parents]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def names(text: str) -> Iterator[str]:
    """The identifiers of a module, in lower case and with underscores between words."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", token.string).lower().strip("_")


def retired(text: str) -> set[str]:
    return {name for name in names(text) if name in RETIRED}


def hard_to_read(text: str) -> dict[str, str]:
    words = " ".join(text.lower().split())
    return {each: better for each, better in PROSE.items() if re.search(rf"\b{each}\b", words)}


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_no_retired_word_names_anything(path: Path) -> None:
    assert retired(path.read_text(encoding="utf-8")) == set()


def test_a_retired_word_would_be_noticed() -> None:
    assert retired("class Librarian:\n    pass\n") == {"librarian"}
    assert retired("self._runsForOffice = 'tickets'\n") == {"runs_for_office"}


@pytest.mark.parametrize("path", [*pages(), *sources()], ids=name_of)
def test_sentences_are_plain(path: Path) -> None:
    assert hard_to_read(path.read_text(encoding="utf-8")) == {}


def test_a_sentence_that_is_hard_to_read_would_be_noticed() -> None:
    assert set(hard_to_read("Whoever attaches\nis judged anew; some\n    are looked at.")) == {
        "whoever",
        "anew",
        "are looked at",
    }


def test_the_glossary_names_places_that_exist() -> None:
    places = PLACE.findall((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert len(places) > 40
    assert [place for place in places if not (ROOT / place).exists()] == []
