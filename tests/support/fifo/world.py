"""A group machine, its model and the log between them: what the tests of `fifo` drive.

`World.apply` feeds one entry to the machine and to everything that must agree with it, and compares: the model's
replies and effects, a twin that forgets its local parts, and the invariants. With the limits `SMALL` a few dozen
messages reach every edge: also the values that a block has no column for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fifo import effects
from fifo.commands import (
    UNKNOWN,
    Address,
    Attach,
    Command,
    CreateQueue,
    Enqueue,
    InTransaction,
    Meta,
    Operation,
    Origin,
    PublishStaged,
    QueueConfig,
    RegisterProducer,
    Settle,
    Stage,
    Target,
    Wake,
)
from fifo.consumers.filter_fields import StoredFields
from fifo.effects import Applied, AttachedReply, Confirmed, Deliver, Refused, Reply
from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION, Limits
from fifo.messages.pages import Pages
from fifo.persistence import checkpoint, invariants, snapshot
from fifo.persistence.checkpoint import Checkpointer
from fifo.queries import group as queries
from fifo.results import DeadWork, QueueInfo
from fifo.versions import CURRENT
from quorum_selectors import canonical, columns, jms
from support.fifo.model.group import ModelGroup

START_MS = 1_000_000


def selector(text: str) -> bytes:
    return canonical.encode(jms.parse(text)) if text else b""


def exported(state: bytes, pages: Pages) -> bytes:
    """The snapshot of a checkpoint, as a follower gets it."""
    export = checkpoint.Export(state, pages)
    export.look_through()
    return b"".join(export.piece(number) for number in range(len(export)))


def producer(number: int) -> bytes:
    return b"producer" + number.to_bytes(8, "big")


def part_name(number: int) -> bytes:
    return b"part" + number.to_bytes(12, "big")


def of_keys(keys: Iterable[int]) -> bytes:
    """The message groups of a batch; 0 is none."""
    return b"".join([key.to_bytes(8, "little") for key in keys])


def nth_number(nth: int, queue: int = 1) -> int:
    """The nth attach number, generation, or number of a pin of a queue."""
    return (queue << 32) + nth


class Log:
    """The operations of all entries, as far as the machine may ask for them again."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], tuple[bytes, Sequence[Mapping[str, Any]]]] = {}
        self.routed: dict[tuple[int, int, int], StoredFields] = {}

    def columns(self, index: int, operation: int, queue: int) -> StoredFields:
        if (index, operation, queue) in self.routed:
            return self.routed[index, operation, queue]
        return self.stored[index, operation][0], ()

    def rows(self, index: int, operation: int) -> Sequence[Mapping[str, Any]]:
        return self.stored.get((index, operation), (b"", ()))[1]


