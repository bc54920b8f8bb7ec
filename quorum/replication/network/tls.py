"""TLS between members: 1.3 only, with certificates on both sides.

The authority is the cluster's own: a node with a certificate of it may connect, and proves inside TLS that it knows the
shared secret (handshake.py). So names in certificates are not compared.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from quorum.replication.network.wire import Part

RAW_BYTES = 256 << 10
"""Encrypted bytes in one read from the socket, and plain bytes in one write to TLS."""
OUT_OF_DATE = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or no more."""


class TlsChannel:
    """A non-blocking socket with TLS. Encrypted bytes go through memory, so the handshake, reads and writes need only
    the socket's own readiness."""

    is_sealed = True

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, is_dialer: bool) -> None:
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=not is_dialer)
        self._unsent = memoryview(b"")
        self._scratch = memoryview(bytearray(RAW_BYTES))
        self._is_at_end = False
        self._has_plain = False
        """whether OpenSSL may have more of the record that was read last"""
        self._has_whole_records = False
        """whether received bytes may have more records than were read"""
        self.is_ready = False
        self.is_begun = False

    @property
    def has_buffered(self) -> bool:
        return self.is_ready and (self._has_plain or (self._has_whole_records and self._incoming.pending > 0))

    @property
    def has_unsent(self) -> bool:
        return len(self._unsent) > 0 or self._outgoing.pending > 0

    def recv_into(self, buffer: bytearray | memoryview) -> int | None:
        """As many records as are there and fit. Each call of OpenSSL reads one at most, and lets another thread have
        the interpreter; so it is called only if there are bytes for it."""
        view, taken = memoryview(buffer), 0
        while taken < len(view):
            if (self.is_ready or self._shake()) and (self._has_plain or self._incoming.pending):
                wanted = len(view) - taken
                try:
                    count = int(self._tls.read(wanted, view[taken:]))  # type: ignore[call-overload,unused-ignore]
                    self._has_plain = count == wanted
                    taken += count
                    continue
                except ssl.SSLWantReadError:
                    self._has_plain = False
                except ssl.SSLZeroReturnError:
                    self._is_at_end = True
            self._has_whole_records = False
            if taken or self._is_at_end:
                return taken
            if not self._pull():
                return None
        return taken

    def _pull(self) -> bool:
        """Read from the socket. False if there is nothing now."""
        try:
            count = self._socket.recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return False
        if count:
            self._incoming.write(self._scratch[:count])
            self.is_begun = True
            self._has_whole_records = True
        else:
            self._is_at_end = True
        return True

    def send(self, parts: list[Part]) -> int | None:
        if not (self.is_ready or self._shake()) or not self.flush():
            return None
        some, size = [], 0
        for part in parts:
            some.append(part if size + len(part) <= RAW_BYTES else memoryview(part)[: RAW_BYTES - size])
            size += len(some[-1])
            if size >= RAW_BYTES:
                break
        taken = self._tls.write(some[0] if len(some) == 1 else b"".join(some))
        self.flush()
        return taken

    def flush(self) -> bool:
        while self.has_unsent:
            if not len(self._unsent):
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return False
            self._unsent = self._unsent[sent:]
        return True

    def _shake(self) -> bool:
        """Whether the handshake of TLS is done. ssl.SSLError, which is an OSError, if it fails."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.flush()
            return False
        except ssl.SSLError:
            self.flush()  # the alert says why
            raise
        self.is_ready = True
        self.flush()
        return True


def end_of(certificates: bytes) -> int:
    """Unix seconds of the end of these certificates in PEM: of the one that ends first. ValueError if there is none."""
    from cryptography import x509

    found = x509.load_pem_x509_certificates(certificates)
    return min(int(each.not_valid_after_utc.timestamp()) for each in found)


@dataclass(frozen=True, slots=True)
class _Content:
    """What the files had when they were read. end: of the certificate, Unix seconds. contexts: for the listener, and
    for the dialer."""

    digest: bytes
    end: int
    contexts: tuple[ssl.SSLContext, ssl.SSLContext]


@dataclass
class TlsSecurity:
    """The certificates of this member and the cluster's authority, all in PEM. Renewed files are used for new
    connections. OSError or ssl.SSLError if the first ones cannot be used.

    Renewed files are not used if members with them would refuse each other, and those in use are right. So a member
    keeps a pair that fits while only the certificate, or only the authority, is a new one. The dates of the new
    certificate do not count, because it may become valid."""

    certificate: Path
    key: Path
    authority: Path
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
        return TlsChannel(connection, self._content.contexts[is_dialer], is_dialer=is_dialer)

    def end(self) -> int:
        """Unix seconds of the end of the certificate that new connections use. Renewed files are taken first. Any
        thread."""
        self.renew()
        return self._content.end

    def meet_itself(self) -> None:
        """Do the handshake of two members that have these files. OSError if one of them would refuse the other one."""
        shake_hands(*self._content.contexts)

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
        if isinstance(wrong, ssl.SSLCertVerificationError):
            if wrong.verify_code in OUT_OF_DATE:
                return
            reason = wrong.verify_message.rstrip(".")
        else:
            reason = str(wrong)
        raise OSError(
            f"members would refuse {self.certificate} with the authority {self.authority}: {reason}"
        )

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        found = [file.stat() for file in (self.certificate, self.key, self.authority)]
        return tuple([(each.st_ino, each.st_size, each.st_mtime_ns) for each in found])

    def _read(self) -> _Content:
        files = (self.certificate, self.key, self.authority)
        contexts = self._context(ssl.PROTOCOL_TLS_SERVER), self._context(ssl.PROTOCOL_TLS_CLIENT)
        content = [file.read_bytes() for file in files]
        try:
            end = end_of(content[0])
        except ValueError as error:
            raise OSError(f"{self.certificate} is no PEM file of certificates: {error}") from error
        return _Content(hashlib.sha256(b"\0".join(content)).digest(), end, contexts)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.certificate, self.key, lambda: "")  # or OpenSSL asks on the terminal
        context.load_verify_locations(self.authority)
        return context


def _why_refused(content: _Content) -> OSError | None:
    """Why two members with this content would refuse each other; None if they would not."""
    try:
        shake_hands(*content.contexts)
    except OSError as error:
        return error
    return None


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None = None) -> None:
    """Do the handshake of TLS between both, in memory. host: that the client connects to. ssl.SSLError if one of them
    refuses the other one."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while waiting:
        end = waiting.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(end)


def reason_of(error: OSError) -> str:
    """Why a connection ended, in words for an operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        other = ", so it is of another authority" if error.verify_code in _OF_ANOTHER_AUTHORITY else ""
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}{other}"
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    reason = error.reason or str(error)
    if reason in _REASONS:
        return _REASONS[reason]
    words = reason.replace("_", " ").lower()
    if "_ALERT_" in reason:
        return f"it does not accept this member's certificate or TLS: {words.partition(' alert ')[2]}"
    return f"no handshake of TLS: {words}"


_OF_ANOTHER_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's codes for a certificate whose issuer is not trusted."""
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"), "it does not speak TLS"
    ),
}
"""By OpenSSL's names."""
