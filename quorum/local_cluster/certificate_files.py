"""Writes an authority and certificates for development and tests into a directory."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorum.errors import OperatorError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY = "ca"
AUTHORITY_DAYS = 3650
LOOPBACK, LOCALHOST = "127.0.0.1", "localhost"


def write_certificates(directory: Path, names: Sequence[str], days: int = 365) -> Iterator[str]:
    """Write ca.pem and ca.key if the directory has none, and NAME.pem and NAME.key for each name; yield a line about
    each file of certificates. OperatorError if a name is no host, or the authority's files cannot be used."""
    bad = [name for name in names if name == AUTHORITY or "/" in name or not name.strip(".")]
    if bad:
        raise OperatorError(f"{bad[0]!r} is no host; wanted: a name such as node-1.example, or an IP address")
    keys = [_new_key() for _ in names]  # without the package for this, no directory is made
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (directory / f"{AUTHORITY}.pem").exists() or not (directory / f"{AUTHORITY}.key").exists():
        write_authority(directory)
        yield f"{directory / AUTHORITY}.pem, a new authority"
    authority, secret = _authority(directory)
    for name, key in zip(names, keys, strict=True):
        certificate = _issue(name, key, authority.subject, secret, days)
        _write(directory / f"{name}.key", _pem_of_key(key), is_secret=True)
        _write(directory / f"{name}.pem", _pem(certificate))
        yield f"{directory / name}.pem, valid for {days} days"


def _authority(directory: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate_file, key_file = directory / f"{AUTHORITY}.pem", directory / f"{AUTHORITY}.key"
    try:
        found = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        secret = load_pem_private_key(key_file.read_bytes(), password=None)
    except ValueError as error:
        raise OperatorError(
            f"{certificate_file} and {key_file} are no certificate and its key: {error}"
        ) from error
    if not isinstance(secret, EllipticCurvePrivateKey):
        raise OperatorError(f"{key_file} was not made by this command; use another --dir")
    return found, secret


def write_authority(directory: Path) -> None:
    """Write ca.pem and ca.key of a new authority."""
    key = _new_key()
    made = _issue("Quorum development", key, None, key, AUTHORITY_DAYS)
    _write(directory / f"{AUTHORITY}.key", _pem_of_key(key), is_secret=True)
    _write(directory / f"{AUTHORITY}.pem", _pem(made))


def _issue(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: x509.Name | None,
    secret: EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    """A certificate of `name` for `key`, signed with `secret`. issuer: None for an authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(secret.public_key()), critical=False
        )
        .add_extension(_key_usage(is_authority=issuer is None), critical=True)
    )
    if issuer is not None:
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(
            x509.SubjectAlternativeName([*map(_host, _hosts(name))]), critical=False
        )
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    return builder.sign(secret, SHA256())


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    """RFC 5280 §4.2.1.3 wants it of an authority, and clients with Python 3.13 check it."""
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _hosts(name: str) -> list[str]:
    """The hosts that a certificate of this name is for: the two names of this machine belong together."""
    other = {LOOPBACK: LOCALHOST, LOCALHOST: LOOPBACK}.get(name)
    return [name, other] if other else [name]


def _host(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise OperatorError(f"{name!r} is no host: {error}") from error


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(file: Path, content: bytes, *, is_secret: bool = False) -> None:
    """Replace a file at once, so that a member never reads a part of it."""
    part = file.with_name(file.name + ".new")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400 if is_secret else 0o644)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    part.replace(file)
