"""The group with one rule taken away, by name: what the tests and the fuzz must notice.

Nothing here is reachable from the product; each class overrides the one small method that holds the rule.
"""

from __future__ import annotations

from quorum.replication import codec
from quorum.replication.codec import AppendAnswer, AppendEntries, SnapshotAnswer, SnapshotChunk, Vote
from quorum.replication.group import Group
from quorum.replication.guard import Guard
from quorum.replication.messages import Messages
from quorum.replication.outbox import Outbox


def guarded_by(guard: type[Guard]) -> type[Group]:
    """A group under another guard."""
    return type(f"GroupWith{guard.__name__}", (Group,), {"guard_class": guard})


class NoConflictRule(Guard):
    """D1: the message reaches the library as it came; everything behind prev_index is truncated."""

    def cut_matching(self, m: AppendEntries) -> AppendEntries:
        return m


class NoCommitClamp(Guard):
    """D1: the leader's commit index counts for whatever the log holds."""

    def clamp_commit(self, commit_index: int, proved: int) -> int:
        return commit_index


class NoAcknowledgementClamp(Guard):
    """D1: the whole log is acknowledged, proved or not."""

    def clamp_acknowledgement(self, proved: int) -> None:
        return


class AFullLogAcknowledges(Guard):
    """A full disk: what the log has is acknowledged, though the message proved nothing about it."""

    def prove_nothing(self, m: AppendEntries) -> AppendEntries:
        m = super().prove_nothing(m)
        self.acknowledge_to = m.prev_index
        return m


class SnapshotMovesCommit(Guard):
    """D2."""

    def commit_of_snapshot(self, leader_commit: int) -> int:
        return leader_commit


class AnswersOfAnyTerm(Guard):
    """D3."""

    def answers_this_office(self, m: AppendAnswer | SnapshotAnswer) -> bool:
        return self.is_leader


class EveryVoteMessageCounts(Guard):
    """D4."""

    def is_first_vote(self, peer: str, m: Vote) -> bool:
        return True


class EveryResetCounts(Guard):
    """D1, D11: late resets rewind, below what was acknowledged too."""

    def is_fresh_reset(self, peer: str, m: AppendAnswer) -> bool:
        return m.next_index > 1

    def never_below_match(self, peer: str, next_index: int) -> int:
        return next_index


class AnySnapshotIsTaken(Guard):
    """D11: an old snapshot moves the member back."""

    def is_newer(self, chunk: SnapshotChunk) -> bool:
        return True


class NothingIsParked(Guard):
    """The leader counts itself before its own disk has the entry."""

    def park(self, peer: str, acknowledged: int) -> int:
        return acknowledged


class TruncatesCommitted(NoConflictRule):
    """Nothing stops a leader that differs in committed entries."""

    def never_below_commit(self, index: int) -> None:
        return


class SendsAtOnce(Outbox):
    def send_ready(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, peer, parts in waiting:
            self._send(peer, parts)


class NothingWaitsForTheDisk(Group):
    """Promises leave before what they promise is synced."""

    outbox_class = SendsAtOnce


class TakesAnyAnswer(Messages):
    def _on_append_answer(self, peer: str, m: AppendAnswer) -> None:
        if self._guard.is_leader:
            self._guard.answered[peer] = codec.MAX_NUMBER
        super()._on_append_answer(peer, m)


class AnyAnswerConfirmsReads(Group):
    """ReadIndex without asking whether the answers are to later questions."""

    messages_class = TakesAnyAnswer


ABLATIONS: dict[str, type[Group]] = {
    "conflict": guarded_by(NoConflictRule),
    "commit-clamp": guarded_by(NoCommitClamp),
    "acknowledgement-clamp": guarded_by(NoAcknowledgementClamp),
    "full-log": guarded_by(AFullLogAcknowledges),
    "snapshot-commit": guarded_by(SnapshotMovesCommit),
    "answer-term": guarded_by(AnswersOfAnyTerm),
    "vote": guarded_by(EveryVoteMessageCounts),
    "reset": guarded_by(EveryResetCounts),
    "snapshot-newer": guarded_by(AnySnapshotIsTaken),
    "park": guarded_by(NothingIsParked),
    "hold": NothingWaitsForTheDisk,
    "read": AnyAnswerConfirmsReads,
}
