"""The members' network: a connection a pair of machines, as the product's transport keeps it
(quorum/replication/network/connection.py), after the product's own handshake.

While a connection lives, frames arrive whole, once and in order, late or at once. A direction that is blocked holds
them back; blocked for IDLE_LIMIT_S, or reset, the connection breaks and takes with it what was on the way. In wild
times single frames are lost, doubled or overtaken, which no TCP connection does: the members' rules must bear that
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorum.node.wire.frames import Frame
from quorum.replication.network.connection import IDLE_LIMIT_S
from quorum.replication.network.dialing import RESERVE_AFTER_S
from quorum.replication.network.handshake import NONCE_BYTES, HandshakeError

if TYPE_CHECKING:
    from simulator.machines.node import Node
    from simulator.world import World

RETRY_MS = 60
IDLE_MS = int(IDLE_LIMIT_S * 1000)
RESERVE_MS = int(RESERVE_AFTER_S * 1000)

Way = tuple[str, str]
"""(sender, receiver)"""


@dataclass(slots=True)
class Direction:
    last_ms: int = 0
    held: list[tuple[int, Frame]] = field(default_factory=list)
    blocked_by: dict[int, str] = field(default_factory=dict)
    """partition -> its kind"""


@dataclass(slots=True)
class Wildness:
    """Frames in a thousand."""

    lost: int = 0
    doubled: int = 0
    overtaken: int = 0
    late_ms: int = 0


@dataclass(slots=True)
class Pair:
    """The connection of two machines, down since down_ms. life: which one it is, of all they ever had."""

    down_ms: int
    is_up: bool = False
    life: int = 0
    is_retrying: bool = False


class PeerNetwork:
    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.random_of("network")
        self._ways: dict[Way, Direction] = {}
        self._pairs: dict[Way, Pair] = {}
        self._machines: list[str] = []
        self._connected: dict[str, list[str]] = {}
        """machine -> the machines that it is connected to, as long as no connection is made or broken"""
        self.wild = Wildness()

    def add(self, machine: str) -> None:
        """One more, with ways to all others."""
        for other in self._machines:
            self._ways[other, machine] = Direction()
            self._ways[machine, other] = Direction()
            pair = _pair(machine, other)
            self._pairs[pair] = Pair(self._world.now_ms)
            self._retry_later(pair)
        self._machines.append(machine)
        self._connected.clear()

    def is_connected(self, one: str, other: str) -> bool:
        return self._pairs[_pair(one, other)].is_up

    def links(self, node: Node) -> list[str]:
        """The ids at the other ends of this node's connections."""
        return [self._world.nodes[other].id for other in self._others(node.name)]

    def other_end(self, node: Node, peer: str) -> Node | None:
        """The node with this id, if it is connected to this one."""
        for other in self._others(node.name):
            found = self._world.nodes[other]
            if found.id == peer:
                return found
        return None

    def _others(self, name: str) -> list[str]:
        """The machines that this one is connected to."""
        found = self._connected.get(name)
        if found is None:
            found = self._connected[name] = [
                other for other in self._machines if other != name and self.is_connected(name, other)
            ]
        return found

    def peers_changed(self, node: Node) -> None:
        """It has no connections to those who are gone, or whose build is too old."""
        for other in self._machines:
            if other == node.name or not self.is_connected(node.name, other):
                continue
            peer = self._world.nodes[other]
            if peer.id in node.gone or peer.identity.versions.machine < node.identity.needed_version:
                self.break_pair(node.name, other)

    def send(self, node: Node, peer: str, kind: int, data: bytes) -> None:
        other = self.other_end(node, peer)
        if other is None:
            return
        way = (node.name, other.name)
        world, chance, wild = self._world, self._chance, self.wild
        direction = self._ways[way]
        leaves = world.now_ms + node.delay_ms
        at = max(direction.last_ms, leaves + chance.choice((1, 1, 1, 2, 3)))
        if wild.late_ms:
            at += chance.randrange(wild.late_ms)
            world.faults.land_once("network delay", node)
        if wild.lost and chance.randrange(1000) < wild.lost:
            world.faults.land_once("frames lost", node)
            return
        if wild.overtaken and chance.randrange(1000) < wild.overtaken:
            at = leaves + 1 + chance.randrange(80)
            world.faults.land_once("frames reordered", node)
        else:
            direction.last_ms = at
        frame = Frame(node.id, kind, data)
        life = self._pairs[_pair(*way)].life
        world.at(at, lambda: self._arrive(way, life, frame))
        if wild.doubled and chance.randrange(1000) < wild.doubled:
            world.faults.land_once("frames doubled", node)
            world.at(at + chance.randrange(200), lambda: self._arrive(way, life, frame))

    def _arrive(self, way: Way, life: int, frame: Frame) -> None:
        world = self._world
        if life != self._pairs[_pair(*way)].life:
            return
        direction = self._ways[way]
        if direction.blocked_by:
            for number, kind in direction.blocked_by.items():
                world.faults.land_partition(number, kind, world.nodes[way[0]])
            direction.held.append((life, frame))
            return
        world.note(b"%d %b %b %d %d " % (world.now_ms, way[0].encode(), way[1].encode(), frame.kind, life))
        world.note(bytes(frame.data))
        world.nodes[way[1]].receive(frame)

    # ---- connections

    def break_pair(self, one: str, other: str, for_ms: int = RETRY_MS) -> None:
        """The connection is gone; it is made again at the earliest after so long."""
        name = _pair(one, other)
        pair = self._pairs[name]
        if pair.is_up:
            pair.is_up = False
            self._connected.clear()
            pair.life += 1
            pair.down_ms = self._world.now_ms
        for way in (name, name[::-1]):
            self._ways[way].held.clear()
            self._ways[way].last_ms = 0
        self._retry_later(name, for_ms)

    def break_node(self, name: str) -> None:
        for pair in self._pairs:
            if name in pair:
                self.break_pair(*pair)

    def _retry_later(self, name: Way, after_ms: int = RETRY_MS) -> None:
        pair = self._pairs[name]
        if not pair.is_retrying:
            pair.is_retrying = True
            self._world.after(after_ms + self._chance.randrange(RETRY_MS), lambda: self._retry(name))

    def _retry(self, name: Way) -> None:
        pair = self._pairs[name]
        pair.is_retrying = False
        if pair.is_up:
            return
        one, other = (self._world.nodes.get(each) for each in name)
        if (
            one is not None
            and other is not None
            and one.runs
            and other.runs
            and not self._ways[name].blocked_by
            and not self._ways[name[::-1]].blocked_by
            and (self._dial(one, other) or self._dial(other, one) or self._dial_late(pair, one, other))
        ):
            pair.is_up = True
            self._connected.clear()
            one.poke()
            other.poke()
        else:
            self._retry_later(name)

    def _dial(self, dialer: Node, listener: Node) -> bool:
        """Whether a node looks for somebody at the other one's address, and finds who it looks for."""
        return self._look(dialer, listener, dialer.dials)

    def _dial_late(self, pair: Pair, one: Node, other: Node) -> bool:
        """The same of those who should be dialed: they may not know the way."""
        if self._world.now_ms - pair.down_ms < RESERVE_MS:
            return False
        return self._look(one, other, one.reserve) or self._look(other, one, other.reserve)

    def _look(self, dialer: Node, listener: Node, ways: Mapping[str, str]) -> bool:
        sought = [peer for peer, machine in ways.items() if machine == listener.name]
        return any(self._shake_hands(dialer, listener, each) for each in sought)

    def _shake_hands(self, dialer: Node, listener: Node, wanted: str) -> bool:
        """What two ends of a new connection say to each other, and whether they go on after it."""
        try:
            dialed = dialer.identity.hello(wanted, self._chance.randbytes(NONCE_BYTES))
            caller = listener.identity.read(dialed)
            if caller.sender in listener.dials:
                raise HandshakeError(f"{caller.sender!r} does not dial this node")
            if caller.sender in listener.gone:
                raise HandshakeError(f"{caller.sender!r} is no member any more")
            answer = listener.identity.hello(caller.sender, self._chance.randbytes(NONCE_BYTES))
            proof = listener.identity.prove(b"listener", dialed, answer)
            listener.identity.check_known(caller)
            answered = dialer.identity.read(answer)
            if answered.sender != wanted:
                raise HandshakeError(f"{answered.sender!r} answered for {wanted!r}")
            dialer.identity.check(proof, b"listener", dialed, answer)
            dialer.identity.check_known(answered)
            listener.identity.check(
                dialer.identity.prove(b"dialer", dialed, answer), b"dialer", dialed, answer
            )
        except HandshakeError:
            self._world.rules.refused(dialer, listener)
            return False
        return True

    # ---- partitions

    def block(self, number: int, kind: str, ways: Iterable[Way]) -> None:
        for way in ways:
            direction = self._ways[way]
            if not direction.blocked_by:
                self._world.after(IDLE_MS, lambda way=way: self._idle(way))  # type: ignore[misc]
            direction.blocked_by[number] = kind

    def unblock(self, number: int) -> None:
        for way, direction in self._ways.items():
            if direction.blocked_by.pop(number, None) is not None and not direction.blocked_by:
                held, direction.held = direction.held, []
                for life, frame in held:
                    self._arrive(way, life, frame)

    def _idle(self, way: Way) -> None:
        if self._ways[way].blocked_by:
            self.break_pair(*way)

    def unblock_all(self) -> None:
        for number in sorted({number for each in self._ways.values() for number in each.blocked_by}):
            self.unblock(number)


def _pair(one: str, other: str) -> Way:
    return (one, other) if one < other else (other, one)


def shape(kind: str, names: list[str]) -> list[Way]:
    """The directions that a partition of this kind blocks; names in the order in which they take their parts."""
    n = len(names)

    def both(pairs: Iterable[tuple[int, int]]) -> list[Way]:
        return [way for a, b in pairs for way in ((names[a], names[b]), (names[b], names[a]))]

    if kind == "isolated":
        return both((0, other) for other in range(1, n))
    if kind == "halves":
        return both((a, b) for a in range(n // 2) for b in range(n // 2, n))
    if kind == "ring":  # each sees its two neighbours: of three everybody, so there one link is cut
        if n == 3:
            return both([(0, 1)])
        return both((a, b) for a in range(n) for b in range(a + 1, n) if b - a not in (1, n - 1))
    if kind == "bridge":  # two halves that only the last one sees
        half = (n - 1) // 2
        return both((a, b) for a in range(half) for b in range(half, n - 1))
    assert kind == "one-way"
    return [(names[0], other) for other in names[1:]]
