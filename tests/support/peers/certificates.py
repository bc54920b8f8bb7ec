"""Certificates of members."""

from __future__ import annotations

from pathlib import Path

from quorum.replication.network.tls import TlsSecurity


def tls(made: Path, name: str, authority: str = "own") -> TlsSecurity:
    """made: a folder with a folder for each authority."""
    folder = made / authority
    return TlsSecurity(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")
