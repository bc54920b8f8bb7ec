"""A leader's snapshot: received piece by piece, kept, put in place of what was here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorum.log.errors import LogFull
from quorum.replication import codec
from quorum.replication.configuration import Configuration, State, open_state, unwrap_state
from quorum.replication.errors import ReplicationFailed, WireError
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.messages import Messages
from quorum.replication.outbox import Outbox
from quorum.replication.room import Room
from quorum.replication.snapshots import Incoming, SnapshotSource


class Installing:
    """The snapshot that a follower is being sent."""

    def __init__(
        self,
        group: int,
        engine: Any,
        view: JournalView,
        guard: Guard,
        messages: Messages,
        outbox: Outbox,
        room: Room,
        prepare: Callable[[int, int, State], int | None],
        installed: Callable[[State, int, int], None],
    ) -> None:
        """prepare(index, term, state): see Group's prepare_install. installed(state, index, term): it is in place."""
        self._group = group
        self._engine = engine
        self._view = view
        self._guard = guard
        self._messages = messages
        self._outbox = outbox
        self._room = room
        self._prepare_install = prepare
        self._installed = installed
        self.incoming = Incoming(view.journal.receive_snapshot)
        self._received: tuple[int, int, SnapshotSource, int] | None = None
        self.is_state_wanted = False
        """The state here is lost, or is to be replaced: a snapshot of what is applied already is taken too."""

    def take_chunk(self, chunk: codec.SnapshotChunk) -> bool:
        """For the engine: a piece of a snapshot; True if it completes one that is to be installed."""
        if self._room.is_shut:
            self._messages.answer(codec.Outcome.ALIVE, 0)
            return False
        if not self._guard.is_newer(chunk) and not self._may_replace_state(chunk):
            self.incoming.drop()
            self._messages.answer(codec.Outcome.MATCHES, self._guard.commit_index + 1)
            return False
        try:
            source = self.incoming.take(chunk)
            proven = None
            if source is not None:
                proven = self._prepare_install(chunk.index, chunk.snapshot_term, self._opened(source)[1])
            if source is None or proven is None:
                self._answer(chunk)
                return False
            self.incoming.keep()
        except LogFull:  # the leader sends its end again
            self._room.ran_out()
            self._messages.answer(codec.Outcome.ALIVE, 0)
            return False
        self._room.is_full = False
        self._received = (chunk.index, chunk.snapshot_term, source, proven)
        self._guard.acknowledge_to = chunk.index
        return True

    def _may_replace_state(self, chunk: codec.SnapshotChunk) -> bool:
        """Whether the journal goes on from it, and no newer snapshot is here. It is not above the commit index."""
        return (
            self.is_state_wanted
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

    def _answer(self, chunk: codec.SnapshotChunk) -> None:
        received = self.incoming.received(chunk)
        if received is None:  # the leader asks again with its next heartbeat
            self._messages.answer(codec.Outcome.ALIVE, 0)
            return
        peer, term, seq = self._messages.handling()
        self._outbox.queue(peer, codec.SnapshotAnswer(term, seq, chunk.index, received))

    def _opened(self, source: SnapshotSource) -> tuple[Configuration, State]:
        try:
            return open_state(source)
        except WireError as error:
            raise ReplicationFailed(
                f"group {self._group} was sent a snapshot that is none: {error}"
            ) from error

    def unwrapped(self, data: bytes) -> tuple[Configuration, bytes]:
        try:
            return unwrap_state(data)
        except WireError as error:
            raise ReplicationFailed(
                f"group {self._group} was sent a snapshot that is none: {error}"
            ) from error

    def install(self) -> None:
        """For the engine: put the received snapshot in place."""
        assert self._received is not None
        index, term, source, proven = self._received
        self._received = None
        configuration, state = self._opened(source)
        commit_index = self._guard.commit_index
        self._view.install_snapshot(index, term, commit_index, configuration, proven)
        self._engine._SyncObj__raftCommitIndex = max(index, commit_index)
        self._engine._SyncObj__raftLastApplied = max(index, commit_index)
        self._installed(state, index, term)
        self.incoming.drop()
