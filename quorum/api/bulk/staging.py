"""The part of quorum.v1.Bulk about staging: batches written in parts and published at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from functools import partial

from fifo import commands as c
from fifo.commands import UNKNOWN
from fifo.effects import Ok, Published, Reply
from fifo.limits import PRODUCTION
from fifo.staging import LAST_BATCH, PART_BYTES
from quorum.api import status
from quorum.api.bulk.calls import BulkCalls, expected, index_of, is_lost, load, retry_until_answered
from quorum.api.grpc.handlers import Context, is_outdated, unary
from quorum.api.hub.filters import kept_fields, ordered_by
from quorum.api.hub.hub import Hub
from quorum.api.owners import client_address, owner_of
from quorum.api.security.access import USER, denied, limits_of_user
from quorum.catalog.queues import CatalogQueue
from quorum.node.queries import StagedOwner, StagedParts
from quorum.node.wire import batches
from quorum.v1 import bulk_pb2 as pb
from quorum_selectors.known_fields import KeptFields

AHEAD = 4
"""Unanswered chunks of one call."""
MAX_CHUNK = (1 << 32) - 1


class StagingCalls(BulkCalls):
    """Staging calls; BulkService has the others."""

    @unary
    async def Stage(
        self, request_iterator: AsyncIterator[pb.StageRequest], context: Context
    ) -> pb.StageResponse:
        first = await anext(aiter(request_iterator), None)
        if first is None:
            raise status.invalid("bad_argument", "no request; the first one names the queue and the part")
        part = _Part(self._hub, await self._queue(first.queue), first, client_address(context.peer()))
        await part.add(first.arrow)
        async for request in request_iterator:
            if request.queue or request.producer or request.batch or request.part or request.first_chunk:
                raise status.invalid("bad_argument", "only the first request names the part")
            await part.add(request.arrow)
        await part.finish()
        return pb.StageResponse(
            rows=part.rows,
            size_bytes=part.size_bytes,
            next_chunk=part.next_chunk,
            index=await index_of(self._hub, part.group),
        )

    @unary
    async def Publish(self, request: pb.PublishStagedRequest, context: Context) -> pb.PublishStagedResponse:
        _check_named(request.producer, request.batch, [each.part for each in request.parts])
        queue = await self._queue(request.queue)
        parts = tuple((each.part, each.rows) for each in request.parts if each.rows)  # no rows: never staged
        owner = owner_of(context.peer())
        command = c.PublishStaged(queue.id, request.producer, request.batch, parts, owner, request.staged_to)
        made = await retry_until_answered(self._hub, queue.group, command, Published)
        return pb.PublishStagedResponse(
            first_sequence=made.first_sequence,
            count=made.count,
            is_duplicate=made.is_duplicate,
            index=await index_of(self._hub, queue.group),
        )

    @unary
    async def Discard(self, request: pb.DiscardStagedRequest, context: Context) -> pb.DiscardStagedResponse:
        _check_named(request.producer, request.batch, request.parts)
        queue = await self._queue(request.queue)
        if request.forget:
            await self._check_owner(queue, request.producer, owner_of(context.peer()))
        parts = tuple(request.parts) or await self._staged(queue, request.producer, request.batch)
        if not parts and not request.forget:
            return pb.DiscardStagedResponse()
        command = c.DiscardStaged(queue.id, request.producer, request.batch, parts, request.forget)
        return pb.DiscardStagedResponse(
            rows=(await retry_until_answered(self._hub, queue.group, command, Ok)).count
        )

    async def _check_owner(self, queue: CatalogQueue, producer: str, owner: int) -> None:
        """Refuse to forget a producer with which another user has published: a repeat of its last batch would be
        published twice. An administrator may."""
        user = USER.get()
        if user is None or user.administers:
            return
        found = await self._hub.requests.query_current(StagedOwner(queue.group, queue.id, producer))
        if found not in (UNKNOWN, owner):
            raise denied(
                "not_permitted",
                f"another user has published with the producer {producer[:40]!r}; only this user or an administrator "
                "may make the queue forget it",
                right="administer",
                name="",
            )

    async def _staged(self, queue: CatalogQueue, producer: str, batch: int) -> tuple[bytes, ...]:
        """Return the names of the batch's current parts. A command with these names drops no part that is staged later,
        even if the command arrives late or is repeated."""

        return await self._hub.requests.query_current(StagedParts(queue.group, queue.id, producer, batch))


class _Part:
    """A part during its upload. Chunks are sent in order, some before the answers to earlier ones."""

    def __init__(self, hub: Hub, queue: CatalogQueue, request: pb.StageRequest, address: str) -> None:
        """StatusError if the request names no part."""
        _check_named(request.producer, request.batch, [request.part])
        self._hub = hub
        self._address = address
        self._queue = queue
        self._request = request
        self.next_chunk = request.first_chunk
        self._under_way: deque[tuple[c.Stage, bytes, asyncio.Future[Reply | None]]] = deque()
        self.rows = 0
        self.size_bytes = 0

    @property
    def group(self) -> int:
        return self._queue.group

    async def add(self, block: bytes) -> None:
        """Stage one block; do nothing if it is empty."""
        if not block:
            return
        arrow_in = await load("arrow_in")
        kept, max_field_bytes = kept_fields(self._hub.catalog, self._queue)
        limits = replace(limits_of_user(self._hub.limits), max_messages=arrow_in.CHUNK_ROWS)
        chunks = arrow_in.chunks(block)
        while True:
            step = partial(_next_checked, chunks, limits, kept, max_field_bytes, self._queue)
            checked = await self._hub.workers.stage(self._address, step)
            if checked is None:
                return
            await self._send(checked)

    async def _send(self, checked: batches.CheckedBatch) -> None:
        if self.next_chunk > MAX_CHUNK:
            raise status.invalid("bad_argument", f"chunk {self.next_chunk}; allowed: 0..{MAX_CHUNK}")
        command = c.Stage(
            self._queue.id,
            self._request.producer,
            self._request.batch,
            self._request.part,
            self.next_chunk,
            checked.count,
            checked.size_bytes,
            checked.ttl_ms,
            checked.ttls_ms,
            checked.columns,
            checked.priorities,
            checked.group_keys,
        )
        self.next_chunk += 1
        self.size_bytes += checked.size_bytes
        await self._submit(command, checked.data)
        while len(self._under_way) > AHEAD:
            await self._await_first()

    async def finish(self) -> None:
        while self._under_way:
            await self._await_first()

    async def _submit(self, command: c.Stage, data: bytes) -> None:
        future = await self._hub.own_session.send(self._queue.group, command, data)
        self._under_way.append((command, data, future))

    async def _await_first(self) -> None:
        """Wait for the oldest chunk. If its answer was lost, so were those of all chunks before the next session: send
        all of them again, in order. The queue drops a chunk that it has."""
        try:
            reply = await self._hub.own_session.sent(self._queue.group, self._under_way[0][2])
        except status.StatusError as error:
            if is_lost(error):
                lost = list(self._under_way)
                self._under_way.clear()
                for command, data, _ in lost:
                    await self._submit(command, data)
                return
            if is_outdated(self._hub, self._queue, error):
                raise status.of_ended("outdated") from error
            raise
        self._under_way.popleft()
        self.rows = expected(reply, Ok).count


def _next_checked(
    chunks: Iterator[tuple[bytes, int]],
    limits: batches.BatchLimits,
    kept: KeptFields | None,
    max_field_bytes: int,
    queue: CatalogQueue,
) -> batches.CheckedBatch | None:
    """Return the next chunk, checked like a publish; None at the end. Runs in a thread."""
    chunk = next(chunks, None)
    if chunk is None:
        return None
    return batches.check(chunk[0], limits, kept, max_field_bytes, **ordered_by([queue]))


def _check_named(producer: str, batch: int, parts: Sequence[bytes]) -> None:
    """Refuse values that have no wire form or exceed a limit, before they reach the node."""
    if not 0 < len(producer.encode()) <= c.MAX_NAME_BYTES:
        raise status.invalid(
            "bad_argument", f"a producer's name has 1..{c.MAX_NAME_BYTES} bytes, not {producer[:40]!r}"
        )
    if batch > LAST_BATCH:
        raise status.invalid("bad_argument", f"batch {batch}; allowed: 0..{LAST_BATCH}")
    if len(parts) > PRODUCTION.staged_parts:
        raise status.invalid("limit", f"{len(parts)} parts; allowed: {PRODUCTION.staged_parts}")
    for part in parts:
        if len(part) != PART_BYTES:
            raise status.invalid("bad_argument", f"a part of {len(part)} bytes; allowed: {PART_BYTES}")
