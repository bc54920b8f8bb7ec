"""Which nodes the peers' network lets in, and what it says about the others."""

from __future__ import annotations

import itertools
import random
import socket
import struct
from typing import Any

import pytest
import structlog

from quorum.replication.network import connection as connection_module
from quorum.replication.network.dialing import RESERVE_AFTER_S
from quorum.replication.network.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    NAME_BYTES,
    PROOF_BYTES,
    UNKNOWN,
    HandshakeError,
    Identity,
)
from support.peers.cluster import (
    DEADLINE_S,
    SECRET,
    Cluster,
    dial,
    is_closed,
    pair,
    receive,
    shake_hands_as_b,
)
from support.repository import ROOT

# ---- who gets in


def test_a_wrong_secret_is_refused_on_both_ends(cluster: Cluster) -> None:
    one = cluster.add("a")
    other = cluster.add("b", secret=SECRET[::-1])
    cluster.until(lambda: other.stats.refused_handshakes >= 2)
    assert (one.stats.connected, other.stats.connected) == (0, 0)


def test_another_cluster_is_refused(cluster: Cluster) -> None:
    one = cluster.add("a")
    cluster.add("b", cluster="other")
    cluster.until(lambda: one.stats.refused_handshakes >= 2)
    assert one.stats.connected == 0


def test_a_dialer_without_the_secret_gets_no_further_than_the_proof(cluster: Cluster) -> None:
    network = cluster.add("a")
    fake = Identity("b", 9, SECRET[::-1], "test")
    stranger = dial(cluster)
    hello = fake.hello("a", bytes(32))
    stranger.sendall(hello)
    answer = receive(cluster, stranger, ANSWER_BYTES)
    stranger.sendall(fake.prove(b"dialer", hello, answer[:HELLO_BYTES]))
    cluster.until(lambda: is_closed(cluster, stranger))
    assert "b" not in network.links()
    stranger.close()


def test_a_recorded_handshake_cannot_be_replayed(cluster: Cluster) -> None:
    network = cluster.add("a")
    real = Identity("b", 9, SECRET, "test")
    hello = real.hello("a", bytes(32))
    first = dial(cluster)
    first.sendall(hello)
    answer = receive(cluster, first, ANSWER_BYTES)
    proof = real.prove(b"dialer", hello, answer[:HELLO_BYTES])
    first.sendall(proof)
    cluster.until(lambda: "b" in network.links())
    first.close()
    cluster.until(lambda: "b" not in network.links())
    again = dial(cluster)
    again.sendall(hello)
    assert receive(cluster, again, ANSWER_BYTES) != answer
    again.sendall(proof)
    cluster.until(lambda: is_closed(cluster, again))
    assert network.stats.connected == 1
    again.close()


def test_a_proof_cannot_be_reflected() -> None:
    listener, dialer = Identity("a", 1, SECRET, "test"), Identity("b", 1, SECRET, "test")
    dialed, listened = dialer.hello("a", bytes(32)), listener.hello("b", bytes(32))
    proof = listener.prove(b"listener", dialed, listened)
    dialer.check(proof, b"listener", dialed, listened)
    with pytest.raises(HandshakeError):
        listener.check(proof, b"dialer", dialed, listened)
    with pytest.raises(HandshakeError, match="a hello for 'b', and this node is 'a'"):
        listener.read(listened)


@pytest.mark.parametrize("role", [b"listener", b"dialer"])
def test_a_proof_is_for_the_nonces_of_both_ends(role: bytes) -> None:
    """A recorded answer of a listener is no answer to another hello."""
    listener, dialer = Identity("a", 1, SECRET, "test"), Identity("b", 1, SECRET, "test")
    old, new = bytes(32), b"n" * 32
    dialed, listened = dialer.hello("a", old), listener.hello("b", old)
    proof = listener.prove(role, dialed, listened)
    dialer.check(proof, role, dialed, listened)
    for other in ((dialer.hello("a", new), listened), (dialed, listener.hello("b", new))):
        with pytest.raises(HandshakeError, match="a wrong secret"):
            dialer.check(proof, role, *other)


def test_a_node_that_others_know_with_another_directory_is_told_what_may_be_wrong() -> None:
    node = Identity("a", 1, SECRET, "test", incarnation=b"n" * 16)
    other = Identity("b", 2, SECRET, "test", incarnation=b"o" * 16, known=lambda _: b"k" * 16)
    with pytest.raises(HandshakeError, match="If data_dir names the wrong directory, correct it"):
        node.read(other.hello("a", bytes(32)))


