"""What one session may have at a time is bounded, and the refusal names the limit."""

from __future__ import annotations

import asyncio

from quorum.api.hub import Hub
from quorum.api.session_service import MAX_CONSUMERS, Stream, _Consumer
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import queue_pb2 as pb


def test_a_session_has_at_most_a_thousand_consumers() -> None:
    async def scenario() -> None:
        hub = Hub(None, None, BatchLimits(10, 1_000, 10_000), 10_000, 10_000)  # type: ignore[arg-type]
        stream = Stream(hub)
        for number in range(MAX_CONSUMERS):
            stream._consumers[f"c{number}"] = _Consumer(f"c{number}", 1, 1)
        await stream._attach(pb.Attach(request_id=7, consumer_tag="one more", queue="q"))
        [refusal] = stream._outbox
        assert f"a session has at most {MAX_CONSUMERS} consumers" in str(refusal)
        assert len(stream._consumers) == MAX_CONSUMERS

    asyncio.run(scenario())
