"""A leader's work: heartbeats, its part of a tick, current reads, and the transfer of its leadership to another voter.

`Leadership` begins and ends with the leader's role. Reads and a transfer in progress end with it: `ReadIndex.refuse`,
`LeadershipTransfer.end`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorum.replication import codec
from quorum.replication.engine import SLOWER, RaftEngine
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.library import RaftState, Timing
from quorum.replication.log_space import LogSpaceGate
from quorum.replication.outbox import Outbox
from quorum.replication.replicator import Replicator

ReadCallback = Callable[[int | None], None]
CALM_S = 1.0
"""A leader that has had nothing to do for this time sends its heartbeats `engine.SLOWER` times as slowly."""


class ReadIndex:
    """ReadIndex (Raft §6.4): a read waits until a majority has answered a message that was sent after the read was
    asked.

    Reads that arrive during a heartbeat round wait together for the next round. So many reads cost one more round trip,
    not one each. Any answer to a later message counts, also an answer to an append.
    """

    def __init__(self, engine: RaftEngine, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self.waiting: list[tuple[int, int, ReadCallback]] = []
        """(seq, commit index, callback) of reads that wait for a majority, oldest first"""
        self.wants_round = False
        """Whether the next tick should send a heartbeat to every member."""

    def begin_round(self) -> None:
        """To be called before a tick: make a heartbeat due if the reads need one."""
        if self.wants_round:
            self.wants_round = False
            self._engine.next_append_s = float("-inf")

    def add(self, callback: ReadCallback) -> None:
        """Add a read of what is committed now."""
        if not self.waiting:
            self.wants_round = True
        self.waiting.append((self._guard.seq + 1, self._engine.commit_index, callback))

    def confirm(self) -> None:
        """Answer the reads that a majority has confirmed. The first of the others begins the next round."""
        if not self.waiting:
            return
        confirmed = self._confirmed_seq()
        count = sum(1 for seq, _, _ in self.waiting if seq <= confirmed)
        done, self.waiting = self.waiting[:count], self.waiting[count:]
        if done and self.waiting:
            self.wants_round = True
        for _, index, callback in done:
            callback(index)

    def refuse(self) -> None:
        """Answer all reads with None, because they can no longer be confirmed here."""
        waiting, self.waiting = self.waiting, []
        self.wants_round = False
        for _, _, callback in waiting:
            callback(None)

    def _confirmed_seq(self) -> int:
        """The highest number that a majority, this leader included, has answered in this leadership."""
        guard = self._guard
        needed = guard.majority_of_others
        if not needed:
            return guard.seq
        answered = sorted((guard.answered.get(peer, 0) for peer in self._engine.voters), reverse=True)
        return answered[needed - 1]


@dataclass(slots=True)
class _Transfer:
    target: str
    deadline_s: float
    is_asked: bool = False
    """Whether the target has everything and was told to campaign."""


class LeadershipTransfer:
    """Leadership transfer (thesis §3.10): the target is brought up to date and told to campaign. Until the transfer has
    succeeded or failed, the leader proposes nothing."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        guard: Guard,
        outbox: Outbox,
        clock: Callable[[], float],
        limit_s: float,
    ) -> None:
        """limit_s: the time after which an unsuccessful transfer ends and the leader continues."""
        self._engine = engine
        self._view = view
        self._guard = guard
        self._outbox = outbox
        self._clock = clock
        self._limit_s = limit_s
        self._transfer: _Transfer | None = None

    @property
    def is_on(self) -> bool:
        return self._transfer is not None

    def begin(self, target: str) -> bool:
        """Begin a transfer; False if one is in progress, or the target cannot be reached or is no voter."""
        if self._transfer is not None:
            return False
        if not self._guard.is_voter(target) or target not in self._engine.connected:
            return False
        self._transfer = _Transfer(target, self._clock() + self._limit_s)
        self.advance()
        return True

    def advance(self) -> None:
        """To be called with every tick: tell the target once it has everything; give up when it takes too long."""
        transfer = self._transfer
        if transfer is None:
            return
        if self._clock() >= transfer.deadline_s or not self._guard.is_voter(transfer.target):
            self._transfer = None
        elif not transfer.is_asked and self._engine.match_index(transfer.target) == self._view.last_index:
            transfer.is_asked = True
            self._outbox.queue(transfer.target, codec.TimeoutNow(self._engine.term))

    def end(self) -> None:
        """End the transfer: the leadership has ended, or begun."""
        self._transfer = None


