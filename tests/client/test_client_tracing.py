"""Spans of OpenTelemetry (quorum/client/messages/tracing.py), with a real member."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import quorum
import quorum.sync
from quorum.client.errors import ClosedError, PublishRejected, RolledBack, UsageError
from quorum.client.messages.batch import BatchReader
from quorum.v1 import queue_pb2
from support.members.served import served, served_in_a_thread

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OWN = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "shop=1"}
"""The context that another program has put into a message."""
CONTEXT_BYTES = 75
"""Of a context without a state, in the properties of a message: docs/tracing.md says so."""
FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}
LIMIT_S = 120


class Spans:
    """What was exported, in the order of the spans' ends."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        [found] = [each for each in self.all() if each.name == name]
        return found

    def current(self, name: str) -> AbstractContextManager[trace.Span]:
        """A span of the program."""
        return self.provider.get_tracer("program").start_as_current_span(name)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    found = Spans()
    monkeypatch.setattr(trace, "get_tracer", found.provider.get_tracer)
    return found


@pytest.fixture
def url() -> Iterator[str]:
    with served_in_a_thread() as found:
        yield found


def on_member(scenario: Callable[[str], Awaitable[None]]) -> None:
    """Runs the scenario with the URL of a member."""

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S), served() as url:
            await scenario(url)

    asyncio.run(run())


def with_client(scenario: Callable[[quorum.Client], Awaitable[None]], *, tracing: bool = True) -> None:
    """Runs the scenario with a client and the queue 'q'."""

    async def run(url: str) -> None:
        async with quorum.connect(url, tracing=tracing) as client:
            await client.declare("q")
            await scenario(client)

    on_member(run)


def carried_by(span: ReadableSpan) -> dict[str, str]:
    """The application properties that carry the context of the span."""
    context = span.context
    flags = f"{int(context.trace_flags):02x}"
    return {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}"}


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(each.context.trace_id, each.context.span_id) for each in span.links]


