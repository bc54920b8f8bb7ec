"""The rules between the network and PySyncObj: one method for each place where the library departs from Raft.

Messages reach the library only through these rules, in a form that the library handles correctly. The guard sends and
schedules nothing: it reads the engine's state and the journal, and answers. Each rule is a small method, so that a test
can take it away in a subclass and show what it prevents (tests/replication/test_defects.py).

If a peer breaks a promise in a way that would lose acknowledged entries, ReplicationFailed stops this replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorum.replication.codec import (
    AppendAnswer,
    AppendEntries,
    Outcome,
    SnapshotAnswer,
    SnapshotChunk,
    Vote,
)
from quorum.replication.configuration import majority
from quorum.replication.engine import RaftEngine
from quorum.replication.errors import ReplicationFailed, TruncationError
from quorum.replication.journal_view import JournalView


class Guard:
    """The rules of one group."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        clock: Callable[[], float],
        election_min_s: float,
    ) -> None:
        self.engine = engine
        self.view = view
        self.clock = clock
        self.election_min_s = election_min_s
        self.seq = 0
        """The number of the last append or chunk sent, over all peers."""
        self.heard_leader_s = float("-inf")
        """When a leader of this or a later term was last heard."""
        self.acknowledge_to: int | None = None
        """The highest index that the acknowledgement of the message being handled may promise."""
        self.reset_hint: int | None = None
        """The index from which a refusal of the message being handled asks to begin again."""
        self._votes: set[tuple[str, int]] = set()
        self._resets_from: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        """The highest seq of this leadership that each peer has answered."""
        self.acks_awaiting_local_sync: dict[str, int] = {}
        """Acknowledged indices that wait for this node's own disk."""

    # ---- leadership

    def become_leader(self) -> None:
        """Forget the followers' state, because it belonged to an earlier term."""
        self._resets_from.clear()
        self.answered.clear()
        self.acks_awaiting_local_sync.clear()

    def next_seq(self) -> int:
        """The number of the next append or chunk."""
        self.seq += 1
        return self.seq

    # ---- follower: appends

    def one_leader_a_term(self, peer: str, term: int) -> None:
        """Raft §5.2. An append in the term that this node leads: two leaders were elected, so this replica stops."""
        if self.engine.is_leader and term == self.engine.term:
            raise ReplicationFailed(f"{peer} claims to lead term {term}, which this node leads")

    def cut_matching(self, m: AppendEntries) -> AppendEntries:
        """The conflict rule (Raft §5.3; D1): only an entry that differs removes anything.

        The library truncates everything after prev_index. So entries that are here already are cut off the message, and
        a message without new entries is moved to the end of the log, where there is nothing to cut. What is
        acknowledged and committed is then no more than what the message proved. Changes the message.
        """
        view = self.view
        base, last = view.base, view.last_index
        proved = m.prev_index + len(m.entries)
        prev, entries = m.prev_index, m.entries
        if prev < base:
            entries = entries[base - prev :]
            prev = base
        if prev > last:
            return m
        if prev == m.prev_index and view.term_at(prev) != m.prev_term:
            self.never_below_commit(prev)
            self.reset_hint = self.rewind_to(prev)
            return m
        same = 0
        for entry in entries:
            index = prev + same + 1
            if index > last or view.term_at(index) != entry.term:
                break
            same += 1
        m.commit_index = self.clamp_commit(m.commit_index, proved)
        if same == len(entries):
            self.clamp_acknowledgement(proved)
            prev, entries = last, []
        else:
            prev, entries = prev + same, entries[same:] if same else entries
            if prev < last:
                self.never_below_commit(prev + 1)
        m.prev_index, m.prev_term, m.entries = prev, view.term_at(prev), entries
        return m

    def prove_nothing(self, m: AppendEntries) -> AppendEntries:
        """Reduce an append for which this node's log has no space: it only shows that the leader is alive. Nothing is
        cut, and no more is acknowledged than what is committed here, so nothing is skipped either. Changes the
        message."""
        m.prev_index, m.prev_term, m.entries = self.view.last_index, self.view.last_term, []
        m.commit_index = self.acknowledge_to = self.engine.commit_index
        return m

    def clamp_commit(self, commit_index: int, proved: int) -> int:
        """The commit index here is at most what this message proved to match (Raft §5.3, receiver rule 5; D1)."""
        return min(commit_index, proved)

    def clamp_acknowledgement(self, proved: int) -> None:
        """Acknowledge at most what this message proved to match (D1), whatever else the log holds."""
        self.acknowledge_to = proved

    def never_below_commit(self, index: int) -> None:
        """Raft §5.4.3. A leader that differs in a committed entry is no valid leader: stop before anything is cut."""
        if index <= self.engine.commit_index:
            raise TruncationError(
                f"a leader of term {self.engine.term} differs at {index}, "
                f"committed are all up to {self.engine.commit_index}"
            )

    def rewind_to(self, conflict: int) -> int:
        """The index at which to begin again after a mismatch: the first entry of the conflicting term (Raft §5.3, last
        paragraph)."""
        view, floor = self.view, max(self.engine.commit_index, self.view.base) + 1
        term = view.term_at(conflict)
        while conflict > floor and view.term_at(conflict - 1) == term:
            conflict -= 1
        return max(conflict, floor)

    # ---- follower: snapshots

    def commit_of_snapshot(self, leader_commit: int) -> int:
        """A message with a snapshot, or part of one, proves nothing about this log: it never moves the commit index
        (D2)."""
        return 0

    def is_newer(self, chunk: SnapshotChunk) -> bool:
        """Whether a snapshot is newer than this member's state: it never moves the member back (D11)."""
        return chunk.index > self.engine.commit_index

    # ---- leader: answers

    def answers_this_leadership(self, m: AppendAnswer | SnapshotAnswer) -> bool:
        """Whether an answer counts: only in the term in which the question was sent, and only while this node leads it
        (D3)."""
        return self.engine.is_leader and m.term == self.engine.term and m.seq <= self.seq

    def is_fresh_reset(self, peer: str, m: AppendAnswer) -> bool:
        """Whether a reset is news: only if it answers a message sent after the last rewind (D1, D11). Otherwise the
        range has already been sent again, and the reset is only a sign of life."""
        return m.seq >= self._resets_from.get(peer, 0) and 1 < m.next_index <= self.view.last_index + 1

    def never_below_match(self, peer: str, next_index: int) -> int:
        """The index to send from: never at or below what a peer acknowledged in this term, whatever a reset says (D1,
        D11)."""
        return max(next_index, self.engine.match_index(peer) + 1)

    def note_rewind(self, peer: str) -> None:
        """Note a rewind: resets that answer earlier messages are stale."""
        self._resets_from[peer] = self.seq + 1

    def count_synced(self, peer: str, acknowledged: int) -> int:
        """The part of an acknowledgement that counts now. The leader counts itself for every entry it has, on disk or
        not. So an acknowledgement beyond this node's own disk waits (thesis §10.2.1)."""
        durable = self.view.note_synced()
        if acknowledged <= durable:
            return acknowledged
        waiting = self.acks_awaiting_local_sync
        waiting[peer] = max(acknowledged, waiting.get(peer, 0))
        return durable

    def take_waiting_acks(self) -> dict[str, int]:
        """The acknowledgements that waited for this node's disk: peer -> index. They wait no more."""
        waiting, self.acks_awaiting_local_sync = self.acks_awaiting_local_sync, {}
        return waiting

    def forget(self, peer: str) -> None:
        """Forget what a peer has acknowledged, and its answers to what was sent before."""
        self.acks_awaiting_local_sync.pop(peer, None)
        self.note_rewind(peer)

    def keeps_next(self, before: int, after: int) -> int:
        """The next index after an acknowledgement: it never goes back over entries in flight, as the library would."""
        return max(before, after)

    def filter_answer(self, peer: str, m: AppendAnswer) -> dict[str, Any]:
        """The answer in the form that the library may see."""
        outcome, next_index = m.outcome, m.next_index
        if outcome == Outcome.MATCHES:
            next_index = self.count_synced(peer, next_index - 1) + 1
        elif outcome == Outcome.RESET:
            if self.is_fresh_reset(peer, m):
                next_index = self.never_below_match(peer, next_index)
                self.note_rewind(peer)
            else:
                outcome = Outcome.ALIVE
        return {
            "type": "next_node_idx",
            "next_node_idx": next_index,
            "reset": outcome == Outcome.RESET,
            "success": outcome == Outcome.MATCHES,
        }

    # ---- votes

    def is_voter(self, peer: str) -> bool:
        """Whether this peer counts (Raft §6, D10): answers of learners and strangers elect and commit nothing. The
        library itself counts a vote of any sender."""
        return peer in self.engine.voters

    def is_first_vote(self, peer: str, m: Vote) -> bool:
        """Whether this is the voter's first vote in the term (Raft §5.2; D4): the library counts messages."""
        if (peer, m.term) in self._votes:
            return False
        self._votes = {vote for vote in self._votes if vote[1] >= m.term}
        self._votes.add((peer, m.term))
        return True

    def hears_leader(self) -> bool:
        """Whether a leader is known to work: it was heard within the minimum election timeout, or this node leads and a
        majority has answered within it. Votes are then neither given nor noted (thesis §4.2.3, §9.6)."""
        since = self.clock() - self.election_min_s
        if not self.engine.is_leader:
            return self.heard_leader_s > since
        answered = sum(self.engine.has_answered_since(peer, since) for peer in self.engine.voters)
        return answered >= self.majority_of_others

    @property
    def majority_of_others(self) -> int:
        """The number of other voters that make a majority together with this node."""
        return majority(len(self.engine.voters) + 1) - 1

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Raft §5.4.1: whether a log with this end is at least as far as this one."""
        return (last_term, last_index) >= (self.view.last_term, self.view.last_index)

    # ---- messages that never reach the library

    def refuse_forwarding(self, message: Mapping[str, Any]) -> None:
        """Commands are proposed at the leader, by a sender that asks again if no answer comes (D12): the library
        forwards none."""
        if message["type"] in ("apply_command", "apply_command_response"):
            raise ReplicationFailed("the library wanted to forward a command")

    def refuse_pieces(self, message: Mapping[str, Any]) -> None:
        """Entries are sent whole (D9): the library's way to cut them is wrong at some lengths, and uses pickle."""
        if "transmission" in message:
            raise ReplicationFailed("the library wanted to send an entry in pieces")

    def for_pysyncobj(self, m: AppendEntries) -> list[tuple[Any, int, int]]:
        """The entries in the form in which the library adds them to the journal."""
        first = m.prev_index + 1
        return [(entry.body, first + at, entry.term) for at, entry in enumerate(m.entries)]
