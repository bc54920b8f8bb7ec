"""Whole clusters under seeded chaos (tests/support/chaos.py). A broken seed prints its story and repeats exactly:
`python -m support.chaos SEED 1`."""

from __future__ import annotations

import pytest

from support import chaos


@pytest.mark.parametrize("seed", range(1, 7))
def test_nothing_is_lost_doubled_reordered_or_stuck(seed: int) -> None:
    world = chaos.run(seed)
    faults = sum(count for kind, count in world.counts.items() if kind.startswith("fault"))
    assert faults > 5
    assert world.counts["settled"] > 300
    assert world.counts["redelivered"] > 0
