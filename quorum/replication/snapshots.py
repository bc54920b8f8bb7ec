"""Snapshots from a leader to a member too far behind: sent in chunks, answered, resumed, received and installed.

Sending (`Outgoing`): a window of chunks is in flight, read from the snapshot piece by piece; the follower's answers
advance it. If nothing advanced between two heartbeats, the chunks in flight count as lost and are sent again. Once all
chunks are sent, an empty chunk at the end asks again.

Receiving (`Incoming`): chunks of one snapshot, identified by index, term, size and CRC, are appended to a file. A chunk
at any other offset is answered with the size received so far. The snapshot is handed on only when it is complete and
its CRC right. It stays until it is installed or another one arrives: its bodies are fetched meanwhile (quorum/node),
and the leader keeps asking until they are here.

Installing (`SnapshotInstaller`): the library passes on each chunk, and asks to install the snapshot once `take_chunk`
has said that it is complete. The snapshot is read completely before it is put in place: if the disk has damaged it, it
is received again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorum.log import SnapshotDamaged
from quorum.log.errors import LogFull
from quorum.replication.codec import Outcome, SnapshotChunk
from quorum.replication.configuration import Configuration, State, open_state
from quorum.replication.engine import RaftEngine
from quorum.replication.errors import ReplicationFailed, WireError
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.log_space import LogSpaceGate
from quorum.replication.outbox import Answers
from quorum.replication.storage import Received, SnapshotSource

WINDOW_CHUNKS = 4
"""Maximum number of chunks in flight to one follower."""
SILENT_S = 60.0
"""Seconds of silence after which a follower's snapshot no longer keeps what it refers to."""
LIMIT_S = 3_600.0
"""Maximum number of seconds for which a snapshot being sent keeps what it refers to. The follower then gets a newer
snapshot, and has already fetched a part of what it needs."""


@dataclass(slots=True)
class Outgoing:
    """One snapshot that is being sent to one peer."""

    source: SnapshotSource
    chunk_bytes: int
    began_s: float
    heard_s: float
    sent: int = 0
    """Bytes given to the network, in order."""
    taken: int = 0
    """Bytes that the peer has, as it has said."""
    _began: bool = False
    _moved: bool = True

    @property
    def index(self) -> int:
        return self.source.index

    def next_chunk(self) -> tuple[int, bytes] | None:
        """Offset and bytes to send now; None if the window is full or all is sent. An empty state is one chunk."""
        size = self.source.size
        if self._began and (self.sent >= size or self.sent - self.taken >= WINDOW_CHUNKS * self.chunk_bytes):
            return None
        offset = self.sent
        data = self.source.read(offset, self.chunk_bytes)
        self._began = True
        self.sent += len(data)
        return offset, data

    def answered(self, offset: int, now_s: float) -> None:
        """Note that the peer has this many bytes. A smaller number than before means that it has begun again."""
        if offset > self.source.size:
            return
        self.heard_s = now_s
        if offset != self.taken:
            self._moved = True
        if offset < self.taken or offset > self.sent:
            self.sent = offset
        self.taken = offset

    def restart(self) -> None:
        """Send again what was in flight, because it is lost."""
        self.sent = self.taken
        self._began = False

    def heartbeat(self) -> None:
        """To be called when a heartbeat is due: without progress since the last one, what was in flight is sent
        again."""
        if not self._moved:
            self.restart()
        self._moved = False

    def is_overdue(self, now_s: float) -> bool:
        """Whether the peer has held its snapshot for too long."""
        return now_s - self.heard_s > SILENT_S or now_s - self.began_s > LIMIT_S


PrepareInstall = Callable[[int, int, State], tuple[int, Any] | None]
"""See Group's prepare_install."""
Receive = Callable[[int, int, int, int], Received]
"""Opens the file for a received snapshot, given as (index, term, size, crc)."""


class Incoming:
    """The snapshot that is being received."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._identity: tuple[int, int, int, int] | None = None
        self._here: Received | None = None
        self._source: SnapshotSource | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a snapshot is being received."""
        return self._identity is not None

    def take(self, chunk: SnapshotChunk) -> SnapshotSource | None:
        """Take a chunk. Returns the snapshot, to be read, if it is complete and its CRC right, and the same for every
        further chunk; otherwise None. LogFull: the same chunk may be taken again."""
        identity = _identity(chunk)
        if identity != self._identity:
            self.drop()
            self._here = self._receive(*identity)
            self._identity = identity
        assert self._here is not None
        if self._source is None and self._here.check():
            self._here.add(chunk.offset, chunk.data)
            if self._here.is_whole:
                self._source = self._finished(self._here)
                if self._source is None:
                    self.drop()
        return self._source

    def _finished(self, here: Received) -> SnapshotSource | None:
        """The complete snapshot; None if its CRC is wrong, or it cannot be read back."""
        if not here.finish():
            return None
        try:
            return here.open()
        except (OSError, SnapshotDamaged):
            return None

    def received(self, chunk: SnapshotChunk) -> int | None:
        """The number of bytes of this chunk's snapshot that are here; None while that is still being checked."""
        if _identity(chunk) != self._identity or self._here is None:
            return 0
        return self._here.received if self._source is not None or self._here.check() else None

    def keep(self) -> None:
        """Put the snapshot that `take` returned in place; it can still be read. LogFull."""
        assert self._here is not None
        self._here.keep()
        self._here = None

    def drop(self) -> None:
        """Forget received bytes that were not kept."""
        self._identity = None
        if self._source is not None:
            self._source.close()
            self._source = None
        if self._here is not None:
            self._here.drop()
            self._here = None


