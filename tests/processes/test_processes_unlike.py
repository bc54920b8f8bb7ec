"""Real processes that differ in what must not matter."""

from __future__ import annotations

import asyncio

from support.processes import unlike
from support.processes.cluster import FaultyCluster

ROUNDS = 30


def test_members_with_other_hash_seeds_time_zones_and_locales_are_equal(
    faulty_cluster: FaultyCluster,
) -> None:
    print(asyncio.run(unlike.unlike_members(faulty_cluster, "unlike", ROUNDS)))
