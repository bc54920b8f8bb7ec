"""Measures which archived messages selectors match, and the cost of their fields: `quorum pipeline selectivity`.

Spark's workers use the service's own columns and its vectorised evaluator, for a block of messages at a time. Each
queue is measured separately, because it has its own consumers and its own `x-filter-field-names`. The result recommends
names for that argument.

The memory of a field is what `BlockColumns` needs for it when blocks are full and batches large. Fields that an archive
does not hold (JMSDeliveryMode, JMSTimestamp) are absent here and reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorum.counts import counted
from quorum.spark.errors import OptionError
from quorum.spark.pipelines.archived_fields import COLUMNS, HEADERS, columns_of, distinct_texts
from quorum_selectors import canonical, jms
from quorum_selectors.batch_columns import BatchColumns, Column
from quorum_selectors.columns import BLOCK_SIZE, BlockColumns
from quorum_selectors.errors import SelectorError
from quorum_selectors.expression import field_names
from quorum_selectors.known_fields import (
    ALL_APPLICATION_PROPERTIES,
    APPLICATION,
    DEFAULT_FIELD_NAMES,
    HEADER,
    MAX_FIELD_NAME_BYTES,
    MAX_FIELD_NAMES,
    PROPERTIES,
    KeptFields,
    resolve_field_names,
)
from quorum_selectors.vectorised import Messages, select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"
DISTINCT_ERROR = 0.01
FACTS = (
    "ARRAY<STRUCT<queue: STRING, what: STRING, name: STRING, n: BIGINT, bytes: BIGINT, texts: ARRAY<STRING>>>"
)
_FACT = pa.struct(
    [
        ("queue", pa.string()),
        ("what", pa.string()),
        ("name", pa.string()),
        ("n", pa.int64()),
        ("bytes", pa.int64()),
        ("texts", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A selector or property filter in its canonical encoding. queue: the queue that it applies to; None: all queues.
    users: the consumers and subscriptions that have it."""

    encoded: bytes
    text: str
    queue: str | None = None
    users: tuple[str, ...] = ()

    def concerns(self, queue: str) -> bool:
        return self.queue is None or self.queue == queue


@dataclass(frozen=True, slots=True)
class SelectorUse:
    selector: str
    users: tuple[str, ...]
    matched: int
    """Messages."""


@dataclass(frozen=True, slots=True)
class FieldUse:
    field: str
    """Name as in x-filter-field-names."""
    selectors: int
    """Number of selectors that use it."""
    messages: int
    """Number of messages that have it; it is NULL in the others."""
    distinct: int
    """Estimated number of distinct values; the error is 1 % on average, seldom 3 %."""
    memory_bytes: int
    """Memory that the service needs for it, over all these messages."""
    matched: int
    """Number of messages that at least one of those selectors matches."""
    archived: bool
    """False: archives do not have it. Only `selectors` is then known, and every selector saw the field as NULL."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended filter fields. names: for x-filter-field-names; empty: no field is needed."""

    names: tuple[str, ...]
    memory_bytes: int
    """Memory of these fields, over all measured messages."""
    names_now: tuple[str, ...]
    """The queue's present filter fields; without a cluster the default."""
    memory_bytes_now: int
    reasons: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"x-filter-field-names={','.join(self.names)}" if self.names else "x-filter-enabled=false"


@dataclass(frozen=True, slots=True)
class QueueSelectivity:
    queue: str
    messages: int
    selectors: tuple[SelectorUse, ...]
    fields: tuple[FieldUse, ...]
    recommendation: Recommendation


def asked(text: str) -> Asked:
    """A selector from its text, for all queues. OptionError if it does not parse."""
    try:
        return Asked(canonical.encode(jms.parse(text)), text)
    except SelectorError as error:
        raise OptionError(str(error)) from None


