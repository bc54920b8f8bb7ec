"""A queue with priorities as its clients see it: through the services of a member."""

from __future__ import annotations

import pytest

from quorum.api.services import queue_service
from quorum.v1 import queue_pb2 as pb
from support.members.services import Api, Context, collected, with_queue

LARGE = 1_000
"""Bytes of a message; a get takes less than two of them at a time."""


async def publish(api: Api, *messages: tuple[bytes, int | None]) -> None:
    made = [
        pb.Message(body=body, properties=None if priority is None else pb.Properties(priority=priority))
        for body, priority in messages
    ]
    await api.publish(*made)


def test_urgent_messages_are_first_and_are_counted_by_priority() -> None:
    async def run(api: Api) -> None:
        await publish(api, (b"a", None), (b"b", 3), (b"c", 200), (b"d", 9), (b"e", 3))
        await publish(api, (b"f", 3))
        counts = [(each.priority, each.ready) for each in (await api.info()).ready_by_priority]
        assert counts == [(9, 2), (3, 3), (0, 1)]
        found = await api.call(
            collected(api.queues.Browse(pb.BrowseRequest(queue="orders"), Context()))  # type: ignore[arg-type]
        )
        shown = [each.message for response in found for each in response.messages]
        assert [each.body for each in shown] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert shown[2].properties.priority == 200
        assert await api.get(3) == [b"c", b"d", b"b"]
        assert await api.get(10) == [b"e", b"f", b"a"]

    with_queue(run, max_priority=9)


def test_a_get_counts_the_bytes_of_the_messages_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_service, "GET_BYTES", 2 * LARGE)

    async def run(api: Api) -> None:
        for number in range(3):
            await publish(api, (b"%d" % number, None))
        for _ in range(2):
            await publish(api, (bytes(LARGE), 5))
        assert [len(body) for body in await api.get(5)] == [LARGE]
        assert [len(body) for body in await api.get(5)] == [LARGE, 1, 1, 1]

    with_queue(run, max_priority=9)


def test_a_queue_without_priorities_shows_none() -> None:
    async def run(api: Api) -> None:
        await publish(api, (b"a", None), (b"b", 9))
        assert not (await api.info()).ready_by_priority
        assert await api.get(2) == [b"a", b"b"]

    with_queue(run)
