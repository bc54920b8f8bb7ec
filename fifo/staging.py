"""Staged messages of one queue: parts of batches that become visible all at once, or never.

A writer with many tasks stages each task's rows as a *part*, chunk by chunk. Any of its tasks may fail, be repeated, or
run twice. The writer then publishes the valid parts in one entry. A staged chunk is a run without sequences: the place
of its bodies in the log, their number, times to live, priorities and groups. PublishStaged adds these runs to the
end of the queue, part after part. No body is moved or copied. The times to live begin then.

Exactly once is decided by (producer, batch). Batches of a producer ascend, and the queue remembers the last published
one. A command for that batch or an earlier one is a duplicate. Every staged part therefore belongs to a batch above the
last published one.

A queue remembers a producer for at least 27 hours of group time after its last use, as `fifo.producers` does, and for
longer while there is room. Owners share `Limits.known_producers` places (shares.py). If an owner has its share, and all
producers are younger than that, a new producer is refused: if one were forgotten, a repeat of its last batch would be
published a second time. An empty batch of an unknown producer with nothing staged needs no place, because publishing it
twice changes nothing. Entries of version 1 know no shares, and forget the least recently used producer.

A producer that is never used again gives its place back (`DiscardStaged.forget`). Copies of its commands may still
arrive. Copies of all its chunks stage a part again. Then a copy of its PublishStaged must not publish this part. So it
names the entry up to which its parts were staged (`staged_to`). A part that was staged again came later.

The cost in an entry. Placing takes some microseconds a chunk, a block, or a stretch of messages with the same time to
live. The limits keep it below a second at worst. A queue that filters needs the fields, too. They are in the log with
the bodies, and fetching them reads the bodies:
- The fields of a publication up to `Limits.looked_up_*` are fetched and looked up in its own entry, like an Enqueue.
- Of a larger one nothing is read. The scan positions of caught-up groups move back to its first message. These scans
  then pass it like any backlog, some blocks an entry, and its blocks get their fields at that time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import field

import numpy as np
import numpy.typing as npt

from fifo.batch_times import AT_ONCE
from fifo.budgets import Entry
from fifo.commands import MAX_NAME_BYTES, UNKNOWN, DiscardStaged, PublishStaged, Stage
from fifo.consumers.read_costs import text_factor
from fifo.consumers.selector_groups import SelectorGroups
from fifo.effects import Ok, Published, Refused, Reply
from fifo.embargo import Embargo
from fifo.frozen_dataclasses import dataclass
from fifo.limits import Limits
from fifo.messages import overflow
from fifo.messages.message_groups import keys_of_each, refuse_keys
from fifo.messages.messages import Messages
from fifo.messages.ready_order import of_each
from fifo.messages.runs import ONE_EACH
from fifo.shares import Owned
from fifo.stretches import Stretches, columns_of, shares_of
from fifo.versions import BUDGETED_ARRIVALS, SHARED_PLACES, TIMED_BATCHES
from quorum_selectors.columns import BatchColumns, decode
from quorum_selectors.errors import ColumnsError

PART_BYTES = 16
"""Bytes of a part's name."""
LAST_BATCH = (1 << 63) - 1

CHUNK_MESSAGES = 65_536
"""The most messages of a chunk: those of one Enqueue."""


@dataclass(slots=True)
class LastBatch:
    """The last batch that a producer has published. used_ms: group time of its last use; 0 if that was in an entry
    of version 1, which counts as long ago. owner: of the session that published it."""

    number: int
    used_ms: int = 0
    owner: int = UNKNOWN

    def is_old(self, now_ms: int, limits: Limits) -> bool:
        """Whether it need not be remembered any longer."""
        return not self.used_ms or self.used_ms + limits.remembered_ms <= now_ms


Key = tuple[str, int, bytes]
"""producer, batch, name of the part"""


