"""Recorded histories: what clients did to queues and were told, one record a line of JSON or a row of Parquet.

docs/histories.md is the description for people. Here are the rules of a record, for Python (`problem`) and for Spark
(`condition`), and a recorder. A record speaks of a run of `count` messages: numbers and sequences go up by one
with each. Times are whole microseconds of one clock for the whole history, whichever clock that is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from quorum.spark.errors import QuorumSparkError

TEXT, INTEGER, FLAG = "a text", "a whole number", "true or false"

COLUMNS = {
    "op": TEXT,
    "queue": TEXT,
    "producer": TEXT,
    "consumer": TEXT,
    "number": INTEGER,
    "sequence": INTEGER,
    "count": INTEGER,
    "invoked_us": INTEGER,
    "returned_us": INTEGER,
    "held_until_us": INTEGER,
    "redelivered": FLAG,
    "outcome": TEXT,
}
MAX_INTEGER = (1 << 62) - 1
"""Sums of two are calculated with 64 bits."""
MAX_COUNT = 1_000_000
"""Messages in a record: Spark lays them out in memory, one record at a time."""

CONFIRMED, REJECTED, UNKNOWN, OK = "confirmed", "rejected", "unknown", "ok"


@dataclass(frozen=True, slots=True)
class Form:
    """The keys of one kind of record, besides `op`. outcomes: empty where there is no such key."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return ("op", *self.required, *self.optional)


_DISPOSED = Form(
    ("queue", "consumer", "sequence", "invoked_us", "outcome"), ("count", "returned_us"), (OK, UNKNOWN)
)
FORMS = {
    "publish": Form(
        ("queue", "producer", "number", "invoked_us", "outcome"),
        ("count", "returned_us"),
        (CONFIRMED, REJECTED, UNKNOWN),
    ),
    "deliver": Form(
        ("queue", "consumer", "sequence", "producer", "number", "returned_us"),
        ("count", "redelivered", "held_until_us"),
    ),
    "settle": _DISPOSED,
    "return": _DISPOSED,
    "discard": _DISPOSED,
    "end": Form(("queue", "consumer", "invoked_us")),
    "left": Form(("queue",), ("sequence", "producer", "number", "count")),
}
LEFT_OF = ("sequence", "producer", "number")


class HistoryError(QuorumSparkError):
    """A history that cannot be judged: the file and line, what is wrong there, and what is allowed."""


def problem(record: Any) -> str | None:
    """What is wrong with a record; None if nothing."""
    if not isinstance(record, dict):
        return f"a record is a JSON object, this is {json.dumps(record)[:80]}"
    given = {key: value for key, value in record.items() if value is not None}
    form = FORMS.get(given.get("op", "")) if isinstance(given.get("op"), str) else None
    if form is None:
        return f"'op' is {json.dumps(given.get('op'))}; allowed: {', '.join(FORMS)}"
    kind = given["op"]
    for key in record:
        if key not in form.keys:
            return f"a record '{kind}' has no key '{key}'; allowed: {', '.join(form.keys)}"
    for key in form.required:
        if key not in given:
            return f"a record '{kind}' needs '{key}'"
    for key, value in given.items():
        if not _is(COLUMNS[key], value):
            limit = f" from 0 to {MAX_INTEGER}" if COLUMNS[key] == INTEGER else ""
            return f"'{key}' is {json.dumps(value)[:80]}; allowed: {COLUMNS[key]}{limit}"
    return _outcome_problem(form, given) or _count_problem(kind, given) or _time_problem(form, given)


def _is(kind: str, value: Any) -> bool:
    if kind == INTEGER:
        return type(value) is int and 0 <= value <= MAX_INTEGER
    return type(value) is (str if kind == TEXT else bool)


def _outcome_problem(form: Form, given: Mapping[str, Any]) -> str | None:
    if form.outcomes and given["outcome"] not in form.outcomes:
        return f"'outcome' is {json.dumps(given['outcome'])}; allowed: {', '.join(form.outcomes)}"
    return None


