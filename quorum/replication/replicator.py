"""How a leader feeds its followers: entries in few frames, a window in bytes, snapshots for who is too far behind.

The library's own way copies the log's tail for every batch and knows no window. Here a frame takes as many entries as
fit, bodies are read from the log at that moment and handed on uncopied, and a peer has at most a window
unacknowledged: a slow one costs no memory. `next index` moves on when a frame is queued; a lost frame shows at the
next heartbeat, which the follower refuses, saying where to begin again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quorum.log.errors import EntryMissing, LogDamaged
from quorum.replication.codec import AppendEntries, Entry, SnapshotChunk
from quorum.replication.engine import Peer
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.snapshots import WINDOW_CHUNKS, Outgoing, SnapshotSource, SnapshotUnsendable

TURN_BYTES = 4 << 20
"""Read for one peer in one turn: bounds how long a member that catches up holds up the others."""
BEHIND_BYTES = 1 << 20
"""The same, once a turn was not enough: what is left goes in small turns, one a tick, other work in between."""
TURN_ENTRIES, BEHIND_ENTRIES = 256, 64
"""The same, where entries are small: each costs some 20 microseconds, whatever its size."""
STATE_WANTED_S = 2.0
"""A follower whose state is lost asks for a snapshot more often than this as long as it needs one."""
UNSENDABLE_S = 5.0
"""No snapshot is begun for this long after one that could not be read to its end here."""


class Feed:
    """What is known of one follower besides the library's match and next index."""

    __slots__ = (
        "in_flight",
        "in_flight_bytes",
        "is_behind",
        "is_connected",
        "life",
        "outgoing",
        "seen",
        "state_from",
        "state_until_s",
        "waits_for_heartbeat",
    )

    def __init__(self) -> None:
        self.is_connected = False
        self.in_flight: deque[tuple[int, int]] = deque()
        """(last index, bytes) of each frame not yet acknowledged"""
        self.in_flight_bytes = 0
        self.is_behind = False
        """its last turn was not enough"""
        self.seen = 0
        """where the log ended at its last turn"""
        self.waits_for_heartbeat = False
        """it denies what it acknowledged: sent to at heartbeats only, so that this is no busy loop"""
        self.outgoing: Outgoing | None = None
        self.life: int | None = None
        """of a quarantined follower: which one of its lives this office has begun to feed anew"""
        self.state_from = 0
        """its state is lost, its journal is not: a snapshot at this index or later can replace the state"""
        self.state_until_s = float("-inf")
        """until when that holds if it does not ask again"""

    def forget_sent(self) -> None:
        """Nothing is under way any more."""
        self.in_flight.clear()
        self.in_flight_bytes = 0

    def end_transfer(self) -> None:
        """No snapshot is on its way any more."""
        if self.outgoing is not None:
            self.outgoing.source.close()
            self.outgoing = None

    def acknowledged(self, index: int) -> None:
        """The peer has everything up to here."""
        while self.in_flight and self.in_flight[0][0] <= index:
            self.in_flight_bytes -= self.in_flight.popleft()[1]


