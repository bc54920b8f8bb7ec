"""The recorder of a history: a file of JSON lines that is written while clients run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from quorum.histories.records import MAX_COUNT, HistoryError, problem


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


class Recorder:
    """Writes a history to a new file. For one thread; a record takes some 5 µs.

    Buffered records are lost if the process dies: call `flush`, or `close` at the end.
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
        """Record a publish of a producer's messages number, number + 1, ... outcome: confirmed, rejected, unknown."""
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
        """Record a delivery to a consumer. consumer: a new name for each attachment."""
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
        """Record a settlement. said: invoked_us, outcome (ok, unknown), and returned_us if the call returned."""
        self._dispose("settle", queue, consumer, messages, **said)

    def return_(self, queue: str, consumer: str, messages: Iterable[Run], **said: Any) -> None:
        self._dispose("return", queue, consumer, messages, **said)

    def discard(self, queue: str, consumer: str, messages: Iterable[Run], **said: Any) -> None:
        self._dispose("discard", queue, consumer, messages, **said)

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
        """Write a record. HistoryError if it is not valid."""
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
