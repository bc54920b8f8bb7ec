"""What is noted, fetched, forgotten (quorum/node/repair/repairer.py)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from quorum.log import EntryMissing
from quorum.node.repair.body_transfer import Job
from quorum.node.repair.repairer import Repairer


@dataclass(frozen=True)
class _Waiter:
    told: list[object] = field(compare=False)
    token: object

    def repaired(self) -> None:
        self.told.append(self.token)


class Room:
    """A log of which some entries cannot be read, and jobs that are done when the test says so."""

    def __init__(self) -> None:
        self.bad: set[int] = set()
        self.needed: set[int] = set(range(100))
        self.told: list[object] = []
        self.jobs: list[tuple[array[int], Any, Job]] = []
        self.cancelled: list[Job] = []
        self.repairer = Repairer(
            self,
            self,  # type: ignore[arg-type]
            structlog.get_logger(),
            self,
        )

    def is_needed(self, group: int, index: int) -> bool:
        return index in self.needed

    def wait(self, index: int, token: object) -> None:
        self.repairer.wait(1, index, _Waiter(self.told, token))

    def forget(self, token: object) -> None:
        self.repairer.forget_waiter(_Waiter(self.told, token))

    def read(self, group: int, index: int) -> bytes:
        if index in self.bad:
            raise EntryMissing(str(index))
        return b"body"

    def fetch(self, group: int, indexes: array[int], on_done: Callable[[], None], **more: Any) -> Job:
        job = Job(group, on_done, None, more["terms"], indexes)
        self.jobs.append((indexes, more["terms"], job))
        return job

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job)

    def note(self, *indexes: int, term: int = 0) -> None:
        self.bad.update(indexes)
        for index in indexes:
            self.repairer.note(1, index, term, "test")
        self.repairer.tick()

    def arrive(self, at: int = -1) -> None:
        indexes, _, job = self.jobs[at]
        self.bad.difference_update(indexes)
        job.is_complete = True
        job.on_done()


def test_what_was_noted_is_fetched_once_and_who_waits_is_told() -> None:
    room = Room()
    room.note(5, 3, term=2)
    room.note(5)
    assert [(indexes.tolist(), terms) for indexes, terms, _ in room.jobs] == [([3, 5], {3: 2, 5: 2})]
    room.wait(5, "a")
    room.wait(7, "readable")
    assert room.told == ["readable"]
    room.arrive()
    assert room.told == ["readable", "a"]
    assert room.repairer.repaired == {1: 2}
    assert room.repairer.lost(1) == 0


def test_a_body_that_is_bad_again_is_fetched_again() -> None:
    room = Room()
    room.note(5)
    room.arrive()
    room.note(5)
    room.arrive()
    assert len(room.jobs) == 2
    assert room.repairer.repaired == {1: 2}


def test_a_copy_that_cannot_be_read_either_is_fetched_again() -> None:
    room = Room()
    room.note(5)
    _, _, job = room.jobs[0]
    job.is_complete = True
    job.on_done()  # and it is still bad
    room.repairer.tick()
    assert room.repairer.is_lost(1, 5)
    assert len(room.jobs) == 2


def test_who_is_well_again_by_itself_is_not_fetched_any_more() -> None:
    room = Room()
    room.note(5)
    room.bad.clear()
    room.repairer.scan()
    assert room.repairer.lost(1) == 0
    assert room.cancelled == [room.jobs[0][2]]


def test_what_nobody_needs_any_more_is_forgotten_unless_somebody_waits() -> None:
    room = Room()
    room.note(5, 6)
    room.wait(6, "b")
    room.needed.clear()
    room.repairer.scan()
    assert not room.repairer.is_lost(1, 5)
    assert room.repairer.is_lost(1, 6)
    assert not room.cancelled
