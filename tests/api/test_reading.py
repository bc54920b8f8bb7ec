"""Reading for calls: threads of their own, and the bytes of answers under way (quorum/api/hub/reading.py)."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import quorum
from fifo.commands import Address, Enqueue
from fifo.effects import Deliver, Run
from quorum.api import shares
from quorum.api.bulk.stored_rows import CACHED_BYTES, RowReader
from quorum.api.hub import deliveries
from quorum.api.hub.deliveries import BodyOnDisk, BodyReader
from quorum.api.hub.reading import STEP_BYTES, Workers
from quorum.api.services import queue_service
from quorum.api.status import StatusError
from quorum.log import LogDamaged, NotCached
from quorum.log.reader import RecentBodies
from quorum.node.errors import BodyUnreadable
from quorum.node.wire.batches import StoredBatch
from quorum.node.wire.operations import command_parts, encode
from quorum.v1 import queue_pb2 as pb
from quorum.v1 import queue_pb2_grpc
from support.members.cluster import batch
from support.members.served import serving

BODY = 100_000
PER_ENTRY = 20
"""Messages of an entry: 2 MB."""


class Log:
    """Every entry has one batch of PER_ENTRY messages."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def read(self, group: int, index: int) -> bytes:
        self.reads.append(index)
        data = batch([bytes([index]) * BODY] * PER_ENTRY)
        command = Enqueue(7, 1, 1, PER_ENTRY, PER_ENTRY * BODY)
        return b"\0" + b"".join(command_parts([encode(command, None, data)], 0, 2))


class Reader:
    """Holds what it is told to."""

    def __init__(self, held_bytes: int = 0) -> None:
        self.held_bytes = held_bytes
        self.drops = 0

    def drop(self) -> None:
        self.drops += 1


def test_an_address_whose_answers_are_not_taken_reads_no_more_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "PATIENCE_S", 0.0)

    async def run() -> None:
        workers, reader = Workers(4 * STEP_BYTES), Reader(STEP_BYTES)
        answers = [workers.answer("10.0.0.7", reader) for _ in range(3)]
        taken: list[int] = []
        steps = iter(range(9))
        for answer in answers[:2]:
            taken.append(await answer.step(steps, lambda _: 0) or 0)
        with pytest.raises(StatusError, match="no room for an answer, for this client's address"):
            await answers[2].step(steps, lambda _: 0)
        assert taken == [0, 1]
        assert next(steps) == 2, "nothing was read for the third one"
        assert reader.drops == 1
        with workers.answer("10.0.0.8", Reader()) as other:
            assert await other.step(iter("a"), lambda _: 0) == "a"
        with answers[0], answers[1]:
            pass
        assert workers.answers.used == 0

    asyncio.run(run())


def test_an_answer_holds_what_its_client_has_not_taken_and_what_its_reader_keeps() -> None:
    async def run() -> None:
        workers = Workers()
        with workers.answer("10.0.0.7", Reader(300)) as answer:
            assert await answer.step(iter("a"), lambda _: 7) == "a"
            assert workers.answers.used == 307
            assert await answer.step(iter(""), lambda _: 7) is None
            assert workers.answers.used == 0

    asyncio.run(run())


def test_reading_waits_for_no_staging_and_other_threads_for_neither() -> None:
    async def run() -> None:
        workers, may_end = Workers(), threading.Event()
        staged = [asyncio.create_task(workers.stage("10.0.0.7", may_end.wait)) for _ in range(20)]
        read = [asyncio.create_task(workers.read(may_end.wait)) for _ in range(20)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "listed") == "listed"
        may_end.set()
        assert all(await asyncio.gather(*staged, *read))

    asyncio.run(run())


def test_a_staging_address_leaves_the_next_one_a_turn() -> None:
    async def run() -> None:
        workers, may_end = Workers(), threading.Event()
        many = [asyncio.create_task(workers.stage("10.0.0.7", may_end.wait)) for _ in range(20)]
        for _ in range(3):
            await asyncio.sleep(0)
        other = asyncio.create_task(workers.stage("10.0.0.8", lambda: "staged"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert workers._turns._held.of("10.0.0.8") == 1, (
            "it is behind two steps of the other one, not behind twenty"
        )
        may_end.set()
        assert await other == "staged"
        await asyncio.gather(*many)

    asyncio.run(run())


def test_a_readers_cache_is_bounded_by_bytes() -> None:
    log = Log()
    reader = BodyReader(log, 10_000_000)  # type: ignore[arg-type]
    for index in range(1, 20):
        reader.batch(1, index, 0)
    assert len(reader._batches) == 2
    assert reader.held_bytes < 11_000_000
    rows = RowReader(BodyReader(log, 0), 1)  # type: ignore[arg-type]
    list(rows.parts([Run(1, PER_ENTRY, index, 0, 0) for index in range(1, 9)]))
    assert rows.held_bytes < CACHED_BYTES + 2 * PER_ENTRY * BODY
    rows.drop()
    assert rows.held_bytes == 0


def test_a_stream_that_waits_for_its_client_keeps_no_batch() -> None:
    reader = BodyReader(Log())  # type: ignore[arg-type]
    runs = tuple(Run(1 + PER_ENTRY * (index - 1), PER_ENTRY, index, 0, 0) for index in (1, 2))
    deliver = Deliver(Address(1, 2, 3), 7, "c", 1, 1, runs)
    parts = deliveries.delivered_batches(reader, 1, deliver)
    first = next(parts)
    assert isinstance(first, deliveries.DeliveredBatch)
    assert first.count == 10
    reader.drop()
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, StoredBatch)]
    rest = [part.count for part in parts if isinstance(part, deliveries.DeliveredBatch)]
    assert [first.count, *rest] == [10, 10, 10, 10]


