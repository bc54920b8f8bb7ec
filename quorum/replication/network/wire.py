"""Bytes on a peer connection: frames in and out of a non-blocking channel, without copying bodies.

    frame   length 4 (of the payload), kind 1, CRC32C 4 (of length, kind and payload), payload

Where TLS has checked the payload, both ends leave it out of the CRC (`SEALED_SINCE`).

A length above MAX_FRAME_BYTES, or a wrong CRC, ends the connection (WireError). Small frames are copied out of the read
buffer. If a frame extends beyond one read, its rest is read piece by piece into a second buffer, and copied once when
it is complete. Sending hands the parts to the kernel as they are, many at a time, and keeps what the kernel did not
take.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from quorum.log.record import crc32c, extend_crc32c
from quorum.replication.errors import WireError

MAX_FRAME_BYTES = 64 << 20
READ_BYTES = 64 << 10
"""Size of a first read: many small frames, or the beginning of a large one that is then read in pieces."""
PIECE_BYTES = 1 << 20
KEPT_BYTES = 4 << 20
"""A reader keeps its second buffer for the next frame if it has at most this size."""
MAX_PARTS = 512
"""Buffers in one sendmsg; the kernel takes at most 1,024."""

SEALED_SINCE = 2
"""The wire version since which the CRC of a frame on a sealed channel has only length and kind: the cipher finds every
changed byte there."""

_HEAD = struct.Struct("<IB")
_HEADER = struct.Struct("<IBI")
HEADER_BYTES = _HEADER.size

Part = bytes | bytearray | memoryview
Frame = tuple[int, bytes]


class Channel(Protocol):
    """A non-blocking stream. Reads and writes return None if they would have to wait; OSError if it is broken.

    is_sealed: whether every byte that is changed on the way breaks the channel, as TLS does.
    is_ready: whether `send` may take bytes; before it, only what the other end sends helps.
    has_buffered: whether received bytes wait in the channel, of which the socket says nothing.
    has_unsent: whether bytes that `send` has taken wait for `flush`.
    is_begun: whether the other end has sent bytes of which `recv_into` says nothing, as in the handshake of TLS.
    """

    @property
    def is_sealed(self) -> bool: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def has_buffered(self) -> bool: ...
    @property
    def has_unsent(self) -> bool: ...
    @property
    def is_begun(self) -> bool: ...
    def recv_into(self, buffer: bytearray | memoryview) -> int | None: ...
    def send(self, parts: list[Part]) -> int | None: ...
    def flush(self) -> bool:
        """Whether nothing is left unsent."""
        ...


class Security(Protocol):
    """Wraps a connected socket: the extension point for TLS. The handshake of the shared secret runs inside it."""

    def wrap(self, connection: socket.socket, *, is_dialer: bool) -> Channel: ...


class PlainChannel:
    """A socket without TLS."""

    is_sealed, is_ready, has_buffered, has_unsent, is_begun = False, True, False, False, False

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def recv_into(self, buffer: bytearray | memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, parts: list[Part]) -> int | None:
        try:
            return self._socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return None

    def flush(self) -> bool:
        return True


class PlainSecurity:
    """Leaves connections without TLS."""

    def wrap(self, connection: socket.socket, *, is_dialer: bool) -> Channel:
        return PlainChannel(connection)


def frame_header(kind: int, parts: Sequence[Part], *, is_sealed: bool = False) -> tuple[bytes, int]:
    """A frame's first bytes, and the payload's length. is_sealed: the payload is left out of the CRC."""
    length = sum(map(len, parts))
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {length}")
    head = _HEAD.pack(length, kind)
    crc = crc32c(head)
    if not is_sealed:
        for part in parts:
            crc = extend_crc32c(crc, part if type(part) is bytes else bytes(part))
    return _HEADER.pack(length, kind, crc), length


class FrameReader:
    """Cuts received bytes into frames."""

    def __init__(self, channel: Channel, buffer: bytearray, *, is_sealed: bool = False) -> None:
        """buffer: scratch for one read, shared by the readers of a thread. is_sealed: as for frame_header."""
        self._channel = channel
        self._is_sealed = is_sealed
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._start = b""
        """the first bytes of an incomplete header"""
        self._large = bytearray()
        """scratch for the payload that is read in pieces"""
        self._length = self._missing = 0
        """of that payload: all its bytes, and those that have not arrived"""
        self._kind = self._crc = 0
        """of its header"""

    def read(self, frames: list[Frame]) -> int | None:
        """Read once from the channel, and append complete frames to `frames`. Returns the bytes read, 0 at the end of
        the stream, None if there is nothing now. WireError, OSError."""
        if self._missing:
            return self._read_piece(frames)
        kept = len(self._start)
        self._buffer[:kept] = self._start
        taken = self._channel.recv_into(self._view[kept:])
        if taken:
            self._start = b""
            self._cut(kept + taken, frames)
        return taken

    def _read_piece(self, frames: list[Frame]) -> int | None:
        done = self._length - self._missing
        taken = self._channel.recv_into(memoryview(self._large)[done : min(done + PIECE_BYTES, self._length)])
        if not taken:
            return taken
        self._missing -= taken
        if not self._missing:
            payload = bytes(memoryview(self._large)[: self._length])
            if len(self._large) > KEPT_BYTES:
                self._large = bytearray()
            self._take(self._kind, payload, self._crc, frames)
        return taken

    def _begin(self, length: int, begun: memoryview) -> None:
        """Read the rest of a payload in pieces. begun: its first bytes."""
        if len(self._large) < length:
            self._large = bytearray(length)
        self._large[: len(begun)] = begun
        self._length, self._missing = length, length - len(begun)

    def _cut(self, end: int, frames: list[Frame]) -> None:
        at, view = 0, self._view
        while end - at >= HEADER_BYTES:
            length, kind, crc = _HEADER.unpack_from(view, at)
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {length}")
            at += HEADER_BYTES
            if end - at < length:
                self._begin(length, view[at:end])
                self._kind, self._crc = kind, crc
                return
            self._take(kind, bytes(view[at : at + length]), crc, frames)
            at += length
        self._start = bytes(view[at:end])

    def _take(self, kind: int, payload: bytes, crc: int, frames: list[Frame]) -> None:
        """Append a frame. WireError if it does not have this CRC."""
        found = crc32c(_HEAD.pack(len(payload), kind))
        if not self._is_sealed:
            found = extend_crc32c(found, payload)
        if found != crc:
            raise WireError(f"a frame of kind {kind} and {len(payload)} bytes fails its CRC")
        frames.append((kind, payload))


class SendQueue:
    """Bytes that wait to be written to one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._parts: deque[Part] = deque()
        self.waiting_bytes = 0
        self.is_sealed = False
        """as for frame_header"""

    def add(self, part: Part) -> None:
        """Append bytes. They must not change until written."""
        if len(part):
            self._parts.append(part)
            self.waiting_bytes += len(part)

    def add_frame(self, kind: int, parts: Sequence[Part]) -> None:
        """Append one frame."""
        header, length = frame_header(kind, parts, is_sealed=self.is_sealed)
        self._parts.append(header)
        self._parts.extend(part for part in parts if len(part))
        self.waiting_bytes += len(header) + length

    def write(self) -> bool:
        """Write as much as the kernel takes; True if nothing is left. OSError."""
        parts = self._parts
        if not self._channel.flush():
            return False
        while parts:
            some = [parts[at] for at in range(min(len(parts), MAX_PARTS))]
            taken = self._channel.send(some)
            if taken is None:
                return False
            self.waiting_bytes -= taken
            while parts and taken >= len(parts[0]):
                taken -= len(parts.popleft())
            if taken:
                parts[0] = memoryview(parts[0])[taken:]
        return not self._channel.has_unsent
