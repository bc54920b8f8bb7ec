"""Replication by a leader: many entries a frame, a window in bytes, snapshots for a follower that is too far behind.

The library would copy the log's tail for every batch, and has no window. Here a frame takes as many entries as fit;
their bodies are read from the log at that moment and passed on without a copy. A follower has at most one window of
unacknowledged entries, so a slow follower costs no memory. The next index advances when a frame is queued. If a frame
is lost, the follower refuses the next heartbeat and says where to begin again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from quorum.log.errors import EntryMissing, LogDamaged
from quorum.replication.codec import AppendEntries, Entry, SnapshotChunk
from quorum.replication.configuration import CatchUp
from quorum.replication.engine import RaftEngine
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.outbox import Outbox
from quorum.replication.progress import Progress, ProgressState
from quorum.replication.snapshots import WINDOW_CHUNKS, Outgoing
from quorum.replication.storage import SnapshotSource, SnapshotUnsendable

TURN_BYTES = 4 << 20
"""Bytes read for one follower in one turn, so that a follower that catches up does not delay the others."""
BEHIND_BYTES = 1 << 20
"""The same, once a turn was not enough: the rest is sent in small turns, one a tick, with other work in between."""
TURN_ENTRIES, BEHIND_ENTRIES = 256, 64
"""The same as a number of entries, for small ones: each costs some 20 microseconds, whatever its size."""
STATE_WANTED_S = 2.0
"""A follower whose state is lost asks for a snapshot more often than this, while it needs one."""
UNSENDABLE_S = 5.0
"""Pause in seconds before the next snapshot is begun, after one that could not be read to its end here."""


class Window(Protocol):
    """Window sizes in bytes (GroupConfig has them)."""

    @property
    def window_bytes(self) -> int: ...
    @property
    def frame_bytes(self) -> int: ...
    @property
    def chunk_bytes(self) -> int: ...


class Replicator:
    """Sends appends and snapshot chunks of one group."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        guard: Guard,
        outbox: Outbox,
        clock: Callable[[], float],
        window: Window,
    ) -> None:
        self._engine = engine
        self._view = view
        self._guard = guard
        self._outbox = outbox
        self._clock = clock
        self.progress: dict[str, Progress] = {}
        """The progress of all other members."""
        self._window_bytes = window.window_bytes
        self._frame_bytes = window.frame_bytes
        self._chunk_bytes = window.chunk_bytes
        self.all_match_index = 0
        """Every member has all entries up to here; told by the leader, or computed as leader."""
        self.has_more = False
        """Whether a peer's turn ended early, so that there is more to send at once."""
        self._open_snapshot: Callable[[], SnapshotSource | None] = view.journal.open_snapshot
        self.lacks_snapshot = False
        """Whether a peer needs a snapshot, and the newest readable one does not reach the journal: a new one has to be
        taken."""
        self._told_at_once: set[str] | None = None
        """The peers to which a commit is announced by itself; None: all. The others hear of it with the next entries or
        heartbeat."""
        self._listening: set[str] = set()
        """peers that hear of commits at once, for as long as `announce_commits_to` has not been called twice"""
        self.unreadable: tuple[int, str] | None = None
        """An entry that a peer needs and that could not be read here, and the reason."""
        self._no_snapshot_before_s = float("-inf")

    # ---- members, leadership and connections

    def follow_members(self) -> None:
        """Send to the engine's other members from now on. A member that stays keeps its progress."""
        before = self.progress
        self.progress = {name: before.get(name) or Progress() for name in self._engine.others}
        for name in self.progress:
            if name not in before and name in self._engine.connected:
                self.connected(name)
        self.restart_catch_up()

    def become_leader(self) -> None:
        """Reset everything in flight, because it was sent in another term."""
        self._told_at_once = None
        self._listening.clear()
        for progress in self.progress.values():
            progress.begin_leadership()

    def step_down(self) -> None:
        """Drop everything that is held for followers, because another member leads."""
        for progress in self.progress.values():
            progress.end_transfer()

    def reset_progress(self, name: str, nonce: int) -> bool:
        """Begin a quarantined follower's progress again; False if this process of it is known."""
        return self.progress[name].reset_for(nonce)

    def send_state(self, name: str, from_index: int) -> None:
        """Note that a follower has lost its state and asks for a snapshot; it gets entries as before."""
        self.progress[name].want_state(from_index, self._clock() + STATE_WANTED_S)

    def connected(self, name: str) -> None:
        """Note a new connection: frames in flight on the old one are lost."""
        progress = self.progress[name]
        progress.is_connected = True
        progress.inflights.clear()
        if self._engine.is_leader:
            match = self._engine.match_index(name)
            if match:
                self._engine.set_next_index(name, match + 1)
                self._guard.note_rewind(name)
            if progress.outgoing is not None:
                progress.outgoing.restart()

    def disconnected(self, name: str) -> None:
        self.progress[name].is_connected = False

    # ---- learners

    def restart_catch_up(self) -> None:
        """Measure again how fast learners catch up: members or leadership have changed."""
        for progress in self.progress.values():
            progress.catch_up = None

    def watch_learners(self, round_s: float) -> None:
        """To be called with every tick of a leader. round_s: see CatchUp."""
        learners = self._engine.learners
        if not learners:
            return
        now_s, last = self._clock(), self._view.last_index
        for name in learners:
            progress = self.progress[name]
            if progress.catch_up is None:
                progress.catch_up = CatchUp(last, now_s)
            progress.catch_up.observe(self._engine.match_index(name), last, now_s, round_s)

    def is_caught_up(self, learner: str) -> bool:
        progress = self.progress.get(learner)
        return progress is not None and progress.catch_up is not None and progress.catch_up.is_done

    # ---- sending

    def announce_commits_to(self, peers: Iterable[str]) -> None:
        """See Group.announce_commits_to."""
        self._told_at_once = self._listening.union(peers)
        self._listening.clear()

    def announce_commits_also_to(self, peers: Iterable[str]) -> None:
        """See Group.announce_commits_also_to."""
        self._listening.update(peers)
        if self._told_at_once is not None:
            self._told_at_once.update(peers)

    def broadcast_heartbeat(self, *, is_quiet: bool, is_slow: bool) -> None:
        """Send something to every connected peer: new entries if there are any, else an empty append. is_quiet: the
        message only announces a commit, and needs no answers. is_slow: the next heartbeat comes later than usual."""
        for name, progress in self.progress.items():
            if progress.outgoing is not None and progress.outgoing.is_overdue(self._clock()):
                progress.end_transfer()
            if progress.is_connected:
                if not is_quiet:
                    progress.end_probe()
                    if progress.outgoing is not None:
                        progress.outgoing.heartbeat()
                if not progress.is_behind and self._send_more(name, progress):
                    continue
                if not is_quiet or self._told_at_once is None or name in self._told_at_once:
                    next_index = self._engine.next_index(name)
                    self._send_append(name, next_index, [], is_quiet=is_quiet, is_slow=is_slow)

    def replicate(self) -> None:
        """Run a tick's turn for every peer that has room in its window."""
        self.has_more = False
        self._replicate(with_behind=True)

    def replicate_new(self) -> None:
        """Send new entries, between ticks, to peers that are not behind."""
        self._replicate(with_behind=False)

    def _replicate(self, *, with_behind: bool) -> None:
        last = self._view.last_index
        for name, progress in self.progress.items():
            if progress.state is ProgressState.PROBE or not progress.is_connected:
                continue
            if progress.is_behind and not with_behind:
                continue
            if progress.outgoing is not None or self._engine.next_index(name) <= last:
                self._send_more(name, progress)

    def _send_more(self, name: str, progress: Progress) -> bool:
        """Send to one follower what it needs; returns whether anything was sent."""
        next_index = self._engine.next_index(name)
        has_next = next_index > self._view.base
        progress.follow_journal(has_next=has_next)
        wants_state = progress.asked_for_state and progress.wants_state(self._clock())
        outgoing = progress.outgoing
        if not has_next:
            if outgoing is None or outgoing.index < next_index:
                self._begin_snapshot(progress, progress.state_from if wants_state else 0)
            return self._send_snapshot(name, progress)
        if wants_state:
            if outgoing is None or outgoing.index < progress.state_from:
                self._begin_snapshot(progress, progress.state_from)
            self._send_snapshot(name, progress)
        elif outgoing is not None:
            progress.end_transfer()
        return self._send_entries(name, progress, next_index)

    def _send_entries(self, name: str, progress: Progress, first: int) -> bool:
        """Send entries from `first` on to one follower; returns whether any were sent."""
        last = self._view.last_index
        sent = 0
        index = first
        most_bytes, most_entries = (
            (BEHIND_BYTES, BEHIND_ENTRIES) if progress.is_behind else (TURN_BYTES, TURN_ENTRIES)
        )
        # a follower that is behind gets more in a turn than has come since its last one, or it would stay behind
        least_entries = min(last - progress.log_end, TURN_ENTRIES) if progress.is_behind else 0
        progress.log_end = last
        while index <= last and progress.inflights.bytes < self._window_bytes:
            count = index - first
            if (sent >= most_bytes or count >= most_entries) and count > least_entries:
                self.has_more = progress.is_behind = True
                break
            size = self._send_frame(name, progress, index, most_entries)
            if not size:
                progress.probe()
                break
            sent += size
            index = self._engine.next_index(name)
        if index > last:
            progress.is_behind = False
        return sent > 0

    def _send_frame(self, name: str, progress: Progress, index: int, most_entries: int) -> int:
        """Send one frame of entries from index on; returns its bytes, 0 if the first entry cannot be read."""
        view = self._view
        last = view.last_index
        first, size = index, 0
        entries: list[Entry] = []
        while index <= last and size < self._frame_bytes and len(entries) < most_entries:
            try:
                body = view.read(index)
            except (EntryMissing, LogDamaged) as error:
                self.unreadable = index, str(error)
                break
            entries.append(Entry(view.term_at(index), body))
            size += len(body)
            index += 1
        if not entries:
            return 0
        self._engine.set_next_index(name, index)
        progress.inflights.add(index - 1, size)
        self._send_append(name, first, entries)
        return size

    def _send_append(
        self,
        name: str,
        next_index: int,
        entries: list[Entry],
        *,
        is_quiet: bool = False,
        is_slow: bool = False,
    ) -> None:
        view = self._view
        prev = max(next_index - 1, view.base)
        engine = self._engine
        message = AppendEntries(
            engine.term,
            self._guard.next_seq(),
            engine.commit_index,
            prev,
            view.term_at(prev),
            self.all_match_index,
            entries,
            is_quiet,
            is_slow,
        )
        self._outbox.queue_dependent(name, message)

    # ---- snapshots

    def send_snapshots_from(self, source: Callable[[], SnapshotSource | None]) -> None:
        """Set what opens the snapshot for a peer that is too far behind: canonical, the same bytes whichever member
        leads."""
        self._open_snapshot = source

    def _begin_snapshot(self, progress: Progress, least_index: int) -> None:
        progress.end_transfer()
        now_s = self._clock()
        if now_s < self._no_snapshot_before_s:
            return
        source = self._open_snapshot()
        if source is not None and source.index < max(self._view.base, least_index):
            source.close()
            source = None
        self.lacks_snapshot = source is None
        if source is not None:
            progress.outgoing = Outgoing(source, self._chunk_bytes, now_s, now_s)

    def _send_snapshot(self, name: str, progress: Progress) -> bool:
        outgoing = progress.outgoing
        if outgoing is None:
            return False
        source = outgoing.source
        sent = False
        for _ in range(WINDOW_CHUNKS):
            try:
                if not source.prepare():
                    self.has_more = True
                    return sent
                chunk = outgoing.next_chunk()
            except (OSError, ValueError) as error:  # the next heartbeat looks for another one
                self._view.journal.note_damaged_snapshot(source.index, source.term, str(error))
                progress.end_transfer()
                return sent
            except SnapshotUnsendable:
                self._no_snapshot_before_s = self._clock() + UNSENDABLE_S
                progress.end_transfer()
                return sent
            if chunk is None:
                return sent
            offset, data = chunk
            message = SnapshotChunk(
                self._engine.term,
                self._guard.next_seq(),
                source.index,
                source.term,
                source.size,
                source.crc,
                offset,
                data,
            )
            self._outbox.queue_dependent(name, message)
            sent = True
        self.has_more = True
        return sent

    def pinned_snapshots(self) -> set[int]:
        """The indices of the snapshots that are being sent: what they refer to has to be kept."""
        return {each.outgoing.index for each in self.progress.values() if each.outgoing is not None}

    # ---- what all members have

    def update_all_match(self) -> int:
        """Update the index up to which no member will ever ask again, as far as known here, and return it."""
        engine = self._engine
        if engine.is_leader:
            lowest = self._view.durable_index
            for name, progress in self.progress.items():
                match = engine.match_index(name)
                if progress.outgoing is not None:
                    match = max(match, progress.outgoing.index)
                lowest = min(lowest, match)
            self.all_match_index = max(self.all_match_index, min(lowest, engine.commit_index))
        return self.all_match_index
