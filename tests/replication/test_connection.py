"""The peers' network on real sockets of this machine: who gets in, what comes through, what keeps a link alive.

Each network is polled by the test itself, without waiting, until what is awaited has come; DEADLINE_S only ends a test
that hangs.
"""

from __future__ import annotations

import itertools
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from quorum.cli.commands.certificates import create
from quorum.log.record import crc32c, extend_crc32c
from quorum.replication.errors import WireError
from quorum.replication.network import connection as connection_module
from quorum.replication.network.connection import KIND_PING, RESERVE_AFTER_S, PeerNetwork
from quorum.replication.network.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    NAME_BYTES,
    PROOF_BYTES,
    THIS_BUILD,
    UNKNOWN,
    HandshakeError,
    Identity,
    Versions,
)
from quorum.replication.network.tls import TlsChannel, TlsSecurity, end_of
from quorum.replication.network.wire import MAX_FRAME_BYTES, FrameReader, Security, SendQueue, frame_header
from support.hostile.certificates import issue
from support.repository import ROOT

DEADLINE_S = 60.0
SECRET = b"0123456789abcdef0123456789abcdef"
ALL_KINDS = dict.fromkeys(range(KIND_PING), 1)


class Cluster:
    """Networks on free ports of this machine, with a clock that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.networks: dict[str, PeerNetwork] = {}
        self.frames: dict[str, list[tuple[str, int, bytes]]] = {}
        self._sockets = {name: listening(("127.0.0.1", 0)) for name in ("a", "b", "c")}
        self.members = {name: each.getsockname()[:2] for name, each in self._sockets.items()}
        self._held = [holding(address) for address in self.members.values()]

    def add(
        self,
        name: str,
        *,
        secret: bytes = SECRET,
        cluster: str = "test",
        boot: int = 1,
        known: Callable[[str], bytes] = lambda _: UNKNOWN,
        network_class: type[PeerNetwork] = PeerNetwork,
        versions: Versions = THIS_BUILD,
        kinds: Mapping[int, int] = ALL_KINDS,
        security: Security | None = None,
    ) -> PeerNetwork:
        listener = self._sockets.pop(name, None)
        if listener is None:
            listener = listening(self.members[name])
        made = network_class(
            Identity(name, boot, secret, cluster, known=known, versions=versions),
            self.members,
            clock=lambda: self.now,
            listener=listener,
            security=security,
        )
        made.set_kinds(kinds)
        self.networks[name] = made
        self.frames[name] = []
        return made

    def poll(self) -> None:
        for name, network in self.networks.items():
            network.flush()
            self.frames[name] += network.poll(0.0)

    def until(self, done: Callable[[], bool], *, passes_s: float = 0.01) -> None:
        limit = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < limit, "nothing came of it"
            self.now += passes_s
            self.poll()
            time.sleep(0.001)

    def connected(self, one: str, other: str) -> bool:
        return self.networks[one].connected(other) and self.networks[other].connected(one)

    def close(self) -> None:
        for network in self.networks.values():
            network.close()
        for each in (*self._sockets.values(), *self._held):
            each.close()


def listening(address: tuple[str, int]) -> socket.socket:
    return socket.create_server(address, reuse_port=True)


def holding(address: tuple[str, int]) -> socket.socket:
    """Nothing else gets this port while no network listens there."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(address)
    return made


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def pair(cluster: Cluster) -> tuple[PeerNetwork, PeerNetwork]:
    one, other = cluster.add("a"), cluster.add("b")
    cluster.until(lambda: cluster.connected("a", "b"))
    return one, other


def dial(cluster: Cluster, name: str = "a") -> socket.socket:
    made = socket.create_connection(cluster.members[name], timeout=DEADLINE_S)
    made.settimeout(DEADLINE_S)
    return made


