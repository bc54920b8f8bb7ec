"""Found by hunting (quorum/api): a delivery goes out in parts, and what lies between two of them may take long."""

from __future__ import annotations

import asyncio

import pytest

from fifo.effects import Deliver, Run
from quorum.api.hub import deliveries
from quorum.api.hub.deliveries import DeliveredBatch
from quorum.api.hub.hub import Hub
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import Consumer
from quorum.node.errors import BodyUnreadable
from quorum.node.wire.batches import BatchLimits


def part(first_tag: int) -> DeliveredBatch:
    return DeliveredBatch("c", 5, first_tag, 1, b"", ())


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(part(1), id="a part that the client took its time to read"),
        pytest.param(BodyUnreadable(1, 2, "damaged"), id="a body that was mended"),
    ],
)
def test_what_was_given_back_between_two_parts_of_a_delivery_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, first: DeliveredBatch | BodyUnreadable
) -> None:
    """The client has cancelled its consumer meanwhile, and what that held is with another one."""
    parts = (first, part(2))
    monkeypatch.setattr(deliveries, "delivered_batches", lambda *_: iter(parts))

    async def body() -> None:
        hub = Hub("n1", None, BatchLimits(10, 100, 1_000), 1_000, 1_000)  # type: ignore[arg-type]
        monkeypatch.setattr(hub.published, "may_deliver", lambda group: True)
        session = ClientSession(hub)
        session.consumers.by_tag["c"] = Consumer("c", 1, 7, attach=5)
        session.delivered(1, Deliver((1, 1, 1), 7, "c", 5, 1, (Run(1, 2, 2, 0, 0),)))
        going_out = session._ready()
        next(going_out)
        del session.consumers.by_tag["c"]
        assert list(going_out) == []

    asyncio.run(body())
