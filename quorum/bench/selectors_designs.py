"""Three designs of selective dispatch on the same messages, in `quorum bench selectors`.

- `walk`: for each delivery to a consumer, walk the queue from its front to the first match.
- `cursor`: each consumer remembers how far it has scanned, and continues there. A returned message moves the cursors
  that have passed it back to it.
- `groups`: the machine of the product, with groups of equal selectors and an index of their conditions.

The first two are the smallest programs for this task. They evaluate compiled selectors; each message is a mapping of
its fields. They keep no log, credit or fairness. All three get the same batches and must pass the same checks. A
consumer gets each message that its selector matches, once, and no other message.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sortedcontainers import SortedDict

from quorum.bench.run import BenchFailed, Note
from quorum.bench.selectors_fields import (
    MATCHES,
    RECEIVERS,
    UNIQUE_SELECTOR,
    Batches,
    encode_rows,
    selector_of,
    spread_matches,
    unique_text,
)
from quorum.bench.selectors_machine import LocalQueue, Step
from quorum_selectors import canonical, columns, jms
from quorum_selectors.compiled import compile_expression
from quorum_selectors.expression import FieldValue

SEED = 2
CREDIT = 1_000_000
ATTACHED_AT_ONCE = 100
BATCH = 500
KIND = "equal"

Delivery = tuple[str, int]
"""The consumer's tag, and the message's sequence."""
Row = Mapping[str, FieldValue]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The extent of the measurements; the defaults are the bench.

    selectors: numbers of consumers, each with another selector. waiting: messages that match none of them. entries:
    entries of ten messages that are then dispatched. backlog: waiting messages when one consumer is attached.
    returning: consumers that have scanned `return_backlog` messages. returns: messages that are then returned.
    """

    selectors: tuple[int, ...] = (10, 100, 1_000)
    entries: int = 5
    waiting: int = 1_000
    backlog: int = 100_000
    returning: int = 100
    return_backlog: int = 5_000
    returns: int = 5
    batch: int = BATCH

    def up_to(self, messages: int) -> Sizes:
        """The same sizes with at most this number of waiting messages; 0: unchanged."""
        if not messages:
            return self
        most = max(messages, self.batch)
        return replace(
            self,
            waiting=min(self.waiting, most),
            backlog=min(self.backlog, most),
            return_backlog=min(self.return_backlog, most),
            returning=min(self.returning, most),
        )


@dataclass(frozen=True, slots=True)
class Done:
    """What an operation delivered, and its processor time."""

    deliveries: list[Delivery]
    cpu_s: float


class Design(Protocol):
    """One queue. The first message has sequence 1."""

    @property
    def evaluations(self) -> int:
        """Number of evaluations of selectors on messages so far."""

    def attach(self, consumers: Sequence[tuple[str, str]]) -> Done:
        """Attach consumers, each (tag, selector), with as much credit as they need."""

    def publish(self, count: int, data: bytes) -> Done:
        """Publish a batch: the columns of `count` messages."""

    def give_back(self, delivery: Delivery) -> Done:
        """Return a delivered message to the queue. It must be the first message that this consumer got."""


# ---- two designs without groups


class Scanner:
    """A consumer. cursor: the sequence at which its next search begins; `Walk` leaves it at 0."""

    def __init__(self, tag: str, selector: str) -> None:
        self.tag = tag
        self.matches = compile_expression(jms.parse(selector))
        self.cursor = 0


