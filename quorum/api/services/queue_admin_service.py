"""The part of quorum.v1.Admin for queues."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter

from fifo import commands as c
from fifo.effects import Ok
from fifo.versions import OWNED_QUEUES
from quorum.api import status
from quorum.api.grpc.argument_values import argument, set_arguments
from quorum.api.grpc.handlers import LISTED_BYTES, Context, unary, unary_once
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.hub.filters import selector_text
from quorum.api.hub.hub import Hub
from quorum.api.owners import CALLER
from quorum.api.security.access import USER
from quorum.api.services.policy_service import show_policy
from quorum.catalog import commands as cat
from quorum.catalog.arguments import check_queue_name, check_size, effective_config
from quorum.catalog.commands import NO_QUEUE, RemoveQueue
from quorum.catalog.queues import MAX_QUEUES, CatalogQueue
from quorum.config import NodeConfig
from quorum.node import queries as q
from quorum.node.queries import PART_BLOCKS, PART_QUEUES
from quorum.v1 import admin_pb2 as pb
from quorum.v1 import queue_pb2

REMOVAL_POLL_S = 0.05
"""Interval between looks whether an expired queue has left the catalog. It leaves after a round trip."""
PART_CONSUMERS, PART_FILTER_BYTES = 1_000, 256 << 10
"""Maximum number of consumers in an answer, and bytes of their filters, unless a single filter is larger."""


class QueueAdminService:
    """Methods for queues; AdminService has the others."""

    _hub: Hub
    _config: NodeConfig

    @unary_once
    async def DeclareQueue(
        self, request: pb.DeclareQueueRequest, context: Context
    ) -> pb.DeclareQueueResponse:
        return pb.DeclareQueueResponse(
            created=await self._declare_queue(self._queue_declaration(request.queue, request.arguments))
        )

    def _queue_declaration(self, name: str, values: Mapping[str, queue_pb2.Value]) -> cat.DeclareQueue:
        arguments = {each: argument(each, value) for each, value in values.items()}
        effective_config(name, arguments)
        if self._hub.catalog.queue(name) is None:
            check_size(arguments)
        allowed = self._config.max_queues or MAX_QUEUES
        declaration = cat.DeclareQueue(name, tuple(sorted(arguments.items())), max_queues=allowed)
        user = USER.get()
        if user is None or self._hub.published.version < OWNED_QUEUES:
            return declaration
        half = (min(allowed, MAX_QUEUES) + 1) // 2
        return replace(declaration, owner=user.name, max_owned=self._config.max_queues_per_user or half)

    async def _declare_queue(self, declaration: cat.DeclareQueue) -> bool:
        """Return whether the queue was created, once its group has it."""
        while True:
            reply = await self._hub.own_session.change(
                lambda catalog: replace(declaration, seen=catalog.removals)
            )
            assert isinstance(reply, Ok)
            try:
                queue = await self._hub.requests.queue(declaration.name)
                await self._hub.requests.await_queue(queue.group, queue.id, present=True)
            except status.StatusError as error:
                if error.status.code != status.Code.NOT_FOUND:
                    raise
                if reply.count:
                    break  # it was declared, and another client has deleted it since
                continue  # it existed, and has expired or was deleted since
            if reply.count or not await self._has_expired(queue):
                break
        return bool(reply.count)

    async def _has_expired(self, queue: CatalogQueue) -> bool:
        """Tell the group of a queue that was declared again that the queue is used, if it may expire. Return whether it
        has expired; then it is no longer in the catalog."""
        if self._hub.catalog.effective(queue).config.expires_ms < 0:
            return False
        try:
            await self._hub.own_session.call(queue.group, c.UseQueue(queue.id))
        except status.StatusError as error:
            if error.status.code != status.Code.NOT_FOUND:
                raise
        else:
            return False
        while (known := (await self._hub.requests.current_catalog()).queue(queue.name)) is not None:
            if known.id != queue.id:
                break
            await asyncio.sleep(REMOVAL_POLL_S)
        return True

    @unary
    async def DeleteQueue(self, request: pb.DeleteQueueRequest, context: Context) -> pb.DeleteQueueResponse:
        check_queue_name(request.queue)
        queue = await self._meant(request)
        counts = await self._hub.requests.query(q.QueueCounts(queue.group, queue.id))
        if (
            await self._hub.own_session.change(partial(_removal, name=request.queue, meant=request.id))
            is None
        ):
            raise status.no_queue(request.queue, request.id)
        await self._hub.requests.await_queue(queue.group, queue.id, present=False)
        return pb.DeleteQueueResponse(message_count=0 if counts is None else counts.total)

    @unary
    async def PurgeQueue(self, request: pb.PurgeQueueRequest, context: Context) -> pb.PurgeQueueResponse:
        if request.before_sequence and not request.id:
            text = f"before_sequence {request.before_sequence} without an id; give the id of its queue"
            raise status.invalid("bad_argument", text)
        queue = await self._meant(request)
        before = request.before_sequence
        if not before:
            counts = await self._hub.requests.query_current(q.QueueCounts(queue.group, queue.id))
            before = 0 if counts is None else counts.next_sequence
        command, count = c.Purge(queue.id, before, request.dead_only), 0
        while True:  # one command purges a bounded number of blocks
            reply = await self._hub.own_session.call(queue.group, command)
            assert isinstance(reply, Ok)
            if not reply.count:
                return pb.PurgeQueueResponse(message_count=count)
            count += reply.count

    async def _meant(self, request: pb.DeleteQueueRequest | pb.PurgeQueueRequest) -> CatalogQueue:
        """Return the queue of this name and id (0: any id). Raises NOT_FOUND if there is none."""
        queue: CatalogQueue | None = await self._hub.requests.queue(request.queue)
        if queue is not None and request.id not in (0, queue.id):  # this node may be behind
            queue = (await self._hub.requests.current_catalog()).queue(request.queue)
        if queue is None or request.id not in (0, queue.id):
            raise status.no_queue(request.queue, request.id)
        return queue

    @unary
    async def ListQueues(self, request: pb.ListQueuesRequest, context: Context) -> pb.ListQueuesResponse:
        response = pb.ListQueuesResponse()
        known = await self._hub.requests.current_catalog()
        found = await asyncio.to_thread(_page, known.queues(), request)
        if 0 < request.limit < len(found):
            del found[request.limit :]
            response.next_after = found[-1].name
        at, left = 0, LISTED_BYTES
        while at < len(found) and left > 0:
            part = tuple(found[at : at + PART_QUEUES])
            shown = await self._hub.requests.query_current(q.ListQueues(part, PART_BLOCKS))
            for queue, each in zip(part, shown, strict=False):
                at += 1
                steps = known.policies.steps_for(queue)  # with hostile patterns some milliseconds a queue
                left -= await self._hub.turns.run(
                    CALLER.get(), steps, partial(self._show, response, queue, each)
                )
                if left <= 0:
                    break
        if at < len(found):
            response.next_after = found[at - 1].name
        return response

    def _show(
        self, response: pb.ListQueuesResponse, queue: CatalogQueue, queue_status: q.QueueStatus | None
    ) -> int:
        """Return the number of bytes added."""
        if queue_status is None:
            return 0
        info = self._info(queue, queue_status)
        response.queues.append(info)
        size: int = info.ByteSize()
        return size

    @unary_once
    async def DescribeQueue(
        self, request: pb.DescribeQueueRequest, context: Context
    ) -> pb.DescribeQueueResponse:
        queue = (await self._hub.requests.current_catalog()).queue(request.queue)
        if queue is None:
            raise status.no_queue(request.queue)
        found = await self._hub.requests.query_current(
            q.DescribeQueue(queue.group, queue.id, request.consumers_after, PART_CONSUMERS, PART_FILTER_BYTES)
        )
        if found is None:
            raise status.no_queue(request.queue)
        response = pb.DescribeQueueResponse(
            queue=self._info(queue, found.status), storage=pb.StorageInfo(**asdict(found.storage))
        )
        for consumer in found.consumers:
            response.consumers.add(
                consumer_tag=consumer.tag,
                node=consumer.node,
                filtered=bool(consumer.selector),
                credit=consumer.credit,
                checked_out=consumer.checked_out,
                filter=consumer.selector,
                priority=consumer.priority,
                active=consumer.is_active,
                timed_out=consumer.timed_out,
                selector=selector_text(consumer.selector),
            )
        if found.consumers_after is not None:
            response.next_consumers_after = found.consumers_after
        return response

    def _info(self, queue: CatalogQueue, queue_status: q.QueueStatus) -> pb.QueueInfo:
        found = queue_status.info
        info = pb.QueueInfo(
            name=queue.name,
            id=queue.id,
            group=queue.group,
            leader=queue_status.leader,
            ready=found.ready,
            checked_out=found.checked_out,
            delayed=found.delayed,
            total=found.total,
            consumers=found.consumers,
            first_sequence=found.first_sequence,
            next_sequence=found.next_sequence,
            ready_bytes=found.ready_bytes,
            totals=pb.QueueTotals(**asdict(found.totals)),
            ready_by_priority=[
                pb.PriorityCount(priority=priority, ready=count) for priority, count in found.ready_levels
            ],
            held_groups=found.held_groups,
            dead=found.dead,
            dead_letter_problem=found.dead_letter_problem,
            owner=queue.owner,
        )
        set_arguments(info.arguments, queue.arguments)
        show_policy(info, self._hub.catalog.effective(queue))
        return info


def _removal(catalog: CatalogView, name: str, meant: int) -> RemoveQueue | None:
    """Return the command that removes the queue that has the name now, but no later queue of that name.

    meant: the expected queue id, 0 for any. None if no queue of that name has this id.
    """
    queue = catalog.queue(name)
    found = NO_QUEUE if queue is None else queue.id
    return RemoveQueue(name, found) if meant in (0, found) else None


def _page(queues: list[CatalogQueue], request: pb.ListQueuesRequest) -> list[CatalogQueue]:
    """Return the requested queues, sorted by name; if there are more than the limit, one more. limit 0: all."""
    wanted = (each for each in queues if each.name.startswith(request.prefix) and each.name > request.after)
    if request.limit:
        return heapq.nsmallest(request.limit + 1, wanted, key=attrgetter("name"))
    return sorted(wanted, key=attrgetter("name"))
