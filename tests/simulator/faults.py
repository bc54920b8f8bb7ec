"""What goes wrong, and when it really did.

A fault is scheduled here and counted where it bites: when the disk fails, when a frame is held back, when a paused node
had something to do. With it is noted what the node was doing at that moment; `STATES` says what is told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.machines.disk import SLOW_FOR_MS
from simulator.machines.network import Wildness, shape

if TYPE_CHECKING:
    from simulator.machines.node import Node
    from simulator.world import World

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
    *("client reset", "client stall", "client kill", "client kill", "client slow", "rot", "rot"),
    *("power in a sync", "power in a sync"),
)
STORM = (*PARTITIONS, "reset", "wild", "wild", "wild", "pause", "flapping", "power in a sync")
"""In stormy seeds these come three times as often."""
STORMY_PART = 0.3
"""Of all seeds."""
CALM_PART = 0.25
"""Of all seeds: faults come so far apart that what one has upset has settled when the next one strikes."""
GAPS_MS = (20, 80, 200, 600, 1_200)
CALM_GAPS_MS = (600, 1_500, 3_000)
AIMED_PART = 0.3
"""Of the strikes: they wait for a moment that chance alone seldom meets."""
AIM_MS = 2_000
"""How long they wait."""
DISJOINT_PART = 0.5
"""Of the seeds with little room: what turns are bits of entries, on two members, never of one entry on both."""
DAMAGED_ENTRIES = 8
RECENT_ENTRIES = 200
"""Of these too, where no snapshot needs them."""
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
        "disk lost",
    ),
    *(
        "bit rot",
        "entry damaged",
        "pause",
        "clock jump",
        "clock drift",
        "network delay",
        "frames lost",
        "frames doubled",
    ),
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
    "members changing",
)
SYNC_CUT_MS = 600
"""How long a sync takes in which the power shall go."""
BEHIND = 20
"""Entries that a member lacks when it is said to be catching up."""


def _leads_and_syncs(node: Node) -> bool:
    return node.is_syncing and any(replica.raft.is_leader for replica in node.member.replicas.values())


def _saves_a_snapshot(node: Node) -> bool:
    return node.disk.is_saving_snapshot or (node.disk.has_saved_snapshot and node.is_syncing)


def _moves_a_snapshot(node: Node) -> bool:
    return any(
        replica.raft.is_receiving or bool(replica.raft.pinned_snapshots())
        for replica in node.member.replicas.values()
    )


AIMS = (_leads_and_syncs, _saves_a_snapshot, _moves_a_snapshot)


def states_of(world: World, node: Node | None) -> list[str]:
    """What was going on, at this node as a rule."""
    found = []
    ups = world.members()
    if any(r.raft.leader is None for each in ups for r in each.member.replicas.values()):
        found.append("election running")
    if len(ups) < len(world.changes.wished) - (node is not None and not node.is_up) or any(
        each.is_paused for each in ups if each is not node
    ):
        found.append("another member down")
    if world.is_ebb:
        found.append("queues draining")
    if world.changes.is_under_way:
        found.append("members changing")
    if node is not None:
        member = node.member
        replicas = list(member.replicas.values())
        leading = [r for r in replicas if r.raft.is_leader]
        if any(r.raft.last_index > r.raft.commit_index for r in leading):
            found.append("leader with uncommitted entries")
        is_behind = node.log.synced_lsn < node.log.last_lsn
        if leading and (is_behind or node.is_syncing):
            found.append("leader with unsynced appends")
        if _saves_a_snapshot(node):
            found.append("snapshot being taken")
        if _moves_a_snapshot(node):
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
        self._damaged: dict[tuple[int, int], str] = {}
        """(group, index) -> the member on which this entry was damaged"""
        self._is_disjoint = (
            world.room.is_scarce and world.random_of("disjoint").random() < DISJOINT_PART
        )  # there segments are sealed within seconds
        self.is_stormy = world.random_of("storm").random() < STORMY_PART
        self._kinds = SCHEDULED + (STORM * 2 if self.is_stormy else ())
        self._gaps_ms = GAPS_MS
        if not self.is_stormy and world.random_of("calm").random() < CALM_PART / (1 - STORMY_PART):
            self._gaps_ms = CALM_GAPS_MS
        self._aim: tuple[Callable[[Node], bool], str, int] | None = None
        """(what to wait for, kind of fault, until when)"""
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

    def calm_down(self) -> None:
        """From now on strikes come far apart."""
        self._gaps_ms = CALM_GAPS_MS

    def begin(self) -> None:
        self._world.after(300, self._next)

    def _next(self) -> None:
        if not self.is_over:
            kind = self.chance.choice(self._kinds)
            if self._aim is None and self.chance.random() < AIMED_PART:
                self._aim = self.chance.choice(AIMS), kind, self._world.now_ms + AIM_MS
            else:
                self._strike(kind)
            self._world.after(self.chance.choice(self._gaps_ms), self._next)

    def stepped(self, node: Node) -> None:
        """A node is about to wait for its disk, or has nothing to wait for: perhaps this is the moment."""
        if self._aim is not None:
            is_met, kind, until_ms = self._aim
            if is_met(node) or self._world.now_ms > until_ms:
                self._aim = None
                self._world.after(0, lambda: None if self.is_over else self._strike(kind, node))

    def strike_in(self, for_ms: int, kind: str) -> None:
        self._world.after(for_ms, lambda: None if self.is_over else self._strike(kind))

    def cut_off(self, node: Node, for_ms: int) -> None:
        """Nothing reaches or leaves this member for a while. Its clients do not notice."""
        self._partition("isolated", node, for_ms)

    def _strike(self, kind: str, aimed: Node | None = None) -> None:
        world, chance = self._world, self.chance
        running = [node for node in world.nodes.values() if node.runs]
        if not running:
            return
        node = aimed if aimed is not None and aimed.runs else chance.choice(running)
        world.tell(f"{kind} {node.name}")
        if kind in PARTITIONS and len(world.nodes) > 1:
            self._partition(kind, node, chance.choice((300, 1_000, 3_000, 7_000)))
        elif kind.startswith("disk"):
            self._disk(kind, node)
        elif kind.startswith("client"):
            self._client(kind)
        elif kind.startswith("clock"):
            self._clock(kind, node)
        elif kind in ("wild", "late"):
            self._wild(kind)
        elif kind not in PARTITIONS:
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
        """The disks of all, or of all but one, are slow, and when all of these sync the power goes everywhere: what the
        ones have promised in the middle of a sync, and only that, may be missing when they are a majority again, before
        that one is back. Often nothing of it has reached any disk."""
        leaders = [replica.raft.leader for replica in node.member.replicas.values()]
        spared = self.chance.choice([None, *leaders])
        for each in self._world.nodes.values():
            if each.runs and each.id != spared:
                self._slow(each, SYNC_CUT_MS)
        self._await_syncs(spared, self._world.now_ms + SYNC_CUT_MS)

    def _await_syncs(self, spared: str | None, until_ms: int) -> None:
        ups = [each for each in self._world.members() if each.runs and each.id != spared]
        if all(each.is_syncing for each in ups) or self._world.now_ms >= until_ms:
            drops_all = self.chance.random() < 0.7
            self._world.after(
                self.chance.choice((5, 20, 60, 200)), lambda: self._power_during_syncs(spared, drops_all)
            )
        else:
            self._world.after(10, lambda: self._await_syncs(spared, until_ms))

    def _power_during_syncs(self, late: str | None, drops_all: bool) -> None:
        ups = [each for each in self._world.nodes.values() if each.is_up]
        if self.is_over or not any(each.is_syncing for each in ups):
            return
        for each in ups:
            if each.is_syncing:
                self.land("power cut in a sync", each)
        for each in ups:
            each.disk.drops_all = drops_all
            self._world.down(each.name, power=True, back_ms=6_000 if each.id == late else 50)

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
        others = [name for name in self._world.nodes if name != node.name]
        if not others:
            return
        other = self.chance.choice(others)
        if self._world.network.is_connected(node.name, other):
            self.land("connection reset", node)
            self._world.network.break_pair(node.name, other, self.chance.choice((5, 100, 1_000)))

    def _partition(self, kind: str, node: Node, for_ms: int) -> None:
        number = self._numbers = self._numbers + 1
        names = [name for name in self._world.nodes if name != node.name]
        self.chance.shuffle(names)
        names.insert(0, node.name)
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
                others = [each for each in self._world.nodes if each != name]
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
            self.arm("disk full", node.name)
            self._world.after(chance.choice((2_000, 8_000)), lambda: disk.fill(False))
        else:
            disk.arm(chance.randrange(12), error=kind == "disk error")

    def _slow(self, node: Node, for_ms: int) -> None:
        disk = node.disk
        disk.slow_ms = for_ms
        self.arm("disk slow", node.name)
        self._world.after(SLOW_FOR_MS, lambda: setattr(disk, "slow_ms", 0))

    def _rot(self, node: Node) -> None:
        """Of one member only: what it has had synced counts as lost, so others may lose nothing for good."""
        may_rot = self._world.may_lose_one and node.name in self._world.founders
        if self._is_disjoint:
            if may_rot:
                self._damage_entry(node)
        elif may_rot and self._rotted < ROT_TIMES and self.rotten in (None, node.name):
            where = node.disk.rot()
            if where is not None:
                self.rotten = node.name
                self._rotted += 1
                self._world.tell(f"bit {where[1]} of {where[0]} of {node.name} has turned")

    def _damage_entry(self, node: Node) -> None:
        """A bit of the body of an entry turns, in a sealed segment. Another member has the entry and keeps it: of one
        entry only one copy is damaged, and no member is lost in such a seed."""
        names = {*self._damaged.values(), node.name}
        if len(names) > 2 or len(self._damaged) >= DAMAGED_ENTRIES:
            return
        found = [
            (number, index)
            for number, replica in node.member.replicas.items()
            for index in (
                *replica.checkpoints.newest_entries(),
                *range(max(1, replica.raft.commit_index - RECENT_ENTRIES), replica.raft.commit_index + 1),
            )
            if index <= replica.raft.commit_index and (number, index) not in self._damaged
        ]
        self.chance.shuffle(found)
        for group, index in found[:20]:
            path = node.disk.damage_entry(node.log._store, group, index)
            if path is not None:
                self._damaged[group, index] = node.name
                self.land("entry damaged", node)
                self._world.tell(f"entry {index} of group {group} of {node.name} is damaged in {path}")
                return

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
            for name in self._world.nodes:
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
        for machine in world.machines.values():
            machine.disk.disarm()
        for connection in list(world.connections):
            connection.stall(False, False)
        for node in world.nodes.values():
            if node.is_up:
                world.resume(node)
