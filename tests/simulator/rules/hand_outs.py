"""When queues gave messages out: the world's time at which a leader wrote the entry.

A consumer timeout counts from then. Members apply the entry later if no majority runs in between, and the client gets
the delivery later still if its node lags behind or the client does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from fifo.commands import Meta
from fifo.effects import Deliver, Effect
from fifo.group_machine import GroupMachine
from quorum.node.replica.replica import Replica
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
        self._written: dict[tuple[int, int], int] = {}
        """(group, group time of an entry) -> the world's time"""
        self._applied_ms = 0
        """group time of the entry that a member applies"""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the run lasts, deliveries to attached consumers are noted. Every member computes every effect."""
        if not self._world.consumer_timeouts:
            yield
            return
        effect: Callable[[SessionTable, int, Effect], None] = SessionTable.effect
        propose, apply = Replica.propose, GroupMachine.apply

        def noted(table: SessionTable, group: int, what: Effect) -> None:
            self.gives_out(group, what)
            effect(table, group, what)

        def proposing(replica: Replica, *arguments: Any) -> None:
            propose(replica, *arguments)
            self.wrote(replica.number, replica.clock.last)

        def applying(machine: GroupMachine, meta: Meta, operations: Any) -> Any:
            self.applies(meta.now_ms)
            return apply(machine, meta, operations)

        with (
            mock.patch.object(SessionTable, "effect", noted),
            mock.patch.object(Replica, "propose", proposing),
            mock.patch.object(GroupMachine, "apply", applying),
        ):
            yield

    def wrote(self, group: int, group_ms: int) -> None:
        """A leader has written an entry with this group time, or does so no later."""
        self._written.setdefault((group, group_ms), self._world.now_ms)

    def applies(self, group_ms: int) -> None:
        """A member applies an entry with this group time; its effects follow."""
        self._applied_ms = group_ms

    def gives_out(self, group: int, what: Effect) -> None:
        if isinstance(what, Deliver) and what.attach:
            at_ms = self._written.get((group, self._applied_ms), self._world.now_ms)
            for offset in range(sum(run.count for run in what.runs)):
                held = what.consumer_tag, what.attach, what.first_tag + offset
                self._at_ms.setdefault(held, at_ms)

    def at_ms(self, held: Held) -> int:
        """When a queue gave this out; now, if that was not noted."""
        return self._at_ms.get(held, self._world.now_ms)