def receive(cluster: Cluster, stranger: socket.socket, count: int) -> bytes:
    stranger.setblocking(False)
    data = b""
    limit = time.monotonic() + DEADLINE_S
    while len(data) < count and time.monotonic() < limit:
        cluster.poll()
        try:
            part = stranger.recv(count - len(data))
        except BlockingIOError:
            time.sleep(0.001)
            continue
        if not part:
            break
        data += part
    return data


def is_closed(cluster: Cluster, stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    cluster.poll()
    try:
        return stranger.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


# ---- what comes through


def test_three_members_connect_and_exchange_frames(cluster: Cluster) -> None:
    for name in "abc":
        cluster.add(name)
    cluster.until(lambda: all(cluster.connected(one, other) for one, other in ("ab", "ac", "bc")))
    big = random.Random(1).randbytes(5 << 20)
    for sender in "abc":
        for receiver in "abc":
            if sender != receiver:
                cluster.networks[sender].send(receiver, 0, [b"\1\0\0\0", sender.encode()])
                cluster.networks[sender].send(receiver, 3, [big, b"", sender.encode()])
                cluster.networks[sender].send(receiver, 4, [])
    cluster.until(lambda: all(len(frames) == 6 for frames in cluster.frames.values()))
    for name, frames in cluster.frames.items():
        for sender in set("abc") - {name}:
            from_sender = [(kind, data) for peer, kind, data in frames if peer == sender]
            tail = sender.encode()
            assert from_sender == [(0, b"\1\0\0\0" + tail), (3, big + tail), (4, b"")]


def test_many_frames_of_all_sizes_keep_their_order(cluster: Cluster) -> None:
    one, _ = pair(cluster)
    chance = random.Random(2)
    sent = [chance.randbytes(chance.choice((0, 1, 8, 9, 10, 100, 5000, 300_000))) for _ in range(300)]
    for data in sent:
        one.send("b", 7, [data[:3], data[3:]])
        if chance.random() < 0.1:
            cluster.poll()
    cluster.until(lambda: len(cluster.frames["b"]) == len(sent))
    assert [data for _, _, data in cluster.frames["b"]] == sent


def test_without_a_connection_frames_are_gone(cluster: Cluster) -> None:
    network = cluster.add("a")
    assert not network.send("b", 0, [b"x"])
    assert not network.connected("b")
    with pytest.raises(ValueError, match="kind"):
        network.send("b", KIND_PING, [])


def test_what_waits_for_a_peer_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair(cluster)
    monkeypatch.setattr(connection_module, "MAX_QUEUED_BYTES", 1 << 20)
    while one.connected("b"):
        one.send("b", 1, [bytes(100_000)])  # nobody writes or reads meanwhile
    assert one.stats.overflows == one.event_counts()["overflow"] == 1
    assert one.stats.lost == 1
    cluster.until(lambda: cluster.connected("a", "b"))
    one.send("b", 1, [b"after"])
    cluster.until(lambda: ("a", 1, b"after") in cluster.frames["b"])


def test_a_member_that_starts_again_is_connected_again(cluster: Cluster) -> None:
    one, other = pair(cluster)
    assert (one.links(), other.links()) == (["b"], ["a"])
    other.close()
    del cluster.networks["b"]
    cluster.until(lambda: not one.connected("b"))
    other = cluster.add("b", boot=2)
    cluster.until(lambda: cluster.connected("a", "b"))
    assert (one.stats.lost, one.stats.connected) == (1, 2)
    other.close()
    del cluster.networks["b"]
    one.close()
    one = cluster.add("a", boot=5)
    cluster.add("b", boot=3)
    cluster.until(lambda: cluster.connected("a", "b"))


def test_members_may_be_given_by_name(cluster: Cluster) -> None:
    cluster.members["a"] = ("localhost", cluster.members["a"][1])
    pair(cluster)


def test_wake_ends_a_wait_from_another_thread(cluster: Cluster) -> None:
    network = cluster.add("a")
    waker = threading.Timer(0.05, network.wake)
    waker.start()
    began = time.monotonic()
    assert network.poll(DEADLINE_S) == []
    assert time.monotonic() - began < DEADLINE_S / 2
    waker.join()
    for _ in range(100_000):
        network.wake()  # a full pipe is no error


# ---- D13: idle links


class Silent(PeerNetwork):
    """Keeps no link alive."""

    ping_after_s = float("inf")


@pytest.mark.parametrize(("network_class", "survives"), [(Silent, False), (PeerNetwork, True)])
def test_d13_an_idle_link_stays_open(
    cluster: Cluster, network_class: type[PeerNetwork], survives: bool
) -> None:
    for name in "ab":
        cluster.add(name, network_class=network_class)
    cluster.until(lambda: cluster.connected("a", "b"))
    lost = cluster.networks["a"].stats
    end = cluster.now + 20.0
    cluster.until(lambda: cluster.now >= end, passes_s=0.2)
    assert (lost.lost == 0) is survives
    if survives:
        cluster.networks["a"].send("b", 0, [b"vote for me"])
        cluster.until(lambda: cluster.frames["b"] == [("a", 0, b"vote for me")])


def test_a_peer_that_says_nothing_any_more_is_given_up(cluster: Cluster) -> None:
    one, _ = pair(cluster)
    del_b = cluster.networks.pop("b")  # its process hangs: nobody polls it
    cluster.until(lambda: not one.connected("b"), passes_s=0.2)
    del_b.close()


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
    assert not network.connected("b")
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
    cluster.until(lambda: network.connected("b"))
    first.close()
    cluster.until(lambda: not network.connected("b"))
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


def test_a_node_that_others_know_with_another_directory_is_told_what_may_be_wrong() -> None:
    node = Identity("a", 1, SECRET, "test", incarnation=b"n" * 16)
    other = Identity("b", 2, SECRET, "test", incarnation=b"o" * 16, known=lambda _: b"k" * 16)
    with pytest.raises(HandshakeError, match="If data_dir names the wrong directory, correct it"):
        node.read(other.hello("a", bytes(32)))


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
    cluster.until(lambda: not other.connected("a"))
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


# ---- what an authenticated peer may send


def friend(cluster: Cluster) -> socket.socket:
    """A connection as b that has proved itself, to send anything on."""
    made = dial(cluster)
    shake_hands_as_b(cluster, made)
    return made


def shake_hands_as_b(cluster: Cluster, made: socket.socket) -> None:
    identity = Identity("b", 9, SECRET, "test")
    hello = identity.hello("a", bytes(32))
    made.sendall(hello)
    answer = receive(cluster, made, ANSWER_BYTES)
    made.sendall(identity.prove(b"dialer", hello, answer[:HELLO_BYTES]))
    cluster.until(lambda: cluster.networks["a"].connected("b"))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<IBI", MAX_FRAME_BYTES + 1, 1, 0),
        struct.pack("<IBI", 4, 1, 12345) + b"data",
        struct.pack("<IBI", 4, 2, extend_crc32c(crc32c(struct.pack("<IB", 4, 1)), b"data")) + b"data",
    ],
    ids=["too long", "wrong CRC", "wrong kind"],
)
def test_a_bad_frame_ends_the_connection(cluster: Cluster, data: bytes) -> None:
    network = cluster.add("a")
    made = friend(cluster)
    good, _ = frame_header(5, [b"good"])
    made.sendall(good + b"good" + data)
    cluster.until(lambda: not network.connected("b"))
    assert network.stats.bad_frames == network.event_counts()["bad_frame"] == 1
    assert cluster.frames["a"] == [("b", 5, b"good")]
    made.close()


