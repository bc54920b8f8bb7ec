"""The parts of the broken builds that canaries.py lists: each stands in the place of a part of the product and takes
one promise away. A class stands in the place of its base class; a function says which one it replaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fifo import targets
from fifo.budgets import Entry
from fifo.commands import (
    ClaimDead,
    Commit,
    Enqueue,
    Finish,
    NodeDown,
    Operation,
    Prepare,
    QueueConfig,
    Reserve,
    Return,
    Settle,
)
from fifo.consumers.consumer import CheckedOut
from fifo.consumers.delivery import Delivery
from fifo.consumers.queue_consumers import QueueConsumers
from fifo.consumers.selector_groups import SelectorGroups
from fifo.consumers.single_active import SingleActive
from fifo.decisions import Decisions
from fifo.effects import Confirmed, Deliver, Ok, Refused, Reply
from fifo.embargo import EmbargoedSettlement
from fifo.embargo import Key as TransactionKey
from fifo.group_machine import GroupMachine
from fifo.messages import bitsets
from fifo.messages.blocks import Block
from fifo.messages.message_groups import Heads, MessageGroups
from fifo.messages.messages import Messages
from fifo.messages.ready_order import PriorityOrder
from fifo.number_ranges import NumberRanges
from fifo.producers import Producer
from fifo.queue_transactions import QueueTransactions
from fifo.staging import Staging
from fifo.subscriptions import Subscription, Subscriptions
from quorum.api import status
from quorum.api.dead_letters import worker
from quorum.api.hub.hub import Hub
from quorum.api.hub.member_requests import MemberRequests
from quorum.api.hub.published_state import PublishedState
from quorum.api.session.publisher import SessionPublisher
from quorum.api.session.session_routes import Route
from quorum.api.session.shared_commit import SharedCommit
from quorum.catalog.lease_times import LeaseSettings, LeaseTimes
from quorum.client.messages.routes import Address
from quorum.client.session.gathering import Gathering
from quorum.log import Log, record
from quorum.log.files import write_fully
from quorum.log.record import Header, Stamp
from quorum.log.references import Retention
from quorum.log.table import Ints, Mask
from quorum.log.writer import Writer
from quorum.node.cluster.heartbeats import Heartbeats
from quorum.node.cluster.membership import Membership
from quorum.node.cluster.version_switch import VersionSwitch
from quorum.node.identity.member_directory import MemberDirectory
from quorum.node.leases.leases import Leases
from quorum.node.queries import Query
from quorum.node.repair.snapshot_bodies import SnapshotBodies
from quorum.node.replica.replica import Replica
from quorum.node.wire.batches import BatchError, StoredBatch, refused_each
from quorum.replication import codec
from quorum.replication.configuration import State
from quorum.replication.group import Group
from quorum.replication.outbox import Outbox
from simulator.clients.mortals import guessed_producer

T = TypeVar("T")
_enqueue_rest = GroupMachine._enqueue_rest
_enqueue_targets = GroupMachine._enqueue_targets
_publish_through = SessionPublisher._publish_through
choose = targets.choose

# ---- durability


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


# ---- single messages


class GathersInAnyOrder(Gathering):
    """A batch that is closed has its first message last."""

    def close(self, queue: Address) -> None:
        batch = self._open.get(queue)
        if batch is not None:
            columns: list[list[Any]] = [batch._bodies, batch._described, batch._futures, batch._deadlines]
            for items in columns:
                items.append(items.pop(0))
        super().close(queue)


def with_their_neighbours(stored: StoredBatch, *arguments: Any) -> dict[int, BatchError]:
    """In the place of batches.refused_each: the messages behind a refused one are refused, too."""
    found = refused_each(stored, *arguments)
    return dict.fromkeys(range(min(found), stored.count), found[min(found)]) if found else found


def first_target_only(*arguments: Any) -> targets.Choice:
    """In the place of targets.choose: the other queues of a batch get nothing."""
    found = choose(*arguments)
    return targets.Choice(found.taken, dict(list(found.by_target.items())[:1]), found.refused)


def numbers_without_gaps(first: int, ordinals: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """In the place of group_parts.numbers_of: a group gets the numbers of neighbours, whichever it was sent."""
    return ((first + ordinals[0], len(ordinals)),)


def takes_repeats(
    machine: GroupMachine, entry: Entry, operation: Operation, producer: Producer, command: Enqueue
) -> Reply:
    """In the place of GroupMachine._enqueue_targets: for a batch for several queues, nothing was accepted before."""
    accepted, producer.accepted = producer.accepted, NumberRanges()
    reply = _enqueue_targets(machine, entry, operation, producer, command)
    for first, last in accepted:
        producer.accept(first, last)
    return reply


async def never_mandatory(publisher: SessionPublisher, route: Route, given: Any) -> None:
    """In the place of SessionPublisher._publish_through: messages for no queue are dropped, mandatory or not."""
    await _publish_through(publisher, route, replace(given, mandatory=False))


# ---- dead letters


async def settled_before_it_is_confirmed(session: Any, config: QueueConfig, batch: Any) -> Any:
    """In the place of worker._Session.send: the batch is on its way."""
    key = config.dead_letter_routing_key or config.name
    allowed = [letter.allowed for letter in batch.letters]
    await session._session.publisher.forward(
        config.dead_letter_exchange, key, batch.first, batch.data, allowed, independent=True
    )
    count = len(batch.letters)
    return worker._Result([None] * count, set())


_only = targets._only


def takes_what_nobody_takes(parts: Sequence[targets.Part], taken: Mapping[int, int]) -> targets.Offer:
    """In the place of targets._only: what is refused is taken, too."""
    return targets.Offer(parts, _only(parts, taken).refused)


_claim_dead = GroupMachine._claim_dead


def another_producer_each_time(group: GroupMachine, entry: Entry, command: ClaimDead) -> Reply:
    """In the place of GroupMachine._claim_dead: each worker names the producer."""
    machine = group.queues.get(command.queue)
    if machine is not None and command.epoch > machine.messages.dead.epoch:
        machine.messages.dead.producer = b""
    return _claim_dead(group, entry, command)


def producer_that_clients_know(group: GroupMachine, entry: Entry, command: ClaimDead) -> Reply:
    """In the place of GroupMachine._claim_dead: the producer's name follows from the queue's id."""
    return _claim_dead(group, entry, replace(command, producer=guessed_producer(command.queue)))


# ---- consumers


def everybody_is_active(single: SingleActive, entry: Entry) -> None:
    """In the place of SingleActive.elect."""
    for consumer in single.candidates.values():
        if not consumer.is_active:
            single._set_active(entry, consumer, is_active=True)
            single.active = consumer


def heads_for_everybody(groups: MessageGroups, holder: int) -> Heads:
    """In the place of MessageGroups._heads: every consumer may get the next message of a group."""
    return groups.free


def holds_for_ever(checked_out: CheckedOut, last: int) -> bool:
    """In the place of CheckedOut.has_up_to: what was settled counts as held too long."""
    return True


def confirms_refusals(machine: GroupMachine, *arguments: Any) -> Reply:
    """In the place of GroupMachine._enqueue_rest."""
    reply = _enqueue_rest(machine, *arguments)
    return Confirmed(reply.first, reply.last) if isinstance(reply, Confirmed) else reply


# ---- versions


def known_by_a_majority(switch: VersionSwitch) -> int:
    """In the place of VersionSwitch._known_by_all."""
    known = sorted([switch.known, *(switch.known_by(peer) for peer in switch._peers.all)], reverse=True)
    return known[len(known) // 2]


# ---- messages


class ForgetsUnsettled(GroupMachine):
    """What the consumers of a node held is not given back when the node is gone."""

    def _end_departed(self, entry: Entry) -> None:
        for producer in self.sessions.producers.values():
            if producer.ended_ms < 0 and self.sessions.is_departed(producer.address):
                producer.consumers.clear()
        super()._end_departed(entry)


_reserve = Subscriptions._reserve


def always_new(
    subscriptions: Subscriptions, entry: Entry, subscription: Subscription, command: Reserve
) -> Reply:
    """In the place of Subscriptions._reserve: who asks again for what was answered is given something else."""
    return _reserve(subscriptions, entry, subscription, replace(command, after=subscription.last))


def not_remembered(staging: Staging, entry: Entry, producer: str, batch: int, owner: int) -> None:
    """In the place of Staging.published: which batch it was is forgotten."""
    for key in [key for key in staging.parts if key[0] == producer and key[1] <= batch]:
        staging.drop(key)


def everything_is_fresh(producer: Producer, command: Enqueue) -> list[tuple[int, int]]:
    """In the place of Producer.fresh: what was taken before is taken again."""
    return [(0, command.count)]


_effect = Delivery.effect


def never_redelivered(delivery: Delivery, settled: bool = False) -> Deliver:
    """In the place of Delivery.effect."""
    return replace(_effect(delivery, settled), redelivered=0)


_settle = QueueConsumers.settle


def returns_some(consumers: QueueConsumers, entry: Entry, producer: bytes, command: Settle) -> Reply:
    """In the place of QueueConsumers.settle: in every 50th entry what is settled goes back to the queue."""
    if type(command) is Settle and entry.index % 50 == 0:
        returned = Return(
            command.queue, command.consumer_tag, command.attach, command.tags, command.credit_to
        )
        return _settle(consumers, entry, producer, returned)
    return _settle(consumers, entry, producer, command)


def highest_first(delivery: Delivery, block: Block, members: int, wanted: int) -> int:
    """In the place of Delivery.choose."""
    return members ^ bitsets.lowest(members, max(0, members.bit_count() - wanted))


def of_any_priority(order: PriorityOrder, block: Block) -> int:
    """In the place of PriorityOrder.next_of."""
    return block.ready


def skips_arrivals(groups: SelectorGroups) -> None:
    """In the place of SelectorGroups.look_up_arrivals: consumers that have seen everything see nothing new."""
    groups._followed = groups.messages.next_sequence


def loses_rare_fields(columns: object, key: str, runs: object) -> None:
    """In the place of BlockColumns._put_sparse: fields beyond a block's dense columns are not kept."""