class Feeder:
    """Sends appends and snapshot chunks of one group. `send` queues a message for a peer."""

    def __init__(
        self,
        engine: Any,
        view: JournalView,
        guard: Guard,
        peers: Mapping[str, Peer],
        send: Callable[[str, AppendEntries | SnapshotChunk], None],
        *,
        window_bytes: int,
        frame_bytes: int,
        chunk_bytes: int,
    ) -> None:
        self._engine = engine
        self._view = view
        self._guard = guard
        self._peers = peers
        self._send = send
        self.feeds = {name: Feed() for name in peers}
        self._window_bytes = window_bytes
        self._frame_bytes = frame_bytes
        self._chunk_bytes = chunk_bytes
        self.floor = 0
        """Every member has all entries up to here; from the leader, or computed as leader."""
        self.has_more = False
        """A peer's turn ended early; there is more to send at once."""
        self.open_snapshot: Callable[[], SnapshotSource | None] = view.journal.open_snapshot
        """The snapshot that a peer too far behind is sent: canonical, the same bytes whoever leads."""
        self.lacks_snapshot = False
        """A peer needs one, and the newest that can be read does not reach the journal: a new one has to be taken."""
        self.unreadable: tuple[int, str] | None = None
        """An entry that a peer needs and that cannot be read here, and why."""
        self._no_snapshot_before_s = float("-inf")

    # ---- members, office and connections

    def set_members(self, names: Sequence[str]) -> None:
        """Who is fed from now on; who was fed before goes on where it is."""
        self.feeds = {name: self.feeds.get(name) or Feed() for name in names}

    def begin_office(self) -> None:
        """Whatever was under way was sent in another term."""
        for feed in self.feeds.values():
            feed.forget_sent()
            feed.end_transfer()
            feed.life = None
            feed.state_until_s = float("-inf")

    def welcome(self, name: str, life: int) -> bool:
        """A quarantined follower begins anew; False if this is known."""
        feed = self.feeds[name]
        if feed.life == life:
            return False
        feed.life = life
        feed.forget_sent()
        feed.end_transfer()
        feed.waits_for_heartbeat = False
        return True

    def send_state(self, name: str, from_index: int) -> None:
        """A follower has lost its state and asks for a snapshot; it is fed with entries as before."""
        feed = self.feeds[name]
        feed.state_from, feed.state_until_s = from_index, self._guard.clock() + STATE_WANTED_S

    def end_office(self) -> None:
        """Another member leads: nothing is held for followers any more."""
        for feed in self.feeds.values():
            feed.end_transfer()

    def connected(self, name: str) -> None:
        """What was under way on an old connection is lost."""
        feed = self.feeds[name]
        feed.is_connected = True
        feed.forget_sent()
        if self._guard.is_leader:
            peer = self._peers[name]
            match: int = self._engine._SyncObj__raftMatchIndex[peer]
            if match:
                self._engine._SyncObj__raftNextIndex[peer] = match + 1
                self._guard.note_rewind(name)
            if feed.outgoing is not None:
                feed.outgoing.restart()

    def disconnected(self, name: str) -> None:
        self.feeds[name].is_connected = False

    # ---- sending

    def beat(self, *, is_quiet: bool) -> None:
        """Something for every connected peer: new entries if there are any, else an empty append. is_quiet: it only
        tells of a commit, and needs no answers."""
        now_s = self._guard.clock()
        for name, feed in self.feeds.items():
            if feed.outgoing is not None and feed.outgoing.is_overdue(now_s):
                feed.end_transfer()
            if feed.is_connected:
                if not is_quiet:
                    feed.waits_for_heartbeat = False
                    if feed.outgoing is not None:
                        feed.outgoing.heartbeat()
                if feed.is_behind or not self._feed(name, feed):
                    self._send_append(name, self._next(name), [], is_quiet=is_quiet)

    def feed(self) -> None:
        """A tick's turn for everyone who has room in its window."""
        self.has_more = False
        self._feed_all()

    def feed_new(self) -> None:
        """New entries, between ticks, for who is not behind."""
        self._feed_all(with_behind=False)

    def _feed_all(self, *, with_behind: bool = True) -> None:
        last = self._view.last_index
        for name, feed in self.feeds.items():
            if feed.waits_for_heartbeat or not feed.is_connected or (feed.is_behind and not with_behind):
                continue
            if feed.outgoing is not None or self._next(name) <= last:
                self._feed(name, feed)

    def _next(self, name: str) -> int:
        index: int = self._engine._SyncObj__raftNextIndex[self._peers[name]]
        return index

    def _feed(self, name: str, feed: Feed) -> bool:
        """Whether anything was sent."""
        wants_state = self._guard.clock() < feed.state_until_s
        if self._next(name) <= self._view.base:
            if feed.outgoing is None or feed.outgoing.index < self._next(name):
                self._begin_snapshot(feed, feed.state_from if wants_state else 0)
            return self._feed_snapshot(name, feed)
        if wants_state:
            if feed.outgoing is None or feed.outgoing.index < feed.state_from:
                self._begin_snapshot(feed, feed.state_from)
            self._feed_snapshot(name, feed)
        else:
            feed.end_transfer()
        return self._feed_entries(name, feed)

    def _feed_entries(self, name: str, feed: Feed) -> bool:
        """Whether any were sent."""
        last = self._view.last_index
        sent = 0
        first = self._next(name)
        most_bytes, most_entries = (
            (BEHIND_BYTES, BEHIND_ENTRIES) if feed.is_behind else (TURN_BYTES, TURN_ENTRIES)
        )
        # who is behind gets more in a turn than has come since its last one, or it would stay behind under load
        least_entries = min(last - feed.seen, TURN_ENTRIES) if feed.is_behind else 0
        feed.seen = last
        while (index := self._next(name)) <= last and feed.in_flight_bytes < self._window_bytes:
            count = index - first
            if (sent >= most_bytes or count >= most_entries) and count > least_entries:
                self.has_more = feed.is_behind = True
                break
            size = self._send_frame(name, feed, index, most_entries)
            if not size:
                feed.waits_for_heartbeat = True
                break
            sent += size
        if self._next(name) > last:
            feed.is_behind = False
        return sent > 0

    def _send_frame(self, name: str, feed: Feed, index: int, most_entries: int) -> int:
        """One frame of entries from index on; its bytes, 0 if the first of them cannot be read."""
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
        self._engine._SyncObj__raftNextIndex[self._peers[name]] = index
        feed.in_flight.append((index - 1, size))
        feed.in_flight_bytes += size
        self._send_append(name, first, entries)
        return size

    def _send_append(
        self, name: str, next_index: int, entries: list[Entry], *, is_quiet: bool = False
    ) -> None:
        view = self._view
        prev = max(next_index - 1, view.base)
        guard = self._guard
        message = AppendEntries(
            guard.term,
            guard.next_seq(),
            guard.commit_index,
            prev,
            view.term_at(prev),
            self.floor,
            entries,
            is_quiet,
        )
        self._send(name, message)

    # ---- snapshots

    def _begin_snapshot(self, feed: Feed, least_index: int) -> None:
        feed.end_transfer()
        now_s = self._guard.clock()
        if now_s < self._no_snapshot_before_s:
            return
        source = self.open_snapshot()
        if source is not None and source.index < max(self._view.base, least_index):
            source.close()
            source = None
        self.lacks_snapshot = source is None
        if source is not None:
            feed.outgoing = Outgoing(source, self._chunk_bytes, now_s, now_s)

    def _feed_snapshot(self, name: str, feed: Feed) -> bool:
        outgoing = feed.outgoing
        if outgoing is None:
            return False
        guard, source = self._guard, outgoing.source
        sent = False
        for _ in range(WINDOW_CHUNKS):
            try:
                if not source.prepare():
                    self.has_more = True
                    return sent
                chunk = outgoing.next_chunk()
            except (OSError, ValueError) as error:  # the next heartbeat looks for another one
                self._view.journal.note_damaged_snapshot(source.index, source.term, str(error))
                feed.end_transfer()
                return sent
            except SnapshotUnsendable:
                self._no_snapshot_before_s = guard.clock() + UNSENDABLE_S
                feed.end_transfer()
                return sent
            if chunk is None:
                return sent
            offset, data = chunk
            message = SnapshotChunk(
                guard.term, guard.next_seq(), source.index, source.term, source.size, source.crc, offset, data
            )
            self._send(name, message)
            sent = True
        self.has_more = True
        return sent

    def pinned_snapshots(self) -> set[int]:
        """The indices of the snapshots on their way: what they refer to has to stay."""
        return {feed.outgoing.index for feed in self.feeds.values() if feed.outgoing is not None}

    def transfers_from(self) -> int | None:
        """The lowest index of a snapshot on its way: what follows it is needed next."""
        return min(
            (feed.outgoing.index for feed in self.feeds.values() if feed.outgoing is not None), default=None
        )

    # ---- what all have

    def update_floor(self) -> int:
        """The index up to which no member will ever ask again, as far as known here."""
        if self._guard.is_leader:
            lowest = self._view.durable_index
            for name, peer in self._peers.items():
                outgoing = self.feeds[name].outgoing
                match: int = self._engine._SyncObj__raftMatchIndex[peer]
                lowest = min(lowest, match if outgoing is None else max(match, outgoing.index))
            self.floor = max(self.floor, min(lowest, self._guard.commit_index))
        return self.floor
