"""Dates of certificates."""

from __future__ import annotations

OUT_OF_DATE = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or no more."""


def end_of(certificates: bytes) -> int:
    """Unix seconds of the end of these certificates in PEM: of the one that ends first. ValueError if there is none."""
    from cryptography import x509

    found = x509.load_pem_x509_certificates(certificates)
    return min(int(each.not_valid_after_utc.timestamp()) for each in found)