@pytest.mark.parametrize(
    ("emptied", "reason"),
    [
        ("a", "'b' knows 'a' with another data directory"),
        ("b", "'b' has come back with another data directory"),
    ],
)
def test_a_member_that_comes_back_with_another_directory_is_refused(
    cluster: Cluster, emptied: str, reason: str
) -> None:
    """Its promises are lost. b dials a, which says why."""
    first, later = b"f" * 16, b"l" * 16
    keeps = "b" if emptied == "a" else "a"
    with structlog.testing.capture_logs() as lines:
        network = cluster.add(keeps, incarnation=b"k" * 16, known=lambda _: first)
        cluster.add(emptied, incarnation=later)
        cluster.until(lambda: network.stats.refused_handshakes >= 2)
    assert emptied not in network.links()
    assert [line for line in lines if line["node"] == "a" and line["reason"].startswith(reason)]
    cluster.networks.pop(emptied).close()
    cluster.add(emptied, boot=2, incarnation=first)
    cluster.until(lambda: cluster.connected("a", "b"))


def test_only_a_hello_names_a_sender_for_the_log() -> None:
    node = Identity("a", 1, SECRET, "test")
    hello = Identity("b", 1, SECRET, "other").hello("c", bytes(32))
    assert node.sender_of(hello) == "b"
    assert node.sender_of(b"GE" + hello[2:]) is None
    assert node.sender_of(hello.replace(b"b", b"\n")) is None


def test_a_short_secret_is_refused() -> None:
    Identity("a", 1, bytes(32), "test")
    with pytest.raises(ValueError, match="at least 32 bytes, not 31"):
        Identity("a", 1, bytes(31), "test")


@pytest.mark.parametrize(
    ("one", "other", "is_refused"),
    [("a b", "a b", False), ("a b", "a c", True), ("a b", "", False), ("", "a b", False), ("", "", False)],
)
def test_founding_members_have_begun_with_the_same_members(one: str, other: str, is_refused: bool) -> None:
    """A member that joined later names none."""
    node, dialer = Identity("a", 1, SECRET, "test", one), Identity("b", 1, SECRET, "test", other)
    hello = dialer.hello("a", bytes(32))
    if is_refused:
        with pytest.raises(HandshakeError, match="began with other members"):
            node.read(hello)
    else:
        assert node.read(hello).sender == "b"


@pytest.mark.parametrize("name", ["", "x" * 65, "\u00e9" * 33, "a\0b"])
def test_a_name_that_does_not_fit_into_a_hello_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        Identity("a", 1, SECRET, "test").hello(name, bytes(32))


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "\u202eb"])
def test_a_name_that_cannot_be_printed_is_refused_before_it_is_logged(name: str) -> None:
    listener, dialer = Identity("a", 1, SECRET, "test"), Identity(name, 1, SECRET, "test")
    with pytest.raises(HandshakeError, match="printable") as refused:
        listener.read(dialer.hello("a", bytes(32)))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("known", [UNKNOWN, b"k" * 16])
def test_a_stranger_that_resets_behind_its_hello_ends_nothing(cluster: Cluster, known: bytes) -> None:
    network = cluster.add("a", known=lambda _: known)
    for _ in range(5):
        stranger = dial(cluster)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.sendall(Identity("b", 9, SECRET, "test", incarnation=b"o" * 16).hello("a", bytes(32)))
        stranger.close()
    cluster.until(lambda: network.stats.refused_handshakes >= 5)
    cluster.add("b")
    cluster.until(lambda: cluster.connected("a", "b"))


NAMES = [b"b", b"c", b"a", b"stranger", b"", b"\0b", b"b\0b", b"\xff", b"\x1b[2J\n", b"x" * NAME_BYTES]
SENDER_AT = 72


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_a_stranger_sends_before_its_proof_ends_anything(cluster: Cluster, seed: int) -> None:
    random_ = random.Random(seed)
    cluster.add("a", known=lambda peer: b"k" * 16 if peer == "b" else UNKNOWN)
    for _ in range(100):
        hello = bytearray(Identity("b", 9, SECRET, "test").hello("a", bytes(32)))
        assert hello[SENDER_AT : SENDER_AT + 2] == b"b\0"
        hello[SENDER_AT : SENDER_AT + NAME_BYTES] = random_.choice(NAMES).ljust(NAME_BYTES, b"\0")
        if random_.random() < 0.3:
            hello[random_.randrange(len(hello))] ^= 1 << random_.randrange(8)
        data = bytes(hello) + random_.randbytes(random_.choice((0, 0, PROOF_BYTES, 5_000)))
        stranger = dial(cluster)
        if random_.random() < 0.5:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.sendall(data if random_.random() < 0.7 else data[: random_.randrange(len(data))])
        if random_.random() < 0.5:
            cluster.poll()
        stranger.close()
        cluster.poll()
    cluster.add("b")
    cluster.until(lambda: cluster.connected("a", "b"))


