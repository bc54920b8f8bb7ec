"""Members that come, go, lose their disks and are drained, as real processes and under load."""

from __future__ import annotations

import asyncio

from quorum.local_cluster.cluster import LocalCluster
from support.processes import membership


def test_nothing_confirmed_is_lost_while_members_come_and_go(cluster: LocalCluster) -> None:
    print(asyncio.run(membership.members_come_and_go(cluster, "orders")))


def test_a_member_that_was_away_is_found_by_a_leader_that_joined(cluster: LocalCluster) -> None:
    asyncio.run(membership.away_while_one_joins(cluster))


def test_a_drained_member_and_a_stopping_one_hand_over_first(cluster: LocalCluster) -> None:
    print(asyncio.run(membership.drained_and_stopped(cluster, "orders")))
