"""What goes wrong, and when it really did.

A fault is scheduled here and counted where it bites: when the disk fails, when a frame is held back, when a paused node
had something to do. With it is noted what the node was doing at that moment; `STATES` says what is told apart.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from support.simulation.network import Wildness, shape

if TYPE_CHECKING:
    from support.simulation.node import Node
    from support.simulation.world import World

PARTITIONS = ("isolated", "halves", "ring", "bridge", "one-way")
SCHEDULED = (
    *(
        "kill",
        "kill",
        "power",
        "power all",
        "disk write",
        "disk write",
        "disk error",
        "disk slow",
        "disk full",
    ),
    *(
        "pause",
        "pause",
        "pause all",
        "clock jump",
        "clock drift",
        "wild",
        "wild",
        "late",
        "reset",
        "flapping",
    ),
    *PARTITIONS,
    *("client reset", "client stall", "client kill", "client kill", "client slow", "rot"),
    "power in a sync",
)
STORM = (*PARTITIONS, "reset", "wild", "wild", "wild", "pause", "flapping", "power in a sync")
"""In stormy seeds these come three times as often."""
STORMY_PART = 0.3
"""Of all seeds."""
ROT_TIMES = 3
"""Bits that turn at most, all of one member."""
LANDABLE = (
    *(
        "kill",
        "power cut",
        "power cut of all",
        "power cut in a write",
        "power cut in a sync",
        "disk error",
        "disk slow",
        "disk full",
    ),
    *("bit rot", "pause", "clock jump", "clock drift", "network delay", "frames lost", "frames doubled"),
    *("frames reordered", "connection reset", "partition flapping"),
    *(f"partition {kind}" for kind in PARTITIONS),
    *("client reset", "client stalled", "client killed", "client delay"),
)
STATES = (
    "steady",
    "election running",
    "leader with uncommitted entries",
    "leader with unsynced appends",
    "snapshot being taken",
    "snapshot on its way",
    "member catching up",
    "another member down",
    "lease lapsed here",
    "queues draining",
)
BEHIND = 20
"""Entries that a member lacks when it is said to be catching up."""


def states_of(world: World, node: Node | None) -> list[str]:
    """What was going on, at this node as a rule."""
    found = []
    ups = [each for each in world.nodes.values() if each.is_up]
    if any(r.raft.leader is None for each in ups for r in each.member.replicas.values()):
        found.append("election running")
    if len(ups) < len(world.names) - (node is not None and not node.is_up) or any(
        each.is_paused for each in ups if each is not node
    ):
        found.append("another member down")
    if world.is_ebb:
        found.append("queues draining")
    if node is not None:
        member = node.member
        replicas = list(member.replicas.values())
        leading = [r for r in replicas if r.raft.is_leader]
        if any(r.raft.last_index > r.raft.commit_index for r in leading):
            found.append("leader with uncommitted entries")
        writer = None if node.log._opened is None else node.log._opened.writer
        if leading and writer is not None and writer.synced_lsn < writer.last_lsn:
            found.append("leader with unsynced appends")
        if node.disk.is_saving_snapshot:
            found.append("snapshot being taken")
        if any(
            r.raft.installing.incoming._identity is not None
            or any(feed.outgoing is not None for feed in r.raft._feeder.feeds.values())
            for r in replicas
        ):
            found.append("snapshot on its way")
        furthest = {
            n: max(each.member.replicas[n].raft.commit_index for each in ups) if ups else 0
            for n in member.replicas
        }
        if any(r.raft.applied_index + BEHIND < furthest[n] for n, r in member.replicas.items()):
            found.append("member catching up")
        if any(not member.heartbeats.may_deliver(n, node.clock.ms()) for n in member.replicas):
            found.append("lease lapsed here")
    return found or ["steady"]


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self.chance = world.random_of("faults")
        self.landed: Counter[str] = Counter()
        self.coverage: Counter[tuple[str, str]] = Counter()
        self._armed: dict[tuple[str, str], None] = {}
        self._partitions: dict[int, None] = {}
        """those that have not bitten yet"""
        self._numbers = 0
        self.rotten: str | None = None
        self._rotted = 0
        self.is_stormy = world.random_of("storm").random() < STORMY_PART
        self._kinds = SCHEDULED + (STORM * 2 if self.is_stormy else ())
        self.is_over = False

    # ---- counting

    def land(self, kind: str, node: Node | None, states: list[str] | None = None) -> None:
        assert kind in LANDABLE, kind
        self.landed[kind] += 1
        for state in states or states_of(self._world, node):
            self.coverage[kind, state] += 1
        self._world.tell(f"landed: {kind} {node.name if node is not None else ''}")

    def arm(self, kind: str, name: str) -> None:
        self._armed[kind, name] = None

    def land_once(self, kind: str, node: Node) -> None:
        """Counts the first time only that it bites after it was armed."""
        if (kind, node.name) in self._armed:
            del self._armed[kind, node.name]
            self.land(kind, node)

    def land_partition(self, number: int, kind: str, node: Node) -> None:
        if number in self._partitions:
            del self._partitions[number]
            self.land(f"partition {kind}", node)

    # ---- scheduling

    def begin(self) -> None:
        self._world.after(300, self._next)

    def _next(self) -> None:
        if not self.is_over:
            self._strike(self.chance.choice(self._kinds))
            self._world.after(self.chance.choice((20, 80, 200, 600, 1_200)), self._next)

    def _strike(self, kind: str) -> None:
        world, chance = self._world, self.chance
        running = [node for node in world.nodes.values() if node.runs]
        if not running:
            return
        node = chance.choice(running)
        world.tell(f"{kind} {node.name}")
        if kind in PARTITIONS:
            self._partition(kind, chance.choice((300, 1_000, 3_000, 7_000)))
        elif kind.startswith("disk"):
            self._disk(kind, node)
        elif kind.startswith("client"):
            self._client(kind)
        elif kind.startswith("clock"):
            self._clock(kind, node)
        elif kind in ("wild", "late"):
            self._wild(kind)
        else:
            getattr(self, "_" + kind.replace(" ", "_"))(node)

    def _kill(self, node: Node) -> None:
        self.land("kill", node)
        self._world.down(node.name, power=False)

    def _power(self, node: Node) -> None:
        self.land("power cut", node)
        self._world.down(node.name, power=True)

    def _power_all(self, node: Node) -> None:
        if self.chance.random() < 0.5:
            return
        self.land("power cut of all", node)
        for each in list(self._world.nodes.values()):
            if each.is_up:
                self._world.down(each.name, power=True)

    def _power_in_a_sync(self, node: Node) -> None:
        """The disks of all, or of all but one, are slow, and then the power goes everywhere: what the ones have
        promised in the middle of a sync, and only that, may be missing when they are a majority again, before that one
        is back."""
        leaders = [replica.raft.leader for replica in node.member.replicas.values()]
        spared = self.chance.choice([None, *leaders])
        for each in self._world.nodes.values():
            if each.runs and each.name != spared:
                self._slow(each, 600)
        self._world.after(self.chance.randrange(20, 600), lambda: self._power_during_syncs(spared))

    def _power_during_syncs(self, late: str | None) -> None:
        ups = [each for each in self._world.nodes.values() if each.is_up]
        if self.is_over or not any(each.is_syncing for each in ups):
            return
        for each in ups:
            if each.is_syncing:
                self.land("power cut in a sync", each)
        for each in ups:
            self._world.down(each.name, power=True, back_ms=6_000 if each.name == late else 50)

    def _pause(self, node: Node) -> None:
        self._world.pause(node, self.chance.choice((50, 400, 1_200, 2_500, 4_000, 6_000)))

    def _pause_all(self, node: Node) -> None:
        """The machines are suspended together: every lease is over when they wake."""
        if self.chance.random() < 0.5:
            for_ms = self.chance.choice((1_600, 3_000))
            for each in self._world.nodes.values():
                if each.runs:
                    self._world.pause(each, for_ms + self.chance.randrange(400))

    def _reset(self, node: Node) -> None:
        other = self.chance.choice([name for name in self._world.names if name != node.name])
        if self._world.network.is_connected(node.name, other):
            self.land("connection reset", node)
            self._world.network.break_pair(node.name, other, self.chance.choice((5, 100, 1_000)))

    def _partition(self, kind: str, for_ms: int) -> None:
        number = self._numbers = self._numbers + 1
        names = list(self._world.names)
        self.chance.shuffle(names)
        self._partitions[number] = None
        network = self._world.network
        ways = shape(kind, names)
        network.block(number, kind, ways)
        if self.chance.random() < 0.3:
            for one, other in ways:
                network.break_pair(one, other)
        self._world.after(for_ms, lambda: network.unblock(number))

    def _flapping(self, node: Node) -> None:
        self._numbers += 1
        self._partitions[self._numbers] = None
        self._flap(self._numbers, node.name, self.chance.randint(4, 12))

    def _flap(self, number: int, name: str, times: int) -> None:
        network = self._world.network
        network.unblock(number)
        if times and not self.is_over:
            if times % 2:
                others = [each for each in self._world.names if each != name]
                network.block(number, "flapping", shape("isolated", [name, *others]))
            self._world.after(
                self.chance.choice((40, 150, 400, 700)), lambda: self._flap(number, name, times - 1)
            )

    def _disk(self, kind: str, node: Node) -> None:
        disk, chance = node.disk, self.chance
        if kind == "disk slow":
            self._slow(node, chance.choice((100, 400, 1_500, 3_000)))
        elif kind == "disk full":
            disk.fill(True)
            self._world.after(chance.choice((500, 3_000)), lambda: disk.fill(False))
        else:
            disk.arm(chance.randrange(12), error=kind == "disk error")

    def _slow(self, node: Node, for_ms: int) -> None:
        disk = node.disk
        disk.slow_ms = for_ms
        self.arm("disk slow", node.name)
        self._world.after(2_500, lambda: setattr(disk, "slow_ms", 0))

    def _rot(self, node: Node) -> None:
        """Of one member only: what it has had synced counts as lost, so others may lose nothing for good."""
        if self._rotted < ROT_TIMES and self.rotten in (None, node.name) and self._world.may_lose_one:
            where = node.disk.rot()
            if where is not None:
                self.rotten = node.name
                self._rotted += 1
                self._world.tell(f"bit {where[1]} of {where[0]} of {node.name} has turned")

    def _clock(self, kind: str, node: Node) -> None:
        if kind == "clock drift":
            node.clock.drift(self.chance.choice((-10_000, -3_000, 3_000, 10_000)))
            self.land("clock drift", node)
        else:
            node.clock.wall_jump_ms = self.chance.choice((-3_600_000, -500, 500, 3_600_000))
            self.arm("clock jump", node.name)

    def _wild(self, kind: str) -> None:
        wild, chance = self._world.network.wild, self.chance
        if kind == "late":
            wild.late_ms = chance.choice((20, 100, 200))
            kinds = ["network delay"]
        else:
            wild.lost, wild.doubled, wild.overtaken = chance.choice(
                ((50, 50, 50), (300, 0, 0), (0, 500, 300))
            )
            kinds = [
                *(["frames lost"] if wild.lost else []),
                *(["frames doubled", "frames reordered"] if wild.doubled else []),
            ]
        for each in kinds:
            for name in self._world.names:
                self.arm(each, name)
        self._world.after(chance.choice((2_000, 4_000) if self.is_stormy else (300, 2_000)), self.calm)

    def calm(self) -> None:
        self._world.network.wild = Wildness()

    def _client(self, kind: str) -> None:
        world, chance = self._world, self.chance
        if kind == "client slow":
            world.client_late_ms = chance.choice((50, 300))
            self.land("client delay", None)
            world.after(1_500, lambda: setattr(world, "client_late_ms", 0))
        elif kind == "client kill":
            app = chance.choice(world.apps)
            self.land("client killed", None)
            world.replace(app, politely=chance.random() < 0.5)
        elif world.connections:
            connection = chance.choice(list(world.connections))
            if kind == "client reset":
                self.land("client reset", connection.node if connection.node.is_up else None)
                connection.reset()
            else:
                self.land("client stalled", connection.node if connection.node.is_up else None)
                connection.stall(*chance.choice(((True, True), (True, False), (False, True))))
                world.after(
                    chance.choice((300, 2_500, 6_000, 20_000)), lambda: connection.stall(False, False)
                )

    # ---- the end

    def stop(self) -> None:
        """Everything is healed; what is broken for good stays broken."""
        self.is_over = True
        self.calm()
        world = self._world
        world.client_late_ms = 0
        world.network.unblock_all()
        for disk in world.disks.values():
            disk.disarm()
        for connection in list(world.connections):
            connection.stall(False, False)
        for node in world.nodes.values():
            if node.is_up:
                world.resume(node)
