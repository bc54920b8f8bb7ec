"""TLS between members: 1.3 only, with certificates on both sides.

The authority is the cluster's own: a node with a certificate of it may connect, and proves inside TLS that it knows the
shared secret (handshake.py). So names in certificates are not compared.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import structlog
from OpenSSL import SSL

from quorum.replication.network.certificates import OUT_OF_DATE, end_of
from quorum.replication.network.openssl import RELEASE, TlsEnd, TlsError, context_of
from quorum.replication.network.wire import Part

RAW_BYTES = 1 << 20
"""Encrypted bytes in one read from the socket, and plain bytes in one write to it: about those of the largest entry. In
smaller pieces, the other end would wake up for each of them."""
HANDSHAKE_BYTES = 16 << 10
"""The same before the handshake is done, for ends that are strangers yet."""
OUTPUT_BYTES = RAW_BYTES + (16 << 10)
"""Encrypted bytes in one write to the socket: those of RAW_BYTES plain ones."""
LARGE_BYTES = 64 << 10
"""Smaller parts are joined, because each write to TLS ends with a small record."""


class TlsChannel:
    """A non-blocking socket with TLS. Encrypted bytes go through memory, so the handshake, reads and writes need only
    the socket's own readiness."""

    is_sealed = True

    def __init__(self, connection: socket.socket, context: SSL.Context, *, is_dialer: bool) -> None:
        self._socket = connection
        self._tls = TlsEnd(context, is_dialer=is_dialer)
        self._received, self._output = memoryview(bytearray(HANDSHAKE_BYTES)), bytearray(HANDSHAKE_BYTES)
        self._unsent = memoryview(b"")
        """the part of the output that the socket has not taken"""
        self._has_output = False
        """whether TLS may have more of it"""
        self._is_at_end = False
        self._may_have_more = False
        """whether received bytes may have more than was read"""
        self.is_ready = False
        self.is_begun = False

    @property
    def has_buffered(self) -> bool:
        return self.is_ready and self._may_have_more

    @property
    def has_unsent(self) -> bool:
        return len(self._unsent) > 0 or self._has_output

    def recv_into(self, buffer: bytearray | memoryview) -> int | None:
        """As many records as are there and fit. Each call of OpenSSL reads one at most, and lets another thread have
        the interpreter; so it is called only if there are bytes for it."""
        view = memoryview(buffer)
        while True:
            if (self.is_ready or self._shake()) and self._may_have_more:
                taken = self._tls.read_into(view)
                self._may_have_more = taken == len(view)
                if taken or self._tls.is_ended:
                    return taken
            if self._is_at_end:
                return 0
            if not self._pull():
                return None

    def _pull(self) -> bool:
        """Read from the socket. False if there is nothing now."""
        try:
            count = self._socket.recv_into(self._received)
        except (BlockingIOError, InterruptedError):
            return False
        if count:
            self._tls.put(self._received[:count])
            self.is_begun = True
            self._may_have_more = True
        else:
            self._is_at_end = True
        return True

    def send(self, parts: list[Part]) -> int | None:
        if not (self.is_ready or self._shake()) or not self.flush():
            return None
        small: list[Part] = []
        taken = 0
        for each in parts:
            part = each if taken + len(each) <= RAW_BYTES else memoryview(each)[: RAW_BYTES - taken]
            taken += len(part)
            if len(part) < LARGE_BYTES:
                small.append(part)
            else:
                self._write(small)
                self._tls.write(part)
                small = []
            if taken == RAW_BYTES:
                break
        self._write(small)
        self._has_output = True
        self.flush()
        return taken

    def _write(self, parts: list[Part]) -> None:
        if data := b"".join(parts):
            self._tls.write(data)

    def flush(self) -> bool:
        while self.has_unsent:
            if not len(self._unsent):
                count = self._tls.take(self._output)
                self._has_output = count == len(self._output)
                self._unsent = memoryview(self._output)[:count]
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return False
            self._unsent = self._unsent[sent:]
        return True

    def _shake(self) -> bool:
        """Whether the handshake of TLS is done. TlsError if it fails."""
        try:
            self.is_ready = self._tls.shake_hands()
        finally:
            self._has_output = True
            self.flush()  # an alert says what is wrong
        if self.is_ready:
            self._received, self._output = memoryview(bytearray(RAW_BYTES)), bytearray(OUTPUT_BYTES)
        return self.is_ready


