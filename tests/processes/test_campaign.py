"""The totals of the campaign."""

from __future__ import annotations

import runpy
from pathlib import Path


def totals(*said: str) -> str:
    """Of parts of five rounds each, by what they say."""
    campaign = runpy.run_path(str(Path(__file__).with_name("campaign.py")))
    found = campaign["Totals"]()
    for each in said:
        found.add(campaign["Part"]("a part", None, rounds=5), True, each)
    return str(found)


def test_totals_have_what_the_parts_have_counted_and_nothing_else() -> None:
    assert totals("1,200 confirmed, 7 settled (worst 0.25 s)", "30 bits turned over; 5 confirmed") == (
        "total: 2 of 2 parts held, 10 rounds, 1,205 messages confirmed, none lost, 30 bits turned over, "
        "longest time until publishing went on 0.25 s"
    )
    assert totals("settled 1,500 messages: 700 in a, 800 in b; 40 transactions committed, 3 rolled back") == (
        "total: 1 of 1 parts held, 5 rounds, 1,500 messages settled in queues of all kinds, none lost, "
        "40 transactions committed"
    )
    assert totals("") == "total: 1 of 1 parts held, 5 rounds"
