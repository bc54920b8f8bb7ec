"""Limit the connections to the client port, by address.

gRPC accepts connections itself. It closes those above a limit and those that send nothing (server.py has the settings),
but does not count by address, so one address could take all places. Therefore the node inspects its own sockets
periodically. An address may have as many connections as are left free (the rule of shares.Shares). Of the excess
connections, the node closes those that have sent the fewest bytes.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from fifo.frozen_dataclasses import dataclass
from quorum.api.owners import network_of

SHARE_OF_DESCRIPTORS = 4
"""Part of a process's descriptors for connections to one listening address: a host name may resolve to two addresses,
and the log has a descriptor for each segment."""
MAX_CONNECTIONS = 32_768
LOOK_S = 1.0
"""Interval between two checks of the connections."""
CHECKED_FROM = 2
"""Connections are not checked below this part of the limit: 2 is a half."""
_BYTES_RECEIVED = 128
"""Offset of tcpi_bytes_received, a u64, in struct tcp_info (Linux, <linux/tcp.h>)."""


@dataclass(frozen=True, slots=True)
class Connection:
    descriptor: int
    inode: int
    network: str
    received: int
    peer: str = ""
    """as gRPC calls it"""


def max_connections() -> int:
    """Return the limit for one listening address, derived from this process's limit of open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(1, limit // SHARE_OF_DESCRIPTORS))


def excess(connections: Sequence[Connection], most: int) -> list[Connection]:
    """Return the connections to close, so that each network has at most as many as are left free of `most`."""
    by_network: dict[str, list[Connection]] = defaultdict(list)
    for each in connections:
        by_network[each.network].append(each)
    total, found = len(connections), []
    for held in sorted(by_network.values(), key=len, reverse=True):
        held.sort(key=lambda each: (each.received, each.descriptor))
        while len(held) > max(1, most - total):
            found.append(held.pop(0))
            total -= 1
    return found


def close_excess(port: int, most: int) -> int:
    """Close the excess connections of each address to this port; return their number. Blocks for some milliseconds
    if there are thousands."""
    descriptors = _descriptors()
    if len(descriptors) * CHECKED_FROM < most:
        return 0
    found = excess(list(_connections(descriptors, port)), most)
    for each in found:
        _shut_down(each)
    return len(found)


def close_peers(port: int, peers: Collection[str]) -> int:
    """Close these peers' connections to this port; return their number. peers: gRPC names (ipv4:10.0.0.7:41822)."""
    found = [each for each in _connections(_descriptors(), port) if each.peer in peers]
    for each in found:
        _shut_down(each)
    return len(found)


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # no such system, or no descriptor left to look with
        return []


def _connections(descriptors: Iterable[int], port: int) -> Iterable[Connection]:
    for descriptor in descriptors:
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as each:
                if each.family not in (socket.AF_INET, socket.AF_INET6) or each.getsockname()[1] != port:
                    continue
                name, number = each.getpeername()[:2]
                host = str(name).removeprefix("::ffff:")
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
                inode = os.fstat(each.fileno()).st_ino
        except OSError:  # closed in between, or listening
            continue
        received = (
            struct.unpack_from("Q", info, _BYTES_RECEIVED)[0] if len(info) >= _BYTES_RECEIVED + 8 else 0
        )
        peer = f"ipv6:%5B{host}%5D:{number}" if ":" in host else f"ipv4:{host}:{number}"
        yield Connection(descriptor, inode, network_of(host), received, peer)


def _shut_down(connection: Connection) -> None:
    """Shut the socket down, so that gRPC closes it. A different socket under the same number is left alone."""
    try:
        with socket.socket(fileno=os.dup(connection.descriptor)) as each:
            if os.fstat(each.fileno()).st_ino == connection.inode:
                each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
