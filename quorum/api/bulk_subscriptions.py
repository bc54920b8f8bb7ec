"""The part of quorum.v1.Bulk about subscriptions: durable subscriptions of a queue, as the machines call them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial

from fifo import commands as c
from fifo.effects import Ok, Refused, Reserved, SubscriptionState
from fifo.limits import PRODUCTION
from fifo.queries import group as queries
from fifo.results import BrowsePage, ReservationPage, SubscriptionInfo
from fifo.subscriptions import MAX_NAME_BYTES
from quorum.api import status
from quorum.api.bulk_calls import BulkCalls, again, answer, blocks, endpoints, index_of, load, look
from quorum.api.bulk_columns import wanted
from quorum.api.calls import client_address
from quorum.api.filters import expression_bytes, selector_text
from quorum.api.handlers import Context, streaming, unary
from quorum.api.owners import owner_of
from quorum.api.stored_rows import Failures, RowReader
from quorum.catalog.queues import CatalogQueue
from quorum.node.member import Member
from quorum.v1 import bulk_pb2 as pb
from quorum.v1 import queue_pb2

DEFAULT_TIMEOUT_MS = 86_400_000
NO_LIMIT = (1 << 63) - 1
MAX_WAIT_MS = 30_000
SCAN_S = 5.0
"""So long a Reserve that does not wait goes on looking for a match, budget after budget."""
POLL_S = 0.02
MOST_POLL_S = 0.25
PAGE = 16_384
"""Messages of a reservation that are looked up in one question."""
RELEASE_PAUSE_S = 0.02
STARTS = {pb.OpenSubscriptionRequest.EARLIEST: "earliest", pb.OpenSubscriptionRequest.LATEST: "latest"}
EXPIRIES = {
    pb.OpenSubscriptionRequest.RELEASE: "release",
    pb.OpenSubscriptionRequest.DISCARD: "discard",
    pb.OpenSubscriptionRequest.KEEP: "keep",
}
_EXPIRY = {name: number for number, name in EXPIRIES.items()}


@dataclass(frozen=True, slots=True)
class _Look:
    """What this node's replica says before a Reserve is made."""

    subscription: SubscriptionInfo | None
    may_reserve: bool
    ready: int
    index: int


