"""A whole cluster in one thread: real members, real Raft, real log on a simulated disk, a network of lists, a clock
that moves when told. Client sessions are plain inputs and outputs of `Member.step`."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fifo import commands as c
from fifo.effects import Confirmed, Deliver, Reply
from fifo.queries import group as queries
from fifo.results import QueueInfo
from quorum.catalog.commands import CatalogCommand, DeclareQueue
from quorum.catalog.members import AddMember
from quorum.log import Log
from quorum.node import events as ev
from quorum.node.identity.identity import NodeState
from quorum.node.identity.member_directory import Address
from quorum.node.member import Member
from quorum.node.member_config import MemberConfig
from quorum.node.queries import Query
from quorum.node.replica.replica import SYSTEM_GROUP, state_of
from quorum.node.wire.frames import Frame
from quorum.node.wire.operations import Command, batch_of
from quorum.v1 import queue_pb2 as pb
from support.log.disk import SimDisk
from support.members.inline import Inline

STEP_MS = 5
LOOK_MS, MOST_LOOKS = 0.002, 400
START_MS = 1_000_000
WALL_MS = 1_700_000_000_000


class _Network:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def send(self, peer: str, kind: int, parts: list[bytes]) -> None:
        assert kind in self._kinds
        self._cluster.carry(self._name, peer, kind, b"".join(parts))

    def flush(self) -> None:
        """What was sent is already on its way."""

    def set_kinds(self, kinds: Mapping[int, int]) -> None:
        """All members speak the same wire version."""
        self._kinds = kinds

    def links(self) -> list[str]:
        return [peer for peer in self._cluster.names if self._cluster.is_linked(self._name, peer)]

    def incarnation_of(self, peer: str) -> bytes:
        return self._cluster.incarnation(peer)

    def is_refused(self, peer: str) -> bool:
        return False

    def event_counts(self) -> dict[str, int]:
        return {}

    def version_of(self, peer: str) -> int:
        return self._cluster.members[peer].versions.known

    def require_version(self, version: int) -> None:
        self._cluster.needed_versions[self._name] = version

    def set_peers(
        self,
        dial_addresses: Mapping[str, Address],
        fallback_addresses: Mapping[str, Address],
        gone: Collection[str],
    ) -> None:
        self._cluster.dialed[self._name] = frozenset(dial_addresses) | frozenset(fallback_addresses)
        self._cluster.gone[self._name] = frozenset(gone)


SEGMENT_BYTES = 8 << 20
"""Of logs that say nothing else: the disks are in memory, and what is allocated counts."""


class Cluster:
    """Members by name. `run` moves time; a crashed member's disk keeps what it had synced."""

    def __init__(
        self,
        size: int = 3,
        seed: int = 1,
        log: Mapping[str, Any] | None = None,
        is_started: bool = True,
        **config: Any,
    ) -> None:
        """log: arguments of each member's Log; config: of its MemberConfig. Leaders stay where a test puts them, unless
        it says spread_after_ms. is_started: whether members run at once."""
        self.names = self.founders = tuple(f"n{number}" for number in range(1, size + 1))
        self.random = random.Random(seed)
        self.node_states: dict[str, NodeState] = {}
        """what nodes know beside their logs: on their disks, in a file that is replaced as a whole"""
        self.dialed: dict[str, frozenset[str]] = {}
        """whom each node dials, sooner or later"""
        self.gone: dict[str, frozenset[str]] = {}
        """whom each node takes no connection of"""
        self.known_versions: dict[str, int] = {}
        """member -> the highest machine version that its build knows, where that is not the present one"""
        self.needed_versions: dict[str, int] = {}
        """member -> the machine version that it needs its peers to know"""
        self.now_ms = START_MS
        self._looked_ms = self._looks = 0
        self.wall_skew = dict.fromkeys(self.names, 0)
        self.disks = {name: SimDisk(number) for number, name in enumerate(self.names)}
        self.logs: dict[str, Log] = {}
        self.members: dict[str, Member] = {}
        self.sessions: dict[tuple[str, int], Session] = {}
        """by node and number: who hears what a member says"""
        self.leases: dict[str, dict[int, int]] = {}
        """node -> group -> until when it may deliver, as its API has been told"""
        self.clock_offset_ms = dict.fromkeys(self.names, 0)
        """each member's own clock; only differences mean anything"""
        self._links: dict[tuple[str, str], deque[tuple[int, Frame]]] = {
            (one, other): deque() for one in self.names for other in self.names if one != other
        }
        """frames on their way: (when they arrive, frame), in order"""
        self._inputs: dict[str, list[ev.Input]] = {name: [] for name in self.names}
        self._cut: set[tuple[str, str]] = set()
        self.paused: set[str] = set()
        self._boot = 0
        self._directories = 0
        self._config = {"spread_after_ms": None, **config}
        self._log = log or {}
        self.low: dict[str, Mapping[int, tuple[ev.LowDisk, ...]]] = {}
        """node -> groups that get no publishes, as its API has been told"""
        self.told: dict[object, object] = {}
        """answers to questions, by token"""
        for name in self.names if is_started else ():
            self.start(name)

    # ---- members

    def start(self, name: str) -> None:
        self._boot += 1
        log = Log.open(Path("/data/log"), self.disks[name], **{"segment_bytes": SEGMENT_BYTES, **self._log})
        self.logs[name] = log
        founders = self.founders if name in self.founders else ()
        addresses = {each: (f"{each}:1", f"{each}:2") for each in founders}
        config = MemberConfig(name, founders, self._boot, addresses=addresses, **self._config)
        if name in self.known_versions:
            limits = replace(config.limits, newest_version=self.known_versions[name])
            config = replace(config, limits=limits)
        self.needed_versions[name] = 0
        kept = self.node_states.setdefault(name, self.first_node_state(name))
        node_state = copied(kept)
        node_state.save = lambda: self.node_states.update({name: copied(node_state)})
        self.dialed[name] = self.gone[name] = frozenset()
        self.leases[name] = {}
        self.low[name] = {}
        self.members[name] = Member(
            config,
            log,
            _Network(self, name),
            lambda: (self.clock_ms(name) + self._look_ms()) / 1000,
            lambda: WALL_MS + self.now_ms + self.wall_skew[name],
            random.Random(self.random.random()),
            node_state,
            Inline(),
        )

    def first_node_state(self, name: str) -> NodeState:
        """Of a new data directory."""
        self._directories += 1
        made = f"{self._directories:032x}"
        if name in self.founders:
            return NodeState(made, is_established=len(self.founders) == 1)
        return NodeState(made)

    def join(self, name: str) -> None:
        """Starts a node that knows nobody."""
        self.prepare(name)
        self.start(name)

    def prepare(self, name: str) -> None:
        """Room for one more node."""
        self.disks[name] = SimDisk(100 + len(self.disks))
        self.wall_skew[name] = self.clock_offset_ms[name] = 0
        self._inputs[name] = []
        for other in self.names:
            self._links[name, other] = deque()
            self._links[other, name] = deque()
        self.names = (*self.names, name)

    @classmethod
    def grown(cls, size: int, **config: Any) -> Cluster:
        """One that was founded with one member and has grown."""
        cluster = cls(1, **config)
        cluster.ready()
        cluster.grow(size)
        return cluster

    def grow(self, size: int) -> None:
        """New members join until there are so many, one after the other."""
        while len(self.members) < size:
            called = f"n{len(self.names) + 1}"
            name = f"{called}~aaaaaaaaaaaa"
            self.join(name)
            incarnation = self.node_states[name].incarnation
            self.administer(AddMember(name, called, f"{called}:1", f"{called}:2", incarnation))
            self.voters_are(*self.members)
        self.ready()

    def voters_are(self, *members: str) -> None:
        """Every group ends with exactly these, at all of them."""
        wanted = tuple(sorted(members))

        def done() -> bool:
            return all(
                replica.raft.configuration.voters == wanted
                and not replica.raft.configuration.learners
                and replica.raft.is_settled
                for member in members
                for replica in self.members[member].replicas.values()
            )

        self.until(done, f"{wanted} vote in every group")

    def wipe(self, name: str) -> None:
        """A node that is down loses its data directory."""
        self.disks[name] = SimDisk(200 + len(self.disks))
        del self.node_states[name]

    def incarnation(self, name: str) -> bytes:
        return bytes.fromhex(self.node_states[name].incarnation)

    def administer(self, command: CatalogCommand, at: str | None = None) -> Reply | None:
        """A command to the catalog, through a session of its own at some member."""
        name = at or next(
            name for name in self.names if name in self.members and self.members[name].is_ready()
        )
        return Session(self, name).call(SYSTEM_GROUP, command)

    def crash(self, name: str, power: bool = True) -> None:
        """Gone at once; what was not synced is lost if the power went with it."""
        del self.members[name]
        self._inputs[name].clear()
        for key in [key for key in self.sessions if key[0] == name]:
            self.sessions.pop(key).gone()
        for ends, link in self._links.items():
            if name in ends:
                link.clear()
        if power:
            self.disks[name].power_cut(self.random.randrange(1 << 30))
        else:
            self.disks[name].restart()

    def cut(self, one: str, other: str) -> None:
        self._cut |= {(one, other), (other, one)}
        self._links[one, other].clear()
        self._links[other, one].clear()

    def isolate(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        self._cut.clear()

    def is_linked(self, one: str, other: str) -> bool:
        if one not in self.members or other not in self.members or (one, other) in self._cut:
            return False
        if other in self.gone[one] or one in self.gone[other]:
            return False
        if self._is_too_old(one, other) or self._is_too_old(other, one):
            return False
        return (other in self.dialed[one] or one in self.dialed[other]) and self.knows(one, other)

    def _is_too_old(self, one: str, other: str) -> bool:
        """Whether a node does not know the machine version that another one needs."""
        return self.members[one].versions.known < self.needed_versions[other]

    def knows(self, one: str, other: str) -> bool:
        """Whether both still have the data directory under which the other one knows them."""
        return all(
            self.members[near].membership.member_directory.incarnation(far)
            in ("", self.node_states[far].incarnation)
            for near, far in ((one, other), (other, one))
        )

    def carry(self, sender: str, to: str, kind: int, data: bytes) -> None:
        if self.is_linked(sender, to):
            self._links[sender, to].append(
                (self.now_ms + self.delay_ms(sender, to), Frame(sender, kind, data))
            )

    def delay_ms(self, sender: str, to: str) -> int:
        """How long a frame takes; it never overtakes another one."""
        return 0

    def is_stalled(self, sender: str, to: str) -> bool:
        """Whether frames stay on their way: the connection is open and nothing comes through."""
        return False

    def clock_ms(self, name: str) -> int:
        return self.now_ms + self.clock_offset_ms[name]

    def _look_ms(self) -> float:
        """A clock goes on while a member steps: a little with every look."""
        if self._looked_ms != self.now_ms:
            self._looked_ms, self._looks = self.now_ms, 0
        self._looks = min(self._looks + 1, MOST_LOOKS)
        return self._looks * LOOK_MS

    def may_deliver(self, name: str, group: int) -> bool:
        """As the API of this node would see it now."""
        return name in self.members and self.clock_ms(name) < self.leases[name].get(group, 0)

    # ---- time

    def step(self, name: str) -> None:
        frames = []
        for sender in self.names:
            link = self._links.get((sender, name))
            if link and not self.is_stalled(sender, name):
                while link and link[0][0] <= self.now_ms:
                    frames.append(link.popleft()[1])
        inputs, self._inputs[name] = self._inputs[name], []
        for output in self.members[name].step(self.clock_ms(name), frames, inputs):
            self._hear(name, output)

    def _hear(self, name: str, output: ev.Output) -> None:
        if isinstance(output, ev.QueryResult):
            self.told[output.token] = output.value
        elif isinstance(output, ev.DisksLow):
            self.low[name] = output.groups
        elif isinstance(output, ev.LeaseGranted):
            self.leases[name][output.group] = output.until_ms
        elif isinstance(output, ev.LeaseLapsed):
            self.leases[name].pop(output.group, None)
            for (node, _), session in list(self.sessions.items()):
                if node == name:
                    session.lapsed(output.group)
        elif isinstance(
            output,
            ev.CatalogChanged
            | ev.DecisionsDue
            | ev.MessagesDied
            | ev.QueueDeleted
            | ev.StandingChanged
            | ev.VersionChanged,
        ):
            pass
        elif (name, output.session) in self.sessions:
            self.sessions[name, output.session].hear(output)

    def run(self, ms: int) -> None:
        for _ in range(0, ms, STEP_MS):
            self.now_ms += STEP_MS
            for name in self.names:
                if name in self.members and name not in self.paused:
                    self.step(name)

    def until(self, done: Callable[[], bool], what: str, limit_ms: int = 60_000) -> None:
        for _ in range(0, limit_ms, STEP_MS):
            if done():
                return
            self.run(STEP_MS)
        raise AssertionError(f"{what}: not within {limit_ms} ms of the cluster's time")

    # ---- questions

    def info(self, name: str, group: int, queue: int) -> QueueInfo:
        """A queue's counts on this member."""
        found = queries.info(self.members[name].queue_machine(group), queue)
        assert found is not None
        return found

    def leader(self, group: int) -> str | None:
        """The leader of the highest term among members that are up."""
        leaders = [m for m in self.members.values() if m.replicas[group].raft.is_leader]
        leaders.sort(key=lambda m: m.replicas[group].raft.term)
        return leaders[-1].config.name if leaders else None

    def ready(self) -> None:
        self.until(
            lambda: all(
                self.leader(group) is not None and all(m.is_ready() for m in self.members.values())
                for group in next(iter(self.members.values())).replicas
            ),
            "every group has a leader that all know",
        )

    def switched(self) -> None:
        """All groups use the newest machine version that all members know."""
        newest = min(member.config.limits.newest_version for member in self.members.values())
        self.until(
            lambda: all(r.version == newest for m in self.members.values() for r in m.replicas.values()),
            "every group has switched",
        )

    def settle(self) -> None:
        """All members have applied the same."""

        def same() -> bool:
            return all(
                len({m.replicas[group].raft.applied_index for m in self.members.values()}) == 1
                and len({m.replicas[group].raft.commit_index for m in self.members.values()}) == 1
                for group in next(iter(self.members.values())).replicas
            )

        self.until(same, "all members have applied the same entries")

    def snapshots(self, group: int) -> set[bytes]:
        return {state_of(member.replicas[group].machine) for member in self.members.values()}

    def submit(self, name: str, *items: ev.Input) -> None:
        self._inputs[name].extend(items)

    def ask_now(self, name: str, query: Query[Any]) -> object:
        """A query about now to a member; its token, see `told`."""
        token = object()
        self.submit(name, ev.RunQuery(query, token, is_current=True))
        return token

    def answer(self, token: object) -> object:
        """The answer to a question."""
        self.until(lambda: token in self.told, "the question is answered")
        return self.told.pop(token)

    def declare(self, queue: str, **arguments: bool | int | str) -> tuple[int, int]:
        """(group, queue id) of a new queue."""
        admin = Session(self, self.names[0])
        given = tuple(sorted((f"x-{key.replace('_', '-')}", value) for key, value in arguments.items()))
        admin.call(SYSTEM_GROUP, DeclareQueue(queue, given))
        found = self.members[self.names[0]].catalog.queue(queue)
        assert found is not None
        self.until(
            lambda: all(m.queue_machine(found.group).has_queue(found.id) for m in self.members.values()),
            f"queue {queue} is on all members",
        )
        return found.group, found.id


class Session:
    """A client's session at one node, by hand."""

    _numbers = 0

    def __init__(self, cluster: Cluster, name: str, producer: bytes | None = None, epoch: int = 1) -> None:
        Session._numbers += 1
        self.number = Session._numbers
        self.cluster = cluster
        self.name = name
        self.producer = producer or self.number.to_bytes(16, "big")
        self.epoch = epoch
        self.next_sequence = 1
        self.replies: dict[object, Reply | None] = {}
        self.deliveries: list[Deliver] = []
        self.ended: str | None = None
        cluster.sessions[name, self.number] = self
        cluster.submit(name, ev.OpenSession(self.number, self.producer, epoch))

    def hear(self, output: ev.Output) -> None:
        """What the member says to this session."""
        if isinstance(output, ev.Answered):
            self.replies[output.token] = output.reply
        elif isinstance(output, ev.Delivered):
            self.deliveries.append(output.deliver)
        elif isinstance(output, ev.Ended):
            self.ended = output.reason

    def lapsed(self, group: int) -> None:
        """The node's lease has lapsed."""

    def gone(self) -> None:
        """The node's process has died."""

    def send(
        self, group: int, command: c.Command | CatalogCommand, token: object, batch: bytes = b""
    ) -> None:
        self.cluster.submit(self.name, ev.Submit(self.number, group, command, token, batch))

    def call(self, group: int, command: c.Command | CatalogCommand, batch: bytes = b"") -> Reply | None:
        token = object()
        self.send(group, command, token, batch)

        def answered() -> bool:
            return token in self.replies or self.ended is not None

        self.cluster.until(answered, f"an answer to {command}")
        return self.replies.get(token)

    def publish(self, group: int, queue: int, *bodies: bytes) -> tuple[int, int]:
        """Sends a batch; returns its client sequences (first, last), which are also its token."""
        first = self.next_sequence
        self.next_sequence += len(bodies)
        token = (first, self.next_sequence - 1)
        self.send(group, enqueue(queue, first, bodies), token, batch(bodies))
        return token

    def confirmed(self) -> list[int]:
        """Client sequences confirmed so far."""
        return [
            sequence
            for reply in self.replies.values()
            if isinstance(reply, Confirmed)
            for sequence in range(reply.first, reply.last + 1)
        ]

    def received(self, group: int, start: int = 0) -> list[bytes]:
        """Bodies of all deliveries from the start-th on, as this node's log has them."""
        found = []
        log = self.cluster.logs[self.name]
        for deliver in self.deliveries[start:]:
            for run in deliver.runs:
                command = Command(memoryview(log.read(group, run.index))[1:])
                if run.one_each:
                    for number in range(run.operation, run.operation + run.count):
                        found += bodies_of(bytes(batch_of(command.operation(number))))
                else:
                    bodies = bodies_of(bytes(batch_of(command.operation(run.operation))))
                    found += bodies[run.ordinal : run.ordinal + run.count]
        return found


def copied(node_state: NodeState) -> NodeState:
    """What is on a disk does not change with what is in memory."""
    return replace(
        node_state, known_incarnations=dict(node_state.known_incarnations), heard=dict(node_state.heard)
    )


def batch(bodies: Iterable[bytes]) -> bytes:
    made = pb.MessageBatch()
    end = 0
    for body in bodies:
        end += len(body)
        made.body_ends.append(end)
        made.count += 1
    made.bodies = b"".join(bodies)
    return made.SerializeToString()


def bodies_of(data: bytes) -> list[bytes]:
    made = pb.MessageBatch.FromString(data)
    starts = [0, *made.body_ends]
    return [made.bodies[starts[i] : end] for i, end in enumerate(made.body_ends)]


def enqueue(queue: int, first: int, bodies: Iterable[bytes], lowest: int = 1) -> c.Enqueue:
    sizes = [len(body) for body in bodies]
    return c.Enqueue(queue, first, min(lowest, first), len(sizes), sum(sizes))