def _identity(chunk: SnapshotChunk) -> tuple[int, int, int, int]:
    return chunk.index, chunk.snapshot_term, chunk.size, chunk.crc


@dataclass(frozen=True, slots=True)
class _Ready:
    """A snapshot that is in place and was read completely. proven, state: as prepare_install has answered."""

    index: int
    term: int
    configuration: Configuration
    proven: int
    state: Any


class SnapshotInstaller:
    """Receives and installs a leader's snapshot at this member, a follower."""

    def __init__(
        self,
        group: int,
        engine: RaftEngine,
        view: JournalView,
        guard: Guard,
        answers: Answers,
        log_space: LogSpaceGate,
        prepare: PrepareInstall,
        installed: Callable[[Any, int, int], None],
    ) -> None:
        """prepare: see Group's prepare_install. installed(state, index, term): the snapshot is in place; state is what
        prepare has answered."""
        self._group = group
        self._engine = engine
        self._view = view
        self._guard = guard
        self._answers = answers
        self._log_space = log_space
        self._prepare_install = prepare
        self._installed = installed
        self.incoming = Incoming(view.journal.receive_snapshot)
        self._ready: _Ready | None = None
        self._is_state_wanted = False

    def want_state(self, *, is_wanted: bool) -> None:
        """Note whether the state here is lost, or is to be replaced: a snapshot of already applied entries is taken
        then, too."""
        self._is_state_wanted = is_wanted

    def take_chunk(self, chunk: SnapshotChunk) -> bool:
        """For the library: take a chunk; True if it completes a snapshot that is to be installed."""
        if self._log_space.is_closed:
            self._answers.answer(Outcome.ALIVE, 0)
            return False
        if not self._guard.is_newer(chunk) and not self._may_replace_state(chunk):
            self.incoming.drop()
            self._answers.answer(Outcome.MATCHES, self._engine.commit_index + 1)
            return False
        try:
            source = self.incoming.take(chunk)
            ready = None if source is None else self._prepared(chunk, source)
            if ready is None:
                self._answer(chunk)
                return False
            self.incoming.keep()
        except LogFull:  # the leader sends the last chunk again
            self._log_space.mark_full()
            self._answers.answer(Outcome.ALIVE, 0)
            return False
        self._log_space.mark_free()
        self._ready = ready
        self._guard.acknowledge_to = chunk.index
        return True

    def _prepared(self, chunk: SnapshotChunk, source: SnapshotSource) -> _Ready | None:
        """The snapshot, read completely; None while something that it refers to is missing. A snapshot that cannot be
        read any more is received again."""
        index, term = chunk.index, chunk.snapshot_term
        try:
            configuration, state = self._opened(source)
            prepared = self._prepare_install(index, term, state)
        except (OSError, SnapshotDamaged):
            self.incoming.drop()
            return None
        return None if prepared is None else _Ready(index, term, configuration, *prepared)

    def _may_replace_state(self, chunk: SnapshotChunk) -> bool:
        """Whether the journal continues from this snapshot, and no newer one is here. It is not above the commit
        index."""
        return (
            self._is_state_wanted
            and chunk.index >= self.state_from
            and self._view.term_at(chunk.index) == chunk.snapshot_term
        )

    @property
    def state_from(self) -> int:
        """The lowest index of a snapshot that can replace the state here."""
        return max(self._view.base, self._view.snapshot_index)

    @property
    def is_receiving(self) -> bool:
        """Whether a part of a snapshot is here."""
        return self.incoming.is_begun

    def _answer(self, chunk: SnapshotChunk) -> None:
        received = self.incoming.received(chunk)
        if received is None:  # the leader asks again with its next heartbeat
            self._answers.answer(Outcome.ALIVE, 0)
            return
        self._answers.answer_chunk(chunk.index, received)

    def _opened(self, source: SnapshotSource) -> tuple[Configuration, State]:
        try:
            return open_state(source)
        except WireError as error:
            raise ReplicationFailed(f"group {self._group} was sent an invalid snapshot: {error}") from error

    def install(self) -> None:
        """For the library: install the received snapshot."""
        assert self._ready is not None
        ready, self._ready = self._ready, None
        index, term = ready.index, ready.term
        commit_index = self._engine.commit_index
        self._view.install_snapshot(index, term, commit_index, ready.configuration, ready.proven)
        self._engine.move_commit_to(max(index, commit_index))
        self._installed(ready.state, index, term)
        self.incoming.drop()
