"""The owner of a session, for shares: it is derived from the client's address."""

from __future__ import annotations

import hashlib
import ipaddress
from urllib.parse import unquote

from fifo.commands import UNKNOWN

IPV6_PREFIX = 64
"""Prefix length of the IPv6 network that counts as one owner: a client may use any address of its network."""


def owner_of(peer: str) -> int:
    """Return the owner in `RegisterProducer` for gRPC's name of a peer.

    peer: such as "ipv4:10.0.0.7:51234" or "ipv6:%5B::1%5D:51234". The owner is the same at every member, for all
    connections from one IPv4 address or one IPv6 network. It is a 64-bit number above UNKNOWN.
    """
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
