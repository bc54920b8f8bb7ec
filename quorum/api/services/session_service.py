"""The gRPC adapter of a client's session: it converts requests from the stream into calls of a ClientSession, and the
outcomes into responses. One task writes all responses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from fifo import commands as c
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.grpc.calls import Requests
from quorum.api.grpc.handlers import Context
from quorum.api.grpc.rpc_status import abort, to_proto
from quorum.api.hub.deliveries import DeliveredBatch
from quorum.api.hub.hub import Hub
from quorum.api.owners import owner_of
from quorum.api.security.access import USER, limits_of_user, refusal
from quorum.api.security.rights import READ, WRITE, published
from quorum.api.services.request_filters import filter_of
from quorum.api.session import outcomes as o
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import Disposition
from quorum.api.session.session_routes import Route
from quorum.catalog.users import User
from quorum.v1 import queue_pb2 as pb

PARTS_AT_A_TIME = 128
"""Dispositions and credits of a turn that are carried out without a pause."""

MAX_NOTED = 16
"""Refusals for lack of a permission that a session leaves in the log: the first one for each call and name. A client
that keeps trying must not take all lines of a minute."""

MAX_TARGET = 255
"""Characters of a name in such a line."""

_OUTCOMES: dict[int, type[c.Settle]] = {
    pb.Disposition.SETTLE: c.Settle,
    pb.Disposition.RETURN: c.Return,
    pb.Disposition.DISCARD: c.Discard,
    pb.Disposition.MODIFY: c.Modify,
}


class SessionCall:
    """One Session call of the Queue service."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._session = ClientSession(hub, limits_of_user(hub.limits))
        self._takes_turns = False
        self._peer = ""
        self._noted: set[tuple[str, str]] = set()
        """the calls and targets that the log has as refused"""
        self._permitted: tuple[User, str, str] | None = None
        """the user, exchange and routing key of a batch that was permitted"""
        self._requests: dict[str, Callable[[Any], Any]] = {
            "publish": self._publish,
            "disposition": self._disposition,
            "credit": self._credit,
            "attach": self._attach,
            "cancel": self._cancel,
            "get": self._get,
            "commit": self._commit,
            "rollback": self._rollback,
            "close": self._close,
            "turn": self._turn,
        }

    async def run(self, requests: Requests, context: Context) -> None:
        """Serve the call until its session ends. A StatusError becomes the call's status."""
        reading: asyncio.Task[None] | None = None
        try:
            await self._open(requests, context)
            reading = asyncio.create_task(self._read(requests))
            async for turn in self._session.outcomes(together=self._takes_turns):
                await context.write(_response(turn))
        except status.StatusError as error:
            error.__traceback__ = None  # its frames keep the session, which keeps the error
            await abort(context, error)
        finally:
            if reading is not None:
                reading.cancel()
            self._hub.client_sessions.discard(self._session.number)
            self._session.release()

    async def _open(self, requests: Requests, context: Context) -> None:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("request") != "open":
            raise status.invalid("bad_session", "the first request of a session must be open")
        hello = first.open
        self._peer = getattr(context, "wire_peer", context.peer)()
        self._takes_turns = hello.takes_turns
        producer = producer_of(USER.get(), hello.producer_id)
        self._session.open(producer, hello.epoch, owner_of(context.peer()), hello.first_new_sequence)
        self._hub.client_sessions.add(self._session.number)
        limits = self._hub.limits
        opened = pb.Opened(
            node=self._hub.node,
            session=self._session.number,
            window_bytes=self._hub.session_window,
            max_message_bytes=limits.max_message_bytes,
            max_batch_messages=limits.max_messages,
            max_window_messages=PRODUCTION.window,
            max_batch_bytes=limits.max_batch_bytes,
        )
        await context.write(pb.SessionResponse(opened=opened))

    # ---- requests

    async def _read(self, requests: Requests) -> None:
        session = self._session
        try:
            async for request in requests:
                await self._take(request)
                del request
                if session.is_full:
                    requests.release()
                    await session.room()
        except asyncio.CancelledError as error:
            session.input_over(error)
            raise
        except Exception as error:
            session.input_over(error)
        else:
            session.input_over(None)

    async def _take(self, request: pb.SessionRequest) -> None:
        kind = request.WhichOneof("request")
        take = self._requests.get(kind or "")
        if take is None:
            raise status.invalid("bad_session", f"unexpected request {kind or 'without content'}")
        waiting = take(getattr(request, kind))
        if waiting is not None:
            await waiting

    async def _publish(self, request: pb.PublishBatch) -> None:
        user = USER.get()
        refused = None if user is None else self._refusal(request, user)
        denied = {} if refused is None else _denied(request, user)
        if refused is not None:
            self._note("publish", request.exchange, *(denied.values() or (refused.status,)))
        if refused is not None and not denied:
            await self._refuse(request, refused)
        elif request.tx:
            await self._session.transactions.publish(
                request.tx,
                request.batch,
                _route(request),
                mandatory=request.mandatory,
                immediate=request.immediate,
            )
        else:
            await self._session.publisher.publish(
                request.routing_key,
                request.first_sequence,
                request.lowest_unconfirmed,
                request.batch,
                independent=request.independent,
                exchange=request.exchange,
                routing_keys=request.routing_keys,
                mandatory=request.mandatory,
                immediate=request.immediate,
                denied=denied,
            )

    def _refusal(self, request: pb.PublishBatch, user: User) -> status.StatusError | None:
        """Why the user may not publish this batch; None if it may. Most batches go where the last one went."""
        route = None if request.routing_keys else (user, request.exchange, request.routing_key)
        if route is not None and route == self._permitted:
            return None
        refused = refusal(published(request), user)
        if refused is None:
            self._permitted = route
        return refused

    async def _refuse(self, request: pb.PublishBatch, why: status.StatusError) -> None:
        session = self._session
        if request.tx:
            session.transactions.refuse(request.tx, why)
        else:
            await session.publisher.refuse(
                _route(request), request.first_sequence, request.lowest_unconfirmed, request.batch, why
            )

    def _note(self, call: str, exchange: str, *refusals: status.Status) -> None:
        """Write to the log what a permission was missing for. exchange: to which a batch was published; empty: the
        names are those of queues."""
        user = USER.get()
        for each in refusals:
            target = f"{'exchange' if exchange else 'queue'}={dict(each.metadata)['name']}"[:MAX_TARGET]
            if user is None or (call, target) in self._noted or len(self._noted) >= MAX_NOTED:
                continue
            self._noted.add((call, target))
            self._hub.access.audit.refused(f"Session/{call}", user.name, self._peer, target, each.message)

    def _may_read(self, call: str, request: pb.Attach | pb.SessionGet) -> bool:
        """Refuses the request if the user may not read its queue."""
        refused = refusal(((READ, request.queue),), USER.get())
        if refused is not None:
            self._note(call, "", refused.status)
            self._session.refuse(request.request_id, refused)
        return refused is None

    async def _attach(self, request: pb.Attach) -> None:
        if not self._may_read("attach", request):
            return
        await self._session.consumers.attach(
            request.request_id,
            request.consumer_tag,
            request.queue,
            filter_of(request),
            request.credit_to,
            request.priority,
        )

    def _credit(self, request: pb.Credit) -> None:
        self._session.consumers.credit(
            request.request_id, request.consumer_tag, request.credit_to, drain=request.drain
        )

    def _disposition(self, request: pb.Disposition) -> None:
        consumers = self._session.consumers
        if request.consumer_tag:
            consumer = consumers.find(request.request_id, request.consumer_tag)
        else:
            consumer = consumers.find_getter(request.request_id, request.queue)
        if consumer is None and not request.tx:
            return
        disposition = Disposition(
            _OUTCOMES.get(request.outcome),
            request.attach,
            tuple((each.first, each.last) for each in request.tags),
            request.credit_to,
            request.delivery_failed,
            request.undeliverable_here,
        )
        if request.tx:
            self._session.transactions.settle(request.tx, request.request_id, consumer, disposition)
        elif consumer is not None:
            consumers.settle(request.request_id, consumer, disposition)

    def _cancel(self, request: pb.Cancel) -> None:
        self._session.consumers.cancel(request.request_id, request.consumer_tag, requeue=request.requeue)

    async def _get(self, request: pb.SessionGet) -> None:
        if not self._may_read("get", request):
            return
        await self._session.consumers.get(
            request.request_id, request.queue, request.count, settled=request.settled
        )

    def _commit(self, request: pb.Commit) -> None:
        self._session.transactions.commit(request.request_id, request.tx)

    def _rollback(self, request: pb.Rollback) -> None:
        self._session.transactions.rollback(request.request_id, request.tx)

    def _close(self, request: pb.Close) -> None:
        self._session.client_closes()

    async def _turn(self, request: pb.RequestTurn) -> None:
        parts: Iterator[pb.Disposition | pb.Credit] = chain(request.dispositions, request.credits)
        for number, part in enumerate(parts, 1):
            if isinstance(part, pb.Disposition):
                self._disposition(part)
            else:
                self._credit(part)
            if number % PARTS_AT_A_TIME == 0:
                await asyncio.sleep(0)
                await self._session.room()
        if request.HasField("publish"):
            await self._publish(request.publish)