_commit = QueueTransactions.commit


def commits_where_it_settles(queue: QueueTransactions, entry: Entry, key: TransactionKey) -> list[str]:
    """In the place of QueueTransactions.commit: queues where a transaction only publishes get nothing."""
    parts = queue.embargo.parts[key]
    if any(isinstance(part, EmbargoedSettlement) for part in parts):
        return _commit(queue, entry, key)
    queue.drop(entry, key)
    return []


def commits_group_by_group(commit: SharedCommit) -> None:
    """In the place of SharedCommit.begin: each group commits its part by itself."""
    parts = commit._parts
    left = list(parts.by_group)

    def answered(group: int, reply: Any) -> None:
        left.remove(group)
        if isinstance(reply, Refused):
            parts.refusal = parts.refusal or status.of_refused(reply)
        if not left:
            commit._tell(parts.refusal)

    for group, part in parts.by_group.items():
        command = Commit(parts.number, part.operations, part.most_ranges)
        commit._commands.submit(group, command, partial(answered, group))


def prepares_nothing(decisions: Decisions, entry: Entry, producer: Producer, command: Prepare) -> Reply:
    """In the place of Decisions.prepare: the part stays open, so its session may end it."""
    found = decisions._open.committable(entry, producer, command.tx, command.operations)
    return found if isinstance(found, Refused) else Ok()


