"""The certificates with which a member answers its clients. Renewed files are used for new connections, without a
restart; a connection keeps those with which it began."""

from __future__ import annotations

import ssl
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from quorum.errors import ConfigError
from quorum.replication.network.tls import end_of

Seen = tuple[tuple[int, int, int], ...]
"""Of each file: its inode, size and time of change."""


@dataclass
class Certificates:
    """client_authorities: of clients' certificates; None if clients need none. ConfigError if a file cannot be read or
    has something else, or others can read the key."""

    certificate: Path
    key: Path
    client_authorities: Path | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = self._look()
        self._content = self._read()
        self.version = 1
        """raised by each renewal"""
        self._version_of_grpc = 0

    def credentials(self) -> grpc.ServerCredentials:
        self._version_of_grpc = self.version
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._renewed,
            require_client_authentication=self.client_authorities is not None,
        )

    def renew(self) -> None:
        """Take the files if they have changed. If they are not right, the last right ones stay, and a line is logged.
        Any thread."""
        with self._lock:
            try:
                seen = self._look()
                if seen == self._seen:
                    return
                self._seen = seen
                found = self._read()
            except ConfigError as error:
                structlog.get_logger().error("renewed certificates are not used", error=str(error))
                return
            if found != self._content:
                self._content = found
                self.version += 1
                structlog.get_logger().info("certificates renewed", certificate=str(self.certificate))

    def end(self) -> int:
        """Unix seconds of the end of the certificate that new connections use. Renewed files are taken first. Any
        thread."""
        self.renew()
        with self._lock:
            return end_of(self._content[0])

    def prepare(self, certificate: Path, key: Path, client_authorities: Path | None) -> Callable[[], bool]:
        """Read these files, of which there is an authority if there was one before. The result takes them, and says
        whether they differ from those in use. ConfigError as for a new one."""
        fresh = Certificates(certificate, key, client_authorities)

        def take() -> bool:
            with self._lock:
                self.certificate, self.key, self.client_authorities = certificate, key, client_authorities
                self._seen = fresh._seen
                has_changed = fresh._content != self._content
                self._content = fresh._content
                self.version += has_changed
            return has_changed

        return take

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """On a thread of gRPC, before each handshake: None if nothing has changed, or the new files are not right."""
        self.renew()
        with self._lock:
            if self._version_of_grpc == self.version:
                return None
            self._version_of_grpc = self.version
            return self._configuration()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate, key, *more = self._content
        return grpc.ssl_server_certificate_configuration([(key, certificate)], more[0] if more else None)

    def _files(self) -> tuple[Path, ...]:
        more = () if self.client_authorities is None else (self.client_authorities,)
        return (self.certificate, self.key, *more)

    def _look(self) -> Seen:
        try:
            found = [file.stat() for file in self._files()]
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
        return tuple([(each.st_ino, each.st_size, each.st_mtime_ns) for each in found])

    def _read(self) -> tuple[bytes, ...]:
        """The content of the files."""
        try:
            mode = stat.S_IMODE(self.key.stat().st_mode)
            if mode & 0o007:
                raise ConfigError(
                    f"tls_key_file {self.key} has mode {mode:04o}, so that everybody can use it; "
                    f"allowed: 0400, 0440, 0600 or 0640 (chmod 0400 {self.key})"
                )
            found = tuple([file.read_bytes() for file in self._files()])
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
        _check(*found)
        return found


class RenewedContext:
    """A context of Python's TLS whose new connections have the newest certificate. `ssl` has no such context, so the
    first one gives each handshake the newest one."""

    def __init__(self, certificates: Certificates, first: ssl.SSLContext) -> None:
        """first: has the certificate that the files have now."""
        self._certificates = certificates
        self._version = certificates.version
        self._newest = first
        first.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        self._certificates.renew()
        version = self._certificates.version
        if version != self._version:
            fresh = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            try:
                fresh.load_cert_chain(self._certificates.certificate, self._certificates.key, no_password)
            except OSError as error:  # changed once more in this moment
                structlog.get_logger().error("renewed certificates are not used for HTTP", error=str(error))
            else:
                self._newest, self._version = fresh, version
        connection.context = self._newest


def no_password() -> str:
    """For a key that is encrypted: without it, OpenSSL would ask on the terminal."""
    return ""


def _check(certificate: bytes, key: bytes, authorities: bytes | None = None) -> None:
    """ConfigError if they are no certificate and its key, and authorities: gRPC would accept no connection, and would
    not say why."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    def raw(public: object) -> bytes:
        return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]

    try:
        first = x509.load_pem_x509_certificates(certificate)[0]
        secret = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"tls_certificate_file or tls_key_file is no PEM file of that kind: {error}"
        ) from error
    if raw(first.public_key()) != raw(secret.public_key()):
        raise ConfigError("tls_key_file is not the key of the first certificate in tls_certificate_file")
    if authorities is not None:
        try:
            x509.load_pem_x509_certificates(authorities)
        except ValueError as error:
            raise ConfigError(f"tls_client_ca_file is no PEM file of certificates: {error}") from error
