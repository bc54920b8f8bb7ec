"""A group's members: which configuration is in force here, whether it may change now, and who answers.

The last configuration in this node's own log names the members (configuration.py). The log gets one from this node's
own proposal, with a leader's entries, or with a snapshot, and loses one when the entry is cut. `follow_log`, called
after each of these, makes engine and replicator use the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quorum.replication.configuration import CONFIGURATION, Configuration, majority
from quorum.replication.engine import RaftEngine
from quorum.replication.journal_view import JournalView
from quorum.replication.leadership import Leadership
from quorum.replication.library import Timing
from quorum.replication.replicator import Replicator

CONFIGURATION_BYTE = bytes([CONFIGURATION])


class GroupMembers:
    """The members of one group."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        replicator: Replicator,
        leadership: Leadership,
        clock: Callable[[], float],
        timing: Timing,
    ) -> None:
        self._engine = engine
        self._view = view
        self._replicator = replicator
        self._leadership = leadership
        self._clock = clock
        self._silent_s = timing.election_min_s
        self._in_force = Configuration()
        """The configuration that engine and replicator use."""

    def follow_log(self) -> None:
        """Make engine and replicator use the log's present configuration."""
        now = self._view.configurations.current
        if now is self._in_force or now == self._in_force:
            return
        self._in_force = now
        self._engine.set_members(now)
        self._replicator.follow_members()
        self._engine.tick_soon()

    @property
    def is_settled(self) -> bool:
        """See Group.is_settled."""
        return not self._view.unread and self._view.configurations.index <= self._engine.commit_index

    def check(self, wanted: Configuration) -> None:
        """ValueError if more than one voter changes, or if this node would remove itself."""
        me, now = self._engine.me, self._view.configurations.current
        if not wanted.may_follow(now) or me not in wanted.voters:
            raise ValueError(f"{me} cannot change {now} into {wanted}")

    def change(self, wanted: Configuration) -> int | None:
        """Append a configuration; see Group.change_members."""
        if not self._may_change():
            return None
        index = self._view.last_index + 1
        self._view.add(CONFIGURATION_BYTE + wanted.encode(), index, self._engine.term)
        self.follow_log()
        return index

    def _may_change(self) -> bool:
        return self._leadership.is_ready and self.is_settled and not self._leadership.is_transferring

    def has_majority_of(self, voters: Iterable[str]) -> bool:
        """See Group.has_majority_of."""
        engine, since_s = self._engine, self._clock() - self._silent_s
        if not engine.is_leader:
            return False
        wanted = list(voters)
        up = sum(
            name == engine.me or (name in engine.connected and engine.has_answered_since(name, since_s))
            for name in wanted
        )
        return up >= majority(len(wanted))
