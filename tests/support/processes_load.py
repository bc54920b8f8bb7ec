"""Producers and consumers that record what they see, and the cluster of real processes they work on.

Bodies say who wrote them: PRODUCER:NUMBER. Consumers settle whole deliveries and note a settlement only when
the service has acknowledged it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import quorum
from quorum.cli.local_cluster import LocalCluster
from quorum.client import Client, Consumer, Delivery
from quorum.client.delivery import Holder
from quorum.client.errors import ClosedError, PublishRejected, QuorumError
from quorum.histories import records
from quorum.histories.recorder import Recorder as HistoryRecorder
from quorum.histories.recorder import Run
from quorum.v1 import queue_pb2
from support.checkers import HandOut, History, Publish, Settle

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
    addresses = [member.client for member in cluster.members]
    first %= len(addresses)
    return "quorum://" + ",".join([*addresses[first:], *addresses[:first]])


@dataclass(frozen=True, slots=True)
class Load:
    """How much a producer sends, and how many messages must get through before and after each fault."""

    batch: int
    pause_s: float
    progress: int


LIGHT = Load(BATCH, PRODUCER_PAUSE_S, 20 * BATCH)
FULL = Load(100, 0.0, 10_000)
"""As fast as confirms come, while consumers keep up."""


class Recorder:
    """Clients of one queue and what they saw. Enter it, cause trouble, `finish`, check `history`."""

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
        self.history = History()
        self._record = None if record is None else HistoryRecorder(record)
        self._confirmed_count = 0
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
            self._producing.append(asyncio.create_task(self._produce(f"producer-{number}", number + 1)))
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._producing, *self._consuming]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._record is not None:
            self._record.close()

    async def resumed(self, fault_at: float) -> float:
        """Waits until something sent after the fault is confirmed; seconds that took."""
        deadline = time.monotonic() + RESUME_LIMIT_S
        while True:
            self._raise_what_failed()
            for each in reversed(self.history.publishes):
                if each.confirmed_at is not None and each.sent_at >= fault_at:
                    return each.confirmed_at - fault_at
                if each.sent_at < fault_at - RESUME_LIMIT_S:
                    break
            assert time.monotonic() < deadline, (
                f"nothing was confirmed for {RESUME_LIMIT_S} s after the fault"
            )
            await asyncio.sleep(POLL_S)

    async def progress(self, messages: int | None = None) -> None:
        """Waits until so many more messages are confirmed and so many more are settled."""
        messages = self.load.progress if messages is None else messages
        confirmed, settled = self._confirmed_count, len(self.history.settles)
        deadline = time.monotonic() + RESUME_LIMIT_S
        while self._confirmed_count < confirmed + messages or len(self.history.settles) < settled + messages:
            self._raise_what_failed()
            assert time.monotonic() < deadline, f"no {messages} messages in {RESUME_LIMIT_S} s"
            await asyncio.sleep(POLL_S)

    async def finish(self) -> None:
        """Stops producing, waits until every batch is decided and the queue is empty."""
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
        if self._record is not None:
            self._record.left(self.queue)

    def _raise_what_failed(self) -> None:
        ended = self.cluster.ended()
        assert not ended, (
            f"members ended by themselves: {ended}\n{self.cluster.last_output(next(iter(ended)))}"
        )
        for task in [*self._producing, *self._consuming]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _produce(self, name: str, first_node: int) -> None:
        room = asyncio.Semaphore(UNDER_WAY)
        async with quorum.connect(
            self._url or url_from(self.cluster, first_node), connect_timeout_ms=CONNECT_LIMIT_MS
        ) as client:
            number = 0
            while not self._stop_producing.is_set():
                await room.acquire()
                place = len(self.history.publishes)
                last = number + self.load.batch - 1
                self.history.publishes.append(Publish(name, number, last, time.monotonic()))
                batch = [body(name, n) for n in range(number, last + 1)]
                confirmation = await client.send_batch(self.queue, batch, timeout_ms=CONNECT_LIMIT_MS)
                confirmation.add_done_callback(lambda done, place=place: self._confirmed(done, place, room))
                number = last + 1
                await asyncio.sleep(self._pause_s())
            for _ in range(UNDER_WAY):
                await room.acquire()

    def _pause_s(self) -> float:
        waiting = self._confirmed_count - len(self.history.hand_outs)
        return self.load.pause_s if waiting <= MOST_WAITING else max(NOW_AND_THEN_S, self.load.pause_s)

    def _confirmed(self, done: asyncio.Future[int], place: int, room: asyncio.Semaphore) -> None:
        room.release()
        if done.cancelled():
            self._record_publish(place, None)
            return
        error = done.exception()
        if error is None:
            sent = self.history.publishes[place]
            self.history.publishes[place] = replace(sent, confirmed_at=time.monotonic())
            self._confirmed_count += self.load.batch
        elif not isinstance(error, PublishRejected | ClosedError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "publish failed", "exception": error}
            )
        self._record_publish(place, error)

    def _record_publish(self, place: int, error: BaseException | None) -> None:
        if self._record is None:
            return
        sent = self.history.publishes[place]
        now = time.monotonic()
        for first, last, outcome in publish_outcomes(sent, error):
            self._record.publish(
                self.queue,
                sent.producer,
                first,
                count=last - first + 1,
                invoked_us=in_us(sent.sent_at),
                returned_us=None if outcome == records.UNKNOWN else in_us(sent.confirmed_at or now),
                outcome=outcome,
            )

    async def _consume(self, name: str, first_node: int) -> None:
        async with quorum.connect(
            url_from(self.cluster, first_node), connect_timeout_ms=CONNECT_LIMIT_MS
        ) as client:
            consumer = client.consume(
                self.queue, prefetch=200, consumer_tag=name, timeout_ms=CONNECT_LIMIT_MS
            )
            await consumer
            while (delivery := await consumer.next_delivery()) is not None:
                await self._settle(consumer, name, delivery)

    async def _settle(self, consumer: Consumer, name: str, delivery: Delivery) -> None:
        keys = record_hand_outs(self.history, name, delivery)
        messages = self._record_delivery(name, delivery, keys)
        invoked_at = time.monotonic()
        try:
            is_settled = await consumer.settle_batch(delivery, wait=True)
        except (QuorumError, asyncio.CancelledError) as error:
            # not acknowledged: it may have been settled or not
            self._record_settlement(name, delivery, messages, invoked_at, None)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        if is_settled:
            now = time.monotonic()
            for ordinal, key in enumerate(keys):
                sequence = delivery.sequence_at(ordinal)
                self.history.settles.append(Settle(now, name, delivery.attach, sequence, key))
            self._record_settlement(name, delivery, messages, invoked_at, now)

    def _record_delivery(self, name: str, delivery: Delivery, keys: list[tuple[str, int]]) -> list[Run]:
        if self._record is None:
            return []
        messages = [
            Run(delivery.sequence_at(ordinal), *key, redelivered=delivery.redelivered_at(ordinal))
            for ordinal, key in enumerate(keys)
        ]
        at = self.history.hand_outs[-1].at
        self._record.deliver(self.queue, attachment(name, delivery), messages, at_us=in_us(at))
        return messages

    def _record_settlement(
        self,
        name: str,
        delivery: Delivery,
        messages: list[Run],
        invoked_at: float,
        returned_at: float | None,
    ) -> None:
        if self._record is None:
            return
        self._record.settle(
            self.queue,
            attachment(name, delivery),
            messages,
            invoked_us=in_us(invoked_at),
            returned_us=None if returned_at is None else in_us(returned_at),
            outcome=records.UNKNOWN if returned_at is None else records.OK,
        )


def in_us(at: float) -> int:
    return int(at * 1e6)


def attachment(name: str, delivery: Delivery) -> str:
    """What a recorded history calls a consumer: what it held under one attachment is void under the next."""
    return f"{name}/{delivery.attach}"


def publish_outcomes(sent: Publish, error: BaseException | None) -> Iterator[tuple[int, int, str]]:
    """(first number, last number, outcome) of the parts of a batch: a refusal names those it is about."""
    if error is None:
        yield sent.first, sent.last, records.CONFIRMED if sent.confirmed_at else records.UNKNOWN
    elif not isinstance(error, PublishRejected):
        yield sent.first, sent.last, records.UNKNOWN
    else:
        number = sent.first
        for first, last in sorted(error.rejected):
            if sent.first + first > number:
                yield number, sent.first + first - 1, records.CONFIRMED
            yield sent.first + first, sent.first + last, records.REJECTED
            number = sent.first + last + 1
        if number <= sent.last:
            yield number, sent.last, records.CONFIRMED


def record_hand_outs(history: History, name: str, delivery: Delivery) -> list[tuple[str, int]]:
    now = time.monotonic()
    keys = []
    for ordinal in range(delivery.count):
        key = key_of(delivery.reader.body(ordinal))
        keys.append(key)
        history.hand_outs.append(
            HandOut(
                now,
                name,
                delivery.attach,
                delivery.sequence_at(ordinal),
                key,
                delivery.redelivered_at(ordinal),
            )
        )
    return keys


async def leader_of(cluster: LocalCluster, queue: str) -> str:
    """The leader of the queue's group, once there is one."""
    deadline = time.monotonic() + RESUME_LIMIT_S
    while (leader := await asyncio.to_thread(cluster.leader_of_queue, queue)) is None:
        assert time.monotonic() < deadline, f"no leader of {queue!r} for {RESUME_LIMIT_S} s"
        await asyncio.sleep(POLL_S)
    return leader


async def publish_numbered(client: Client, queue: str, producer: str, numbers: Sequence[int]) -> None:
    await client.publish_batch(queue, [body(producer, n) for n in numbers])


def record_wire(history: History, name: str, wire: queue_pb2.Delivery) -> list[tuple[str, int]]:
    """The same for a delivery that a hand-made session has read."""
    holder = Holder(None, "", wire.consumer_tag)  # type: ignore[arg-type]  # it never sends anything
    return record_hand_outs(history, name, Delivery(holder, wire, 0))


def describe_times(times: Sequence[float]) -> str:
    ordered = sorted(times)
    return ", ".join(f"{each:.2f}" for each in times) + f" s (worst {ordered[-1]:.2f} s)"
