"""The part of the model (group.py) that is about staged messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fifo import commands as c
from fifo import effects as e

if TYPE_CHECKING:
    from support.fifo.model.queues import ModelQueue
    from support.fifo.model.records import Left


Fields = Mapping[str, Any]


def priority_of(priorities: bytes | memoryview, ordinal: int) -> int:
    """Of a message in a batch."""
    return priorities[ordinal if len(priorities) > 1 else 0] if len(priorities) else 0


def due_at(now_ms: int, due_times_ms: Sequence[int], ordinal: int) -> int:
    """When a message in a batch becomes ready; -1 if it is ready at once."""
    if not due_times_ms:
        return -1
    said = due_times_ms[ordinal if len(due_times_ms) > 1 else 0]
    due_ms = min(said if said >= 0 else now_ms - said, c.MAX_DELAY_MS)
    return due_ms if due_ms > now_ms else -1


def key_of(keys: bytes | memoryview, ordinal: int) -> int:
    """The message group of a message in a batch, 0 for none."""
    found = [int.from_bytes(keys[at : at + 8], "little") for at in range(0, len(keys), 8)]
    return found[ordinal if len(found) > 1 else 0] if found else 0


def is_crowded(owners: Sequence[int], owner: int, allowed: int) -> bool:
    """This owner has as many as are left free, where these owners have one each."""
    return owners.count(owner) >= allowed - len(owners)


@dataclass(eq=False)
class ModelPart:
    key: tuple[str, int, bytes]
    last_ms: int = 0
    chunks: list[tuple[int, int, int, list[int], list[int], list[int]]] = field(
        default_factory=list
    )  # index, operation, size, TTLs, priorities, keys

    def rows(self) -> int:
        return sum(len(ttls) for _, _, _, ttls, *_ in self.chunks)

    def size_bytes(self) -> int:
        return sum(size for _, _, size, *_ in self.chunks)

    def stretches(self) -> int:
        """Neighbours in one chunk with the same TTL count once."""
        return sum(
            sum(1 for i, ttl in enumerate(ttls) if not i or ttl != ttls[i - 1])
            for _, _, _, ttls, *_ in self.chunks
        )


class ModelStaging:
    """What is staged for one queue."""

    def __init__(self, queue: ModelQueue) -> None:
        self.queue = queue
        self.parts: list[ModelPart] = []
        self.last_batch: list[
            tuple[str, int, int, int]
        ] = []  # with the time of its last use, and the owner; used longest ago first

    def expiries(self) -> list[int]:
        return [part.last_ms + self.queue.rules.part_ms for part in self.parts]

    def expire(self, now_ms: int) -> None:
        self.parts = [part for part in self.parts if part.last_ms + self.queue.rules.part_ms > now_ms]

    def part(self, key: tuple[str, int, bytes]) -> ModelPart | None:
        return next((part for part in self.parts if part.key == key), None)

    def published_to(self, producer: str) -> int:
        return next((batch for name, batch, *_ in self.last_batch if name == producer), -1)

    def is_crowded(self, meta: c.Meta, producer: str) -> bool:
        """A new producer would push out one that must be remembered."""
        rules, known = self.queue.rules, self.last_batch
        return (
            self.published_to(producer) < 0
            and len(known) >= rules.known_producers
            and known[0][2] + rules.remembered_ms > meta.now_ms
        )

    def has_no_share(self, meta: c.Meta, command: c.PublishStaged) -> bool:
        """Its owner has its share, though what is old was forgotten as far as that helps."""
        rules = self.queue.rules
        if self.published_to(command.producer) >= 0:
            return False
        while is_crowded([owner for *_, owner in self.last_batch], command.owner, rules.known_producers):
            if self.last_batch[0][2] + rules.remembered_ms > meta.now_ms:
                return True
            self.last_batch.pop(0)
        return False

    def remember(self, meta: c.Meta, producer: str, batch: int, owner: int = c.UNKNOWN) -> None:
        """The owner stays if it is known."""
        for known in [known for known in self.last_batch if known[0] == producer]:
            self.last_batch.remove(known)
            owner = known[3] if known[1] == batch else owner
        if batch >= 0:
            self.last_batch.append((producer, batch, meta.now_ms, owner))

    def stage(self, meta: c.Meta, operation: int, command: c.Stage) -> e.Reply:
        key = (command.producer, command.batch, command.part)
        last = self.published_to(command.producer)
        if command.batch <= last:
            return e.Refused("published", "")
        old = self.part(key)
        known = 0 if old is None else len(old.chunks)
        if old is not None and command.chunk < known:
            return e.Ok(old.rows())
        if command.chunk > known:
            return e.Refused("gap", "")
        if self.is_crowded(meta, command.producer):
            return e.Refused("limit", "")
        ttls = list(command.ttls_ms) or [command.ttl_ms] * command.count
        said = list(command.priorities) or [0]
        priorities = said if len(said) > 1 else said * command.count
        keys = [key_of(command.group_keys, ordinal) for ordinal in range(command.count)]
        chunk = (meta.index, operation, command.size_bytes, ttls, priorities, keys)
        new = ModelPart(key, meta.now_ms, [chunk])
        rules, after = self.queue.rules, [*self.parts, new]
        if (
            len({part.key for part in after}) > rules.staged_parts
            or sum(len(part.chunks) for part in after) > rules.staged_chunks
            or sum(part.size_bytes() for part in after) > rules.staged_bytes
            or sum(part.rows() for part in after) > rules.staged_messages
            or sum(part.stretches() for part in after) > rules.staged_ttls
        ):
            return e.Refused("limit", "")
        if old is not None:
            new.chunks = old.chunks + new.chunks
            self.parts.remove(old)
        self.parts.append(new)
        self.remember(meta, command.producer, last)
        return e.Ok(new.rows())

    def publish(
        self, meta: c.Meta, left: Left, command: c.PublishStaged, rows: Callable[[int, int], Sequence[Fields]]
    ) -> e.Reply:
        producer, batch, last = command.producer, command.batch, self.published_to(command.producer)
        if batch <= last:
            self.remember(meta, producer, last)
            return e.Published(0, 0, True)
        is_empty = not any(count for _, count in command.parts)
        if last < 0 and is_empty and not any(part.key[0] == producer for part in self.parts):
            return e.Published(self.queue.next_sequence, 0)
        if self.is_crowded(meta, producer) or self.has_no_share(meta, command):
            return e.Refused("limit", "")
        parts = []
        for name, count in command.parts:
            part = self.part((producer, batch, name))
            if part is not None and command.staged_to and command.staged_to < part.chunks[-1][0]:
                part = None
            if (0 if part is None else part.rows()) != count:
                return e.Refused("missing_part", "")
            if part is not None:
                parts.append(part)
        total, first = sum(part.rows() for part in parts), self.queue.next_sequence
        chunks = [(size // len(ttls), len(ttls)) for part in parts for _, _, size, ttls, *_ in part.chunks]
        if not self.queue.fits([size for size, count in chunks for _ in range(count)]):
            return e.Refused("queue_full", "")
        for part in parts:
            for index, operation, size, ttls, priorities, keys in part.chunks:
                fields = rows(index, operation) if self.queue.config.filter_enabled else ()
                texts = self.queue.fronts.text_factor(rows(index, operation))
                for ordinal, ttl in enumerate(ttls):
                    self.queue.place(
                        meta,
                        (index, operation, ordinal),
                        ttl,
                        fields[ordinal] if fields else {},
                        is_alone=len(ttls) == 1,
                        texts=texts,
                        size=size // len(ttls),
                        priority=priorities[ordinal],
                        due_ms=-1,
                        key=keys[ordinal],
                    )
        limits = self.queue.rules
        if (
            total > limits.looked_up_messages
            or sum(len(part.chunks) for part in parts) > limits.looked_up_chunks
            or sum(part.size_bytes() for part in parts) > limits.looked_up_bytes
        ):
            left.reads_arrivals = True
        self.remember(meta, producer, batch, command.owner)
        self.parts = [p for p in self.parts if p.key[0] != producer or p.key[1] > batch]
        return e.Published(first, total)

    def discard(self, command: c.DiscardStaged) -> e.Reply:
        dropped = [
            part
            for part in self.parts
            if part.key[:2] == (command.producer, command.batch)
            and (not command.parts or part.key[2] in command.parts)
        ]
        self.parts = [part for part in self.parts if part not in dropped]
        if command.forget:
            self.last_batch = [known for known in self.last_batch if known[0] != command.producer]
        return e.Ok(sum(part.rows() for part in dropped))