def selectivity(
    archive: DataFrame, selectors: Sequence[Asked], names_now: Mapping[str, Sequence[str]] | None = None
) -> tuple[QueueSelectivity, ...]:
    """Evaluate the selectors on every message of an archive, for each queue in order of name.

    names_now: a queue's present filter fields; the default is used for other queues.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    spark = archive.sparkSession
    present = tuple(name for name in COLUMNS if name in archive.columns)
    now = {queue: tuple(names) for queue, names in (names_now or {}).items()}
    # mapInArrow would do the same but needs pandas. Marked nondeterministic, else filters and inline() repeat it.
    judge = arrow_udf(_judge(present, tuple(selectors), now), FACTS)  # type: ignore[call-overload]
    judged = archive.select(judge.asNondeterministic()("queue", *present).alias("facts"))
    before = spark.conf.get(BATCH_CONF) or "10000"
    spark.conf.set(BATCH_CONF, BLOCK_SIZE)
    try:
        rows = (
            judged.selectExpr("inline(facts)")
            .selectExpr("*", "posexplode_outer(texts) AS (place, text)")
            .groupBy("queue", "what", "name")
            .agg(
                # a fact's numbers are in the first row of its texts
                F.sum(F.when(F.coalesce("place", F.lit(0)) == 0, F.col("n"))).alias("n"),
                F.sum(F.when(F.coalesce("place", F.lit(0)) == 0, F.col("bytes"))).alias("bytes"),
                F.approx_count_distinct("text", DISTINCT_ERROR).alias("distinct"),
            )
            .collect()
        )
    finally:
        spark.conf.set(BATCH_CONF, before)
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for row in rows:
        found.setdefault(row["queue"], {})[row["what"], row["name"]] = row
    return tuple(
        _judged(queue, found[queue], selectors, now.get(queue, DEFAULT_FIELD_NAMES))
        for queue in sorted(found)
    )


# ---- in the workers


def _judge(
    present: tuple[str, ...], selectors: tuple[Asked, ...], names_now: Mapping[str, tuple[str, ...]]
) -> Callable[..., Any]:
    def judge(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        workers = _Worker(selectors, names_now)
        for queues, *arrays in batches:
            facts = workers.facts(queues, dict(zip(present, arrays, strict=True)))
            # Spark expects one row for each input row; the first one holds all facts
            yield pa.array([facts, *[None] * (len(queues) - 1)], pa.list_(_FACT))

    return judge


class _Worker:
    """Evaluates batches of messages, which may be of several queues."""

    def __init__(self, selectors: Sequence[Asked], names_now: Mapping[str, Sequence[str]]) -> None:
        self._selectors = [(str(n), each, canonical.decode(each.encoded)) for n, each in enumerate(selectors)]
        self._used = {str(n): field_names(tree) for n, _, tree in self._selectors}
        self._kept = {queue: resolve_field_names(names) for queue, names in names_now.items()}
        self._kept_else = resolve_field_names(DEFAULT_FIELD_NAMES)

    def facts(self, queues: pa.Array, arrays: Mapping[str, pa.Array]) -> list[dict[str, Any]]:
        facts: list[dict[str, Any]] = []
        names = queues.unique().to_pylist()
        for queue in names:
            chosen, count = arrays, len(queues)
            if len(names) > 1:
                mask = pc.equal(queues, queue)
                chosen = {name: array.filter(mask) for name, array in arrays.items()}
                count = pc.sum(mask).as_py()
            facts += [{"queue": queue, **fact} for fact in self._of_queue(queue, chosen, count)]
        return facts

    def _of_queue(self, queue: str, arrays: Mapping[str, pa.Array], count: int) -> Iterator[dict[str, Any]]:
        batch = columns_of(arrays, count)
        kept = self._kept.get(queue, self._kept_else)
        yield {"what": "all", "name": "", "n": count, "bytes": _kept_bytes(batch, kept)}
        for key, columns in _by_key(batch).items():
            yield {
                "what": "field",
                "name": key,
                "n": sum(len(column.values) for column in columns),
                "bytes": _block(columns, count).nbytes - count // 8,
                "texts": [text for column in columns for text in distinct_texts(column)],
            }
        # only columns of fields that a selector uses, because a block is fast for up to 64 columns
        keys = {key for used in self._used.values() for key in used}
        messages = Messages(_block([each for each in batch.columns if each.key in keys], count), 0, count)
        matched: dict[str, Any] = {}
        for name, each, tree in self._selectors:
            if each.concerns(queue):
                selected = select(tree, messages)
                yield {"what": "selector", "name": name, "n": int(np.count_nonzero(selected)), "bytes": 0}
                for key in self._used[name]:
                    matched[key] = selected | matched[key] if key in matched else selected
        for key, selected in matched.items():
            yield {"what": "used", "name": key, "n": int(np.count_nonzero(selected)), "bytes": 0}


def _by_key(batch: BatchColumns) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = {}
    for column in batch.columns:
        found.setdefault(column.key, []).append(column)
    return found


def _block(columns: Sequence[Column], count: int) -> BlockColumns:
    block = BlockColumns(count)
    block.append(0, BatchColumns(count, count, tuple(columns)), 0, count)
    return block


def _kept_bytes(batch: BatchColumns, kept: KeptFields) -> int:
    count = batch.count
    return _block([each for each in batch.columns if kept.keeps(each.key)], count).nbytes - count // 8


# ---- the result


def _judged(
    queue: str, found: Mapping[tuple[str, str], Any], selectors: Sequence[Asked], names_now: Sequence[str]
) -> QueueSelectivity:
    concerned = [(str(n), each) for n, each in enumerate(selectors) if each.concerns(queue)]
    uses: dict[str, int] = {}
    for _, each in concerned:
        for key in field_names(canonical.decode(each.encoded)):
            uses[key] = uses.get(key, 0) + 1
    fields = []
    for key in sorted({name for what, name in found if what == "field"} | uses.keys()):
        seen, used = found.get(("field", key)), found.get(("used", key))
        fields.append(
            FieldUse(
                spoken(key),
                uses.get(key, 0),
                seen["n"] if seen else 0,
                seen["distinct"] if seen else 0,
                seen["bytes"] if seen else 0,
                used["n"] if used else 0,
                key.startswith(APPLICATION) or key in HEADERS.values(),
            )
        )
    total = found["all", ""]
    fields.sort(key=lambda each: (-each.selectors, each.field))
    return QueueSelectivity(
        queue,
        total["n"],
        tuple(SelectorUse(each.text, each.users, found["selector", n]["n"]) for n, each in concerned),
        tuple(fields),
        recommend(fields, total["n"], tuple(names_now), total["bytes"]),
    )


def recommend(
    fields: Sequence[FieldUse], messages: int, names_now: tuple[str, ...], memory_bytes_now: int
) -> Recommendation:
    """Recommend every field that a selector uses, and no other."""
    used = [each for each in fields if each.selectors]
    names = tuple(sorted(each.field for each in used))
    reasons = []
    for each in used:
        by = f"{each.field}: {counted(each.selectors, 'selector')}, which {_match(each)}"
        if each.archived:
            reasons.append(
                f"{by} {_share(each.matched, messages)} of the messages; "
                f"{_per_message(each.memory_bytes, messages)} bytes a message"
            )
        else:
            reasons.append(
                f"{each.field}: {counted(each.selectors, 'selector')}; not in archives, so its cost is unknown"
            )
    memory = sum(each.memory_bytes for each in used)
    if (
        any("," in name or len(name.encode()) > MAX_FIELD_NAME_BYTES for name in names)
        or len(names) > MAX_FIELD_NAMES
    ):
        own = tuple(name for name in names if name.startswith((HEADER, PROPERTIES)))
        names = (ALL_APPLICATION_PROPERTIES, *own)
        kept = resolve_field_names(names)
        memory = sum(each.memory_bytes for each in fields if kept.keeps(_key(each.field)))
        reasons.append(
            f"*: x-filter-field-names cannot list all of them (a comma, or more than {MAX_FIELD_NAMES})"
        )
    if not names:
        reasons.append("no selector uses a field")
    kept_now = resolve_field_names(names_now)
    dropped = [
        each for each in fields if each.messages and not each.selectors and kept_now.keeps(_key(each.field))
    ]
    if dropped and ALL_APPLICATION_PROPERTIES not in names:
        saved = sum(each.memory_bytes for each in dropped)
        listed = ", ".join(each.field for each in dropped[:10]) + (" ..." if len(dropped) > 10 else "")
        reasons.append(
            f"without {listed}, which no selector looks at: {_per_message(saved, messages)} bytes a message less"
        )
    missing = [each.field for each in used if not kept_now.keeps(_key(each.field))]
    if missing:
        reasons.append(f"not kept now: {', '.join(missing)}; a consumer that selects on it is refused")
    return Recommendation(names, memory, names_now, memory_bytes_now, tuple(reasons))


def spoken(key: str) -> str:
    """A field key in the form of x-filter-field-names."""
    name = key.removeprefix(APPLICATION)
    is_plain = name != ALL_APPLICATION_PROPERTIES and not name.startswith((HEADER, PROPERTIES, APPLICATION))
    return name if is_plain else key


def _key(name: str) -> str:
    return name if name.startswith((HEADER, PROPERTIES, APPLICATION)) else APPLICATION + name


def _match(field: FieldUse) -> str:
    return "matches" if field.selectors == 1 else "together match"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"


def _per_message(size: int, messages: int) -> str:
    return f"{size / messages:.1f}" if messages else "0.0"
