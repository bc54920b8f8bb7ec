"""What bulk calls do when answers are lost and replicas are behind (quorum/api/bulk/calls.py, staging.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from fifo import commands as c
from fifo.effects import Ok, Published, Refused, Reply, Reserved, Run, SubscriptionState
from fifo.results import BrowsePage, ReservationPage
from quorum.api import status
from quorum.api.bulk import calls, staging, subscriptions, views
from quorum.api.bulk import service as bulk_service
from quorum.api.hub.filters import Filters
from quorum.api.hub.hub import Hub
from quorum.api.hub.reading import Workers
from quorum.api.turns import Turns
from quorum.catalog.queues import CatalogQueue
from quorum.node import events as ev
from quorum.node.queries import (
    BrowsePinned,
    CountedPage,
    FindSubscription,
    Query,
    ReadReservation,
    ReservePreview,
)
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import bulk_pb2 as pb

PLAIN = CatalogQueue(7, "plain", 1, (), c.QueueConfig("plain"))


class FakeHub:
    """A hub and its parts, over a group that gives the answers it was told to."""

    def __init__(self, answers: list[Reply | None], indexes: tuple[int, ...] = (9,)) -> None:
        self.answers = list(answers)
        self.commands: list[c.Command] = []
        self.limits = BatchLimits(16_384, 16 << 20, 18 << 20)
        self.loop = asyncio.get_running_loop()
        self.workers = Workers()
        self.filters = Filters(Turns())
        self._indexes = list(indexes)
        self.catalog: Any = None
        self.requests: Any = self
        self.own_session = self.published = self

    async def call(self, group: int, command: c.Command) -> Reply | None:
        self.commands.append(command)
        return self.answers.pop(0)

    async def query(self, query: Query[Any]) -> Any:
        return self._indexes.pop(0) if len(self._indexes) > 1 else self._indexes[0]

    async def send(self, group: int, command: c.Stage, batch: bytes) -> asyncio.Future[Reply | None]:
        self.commands.append(command)
        answer: asyncio.Future[Reply | None] = self.loop.create_future()
        answer.set_result(self.answers.pop(0))
        return answer

    async def sent(self, group: int, answer: asyncio.Future[Reply | None]) -> Reply | None:
        return await answer


class FakeDriver:
    """The Raft thread: a group that knows one staged part. The session ends before the answers to the first `lost`
    chunks and commands come."""

    def __init__(self, lost: int, reason: str = "resync", applied: int = 0) -> None:
        self.commands: list[Any] = []
        self._lost = lost
        self._reason = reason
        self._chunks = applied
        """the next chunk of the part"""
        self.hub: Hub

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        loop = asyncio.get_running_loop()
        for item in items:
            if isinstance(item, ev.Submit):
                self.commands.append(item.command)
                if len(self.commands) < self._lost:
                    continue
                output: ev.Output = ev.Answered(item.session, item.token, self._reply(item.command))
                if len(self.commands) == self._lost:
                    output = ev.Ended(item.session, self._reason)
                loop.call_soon(self.hub._dispatch, [output])
            elif isinstance(item, ev.RunQuery):
                found = None if isinstance(item.query, FindSubscription) else 9
                loop.call_soon(self.hub._dispatch, [ev.QueryResult(item.token, found)])

    def _reply(self, command: Any) -> Reply:
        if isinstance(command, c.PublishStaged):
            return Published(5, 3, is_duplicate=len(self.commands) > 1)
        if isinstance(command, c.OpenSubscription):
            return SubscriptionState(4, 0, 0, 0)
        assert isinstance(command, c.Stage)
        if command.chunk > self._chunks:
            return Refused("gap", f"chunk {command.chunk} of a part that has {self._chunks}")
        self._chunks = max(self._chunks, command.chunk + 1)
        return Ok(self._chunks * 100)


def with_driver(driver: FakeDriver, run: Callable[[Hub], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        limits = BatchLimits(16_384, 16 << 20, 18 << 20)
        driver.hub = Hub("n3", None, limits, 64 << 20, 64 << 20)  # type: ignore[arg-type]
        driver.hub.attach(driver)  # type: ignore[arg-type]
        await run(driver.hub)

    asyncio.run(body())


@pytest.mark.parametrize("reason", ["resync", "expired", "node_down"])
def test_a_command_whose_answer_was_lost_is_asked_again(reason: str) -> None:
    command = c.PublishStaged(7, "p", 1, ())
    driver = FakeDriver(1, reason)

    async def run(hub: Hub) -> None:
        found = await calls.retry_until_answered(hub, 1, command, Published)
        assert found == Published(5, 3, is_duplicate=True)

    with_driver(driver, run)
    assert driver.commands == [command] * 2


def test_a_command_of_a_subscription_whose_answer_was_lost_is_asked_again() -> None:
    driver = FakeDriver(1)

    async def run(hub: Hub) -> None:
        service = service_of(hub)
        made = c.OpenSubscription(7, "s", b"", "earliest", 1_000, "release")
        assert (await service._changed(PLAIN, "s", lambda _: made)).generation == 4

    with_driver(driver, run)
    assert len(driver.commands) == 2


@pytest.mark.parametrize("reason", ["failed", "stopping", "limit"])
def test_a_command_is_not_asked_again_after_another_end_of_the_session(reason: str) -> None:
    driver = FakeDriver(1, reason)

    async def run(hub: Hub) -> None:
        with pytest.raises(status.StatusError):
            await calls.retry_until_answered(hub, 1, c.PublishStaged(7, "p", 1, ()), Published)

    with_driver(driver, run)
    assert len(driver.commands) == 1


def test_a_read_waits_until_its_replica_is_far_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "POLL_S", 0.0)
    monkeypatch.setattr(calls, "BEHIND_S", 0.0)

    async def run() -> None:
        await calls.wait_applied(FakeHub([], (12,)), 1, 12)  # type: ignore[arg-type]
        with pytest.raises(status.StatusError, match="group 1 up to entry 11, not to 12; ask another node"):
            await calls.wait_applied(FakeHub([], (11,)), 1, 12)  # type: ignore[arg-type]
        monkeypatch.setattr(calls, "BEHIND_S", 60.0)
        await calls.wait_applied(FakeHub([], (3, 7, 12)), 1, 12)  # type: ignore[arg-type]

    asyncio.run(run())


def arrow(rows: int) -> bytes:
    made = pa.RecordBatch.from_pydict({"body": [b"x"] * rows})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as stream:
        stream.write_batch(made)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("applied", [3, 4, 6])
@pytest.mark.parametrize(
    ("lost", "sent"),
    [
        (3, [3, 4, 5, 3, 4, 5]),  # all are under way when the session ends
        (2, [3, 4, 5, 3, 4, 5]),  # the last one leaves with the next session: too early, a gap
    ],
)
def test_chunks_whose_answers_were_lost_are_sent_again_in_order(
    lost: int, sent: list[int], applied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """applied: the group's next chunk when the session ends."""
    monkeypatch.setattr(staging, "kept_fields", lambda catalog, queue: (None, -1))
    driver = FakeDriver(lost, applied=applied)

    async def run(hub: Hub) -> None:
        request = pb.StageRequest(queue="q", producer="p", batch=4, part=bytes(16), first_chunk=3)
        part = staging._Part(hub, PLAIN, request, "10.0.0.7")
        await part.add(arrow(20_000))
        await part.add(b"")
        await part.finish()
        assert (part.next_chunk, part.size_bytes, part.rows) == (6, 20_000, 600)
        assert hub.publishing.used == 0

    with_driver(driver, run)
    assert [command.chunk for command in driver.commands] == sent