class World:
    """Everything about one group."""

    def __init__(self, limits: Limits = PRODUCTION, *, has_model: bool = False) -> None:
        self.limits = limits
        self.log = Log()
        self.machine = self.empty()
        self.model = ModelGroup(limits, self.log.rows) if has_model else None
        self.twin: GroupMachine | None = None  # must agree; may forget what is local
        self.index = 0
        self.now_ms = START_MS
        self.entries: list[tuple[Meta, tuple[Operation, ...]]] = []
        self.numbers: dict[bytes, int] = {}
        self.epochs: dict[bytes, int] = {}
        self.sequences: dict[bytes, int] = {}
        self.checks = True
        self._checkpointer: Checkpointer | None = None

    # ---- machines with the same limits and log

    def empty(self, pages: Pages | None = None) -> GroupMachine:
        return GroupMachine(self.log, pages, self.limits)

    def restored(self, data: bytes) -> GroupMachine:
        """From a snapshot."""
        return snapshot.decode(data, self.log, limits=self.limits)

    def resumed(self, state: bytes, pages: Pages) -> GroupMachine:
        """From a checkpoint."""
        return checkpoint.resume(state, self.log, pages, self.limits)

    def checkpointer(self, machine: GroupMachine) -> Checkpointer:
        """The machine's; it is kept until that of another machine is asked for."""
        if self._checkpointer is None or self._checkpointer.group is not machine:
            self._checkpointer = Checkpointer(machine)
        return self._checkpointer

    def info(self, queue: int = 1) -> QueueInfo:
        found = queries.info(self.machine, queue)
        assert found is not None
        return found

    # ---- one entry

    def apply(self, operations: Sequence[tuple[Origin | None, Command]], passed_ms: int = 1) -> Applied:
        self.index += 1
        self.now_ms += passed_ms
        meta = Meta(self.index, 1, self.now_ms, CURRENT)
        numbered = tuple([Operation(i, origin, command) for i, (origin, command) in enumerate(operations)])
        self.entries.append((meta, numbered))
        applied = self.machine.apply(meta, numbered)
        data = None
        if self.twin is not None:
            assert self.twin.apply(meta, numbered) == applied
            data = snapshot.encode(self.machine)
            assert snapshot.encode(self.twin) == data
            assert self.twin.next_wake() == self.machine.next_wake()
        if self.model is not None:
            replies, events = self.model.apply(meta, numbered)
            assert [plain_reply(reply) for reply in applied.replies] == [
                plain_reply(reply) for reply in replies
            ]
            assert [plain_effect(event) for event in applied.effects] == events
            assert self.machine.next_wake() == self.model.next_wake()
            for queue, model in self.model.queues.items():
                info = queries.info(self.machine, queue)
                assert info is not None
                assert info.ready == len(model.ready())
                assert info.delayed == len(model.delayed())
                assert info.total == len(model.messages) + len(model.dead.messages)
                work = queries.dead_work(self.machine, queue, self.limits.max_claimed)
                assert work is not None
                assert claims_of(work) == [
                    (each.number, each.message.sequence, *each.message.body, each.cause, each.time_ms)
                    for each in model.dead.claimed()
                ]
                assert self.machine.queues[queue].messages.dead.last_number == model.dead.last_number
                assert (info.dead, work.epoch, work.inherited_to, work.producer, work.problem) == (
                    len(model.dead.messages),
                    model.dead.epoch,
                    model.dead.inherited_to(),
                    model.dead.producer,
                    model.dead.problem,
                )
                counts = asdict(info.totals)
                assert counts.pop("published") == model.next_sequence - 1
                assert counts == {name: model.counts[name] for name in counts}
                assert dict(info.ready_levels) == model.ready_levels()
                assert info.next_sequence == model.next_sequence
                assert [
                    (each.producer, each.batch, each.part, each.rows, each.size_bytes, each.last_ms)
                    for each in queries.staged(self.machine, queue)
                ] == [
                    (*part.key, part.rows(), part.size_bytes(), part.last_ms) for part in model.staged.parts
                ]
        if self.checks:
            invariants.check(self.machine, data)
            if self._checkpointer is not None:
                self._checkpointer.check()
        return applied

    def do(self, name: bytes, command: Command, passed_ms: int = 1) -> Reply | None:
        """One operation, as an entry of its own."""
        return self.apply([self.op(name, command)], passed_ms).replies[0]

    def op(self, name: bytes, command: Command) -> tuple[Origin, Command]:
        """The session's next numbered operation."""
        self.numbers[name] = self.numbers.get(name, 0) + 1
        return Origin(name, self.epochs[name], self.numbers[name]), command

    def wake(self, passed_ms: int = 0) -> Applied:
        return self.apply([(None, Wake())], passed_ms)

    def wake_until_done(self) -> list[Applied]:
        """Wakes as a leader does, until nothing is due."""
        found = []
        while (due := self.machine.next_wake()) is not None and due <= self.now_ms:
            found.append(self.wake())
            assert len(found) < 10_000
        return found

    # ---- usual steps

    def queue(self, queue: int = 1, **arguments: Any) -> None:
        arguments.setdefault("name", f"queue-{queue}")
        if arguments.get("filter_enabled"):
            arguments.setdefault("filter_field_names", ("*", "header.priority"))
        self.apply([(None, CreateQueue(queue, QueueConfig(**arguments)))])

    def session(
        self,
        number: int = 1,
        epoch: int = 1,
        node: int = 1,
        boot: int = 1,
        heard_ms: int | None = None,
        owner: int = UNKNOWN,
    ) -> bytes:
        """heard_ms: the group time now if not given."""
        name = producer(number)
        self.epochs[name] = epoch
        self.numbers[name] = 0
        address = Address(node, boot, number * 100 + epoch)
        heard_ms = self.now_ms if heard_ms is None else heard_ms
        self.apply([(Origin(name, epoch, 0), RegisterProducer(address, owner, heard_ms))])
        return name

    def batch(
        self,
        name: bytes,
        count: int,
        rows: Sequence[Mapping[str, Any]] = (),
        place: int = 0,
        queue: int = 1,
        **more: Any,
    ) -> tuple[Origin, Command]:
        """A batch as operation `place` of the next entry; `rows` are its filter fields. size: of each message."""
        first = more.pop("first", None)
        if first is None:
            first = self.sequences.get(name, 1)
            self.sequences[name] = first + count
        encoded = columns.encode(rows) if rows else b""
        self.log.stored[self.index + 1, place] = (encoded, rows)
        more.setdefault("lowest_unconfirmed", max(first, 0))
        size = count * more.pop("size", 100)
        command = Enqueue(queue, first, count=count, size_bytes=size, columns=encoded, **more)
        return self.op(name, command)

    def routed(
        self,
        name: bytes,
        routes: Sequence[Sequence[int]],
        rows: Sequence[Mapping[str, Any]] = (),
        place: int = 0,
        numbers: Sequence[int] = (),
        plain: Sequence[int] = (),
        **more: Any,
    ) -> tuple[Origin, Command]:
        """A batch of one message for each of `routes`, which has its queues. plain: queues that keep no fields.
        numbers: the messages' own; the next ones if not given."""
        count = len(routes)
        if not numbers:
            first = self.sequences.get(name, 1)
            numbers = range(first, first + count)
        self.sequences[name] = max(self.sequences.get(name, 1), numbers[-1] + 1)
        self.log.stored[self.index + 1, place] = (b"", rows)
        targets = []
        for queue in sorted({queue for route in routes for queue in route}):
            ordinals = [ordinal for ordinal, route in enumerate(routes) if queue in route]
            has_fields = bool(rows) and queue not in plain
            encoded = columns.encode([rows[ordinal] for ordinal in ordinals]) if has_fields else b""
            target = Target(queue, ranges_of(ordinals), encoded)
            self.log.routed[self.index + 1, place, queue] = encoded, target.ranges
            targets.append(target)
        more.setdefault("lowest_unconfirmed", max(numbers[0], 0))
        dense = range(numbers[0], numbers[0] + count)
        more["numbers"] = () if list(numbers) == list(dense) else ranges_of(numbers)
        size = count * 100
        command = Enqueue(0, numbers[0], count=count, size_bytes=size, targets=tuple(targets), **more)
        return self.op(name, command)

    def chunk(
        self,
        name: bytes,
        batch: int,
        part: int,
        chunk: int,
        count: int,
        rows: Sequence[Mapping[str, Any]] = (),
        place: int = 0,
        queue: int = 1,
        producer: str = "writer",
        **more: Any,
    ) -> tuple[Origin, Command]:
        """A staged chunk as operation `place` of the next entry; `rows` are its filter fields. size: of a message."""
        encoded = columns.encode(rows) if rows else b""
        self.log.stored[self.index + 1, place] = (encoded, rows)
        named = (producer, batch, part_name(part), chunk)
        size = count * more.pop("size", 100)
        command = Stage(queue, *named, count=count, size_bytes=size, columns=encoded, **more)
        return self.op(name, command)

    def stage(
        self, name: bytes, batch: int, part: int, chunk: int, count: int, *rest: Any, **more: Any
    ) -> Reply | None:
        """A staged chunk in an entry of its own."""
        passed_ms = more.pop("passed_ms", 1)
        return self.apply([self.chunk(name, batch, part, chunk, count, *rest, **more)], passed_ms).replies[0]

    def publish_staged(
        self, name: bytes, batch: int, *parts: tuple[int, int], queue: int = 1, producer: str = "writer"
    ) -> Applied:
        """parts: (number, messages)."""
        named = tuple([(part_name(part), count) for part, count in parts])
        return self.apply([self.op(name, PublishStaged(queue, producer, batch, named))])

    def publish(
        self, name: bytes, count: int, rows: Sequence[Mapping[str, Any]] = (), **more: Any
    ) -> Applied:
        passed_ms = more.pop("passed_ms", 1)
        return self.apply([self.batch(name, count, rows, **more)], passed_ms)

    def attach(
        self, name: bytes, tag: str, credit: int, text: str = "", queue: int = 1, priority: int = 0
    ) -> tuple[int, Applied]:
        applied = self.apply([self.op(name, Attach(queue, tag, selector(text), credit, priority))])
        reply = applied.replies[0]
        assert isinstance(reply, AttachedReply)
        return reply.attach, applied


