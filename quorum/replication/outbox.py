"""The messages that this member sends: each with the LSN that must be synced before it leaves; and answers to a leader.

A message waits in the `Outbox` until the log has synced the last record it depends on. Acknowledgements, votes and
refusals depend on every record that the group has written so far. Appends and snapshot chunks depend on term and vote
only, because they promise nothing about this node's own log.

An answer to a leader echoes term and number of the message it answers; `Answers` knows that message while it is being
handled.
"""

from __future__ import annotations

from collections.abc import Callable

from quorum.replication import codec
from quorum.replication.codec import Message
from quorum.replication.errors import ReplicationFailed
from quorum.replication.journal_view import JournalView
from quorum.replication.storage import NodeLog


class Outbox:
    """The unsent messages of one group, in their order."""

    def __init__(self, log: NodeLog, view: JournalView, send: Callable[[str, list[bytes]], None]) -> None:
        self._log = log
        self._view = view
        self._send = send
        self._waiting: list[tuple[int, str, list[bytes]]] = []

    def queue(self, peer: str, message: Message) -> None:
        """Send a message as soon as everything this group has written so far is synced."""
        self._send_from(self._view.last_lsn, peer, message)

    def queue_dependent(self, peer: str, message: codec.AppendEntries | codec.SnapshotChunk) -> None:
        """Send a message as soon as term and vote are synced."""
        self._send_from(self._view.journal.hard_state_lsn, peer, message)

    def _send_from(self, lsn: int, peer: str, message: Message) -> None:
        """Send a message now if the log is synced up to this LSN, else later. A message never passes one that waits."""
        parts = codec.encode(message)
        if not self._waiting and lsn <= self._log.synced_lsn:
            self._send(peer, parts)
        else:
            self._waiting.append((lsn, peer, parts))

    @property
    def has_waiting(self) -> bool:
        """Whether a message waits for a sync."""
        return bool(self._waiting)

    def send_ready(self) -> None:
        """Send the messages that depend on nothing unsynced."""
        waiting = self._waiting
        if not waiting:
            return
        synced = self._log.synced_lsn
        self._waiting = [each for each in waiting if each[0] > synced]
        for lsn, peer, parts in waiting:
            if lsn <= synced:
                self._send(peer, parts)


class Answers:
    """Answers to the append or snapshot chunk that is being handled."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._handled: tuple[str, int, int] | None = None
        """(peer, term, seq) of that message"""
        self.is_quiet = False
        """Whether that message wants no acknowledgement."""
        self.matched = (0, 0)
        """(term, index) of the last acknowledgement sent."""

    def begin(self, peer: str, term: int, seq: int) -> None:
        """Begin to handle this message."""
        self._handled = peer, term, seq

    def end(self) -> None:
        """Note that no message is being handled any more."""
        self._handled = None
        self.is_quiet = False

    def answer(self, outcome: codec.Outcome, next_index: int) -> None:
        peer, term, seq = self._handling()
        if outcome == codec.Outcome.MATCHES:
            self.matched = term, next_index - 1
        self._outbox.queue(peer, codec.AppendAnswer(term, seq, next_index, outcome))

    def answer_chunk(self, index: int, received: int) -> None:
        """Answer with the number of bytes received of the snapshot at this index."""
        peer, term, seq = self._handling()
        self._outbox.queue(peer, codec.SnapshotAnswer(term, seq, index, received))

    def _handling(self) -> tuple[str, int, int]:
        if self._handled is None:
            raise ReplicationFailed("the library answered outside of a message")
        return self._handled
