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
        """Number of the last append or chunk sent, over all peers."""
        self.heard_leader_s = float("-inf")
        """When a leader of this or a later term was last heard."""
        self.acknowledge_to: int | None = None
        """The acknowledgement of the message being handled promises at most this index."""
        self.reset_hint: int | None = None
        """A refusal of the message being handled asks to begin again here."""
        self._votes: set[tuple[str, int]] = set()
        self._resets_from: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        """The highest seq of this leadership that each peer has answered."""
        self.acks_awaiting_local_sync: dict[str, int] = {}
        """Acknowledged indices that wait for this node's own disk."""

    # ---- leadership

    def become_leader(self) -> None:
        """What was known about followers belonged to an earlier term."""
        self._resets_from.clear()
        self.answered.clear()
        self.acks_awaiting_local_sync.clear()

    def next_seq(self) -> int:
        """The number of the next append or chunk."""
        self.seq += 1
        return self.seq

    # ---- follower: appends

    def one_leader_a_term(self, peer: str, term: int) -> None:
        """Raft §5.2. An append of my own term while I lead it: two leaders were elected; stop."""
        if self.engine.is_leader and term == self.engine.term:
            raise ReplicationFailed(f"{peer} claims to lead term {term}, which this node leads")

    def cut_matching(self, m: AppendEntries) -> AppendEntries:
        """The conflict rule (Raft §5.3; D1): only an entry that differs removes anything.

        The library truncates everything behind prev_index. So entries that are here already are cut off the message,
        and a message that brings nothing new is moved to the end of the log, where there is nothing to cut. What is
        acknowledged and committed then goes no further than what the message proved. Changes the message.
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
        """An append that this node's log has no room for: it shows that the leader is alive, and no more. Nothing is
        cut, nothing is acknowledged but what is committed here, so nothing is skipped either. Changes the message."""
        last = self.view.last_index
        m.prev_index, m.prev_term, m.entries = last, self.view.term_at(last), []
        m.commit_index = self.acknowledge_to = self.engine.commit_index
        return m

    def clamp_commit(self, commit_index: int, proved: int) -> int:
        """Raft §5.3, receiver rule 5 (D1): committed here is at most what this message proved to match."""
        return min(commit_index, proved)

    def clamp_acknowledgement(self, proved: int) -> None:
        """Acknowledged is at most what this message proved to match (D1), whatever else the log holds."""
        self.acknowledge_to = proved

    def never_below_commit(self, index: int) -> None:
        """Raft §5.4.3. A leader that differs in a committed entry is none: stop before anything is cut."""
        if index <= self.engine.commit_index:
            raise TruncationError(
                f"a leader of term {self.engine.term} differs at {index}, "
                f"committed are all up to {self.engine.commit_index}"
            )

    def rewind_to(self, conflict: int) -> int:
        """Where to begin again after a mismatch (Raft §5.3, last paragraph): at the conflicting term's first entry."""
        view, floor = self.view, max(self.engine.commit_index, self.view.base) + 1
        term = view.term_at(conflict)
        while conflict > floor and view.term_at(conflict - 1) == term:
            conflict -= 1
        return max(conflict, floor)

    # ---- follower: snapshots

    def commit_of_snapshot(self, leader_commit: int) -> int:
        """A message that carries a snapshot, or part of one, proves nothing about this log: it never moves the commit
        index (D2)."""
        return 0

    def is_newer(self, chunk: SnapshotChunk) -> bool:
        """A snapshot never moves this member back (D11)."""
        return chunk.index > self.engine.commit_index

    # ---- leader: answers

    def answers_this_leadership(self, m: AppendAnswer | SnapshotAnswer) -> bool:
        """An answer counts in the term in which the question was sent, and only while that term is led here (D3)."""
        return self.engine.is_leader and m.term == self.engine.term and m.seq <= self.seq

    def is_fresh_reset(self, peer: str, m: AppendAnswer) -> bool:
        """A reset is news only if it answers something sent after the last rewind (D1, D11): otherwise the range has
        been sent again already, and it is a sign of life."""
        return m.seq >= self._resets_from.get(peer, 0) and 1 < m.next_index <= self.view.last_index + 1

    def never_below_match(self, peer: str, next_index: int) -> int:
        """What a peer acknowledged in this term it has: sending begins behind it, whatever a reset says (D1, D11)."""
        return max(next_index, self.engine.match_index(peer) + 1)

    def note_rewind(self, peer: str) -> None:
        """What was sent before now may still draw resets; they are stale."""
        self._resets_from[peer] = self.seq + 1

    def park(self, peer: str, acknowledged: int) -> int:
        """The leader counts itself for every entry it has, on disk or not. So an acknowledgement beyond this node's
        own disk waits (thesis §10.2.1); what of it counts now is returned."""
        durable = self.view.note_synced()
        if acknowledged <= durable:
            return acknowledged
        waiting = self.acks_awaiting_local_sync
        waiting[peer] = max(acknowledged, waiting.get(peer, 0))
        return durable

    def keeps_next(self, before: int, after: int) -> int:
        """An acknowledgement never sends again what is under way: the library would go back to what is acknowledged."""
        return max(before, after)

    def filter_answer(self, peer: str, m: AppendAnswer) -> dict[str, Any]:
        """The answer as the library may see it."""
        outcome, next_index = m.outcome, m.next_index
        if outcome == Outcome.MATCHES:
            next_index = self.park(peer, next_index - 1) + 1
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
        """Whether this peer counts (Raft §6, D10): a learner's or a stranger's word elects and commits nothing. The
        library counts a vote whoever it comes from."""
        return peer in self.engine.voters

    def is_first_vote(self, peer: str, m: Vote) -> bool:
        """One vote a voter and term (Raft §5.2; D4): the library counts messages."""
        if (peer, m.term) in self._votes:
            return False
        self._votes = {vote for vote in self._votes if vote[1] >= m.term}
        self._votes.add((peer, m.term))
        return True

    def hears_leader(self) -> bool:
        """Whether a leader is known to work: heard within the minimum election timeout, or this node itself with a
        majority answering within it. Then votes are neither given nor taken note of (thesis §4.2.3, §9.6)."""
        since = self.clock() - self.election_min_s
        if not self.engine.is_leader:
            return self.heard_leader_s > since
        answered = sum(self.engine.has_answered_since(peer, since) for peer in self.engine.voters)
        return answered >= self.majority_of_others

    @property
    def majority_of_others(self) -> int:
        """How many of the other voters make a majority together with this node."""
        return majority(len(self.engine.voters) + 1) - 1

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Raft §5.4.1: whether a log that ends so is at least as far as this one."""
        own = self.view.term_at(self.view.last_index), self.view.last_index
        return (last_term, last_index) >= own

    # ---- what never reaches the library

    def refuse_forwarding(self, message: Mapping[str, Any]) -> None:
        """Commands are proposed where the leader is, by who asks again if no answer comes (D12): the library forwards
        nothing."""
        if message["type"] in ("apply_command", "apply_command_response"):
            raise ReplicationFailed("the library wanted to forward a command")

    def refuse_pieces(self, message: Mapping[str, Any]) -> None:
        """Entries travel whole (D9): the library's way to cut them is wrong at some lengths, and pickles."""
        if "transmission" in message:
            raise ReplicationFailed("the library wanted to send an entry in pieces")

    def for_pysyncobj(self, m: AppendEntries) -> list[tuple[Any, int, int]]:
        """Entries as the library adds them to the journal."""
        first = m.prev_index + 1
        return [(entry.body, first + at, entry.term) for at, entry in enumerate(m.entries)]
