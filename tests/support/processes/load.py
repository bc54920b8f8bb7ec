"""Producers and consumers that record what they see, and the cluster of real processes they work on.

Bodies say who wrote them: PRODUCER:NUMBER. Consumers settle whole deliveries and note a settlement only when
the service has acknowledged it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import quorum
from quorum.client import Consumer, Delivery
from quorum.client.errors import ClosedError, PublishRejected, QuorumError
from quorum.client.messages.delivery import Holder
from quorum.histories import MemoryRecorder, Run, now_us
from quorum.histories.records import CONFIRMED, OK, REJECTED, UNKNOWN, Record
from quorum.local_cluster.cluster import LocalCluster
from quorum.v1 import queue_pb2
from support.histories import checkers

BATCH = 20
BODY_PADDING = b"." * 40
UNDER_WAY = 4
PRODUCER_PAUSE_S = 0.04  # what is checked is order and loss, not speed; the campaign has FULL

CONNECT_LIMIT_MS = 60_000
RESUME_LIMIT_S = 60.0  # the aim is 2 s; the machine may be busy
DRAIN_LIMIT_S = 120.0
MOST_WAITING = 20_000
"""When more confirmed messages than this wait for a consumer, producers send only now and then: what has piled up
during the faults has to be drained and judged after them."""
NOW_AND_THEN_S = 0.1  # short enough to see when publishing is possible again
POLL_S = 0.05


def body(producer: str, number: int) -> bytes:
    return f"{producer}:{number}:".encode() + BODY_PADDING


def key_of(data: bytes) -> tuple[str, int]:
    producer, number, _ = data.decode().split(":", 2)
    return producer, int(number)


def url_from(cluster: LocalCluster, first: int) -> str:
    """All members, beginning with the `first`-th: clients spread over the nodes."""
    names = cluster.names
    first %= len(names)
    return cluster.url_of(*names[first:], *names[:first])


@dataclass(frozen=True, slots=True)
class Load:
    """How much a producer sends, and how many messages must get through before and after each fault."""

    batch: int
    pause_s: float
    progress: int


LIGHT = Load(BATCH, PRODUCER_PAUSE_S, 20 * BATCH)
FULL = Load(100, 0.0, 10_000)
"""As fast as confirms come, while consumers keep up."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch of messages number, number + 1, ... of a producer."""

    producer: str
    number: int
    count: int
    at_us: int


