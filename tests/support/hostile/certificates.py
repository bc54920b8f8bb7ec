"""Certificates that must not be accepted: each is right but for one thing."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
HOST = "127.0.0.1"


def issue(
    authority: Path,
    directory: Path,
    *,
    first_day: int = -1,
    last_day: int = 1,
    host: str = HOST,
    for_server: bool = True,
    for_client: bool = True,
    is_authority: bool = False,
) -> tuple[Path, Path]:
    """Write a certificate and its key into the directory, signed with ca.key in `authority`. Days count from now."""
    directory.mkdir(parents=True, exist_ok=True)
    signer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    secret = load_pem_private_key((authority / "ca.key").read_bytes(), password=None)
    assert isinstance(secret, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    uses = [
        *([ExtendedKeyUsageOID.SERVER_AUTH] if for_server else []),
        *([ExtendedKeyUsageOID.CLIENT_AUTH] if for_client else []),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]))
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + first_day * DAY)
        .not_valid_after(now + last_day * DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(host)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(secret.public_key()), critical=False
        )
        .sign(secret, SHA256())
    )
    pem, key_file = directory / "one.pem", directory / "one.key"
    pem.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key_file.chmod(0o400)
    return pem, key_file


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
