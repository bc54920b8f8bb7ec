"""Real processes, killed and paused under load. Needs the whole service: `python -m quorum node` is started.

A few rounds each; `python tests/processes/campaign.py` (`make campaign`) runs many.
"""

from __future__ import annotations

import asyncio

from quorum.cli.local_cluster import LocalCluster
from support import processes_scenarios as scenarios

KILL_LEADER_ROUNDS = 3
KILL_ALL_ROUNDS = 1


def test_nothing_confirmed_is_lost_when_the_leader_is_killed(cluster: LocalCluster) -> None:
    print(asyncio.run(scenarios.kill_leader(cluster, "orders", KILL_LEADER_ROUNDS)))


def test_nothing_confirmed_is_lost_when_all_are_killed_at_once(cluster: LocalCluster) -> None:
    print(asyncio.run(scenarios.kill_all(cluster, "orders", KILL_ALL_ROUNDS)))


def test_nobody_has_a_message_that_another_was_handed_when_a_node_is_paused(cluster: LocalCluster) -> None:
    print(asyncio.run(scenarios.PausedNode(cluster, "orders").run()))


def test_five_members_go_on_without_two(cluster_of_five: LocalCluster) -> None:
    print(asyncio.run(scenarios.kill_minority(cluster_of_five, "orders")))