def _route(request: pb.PublishBatch) -> Route:
    return Route(request.exchange, request.routing_key, request.routing_keys)


def _denied(request: pb.PublishBatch, user: User | None) -> dict[str, status.Status]:
    """Why single messages of a batch are refused, by their routing keys; empty if all of the batch is."""
    if request.tx or request.exchange or request.routing_key or not request.independent:
        return {}
    keys = dict.fromkeys(request.routing_keys)
    found = {key: refusal(((WRITE, key),), user) for key in keys}
    denied = {key: why.status for key, why in found.items() if why is not None}
    return denied if len(denied) < len(keys) else {}


def producer_of(user: User | None, producer_id: bytes) -> bytes:
    """The name of a client's producer. It is the user's own: who learns the id of another user's producer can neither
    end its sessions nor use up its numbers, whose messages would then be confirmed and dropped as repeats."""
    if user is None or len(producer_id) != c.PRODUCER_BYTES:
        return producer_id
    return hashlib.blake2b(producer_id + user.name.encode(), digest_size=c.PRODUCER_BYTES).digest()


# ---- responses


def _response(turn: list[o.Outcome]) -> pb.SessionResponse:
    response = pb.SessionResponse()
    if len(turn) == 1:
        _FILL[type(turn[0])](response, turn[0])
    else:
        responses = response.turn.responses
        for outcome in turn:
            _FILL[type(outcome)](responses.add(), outcome)
    return response


