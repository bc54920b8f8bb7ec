"""What one session may have at a time is bounded, and the refusal names the limit."""

from __future__ import annotations

import asyncio

from quorum.api.hub.hub import Hub
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import MAX_CONSUMERS, Consumer
from quorum.api.session.outcomes import Failed
from quorum.node.wire.batches import BatchLimits


def test_a_session_has_at_most_a_thousand_consumers() -> None:
    async def scenario() -> None:
        hub = Hub("n1", None, BatchLimits(10, 1_000, 10_000), 10_000, 10_000)  # type: ignore[arg-type]
        session = ClientSession(hub)
        for number in range(MAX_CONSUMERS):
            session.consumers.by_tag[f"c{number}"] = Consumer(f"c{number}", 1, 1)
        await session.consumers.attach(7, "one more", "q", None, 0)
        [refusal] = session.outbox.take()
        assert isinstance(refusal, Failed)
        assert f"a session has at most {MAX_CONSUMERS} consumers" in refusal.why.message
        assert len(session.consumers.by_tag) == MAX_CONSUMERS

    asyncio.run(scenario())
