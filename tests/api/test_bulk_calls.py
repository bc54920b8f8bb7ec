"""What bulk calls do when answers are lost and replicas are behind (quorum/api/bulk_calls.py, bulk_staging.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fifo import commands as c
from fifo.effects import Done, Ok, Published, Reply
from quorum.api import bulk_calls, bulk_staging, status
from quorum.node.batches import BatchLimits
from quorum.v1 import bulk_pb2 as pb


class FakeHub:
    """A group that gives the answers it was told to."""

    def __init__(self, answers: list[Reply | None], indexes: tuple[int, ...] = (9,)) -> None:
        self.answers = list(answers)
        self.commands: list[c.Command] = []
        self.limits = BatchLimits(16_384, 16 << 20, 18 << 20)
        self.loop = asyncio.get_running_loop()
        self._indexes = list(indexes)
        queue = SimpleNamespace(index=9)
        self.member = SimpleNamespace(queue_machine=lambda group: queue, catalog=None)

    async def call(self, group: int, command: c.Command) -> Reply | None:
        self.commands.append(command)
        return self.answers.pop(0)

    async def ask(self, question: Callable[[Any], int]) -> int:
        return self._indexes.pop(0) if len(self._indexes) > 1 else self._indexes[0]

    async def send(self, group: int, command: c.Stage, batch: bytes) -> asyncio.Future[Reply | None]:
        self.commands.append(command)
        answer: asyncio.Future[Reply | None] = self.loop.create_future()
        answer.set_result(self.answers.pop(0))
        return answer

    async def sent(self, group: int, answer: asyncio.Future[Reply | None]) -> Reply | None:
        return await answer


def test_a_command_whose_answer_was_lost_is_asked_again() -> None:
    async def run() -> None:
        hub = FakeHub([None, Done(), Published(5, 3)])
        command = c.PublishStaged(7, "p", 1, ())
        assert await bulk_calls.again(hub, 1, command, Published) == Published(5, 3)  # type: ignore[arg-type]
        assert hub.commands == [command] * 3

    asyncio.run(run())


def test_a_read_waits_until_its_replica_is_far_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_calls, "LOOK_S", 0.0)
    monkeypatch.setattr(bulk_calls, "BEHIND_S", 0.0)

    async def run() -> None:
        await bulk_calls.applied(FakeHub([], (12,)), 1, 12)  # type: ignore[arg-type]
        with pytest.raises(
            status.StatusError, match="group 1 up to entry 11, not up to 12; ask another node"
        ):
            await bulk_calls.applied(FakeHub([], (11,)), 1, 12)  # type: ignore[arg-type]
        monkeypatch.setattr(bulk_calls, "BEHIND_S", 60.0)
        await bulk_calls.applied(FakeHub([], (3, 7, 12)), 1, 12)  # type: ignore[arg-type]

    asyncio.run(run())


def arrow(rows: int) -> bytes:
    made = pa.RecordBatch.from_pydict({"body": [b"x"] * rows})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as stream:
        stream.write_batch(made)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_a_chunk_whose_answer_was_lost_is_sent_again_under_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_staging, "kept_fields", lambda catalog, queue: (None, -1))

    async def run() -> None:
        hub = FakeHub([Ok(8_192), None, Ok(20_000), Ok(16_384)])
        request = pb.StageRequest(queue="q", producer="p", batch=4, part=bytes(16), first_chunk=3)
        part = bulk_staging._Part(hub, SimpleNamespace(id=7, group=1), request)  # type: ignore[arg-type]
        await part.add(arrow(20_000))
        await part.add(b"")
        await part.finish()
        chunks = [command.chunk for command in hub.commands if isinstance(command, c.Stage)]
        assert chunks == [3, 4, 5, 4]
        assert (part.next_chunk, part.size_bytes) == (6, 20_000)

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
        bulk_staging._Part(None, None, request_)  # type: ignore[arg-type]