def _confirms(response: pb.SessionResponse, outcome: o.Confirms) -> None:
    confirms = response.confirms
    for first, last in outcome.confirmed:
        confirms.confirmed.add(first=first, last=last)
    for rejection in outcome.rejected:
        first, last = rejection.span
        confirms.rejected.add(range=pb.Range(first=first, last=last), status=to_proto(rejection.why))


def _done(response: pb.SessionResponse, outcome: o.Done) -> None:
    response.done.request_ids.extend(outcome.request_ids)


def _failed(response: pb.SessionResponse, outcome: o.Failed) -> None:
    response.failed.request_id = outcome.request_id
    response.failed.status.CopyFrom(to_proto(outcome.why))


def _attached(response: pb.SessionResponse, outcome: o.Attached) -> None:
    attached = response.attached
    attached.request_id, attached.consumer_tag = outcome.request_id, outcome.consumer_tag
    attached.attach = outcome.attach


def _drained(response: pb.SessionResponse, outcome: o.Drained) -> None:
    response.drained.consumer_tag, response.drained.next_tag = outcome.consumer_tag, outcome.next_tag


def _active_changed(response: pb.SessionResponse, outcome: o.ActiveChanged) -> None:
    changed = response.active_changed
    changed.consumer_tag, changed.attach = outcome.consumer_tag, outcome.attach
    changed.active = outcome.is_active


def _timed_out(response: pb.SessionResponse, outcome: o.TimedOut) -> None:
    timed_out = response.timed_out
    timed_out.consumer_tag, timed_out.attach = outcome.consumer_tag, outcome.attach
    timed_out.last_tag = outcome.last_tag


def _cancelled(response: pb.SessionResponse, outcome: o.Cancelled) -> None:
    response.cancelled.consumer_tag = outcome.consumer_tag
    response.cancelled.status.CopyFrom(to_proto(outcome.why))


def _delivery(response: pb.SessionResponse, batch: DeliveredBatch) -> None:
    delivery = response.delivery
    delivery.consumer_tag = batch.consumer_tag
    delivery.attach = batch.attach
    delivery.first_tag = batch.first_tag
    delivery.count = batch.count
    delivery.batch = batch.batch
    for first, last in batch.sequences:
        delivery.sequences.add(first=first, last=last)
    for first, last in batch.redelivered:
        delivery.redelivered.add(first=first, last=last)
    for tag, failed in batch.delivery_counts:
        delivery.delivery_counts.add(tag=tag, count=failed)


_FILL: dict[type, Callable[[pb.SessionResponse, Any], None]] = {
    o.Confirms: _confirms,
    o.Done: _done,
    o.Failed: _failed,
    o.Attached: _attached,
    o.Drained: _drained,
    o.ActiveChanged: _active_changed,
    o.TimedOut: _timed_out,
    o.Cancelled: _cancelled,
    DeliveredBatch: _delivery,
}
