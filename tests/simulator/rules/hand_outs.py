"""When queues gave messages out: the world's time at which the first member applied the entry.

A consumer timeout counts from then. The client gets the delivery later if its node lags behind or the client does not
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from fifo.effects import Deliver, Effect
from quorum.node.sessions.session_table import SessionTable

if TYPE_CHECKING:
    from simulator.world import World

Held = tuple[str, int, int]
"""(consumer tag, attach, delivery tag)"""


class HandOuts:
    """Keeps these times in a world that has a queue with a consumer timeout. In other worlds it keeps nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at_ms: dict[Held, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the run lasts, deliveries to attached consumers are noted. Every member computes every effect."""
        if not self._world.consumer_timeouts:
            yield
            return
        effect: Callable[[SessionTable, int, Effect], None] = SessionTable.effect

        def noted(table: SessionTable, group: int, what: Effect) -> None:
            if isinstance(what, Deliver) and what.attach:
                for offset in range(sum(run.count for run in what.runs)):
                    held = what.consumer_tag, what.attach, what.first_tag + offset
                    self._at_ms.setdefault(held, self._world.now_ms)
            effect(table, group, what)

        with mock.patch.object(SessionTable, "effect", noted):
            yield

    def at_ms(self, held: Held) -> int:
        """When a queue gave this out; now, if that was not noted."""
        return self._at_ms.get(held, self._world.now_ms)
