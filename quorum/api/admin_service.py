"""quorum.v1.Admin: queues and the cluster; members are in member_service.py, policies in policy_service.py."""

from __future__ import annotations

import asyncio
import heapq
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple
from functools import partial
from operator import attrgetter

import grpc

from fifo import commands as c
from fifo.effects import Ok
from quorum.api import status
from quorum.api.filters import selector_text
from quorum.api.handlers import unary, unary_once
from quorum.api.hub import Hub
from quorum.api.member_service import MemberService
from quorum.api.policy_service import PolicyService, argument, set_arguments, show_policy
from quorum.catalog.arguments import check_queue_name, check_size, effective_config
from quorum.catalog.commands import NO_QUEUE, DeclareQueue, RemoveQueue
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.queues import CatalogQueue
from quorum.config import NodeConfig
from quorum.log.record import crc32c
from quorum.node.member import Member
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.v1 import admin_pb2 as pb
from quorum.v1 import admin_pb2_grpc

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LISTED_BYTES = 3 << 20
"""Of one answer with queues, or one queue: gRPC's clients take 4 MiB where they are told nothing."""
PART_QUEUES, PART_BLOCKS = 200, 5_000
"""Queues whose counts are asked for in one question, and blocks of messages in them: some milliseconds."""


PART_CONSUMERS, PART_FILTER_BYTES = 1_000, 256 << 10
"""Consumers of one answer, and bytes of their filters, or one filter."""


