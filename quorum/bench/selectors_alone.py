"""The cost of selectors on the state machine alone: finding receivers, attaching to a long queue, returns, memory.

The figures are processor time inside the machine, and evaluations, which do not depend on the computer's load. The
bench checks everything that it measures: it fails if a message is not delivered or a match is not found.
"""

from __future__ import annotations

import gc
import random
import statistics
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fifo.limits import PRODUCTION
from quorum.bench.run import BenchFailed, Note
from quorum.bench.selectors_fields import (
    KINDS_OF_SELECTORS,
    LOW_CARDINALITY_SELECTOR,
    MATCHES,
    RECEIVERS,
    UNIQUE_SELECTOR,
    Batches,
    encode_rows,
    selector_of,
    unique_text,
)
from quorum.bench.selectors_machine import LocalQueue, Step
from quorum_selectors import canonical, jms

Cost = TypeVar("Cost")

SEED = 1
ATTACHED_AT_ONCE = 100
"""Number of attachments in an entry."""
ENTRIES_IN_TURN = 10
CREDIT = 1_000_000_000
SPARSE_CREDIT = 1_000
BATCH = 500
BATCHES_PER_ENTRY = 10
MEASURED_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """The extent of the measurements; the defaults are the bench.

    selectors: numbers of different selectors. entries: measured entries of 10 messages (whole turns); batches: of 500.
    backlogs: waiting messages to which a consumer is attached. returning: consumers of the returns, before
    `return_backlog` messages; returns: their number. stored: messages whose memory is counted.
    """

    selectors: tuple[int, ...] = (10, 100, 1_000, 10_000)
    entries: int = 400
    warmup_entries: int = 50
    batches: int = 15
    warmup_batches: int = 2
    batch: int = BATCH
    backlogs: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    return_backlog: int = 1_000_000
    returning: int = 1_000
    returns: int = 200
    stored: int = MEASURED_BLOCKS * PRODUCTION.block_size

    def up_to(self, messages: int) -> Sizes:
        """The same sizes with at most this number of waiting messages; 0: unchanged."""
        if not messages:
            return self
        most = max(messages, self.batch)
        return replace(
            self,
            backlogs=tuple(sorted({min(each, most) for each in self.backlogs})),
            return_backlog=min(self.return_backlog, most),
            returning=min(self.returning, most),
            stored=min(self.stored, most),
        )


def encoded(selector: str) -> bytes:
    return canonical.encode(jms.parse(selector))


# ---- dispatch


@dataclass(frozen=True, slots=True)
class DispatchCost:
    """us, evaluations: for a message in entries of ten. batch_...: in batches for random receivers.
    attach_us: for each consumer, on the empty queue. first_ms: for the first entry and the work it leaves for later."""

    us: float
    evaluations: float
    batch_us: float
    batch_evaluations: float
    attach_us: float
    first_ms: float


class Receivers:
    """An empty queue with `count` waiting consumers with different selectors, and the messages that arrived."""

    def __init__(self, count: int, selectors: Sequence[bytes]) -> None:
        self._count = count
        self._queue = LocalQueue()
        self._generator = random.Random(SEED)
        consumers = [(f"consumer-{number}", selectors[number]) for number in range(count)]
        attach_s = 0.0
        for first in range(0, count, ATTACHED_AT_ONCE):
            _, step = self._queue.attach(consumers[first : first + ATTACHED_AT_ONCE], CREDIT)
            attach_s += step.cpu_s + sum(each.cpu_s for each in self._queue.go_on())
        self.attach_us = attach_s * 1e6 / count

    def small(self) -> tuple[float, float]:
        """Publish one message for each of ten consumers."""
        return self._arrive(self._generator.sample(range(self._count), min(RECEIVERS, self._count)))

    def large(self, size: int) -> tuple[float, float]:
        """Publish a batch, each message for a random consumer."""
        return self._arrive([self._generator.randrange(self._count) for _ in range(size)])

    def _arrive(self, numbers: Sequence[int]) -> tuple[float, float]:
        """Publish a batch as one entry. Returns microseconds and evaluations for each message."""
        queue, before = self._queue, self._queue.evaluations
        steps = [queue.publish([(len(numbers), encode_rows(numbers, self._generator))]), *queue.go_on()]
        delivered = sum(step.delivered for step in steps)
        found = {effect.consumer_tag for step in steps for effect in step.deliveries}
        if delivered != len(numbers) or found != {f"consumer-{number}" for number in numbers}:
            raise BenchFailed(f"{delivered} of {len(numbers)} messages went to their consumers")
        cpu_s = sum(step.cpu_s for step in steps)
        return cpu_s * 1e6 / len(numbers), (queue.evaluations - before) / len(numbers)


