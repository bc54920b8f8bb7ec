"""Free ports of this machine, for the members of a local cluster."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from quorum.errors import ClusterError

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections, so that a port stays free while its member is down."""


def free_ports(count: int, taken: Sequence[int] = ()) -> list[int]:
    """Free ports of this machine from PORTS, in no particular order."""
    candidates = [port for port in PORTS if port not in taken]
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if not is_free(port):
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise ClusterError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")


def is_free(port: int) -> bool:
    """Whether a member could listen on the port now. Closing connections of an earlier listener do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