class Context:
    """Keeps the status that a call was ended with."""

    def __init__(self) -> None:
        self.ended: Any = None

    def peer(self) -> str:
        return "ipv4:10.0.0.7:51234"

    async def abort_with_status(self, ended: Any) -> None:
        self.ended = ended
        raise RuntimeError(ended.details)


PART = pb.StagedPart(part=b"three", rows=3)
LONG = "x" * 70_000
"""Its length does not fit where a command has it."""


@pytest.mark.parametrize(
    ("method", "request_", "problem"),
    [
        (
            "OpenSubscription",
            pb.OpenSubscriptionRequest(subscription=LONG),
            "name has 70000 bytes; allowed: 1 to 255",
        ),
        ("Reserve", pb.ReserveRequest(subscription=LONG), "name has 70000 bytes"),
        ("Settle", pb.SettleRequest(subscription="\u00e4" * 128), "name has 256 bytes"),
        ("KeepAlive", pb.KeepAliveRequest(), "name has 0 bytes"),
        (
            "ReleaseSubscription",
            pb.ReleaseSubscriptionRequest(subscription=LONG),
            "name has 70000 bytes",
        ),
        (
            "DeleteSubscription",
            pb.DeleteSubscriptionRequest(subscription=LONG),
            "name has 70000 bytes",
        ),
        ("Publish", pb.PublishStagedRequest(producer=LONG), "a producer's name has 1..255 bytes"),
        (
            "Publish",
            pb.PublishStagedRequest(producer="p", parts=[PART]),
            "a part of 5 bytes; allowed: 16",
        ),
        ("Publish", pb.PublishStagedRequest(producer="p", parts=[PART] * 4_097), "4097 parts; allowed: 4096"),
        ("Discard", pb.DiscardStagedRequest(producer=LONG), "a producer's name has 1..255 bytes"),
        ("Discard", pb.DiscardStagedRequest(producer="p", parts=[b"abc"]), "a part of 3 bytes; allowed: 16"),
        ("Discard", pb.DiscardStagedRequest(producer="p", parts=[b"abc"] * 4_097), "4097 parts; allowed"),
    ],
)
def test_what_a_command_cannot_hold_is_refused_before_the_node_hears_of_it(
    method: str, request_: Any, problem: str
) -> None:
    async def run() -> None:
        hub, context = FakeHub([]), Context()
        with pytest.raises(RuntimeError, match=problem):
            await getattr(service_of(hub), method)(request_, context)
        assert context.ended.code is grpc.StatusCode.INVALID_ARGUMENT
        assert hub.commands == []

    asyncio.run(run())


