"""When a session's stream is not read (quorum/api/services/session_service.py): answers or groups are behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from itertools import count, pairwise, repeat
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Confirmed
from quorum.api.hub.hub import Hub
from quorum.api.services.session_service import PARTS_AT_A_TIME, SessionCall
from quorum.api.session import client_session
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import Consumer
from quorum.catalog.queues import CatalogQueue
from quorum.node import events as ev
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import queue_pb2 as pb

OPEN = pb.SessionRequest(open=pb.Open(producer_id=bytes(16), epoch=1))
WINDOW = 1_000
BATCH = pb.MessageBatch(count=1, bodies=bytes(600), body_ends=[600]).SerializeToString()


class Driver:
    def __init__(self) -> None:
        self.submitted: list[ev.Submit] = []

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.submitted += [item for item in items if isinstance(item, ev.Submit)]

    @property
    def published(self) -> list[ev.Submit]:
        return [item for item in self.submitted if isinstance(item.command, c.Enqueue)]


class Call:
    """A client that sends what `requests` has, and reads nothing but the first answer."""

    def __init__(self, requests: Iterator[pb.SessionRequest]) -> None:
        self.requests = requests
        self.taken = 0
        self.released = 0
        self.answers = 0

    def peer(self) -> str:
        return "ipv4:10.0.0.7:1"

    async def write(self, response: pb.SessionResponse) -> None:
        self.answers += 1
        if self.answers > 1:
            await asyncio.get_running_loop().create_future()

    def __aiter__(self) -> AsyncIterator[pb.SessionRequest]:
        return self

    async def __anext__(self) -> pb.SessionRequest:
        await asyncio.sleep(0)
        self.taken += 1
        return next(self.requests)

    def release(self) -> None:
        self.released += 1


def on_session(
    requests: Iterator[pb.SessionRequest], run: Callable[[Hub, Driver, Call], Coroutine[Any, Any, None]]
) -> None:
    async def body() -> None:
        hub = Hub("n1", None, BatchLimits(10, 1_000, 1_000), WINDOW, 100 * WINDOW)  # type: ignore[arg-type]

        async def queue(name: str) -> CatalogQueue:
            return CatalogQueue(1, name, 1, (), c.QueueConfig(name))

        hub.requests.queue = queue  # type: ignore[method-assign]
        hub._dispatch([ev.StandingChanged("member")])
        driver, call = Driver(), Call(requests)
        hub.attach(driver)  # type: ignore[arg-type]
        session = asyncio.create_task(SessionCall(hub).run(call, call))  # type: ignore[arg-type]
        await run(hub, driver, call)
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)
        assert hub.publishing.used == 0, "what the session held is given back"

    asyncio.run(body())


async def until_it_rests(call: Call) -> None:
    taken = -1
    while call.taken != taken:
        taken = call.taken
        for _ in range(10):
            await asyncio.sleep(0)


def test_a_client_that_does_not_read_its_answers_is_not_read_past_a_megabyte_of_them() -> None:
    wrong = pb.SessionRequest(credit=pb.Credit(request_id=1, consumer_tag="\x01" * 255, credit_to=1))

    async def run(hub: Hub, driver: Driver, call: Call) -> None:
        await until_it_rests(call)
        assert 100 < call.taken < 7_000, "fewer than the outcomes that may wait"

    on_session(_after_open(repeat(wrong, 20_000)), run)


def _turn_of(tag: str, parts: int) -> pb.RequestTurn:
    disposition = pb.Disposition(consumer_tag=tag, request_id=1, attach=1, outcome=pb.Disposition.SETTLE)
    credit = pb.Credit(consumer_tag=tag, request_id=1, credit_to=1)
    return pb.RequestTurn(dispositions=[disposition] * (parts // 2), credits=[credit] * (parts // 2))


def test_others_run_while_a_turn_of_many_parts_is_carried_out() -> None:
    turn = pb.SessionRequest(turn=_turn_of("c", 2_000))

    async def run(hub: Hub, driver: Driver, call: Call) -> None:
        session = await _session_of(hub)
        session.consumers.by_tag["c"] = Consumer("c", 1, 1, 1)
        seen = [0]
        while seen[-1] < 2_000:
            await asyncio.sleep(0)
            seen.append(session._commands.under_way)
        assert max(after - before for before, after in pairwise(seen)) <= PARTS_AT_A_TIME

    on_session(_after_open(iter([turn])), run)


def test_a_turn_carries_out_its_settlements_before_its_batch() -> None:
    turn = _turn_of("c", 2)
    turn.publish.routing_key, turn.publish.first_sequence, turn.publish.lowest_unconfirmed = "q", 1, 1
    turn.publish.batch = BATCH

    async def run(hub: Hub, driver: Driver, call: Call) -> None:
        session = await _session_of(hub)
        session.consumers.by_tag["c"] = Consumer("c", 1, 1, 1)
        await until_it_rests(call)
        kinds = [type(each.command) for each in driver.submitted]
        assert kinds == [c.Settle, c.Credit, c.Enqueue]

    on_session(_after_open(iter([pb.SessionRequest(turn=turn)])), run)


def test_a_turn_of_many_parts_waits_while_the_client_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "MAX_UNSENT", 300)
    turn = pb.SessionRequest(turn=_turn_of("nobody", 2_000))

    async def run(hub: Hub, driver: Driver, call: Call) -> None:
        session = await _session_of(hub)
        await until_it_rests(call)
        assert 300 < len(session.outbox) <= 300 + PARTS_AT_A_TIME

    on_session(_after_open(iter([turn])), run)


async def _session_of(hub: Hub) -> ClientSession:
    while True:
        for session in hub.sessions.all():
            if isinstance(session, ClientSession):
                return session
        await asyncio.sleep(0)


def test_a_session_past_its_window_is_not_read_and_keeps_no_request() -> None:
    def publishes() -> Iterator[pb.SessionRequest]:
        for first in count(1):
            publish = pb.PublishBatch(
                routing_key="q", first_sequence=first, lowest_unconfirmed=1, batch=BATCH
            )
            yield pb.SessionRequest(publish=publish)

    async def run(hub: Hub, driver: Driver, call: Call) -> None:
        await until_it_rests(call)
        assert len(driver.published) == 2, "the second one is past the window"
        assert call.released == 1
        submit = driver.published[0]
        hub._dispatch([ev.Answered(submit.session, submit.token, Confirmed(1, 1))])
        await until_it_rests(call)
        assert len(driver.published) == 3
        assert hub.publishing.used == 2 * len(BATCH)

    on_session(_after_open(publishes()), run)


def _after_open(requests: Iterator[pb.SessionRequest]) -> Iterator[pb.SessionRequest]:
    yield OPEN
    yield from requests
