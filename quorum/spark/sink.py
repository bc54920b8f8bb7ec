"""The sink: tasks stage rows, and the driver publishes them together when all tasks are done.

A staged part is replicated and invisible. `commit` names the parts of the tasks that Spark has chosen; one entry in
each target queue's log makes them messages. The key of a batch is (producer, number): a number that was published
before is not published again, even if its rows differ this time. A batch is therefore in a queue once and whole, in
spite of retries, speculation, and a driver that dies between publishing and Spark's own commit log.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quorum.client.bulk.records import StagedPart
from quorum.client.errors import NotFound, PermissionRefused, QuorumError, TlsError, UnavailableError
from quorum.spark.errors import QuorumSparkError
from quorum.spark.options import SinkOptions
from quorum.spark.rows import ToService
from quorum.spark.schema import check_sink
from quorum.spark.service import is_reason, service

PART_BYTES = 32 << 20
"""Bytes that a task with several target queues collects for one queue before it writes a part."""

log = logging.getLogger("quorum.spark")

UNNAMED = "spark-write-"
"""Begin of the producers of batch writes without txnAppId."""

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class Part:
    queue: str
    part: StagedPart


@dataclass
class Staged(WriterCommitMessage):
    """The parts that a task has staged, and their key."""

    producer: str
    batch: int
    parts: list[Part] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Queues in which this batch was published before."""