class Walk:
    """Each search begins at the front of the queue."""

    def __init__(self) -> None:
        self.evaluations = 0
        self._ready: SortedDict[int, Row] = SortedDict()
        self._delivered: dict[int, Row] = {}
        self._scanners: list[Scanner] = []
        self._last = 0

    def attach(self, consumers: Sequence[tuple[str, str]]) -> Done:
        self._scanners += [Scanner(tag, selector) for tag, selector in consumers]
        return self._serve()

    def publish(self, count: int, data: bytes) -> Done:
        batch = columns.decode(data, count)
        for ordinal in range(count):
            self._last += 1
            self._ready[self._last] = dict(batch.row(ordinal))
        return self._serve()

    def give_back(self, delivery: Delivery) -> Done:
        sequence = delivery[1]
        self._ready[sequence] = self._delivered.pop(sequence)
        self._returned(sequence)
        return self._serve()

    def _serve(self) -> Done:
        """Deliver all matches."""
        deliveries: list[Delivery] = []
        began = time.process_time()
        for scanner in self._scanners:
            while (sequence := self._search(scanner)) is not None:
                self._delivered[sequence] = self._ready.pop(sequence)
                deliveries.append((scanner.tag, sequence))
        return Done(deliveries, time.process_time() - began)

    def _search(self, scanner: Scanner) -> int | None:
        """The sequence of the scanner's next match."""
        matches, passed = scanner.matches, 0
        try:
            for sequence in self._ready.irange(minimum=scanner.cursor):
                passed += 1
                if matches(self._ready[sequence]) is True:
                    self._found(scanner, sequence)
                    return int(sequence)
        finally:
            self.evaluations += passed
        self._found(scanner, self._last)
        return None

    def _found(self, scanner: Scanner, sequence: int) -> None:
        """The scanner has evaluated its selector up to this sequence."""

    def _returned(self, sequence: int) -> None:
        """This message is ready again."""


class Cursor(Walk):
    """Each search begins where the consumer's last one ended."""

    def _found(self, scanner: Scanner, sequence: int) -> None:
        scanner.cursor = sequence + 1

    def _returned(self, sequence: int) -> None:
        for scanner in self._scanners:
            scanner.cursor = min(scanner.cursor, sequence)


# ---- the product's


class Groups:
    """The product's machine, entry by entry; its times include the whole of `apply`."""

    def __init__(self) -> None:
        self._queue = LocalQueue()
        self._attaches: dict[str, int] = {}

    @property
    def evaluations(self) -> int:
        return self._queue.evaluations

    def attach(self, consumers: Sequence[tuple[str, str]]) -> Done:
        steps: list[Step] = []
        encoded = [(tag, canonical.encode(jms.parse(selector))) for tag, selector in consumers]
        for first in range(0, len(encoded), ATTACHED_AT_ONCE):
            part = encoded[first : first + ATTACHED_AT_ONCE]
            attaches, step = self._queue.attach(part, CREDIT)
            self._attaches.update(zip((tag for tag, _ in part), attaches, strict=True))
            steps.append(step)
        return self._done(steps)

    def publish(self, count: int, data: bytes) -> Done:
        return self._done([self._queue.publish([(count, data)])])

    def give_back(self, delivery: Delivery) -> Done:
        tag = delivery[0]
        return self._done([self._queue.give_back(tag, self._attaches[tag], 1)])

    def _done(self, steps: list[Step]) -> Done:
        steps += self._queue.go_on()
        deliveries = [
            (effect.consumer_tag, sequence)
            for step in steps
            for effect in step.deliveries
            for run in effect.runs
            for sequence in range(run.first_sequence, run.first_sequence + run.count)
        ]
        return Done(deliveries, sum(step.cpu_s for step in steps))


DESIGNS: Mapping[str, Callable[[], Design]] = {"walk": Walk, "cursor": Cursor, "groups": Groups}


# ---- measurements


@dataclass(frozen=True, slots=True)
class DesignCost:
    """dispatch_us, dispatch_evaluations: the cost of one message, by the number of selectors. attach_...: the cost of
    attaching one consumer and delivering all its matches. returned_...: the cost of one returned message."""

    dispatch_us: Mapping[int, float]
    dispatch_evaluations: Mapping[int, float]
    attach_ms: float
    attach_evaluations: int
    returned_us: float
    returned_evaluations: float


def _require(wanted: Sequence[Delivery], done: Done) -> None:
    if sorted(done.deliveries) != sorted(wanted):
        wrong = len(set(done.deliveries) ^ set(wanted)) or len(done.deliveries) - len(wanted)
        raise BenchFailed(f"{wrong} deliveries differ from the {len(wanted)} that the selectors match")


