"""A load of all that queues can do, while the leaders of their groups are killed: an exchange with two queues,
priorities, message groups, messages that expire into a dead-letter queue, and transactions from queue to queue.

Bodies are NAME:NUMBER:. The history knows each message by the queue where it has to arrive, as NAME@QUEUE: that is the
target of the exchange, of the dead letters, and of the transactions. Messages whose order may change on their way have
a name of their own each, so that the judge compares no order. All others keep that of their producer: with priorities
among those of one priority, with message groups among those of one group.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import quorum
from quorum.client import Client, Delivery
from quorum.client.errors import (
    OutcomeUnknown,
    PublishRejected,
    PublishUnknown,
    QuorumError,
    RolledBack,
    UnavailableError,
    VoidDelivery,
)
from quorum.histories import MemoryRecorder, Run, now_us
from quorum.histories.records import CONFIRMED, UNKNOWN, Record
from quorum.local_cluster.cluster import LocalCluster
from support.histories import checkers
from support.processes.cluster import all_equal
from support.processes.load import (
    CONNECT_LIMIT_MS,
    DRAIN_LIMIT_S,
    POLL_S,
    RESUME_LIMIT_S,
    attachment,
    describe_times,
    in_us,
    leader_of,
    settled,
    url_from,
)

EXCHANGE = "copies"
COPIES = ("copy-1", "copy-2")
LIFE_MS = 300
ARGUMENTS: dict[str, dict[str, object]] = {
    **{queue: {} for queue in COPIES},
    "urgent": {"x-max-priority": 3},
    "grouped": {"x-message-groups": True},
    "mortal": {
        "x-message-ttl": LIFE_MS,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    },
    "dead": {},
    "in": {},
    "out": {},
}
JUDGED = (*COPIES, "urgent", "grouped", "dead", "out")
"""Where messages have to arrive, and are consumed."""
ORDERED = (*COPIES, "urgent", "grouped")
VICTIMS = ("mortal", "in", "grouped", "out", "dead", "urgent")
"""The queues whose groups lose their leader, in turn."""
PRODUCERS = 2
BURST = 5
PAUSE_S = 0.05
TAKEN = 10
"""Messages of a transaction, at most."""
GIVEN_UP = 0.1
"""The part of the transactions that are rolled back."""
PROGRESS = 50
"""Messages that have to be settled in each queue before and after each kill."""
RESTART_LIMIT_S = 120.0


class Features:
    """Clients of all these queues, and what they saw. Enter it, cause trouble, `finish`, `check`."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.cluster = cluster
        self.history = MemoryRecorder()
        self.settled: Counter[str] = Counter()
        """by queue"""
        self.committed = 0
        self.given_up = 0
        self._chance = random.Random(seed)
        self._numbers: Counter[str] = Counter()
        self._is_over = asyncio.Event()
        self._producing: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Features:
        async with self._connect(0) as client:
            for queue, arguments in ARGUMENTS.items():
                await client.declare(queue, arguments)
            await client.declare_exchange(EXCHANGE, "fanout")
            for queue in COPIES:
                await client.bind(EXCHANGE, queue)
        for number, queue in enumerate(JUDGED):
            for place in range(2):
                self._start(self._others, self._consume(queue, f"{queue}-consumer-{place}", number + place))
        self._start(self._others, self._move(1))
        for number in range(PRODUCERS):
            self._start(self._producing, self._produce(number))
        return self

    async def __aexit__(self, *_: object) -> None:
        await _end([*self._producing, *self._others])

    @staticmethod
    def _start(tasks: list[asyncio.Task[None]], work: Awaitable[None]) -> None:
        tasks.append(asyncio.ensure_future(work))

    def _connect(self, first_node: int) -> Client:
        url = url_from(self.cluster, first_node)
        return quorum.connect(url, connect_timeout_ms=CONNECT_LIMIT_MS, timeout_ms=CONNECT_LIMIT_MS)

    # ---- what clients do

    async def _produce(self, number: int) -> None:
        async with self._connect(number + 1) as client:
            while not self._is_over.is_set():
                work = [each for _ in range(BURST) for each in self._burst(client, number)]
                await asyncio.gather(*work)
                await asyncio.sleep(PAUSE_S)

    def _burst(self, client: Client, producer: int) -> list[Awaitable[None]]:
        """One message of each kind."""
        chance = self._chance
        level, key = chance.randrange(4), chance.randrange(5)
        body = self._next(f"c{producer}")
        copied = client.publish_to(EXCHANGE, "", body, mandatory=True)
        found = [self._told(body, COPIES, copied)]
        body = self._next(f"u{producer}-{level}")
        found.append(self._told(body, ["urgent"], client.publish("urgent", body, {"priority": level})))
        body = self._next(f"g{producer}-{key}")
        found.append(self._told(body, ["grouped"], client.publish("grouped", body, {"group-id": f"g{key}"})))
        for kind, queue, place in (("m", "mortal", "dead"), ("i", "in", "out")):
            self._numbers[kind] += 1
            body = self._next(f"{kind}{producer}-{self._numbers[kind]}")
            found.append(self._told(body, [place], client.publish(queue, body)))
        return found

    def _next(self, name: str) -> bytes:
        self._numbers[name] += 1
        return f"{name}:{self._numbers[name]}:".encode()

    async def _told(self, body: bytes, queues: Sequence[str], publishing: Awaitable[None]) -> None:
        """Record what a producer was told of a message. queues: where it has to arrive."""
        invoked_us, outcome = now_us(), CONFIRMED
        try:
            try:
                await publishing
            except PublishUnknown as late:
                await late.confirmation
        except PublishRejected:
            raise
        except QuorumError:
            outcome = UNKNOWN
        name, number = _key_of(body)
        returned_us = None if outcome == UNKNOWN else now_us()
        for queue in queues:
            times = {"invoked_us": invoked_us, "returned_us": returned_us}
            self.history.publish(queue, f"{name}@{queue}", number, outcome=outcome, **times)  # type: ignore[arg-type]

    async def _consume(self, queue: str, name: str, first_node: int) -> None:
        async with self._connect(first_node) as client:
            consumer = client.consume(queue, prefetch=50, consumer_tag=name, timeout_ms=CONNECT_LIMIT_MS)
            await consumer
            while (delivery := await consumer.next_delivery()) is not None:
                runs = self._delivered(queue, name, delivery)
                if await settled(self.history, queue, name, consumer, delivery, runs):
                    self.settled[queue] += delivery.count

    def _delivered(self, queue: str, name: str, delivery: Delivery) -> list[Run]:
        runs = []
        for ordinal in range(delivery.count):
            producer, number = _key_of(delivery.reader.body(ordinal))
            is_again = delivery.redelivered_at(ordinal)
            runs.append(
                Run(delivery.sequence_at(ordinal), f"{producer}@{queue}", number, redelivered=is_again)
            )
        self.history.deliver(queue, attachment(name, delivery), runs, at_us=now_us())
        return runs

    async def _move(self, first_node: int) -> None:
        """Take messages from one queue and publish them to another one, in transactions; roll some back."""
        async with self._connect(first_node) as client:
            while True:
                try:
                    await self._move_some(client)
                except (RolledBack, OutcomeUnknown, UnavailableError, VoidDelivery):
                    continue  # the messages come back, or were moved

    async def _move_some(self, client: Client) -> None:
        messages = await client.get("in", TAKEN)
        if not messages:
            await asyncio.sleep(POLL_S)
            return
        transaction = client.transaction()
        await transaction.settle(messages)
        await transaction.publish_batch("out", [message.body for message in messages])
        if self._chance.random() < GIVEN_UP:
            await transaction.rollback()
            await client.return_(messages, wait=True)
            self.given_up += 1
        else:
            await transaction.commit()
            self.committed += 1

    # ---- what the scenario asks

    async def progress(self) -> None:
        """Wait until more messages are settled in each queue."""
        before = self.settled.copy()
        await self._until(
            lambda: all(self.settled[queue] >= before[queue] + PROGRESS for queue in JUDGED),
            lambda: (
                f"settled {dict(self.settled - before)} messages in {RESUME_LIMIT_S} s, not {PROGRESS} each"
            ),
        )

    async def resumed(self, fault_at: float) -> float:
        """Seconds until a message is confirmed that was sent after the fault. fault_at: time.monotonic()."""
        fault_us = in_us(fault_at)
        await self._until(
            lambda: any(_is_confirmed_since(each, fault_us) for each in self.history.records[-500:]),
            lambda: f"nothing was confirmed for {RESUME_LIMIT_S} s after the fault",
        )
        return checkers.resumed_after(self.history.records, fault_us)

    async def _until(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        deadline = time.monotonic() + RESUME_LIMIT_S
        while not condition():
            self._raise_what_failed()
            assert time.monotonic() < deadline, what()
            await asyncio.sleep(POLL_S)

    def _raise_what_failed(self) -> None:
        ended = self.cluster.processes.ended()
        assert not ended, f"members ended by themselves: {ended}"
        for task in [*self._producing, *self._others]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def finish(self) -> None:
        """Stop producing, and wait until all queues are empty."""
        self._is_over.set()
        await asyncio.wait_for(asyncio.gather(*self._producing), DRAIN_LIMIT_S)
        least, deadline = sys.maxsize, 0.0
        async with self._connect(0) as client:
            while left := sum([(await client.describe(queue)).queue.total for queue in ARGUMENTS]):
                self._raise_what_failed()
                if left < least:
                    least, deadline = left, time.monotonic() + DRAIN_LIMIT_S
                assert time.monotonic() < deadline, f"{left} messages stay in the queues"
                await asyncio.sleep(POLL_S)
        await _end(self._others)
        for queue in JUDGED:
            self.history.left(queue)

    def check(self) -> str:
        """Judge each queue. Return a line for people."""
        checkers.require(self.committed, "no transaction was committed")
        checkers.require(self.given_up, "no transaction was rolled back")
        for queue in JUDGED:
            records = [each for each in self.history.records if each["queue"] == queue]
            checkers.judged(records)
            checkers.repeats_are_flagged(records)
            checkers.nobody_is_handed_what_another_has(records)
            if queue in ORDERED:
                checkers.first_deliveries_are_in_order(records, across_attachments=queue != "urgent")
        groups_are_in_order([each for each in self.history.records if each["queue"] == "grouped"])
        counts = ", ".join(f"{self.settled[queue]:,} in {queue}" for queue in JUDGED)
        total = sum(self.settled[queue] for queue in JUDGED)
        moved = f"{self.committed:,} transactions committed, {self.given_up:,} rolled back"
        return f"settled {total:,} messages: {counts}; {moved}"


def groups_are_in_order(records: Sequence[Record]) -> None:
    """The first deliveries of a message group are in the order of the queue, whichever consumers get them: a group has
    one consumer at a time."""
    last: dict[str, int] = {}
    compared = 0
    for each in records:
        if each["op"] != "deliver" or each.get("redelivered"):
            continue
        group = each["producer"].partition("@")[0].rpartition("-")[2]
        before = last.get(group)
        compared += before is not None
        if before is not None and each["sequence"] <= before:
            raise checkers.Violation(f"group {group}: sequence {each['sequence']} came after {before}")
        last[group] = each["sequence"] + each.get("count", 1) - 1
    checkers.require(compared, "no message group had two deliveries")


async def kill_leaders(cluster: LocalCluster, rounds: int, seed: int = 1) -> str:
    """Leaders of the queues' groups are killed under this load, and started again."""
    times: list[float] = []
    async with Features(cluster, seed) as load:
        await load.progress()
        for number in range(rounds):
            leader = await leader_of(cluster, VICTIMS[number % len(VICTIMS)])
            fault_at = time.monotonic()
            cluster.kill(leader)
            times.append(await load.resumed(fault_at))
            await load.progress()
            await asyncio.to_thread(cluster.restart, leader, RESTART_LIMIT_S)
            await load.progress()
        await load.finish()
        verdict = load.check()
    return (
        f"leaders killed {rounds} times, publishing went on after {describe_times(times)}; {verdict}; "
        f"{await all_equal(cluster)}"
    )


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _key_of(body: bytes) -> tuple[str, int]:
    name, number, _ = body.decode().split(":", 2)
    return name, int(number)


def _is_confirmed_since(record: Record, fault_us: int) -> bool:
    return record["op"] == "publish" and record["outcome"] == CONFIRMED and record["invoked_us"] >= fault_us
