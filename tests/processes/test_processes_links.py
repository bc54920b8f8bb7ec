"""Real processes whose links are cut, and clients whose connections are. A few rounds; the campaign runs many."""

from __future__ import annotations

import asyncio

from support.processes import links
from support.processes.cluster import FaultyCluster

FLAPS = 4


SHAPES = ["leader_alone", "deaf_leader"]
"""The simulation has the others, too; a connection of which one way is silent needs real sockets."""


def test_the_cluster_goes_on_in_a_partition_and_whoever_has_no_majority_refuses(
    faulty_cluster: FaultyCluster,
) -> None:
    print(asyncio.run(links.partition(faulty_cluster, "partitions", SHAPES)))


def test_flapping_links_lose_nothing(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(links.flapping(faulty_cluster, "flapping", FLAPS)))


def test_publishing_again_after_cut_connections_repeats_nothing(faulty_cluster: FaultyCluster) -> None:
    print(asyncio.run(links.cut_clients(faulty_cluster, "connections-cut", kills=1)))
