"""The demo's course of events, on members in memory: what it does around a killed member, and what it reports."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console

from quorum.demo import run as demo
from quorum.demo.flights import Flight, carried, row_of
from quorum.demo.plan import PORTIONS, QUEUE, Tally, tallies
from support.fake_server.cluster import FakeCluster
from support.fake_server.server import FakeNode

TEST_LIMIT_S = 60.0
REPORT_WIDTH = 80


@dataclass
class Member:
    client: str


class Members:
    """Three FakeNodes in the place of a LocalCluster. Its methods are called from other threads."""

    def __init__(self, nodes: list[FakeNode], loop: asyncio.AbstractEventLoop) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._loop = loop
        self.told: list[str] = []
        self.calls = self
        """it is its own part"""

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(Member(node.address) for node in self._nodes.values())

    def leader_of_queue(self, queue: str) -> str:
        assert queue == QUEUE
        return "n1"

    def kill(self, name: str) -> None:
        self.told.append(f"kill {name}")
        self._run(self._nodes[name].stop())

    def start(self, names: Sequence[str]) -> None:
        self.told.append(f"start {names[0]}")
        self._run(self._nodes[names[0]].start())

    def wait_ready(self, names: Sequence[str]) -> None:
        self.told.append(f"wait for {names[0]}")

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


def play(
    flights: list[Flight], books: list[Tally], cluster: FakeCluster, *, is_filed: bool = True
) -> tuple[demo.Course, int, list[str], str]:
    """(what happened, what is left, what the members were told, what was printed). is_filed: what became of the flight
    that is followed at the end."""
    by_row = {flight.row: flight for flight in flights}
    for portion in PORTIONS:
        cluster.selectors[portion.selector] = lambda message, wants=portion.wants: wants(
            by_row[row_of(message.body)]
        )  # type: ignore[misc]
    console = Console(file=io.StringIO(), width=120)

    async def scenario() -> tuple[demo.Course, int, list[str]]:
        nodes = [await FakeNode(cluster, f"n{number}").start() for number in (1, 2, 3)]
        try:
            members = Members(nodes, asyncio.get_running_loop())
            show = demo.Show(console, books, len(flights))
            async with asyncio.timeout(TEST_LIMIT_S):
                course, left = await demo._play(members, flights, books, 1500.0, show)  # type: ignore[arg-type]
            return course, left, members.told
        finally:
            for node in nodes:
                await node.stop()

    course, left, told = asyncio.run(scenario())
    course.is_filed = is_filed
    console.width = REPORT_WIDTH
    status = demo._report(console, course, books, left, 1.0)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return course, left, told, f"{text}\nstatus {status}"


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> list[Flight]:
    monkeypatch.setattr(demo, "RESTART_AFTER_S", 0.2)
    monkeypatch.setattr(demo, "STALL_LIMIT_S", 3.0)
    return carried()[::8]


def test_all_flights_arrive_though_a_member_is_killed_on_the_way(flights: list[Flight]) -> None:
    books = tallies(flights)
    course, left, told, text = play(flights, books, FakeCluster())
    assert told == ["kill n1", "start n1", "wait for n1"]
    assert (course.confirmed, course.received, left) == (len(flights), len(flights), 0)
    assert course.reconnects > 0
    assert course.longest_wait_s > 0.0
    assert all(book.is_right for book in books)
    assert "lost: 0" in text
    assert text.endswith("status 0")


def test_a_flight_that_is_not_filed_is_reported(flights: list[Flight]) -> None:
    _, _, _, text = play(flights, tallies(flights), FakeCluster(), is_filed=False)
    assert text.endswith("status 1")


def test_a_service_that_loses_flights_is_found_out(flights: list[Flight]) -> None:
    lost = next(flight.row for flight in flights if flight.is_cancelled)

    class Forgetful(FakeCluster):
        def serve(self, queue: Any) -> None:
            for sequence, message in list(queue.ready.items()):
                if row_of(message.body) == lost:
                    del queue.ready[sequence]
            super().serve(queue)

    books = tallies(flights)
    _, _, _, text = play(flights, books, Forgetful())
    assert books[0].lost == 1
    assert "lost: 1" in text
    assert text.endswith("status 1")


def test_a_service_that_repeats_without_saying_so_is_found_out(flights: list[Flight]) -> None:
    class Repeating(FakeCluster):
        done = False

        def hand_out(self, consumer: Any, chosen: list[Any], *, settled: bool = False) -> None:
            super().hand_out(consumer, chosen, settled=settled)
            if not self.done and chosen:
                self.done = True
                consumer.queue.put_back(chosen[0])
                chosen[0].handed_out = False

    books = tallies(flights)
    _, _, _, text = play(flights, books, Repeating())
    assert sum(book.unflagged_duplicates for book in books) == 1
    assert text.endswith("status 1")


def test_the_report_of_all_flights_is_whole_at_80_columns(flights: list[Flight]) -> None:
    books = tallies(flights)
    for book in books:
        book.expected = frozenset(range(336_776 // len(books)))
    console = Console(file=io.StringIO(), width=REPORT_WIDTH)
    demo._report(console, demo.Course(336_776), books, 0, 1.0)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    for word in (
        "expected",
        "received",
        "strays",
        "lost",
        "336,774",
        *(book.portion.title for book in books),
    ):
        assert word in text
