"""The wire version that two members agree on, and what they do with a node that is too old."""

from __future__ import annotations

import pytest
import structlog

from quorum.replication.network.connection import KIND_PING
from quorum.replication.network.handshake import HandshakeError, Identity, Versions
from quorum.replication.network.wire import frame_header
from support.peers.cluster import SECRET, Cluster, friend


def test_both_ends_speak_the_highest_wire_version_that_both_know(cluster: Cluster) -> None:
    one = cluster.add("a", versions=Versions(1, 4, 7))
    other = cluster.add("b", versions=Versions(2, 3, 5))
    cluster.until(lambda: cluster.connected("a", "b"))
    assert (one._up["b"].wire_version, other._up["a"].wire_version) == (3, 3)
    assert (one.version_of("b"), other.version_of("a")) == (5, 7)


KINDS = {5: 1, 9: 2}
"""Kind 9 came with wire version 2."""


def test_a_frame_that_the_other_end_does_not_know_is_not_sent(cluster: Cluster) -> None:
    newer = cluster.add("a", versions=Versions(1, 2), kinds=KINDS)
    cluster.add("b", versions=Versions(1, 1), kinds={5: 1})
    cluster.add("c", versions=Versions(1, 2), kinds=KINDS)
    cluster.until(lambda: all(cluster.connected(one, other) for one, other in ("ab", "ac", "bc")))
    for peer in "bc":
        assert newer.send(peer, 9, [b"new"]) is (peer == "c")
        assert newer.send(peer, 5, [b"old"])
    cluster.until(lambda: len(cluster.frames["b"]) == 1 and len(cluster.frames["c"]) == 2)
    assert cluster.frames["b"] == [("a", 5, b"old")]
    assert cluster.frames["c"] == [("a", 9, b"new"), ("a", 5, b"old")]
    assert newer.stats.lost == 0


def test_the_wire_version_is_agreed_again_when_a_peer_comes_back_with_a_newer_build(cluster: Cluster) -> None:
    newer = cluster.add("a", versions=Versions(1, 2), kinds=KINDS)
    older = cluster.add("b", versions=Versions(1, 1), kinds={5: 1})
    cluster.until(lambda: cluster.connected("a", "b"))
    assert not newer.send("b", 9, [b"new"])
    older.close()
    del cluster.networks["b"]
    cluster.until(lambda: "b" not in newer.links())
    cluster.add("b", boot=2, versions=Versions(1, 2), kinds=KINDS)
    cluster.until(lambda: cluster.connected("a", "b"))
    assert newer.send("b", 9, [b"new"])
    cluster.until(lambda: cluster.frames["b"] == [("a", 9, b"new")])


@pytest.mark.parametrize("kind", [9, 77])
def test_a_frame_that_the_agreed_wire_version_does_not_have_ends_the_connection(
    cluster: Cluster, kind: int
) -> None:
    data = b"".join(frame_header(each, [b"data"])[0] + b"data" for each in (5, kind, 5))
    with structlog.testing.capture_logs() as lines:
        network = cluster.add("a", versions=Versions(1, 2), kinds=KINDS)
        made = friend(cluster, Versions(1, 1))
        made.sendall(data)
        cluster.until(lambda: "b" not in network.links())
    [reason] = [line["reason"] for line in lines if line["event"] == "peer lost"]
    assert reason == f"a frame of kind {kind}, which wire version 1 does not have"
    assert network.stats.bad_frames == 1
    assert cluster.frames["a"] == [("b", 5, b"data")]
    made.close()


def test_a_kind_of_frame_has_an_owner_and_a_number_below_the_networks_own(cluster: Cluster) -> None:
    network = cluster.add("a", kinds=KINDS)
    with pytest.raises(ValueError, match="no kind 6 of frames"):
        network.send("b", 6, [])
    for kind in (-1, KIND_PING, 256):
        with pytest.raises(ValueError, match="0 to 254"):
            network.set_kinds({5: 1, kind: 1})


def test_nodes_without_a_common_wire_version_refuse_each_other(cluster: Cluster) -> None:
    one = cluster.add("a", versions=Versions(3, 4))
    other = cluster.add("b", versions=Versions(1, 2))
    cluster.until(lambda: one.stats.refused_handshakes >= 2)
    assert "b" not in one.links()
    assert "a" not in other.links()
    with pytest.raises(HandshakeError, match="speaks wire versions 1 to 2; this one speaks 3 to 4"):
        Versions(3, 4).wire_with(Versions(1, 2))
    with pytest.raises(HandshakeError, match="speaks wire versions 3 to 4; this one speaks 1 to 2"):
        Versions(1, 2).wire_with(Versions(3, 4))
    listener = Identity("a", 1, SECRET, "test", versions=Versions(3, 4))
    with pytest.raises(HandshakeError, match="speaks wire versions 1 to 2"):
        listener.read(Identity("b", 1, SECRET, "test", versions=Versions(1, 2)).hello("a", bytes(32)))


def test_a_connection_ends_when_its_peer_is_too_old_for_the_switch(cluster: Cluster) -> None:
    one = cluster.add("a", versions=Versions(machine=3))
    other = cluster.add("b", versions=Versions(machine=2))
    cluster.until(lambda: cluster.connected("a", "b"))
    one.require_version(2)
    cluster.poll()
    assert cluster.connected("a", "b")
    one.require_version(3)
    assert "b" not in one.links()
    cluster.until(lambda: min(one.stats.refused_handshakes, other.stats.refused_handshakes) >= 2)
    assert not cluster.connected("a", "b")


def test_both_ends_say_why_a_node_is_too_old() -> None:
    older = Identity("b", 1, SECRET, "test", versions=Versions(machine=2))
    newer = Identity("a", 1, SECRET, "test", versions=Versions(machine=3))
    newer.needed_version = 3
    to_older, to_newer = newer.hello("b", bytes(32)), older.hello("a", bytes(32))
    with pytest.raises(
        HandshakeError, match="switched to machine version 3, and this node knows versions up to 2"
    ):
        older.check_known(older.read(to_older))
    with pytest.raises(
        HandshakeError, match="'b' knows machine versions up to 2, and the cluster has switched to 3"
    ):
        newer.check_known(newer.read(to_newer))


def test_a_hello_of_a_release_without_versions_is_named() -> None:
    listener = Identity("a", 1, SECRET, "test")
    hello = Identity("b", 1, SECRET, "test").hello("a", bytes(32))
    with pytest.raises(HandshakeError, match="a release that this one cannot speak to"):
        listener.read(b"QUORUMP2" + hello[8:])
