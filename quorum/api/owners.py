"""Whose a session is, for shares: clients are told apart by where they connect from."""

from __future__ import annotations

import hashlib
import ipaddress
from urllib.parse import unquote

from fifo.commands import UNKNOWN

IPV6_PREFIX = 64
"""Prefix length of the IPv6 network that counts as one client: a client commands all its addresses."""


def owner_of(peer: str) -> int:
    """The owner in `RegisterProducer` for gRPC's name of a peer ("ipv4:10.0.0.7:51234", "ipv6:%5B::1%5D:51234"): equal
    for all connections from one address, at every member."""
    place = unquote(peer)
    kind, _, rest = place.partition(":")
    if kind in ("ipv4", "ipv6"):
        place = _network(rest.rpartition(":")[0].strip("[]"))
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    return max(int.from_bytes(digest, "little"), UNKNOWN + 1)


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, IPV6_PREFIX), strict=False))
