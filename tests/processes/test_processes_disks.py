"""Real processes on disks with faults: power cuts, errors, slowness. A few rounds; the campaign runs many."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.processes import disks
from support.processes.cluster import FaultyCluster

ROUNDS = 2


def test_nothing_confirmed_is_lost_when_the_power_of_all_is_cut(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(disks.cut_all(faulty_cluster, "all-cut", ROUNDS)))


@pytest.mark.parametrize(
    ("pauses", "cuts_leader"), [(False, False), (True, True)], ids=["part-kill", "pause-kill"]
)
def test_nothing_is_lost_when_the_new_majority_is_one_that_lagged_and_one_whose_power_was_cut(
    faulty_cluster: FaultyCluster, pauses: bool, cuts_leader: bool
) -> None:
    scenario = disks.cut_while_one_lags(
        faulty_cluster, f"lagging-{pauses}", pauses=pauses, cuts_leader=cuts_leader
    )
    print(asyncio.run(scenario))


def test_a_member_whose_disk_fails_stops_at_once_and_the_others_go_on(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(disks.disk_fails(faulty_cluster, "disk-fails", ["sync"])))


def test_slow_disks_do_not_stop_the_cluster_and_a_slow_leader_hands_over(
    faulty_cluster: FaultyCluster,
) -> None:
    print(asyncio.run(disks.slow_disk(faulty_cluster, "slow-disk", [0.2])))


def test_nothing_that_the_only_disk_failed_to_sync_was_confirmed(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", members=1, seed=6) as cluster:
        print(asyncio.run(disks.only_disk_fails(cluster, "orders", ["sync"])))
