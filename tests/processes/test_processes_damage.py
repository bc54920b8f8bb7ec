"""Bits turned over in the files of a real member: 5 of each kind, the campaign takes 1,000; and lost files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.processes import damage, losses
from support.processes.cluster import FaultyCluster

WHILE_STOPPED = 3
"""Each costs a start; the campaign takes every kind many times."""
WHILE_RUNNING = 5
"""Of each kind."""


def test_every_bit_that_is_turned_over_is_noticed_and_nothing_is_lost(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", seed=21, **damage.OPTIONS) as cluster:
        print(asyncio.run(damage.BitFlips(cluster, "orders").run(WHILE_STOPPED, WHILE_RUNNING)))


def test_files_that_are_lost_under_a_running_member_are_put_back(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", seed=22, **damage.OPTIONS) as cluster:
        print(asyncio.run(losses.FileLosses(cluster, "orders").run(at_start=False)))


def test_a_removed_snapshot_is_not_waited_for_when_its_group_has_two_newer_ones(tmp_path: Path) -> None:
    one, two, three, other = (
        tmp_path / f"group-{group:08d}-index-{index:016x}-term-{1:016d}.snapshot"
        for group, index in ((1, 10), (1, 11), (1, 300), (2, 400))
    )
    for path in (two, other):
        path.touch()
    assert not losses.is_replaced(one, -1)
    three.touch()
    assert losses.is_replaced(one, -1)
    three.unlink()
    assert not losses.is_replaced(three, -1)
