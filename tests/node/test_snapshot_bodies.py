"""What a snapshot on its way trusts of this member's own entries (quorum/node/repair/snapshot_bodies.py)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from quorum.node.repair.body_transfer import Job
from quorum.node.repair.snapshot_bodies import SnapshotBodies


class BodyClient:
    """Jobs that are done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.cancelled: list[Job] = []

    def fetch(self, group: int, indexes: array[int], on_done: Callable[[], None], **more: Any) -> Job:
        job = Job(group, on_done, more["term_here"], {}, indexes)
        self.jobs.append(job)
        return job

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job)


class Member:
    """A journal 1..last of term 1, committed up to `commit_index`, and copies."""

    def __init__(self, commit: int, last: int) -> None:
        self.commit_index, self.last_index = commit, last
        self.term = 1
        self.copies: set[int] = set()
        self.body_client = BodyClient()
        self.asked: list[int] = []
        self.snapshot_bodies = SnapshotBodies(
            self, self.body_client, {1: SimpleNamespace(raft=self, references=self.references)}
        )  # type: ignore[arg-type,dict-item]

    def references(self, state: bytes) -> array[int]:
        self.asked.append(1)
        return array("Q", list(state))

    def term_at(self, index: int) -> int:
        return self.term if index <= self.last_index else 0

    def holds(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def missing(self, group: int, indexes: array[int], *, committed: int | None = None) -> array[int]:
        assert committed is not None
        here = min(committed, self.last_index)
        return array("Q", [index for index in indexes if index not in self.copies and index > here])


def test_entries_above_the_commit_index_are_not_trusted() -> None:
    member = Member(commit=5, last=10)
    assert member.snapshot_bodies.prepare(1, 20, 2, bytes((3, 5, 7, 10, 15))) is None
    (job,) = member.body_client.jobs
    assert job.left.tolist() == [7, 10, 15]
    assert job.term_here is not None
    assert [job.term_here(index) for index in job.left] == [1, 1, 0]
    assert member.snapshot_bodies.prepare(1, 20, 2, bytes((3, 5, 7, 10, 15))) is None
    assert len(member.body_client.jobs) == 1
    member.copies = {7, 10, 15}
    job.is_complete = True
    assert member.snapshot_bodies.prepare(1, 20, 2, bytes((3, 5, 7, 10, 15))) == 5
    assert member.asked == [1]


def test_an_entry_said_to_be_the_committed_one_proves_all_before_it() -> None:
    member = Member(commit=5, last=10)
    state = bytes((3, 7, 10, 15))
    assert member.snapshot_bodies.prepare(1, 20, 2, state) is None
    (job,) = member.body_client.jobs
    job.proven, job.is_complete = 10, True
    member.copies = {15}
    assert member.snapshot_bodies.prepare(1, 20, 2, state) == 10


def test_a_journal_that_holds_the_snapshots_own_entry_is_right_all_over() -> None:
    member = Member(commit=5, last=30)
    assert member.snapshot_bodies.prepare(1, 20, 1, bytes((3, 7, 15))) == 30
    assert not member.body_client.jobs


def test_what_was_proven_is_asked_again_when_the_journal_changes() -> None:
    member = Member(commit=5, last=10)
    state = bytes((7,))
    assert member.snapshot_bodies.prepare(1, 20, 2, state) is None
    member.body_client.jobs[0].proven = 10
    member.body_client.jobs[0].is_complete = True
    member.last_index = 8  # cut meanwhile
    assert member.snapshot_bodies.prepare(1, 20, 2, state) is None
    assert len(member.body_client.jobs) == 2
    assert member.asked == [1]


def test_another_snapshot_takes_the_place_of_the_first() -> None:
    member = Member(commit=5, last=10)
    assert member.snapshot_bodies.prepare(1, 20, 2, bytes((15,))) is None
    assert member.snapshot_bodies.prepare(1, 30, 2, bytes((16, 25))) is None
    assert member.body_client.cancelled == member.body_client.jobs[:1]
    assert member.body_client.jobs[1].left.tolist() == [16, 25]
    assert member.snapshot_bodies.missing(1) == 2
    member.snapshot_bodies.drop(1)
    assert member.snapshot_bodies.missing(1) == 0
