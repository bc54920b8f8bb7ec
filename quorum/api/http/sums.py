"""Sums over queues, as this member has them: for `/metrics` and for the page's overview."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

from fifo.results import QueueInfo, QueueTotals
from quorum.api.hub.hub import Hub
from quorum.catalog.queues import CatalogQueue
from quorum.node import queries as q

STATES = ("ready", "checked_out", "delayed", "dead")
EVENTS = tuple(each.name for each in fields(QueueTotals))
MAX_AGE_S = 1.9
"""Age at which sums are made again for the next request."""
REST = 10
"""Time from one making of the sums to the next, as a multiple of the time that it took. So it takes at most 10 % of the
time, however many queues there are: 10,000 take about 0.7 s."""


async def infos(hub: Hub, queues: list[CatalogQueue]) -> AsyncIterator[tuple[CatalogQueue, QueueInfo]]:
    """The counts of these queues, in parts that each cost the member one short step."""
    at = 0
    while at < len(queues):
        part = tuple(queues[at : at + q.PART_QUEUES])
        shown = await hub.requests.query(q.ListQueues(part, q.PART_BLOCKS))
        for queue, each in zip(part, shown, strict=False):
            if each is not None:
                yield queue, each.info
        at += max(len(shown), 1)


class Sum:
    """Sums over some queues."""

    def __init__(self) -> None:
        self.queues = self.consumers = self.ready_bytes = self.problems = 0
        self.states = dict.fromkeys(STATES, 0)
        self.events = dict.fromkeys(EVENTS, 0)

    def add(self, info: QueueInfo) -> None:
        self.queues += 1
        self.consumers += info.consumers
        self.ready_bytes += info.ready_bytes
        self.problems += bool(info.dead_letter_problem)
        for state in STATES:
            self.states[state] += getattr(info, state)
        for event in EVENTS:
            self.events[event] += getattr(info.totals, event)


class AllQueues:
    """The sum over all queues, made once for all pages that show it at the same time."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lock = asyncio.Lock()
        self._made: dict[str, Any] = {}
        self._fresh_until_s = 0.0

    async def shown(self) -> dict[str, Any]:
        """As JSON. at_ms: when it was made, by a clock of this member that only goes up."""
        async with self._lock:
            begun = time.monotonic()
            if begun < self._fresh_until_s:
                return self._made
            found = Sum()
            async for _, info in infos(self._hub, list(self._hub.catalog.queues())):
                found.add(info)
            end = time.monotonic()
            self._fresh_until_s = begun + max(MAX_AGE_S, REST * (end - begun))
            self._made = {
                "at_ms": int(begun * 1000),
                "queues": found.queues,
                "consumers": found.consumers,
                "ready_bytes": found.ready_bytes,
                "dead_letter_problems": found.problems,
                **found.states,
                "totals": found.events,
            }
            return self._made
