"""What a group's checkpoints tell the log to keep, and what they say about it (quorum/node/replica/checkpoints.py). The
log and the group are stand-ins."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from fifo.index_sets import IndexSet
from quorum.log import EntryMissing, LogDamaged
from quorum.node.errors import PageUnreadable
from quorum.node.replica.checkpoints import Checkpoints


class Journal:
    def __init__(self) -> None:
        self.indices: list[int] = []

    def snapshot_indices(self) -> list[int]:
        return self.indices

    def open_snapshot(self) -> None:
        self.was_asked = True


class Log:
    """One group, 5, with these snapshot files. damaged: pages that cannot be read."""

    def __init__(self) -> None:
        self.group = Journal()
        self.retained: list[list[tuple[int, list[int]]]] = []
        self.damaged: dict[int, Exception] = {}

    def journal(self, group: int) -> Journal:
        assert group == 5
        return self.group

    def retain(self, group: int, kept: list[Any]) -> None:
        self.retained.append([(each.index, list(each.pages)) for each in kept])

    def read_page(self, group: int, page: int) -> bytes:
        if page in self.damaged:
            raise self.damaged[page]
        return b"page %d" % page


class Raft:
    def __init__(self) -> None:
        self.pinned: list[int] = []
        self.source: Any = None

    def pinned_snapshots(self) -> list[int]:
        return self.pinned

    def send_snapshots_from(self, source: Any) -> None:
        self.source = source


class Group:
    def __init__(self) -> None:
        self.log, self.raft = Log(), Raft()
        self.checkpoints = Checkpoints(self.log, 5, self.raft, 8)  # type: ignore[arg-type]

    def save(self, index: int, entries: list[int], pages: list[int], files: list[int]) -> None:
        """A snapshot is in place; then there are these files."""
        self.log.group.indices = files
        self.checkpoints.saved(index, IndexSet.of(array("Q", entries)), array("Q", pages))


def test_a_page_that_cannot_be_read_is_told_once() -> None:
    group = Group()
    pages = group.checkpoints.pages
    assert pages.read(7) == b"page 7"
    group.log.damaged = {7: LogDamaged(), 9: EntryMissing("not here")}
    for page in group.log.damaged:
        with pytest.raises(PageUnreadable, match=f"group 5: page {page}|page {page}"):
            pages.read(page)
    assert pages.take_unreadable() == {7: "", 9: "not here"}
    assert pages.take_unreadable() == {}


def test_the_log_keeps_what_the_files_and_the_snapshots_under_way_refer_to() -> None:
    group = Group()
    group.save(10, [2, 4], [100], [10])
    group.save(20, [4, 15], [100, 300], [10, 20])
    assert group.checkpoints.kept == (10, 20)
    assert group.log.retained[-1] == [(10, [100]), (20, [100, 300])]
    group.raft.pinned = [10]  # a follower is being sent it
    group.save(30, [25], [400], [20, 30])
    assert group.checkpoints.kept == (10, 20, 30)
    group.raft.pinned = []
    group.checkpoints.rewound()
    assert group.log.retained[-1] == [(20, [100, 300]), (30, [400])]


def test_a_reference_of_any_valid_snapshot_counts() -> None:
    group = Group()
    group.save(10, [2, 4], [100, 200], [10])
    group.save(20, [4, 15], [200, 300], [10, 20])
    found = group.checkpoints
    assert [index for index in range(20) if found.refer_to(index)] == [2, 4, 15]
    assert [page for page in range(50, 400, 50) if found.refer_to_page(page)] == [100, 200, 300]
    assert [index for index in range(20) if index in found.newest_entries()] == [4, 15]


def test_without_a_snapshot_everything_is_kept_and_nothing_is_referred_to() -> None:
    group = Group()
    group.checkpoints.rewound()
    assert group.log.retained == [], "the log keeps what it kept"
    assert not group.checkpoints.refer_to(1) and 1 not in group.checkpoints.newest_entries()
    group.save(10, [2], [100], [10])
    group.log.group.indices = []
    group.checkpoints.rewound()
    assert group.log.retained[-1] == [(0, [])], "everything is to be applied again"


def test_a_state_that_is_known_to_be_wrong_is_sent_to_nobody() -> None:
    group = Group()
    group.checkpoints.is_sendable = False
    assert group.raft.source() is None
    assert not hasattr(group.log.group, "was_asked")
