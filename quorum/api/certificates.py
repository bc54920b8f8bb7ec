"""The certificates with which a member answers its clients. Renewed files are used for new connections, without a
restart; a connection keeps those with which it began."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from quorum.errors import ConfigError

Seen = tuple[tuple[int, int, int], ...]
"""Of each file: its inode, size and time of change."""


@dataclass
class Certificates:
    """client_authorities: of clients' certificates; None if clients need none."""

    certificate: Path
    key: Path
    client_authorities: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """ConfigError if a file cannot be read, or others can read the key."""
        self._seen = self._look()
        first = self._read()
        return grpc.dynamic_ssl_server_credentials(
            first, self._renewed, require_client_authentication=self.client_authorities is not None
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """On a thread of gRPC, before each handshake: None if nothing has changed, or the new files are not right."""
        try:
            seen = self._look()
            if seen == self._seen:
                return None
            self._seen = seen
            found = self._read()
        except ConfigError as error:
            structlog.get_logger().error("renewed certificates are not used", error=str(error))
            return None
        structlog.get_logger().info("certificates renewed", certificate=str(self.certificate))
        return found

    def _files(self) -> tuple[Path, ...]:
        more = () if self.client_authorities is None else (self.client_authorities,)
        return (self.certificate, self.key, *more)

    def _look(self) -> Seen:
        try:
            found = [file.stat() for file in self._files()]
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
        return tuple([(each.st_ino, each.st_size, each.st_mtime_ns) for each in found])

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            mode = stat.S_IMODE(self.key.stat().st_mode)
            if mode & 0o007:
                raise ConfigError(
                    f"tls_key_file {self.key} has mode {mode:04o}, so that everybody can use it; "
                    f"allowed: 0400, 0440, 0600 or 0640 (chmod 0400 {self.key})"
                )
            certificate, key, *more = [file.read_bytes() for file in self._files()]
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
        _check(certificate, key)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], more[0] if more else None)


def _check(certificate: bytes, key: bytes) -> None:
    """ConfigError if they are no certificate and its key: gRPC would accept no connection, and would not say why."""
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
