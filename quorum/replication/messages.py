"""What each message of another member does here, and what the library says to them.

A message is looked at by the guard and the room, and reaches the library in its own form; what the library wants to
send goes out as one of our messages. Its answers are answers to the message that is being handled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorum.replication import codec
from quorum.replication.elections import Candidacy
from quorum.replication.engine import FOLLOWER, Peer
from quorum.replication.errors import ReplicationFailed
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.outbox import Outbox
from quorum.replication.peers import Peers
from quorum.replication.quarantine import Quarantine
from quorum.replication.reads import Reads
from quorum.replication.replicator import Feeder
from quorum.replication.room import Room


class Messages:
    """See the module's text."""

    def __init__(
        self,
        engine: Any,
        view: JournalView,
        peers: Peers,
        clock: Callable[[], float],
        *,
        guard: Guard,
        feeder: Feeder,
        outbox: Outbox,
        candidacy: Candidacy,
        reads: Reads,
        room: Room,
        quarantine: Quarantine,
    ) -> None:
        self._engine = engine
        self._view = view
        self._peers = peers
        self._clock = clock
        self._guard = guard
        self._feeder = feeder
        self._outbox = outbox
        self._candidacy = candidacy
        self._rounds = candidacy.rounds
        self._reads = reads
        self._room = room
        self._quarantine = quarantine
        self.is_due = False
        """The next tick has something to do: it should come at once."""
        self._handled: tuple[str, int, int] | None = None
        """(peer, term, seq) of the append or chunk that the library is handling"""
        self._is_quiet = False
        """that message wants no acknowledgement"""
        self.matched = (0, 0)
        """(term, index) of the last acknowledgement sent"""
        self.handlers: Mapping[type, Callable[[str, Any], None]] = {
            codec.AppendEntries: self._on_append,
            codec.AppendAnswer: self._on_append_answer,
            codec.VoteRequest: self._on_vote_request,
            codec.Vote: self._on_vote,
            codec.PreVoteRequest: self._on_pre_vote_request,
            codec.PreVote: self._on_pre_vote,
            codec.StaleTerm: self._on_stale_term,
            codec.SnapshotChunk: self._on_chunk,
            codec.SnapshotAnswer: self._on_chunk_answer,
            codec.TimeoutNow: self._on_timeout_now,
        }
        """What to do with each kind of message; `handled` is to be called afterwards."""

    def handled(self) -> None:
        """No message is being handled any more."""
        self._handled = None
        self._is_quiet = False
        self._guard.acknowledge_to = None
        self._guard.reset_hint = None

    # ---- what the library sends

    def send(self, peer: Peer, message: dict[str, Any]) -> bool:
        """For the engine: one of the library's messages, as one of ours."""
        self._guard.refuse_forwarding(message)
        self._guard.refuse_pieces(message)
        kind = message["type"]
        if kind == "next_node_idx":
            if message["reset"]:
                hint = self._guard.reset_hint
                self.answer(codec.Outcome.RESET, message["next_node_idx"] if hint is None else hint)
            elif message["success"]:
                if self._is_quiet:
                    return True
                limit = self._guard.acknowledge_to
                next_index = message["next_node_idx"]
                self.answer(
                    codec.Outcome.MATCHES, next_index if limit is None else min(next_index, limit + 1)
                )
            else:
                self.answer(codec.Outcome.ALIVE, 0)
        elif kind == "request_vote":
            request = codec.VoteRequest(
                message["term"],
                message["last_log_index"],
                message["last_log_term"],
                self._candidacy.is_transfer,
            )
            self._outbox.queue(peer.id, request)
        elif kind == "response_vote":
            self._rounds.cancel()
            self._outbox.queue(peer.id, codec.Vote(message["term"]))
        else:
            raise ReplicationFailed(f"the library wanted to send {kind!r}")
        return True

    def handling(self) -> tuple[str, int, int]:
        if self._handled is None:
            raise ReplicationFailed("the library answered outside of a message")
        return self._handled

    def answer(self, outcome: codec.Outcome, next_index: int) -> None:
        peer, term, seq = self.handling()
        if outcome == codec.Outcome.MATCHES:
            self.matched = term, next_index - 1
        self._outbox.queue(peer, codec.AppendAnswer(term, seq, next_index, outcome))

    # ---- what others send

    def _to_library(self, peer: str, message: dict[str, Any]) -> None:
        self._engine._SyncObj__onMessageReceived(self._peers.peer(peer), message)

    def follow(self, term: int) -> None:
        """Raft §5.1: a higher term was seen; go on in it as a follower."""
        own = self._engine
        self._rounds.cancel()
        own._SyncObj__setCurrentTerm(term, None)
        own._SyncObj__setState(FOLLOWER)
        own._SyncObj__raftLeader = None

    def _hear_leader(self, peer: str, term: int, seq: int) -> bool:
        """An append or chunk arrived: False, and an answer, if its term is over."""
        if term < self._guard.term:
            self._outbox.queue(peer, codec.StaleTerm(self._guard.term))
            return False
        self._guard.one_leader_a_term(peer, term)
        self._guard.heard_leader_s = self._clock()
        self._rounds.cancel()
        self._handled = (peer, term, seq)
        return True

    def _on_append(self, peer: str, m: codec.AppendEntries) -> None:
        if not self._hear_leader(peer, m.term, m.seq):
            return
        self._is_quiet = m.is_quiet
        m = (
            self._guard.cut_matching(m)
            if self._room.is_there_for(m, self._view.last_index)
            else self._guard.prove_nothing(m)
        )
        message = {
            "type": "append_entries",
            "term": m.term,
            "commit_index": m.commit_index,
            "prevLogIdx": m.prev_index,
            "prevLogTerm": m.prev_term,
            "entries": self._guard.for_pysyncobj(m),
        }
        self._to_library(peer, message)
        self._feeder.floor = max(self._feeder.floor, min(m.floor, self._guard.commit_index))

    def _on_chunk(self, peer: str, m: codec.SnapshotChunk) -> None:
        if not self._hear_leader(peer, m.term, m.seq):
            return
        message = {
            "type": "append_entries",
            "term": m.term,
            "commit_index": self._guard.commit_of_snapshot(m.index),
            "serialized": m,
        }
        self._to_library(peer, message)

    def _on_append_answer(self, peer: str, m: codec.AppendAnswer) -> None:
        guard = self._guard
        if (
            peer not in self._peers.others
            or not guard.answers_this_office(m)
            or m.next_index > self._view.last_index + 1
        ):
            return
        guard.answered[peer] = max(m.seq, guard.answered.get(peer, 0))
        node = self._peers.others[peer]
        next_index: dict[Peer, int] = self._engine._SyncObj__raftNextIndex
        before = next_index[node]
        message = guard.filter_answer(peer, m)
        feed = self._feeder.feeds[peer]
        if m.outcome == codec.Outcome.MATCHES:
            feed.acknowledged(m.next_index - 1)
        if message["reset"]:
            feed.forget_sent()
            feed.waits_for_heartbeat = m.next_index < message["next_node_idx"]
        self._to_library(peer, message)
        if message["success"]:
            next_index[node] = guard.keeps_next(before, max(next_index[node], m.next_index))
        if message["success"] or next_index[node] < before:
            self.is_due = True
        self._reads.confirm()

    def count_acknowledgement(self, peer: str, index: int) -> None:
        """An acknowledgement that waited for this node's disk."""
        next_index: dict[Peer, int] = self._engine._SyncObj__raftNextIndex
        node = self._peers.others[peer]
        before = next_index[node]
        answer = codec.AppendAnswer(self._guard.term, self._guard.seq, index + 1, codec.Outcome.MATCHES)
        self._to_library(peer, self._guard.filter_answer(peer, answer))
        next_index[node] = self._guard.keeps_next(before, next_index[node])

    def _on_chunk_answer(self, peer: str, m: codec.SnapshotAnswer) -> None:
        if peer not in self._peers.others or not self._guard.answers_this_office(m):
            return
        alive = {"type": "next_node_idx", "next_node_idx": 1, "reset": False, "success": False}
        self._to_library(peer, alive)
        outgoing = self._feeder.feeds[peer].outgoing
        if outgoing is not None and outgoing.index == m.index:
            outgoing.answered(m.offset, self._clock())
            self.is_due = True

    def _on_vote_request(self, peer: str, m: codec.VoteRequest) -> None:
        if self._quarantine.is_on or (not m.is_transfer and self._guard.hears_leader()):
            return
        message = {
            "type": "request_vote",
            "term": m.term,
            "last_log_index": m.last_index,
            "last_log_term": m.last_term,
        }
        self._to_library(peer, message)

    def _on_vote(self, peer: str, m: codec.Vote) -> None:
        if self._guard.is_voter(peer) and self._guard.is_first_vote(peer, m):
            self._to_library(peer, {"type": "response_vote", "term": m.term})

    def _on_pre_vote_request(self, peer: str, m: codec.PreVoteRequest) -> None:
        guard = self._guard
        if self._quarantine.is_on:
            return
        granted = (
            m.term > self._guard.term
            and not guard.hears_leader()
            and guard.is_up_to_date(m.last_index, m.last_term)
        )
        self._outbox.queue(peer, codec.PreVote(self._guard.term, m.round, granted))

    def _on_pre_vote(self, peer: str, m: codec.PreVote) -> None:
        if m.is_granted:
            self._rounds.take(peer, m.round)
            self.is_due = self.is_due or self._rounds.is_won(self._guard.term)
        elif m.term > self._guard.term:
            self.follow(m.term)

    def _on_stale_term(self, peer: str, m: codec.StaleTerm) -> None:
        if m.term > self._guard.term:
            self.follow(m.term)

    def _on_timeout_now(self, peer: str, m: codec.TimeoutNow) -> None:
        if self._quarantine.is_on:
            return
        self._to_library(peer, {"type": "timeout_now", "term": m.term})
        self.is_due = True
