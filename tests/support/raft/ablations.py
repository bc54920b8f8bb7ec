"""The group with one rule taken away, by name: what the tests and the fuzz must notice. D1 to D14 are the places where
the library departs from Raft (docs/replication.md).

Nothing here is reachable from the product; each class overrides the one small method that holds the rule. A method that
overrides nothing, because the product's has another name or other parameters by now, would take no rule away: `unfit`
finds it, here at import, and in tests that take rules away themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from pysyncobj import SyncObj

from quorum.replication import codec
from quorum.replication.codec import (
    AppendAnswer,
    AppendEntries,
    SnapshotAnswer,
    SnapshotChunk,
    Vote,
    VoteRequest,
)
from quorum.replication.group import Group
from quorum.replication.group_members import GroupMembers
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.library import LibraryNode
from quorum.replication.messages import Messages
from quorum.replication.outbox import Outbox
from support.stand_ins import misfits


def stock(name: str) -> Callable[..., Any]:
    """A method of the library as it is."""
    found: Callable[..., Any] = vars(SyncObj)[name]
    return found


def unfit(found: Iterable[object]) -> list[str]:
    """The methods of classes over the product's, or over others here, that do not fit what they replace."""
    product = (Group, GroupMembers, Guard, JournalView, LibraryNode, Messages, Outbox)
    return [
        each
        for made in found
        if isinstance(made, type) and issubclass(made, product) and made not in product
        for each in misfits(made)
    ]


def guarded_by(guard: type[Guard]) -> type[Group]:
    """A group under another guard."""
    made = type(f"GroupWith{guard.__name__}", (Group,), {"guard_class": guard})
    assert unfit([made, guard]) == []
    return made


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

    def answers_this_leadership(self, m: AppendAnswer | SnapshotAnswer) -> bool:
        return self.engine.is_leader


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

    def count_synced(self, peer: str, acknowledged: int) -> int:
        return acknowledged


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
        if self._engine.is_leader:
            self._guard.answered[peer] = codec.MAX_NUMBER
        super()._on_append_answer(peer, m)


class AnyAnswerConfirmsReads(Group):
    """ReadIndex without asking whether the answers are to later questions."""

    messages_class = TakesAnyAnswer


class ClearedJournalView(JournalView):
    """What the library expects of a journal that it clears."""

    def clear(self) -> None:
        self.journal.reset_to_snapshot(self.snapshot_index - 2, 0)
        self.look_at_journal()


class LibraryRestart(Group):
    """D5: restarts as the library does, which compares its first two entries with the snapshot's."""

    view_class = ClearedJournalView

    def start(self) -> None:
        super().start()
        index, term = self._view.snapshot_index, self._view.snapshot_term
        if index:
            dump = (None, (b"\1", index, term), (b"\1", index - 1, term), None)
            self._engine._node._SyncObj__serializer.deserialize = lambda: dump
            stock("_SyncObj__loadDumpFile")(self._engine._node, False)


class ForgetsVotes(Messages):
    def _on_vote_request(self, peer: str, m: VoteRequest) -> None:
        self._engine._node._SyncObj__votedForNodeId = None
        super()._on_vote_request(peer, m)


class VotesTwice(Group):
    """Every candidate gets a vote, also in a term in which another one has got it."""

    messages_class = ForgetsVotes


class LibraryApplies(LibraryNode):
    """D7: the library's own apply loop, inside a tick, with a command that cannot be applied."""

    def _SyncObj__applyLogEntries(self) -> bool:
        return bool(stock("_SyncObj__applyLogEntries")(self))

    def _SyncObj__doApplyCommand(self, command: object) -> NoReturn:
        raise ValueError("poison")


class GroupLibraryApplies(Group):
    library_class = LibraryApplies


class SwallowsBadSnapshots(LibraryNode):
    """D8: as the library, errors of loading are logged and forgotten."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        try:
            super()._SyncObj__loadDumpFile(clearJournal)
        except RuntimeError:
            return


class GroupSwallowsBadSnapshots(Group):
    library_class = SwallowsBadSnapshots


class LibraryForwards(LibraryNode):
    """D12: a follower's command is sent to the leader, and nobody asks what has become of it."""

    def _applyCommand(self, command: bytes, callback: object, commandType: object = None) -> None:  # type: ignore[override]
        stock("_applyCommand")(self, command, callback, commandType)

    def _checkCommandsToApply(self) -> None:
        stock("_checkCommandsToApply")(self)


