"""Reservations that are gone when a query asks for the next one (quorum/spark/reading/stream.py): no Spark, no
service."""

from __future__ import annotations

import pytest

from quorum.client.bulk.records import Reservation, SubscriptionState
from quorum.client.errors import QuorumError, RefusedError
from quorum.spark import DataLoss
from quorum.spark.reading import stream
from support.spark.streams import Driver, Offset


class Service:
    """settled: of the subscription, now and when it was opened. answers: to each Reserve, in order; a text is the
    reason of a refusal, a number is the offset of a reservation of one message."""

    def __init__(self, settled: int, *answers: str | int) -> None:
        self.state = SubscriptionState(generation=1, settled=settled, last=0, outstanding=0, index=9)
        self.answers = list(answers)
        self.reserved_after: list[int] = []
        self.settled: list[int] = []

    def open_subscription(self, *_: object, **__: object) -> SubscriptionState:
        return self.state

    def keep_alive(self, *_: object) -> SubscriptionState:
        return self.state

    def settle(self, queue: str, subscription: str, generation: int, offset: int) -> SubscriptionState:
        self.settled.append(offset)
        return self.state

    def reserve(self, queue: str, subscription: str, generation: int, after: int, **_: object) -> Reservation:
        self.reserved_after.append(after)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise RefusedError("these reservations are gone", reason=answer)
        return Reservation(answer, count=1, size_bytes=10, ready=0, index=9)


class Keeper:
    """the subscription is not silent for long enough to be kept alive."""

    def __init__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_Keeper", Keeper)


def latest(monkeypatch: pytest.MonkeyPatch, service: Service, start: Offset, **options: str) -> Offset:
    monkeypatch.setattr(stream, "service", lambda url: service)
    options = {"failOnDataLoss": "false", **options}
    return Driver("quorum://127.0.0.1:1", queue="orders", subscription="g", **options).latest(start)


@pytest.mark.parametrize("reason", ["SETTLED", "RELEASED"])
def test_reservations_that_are_gone_are_passed_over_up_to_what_is_settled(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    service = Service(7, reason, 8)
    assert latest(monkeypatch, service, {"orders": 3}) == {"orders": 8}
    assert service.reserved_after == [3, 7]


@pytest.mark.parametrize("reason", ["SETTLED", "RELEASED"])
def test_with_fail_on_data_loss_they_end_the_query(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    with pytest.raises(DataLoss, match="offset 3: these messages were"):
        latest(monkeypatch, Service(7, reason), {"orders": 3}, failOnDataLoss="true")


def test_a_release_of_everything_is_acknowledged_and_nothing_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(4, "RELEASED", 5)
    assert latest(monkeypatch, service, {}) == {"orders": 5}
    assert service.settled == [4], "the subscription hears that the release is known"
    assert service.reserved_after == [4, 4]


@pytest.mark.parametrize("settled", [5, 9])
def test_a_refusal_behind_which_nothing_is_settled_ends_the_query(
    monkeypatch: pytest.MonkeyPatch, settled: int
) -> None:
    service = Service(settled, "RELEASED")
    with pytest.raises(DataLoss, match="offset 9: these messages were given back"):
        latest(monkeypatch, service, {"orders": 9})
    assert service.reserved_after == [9], "it does not ask for ever"


@pytest.mark.parametrize("reason", ["WRONG_GENERATION", "NOT_GIVEN", "LIMIT"])
def test_no_other_refusal_is_passed_over(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    with pytest.raises((QuorumError, DataLoss)):
        latest(monkeypatch, Service(7, reason, 8), {"orders": 3})
