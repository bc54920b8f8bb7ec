"""How long a stream waits for minMessagesPerTrigger in each of its queues: no Spark, no service, no clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quorum.client.bulk.records import Reservation, SubscriptionState
from quorum.spark.reading import stream
from support.spark.streams import Driver


class Service:
    """Every queue has this number of ready messages at each Reserve."""

    def __init__(self, **ready: int) -> None:
        self.ready = ready

    def open_subscription(self, *_: object, **__: object) -> SubscriptionState:
        return SubscriptionState(generation=1, settled=0, last=0, outstanding=0, index=9)

    def settle(self, *_: object) -> SubscriptionState:
        return self.open_subscription()

    def reserve(
        self, queue: str, _: str, __: int, after: int, *, min_messages: int, **___: object
    ) -> Reservation:
        count = self.ready[queue] if self.ready[queue] >= max(1, min_messages) else 0
        return Reservation(after + bool(count), count=count, size_bytes=10 * count, ready=0, index=9)


def test_a_busy_queue_does_not_keep_another_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [0.0]
    service = Service(busy=20, quiet=3)
    monkeypatch.setattr(stream, "service", lambda url: service)
    monkeypatch.setattr(stream, "_Keeper", lambda *_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    query = Driver(
        "quorum://127.0.0.1:1",
        queue="busy,quiet",
        subscription="g",
        minMessagesPerTrigger="10",
        maxTriggerDelay="60s",
    )
    found = query.reader.initialOffset()
    taken = []
    for clock_s[0] in (10.0, 40.0, 61.0, 80.0):
        before, found = found, query.latest(found)
        taken.append((found["busy"] - before["busy"], found["quiet"] - before["quiet"]))
    assert taken == [(1, 0), (1, 0), (1, 1), (1, 0)]
