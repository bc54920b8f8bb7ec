"""Lease times that are raised and lowered while members hold leases and faults strike.

A node's hub sends the command, as it does for the service's call. The first change lowers them. A change is asked for
when all members are there and agree on the times, and other faults come far apart in these seeds. Just after it a
member is cut off or paused, because a lease that was granted before the change may still be held then.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc

from quorum.api.status import StatusError
from quorum.catalog.lease_times import LeaseSettings, SetLeaseTimes

if TYPE_CHECKING:
    from simulator.machines.node import Node
    from simulator.world import World

PART = 0.25
"""Of all seeds."""
SCENARIO = "leases"
FIRST_LEASE_MS = 4_000
GAPS_MS = (100, 300, 900)
SHORT_MS = (500, 700)
LONG_MS = (3_000, 4_000)
STEP_DOWNS_MS = (500, 1_500)
ANSWER_S = 3.0
CUT_PART = 0.7
"""Of the struck members; the others are paused."""
STRIKE_MS = (20, 150, 500)
STRUCK_MS = (2_000, 3_000, 4_000)


class LeaseChanges:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.random_of("lease times")
        self._is_short = False
        self.has_any = self._chance.random() < PART or world.build.scenario == SCENARIO

    def begin(self) -> None:
        if self.has_any:
            self._world.faults.calm_down()
            self._next()

    def _next(self) -> None:
        if not self._world.faults.is_over:
            self._world.after(self._chance.choice(GAPS_MS), self._change)

    def _running(self) -> list[Node]:
        return [] if self._world.faults.is_over else [each for each in self._world.members() if each.runs]

    def _change(self) -> None:
        world, chance, running = self._world, self._chance, self._running()
        newest = self._newest()
        is_calm = len(running) == len(world.changes.wished) and all(
            each.member.is_ready() for each in running
        )
        if is_calm and newest is not None and newest.is_settled:
            self._is_short = not self._is_short
            lease_ms = chance.choice(SHORT_MS if self._is_short else LONG_MS)
            command = SetLeaseTimes(lease_ms, chance.choice(STEP_DOWNS_MS))
            node = chance.choice(running)
            world.tell(f"{node.name} asks for {command}")
            node.soon(lambda: node.loop.create_task(self._ask(node, command)))
            world.after(chance.choice(STRIKE_MS), self._strike)
        self._next()

    async def _ask(self, node: Node, command: SetLeaseTimes) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await node.hub.own_session.change(lambda catalog: replace(command, seen=catalog.changes))
        except TimeoutError:
            return
        except StatusError as error:
            if error.status.code != grpc.StatusCode.UNAVAILABLE.value[0]:
                raise

    def _strike(self) -> None:
        """A member whose consumers hold messages, if there is one."""
        holding = [
            connection.node
            for connection in self._world.connections
            if connection.served is not None and connection.served.held and connection.node.runs
        ]
        running = self._running()
        if running:
            node, for_ms = self._chance.choice(holding or running), self._chance.choice(STRUCK_MS)
            if self._chance.random() < CUT_PART and len(self._world.nodes) > 1:
                self._world.faults.cut_off(node, for_ms)
            else:
                self._world.pause(node, for_ms)

    def _newest(self) -> LeaseSettings | None:
        found = [node.member.catalog.lease_settings for node in self._world.members()]
        return max((each for each in found if each is not None), key=lambda each: each.revision, default=None)

    @property
    def is_settled(self) -> bool:
        """All members use the newest times. A member that stays dead never says so."""
        newest = self._newest()
        return bool(self._world.left_dead) or (newest is not None and newest.is_settled)

    def count(self) -> None:
        """In the end. The first times were no change."""
        newest = self._newest()
        if newest is not None:
            self._world.rules.counts["lease times changed or settled"] += newest.revision - 1
