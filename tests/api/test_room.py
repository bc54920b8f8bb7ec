"""Publishes while a member's disk is low: refused, except what the group has taken before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from google.rpc import code_pb2

from fifo import commands as c
from quorum.api.grpc.rpc_status import to_proto
from quorum.api.hub.hub import Hub
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import Confirms, Rejection, Span
from quorum.api.status import StatusError
from quorum.catalog.queues import CatalogQueue
from quorum.client.errors import PublishRejected, from_status, reason_of
from quorum.node import events as ev
from quorum.node.wire.batches import BatchLimits
from support.members.cluster import batch

WINDOW = 10_000
LOW = ev.DisksLow({1: (ev.LowDisk("n2", 12_345, 99_999), ev.LowDisk("n3", -1, 0))})
WELL = ev.DisksLow({})


class Driver:
    def __init__(self) -> None:
        self.items: list[ev.Input] = []

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.items += items

    @property
    def published(self) -> list[int]:
        """First client sequences of what went to the group."""
        commands = [item.command for item in self.items if isinstance(item, ev.Submit)]
        return [command.first_client_sequence for command in commands if isinstance(command, c.Enqueue)]


def with_session(
    run: Callable[[Hub, Driver, ClientSession], Coroutine[Any, Any, None]],
    *,
    epoch: int = 1,
    first_new: int = 0,
) -> None:
    async def body() -> None:
        hub = Hub("n1", None, BatchLimits(10, 100, 1_000), WINDOW, WINDOW)  # type: ignore[arg-type]
        driver = Driver()
        hub.attach(driver)  # type: ignore[arg-type]

        async def queue(name: str) -> CatalogQueue:
            number = int(name[-1])
            return CatalogQueue(number, name, number, (), c.QueueConfig(name))

        hub.requests.queue = queue  # type: ignore[method-assign]
        hub._dispatch([ev.StandingChanged("member")])
        session = ClientSession(hub)
        session.open(bytes(16), epoch, owner=7, first_new=first_new)
        await run(hub, driver, session)

    asyncio.run(body())


async def publish(
    session: ClientSession, first: int, *, queue: str = "q1", lowest: int = 1
) -> Rejection | None:
    """The rejection, or None if it went to the group."""
    await session.publisher.publish(queue, first, lowest, batch([b"a", b"b"]))
    decisions = [each for each in session.outbox.take() if isinstance(each, Confirms)]
    return decisions[0].rejected[0] if decisions else None


def test_a_new_batch_is_refused_with_the_member_and_the_limit_and_its_numbers_count_as_used() -> None:
    async def run(hub: Hub, driver: Driver, session: ClientSession) -> None:
        hub._dispatch([LOW])
        rejection = await publish(session, 1)
        assert rejection is not None
        assert rejection.span == Span(1, 2)
        assert rejection.why.code == code_pb2.RESOURCE_EXHAUSTED
        reason, metadata = reason_of(to_proto(rejection.why))
        assert (reason, metadata) == (
            "DISK_LOW",
            {"member": "n2", "free_bytes": "12345", "limit_bytes": "99999"},
        )
        for said in ("n2, n3", "12345 bytes free", "disk_free_limit_bytes is 99999"):
            assert said in rejection.why.message
        again = await publish(session, 1)
        assert again is not None
        assert again.why.reason == "wrong_sequence"
        assert driver.published == []
        assert await publish(session, 3, queue="q2") is None, "groups whose voters have room go on"
        hub._dispatch([WELL])
        assert await publish(session, 5) is None
        assert driver.published == [3, 5]

    with_session(run)


@pytest.mark.parametrize(("epoch", "first_new"), [(1, 0), (2, 45)])
def test_what_the_client_says_to_be_new_is_refused_without_asking_the_group(
    epoch: int, first_new: int
) -> None:
    async def run(hub: Hub, driver: Driver, session: ClientSession) -> None:
        hub._dispatch([LOW])
        assert await publish(session, 45) is not None
        assert not [item for item in driver.items if isinstance(item, ev.Submit)]

    with_session(run, epoch=epoch, first_new=first_new)


def test_a_unary_publish_is_refused_before_it_is_numbered() -> None:
    async def run(hub: Hub, driver: Driver, session: ClientSession) -> None:
        hub._dispatch([LOW])
        with pytest.raises(StatusError) as refused:
            await hub.own_session.publish(1, c.Enqueue(1, 0, 0, 1, 1), b"x")
        assert refused.value.status.code == code_pb2.RESOURCE_EXHAUSTED
        assert not isinstance(from_status(to_proto(refused.value.status)), PublishRejected)
        hub._dispatch([WELL])
        task = asyncio.create_task(hub.own_session.publish(1, c.Enqueue(1, 0, 0, 1, 1), b"x"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert driver.published == [1], "no number was spent on the refused one"
        task.cancel()

    with_session(run)


def test_a_node_that_its_disk_leaves_behind_sends_its_sessions_and_calls_elsewhere() -> None:
    async def run(hub: Hub, driver: Driver, session: ClientSession) -> None:
        call = asyncio.create_task(hub.own_session.call(1, c.Wake()))
        await asyncio.sleep(0)
        hub.leave("disk_full")
        with pytest.raises(StatusError) as ended:
            await anext(session.outcomes())
        assert ended.value.status.code == code_pb2.UNAVAILABLE
        with pytest.raises(StatusError, match="disk is full"):
            await call
        sessions = len([item for item in driver.items if isinstance(item, ev.OpenSession)])
        hub.leave("disk_full")
        again = len([item for item in driver.items if isinstance(item, ev.OpenSession)])
        assert again == sessions, "without calls that wait, the node's own session stays"

    with_session(run)
