"""What a message of a plain queue costs a whole member, in executed lines: from the request of a publish to the
response with its delivery, and its settlement. A batch has a cost, and its messages have none."""

from __future__ import annotations

import asyncio

from fifo import commands as c
from quorum.api.services.session_service import _response
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import Disposition
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import admin_pb2
from quorum.v1.queue_pb2 import SessionResponse
from support.counted_lines import count_lines
from support.members.cluster import Cluster, batch
from support.members.services import Api, Context

SMALL, LARGE = 10, 10_000
NOISE = 2_000
"""Lines by which two runs may differ: a step of the member more or less."""
LIMITS = BatchLimits(LARGE, 1 << 20, 4 << 20, user_id="ann")
"""The limits of a user that may set only its own `user_id`."""


def lines_for(size: int) -> int:
    """Lines to publish a batch of so many messages at a member, deliver it and settle it."""
    data = batch([b"x"] * size)
    cluster = Cluster(1)
    cluster.ready()
    found: list[SessionResponse] = []

    async def body() -> None:
        api = Api(cluster, "n1", LIMITS)
        await api.call(api.admin.DeclareQueue(admin_pb2.DeclareQueueRequest(queue="q"), Context()))  # type: ignore[arg-type]
        queue = api.hub.catalog.queue("q")
        assert queue is not None
        while not api.hub.published.may_deliver(queue.group):
            cluster.run(5)
        session = ClientSession(api.hub)
        session.open(bytes(16), 1, owner=9)

        async def respond() -> None:
            async for turn in session.outcomes(together=True):
                response = SessionResponse.FromString(_response(turn).SerializeToString())
                found.extend(response.turn.responses or [response])

        responding = asyncio.create_task(respond())

        async def until(kind: str) -> SessionResponse:
            while not (those := [each for each in found if each.WhichOneof("response") == kind]):
                cluster.run(5)
                await asyncio.sleep(0)
            return those[0]

        await session.consumers.attach(1, "c", "q", None, size)
        attached = (await until("attached")).attached
        await session.publisher.publish("q", 1, 1, data)
        delivered = (await until("delivery")).delivery
        assert (delivered.first_tag, delivered.count) == (1, size)
        assert [(each.first, each.last) for each in (await until("confirms")).confirms.confirmed] == [
            (1, size)
        ]
        consumer = session.consumers.find(0, "c")
        assert consumer is not None
        session.consumers.settle(2, consumer, Disposition(c.Settle, attached.attach, ((1, size),)))
        assert list((await until("done")).done.request_ids) == [2]
        responding.cancel()

    return count_lines(lambda: asyncio.run(body()))


def test_the_messages_of_a_batch_cost_a_member_no_line_each() -> None:
    lines_for(SMALL)  # what is imported or made once is there
    small, large = lines_for(SMALL), lines_for(LARGE)
    assert small > 500
    assert large < small + NOISE
