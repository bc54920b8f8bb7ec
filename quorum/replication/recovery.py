"""The recovery of a member that has lost its promises (quarantine.py): its own part, and the other members' part."""

from __future__ import annotations

from quorum.replication.elections import Campaign
from quorum.replication.engine import RaftEngine
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.outbox import Answers
from quorum.replication.quarantine import Quarantine, RecoveryResponse
from quorum.replication.replicator import Replicator


class Recovery:
    """Answers quarantined members of one group, and ends this member's own quarantine."""

    def __init__(
        self,
        group: int,
        engine: RaftEngine,
        view: JournalView,
        guard: Guard,
        answers: Answers,
        replicator: Replicator,
        campaign: Campaign,
        quarantine: Quarantine,
    ) -> None:
        self._group = group
        self._engine = engine
        self._view = view
        self._guard = guard
        self._answers = answers
        self._replicator = replicator
        self._campaign = campaign
        self._quarantine = quarantine

    # ---- for a quarantined member

    def forget_acknowledged(self, peer: str, nonce: int) -> None:
        """A leader forgets what the member's lost life acknowledged, and sends entries from where its log ends now."""
        engine = self._engine
        if engine.is_leader and peer in engine.others and self._replicator.reset_progress(peer, nonce):
            engine.forget_match(peer)
            self._guard.forget(peer)

    def recovery_response(self, nonce: int) -> RecoveryResponse:
        """The answer to a quarantined member's question."""
        engine, view = self._engine, self._view
        return RecoveryResponse(
            self._group,
            nonce,
            engine.term,
            view.last_index,
            engine.is_leader,
            not self._quarantine.is_on and not view.unread,
            view.configurations.index,
            view.configurations.voters_from(engine.commit_index),
        )

    # ---- of this member

    def hear(self, peer: str, recovery_response: RecoveryResponse) -> None:
        """Take an answer to this quarantined member's question."""
        if self._quarantine.take(peer, recovery_response):
            assert self._quarantine.floor is not None
            if self._quarantine.floor > self._engine.term:
                self._campaign.follow(self._quarantine.floor)

    def end_if_recovered(self, durable: int) -> None:
        """End a quarantine that is on, if this member has, on disk, what it must have. durable: the last synced
        entry."""
        engine = self._engine
        term, matched = self._answers.matched
        leader = self._quarantine.leader_to_record(engine.term, min(matched, durable))
        if leader is not None and term == engine.term:
            self._quarantine.end()
            self._view.end_quarantine()
            engine.record_vote(leader)
            engine.restart_election_timer()
