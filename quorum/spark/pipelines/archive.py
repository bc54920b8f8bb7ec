"""Archives queues into Parquet, with their messages or beside their consumers: `quorum pipeline archive`.

Each batch of the stream has its own directories, which are replaced if the batch is repeated:

    DIRECTORY/queue=orders/date=2026-11-22/batch=17/part-....parquet
    DIRECTORY/_checkpoint/12/      checkpoint of the stream that began with batch 12; it belongs to the directory
    DIRECTORY/_fields              the fields of all files, with their types; a field has one type in all files

A message is therefore in the archive once, after any failure, and leaves its queue only when it is in the archive.
Every program that reads Parquet with Hive's directory names can read it; `properties` are JSON texts. On a cluster
DIRECTORY is on a file system that the driver and all workers share; a batch that is not complete there fails.

A stream that has reached its end is finished: its subscription is deleted, and the next stream begins with a new
checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from quorum.spark.errors import OptionError
from quorum.spark.pipelines.output_check import check_written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from quorum.spark.schema import Field

CHECKPOINT = "_checkpoint"
FIELDS_FILE = "_fields"
DEFAULT_SUBSCRIPTION = "archive"
DEFAULT_BATCH = 100_000
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Spark's directory name for NULL."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The queues to archive, the directory, and the options."""

    url: str
    queues: tuple[str, ...]
    directory: Path
    subscription: str = DEFAULT_SUBSCRIPTION
    selector: str = ""
    fields: str = ""
    """As the option filterFields; empty: the archive's fields, and others that messages have when it starts. Values of
    another type than the field's stay in `properties`."""
    takes: bool = True
    """Whether archived messages leave their queues; if not, they are read beside the consumers (mode=tail)."""
    batch: int = DEFAULT_BATCH
    on_batch: Callable[[int], None] | None = None
    """Called with the number of messages of each archived batch."""
    passes_lost: bool = False
    """Whether to continue after a batch that cannot be repeated because its messages were returned to the queue."""

    def check(self) -> None:
        """Check all that needs no running Spark. OptionError; SetupError if PySpark is not installed."""
        from quorum.spark.session import require_spark

        require_spark()
        from quorum.spark.options import source_options
        from quorum.spark.schema import parse_fields
        from quorum.spark.selector_text import check

        for queue in self.queues:
            if "," in queue or queue != queue.strip() or queue == NO_VALUE:
                raise OptionError(
                    f"a queue named {queue!r} cannot be archived: no commas, no blanks at the ends, and not {NO_VALUE}"
                )
        source_options(self._options(), "stream")
        check(self.selector)
        if self.fields:
            parse_fields(self.fields)

    def start(self, spark: SparkSession, interval_s: float | None) -> StreamingQuery:
        """Start or resume archiving. interval_s: seconds between batches; None: end when the present messages are
        archived.

        OptionError if the directory holds an archive without its checkpoint, and as `check`.
        """
        self.check()
        if not self._checkpoints() and self.directory.is_dir() and any(self.directory.glob("queue=*")):
            raise OptionError(
                f"{self.directory} holds an archive without {CHECKPOINT}: batches would be numbered from 0 again and "
                "replace the present ones; name another directory, or restore the checkpoint"
            )
        first_batch = max(self._checkpoints(), default=0)
        checkpoint = self._checkpoint(first_batch)
        checkpoint.mkdir(parents=True, exist_ok=True)
        reader = spark.readStream.format("quorum").schema(self._schema())
        for name, value in self._options().items():
            reader = reader.option(name, value)

        def write(rows: DataFrame, number: int) -> None:
            self._write(rows, first_batch + number)

        writer = reader.load().writeStream.foreachBatch(write).queryName(f"archive {', '.join(self.queues)}")
        writer = writer.option("checkpointLocation", str(checkpoint))
        if interval_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(1, round(interval_s * 1000))} milliseconds").start()

    def finish(self) -> None:
        """Delete the subscriptions after a stream that ended by itself (interval_s None). A stream beside the consumers
        has none; its checkpoint is kept, because it records what was read."""
        if not self.takes:
            return
        from quorum.spark.service import service

        bulk = service(self.url)
        # opened, so that no other query uses it meanwhile and takes messages
        opened = [
            bulk.open_subscription(queue, self.subscription, selector=self.selector) for queue in self.queues
        ]
        if any(state.outstanding for state in opened):
            return
        # before the subscription is deleted: a stream with the old checkpoint would ask for its offsets
        first_batch = max(self._checkpoints())
        self._checkpoint(first_batch + _planned(self._checkpoint(first_batch))).mkdir(exist_ok=True)
        for queue in self.queues:
            bulk.delete_subscription(queue, self.subscription)
        for old in self._checkpoints()[:-1]:
            shutil.rmtree(self._checkpoint(old))

    def _checkpoint(self, first_batch: int) -> Path:
        return self.directory / CHECKPOINT / str(first_batch)

    def _checkpoints(self) -> list[int]:
        """First batch numbers of the checkpoints, ascending. All but the last are finished."""
        return sorted(
            int(each.name) for each in (self.directory / CHECKPOINT).glob("*") if each.name.isdigit()
        )

    def _options(self) -> dict[str, str]:
        options = {"url": self.url, "queue": ",".join(self.queues), "maxMessagesPerTrigger": str(self.batch)}
        if self.selector:
            options["selector"] = self.selector
        if not self.takes:
            return options | {"mode": "tail"}
        return options | {
            "subscription": self.subscription,
            "failOnDataLoss": str(not self.passes_lost).lower(),
        }

    def _schema(self) -> StructType:
        from pyspark.sql.types import StringType, StructField, StructType

        from quorum.spark.schema import (
            FIELD_TYPES,
            MAX_FIELDS,
            Field,
            name_of,
            parse_fields,
            seen_fields,
            source_schema,
        )
        from quorum.spark.source import seen

        known = self._known_fields()
        if self.fields:
            fields = parse_fields(self.fields)
            for each in fields:
                if not _goes_with(known, each):
                    had = ", ".join(f"{name} {type_}" for name, type_ in known.items())
                    raise OptionError(
                        f"{self.directory} has the fields {had}; {each.name} {name_of(each.type)} differs"
                    )
        else:
            found = seen_fields(seen(self.url, each) for each in self.queues)
            more = tuple(each for each in found if each.name not in known and _goes_with(known, each))
            fields = (*(Field(name, FIELD_TYPES[type_]) for name, type_ in known.items()), *more)[:MAX_FIELDS]
        self._note_fields(known | {each.name: name_of(each.type) for each in fields})
        schema = source_schema(fields, include_body=True)
        # JSON texts, because few programs besides Spark read a VARIANT from Parquet yet
        return StructType(
            [
                StructField(each.name, StringType()) if each.name == "properties" else each
                for each in schema.fields
            ]
        )

    def _known_fields(self) -> dict[str, str]:
        """The fields of the archive's files: type by name."""
        path = self.directory / FIELDS_FILE
        if not path.exists():
            return {}
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise OptionError(f"{path} cannot be read: {error}") from error
        return dict(known)

    def _note_fields(self, known: dict[str, str]) -> None:
        path = self.directory / FIELDS_FILE
        written = path.with_name(f"{FIELDS_FILE}.new")
        written.write_text(json.dumps(known), encoding="utf-8")
        written.replace(path)

    def _write(self, rows: DataFrame, number: int) -> None:
        """Write one batch and replace everything that an earlier attempt wrote, also in other directories.

        QuorumSparkError if the archive then lacks a part of it: the batch fails, and its messages stay reserved.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        of_batch = f"queue=*/date=*/batch={number}"
        earlier = {each: _names_in(each) for each in self.directory.glob(of_batch)}
        written = Observation()
        (
            rows.observe(written, F.count(F.lit(1)).alias("rows"))
            .withColumn("date", F.to_date("enqueued"))
            .withColumn("batch", F.lit(number))
            .write.partitionBy("queue", "date", "batch")
            .mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .parquet(str(self.directory))
        )
        # only after reading, because a paused query that another one has replaced fails to read and stops before this
        for each, names in sorted(earlier.items()):
            if _names_in(each) == names:
                shutil.rmtree(each)
        check_written(self.directory, self.directory.glob(of_batch), written.get["rows"])
        if self.on_batch is not None:
            self.on_batch(written.get["rows"])


def _names_in(directory: Path) -> set[str]:
    """Names of the directory's files; each write uses new names."""
    return {each.name for each in directory.iterdir()}