def in_transaction(tx: int, operation: tuple[Origin, Command]) -> tuple[Origin, InTransaction]:
    """The operation as part of a transaction."""
    origin, command = operation
    assert isinstance(command, Enqueue | Settle)
    return origin, InTransaction(tx, command)


def ranges_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges (first, count)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return tuple(found)


def plain_reply(reply: Reply | None) -> Any:
    """What the model says, too."""
    if isinstance(reply, Confirmed):
        refused = [
            (number, why.reason) for first, last, why in reply.refused for number in range(first, last + 1)
        ]
        return reply.first, reply.last, refused
    return ("refused", reply.reason) if isinstance(reply, Refused) else reply


def plain_effect(effect: effects.Effect) -> Any:
    """One effect as the model writes it: single messages instead of runs."""
    if isinstance(effect, effects.Notify):
        place = (effect.address, effect.queue, effect.consumer_tag, effect.attach)
        return ("notify", *place, effect.event, effect.value)
    if isinstance(effect, effects.QueueExpired):
        return "expired", effect.queue
    assert isinstance(effect, Deliver)
    messages = bodies(effect)
    counts = dict(effect.delivery_counts)
    return (
        "deliver",
        effect.address,
        effect.queue,
        effect.consumer_tag,
        effect.attach,
        effect.first_tag,
        messages,
        [bool(effect.redelivered >> i & 1) for i in range(len(messages))],
        [counts.get(i, 0) for i in range(len(messages))],
        effect.settled,
    )


def bodies(effect: Deliver) -> list[tuple[int, int, int, int]]:
    """(sequence, index, operation, ordinal) of each message delivered."""
    return bodies_of(effect.runs)


def bodies_of(runs: Sequence[effects.Run]) -> list[tuple[int, int, int, int]]:
    """The same of the messages of runs."""
    found = []
    for run in runs:
        for i in range(run.count):
            body = (run.operation + i, 0) if run.one_each else (run.operation, run.ordinal + i)
            found.append((run.first_sequence + i, run.index, *body))
    return found


def claims_of(work: DeadWork) -> list[tuple[int, int, int, int, int, str, int]]:
    """Number, sequence, index, operation, ordinal, cause and time of each claimed message."""
    return [
        (each.number + place, *body, each.cause, each.time_ms)
        for each in work.claimed
        for place, body in enumerate(bodies_of([each.run]))
    ]


def sequences(applied: Applied, tag: str | None = None) -> list[int]:
    """The sequences an entry delivered, to one consumer or to all."""
    return [
        body[0]
        for effect in applied.effects
        if isinstance(effect, Deliver) and tag in (None, effect.consumer_tag)
        for body in bodies(effect)
    ]
