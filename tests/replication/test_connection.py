"""The peers' network on real sockets of this machine: what comes through, what keeps a link alive, and what an
authenticated peer may send.

Each network is polled by the test itself, without waiting, until what is awaited has come; DEADLINE_S only ends a test
that hangs.
"""

from __future__ import annotations

import random
import struct
import threading
import time

import pytest

from quorum.log.record import crc32c, extend_crc32c
from quorum.replication.errors import WireError
from quorum.replication.network import connection as connection_module
from quorum.replication.network.connection import KIND_PING, PeerNetwork
from quorum.replication.network.wire import MAX_FRAME_BYTES, FrameReader, SendQueue, frame_header
from support.peers.cluster import DEADLINE_S, Cluster, friend, pair

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
    assert "b" not in network.links()
    with pytest.raises(ValueError, match="kind"):
        network.send("b", KIND_PING, [])


def test_what_waits_for_a_peer_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair(cluster)
    monkeypatch.setattr(connection_module, "MAX_QUEUED_BYTES", 1 << 20)
    while "b" in one.links():
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
    cluster.until(lambda: "b" not in one.links())
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
    cluster.until(lambda: "b" not in one.links(), passes_s=0.2)
    del_b.close()


# ---- what an authenticated peer may send


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
    cluster.until(lambda: "b" not in network.links())
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

    is_sealed, is_ready, has_buffered, has_unsent, is_begun = False, True, False, False, True

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
    is_sealed = seed % 2 == 1
    queue, reader = SendQueue(channel), FrameReader(channel, bytearray(64), is_sealed=is_sealed)
    queue.is_sealed = is_sealed
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
