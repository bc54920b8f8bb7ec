"""Entries whose effect this member leaves out, because an operator names them (`--skip-entry GROUP:INDEX`).

This recovers a cluster in which an entry was committed that should never have been. Every member is started with the
same list (the handshake refuses others). It applies such an entry without its commands of members and policies, and
answers those with a refusal. Every other operation of the entry is carried out. The ones left out keep their numbers in
their sessions, so that later entries have the effect that they had (CatalogMachine.leave_out). Entries of other
commands, and of queue groups, are refused: later confirmed operations would be lost with them.

The snapshots taken afterwards do not contain the omitted effects. All members must leave out the same entries, so a
member refuses to start where its list cannot be carried out: where the effect is in a snapshot here already, and where
it has left out an entry that its journal still holds and that the list no longer names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fifo.commands import Operation
from quorum.catalog.machine import MAY_BE_LEFT_OUT
from quorum.errors import ConfigError
from quorum.log import EntryMissing, Log, LogDamaged
from quorum.node.identity.identity import NodeState
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire.operations import Command, OperationError
from quorum.replication.codec import COMMAND


class SkippedEntries:
    """One member's list. entries: as configured, (group, index)."""

    def __init__(self, entries: Sequence[tuple[int, int]], node_state: NodeState, logger: Any) -> None:
        for place in entries:
            if place[0] != SYSTEM_GROUP:
                raise ConfigError(
                    f"skip_entries: entry {shown(place)} cannot be left out, because later entries of a group of "
                    f"queues build on it; only entries of the system group can, group {SYSTEM_GROUP}"
                )
        self._entries = frozenset(entries)
        self._node_state = node_state
        self._logger = logger

    def check(self, log: Log, group: int, snapshot_index: int) -> None:
        """Checks the list at the start of a group's replica, before anything is applied. snapshot_index: the snapshot
        from which applying continues. Raises ConfigError."""
        first_index = log.journal(group).first_index
        done = {place for place in self._node_state.skipped if place[0] == group}
        for place in sorted(self._entries - done):
            if place[0] == group and place[1] <= snapshot_index:
                raise ConfigError(
                    f"skip_entries: the effect of entry {shown(place)} is in a snapshot of this member already, which "
                    f"goes to entry {snapshot_index}; it cannot be left out any more"
                )
        for place in sorted(self._entries):
            if place[0] == group == SYSTEM_GROUP and place[1] > snapshot_index:
                _check_commands(log, place[1])
        for place in sorted(done - self._entries):
            if self.is_needed(place[1], snapshot_index, first_index):
                raise ConfigError(
                    f"skip_entries: this member has left out entry {shown(place)} and its log still has it; start it "
                    f"with --skip-entry {shown(place)} until quorum cluster status no longer shows it"
                )

    @staticmethod
    def is_needed(index: int, snapshot_index: int, first_index: int) -> bool:
        """Whether the entry could still be applied, here or by a member that is sent it."""
        return index >= first_index or index > snapshot_index

    def begin(self) -> None:
        """All groups were checked: stores durably which entries are left out from now on."""
        if self._entries - set(self._node_state.skipped):
            self._node_state.skipped = tuple(sorted(self._entries | set(self._node_state.skipped)))
            self._node_state.save()
        for place in sorted(self._entries):
            self._logger.warning("entry is left out", entry=shown(place), reason="skip_entries names it")

    def names(self, index: int, operations: Sequence[Operation]) -> bool:
        """Whether this entry of the system group is on the list; says so to the operator."""
        if (SYSTEM_GROUP, index) not in self._entries:
            return False
        commands = ", ".join(
            type(each.command).__name__ for each in operations if isinstance(each.command, MAY_BE_LEFT_OUT)
        )
        self._logger.warning("entry left out", entry=shown((SYSTEM_GROUP, index)), commands=commands)
        return True


def _check_commands(log: Log, index: int) -> None:
    """Checks that an entry of the system group has something that may be left out. An entry that is not here yet is
    checked when it is applied."""
    try:
        body = log.read(SYSTEM_GROUP, index)
        operations = Command(memoryview(body)[1:]).decode() if body[0] == COMMAND else []
    except (EntryMissing, LogDamaged):
        return
    except OperationError as error:
        raise ConfigError(
            f"skip_entries: entry {shown((SYSTEM_GROUP, index))} cannot be read: {error}"
        ) from error
    found = [type(each.command) for each in operations]
    if not any(issubclass(each, MAY_BE_LEFT_OUT) for each in found):
        raise ConfigError(
            f"skip_entries: entry {shown((SYSTEM_GROUP, index))} has "
            f"{', '.join(each.__name__ for each in found) or 'no command'}; "
            f"what can be left out: {', '.join(each.__name__ for each in MAY_BE_LEFT_OUT)}"
        )


def shown(place: tuple[int, int]) -> str:
    """GROUP:INDEX, as options have it."""
    return f"{place[0]}:{place[1]}"
