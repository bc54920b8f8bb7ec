"""The part of quorum.v1.Bulk about views. The machines call a view a pin."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fifo import commands as c
from fifo.effects import Ok, Pinned
from quorum.api.bulk.calls import PAGE, BulkCalls, load, query_replica, retry_until_answered, stream_blocks
from quorum.api.bulk.columns import wanted
from quorum.api.bulk.stored_rows import Failures, RowReader
from quorum.api.grpc.handlers import Context, streaming, unary
from quorum.api.hub.filters import SelectorText, kept_fields
from quorum.api.owners import client_address, owner_of
from quorum.catalog.queues import CatalogQueue
from quorum.node.queries import BrowsePinned
from quorum.v1 import bulk_pb2 as pb
from quorum_selectors.compiled import compile_expression
from quorum_selectors.expression import Expression, field_names

DEFAULT_TTL_MS = 3_600_000
SILENCE_S = 2.0
"""A browse without matches reports its position after this time, so that it does not appear to hang."""
NO_END = (1 << 63) - 1


class ViewCalls(BulkCalls):
    """View calls; BulkService has the others."""

    @unary
    async def OpenView(self, request: pb.OpenViewRequest, context: Context) -> pb.View:
        queue = await self._queue(request.queue)
        command = c.Pin(queue.id, request.ttl_ms or DEFAULT_TTL_MS, owner_of(context.peer()))
        made = await retry_until_answered(self._hub, queue.group, command, Pinned)
        return pb.View(
            view=made.pin,
            first_sequence=made.first_sequence,
            end_sequence=made.end_sequence,
            count=made.count,
            index=made.index,
        )

    @unary
    async def CloseView(self, request: pb.CloseViewRequest, context: Context) -> pb.CloseViewResponse:
        queue = await self._queue(request.queue)
        await retry_until_answered(self._hub, queue.group, c.Unpin(queue.id, request.view), Ok)
        return pb.CloseViewResponse()

    @streaming
    async def Browse(self, request: pb.BrowseViewRequest, context: Context) -> AsyncIterator[pb.Block]:
        columns = wanted(request.columns)
        text, owner = SelectorText(request.selector), owner_of(context.peer())
        expression = await self._hub.filters.expression(text, owner)
        queue = await self._queue(request.queue, request.index)
        selector = b""
        if expression is not None and self._keeps_fields_of(queue, expression):
            selector = await self._hub.filters.encoding(text, owner)
        matches = None if expression is None or selector else compile_expression(expression)
        end = min(request.end_sequence or NO_END, NO_END)
        arrow_out = await load("arrow_out")
        ttl_ms = self._hub.catalog.effective(queue).config.message_ttl_ms
        rows = RowReader(self._hub.body_reader(), queue.group)
        made = arrow_out.Blocks(rows, columns, ttl_ms, matches, request.limit or -1)
        start: int | None = request.start_sequence
        loop = self._hub.loop
        heard = loop.time()
        with self._hub.workers.answer(client_address(context.peer()), rows) as answer:
            while start is not None and start < end and made.left:
                count = min(PAGE, made.left) if matches is None and made.left > 0 else PAGE
                found = await query_replica(
                    self._hub,
                    BrowsePinned(
                        queue.group,
                        queue.id,
                        request.view,
                        start,
                        end,
                        count,
                        selector,
                        with_failures="deliveries" in columns.names,
                    ),
                )
                page, failed = found.page, Failures(found.failures)
                async for block in stream_blocks(self._hub, answer, made.feed(page.runs, failed)):
                    yield block
                    heard = loop.time()
                start = page.next_sequence
                if start is not None and loop.time() - heard > SILENCE_S:
                    async for block in stream_blocks(self._hub, answer, made.so_far(start)):
                        yield block
                    heard = loop.time()
            async for block in stream_blocks(self._hub, answer, made.take()):
                yield block

    def _keeps_fields_of(self, queue: CatalogQueue, expression: Expression) -> bool:
        """Whether the queue keeps all fields of the selector, so that the machine can evaluate it."""
        kept, _ = kept_fields(self._hub.catalog, queue)
        return kept is not None and kept.first_not_kept(field_names(expression)) is None
