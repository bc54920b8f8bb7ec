"""A stream that takes messages from a queue: `mode=consume`.

The stream is a *subscription* of the queue (quorum/v1/bulk.proto). The queue's log reserves messages for it, and an
offset is the number of a reservation. Spark may read a reservation any number of times; it is settled when Spark has
committed its batch. The reader depends on Spark's behaviour as follows:

  - Spark builds readers in several processes. Only the one that is asked for offsets opens the subscription and keeps
    it alive; `read` runs on pickled copies in the workers, which need neither.
  - Spark asks for offsets after `start` only when the batch that ends there is in its commit log. That batch is
    therefore settled at once. `commit`, which Spark calls one batch later, usually has nothing to do.
  - Spark asks for the initial offset again when it restarts the first batch. The subscription's settled offset is then
    the same, because nothing was settled since.
  - A driver that dies between a Reserve and Spark's offset log asks for the reservation after the same offset again,
    and gets the same one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorum.client.errors import NotFound, QuorumError, RefusedError
from quorum.spark.errors import DataLoss
from quorum.spark.lag import Figures, Report, consumed_figures
from quorum.spark.options import SourceOptions
from quorum.spark.reading.partitions import default_partitions, preferred_endpoint, split
from quorum.spark.rows import ToSpark, wanted_columns
from quorum.spark.schema import fields_of
from quorum.spark.service import is_reason, kinds, service

if TYPE_CHECKING:
    import pyarrow as pa

    from quorum.client.bulk.client import BulkClient
    from quorum.client.bulk.records import ReservationInfo

MAX_RESERVED = 65_536
"""Messages of one reservation."""
WAIT_MS = 200
"""Wait of an idle stream between requests; Spark itself would ask up to thirty times a second."""
MOST_SILENCE_S = 30.0
"""Longest interval between calls of KeepAlive; the interval is also at most a third of the timeout."""

log = logging.getLogger("quorum.spark")

Offset = dict[str, int]
"""Offset by queue, always in order of name, because Spark compares offsets as text."""


@dataclass
class Piece:
    """Messages of a reservation, by their positions in it."""

    offset: int
    first: int
    count: int
    index: int


@dataclass
class Slice(InputPartition):
    """The pieces that one task reads."""

    queue: str
    pieces: tuple[Piece, ...]
    prefer: str

    def __hash__(self) -> int:
        return hash((self.queue, self.pieces[0].offset, self.pieces[0].first))


@dataclass
class _Open:
    """A queue's subscription as this process has opened it."""

    generation: int
    settled: int
    last: int
    """The newest reservation at the opening. Reservations up to it exist already, with their own sizes."""
    outstanding: int
    index: int
    """Index of the newest log entry that this process knows of; a member with this entry sees all of this."""
    last_batch_s: float
    """When messages of the queue were last reserved for a batch; at first, when it was opened."""
    done: int = 0
    """This process knows that the offsets up to here were settled, and not released."""
    is_fenced: bool = False

    def seen(self, index: int) -> None:
        self.index = max(self.index, index)


class ConsumeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._queues: dict[str, _Open] = {}
        self._left: dict[str, int] | None = None
        """Number of messages that a query with the trigger AvailableNow still takes, by queue."""
        self._keeper: _Keeper | None = None
        self._planned: Offset = {}
        self._report = Report(self._figures)

    def __getstate__(self) -> dict[str, Any]:
        """The state for a worker, without subscriptions and threads."""
        return {"_options": self._options, "_schema": self._schema}

    @property
    def _service(self) -> BulkClient:
        return service(self._options.url)

    def _open(self, queue: str) -> _Open:
        """Open the subscription once; this fences its earlier user."""
        if queue not in self._queues:
            options = self._options
            state = self._service.open_subscription(
                queue,
                options.subscription,
                selector=options.selector,
                start=str(options.starting),
                timeout_ms=options.subscription_timeout_ms,
                on_expiry=options.on_expiry,
            )
            self._queues[queue] = _Open(
                state.generation,
                state.settled,
                state.last,
                state.outstanding,
                state.index,
                time.monotonic(),
            )
            if self._keeper is None:
                self._keeper = _Keeper(self._service, options, self._queues)
        return self._queues[queue]

    # ---- offsets

    def initialOffset(self) -> dict[str, int]:
        return {queue: self._open(queue).settled for queue in self._options.queues}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that are ready or outstanding now; it takes hardly more."""
        self._left = {}
        for queue in self._options.queues:
            opened = self._open(queue)
            ready = self._service.queue_info(queue, index=opened.index).ready
            self._left[queue] = opened.outstanding + ready

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        options = self._options
        at = {queue: start.get(queue, self._open(queue).settled) for queue in options.queues}
        for queue, offset in start.items():
            if queue in at:
                self._settle(queue, offset)
            else:
                self._settle_left(queue, offset)
        # a limit in the options is the default limit, unless the trigger overrides it (ReadAllAvailable)
        is_all = isinstance(limit, ReadAllAvailable)
        budget = _Budget(
            limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            None if is_all else limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes,
        )
        self._take(at, budget)
        self._planned = at
        return at

    def reportLatestOffset(self) -> dict[str, Any]:
        """The figures of lag.py; Spark only shows them."""
        return self._report.latest(self._planned)

    def _figures(self, queue: str, offset: int) -> Figures:
        return consumed_figures(self._service, queue, offset, self._open(queue).index)

    def _take(self, at: Offset, budget: _Budget) -> None:
        """Reserve messages within the budget and update `at`. Each queue gets a fair share first, then the rest."""
        taken = 0
        for turn in range(2 if len(at) > 1 and budget.is_limited else 1):
            for number, queue in enumerate(at):
                share = budget.share(len(at) - number if not turn and budget.is_limited else 1)
                if self._left is not None:
                    share.keep_to(self._left[queue])
                # wait only if no queue has messages, and only at the last queue
                may_wait = number == len(at) - 1 and not taken and self._left is None
                count, size = self._reserve(queue, at, share, WAIT_MS if may_wait else 0)
                budget.take(count, size)
                if self._left is not None:
                    self._left[queue] = max(0, self._left[queue] - count)
                taken += count

    def _reserve(self, queue: str, at: Offset, budget: _Budget, wait_ms: int) -> tuple[int, int]:
        """Make reservations after at[queue] and move it to the last one. Returns their messages and bytes."""
        opened = self._open(queue)
        messages = size = 0
        while not budget.is_used_up(messages, size):
            wanted = (
                MAX_RESERVED if budget.messages is None else min(budget.messages - messages, MAX_RESERVED)
            )
            try:
                made = self._service.reserve(
                    queue,
                    self._options.subscription,
                    opened.generation,
                    at[queue],
                    max_messages=wanted,
                    max_bytes=0 if budget.size_bytes is None else budget.size_bytes - size,
                    min_messages=0 if messages else min(self._least(opened), wanted),
                    wait_ms=0 if messages else wait_ms,
                )
            except QuorumError as error:
                if messages and is_reason(error, "limit"):
                    break  # the limit of outstanding messages is reached; they are a batch
                self._pass_over(queue, at, error)
                continue
            opened.seen(made.index)
            if made.offset == at[queue]:
                if made.is_unfinished and self._left is not None:
                    continue  # otherwise the query would end before the scan reaches its messages
                break
            if messages and budget.messages is not None and messages + made.count > budget.messages:
                break  # it was reserved with another limit; the next batch begins with it
            at[queue] = made.offset
            messages += made.count
            size += made.size_bytes
            if made.count < wanted and made.offset > opened.last:
                break  # no more messages now
        if messages:
            opened.last_batch_s = time.monotonic()
        return messages, size

    def _pass_over(self, queue: str, at: Offset, error: QuorumError) -> None:
        """With failOnDataLoss=false, move at[queue] after reservations that are lost; otherwise raise the error."""
        opened, explained = self._open(queue), self._explained(queue, at[queue], error)
        if not is_reason(error, "settled", "released") or self._options.fail_on_data_loss:
            raise explained from error
        state = self._service.keep_alive(queue, self._options.subscription, opened.generation)
        if state.settled == at[queue] > opened.done:
            self._settle(queue, at[queue])  # all reserved messages were released; this acknowledges it
            return
        if state.settled <= at[queue]:
            raise explained from error
        lost_data(self._options, str(explained))
        at[queue] = opened.settled = state.settled

    def _least(self, opened: _Open) -> int:
        """Number of messages that have to be ready: minMessagesPerTrigger until maxTriggerDelay has passed since the
        queue's last batch. Other queues do not count: one that is always busy would keep this one waiting for ever."""
        options = self._options
        is_patient = time.monotonic() - opened.last_batch_s < options.max_delay_ms / 1000
        return options.min_messages if is_patient and self._left is None else 0

    def _settle(self, queue: str, offset: int) -> None:
        opened = self._open(queue)
        if offset <= opened.done:
            return
        try:
            state = self._service.settle(queue, self._options.subscription, opened.generation, offset)
            opened.settled = state.settled
            opened.seen(state.index)
        except QuorumError as error:
            explained = self._explained(queue, offset, error)
            if not is_reason(error, "released") or self._options.fail_on_data_loss:
                raise explained from error
            lost_data(self._options, str(explained))
            opened.settled = max(offset, opened.settled)
        opened.done = offset

    def _settle_left(self, queue: str, offset: int) -> None:
        """Settle the query's messages of a queue that it does not read any more."""
        try:
            self._settle(queue, offset)
        except NotFound:
            return  # the queue was deleted with its messages
        del self._queues[queue]

    def commit(self, end: dict[str, int]) -> None:
        """Settle the batch, which latestOffset has usually done already."""
        for queue, offset in end.items():
            if queue in self._options.queues:
                self._settle(queue, offset)

    def stop(self) -> None:
        """Stop without releasing: messages stay reserved, because the query may be restarted."""
        if self._keeper is not None:
            self._keeper.stop()

    # ---- reading

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Partitions of all queues of the batch, even if the query was restarted with other queues."""
        found: list[InputPartition] = []
        for queue in sorted(end):
            try:
                found.extend(self._slices(queue, start.get(queue), end[queue], len(found)))
            except NotFound as error:
                if queue in self._options.queues:
                    raise
                lost_data(self._options, str(error))
        return found

    def _slices(self, queue: str, low: int | None, high: int, turn: int) -> Iterator[Slice]:
        opened = self._open(queue)
        after = opened.settled if low is None else low
        if high <= after:
            return
        # with an index, because a member that is behind would answer that a reservation does not exist
        answer = self._service.reservations(
            queue, self._options.subscription, after=after, to=high, index=opened.index
        )
        there = {each.offset: each for each in answer.reservations}
        missing = [offset for offset in range(after + 1, high + 1) if offset not in there]
        if missing and answer.subscription.generation != opened.generation:
            # not lost: the query that has opened the subscription since has them or has settled them
            raise self._explained(
                queue, high, RefusedError("the subscription was opened again", reason="WRONG_GENERATION")
            )
        if missing:
            lost_data(
                self._options,
                f"queue {queue!r}, subscription {self._options.subscription!r}: the reservations "
                f"{missing[0]}..{missing[-1]} that the checkpoint asks for were settled or released; all up to "
                f"{answer.subscription.settled} were",
            )
        total = sum(each.count for each in there.values())
        parts = self._options.min_partitions or default_partitions(total)
        for number, (first, last) in enumerate(split(total, parts)):
            pieces = _pieces(list(there.values()), first, last, answer.subscription.index)
            yield Slice(queue, pieces, preferred_endpoint(answer.endpoints, turn + number))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        options = self._options
        shape = ToSpark(self._schema, partition.queue)
        names, fields = wanted_columns(self._schema), kinds(fields_of(self._schema))
        for piece in partition.pieces:
            batches = self._service.read_reserved(
                partition.queue,
                options.subscription,
                piece.offset,
                first=piece.first,
                count=piece.count,
                columns=names,
                fields=fields,
                index=piece.index,
                prefer=partition.prefer,
            )
            try:
                for batch in batches:
                    yield shape(batch)
            except QuorumError as error:
                if not is_reason(error, "settled", "released", "not_given"):
                    raise
                explained = self._explained(partition.queue, piece.offset, error)
                if not is_reason(error, "released"):
                    raise explained from error  # another query processes this batch
                lost_data(options, str(explained))

    def _explained(self, queue: str, offset: int, error: QuorumError) -> Exception:
        where = f"queue {queue!r}, subscription {self._options.subscription!r}, offset {offset}"
        if is_reason(error, "wrong_generation"):
            return type(error)(
                f"{where}: another query has opened this subscription since, and has its messages now; "
                f"give every query its own subscription ({error})",
                reason=error.reason,
            )
        if is_reason(error, "settled", "released", "not_given"):
            why = {
                "settled": "these messages were settled: the checkpoint is older than the subscription, or the query "
                "tracks its progress asynchronously, which this source does not support",
                "released": "these messages were given back to the queue, because the subscription was silent for "
                "longer than subscriptionTimeout or was released",
                "not_given": "there was never such an offset: the queue or its subscription was deleted and made "
                "again, or the checkpoint belongs to another one; start the query with another checkpoint",
            }[error.reason.lower()]
            return DataLoss(f"{where}: {why} ({error})")
        return error


@dataclass
class _Budget:
    """Messages and bytes that a batch may take; None: no limit."""

    messages: int | None
    size_bytes: int | None

    @property
    def is_limited(self) -> bool:
        return self.messages is not None or self.size_bytes is not None

    def share(self, parts: int) -> _Budget:
        return _Budget(
            None if self.messages is None else -(-self.messages // parts),
            None if self.size_bytes is None else -(-self.size_bytes // parts),
        )

    def keep_to(self, messages: int) -> None:
        self.messages = messages if self.messages is None else min(messages, self.messages)

    def take(self, messages: int, size_bytes: int) -> None:
        if self.messages is not None:
            self.messages = max(0, self.messages - messages)
        if self.size_bytes is not None:
            self.size_bytes = max(0, self.size_bytes - size_bytes)

    def is_used_up(self, messages: int, size_bytes: int) -> bool:
        return (self.messages is not None and messages >= self.messages) or (
            self.size_bytes is not None and size_bytes >= self.size_bytes
        )


def _pieces(reservations: list[ReservationInfo], first: int, last: int, index: int) -> tuple[Piece, ...]:
    """The pieces with the messages first..last (exclusive), counted over all the reservations. index: a member that has
    applied it has all of them and their delivery counts."""
    found = []
    begin = 0
    for each in sorted(reservations, key=lambda one: one.offset):
        low, high = max(first, begin), min(last, begin + each.count)
        if low < high:
            found.append(Piece(each.offset, low - begin, high - low, index))
        begin += each.count
    return tuple(found)


def lost_data(options: SourceOptions, text: str) -> None:
    """Raise DataLoss; with failOnDataLoss=false only log a warning."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{text}. Set failOnDataLoss=false to continue without them")
    log.warning("%s; continuing without them", text)


class _Keeper:
    """A thread that keeps the subscription alive during long batches, because Spark does not call the reader then."""

    def __init__(self, at: BulkClient, options: SourceOptions, queues: dict[str, _Open]) -> None:
        self._at = at
        self._subscription = options.subscription
        self._queues = queues
        self._pause_s = min(MOST_SILENCE_S, options.subscription_timeout_ms / 3000)
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="quorum-keep-alive", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._pause_s):
            for queue, opened in list(self._queues.items()):
                if not opened.is_fenced:
                    self._keep(queue, opened)

    def _keep(self, queue: str, opened: _Open) -> None:
        try:
            self._at.keep_alive(queue, self._subscription, opened.generation)
        except QuorumError as error:
            # fenced, or the queue was deleted: the next call for an offset reports that. Other errors may be temporary
            opened.is_fenced = isinstance(error, NotFound) or is_reason(error, "wrong_generation")
            if not opened.is_fenced:
                log.warning(
                    "queue %r, subscription %r is not kept alive: %s", queue, self._subscription, error
                )
