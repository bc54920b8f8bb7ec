"""Real processes whose links are cut, and clients whose connections are. A few rounds; the campaign runs many."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support import processes_links as links
from support.processes_cluster import FaultyCluster


def test_three_members_go_on_in_every_partition_that_leaves_a_majority(tmp_path: Path) -> None:
    shapes = ["leader_alone", "follower_alone", "bridge", "deaf_leader", "mute_leader"]
    with FaultyCluster(tmp_path / "cluster", seed=11, with_proxies=True) as cluster:
        print(asyncio.run(links.partition(cluster, "orders", shapes)))


def test_five_members_go_on_in_halves_and_in_a_ring_of_majorities(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", members=5, seed=12, with_proxies=True) as cluster:
        print(asyncio.run(links.partition(cluster, "orders", ["halves", "ring"])))


def test_flapping_links_lose_nothing(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", seed=13, with_proxies=True) as cluster:
        print(asyncio.run(links.flapping(cluster, "orders", links.FLAPS)))


def test_publishing_again_after_cut_connections_repeats_nothing(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", seed=14) as cluster:
        print(asyncio.run(links.cut_clients(cluster, "orders", kills=1)))
