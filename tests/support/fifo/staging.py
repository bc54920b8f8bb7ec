"""What tests of staged messages share."""

from __future__ import annotations

from typing import Any

from fifo.effects import Deliver, Refused, Reply
from fifo.limits import PRODUCTION, Limits
from fifo.queries import group as queries
from fifo.results import BrowsePage
from support.fifo.world import World, bodies, selector

RED, GREEN = {"application-properties.colour": "red"}, {"application-properties.colour": "green"}


def prepared(limits: Limits = PRODUCTION, **arguments: Any) -> tuple[World, bytes]:
    world = World(limits)
    world.queue(**arguments)
    return world, world.session()


def waiting(world: World, text: str = "", queue: int = 1) -> list[tuple[int, int, int, int]]:
    """(sequence, index, operation, ordinal) of all that is ready."""
    found, start = [], 0
    while start is not None:
        page = queries.browse(world.machine, queue, start, 1_000_000, selector(text))
        assert isinstance(page, BrowsePage)
        found += bodies(Deliver(None, 1, "", 0, 0, page.runs))  # type: ignore[arg-type]
        start = page.next_sequence  # type: ignore[assignment]
    return found


def refused(reply: Reply | None, reason: str) -> str:
    assert isinstance(reply, Refused)
    assert reply.reason == reason
    return reply.detail


def reply_to_publish(
    world: World, name: bytes, batch: int, *parts: tuple[int, int], **more: Any
) -> Reply | None:
    return world.publish_staged(name, batch, *parts, **more).replies[0]