@pytest.mark.parametrize("name", ["a", "A", "gone"])
def test_names_that_do_not_dial_here_are_refused(cluster: Cluster, name: str) -> None:
    network = cluster.add("a")
    network.set_peers({"A": cluster.members["b"]}, {}, {"gone"})
    stranger = dial(cluster)
    stranger.sendall(Identity(name, 9, SECRET, "test").hello("a", bytes(32)))
    cluster.until(lambda: is_closed(cluster, stranger))
    assert network.stats.refused_handshakes == 1
    stranger.close()


def test_who_should_dial_and_does_not_know_the_way_is_dialed_after_a_while(cluster: Cluster) -> None:
    elder, newcomer = cluster.add("b"), cluster.add("a")
    elder.set_peers({}, {}, set())
    newcomer.set_peers({}, {"b": cluster.members["b"]}, set())
    began = cluster.now
    cluster.until(lambda: cluster.connected("a", "b"))
    assert cluster.now - began >= RESERVE_AFTER_S
    # it learns the way meanwhile: the connection stays
    elder.set_peers({"a": cluster.members["a"]}, {}, set())
    end = cluster.now + 3 * RESERVE_AFTER_S
    cluster.until(lambda: cluster.now >= end, passes_s=0.1)
    assert (elder.stats.connected, newcomer.stats.connected, elder.stats.refused_handshakes) == (1, 1, 0)


def test_who_knows_the_way_dials_first_and_alone(cluster: Cluster) -> None:
    elder, newcomer = cluster.add("b"), cluster.add("a")
    elder.set_peers({"a": cluster.members["a"]}, {}, set())
    newcomer.set_peers({}, {"b": cluster.members["b"]}, set())
    began = cluster.now
    cluster.until(lambda: cluster.connected("a", "b"))
    assert cluster.now - began < RESERVE_AFTER_S
    end = cluster.now + 3 * RESERVE_AFTER_S
    cluster.until(lambda: cluster.now >= end, passes_s=0.1)
    assert (elder.stats.connected, newcomer.stats.connected, elder.stats.refused_handshakes) == (1, 1, 0)


def test_a_member_that_is_gone_is_dropped_and_stays_away(cluster: Cluster) -> None:
    one, other = pair(cluster)
    one.set_peers({}, {}, {"b"})
    cluster.until(lambda: "a" not in other.links())
    cluster.until(lambda: one.stats.refused_handshakes >= 2)
    assert one.stats.connected == 1


def test_an_earlier_boot_does_not_replace_a_connection(cluster: Cluster) -> None:
    network = cluster.add("a")
    cluster.add("b", boot=7)
    cluster.until(lambda: cluster.connected("a", "b"))
    old = Identity("b", 6, SECRET, "test")
    stranger = dial(cluster)
    hello = old.hello("a", bytes(32))
    stranger.sendall(hello)
    answer = receive(cluster, stranger, ANSWER_BYTES)
    stranger.sendall(old.prove(b"dialer", hello, answer[:HELLO_BYTES]))
    cluster.until(lambda: is_closed(cluster, stranger))
    assert network.stats.lost == 0
    stranger.close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n" * 40, bytes(HELLO_BYTES), b"\xff" * HELLO_BYTES])
def test_garbage_is_refused(cluster: Cluster, garbage: bytes) -> None:
    network = cluster.add("a")
    stranger = dial(cluster)
    stranger.sendall(garbage)
    cluster.until(lambda: is_closed(cluster, stranger))
    assert network.stats.refused_handshakes == 1
    stranger.close()


def test_a_handshake_may_not_take_long(cluster: Cluster) -> None:
    network = cluster.add("a")
    slow = dial(cluster)
    cluster.until(lambda: len(network._strangers) == 1)
    began = cluster.now
    for byte in Identity("b", 9, SECRET, "test").hello("a", bytes(32))[:20]:
        slow.sendall(bytes([byte]))
        cluster.poll()
    cluster.until(lambda: is_closed(cluster, slow))
    assert cluster.now - began < 2 * connection_module.HANDSHAKE_LIMIT_S
    slow.close()


def test_strangers_are_few_at_a_time_and_members_still_get_in(cluster: Cluster) -> None:
    network = cluster.add("a")
    crowd = [dial(cluster) for _ in range(connection_module.MAX_STRANGERS + 10)]
    cluster.until(lambda: network.stats.refused_handshakes >= 10)
    assert len(network._strangers) <= connection_module.MAX_STRANGERS
    cluster.add("b")
    cluster.until(lambda: cluster.connected("a", "b"))
    for each in crowd:
        each.close()


