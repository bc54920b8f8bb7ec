"""quorum.v1.Admin: queues and the cluster; members are in member_service.py, policies in policy_service.py."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import NoReturn

import grpc

from fifo import commands as c
from fifo.effects import Ok
from quorum.api import status
from quorum.api.filters import selector_text
from quorum.api.hub import Hub
from quorum.api.member_service import MemberService
from quorum.api.policy_service import PolicyService, argument, set_arguments, show_policy
from quorum.catalog.arguments import ArgumentError, check_queue_name, effective_config
from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.catalog.machine import CatalogQueue
from quorum.config import NodeConfig
from quorum.log.record import crc32c
from quorum.node.member import Member
from quorum.node.replica import SYSTEM_GROUP
from quorum.v1 import admin_pb2 as pb
from quorum.v1 import admin_pb2_grpc

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class AdminService(MemberService, PolicyService, admin_pb2_grpc.AdminServicer):
    def __init__(self, hub: Hub, config: NodeConfig) -> None:
        self._hub = hub
        self._config = config

    async def DeclareQueue(
        self,
        request: pb.DeclareQueueRequest,
        context: grpc.aio.ServicerContext[pb.DeclareQueueRequest, pb.DeclareQueueResponse],
    ) -> pb.DeclareQueueResponse:
        try:
            arguments = {name: argument(name, value) for name, value in request.arguments.items()}
            effective_config(request.queue, arguments)
            reply = await self._hub.call(
                SYSTEM_GROUP, DeclareQueue(request.queue, tuple(sorted(arguments.items())))
            )
            queue = await self._hub.queue(request.queue)
            await self._hub.await_queue(queue.group, queue.id, present=True)
        except ArgumentError as error:
            await _abort(context, status.StatusError(status.of_error(error)))
        except status.StatusError as error:
            await _abort(context, error)
        assert isinstance(reply, Ok)
        return pb.DeclareQueueResponse(created=bool(reply.count))

    async def DeleteQueue(
        self,
        request: pb.DeleteQueueRequest,
        context: grpc.aio.ServicerContext[pb.DeleteQueueRequest, pb.DeleteQueueResponse],
    ) -> pb.DeleteQueueResponse:
        try:
            check_queue_name(request.queue)
            queue = await self._hub.queue(request.queue)
            total = await self._hub.ask(lambda member: _total(member, queue))
            await self._hub.call(SYSTEM_GROUP, RemoveQueue(request.queue))
            await self._hub.await_queue(queue.group, queue.id, present=False)
        except ArgumentError as error:
            await _abort(context, status.StatusError(status.of_error(error)))
        except status.StatusError as error:
            await _abort(context, error)
        return pb.DeleteQueueResponse(message_count=total)

    async def PurgeQueue(
        self,
        request: pb.PurgeQueueRequest,
        context: grpc.aio.ServicerContext[pb.PurgeQueueRequest, pb.PurgeQueueResponse],
    ) -> pb.PurgeQueueResponse:
        try:
            queue = await self._hub.queue(request.queue)
            reply = await self._hub.call(queue.group, c.Purge(queue.id))
        except status.StatusError as error:
            await _abort(context, error)
        assert isinstance(reply, Ok)
        return pb.PurgeQueueResponse(message_count=reply.count)

    async def ListQueues(
        self,
        request: pb.ListQueuesRequest,
        context: grpc.aio.ServicerContext[pb.ListQueuesRequest, pb.ListQueuesResponse],
    ) -> pb.ListQueuesResponse:
        try:
            for group in self._hub.member.replicas:
                await self._hub.barrier(group)
            found = await self._hub.ask(
                lambda member: [
                    (queue, _info(member, queue)) for queue in member.catalog.queues(request.prefix)
                ]
            )
        except status.StatusError as error:
            await _abort(context, error)
        catalog = self._hub.member.catalog
        response = pb.ListQueuesResponse()
        for queue, info in found:
            if info is not None:
                show_policy(info, catalog.effective(queue))
                response.queues.append(info)
        return response

    async def DescribeQueue(
        self,
        request: pb.DescribeQueueRequest,
        context: grpc.aio.ServicerContext[pb.DescribeQueueRequest, pb.DescribeQueueResponse],
    ) -> pb.DescribeQueueResponse:
        try:
            await self._hub.barrier(SYSTEM_GROUP)
            queue = await self._hub.queue(request.queue)
            await self._hub.barrier(queue.group)
            response = await self._hub.ask(lambda member: _description(member, queue))
            if response is None:
                raise status.no_queue(request.queue)
        except status.StatusError as error:
            await _abort(context, error)
        assert response is not None
        for consumer in response.consumers:
            consumer.selector = selector_text(consumer.filter)
        show_policy(response.queue, self._hub.member.catalog.effective(queue))
        return response

    async def ClusterStatus(
        self,
        request: pb.ClusterStatusRequest,
        context: grpc.aio.ServicerContext[pb.ClusterStatusRequest, pb.ClusterStatusResponse],
    ) -> pb.ClusterStatusResponse:
        response = await self._hub.ask(lambda member: _cluster_status(member, request.with_state_hash))
        own = self._config.members[self._config.name]
        response.answering_node = response.own.name = self._config.name
        response.own.client_address, response.own.peer_address = own.client, own.peer
        response.resident_bytes = _resident_bytes()
        return response


async def _abort(context: grpc.aio.ServicerContext, error: status.StatusError) -> NoReturn:
    await status.abort(context, error)
    raise AssertionError("abort raises")


def _total(member: Member, queue: CatalogQueue) -> int:
    info = member.queue_machine(queue.group).info(queue.id)
    return 0 if info is None else info.total


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


def _description(member: Member, queue: CatalogQueue) -> pb.DescribeQueueResponse | None:
    info = _info(member, queue)
    if info is None:
        return None
    storage = member.storage(queue.group, queue.id)
    assert storage is not None  # there is such a queue
    response = pb.DescribeQueueResponse(queue=info, storage=pb.StorageInfo(**asdict(storage)))
    for consumer in member.queue_machine(queue.group).consumers(queue.id):
        response.consumers.add(
            consumer_tag=consumer.tag,
            node=member.membership.roster.name(consumer.address.node),
            filtered=consumer.group is not None and bool(consumer.group.selector),
            credit=consumer.credit,
            held=consumer.held.total,
            filter=b"" if consumer.group is None else consumer.group.selector,
        )
    return response


def _cluster_status(member: Member, with_state_hash: bool) -> pb.ClusterStatusResponse:
    membership = member.membership
    roster = membership.roster
    response = pb.ClusterStatusResponse(standing=membership.standing)
    response.own.id, response.own.incarnation = member.config.name, membership.memory.incarnation
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
        )
        disk = member.disk_watch.disks.state(each.number, member.now_ms)
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
            state_hash=crc32c(replica.machine.snapshot()) if with_state_hash else 0,
            healed=member.healer.healed.get(number, 0),
            unreadable=member.healer.lost(number),
            fetching=member.arrivals.missing(number),
            quarantined=replica.raft.quarantine.is_on,
        )
    return response


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * PAGE_BYTES
