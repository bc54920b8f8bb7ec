"""The peers' networks of a few members, on real sockets of this machine, and strangers that connect to them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from quorum.replication.network.connection import KIND_PING, PeerNetwork
from quorum.replication.network.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    THIS_BUILD,
    UNKNOWN,
    Identity,
    Versions,
)
from quorum.replication.network.wire import Security

DEADLINE_S = 60.0
SECRET = b"0123456789abcdef0123456789abcdef"
ALL_KINDS = dict.fromkeys(range(KIND_PING), 1)


class Cluster:
    """Networks on free ports of this machine, with a clock that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.networks: dict[str, PeerNetwork] = {}
        self.frames: dict[str, list[tuple[str, int, bytes]]] = {}
        self._sockets = {name: listening(("127.0.0.1", 0)) for name in ("a", "b", "c")}
        self.members = {name: each.getsockname()[:2] for name, each in self._sockets.items()}
        self._held = [holding(address) for address in self.members.values()]

    def add(
        self,
        name: str,
        *,
        secret: bytes = SECRET,
        cluster: str = "test",
        boot: int = 1,
        incarnation: bytes = UNKNOWN,
        known: Callable[[str], bytes] = lambda _: UNKNOWN,
        network_class: type[PeerNetwork] = PeerNetwork,
        versions: Versions = THIS_BUILD,
        kinds: Mapping[int, int] = ALL_KINDS,
        security: Security | None = None,
    ) -> PeerNetwork:
        listener = self._sockets.pop(name, None)
        if listener is None:
            listener = listening(self.members[name])
        made = network_class(
            Identity(name, boot, secret, cluster, incarnation=incarnation, known=known, versions=versions),
            self.members,
            clock=lambda: self.now,
            listener=listener,
            security=security,
        )
        made.set_kinds(kinds)
        self.networks[name] = made
        self.frames[name] = []
        return made

    def poll(self) -> None:
        for name, network in self.networks.items():
            network.flush()
            self.frames[name] += network.poll(0.0)

    def until(self, done: Callable[[], bool], *, passes_s: float = 0.01) -> None:
        limit = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < limit, "nothing came of it"
            self.now += passes_s
            self.poll()
            time.sleep(0.001)

    def connected(self, one: str, other: str) -> bool:
        return other in self.networks[one].links() and one in self.networks[other].links()

    def close(self) -> None:
        for network in self.networks.values():
            network.close()
        for each in (*self._sockets.values(), *self._held):
            each.close()


def listening(address: tuple[str, int]) -> socket.socket:
    return socket.create_server(address, reuse_port=True)


def holding(address: tuple[str, int]) -> socket.socket:
    """Nothing else gets this port while no network listens there."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(address)
    return made


def pair(cluster: Cluster) -> tuple[PeerNetwork, PeerNetwork]:
    one, other = cluster.add("a"), cluster.add("b")
    cluster.until(lambda: cluster.connected("a", "b"))
    return one, other


def dial(cluster: Cluster, name: str = "a") -> socket.socket:
    made = socket.create_connection(cluster.members[name], timeout=DEADLINE_S)
    made.settimeout(DEADLINE_S)
    return made


def receive(cluster: Cluster, stranger: socket.socket, count: int) -> bytes:
    stranger.setblocking(False)
    data = b""
    limit = time.monotonic() + DEADLINE_S
    while len(data) < count and time.monotonic() < limit:
        cluster.poll()
        try:
            part = stranger.recv(count - len(data))
        except BlockingIOError:
            time.sleep(0.001)
            continue
        if not part:
            break
        data += part
    return data


def is_closed(cluster: Cluster, stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    cluster.poll()
    try:
        return stranger.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def friend(cluster: Cluster, versions: Versions = THIS_BUILD) -> socket.socket:
    """A connection as b that has proved itself, to send anything on."""
    made = dial(cluster)
    shake_hands_as_b(cluster, made, versions)
    return made


def shake_hands_as_b(cluster: Cluster, made: socket.socket, versions: Versions = THIS_BUILD) -> None:
    identity = Identity("b", 9, SECRET, "test", versions=versions)
    hello = identity.hello("a", bytes(32))
    made.sendall(hello)
    answer = receive(cluster, made, ANSWER_BYTES)
    made.sendall(identity.prove(b"dialer", hello, answer[:HELLO_BYTES]))
    cluster.until(lambda: "b" in cluster.networks["a"].links())