def test_frames_arrive_however_the_bytes_are_cut(cluster: Cluster) -> None:
    network = cluster.add("a")
    made = friend(cluster)
    chance = random.Random(3)
    sent = [chance.randbytes(chance.choice((0, 1, 20, 3000))) for _ in range(30)]
    stream = b"".join(frame_header(1, [data])[0] + data for data in sent)
    at = 0
    while at < len(stream):
        length = chance.choice((1, 2, 5, 8, 9, 10, 100, 5000))
        made.setblocking(True)
        made.sendall(stream[at : at + length])
        at += length
        cluster.poll()
    cluster.until(lambda: len(cluster.frames["a"]) == len(sent))
    assert [data for _, _, data in cluster.frames["a"]] == sent
    assert network.stats.bad_frames == 0
    made.close()


class Pieces:
    """A channel that gives and takes a few bytes at a time."""

    is_ready, has_buffered, has_unsent, is_begun = True, False, False, True

    def __init__(self, seed: int) -> None:
        self.data = bytearray()
        self._chance = random.Random(seed)

    def recv_into(self, buffer: bytearray | memoryview) -> int | None:
        if not self.data:
            return None
        count = min(len(self.data), len(buffer), self._chance.randint(1, 40))
        memoryview(buffer)[:count] = self.data[:count]
        del self.data[:count]
        return count

    def send(self, parts: list[bytes | bytearray | memoryview]) -> int | None:
        whole = b"".join(parts)
        count = self._chance.randint(0, min(len(whole), 50))
        if count:
            self.data += whole[:count]
        return count or None

    def flush(self) -> bool:
        return True


