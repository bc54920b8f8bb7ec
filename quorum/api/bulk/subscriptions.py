"""The part of quorum.v1.Bulk about subscriptions: durable, named consumers of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from fifo import commands as c
from fifo.effects import Ok, Refused, Reserved, SubscriptionState
from fifo.limits import PRODUCTION
from fifo.results import SubscriptionInfo
from quorum.api import status
from quorum.api.bulk.calls import (
    PAGE,
    BulkCalls,
    endpoints,
    index_of,
    load,
    query_replica,
    repeat_while_lost,
    retry_until_answered,
    stream_blocks,
)
from quorum.api.bulk.columns import wanted
from quorum.api.bulk.stored_rows import Failures, RowReader
from quorum.api.grpc.handlers import Context, streaming, unary
from quorum.api.hub.filters import SelectorText, selector_text
from quorum.api.owners import client_address, owner_of
from quorum.catalog.queues import CatalogQueue
from quorum.node import queries as q
from quorum.v1 import bulk_pb2 as pb

DEFAULT_TIMEOUT_MS = 86_400_000
NO_LIMIT = (1 << 63) - 1
MAX_WAIT_MS = 30_000
SCAN_S = 5.0
"""Time that a Reserve without waiting continues to look for a match, budget after budget."""
POLL_S = 0.02
MOST_POLL_S = 0.25
RELEASE_PAUSE_S = 0.02
STARTS = {pb.OpenSubscriptionRequest.Start.Value(name.upper()): name for name in c.STARTS}
EXPIRIES = {pb.OpenSubscriptionRequest.OnExpiry.Value(name.upper()): name for name in c.ON_EXPIRY}
_EXPIRY: dict[str, pb.OpenSubscriptionRequest.OnExpiry] = {name: number for number, name in EXPIRIES.items()}


class SubscriptionCalls(BulkCalls):
    """Subscription calls; BulkService has the others."""

    @unary
    async def OpenSubscription(
        self, request: pb.OpenSubscriptionRequest, context: Context
    ) -> pb.SubscriptionState:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)
        if request.start not in STARTS or request.on_expiry not in EXPIRIES:
            raise status.invalid(
                "bad_argument", "start or on_expiry has a value that this service does not know"
            )
        owner = owner_of(context.peer())
        selector = await self._hub.filters.encoding_for(queue, SelectorText(request.selector), owner)
        command = c.OpenSubscription(
            queue.id,
            request.subscription,
            selector,
            STARTS[request.start],
            request.timeout_ms or DEFAULT_TIMEOUT_MS,
            EXPIRIES[request.on_expiry],
            owner,
        )

        def make(subscription: SubscriptionInfo | None) -> c.OpenSubscription:
            return replace(command, found=0 if subscription is None else subscription.generation)

        return await self._state(queue, await self._changed(queue, request.subscription, make))

    async def _changed(
        self, queue: CatalogQueue, name: str, make: Callable[[SubscriptionInfo | None], c.Command]
    ) -> SubscriptionState:
        """Return the group's answer to a command built from its subscription; rebuild it if an answer was lost."""
        query = q.FindSubscription(queue.group, queue.id, name)
        return await repeat_while_lost(
            lambda: self._hub.own_session.change_group(query, make), SubscriptionState
        )

    async def _state(self, queue: CatalogQueue, state: SubscriptionState) -> pb.SubscriptionState:
        return pb.SubscriptionState(
            generation=state.generation,
            settled=state.settled,
            last=state.last,
            outstanding=state.outstanding,
            index=await index_of(self._hub, queue.group),
        )

    @unary
    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.Reservation:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)
        if request.wait_ms > MAX_WAIT_MS:
            raise status.invalid("bad_argument", f"wait_ms {request.wait_ms}; allowed: 0..{MAX_WAIT_MS}")
        most = min(request.max_messages or PRODUCTION.max_reserved, PRODUCTION.max_reserved)
        command = c.Reserve(
            queue.id,
            request.subscription,
            request.generation,
            request.after,
            most,
            min(request.max_bytes or NO_LIMIT, NO_LIMIT),
        )
        loop = self._hub.loop
        begun = loop.time()
        deadline = begun + request.wait_ms / 1000
        pause = POLL_S
        is_finished = True
        while True:
            found = await self._hub.requests.query(
                q.PreviewReserve(
                    queue.group, queue.id, request.subscription, request.generation, request.after
                )
            )
            if found.may_reserve and await self._enough(
                queue, found.subscription, min(request.min_messages, most)
            ):
                reply = await retry_until_answered(self._hub, queue.group, command, Reserved)
                if reply.offset != request.after:
                    return await self._reservation(queue, reply)
                is_finished = reply.is_complete
                if not is_finished and loop.time() < max(deadline, begun + SCAN_S):
                    continue
            left = deadline - loop.time()
            if left <= 0:
                if not self._hub.published.may_deliver(
                    queue.group
                ):  # this node may be isolated while the queue has messages
                    raise status.unavailable(
                        "behind", f"this node has lost its lease on group {queue.group}; ask another node"
                    )
                return pb.Reservation(
                    offset=request.after, ready=found.ready, index=found.index, unfinished=not is_finished
                )
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, MOST_POLL_S)

    async def _enough(
        self, queue: CatalogQueue, subscription: SubscriptionInfo | None, wanted_count: int
    ) -> bool:
        """Whether this replica has at least this number of ready messages for the subscription."""
        if wanted_count <= 1 or subscription is None:
            return True
        start, rest = subscription.start_sequence, wanted_count
        while True:
            page = await self._hub.requests.query(
                q.BrowseReady(queue.group, queue.id, start, rest, subscription.selector)
            )
            if isinstance(page, Refused):  # only this replica can no longer use the selector
                return True
            rest -= sum(run.count for run in page.runs)
            if rest <= 0:
                return True
            if page.next_sequence is None:
                return False
            start = page.next_sequence

    async def _reservation(self, queue: CatalogQueue, reply: Reserved) -> pb.Reservation:
        counts = await self._hub.requests.query(q.QueueCounts(queue.group, queue.id))
        return pb.Reservation(
            offset=reply.offset,
            count=reply.count,
            size_bytes=reply.size_bytes,
            ready=0 if counts is None else counts.ready,
            index=reply.index,
        )

    @unary
    async def DescribeReservations(
        self, request: pb.DescribeReservationsRequest, context: Context
    ) -> pb.DescribeReservationsResponse:
        queue = await self._queue(request.queue, request.index)

        found = await self._hub.requests.query(
            q.DescribeSubscription(queue.group, queue.id, request.subscription)
        )
        if found is None:
            raise status.not_found(f"queue {request.queue!r} has no subscription {request.subscription!r}")
        response = pb.DescribeReservationsResponse(
            endpoints=endpoints(found.endpoints, self._own_address),
            subscription=_state_of(found.subscription, found.index),
        )
        for each in found.subscription.reservations:
            if request.after < each.offset <= (request.to or NO_LIMIT):
                response.reservations.add(
                    offset=each.offset,
                    count=each.count,
                    size_bytes=each.size_bytes,
                    opens=each.opens,
                    reserved_ms=each.time_ms,
                    index=each.index,
                )
        return response

    @streaming
    async def ReadReserved(
        self, request: pb.ReadReservedRequest, context: Context
    ) -> AsyncIterator[pb.Block]:
        columns = wanted(request.columns)
        queue = await self._queue(request.queue, request.index)
        arrow_out = await load("arrow_out")
        ttl_ms = self._hub.catalog.effective(queue).config.message_ttl_ms
        rows = RowReader(self._hub.body_reader(), queue.group)
        made = arrow_out.Blocks(rows, columns, ttl_ms)
        first = request.first
        end = first + request.count if request.count else 1 << 32
        with self._hub.workers.answer(client_address(context.peer()), rows) as answer:
            while first < end:
                count = min(PAGE, end - first)
                portion = await query_replica(
                    self._hub,
                    q.ReadReservation(
                        queue.group, queue.id, request.subscription, request.offset, first, count
                    ),
                )
                failures = Failures(portion.delivery_counts, 1 + portion.opens)
                async for block in stream_blocks(self._hub, answer, made.feed(portion.runs, failures)):
                    yield block
                found = sum(run.count for run in portion.runs)
                if found < count and not portion.has_more:
                    break
                first += found
            async for block in stream_blocks(self._hub, answer, made.take()):
                yield block

    @unary
    async def Settle(self, request: pb.SettleRequest, context: Context) -> pb.SubscriptionState:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)
        command = c.SettleReserved(queue.id, request.subscription, request.generation, request.to)
        while True:
            state = await retry_until_answered(self._hub, queue.group, command, SubscriptionState)
            if state.settled >= request.to:
                await self._check_settled(queue, request)
                return await self._state(queue, state)

    async def _check_settled(self, queue: CatalogQueue, request: pb.SettleRequest) -> None:
        """StatusError if the messages were requeued instead. This replica has applied everything that was answered."""
        found = await self._hub.requests.query(
            q.ReadReservation(queue.group, queue.id, request.subscription, request.to, first=0, count=0)
        )
        if isinstance(found, Refused) and found.reason == "released":
            raise status.StatusError(status.of_refused(found))

    @unary
    async def KeepAlive(self, request: pb.KeepAliveRequest, context: Context) -> pb.SubscriptionState:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)
        command = c.KeepSubscription(queue.id, request.subscription, request.generation)
        return await self._state(
            queue, await retry_until_answered(self._hub, queue.group, command, SubscriptionState)
        )

    @unary
    async def ReleaseSubscription(
        self, request: pb.ReleaseSubscriptionRequest, context: Context
    ) -> pb.SubscriptionState:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)

        def make(subscription: SubscriptionInfo | None) -> c.ReleaseSubscription:
            last = None if subscription is None else subscription.last
            return c.ReleaseSubscription(queue.id, request.subscription, request.generation, last)

        while True:
            state = await self._changed(queue, request.subscription, make)
            if not state.outstanding:
                return await self._state(queue, state)
            await asyncio.sleep(RELEASE_PAUSE_S)  # the machine continues by itself

    @unary
    async def DeleteSubscription(
        self, request: pb.DeleteSubscriptionRequest, context: Context
    ) -> pb.DeleteSubscriptionResponse:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)
        subscription = await self._hub.requests.query_current(
            q.FindSubscription(queue.group, queue.id, request.subscription)
        )
        if subscription is not None:
            command = c.DeleteSubscription(queue.id, request.subscription, subscription.generation)
            await retry_until_answered(self._hub, queue.group, command, Ok)
        return pb.DeleteSubscriptionResponse(index=await index_of(self._hub, queue.group))

    @unary
    async def ListSubscriptions(
        self, request: pb.ListSubscriptionsRequest, context: Context
    ) -> pb.ListSubscriptionsResponse:
        queue = await self._queue(request.queue, request.index)

        found = await self._hub.requests.query(q.ListSubscriptions(queue.group, queue.id))
        response = pb.ListSubscriptionsResponse(index=found.index)
        for each in found.subscriptions:
            response.subscriptions.add(
                subscription=each.name,
                state=_state_of(each, found.index),
                filtered=bool(each.selector),
                filter=each.selector,
                selector=selector_text(each.selector),
                start_sequence=each.start_sequence,
                last_seen_ms=each.last_seen_ms,
                timeout_ms=each.timeout_ms,
                on_expiry=_EXPIRY[each.on_expiry],
                reservations=len(each.reservations),
            )
        return response


def _check_name(subscription: str) -> None:
    """Refuse values without a wire form before they reach the node."""
    length = len(subscription.encode())
    if not 0 < length <= c.MAX_NAME_BYTES:
        raise status.invalid(
            "bad_argument",
            f"a subscription's name has {length} bytes; allowed: 1 to {c.MAX_NAME_BYTES} of UTF-8",
        )


def _state_of(subscription: SubscriptionInfo, index: int) -> pb.SubscriptionState:
    return pb.SubscriptionState(
        generation=subscription.generation,
        settled=subscription.settled,
        last=subscription.last,
        outstanding=subscription.outstanding,
        index=index,
    )
