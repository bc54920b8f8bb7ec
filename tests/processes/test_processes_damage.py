"""Bits turned over in the files of a real member. 24 places; the campaign takes 1,000."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support import processes_damage as damage
from support.processes_cluster import FaultyCluster

WHILE_STOPPED = 4
"""Each costs a start; the campaign takes every kind many times."""
WHILE_RUNNING = 20


def test_every_bit_that_is_turned_over_is_noticed_and_nothing_is_lost(tmp_path: Path) -> None:
    sizes = {"segment_bytes": damage.SEGMENT_BYTES, "snapshot_bytes": damage.SNAPSHOT_BYTES}
    with FaultyCluster(tmp_path / "cluster", seed=21, **sizes) as cluster:
        print(asyncio.run(damage.BitFlips(cluster, "orders").run(WHILE_STOPPED, WHILE_RUNNING)))
