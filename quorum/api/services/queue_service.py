"""quorum.v1.Queue: Session, Publish, Get, FindLeader, Browse."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator

from fifo.effects import Deliver, Refused, Run
from fifo.results import BrowsePage
from quorum.api import status
from quorum.api.grpc.calls import Requests
from quorum.api.grpc.handlers import Context, streaming, unary
from quorum.api.hub import deliveries
from quorum.api.hub.filters import kept_fields, ordered_by
from quorum.api.hub.hub import Hub
from quorum.api.owners import client_address, owner_of
from quorum.api.security.access import limits_of_user
from quorum.api.services.request_filters import filter_of
from quorum.api.services.session_service import SessionCall
from quorum.catalog.queues import CatalogQueue
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import BrowseReady, LeaderEndpoint, UpcomingMessages
from quorum.node.wire import batches
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import queue_pb2 as pb
from quorum.v1 import queue_pb2_grpc
from quorum_selectors.compiled import compile_expression
from quorum_selectors.expression import Expression

BROWSE_MESSAGES = 1_000
"""Maximum number of ready messages in the answer to one query of a browse."""
MAX_GET = 1_000
FEW_MESSAGES = 256
"""Messages of a publish whose bodies are added up to find the bytes of their properties."""
RESPONSE_BYTES = 1 << 20
"""Approximate maximum bytes of one response of a browse, unless a single message is larger."""
GET_BYTES = 3 << 20
"""Approximate maximum bytes of the messages that a get takes, unless a single message is larger. gRPC clients accept
4 MiB by default. Other gets may take messages between the check of the sizes and the get, which then takes different
messages; therefore the limit is far below the largest response (FRAME_BYTES)."""
GIVE_WAY_S = 0.02
"""A browse that finds no match for this time releases its thread to other calls."""
BROWSE_CACHED_BYTES = 1 << 20
"""Maximum bytes of parsed batches in the cache of one browse."""
MESSAGE_BYTES = 32
"""Approximate bytes of a stored message in a response, without body and properties."""


class QueueService(queue_pb2_grpc.QueueServicer):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def Session(self, request_iterator: Requests, context: Context) -> None:
        await SessionCall(self._hub).run(request_iterator, context)

    @unary
    async def Publish(self, request: pb.PublishRequest, context: Context) -> pb.PublishResponse:
        return await self._publish(request, context, limits_of_user(self._hub.limits))

    @unary
    async def publish_stored(self, request: pb.PublishRequest, context: Context) -> pb.PublishResponse:
        """`Publish` for messages that a queue of this cluster has: their `user_id` is not checked again."""
        return await self._publish(request, context, self._hub.limits)

    async def _publish(
        self, request: pb.PublishRequest, context: Context, limits: BatchLimits
    ) -> pb.PublishResponse:
        queue = await self._hub.requests.queue(request.queue)
        kept, max_bytes = kept_fields(self._hub.catalog, queue)

        def check() -> batches.CheckedBatch:
            data = _as_batch(request).SerializeToString(deterministic=True)
            return batches.check(data, limits, kept, max_bytes, **ordered_by([queue]))

        owner = owner_of(context.peer())
        checked = await self._hub.turns.run(owner, _check_steps(request), check)
        if not self._hub.published.may_deliver(queue.group):
            # what fails before it is sent is refused for certain
            await self._hub.requests.await_served(queue.group)
        command = checked.command(queue.id, 0, 0, checked.columns)
        await self._hub.own_session.publish(queue.group, command, checked.data)
        return pb.PublishResponse(count=checked.count)

    @unary
    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        queue = await self._hub.requests.queue(request.queue)
        count = request.count or 1
        if count > MAX_GET:
            raise status.invalid("bad_argument", f"get {count} messages; allowed: 1..{MAX_GET}")
        count = await self._fitting(queue, count)
        if not await self._hub.published.await_lease(queue.group):
            raise status.of_call_ended("node_down")
        deliver = await self._hub.own_session.get(queue.group, queue.id, count)
        response = pb.GetResponse()
        if deliver is not None:
            if not self._hub.published.may_deliver(queue.group):
                raise status.of_call_ended("node_down")
            await self._fill(response, queue.group, deliver)
        return response

    async def _fill(self, response: pb.GetResponse, group: int, deliver: Deliver) -> None:
        failed = dict(deliver.delivery_counts)
        number = 0
        async for message, _ in self._hub.requests.readable(_stored(self._hub.reader, group, deliver.runs)):
            message.redelivered = bool(deliver.redelivered >> number & 1)
            message.delivery_count = failed.get(number, 0)
            response.messages.append(message)
            number += 1

    async def _fitting(self, queue: CatalogQueue, count: int) -> int:
        """Return the number of messages, at most `count`, that a get can take now and send in one response; at least 1.

        A get settles the messages that it takes. A response that is too large to be sent, or a body that cannot be read
        here, would therefore lose them.
        """
        page = await self._hub.requests.query(UpcomingMessages(queue.group, queue.id, count))
        if isinstance(page, Refused):
            return count
        size = 0
        found = 0
        async for _, weight in self._hub.requests.readable(_stored(self._hub.reader, queue.group, page.runs)):
            size += weight
            if found and size > GET_BYTES:
                return found
            found += 1
        return count

    @unary
    async def FindLeader(self, request: pb.FindLeaderRequest, context: Context) -> pb.FindLeaderResponse:
        queue = await self._hub.requests.queue(request.queue)
        leader = await self._hub.requests.query(LeaderEndpoint(queue.group))
        if leader is None:
            return pb.FindLeaderResponse()
        return pb.FindLeaderResponse(node=leader.id, address=leader.address)

    @streaming
    async def Browse(self, request: pb.BrowseRequest, context: Context) -> AsyncIterator[pb.BrowseResponse]:
        queue = await self._hub.requests.queue(request.queue)
        expression = await self._hub.filters.expression(filter_of(request), owner_of(context.peer()))
        is_wanted = _every if expression is None else _wanted(expression)
        left = request.limit or -1

        def asked(start: int) -> BrowseReady:
            count = min(BROWSE_MESSAGES, left) if expression is None and left > 0 else BROWSE_MESSAGES
            return BrowseReady(queue.group, queue.id, start, count, delayed=request.delayed)

        page = await self._hub.requests.query_current(asked(request.start_sequence))
        reader = self._hub.body_reader(BROWSE_CACHED_BYTES)
        with self._hub.workers.answer(client_address(context.peer()), reader) as answer:
            while True:
                if isinstance(page, Refused):
                    raise status.StatusError(status.of_refused(page))
                due_times = _due_times(page)
                steps = _browsed(reader, queue.group, page.runs, is_wanted, left)
                while (step := await answer.step(steps, _size_of)) is not None:
                    if isinstance(step, BodyUnreadable):
                        await self._hub.requests.repair(step)
                    elif step.messages:
                        for message in step.messages if due_times else ():
                            message.due_time = due_times[message.sequence]
                        yield step
                        left -= len(step.messages)
                if left == 0 or page.next_sequence is None:
                    return
                page = await self._hub.requests.query(asked(page.next_sequence))


def _due_times(page: BrowsePage) -> dict[int, int]:
    """The due times of a page of delayed messages, by sequence."""
    sequences = [run.first_sequence + place for run in page.runs for place in range(run.count)]
    return dict(zip(sequences, page.due_times_ms, strict=True)) if page.due_times_ms else {}


def _check_steps(request: pb.PublishRequest) -> int:
    """`batches.check_steps` of the request's batch. The bodies of many messages count, too, because adding them up
    takes time itself."""
    size = request.ByteSize()
    if len(request.messages) <= FEW_MESSAGES:
        size -= sum([len(each.body) for each in request.messages])
    return batches.steps_of(size)


def _as_batch(request: pb.PublishRequest) -> pb.MessageBatch:
    batch = pb.MessageBatch(
        count=len(request.messages), bodies=b"".join(each.body for each in request.messages)
    )
    end = 0
    for each in request.messages:
        end += len(each.body)
        batch.body_ends.append(end)
    if any(each.HasField("properties") for each in request.messages):
        batch.properties.extend(each.properties for each in request.messages)
    return batch


def _size_of(step: pb.BrowseResponse | BodyUnreadable) -> int:
    return 0 if isinstance(step, BodyUnreadable) else step.ByteSize()


IsWanted = Callable[[pb.Properties | None], bool]


def _every(properties: pb.Properties | None) -> bool:
    return True


def _wanted(expression: Expression) -> IsWanted:
    """Return a function that tells whether a message with these properties matches."""
    matches, fields = compile_expression(expression), batches.FieldReader(None)
    return lambda properties: matches(fields.read(properties or pb.Properties())) is True


def _browsed(
    reader: deliveries.BodyReader, group: int, runs: tuple[Run, ...], is_wanted: IsWanted, limit: int
) -> Iterator[pb.BrowseResponse | BodyUnreadable]:
    """Yield responses with the wanted messages, at most `limit` messages; below 0: all.

    Runs in a thread. A response without messages only releases the thread to other calls; it is not sent.
    """
    response, size = pb.BrowseResponse(), 0
    begun = time.monotonic()
    for run in runs:
        for item in _stored(reader, group, (run,), is_wanted):
            if isinstance(item, BodyUnreadable):
                yield item
                continue
            message, weight = item
            if size and size + weight > RESPONSE_BYTES:
                yield response
                response, size = pb.BrowseResponse(), 0
            response.messages.append(message)
            size += weight
            limit -= 1
            if limit == 0:
                yield response
                return
        if not size and time.monotonic() - begun > GIVE_WAY_S:
            yield pb.BrowseResponse()
            begun = time.monotonic()
    if size:
        yield response


def _stored(
    reader: deliveries.BodyReader, group: int, runs: tuple[Run, ...], is_wanted: IsWanted = _every
) -> Iterator[tuple[pb.StoredMessage, int] | BodyUnreadable]:
    """Yield each wanted message with its approximate bytes in a response. Bodies are read on demand. Properties that
    all messages of a batch share are evaluated once for each run."""
    for run in runs:
        sequence = run.first_sequence
        for part in reader.parts(group, run):
            if isinstance(part, BodyUnreadable):
                yield part
                continue
            batch, first, count = part
            if not batch.each and not is_wanted(batch.shared):
                sequence += count
                continue
            for ordinal in range(first, first + count):
                if batch.each and not is_wanted(batch.each[ordinal]):
                    sequence += 1
                    continue
                body = batch.bodies[batch.start(ordinal) : batch.ends[ordinal]]
                properties = batch.each[ordinal] if batch.each else batch.shared
                message = pb.Message(body=body, properties=properties)
                weight = batch.weight(ordinal + 1) - batch.weight(ordinal) + MESSAGE_BYTES
                yield pb.StoredMessage(message=message, sequence=sequence), weight
                sequence += 1
