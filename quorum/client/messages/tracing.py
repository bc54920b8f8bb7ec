"""Spans of OpenTelemetry: for what a client publishes, and for what a program does with the messages that it receives.

Only this module imports OpenTelemetry, which the extra `otel` installs. A client without `tracing` does not import it.

Names, kinds and attributes follow the semantic conventions for messaging spans. A message carries the context of the
span that has published it in its application properties `traceparent` and `tracestate` (W3C Trace Context). A message
that has a `traceparent` already keeps its own, and the span has a link to that context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quorum.client.errors import QuorumError
from quorum.client.messages.batch import BatchReader, Message, PreparedBatch, parse_batch
from quorum.client.messages.routes import Route, Through, check_names
from quorum.client.values import Properties

SCOPE = "quorum.client"
"""The name of the tracer."""
TRACEPARENT = "traceparent"
NAMES = (TRACEPARENT, "tracestate")
"""The application properties that carry a context."""
MAX_LINKS = 128
"""Links of one span. The SDK keeps no more, unless it is configured otherwise."""

_W3C = TraceContextTextMapPropagator()
_COUNT = "messaging.batch.message_count"
_MESSAGE_ID = "messaging.message.id"


class _Received(Protocol):
    """The part of a delivery that a span needs."""

    @property
    def reader(self) -> BatchReader: ...


R = TypeVar("R", bound=_Received)
T = TypeVar("T")


class Tracing:
    """Makes the spans of one client. endpoint: returns the address of the member that serves it; empty if none does."""

    def __init__(self, endpoint: Callable[[], str]) -> None:
        self._endpoint = endpoint
        self._tracer = trace.get_tracer(SCOPE)

    # ---- publishing

    @contextmanager
    def sending(self, route: Route, message: Message) -> Iterator[Message]:
        """The span of a publish of one message. Gives the message with the context of the span."""
        given = {} if message.application_properties is None else message.application_properties
        is_valid = isinstance(given, Mapping)  # else the publish refuses it
        has_own = is_valid and TRACEPARENT in given
        links = _links([{name: given[name] for name in NAMES if name in given}]) if has_own else []
        span = self._begin_send(route, links, has_own, {_MESSAGE_ID: _message_id(message.properties)})
        if is_valid and not has_own and (carrier := _carrier(span)):
            message = replace(message, application_properties={**given, **carrier})
        with _ending(span):
            yield message

    @contextmanager
    def sending_batch(
        self, route: Route, batch: PreparedBatch, *, is_single: bool = False
    ) -> Iterator[PreparedBatch]:
        """The span of a publish that is not confirmed by itself. Gives the batch with the context of the span.
        is_single: the program publishes one message, and not a batch."""
        span, traced = self._begin_batch(route, batch, is_single)
        with _ending(span):
            yield traced

    async def sent(
        self,
        route: Route,
        batch: PreparedBatch,
        send: Callable[[PreparedBatch], Awaitable[asyncio.Future[int]]],
    ) -> asyncio.Future[int]:
        """Send a batch with the context of a span, which ends when the batch is confirmed or refused."""
        span, traced = self._begin_batch(route, batch, is_single=False)
        try:
            confirmation = await send(traced)
        except BaseException as error:
            _fail(span, error)
            span.end()
            raise
        confirmation.add_done_callback(partial(_end, span))
        return confirmation

    @contextmanager
    def committing(self) -> Iterator[None]:
        """The span of a transaction's commit."""
        span = self._tracer.start_span(
            "commit",
            kind=SpanKind.CLIENT,
            attributes={**self._common(), "messaging.operation.name": "commit"},
        )
        with _ending(span):
            yield

    # ---- consuming

    async def received(self, queue: str, getting: Awaitable[list[R]]) -> list[R]:
        """The deliveries of a get, with a span for it."""
        span = self._begin("receive", queue, SpanKind.CLIENT, [], {})
        with _ending(span):
            deliveries = await getting
            span.set_attribute(_COUNT, sum(each.reader.count for each in deliveries))
            for link in _links(context for each in deliveries for context in _contexts(each.reader)):
                span.add_link(link.context)
        return deliveries

    @contextmanager
    def processing(self, queue: str, reader: BatchReader, place: int, sequence: int) -> Iterator[None]:
        """The current span while the program processes one message. place: in the delivery. sequence: in the queue.

        The span has a link to the context of the message. That context is also its parent, unless another span is
        current."""
        raw = reader.raw_properties(place)
        links = _links([_context(raw)])
        parent = None
        if links and not trace.get_current_span().get_span_context().is_valid:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(links[0].context))
        details = {
            _MESSAGE_ID: None if raw is None else raw.message_id or None,
            "messaging.quorum.message.sequence": sequence,
        }
        span = self._begin("process", queue, SpanKind.CONSUMER, links, details, parent)
        with _current(span):
            yield

    @contextmanager
    def processing_batch(self, queue: str, reader: BatchReader) -> Iterator[None]:
        """The current span while the program processes a delivery. It has links to the contexts of the messages."""
        span = self._begin(
            "process", queue, SpanKind.CONSUMER, _links(_contexts(reader)), {_COUNT: reader.count}
        )
        with _current(span):
            yield

    # ---- inside

    def _begin_batch(self, route: Route, batch: PreparedBatch, is_single: bool) -> tuple[Span, PreparedBatch]:
        """A new span, and the batch with its context."""
        wire = parse_batch(batch.data)
        if wire is None:  # the service refuses it
            return self._begin_send(route, [], False, {_COUNT: batch.count}), batch
        described = wire.properties or (wire.shared_properties,)
        without = [each for each in described if TRACEPARENT not in each.application_properties]
        links = _links(map(_context, described))
        details = {_MESSAGE_ID: described[0].message_id or None} if is_single else {_COUNT: batch.count}
        span = self._begin_send(route, links, not without, details)
        carrier = _carrier(span)
        if not without or not carrier:
            return span, batch
        for properties in without:
            for name, value in carrier.items():
                properties.application_properties[name].text = value
        return span, PreparedBatch(wire.SerializeToString(deterministic=True), batch.count)

    def _begin_send(
        self, route: Route, links: list[Link], has_own: bool, details: Mapping[str, str | int | None]
    ) -> Span:
        """has_own: all messages have contexts already, so that of this span is not the one of a message."""
        check_names(route)  # no exporter can encode what is not UTF-8
        destination = _destination(route)
        kind = SpanKind.CLIENT if has_own else SpanKind.PRODUCER
        if isinstance(route, Through) and route.exchange and isinstance(route.keys, str):
            details = {**details, "messaging.quorum.destination.routing_key": route.keys or None}
        return self._begin("send", destination, kind, links, details)

    def _begin(
        self,
        operation: str,
        destination: str,
        kind: SpanKind,
        links: list[Link],
        details: Mapping[str, str | int | None],
        parent: Context | None = None,
    ) -> Span:
        """details: attributes; those that are None are left out. parent: None for the current context."""
        attributes = self._common()
        attributes["messaging.operation.type"] = attributes["messaging.operation.name"] = operation
        if destination:
            attributes["messaging.destination.name"] = destination
        attributes.update((name, value) for name, value in details.items() if value is not None)
        name = f"{operation} {destination}".rstrip()
        return self._tracer.start_span(name, parent, kind=kind, attributes=attributes, links=links)

    def _common(self) -> dict[str, str | int]:
        host, _, port = self._endpoint().rpartition(":")
        found: dict[str, str | int] = {"messaging.system": "quorum"}
        if host and port.isdecimal():
            found |= {"server.address": host.strip("[]"), "server.port": int(port)}
        return found


