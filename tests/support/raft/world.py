"""Raft groups on a clock that moves when told, a network of lists, and disks that forget what was not synced.

`World` holds one group's members and whatever a script or the fuzz does to them; `checks` is told what they do and
raises Violation as soon as Raft is broken. Everything happens in an order that a seed decides, whatever the hash seed.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from quorum.log import Log
from quorum.replication.configuration import Configuration, wrap_state
from quorum.replication.group import Group
from quorum.replication.group_config import GroupConfig
from support.log.disk import SimDisk
from support.raft.checks import Checks
from support.raft.log import ModelDisk, ModelLog

GROUP = 7
QUICK = GroupConfig(
    election_min_s=0.4,
    election_max_s=0.8,
    heartbeat_s=0.1,
    leader_fallback_s=1.0,
    keep_entries=8,
    window_bytes=1200,
    frame_bytes=250,
    chunk_bytes=150,
)
"""Small windows and frames, so that few entries reach every corner."""

_LENGTH = struct.Struct("<I")


def pack(commands: Iterable[bytes]) -> bytes:
    """A state as bytes."""
    return b"".join(_LENGTH.pack(len(command)) + command for command in commands)


def unpack(state: bytes) -> list[bytes]:
    """The state back."""
    commands, at = [], 0
    while at < len(state):
        (length,) = _LENGTH.unpack_from(state, at)
        commands.append(state[at + 4 : at + 4 + length])
        at += 4 + length
    return commands


def as_kept(commands: Iterable[bytes], voters: Iterable[str] = ("n1", "n2", "n3")) -> bytes:
    """A state as a snapshot holds it: with the members of that time."""
    return wrap_state(Configuration(tuple(voters)), pack(commands))


class Node:
    """One member in one life: a group, its log, and a machine that remembers every command."""

    def __init__(self, world: World, name: str, group_class: type[Group]) -> None:
        self.world = world
        self.name = name
        self.log = world.open_log(name)
        self.commands: list[bytes] = []
        world.checks.in_force.setdefault(name, tuple(world.founders))
        self.group = group_class(
            GROUP,
            name,
            world.founders if name in world.founders else (),
            self.log,
            lambda: world.now,
            random.Random(f"{world.seed} {name} {world.lives}"),
            lambda peer, parts: world.carry(name, peer, b"".join(parts)),
            self.install,
            world.config,
        )
        self.group.start()
        if self.group.snapshot_state is not None:
            self.commands = unpack(self.group.snapshot_state)
            world.checks.restored(name, self.group.applied_index, self.commands)

    def install(self, state: bytes, index: int, term: int) -> None:
        self.commands = unpack(state)
        self.world.checks.restored(self.name, index, self.commands)

    def apply(self, max_bytes: int = 1 << 30, max_entries: int = 1 << 30) -> None:
        for index, term, body in self.group.take_committed(max_bytes, max_entries):
            command = bytes(body)
            if command:
                self.commands.append(command)
            self.world.checks.applied(self.name, index, term, command, self.group.term)

    def sync(self) -> None:
        self.log.sync()
        self.group.flush()

    def snapshot(self) -> None:
        self.group.save_snapshot(pack(self.commands))


class World:
    """Members, links, disks and the clock."""

    def __init__(
        self,
        size: int = 3,
        seed: int = 1,
        group_class: type[Group] | Callable[[str], type[Group]] = Group,
        config: GroupConfig = QUICK,
        spares: int = 0,
    ) -> None:
        """spares: nodes that are up and belong to the group only once they are added."""
        self.names = [f"n{number}" for number in range(1, size + spares + 1)]
        self.founders = self.names[:size]
        self.seed = seed
        self.config = config
        self.now = 1000.0
        self.lives = 0
        self.disks = self.make_disks()
        self.links: dict[tuple[str, str], list[bytes]] = {
            (one, other): [] for one in self.names for other in self.names if one != other
        }
        self.cut: set[tuple[str, str]] = set()
        self.nodes: dict[str, Node] = {}
        self.checks = Checks(GROUP, size, self.disks)
        self._group_class = group_class
        for name in self.names:
            self.start(name)

    # ---- disks

    def make_disks(self) -> dict[str, ModelDisk]:
        return {name: ModelDisk() for name in self.names}

    def open_log(self, name: str) -> ModelLog | Log:
        return ModelLog(self.disks[name])

    def cut_power(self, node: Node, chance: random.Random | None) -> None:
        assert isinstance(node.log, ModelLog)
        node.log.crash(chance or random.Random(0), keep_nothing=chance is None)

    # ---- members

    def start(self, name: str) -> Node:
        """A new life on what the disk kept; links to members that are up open at once."""
        self.lives += 1
        given = self._group_class
        group_class = given if isinstance(given, type) else given(name)
        self.checks.started(name)
        node = self.nodes[name] = Node(self, name, group_class)
        for other in self.names:
            if other != name and other in self.nodes:
                node.group.peer_connected(other)
                self.nodes[other].group.peer_connected(name)
        return node

    def crash(self, name: str, chance: random.Random | None = None) -> None:
        """The power goes; without a random source, nothing unsynced survives."""
        node = self.nodes.pop(name)
        self.cut_power(node, chance)
        for other in self.nodes.values():
            other.group.peer_disconnected(name)
        for link, queue in self.links.items():
            if name in link:
                queue.clear()

    # ---- links

    def carry(self, sender: str, to: str, frame: bytes) -> None:
        if (sender, to) not in self.cut and to in self.nodes:
            self.links[sender, to].append(frame)

    def deliver(self, sender: str, to: str, at: int = 0, *, keep: bool = False) -> None:
        """One frame of a link; keep leaves a duplicate there."""
        queue = self.links[sender, to]
        frame = queue[at] if keep else queue.pop(at)
        node = self.nodes.get(to)
        if node is not None:
            node.group.receive(sender, frame)
            self.checks.observe(node.group, to)

    def separate(self, one: str, other: str) -> None:
        """No frames between these two from now on; what was under way is lost."""
        self.cut |= {(one, other), (other, one)}
        self.links[one, other].clear()
        self.links[other, one].clear()

    def isolate(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.separate(name, other)

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        if one is None or other is None:
            self.cut.clear()
        else:
            self.cut -= {(one, other), (other, one)}

    def reconnect(self, one: str, other: str) -> None:
        """The connection breaks, with what was under way, and is made again."""
        self.links[one, other].clear()
        self.links[other, one].clear()
        for near, far in ((one, other), (other, one)):
            if near in self.nodes:
                self.nodes[near].group.peer_disconnected(far)
                if far in self.nodes:
                    self.nodes[near].group.peer_connected(far)

    # ---- time

    def turn(self, *names: str) -> None:
        """A whole turn of these members (all of them if none is named), as a node does it."""
        for name in names or self.names:
            node = self.nodes.get(name)
            if node is not None:
                node.group.tick()
                node.group.flush_early()
                node.sync()
                node.apply()
                self.checks.observe(node.group, name)

    def deliver_all(self, *, hold: Iterable[tuple[str, str]] = ()) -> None:
        """Everything under way, in order, until nothing is; answers leave with the receiver's next turn."""
        held = set(hold)
        for link in self.links:
            while self.links[link] and link not in held:
                self.deliver(*link)

    def run(self, seconds: float, *names: str, hold: Iterable[tuple[str, str]] = ()) -> None:
        """Time passes for these members (all of them if none is named)."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.01
            self.turn(*names)
            self.deliver_all(hold=hold)

    def elect(self, name: str) -> Group:
        """Let this member's election timeout pass now, and run until it leads."""
        group = self.nodes[name].group
        for node in self.nodes.values():
            node.group._guard.heard_leader_s = float("-inf")
            node.group._engine.election_deadline_s = self.now + 0.3
        group._engine.election_deadline_s = self.now
        self.run(0.2)
        assert group.is_leader, f"{name} was not elected"
        return group

    def change(self, leader: str, wanted: Configuration, seconds: float = 0.3) -> None:
        """A change of members, committed."""
        assert self.nodes[leader].group.change_members(wanted) is not None, f"{leader} cannot change now"
        self.checks.observe(self.nodes[leader].group, leader)
        self.run(seconds)
        assert self.nodes[leader].group.is_settled

    def propose(self, name: str, *commands: bytes) -> list[int]:
        indices = [self.nodes[name].group.propose([command]) for command in commands]
        assert None not in indices, f"{name} does not lead"
        return [index for index in indices if index is not None]

    # ---- questions

    def leaders(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.group.is_leader]

    def entries(self, name: str) -> list[tuple[int, int]]:
        """(index, term) of a member's journal."""
        view = self.nodes[name].group._view
        return [(index, view.term_at(index)) for index in range(view.base, view.last_index + 1)]


class RealLogWorld(World):
    """The same on the node's real log, on a simulated disk."""

    def make_disks(self) -> dict[str, ModelDisk]:
        self.real_disks = {name: SimDisk(number) for number, name in enumerate(self.names)}
        return {}

    def open_log(self, name: str) -> ModelLog | Log:
        return Log.open(
            Path("/log"),
            self.real_disks[name],
            segment_bytes=64 << 10,
            recent_bytes=0,
            random_bytes=random.Random(f"{self.seed} {self.lives}").randbytes,
        )

    def cut_power(self, node: Node, chance: random.Random | None) -> None:
        disk = self.real_disks[node.name]
        disk.power_cut((chance or random.Random(0)).randrange(1 << 30))


def behind(world: World) -> Node:
    """n3 misses 30 entries that a snapshot of the leader covers."""
    world.elect("n1")
    world.isolate("n3")
    world.propose("n1", *(b"%d" % number + b"." * 40 for number in range(30)))
    world.run(0.3, "n1", "n2")
    world.nodes["n1"].snapshot()
    world.nodes["n2"].snapshot()
    return world.nodes["n3"]
