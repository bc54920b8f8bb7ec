"""A process of the simulation: a loop, a clock, and whether it runs, stands still or is dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulator.machines.loop import NEVER, Clock, SimLoop

if TYPE_CHECKING:
    from simulator.world import World


class Process:
    def __init__(self, world: World, name: str, clock: Clock) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.loop = SimLoop(clock, lambda what: world.defect(f"{name}: {what}"))
        world.processes.append(self)
        self.is_up = True
        self.is_paused = False
        self.serial = world.next_number()
        """the order of processes that run at the same time"""
        self.queued_ms = NEVER
        """when the world will run it"""

    @property
    def runs(self) -> bool:
        return self.is_up and not self.is_paused

    def soon(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Something came for it: it is looked at when the process runs."""
        if self.is_up:
            self.loop.call_soon(work, *arguments)
            self.world.wake(self)

    def next_ms(self) -> int:
        """When it has something to do, in the world's time."""
        if not self.runs:
            return NEVER
        mine = self.loop.next_ms()
        if mine == NEVER:
            return NEVER
        return self.world.now_ms if mine < 0 else self.clock.world_ms(mine)

    def run(self) -> None:
        self.loop.run_now()

    def die(self) -> None:
        self.is_up = False
