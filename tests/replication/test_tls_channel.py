"""What comes through a channel with TLS (quorum/replication/network/tls.py), and what it says about its state."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorum.replication.network.tls import RAW_BYTES, TlsChannel
from support.peers.certificates import tls

SOCKET_BYTES = 8_192
"""What the sender's socket takes before its bytes are carried on, about."""


class Ends:
    """A channel and the one that it sends to. Bytes are carried from one to the other when told."""

    def __init__(self, made: Path) -> None:
        self._outer, self._inner = socket.socketpair(), socket.socketpair()
        self._outer[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        for each in (*self._outer, *self._inner):
            each.setblocking(False)
        self.sender = tls(made, "a").wrap(self._outer[0], is_dialer=True)
        self.receiver = tls(made, "b").wrap(self._inner[1], is_dialer=False)
        while not (self.sender.is_ready and self.receiver.is_ready):
            for each in (self.sender, self.receiver):
                assert each.recv_into(bytearray(1)) is None
            self.deliver(self.sent())
            with contextlib.suppress(BlockingIOError):
                self._outer[1].sendall(self._inner[0].recv(1 << 20))

    def sent(self) -> bytes:
        """What the sender's socket has taken."""
        with contextlib.suppress(BlockingIOError):
            return self._outer[1].recv(1 << 20)
        return b""

    def deliver(self, data: bytes) -> None:
        self._inner[0].sendall(data)

    def close(self) -> None:
        for each in (*self._outer, *self._inner):
            each.close()


@pytest.fixture
def ends(made: Path) -> Iterator[Ends]:
    found = Ends(made)
    yield found
    found.close()


def read(channel: TlsChannel, size: int) -> bytes | None:
    """What is read into a buffer of this size; None if there is nothing now."""
    buffer = bytearray(size)
    count = channel.recv_into(buffer)
    return None if count is None else bytes(buffer[:count])


def test_a_byte_that_is_changed_on_the_way_ends_a_connection_with_tls(ends: Ends) -> None:
    """So the frame's own CRC need not have it."""
    ends.sender.send([b"first"])
    ends.deliver(ends.sent())
    assert read(ends.receiver, 1_000) == b"first"
    ends.sender.send([b"second"])
    data = bytearray(ends.sent())
    data[len(data) // 2] ^= 1
    ends.deliver(data)
    with pytest.raises(OSError):
        read(ends.receiver, 1_000)


def test_a_record_that_is_read_in_parts_is_read_to_its_end(ends: Ends) -> None:
    """No byte comes from the network any more, so nothing but `has_buffered` says that there is a rest."""
    sent = bytes(range(250)) * 4
    assert ends.sender.send([sent[:600], sent[600:]]) == 1_000
    assert not ends.sender.has_unsent
    ends.deliver(ends.sent())
    found = b""
    for size in (400, 400, 200):
        part = read(ends.receiver, 400)
        assert part is not None and len(part) == size
        found += part
        assert ends.receiver.has_buffered == (len(found) < len(sent))
    assert found == sent
    assert read(ends.receiver, 400) is None
    assert ends.sender.send([b"first"]) == 5
    assert ends.sender.send([b"second"]) == 6
    ends.deliver(ends.sent())
    assert read(ends.receiver, 3) == b"fir"
    assert read(ends.receiver, 400) == b"stsecond", "all records that are there"


def test_half_a_record_is_not_looked_at_again_before_its_rest_is_there(ends: Ends) -> None:
    """Else the member's thread would do nothing else meanwhile."""
    assert ends.sender.send([b"first"]) == 5
    record = ends.sent()
    ends.deliver(record[:-3])
    assert read(ends.receiver, 100) is None
    assert not ends.receiver.has_buffered
    ends.deliver(record[-3:])
    assert read(ends.receiver, 100) == b"first"


def test_what_a_full_socket_does_not_take_is_sent_later(ends: Ends) -> None:
    sent = bytes(range(256)) * 6_000
    assert ends.sender.send([sent[:800_000], sent[800_000:], b"more"]) == RAW_BYTES < len(sent)
    assert ends.sender.has_unsent
    assert ends.sender.send([b"more"]) is None
    found = b""
    while len(found) < RAW_BYTES:
        carried = ends.sent()
        assert carried, "the rest is not sent"
        ends.deliver(carried)
        ends.sender.flush()
        found += read(ends.receiver, RAW_BYTES) or b""
    assert found == sent[:RAW_BYTES]
    assert not ends.sender.has_unsent