@dataclass(frozen=True, slots=True)
class _Content:
    """What the files had when they were read. end: of the certificate, Unix seconds."""

    digest: bytes
    end: int
    context: SSL.Context


@dataclass
class TlsSecurity:
    """The certificates of this member and the cluster's authority, all in PEM. Renewed files are used for new
    connections. OSError if the first ones cannot be used.

    Renewed files are not used if members with them would refuse each other, and those in use are right. So a member
    keeps a pair that fits while only the certificate, or only the authority, is a new one. The dates of the new
    certificate do not count, because it may become valid."""

    certificate: Path
    key: Path
    authority: Path
    release: ClassVar[str] = RELEASE
    """of the OpenSSL that encrypts"""
    _seen: tuple[tuple[int, int, int], ...] = field(init=False)
    _content: _Content = field(init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = self._look()
        self._content = self._read()

    def prepare(self, certificate: Path, key: Path, authority: Path) -> Callable[[], bool]:
        """Read these files. The result takes them, and says whether they differ from those in use. Any thread. OSError
        as for a new one."""
        fresh = TlsSecurity(certificate, key, authority)
        fresh._require_fitting(fresh._content, self._content)

        def take() -> bool:
            with self._lock:
                has_changed = fresh._content.digest != self._content.digest
                self.certificate, self.key, self.authority = certificate, key, authority
                self._seen, self._content = fresh._seen, fresh._content
            return has_changed

        return take

    def wrap(self, connection: socket.socket, *, is_dialer: bool) -> TlsChannel:
        self.renew()
        return TlsChannel(connection, self._content.context, is_dialer=is_dialer)

    def end(self) -> int:
        """Unix seconds of the end of the certificate that new connections use. Renewed files are taken first. Any
        thread."""
        self.renew()
        return self._content.end

    def meet_itself(self) -> None:
        """Do the handshake of two members that have these files. OSError if one of them would refuse the other one."""
        shake_hands(self._content.context)

    def renew(self) -> None:
        """Take the files if they have changed. If they are not right, the last right ones stay, and a line is logged.
        Any thread."""
        try:
            with self._lock:
                seen = self._look()
                if seen == self._seen:
                    return
                self._seen = seen
                fresh = self._read()
                self._require_fitting(fresh, self._content)
                self._content = fresh
        except OSError as error:
            structlog.get_logger().error("renewed certificates for members are not used", error=str(error))
        else:
            structlog.get_logger().info("certificates for members renewed", certificate=str(self.certificate))

    def _require_fitting(self, fresh: _Content, before: _Content) -> None:
        """OSError if members with the fresh content would refuse each other, and not with the one before."""
        wrong = _why_refused(fresh)
        if wrong is None or _why_refused(before) is not None:
            return
        if wrong.code in OUT_OF_DATE:
            return
        reason = wrong.certificate or str(wrong)
        raise OSError(
            f"members would refuse {self.certificate} with the authority {self.authority}: {reason}"
        )

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        found = [file.stat() for file in (self.certificate, self.key, self.authority)]
        return tuple([(each.st_ino, each.st_size, each.st_mtime_ns) for each in found])

    def _read(self) -> _Content:
        content = [file.read_bytes() for file in (self.certificate, self.key, self.authority)]
        try:
            context = context_of(*content)
        except OSError as error:
            files = f"{self.certificate}, {self.key} and {self.authority}"
            raise OSError(f"{files} cannot be used: {error}") from error
        return _Content(hashlib.sha256(b"\0".join(content)).digest(), end_of(content[0]), context)


def _why_refused(content: _Content) -> TlsError | None:
    """Why two members with this content would refuse each other; None if they would not."""
    try:
        shake_hands(content.context)
    except TlsError as error:
        return error
    return None


def shake_hands(context: SSL.Context) -> None:
    """Do the handshake between two ends with this context, in memory. TlsError if one of them refuses the other one."""
    one, other = TlsEnd(context, is_dialer=True), TlsEnd(context, is_dialer=False)
    carried = bytearray(OUTPUT_BYTES)
    waiting = [(one, other), (other, one)]
    while waiting:
        end, sends_to = waiting.pop(0)
        if not end.shake_hands():
            waiting.append((end, sends_to))
        if count := end.take(carried):
            sends_to.put(bytes(carried[:count]))
