"""Real processes whose links are cut, and clients whose connections are. A few rounds; the campaign runs many."""

from __future__ import annotations

import asyncio

import pytest

from support import processes_links as links
from support.processes_cluster import FaultyCluster

FLAPS = 4


@pytest.mark.parametrize("shape", ["leader_alone", "bridge", "deaf_leader"])
def test_the_cluster_goes_on_in_a_partition_and_whoever_has_no_majority_refuses(
    faulty_cluster: FaultyCluster, shape: str
) -> None:
    print(asyncio.run(links.partition(faulty_cluster, shape, [shape])))


def test_flapping_links_lose_nothing(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(links.flapping(faulty_cluster, "flapping", FLAPS)))


def test_publishing_again_after_cut_connections_repeats_nothing(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(links.cut_clients(faulty_cluster, "connections-cut", kills=1)))
