"""Entries whose effect this member leaves out, because an operator says so by name (`--skip-entry GROUP:INDEX`).

It is the way back where an entry that was committed should never have been: every member is started with the same list
(the handshake refuses others), applies nothing of such an entry, and answers what it asked for with a refusal. The
snapshots taken afterwards do not contain it. It has to be all members and all entries alike, so a member refuses to
start where its list cannot be carried out: where the effect is in a snapshot here already, and where it has left out an
entry that its journal still holds and is not to leave out any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fifo.effects import Refused, Reply
from quorum.errors import ConfigError
from quorum.node.identity import Memory
from quorum.node.operations import Command, OperationError

REFUSED = Refused("bad_argument", "an operator has this entry left out (skip_entries)")


class Skipping:
    """One member's list. entries: as configured, (group, index)."""

    def __init__(self, entries: Sequence[tuple[int, int]], memory: Memory, logger: Any) -> None:
        self._entries = frozenset(entries)
        self._memory = memory
        self._logger = logger

    def check(self, group: int, snapshot_index: int, first_index: int) -> None:
        """At the start of a group's replica, before anything is applied; snapshot_index: what applying goes on from,
        first_index: the journal's first entry. Raises ConfigError."""
        done = {place for place in self._memory.skipped if place[0] == group}
        for place in sorted(self._entries - done):
            if place[0] == group and place[1] <= snapshot_index:
                raise ConfigError(
                    f"skip_entries: the effect of entry {shown(place)} is in a snapshot of this member already, which "
                    f"goes to entry {snapshot_index}; it cannot be left out any more"
                )
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
        """All groups were checked: what is left out from now on is remembered, durably."""
        if self._entries - set(self._memory.skipped):
            self._memory.skipped = tuple(sorted(self._entries | set(self._memory.skipped)))
            self._memory.save()
        for place in sorted(self._entries):
            self._logger.warning("entry is left out", entry=shown(place), reason="skip_entries names it")

    def replies(self, group: int, index: int, body: bytes | memoryview) -> list[tuple[Any, Reply]] | None:
        """Of an entry that is left out, what it asked for by (origin, refusal); None for any other entry."""
        if (group, index) not in self._entries:
            return None
        try:
            operations = Command(body).decode()
        except OperationError:
            operations = []
        names = ", ".join(type(each.command).__name__ for each in operations)
        self._logger.warning("entry left out", entry=shown((group, index)), commands=names)
        return [(each.origin, REFUSED) for each in operations if each.origin is not None]


def shown(place: tuple[int, int]) -> str:
    """GROUP:INDEX, as options have it."""
    return f"{place[0]}:{place[1]}"
