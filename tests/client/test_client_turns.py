"""What a session sends together: dispositions, credits and a small batch, within what the service takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from quorum.api.grpc import request_limits
from quorum.client.connection.endpoints import parse_url
from quorum.client.messages.batch import PreparedBatch
from quorum.client.session.consumer import Consumer, ConsumerOptions
from quorum.client.session.session import Session
from quorum.node.wire.batches import BatchLimits
from quorum.node.wire.wire_scan import scan
from quorum.v1 import queue_pb2

SMALLEST = BatchLimits(1, 1 << 20, 1 << 20)
"""The limits of a service that takes the fewest fields in a request."""


def requests_of(session: Session) -> Iterator[Any]:
    while (request := session._next_request()) is not None:
        yield request


@pytest.mark.parametrize(("consumers", "settled"), [(1, 45_000), (50, 1_000), (2_000, 9), (3_000, 1)])
def test_every_request_of_many_settlements_is_taken_by_the_service(consumers: int, settled: int) -> None:
    shape = request_limits.request_shape(queue_pb2.SessionRequest.DESCRIPTOR, SMALLEST)

    async def scenario() -> None:
        session = Session(("host:1",), 3_000, lambda: 3_000, parse_url("quorum://host:1").open_channel)
        for number in range(consumers):
            consumer = Consumer(
                session.attachments, "q", f"consumer-{number}", ConsumerOptions(prefetch=2 * settled)
            )
            consumer.attach = 1
            delivery = consumer.receive(queue_pb2.Delivery(attach=1, first_tag=1, count=2 * settled))
            every_other = [delivery[place] for place in range(0, 2 * settled, 2)]
            await consumer.modify(every_other, delivery_failed=True, undeliverable_here=True)
        count = 0
        for request in requests_of(session):
            scan(request.SerializeToString(), shape, request_limits.max_tags(SMALLEST))
            sent = request.turn.dispositions or [request.disposition]
            assert len(sent) <= 1_024
            assert len(request.turn.credits) <= 1_024
            count += sum(len(disposition.tags) for disposition in sent)
        assert count == consumers * settled

    asyncio.run(scenario())


@pytest.mark.parametrize(("size", "sent"), [(100, ["turn"]), (100_000, ["disposition", "publish"])])
def test_a_small_batch_goes_with_the_settlements(size: int, sent: list[str]) -> None:
    async def scenario() -> None:
        session = Session(("host:1",), 3_000, lambda: 3_000, parse_url("quorum://host:1").open_channel)
        consumer = Consumer(session.attachments, "q", "consumer", ConsumerOptions())
        consumer.attach = 1
        delivery = consumer.receive(queue_pb2.Delivery(attach=1, first_tag=1, count=9))
        await session.publisher.admit("q", PreparedBatch(bytes(size), 1), None)
        await session.publisher.admit("r", PreparedBatch(b"second", 1), None)
        await consumer.settle(delivery[0])
        requests = list(requests_of(session))
        assert [request.WhichOneof("request") for request in requests] == [*sent, "publish"]
        batches = [request.turn.publish.batch or request.publish.batch for request in requests]
        assert [len(batch) for batch in batches if batch] == [size, len(b"second")]

    asyncio.run(scenario())