def test_a_flood_of_one_address_does_not_end_the_handshake_of_a_member(cluster: Cluster) -> None:
    network = cluster.add("a")
    early = dial(cluster)
    cluster.until(lambda: len(network._strangers) == 1)
    place = cluster.members["a"]
    crowd = [
        socket.create_connection(place, DEADLINE_S, ("127.0.0.2", 0))
        for _ in range(connection_module.MAX_STRANGERS + 10)
    ]
    cluster.until(lambda: network.stats.refused_handshakes >= 10)
    shake_hands_as_b(cluster, early)
    for each in (early, *crowd):
        each.close()


# ---- what is known of a refused member


def test_another_node_at_the_address_of_a_member_is_told_once_a_minute(cluster: Cluster) -> None:
    """As when a node with an emptied directory waits to be added: b dials a, and d is there."""
    cluster._sockets["d"], cluster.members["d"] = cluster._sockets.pop("a"), cluster.members["a"]
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    told: dict[str, list[float]] = {"b": [], "d": []}

    def note(logger: Any, level: str, line: Any) -> Any:
        said = (line["node"], line.get("peer"), line.get("reason"))
        if said in (("b", "a", "closed in the handshake"), ("d", "b", refused)):
            told[line["node"]].append(cluster.now)
        raise structlog.DropEvent

    refused = "a hello for 'a', and this node is 'd'"
    assert "a hello for 'node-1', and this node is" in page
    structlog.configure(processors=[note])
    try:
        cluster.add("b")
        network = cluster.add("d")
        began = cluster.now
        cluster.until(lambda: cluster.now > began + 150.0, passes_s=0.25)
    finally:
        structlog.reset_defaults()
    assert network.stats.refused_handshakes > 30
    for times in told.values():
        assert len(times) == 3
        assert all(later - earlier >= 60.0 for earlier, later in itertools.pairwise(times))


def test_a_peer_that_both_ends_dial_is_no_warning(cluster: Cluster) -> None:
    """A member that has joined dials one that was down. It refuses the connection, because it dials itself."""
    with structlog.testing.capture_logs() as lines:
        one, other = cluster.add("a"), cluster.add("b")
        one.set_peers({}, {"b": cluster.members["b"]}, ())
        other._dials["a"].next_s = float("inf")
        cluster.until(lambda: one.stats.refused_handshakes == other.stats.refused_handshakes == 1)
        other._dials["a"].next_s = 0.0
        cluster.until(lambda: cluster.connected("a", "b"))
    assert {line["log_level"] for line in lines} == {"info"}
    assert "'a' does not dial this node, which dials it" in {line.get("reason") for line in lines}


@pytest.mark.parametrize(
    ("secret", "cluster_name", "listener_says", "dialer_says"),
    [
        (b"x" * 32, "test", "closed in the handshake", "a wrong secret"),
        (SECRET, "other", "a node of another cluster", "closed in the handshake"),
    ],
)
def test_a_refused_member_is_known_at_both_ends_until_it_is_silent(
    cluster: Cluster, secret: bytes, cluster_name: str, listener_says: str, dialer_says: str
) -> None:
    """So neither end takes it for one that does not run. b dials a."""
    with structlog.testing.capture_logs() as lines:
        listener = cluster.add("a")
        dialer = cluster.add("b", secret=secret, cluster=cluster_name)
        cluster.until(lambda: listener.is_refused("b") and dialer.is_refused("a"))
    said = {line["node"]: (line["peer"], line["reason"]) for line in lines}
    for name, peer, reason in (("a", "b", listener_says), ("b", "a", dialer_says)):
        assert said[name][0] == peer
        assert said[name][1].startswith(reason)
    assert not listener.is_refused("c"), "it does not run"
    cluster.networks.pop("b").close()
    cluster.until(lambda: not listener.is_refused("b"), passes_s=0.25)


def test_a_member_that_is_refused_no_more_is_connected(cluster: Cluster) -> None:
    listener = cluster.add("a")
    cluster.add("b", cluster="other")
    cluster.until(lambda: listener.is_refused("b"))
    cluster.networks.pop("b").close()
    cluster.add("b", boot=2)
    cluster.until(lambda: cluster.connected("a", "b"))
    assert not listener.is_refused("b")


def test_a_member_that_is_silent_in_the_handshake_is_not_refused(cluster: Cluster) -> None:
    """As one whose process was paused: its machine accepts connections."""
    with cluster._sockets.pop("a"):
        dialer = cluster.add("b")
        cluster.until(lambda: dialer.stats.refused_handshakes == 1, passes_s=0.25)
        assert not dialer.is_refused("a")
