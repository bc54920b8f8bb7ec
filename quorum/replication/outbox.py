"""What is to be sent, each message with the LSN that has to be synced before it may leave."""

from __future__ import annotations

from collections.abc import Callable

from quorum.replication import codec
from quorum.replication.codec import Message
from quorum.replication.journal_view import JournalView, NodeLog


class Outbox:
    """The messages of one group that have not left yet, in their order."""

    def __init__(self, log: NodeLog, view: JournalView, send: Callable[[str, list[bytes]], None]) -> None:
        self._log = log
        self._view = view
        self._send = send
        self._waiting: list[tuple[int, str, list[bytes]]] = []

    def queue(self, peer: str, message: Message) -> None:
        """Leaves when everything this group has written so far is synced."""
        self._waiting.append((self._view.last_lsn, peer, codec.encode(message)))

    def queue_dependent(self, peer: str, message: codec.AppendEntries | codec.SnapshotChunk) -> None:
        """Leaves when term and vote are synced: it promises nothing about this node's own log."""
        self._waiting.append((self._view.journal.hard_state_lsn, peer, codec.encode(message)))

    def send_ready(self) -> None:
        """What depends on nothing unsynced leaves."""
        waiting = self._waiting
        if not waiting:
            return
        synced = self._log.synced_lsn
        self._waiting = [each for each in waiting if each[0] > synced]
        for lsn, peer, parts in waiting:
            if lsn <= synced:
                self._send(peer, parts)