@pytest.mark.parametrize("seed", range(20))
def test_frames_survive_any_partial_reads_and_writes(seed: int) -> None:
    chance = random.Random(seed)
    channel = Pieces(seed)
    queue, reader = SendQueue(channel), FrameReader(channel, bytearray(64))
    sent = [(chance.randrange(255), chance.randbytes(chance.choice((0, 1, 30, 200)))) for _ in range(40)]
    frames: list[tuple[int, bytes]] = []
    for kind, data in sent:
        queue.add_frame(kind, [data[:7], data[7:]])
    while queue.waiting_bytes or channel.data:
        queue.write()
        while reader.read(frames):
            pass
    assert frames == sent


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_frames_or_a_wire_error(seed: int) -> None:
    chance = random.Random(seed)
    channel = Pieces(seed)
    channel.data += bytes(chance.choice((0, 0, 0, 1, 9, chance.randrange(256))) for _ in range(400))
    reader = FrameReader(channel, bytearray(64))
    frames: list[tuple[int, bytes]] = []
    try:
        while reader.read(frames):
            pass
    except WireError:
        pass
    assert all(frame_header(kind, [data]) for kind, data in frames)


# ---- TLS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of two authorities, in the folders "own" and "other"."""
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("own", "other"):
        create(["a", "b"], folder / authority, 30)
    return folder


