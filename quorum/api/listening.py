"""The addresses at which a member listens, and whether it can listen there now."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from quorum.addresses import host_port
from quorum.config import NodeConfig
from quorum.errors import OperatorError


def check_ports(config: NodeConfig) -> None:
    """OperatorError if the member cannot listen at one of its addresses, with a line for each of them. Another process
    may still take a port afterwards."""
    wrong = [
        f"cannot listen for {what} on {address}: {error.strerror or error}"
        for what, address in _places(config)
        if (error := why_not(address)) is not None
    ]
    if wrong:
        raise OperatorError("\n".join(wrong))


def _places(config: NodeConfig) -> Iterator[tuple[str, str]]:
    yield "clients", config.client_address
    yield "members", config.members[config.name].peer
    if config.http_listen is not None:
        yield "HTTP", config.http_listen


def why_not(address: str) -> OSError | None:
    """The operating system's reason why nothing can listen on host:port now; None if something can. If the host has
    several addresses, one of them is enough, as it is for gRPC."""
    host, port = host_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error
    reason: OSError | None = None
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
            return None
        except OSError as error:
            reason = reason or error
    return reason
