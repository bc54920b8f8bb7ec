"""Broken builds that the simulation must notice: each takes one promise away, by a subclass or a function that stands
where the product's own would.

Nothing here is reachable from the product. `CANARIES` is the one list. `make simulate CANARIES=1` says for each how
many seeds it takes until one catches it; `make test` takes those that are quick, from the first seed on. Builds without
a single rule of Raft are in raft_ablations.py: Raft's own fuzz finds them, in a fraction of a second each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fifo.budgets import Entry
from fifo.commands import Reserve
from fifo.effects import Reply
from fifo.group import GroupMachine
from fifo.readers import DurableReader, Readers
from fifo.staging import Staging
from quorum.api.hub import Hub
from quorum.log import Log, record
from quorum.log.files import write_fully
from quorum.log.record import Header, Stamp
from quorum.log.references import Retention
from quorum.log.table import Ints, Mask
from quorum.log.writer import Writer
from quorum.node.cluster.heartbeats import Heartbeats
from quorum.node.cluster.membership import Membership
from quorum.node.identity.member_directory import MemberDirectory
from quorum.node.member import Member
from quorum.replication import codec
from quorum.replication.group import Group
from quorum.replication.outbox import Outbox
from support import broken_builds as broken
from support.raft_ablations import replaces_nothing
from support.simulation.world import Build

T = TypeVar("T")

LIMIT = 300
"""Seeds within which each must have been caught CATCHES times."""
CATCHES = 3
MOST_SEEDS = 20
"""That it may take until a build is caught: the median of the gaps between those seeds that catch it."""
QUICK_SEEDS = 12
"""Seeds from the first on, within which `make test` has to catch a quick one."""


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


class PromisesBeforeSync(Outbox):
    """Acknowledgements and votes leave while what they promise is on its way to the disk."""

    def queue(self, peer: str, message: codec.Message) -> None:
        self._waiting.append((0, peer, codec.encode(message)))


class GroupThatPromisesEarly(Group):
    outbox_class = PromisesBeforeSync


assert replaces_nothing([PromisesBeforeSync, GroupThatPromisesEarly]) == []


class ForgetsReferences(Retention):
    """Of what a snapshot refers to, not everything is needed."""

    def is_live(self, indexes: Ints, view_from: int) -> Mask:
        assert self._told is not None
        needed: Mask = indexes >= min(self._told.needed_from, view_from)
        return needed | super().is_live(indexes, view_from) & (indexes % 4 != 0)


class LogThatDropsLive(Log):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, retention=ForgetsReferences, **settings)


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


def whoever(roster: MemberDirectory, member: str) -> str:
    """In the place of MemberDirectory.incarnation: nobody is refused for another data directory."""
    return ""


async def from_what_is_here(hub: Hub, question: Callable[[Member], T], groups: Collection[int]) -> T:
    """In the place of Hub.ask_now: the answer shows what this node happens to have applied."""
    return await hub.ask(question, *groups)


@dataclass(frozen=True, slots=True)
class Canary:
    """promise: what it breaks. is_quick: it is caught within a few seeds, so that every `make test` looks for it.
    scene: the test that fails on it, file::name, where the moment is too rare in the simulation."""

    name: str
    promise: str
    build: Callable[[], Build]
    is_quick: bool = False
    scene: str = ""


def _patched(
    name: str, promise: str, *, scenario: str = "", is_quick: bool = False, scene: str = "", **patches: Any
) -> Canary:
    """scenario: see Build. patches: what stands in which place, with __ for each dot."""
    by_place = {key.replace("__", "."): value for key, value in patches.items()}
    return Canary(name, promise, lambda: Build(name, patches=by_place, scenario=scenario), is_quick, scene)


CANARIES: tuple[Canary, ...] = (
    # ---- durability
    _patched(
        "confirm before sync",
        "what is confirmed survives a power cut of all",
        is_quick=True,
        quorum__log__log__Writer=ConfirmsBeforeSync,
    ),
    _patched(
        "promise before sync",
        "no vote and no acknowledgement leaves before its sync",
        quorum__node__opening__Group=GroupThatPromisesEarly,
    ),
    _patched(
        "CRC skipped",
        "damage is noticed and never served",
        scene="tests/log/test_log_damage.py::test_a_flipped_bit_while_the_log_is_open_is_noticed_by_the_reader",
        quorum__log__scanner__body_is_good=any_body_is_good,
        quorum__log__reader__body_is_good=any_body_is_good,
        quorum__log__segments__Stamp=StampWithoutCrc,
    ),
    Canary(
        "live message dropped",
        "garbage collection keeps what a snapshot refers to",
        lambda: Build("live message dropped", log=LogThatDropsLive),
    ),
    Canary(
        "pages dropped",
        "garbage collection keeps the pages that a snapshot names",
        lambda: Build("pages dropped", log=broken.LogWithoutPages),
        is_quick=True,
    ),
    Canary(
        "snapshot before its pages",
        "a snapshot is durable only with what it names",
        lambda: Build(
            "snapshot before its pages",
            patches={
                "quorum.node.replica.replica.Replica.save_snapshot": broken.before_its_pages,
                "quorum.log.journal.Journal._sync_to": broken.no_entries_first,
            },
        ),
    ),
    _patched(
        "snapshot without its bodies",
        "a member takes part with a snapshot only once it has the bodies",
        quorum__node__repair__snapshot_bodies__SnapshotBodies__prepare=broken.without_bodies,
    ),
    # ---- members
    _patched(
        "emptied disk welcome",
        "a member that lost its disk is refused under its old identity",
        scenario="wipe",
        quorum__node__cluster__membership__Membership__met=meets_anew,
        quorum__node__identity__member_directory__MemberDirectory__incarnation=whoever,
        quorum__node__cluster__rollback_marks__RollbackMarks__remembered=broken.believes_itself,
    ),
    # ---- publishing
    _patched(
        "deduplication lost",
        "a batch that is sent again is taken once",
        is_quick=True,
        fifo__sessions__Producer__fresh=broken.everything_is_fresh,
    ),
    _patched(
        "published batch forgotten",
        "a staged batch is published once",
        scenario="bulk",
        fifo__staging__Staging__published=not_remembered,
    ),
    # ---- delivery
    _patched(
        "highest first",
        "first deliveries to a consumer keep each producer's order",
        is_quick=True,
        fifo__delivery__Delivery__choose=broken.highest_first,
    ),
    _patched(
        "redelivered flag lost",
        "a repeat carries the redelivered flag",
        fifo__delivery__Delivery__effect=broken.never_redelivered,
    ),
    _patched(
        "every 50th settle returns",
        "what is settled is never delivered again",
        fifo__machine__QueueMachine__settle=broken.returns_some,
    ),
    _patched(
        "deliveries of an ended attachment",
        "one consumer holds a message at a time",
        quorum__api__session_service__Stream___is_current=broken.always_current,
    ),
    _patched(
        "unsettled messages forgotten",
        "what a lost consumer held is ready again",
        quorum__node__replica__bootstrap__GroupMachine=ForgetsUnsettled,
    ),
    _patched(
        "reservation not repeated",
        "a durable reader that asks again gets the same messages",
        scenario="bulk",
        fifo__readers__Readers___reserve=always_new,
    ),
    _patched(
        "selector skips arrivals",
        "a consumer with a selector gets every message that matches",
        fifo__selector_groups__SelectorGroups__look_up_arrivals=broken.skips_arrivals,
    ),
    _patched(
        "rare fields lost",
        "a selector sees every field that its queue keeps",
        scenario="wide",
        quorum_selectors__block_columns__BlockColumns___put_sparse=broken.loses_rare_fields,
    ),
    _patched(
        "missed answers not asked for",
        "a session goes on after its node was sent a snapshot",
        scene="tests/node/test_member.py::test_a_member_too_far_behind_gets_a_snapshot_and_its_sessions_start_over",
        quorum__node__sessions__session_table__SessionTable__answers_missed=broken.not_asked_again,
    ),
    # ---- leases and reads
    Canary(
        "lapse of a lease ignored",
        "nothing is delivered without a lease",
        lambda: Build(
            "lapse of a lease ignored",
            patches={
                "quorum.node.member.Heartbeats": ForgetsLapses,
                "quorum.api.hub.Hub.check_leases": never_lapsed,
                "quorum.api.hub.Hub.may_deliver": always_leased,
            },
        ),
        is_quick=True,
    ),
    _patched(
        "lease too long",
        "nobody is handed what another one holds with a lease",
        scene="tests/node/test_member_leases.py::"
        "test_a_cluster_that_shrank_to_one_member_and_grew_again_hands_out_no_message_twice",
        quorum__node__leases__leases__Leases__held_until=broken.too_long,
    ),
    _patched(
        "node declared down early",
        "a member's sessions end only when its lease is over",
        quorum__node__leases__leases__Leases__is_down=broken.down_after_a_moment,
    ),
    _patched(
        "lease times settled at once",
        "a successor waits for every lease that was granted before lease times were lowered",
        scenario="leases",
        quorum__catalog__lease_times__LeaseSettings__changed=broken.settled_at_once,
    ),
    _patched(
        "no barrier before reads",
        "reads are linearizable",
        is_quick=True,
        quorum__api__hub__Hub__ask_now=from_what_is_here,
    ),
    # ---- what may leave a queue
    _patched(
        "TTL never expires",
        "what has expired is not delivered, and leaves",
        scenario="brief",
        is_quick=True,
        fifo__blocks__Runs__expired=broken.nothing_expires,
    ),
    _patched(
        "half the TTL",
        "a message expires only after its TTL",
        scenario="brief",
        fifo__messages__Messages__expires_at=broken.half_the_ttl,
    ),
    _patched(
        "drop-head never drops",
        "a queue has at most x-max-length ready messages",
        scenario="short",
        is_quick=True,
        fifo__machine__overflow__drop_head=broken.drops_nothing,
    ),
    _patched(
        "drop-head drops the newest",
        "the oldest messages make room",
        scenario="short",
        fifo__machine__overflow__drop_head=broken.drops_the_newest,
    ),
    _patched(
        "reject-publish refuses nothing",
        "a full queue refuses what does not fit",
        scenario="strict",
        fifo__messages__Messages__refuse_more=broken.takes_everything,
    ),
    _patched(
        "delivery limit never reached",
        "a message is delivered at most once more than its queue's delivery limit",
        scenario="patient",
        fifo__bits__Counts__above=broken.never_too_often,
    ),
    _patched(
        "delivery limit of one",
        "a message leaves for its delivery limit only after it",
        scenario="patient",
        fifo__bits__Counts__above=broken.once_is_too_often,
    ),
    # ---- versions
    _patched(
        "switch by a majority",
        "groups switch to a machine version only when every member knows it",
        scenario="versions",
        scene="tests/node/test_version_switch.py::test_a_majority_that_knows_a_version_is_not_enough",
        quorum__node__cluster__version_switch__VersionSwitch___known_by_all=broken.known_by_a_majority,
    ),
)