class SubscriptionCalls(BulkCalls):
    """See the module's text; BulkService is the rest."""

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
        selector = expression_bytes(queue_pb2.Attach(queue=request.queue, selector=request.selector), queue)
        command = c.OpenSubscription(
            queue.id,
            request.subscription,
            selector,
            STARTS[request.start],  # type: ignore[arg-type]
            request.timeout_ms or DEFAULT_TIMEOUT_MS,
            EXPIRIES[request.on_expiry],  # type: ignore[arg-type]
            owner_of(context.peer()),
        )

        def make(member: Member) -> c.OpenSubscription:
            subscription = _subscription(member, queue, request.subscription)
            return replace(command, found=0 if subscription is None else subscription.generation)

        return await self._state(queue, await self._changed(queue, make))

    async def _changed(self, queue: CatalogQueue, make: Callable[[Member], c.Command]) -> SubscriptionState:
        """What the queue's group answers, where no answer was lost."""
        while True:
            found = answer(await self._hub.change_group(queue.group, make), SubscriptionState)
            if found is not None:
                return found

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
            found = await self._hub.ask(lambda member: _look_at(member, queue, request), queue.group)
            if found.may_reserve and await self._enough(
                queue, found.subscription, min(request.min_messages, most)
            ):
                reply = await again(self._hub, queue.group, command, Reserved)
                if reply.offset != request.after:
                    return await self._reservation(queue, reply)
                is_finished = reply.is_complete
                if not is_finished and loop.time() < max(deadline, begun + SCAN_S):
                    continue
            left = deadline - loop.time()
            if left <= 0:
                if not self._hub.may_deliver(
                    queue.group
                ):  # it may have been cut off, and there may be messages
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
        """Whether so many messages that the subscription would be given are ready, as far as this replica can tell."""
        if wanted_count <= 1 or subscription is None:
            return True
        start, rest = subscription.start_sequence, wanted_count
        while True:
            page = await self._hub.ask(
                partial(_waiting, queue=queue, start=start, count=rest, selector=subscription.selector),
                queue.group,
            )
            if isinstance(page, Refused):  # it cannot look for this selector any more; the group can
                return True
            rest -= sum(run.count for run in page.runs)
            if rest <= 0:
                return True
            if page.next_sequence is None:
                return False
            start = page.next_sequence

    async def _reservation(self, queue: CatalogQueue, reply: Reserved) -> pb.Reservation:
        def ready(member: Member) -> int:
            info = queries.info(member.queue_machine(queue.group), queue.id)
            return 0 if info is None else info.ready

        return pb.Reservation(
            offset=reply.offset,
            count=reply.count,
            size_bytes=reply.size_bytes,
            ready=await self._hub.ask(ready, queue.group),
            index=reply.index,
        )

    @unary
    async def DescribeReservations(
        self, request: pb.DescribeReservationsRequest, context: Context
    ) -> pb.DescribeReservationsResponse:
        queue = await self._queue(request.queue, request.index)

        def describe(member: Member) -> pb.DescribeReservationsResponse | None:
            subscription = _subscription(member, queue, request.subscription)
            if subscription is None:
                return None
            index = member.queue_machine(queue.group).index
            response = pb.DescribeReservationsResponse(
                endpoints=endpoints(member, queue.group, self._own),
                subscription=_state_of(subscription, index),
            )
            for each in subscription.reservations:
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

        response = await self._hub.ask(describe, queue.group)
        if response is None:
            raise status.not_found(f"queue {request.queue!r} has no subscription {request.subscription!r}")
        return response

    @streaming
    async def ReadReserved(
        self, request: pb.ReadReservedRequest, context: Context
    ) -> AsyncIterator[pb.Block]:
        columns = wanted(request.columns)
        queue = await self._queue(request.queue, request.index)
        arrow_out = await load("arrow_out")
        ttl_ms = self._hub.member.catalog.effective(queue).config.message_ttl_ms
        rows = RowReader(self._hub.body_reader(), queue.group)
        made = arrow_out.Blocks(rows, columns, ttl_ms)
        first = request.first
        end = first + request.count if request.count else 1 << 32
        with self._hub.workers.answer(client_address(context.peer()), rows) as answer:
            while first < end:
                count = min(PAGE, end - first)
                portion = await look(
                    self._hub,
                    queue.group,
                    partial(
                        _reserved,
                        queue=queue,
                        subscription=request.subscription,
                        offset=request.offset,
                        first=first,
                        count=count,
                    ),
                )
                failures = Failures(portion.delivery_counts, 1 + portion.opens)
                async for block in blocks(self._hub, answer, made.feed(portion.runs, failures)):
                    yield block
                found = sum(run.count for run in portion.runs)
                if found < count and not portion.has_more:
                    break
                first += found
            async for block in blocks(self._hub, answer, made.take()):
                yield block

    @unary
    async def Settle(self, request: pb.SettleRequest, context: Context) -> pb.SubscriptionState:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)
        command = c.SettleReserved(queue.id, request.subscription, request.generation, request.to)
        while True:
            state = await again(self._hub, queue.group, command, SubscriptionState)
            if state.settled >= request.to:
                await self._check_settled(queue, request)
                return await self._state(queue, state)

    async def _check_settled(self, queue: CatalogQueue, request: pb.SettleRequest) -> None:
        """StatusError where the messages have gone back instead. This replica has applied what was answered."""
        found = await self._hub.ask(
            partial(
                _reserved, queue=queue, subscription=request.subscription, offset=request.to, first=0, count=0
            ),
            queue.group,
        )
        if isinstance(found, Refused) and found.reason == "released":
            raise status.StatusError(status.of_refused(found))

    @unary
    async def KeepAlive(self, request: pb.KeepAliveRequest, context: Context) -> pb.SubscriptionState:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)
        command = c.KeepSubscription(queue.id, request.subscription, request.generation)
        return await self._state(queue, await again(self._hub, queue.group, command, SubscriptionState))

    @unary
    async def ReleaseSubscription(
        self, request: pb.ReleaseSubscriptionRequest, context: Context
    ) -> pb.SubscriptionState:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)

        def make(member: Member) -> c.ReleaseSubscription:
            subscription = _subscription(member, queue, request.subscription)
            last = None if subscription is None else subscription.last
            return c.ReleaseSubscription(queue.id, request.subscription, request.generation, last)

        while True:
            state = await self._changed(queue, make)
            if not state.outstanding:
                return await self._state(queue, state)
            await asyncio.sleep(RELEASE_PAUSE_S)  # the machine goes on with it by itself

    @unary
    async def DeleteSubscription(
        self, request: pb.DeleteSubscriptionRequest, context: Context
    ) -> pb.DeleteSubscriptionResponse:
        _check_name(request.subscription)
        queue = await self._queue(request.queue)
        generation = await self._hub.ask_now(
            lambda member: _generation(member, queue, request.subscription), (queue.group,)
        )
        if generation is not None:
            command = c.DeleteSubscription(queue.id, request.subscription, generation)
            await again(self._hub, queue.group, command, Ok)
        return pb.DeleteSubscriptionResponse(index=await index_of(self._hub, queue.group))

    @unary
    async def ListSubscriptions(
        self, request: pb.ListSubscriptionsRequest, context: Context
    ) -> pb.ListSubscriptionsResponse:
        queue = await self._queue(request.queue, request.index)

        def listed(member: Member) -> pb.ListSubscriptionsResponse:
            machine = member.queue_machine(queue.group)
            response = pb.ListSubscriptionsResponse(index=machine.index)
            for each in queries.subscriptions(machine, queue.id):
                response.subscriptions.add(
                    subscription=each.name,
                    state=_state_of(each, machine.index),
                    filtered=bool(each.selector),
                    filter=each.selector,
                    start_sequence=each.start_sequence,
                    last_seen_ms=each.last_seen_ms,
                    timeout_ms=each.timeout_ms,
                    on_expiry=_EXPIRY[each.on_expiry],
                    reservations=len(each.reservations),
                )
            return response

        found = await self._hub.ask(listed, queue.group)
        for each in found.subscriptions:
            each.selector = selector_text(each.filter)
        return found


