"""Pre-vote (Raft thesis §9.6): before a member increments its term, it asks whether it could win the election.

A member whose election timeout has passed asks all other voters whether they would vote for it in the next term. They
would if they hear no leader, and if the asking member's log is at least as up-to-date as theirs (Raft §5.4.1). The
library begins a real election only if a majority would vote. So a member that was cut off or paused does not unseat a
working leader. A question changes no state of the member that answers, so nothing has to be synced before the answer. A
lost answer does no harm: the member asks again in the next round, which has a new number.

`Campaign` decides whether this member campaigns at all, and when.
"""

from __future__ import annotations

from collections.abc import Callable

from quorum.replication import codec
from quorum.replication.configuration import majority
from quorum.replication.engine import RaftEngine
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.library import RaftState, Timing
from quorum.replication.outbox import Outbox
from quorum.replication.quarantine import Quarantine

AT_ONCE = 0.0
"""The due time of work that is due now. The present time would not do: a caller may compare the due time with a time
that it has read a little earlier, and would find that the work is not due yet."""
RETRY_PART = 0.5
"""A round without a majority is repeated after this fraction of the minimum election timeout."""
CANDIDATE_PART = 0.5
"""A candidate waits for votes for this fraction of an election timeout."""
START_PART, RANK_PART = 0.3, 0.3
"""Fractions of the minimum election timeout, for the first timeout after a start (`take_turn`). The voters of a group
have an order, and in each group another voter is the first. The first voter waits for START_PART. That is a little
longer than a heartbeat, so it hears a working leader before. Each voter waits for RANK_PART longer than the one before
it, which is enough time for an election."""
LAST_RESORT_TIMEOUTS = 5
"""A member that should not lead (`Campaign.campaigns_last`) campaigns if it has heard no leader for this many maximum
election timeouts, because it may be the only member with all committed entries."""


class PreVoteRounds:
    """This member's pre-vote rounds."""

    def __init__(self, engine: RaftEngine, retry_s: float) -> None:
        self._engine = engine
        self._retry_s = retry_s
        self.number = 0
        self.term: int | None = None
        """The member's term during the round: it asks for votes in the next one. None while no round is under way."""
        self._granted: set[str] = set()
        self._began_s = 0.0

    def cancel(self) -> None:
        """End the round: a leader was heard, or a vote given."""
        self.term = None
        self._granted.clear()

    def begin_if_due(self, term: int, now_s: float) -> bool:
        """Begin a round if one is due. term: the member's present one. Returns whether a round began. The caller then
        has to send its number to all voters."""
        if self.term == term and now_s < self._began_s + self._retry_s:
            return False
        self.number += 1
        self.term = term
        self._granted.clear()
        self._began_s = now_s
        return True

    def take(self, peer: str, number: int) -> None:
        """Count a peer that would vote."""
        if self.term is not None and number == self.number:
            self._granted.add(peer)

    def is_won(self, term: int) -> bool:
        """Whether a majority, this member included, would elect it. term: the member's present one."""
        voters = self._engine.voters
        granted = sum(voter in self._granted for voter in voters)
        return self.term == term and granted + 1 >= majority(len(voters) + 1)

    def next_due(self, term: int, deadline_s: float, now_s: float) -> float:
        """When the election timer is due; AT_ONCE means now, whatever the clock shows."""
        if self.term != term or now_s <= deadline_s:
            return deadline_s
        return AT_ONCE if self.is_won(term) else self._began_s + self._retry_s


class Campaign:
    """Decides whether and when this member campaigns to lead."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        guard: Guard,
        outbox: Outbox,
        quarantine: Quarantine,
        clock: Callable[[], float],
        timing: Timing,
    ) -> None:
        self._engine = engine
        self._view = view
        self._guard = guard
        self._outbox = outbox
        self._quarantine = quarantine
        self._clock = clock
        self._election_min_s = timing.election_min_s
        self._election_max_s = timing.election_max_s
        self._began_s = clock()
        self.rounds = PreVoteRounds(engine, timing.election_min_s * RETRY_PART)
        self._had_turn = False
        self.is_transfer = False
        """The leader has asked for this campaign, to transfer its leadership."""
        self.campaigns_last = False
        """Whether this member should not lead, and campaigns only if no other member does (LAST_RESORT_TIMEOUTS)."""
        self.election_delay_s = 0.0
        """Extra delay after the election timeout before this member campaigns, so that a damaged member campaigns
        last."""

    def next_due(self) -> float:
        """When the election timer is due."""
        deadline_s = self._engine.election_deadline_s + self.election_delay_s
        if self.rounds.term is None:
            return deadline_s
        return self.rounds.next_due(self._engine.term, deadline_s, self._clock())

    def should_campaign(self) -> bool:
        """Whether the library may begin an election. It asks this when the election timeout has passed.

        An election begins when a pre-vote is won, and at once for a leadership transfer or if there are no other
        voters. Otherwise a pre-vote round begins here, if one is due. Only a voter of the last configuration in its own
        log campaigns (thesis §4.1).
        """
        if self._quarantine.is_on:
            return False
        engine = self._engine
        if not self._is_electable():
            engine.is_transfer_target = False
            engine.forget_leader()
            engine.restart_election_timer()
            return False
        self.is_transfer = engine.is_transfer_target
        if not self.is_transfer and self._clock() < engine.election_deadline_s + self.election_delay_s:
            return False
        term = engine.term
        if not engine.voters or self.is_transfer or self.rounds.is_won(term):
            self.rounds.cancel()
            return True
        if self.rounds.begin_if_due(term, self._clock()):
            engine.forget_leader()
            view = self._view
            request = codec.PreVoteRequest(term + 1, self.rounds.number, view.last_index, view.last_term)
            for voter in engine.voters:
                self._outbox.queue(voter, request)
        return False

    def take_turn(self, first: int) -> None:
        """See Group.campaign_in_turn."""
        engine = self._engine
        members = self._view.configurations.current.voters
        connected = sum(voter in engine.connected for voter in engine.voters)
        if self._had_turn or engine.me not in members or connected + 1 < majority(len(members)):
            return
        self._had_turn = True
        if engine.leader is None and not engine.is_transfer_target:
            self.rounds.cancel()
            rank = (members.index(engine.me) - first) % len(members)
            timeout_s = self._election_min_s * (START_PART + RANK_PART * rank)
            engine.election_deadline_s = self._clock() + min(timeout_s, self._election_max_s)

    def follow(self, term: int) -> None:
        """Become a follower, because another member has a higher term (Raft §5.1)."""
        self.rounds.cancel()
        self._engine.become_follower(term)

    def role_changed(self, old: int, new: int) -> None:
        """For the library: set the election timer for the new role."""
        if new == RaftState.LEADER:
            self.rounds.cancel()
        elif new == RaftState.CANDIDATE:
            # votes arrive within a round trip, so a short timeout is enough and ends a split vote sooner
            self._engine.restart_election_timer(CANDIDATE_PART)
        elif old == RaftState.LEADER:
            # the library has not changed the election deadline since this member was elected, so it passed long ago
            self._engine.restart_election_timer()

    def _is_electable(self) -> bool:
        if self._view.unread or self._engine.me not in self._view.configurations.current.voters:
            return False
        if not self.campaigns_last or not self._engine.voters:
            return True
        quiet_since = max(self._began_s, self._guard.heard_leader_s)
        return self._clock() > quiet_since + LAST_RESORT_TIMEOUTS * self._election_max_s
