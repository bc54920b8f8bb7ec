"""Who reads and writes in bulk: drivers of data flows, which keep their position and their output where it survives
them, as Spark does in its checkpoint, and are killed at any moment.

What such a driver has written for an offset it writes again after a crash, over what was there: so what is judged is
its output, in which every message must be once, whoever else consumes from the queue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa

from quorum.client.client import Client
from quorum.client.errors import from_rpc_error
from quorum.histories.records import Record
from quorum.v1 import bulk_pb2 as pb
from quorum.v1 import bulk_pb2_grpc
from simulator.clients.apps import SELECTORS, App, Place, fields_of
from simulator.rules.rules import Broken, Key

if TYPE_CHECKING:
    from simulator.world import World

CALL_S = 4.0
STREAM_S = 6.0
SHUNNED_S = 10.0
"""So long a node that has not answered is not asked, as long as there are others."""
UNHEARD_PART = 0.15
"""Of the publications and reservations: the client takes the answer for lost and asks again, like a driver that was
killed just before the answer came. A writer does the whole batch again."""
GROUP = "flow"
HOLDER = f"durable/{GROUP}"
"""What the history calls whoever reads for the group."""
READ = pb.Columns(names=["sequence", "body"])
GIVEN_UP = frozenset((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))


def table(blocks: list[bytes]) -> list[tuple[int, bytes]]:
    """(sequence, body) of each row."""
    rows: list[tuple[int, bytes]] = []
    for block in blocks:
        found = pa.ipc.open_stream(block).read_all()
        rows += zip(found["sequence"].to_pylist(), found["body"].to_pylist(), strict=True)
    return rows


class BulkApp(App):
    """Calls the bulk API, at any node."""

    def __init__(self, world: World, name: str) -> None:
        self._silent: dict[str, float] = {}
        self._asked = ""
        super().__init__(world, name)

    def stub(self) -> Any:
        now = self.loop.time()
        names = list(self.world.machines)
        names = [name for name in names if self._silent.get(name, now) <= now] or names
        self._asked = self.chance.choice(names)
        return bulk_pb2_grpc.BulkStub(self.channel(f"{self._asked}:7400"))

    def gave_up(self) -> None:
        self._silent[self._asked] = self.loop.time() + SHUNNED_S

    async def call(self, method: str, request: Any) -> Any:
        """The answer; None if it is not known whether it was done."""
        try:
            return await getattr(self.stub(), method)(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            if error.code() in GIVEN_UP:
                self.gave_up()
                return None
            raise

    async def read(self, method: str, request: Any) -> list[tuple[int, bytes]] | None:
        """All rows of a stream; None if it was not read to its end."""
        blocks: list[bytes] = []
        call = getattr(self.stub(), method)(request)
        try:
            async with asyncio.timeout(STREAM_S):
                while (block := await call.read()) is not grpc.aio.EOF:
                    blocks.append(block.arrow)
        except TimeoutError:
            self.gave_up()
            return None
        except grpc.aio.AioRpcError as error:
            if error.code() in GIVEN_UP:
                self.gave_up()
                return None
            raise
        finally:
            call.cancel()
        return table(blocks)


@dataclass(slots=True)
class Checkpoint:
    """What survives a driver. planned: the offset up to which batches were planned; committed: written out. index: the
    highest it has heard of."""

    planned: int = 0
    committed: int = 0
    settled: int = 0
    index: int = 0
    is_releasing: bool = False
    output: dict[int, list[Key]] = field(default_factory=dict)


class Reader(BulkApp):
    """A durable subscription: plans a batch, reads it, writes it out, commits it, settles it."""

    def __init__(
        self,
        world: World,
        number: int,
        place: Place,
        selector: str = "",
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.number = number
        self.place = place
        self.selector = selector
        self.checkpoint = checkpoint or Checkpoint()
        self._generation = 0
        super().__init__(world, f"reader-{number}")

    def successor(self, name: str) -> App:
        return Reader(self.world, self.world.next_producer(), self.place, self.selector, self.checkpoint)

    async def work(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self.chance.choice((0.01, 0.05, 0.3)))
            try:
                if not self._generation and not await self._open():
                    continue
                await self._turn()
            except grpc.aio.AioRpcError as error:
                if from_rpc_error(error, "").reason != "WRONG_GENERATION":
                    raise
                self._generation = 0  # one that was asked for twice

    def _name(self, **more: Any) -> dict[str, Any]:
        return {"queue": self.place.name, "subscription": GROUP, "generation": self._generation, **more}

    async def _open(self) -> bool:
        request = pb.OpenSubscriptionRequest(
            queue=self.place.name, subscription=GROUP, selector=self.selector
        )
        state = await self.call("OpenSubscription", request)
        if state is None:
            return False
        mark = self.checkpoint
        is_in_between = mark.settled <= state.settled <= mark.committed
        if state.last < mark.planned or not (is_in_between or mark.is_releasing):
            raise Broken(
                f"{self.name} opens its subscription at {state}, and knows {mark.settled}, {mark.planned}"
            )
        self._generation = state.generation
        self.world.rules.counts["subscriptions opened"] += 1
        return True

    async def _turn(self) -> None:
        mark, chance = self.checkpoint, self.chance
        if mark.is_releasing:
            return await self._release()
        if mark.settled < mark.committed and chance.random() < 0.5:
            return await self._settle()
        if mark.planned == mark.committed:
            if mark.settled < mark.committed - 4:
                return await self._settle()
            if not await self._reserve():
                return None
        elif mark.settled == mark.committed and not self.world.is_draining and chance.random() < 0.05:
            mark.is_releasing = True
            return await self._release()
        return await self._write_out()

    async def _reserve(self) -> bool:
        mark = self.checkpoint
        request = pb.ReserveRequest(
            **self._name(after=mark.planned, max_messages=self.chance.choice((1, 7, 40)))
        )
        found = await self.call("Reserve", request)
        if found is None or found.offset == mark.planned:
            return False
        if found.offset != mark.planned + 1 or not found.count:
            raise Broken(f"{self.name} asked for what follows {mark.planned} and got {found}")
        if self.chance.random() < UNHEARD_PART:
            return False
        mark.planned = found.offset
        mark.index = max(mark.index, found.index)
        return True

    async def _write_out(self) -> None:
        mark = self.checkpoint
        offset = mark.committed + 1
        request = pb.ReadReservedRequest(
            queue=self.place.name, subscription=GROUP, offset=offset, columns=READ, index=mark.index
        )
        rows = await self.read("ReadReserved", request)
        if rows is None:
            return
        keys = [(self.place.name, sequence) for sequence, _ in rows]
        if mark.output.setdefault(offset, keys) != keys:
            raise Broken(f"{self.name} reads offset {offset} again and finds other messages")
        self.world.rules.reserved(self.name, HOLDER, keys, [body for _, body in rows])
        if self.chance.random() < 0.8:
            mark.committed = offset

    async def _settle(self) -> None:
        mark = self.checkpoint
        to = mark.committed
        keys = [key for offset in range(mark.settled + 1, to + 1) for key in mark.output[offset]]
        asked = self.world.rules.takes(HOLDER, keys)
        state = await self.call("Settle", pb.SettleRequest(**self._name(to=to)))
        if state is None:
            return
        if state.settled != to:
            raise Broken(f"{self.name} settled up to {to} and is told {state.settled}")
        mark.settled, mark.index = to, max(mark.index, state.index)
        self.world.rules.settle(keys, asked)
        self.world.rules.counts["settled in bulk"] += len(keys)

    async def _release(self) -> None:
        """What was planned and not committed goes back; the offsets are gone."""
        mark = self.checkpoint
        for offset in range(mark.committed + 1, mark.planned + 1):
            self.world.rules.released(mark.output.pop(offset, []))
        state = await self.call("ReleaseSubscription", pb.ReleaseSubscriptionRequest(**self._name()))
        if state is None:
            return
        if state.outstanding or state.settled != state.last:
            raise Broken(f"{self.name} released its subscription and is told {state}")
        mark.planned = mark.committed = mark.settled = state.settled
        mark.is_releasing = False
        self.world.rules.counts["subscriptions released"] += 1


@dataclass(slots=True)
class Batches:
    """What survives a writer: who it is, the batch it is at, and the messages of it."""

    producer: int
    number: int = 0
    messages: list[bytes] = field(default_factory=list)
    next: int = 1
    sent: Record = field(default_factory=dict)
    """What the history says of the batch."""


class Writer(BulkApp):
    """Stages batches in parts, some of them twice, as tasks that fail and are tried again do, and publishes them. If
    the answer to a publication is lost, it stages and publishes the batch again."""

    def __init__(self, world: World, number: int, place: Place, batches: Batches | None = None) -> None:
        self.place = place
        self.batches = batches or Batches(number)
        super().__init__(world, f"writer-{number}")

    def successor(self, name: str) -> App:
        return Writer(self.world, self.world.next_producer(), self.place, self.batches)

    def _name(self) -> dict[str, Any]:
        batches = self.batches
        return {"queue": self.place.name, "producer": f"flow-{batches.producer}", "batch": batches.number}

    async def work(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self.chance.choice((0.02, 0.1, 0.4)))
            if (self.world.is_draining or self.world.is_ebb) and not self.batches.messages:
                continue
            if not self.batches.messages:
                self._next_batch()
            if await self._write():
                self.batches.messages = []

    def _next_batch(self) -> None:
        batches = self.batches
        batches.number += 1
        count = self.chance.choice((1, 3, 20))
        for n in range(batches.next, batches.next + count):
            body = b"%d:%d:" % (batches.producer, n) + b"." * self.chance.choice((0, 50, 500))
            self.world.rules.sent[body] = None
            if self.place.has_fields:
                is_wanted = any(wants(fields_of(n)) for wants in SELECTORS.values())
                self.world.rules.published[batches.producer, n] = is_wanted
            batches.messages.append(body)
        batches.sent = self.world.rules.history.sends(
            self.place.name, batches.producer, range(batches.next, batches.next + count)
        )
        batches.next += count

    async def _write(self) -> bool:
        """Whether the batch is known to be published."""
        messages, chance = self.batches.messages, self.chance
        cut = chance.randrange(len(messages) + 1)
        parts: list[pb.StagedPart] = []
        staged_to = 0
        for rows in (messages[:cut], messages[cut:]):
            if not rows:
                continue
            for _ in range(chance.choice((1, 1, 1, 2))):  # an attempt whose outcome nobody looks at
                name = chance.randbytes(16)
                staged = await self._stage(name, rows)
            if staged is None:
                return False
            parts.append(pb.StagedPart(part=name, rows=staged.rows))
            staged_to = max(staged_to, staged.index)
        request = pb.PublishStagedRequest(**self._name(), parts=parts, staged_to=staged_to)
        answer = await self.call("Publish", request)
        if answer is None:
            return False
        if not answer.is_duplicate and answer.count != len(messages):
            raise Broken(f"{self.name} published {len(messages)} messages and is told {answer}")
        if chance.random() < UNHEARD_PART:
            return False
        self.world.rules.confirm(self.batches.sent)
        self.world.rules.counts["batches published"] += 1
        self.world.rules.counts["batches that were published before"] += answer.is_duplicate
        return True

    async def _stage(self, part: bytes, rows: list[bytes]) -> pb.StageResponse | None:
        """What is known of the part; None if that is not known, or the batch is published already."""
        first = self.batches.next - len(self.batches.messages) + self.batches.messages.index(rows[0])
        columns: dict[str, Any] = {"body": pa.array(rows, pa.binary())}
        if self.place.has_fields:
            columns["fields"] = pa.array([fields_of(first + at) for at in range(len(rows))])
        block = _block(pa.record_batch(columns))
        call = self.stub().Stage()
        try:
            async with asyncio.timeout(STREAM_S):
                await call.write(pb.StageRequest(**self._name(), part=part, arrow=block))
                await call.done_writing()
                answer = await call.read()
        except TimeoutError:
            self.gave_up()
            return None
        except grpc.aio.AioRpcError as error:
            if error.code() in GIVEN_UP:
                self.gave_up()
                return None
            if from_rpc_error(error, "").reason == "PUBLISHED":
                return pb.StageResponse(rows=len(rows))  # by an earlier life; Publish says so
            raise
        finally:
            call.cancel()
        self.world.rules.counts["parts staged"] += 1
        return answer


def _block(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


class Browser(BulkApp):
    """Opens views and reads them twice, in ranges, at different nodes: they show the same."""

    def __init__(self, world: World, number: int, place: Place) -> None:
        self.number = number
        self.place = place
        super().__init__(world, f"browser-{number}")

    def successor(self, name: str) -> App:
        return Browser(self.world, self.world.next_producer(), self.place)

    async def work(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self.chance.choice((0.3, 1.0, 2.0)))
            if self.world.is_draining:
                continue
            request = pb.OpenViewRequest(queue=self.place.name, ttl_ms=60_000)
            try:
                found = await self.call("OpenView", request)
            except grpc.aio.AioRpcError as error:
                if from_rpc_error(error, "").reason != "LIMIT":  # of those that died, or were not heard
                    raise
                continue
            if found is not None:
                await self._look(found)

    async def _look(self, found: pb.View) -> None:
        middle = self.chance.randrange(found.first_sequence, found.end_sequence + 1)
        shown: list[list[tuple[int, bytes]]] = []
        for ranges in (((0, 0),), ((0, middle), (middle, 0))):
            rows: list[tuple[int, bytes]] = []
            for start, end in ranges:
                if end == 0 and start >= found.end_sequence:
                    continue
                part = await self.read("Browse", self._range(found, start, end))
                if part is None:
                    return
                rows += part
            shown.append(rows)
            await asyncio.sleep(self.chance.choice((0.01, 0.5)))
        if shown[0] != shown[1] or len(shown[0]) != found.count:
            raise Broken(f"a view of {found.count} messages shows {len(shown[0])}, then {len(shown[1])}")
        self.world.rules.counts["seen in views"] += found.count
        request = pb.CloseViewRequest(queue=self.place.name, view=found.view)
        await self.call("CloseView", request)

    def _range(self, found: pb.View, start: int, end: int) -> pb.BrowseViewRequest:
        return pb.BrowseViewRequest(
            queue=self.place.name,
            view=found.view,
            start_sequence=start,
            end_sequence=end,
            columns=READ,
            index=found.index,
        )