def ids(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


OWN_IDS = (int(TRACE, 16), int(SPAN, 16))


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def failed_with(span: ReadableSpan) -> tuple[StatusCode, object, list[str]]:
    """Status, error type and events of a span."""
    assert span.attributes is not None
    return span.status.status_code, span.attributes.get("error.type"), [each.name for each in span.events]


async def taken(client: quorum.Client, count: int) -> list[Any]:
    found: list[Any] = []
    async with client.consume("q") as consumer:
        async for message in consumer:
            found.append(message)
            await message.settle()
            if len(found) == count:
                return found
    return found


# ---- publishing


def test_a_message_carries_the_context_of_the_span_that_published_it(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        with spans.current("order"):
            await client.publish("q", b"x", {"message-id": "m1"}, {"colour": "red"})
        [message] = await taken(client, 1)
        sent = spans.one("send q")
        assert message.application_properties == {"colour": "red", **carried_by(sent)}
        assert (sent.kind, parent_of(sent)) == (SpanKind.PRODUCER, ids(spans.one("order")))
        host, port = client.endpoint.split(":")
        assert sent.attributes == {
            "messaging.system": "quorum",
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": "q",
            "messaging.message.id": "m1",
            "server.address": host,
            "server.port": int(port),
        }
        assert failed_with(sent) == (StatusCode.UNSET, None, [])

    with_client(scenario)


def test_the_messages_of_a_batch_carry_the_context_of_its_one_span(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        messages = [quorum.Message(b"a", None, {"n": 1}), b"b", quorum.Message(b"c", None, OWN)]
        assert await client.publish_batch("q", messages) == 3
        found = [each.application_properties for each in await taken(client, 3)]
        sent = spans.one("send q")
        assert found == [{"n": 1, **carried_by(sent)}, carried_by(sent), OWN]
        assert (sent.kind, linked(sent)) == (SpanKind.PRODUCER, [OWN_IDS])
        assert sent.attributes is not None and sent.attributes["messaging.batch.message_count"] == 3

    with_client(scenario)


@pytest.mark.parametrize("kind", ["messages", "prepared", "serialized"])
def test_a_batch_without_properties_gets_the_context_once(spans: Spans, kind: str) -> None:
    async def scenario(client: quorum.Client) -> None:
        prepared = quorum.encode_batch([b"a", b"b"])
        batch: Any = {"messages": [b"a", b"b"], "prepared": prepared, "serialized": prepared.data}[kind]
        assert await (await client.send_batch("q", batch)) == 2
        async with client.consume("q") as consumer:
            delivery = await consumer.next_delivery()
            assert delivery is not None and delivery.count == 2
            wire = queue_pb2.MessageBatch.FromString(delivery.batch_bytes)
            assert [len(wire.properties), wire.HasField("shared_properties")] == [0, True]
            assert [each.application_properties for each in delivery] == 2 * [carried_by(spans.one("send q"))]
            assert wire.shared_properties.ByteSize() == CONTEXT_BYTES

    with_client(scenario)


def test_a_message_with_a_context_keeps_it_and_its_span_has_a_link(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.publish("q", b"x", None, OWN)
        async with client.transaction() as tx:
            await tx.publish("q", b"y", None, OWN)
        assert [each.application_properties for each in await taken(client, 2)] == [OWN, OWN]
        for sent in spans.all()[:2]:
            assert (sent.name, sent.kind, linked(sent)) == ("send q", SpanKind.CLIENT, [OWN_IDS])

    with_client(scenario)


def test_a_publish_to_an_exchange_names_it_and_the_routing_key(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.declare_exchange("e")
        await client.bind("e", "q", "red")
        await client.publish_to("e", "red", b"x")
        await client.publish_batch_to("e", ["red", "red"], [b"y", b"z"])
        found = [dict(each.attributes or {}) for each in spans.all()]
        assert {each.name for each in spans.all()} == {"send e"}
        assert [each["messaging.destination.name"] for each in found] == ["e", "e"]
        assert [each.get("messaging.quorum.destination.routing_key") for each in found] == ["red", None]

    with_client(scenario)


def test_a_batch_for_several_queues_names_none(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.declare("r")
        await client.publish_batch(["q", "r"], [b"x", b"y"])
        await client.publish_batch(["q", "q"], [b"x", b"y"])
        assert [each.name for each in spans.all()] == ["send", "send q"]

    with_client(scenario)


def test_publishes_of_a_transaction_carry_contexts_and_its_commit_has_a_span(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        async with client.transaction() as tx:
            await tx.publish("q", b"x", {"message-id": "m1"})
            await tx.publish_batch("q", [b"y", b"z"])
        one, batch, commit = spans.all()
        assert [each.name for each in spans.all()] == ["send q", "send q", "commit"]
        assert one.attributes is not None and batch.attributes is not None
        assert one.attributes["messaging.message.id"] == "m1"
        assert "messaging.batch.message_count" not in one.attributes
        assert batch.attributes["messaging.batch.message_count"] == 2
        assert (commit.kind, commit.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
        found = [each.application_properties for each in await taken(client, 3)]
        assert found == [carried_by(one), carried_by(batch), carried_by(batch)]

    with_client(scenario)


@pytest.mark.parametrize("own", [7, b"00", "00-nothing"])
def test_a_message_keeps_also_what_is_no_context(spans: Spans, own: Any) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.publish("q", b"x", None, {"traceparent": own})
        await client.publish_batch("q", [quorum.Message(b"y", None, {"traceparent": own})])
        for message in await taken(client, 2):
            assert message.application_properties == {"traceparent": own}
        assert [list(each.links) for each in spans.all()] == [[], []]

    with_client(scenario)


# ---- refusals


async def sent_and_awaited(client: quorum.Client) -> None:
    await (await client.send_batch("missing", [b"x"]))


@pytest.mark.parametrize(
    "publish",
    [
        lambda client: client.publish("missing", b"x"),
        lambda client: client.publish_to("", "missing", b"x", mandatory=True),
        lambda client: client.publish_batch("missing", [b"x"]),
        sent_and_awaited,
    ],
    ids=["publish", "publish_to", "publish_batch", "send_batch"],
)
def test_a_refused_publish_ends_its_span_with_the_reason(
    spans: Spans, publish: Callable[[quorum.Client], Awaitable[None]]
) -> None:
    async def scenario(client: quorum.Client) -> None:
        with pytest.raises(PublishRejected):
            await publish(client)
        refused = spans.one("send missing")
        assert failed_with(refused) == (StatusCode.ERROR, "NOT_FOUND", ["exception"])
        assert "missing" in (refused.status.description or "")

    with_client(scenario)


def test_messages_that_are_refused_beside_others_end_their_own_spans(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.declare("full", FULL)
        outcomes = await asyncio.gather(
            *(client.publish("full", b"x") for _ in range(2)), return_exceptions=True
        )
        assert [type(each) for each in outcomes] == [type(None), PublishRejected]
        assert sorted(str(failed_with(each)[1]) for each in spans.all()) == ["None", "QUEUE_FULL"]

    with_client(scenario)


def test_a_publish_that_was_never_sent_ends_its_span_with_the_error(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        with pytest.raises(UsageError):
            await client.publish("q", b"x", application_properties=5)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            await client.publish_batch("q", [bytes(2 << 20)] * 40)
        with pytest.raises(UsageError):
            async with client.transaction() as tx:
                await tx.publish_batch("q", [bytes(2 << 20)] * 40)
        await client.close()
        with pytest.raises(ClosedError):
            await client.publish("q", b"x")
        found = [failed_with(each)[:2] for each in spans.all()]
        assert found == [(StatusCode.ERROR, name) for name in 3 * ["UsageError"] + ["ClosedError"]]

    with_client(scenario)


def test_spans_hold_no_text_that_cannot_be_exported(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        half = "\ud800"
        for publishing in (
            client.publish(half, b"x"),
            client.publish_to("e", half, b"x"),
            client.publish("q", b"x", {"message-id": half}),
            client.publish_batch(half, [b"x"]),
            client.transaction().publish(half, b"x"),
        ):
            with pytest.raises(UsageError):
                await publishing
        for each in spans.all():
            texts = [each.name, each.status.description or "", *map(str, (each.attributes or {}).values())]
            assert "".join(texts).encode()

    with_client(scenario)


def test_a_refused_commit_ends_its_span_with_the_reason(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        with pytest.raises(RolledBack):
            async with client.transaction() as tx:
                await tx.publish("missing", b"x")
        assert failed_with(spans.one("commit")) == (StatusCode.ERROR, "NOT_FOUND", ["exception"])

    with_client(scenario)


def test_a_cancelled_publish_ends_its_span(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        publishing = asyncio.create_task(client.publish("q", b"x"))
        await asyncio.sleep(0)
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        confirmation = await client.send_batch("q", [b"y"])
        confirmation.cancel()
        await client.publish("q", b"z")
        found = [failed_with(each)[:2] for each in spans.all()]
        assert found == 2 * [(StatusCode.ERROR, "CancelledError")] + [(StatusCode.UNSET, None)]

    with_client(scenario)


# ---- consuming


def test_a_message_is_processed_in_a_child_of_the_span_that_published_it(spans: Spans) -> None:
    async def scenario(url: str) -> None:
        async with (
            quorum.connect(url, tracing=True) as producer,
            quorum.connect(url, tracing=True) as consumer,
        ):
            await producer.declare("q")
            await producer.publish("q", b"x", {"message-id": "m1"})
            [message] = await taken(consumer, 1)
            with message.span():
                await consumer.publish("q", b"next")
        sent, following, processed = spans.all()
        assert [each.name for each in spans.all()] == ["send q", "send q", "process q"]
        assert (processed.kind, parent_of(processed), linked(processed)) == (
            SpanKind.CONSUMER,
            ids(sent),
            [ids(sent)],
        )
        assert parent_of(following) == ids(processed)
        assert processed.attributes is not None
        assert dict(processed.attributes) == dict(sent.attributes or {}) | {
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.quorum.message.sequence": 1,
        }

    on_member(scenario)


def test_a_message_that_is_processed_inside_another_span_is_linked(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.publish("q", b"x", None, OWN)
        [message] = await taken(client, 1)
        with spans.current("job"), message.span():
            pass
        processed = spans.one("process q")
        assert (parent_of(processed), linked(processed)) == (ids(spans.one("job")), [OWN_IDS])

    with_client(scenario)


def test_an_exception_while_a_message_is_processed_is_recorded_and_raised(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.publish_batch("q", [b"x", b"y"])
        one, other = await taken(client, 2)
        for target in (one, other.delivery):
            with pytest.raises(ZeroDivisionError), target.span():
                raise ZeroDivisionError("no anvils")
        for processed in spans.all()[1:]:
            assert failed_with(processed) == (StatusCode.ERROR, "ZeroDivisionError", ["exception"])
            assert processed.status.description == "no anvils"

    with_client(scenario)


@pytest.mark.parametrize(
    "properties", [{}, {"traceparent": "00-nothing"}, {"traceparent": 7}, {"tracestate": "shop=1"}]
)
def test_a_message_without_a_valid_context_is_processed_in_a_new_trace(
    spans: Spans, properties: dict[str, Any]
) -> None:
    async def scenario(url: str) -> None:
        async with quorum.connect(url) as producer, quorum.connect(url, tracing=True) as consumer:
            await producer.declare("q")
            await producer.publish("q", b"x", None, properties)
            [message] = await taken(consumer, 1)
            with message.span():
                pass
        [processed] = spans.all()
        assert (processed.name, processed.parent, list(processed.links)) == ("process q", None, [])

    on_member(scenario)


def test_a_delivery_is_processed_in_one_span_with_links_to_the_different_contexts(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.publish_batch("q", [b"a", b"b", quorum.Message(b"c", None, OWN)])
        async with client.consume("q") as consumer:
            delivery = await consumer.next_delivery()
            assert delivery is not None
            with delivery.span():
                await consumer.settle_batch(delivery)
        sent, processed = spans.all()
        assert (processed.name, processed.kind, processed.parent) == ("process q", SpanKind.CONSUMER, None)
        assert linked(processed) == [ids(sent), OWN_IDS]
        assert processed.attributes is not None
        assert processed.attributes["messaging.batch.message_count"] == 3

    with_client(scenario)


def test_a_get_has_a_span_with_links_to_the_contexts_of_its_messages(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.publish("q", b"a")
        await client.publish("q", b"b")
        assert len(await client.get("q", 10)) == 2
        assert await client.get("q") == []
        one, two, received, empty = spans.all()
        assert (received.name, received.kind, received.parent) == ("receive q", SpanKind.CLIENT, None)
        assert linked(received) == [ids(one), ids(two)]
        counts = [(each.attributes or {}).get("messaging.batch.message_count") for each in (received, empty)]
        assert counts == [2, 0]

    with_client(scenario)


def test_a_get_of_an_unknown_queue_ends_its_span_with_the_reason(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        with pytest.raises(quorum.client.errors.NotFound):
            await client.get("missing")
        assert failed_with(spans.one("receive missing"))[:2] == (StatusCode.ERROR, "NOT_FOUND")

    with_client(scenario)


# ---- the blocking client


def test_spans_of_the_blocking_client_are_children_of_the_thread_s_span(spans: Spans, url: str) -> None:
    with quorum.sync.connect(url, tracing=True) as client:
        client.declare("q")
        with spans.current("order"):
            client.publish("q", b"1")
            client.publish_to("", "q", b"2")
            client.publish_batch("q", [b"3"])
            client.send_batch("q", [b"4"]).result()
            with client.transaction() as tx:
                tx.publish("q", b"5")
            [message] = client.get("q", 1)
        client.return_(message, wait=True)
        order = ids(spans.one("order"))
        assert [parent_of(each) for each in spans.all()[:-1]] == 7 * [order]
        sent = [each for each in spans.all() if each.name == "send q"]
        with client.consume("q") as consumer:
            for publish, message in zip(sent, consumer, strict=False):
                assert message.application_properties == carried_by(publish)
                with message.span():
                    consumer.settle(message)
                assert parent_of(spans.all()[-1]) == ids(publish)
        assert spans.all()[-1].name == "process q"


def test_a_refusal_ends_a_span_of_the_blocking_client(spans: Spans, url: str) -> None:
    with quorum.sync.connect(url, tracing=True) as client:
        with pytest.raises(PublishRejected):
            client.publish("missing", b"x")
        with pytest.raises(PublishRejected):
            client.publish_to("missing", "red", b"x")
    found = [failed_with(each)[:2] for each in spans.all()]
    assert found == [(StatusCode.ERROR, "NOT_FOUND"), (StatusCode.ERROR, "NO_EXCHANGE")]


# ---- without spans


def test_a_client_without_tracing_adds_nothing(spans: Spans) -> None:
    async def scenario(client: quorum.Client) -> None:
        with spans.current("order"):
            await client.publish("q", b"a")
            await client.publish_batch("q", [b"b"])
            async with client.transaction() as tx:
                await tx.publish("q", b"c")
        messages = await taken(client, 3)
        for message in messages:
            reader: BatchReader = message.delivery.reader
            assert reader.raw_properties(message.ordinal) is None
            with message.span(), message.delivery.span():
                pass
        assert [each.name for each in spans.all()] == ["order"]

    with_client(scenario, tracing=False)


def test_without_an_sdk_messages_get_no_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: quorum.Client) -> None:
        await client.publish("q", b"a")
        await client.publish_batch("q", [b"b"])
        for message in await taken(client, 2):
            assert message.delivery.reader.raw_properties(message.ordinal) is None
            with message.span():
                pass

    monkeypatch.setattr(trace, "get_tracer", trace.NoOpTracerProvider().get_tracer)
    with_client(scenario)


def test_the_option_is_true_or_false() -> None:
    with pytest.raises(UsageError, match="tracing is True or False"):
        quorum.connect("quorum://127.0.0.1:1", tracing="yes")  # type: ignore[arg-type]
