"""The certificates with which a member answers its clients. Renewed files are used for new connections, without a
restart; a connection keeps those with which it began."""

from __future__ import annotations

import ssl
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import grpc
import structlog

from quorum.errors import ConfigError
from quorum.replication.network.certificates import OUT_OF_DATE, end_of

CLIENT_FILES = ("tls_certificate_file", "tls_key_file", "tls_client_ca_file")
PEER_FILES = ("peers_certificate_file", "peers_key_file", "peers_ca_file")
"""Keys of the configuration: a certificate, its private key, and the authorities of the other end."""

T = TypeVar("T")
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
        found = _of_each(CLIENT_FILES, self._files(), Path.stat)
        return tuple([(each.st_ino, each.st_size, each.st_mtime_ns) for each in found])

    def _read(self) -> tuple[bytes, ...]:
        """The content of the files."""
        found = read_checked(CLIENT_FILES, self._files())
        mode = stat.S_IMODE(self.key.stat().st_mode)
        if mode & 0o007:
            raise ConfigError(
                f"tls_key_file {self.key} has mode {mode:04o}, so that everybody can use it; "
                f"allowed: 0400, 0440, 0600 or 0640 (chmod 0400 {self.key})"
            )
        return found

    def why_not(self, host: str) -> str:
        """The reason why a client that connects to this host would refuse the certificate; empty if it would accept
        it. Dates and the authority do not count: the client's authorities are not known here."""
        try:
            server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            server.load_cert_chain(self.certificate, self.key, no_password)
            client.load_verify_locations(self.certificate)
            client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is enough
            shake_hands(server, client, host)
        except ssl.SSLCertVerificationError as error:
            return "" if error.verify_code in OUT_OF_DATE else error.verify_message.rstrip(".")
        except OSError as error:
            return str(error)
        return ""


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
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


class RenewedContext(ssl.SSLContext):
    """A context of Python's TLS whose new connections have the newest certificate. `ssl` has no such context, so each
    connection of asyncio (`wrap_bio`) is one of the newest context.

    It has no callback for the name that a client asks for: `ssl` writes a traceback if that is not ASCII."""

    def __new__(cls, certificates: Certificates, first: ssl.SSLContext) -> RenewedContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, certificates: Certificates, first: ssl.SSLContext) -> None:
        """first: has the certificate that the files have now."""
        self._certificates = certificates
        self._version = certificates.version
        self._newest = first

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        self._renew()
        return self._newest.wrap_bio(*arguments, **options)

    def _renew(self) -> None:
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


@lru_cache(maxsize=1_024)
def common_name(certificate: bytes) -> str:
    """The common name of a certificate in PEM, the first one if it has several; empty if it has none, or cannot be
    read. The name that gRPC reports ends at a zero byte: an authority might sign such a name for anybody."""
    from cryptography import x509

    try:
        subject = x509.load_pem_x509_certificate(certificate).subject
    except ValueError:
        return ""
    found = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def no_password() -> str:
    """For a key that is encrypted: without it, OpenSSL would ask on the terminal."""
    return ""


def read_checked(keys: tuple[str, str, str], files: Sequence[Path]) -> tuple[bytes, ...]:
    """The contents of a certificate's file, of its key's, and of one with authorities, if it is given. keys: of the
    configuration. ConfigError, with a line for each finding, if a file cannot be read, or has something else: gRPC
    would accept no connection, and would not say why."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    def raw(public: object) -> bytes:
        return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]

    found = _of_each(keys, files, Path.read_bytes)
    certificate, secret, *authorities = found
    wrong = []
    public = own_public = None
    try:
        first = x509.load_pem_x509_certificates(certificate)[0]
    except (ValueError, IndexError):
        wrong.append(f"{keys[0]} {files[0]} is no PEM file of certificates")
    else:
        try:
            public = raw(first.public_key())
        except (ValueError, UnsupportedAlgorithm) as error:
            wrong.append(f"{keys[0]} {files[0]} cannot be used: {error}")
    try:
        own_public = raw(load_pem_private_key(secret, password=None).public_key())
    except ValueError:
        wrong.append(f"{keys[1]} {files[1]} is no PEM file of a private key")
    except TypeError:
        wrong.append(f"{keys[1]} {files[1]} is encrypted; a member needs a key without a password")
    except UnsupportedAlgorithm as error:
        wrong.append(f"{keys[1]} {files[1]} cannot be used: {error}")
    if public is not None and own_public is not None and public != own_public:
        wrong.append(f"{keys[1]} {files[1]} is not the key of the first certificate in {keys[0]} {files[0]}")
    for each in authorities:
        try:
            x509.load_pem_x509_certificates(each)
        except ValueError:
            wrong.append(f"{keys[2]} {files[2]} is no PEM file of certificates")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return found


def _of_each(keys: Sequence[str], files: Sequence[Path], read: Callable[[Path], T]) -> tuple[T, ...]:
    """What `read` returns for each file. ConfigError with a line for each file that cannot be read."""
    found, wrong = [], []
    for key, file in zip(keys, files, strict=False):
        try:
            found.append(read(file))
        except OSError as error:
            wrong.append(f"{key} {file} cannot be read: {error.strerror}")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return tuple(found)