def _count_problem(kind: str, given: Mapping[str, Any]) -> str | None:
    lowest = 0 if kind == "left" else 1
    count = given.get("count", 1)
    if not lowest <= count <= MAX_COUNT:
        return f"'count' is {count}; allowed: {lowest} to {MAX_COUNT}"
    if kind != "left":
        return None
    present = [key for key in LEFT_OF if key in given]
    if count == 0 and present:
        return f"a record 'left' with 'count' 0 says that nothing is left; it has no '{present[0]}'"
    if count and len(present) < len(LEFT_OF):
        missing = next(key for key in LEFT_OF if key not in given)
        return f"a record 'left' needs '{missing}', or 'count' 0 where nothing is left"
    return None


def _time_problem(form: Form, given: Mapping[str, Any]) -> str | None:
    returned = given.get("returned_us")
    if form.outcomes:
        if returned is None and given["outcome"] != UNKNOWN:
            return f"'outcome' is \"{given['outcome']}\", so that 'returned_us' is needed"
        if returned is not None and returned < given["invoked_us"]:
            return f"'returned_us' is {returned}, before 'invoked_us', {given['invoked_us']}"
    held_until = given.get("held_until_us")
    if held_until is not None and held_until < given["returned_us"]:
        return f"'held_until_us' is {held_until}, before 'returned_us', {given['returned_us']}"
    return None


def condition() -> str:
    """SQL over a history's columns, TRUE for what `problem` finds nothing wrong with, else FALSE or NULL."""
    alternatives = []
    for kind, form in FORMS.items():
        terms = [f"op = '{kind}'"]
        terms += [f"{key} IS NOT NULL" for key in form.required]
        terms += [f"{key} IS NULL" for key in COLUMNS if key not in form.keys]
        terms += [
            f"coalesce({key} BETWEEN 0 AND {MAX_INTEGER}, TRUE)"
            for key in form.keys
            if COLUMNS[key] == INTEGER
        ]
        if "count" in form.keys:
            terms.append(f"coalesce(count, 1) BETWEEN {0 if kind == 'left' else 1} AND {MAX_COUNT}")
        if form.outcomes:
            terms.append("outcome IN ({})".format(", ".join(f"'{each}'" for each in form.outcomes)))
            terms.append(f"coalesce(returned_us >= invoked_us, outcome = '{UNKNOWN}')")
        if "held_until_us" in form.keys:
            terms.append("coalesce(held_until_us >= returned_us, TRUE)")
        if kind == "left":
            for key in LEFT_OF:
                terms.append(f"(coalesce(count, 1) = 0) = ({key} IS NULL)")
        alternatives.append("(" + " AND ".join(terms) + ")")
    return " OR ".join(alternatives)


@dataclass(frozen=True, slots=True)
class Run:
    """`count` messages side by side: of one producer with consecutive numbers, at consecutive sequences."""

    sequence: int
    producer: str
    number: int
    redelivered: bool = False
    count: int = 1


def runs(messages: Iterable[Run]) -> Iterator[Run]:
    """The same messages with neighbours joined, in the order given."""
    last: Run | None = None
    for each in messages:
        if last is not None and last.count + each.count <= MAX_COUNT and _follows(last, each):
            last = Run(last.sequence, last.producer, last.number, last.redelivered, last.count + each.count)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _follows(last: Run, each: Run) -> bool:
    return (each.sequence, each.producer, each.number, each.redelivered) == (
        last.sequence + last.count,
        last.producer,
        last.number + last.count,
        last.redelivered,
    )


def now_us() -> int:
    """Microseconds of this machine's monotonic clock: the same for all its processes, until it starts anew."""
    return time.monotonic_ns() // 1_000


