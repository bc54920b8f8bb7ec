"""Who uses the service: the real client (quorum/client), in processes that may die, doing what applications do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from quorum.client.client import Client
from quorum.client.errors import NotFound, RefusedError, UnavailableError, VoidDelivery
from quorum.client.messages.batch import Message
from quorum.client.messages.delivery import DeliveredMessage
from quorum.client.session.consumer import Consumer as ClientConsumer
from quorum.histories import Run
from quorum.histories.records import Record
from quorum.v1 import admin_pb2, admin_pb2_grpc, queue_pb2, queue_pb2_grpc
from simulator.machines.loop import Clock
from simulator.machines.process import Process
from simulator.machines.wire import SimChannel
from simulator.rules.history import by_attachment
from simulator.rules.rules import Broken, Key, origin_of

if TYPE_CHECKING:
    from simulator.world import World

SILENCE_MS = 1_000
TIMEOUT_MS = 20_000
UNCONFIRMED = 12
SETTLING = 4
"""Settlements under way at a time."""
KINDS = ("red", "blue", "teal", "grey")


@dataclass(frozen=True, slots=True)
class Place:
    """A queue that producers publish to."""

    name: str
    arguments: dict[str, Any]

    @property
    def has_fields(self) -> bool:
        return bool(self.arguments.get("x-filter-enabled"))


def fields_of(n: int) -> dict[str, Any]:
    return {"n": n, "kind": KINDS[n % len(KINDS)], "half": n / 2}


WIDE = {f"w{n}": n for n in range(80)}
"""More fields than a block keeps as dense columns. All messages of a wide batch share theirs."""
WIDE_SELECTOR = "w70 > 0"
ROUTED_PART = 0.4
"""Of the batches, in the seeds in which some are for several queues."""
NEAR_LEADER_PART = 0.3
"""Of the clients: they move their sessions to the leaders of their queues. The sessions of the others are anywhere."""
LINGER_PART, LINGER_MS = 0.2, 20
"""Of the clients: they have this linger time."""
WIDE_PART = 0.15
"""Of the batches with fields and several messages, in the seeds that have wide ones."""


class App(Process):
    """A process with one client in it, which it opens again as long as it is there."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, Clock(world, 0, 0))
        self.chance = world.random_of(name)
        self.goes_near_leader = world.random_of(f"where {name} goes").random() < NEAR_LEADER_PART
        lingers = world.random_of(f"whether {name} lingers").random() < LINGER_PART
        self.linger_ms = LINGER_MS if lingers else 0
        self.client: Client | None = None
        self._main = self.spawn(self._live())
        world.wake(self)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure is this run's."""
        task = self.loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.world.defect(f"{self.name}: {error}", error)

    def channel(self, endpoint: str) -> Any:
        return SimChannel(self, endpoint)

    def successor(self, name: str) -> App:
        """What takes its place when it was killed."""
        raise NotImplementedError

    async def connect(self) -> Client:
        names = list(self.world.machines)
        self.chance.shuffle(names)
        url = "quorum://" + ",".join(f"{name}:7400" for name in names)
        while True:
            client = Client(
                url,
                timeout_ms=TIMEOUT_MS,
                silence_ms=SILENCE_MS,
                near_leader=self.goes_near_leader,
                linger_ms=self.linger_ms,
                channels=self.channel,
                clock_s=asyncio.get_running_loop().time,
            )
            try:
                return await client.open()
            except UnavailableError:
                await client.close()
                await asyncio.sleep(0.2)

    async def _live(self) -> None:
        self.client = await self.connect()
        self.world.rules.counts["clients"] += 1
        await self.work(self.client)

    async def work(self, client: Client) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """Closes its client, politely."""
        self.soon(lambda: self.spawn(self._close()))

    async def _close(self) -> None:
        self._main.cancel()
        await asyncio.gather(self._main, return_exceptions=True)
        if self.client is not None:
            await self.client.close(timeout_ms=2_000)
        await self.end_calls()
        self.client = None

    async def end_calls(self) -> None:
        """Ends what still waits for an answer, before the history is judged."""


