"""The members' network: a connection a pair, as the product's transport keeps it (quorum/replication/connection.py).

While a connection lives, frames arrive whole, once and in order, late or at once. A direction that is blocked holds
them back; blocked for IDLE_LIMIT_S, or reset, the connection breaks and takes with it what was on the way. In wild
times single frames are lost, doubled or overtaken, which no TCP connection does: the members' rules must bear that
too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorum.node.member import Frame
from quorum.replication.connection import IDLE_LIMIT_S

if TYPE_CHECKING:
    from support.simulation.node import Node
    from support.simulation.world import World

RETRY_MS = 60
IDLE_MS = int(IDLE_LIMIT_S * 1000)

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


class PeerNetwork:
    def __init__(self, world: World, names: tuple[str, ...]) -> None:
        self._world = world
        self._chance = world.random_of("network")
        self._ways = {(a, b): Direction() for a in names for b in names if a != b}
        self._pairs = [(a, b) for a in names for b in names if a < b]
        self._is_up = dict.fromkeys(self._pairs, False)
        self._life = dict.fromkeys(self._pairs, 0)
        self._is_retrying = dict.fromkeys(self._pairs, False)
        self.wild = Wildness()
        for pair in self._pairs:
            self._retry_later(pair)

    def is_connected(self, one: str, other: str) -> bool:
        return self._is_up[_pair(one, other)]

    def send(self, node: Node, to: str, kind: int, data: bytes) -> None:
        way = (node.name, to)
        pair = _pair(*way)
        world, chance, wild = self._world, self._chance, self.wild
        if not self._is_up[pair]:
            return
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
        frame = Frame(node.name, kind, data)
        life = self._life[pair]
        world.at(at, lambda: self._arrive(way, life, frame))
        if wild.doubled and chance.randrange(1000) < wild.doubled:
            world.faults.land_once("frames doubled", node)
            world.at(at + chance.randrange(200), lambda: self._arrive(way, life, frame))

    def _arrive(self, way: Way, life: int, frame: Frame) -> None:
        world = self._world
        pair = _pair(*way)
        if life != self._life[pair]:
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
        pair = _pair(one, other)
        if self._is_up[pair]:
            self._is_up[pair] = False
            self._life[pair] += 1
        for way in (pair, pair[::-1]):
            self._ways[way].held.clear()
            self._ways[way].last_ms = 0
        self._retry_later(pair, for_ms)

    def break_node(self, name: str) -> None:
        for pair in self._pairs:
            if name in pair:
                self.break_pair(*pair)

    def _retry_later(self, pair: Way, after_ms: int = RETRY_MS) -> None:
        if not self._is_retrying[pair]:
            self._is_retrying[pair] = True
            self._world.after(after_ms + self._chance.randrange(RETRY_MS), lambda: self._retry(pair))

    def _retry(self, pair: Way) -> None:
        self._is_retrying[pair] = False
        nodes = self._world.nodes
        if self._is_up[pair]:
            return
        if (
            all(name in nodes and nodes[name].runs for name in pair)
            and not self._ways[pair].blocked_by
            and not self._ways[pair[::-1]].blocked_by
        ):
            self._is_up[pair] = True
            for name in pair:
                nodes[name].poke()
        else:
            self._retry_later(pair)

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
