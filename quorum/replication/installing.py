"""A leader's snapshot: received piece by piece, kept, put in place of what was here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorum.log.errors import LogFull
from quorum.replication import codec
from quorum.replication.errors import ReplicationFailed, WireError
from quorum.replication.guard import Guard
from quorum.replication.journal import JournalView
from quorum.replication.membership import Configuration, unwrap_state
from quorum.replication.messages import Messages
from quorum.replication.outbox import Outbox
from quorum.replication.room import Room
from quorum.replication.transfer import Incoming


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
        prepare: Callable[[int, int, bytes], int | None],
        installed: Callable[[bytes, int, int], None],
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
        self.incoming = Incoming()
        self._received: tuple[int, int, bytes, int] | None = None

    def take_chunk(self, chunk: codec.SnapshotChunk) -> bool:
        """For the engine: a piece of a snapshot; True if it completes one that is to be installed."""
        if self._room.is_shut:
            self._messages.answer(codec.Outcome.ALIVE, 0)
            return False
        if not self._guard.is_newer(chunk):
            self.incoming.drop()
            self._messages.answer(codec.Outcome.MATCHES, self._guard.commit_index + 1)
            return False
        state = self.incoming.take(chunk)
        proven = None
        if state is not None:
            proven = self._prepare_install(chunk.index, chunk.snapshot_term, self.unwrapped(state)[1])
        if state is None or proven is None:
            peer, term, seq = self._messages.handling()
            received = self.incoming.received(chunk)
            self._outbox.queue(peer, codec.SnapshotAnswer(term, seq, chunk.index, received))
            return False
        if not self._keep(chunk, state):
            self._messages.answer(codec.Outcome.ALIVE, 0)
            return False
        self._received = (chunk.index, chunk.snapshot_term, state, proven)
        self._guard.acknowledge_to = chunk.index
        return True

    def _keep(self, chunk: codec.SnapshotChunk, state: bytes) -> bool:
        """Whether a received snapshot is on the disk. Without room for it, its leader sends its end again."""
        try:
            self._view.keep_snapshot(chunk.index, chunk.snapshot_term, state)
        except LogFull:
            self._room.ran_out()
            return False
        self._room.is_full = False
        return True

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
        index, term, data, proven = self._received
        self._received = None
        self.incoming.drop()
        configuration, state = self.unwrapped(data)
        self._view.install_snapshot(index, term, self._guard.commit_index, configuration, proven)
        self._engine._SyncObj__raftCommitIndex = index
        self._engine._SyncObj__raftLastApplied = index
        self._installed(state, index, term)