def dispatch(sizes: Sizes, selectors: Sequence[bytes]) -> dict[int, DispatchCost]:
    """Costs by the number of consumers. The numbers are measured in turns, so that other load on the computer affects
    all of them."""
    all_receivers = {count: Receivers(count, selectors) for count in sizes.selectors}
    first_ms: dict[int, float] = {}
    for count, receivers in all_receivers.items():
        first_ms[count] = receivers.small()[0] * min(RECEIVERS, count) / 1e3
        for _ in range(sizes.warmup_entries):
            receivers.small()
    small: dict[int, list[tuple[float, float]]] = {count: [] for count in all_receivers}
    for _ in range(sizes.entries // ENTRIES_IN_TURN):
        for count, receivers in all_receivers.items():
            small[count] += [receivers.small() for _ in range(ENTRIES_IN_TURN)]
    large: dict[int, list[tuple[float, float]]] = {count: [] for count in all_receivers}
    for turn in range(sizes.warmup_batches + sizes.batches):
        for count, receivers in all_receivers.items():
            arrived = receivers.large(sizes.batch)
            if turn >= sizes.warmup_batches:
                large[count].append(arrived)
    return {
        count: DispatchCost(
            *_middle(small[count]), *_middle(large[count]), receivers.attach_us, first_ms[count]
        )
        for count, receivers in all_receivers.items()
    }


def _middle(arrived: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The median of the times, the mean of the evaluations."""
    times, evaluations = zip(*arrived, strict=True)
    return statistics.median(times), statistics.fmean(evaluations)


# ---- attaching to a long queue


@dataclass(frozen=True, slots=True)
class AttachCost:
    """Costs of all entries until every match is delivered and no work is left; first_ms: until the first match."""

    ms: float
    first_ms: float
    longest_entry_ms: float
    evaluations: int
    entries: int


def fill(queue: LocalQueue, batches: Batches, messages: int, start: int = 0) -> int:
    """Publish whole batches from batch `start` on until at least `messages` are published. Returns their number."""
    end = -(-messages // batches.size)
    for first in range(start, end, BATCHES_PER_ENTRY):
        numbers = range(first, min(first + BATCHES_PER_ENTRY, end))
        queue.publish([(batches.size, batches.columns(number)) for number in numbers])
    return max(0, end - start) * batches.size


def attach(queue: LocalQueue, selector: str, wanted: int) -> AttachCost:
    """Attach one consumer, deliver all its matches, and detach it again."""
    before = queue.evaluations
    _, step = queue.attach([("sparse", encoded(selector))], SPARSE_CREDIT)
    steps: list[Step] = [step, *queue.go_on()]
    found = sum(step.delivered for step in steps)
    if found != wanted:
        raise BenchFailed(f"{found} of {wanted} matches were delivered")
    first_s = 0.0
    for step in steps:
        first_s += step.cpu_s
        if step.deliveries:
            break
    evaluations = queue.evaluations - before
    queue.cancel("sparse")
    queue.go_on()
    return AttachCost(
        sum(step.cpu_s for step in steps) * 1e3,
        first_s * 1e3,
        max(step.cpu_s for step in steps) * 1e3,
        evaluations,
        len(steps),
    )


# ---- returns


@dataclass(frozen=True, slots=True)
class ReturnCost:
    """us: median of the entries. evaluations: of all entries."""

    us: float
    evaluations: int


def returns(sizes: Sizes) -> ReturnCost:
    """Return one message after the other to a queue whose many consumers, with different selectors, have scanned it to
    the end and hold one message each."""
    queue = LocalQueue()
    apart = sizes.return_backlog // sizes.returning
    texts = [unique_text(number * apart) for number in range(sizes.returning)]
    consumers = [(f"consumer-{i}", encoded(f"order = '{text}'")) for i, text in enumerate(texts)]
    attaches: list[int] = []
    for first in range(0, len(consumers), ATTACHED_AT_ONCE):
        attaches += queue.attach(consumers[first : first + ATTACHED_AT_ONCE], SPARSE_CREDIT)[0]
    batches = Batches(sizes.batch)
    fill(queue, batches, 1)
    queue.go_on()  # all have scanned the first batch, and see later messages as they arrive
    waiting = fill(queue, batches, sizes.return_backlog, start=1) + batches.size
    queue.go_on()
    if queue.waiting != waiting - sizes.returning:
        raise BenchFailed(f"{waiting - queue.waiting} of {sizes.returning} consumers have their message")
    before = queue.evaluations
    times: list[float] = []
    for number in range(min(sizes.returns, sizes.returning)):
        step = queue.give_back(consumers[number][0], attaches[number], 1)
        receivers = [effect.consumer_tag for effect in step.deliveries]
        if receivers != [consumers[number][0]]:
            raise BenchFailed(f"a returned message was delivered to {receivers}")
        times.append(step.cpu_s * 1e6)
    return ReturnCost(statistics.median(times), queue.evaluations - before)


# ---- memory


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Bytes of a message: by the queue's own accounting, and as allocated."""

    accounted: float
    allocated: float


def memory(sizes: Sizes, *, with_unique: bool) -> MemoryCost:
    """Memory of waiting messages, without the log that a member has on disk."""
    batches = Batches(sizes.batch, with_unique=with_unique)
    gc.collect()
    tracemalloc.start()
    try:
        queue = LocalQueue()
        before, kept_before = tracemalloc.get_traced_memory()[0], queue.stored.size_bytes
        count = fill(queue, batches, sizes.stored)
        gc.collect()
        allocated = tracemalloc.get_traced_memory()[0] - before
        allocated -= queue.stored.size_bytes - kept_before
        return MemoryCost(queue.memory_bytes / count, allocated / count)
    finally:
        tracemalloc.stop()


# ---- all of it


@dataclass(frozen=True, slots=True)
class AloneResult:
    """dispatch: by kind of selector and their number. unique, low_cardinality: by the number of waiting messages.
    plain_memory: of messages without the unique string; memory: with it."""

    dispatch: Mapping[str, Mapping[int, DispatchCost]]
    unique: Mapping[int, AttachCost]
    low_cardinality: Mapping[int, AttachCost]
    returned: ReturnCost
    plain_memory: MemoryCost
    memory: MemoryCost

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind, costs in self.dispatch.items():
            name = "dispatch" if kind == KINDS_OF_SELECTORS[0] else f"dispatch_{kind}"
            found[f"{name}_us_per_message"] = _by_number(costs, lambda cost: round(cost.us, 1))
            found[f"{name}_evaluations"] = _by_number(costs, lambda cost: round(cost.evaluations, 2))
            found[f"{name}_batch_us_per_message"] = _by_number(costs, lambda cost: round(cost.batch_us, 1))
            found[f"{name}_batch_evaluations"] = _by_number(
                costs, lambda cost: round(cost.batch_evaluations, 2)
            )
            found[f"{name}_first_ms"] = _by_number(costs, lambda cost: round(cost.first_ms, 1))
            found[f"{name}_attach_us"] = _by_number(costs, lambda cost: round(cost.attach_us, 1))
        for name, attaching in (("attach", self.unique), ("attach_low_cardinality", self.low_cardinality)):
            found[f"{name}_ms"] = _by_number(attaching, lambda cost: round(cost.ms, 1))
            found[f"{name}_first_ms"] = _by_number(attaching, lambda cost: round(cost.first_ms, 1))
            found[f"{name}_longest_entry_ms"] = _by_number(
                attaching, lambda cost: round(cost.longest_entry_ms, 1)
            )
            found[f"{name}_evaluations"] = _by_number(attaching, lambda cost: cost.evaluations)
            found[f"{name}_entries"] = _by_number(attaching, lambda cost: cost.entries)
        found["return_evaluations"] = self.returned.evaluations
        found["return_us"] = round(self.returned.us, 1)
        for name, plain, whole in (
            ("", self.plain_memory.accounted, self.memory.accounted),
            ("_allocated", self.plain_memory.allocated, self.memory.allocated),
        ):
            found[f"bytes_per_message{name}"] = round(plain, 1)
            found[f"bytes_per_unique_string{name}"] = round(whole - plain, 1)
        return found


def _by_number(costs: Mapping[int, Cost], figure: Callable[[Cost], float]) -> dict[str, float]:
    return {str(number): figure(cost) for number, cost in costs.items()}


def measure(sizes: Sizes, note: Note) -> AloneResult:
    """Run all measurements one after the other."""
    note("memory of a message")
    plain_memory, whole_memory = memory(sizes, with_unique=False), memory(sizes, with_unique=True)
    costs: dict[str, dict[int, DispatchCost]] = {}
    for kind in KINDS_OF_SELECTORS:
        note(f"finding receivers among selectors of kind {kind!r}")
        selectors = [encoded(selector_of(kind, number)) for number in range(max(sizes.selectors))]
        costs[kind] = dispatch(sizes, selectors)
    note(f"returns where {sizes.return_backlog:,} wait")
    returned = returns(sizes)
    unique: dict[int, AttachCost] = {}
    low_cardinality: dict[int, AttachCost] = {}
    for messages in sizes.backlogs:
        note(f"attaching to {messages:,} messages")
        queue = LocalQueue()
        fill(queue, Batches(sizes.batch, messages, MATCHES), messages)
        unique[messages] = attach(queue, UNIQUE_SELECTOR, MATCHES)
        low_cardinality[messages] = attach(queue, LOW_CARDINALITY_SELECTOR, MATCHES)
    return AloneResult(costs, unique, low_cardinality, returned, plain_memory, whole_memory)
