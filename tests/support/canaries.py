"""Broken builds that the simulation must notice: each takes one promise away, by a subclass or a function that stands
where the product's own would.

Nothing here is reachable from the product. `CANARIES` is the one list: `make simulate CANARIES=1` looks for the first
seed that catches each; `seeds` is a short range known to hold one, which `make test` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fifo.commands import Reserve
from fifo.effects import Reply
from fifo.group import GroupMachine
from fifo.readers import DurableReader, Readers
from fifo.staging import Staging
from fifo.state import Entry
from quorum.api.hub import Hub
from quorum.log import Log, record
from quorum.log.files import write_fully
from quorum.log.record import Header, Stamp
from quorum.log.references import Retention
from quorum.log.table import Ints, Mask
from quorum.log.writer import Writer
from quorum.node.heartbeats import Heartbeats
from quorum.node.member import Member
from quorum.node.membership import Membership
from quorum.node.roster import Roster
from quorum.replication import codec
from quorum.replication.codec import (
    AppendAnswer,
    AppendEntries,
    SnapshotAnswer,
    SnapshotChunk,
    Vote,
    VoteRequest,
)
from quorum.replication.group import Group
from quorum.replication.guard import Guard
from quorum.replication.messages import Messages
from quorum.replication.outbox import Outbox
from support.simulation.world import Build

T = TypeVar("T")

LIMIT = 500
"""Seeds within which each must be caught."""


class ConfirmsBeforeSync(Writer):
    """What was handed to the kernel counts as on the disk."""

    def sync(self) -> int:
        self.check()
        buffers, self._pending = self._pending, []
        self._written = write_fully(self.active.file, buffers, self._written)
        self.written_lsn = self.synced_lsn = self.last_lsn
        return self.synced_lsn


class StampWithoutCrc(Stamp):
    """A header is believed if its magic is right."""

    def decode(self, data: bytes, at: int = 0) -> Header | None:
        if len(data) - at < record.HEADER_BYTES or data[at : at + 4] != self.magic:
            return None
        return Header._make(record._REST.unpack_from(data, at + 8))


def any_body_is_good(header: Header, body: bytes) -> bool:
    return len(body) == header.length


class ForgetsVotes(Messages):
    def _on_vote_request(self, peer: str, m: VoteRequest) -> None:
        self._engine._SyncObj__votedForNodeId = None
        super()._on_vote_request(peer, m)


class VotesTwice(Group):
    """Whoever asks gets a vote, also in a term in which another one has got it."""

    messages_class = ForgetsVotes


class NoGuard(Guard):
    """The library sees what came over the wire."""

    def cut_matching(self, m: AppendEntries) -> AppendEntries:
        return m

    def clamp_commit(self, commit_index: int, proved: int) -> int:
        return commit_index

    def clamp_acknowledgement(self, proved: int) -> None:
        return

    def never_below_commit(self, index: int) -> None:
        return

    def commit_of_snapshot(self, leader_commit: int) -> int:
        return leader_commit

    def is_newer(self, chunk: SnapshotChunk) -> bool:
        return True

    def answers_this_office(self, m: AppendAnswer | SnapshotAnswer) -> bool:
        return self.is_leader

    def is_fresh_reset(self, peer: str, m: AppendAnswer) -> bool:
        return m.next_index > 1

    def never_below_match(self, peer: str, next_index: int) -> int:
        return next_index

    def park(self, peer: str, acknowledged: int) -> int:
        return acknowledged

    def is_first_vote(self, peer: str, m: Vote) -> bool:
        return True


class PromisesBeforeSync(Outbox):
    """Acknowledgements and votes leave while what they promise is on its way to the disk."""

    def queue(self, peer: str, message: codec.Message) -> None:
        self._waiting.append((0, peer, codec.encode(message)))


class GroupThatPromisesEarly(Group):
    outbox_class = PromisesBeforeSync


class ForgetsReferences(Retention):
    """Of what a snapshot refers to, not everything is needed."""

    def is_live(self, indexes: Ints, view_from: int) -> Mask:
        assert self._told is not None
        needed: Mask = indexes >= min(self._told.needed_from, view_from)
        return needed | super().is_live(indexes, view_from) & (indexes % 4 != 0)


class LogThatDropsLive(Log):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, retention=ForgetsReferences, **settings)


class GroupWithoutGuard(Group):
    guard_class = NoGuard


class ForgetsUnsettled(GroupMachine):
    """What the consumers of a node held is not given back when the node is gone."""

    def _end_departed(self, entry: Entry) -> None:
        for producer in self.sessions.producers.values():
            if producer.ended_ms < 0 and self.sessions.is_departed(producer.address):
                producer.consumers.clear()
        super()._end_departed(entry)


reserve = Readers._reserve


def always_new(readers: Readers, entry: Entry, reader: DurableReader, command: Reserve) -> Reply:
    """In the place of Readers._reserve: who asks again for what was answered is given something else."""
    return reserve(readers, entry, reader, replace(command, after=reader.last))


def not_remembered(staging: Staging, producer: str, batch: int) -> None:
    """In the place of Staging.published: which batch it was is forgotten."""
    for key in [key for key in staging.parts if key[0] == producer and key[1] <= batch]:
        staging.drop(key)


class ForgetsLapses(Heartbeats):
    """A lease that has lapsed and was renewed is taken for one that never lapsed: nobody's stream ends with it."""

    def lapse(self, now_ms: int) -> None:
        return


