"""Real processes on disks with faults: power cuts, errors, slowness. A few rounds; the campaign runs many."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support import processes_disks as disks
from support.processes_cluster import FaultyCluster

ROUNDS = 3


def test_nothing_confirmed_is_lost_when_the_power_of_all_is_cut(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(disks.cut_all(faulty_cluster, "all-cut", ROUNDS)))


def test_nothing_confirmed_is_lost_when_the_power_of_one_is_cut(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(disks.cut_one(faulty_cluster, "one-cut", 1)))


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


def test_slow_disks_do_not_stop_the_cluster(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(disks.slow_disk(faulty_cluster, "slow-disk", [0.2])))


def test_a_full_disk_refuses_publishes_alone_and_recovers_without_a_restart(tmp_path: Path) -> None:
    options = {"segment_bytes": disks.FULL_SEGMENT_BYTES, "settings": disks.FULL_SETTINGS}
    with FaultyCluster(tmp_path / "cluster", seed=8, **options) as cluster:
        print(asyncio.run(disks.disk_full(cluster, "orders", disks.FULL_ROOM_BYTES)))


def test_nothing_that_the_only_disk_failed_to_sync_was_confirmed(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", members=1, seed=6) as cluster:
        print(asyncio.run(disks.only_disk_fails(cluster, "orders", ["sync", "write"])))


def test_a_power_cut_takes_away_what_a_disk_only_claims_to_have_synced(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", seed=4) as cluster:
        print(asyncio.run(disks.lying_disks_are_noticed(cluster, "orders")))