def finishes_what_is_open(decisions: Decisions, entry: Entry, command: Finish) -> Reply:
    """In the place of Decisions.finish, beside `prepares_nothing`."""
    producer = decisions._sessions.producers.get(command.producer)
    if producer is not None and command.is_committed:
        decisions._open.commit(entry, producer, Commit(command.tx))
    elif producer is not None:
        decisions._open.end(entry, producer, command.tx)
    return Ok()


def rollback_settles(queue: QueueTransactions, entry: Entry, key: TransactionKey) -> None:
    """In the place of QueueTransactions.drop: what a transaction has settled stays settled."""
    for part in queue.embargo.parts.pop(key):
        if isinstance(part, EmbargoedSettlement):
            consumer = queue._consumers.by_key.get((key[0], part.consumer_tag))
            if consumer is not None:
                consumer.lift_embargo(key[1])
            queue._messages.settle(part.held.ranges())


def begins_in_order(producer: Producer, number: int) -> bool:
    """In the place of Producer.may_begin: only above the highest number."""
    return number > producer.last_tx


def ends_delays(machine: GroupMachine, entry: Entry, command: NodeDown) -> None:
    """In the place of GroupMachine._node_down: all delayed messages become ready."""
    _node_down(machine, entry, command)
    for queue in machine.queues.values():
        delays = queue.messages.delays
        while delays is not None and delays.tree:
            late = Entry(entry.index, delays.tree[0][0], entry.version, entry.limits)
            queue.messages.end_delay(late, queue.messages.blocks.get(delays.tree[0][1]))
            machine.dirty[queue.queue] = None


_node_down = GroupMachine._node_down


# ---- what may leave a queue


def nothing_expires(*_: object) -> int:
    """In the place of Runs.expired."""
    return 0


_expires = Messages.expires_at


def half_the_ttl(messages: Messages, now_ms: int, ttl_ms: int) -> int:
    """In the place of Messages.expires_at."""
    expires = _expires(messages, now_ms, ttl_ms)
    return now_ms + (expires - now_ms) // 2 if 0 <= expires - now_ms < 1_000_000 else expires


def drops_nothing(messages: Messages, entry: Entry) -> bool:
    """In the place of overflow.drop_head."""
    return True


