"""Real processes, killed and paused under load. Needs the whole service: `python -m quorum node` is started.

A few rounds each; `python tests/processes/campaign.py` (`make campaign`) runs many.
"""

from __future__ import annotations

import asyncio

from quorum.local_cluster.cluster import LocalCluster
from support.processes import features, links, scenarios
from support.processes.cluster import FaultyCluster

ROUNDS = 2


def test_nothing_confirmed_is_lost_when_the_leader_is_killed(cluster: LocalCluster) -> None:
    print(asyncio.run(scenarios.kill_leader(cluster, "leader-killed", ROUNDS)))


def test_nothing_confirmed_is_lost_when_all_are_killed_at_once(cluster: LocalCluster) -> None:
    print(asyncio.run(scenarios.kill_all(cluster, "all-killed", ROUNDS)))


def test_a_paused_leader_confirms_delivers_and_answers_nothing_that_is_no_longer_so(
    cluster: LocalCluster,
) -> None:
    print(asyncio.run(scenarios.PausedNode(cluster, "leader-paused", pauses_leader=True).run()))


def test_everything_that_queues_can_do_survives_the_kill_of_leaders(cluster: LocalCluster) -> None:
    print(asyncio.run(features.kill_leaders(cluster, ROUNDS)))


def test_five_members_go_on_in_halves_and_without_two(cluster_of_five: FaultyCluster) -> None:
    print(asyncio.run(links.partition(cluster_of_five, "halves", ["halves"])))
    print(asyncio.run(scenarios.kill_minority(cluster_of_five, "two-killed")))
