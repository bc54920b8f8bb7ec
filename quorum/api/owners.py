"""Whose a call or session is, for shares and turns: connections from one IPv4 address or one IPv6 network count
together."""

from __future__ import annotations

import hashlib
import ipaddress
from contextvars import ContextVar
from functools import lru_cache
from urllib.parse import unquote

from fifo.commands import UNKNOWN

IPV6_PREFIX = 64
"""Prefix length of the IPv6 network that counts as one client: a client may use any address of its network."""

OF_USER = "user:"
"""Begins the name of a user among those who share; gRPC names no peer so."""
CALLER: ContextVar[str] = ContextVar("caller", default="")
"""Whose call the running task serves: the caller's `client_address`, or `user:NAME` after its user has logged in. Empty
for the node's own work. The gate sets it (grpc/calls.py), and so does the HTTP port."""


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Return the key of a host: its IPv4 address, also if IPv6 carries it, or its IPv6 network; other names
    unchanged."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, IPV6_PREFIX), strict=False))


def client_address(peer: str) -> str:
    """Return `network_of` the host in gRPC's name of a peer, such as "ipv4:10.0.0.7:41822" or "ipv6:%5B::1%5D:41822";
    other names unchanged."""
    scheme, _, rest = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return peer
    return network_of(unquote(rest).rpartition(":")[0].strip("[]"))


def owner_of(peer: str) -> int:
    """Return the owner in `RegisterProducer` for gRPC's name of a peer: a 64-bit number above UNKNOWN that is the same
    at every member for the same `client_address`."""
    digest = hashlib.blake2b(client_address(peer).encode(), digest_size=8).digest()
    return max(int.from_bytes(digest, "little"), UNKNOWN + 1)