def drops_the_newest(messages: Messages, entry: Entry) -> bool:
    """In the place of overflow.drop_head."""
    limit = messages.config.max_length
    if limit < 0 or messages.config.overflow != "drop_head":
        return True
    while messages.ready_count > limit:
        block = messages.blocks.get(messages.order.by_sequence.numbers[-1])
        messages.drop(block, 1 << (block.ready.bit_length() - 1), "maxlen")
    return True


def takes_everything(messages: Messages, count: int, size_bytes: int) -> Refused | None:
    """In the place of overflow.refuse_more."""
    return None


def never_too_often(failures: bitsets.Counts, limit: int) -> int:
    """In the place of Counts.above: no message has failed too often."""
    return 0


_above = bitsets.Counts.above


def once_is_too_often(failures: bitsets.Counts, limit: int) -> int:
    """In the place of Counts.above."""
    return _above(failures, 0)


# ---- leases and attachments


class ForgetsLapses(Heartbeats):
    """A lease that has lapsed and was renewed is taken for one that never lapsed: nobody's stream ends with it."""

    def lapse(self, now_ms: int) -> None:
        return


def never_lapsed(hub: Hub) -> None:
    """In the place of Hub.check_leases, which looks after a member that is stuck."""


def always_leased(state: PublishedState, group: int) -> bool:
    """In the place of PublishedState.may_deliver."""
    return True


async def from_what_is_here(member: MemberRequests, query: Query[T]) -> T:
    """In the place of MemberRequests.query_current: the answer shows what this node happens to have applied."""
    return await member.query(query)


def down_after_a_moment(leases: Leases, group: int, node: int, boot: int, now_ms: int) -> bool:
    """In the place of Leases.is_down: 0.6 s of silence is enough."""
    known = leases.heard.get(node)
    return known is not None and (known[0] > boot or now_ms - known[1] > 600)


_held_until = Leases.held_until


def too_long(leases: Leases, *arguments: Any, **more: Any) -> int:
    """In the place of Leases.held_until: 2.5 s longer than others count on."""
    until = _held_until(leases, *arguments, **more)
    return until + 2_500 if until else 0


def settled_at_once(settings: LeaseSettings, wanted: LeaseTimes) -> LeaseSettings:
    """In the place of LeaseSettings.changed: nobody waits for the leases that were granted before."""
    return LeaseSettings(settings.revision + 1, wanted, wanted, wanted)


def always_current(stream: object, deliver: Deliver) -> bool:
    """In the place of _is_current: an attachment that has ended is still written to."""
    return True


# ---- members


def meets_anew(membership: Membership, peer: str, incarnation: str) -> str:
    """In the place of Membership.remember: whoever comes last under a name is the one that was always meant."""
    membership.node_state.known_incarnations[peer] = incarnation
    membership.node_state.save()
    return incarnation


def whoever(member_directory: MemberDirectory, member: str) -> str:
    """In the place of MemberDirectory.incarnation: nobody is refused for another data directory."""
    return ""


def believes_itself(*_: object) -> None:
    """In the place of RollbackMarks.remembered: what others remember of this member counts for nothing."""


# ---- snapshots and garbage collection


class ForgetsReferences(Retention):
    """Of what a snapshot refers to, not everything is needed."""

    def is_live(self, indexes: Ints, view_from: int) -> Mask:
        assert self._told is not None
        needed: Mask = indexes >= min(self._told.needed_from, view_from)
        kept: Mask = super().is_live(indexes, view_from) & (indexes % 4 != 0)
        return needed | kept


class LogThatDropsLive(Log):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings | {"retention": ForgetsReferences})


class ForgetsPages(Retention):
    """The pages that a snapshot names count as garbage."""

    def is_live_page(self, pages: Ints) -> Mask:
        assert self._told is not None
        live: Mask = pages > self._told.pages_to
        return live


class LogWithoutPages(Log):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings | {"retention": ForgetsPages})


def without_bodies(
    snapshot_bodies: SnapshotBodies, group: int, index: int, term: int, state: State
) -> int | None:
    """In the place of SnapshotBodies.prepare: a snapshot is put in place as it came."""
    journal = snapshot_bodies._replicas[group].raft
    return max(journal.commit_index, journal.last_index if journal.holds(index, term) else 0)


def not_asked_again(table: object, group: int) -> None:
    """In the place of SessionTable.answers_missed."""


class _Unsynced:
    """A log whose sync does nothing."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def sync(self) -> None:
        return


_save_snapshot = Replica.save_snapshot


def before_its_pages(replica: Replica, log: Log, now_ms: int) -> None:
    """In the place of Replica.save_snapshot: the state is durable before the pages that it names."""
    _save_snapshot(replica, _Unsynced(log), now_ms)  # type: ignore[arg-type]


def no_entries_first(journal: object, index: int) -> None:
    """In the place of Journal._sync_to."""