class AdminService(MemberService, PolicyService, admin_pb2_grpc.AdminServicer):
    def __init__(self, hub: Hub, config: NodeConfig) -> None:
        self._hub = hub
        self._config = config
        self._hashing = asyncio.Lock()
        """A hash takes a group's whole state: one at a time, each in a step of its own."""

    @unary_once
    async def DeclareQueue(
        self,
        request: pb.DeclareQueueRequest,
        context: grpc.aio.ServicerContext[pb.DeclareQueueRequest, pb.DeclareQueueResponse],
    ) -> pb.DeclareQueueResponse:
        arguments = {name: argument(name, value) for name, value in request.arguments.items()}
        effective_config(request.queue, arguments)
        if self._hub.member.catalog.queue(request.queue) is None:
            check_size(arguments)
        pairs = tuple(sorted(arguments.items()))
        reply = await self._hub.change(lambda catalog: DeclareQueue(request.queue, pairs, catalog.removals))
        queue = await self._hub.queue(request.queue)
        await self._hub.await_queue(queue.group, queue.id, present=True)
        assert isinstance(reply, Ok)
        return pb.DeclareQueueResponse(created=bool(reply.count))

    @unary
    async def DeleteQueue(
        self,
        request: pb.DeleteQueueRequest,
        context: grpc.aio.ServicerContext[pb.DeleteQueueRequest, pb.DeleteQueueResponse],
    ) -> pb.DeleteQueueResponse:
        check_queue_name(request.queue)
        queue = await self._meant(request)
        total = await self._hub.ask(lambda member: _total(member, queue), queue.group)
        if await self._hub.change(partial(_removal, name=request.queue, meant=request.id)) is None:
            raise status.no_queue(request.queue, request.id)
        await self._hub.await_queue(queue.group, queue.id, present=False)
        return pb.DeleteQueueResponse(message_count=total)

    @unary
    async def PurgeQueue(
        self,
        request: pb.PurgeQueueRequest,
        context: grpc.aio.ServicerContext[pb.PurgeQueueRequest, pb.PurgeQueueResponse],
    ) -> pb.PurgeQueueResponse:
        if request.before_sequence and not request.id:
            text = f"before_sequence {request.before_sequence} without an id; give the id of the queue that it is of"
            raise status.invalid("bad_argument", text)
        queue = await self._meant(request)
        before = request.before_sequence or await self._hub.ask_now(
            lambda member: _next_sequence(member, queue), (queue.group,)
        )
        reply = await self._hub.call(queue.group, c.Purge(queue.id, before))
        assert isinstance(reply, Ok)
        return pb.PurgeQueueResponse(message_count=reply.count)

    async def _meant(self, request: pb.DeleteQueueRequest | pb.PurgeQueueRequest) -> CatalogQueue:
        """The queue of this name and id; NOT_FOUND where the name belongs to another one."""
        queue: CatalogQueue | None = await self._hub.queue(request.queue)
        if queue is not None and request.id not in (0, queue.id):  # perhaps this node is behind
            queue = await self._hub.ask_now(
                lambda member: member.catalog.queue(request.queue), (SYSTEM_GROUP,)
            )
        if queue is None or request.id not in (0, queue.id):
            raise status.no_queue(request.queue, request.id)
        return queue

    @unary
    async def ListQueues(
        self,
        request: pb.ListQueuesRequest,
        context: grpc.aio.ServicerContext[pb.ListQueuesRequest, pb.ListQueuesResponse],
    ) -> pb.ListQueuesResponse:
        response = pb.ListQueuesResponse()
        known = await self._hub.ask_now(lambda member: member.catalog.queues(), (SYSTEM_GROUP,))
        found = await asyncio.to_thread(_page, known, request)
        if 0 < request.limit < len(found):
            del found[request.limit :]
            response.next_after = found[-1].name
        at, left = 0, LISTED_BYTES
        while at < len(found) and left > 0:
            part = found[at : at + PART_QUEUES]
            infos = await self._hub.ask_now(partial(_infos, queues=part), {each.group for each in part})
            for queue, info in zip(part, infos, strict=False):
                at += 1
                left -= self._show(response, queue, info)
                if left <= 0:
                    break
        if at < len(found):
            response.next_after = found[at - 1].name
        return response

    def _show(self, response: pb.ListQueuesResponse, queue: CatalogQueue, info: pb.QueueInfo | None) -> int:
        """Returns how many bytes that took."""
        if info is None:
            return 0
        show_policy(info, self._hub.member.catalog.effective(queue))
        response.queues.append(info)
        size: int = info.ByteSize()
        return size

    @unary_once
    async def DescribeQueue(
        self,
        request: pb.DescribeQueueRequest,
        context: grpc.aio.ServicerContext[pb.DescribeQueueRequest, pb.DescribeQueueResponse],
    ) -> pb.DescribeQueueResponse:
        queue = await self._hub.ask_now(lambda member: member.catalog.queue(request.queue), (SYSTEM_GROUP,))
        if queue is None:
            raise status.no_queue(request.queue)
        response = await self._hub.ask_now(
            partial(_description, queue=queue, after=request.consumers_after), (queue.group,)
        )
        if response is None:
            raise status.no_queue(request.queue)
        assert response is not None
        for consumer in response.consumers:
            consumer.selector = selector_text(consumer.filter)
        show_policy(response.queue, self._hub.member.catalog.effective(queue))
        return response

    @unary
    async def ClusterStatus(
        self,
        request: pb.ClusterStatusRequest,
        context: grpc.aio.ServicerContext[pb.ClusterStatusRequest, pb.ClusterStatusResponse],
    ) -> pb.ClusterStatusResponse:
        response = await self._hub.ask(_cluster_status)
        for group in response.groups if request.with_state_hash else ():
            async with self._hashing:
                index, state_hash = await self._hub.ask(partial(_state_hash, group=group.group), group.group)
            group.applied_index, group.state_hash = index, state_hash
        own = self._config.members[self._config.name]
        response.answering_node = response.own.name = self._config.name
        response.own.client_address, response.own.peer_address = own.client, own.peer
        response.resident_bytes = _resident_bytes()
        return response


def _total(member: Member, queue: CatalogQueue) -> int:
    info = member.queue_machine(queue.group).info(queue.id)
    return 0 if info is None else info.total


def _next_sequence(member: Member, queue: CatalogQueue) -> int:
    info = member.queue_machine(queue.group).info(queue.id)
    return 0 if info is None else info.next_sequence


def _removal(catalog: CatalogMachine, name: str, meant: int) -> RemoveQueue | None:
    """Of the queue that has the name now; of none that will have it later. meant: its id, 0 for any; None where the
    name belongs to another queue."""
    queue = catalog.queue(name)
    found = NO_QUEUE if queue is None else queue.id
    return RemoveQueue(name, found) if meant in (0, found) else None


def _page(queues: list[CatalogQueue], request: pb.ListQueuesRequest) -> list[CatalogQueue]:
    """The queues that are asked for, by name, and one more if there is one."""
    wanted = (each for each in queues if each.name.startswith(request.prefix) and each.name > request.after)
    if request.limit:
        return heapq.nsmallest(request.limit + 1, wanted, key=attrgetter("name"))
    return sorted(wanted, key=attrgetter("name"))


