"""What is damaged here goes to the healer, and while it is others are to lead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from quorum.log import Damage, Log
from quorum.node.healing import Healer
from quorum.node.replica import Replica

HANDICAP = 2
"""While something of a group is damaged here, this member runs for office so many longest election timeouts later than
another one would."""
STALLED_LEADER_MS = 500
"""A leader that waits for longer than this for a body hands its office to a member that need not."""


def is_needed(log: Log, replica: Replica, index: int) -> bool:
    """Whether the journal or a state that counts has this entry."""
    first = log.journal(replica.number).first_index
    return index >= first or index == replica.stalled or replica.checkpoints.refer_to(index)


class DamageCare:
    """See the module's text."""

    def __init__(
        self,
        log: Log,
        replicas: Mapping[int, Replica],
        logger: Any,
        election_max_s: float,
        healer: Healer,
        successors: Callable[[int], Sequence[str]],
    ) -> None:
        """successors(group): who might lead it instead."""
        self._log = log
        self._replicas = replicas
        self._logger = logger
        self._election_max_s = election_max_s
        self._successors = successors
        self._healer = healer

    def review(self) -> None:
        """What the log has found to be bad, at opening, while it checks itself, or when somebody has read it."""
        self._healer.review()
        for damage, (group, term, index) in self._damaged_bodies():
            if group in self._replicas and is_needed(self._log, self._replicas[group], index):
                self._healer.note(group, index, term, str(damage))

    def _damaged_bodies(self) -> Iterator[tuple[Damage, tuple[int, int, int]]]:
        """With (group, term, index)."""
        for damage in self._log.damages:
            if damage.kind in ("ENTRY", "COPY") and damage.known is not None:
                yield damage, damage.known

    def look_for_missing(self, replica: Replica) -> None:
        """At the start. A crash in the middle of an installation leaves the snapshot, and of this member's own later
        entries nobody could say whether they were right. Those that the state refers to are fetched, though nobody may
        ever read them here: this member counts among those that have them."""
        reasons = {
            index: (term, str(damage))
            for damage, (group, term, index) in self._damaged_bodies()
            if group == replica.number
        }
        for part in replica.checkpoints.newest_entries().parts():
            for index in self._log.missing(replica.number, part):
                term, reason = reasons.get(index, (0, "the snapshot here refers to it"))
                self._healer.note(replica.number, index, term, reason)

    def found_unreadable(self, group: int, index: int) -> None:
        self._healer.note(group, index, 0, "another member has asked for it")

    def look_after(self, replica: Replica, now_ms: int) -> None:
        """While something cannot be read here others are to lead."""
        raft = replica.raft
        is_damaged = self._healer.lost(replica.number) > 0
        raft.candidacy.handicap_s = HANDICAP * self._election_max_s if is_damaged else 0.0
        if not replica.stalled:
            return
        replica.touched = True
        if raft.is_leader and now_ms - replica.stalled_ms > STALLED_LEADER_MS:
            replica.stalled_ms = now_ms
            replica.ready_term = -1
            if not any(raft.transfer_leadership(peer) for peer in self._successors(replica.number)):
                self._logger.warning("stalled leader finds no successor", group=replica.number)