class _Stager:
    """Stages the rows of one task."""

    def __init__(self, options: SinkOptions, producer: str, batch: int) -> None:
        self._at = service(options.url)
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, int] = {}
        self._begun: list[tuple[str, bytes]] = []
        self.done = Staged(producer, batch)

    def add(self, queue: str, batch: pa.RecordBatch) -> None:
        self._waiting.setdefault(queue, []).append(batch)
        self._sizes[queue] = self._sizes.get(queue, 0) + batch.nbytes
        if self._sizes[queue] >= PART_BYTES:
            self._write_waiting(queue)

    def finish(self) -> Staged:
        for queue in list(self._waiting):
            self._write_waiting(queue)
        return self.done

    def _write_waiting(self, queue: str) -> None:
        del self._sizes[queue]
        self.write(queue, self._waiting.pop(queue))

    def write(self, queue: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Write all these rows as one part."""
        if queue in self.done.refused:
            return
        name = uuid.uuid4().bytes
        self._begun.append((queue, name))
        try:
            part = self._at.stage(queue, self.done.producer, self.done.batch, batches, part=name)
        except QuorumError as error:
            if not is_reason(error, "published"):
                raise
            self.done.refused.append(queue)
        else:
            if part.rows:
                self.done.parts.append(Part(queue, part))

    def drop(self) -> None:
        """Drop the parts of a failed task. The service drops those that cannot be dropped now after some hours."""
        for queue, name in self._begun:
            discard = partial(self._at.discard, queue, self.done.producer, self.done.batch, [name])
            if not _discarded(queue, discard, "the part of a failed task stays staged for a while"):
                return


def _discarded(queue: str, discard: Callable[[], object], otherwise: str) -> bool:
    """Call `discard`. If the service refuses it, log what follows (`otherwise`). False if the service cannot be
    reached: each of the other queues would wait for the same time."""
    try:
        discard()
    except (NotFound, PermissionRefused):
        return True  # the queue does not exist, or the user may not write to it, so nothing is staged for it
    except TlsError:
        return False  # no member was reached, so nothing is staged; the other queues' calls would end in the same way
    except QuorumError as error:
        log.warning("queue %r: %s: %s", queue, otherwise, error)
        return not isinstance(error, UnavailableError)
    return True


def _stage(
    options: SinkOptions, shape: ToService, producer: str, batch: int, rows: Iterator[pa.RecordBatch]
) -> Staged:
    stager = _Stager(options, producer, batch)
    try:
        if shape.target:
            stager.write(shape.target, (part for each in rows for part in shape(each).values()))
        else:
            for each in rows:
                for queue, part in shape(each).items():
                    stager.add(queue, part)
        return stager.finish()
    except BaseException:
        stager.drop()
        raise


def _refuse_earlier(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """QuorumSparkError if a queue has this batch of a stream and also a later one. Spark repeats only its last batch,
    so the rows of this one may be others than those that were published under its number."""
    earlier = {
        (queue, each.producer, each.batch)
        for each in messages
        if isinstance(each, Staged)
        for queue in each.refused
    }
    for queue, producer, batch in sorted(earlier):
        if _is_published(options, queue, producer, batch + 1):
            raise QuorumSparkError(
                f"queue {queue!r} has batch {batch} of {producer!r}, and a later one: the checkpoint begins again or "
                "was restored, or two queries have this txnAppId. Nothing of the batch was published, because its rows "
                "may be others now; give the query another txnAppId if they are to be published"
            )


def _is_published(options: SinkOptions, queue: str, producer: str, batch: int) -> bool:
    """Whether this batch or a later one was published. Publishing a part that does not exist is refused otherwise."""
    try:
        return (
            service(options.url)
            .publish(queue, producer, batch, [StagedPart(uuid.uuid4().bytes, 1)])
            .is_duplicate
        )
    except QuorumError as error:
        if not is_reason(error, "missing_part"):
            raise
        return False


def _publish(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    """Publish one entry for each queue, in order of name. Parts are published in the order of the tasks."""
    staged = [each for each in messages if isinstance(each, Staged)]
    if not staged:
        return
    keys = {(each.producer, each.batch) for each in staged}
    if len(keys) > 1 or staged[0].batch != batch:
        raise QuorumSparkError(
            f"tasks of one batch staged under several names: {sorted(keys)}, batch {batch}"
        )
    ((producer, number),) = keys
    # a queue that refused its parts has the batch already
    queues = {part.queue for each in staged for part in each.parts} - {
        queue for each in staged for queue in each.refused
    }
    for queue in sorted(queues):
        parts = [part.part for each in staged for part in each.parts if part.queue == queue]
        try:
            service(options.url).publish(queue, producer, number, parts)
        except QuorumError as error:
            if not is_reason(error, "missing_part"):
                raise
            raise QuorumSparkError(
                f"queue {queue!r} does not have the staged rows any more: a part is kept for six hours after its "
                f"task's last rows, and this batch took longer, or the queue was declared again ({error})"
            ) from error


def _discard(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop the staged parts of all tasks. Parts that were published already stay published. The service drops those
    that cannot be dropped now after some hours."""
    for each in messages:
        if isinstance(each, Staged):
            for queue in sorted({part.queue for part in each.parts}):
                parts = [part.part.part for part in each.parts if part.queue == queue]
                discard = partial(service(options.url).discard, queue, each.producer, each.batch, parts)
                if not _discarded(queue, discard, "the parts of a failed batch stay staged for a while"):
                    return


def _give_back(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what is still staged of a producer that is never used again, and give its places in the queues back. If that
    fails, the queue remembers the producer for a day."""
    used = {
        (part.queue, each.producer, each.batch)
        for each in messages
        if isinstance(each, Staged)
        for part in each.parts
    }
    for queue, producer, batch in sorted(used):
        discard = partial(service(options.url).discard, queue, producer, batch, forget=True)
        if not _discarded(queue, discard, "a write without txnAppId keeps its place for a while"):
            return


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame's rows as messages: all or none, and once if txnAppId and txnVersion name the write."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._shape = ToService(schema, check_sink(schema, options), options.queue)
        self._is_named = bool(options.txn_app_id)
        # made once in one process and pickled into all tasks, so that they stage under the same name
        self._producer = options.txn_app_id or f"{UNNAMED}{uuid.uuid4()}"
        self._batch = options.txn_version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _stage(self._options, self._shape, self._producer, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _publish(self._options, messages, self._batch)
        if not self._is_named:
            _give_back(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._is_named:
            _discard(self._options, messages)
        else:
            _give_back(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream's batches as messages, each once: the producer is txnAppId or the query, the number is
    Spark's."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._shape = ToService(schema, check_sink(schema, options), options.queue)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        number = context.getLocalProperty(BATCH_ID) if context is not None else None
        if not query or number is None:
            raise QuorumSparkError("Spark does not tell the task its query and batch; the sink needs both")
        producer = self._options.txn_app_id or f"spark-query-{query}"
        return _stage(self._options, self._shape, producer, int(number), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _refuse_earlier(self._options, messages)
        _publish(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _discard(self._options, messages)