class NumberedProducer(App):
    """A producer with a number, whose messages have numbers of their own."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self._next = 1
        self.unconfirmed: dict[int, int] = {}
        """first message under way -> count"""
        super().__init__(world, f"producer-{number}")

    def successor(self, name: str) -> App:
        return type(self)(self.world, self.world.next_producer())


class Producer(NumberedProducer):
    """Publishes batches to all places, some of them under way at a time."""

    async def work(self, client: Client) -> None:
        chance, world = self.chance, self.world
        while True:
            await asyncio.sleep(chance.choice((0.005, 0.03, 0.1, 0.3)))
            if world.is_draining or world.is_ebb or len(self.unconfirmed) >= UNCONFIRMED:
                continue
            if world.has_routing and chance.random() < ROUTED_PART:
                await self.publish_routed(client, chance.choice((2, 3, 5, 9)))
            else:
                await self.publish(client, chance.choice(world.places), chance.choice((1, 1, 2, 5, 9)))

    async def publish_routed(self, client: Client, count: int) -> None:
        """A batch with a queue for each of its messages."""
        numbers = range(self._next, self._next + count)
        self._next += count
        places = [self.chance.choice(self.world.places) for _ in numbers]
        messages = [self._message(n, place, None, 20) for n, place in zip(numbers, places, strict=True)]
        names = [place.name for place in places]
        sends = self.world.rules.history.sends
        sent = [sends(name, self.number, range(n, n + 1)) for n, name in zip(numbers, names, strict=True)]
        await self._send(client, names, messages, numbers, sent)
        self.world.rules.counts["batches for several queues"] += len(set(names)) > 1

    async def publish(self, client: Client, place: Place, count: int) -> None:
        numbers = range(self._next, self._next + count)
        self._next += count
        size = self.chance.choice((0, 20, 200, 900))
        shared = self._shared_fields(numbers) if place.has_fields else None
        messages = [self._message(n, place, shared, size) for n in numbers]
        sent = self.world.rules.history.sends(place.name, self.number, numbers)
        await self._send(client, place.name, messages, numbers, [sent])

    def _message(self, n: int, place: Place, shared: dict[str, Any] | None, size: int) -> Message:
        body = b"%d:%d:" % (self.number, n) + b"." * size
        self.world.rules.sent[body] = None
        fields = (shared or fields_of(n)) if place.has_fields else None
        if fields is not None:
            is_wanted = any(wants(fields) for wants in SELECTORS.values())
            self.world.rules.published[self.number, n] = is_wanted
        return Message(body, None, fields)

    async def _send(
        self,
        client: Client,
        queue: str | list[str],
        messages: list[Message],
        numbers: range,
        sent: list[Record],
    ) -> None:
        self.unconfirmed[numbers[0]] = len(numbers)
        try:
            future = await client.send_batch(queue, messages)
        except UnavailableError:  # it was not sent
            del self.unconfirmed[numbers[0]]
            return
        future.add_done_callback(lambda done: self._decided(done, numbers, sent))

    def _shared_fields(self, numbers: range) -> dict[str, Any] | None:
        """Those of a wide batch; None if this is none."""
        if not self.world.has_wide or len(numbers) == 1 or self.chance.random() >= WIDE_PART:
            return None
        self.world.rules.counts["wide batches"] += 1
        return {**fields_of(numbers[0]), **WIDE}

    def _decided(self, done: asyncio.Future[int], numbers: range, sent: list[Record]) -> None:
        del self.unconfirmed[numbers[0]]
        if not done.cancelled():
            if done.result() != len(numbers):  # raises what the service answered: it has no reason to refuse
                raise Broken(f"{len(numbers)} messages were sent, {done.result()} confirmed")
            for each in sent:
                self.world.rules.confirm(each)


class Consumer(App):
    """Holds messages for a while and settles, returns or modifies them; now and then it drains, or begins anew."""

    def __init__(self, world: World, number: int, place: Place, selector: str | None, haste: float) -> None:
        """haste: how likely it settles something each time it looks; with little, it holds messages for seconds."""
        self.number = number
        self.place = place
        self.selector = selector
        self.haste = haste
        self.held: list[DeliveredMessage] = []
        self._attached = 0
        self._settling: dict[asyncio.Task[None], None] = {}
        super().__init__(world, f"consumer-{number}")

    def successor(self, name: str) -> App:
        return Consumer(self.world, self.world.next_producer(), self.place, self.selector, self.haste)

    @property
    def is_hasty(self) -> bool:
        return self.world.is_draining or self.world.is_ebb

    async def work(self, client: Client) -> None:
        while True:
            self._attached += 1
            prefetch = self.chance.choice((3, 20, 60))
            reference = FILTERS.get(self.selector or "")
            consumer = client.consume(
                self.place.name,
                self.selector if reference is None else None,
                reference,
                prefetch=prefetch,
                consumer_tag=f"c{self._attached}",
            )
            try:
                await consumer
            except UnavailableError:
                await asyncio.sleep(0.1)
                continue
            await self._serve(consumer)

    async def _serve(self, consumer: ClientConsumer) -> None:
        """One attachment, over as many streams as it takes, to its drain or its end."""
        chance = self.chance
        reading = self.spawn(self._read(consumer))
        draining: asyncio.Task[None] | None = None
        while not reading.done() or self.held:
            await asyncio.sleep(chance.choice((0.01, 0.02, 0.04)))
            self.held = [message for message in self.held if not message.delivery.is_void]
            if (
                self.held
                and len(self._settling) < SETTLING
                and (self.is_hasty or chance.random() < self.haste)
            ):
                self._dispose()
            if draining is None and not self.world.is_draining and chance.random() < 0.003:
                draining = self.spawn(self._drain(consumer))
            elif chance.random() < 0.002 and not self.world.is_draining:
                break  # what is checked out to an attachment has to come in the end, without a new one
        self.held.clear()
        await asyncio.sleep(0)  # what is to be settled is said before the cancel, which gives the rest back
        try:
            await consumer.cancel(timeout_ms=3_000)
        except UnavailableError:
            pass
        await reading
        if draining is not None:
            await draining

    async def end_calls(self) -> None:
        waiting = list(self._settling)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _drain(self, consumer: ClientConsumer) -> None:
        try:
            await consumer.drain()
        except UnavailableError:
            return
        self.world.rules.counts["drains"] += 1

    async def _read(self, consumer: ClientConsumer) -> None:
        async for delivery in consumer.deliveries():
            for ordinal in range(delivery.count):
                self.receive(DeliveredMessage(delivery, ordinal))

    def receive(self, message: DeliveredMessage) -> None:
        if self.selector is not None:
            fields = message.application_properties
            if not self.matches(fields):
                raise Broken(f"{self.name} wants {self.selector} and got {fields}")
            self.world.rules.counts["selected"] += 1
        self.held.append(message)

    def matches(self, fields: dict[str, Any]) -> bool:
        """What the selectors below mean, said in Python."""
        return SELECTORS[self.selector or ""](fields)

    def _dispose(self) -> None:
        chance = self.chance
        messages = self.held
        if not self.is_hasty and chance.random() < 0.6:
            start = chance.randrange(len(messages))
            messages = messages[start : start + chance.randint(1, 20)]
        chosen = {id(message) for message in messages}
        self.held = [message for message in self.held if id(message) not in chosen]
        task = self.spawn(self._end(messages))
        self._settling[task] = None
        task.add_done_callback(lambda done: self._settling.pop(done, None))

    async def _end(self, messages: list[DeliveredMessage]) -> None:
        assert self.client is not None
        rules, kind = self.world.rules, self.chance.random()
        try:
            if kind < 0.8 or self.is_hasty:
                keys: list[Key] = [(message.queue, message.sequence) for message in messages]
                for message in messages:
                    rules.taken[origin_of(message.body)] = None
                wait = self.chance.random() < 0.8
                asked = self._asks(rules.history.settles, messages)
                await self.client.settle(messages, wait=wait)
                if wait:
                    self.settled(keys, asked)
            elif kind < 0.9:
                asked = self._asks(rules.history.returns, messages)
                await self.client.return_(messages, wait=True)
                rules.history.done(asked)
                rules.counts["returned"] += len(messages)
            else:
                await self.fail(messages)
        except (VoidDelivery, UnavailableError):
            rules.counts["dispositions lost"] += 1

    def settled(self, keys: list[Key], asked: list[Record]) -> None:
        """The service has answered that these are settled."""
        self.world.rules.settle(keys, asked)

    def _asks(
        self, ask: Callable[[str, str, Iterable[Run]], list[Record]], messages: list[DeliveredMessage]
    ) -> list[Record]:
        """Records what this client is about to ask."""
        return [
            record
            for (queue, who), runs in by_attachment(self.name, messages).items()
            for record in ask(queue, who, runs)
        ]

    async def fail(self, messages: list[DeliveredMessage]) -> None:
        """Returns them as failed deliveries."""
        assert self.client is not None
        ledger = self.world.ledger
        keys: list[Key] = [(message.queue, message.sequence) for message in messages]
        ledger.fails(keys)
        asked = self._asks(self.world.rules.history.returns, messages)
        await self.client.modify(messages, delivery_failed=True, wait=True)
        self.world.rules.history.done(asked)
        ledger.failed(keys)
        self.world.rules.counts["modified"] += len(messages)


class Getter(Consumer):
    """Takes some messages when it has none, without a subscription."""

    def successor(self, name: str) -> App:
        return Getter(self.world, self.world.next_producer(), self.place, None, self.haste)

    async def work(self, client: Client) -> None:
        chance = self.chance
        while True:
            await asyncio.sleep(chance.choice((0.02, 0.1)))
            self.held = [message for message in self.held if not message.delivery.is_void]
            if self.held:
                if self.is_hasty or chance.random() < self.haste:
                    self._dispose()
                continue
            try:
                for message in await client.get(self.place.name, chance.randint(1, 30)):
                    self.receive(message)
                    self.world.rules.counts["got"] += 1
            except UnavailableError:
                continue


def excuse(error: grpc.aio.AioRpcError, *more: grpc.StatusCode) -> None:
    """A unary call may fail so; any other answer is wrong."""
    if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, *more):
        raise Broken(f"a unary call was answered {error}")


class Operator(App):
    """Lets members rest for a while and moves leaders about. In the end everybody works again."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        super().__init__(world, f"operator-{number}")

    def successor(self, name: str) -> App:
        return Operator(self.world, self.world.next_producer())

    async def work(self, client: Client) -> None:
        jobs = (self._drain, self._transfer, self._transfer, self._rebalance)
        while True:
            await asyncio.sleep(self.chance.choice((0.3, 1.0, 3.0)))
            try:
                await self._undrain()
                if not self.world.faults.is_over:
                    await self.chance.choice(jobs)()
            except grpc.aio.AioRpcError as error:
                # nothing is handed to who is drained, or has been removed meanwhile
                excuse(error, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)

    def _stub(self) -> Any:
        return admin_pb2_grpc.AdminStub(self.channel(f"{self.chance.choice(list(self.world.machines))}:7400"))

    def _member(self) -> str:
        return self.chance.choice(sorted(each.name for each in self.world.changes.wished.values()))

    async def _undrain(self) -> None:
        if self.world.drained is not None:
            request = admin_pb2.DrainMemberRequest(name=self.world.drained, drained=False)
            try:
                await self._stub().DrainMember(request, timeout=3.0)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
            self.world.drained = None

    async def _drain(self) -> None:
        name = self.world.drained = self._member()
        await self._stub().DrainMember(admin_pb2.DrainMemberRequest(name=name, drained=True), timeout=3.0)
        self.world.rules.counts["members drained"] += 1
        await asyncio.sleep(self.chance.choice((0.2, 2.0)))

    async def _transfer(self) -> None:
        group = self.chance.randrange(self.world.member_settings["queue_groups"] + 1)
        request = admin_pb2.TransferLeadershipRequest(group=group, to=self._member())
        await self._stub().TransferLeadership(request, timeout=5.0)
        self.world.rules.counts["leaders handed over"] += 1

    async def _rebalance(self) -> None:
        await self._stub().RebalanceLeaders(admin_pb2.RebalanceLeadersRequest(), timeout=5.0)
        self.world.rules.counts["leaders rebalanced"] += 1