async def filtering(name: str) -> Any:
    return SimpleNamespace(id=7, group=1, config=SimpleNamespace(filter_enabled=True))


def service_of(hub: Any) -> bulk_service.BulkService:
    hub.requests.queue = filtering
    service = bulk_service.BulkService.__new__(bulk_service.BulkService)
    service._hub = hub
    return service


def test_a_node_without_a_lease_does_not_say_that_there_is_nothing() -> None:
    async def run() -> None:
        hub = FakeHub([], (ReservePreview(None, False, 3, 9),))  # type: ignore[arg-type]
        hub.may_deliver = lambda group: True  # type: ignore[attr-defined]
        request = pb.ReserveRequest(subscription="g", after=5)
        found = await service_of(hub).Reserve(request, Context())  # type: ignore[arg-type]
        assert (found.offset, found.ready, found.index) == (5, 3, 9)
        hub.may_deliver = lambda group: False  # type: ignore[attr-defined]
        context = Context()
        with pytest.raises(RuntimeError, match="lost its lease on group 1; ask another node"):
            await service_of(hub).Reserve(request, context)  # type: ignore[arg-type]
        assert context.ended.code is grpc.StatusCode.UNAVAILABLE

    asyncio.run(run())


def test_a_look_for_rare_messages_that_takes_long_says_that_it_is_not_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "SCAN_S", 0.0)

    async def run() -> None:
        nothing = [Reserved(5, 9, 0, 0, is_complete) for is_complete in (False, True)]
        hub = FakeHub(list(nothing), (ReservePreview(None, True, 3, 9),))  # type: ignore[arg-type]
        hub.may_deliver = lambda group: True  # type: ignore[attr-defined]
        service = service_of(hub)
        for is_unfinished in (True, False):
            found = await service.Reserve(pb.ReserveRequest(subscription="g", after=5), Context())  # type: ignore[arg-type]
            assert (found.offset, found.unfinished) == (5, is_unfinished)

    asyncio.run(run())