def _infos(member: Member, queues: Sequence[CatalogQueue]) -> list[pb.QueueInfo | None]:
    """What the first of these queues hold, so many as one step has time for; at least one."""
    found: list[pb.QueueInfo | None] = []
    blocks = 0
    for queue in queues:
        blocks += member.queue_machine(queue.group).block_count(queue.id)
        if found and blocks > PART_BLOCKS:
            break
        found.append(_info(member, queue))
    return found


def _info(member: Member, queue: CatalogQueue) -> pb.QueueInfo | None:
    info = member.queue_machine(queue.group).info(queue.id)
    if info is None:
        return None
    answer = pb.QueueInfo(
        name=queue.name,
        id=queue.id,
        group=queue.group,
        leader=member.membership.roster.name_of(member.replicas[queue.group].raft.leader),
        ready=info.ready,
        checked_out=info.checked_out,
        total=info.total,
        consumers=info.consumers,
        first_sequence=info.first_sequence,
        next_sequence=info.next_sequence,
        ready_bytes=info.ready_bytes,
    )
    set_arguments(answer.arguments, queue.arguments)
    return answer


def _description(member: Member, queue: CatalogQueue, after: int) -> pb.DescribeQueueResponse | None:
    info = _info(member, queue)
    if info is None:
        return None
    storage = member.storage(queue.group, queue.id)
    assert storage is not None  # there is such a queue
    response = pb.DescribeQueueResponse(queue=info, storage=pb.StorageInfo(**asdict(storage)))
    size, last = 0, after
    for consumer in member.queue_machine(queue.group).consumers(queue.id):
        if consumer.attach <= after:
            continue
        size += 0 if consumer.group is None else len(consumer.group.selector)
        if len(response.consumers) == PART_CONSUMERS or (response.consumers and size > PART_FILTER_BYTES):
            response.next_consumers_after = last
            break
        last = consumer.attach
        response.consumers.add(
            consumer_tag=consumer.tag,
            node=member.membership.roster.name(consumer.address.node),
            filtered=consumer.group is not None and bool(consumer.group.selector),
            credit=consumer.credit,
            held=consumer.held.total,
            filter=b"" if consumer.group is None else consumer.group.selector,
        )
    return response


def _state_hash(member: Member, group: int) -> tuple[int, int]:
    """(applied index, hash of the group's state there)."""
    replica = member.replicas[group]
    return replica.raft.applied_index, crc32c(replica.machine.snapshot())


def _cluster_status(member: Member) -> pb.ClusterStatusResponse:
    membership = member.membership
    roster = membership.roster
    response = pb.ClusterStatusResponse(standing=membership.standing)
    response.own.id, response.own.incarnation = member.config.name, membership.memory.incarnation
    response.own.known_version = member.versions.known
    for each in sorted(roster.by_id.values(), key=lambda each: each.name):
        info = response.members.add(
            name=each.name,
            client_address=each.client,
            peer_address=each.peer,
            boot=member.leases.heard.get(each.number, (0, 0))[0],
            reachable=member.is_reachable(each.id),
            id=each.id,
            incarnation=each.incarnation,
            drained=each.is_drained,
            joining=each.is_joining,
            replaces=each.replaces,
            known_version=member.versions.known_by(each.id),
        )
        disk = member.disk_monitor.disks.state(each.number, member.now_ms)
        if disk is not None:
            info.disk.CopyFrom(
                pb.Disk(
                    free_bytes=disk.free_bytes,
                    limit_bytes=disk.limit_bytes,
                    low=disk.is_low,
                    full=disk.is_full,
                    slow=disk.is_slow,
                    sync_p99_us=disk.sync_p99_us,
                )
            )
    response.skipped_entries.extend(member.skipped_entries())
    settings = member.leases.settings
    if settings is not None:
        wanted = settings.wanted
        response.lease_times.lease_ms, response.lease_times.leader_fallback_ms = astuple(wanted)
        response.lease_times_settled = settings.is_settled
    for number, replica in member.replicas.items():
        configuration = replica.raft.configuration
        response.groups.add(
            group=number,
            leader=roster.name_of(replica.raft.leader),
            term=replica.raft.term,
            commit_index=replica.raft.commit_index,
            applied_index=replica.raft.applied_index,
            members=roster.names_of(configuration.voters),
            learners=roster.names_of(configuration.learners),
            settled=replica.raft.is_settled,
            healed=member.healer.healed.get(number, 0),
            unreadable=member.healer.lost(number),
            fetching=member.arrivals.missing(number),
            quarantined=replica.raft.quarantine.is_on,
            disputed=replica.disputed,
            version=replica.version,
        )
    return response


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * PAGE_BYTES