class Recorder:
    """Writes a history to a file, which must not exist yet. For one thread; a record is some 5 µs of its time.

    What is not yet in the file is lost with the process: `flush`, or `close` at the end.
    """

    def __init__(self, path: str | Path, *, buffer_records: int = 1_000) -> None:
        self._file = open(path, "x", encoding="utf-8")  # noqa: SIM115
        self._waiting: list[str] = []
        self._room = buffer_records

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def publish(
        self,
        queue: str,
        producer: str,
        number: int,
        *,
        invoked_us: int,
        outcome: str,
        returned_us: int | None = None,
        count: int = 1,
    ) -> None:
        """A producer's messages number, number + 1, ... outcome: confirmed, rejected, unknown."""
        self._put(
            op="publish",
            queue=queue,
            producer=producer,
            number=number,
            count=count,
            invoked_us=invoked_us,
            returned_us=returned_us,
            outcome=outcome,
        )

    def deliver(
        self,
        queue: str,
        consumer: str,
        messages: Iterable[Run],
        *,
        at_us: int,
        held_until_us: int | None = None,
    ) -> None:
        """A consumer got these. consumer: another name for each attachment."""
        for run in runs(messages):
            self._put(
                op="deliver",
                queue=queue,
                consumer=consumer,
                sequence=run.sequence,
                producer=run.producer,
                number=run.number,
                count=run.count,
                returned_us=at_us,
                redelivered=run.redelivered,
                held_until_us=held_until_us,
            )

    def settle(self, queue: str, consumer: str, messages: Iterable[Run], **said: Any) -> None:
        """said: invoked_us, outcome (ok, unknown), returned_us unless it never returned."""
        self._dispose("settle", queue, consumer, messages, **said)

    def return_(self, queue: str, consumer: str, messages: Iterable[Run], **said: Any) -> None:
        self._dispose("return", queue, consumer, messages, **said)

    def discard(self, queue: str, consumer: str, messages: Iterable[Run], **said: Any) -> None:
        self._dispose("discard", queue, consumer, messages, **said)

    def end(self, queue: str, consumer: str, *, at_us: int) -> None:
        """The consumer held what it had until then, for certain; it gave it back by being cancelled."""
        self._put(op="end", queue=queue, consumer=consumer, invoked_us=at_us)

    def left(self, queue: str, messages: Iterable[Run] = ()) -> None:
        """All that is left in the queue at the end, held messages among it. To be said of every queue."""
        found = list(runs(messages))
        if not found:
            self._put(op="left", queue=queue, count=0)
        for run in found:
            self._put(
                op="left",
                queue=queue,
                sequence=run.sequence,
                producer=run.producer,
                number=run.number,
                count=run.count,
            )

    def flush(self) -> None:
        if self._waiting:
            self._file.write("".join(self._waiting))
            self._waiting.clear()
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()

    # ---- inside

    def _dispose(
        self,
        op: str,
        queue: str,
        consumer: str,
        messages: Iterable[Run],
        *,
        invoked_us: int,
        outcome: str,
        returned_us: int | None = None,
    ) -> None:
        for first, count in _sequences(messages):
            self._put(
                op=op,
                queue=queue,
                consumer=consumer,
                sequence=first,
                count=count,
                invoked_us=invoked_us,
                returned_us=returned_us,
                outcome=outcome,
            )

    def _put(self, **record: Any) -> None:
        """Raises HistoryError for what no history may hold."""
        kept = {key: value for key, value in record.items() if value is not None and value is not False}
        if kept.get("count") == 1:
            del kept["count"]
        wrong = problem(kept)
        if wrong is not None:
            raise HistoryError(f"this cannot be recorded: {wrong}")
        self._waiting.append(json.dumps(kept, separators=(",", ":")) + "\n")
        if len(self._waiting) >= self._room:
            self.flush()


def _sequences(messages: Iterable[Run]) -> Iterator[tuple[int, int]]:
    """(first, count) of consecutive sequences, whosever they are."""
    first = count = 0
    for each in messages:
        if count and first + count == each.sequence and count + each.count <= MAX_COUNT:
            count += each.count
            continue
        if count:
            yield first, count
        first, count = each.sequence, each.count
    if count:
        yield first, count
