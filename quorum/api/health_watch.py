"""Watches the member's health: publishes it, and ends the sessions that this node should not serve."""

from __future__ import annotations

import asyncio
from typing import Protocol

from quorum.api.health_log import HealthLog
from quorum.api.hub.hub import Hub
from quorum.node.queries import CheckHealth

STARTING_POLL_S, SERVING_POLL_S = 0.05, 0.5
"""Interval between two health queries, before this node serves and while it serves."""
UNANSWERED_S = 1.0
"""Time after which an unanswered query means NOT_SERVING: the Raft thread is stuck, for example in a write to a disk
that does not return. A step of a busy member takes milliseconds."""


class HealthService(Protocol):
    def set_serving(self, serving: bool) -> None: ...


async def watch_health(hub: Hub, service: HealthService) -> None:
    """Poll the member's health until cancelled, and log its changes.

    The health service reports SERVING while the member answers that it is ready (queries.CheckHealth). Sessions end in
    these cases:

    - the node's standing changes to anything but "member"
    - a lease has lapsed, which needs no answer of the Raft thread
    - the member names another reason to leave
    """
    standing, is_ready = "", False
    log, loop = HealthLog(), asyncio.get_running_loop()
    while True:
        ask = hub.requests.query_at_leisure if is_ready else hub.requests.query
        query = asyncio.ensure_future(ask(CheckHealth()))
        while not query.done():
            await asyncio.wait({query}, timeout=UNANSWERED_S)
            hub.check_leases()
            if not query.done():
                service.set_serving(False)
        health = query.result()
        log.follow(health, loop.time())
        if health.standing != standing:
            standing = health.standing
            if standing != "member":
                hub.leave(standing)
        if health.is_ready and not is_ready:
            hub.access.serves()
        is_ready = health.is_ready
        service.set_serving(is_ready)
        if health.reason_to_leave:
            hub.leave(health.reason_to_leave)
        await asyncio.sleep(SERVING_POLL_S if is_ready else STARTING_POLL_S)
