"""The handling of each message from another member, and of what the library wants to send.

The guard checks each message, and the log must have space for it. Then the library gets it in its own form. The
library's own messages leave as one of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorum.replication import codec
from quorum.replication.elections import Campaign
from quorum.replication.engine import RaftEngine
from quorum.replication.errors import ReplicationFailed
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.leadership import ReadIndex
from quorum.replication.log_space import LogSpaceGate
from quorum.replication.outbox import Answers, Outbox
from quorum.replication.quarantine import Quarantine
from quorum.replication.replicator import Replicator


class Messages:
    """Handles the messages of one group (see the module's text)."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        clock: Callable[[], float],
        *,
        guard: Guard,
        replicator: Replicator,
        outbox: Outbox,
        answers: Answers,
        campaign: Campaign,
        reads: ReadIndex,
        log_space: LogSpaceGate,
        quarantine: Quarantine,
    ) -> None:
        self._engine = engine
        self._view = view
        self._clock = clock
        self._guard = guard
        self._replicator = replicator
        self._outbox = outbox
        self._answers = answers
        self._campaign = campaign
        self._rounds = campaign.rounds
        self._reads = reads
        self._log_space = log_space
        self._quarantine = quarantine
        self.heard_beat = False
        """Whether the last message was a heartbeat without entries."""
        self.has_news = False
        """Whether the last message may have left work for this group (`Group.receive`)."""
        self._handlers: Mapping[type, Callable[[str, Any], None]] = {
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

    def receive(self, peer: str, message: codec.Message) -> None:
        """Handle one message from another member."""
        self.has_news, self.heard_beat = True, False
        try:
            self._handlers[type(message)](peer, message)
        finally:
            self._answers.end()
            self._guard.acknowledge_to = None
            self._guard.reset_hint = None

    # ---- messages of the library

    def send(self, peer: str, message: dict[str, Any]) -> bool:
        """For the library: send one of the library's messages as one of ours."""
        self._guard.refuse_forwarding(message)
        self._guard.refuse_pieces(message)
        kind = message["type"]
        if kind == "next_node_idx":
            if message["reset"]:
                hint = self._guard.reset_hint
                self._answers.answer(codec.Outcome.RESET, message["next_node_idx"] if hint is None else hint)
            elif message["success"]:
                self._acknowledge(message["next_node_idx"])
            else:
                self._answers.answer(codec.Outcome.ALIVE, 0)
        elif kind == "request_vote":
            request = codec.VoteRequest(
                message["term"],
                message["last_log_index"],
                message["last_log_term"],
                self._campaign.is_transfer,
            )
            self._outbox.queue(peer, request)
        elif kind == "response_vote":
            self._rounds.cancel()
            self._outbox.queue(peer, codec.Vote(message["term"]))
        else:
            raise ReplicationFailed(f"the library wanted to send {kind!r}")
        return True

    def _acknowledge(self, next_index: int) -> None:
        """Answer that everything before next_index matches, or less where the message proved less."""
        if self._answers.is_quiet:
            return
        limit = self._guard.acknowledge_to
        self._answers.answer(
            codec.Outcome.MATCHES, next_index if limit is None else min(next_index, limit + 1)
        )

    # ---- messages of other members

    def _hear_leader(self, peer: str, term: int, seq: int) -> bool:
        """Note that an append or chunk arrived. If its term is over, answer that and return False."""
        if term < self._engine.term:
            self._outbox.queue(peer, codec.StaleTerm(self._engine.term))
            return False
        self._guard.one_leader_a_term(peer, term)
        self._guard.heard_leader_s = self._clock()
        if self._rounds.term is not None:
            self._rounds.cancel()
        self._answers.begin(peer, term, seq)
        return True

    def _on_append(self, peer: str, m: codec.AppendEntries) -> None:
        if not self._hear_leader(peer, m.term, m.seq):
            return
        self._answers.is_quiet = m.is_quiet
        m = (
            self._guard.cut_matching(m)
            if self._log_space.admits(m, self._view.last_index)
            else self._guard.prove_nothing(m)
        )
        if self._is_beat(peer, m):
            self.heard_beat = not m.is_quiet
            before = self._engine.commit_index
            self._engine.hear_leader(m.commit_index, self._guard.heard_leader_s, is_slow=m.is_slow)
            self._acknowledge(m.prev_index + 1)
            self.has_news = self._engine.commit_index > before
        else:
            self._pass_on(peer, m)
        replicator = self._replicator
        replicator.all_match_index = max(replicator.all_match_index, min(m.floor, self._engine.commit_index))

    def _is_beat(self, peer: str, m: codec.AppendEntries) -> bool:
        """Whether an append only says that the leader that is followed here is alive, and what is committed: there is
        nothing to add and nothing to cut."""
        view = self._view
        return (
            not m.entries
            and m.prev_index == view.last_index
            and m.prev_term == view.last_term
            and self._engine.follows(peer, m.term)
        )

    def _pass_on(self, peer: str, m: codec.AppendEntries) -> None:
        message = {
            "type": "append_entries",
            "term": m.term,
            "commit_index": m.commit_index,
            "prevLogIdx": m.prev_index,
            "prevLogTerm": m.prev_term,
            "entries": self._guard.for_pysyncobj(m),
        }
        self._engine.receive(peer, message)

    def _on_chunk(self, peer: str, m: codec.SnapshotChunk) -> None:
        if not self._hear_leader(peer, m.term, m.seq):
            return
        message = {
            "type": "append_entries",
            "term": m.term,
            "commit_index": self._guard.commit_of_snapshot(m.index),
            "serialized": m,
        }
        self._engine.receive(peer, message)

    def _on_append_answer(self, peer: str, m: codec.AppendAnswer) -> None:
        engine, guard = self._engine, self._guard
        if (
            peer not in engine.others
            or not guard.answers_this_leadership(m)
            or m.next_index > self._view.last_index + 1
        ):
            return
        guard.answered[peer] = max(m.seq, guard.answered.get(peer, 0))
        before = engine.next_index(peer)
        message = guard.filter_answer(peer, m)
        progress = self._replicator.progress[peer]
        if m.outcome == codec.Outcome.MATCHES:
            progress.inflights.free_to(m.next_index - 1)
        if message["reset"]:
            progress.inflights.clear()
            if m.next_index < message["next_node_idx"]:  # the follower denies what it has acknowledged
                progress.probe()
            else:
                progress.end_probe()
        engine.receive(peer, message)
        after = engine.next_index(peer)
        if message["success"]:
            after = guard.keeps_next(before, max(after, m.next_index))
            engine.set_next_index(peer, after)
        last = self._view.last_index
        if after < before or (message["success"] and (engine.commit_index < last or after <= last)):
            engine.tick_soon()  # there may be something to commit, or to send
        self.has_news = message["reset"] or bool(guard.acks_awaiting_local_sync or self._reads.waiting)
        self._reads.confirm()

    def count_synced(self) -> bool:
        """Count the acknowledgements that waited for this node's disk; returns whether there were any for a leader."""
        guard = self._guard
        if not guard.acks_awaiting_local_sync:
            return False
        waiting = guard.take_waiting_acks()
        if not self._engine.is_leader:
            return False
        for peer, index in waiting.items():
            if peer in self._engine.others:
                self._count_acknowledgement(peer, index)
        return True

    def _count_acknowledgement(self, peer: str, index: int) -> None:
        engine, guard = self._engine, self._guard
        before = engine.next_index(peer)
        answer = codec.AppendAnswer(engine.term, guard.seq, index + 1, codec.Outcome.MATCHES)
        engine.receive(peer, guard.filter_answer(peer, answer))
        engine.set_next_index(peer, guard.keeps_next(before, engine.next_index(peer)))

    def _on_chunk_answer(self, peer: str, m: codec.SnapshotAnswer) -> None:
        if peer not in self._engine.others or not self._guard.answers_this_leadership(m):
            return
        alive = {"type": "next_node_idx", "next_node_idx": 1, "reset": False, "success": False}
        self._engine.receive(peer, alive)
        outgoing = self._replicator.progress[peer].outgoing
        if outgoing is not None and outgoing.index == m.index:
            outgoing.answered(m.offset, self._clock())
            self._engine.tick_soon()

    def _on_vote_request(self, peer: str, m: codec.VoteRequest) -> None:
        if self._quarantine.is_on or (not m.is_transfer and self._guard.hears_leader()):
            return
        message = {
            "type": "request_vote",
            "term": m.term,
            "last_log_index": m.last_index,
            "last_log_term": m.last_term,
        }
        self._engine.receive(peer, message)

    def _on_vote(self, peer: str, m: codec.Vote) -> None:
        if self._guard.is_voter(peer) and self._guard.is_first_vote(peer, m):
            self._engine.receive(peer, {"type": "response_vote", "term": m.term})

    def _on_pre_vote_request(self, peer: str, m: codec.PreVoteRequest) -> None:
        guard = self._guard
        if self._quarantine.is_on:
            return
        granted = (
            m.term > self._engine.term
            and not guard.hears_leader()
            and guard.is_up_to_date(m.last_index, m.last_term)
        )
        self._outbox.queue(peer, codec.PreVote(self._engine.term, m.round, granted))

    def _on_pre_vote(self, peer: str, m: codec.PreVote) -> None:
        if m.is_granted:
            self._rounds.take(peer, m.round)
            if self._rounds.is_won(self._engine.term):
                self._engine.tick_soon()
        elif m.term > self._engine.term:
            self._campaign.follow(m.term)

    def _on_stale_term(self, peer: str, m: codec.StaleTerm) -> None:
        if m.term > self._engine.term:
            self._campaign.follow(m.term)

    def _on_timeout_now(self, peer: str, m: codec.TimeoutNow) -> None:
        if self._quarantine.is_on:
            return
        self._engine.receive(peer, {"type": "timeout_now", "term": m.term})
        self._engine.tick_soon()