@pytest.mark.parametrize(("count", "asked"), [(0, [0, 2, 5]), (4, [0, 2])])
def test_a_reservation_that_lies_in_many_blocks_is_read_to_its_end(
    count: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    fed: list[tuple[int, int]] = []

    class Blocks:
        def __init__(self, *arguments: Any) -> None:
            pass

        def feed(self, runs: Any, failures: Any) -> Any:
            fed.extend((run.first_sequence, run.count) for run in runs)
            return iter(())

        def take(self) -> Any:
            return iter(())

    async def reserved(query: Query[Any]) -> ReservationPage:
        assert isinstance(query, ReadReservation)
        looks.append(query.first)
        parts = {0: (10, 2, True), 2: (30, min(3, query.count), True), 5: (70, 1, False)}
        sequence, found, has_more = parts[query.first]
        return ReservationPage((Run(sequence, found, 1, 0, 0),), 0, (), 0, has_more)

    async def load(name: str) -> Any:
        return SimpleNamespace(Blocks=Blocks)

    async def run() -> None:
        hub = FakeHub([])
        config = SimpleNamespace(config=SimpleNamespace(message_ttl_ms=-1))
        hub.catalog = SimpleNamespace(effective=lambda queue: config)
        hub.body_reader = lambda: SimpleNamespace(held_bytes=0)  # type: ignore[attr-defined]
        hub.requests.query = reserved
        request = pb.ReadReservedRequest(subscription="g", offset=1, count=count)
        assert [block async for block in service_of(hub).ReadReserved(request, Context())] == []  # type: ignore[arg-type]

    monkeypatch.setattr(subscriptions, "load", load)
    asyncio.run(run())
    assert looks == asked
    assert fed == ([(10, 2), (30, 2)] if count else [(10, 2), (30, 3), (70, 1)])


def test_a_browse_that_finds_nothing_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be taken for one that hangs, and be begun again from its start for ever."""
    pages = {1: BrowsePage((), 50), 50: BrowsePage((), 70), 70: BrowsePage((), None)}

    async def run() -> None:
        hub = FakeHub([])
        config = SimpleNamespace(config=SimpleNamespace(message_ttl_ms=-1))
        hub.catalog = SimpleNamespace(effective=lambda queue: config)
        hub.body_reader = lambda: SimpleNamespace(held_bytes=0)  # type: ignore[attr-defined]

        async def page(query: Query[Any]) -> CountedPage:
            assert isinstance(query, BrowsePinned)
            return CountedPage(pages[query.start], ())

        hub.requests.query = page
        columns = pb.Columns(names=["sequence", "fields"], fields=[pb.Field(name="a", kind=pb.Field.TEXT)])
        request = pb.BrowseViewRequest(start_sequence=1, columns=columns)
        found = [block async for block in service_of(hub).Browse(request, Context())]  # type: ignore[arg-type]
        assert [(block.rows, block.next_sequence) for block in found] == [(0, 50), (0, 70)]
        with pa.ipc.open_stream(found[0].arrow) as stream:
            assert stream.read_all().to_pydict() == {"sequence": [], "fields": []}

    monkeypatch.setattr(views, "SILENCE_S", -1.0)
    monkeypatch.setattr(views, "kept_fields", lambda catalog, queue: (None, -1))
    asyncio.run(run())


@pytest.mark.parametrize(
    ("limit", "selector", "counts"),
    [
        (0, "", [calls.PAGE, calls.PAGE]),
        (1, "", [1, 1]),
        (calls.PAGE + 1, "", [calls.PAGE, calls.PAGE]),
        (1, "colour = 'red'", [calls.PAGE, calls.PAGE]),
    ],
    ids=["all", "one", "many", "a selector that the group does not evaluate"],
)
def test_a_browse_looks_up_no_more_messages_than_it_may_show(
    limit: int, selector: str, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def run() -> None:
        hub = FakeHub([])
        config = SimpleNamespace(config=SimpleNamespace(message_ttl_ms=-1))
        hub.catalog = SimpleNamespace(effective=lambda queue: config)
        hub.body_reader = lambda: SimpleNamespace(held_bytes=0)  # type: ignore[attr-defined]

        async def page(query: Query[Any]) -> CountedPage:
            assert isinstance(query, BrowsePinned)
            asked.append(query.count)
            return CountedPage(BrowsePage((), 50 if query.start < 50 else None), ())

        hub.requests.query = page
        request = pb.BrowseViewRequest(limit=limit, selector=selector, columns=pb.Columns(names=["sequence"]))
        assert [block async for block in service_of(hub).Browse(request, Context())] == []  # type: ignore[arg-type]

    monkeypatch.setattr(views, "kept_fields", lambda catalog, queue: (None, -1))
    asyncio.run(run())
    assert asked == counts


def test_a_chunk_number_beyond_the_wire_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "kept_fields", lambda catalog, queue: (None, -1))

    async def run() -> None:
        hub = FakeHub([Ok(8_192)])
        last = (1 << 32) - 1
        request = pb.StageRequest(queue="q", producer="p", batch=4, part=bytes(16), first_chunk=last)
        part = staging._Part(hub, PLAIN, request, "10.0.0.7")
        with pytest.raises(status.StatusError, match=f"chunk {last + 1}; allowed: 0..{last}"):
            await part.add(arrow(10_000))
        assert [command.chunk for command in hub.commands if isinstance(command, c.Stage)] == [last]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (pb.StageRequest(producer="p", part=b"short"), "a part of 5 bytes; allowed: 16"),
        (pb.StageRequest(part=bytes(16)), "a producer's name has 1..255 bytes"),
        (pb.StageRequest(producer="p", part=bytes(16), batch=1 << 63), "batch 9223372036854775808; allowed"),
    ],
)
def test_a_part_that_is_named_badly_is_refused(request_: pb.StageRequest, problem: str) -> None:
    with pytest.raises(status.StatusError, match=problem):
        staging._Part(None, None, request_, "10.0.0.7")  # type: ignore[arg-type]
