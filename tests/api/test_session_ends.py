"""How a stream ends, whose it is, and what it answers about batches that were taken in part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.rpc import code_pb2

from fifo import commands as c
from fifo.effects import Confirmed, Refused
from quorum.api.hub.filters import SelectorText
from quorum.api.hub.hub import Hub
from quorum.api.owners import owner_of
from quorum.api.services.session_service import SessionCall
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import Confirms, Failed, Span
from quorum.api.session.publisher import _Published
from quorum.catalog.queues import CatalogQueue
from quorum.node import events as ev
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import queue_pb2 as pb
from support import virtual_time
from support.members.cluster import batch

OPEN = pb.SessionRequest(open=pb.Open(producer_id=bytes(16), epoch=1))
CLOSE = pb.SessionRequest(close=pb.Close())
PUBLISH = pb.SessionRequest(
    publish=pb.PublishBatch(routing_key="q1", first_sequence=1, lowest_unconfirmed=1, batch=batch([b"a"]))
)


class Driver:
    """The Raft thread: takes what is submitted, and confirms publishes if it is asked to."""

    def __init__(self, hub: Hub, confirms: bool) -> None:
        self.hub, self.confirms = hub, confirms
        self.items: list[ev.Input] = []

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.items += items
        for item in items:
            if self.confirms and isinstance(item, ev.Submit) and isinstance(item.command, c.Enqueue):
                reply = Confirmed(item.command.first_client_sequence, item.command.first_client_sequence)
                self.hub.on_outputs([ev.Answered(item.session, item.token, reply)])

    def last(self, kind: type) -> Any:
        return [item for item in self.items if isinstance(item, kind)][-1]


class Context:
    """One call: requests come one at a time, each `publish` waits until it was answered."""

    def __init__(self, *requests: pb.SessionRequest, waits: bool) -> None:
        self.requests, self.waits = requests, waits
        self.responses: list[pb.SessionResponse] = []

    def peer(self) -> str:
        return "ipv4:10.0.0.7:51234"

    async def write(self, response: pb.SessionResponse) -> None:
        self.responses.append(response)

    async def abort_with_status(self, ended: Any) -> None:
        raise AssertionError(ended)

    async def __aiter__(self) -> AsyncIterator[pb.SessionRequest]:
        for request in self.requests:
            yield request
            while self.waits and len(self.responses) < 1 + (request is PUBLISH):
                await asyncio.sleep(0)


def new_hub() -> Hub:
    hub = Hub("n1", None, BatchLimits(10, 100, 1_000), 10_000, 10_000)  # type: ignore[arg-type]

    async def queue(name: str) -> CatalogQueue:
        return CatalogQueue(1, name, 1, (), c.QueueConfig(name, filter_enabled=name == "filtered"))

    hub.requests.queue = queue  # type: ignore[method-assign]
    hub._dispatch([ev.StandingChanged("member")])
    return hub


def ended(*requests: pb.SessionRequest, waits: bool = True, confirms: bool = True) -> Driver:
    """What the Raft thread has heard when the stream is over."""

    async def body() -> Driver:
        hub = new_hub()
        driver = Driver(hub, confirms)
        hub.attach(driver)  # type: ignore[arg-type]
        context: Any = Context(OPEN, *requests, waits=waits)
        running = asyncio.create_task(SessionCall(hub).run(aiter(context), context))
        if not confirms:
            await asyncio.sleep(0.01)  # until everything waits
            running.cancel()
        await asyncio.gather(running, return_exceptions=not confirms)
        return driver

    return virtual_time.run(body())


def test_a_session_ends_cleanly_when_its_client_says_that_everything_is_decided() -> None:
    assert ended(PUBLISH, CLOSE).last(ev.EndSession).is_clean


def test_a_stream_that_just_ends_is_remembered() -> None:
    assert not ended(PUBLISH).last(ev.EndSession).is_clean


def test_a_close_before_the_answers_does_not_count() -> None:
    driver = ended(PUBLISH, CLOSE, waits=False, confirms=False)
    assert not driver.last(ev.EndSession).is_clean


def test_a_stream_whose_requests_are_cancelled_ends() -> None:
    async def requests() -> AsyncIterator[pb.SessionRequest]:
        yield OPEN
        raise asyncio.CancelledError

    async def body() -> None:
        hub = new_hub()
        hub.attach(Driver(hub, confirms=False))  # type: ignore[arg-type]
        context: Any = Context(waits=False)
        running = asyncio.create_task(SessionCall(hub).run(requests(), context))
        await asyncio.wait({running}, timeout=60)
        assert running.cancelled()

    asyncio.run(body())


def test_a_session_is_its_clients_and_the_nodes_own_is_the_nodes() -> None:
    driver = ended()
    own, client = [item for item in driver.items if isinstance(item, ev.OpenSession)]
    assert own.owner == c.NODE
    assert client.owner == owner_of("ipv4:10.0.0.7:1")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("ipv4:10.0.0.7:51234", "ipv4:10.0.0.7:2", True),
        ("ipv4:10.0.0.7:51234", "ipv4:10.0.0.8:51234", False),
        ("ipv4:10.0.0.7:51234", "ipv6:%5B::ffff:10.0.0.7%5D:51234", True),
        ("ipv6:%5B2001:db8::1%5D:51234", "ipv6:[2001:db8::ffff:2]:7", True),
        ("ipv6:%5B2001:db8::1%5D:51234", "ipv6:%5B2001:db8:0:1::1%5D:51234", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:51234", "ipv6:%5Bfe80::1%5D:51234", True),
        ("unix:/tmp/one", "unix:/tmp/other", False),
        ("", "ipv4:nonsense:1", False),
    ],
)
def test_an_owner_is_an_address_or_a_network_of_ipv6(one: str, other: str, is_same: bool) -> None:
    assert (owner_of(one) == owner_of(other)) == is_same
    assert c.UNKNOWN < owner_of(one) < 1 << 64


def on_session(scenario: Callable[[ClientSession, Driver], Any]) -> None:
    async def body() -> None:
        hub = new_hub()
        driver = Driver(hub, confirms=False)
        hub.attach(driver)  # type: ignore[arg-type]
        await scenario(ClientSession(hub), driver)

    asyncio.run(body())


def test_a_batch_taken_in_part_is_confirmed_and_rejected_in_part() -> None:
    async def scenario(session: ClientSession, driver: Driver) -> None:
        why = Refused("refused_earlier", "a later one was taken")
        full = Refused("queue_full", "full")
        queue = await session._hub.requests.queue("q1")
        token = _Published(session.publisher, queue.group, (queue,), ((1, 9),), 0, 0, session.outbox)
        session.answered(token, Confirmed(1, 9, ((1, 2, why), (5, 5, why), (8, 9, full))))
        [confirms] = session.outbox.take()
        assert isinstance(confirms, Confirms)
        assert confirms.confirmed == (Span(3, 4), Span(6, 7))
        assert [(each.span, each.why.reason, each.why.code) for each in confirms.rejected] == [
            (Span(1, 2), "refused_earlier", code_pb2.FAILED_PRECONDITION),
            (Span(5, 5), "refused_earlier", code_pb2.FAILED_PRECONDITION),
            (Span(8, 9), "queue_full", code_pb2.RESOURCE_EXHAUSTED),
        ]

    on_session(scenario)


def test_a_selector_too_large_for_its_encoding_is_refused_and_the_session_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorum_selectors.canonical.MAX_ENCODED_BYTES", 10)

    async def scenario(session: ClientSession, driver: Driver) -> None:
        await session.consumers.attach(1, "t", "filtered", SelectorText("colour = 'very red'"), 0)
        [failed] = session.outbox.take()
        assert isinstance(failed, Failed)
        assert (failed.request_id, failed.why.code) == (1, code_pb2.INVALID_ARGUMENT)

    on_session(scenario)