def never_lapsed(hub: Hub) -> None:
    """In the place of Hub.check_leases, which looks after a member that is stuck."""


def always_leased(hub: Hub, group: int) -> bool:
    """In the place of Hub.may_deliver."""
    return True


def meets_anew(membership: Membership, peer: str, incarnation: str) -> str:
    """In the place of Membership.met: whoever comes last under a name is the one that was always meant."""
    membership.memory.met[peer] = incarnation
    membership.memory.save()
    return incarnation


def whoever(roster: Roster, member: str) -> str:
    """In the place of Roster.incarnation: nobody is refused for another data directory."""
    return ""


async def from_what_is_here(hub: Hub, question: Callable[[Member], T], groups: Collection[int]) -> T:
    """In the place of Hub.ask_now: the answer shows what this node happens to have applied."""
    return await hub.ask(question, *groups)


@dataclass(frozen=True, slots=True)
class Canary:
    """seeds: (first, how many), of which at least one catches it, the first of them as a rule."""

    name: str
    build: Callable[[], Build]
    seeds: tuple[int, int]


def _patched(name: str, **patches: Any) -> Callable[[], Build]:
    return lambda: Build(name, patches={key.replace("__", "."): value for key, value in patches.items()})


CANARIES: tuple[Canary, ...] = (
    Canary(
        "confirm before sync",
        _patched("confirm before sync", quorum__log__log__Writer=ConfirmsBeforeSync),
        (1, 2),
    ),
    Canary(
        "CRC skipped",
        _patched(
            "CRC skipped",
            quorum__log__scanner__body_is_good=any_body_is_good,
            quorum__log__reader__body_is_good=any_body_is_good,
            quorum__log__segments__Stamp=StampWithoutCrc,
        ),
        (8, 14),
    ),
    Canary(
        "live message dropped",
        lambda: Build("live message dropped", log=LogThatDropsLive),
        (2, 12),
    ),
    Canary("vote twice", _patched("vote twice", quorum__node__member__Group=VotesTwice), (4, 12)),
    Canary(
        "promise before sync",
        _patched("promise before sync", quorum__node__member__Group=GroupThatPromisesEarly),
        (18, 12),
    ),
    Canary("guard off", _patched("guard off", quorum__node__member__Group=GroupWithoutGuard), (4, 12)),
    Canary(
        "emptied disk welcome",
        _patched(
            "emptied disk welcome",
            quorum__node__membership__Membership__met=meets_anew,
            quorum__node__roster__Roster__incarnation=whoever,
        ),
        (24, 12),
    ),
    Canary(
        "unsettled messages forgotten",
        _patched("unsettled messages forgotten", quorum__node__founding__GroupMachine=ForgetsUnsettled),
        (5, 12),
    ),
    Canary(
        "reservation not repeated",
        _patched("reservation not repeated", fifo__readers__Readers___reserve=always_new),
        (8, 6),
    ),
    Canary(
        "published batch forgotten",
        _patched("published batch forgotten", fifo__staging__Staging__published=not_remembered),
        (38, 6),
    ),
    Canary(
        "lapse of a lease ignored",
        lambda: Build(
            "lapse of a lease ignored",
            patches={
                "quorum.node.member.Heartbeats": ForgetsLapses,
                "quorum.api.hub.Hub.check_leases": never_lapsed,
                "quorum.api.hub.Hub.may_deliver": always_leased,
            },
        ),
        (1, 4),
    ),
    Canary(
        "no barrier before reads",
        _patched("no barrier before reads", quorum__api__hub__Hub__ask_now=from_what_is_here),
        (1, 2),
    ),
)