def _check_name(subscription: str) -> None:
    """What has no wire form must not get as far as the node."""
    length = len(subscription.encode())
    if not 0 < length <= MAX_NAME_BYTES:
        raise status.invalid(
            "bad_argument",
            f"a subscription's name has {length} bytes; allowed: 1 to {MAX_NAME_BYTES} of UTF-8",
        )


def _subscription(member: Member, queue: CatalogQueue, name: str) -> SubscriptionInfo | None:
    return queries.subscription(member.queue_machine(queue.group), queue.id, name)


def _waiting(
    member: Member, queue: CatalogQueue, start: int, count: int, selector: bytes
) -> BrowsePage | Refused:
    return queries.browse(member.queue_machine(queue.group), queue.id, start, count, selector)


def _reserved(
    member: Member, queue: CatalogQueue, subscription: str, offset: int, first: int, count: int
) -> ReservationPage | Refused:
    return queries.reserved(member.queue_machine(queue.group), queue.id, subscription, offset, first, count)


def _look_at(member: Member, queue: CatalogQueue, request: pb.ReserveRequest) -> _Look:
    """may_reserve also where the group has to decide what is wrong with the request, or what it has answered before."""
    machine = member.queue_machine(queue.group)
    subscription = _subscription(member, queue, request.subscription)
    info = queries.info(machine, queue.id)
    ready = 0 if info is None else info.ready
    if (
        subscription is None
        or subscription.generation != request.generation
        or subscription.last != request.after
    ):
        return _Look(None, True, ready, machine.index)
    if subscription.has_untold_loss:
        return _Look(None, True, ready, machine.index)
    return _Look(
        subscription, queries.may_reserve(machine, queue.id, request.subscription), ready, machine.index
    )


def _state_of(subscription: SubscriptionInfo, index: int) -> pb.SubscriptionState:
    return pb.SubscriptionState(
        generation=subscription.generation,
        settled=subscription.settled,
        last=subscription.last,
        outstanding=subscription.outstanding,
        index=index,
    )


def _generation(member: Member, queue: CatalogQueue, subscription: str) -> int | None:
    """The subscription's present generation; None where there is no such subscription."""
    subscriptions = queries.subscriptions(member.queue_machine(queue.group), queue.id)
    return next((each.generation for each in subscriptions if each.name == subscription), None)
