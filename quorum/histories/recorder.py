"""The recorders of a history: one keeps the records in memory, one writes a file of JSON lines while clients run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from quorum.histories.records import MAX_COUNT, HistoryError, Record, problem


@dataclass(frozen=True, slots=True)
class Run:
    """`count` messages of one producer with consecutive numbers at consecutive sequences."""

    sequence: int
    producer: str
    number: int
    redelivered: bool = False
    count: int = 1


def runs(messages: Iterable[Run]) -> Iterator[Run]:
    """The same messages in the same order, with adjacent runs joined."""
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
    """Microseconds of this machine's monotonic clock, which all its processes share until it restarts."""
    return time.monotonic_ns() // 1_000


class MemoryRecorder:
    """A history in memory: `records` has what was recorded, in that order.

    Each method returns the new records. The outcome of one may become known later: `conclude`.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []

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
    ) -> Record:
        """Record a publish of a producer's messages number, number + 1, ... outcome: confirmed, rejected, unknown."""
        return self._put(
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
    ) -> list[Record]:
        """Record a delivery to a consumer. consumer: a new name for each attachment."""
        return [
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
            for run in runs(messages)
        ]

    def settle(self, queue: str, consumer: str, messages: Iterable[Run], **said: Any) -> list[Record]:
        """Record a settlement. said: invoked_us, outcome (ok, unknown), and returned_us if the call returned."""
        return self._dispose("settle", queue, consumer, messages, **said)

    def return_(self, queue: str, consumer: str, messages: Iterable[Run], **said: Any) -> list[Record]:
        return self._dispose("return", queue, consumer, messages, **said)

    def discard(self, queue: str, consumer: str, messages: Iterable[Run], **said: Any) -> list[Record]:
        return self._dispose("discard", queue, consumer, messages, **said)

    def end(self, queue: str, consumer: str, *, at_us: int) -> None:
        """Record the end of a consumer. It held its messages for certain until then; its cancelling returned them."""
        self._put(op="end", queue=queue, consumer=consumer, invoked_us=at_us)

    def left(self, queue: str, messages: Iterable[Run] = ()) -> None:
        """Record all messages that are left in the queue at the end, held ones included. Every queue needs this."""
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

    def conclude(self, record: Record, outcome: str, returned_us: int) -> None:
        """Write the outcome of what was asked into a record in memory that said `unknown`."""
        record["outcome"], record["returned_us"] = outcome, returned_us
        _check(record)

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
    ) -> list[Record]:
        return [
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
            for first, count in _sequences(messages)
        ]

    def _put(self, **record: Any) -> Record:
        """Add a record. HistoryError if it is not valid."""
        kept = {key: value for key, value in record.items() if value is not None and value is not False}
        if kept.get("count") == 1:
            del kept["count"]
        _check(kept)
        self._keep(kept)
        return kept

    def _keep(self, record: Record) -> None:
        self.records.append(record)


def _check(record: Record) -> None:
    wrong = problem(record)
    if wrong is not None:
        raise HistoryError(f"this cannot be recorded: {wrong}")


class Recorder(MemoryRecorder):
    """Writes a history to a file, which must not exist yet. For one thread; a record is some 5 µs of its time.

    What is not yet in the file is lost with the process: `flush`, or `close` at the end. Nothing stays in memory.
    """

    def __init__(self, path: str | Path, *, buffer_records: int = 1_000) -> None:
        super().__init__()
        self._file = open(path, "x", encoding="utf-8")  # noqa: SIM115
        self._room = buffer_records

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def flush(self) -> None:
        lines = [json.dumps(each, separators=(",", ":")) + "\n" for each in self.records]
        self.records.clear()
        self._file.write("".join(lines))
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _keep(self, record: Record) -> None:
        super()._keep(record)
        if len(self.records) >= self._room:
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
