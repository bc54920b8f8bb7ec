"""The state that this node's member publishes beside the catalog: leases, low disks, standing, machine version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fifo import commands as c
from fifo.versions import BASE
from quorum.api import status
from quorum.catalog.commands import CatalogCommand
from quorum.node import events as ev
from quorum.node.wire.operations import needed_version

LEASE_LIMIT_S, LEASE_POLL_S = 3.0, 0.05
"""How long a get waits for the lease of its queue's group, and between two looks at it."""


class PublishedState:
    """Owned by the event loop; only published outputs change it."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """clock_s: the member's clock, as its driver reads it."""
        self._clock_s = clock_s
        self._lease_until: dict[int, int] = {}
        self._low_disks: Mapping[int, tuple[ev.LowDisk, ...]] = {}
        self._standing = "meeting"
        """What this node is to its cluster (node/queries.STANDINGS)."""
        self._version = BASE
        """The machine version that the cluster uses."""
        self._died: dict[tuple[int, int], None] = {}
        self._has_died = asyncio.Event()

    # ---- outputs of the member

    def lease_granted(self, output: ev.LeaseGranted) -> None:
        self._lease_until[output.group] = output.until_ms

    def lease_lapsed(self, output: ev.LeaseLapsed) -> None:
        self._lease_until.pop(output.group, None)

    def disks_low(self, output: ev.DisksLow) -> None:
        self._low_disks = output.groups

    def standing_changed(self, output: ev.StandingChanged) -> None:
        self._standing = output.standing

    def version_changed(self, output: ev.VersionChanged) -> None:
        self._version = output.version

    def messages_died(self, output: ev.MessagesDied) -> None:
        self._died.update(dict.fromkeys([(output.group, queue) for queue in output.queues]))
        self._has_died.set()

    # ---- questions

    async def new_dead_queues(self) -> list[tuple[int, int]]:
        """The queues (group, id) that have got their first dead message since the last call, as soon as there is
        one."""
        await self._has_died.wait()
        self._has_died.clear()
        found = list(self._died)
        self._died.clear()
        return found

    def may_deliver(self, group: int) -> bool:
        """Whether this node's lease on the group still holds, now."""
        return self._clock_s() * 1000 < self._lease_until.get(group, 0)

    async def await_lease(self, group: int) -> bool:
        """Wait until this node may deliver from the group; it has just started if it may not. False if that takes too
        long. A get waits for it before it takes messages that are settled at once: they would be lost."""
        left = LEASE_LIMIT_S
        while not self.may_deliver(group):
            if left <= 0:
                return False
            left -= LEASE_POLL_S
            await asyncio.sleep(LEASE_POLL_S)
        return True

    def refusal(self) -> str | None:
        """Why this node opens no sessions now, None if it does."""
        return None if self._standing == "member" else self._standing

    def check_disks(self, group: int) -> None:
        """StatusError if a voter of the group has too little space on its disk for more messages."""
        low = self._low_disks.get(group)
        if low:
            raise status.disk_low(low)

    @property
    def version(self) -> int:
        """The machine version that the cluster uses."""
        return self._version

    def check_version(self, command: c.Command | CatalogCommand) -> None:
        """StatusError if the cluster has not switched to the machine version yet that the command needs."""
        needed = needed_version(command)
        if needed > self._version:
            raise status.old_version(type(command).__name__, needed, self._version)