@dataclass(slots=True, eq=False)
class Part:
    """The chunks of one part, in parallel arrays, and stretches of equal times to live, cut at the chunks' edges.

    priorities: by the chunk's number, one for all of its messages, or one each. The messages of other chunks have 0,
    and so have all messages of a queue without priorities. group_keys: in the same way.
    """

    last_ms: int = 0  # group time of its last chunk
    indexes: array[int] = field(default_factory=lambda: array("Q"))
    operations: array[int] = field(default_factory=lambda: array("I"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    ttl_counts: array[int] = field(default_factory=lambda: array("I"))
    ttls: array[int] = field(default_factory=lambda: array("q"))  # -1: none
    texts: array[int] = field(
        default_factory=lambda: array("I")
    )  # their text factors, as read_costs.py counts them
    priorities: dict[int, bytes] = field(default_factory=dict)
    group_keys: dict[int, bytes] = field(default_factory=dict)
    rows: int = 0
    size_bytes: int = 0

    def add(self, index: int, operation: int, count: int, size_bytes: int, texts: int) -> None:
        self.indexes.append(index)
        self.operations.append(operation)
        self.counts.append(count)
        self.sizes.append(size_bytes)
        self.texts.append(texts)
        self.rows += count
        self.size_bytes += size_bytes

    @property
    def counted_bytes(self) -> int:
        """Its bytes as a limit counts them: the messages of a chunk count alike."""
        return sum([size // count * count for size, count in zip(self.sizes, self.counts, strict=True)])

    def chunks(self) -> Iterator[tuple[int, int, int, int, list[tuple[int, int, int]], int, bytes, bytes]]:
        """(index, operation, count, size, [(first ordinal, count, TTL)], text factor, priorities, keys) of each."""
        place = 0
        columns = zip(self.indexes, self.operations, self.counts, self.sizes, self.texts, strict=True)
        for number, (index, operation, count, size, texts) in enumerate(columns):
            stretches, ordinal = [], 0
            while ordinal < count:
                width = self.ttl_counts[place]
                stretches.append((ordinal, width, self.ttls[place]))
                ordinal += width
                place += 1
            own = self.priorities.get(number, b""), self.group_keys.get(number, b"")
            yield index, operation, count, size, stretches, texts, *own


@dataclass(frozen=True, slots=True)
class StagedInfo:
    """A staged part. last_ms: group time of its last chunk."""

    producer: str
    batch: int
    part: bytes
    rows: int
    size_bytes: int
    last_ms: int


class Staging:
    """The staged parts of one queue, and the last batch of each producer."""

    __slots__ = (
        "chunk_count",
        "embargo",
        "last_batches",
        "limits",
        "owned",
        "parts",
        "rows",
        "size_bytes",
        "ttl_count",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.parts: dict[Key, Part] = {}  # ordered by the time of the last chunk, oldest first
        self.last_batches: dict[str, LastBatch] = {}  # by producer, the least recently used first
        self.owned = Owned()  # their owners; follows from them
        self.embargo = Embargo()  # of open transactions: it needs nothing of the above
        self.chunk_count = self.rows = self.size_bytes = self.ttl_count = 0  # of all parts

    # ---- changes

    def add(
        self,
        key: Key,
        entry: Entry,
        operation: int,
        command: Stage,
        ttls: TtlStretches,
        texts: int,
        priorities: bytes,
        keys: bytes,
    ) -> Part:
        """Adds a chunk."""
        part = self.parts.pop(key, None) or Part()
        self.parts[key] = part
        if priorities:
            part.priorities[len(part.counts)] = priorities
        if keys:
            part.group_keys[len(part.counts)] = keys
        part.add(entry.index, operation, command.count, command.size_bytes, texts)
        part.ttl_counts.extend(ttls[0])
        part.ttls.extend(ttls[1])
        part.last_ms = entry.now_ms
        self.chunk_count += 1
        self.rows += command.count
        self.size_bytes += command.size_bytes
        self.ttl_count += len(ttls[0])
        self._use(entry, command.producer)
        return part

    def drop(self, key: Key) -> Part:
        part = self.parts.pop(key)
        self.chunk_count -= len(part.indexes)
        self.rows -= part.rows
        self.size_bytes -= part.size_bytes
        self.ttl_count -= len(part.ttls)
        return part

    def expire(self, now_ms: int) -> None:
        while self.parts:
            key, part = next(iter(self.parts.items()))
            if part.last_ms + self.limits.part_ms > now_ms:
                return
            self.drop(key)

    def published(self, entry: Entry, producer: str, batch: int, owner: int) -> None:
        """Notes that this batch was published: it and all earlier ones are done."""
        self._remember(entry, producer, batch, owner)
        if len(self.last_batches) > self.limits.known_producers:
            self._forget(next(iter(self.last_batches)))
        for key in [key for key in self.parts if key[0] == producer and key[1] <= batch]:
            self.drop(key)

    def _remember(self, entry: Entry, producer: str, batch: int, owner: int) -> None:
        if producer in self.last_batches:
            self._forget(producer)
        is_shared = entry.version >= TIMED_BATCHES
        self.know(
            producer, LastBatch(batch, entry.now_ms if is_shared else 0, owner if is_shared else UNKNOWN)
        )

    def know(self, producer: str, last: LastBatch) -> None:
        self.last_batches[producer] = last
        self.owned.add(last.owner)

    def forget(self, producer: str) -> None:
        """Forgets the producer if it is known."""
        if producer in self.last_batches:
            self._forget(producer)

    def _forget(self, producer: str) -> None:
        self.owned.remove(self.last_batches.pop(producer).owner)

    def _use(self, entry: Entry, producer: str) -> None:
        last = self.last_batches.get(producer)
        if last is not None:
            self._remember(entry, producer, last.number, last.owner)

    def make_room(self, entry: Entry, owner: int) -> None:
        """Forgets old producers until this owner has a place for one more."""
        while not self.owned.has_room(owner, self.limits.known_producers):
            oldest = next(iter(self.last_batches))
            if not self.last_batches[oldest].is_old(entry.now_ms, self.limits):
                break
            self._forget(oldest)

    def is_done(self, entry: Entry, producer: str, batch: int) -> bool:
        """Whether this batch or a later one was published. If so, notes the use of the producer."""
        if batch > self.last_of(producer):
            return False
        self._use(entry, producer)
        return True

    # ---- questions

    def last_of(self, producer: str) -> int:
        """The last batch that a producer has published; -1 if none is known."""
        last = self.last_batches.get(producer)
        return -1 if last is None else last.number

    def refuse_producer(self, entry: Entry, producer: str) -> Refused | None:
        """The refusal if no batch of this producer can be remembered, else None."""
        most, remembered_ms = self.limits.known_producers, self.limits.remembered_ms
        if (
            entry.version < TIMED_BATCHES
            or producer in self.last_batches
            or len(self.last_batches) < most
            or next(iter(self.last_batches.values())).is_old(entry.now_ms, self.limits)
        ):
            return None
        return Refused(
            "limit",
            f"producer {producer!r} is new, and the queue remembers {len(self.last_batches)} that published staged "
            f"batches in the last {remembered_ms // 3_600_000} hours; allowed: {most}",
        )

    def needs_no_place(self, entry: Entry, producer: str) -> bool:
        """Whether the producer is unknown and has nothing staged."""
        return (
            entry.version >= SHARED_PLACES
            and producer not in self.last_batches
            and not any(key[0] == producer for key in self.parts)
        )

    def next_expiry(self) -> int | None:
        return next(iter(self.parts.values())).last_ms + self.limits.part_ms if self.parts else None

    @property
    def has_bodies(self) -> bool:
        """Whether `indexes` has any."""
        return bool(self.parts or self.embargo.parts)

    def indexes(self) -> npt.NDArray[np.uint64]:
        """The Raft indexes of staged and embargoed bodies, ascending, each once."""
        found = [np.frombuffer(part.indexes, dtype=np.uint64) for part in self.parts.values()]
        if self.embargo.parts:
            found.append(np.array(self.embargo.indexes(), dtype=np.uint64))
        return np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.uint64)

    def infos(self) -> tuple[StagedInfo, ...]:
        return tuple(
            [StagedInfo(*key, part.rows, part.size_bytes, part.last_ms) for key, part in self.parts.items()]
        )


# ---- commands


def execute(
    staging: Staging,
    messages: Messages,
    groups: SelectorGroups,
    entry: Entry,
    operation: int,
    command: Stage | PublishStaged | DiscardStaged,
) -> Reply:
    """Carries out a command. A refused command changes nothing, except that old producers may be forgotten."""
    refused = _refuse_names(command, entry.limits)
    if refused is not None:
        return refused
    if isinstance(command, Stage):
        priorities = bytes(command.priorities) if messages.order.has_priorities else b""
        keys = bytes(command.group_keys) if messages.grouped is not None else b""
        return _stage(staging, entry, operation, command, priorities, keys)
    if isinstance(command, PublishStaged):
        return _publish(staging, messages, groups, entry, command)
    return _discard(staging, command)


def _refuse_names(command: Stage | PublishStaged | DiscardStaged, limits: Limits) -> Refused | None:
    size = len(command.producer.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_NAME_BYTES:
        return Refused("bad_argument", f"a producer's name of {size} bytes; allowed: 1..{MAX_NAME_BYTES}")
    if not 0 <= command.batch <= LAST_BATCH:
        return Refused("bad_argument", f"batch {command.batch}; allowed: 0..{LAST_BATCH}")
    if isinstance(command, Stage):
        names = [command.part]
    elif isinstance(command, PublishStaged):
        names = [name for name, _ in command.parts]
        if len(dict.fromkeys(names)) < len(names):
            return Refused("bad_argument", "a part is named twice; allowed: each once")
    else:
        names = list(command.parts)
    if len(names) > limits.staged_parts:
        return Refused("limit", f"{len(names)} parts; allowed: {limits.staged_parts}")
    for name in names:
        if len(name) != PART_BYTES:
            return Refused("bad_argument", f"a part's name of {len(name)} bytes; allowed: {PART_BYTES}")
    return None


TtlStretches = tuple[list[int], list[int]]
"""(number of messages, TTL) of each stretch of neighbours with the same TTL"""


def _stretches(command: Stage) -> TtlStretches:
    """The stretches of equal TTLs of a chunk. Raises OverflowError if a TTL is beyond 64 bits."""
    if not len(command.ttls_ms):
        ttl = np.asarray([command.ttl_ms], dtype=np.int64)
        return [command.count], np.maximum(ttl, -1).tolist()
    ttls = np.maximum(np.asarray(command.ttls_ms, dtype=np.int64), -1)
    starts = np.concatenate(([0], np.flatnonzero(ttls[1:] != ttls[:-1]) + 1))
    return np.diff(starts, append=len(ttls)).tolist(), ttls[starts].tolist()


def _stage(
    staging: Staging, entry: Entry, operation: int, command: Stage, priorities: bytes, keys: bytes
) -> Reply:
    """priorities, keys: those that the queue keeps."""
    key = (command.producer, command.batch, command.part)
    if not 0 < command.count <= CHUNK_MESSAGES:
        return Refused("bad_argument", f"{command.count} messages in a chunk; allowed: 1..{CHUNK_MESSAGES}")
    if command.chunk < 0 or command.size_bytes < 0:
        return Refused(
            "bad_argument", f"chunk {command.chunk} of {command.size_bytes} bytes; allowed: from 0 on"
        )
    if len(command.ttls_ms) not in (0, command.count):
        return Refused("bad_argument", f"{len(command.ttls_ms)} TTLs for {command.count} messages")
    if len(command.priorities) not in (0, 1, command.count):
        return Refused("bad_argument", f"{len(command.priorities)} priorities for {command.count} messages")
    refused = refuse_keys(command.group_keys, command.count)
    if refused is not None:
        return refused
    try:
        ttls = _stretches(command)
    except OverflowError:
        return Refused("bad_argument", "a TTL is beyond 64 bits")
    texts = 0
    if len(command.columns):  # fields must be readable when it is published, whatever the queue keeps now
        try:
            texts = text_factor(entry, command.columns, decode(command.columns, command.count))
        except ColumnsError as error:
            return Refused("bad_argument", f"filter fields: {error}")
    last = staging.last_of(command.producer)
    if command.batch <= last:
        return Refused(
            "published",
            f"batch {command.batch} of {command.producer!r}; published up to {last}, allowed: above",
        )
    part = staging.parts.get(key)
    known = 0 if part is None else len(part.indexes)
    if command.chunk < known and part is not None:
        return Ok(part.rows)
    if command.chunk > known:
        return Refused("gap", f"chunk {command.chunk} of a part that has {known}; allowed: up to {known}")
    refused = staging.refuse_producer(entry, command.producer)
    if refused is None:
        refused = _refuse_more(staging, command, part is None, len(ttls[0]))
    if refused is not None:
        return refused
    return Ok(staging.add(key, entry, operation, command, ttls, texts, priorities, keys).rows)


def _refuse_more(staging: Staging, command: Stage, is_new: bool, ttl_count: int) -> Refused | None:
    limits = staging.limits
    for wanted, allowed, what in (
        (len(staging.parts) + is_new, limits.staged_parts, "parts"),
        (staging.chunk_count + 1, limits.staged_chunks, "chunks"),
        (staging.rows + command.count, limits.staged_messages, "messages"),
        (staging.size_bytes + command.size_bytes, limits.staged_bytes, "bytes"),
        (staging.ttl_count + ttl_count, limits.staged_ttls, "stretches of messages with the same TTL"),
    ):
        if wanted > allowed:
            return Refused("limit", f"{wanted} {what} staged for one queue; allowed: {allowed}")
    return None


def _publish(
    staging: Staging, messages: Messages, groups: SelectorGroups, entry: Entry, command: PublishStaged
) -> Reply:
    producer, batch = command.producer, command.batch
    if staging.is_done(entry, producer, batch):
        return Published(0, 0, is_duplicate=True)
    is_nothing = staging.needs_no_place(entry, producer)
    if is_nothing and not any(count for _, count in command.parts):
        return Published(messages.next_sequence, 0)
    refused = staging.refuse_producer(entry, producer) or _refuse_place(
        staging, entry, command, messages.config.name
    )
    if refused is not None:
        return refused
    parts: list[Part] = []
    for name, said in command.parts:
        part = staging.parts.get((producer, batch, name))
        if part is not None and 0 < command.staged_to < part.indexes[-1]:
            part = None
        found = 0 if part is None else part.rows
        if found != said:
            return Refused(
                "missing_part",
                f"part {name.hex()} of batch {batch} of {producer!r} has {found} messages, said are {said}",
            )
        if part is not None:
            parts.append(part)
    count = sum(part.rows for part in parts)
    size_bytes = sum([part.counted_bytes for part in parts]) if messages.counts_bytes else 0
    refused = overflow.refuse_more(messages, count, size_bytes)
    if refused is not None:
        return refused
    first = messages.next_sequence
    if count:
        _place(messages, groups, entry, parts)
    staging.published(entry, producer, batch, command.owner)
    return Published(first, count)


def _refuse_place(staging: Staging, entry: Entry, command: PublishStaged, queue: str) -> Refused | None:
    """The refusal if the producer has no place in its owner's share, else None. Old producers are forgotten before,
    even if that does not make enough room."""
    owner = command.owner
    if entry.version < SHARED_PLACES or command.producer in staging.last_batches:
        return None
    staging.make_room(entry, owner)
    most, what = staging.limits.known_producers, "producers of staged batches"
    return staging.owned.refuse_more(entry.version, owner, most, queue, what)


def _place(messages: Messages, groups: SelectorGroups, entry: Entry, parts: list[Part]) -> None:
    """Adds the messages of the parts to the end of the queue, in this order."""
    fields, first, limits = groups.fields, messages.next_sequence, entry.limits
    is_looked_up = (
        sum(part.rows for part in parts) <= limits.looked_up_messages
        and sum(len(part.indexes) for part in parts) <= limits.looked_up_chunks
        and sum(part.size_bytes for part in parts) <= limits.looked_up_bytes
    )
    groups.arrivals_begin(entry)
    for part in parts:
        for index, operation, count, size, stretches, texts, priorities, keys in part.chunks():
            columns: BatchColumns | None = None
            if is_looked_up and messages.config.filter_enabled:
                columns, _ = fields.fetch(index, operation)
            sequence = messages.next_sequence
            if len(stretches) > limits.few_stretches:
                ordinals, counts, ttls = columns_of(*zip(*stretches, strict=True))
                dues = np.full(len(counts), AT_ONCE, dtype=np.int64)
                expiries = messages.expiries_at(entry.now_ms, dues, ttls)
                some = Stretches(ordinals, counts, expiries, dues, shares_of(size, counts, count))
                messages.append_stretches(index, operation, some, texts, priorities, keys)
            else:
                for ordinal, width, ttl in stretches:
                    place = ONE_EACH if count == 1 else ordinal
                    expires = messages.expires_at(entry.now_ms, ttl)
                    messages.append(
                        index,
                        operation,
                        place,
                        width,
                        expires,
                        size * width // count,
                        texts,
                        of_each(priorities, ordinal),
                        keys=keys_of_each(keys, ordinal),
                    )
            if is_looked_up and messages.config.filter_enabled:
                fields.arrived(messages.blocks, sequence, columns, [(0, count)])
    if not is_looked_up:
        if entry.version >= BUDGETED_ARRIVALS:
            entry.budget(messages.queue).reads_arrivals = True
        else:
            groups.rewind(first)


def _discard(staging: Staging, command: DiscardStaged) -> Reply:
    producer, batch = command.producer, command.batch
    keys = [(producer, batch, name) for name in command.parts]
    if not keys:
        keys = [key for key in staging.parts if key[:2] == (producer, batch)]
    if command.forget:
        staging.forget(producer)
    return Ok(sum(staging.drop(key).rows for key in keys if key in staging.parts))