def _destination(route: Route) -> str:
    """The queue or exchange of all messages; empty if they have several queues."""
    if isinstance(route, Through):
        return _destination(route.exchange or route.keys)
    if isinstance(route, tuple):
        return _destination(route[0]) if route and route.count(route[0]) == len(route) else ""
    return route if isinstance(route, str) else ""


def _message_id(properties: Properties | Mapping[str, object] | None) -> str | None:
    """The message's id, if it is a text. The properties are not checked yet."""
    if isinstance(properties, Mapping):
        found = properties.get("message-id", properties.get("message_id"))
    else:
        found = properties.message_id if isinstance(properties, Properties) else None
    return found.encode(errors="replace").decode() if isinstance(found, str) else None


# ---- contexts in messages


def _carrier(span: Span) -> dict[str, str]:
    """The application properties that carry the context of the span; empty if OpenTelemetry has no SDK."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier


def _context(raw: Any) -> dict[str, str]:
    """The context that a queue_pb2.Properties carries; empty if there is none."""
    if raw is None or TRACEPARENT not in raw.application_properties:
        return {}
    values = raw.application_properties
    return {name: values[name].text for name in NAMES if name in values}


def _contexts(reader: BatchReader) -> Iterator[dict[str, str]]:
    return (_context(reader.raw_properties(place)) for place in range(reader.count))


def _links(contexts: Iterable[Mapping[str, object]]) -> list[Link]:
    """Links to the different valid contexts among these, in their order."""
    carriers = (
        tuple((name, text) for name, text in each.items() if isinstance(text, str)) for each in contexts
    )
    found = (_W3C.extract(dict(carrier), Context()) for carrier in _different(carriers))
    spans = (trace.get_current_span(context).get_span_context() for context in found)
    return list(islice((Link(span) for span in spans if span.is_valid), MAX_LINKS))


def _different(items: Iterable[T]) -> Iterator[T]:
    """The items without repeats."""
    seen: set[T] = set()
    for item in items:
        if item not in seen:
            seen.add(item)
            yield item


# ---- the end of a span


@contextmanager
def _ending(span: Span) -> Iterator[None]:
    """Ends the span with the block, and records why the block failed."""
    try:
        yield
    except BaseException as error:
        _fail(span, error)
        raise
    finally:
        span.end()


@contextmanager
def _current(span: Span) -> Iterator[None]:
    """As `_ending`, for a block of the program: the span is the current one, and an end of the block that is no error,
    such as that of a generator, is none for the span."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Exception as error:
            _fail(span, error)
            raise


def _end(span: Span, confirmation: asyncio.Future[int]) -> None:
    """A batch is decided, or nobody awaits that any more."""
    error = asyncio.CancelledError() if confirmation.cancelled() else confirmation.exception()
    if error is not None:
        _fail(span, error)
    span.end()


def _fail(span: Span, error: BaseException) -> None:
    reason = error.reason if isinstance(error, QuorumError) else ""
    span.record_exception(error)
    span.set_attribute("error.type", reason or type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
