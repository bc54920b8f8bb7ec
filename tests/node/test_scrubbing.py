"""A member's log checks itself (quorum/node/maintenance/scrubbing.py): slowly, a round a day, and what is bad is
mended."""

from __future__ import annotations

import errno

import pytest
import structlog

from fifo import commands as c
from fifo.persistence.references import references
from quorum.node.identity.identity import NodeState
from quorum.node.maintenance.garbage_collection import Background, Threaded
from quorum.node.maintenance.scrubbing import Pace, Scrubbing
from quorum.node.replica.replica import state_of
from support.log.damage import flip_body
from support.members.cluster import Cluster, Session, batch
from support.members.inline import Inline

PACE = Pace()
SCRUB_BYTES, SCRUB_MS, ROUND_MS = PACE.piece_bytes, PACE.piece_ms, PACE.round_ms


class Log:
    def __init__(self, *pieces: int | Exception) -> None:
        self.pieces = list(pieces)

    def scrub(self, budget_bytes: int) -> int:
        assert budget_bytes == SCRUB_BYTES
        found = self.pieces.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def repair(self) -> list[object]:
        return []


def scrubbing_of(log: Log, background: Background, node_state: NodeState | None = None) -> Scrubbing:
    return Scrubbing(log, background, node_state or NodeState(), structlog.get_logger(), PACE)


def piece(scrubbing: Scrubbing, now_ms: int) -> None:
    """One piece from begin to end, at a time at which it is due."""
    scrubbing.turn(now_ms)
    assert scrubbing.is_under_way
    for _ in range(10_000_000):  # steps, not time: a thread may take a while
        if not scrubbing.is_under_way:
            return
        scrubbing.turn(now_ms)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("background", [Inline(), Threaded()], ids=["inline", "threaded"])
def test_a_piece_a_second_and_a_round_a_day(background: Background) -> None:
    log = Log(SCRUB_BYTES, 70, 0, 5)
    scrubbing = scrubbing_of(log, background)
    for now_ms in (0, SCRUB_MS, 2 * SCRUB_MS):
        scrubbing.turn(now_ms - 1)
        assert not scrubbing.is_under_way or now_ms == 0
        piece(scrubbing, now_ms)
    assert (scrubbing.checked_bytes, scrubbing.rounds) == (SCRUB_BYTES + 70, 1)
    scrubbing.turn(ROUND_MS - 1)
    assert not scrubbing.is_under_way
    piece(scrubbing, ROUND_MS)
    assert log.pieces == []


def test_a_round_that_takes_longer_than_a_day_is_followed_by_the_next() -> None:
    log = Log(1, 0, 1)
    scrubbing = scrubbing_of(log, Inline())
    piece(scrubbing, 0)
    piece(scrubbing, 2 * ROUND_MS)
    scrubbing.turn(2 * ROUND_MS + SCRUB_MS - 1)
    assert not scrubbing.is_under_way
    piece(scrubbing, 2 * ROUND_MS + SCRUB_MS)


@pytest.mark.parametrize("background", [Inline(), Threaded()], ids=["inline", "threaded"])
def test_what_goes_wrong_is_raised(background: Background) -> None:
    scrubbing = scrubbing_of(Log(ValueError("a defect")), background)
    with pytest.raises(ValueError, match="a defect"):
        piece(scrubbing, 0)


def test_a_node_json_that_cannot_be_read_is_written_again() -> None:
    saved: list[bool] = []
    node_state = NodeState(save=lambda: saved.append(True), is_whole=lambda: bool(saved))
    scrubbing = scrubbing_of(Log(1, 1, 0), Inline(), node_state)
    for now_ms in (0, SCRUB_MS, 2 * SCRUB_MS):
        piece(scrubbing, now_ms)
    assert saved == [True]


def test_without_room_for_it_the_next_piece_tries_again() -> None:
    attempts: list[int] = []

    def save() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError(errno.ENOSPC, "no room")

    scrubbing = scrubbing_of(
        Log(1, 1, 0), Inline(), NodeState(save=save, is_whole=lambda: len(attempts) == 3)
    )
    for now_ms in (0, SCRUB_MS, 2 * SCRUB_MS):
        piece(scrubbing, now_ms)
    assert len(attempts) == 3


def test_damage_that_nobody_has_met_is_found_and_mended() -> None:
    cluster = Cluster(log={"recent_bytes": 0, "segment_bytes": 64 << 10})
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    for number in range(1, 101):
        body = b"%d" % number + b"x" * 4_000
        session.send(group, c.Enqueue(queue, number, 1, 1, len(body)), (number, number), batch([body]))
        cluster.run(5)
    cluster.until(lambda: len(session.confirmed()) == 100, "100 confirms")
    cluster.settle()
    member, log = cluster.members["n3"], cluster.logs["n3"]
    cluster.until(lambda: member.scrubbing.rounds == 1, "the round that the start began")
    index = list(references(state_of(member.replicas[group].machine)))[10]
    flip_body(cluster.disks["n3"], log, group, index)
    rounds = member.scrubbing.rounds
    cluster.run(3_000)
    assert log.damages == (), "nobody reads it"
    assert member.repairer.repaired == {}
    member.scrubbing._next_ms = 0  # tomorrow's round
    cluster.until(lambda: member.repairer.repaired == {group: 1}, "it is found, fetched and put back", 60_000)
    assert log.damages == ()
    assert log.read(group, index) == cluster.logs["n1"].read(group, index)
    checked = member.scrubbing.checked_bytes
    cluster.until(lambda: member.scrubbing.rounds == rounds + 1, "the round is through")
    assert member.scrubbing.checked_bytes >= checked > 100_000