def _goes_with(known: Mapping[str, str], field: Field) -> bool:
    """Whether files with this field can be read together with the others. Spark ignores the case of names."""
    from quorum.spark.schema import name_of

    same = [name for name in known if name.lower() == field.name.lower()]
    return not same or (same == [field.name] and known[field.name] == name_of(field.type))


def _planned(checkpoint: Path) -> int:
    """Number of batches that a stream with this checkpoint has begun, by its newest offset file."""
    numbers = [int(each.name) for each in (checkpoint / "offsets").glob("*") if each.name.isdigit()]
    return max(numbers) + 1 if numbers else 0


def read_archive(spark: SparkSession, directory: Path, queues: Sequence[str] = ()) -> DataFrame:
    """The archived messages of these queues (default: all), with the columns date and batch. Raises OptionError."""
    if not directory.is_dir() or not any(directory.glob("queue=*")):
        raise OptionError(f"{directory} holds no archive (no directories queue=...)")
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    # a queue may be named 007, and a batch is a number: Spark must not infer their types
    guessed = spark.read.option("mergeSchema", "true").parquet(str(directory)).schema
    schema = StructType(
        [StructField("queue", StringType()) if each.name == "queue" else each for each in guessed.fields]
    )
    frame = spark.read.schema(schema).parquet(str(directory))
    return frame.where(F.col("queue").isin(*queues)) if queues else frame


def queues_of(directory: Path) -> list[str]:
    """The queues whose messages an archive has, sorted."""
    return sorted(unquote(each.name.removeprefix("queue=")) for each in directory.glob("queue=*"))
