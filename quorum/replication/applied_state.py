"""The state that the owner has made of a group's committed entries: how far it is, and the snapshots of it.

Entries are given out in order, each once, and count as applied then. The index moves besides only with an installed
snapshot, and back to an older one when the state is lost (`load_again`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorum.log.errors import EntryMissing, LogDamaged
from quorum.replication import codec
from quorum.replication.configuration import wrap_state
from quorum.replication.engine import RaftEngine
from quorum.replication.group_config import GroupConfig
from quorum.replication.journal_view import JournalView, KeptBytes
from quorum.replication.replicator import Replicator


class AppliedState:
    """The owner's state of one group."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        replicator: Replicator,
        on_install: Callable[[Any, int, int], None],
        config: GroupConfig,
    ) -> None:
        """on_install: see Group."""
        self._engine = engine
        self._view = view
        self._replicator = replicator
        self._on_install = on_install
        self._keep_entries = config.keep_entries
        self._kept = KeptBytes(config.keep_bytes)
        self._unreadable: tuple[int, str] | None = None
        self.index = max(1, view.snapshot_index)
        """The last entry that `take_committed` has returned, or that a snapshot covers."""

    def take_committed(self, max_bytes: int, max_entries: int) -> list[tuple[int, int, bytes | memoryview]]:
        """See Group.take_committed."""
        found: list[tuple[int, int, bytes | memoryview]] = []
        size = 0
        view = self._view
        commit = self._engine.commit_index
        while self.index < commit and len(found) < max_entries and size < max_bytes:
            index = self.index + 1
            try:
                body = view.read(index)
            except (EntryMissing, LogDamaged) as error:
                self._unreadable = index, str(error)
                break
            size += len(body)
            self._kept.add(index, len(body))
            is_command = body[0] == codec.COMMAND
            found.append((index, view.term_at(index), memoryview(body)[1:] if is_command else b""))
            self.index = index
        return found

    def take_unreadable(self) -> tuple[int, int, str] | None:
        """See Group.take_unreadable."""
        found = self._unreadable or self._replicator.unreadable
        self._unreadable = self._replicator.unreadable = None
        if found is None or not self._view.base < found[0] <= self._view.last_index:
            return None
        index, reason = found
        return index, self._view.term_at(index), reason

    def save_snapshot(self, state: bytes, *, again: bool) -> bool:
        """See Group.save_snapshot."""
        view = self._view
        is_newer = self.index > view.snapshot_index - again
        if is_newer:
            view.save_snapshot(self.index, wrap_state(view.configurations.at(self.index), state))
        keep_from = max(
            self._replicator.update_all_match(), view.last_index - self._keep_entries, self._kept.first_index
        )
        needed = min(self._replicator.pinned_snapshots(), default=None)
        view.compact(keep_from if needed is None else min(keep_from, needed))
        return is_newer

    def installed(self, state: Any, index: int, term: int) -> None:
        """Pass a leader's snapshot on, which is in place."""
        self.index = index
        self._on_install(state, index, term)

    def load_again(self) -> bytes | None:
        """See Group.rewind_applied."""
        state = self._view.load_again()
        self.index = max(1, self._view.snapshot_index)
        return state
