"""Bits turned over in the files of a real member: 10 of each kind, the campaign takes 1,000; and lost files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support import processes_damage as damage
from support import processes_losses as losses
from support.processes_cluster import FaultyCluster

WHILE_STOPPED = 3
"""Each costs a start; the campaign takes every kind many times."""
WHILE_RUNNING = 10
"""Of each kind."""


def test_every_bit_that_is_turned_over_is_noticed_and_nothing_is_lost(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", seed=21, **damage.OPTIONS) as cluster:
        print(asyncio.run(damage.BitFlips(cluster, "orders").run(WHILE_STOPPED, WHILE_RUNNING)))


def test_files_that_are_lost_under_a_running_member_are_put_back(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", seed=22, **damage.OPTIONS) as cluster:
        print(asyncio.run(losses.FileLosses(cluster, "orders").run(at_start=False)))