def test_a_browse_that_finds_nothing_gives_its_thread_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_service, "GIVE_WAY_S", -1.0)
    log = Log()
    runs = tuple(Run(1 + PER_ENTRY * (index - 1), PER_ENTRY, index, 0, 0) for index in range(1, 6))
    steps = queue_service._browsed(BodyReader(log), 1, runs, lambda _: False, -1)  # type: ignore[arg-type]
    seen = []
    for step in steps:
        assert isinstance(step, pb.BrowseResponse)
        assert not step.messages
        seen.append(len(log.reads))
    assert seen == [1, 2, 3, 4, 5]


def test_a_browse_reads_beside_the_event_loop() -> None:
    threads = set()

    class Seeing(Log):
        def read(self, group: int, index: int) -> bytes:
            threads.add(threading.current_thread())
            return super().read(group, index)

    async def run() -> None:
        workers, reader = Workers(), BodyReader(Seeing())  # type: ignore[arg-type]
        steps: Iterator[Any] = queue_service._browsed(
            reader, 1, (Run(1, PER_ENTRY, 1, 0, 0),), lambda _: True, 7
        )
        found = []
        with workers.answer("10.0.0.7", reader) as answer:
            while (step := await answer.step(steps, queue_service._size_of)) is not None:
                found += [message.sequence for message in step.messages]
        assert found == [1, 2, 3, 4, 5, 6, 7]
        assert threads
        assert threading.main_thread() not in threads

    asyncio.run(run())


def test_a_block_is_given_before_its_rows_hold_more_batches_than_it_may() -> None:
    arrow_out = pytest.importorskip("quorum.api.bulk.arrow_out")
    from quorum.api.bulk.columns import wanted
    from quorum.api.bulk.stored_rows import Failures
    from quorum.v1 import bulk_pb2

    rows = RowReader(BodyReader(Log(), 0), 1)  # type: ignore[arg-type]
    made = arrow_out.Blocks(rows, wanted(bulk_pb2.Columns(names=["sequence"])))
    runs = [Run(index, 1, index, 0, 3) for index in range(1, 21)]
    blocks = [*made.feed(runs, Failures()), *made.take()]
    assert [block.rows for block in blocks] == [3, 3, 3, 3, 3, 3, 2]


def test_bodies_that_the_disk_has_to_read_are_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of gets and of deliveries, in order. The event loop does not wait for the disk."""

    async def run() -> None:
        async with serving() as (url, [api]), quorum.connect(url) as client:
            await client.declare("q")
            bodies = [b"%d" % number for number in range(40)]
            for body in bodies:
                await client.publish("q", body)
            monkeypatch.setattr(RecentBodies, "get", lambda *_: None)
            for disk in api.cluster.disks.values():
                disk.is_cold = True
            async with grpc.aio.insecure_channel(url.removeprefix("quorum://")) as channel:
                taken = await queue_pb2_grpc.QueueStub(channel).Get(pb.GetRequest(queue="q", count=10))  # type: ignore[no-untyped-call]
            found = [each.message.body for each in taken.messages]
            async with client.consume("q") as consumer:
                async for message in consumer:
                    found.append(message.body)
                    if len(found) == len(bodies):
                        break
            assert found == bodies
            assert any(each.name.startswith("reading") for each in threading.enumerate())

    asyncio.run(run())


def test_a_body_that_the_disk_cannot_read_is_unreadable_and_not_only_on_the_disk() -> None:
    class Cold(Log):
        def read(self, group: int, index: int, *, waits: bool = True) -> bytes:
            if not waits:
                raise NotCached("on the disk")
            if index == 1:
                raise LogDamaged
            return super().read(group, index)

    async def run() -> None:
        reader = BodyReader(Cold(), workers=Workers())  # type: ignore[arg-type]
        with pytest.raises(BodyOnDisk) as first:
            reader.command(1, 1)
        with pytest.raises(BodyUnreadable) as damaged:
            await first.value.load()
        assert not isinstance(damaged.value, BodyOnDisk)
        with pytest.raises(BodyOnDisk) as second:
            reader.command(1, 2)
        await second.value.load()
        assert reader.batch(1, 2, 0).count == PER_ENTRY

    asyncio.run(run())
