"""Answers to queries about the queues of a group: from the group's machine on this member.

Every answer is frozen. Data that a machine changes in place (consumers, lists) is copied into it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from fifo.consumers.consumer import Consumer
from fifo.effects import Refused, Run
from fifo.group_machine import GroupMachine
from fifo.queries import group as queries
from fifo.queries import transactions
from fifo.results import BrowsePage, DeadWork, ReservationPage
from quorum.log import Log
from quorum.node import queries as q
from quorum.node.cluster.peers import Peers
from quorum.node.identity.member_directory import MemberDirectory
from quorum.node.reads.query_table import QueryTable
from quorum.node.replica.replicas import Replicas

HASHED_BYTES = 1 << 20
"""About so much state is hashed in one step."""


class QueueAnswers:
    """The answers of one member."""

    def __init__(self, replicas: Replicas, directory: MemberDirectory, peers: Peers, log: Log) -> None:
        self._replicas = replicas
        self._directory = directory
        self._peers = peers
        self._log = log

    def take_queries(self, table: QueryTable) -> None:
        table.add(q.ReadBarrier, lambda query, now_ms: None)
        table.add(q.AppliedIndex, lambda query, now_ms: self._machine(query).index)
        table.add(q.HashState, self._hash_state)
        table.add(q.QueueCounts, lambda query, now_ms: queries.info(self._machine(query), query.queue))
        table.add(q.ListQueues, self._list_queues)
        table.add(q.DescribeQueue, self._describe_queue)
        table.add(q.BrowseReady, self._browse_ready)
        table.add(
            q.UpcomingMessages,
            lambda query, now_ms: queries.upcoming(self._machine(query), query.queue, query.count),
        )
        table.add(q.BrowsePinned, self._browse_pinned)
        table.add(q.FindTaken, self._find_taken)
        table.add(q.StagedParts, self._staged_parts)
        table.add(
            q.StagedOwner,
            lambda query, now_ms: queries.staged_owner(self._machine(query), query.queue, query.producer),
        )
        table.add(q.FindDeadQueues, self._find_dead_queues)
        table.add(q.FindDeadWork, self._find_dead_work)
        table.add(
            q.FindSubscription,
            lambda query, now_ms: queries.subscription(self._machine(query), query.queue, query.name),
        )
        table.add(q.ListSubscriptions, self._list_subscriptions)
        table.add(
            q.ListTransactions,
            lambda query, now_ms: transactions.infos(self._machine(query), query.after, query.most),
        )
        table.add(
            q.FindPrepared,
            lambda query, now_ms: transactions.prepared(self._machine(query), (query.producer, query.tx)),
        )
        table.add(q.PreviewReserve, self._preview_reserve)
        table.add(q.ReadReservation, self._read_reservation)
        table.add(q.DescribeSubscription, self._describe_subscription)
        table.add(q.DescribeForBulk, self._describe_for_bulk)
        table.add(q.LeaderEndpoint, self._leader_endpoint)

    def _machine(self, query: q.GroupQuery[Any]) -> GroupMachine:
        return self._replicas.queue_machine(query.group)

    def _hash_state(self, query: q.HashState, now_ms: int) -> q.StateHash | None:
        replica = self._replicas[query.group]
        crc = replica.hash_state(HASHED_BYTES)
        return None if crc is None else q.StateHash(replica.raft.applied_index, crc)

    # ---- queues

    def _status(self, group: int, queue: int) -> q.QueueStatus | None:
        info = queries.info(self._replicas.queue_machine(group), queue)
        if info is None:
            return None
        return q.QueueStatus(info, self._directory.name_of(self._replicas[group].raft.leader))

    def _list_queues(self, query: q.ListQueues, now_ms: int) -> tuple[q.QueueStatus | None, ...]:
        found: list[q.QueueStatus | None] = []
        blocks = 0
        for queue in query.queues:
            blocks += self._replicas.queue_machine(queue.group).block_count(queue.id)
            if found and blocks > query.most_blocks:
                break
            found.append(self._status(queue.group, queue.id))
        return tuple(found)

    def _describe_queue(self, query: q.DescribeQueue, now_ms: int) -> q.QueueDescription | None:
        status = self._status(query.group, query.queue)
        if status is None:
            return None
        machine = self._machine(query)
        storage = queries.storage(machine, query.queue, self._replicas[query.group].recent_from(self._log))
        assert storage is not None  # there is such a queue
        consumers: list[q.ConsumerStatus] = []
        size, consumers_after = 0, None
        for consumer in machine.consumers(query.queue):
            if consumer.attach <= query.after:
                continue
            shown = self._consumer_status(consumer)
            size += len(shown.selector)
            if len(consumers) == query.most_consumers or (consumers and size > query.most_selector_bytes):
                consumers_after = consumers[-1].attach
                break
            consumers.append(shown)
        return q.QueueDescription(status, storage, tuple(consumers), consumers_after)

    def _consumer_status(self, consumer: Consumer) -> q.ConsumerStatus:
        return q.ConsumerStatus(
            tag=consumer.tag,
            attach=consumer.attach,
            node=self._directory.name(consumer.address.node),
            selector=b"" if consumer.group is None else consumer.group.selector,
            credit=consumer.credit,
            checked_out=consumer.checked_out.total,
            priority=consumer.priority,
            is_active=consumer.is_active,
            timed_out=0 if consumer.timed_out is None else consumer.timed_out.total,
        )

    # ---- messages

    def _browse_ready(self, query: q.BrowseReady, now_ms: int) -> BrowsePage | Refused:
        return queries.browse(
            self._machine(query),
            query.queue,
            query.start,
            query.count,
            query.selector,
            delayed=query.delayed,
        )

    def _browse_pinned(self, query: q.BrowsePinned, now_ms: int) -> q.CountedPage | Refused:
        machine = self._machine(query)
        if query.pin:
            page = queries.pinned(
                machine, query.queue, query.pin, query.start, query.end, query.count, query.selector
            )
        else:
            page = queries.browse(machine, query.queue, query.start, query.count, query.selector)
        if isinstance(page, Refused):
            return page
        page = _until(page, query.end)
        failures = queries.failed_deliveries(machine, query.queue, page.runs) if query.with_failures else ()
        return q.CountedPage(page, failures)

    def _find_taken(self, query: q.FindTaken, now_ms: int) -> q.TakenMessages | None:
        found = self._machine(query).taken(query.producer, query.epoch, query.first, query.last)
        return None if found is None else q.TakenMessages(tuple(found[0]), found[1])

    def _staged_parts(self, query: q.StagedParts, now_ms: int) -> tuple[bytes, ...]:
        staged = queries.staged(self._machine(query), query.queue)
        asked = (query.producer, query.batch)
        return tuple([each.part for each in staged if (each.producer, each.batch) == asked])

    # ---- dead letters

    def _find_dead_queues(self, query: q.FindDeadQueues, now_ms: int) -> q.DeadQueues:
        group, queue = query.after
        groups: list[int] = []
        found: list[tuple[int, int]] = []
        for number, replica in sorted(self._replicas.items()):
            if isinstance(replica.machine, GroupMachine) and replica.leads:
                groups.append(number)
                if number >= group:
                    above = replica.machine.with_dead.irange(queue + 1 if number == group else None)
                    found += [(number, each) for each in islice(above, query.most - len(found))]
        return q.DeadQueues(tuple(groups), tuple(found))

    def _find_dead_work(self, query: q.FindDeadWork, now_ms: int) -> DeadWork | None:
        machine, leads = self._machine(query), self._replicas[query.group].leads
        return queries.dead_work(machine, query.queue, query.most) if leads else None

    # ---- subscriptions

    def _list_subscriptions(self, query: q.ListSubscriptions, now_ms: int) -> q.SubscriptionList:
        machine = self._machine(query)
        return q.SubscriptionList(machine.index, queries.subscriptions(machine, query.queue))

    def _preview_reserve(self, query: q.PreviewReserve, now_ms: int) -> q.ReservePreview:
        machine = self._machine(query)
        subscription = queries.subscription(machine, query.queue, query.name)
        info = queries.info(machine, query.queue)
        ready = 0 if info is None else info.ready
        if (
            subscription is None
            or (subscription.generation, subscription.last) != (query.generation, query.after)
            or subscription.has_untold_loss
        ):
            return q.ReservePreview(None, True, ready, machine.index)
        may_reserve = queries.may_reserve(machine, query.queue, query.name)
        return q.ReservePreview(subscription, may_reserve, ready, machine.index)

    def _read_reservation(self, query: q.ReadReservation, now_ms: int) -> ReservationPage | Refused:
        return queries.reserved(
            self._machine(query), query.queue, query.name, query.offset, query.first, query.count
        )

    def _describe_subscription(
        self, query: q.DescribeSubscription, now_ms: int
    ) -> q.SubscriptionDescription | None:
        machine = self._machine(query)
        subscription = queries.subscription(machine, query.queue, query.name)
        if subscription is None:
            return None
        return q.SubscriptionDescription(subscription, machine.index, self._endpoints(query.group))

    def _describe_for_bulk(self, query: q.DescribeForBulk, now_ms: int) -> q.BulkDescription | None:
        machine = self._machine(query)
        info = queries.info(machine, query.queue)
        if info is None:
            return None
        runs = _ends(machine, query.queue, info.next_sequence, query.end_messages)
        return q.BulkDescription(info, machine.index, self._endpoints(query.group), runs)

    def _leader_endpoint(self, query: q.LeaderEndpoint, now_ms: int) -> q.Endpoint | None:
        return next((each for each in self._endpoints(query.group) if each.is_leader), None)

    def _endpoints(self, group: int) -> tuple[q.Endpoint, ...]:
        """The members that are not drained and that this node can reach, itself included, by name."""
        leader, own = self._replicas[group].raft.leader, self._directory.me
        return tuple(
            [
                q.Endpoint(each.id, each.name, each.client, each.id == leader, each.id == own)
                for each in sorted(self._directory.by_id.values(), key=lambda each: each.name)
                if not each.is_drained and self._peers.is_reachable(each.id)
            ]
        )


def _until(page: BrowsePage, end: int) -> BrowsePage:
    """The page without the messages from sequence `end` on."""
    runs = tuple(
        run if run.first_sequence + run.count <= end else replace(run, count=end - run.first_sequence)
        for run in page.runs
        if run.first_sequence < end
    )
    return BrowsePage(runs, page.next_sequence)


def _ends(machine: GroupMachine, queue: int, next_sequence: int, count: int) -> tuple[Run, ...]:
    """Up to `count` ready messages from the first on, and those among the last `count` sequences."""
    runs: tuple[Run, ...] = ()
    start = 0
    for place in (0, next_sequence - count) if count else ():
        page = queries.browse(machine, queue, max(place, start), count)
        if isinstance(page, Refused):
            return ()
        runs += page.runs
        start = max((run.first_sequence + run.count for run in page.runs), default=next_sequence)
    return runs