def dispatch(queue: Design, count: int, sizes: Sizes) -> tuple[float, float]:
    """Median microseconds and mean evaluations of one message that arrives for one of `count` consumers."""
    generator = random.Random(SEED)
    nobody = encode_rows([count] * sizes.waiting, generator)
    _require([], queue.publish(sizes.waiting, nobody))
    consumers = [(f"consumer-{number}", selector_of(KIND, number)) for number in range(count)]
    _require([], queue.attach(consumers))
    last, times, before = sizes.waiting, [], queue.evaluations
    for _ in range(sizes.entries):
        numbers = generator.sample(range(count), min(RECEIVERS, count))
        done = queue.publish(len(numbers), encode_rows(numbers, generator))
        _require([(f"consumer-{n}", last + place) for place, n in enumerate(numbers, 1)], done)
        last += len(numbers)
        times.append(done.cpu_s * 1e6 / len(numbers))
    return statistics.median(times), (queue.evaluations - before) / (last - sizes.waiting)


def attach(queue: Design, sizes: Sizes) -> tuple[float, int]:
    """Milliseconds and evaluations until a new consumer has its ten matches among many waiting messages."""
    batches = Batches(sizes.batch, sizes.backlog, MATCHES)
    for number in range(-(-sizes.backlog // sizes.batch)):
        _require([], queue.publish(sizes.batch, batches.columns(number)))
    places = spread_matches(sizes.batch, sizes.backlog, MATCHES)
    wanted = [
        ("sparse", number * sizes.batch + ordinal + 1) for number in places for ordinal in places[number]
    ]
    before = queue.evaluations
    done = queue.attach([("sparse", UNIQUE_SELECTOR)])
    _require(wanted, done)
    return done.cpu_s * 1e3, queue.evaluations - before


def returns(queue: Design, sizes: Sizes) -> tuple[float, float]:
    """Microseconds and evaluations for each message that is returned, where many consumers have scanned the queue."""
    batches = Batches(sizes.batch)
    for number in range(-(-sizes.return_backlog // sizes.batch)):
        queue.publish(sizes.batch, batches.columns(number))
    apart = sizes.return_backlog // sizes.returning
    numbers = range(0, sizes.returning * apart, apart)
    consumers = [(f"consumer-{n}", f"order = '{unique_text(n)}'") for n in numbers]
    checked_out = [(f"consumer-{n}", n + 1) for n in numbers]
    _require(checked_out, queue.attach(consumers))
    before, times = queue.evaluations, []
    for delivery in checked_out[:: max(1, len(checked_out) // sizes.returns)][: sizes.returns]:
        done = queue.give_back(delivery)
        _require([delivery], done)
        times.append(done.cpu_s * 1e6)
    return statistics.median(times), (queue.evaluations - before) / len(times)


@dataclass(frozen=True, slots=True)
class DesignsResult:
    """By the name of the design."""

    sizes: Sizes
    costs: Mapping[str, DesignCost]

    def to_dict(self) -> dict[str, Any]:
        def each(figure: Callable[[DesignCost], object]) -> dict[str, object]:
            return {name: figure(cost) for name, cost in self.costs.items()}

        def by_number(numbers: Mapping[int, float]) -> dict[str, float]:
            return {str(number): round(value, 1) for number, value in numbers.items()}

        return {
            "designs_dispatch_us_per_message": each(lambda cost: by_number(cost.dispatch_us)),
            "designs_dispatch_evaluations": each(lambda cost: by_number(cost.dispatch_evaluations)),
            "designs_attach_ms": each(lambda cost: round(cost.attach_ms, 1)),
            "designs_attach_evaluations": each(lambda cost: cost.attach_evaluations),
            "designs_return_us": each(lambda cost: round(cost.returned_us, 1)),
            "designs_return_evaluations": each(lambda cost: round(cost.returned_evaluations, 1)),
            "designs_waiting": self.sizes.waiting,
            "designs_attach_messages": self.sizes.backlog,
            "designs_return_messages": self.sizes.return_backlog,
            "designs_return_consumers": self.sizes.returning,
        }


def measure(sizes: Sizes, note: Note, designs: Mapping[str, Callable[[], Design]] = DESIGNS) -> DesignsResult:
    """Run all measurements of each design."""
    costs: dict[str, DesignCost] = {}
    for name, make in designs.items():
        note(f"design {name!r}")
        found = {count: dispatch(make(), count, sizes) for count in sizes.selectors}
        costs[name] = DesignCost(
            {count: us for count, (us, _) in found.items()},
            {count: evaluations for count, (_, evaluations) in found.items()},
            *attach(make(), sizes),
            *returns(make(), sizes),
        )
    return DesignsResult(sizes, costs)
