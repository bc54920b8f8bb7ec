"""A client that keeps to no protocol: calls that say nothing, bytes that are no request, numbers and texts at the ends
of what the wire can carry. It has a queue of its own; nobody else may notice it.

What the simulated wire has no part of (floods of connections, memory, sizes near the limits) is left to real processes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from quorum.client.client import Client
from quorum.client.errors import UnavailableError
from quorum.v1 import queue_pb2, queue_pb2_grpc
from simulator.clients.apps import App
from simulator.rules.rules import STRANGE, Broken

if TYPE_CHECKING:
    from simulator.world import World

PART = 0.2
"""Of all seeds."""
SILENT_S = (0.2, 1.0, 5.0)
NUMBERS = (
    0,
    1,
    2,
    65_535,
    1 << 31,
    (1 << 31) - 1,
    (1 << 32) - 1,
    1 << 53,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
BITS = {
    FieldDescriptor.TYPE_UINT32: (0, 32),
    FieldDescriptor.TYPE_FIXED32: (0, 32),
    FieldDescriptor.TYPE_UINT64: (0, 64),
    FieldDescriptor.TYPE_SINT32: (31, 31),
    FieldDescriptor.TYPE_INT32: (31, 31),
    FieldDescriptor.TYPE_SINT64: (63, 63),
    FieldDescriptor.TYPE_INT64: (63, 63),
}
TEXTS = ("", "c1", "n > 0", "n >", "x" * 255, "x" * 300, "a\x00b", "\U0001f600" * 60, "*", "../../log")
OUR_FAULT = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
"""What no request may be answered, however odd it is."""
DEPTH = 4


class _Raw:
    """Bytes in the place of a request."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self, **_: Any) -> bytes:
        return self._data


class Hostile(App):
    """See the module's text."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        super().__init__(world, f"hostile-{number}")

    def successor(self, name: str) -> App:
        return Hostile(self.world, self.world.next_producer())

    async def work(self, client: Client) -> None:
        jobs = (self._say_nothing, self._talk_garbage, self._talk_extremes, self._talk_extremes, self._ask)
        while True:
            try:
                await client.declare(STRANGE, {"x-filter-enabled": True, "x-max-length": 50})
                break
            except UnavailableError:
                continue
        while True:
            await asyncio.sleep(self.chance.choice((0.1, 0.5)))
            if self.world.is_draining:
                continue
            try:
                await self.chance.choice(jobs)()
            except grpc.aio.AioRpcError as error:
                if error.code() in OUR_FAULT and "no request" not in str(error.details()):
                    raise Broken(f"an odd request was answered {error!r}") from error
                self.world.rules.counts["odd requests refused"] += 1

    def _stub(self) -> Any:
        return queue_pb2_grpc.QueueStub(self.channel(f"{self.chance.choice(list(self.world.machines))}:7400"))

    async def _say_nothing(self) -> None:
        call = self._stub().Session()
        await asyncio.sleep(self.chance.choice(SILENT_S))
        call.cancel()
        self.world.rules.counts["silent calls"] += 1

    async def _talk_garbage(self) -> None:
        data = self.chance.randbytes(self.chance.choice((1, 3, 20, 200)))
        await self._talk([_Raw(data)], self.chance.random() < 0.5)

    async def _talk_extremes(self) -> None:
        kinds = ("publish", "attach", "attach", "credit", "disposition", "cancel", "get")
        requests = []
        for _ in range(self.chance.randint(1, 6)):
            request = queue_pb2.SessionRequest()
            part = getattr(request, self.chance.choice(kinds))
            part.SetInParent()
            self._fill(part)
            requests.append(request)
        await self._talk(requests, True)

    async def _talk(self, requests: list[Any], is_opened: bool) -> None:
        call = self._stub().Session()
        try:
            async with asyncio.timeout(2.0):
                if is_opened:
                    opening = queue_pb2.Open(producer_id=self.chance.randbytes(16), epoch=1)
                    await call.write(queue_pb2.SessionRequest(open=opening))
                    await call.read()
                for request in requests:
                    await call.write(request)
                    self.world.rules.counts["odd requests"] += 1
                while await call.read() is not grpc.aio.EOF:
                    pass
        except (TimeoutError, asyncio.InvalidStateError):
            pass
        finally:
            call.cancel()

    async def _ask(self) -> None:
        stub = self._stub()
        name, kind = self.chance.choice(
            (("Publish", queue_pb2.PublishRequest), ("Get", queue_pb2.GetRequest))
        )
        request = kind()
        self._fill(request)
        self.world.rules.counts["odd requests"] += 1
        await getattr(stub, name)(request, timeout=2.0)

    # ---- what is odd

    def _fill(self, message: Message, depth: int = 0) -> None:
        """Gives most fields a value at the end of what they can hold; queues are its own."""
        for field in message.DESCRIPTOR.fields:
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            if is_map or self.chance.random() < 0.2 or (depth >= DEPTH and field.message_type is not None):
                continue
            if field.message_type is not None:
                for _ in range(self.chance.choice((1, 2)) if field.is_repeated else 1):
                    part = getattr(message, field.name)
                    self._fill(part.add() if field.is_repeated else part, depth + 1)
            elif field.is_repeated:
                getattr(message, field.name).extend(
                    self._value(field) for _ in range(self.chance.randrange(3))
                )
            else:
                setattr(message, field.name, self._value(field))
        if "queue" in message.DESCRIPTOR.fields_by_name:
            message.queue = STRANGE  # type: ignore[attr-defined]
        if "routing_key" in message.DESCRIPTOR.fields_by_name:
            message.routing_key = STRANGE  # type: ignore[attr-defined]
            if self.chance.random() < 0.7:
                message.ClearField("exchange")
                message.ClearField("routing_keys")

    def _value(self, field: FieldDescriptor) -> Any:
        chance = self.chance
        if field.type in BITS:
            below, above = BITS[field.type]
            number = chance.choice([each for each in NUMBERS if each < 1 << above])
            return -number if below and chance.random() < 0.5 else number
        if field.type == FieldDescriptor.TYPE_STRING:
            return chance.choice(TEXTS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            batch = queue_pb2.MessageBatch(count=1, bodies=b"x", body_ends=[1])
            return chance.choice((b"", chance.randbytes(16), batch.SerializeToString()))
        if field.type == FieldDescriptor.TYPE_DOUBLE:
            return chance.choice((0.0, float("nan"), float("inf"), -1.5))
        if field.type == FieldDescriptor.TYPE_ENUM:
            return chance.choice((0, 1, 2, 3, 77))
        return chance.random() < 0.5


def hostile_apps(world: World) -> list[App]:
    """The seed's hostile clients, perhaps none."""
    return [Hostile(world, 80)] if world.random_of("hostile").random() < PART else []
