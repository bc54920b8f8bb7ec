"""Publishes while a member's disk is low: refused, except what the group has taken before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from google.rpc import code_pb2

from fifo import commands as c
from quorum.api.hub import Hub
from quorum.api.session_service import Stream
from quorum.api.status import StatusError
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.queues import CatalogQueue
from quorum.client.errors import PublishRejected, from_status, reason_of
from quorum.node import events as ev
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import queue_pb2 as pb
from support.cluster import batch

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


class Opened:
    async def write(self, response: object) -> None:
        """What a stream answers first."""

    def peer(self) -> str:
        return "ipv4:10.0.0.7:51234"


def with_stream(
    run: Callable[[Hub, Driver, Stream], Coroutine[Any, Any, None]], *, epoch: int = 1, first_new: int = 0
) -> None:
    async def body() -> None:
        hub = Hub(None, None, BatchLimits(10, 100, 1_000), WINDOW, WINDOW)  # type: ignore[arg-type]
        driver = Driver()
        hub.attach(driver)  # type: ignore[arg-type]

        async def queue(name: str) -> CatalogQueue:
            number = int(name[-1])
            return CatalogQueue(number, name, number, (), c.QueueConfig(name))

        hub.queue = queue  # type: ignore[method-assign]
        hub.member = SimpleNamespace(  # type: ignore[assignment]
            config=SimpleNamespace(name="n1"),
            membership=SimpleNamespace(standing="member"),
            catalog=CatalogMachine((1, 2)),
        )
        stream = Stream(hub)
        hello = pb.Open(producer_id=bytes(16), epoch=epoch, first_new_sequence=first_new)

        async def requests() -> Any:
            yield pb.SessionRequest(open=hello)

        await stream._open(requests(), Opened())  # type: ignore[arg-type]
        await run(hub, driver, stream)

    asyncio.run(body())


async def publish(stream: Stream, first: int, *, queue: str = "q1", lowest: int = 1) -> pb.Rejection | None:
    """The rejection, or None if it went to the group."""
    before = len(stream._rejected)
    await stream._publish(
        pb.PublishBatch(
            queue=queue, first_sequence=first, lowest_unconfirmed=lowest, batch=batch([b"a", b"b"])
        )
    )
    return stream._rejected[-1] if len(stream._rejected) > before else None


def test_a_new_batch_is_refused_with_the_member_and_the_limit_and_its_numbers_count_as_used() -> None:
    async def run(hub: Hub, driver: Driver, stream: Stream) -> None:
        hub._dispatch([LOW])
        rejection = await publish(stream, 1)
        assert rejection is not None
        assert (rejection.range.first, rejection.range.last) == (1, 2)
        assert rejection.status.code == code_pb2.RESOURCE_EXHAUSTED
        reason, metadata = reason_of(rejection.status)
        assert (reason, metadata) == (
            "DISK_LOW",
            {"member": "n2", "free_bytes": "12345", "limit_bytes": "99999"},
        )
        for said in ("n2, n3", "12345 bytes free", "disk_free_limit_bytes is 99999"):
            assert said in rejection.status.message
        again = await publish(stream, 1)
        assert again is not None
        assert reason_of(again.status)[0] == "WRONG_SEQUENCE"
        assert driver.published == []
        assert await publish(stream, 3, queue="q2") is None, "groups whose voters have room go on"
        hub._dispatch([WELL])
        assert await publish(stream, 5) is None
        assert driver.published == [3, 5]

    with_stream(run)


@pytest.mark.parametrize(("epoch", "first_new"), [(1, 0), (2, 45)])
def test_what_the_client_says_to_be_new_is_refused_without_asking_the_group(
    epoch: int, first_new: int
) -> None:
    async def run(hub: Hub, driver: Driver, stream: Stream) -> None:
        hub._dispatch([LOW])
        assert await publish(stream, 45) is not None
        assert not [item for item in driver.items if isinstance(item, ev.Submit)]

    with_stream(run, epoch=epoch, first_new=first_new)


def test_a_unary_publish_is_refused_before_it_is_numbered() -> None:
    async def run(hub: Hub, driver: Driver, stream: Stream) -> None:
        hub._dispatch([LOW])
        with pytest.raises(StatusError) as refused:
            await hub.publish(1, lambda first, lowest: c.Enqueue(1, first, lowest, 1, 1), b"x", 1)
        assert refused.value.status.code == code_pb2.RESOURCE_EXHAUSTED
        assert not isinstance(from_status(refused.value.status), PublishRejected)
        hub._dispatch([WELL])
        task = asyncio.create_task(
            hub.publish(1, lambda first, lowest: c.Enqueue(1, first, lowest, 1, 1), b"x", 1)
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert driver.published == [1], "no number was spent on the refused one"
        task.cancel()

    with_stream(run)


def test_a_node_that_its_disk_leaves_behind_sends_its_sessions_and_calls_elsewhere() -> None:
    async def run(hub: Hub, driver: Driver, stream: Stream) -> None:
        call = asyncio.create_task(hub.call(1, c.Wake()))
        await asyncio.sleep(0)
        hub.leave("disk_full")
        assert stream._ended is not None
        assert stream._ended.status.code == code_pb2.UNAVAILABLE
        with pytest.raises(StatusError, match="disk is full"):
            await call
        sessions = len([item for item in driver.items if isinstance(item, ev.OpenSession)])
        hub.leave("disk_full")
        again = len([item for item in driver.items if isinstance(item, ev.OpenSession)])
        assert again == sessions, "without calls that wait, the node's own session stays"

    with_stream(run)