class Leadership:
    """What this member does while it leads, beside answering messages."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        guard: Guard,
        replicator: Replicator,
        outbox: Outbox,
        log_space: LogSpaceGate,
        clock: Callable[[], float],
        timing: Timing,
    ) -> None:
        self._engine = engine
        self._view = view
        self._guard = guard
        self._replicator = replicator
        self._log_space = log_space
        self._clock = clock
        self._heartbeat_s = timing.heartbeat_s
        self._may_be_slow = SLOWER * self._heartbeat_s <= timing.leader_fallback_s / 3
        self._is_slow = False
        """Whether the next heartbeat comes later than usual."""
        self._calm_index, self._calm_since_s = 0, clock()
        """The end of the log when a heartbeat was last sent, and since when it has been this."""
        self._round_s = timing.election_min_s
        self.reads = ReadIndex(engine, guard)
        self.has_unsent = False
        """Whether entries were proposed that were not yet offered to the followers; see `note_unsent`."""
        self._transfer = LeadershipTransfer(engine, view, guard, outbox, clock, timing.election_max_s)

    @property
    def is_ready(self) -> bool:
        """Whether this node leads and an entry of its own term is committed, so that it knows all committed entries
        (Raft §8)."""
        return self._engine.is_leader and self._engine.has_committed_in_term

    @property
    def is_transferring(self) -> bool:
        """Whether this node transfers its leadership."""
        return self._transfer.is_on

    @property
    def may_propose(self) -> bool:
        return self._engine.is_leader and not self._transfer.is_on

    # ---- a tick

    def has_tick_work(self) -> bool:
        """Whether a leader's tick can have any effect that nobody has asked for: a heartbeat is due, a follower is due
        for its next turn, entries are unsent, or a read, a transfer or a learner is under way."""
        engine, reads = self._engine, self.reads
        return (
            self.has_unsent
            or bool(reads.waiting or engine.learners or self._transfer.is_on)
            or reads.wants_round
            or self._replicator.has_more
            or self._clock() >= engine.next_append_s
        )

    def begin_tick(self) -> None:
        """To be called before the engine's tick."""
        self.reads.begin_round()

    def end_tick(self) -> None:
        """To be called after the engine's tick: answer reads, advance a transfer, and send to the followers."""
        self.has_unsent = False
        self.reads.confirm()
        if self._engine.is_leader and self._engine.others:
            self._replicator.watch_learners(self._round_s)
            self._transfer.advance()
            self._replicator.replicate()

    def note_unsent(self) -> None:
        """Note that an entry was proposed: the followers' election timeouts have their usual length from it on."""
        self.has_unsent = True
        if self._is_slow:
            self._is_slow = False
            self._engine.next_append_s = min(self._engine.next_append_s, self._clock() + self._heartbeat_s)

    @property
    def _period_s(self) -> float:
        return self._heartbeat_s * SLOWER if self._is_slow else self._heartbeat_s

    def join_heartbeat(self) -> bool:
        """Make a heartbeat due now that would be due within half a period; returns whether it did."""
        engine = self._engine
        if engine.is_leader and engine.next_append_s < self._clock() + self._period_s / 2:
            engine.next_append_s = float("-inf")
            return True
        return False

    @property
    def awaits_own_commit(self) -> bool:
        """Whether the next tick of a leader without other voters commits what its own disk has synced."""
        engine = self._engine
        return engine.is_leader and not engine.voters and engine.commit_index < self._view.durable_index

    # ---- calls of the library

    def role_changed(self, old: int, new: int) -> None:
        """For the library: begin or end the leadership."""
        self._transfer.end()
        self._replicator.restart_catch_up()
        if new == RaftState.LEADER:
            self._log_space.mark_free()  # it was about a leader's entries
            self._guard.become_leader()
            self._replicator.become_leader()
        if old == RaftState.LEADER:
            self._replicator.step_down()
            self.reads.refuse()
        self._engine.tick_soon()

    def replicate(self) -> None:
        """For the library: a heartbeat is due, or the commit index has moved."""
        now = self._clock()
        is_heartbeat = now > self._engine.next_append_s
        self._replicator.update_all_match()
        if is_heartbeat:
            self._is_slow = self._is_calm(now)
            self._engine.next_append_s = now + self._period_s
        self._replicator.broadcast_heartbeat(
            is_quiet=not is_heartbeat, is_slow=is_heartbeat and self._is_slow
        )

    def _is_calm(self, now_s: float) -> bool:
        """Whether this leader has had nothing to do for a while: all members have all entries, and all are committed.
        To be called with every heartbeat."""
        last = self._view.last_index
        if self._replicator.all_match_index < last or self._calm_index != last:
            self._calm_index, self._calm_since_s = last, now_s
            return False
        is_asked = self.reads.waiting or self._engine.learners or self._transfer.is_on
        return self._may_be_slow and not is_asked and now_s - self._calm_since_s >= CALM_S

    def clamp_own_commit(self, commit_index: int, before: int) -> int:
        """For the library: a leader that is the only voter commits what is on its own disk. It has no other voter's
        acknowledgement to wait for, as it has with `Guard.park`."""
        if self._engine.voters or not self._engine.is_leader:
            return commit_index
        return max(before, min(commit_index, self._view.note_synced()))

    # ---- requests of the owner

    def read(self, callback: ReadCallback) -> None:
        """See Group.read_barrier."""
        if not self.is_ready or self._transfer.is_on:
            callback(None)
        elif not self._engine.voters:
            callback(self._engine.commit_index)
        else:
            self.reads.add(callback)

    def transfer_to(self, peer: str) -> bool:
        """See Group.transfer_leadership."""
        if not self.is_ready or not self._transfer.begin(peer):
            return False
        self.reads.refuse()
        self._engine.tick_soon()
        return True