class GroupLibraryForwards(Group):
    library_class = LibraryForwards


class LibrarySends(LibraryNode):
    """D9: the library cuts large entries into pieces."""

    def _SyncObj__sendAppendEntries(self) -> None:
        stock("_SyncObj__sendAppendEntries")(self)


class GroupLibrarySends(Group):
    library_class = LibrarySends


class ChangesAtOnce(GroupMembers):
    def _may_change(self) -> bool:
        return self._leadership.may_propose


class OverlappingChanges(Group):
    """D10: a change of members begins before the one before it is committed."""

    members_class = ChangesAtOnce


class BelievesTheEnd(JournalView):
    def getRaftCommitIndex(self) -> int:
        return max(1, self.last_index)


class RestoresCommitIndex(Group):
    """D14: after a start the whole journal counts as committed."""

    view_class = BelievesTheEnd


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that is taken away. promise: what is lost with it. size, spares, fills_disks, echoes: the runs of the fuzz
    that look for it. scene: the test that finds it missing, where the fuzz meets the moment too seldom."""

    name: str
    promise: str
    group_class: type[Group]
    size: int = 3
    spares: int = 0
    fills_disks: bool = False
    echoes: bool = False
    scene: str = ""


RULES = (
    Rule("conflict", "only an entry that differs removes anything (D1)", guarded_by(NoConflictRule)),
    Rule(
        "commit-clamp",
        "no more is committed than was proved (D1)",
        guarded_by(NoCommitClamp),
        size=5,
        echoes=True,
    ),
    Rule(
        "acknowledgement-clamp",
        "no more is acknowledged than was proved (D1)",
        guarded_by(NoAcknowledgementClamp),
        size=5,
    ),
    Rule("reset", "a late reset sends nothing again (D1, D11)", guarded_by(EveryResetCounts), size=5),
    Rule(
        "full-log",
        "a log without room acknowledges nothing",
        guarded_by(AFullLogAcknowledges),
        fills_disks=True,
    ),
    Rule(
        "snapshot-commit",
        "a snapshot on its way commits nothing (D2)",
        guarded_by(SnapshotMovesCommit),
        size=5,
    ),
    Rule(
        "answer-term",
        "an answer counts in its own term (D3)",
        guarded_by(AnswersOfAnyTerm),
        scene="test_d3_an_acknowledgement_counts_in_its_own_term_only",
    ),
    Rule("vote", "a vote counts once (D4)", guarded_by(EveryVoteMessageCounts), size=5),
    Rule("vote-twice", "one vote a term", VotesTwice, size=5),
    Rule("journal-cleared", "a restart keeps what follows the snapshot (D5)", LibraryRestart),
    Rule("park", "the leader's own disk counts only once it is synced (D6)", guarded_by(NothingIsParked)),
    Rule("hold", "nothing leaves before what it promises is synced (D6)", NothingWaitsForTheDisk),
    Rule("library-applies", "no entry is executed inside a tick (D7)", GroupLibraryApplies),
    Rule(
        "bad-snapshot",
        "a snapshot that cannot be loaded stops the replica (D8)",
        GroupSwallowsBadSnapshots,
        scene="test_d8_a_snapshot_that_cannot_be_loaded_stops_the_replica",
    ),
    Rule("library-sends", "entries travel whole (D9)", GroupLibrarySends),
    Rule(
        "overlapping-changes",
        "one change of members at a time (D10)",
        OverlappingChanges,
        spares=2,
    ),
    Rule(
        "snapshot-newer",
        "a snapshot moves no member back (D11)",
        guarded_by(AnySnapshotIsTaken),
        echoes=True,
    ),
    Rule(
        "library-forwards",
        "nothing is forwarded (D12)",
        GroupLibraryForwards,
        scene="test_d12_nothing_is_forwarded",
    ),
    Rule("commit-restored", "what is committed after a start, a leader says (D14)", RestoresCommitIndex),
    Rule(
        "read",
        "a read is confirmed by answers to later questions",
        AnyAnswerConfirmsReads,
        scene="test_a_read_is_confirmed_by_answers_to_later_questions_only",
    ),
)
"""D13, links that the library drops at an election, is no rule of a group: tests/replication/test_connection.py."""

ABLATIONS: dict[str, type[Group]] = {rule.name: rule.group_class for rule in RULES}

if _found := unfit(list(globals().values())):
    raise AttributeError("; ".join(_found))
