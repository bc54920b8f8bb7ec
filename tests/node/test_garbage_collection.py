"""Garbage collection as a member drives it (quorum/node/maintenance/garbage_collection.py): planned, run beside it,
adopted."""

from __future__ import annotations

import threading

import pytest

from quorum.log import LogFull
from quorum.node.maintenance.garbage_collection import (
    PLAN_MS,
    RETRY_MS,
    Background,
    GarbageCollection,
    Threaded,
)
from support.members.inline import Inline


class Collection:
    def __init__(self, error: Exception | None = None, gate: threading.Event | None = None) -> None:
        self.error = error
        self.gate = gate
        self.is_run = False

    def run(self) -> None:
        if self.gate is not None:
            assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        self.is_run = True


class Log:
    def __init__(self, *waiting: Collection) -> None:
        self.waiting = list(waiting)
        self.adopted: list[Collection] = []
        self.full = False
        self.surveys = 0

    def survey(self) -> None:
        self.surveys += 1

    def plan_collection(self) -> Collection | None:
        return self.waiting.pop(0) if self.waiting else None

    def adopt(self, collection: Collection) -> bool:
        assert collection.is_run
        if self.full:
            raise LogFull("no room for the manifest")
        self.adopted.append(collection)
        return True


@pytest.mark.parametrize("background", [Inline(), Threaded()], ids=["inline", "threaded"])
def test_collections_are_run_and_adopted_one_after_the_other(background: Background) -> None:
    one, other = Collection(), Collection()
    log = Log(one, other)
    collecting = GarbageCollection(log, background)
    for _ in range(10_000_000):  # steps, not time: a thread may take a while
        collecting.turn(0)
        if len(log.adopted) == 2:
            break
    assert log.adopted == [one, other]
    while collecting.is_under_way or log.surveys < 3:  # the third finds nothing
        collecting.turn(0)
    surveys = log.surveys
    log.waiting.append(Collection())
    collecting.turn(PLAN_MS - 1)
    assert log.surveys == surveys, "an idle log is not looked at with every turn"
    while log.waiting:
        collecting.turn(PLAN_MS)
    assert log.surveys == surveys + 1


def test_what_is_not_yet_copied_is_not_adopted() -> None:
    gate = threading.Event()
    log = Log(Collection(gate=gate))
    background = Threaded()
    collecting = GarbageCollection(log, background)
    while log.waiting:
        collecting.turn(0)
    for now_ms in range(0, 5_000, 100):
        collecting.turn(now_ms)
    assert not log.adopted
    gate.set()
    assert background._thread is not None
    background._thread.join()
    collecting.turn(5_000)
    assert len(log.adopted) == 1


@pytest.mark.parametrize("background", [Inline(), Threaded()], ids=["inline", "threaded"])
def test_a_full_disk_is_tried_again_later_and_a_defect_is_raised(background: Background) -> None:
    log = Log(Collection(LogFull("no room")), Collection(ValueError("a defect")))
    collecting = GarbageCollection(log, background)

    def turns(now_ms: int) -> None:
        for _ in range(3):  # surveyed, copied, adopted
            collecting.turn(now_ms)
            if isinstance(background, Threaded):
                assert background._thread is not None
                background._thread.join()

    turns(0)
    collecting.turn(RETRY_MS - 1)
    assert len(log.waiting) == 1
    with pytest.raises(ValueError, match="a defect"):
        turns(RETRY_MS)


def test_a_manifest_without_room_lets_the_collection_go() -> None:
    log = Log(Collection(), Collection())
    log.full = True
    collecting = GarbageCollection(log, Inline())
    collecting.turn(0)
    collecting.turn(0)
    log.full = False
    collecting.turn(RETRY_MS)
    collecting.turn(RETRY_MS)
    assert len(log.adopted) == collecting.adopted == 1