class Administrator(App):
    """Declares queues, publishes to them, looks at them, and deletes them again."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self._count = 0
        self._given_up: set[int] = set()
        """limits of policies that may be set at any time, or never"""
        super().__init__(world, f"administrator-{number}")

    def successor(self, name: str) -> App:
        return Administrator(self.world, self.world.next_producer())

    async def work(self, client: Client) -> None:
        counts = self.world.rules.counts
        jobs: list[Callable[[Client, str], Any]] = [
            self._publish,
            self._get,
            self._browse,
            self._look,
            self._purge,
            self._set_policy,
            self._err,
        ]
        while True:
            await asyncio.sleep(self.chance.choice((0.1, 0.4)))
            if self.world.is_draining:
                continue
            self._count += 1
            name = f"t{self.number}-{self._count}"
            try:
                await client.declare(name)
                counts["declared"] += 1
                for _ in range(self.chance.randrange(4)):
                    await self.chance.choice(jobs)(client, name)
                await client.delete(name)
                counts["deleted"] += 1
            except UnavailableError:
                counts["administration given up"] += 1
            except NotFound:
                # a queue whose declaration was given up may be gone, or come, at any time; this one was answered
                raise Broken(f"queue {name} was declared and is gone") from None

    def _stub(self) -> Any:
        name = self.chance.choice(list(self.world.machines))
        return queue_pb2_grpc.QueueStub(self.channel(f"{name}:7400"))

    async def _publish(self, client: Client, queue: str) -> None:
        message = queue_pb2.Message(body=b"%d:0:unary" % self.number)
        self.world.rules.sent[message.body] = None
        try:
            await self._stub().Publish(queue_pb2.PublishRequest(queue=queue, messages=[message]), timeout=3.0)
            self.world.rules.counts["published by unary calls"] += 1
        except grpc.aio.AioRpcError as error:
            excuse(error)

    async def _get(self, client: Client, queue: str) -> None:
        try:
            await self._stub().Get(queue_pb2.GetRequest(queue=queue, count=3), timeout=3.0)
        except grpc.aio.AioRpcError as error:
            excuse(error)

    async def _browse(self, client: Client, queue: str) -> None:
        async for _ in client.browse(queue, limit=20):
            self.world.rules.counts["browsed"] += 1

    async def _look(self, client: Client, queue: str) -> None:
        await client.describe(queue)
        await client.queues("t")
        self.world.rules.counts["looked at"] += 1

    async def _err(self, client: Client, queue: str) -> None:
        for selector in ("n >", "n > 0"):  # no selector at all; a good one, for a queue that keeps no fields
            try:
                await client.consume(queue, selector)
            except RefusedError:
                self.world.rules.counts["refused"] += 1
            else:
                raise Broken(f"a consumer of {queue} was attached with the selector {selector!r}")

    async def _set_policy(self, client: Client, queue: str) -> None:
        """Once it is answered it is in effect, wherever that is asked."""
        limit = self.chance.randrange(1_000, 1_000_000)
        try:
            await client.set_policy(f"p{self.number}", f"t{self.number}-*", {"x-max-length": limit})
        except UnavailableError:
            self._given_up.add(limit)
            raise
        seen = (await client.describe(queue)).queue.effective_arguments.get("x-max-length")
        if seen != limit and seen not in self._given_up:
            raise Broken(f"a policy limits {queue} to {limit} messages, and its limit is {seen}")
        self.world.rules.counts["policies set"] += 1

    async def _purge(self, client: Client, queue: str) -> None:
        await client.purge(queue)
        self.world.rules.counts["purged"] += 1


SELECTORS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "kind = 'red' AND n > 0": lambda fields: fields["kind"] == "red" and fields["n"] > 0,
    "kind IN ('blue', 'teal')": lambda fields: fields["kind"] in ("blue", "teal"),
    "a property filter: kind ends in e": lambda fields: fields["kind"].endswith("e"),
    "kind LIKE '%e%' AND NOT kind = 'grey' OR half < 20.5": lambda fields: (
        ("e" in fields["kind"] and fields["kind"] != "grey") or fields["half"] < 20.5
    ),
    WIDE_SELECTOR: lambda fields: fields.get("w70", 0) > 0,
}
"""Together they want everything but grey messages that are not wide, and the first grey ones."""
FILTERS = {"a property filter: kind ends in e": {"application_properties": {"kind": "&s:e"}}}