def tls(made: Path, name: str, authority: str = "own") -> TlsSecurity:
    folder = made / authority
    return TlsSecurity(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


@pytest.mark.parametrize("size", [0, 1, 16_000, 16_384, 70_000, 5_000_000])
def test_frames_of_any_size_come_through_tls_in_both_directions(
    cluster: Cluster, made: Path, size: int
) -> None:
    for name in "ab":
        cluster.add(name, security=tls(made, name))
    cluster.until(lambda: cluster.connected("a", "b"))
    sent = [bytes([number]) * size for number in range(4)]
    for one, other in (("a", "b"), ("b", "a")):
        for data in sent:
            assert cluster.networks[one].send(other, 3, [data[:9], data[9:]])
    cluster.until(lambda: all(len(cluster.frames[name]) == len(sent) for name in "ab"))
    for name in "ab":
        assert [data for _, _, data in cluster.frames[name]] == sent
        assert cluster.networks[name].stats.bad_frames == 0


def test_many_small_frames_come_through_tls(cluster: Cluster, made: Path) -> None:
    for name in "ab":
        cluster.add(name, security=tls(made, name))
    cluster.until(lambda: cluster.connected("a", "b"))
    for number in range(20_000):
        cluster.networks["a"].send("b", 3, [number.to_bytes(4, "little")])
    cluster.until(lambda: len(cluster.frames["b"]) == 20_000)
    assert [int.from_bytes(data, "little") for _, _, data in cluster.frames["b"]] == list(range(20_000))


def test_a_member_without_tls_or_of_another_authority_is_not_connected(cluster: Cluster, made: Path) -> None:
    cluster.add("a", security=tls(made, "a"))
    cluster.add("b", security=tls(made, "b", "other"))
    cluster.add("c")
    refused = cluster.networks["a"].stats
    cluster.until(lambda: refused.refused_handshakes >= 4)
    assert cluster.networks["a"].links() == []


def test_the_secret_is_asked_for_inside_tls(cluster: Cluster, made: Path) -> None:
    cluster.add("a", security=tls(made, "a"))
    cluster.add("b", security=tls(made, "b"), secret=SECRET[::-1])
    cluster.until(
        lambda: (
            cluster.networks["a"].stats.refused_handshakes + cluster.networks["b"].stats.refused_handshakes
            > 1
        )
    )
    assert not cluster.connected("a", "b")


def test_nothing_is_read_before_the_handshake_of_tls(cluster: Cluster, made: Path) -> None:
    network = cluster.add("a", security=tls(made, "a"))
    with socket.create_connection(network.address) as rubbish:
        rubbish.sendall(bytes(range(256)) * 40)
        cluster.until(lambda: network.stats.refused_handshakes == 1)
        rubbish.settimeout(DEADLINE_S)
        answer = rubbish.recv(100)
        assert answer == b"" or answer[:1] == b"\x15", "nothing, or an alert of TLS"


def test_an_idle_connection_with_tls_is_not_polled_for_ever(cluster: Cluster, made: Path) -> None:
    """While one end is silent in the handshake, and afterwards, no event wakes the loop."""
    network = cluster.add("a", security=tls(made, "a"))
    with socket.create_connection(network.address):
        cluster.poll()
        cluster.poll()
        assert network._selector.select(0) == []
    cluster.add("b", security=tls(made, "b"))
    cluster.until(lambda: cluster.connected("a", "b"))
    for _ in range(5):
        cluster.poll()
    assert all(each._selector.select(0) == [] and not each._buffered for each in cluster.networks.values())


def test_renewed_certificates_are_used_for_new_connections(cluster: Cluster, tmp_path: Path) -> None:
    create(["a", "b"], tmp_path / "own", 30)
    for name in "ab":
        cluster.add(name, security=tls(tmp_path, name))
    cluster.until(lambda: cluster.connected("a", "b"))
    create(["a"], tmp_path / "own", 30)
    (tmp_path / "own" / "b.pem").write_text("rubbish")  # its last good certificate stays in use
    connection = cluster.networks["a"]._up["b"]
    connection.socket.shutdown(socket.SHUT_RDWR)
    cluster.until(lambda: cluster.networks["a"].stats.lost == 1)
    cluster.until(lambda: cluster.connected("a", "b"))


@pytest.mark.parametrize(
    ("wrong", "connects"),
    [
        ({}, True),
        ({"host": "any.name"}, True),
        ({"first_day": -3, "last_day": -1}, False),
        ({"first_day": 1, "last_day": 3}, False),
        ({"for_server": False}, False),
        ({"for_client": False}, False),
    ],
    ids=["right", "any name", "expired", "not yet valid", "only for clients", "only for servers"],
)
@pytest.mark.parametrize("holder", ["a", "b"])
def test_a_member_whose_certificate_is_wrong_is_not_connected(
    cluster: Cluster, made: Path, tmp_path: Path, holder: str, wrong: dict[str, Any], connects: bool
) -> None:
    """b dials a. A certificate that is only for one of both roles is refused in the other one."""
    own = made / "own"
    bad = TlsSecurity(*issue(own, tmp_path, **wrong), own / "ca.pem")
    role = {"a": "for_client", "b": "for_server"}[holder]
    for name in "ab":
        cluster.add(name, security=bad if name == holder else tls(made, name))
    if connects or role in wrong:
        cluster.until(lambda: cluster.connected("a", "b"))
        return
    stats = [network.stats for network in cluster.networks.values()]
    cluster.until(lambda: sum(each.refused_handshakes for each in stats) >= 4)
    assert not cluster.connected("a", "b")


@pytest.mark.parametrize("kind", ["none", "of the clients' authority", "of a member's own making", "TLS 1.2"])
def test_a_stranger_on_the_peers_port_does_not_finish_the_handshake_of_tls(
    cluster: Cluster, made: Path, tmp_path: Path, kind: str
) -> None:
    network = cluster.add("a", security=tls(made, "a"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if kind == "of the clients' authority":
        context.load_cert_chain(made / "other" / "b.pem", made / "other" / "b.key")
    elif kind == "of a member's own making":
        (tmp_path / "ca.pem").write_bytes((made / "own" / "b.pem").read_bytes())
        (tmp_path / "ca.key").write_bytes((made / "own" / "b.key").read_bytes())
        certificate, key = issue(tmp_path, tmp_path / "made")
        chain = tmp_path / "chain.pem"
        chain.write_bytes(certificate.read_bytes() + (tmp_path / "ca.pem").read_bytes())
        context.load_cert_chain(chain, key)
    elif kind == "TLS 1.2":
        context.load_cert_chain(made / "own" / "b.pem", made / "own" / "b.key")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    connection = socket.create_connection(network.address)
    connection.setblocking(False)
    stranger = TlsChannel(connection, context, is_dialer=True)

    def is_refused() -> bool:
        try:
            stranger.send([b"hello"])
            return stranger.recv_into(bytearray(100)) == 0
        except OSError:
            return True

    cluster.until(is_refused)
    cluster.until(lambda: network.stats.refused_handshakes == 1)
    connection.close()


SECURITIES = {
    "own": lambda made, name, folder: tls(made, name),
    "other": lambda made, name, folder: tls(made, name, "other"),
    "expired": lambda made, name, folder: TlsSecurity(
        *issue(made / "own", folder, first_day=-3, last_day=-1), made / "own" / "ca.pem"
    ),
    "none": lambda made, name, folder: None,
}
NOT_ACCEPTED = "its certificate is not accepted: "
ACCEPTS_NOT = "it does not accept this member's certificate or TLS: "


@pytest.mark.parametrize(
    ("listener", "dialer", "listener_says", "dialer_says"),
    [
        (
            "own",
            "other",
            f"{ACCEPTS_NOT}unknown ca",
            f"{NOT_ACCEPTED}self-signed certificate in certificate chain",
        ),
        ("expired", "own", f"{ACCEPTS_NOT}certificate expired", f"{NOT_ACCEPTED}certificate has expired"),
        ("own", "expired", f"{NOT_ACCEPTED}certificate has expired", f"{ACCEPTS_NOT}certificate expired"),
        ("own", "none", "it does not speak TLS", "closed in the handshake"),
        ("none", "own", "it speaks TLS, and this member does not", ""),
    ],
)
def test_both_ends_say_in_words_what_is_wrong_with_tls(
    cluster: Cluster,
    made: Path,
    tmp_path: Path,
    listener: str,
    dialer: str,
    listener_says: str,
    dialer_says: str,
) -> None:
    """And the page of operations has each reason. b dials a."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    with structlog.testing.capture_logs() as lines:
        for name, kind in (("a", listener), ("b", dialer)):
            cluster.add(name, security=SECURITIES[kind](made, name, tmp_path))
        cluster.until(lambda: len({line["node"] for line in lines}) == 2)
    for name, said in (("a", listener_says), ("b", dialer_says)):
        line = next(line for line in lines if line["node"] == name)
        assert (line["event"], line["log_level"]) == ("peer refused", "warning")
        assert line["reason"].startswith(said)
        assert said.partition(": ")[0].partition(",")[0] in page
        assert "_ssl.c" not in line["reason"]


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_probe_of_the_port_is_no_warning_and_half_a_hello_is_one(
    cluster: Cluster, made: Path, is_secure: bool
) -> None:
    """A port that is opened and closed again, with FIN or RST, without a byte."""
    network = cluster.add("a", security=tls(made, "a") if is_secure else None)

    def closed(*, sends: bytes = b"", resets: bool = False) -> str:
        with dial(cluster) as stranger:
            cluster.until(lambda: len(network._strangers) == 1)
            host, port = stranger.getsockname()
            stranger.sendall(sends)
            if resets:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        cluster.until(lambda: not network._strangers)
        return f"{host}:{port}"

    with structlog.testing.capture_logs() as lines:
        closed()
        closed(resets=True)
        assert lines == [] and network.stats.refused_handshakes == 0
        half = b"\x16\x03\x01\x00" if is_secure else b"QW" + bytes(40)
        address = closed(sends=half)
    [line] = lines
    assert (line["event"], line["log_level"], line["address"]) == ("peer refused", "warning", address)
    assert "peer" not in line, "it has no name yet"
    assert network.stats.refused_handshakes == 1


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


def test_a_wrong_file_for_members_is_refused_and_the_old_one_stays(made: Path, tmp_path: Path) -> None:
    own, other = made / "own", made / "other"
    files = [tmp_path / name for name in ("one.pem", "one.key", "ca.pem")]
    for file, source in zip(files, (own / "a.pem", own / "a.key", own / "ca.pem"), strict=True):
        file.write_bytes(source.read_bytes())
    found = TlsSecurity(*files)
    for file, content in (
        (files[0], b"rubbish"),
        (files[1], (other / "a.key").read_bytes()),
        (files[2], b"rubbish"),
        (files[2], b""),
    ):
        right = file.read_bytes()
        taken = found._content
        file.write_bytes(content)
        with pytest.raises(OSError):
            found.prepare(*files)
        found.renew()
        assert found._content is taken
        file.write_bytes(right)
    assert not found.prepare(*files)()
    assert found.prepare(other / "a.pem", other / "a.key", other / "ca.pem")()


def test_the_end_of_a_file_is_that_of_the_certificate_that_ends_first(made: Path, tmp_path: Path) -> None:
    create(["a"], tmp_path / "short", 3)
    short, own = (folder / "a.pem" for folder in (tmp_path / "short", made / "own"))
    ends = [end_of(file.read_bytes()) for file in (short, own)]
    assert ends[1] - ends[0] >= 26 * 86_400
    assert end_of(own.read_bytes() + short.read_bytes()) == ends[0]
    with pytest.raises(ValueError):
        end_of(b"rubbish")


# ---- versions


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
    cluster.until(lambda: not newer.connected("b"))
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
        made = friend(cluster)  # it speaks wire version 1
        made.sendall(data)
        cluster.until(lambda: not network.connected("b"))
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
    assert not one.connected("b")
    assert not other.connected("a")
    with pytest.raises(HandshakeError, match="speaks wire versions 1 to 2; this one speaks 3 to 4"):
        Versions(3, 4).wire_with(Versions(1, 2))


def test_a_connection_ends_when_its_peer_is_too_old_for_the_switch(cluster: Cluster) -> None:
    one = cluster.add("a", versions=Versions(machine=3))
    other = cluster.add("b", versions=Versions(machine=2))
    cluster.until(lambda: cluster.connected("a", "b"))
    one.require_version(2)
    cluster.poll()
    assert cluster.connected("a", "b")
    one.require_version(3)
    assert not one.connected("b")
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
