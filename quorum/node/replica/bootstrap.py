"""The initial state of a group here (an empty machine), and a new replica in place of one whose journal is unusable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION, Limits
from quorum.catalog.machine import CatalogMachine
from quorum.log import Log
from quorum.node.replica.checkpoints import LogPages
from quorum.node.replica.replica import SYSTEM_GROUP, FieldSource, empty_state
from quorum.replication.configuration import Configuration, wrap_state
from quorum.replication.journal_view import QUARANTINED


class Bootstrap:
    """For the groups of one node."""

    def __init__(
        self,
        log: Log,
        members: Sequence[str],
        queue_groups: int,
        logger: Any,
        limits: Limits = PRODUCTION,
    ) -> None:
        """members: the voters that the cluster began with."""
        self._log = log
        self._members = members
        self._queue_groups = queue_groups
        self._logger = logger
        self._limits = limits

    def empty_machine(self, number: int) -> GroupMachine | CatalogMachine:
        """The machine of a group in which nothing was applied."""
        if number == SYSTEM_GROUP:
            return CatalogMachine(tuple(range(1, self._queue_groups + 1)), self._limits.newest_version)
        return GroupMachine(FieldSource(self._log, number), LogPages(self._log, number), self._limits)

    def lose_replica(self, number: int, reason: str) -> None:
        """Replaces a replica that has no usable snapshot from which its journal continues by a new one, quarantined.
        The mark is on disk before any data is given up."""
        self._logger.error("replica lost", group=number, reason=reason)
        journal = self._log.journal(number)
        quarantine(self._log, number)
        self._log.sync()
        journal.discard_snapshots(reason)
        state = wrap_state(
            Configuration(tuple(sorted(self._members))), empty_state(self.empty_machine(number))
        )
        journal.save_snapshot(1, 0, state)
        journal.reset_to_snapshot(1, 0)
        self._log.sync()


def quarantine(log: Log, group: int) -> None:
    """Marks the group's replica as one that has lost what it promised; to be synced."""
    journal = log.journal(group)
    journal.set_hard_state(journal.hard_state[0], QUARANTINED)