class Recorder:
    """Clients of one queue and what they saw. Enter it, cause trouble, `finish`, check `history.records`."""

    def __init__(
        self,
        cluster: LocalCluster,
        queue: str,
        *,
        producers: int = 2,
        consumers: int = 2,
        load: Load = LIGHT,
        url: str | None = None,
        record: Path | None = None,
    ) -> None:
        """url: where producers connect to, if not to all members in turn. record: a file for all that clients did and
        were told, for `quorum pipeline verify`."""
        self.load = load
        self._url = url
        self.cluster = cluster
        self.queue = queue
        self.history = MemoryRecorder()
        self._record = record
        self._confirmed_count = self._delivered_count = self._settled_count = 0
        self._producer_count = producers
        self._consumer_count = consumers
        self._stop_producing = asyncio.Event()
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Recorder:
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.declare(self.queue)
        for number in range(self._consumer_count):
            self._consuming.append(asyncio.create_task(self._consume(f"consumer-{number}", number)))
        for number in range(self._producer_count):
            # of several producers, the last one publishes single messages
            produce = self._produce_singles if 0 < number == self._producer_count - 1 else self._produce
            self._producing.append(asyncio.create_task(produce(f"producer-{number}", number + 1)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._producing:
            task.cancel()
        await asyncio.gather(*self._producing, return_exceptions=True)
        await self._stop_consuming()
        if self._record is not None:
            lines = [json.dumps(each) + "\n" for each in self.history.records]
            self._record.write_text("".join(lines), encoding="utf-8")

    async def resumed(self, fault_at: float) -> float:
        """Waits until something sent after the fault is confirmed; seconds that took. fault_at: time.monotonic()."""
        fault_us = in_us(fault_at)
        deadline = time.monotonic() + RESUME_LIMIT_S
        while not self._has_resumed(fault_us):
            self._raise_what_failed()
            assert time.monotonic() < deadline, (
                f"nothing was confirmed for {RESUME_LIMIT_S} s after the fault"
            )
            await asyncio.sleep(POLL_S)
        return checkers.resumed_after(self.history.records, fault_us)

    def _has_resumed(self, fault_us: int) -> bool:
        """What is recorded was told in this order, so the search may end at what was told before the fault."""
        for each in reversed(self.history.records):
            if each["op"] == "publish" and each["outcome"] == CONFIRMED and each["invoked_us"] >= fault_us:
                return True
            if each.get("returned_us", fault_us) < fault_us:
                return False
        return False

    async def progress(self, messages: int | None = None) -> None:
        """Waits until so many more messages are confirmed and so many more are settled."""
        messages = self.load.progress if messages is None else messages
        confirmed, settled = self._confirmed_count, self._settled_count
        deadline = time.monotonic() + RESUME_LIMIT_S
        while self._confirmed_count < confirmed + messages or self._settled_count < settled + messages:
            self._raise_what_failed()
            assert time.monotonic() < deadline, f"no {messages} messages in {RESUME_LIMIT_S} s"
            await asyncio.sleep(POLL_S)

    async def finish(self) -> None:
        """Stops producing, waits until every batch is decided and the queue is empty, and stops consuming."""
        self._stop_producing.set()
        await asyncio.wait_for(asyncio.gather(*self._producing), DRAIN_LIMIT_S)
        least, deadline = sys.maxsize, 0.0
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            while (left := (await client.describe(self.queue)).queue.total) > 0:
                self._raise_what_failed()
                if left < least:  # however many there are, and however busy the machine is
                    least, deadline = left, time.monotonic() + DRAIN_LIMIT_S
                assert time.monotonic() < deadline, f"{left} messages stay in the queue"
                await asyncio.sleep(POLL_S)
        await self._stop_consuming()
        self.history.left(self.queue)

    async def _stop_consuming(self) -> None:
        """What is being settled at this moment is recorded as unknown."""
        for task in self._consuming:
            task.cancel()
        await asyncio.gather(*self._consuming, return_exceptions=True)

    def _raise_what_failed(self) -> None:
        ended = self.cluster.processes.ended()
        assert not ended, (
            f"members ended by themselves: {ended}\n{self.cluster.processes.last_output(next(iter(ended)))}"
        )
        for task in [*self._producing, *self._consuming]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    @staticmethod
    def _connect(url: str, *, near_leader: bool = False) -> quorum.Client:
        """Most sessions stay at different nodes, not all at the leader's."""
        return quorum.connect(url, connect_timeout_ms=CONNECT_LIMIT_MS, near_leader=near_leader)

    async def _produce(self, name: str, first_node: int) -> None:
        room = asyncio.Semaphore(UNDER_WAY)
        async with self._connect(self._url or url_from(self.cluster, first_node)) as client:
            number = 0
            while not self._stop_producing.is_set():
                await room.acquire()
                sent = Sent(name, number, self.load.batch, now_us())
                batch = [body(name, n) for n in range(number, number + sent.count)]
                confirmation = await client.send_batch(self.queue, batch, timeout_ms=CONNECT_LIMIT_MS)
                confirmation.add_done_callback(lambda done, sent=sent: self._decided(done, sent, room))
                number += sent.count
                await asyncio.sleep(self._pause_s())
            for _ in range(UNDER_WAY):
                await room.acquire()

    async def _produce_singles(self, name: str, first_node: int) -> None:
        """The messages of a batch, each by itself and from a task of its own, at the pace of the light load."""
        most = UNDER_WAY * self.load.batch
        room, publishing = asyncio.Semaphore(most), set[asyncio.Task[None]]()
        async with self._connect(self._url or url_from(self.cluster, first_node), near_leader=True) as client:
            number = 0
            while not self._stop_producing.is_set():
                for _ in range(self.load.batch):
                    await room.acquire()
                    sent = Sent(name, number, 1, now_us())
                    message = client.publish(self.queue, body(name, number), timeout_ms=CONNECT_LIMIT_MS)
                    publishing.add(task := asyncio.create_task(message))
                    task.add_done_callback(publishing.discard)
                    task.add_done_callback(lambda done, sent=sent: self._decided(done, sent, room))
                    number += 1
                await asyncio.sleep(max(PRODUCER_PAUSE_S, self._pause_s()))
            for _ in range(most):
                await room.acquire()

    def _pause_s(self) -> float:
        waiting = self._confirmed_count - self._delivered_count
        return self.load.pause_s if waiting <= MOST_WAITING else max(NOW_AND_THEN_S, self.load.pause_s)

    def _decided(self, done: asyncio.Future[Any], sent: Sent, room: asyncio.Semaphore) -> None:
        room.release()
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            self._confirmed_count += sent.count
        elif not isinstance(error, PublishRejected | ClosedError | asyncio.CancelledError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "publish failed", "exception": error}
            )
        record_publish(self.history, self.queue, sent, error)

    async def _consume(self, name: str, first_node: int) -> None:
        async with self._connect(url_from(self.cluster, first_node)) as client:
            consumer = client.consume(
                self.queue, prefetch=200, consumer_tag=name, timeout_ms=CONNECT_LIMIT_MS
            )
            await consumer
            while (delivery := await consumer.next_delivery()) is not None:
                await self._settle(consumer, name, delivery)

    async def _settle(self, consumer: Consumer, name: str, delivery: Delivery) -> None:
        messages = record_delivery(self.history, self.queue, name, delivery)
        self._delivered_count += delivery.count
        if await settled(self.history, self.queue, name, consumer, delivery, messages):
            self._settled_count += delivery.count


def in_us(at: float) -> int:
    return int(at * 1e6)


def attachment(name: str, delivery: Delivery) -> str:
    """What a recorded history calls a consumer: what it held under one attachment is void under the next."""
    return f"{name}/{delivery.attach}"


def record_publish(
    history: MemoryRecorder, queue: str, sent: Sent, error: BaseException | None = None
) -> list[Record]:
    """What a producer was told of a batch: confirmed, or this error. A refusal names the parts that it is about."""
    outcomes = [UNKNOWN] * sent.count
    if error is None or isinstance(error, PublishRejected):
        outcomes = [CONFIRMED] * sent.count
        for first, last in () if error is None else error.rejected:
            outcomes[first : last + 1] = [REJECTED] * (last + 1 - first)
    now, number, found = now_us(), sent.number, []
    for outcome, part in groupby(outcomes):
        count = len(list(part))
        found.append(
            history.publish(
                queue,
                sent.producer,
                number,
                count=count,
                invoked_us=sent.at_us,
                returned_us=None if outcome == UNKNOWN else now,
                outcome=outcome,
            )
        )
        number += count
    return found


def record_delivery(history: MemoryRecorder, queue: str, name: str, delivery: Delivery) -> list[Run]:
    messages = [
        Run(
            delivery.sequence_at(ordinal),
            *key_of(delivery.reader.body(ordinal)),
            redelivered=delivery.redelivered_at(ordinal),
        )
        for ordinal in range(delivery.count)
    ]
    history.deliver(queue, attachment(name, delivery), messages, at_us=now_us())
    return messages


async def settled(
    history: MemoryRecorder,
    queue: str,
    name: str,
    consumer: Consumer,
    delivery: Delivery,
    messages: list[Run],
) -> bool:
    """Settle a delivery and record what the consumer was told. Return whether that was acknowledged."""
    invoked_us = now_us()
    told: dict[str, Any] = {"outcome": UNKNOWN}
    try:
        is_settled = await consumer.settle_batch(delivery, wait=True)
        told = {"outcome": OK, "returned_us": now_us()} if is_settled else {}  # void: nothing was sent
        return is_settled
    except QuorumError:
        return False
    finally:
        if told:
            history.settle(queue, attachment(name, delivery), messages, invoked_us=invoked_us, **told)


async def leader_of(cluster: LocalCluster, queue: str) -> str:
    """The leader of the queue's group, once there is one."""
    deadline = time.monotonic() + RESUME_LIMIT_S
    while (leader := await asyncio.to_thread(cluster.calls.leader_of_queue, queue)) is None:
        assert time.monotonic() < deadline, f"no leader of {queue!r} for {RESUME_LIMIT_S} s"
        await asyncio.sleep(POLL_S)
    return leader


def delivery_of(wire: queue_pb2.Delivery) -> Delivery:
    """A delivery that a hand-made session has read."""
    holder = Holder(None, "", wire.consumer_tag)  # type: ignore[arg-type]  # it never sends anything
    return Delivery(holder, wire, 0)


def describe_times(times: Sequence[float]) -> str:
    ordered = sorted(times)
    return ", ".join(f"{each:.2f}" for each in times) + f" s (worst {ordered[-1]:.2f} s)"
