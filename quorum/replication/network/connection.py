"""The peers' network: one authenticated connection for each pair of members, in the Raft thread's own poll loop.

One of the two members dials, the other listens. Among the members given at the start the one with the greater name
dials; later `set_peers` decides. A member that knows the secret may connect, unless it is known to have been removed:
this node may not yet have heard that the member has joined. A connection is a handshake (handshake.py), then frames
(wire.py). Frames of kind PING are the network's own. They keep a quiet link alive and known to be alive, so that the
first vote request after a long calm finds it open. A link that receives nothing for IDLE_LIMIT_S is closed.

Nothing here waits: `send` queues, `flush` writes what the kernel takes, `poll` waits for at most the time it is given
and does the rest. The queue for a peer is bounded: beyond the bound its connection is closed, and the layers above
resend what matters. Frames sent while there is no connection are dropped, as if lost on the way.

A kind of frame exists since some wire version (`set_kinds`). Both ends of a connection speak the highest wire version
that both know. A frame of a later kind is not sent. A frame of a later or unknown kind that arrives ends the
connection.

Strangers are peers that have not yet proved the secret. At most MAX_STRANGERS connections are in the handshake at once,
none for longer than HANDSHAKE_LIMIT_S, and each reads a fixed number of bytes. If there are more, the address with the
most of them loses its oldest one: a flood of one address does not end the handshakes of members. Their failures are
counted, and logged at most once a second. A connection that is closed before it has sent a byte is a probe of this
port, by `quorum doctor` or a load balancer: it is neither counted nor logged. Two members that dial each other at the
same time are no warning.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from quorum.replication.errors import WireError
from quorum.replication.network.dialing import BACKOFF_MAX_S, RESERVE_AFTER_S, Address, Dial
from quorum.replication.network.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    THIS_BUILD,
    UNKNOWN,
    HandshakeError,
    Hello,
    Identity,
    Versions,
    encode_name,
)
from quorum.replication.network.refusals import Level, Refusals
from quorum.replication.network.wire import (
    READ_BYTES,
    SEALED_SINCE,
    Channel,
    Frame,
    FrameReader,
    Part,
    PlainSecurity,
    Security,
    SendQueue,
)

KIND_PING = 255
TLS_RECORD = b"\x16\x03"
"""The first bytes of a handshake of TLS. No hello begins like this."""
PING_AFTER_S = 1.0
IDLE_LIMIT_S = 5.0
HANDSHAKE_LIMIT_S = 3.0
MAX_STRANGERS = 32
MAX_QUEUED_BYTES = 192 << 20
"""Bound of the queue for one peer. It is above the windows of all groups together, each exceeded by one entry of the
largest size, plus what the node sends to a leader (node/sessions/session_table.py). If regular work could reach the
bound, it would break the connection again and again, because all of it is sent again on the next one."""
TURN_BYTES = 4 << 20
"""Bytes read from one peer before the others have their turn."""
UPKEEP_S = 0.1
REFUSED_FOR_S = HANDSHAKE_LIMIT_S + 2 * BACKOFF_MAX_S
"""Time after which a refusal says nothing about a member any more: a member that runs has been dialed again by then."""


@dataclass(slots=True)
class NetworkStats:
    """Counts since the start."""

    connected: int = 0
    lost: int = 0
    refused_handshakes: int = 0
    bad_frames: int = 0
    overflows: int = 0


@dataclass(slots=True, eq=False)
class _Connection:
    """One socket, from its first byte on."""

    socket: socket.socket
    address: str
    """of the other end"""
    channel: Channel
    queue: SendQueue
    is_dialer: bool
    deadline_s: float
    peer: str | None = None
    """claimed while in the handshake, proved afterwards"""
    is_up: bool = False
    is_connecting: bool = False
    boot: int = 0
    incarnation: bytes = UNKNOWN
    versions: Versions = THIS_BUILD
    wire_version: int = 0
    """the one that both ends speak, once the connection is up"""
    kinds: frozenset[int] = frozenset()
    """of the frames that both ends know"""
    hello: bytes = b""
    other_hello: bytes = b""
    want: int = 0
    received: bytearray = field(default_factory=bytearray)
    reader: FrameReader | None = None
    heard_s: float = 0.0
    sent_s: float = 0.0
    mask: int = selectors.EVENT_READ


class _NotNeeded(HandshakeError):
    """A peer dials this node, which dials it: it was down, or has just joined."""


class PeerNetwork:
    """The connections to all peers (see the module's text). One thread; only `wake` may be called from others."""

    ping_after_s = PING_AFTER_S
    idle_limit_s = IDLE_LIMIT_S

    def __init__(
        self,
        identity: Identity,
        members: Mapping[str, Address],
        *,
        clock: Callable[[], float] = time.monotonic,
        security: Security | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """Listens at once, on this node's address in `members` or on the socket given. OSError if that is
        impossible."""
        for name in members:
            encode_name(name)
        self.me = identity.me
        self.stats = NetworkStats()
        self._gone: frozenset[str] = frozenset()
        self._kinds: Mapping[int, int] = {}
        self._identity = identity
        self._clock = clock
        self._security = security or PlainSecurity()
        self._log = structlog.get_logger().bind(node=self.me)
        self._selector = selectors.DefaultSelector()
        self._buffer = bytearray(READ_BYTES)
        self._up: dict[str, _Connection] = {}
        self._strangers: list[_Connection] = []
        self._dirty: dict[str, _Connection] = {}
        self._buffered: dict[int, _Connection] = {}
        """connections whose channels have received bytes that the next poll reads, by file descriptor"""
        self._frames: list[tuple[str, int, bytes]] = []
        self._configured = dict(members)
        self._dials = {name: Dial(address) for name, address in sorted(members.items()) if name < self.me}
        self._next_upkeep_s = float("-inf")
        self._refusals = Refusals(self._log)
        self._is_open = True
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._listener = listener or _listen(members[self.me])
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    # ---- for the loop

    @property
    def address(self) -> Address:
        """The address at which this node listens."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def set_peers(
        self,
        dial_addresses: Mapping[str, Address],
        fallback_addresses: Mapping[str, Address],
        gone: Collection[str],
    ) -> None:
        """Set the members to dial, and those to dial only after RESERVE_AFTER_S without a connection. gone: members
        that may not connect any more; connections to them are closed.

        An address in this node's own configuration takes precedence over the cluster's, because this node knows its
        network.
        """
        before, self._dials = self._dials, {}
        for name, address in sorted({**dial_addresses, **fallback_addresses}.items()):
            is_reserve = name not in dial_addresses
            way = self._configured.get(name, address)
            old = before.get(name)
            if old is not None and (old.address, old.is_reserve) == (way, is_reserve):
                self._dials[name] = old
            else:
                self._dials[name] = Dial(way, is_reserve, self._clock() + RESERVE_AFTER_S * is_reserve)
        self._gone = frozenset(gone)
        for name, connection in list(self._up.items()):
            if name in self._gone:
                self._drop(connection, "no longer a member")

    def set_kinds(self, kinds: Mapping[int, int]) -> None:
        """Set the kinds of frames that this node sends and takes, each with the wire version since which it exists.
        It counts for connections that are made afterwards. ValueError if a kind is not 0 to 254."""
        for kind in kinds:
            if not 0 <= kind < KIND_PING:
                raise ValueError(f"a frame's kind is 0 to {KIND_PING - 1}, not {kind}")
        self._kinds = kinds

    def links(self) -> list[str]:
        """The connected peers, ordered by name."""
        return sorted(self._up)

    def incarnation_of(self, peer: str) -> bytes:
        """The incarnation of a connected peer; UNKNOWN if it has none."""
        return self._up[peer].incarnation

    def is_refused(self, peer: str) -> bool:
        """Whether a handshake with this member was refused a moment ago, by it or by this node. So it can be reached.
        The log says why."""
        return self._clock() < self._refusals.last_s(peer) + REFUSED_FOR_S

    def event_counts(self) -> dict[str, int]:
        """What has happened to connections since the start, and how often."""
        stats = self.stats
        return {
            "connected": stats.connected,
            "lost": stats.lost,
            "refused_handshake": stats.refused_handshakes,
            "bad_frame": stats.bad_frames,
            "overflow": stats.overflows,
        }

    def version_of(self, peer: str) -> int:
        """The highest machine version that a connected peer knows."""
        return self._up[peer].versions.machine

    def require_version(self, version: int) -> None:
        """From now on only peers that know this machine version may connect; connections to others are closed."""
        self._identity.needed_version = version
        for connection in list(self._up.values()):
            known = connection.versions.machine
            if known < version:
                self._drop(connection, f"it knows machine versions up to {known}; {version} is needed now")

    def wake(self) -> None:
        """Let poll return at once. Any thread."""
        try:
            os.write(self._wake_write, b"w")
        except BlockingIOError:
            pass  # a full pipe wakes as well

    def poll(self, timeout: float) -> list[tuple[str, int, bytes]]:
        """Wait for at most timeout seconds, then return (peer, kind, frame) of all complete frames, each peer's in
        order."""
        self._upkeep()
        buffered, self._buffered = self._buffered, {}
        for key, mask in self._selector.select(0 if buffered else timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fd == self._wake_read:
                _drain(self._wake_read)
            else:
                buffered.pop(key.fd, None)
                self._serve(key.data, mask)
        for connection in buffered.values():
            self._serve(connection, selectors.EVENT_READ)
        frames, self._frames = self._frames, []
        return frames

    def send(self, peer: str, kind: int, parts: Sequence[Part]) -> bool:
        """Queue one frame. False, and the frame is dropped, if there is no connection or the wire version spoken there
        does not have the kind. Its parts must not change. ValueError if this node does not know the kind."""
        if kind not in self._kinds:
            raise ValueError(f"this node has no kind {kind} of frames")
        connection = self._up.get(peer)
        if connection is None or kind not in connection.kinds:
            return False
        connection.queue.add_frame(kind, parts)
        self._dirty[peer] = connection
        if connection.queue.waiting_bytes > MAX_QUEUED_BYTES:
            self.stats.overflows += 1
            self._drop(connection, f"{connection.queue.waiting_bytes} bytes wait for it")
            return False
        return True

    def flush(self) -> None:
        """Write the queued frames, as far as the kernel takes them."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for connection in dirty.values():
                self._write(connection)

    def close(self) -> None:
        """Close everything. Queued frames are tried once."""
        if not self._is_open:
            return
        self.flush()
        self._is_open = False
        for connection in [*self._up.values(), *self._strangers]:
            connection.socket.close()
        self._up.clear()
        self._strangers.clear()
        self._listener.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # ---- timers

    def _upkeep(self) -> None:
        now = self._clock()
        if now < self._next_upkeep_s:
            return
        self._next_upkeep_s = now + UPKEEP_S
        for stranger in [each for each in self._strangers if each.deadline_s <= now]:
            self._refuse(stranger, "the handshake took too long", is_answered=False)
        for connection in list(self._up.values()):
            if now - connection.heard_s > self.idle_limit_s:
                self._drop(connection, f"nothing heard for {self.idle_limit_s} s")
            elif now - connection.sent_s > self.ping_after_s:
                connection.sent_s = now
                connection.queue.add_frame(KIND_PING, [])
                self._write(connection)
        for peer, dial in self._dials.items():
            busy = peer in self._up or any(each.is_dialer and each.peer == peer for each in self._strangers)
            if busy:
                dial.hold_back(now)
            elif now >= dial.next_s:
                self._dial(peer, dial, now)

    # ---- dialing and accepting

    def _dial(self, peer: str, dial: Dial, now: float) -> None:
        found = dial.begin(now, self._clock)
        if found is None:
            return
        family, address = found
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no more files can be open: it is tried again
            return
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            return
        made = self._adopt(connection, address, is_dialer=True)
        made.peer = peer
        made.is_connecting = True
        self._watch(made)

    def _accept(self) -> None:
        for _ in range(MAX_STRANGERS):
            try:
                connection, address = self._listener.accept()
            except OSError:  # none left, gone again, or no file descriptors: the next poll tries again
                return
            callers = [each for each in self._strangers if not each.is_dialer]
            if len(callers) >= MAX_STRANGERS:
                self._refuse(_one_of_the_most(callers), "too many handshakes at once")
            connection.setblocking(False)
            made = self._adopt(connection, address, is_dialer=False)
            made.want = HELLO_BYTES

    def _adopt(self, connection: socket.socket, address: Any, *, is_dialer: bool) -> _Connection:
        """address: of the other end, as `socket` has it."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = self._security.wrap(connection, is_dialer=is_dialer)
        host, port = address[:2]
        made = _Connection(
            connection,
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            channel,
            SendQueue(channel),
            is_dialer,
            self._clock() + HANDSHAKE_LIMIT_S,
        )
        self._strangers.append(made)
        self._selector.register(connection, made.mask, made)
        return made

    # ---- events of one socket

    def _serve(self, connection: _Connection, mask: int) -> None:
        if connection.socket.fileno() < 0:
            return  # closed earlier in this poll
        if connection.is_connecting:
            self._finish_connect(connection)
            return
        if mask & selectors.EVENT_WRITE:
            self._write(connection)
        if mask & selectors.EVENT_READ and connection.socket.fileno() >= 0:
            was_ready = connection.channel.is_ready
            if connection.is_up:
                self._read_frames(connection)
            else:
                self._read_handshake(connection)
            self._after_read(connection, was_ready=was_ready)

    def _after_read(self, connection: _Connection, *, was_ready: bool) -> None:
        """A channel with TLS may have bytes to send after a read, and received bytes that no socket reports."""
        descriptor, channel = connection.socket.fileno(), connection.channel
        if descriptor < 0:
            return
        if channel.has_unsent or (channel.is_ready and not was_ready):
            self._write(connection)
        if channel.has_buffered:
            self._buffered[descriptor] = connection

    def _finish_connect(self, connection: _Connection) -> None:
        if connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._forget(connection)  # no answer: dialed again later
            return
        connection.is_connecting = False
        assert connection.peer is not None
        connection.hello = self._identity.hello(connection.peer, os.urandom(NONCE_BYTES))
        connection.want = ANSWER_BYTES
        connection.queue.add(connection.hello)
        self._write(connection)

    def _read_handshake(self, connection: _Connection) -> None:
        """Read exactly the bytes of the next step, and none of the frames after them."""
        step = bytearray(connection.want - len(connection.received))
        try:
            taken = connection.channel.recv_into(step)
        except OSError as error:
            self._end_handshake(connection, _words(error))
            return
        if taken is None:
            return
        if not taken:
            self._end_handshake(connection, "closed in the handshake")
            return
        connection.received += step[:taken]
        if connection.received.startswith(TLS_RECORD) and not connection.other_hello:
            self._refuse(connection, "it speaks TLS, and this member does not (peers_certificate_file)")
            return
        if len(connection.received) < connection.want:
            return
        data, connection.received = bytes(connection.received), bytearray()
        try:
            self._handshake_step(connection, data)
        except _NotNeeded as error:
            self._refuse(connection, str(error), level="info")
        except HandshakeError as error:
            self._refuse(connection, str(error))

    def _handshake_step(self, connection: _Connection, data: bytes) -> None:
        identity = self._identity
        if connection.is_dialer:
            hello, proof = data[:HELLO_BYTES], data[HELLO_BYTES:]
            other = identity.read(hello)
            if other.sender != connection.peer:
                raise HandshakeError(f"{other.sender!r} answered for {connection.peer!r}")
            identity.check(proof, b"listener", connection.hello, hello)
            connection.queue.add(identity.prove(b"dialer", connection.hello, hello))
            identity.check_known(other)
            self._note(connection, other)
            self._welcome(connection)
            self._write(connection)
        elif not connection.other_hello:
            try:
                other = identity.read(data)
            except HandshakeError:
                connection.peer = identity.sender_of(data)
                raise
            dial = self._dials.get(other.sender)
            if other.sender == self.me:
                raise HandshakeError(f"{other.sender!r} is this node's own name")
            if dial is not None and not dial.is_reserve:
                raise _NotNeeded(f"{other.sender!r} does not dial this node, which dials it")
            if other.sender in self._gone:
                raise HandshakeError(f"{other.sender!r} is no member any more")
            connection.peer, connection.other_hello = other.sender, data
            self._note(connection, other)
            connection.hello = identity.hello(other.sender, os.urandom(NONCE_BYTES))
            connection.want = PROOF_BYTES
            connection.queue.add(connection.hello)
            connection.queue.add(identity.prove(b"listener", data, connection.hello))
            self._write(connection)
            identity.check_known(other)
        else:
            identity.check(data, b"dialer", connection.other_hello, connection.hello)
            self._welcome(connection)

    @staticmethod
    def _note(connection: _Connection, other: Hello) -> None:
        connection.boot, connection.incarnation = other.boot, other.incarnation
        connection.versions = other.versions

    def _welcome(self, connection: _Connection) -> None:
        """Make a connection the peer's: the other end has proved itself."""
        peer = connection.peer
        assert peer is not None
        known = connection.versions.machine
        if known < self._identity.needed_version:  # this node has switched since the other one's hello
            raise HandshakeError(f"{peer!r} knows machine versions up to {known}")
        old = self._up.get(peer)
        if old is not None:
            if old.boot > connection.boot:
                raise HandshakeError(f"{peer!r} is connected with a later boot")
            self._drop(old, "replaced by a new connection")
        version = self._identity.versions.wire_with(connection.versions)
        self._strangers.remove(connection)
        connection.wire_version = version
        connection.kinds = frozenset(kind for kind, since in self._kinds.items() if since <= version)
        connection.is_up = True
        connection.heard_s = connection.sent_s = self._clock()
        connection.queue.is_sealed = connection.channel.is_sealed and version >= SEALED_SINCE
        connection.reader = FrameReader(
            connection.channel, self._buffer, is_sealed=connection.queue.is_sealed
        )
        self._up[peer] = connection
        self._refusals.forget_member(peer)
        self.stats.connected += 1
        if peer in self._dials:
            self._dials[peer].reset_backoff()
        self._log.info("peer connected", peer=peer)

    def _read_frames(self, connection: _Connection) -> None:
        assert connection.reader is not None
        assert connection.peer is not None
        frames: list[Frame] = []
        taken, budget = None, TURN_BYTES
        problem = ""
        try:
            while budget > 0:
                taken = connection.reader.read(frames)
                if not taken:
                    break
                budget -= taken
                if taken < READ_BYTES >> 1 and not connection.channel.has_buffered:
                    break  # nothing more is there; the next poll reports new bytes
        except WireError as error:
            self.stats.bad_frames += 1
            problem = str(error)
        except OSError as error:
            problem = _words(error)
        connection.heard_s = self._clock()
        for kind, frame in frames:
            if kind in connection.kinds:
                self._frames.append((connection.peer, kind, frame))
            elif kind != KIND_PING:
                self.stats.bad_frames += 1
                version = connection.wire_version
                problem = f"a frame of kind {kind}, which wire version {version} does not have"
                break
        if problem or taken == 0:
            self._drop(connection, problem or "closed by the peer")

    def _write(self, connection: _Connection) -> None:
        if connection.socket.fileno() < 0:
            return
        try:
            is_done = connection.queue.write()
        except OSError as error:
            if connection.is_up:
                self._drop(connection, _words(error))
            else:
                self._end_handshake(connection, _words(error))
            return
        connection.sent_s = self._clock()
        channel = connection.channel
        self._watch(connection, wants_write=not is_done and (channel.is_ready or channel.has_unsent))

    def _watch(self, connection: _Connection, *, wants_write: bool = True) -> None:
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_write else 0)
        if mask != connection.mask:
            connection.mask = mask
            self._selector.modify(connection.socket, mask, connection)

    # ---- ends

    def _forget(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection in self._strangers:
            self._strangers.remove(connection)

    def _end_handshake(self, connection: _Connection, reason: str) -> None:
        """The other end has closed the connection, or it is broken."""
        is_silent = not (connection.received or connection.other_hello or connection.channel.is_begun)
        if is_silent and not connection.is_dialer:
            self._forget(connection)  # a probe
            return
        dial = self._dials.get(connection.peer or "") if connection.is_dialer else None
        self._refuse(connection, reason, level="info" if dial is not None and dial.is_reserve else "warning")

    def _refuse(
        self,
        connection: _Connection,
        reason: str,
        *,
        level: Level = "warning",
        is_answered: bool = True,
    ) -> None:
        """level: info if the other end, or this one, dials as well. is_answered: False if the other end was silent."""
        if connection.socket.fileno() < 0:
            return  # a failed write has ended it, in this step of the handshake
        self._forget(connection)
        self.stats.refused_handshakes += 1
        now = self._clock()
        peer = connection.peer
        if (
            is_answered
            and level == "warning"
            and peer is not None
            and (peer in self._dials or peer in self._configured)
        ):
            self._refusals.note_member(peer, now)
        self._refusals.log(now, level, peer, connection.address, reason, self.stats.refused_handshakes)

    def _drop(self, connection: _Connection, reason: str) -> None:
        assert connection.peer is not None
        self._forget(connection)
        if self._up.get(connection.peer) is connection:
            del self._up[connection.peer]
            self._dirty.pop(connection.peer, None)
            self.stats.lost += 1
            self._log.info("peer lost", peer=connection.peer, reason=reason)


def _one_of_the_most(callers: Sequence[_Connection]) -> _Connection:
    """The oldest connection of the address that has the most of them."""
    hosts = [each.address.rpartition(":")[0] for each in callers]
    counts = Counter(hosts)
    return callers[hosts.index(max(counts, key=counts.__getitem__))]


def _listen(address: Address) -> socket.socket:
    """OSError says which port it is."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=64)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(
            error.errno, f"cannot listen for members on {address[0]}:{address[1]}: {why}"
        ) from error


def _words(error: OSError) -> str:
    """Why a connection ended. An error of TLS has its own words."""
    return error.strerror or str(error)


def _drain(descriptor: int) -> None:
    try:
        while len(os.read(descriptor, 4096)) == 4096:
            pass
    except BlockingIOError:
        pass


__all__ = ["KIND_PING", "NetworkStats", "Part", "PeerNetwork"]
