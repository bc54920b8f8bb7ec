"""What leaves the bounded queues (bounded.py), judged in every log entry by whichever member applies it first.

The ledger compares which messages are ready, checked out and delayed before an entry, after its operations, and after
the queue was served. When a message arrived is known from the entry, what it is from its body, its TTL from the client
that sent it; so nothing is taken from the machine's own idea of when it may leave. Rules:

- a message with a TTL is not handed out after its expiry by group time, except in the entry that brought it, and none
  that has expired is ready after an entry
- it expires only then, and not much earlier by the world's time either: group time may be ahead by a leader's slew
- with `drop-head` a queue has at most `x-max-length` ready messages after an entry, the oldest have left, and no more
  than had to
- with `reject-publish` no message arrives beyond `x-max-length`; what was refused is never handed out (rules.py)
- a message leaves for its delivery limit only after one more failed delivery than the limit, and is not handed out
  after that (rules.py)
- nothing else leaves that no client wanted to settle
- a queue with priorities hands out no message while one with a higher priority was ready before, and still is
- a message that was published with a delay is neither ready nor handed out before its time, and not delayed after it
- in a queue that delays what is returned, nothing that was checked out is ready at once
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from fifo.budgets import Entry
from fifo.consumers.consumer import Key as ConsumerKey
from fifo.group_machine import GroupMachine
from fifo.messages import bitsets
from fifo.queue_machine import QueueMachine
from quorum.client.messages.batch import BatchReader
from quorum.histories import Run
from quorum.node.replica.applier import Applier
from quorum.node.wire.operations import Command, batch_of, count_of
from simulator.rules.rules import EARLIEST_PERCENT, Broken, Key, Origin, origin_of

if TYPE_CHECKING:
    from simulator.machines.node import Node
    from simulator.world import World

EARLIEST_MS = 50
"""A message lives at least EARLIEST_PERCENT of its TTL by the world's clock, less so many milliseconds."""


@dataclass(frozen=True, slots=True)
class Sent:
    """When a client sent a message, with what TTL, -1 for none, with what priority, and with what delay."""

    at_ms: int
    ttl_ms: int
    priority: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message in its queue. expires_ms, due_ms: group time; -1 for never, and for at once. priority: 0 in a queue
    without priorities."""

    origin: Origin
    expires_ms: int
    ttl_ms: int
    priority: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Messages:
    """The ready, the checked-out and the delayed messages of a queue, as bit sets of sequences."""

    ready: int = 0
    held: int = 0
    delayed: int = 0

    @property
    def all(self) -> int:
        return self.ready | self.held | self.delayed


@dataclass(frozen=True, slots=True)
class Note:
    """What was known of a queue before a member applied an entry in a step that was not yet synced.

    next: the sequence from which on nothing had arrived. gone: how many messages had left.
    """

    queue: str
    index: int
    judged: int
    next: int
    messages: Messages
    gone: int


def sequences(members: int) -> Iterator[int]:
    for first, count in bitsets.ranges(members):
        yield from range(first, first + count)


class Ledger:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: dict[Origin, Sent] = {}
        self._arrived: dict[Key, Arrived] = {}
        self._next: Counter[str] = Counter()
        """by queue, the sequence from which on nothing has arrived yet"""
        self._judged: Counter[str] = Counter()
        """by queue, the last entry that was judged"""
        self._messages: dict[str, Messages] = {}
        self._tried: Counter[Key] = Counter()
        self._failed: Counter[Key] = Counter()
        self._returned: dict[Key, None] = {}
        """what was delayed when it was returned"""
        self._gone: dict[Key, str] = {}
        """what has left without having been settled, and why"""
        self._body: bytes | memoryview = b""
        self._unsure: list[Note] = []
        """of entries in whose step the power has gone, the latest of a step first"""

    # ---- what clients do

    def send(self, origin: Origin, ttl_ms: int | None, priority: int = 0, delay_ms: int = 0) -> None:
        self._sent[origin] = Sent(self._world.now_ms, -1 if ttl_ms is None else ttl_ms, priority, delay_ms)

    def fails(self, keys: list[Key]) -> None:
        """A client is about to say that these deliveries failed."""
        self._tried.update(keys)

    def failed(self, keys: list[Key]) -> None:
        """It was answered so."""
        self._failed.update(keys)

    def failures_of(self, key: Key) -> int:
        """How many failed deliveries of it were answered."""
        return self._failed[key]

    def delivery_limit(self, queue: str) -> int:
        """-1: there is none."""
        return next(
            (
                place.arguments.get("x-delivery-limit", -1)
                for place in self._world.bounded
                if place.name == queue
            ),
            -1,
        )

    def left(self) -> Iterator[tuple[str, Run]]:
        """(queue, message) of each that has left without having been settled, for a reason that was judged here."""
        for name, sequence in self._gone:
            producer, number = self._arrived[name, sequence].origin
            yield name, Run(sequence, str(producer), number)

    # ---- what members apply

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the run lasts, every entry of a bounded queue is judged."""
        finish: Callable[[QueueMachine, Entry], list[ConsumerKey]] = QueueMachine.finish
        apply_entry: Callable[..., bool] = Applier._apply_entry
        names = {place.name for place in self._world.bounded}

        def applied(applier: Applier, replica: Any, index: int, term: int, body: Any, now_ms: int) -> bool:
            if isinstance(replica.machine, GroupMachine):
                self._settle(replica.machine, names, index)
            self._body = body
            is_done = apply_entry(applier, replica, index, term, body, now_ms)
            if isinstance(replica.machine, GroupMachine):
                self._note_unserved(replica.machine, names, index)
            return is_done

        def finished(machine: QueueMachine, entry: Entry) -> list[ConsumerKey]:
            name = machine.messages.config.name
            if name not in names or entry.index <= self._judged[name]:
                return finish(machine, entry)
            self._remember(name, entry.index)
            self._arrive(machine, entry.now_ms)
            before, served = self._messages.get(name, Messages()), self._look(machine)
            gone = finish(machine, entry)
            after = self._look(machine)
            self._judged[name] = entry.index
            self._messages[name] = after
            self._judge(machine, entry, before, served, after)
            return gone

        with ExitStack() as stack:
            if names:
                stack.enter_context(mock.patch.object(Applier, "_apply_entry", applied))
                stack.enter_context(mock.patch.object(QueueMachine, "finish", finished))
            yield

    def _remember(self, name: str, index: int) -> None:
        """A member applies within the step that syncs. Its step counts only once that sync is done."""
        node = self._world.stepping
        if node is None or not node.delay_ms:
            return
        messages = self._messages.get(name, Messages())
        gone = len(self._gone_from(name))
        node.unsynced.append(Note(name, index, self._judged[name], self._next[name], messages, gone))

    def _gone_from(self, name: str) -> list[Key]:
        return [key for key in self._gone if key[0] == name]

    def power_cut(self, node: Node) -> None:
        """The power has gone in the middle of a sync: whether the entries of this step count is seen at later ones."""
        while node.unsynced:
            self._unsure.append(node.unsynced.pop())

    def _settle(self, group: GroupMachine, names: set[str], index: int) -> None:
        """A member is about to apply an entry. Earlier ones of which it is not sure that they count do so if the member
        has the state that they have left: with a snapshot they may have reached the disk before the power was gone."""
        for machine in group.queues.values():
            name = machine.messages.config.name
            for note in [each for each in self._unsure if each.queue == name and each.index <= index]:
                self._unsure.remove(note)
                is_overtaken = self._judged[name] > note.index  # another member has applied it, too
                counts = note.index < index and self._is_as_noted(machine, note)
                if name in names and not is_overtaken and not counts:
                    self._take_back(note)

    def _is_as_noted(self, machine: QueueMachine, note: Note) -> bool:
        if machine.messages.next_sequence != self._next[note.queue]:
            return False
        was_served = self._judged[note.queue] == note.index
        return not was_served or self._look(machine) == self._messages[note.queue]

    def _take_back(self, note: Note) -> None:
        name = note.queue
        self._judged[name], self._next[name], self._messages[name] = note.judged, note.next, note.messages
        for key in self._gone_from(name)[note.gone :]:
            del self._gone[key]

    def _look(self, machine: QueueMachine) -> Messages:
        ready = held = delayed = 0
        for number in machine.messages.blocks.numbers():
            block = machine.messages.blocks.view(number)
            ready |= block.ready << block.base
            held |= block.checked_out << block.base
            delayed |= block.delayed << block.base
        return Messages(ready, held, delayed)

    def _note_unserved(self, group: GroupMachine, names: set[str], index: int) -> None:
        """Notes what has come to queues that an entry leaves for a later one to serve."""
        for machine in group.queues.values():
            name = machine.messages.config.name
            if name in names and machine.messages.next_sequence > max(1, self._next[name]):
                self._remember(name, index)
                self._arrive(machine, group.now_ms)

    def _arrive(self, machine: QueueMachine, now_ms: int) -> None:
        """Notes what this entry has brought, before any of it can leave."""
        name, first = machine.messages.config.name, max(1, self._next[machine.messages.config.name])
        self._next[name] = machine.messages.next_sequence
        command = Command(self._body)
        while first < machine.messages.next_sequence:
            block = machine.messages.blocks.get(first >> machine.limits.block_bits)
            slot = first - block.base
            count = min(machine.messages.next_sequence - first, block.size - slot)
            runs: list[Any] = []
            block.runs.clip(block.base, slot, count, runs)
            for run in runs:
                for offset in range(run.count):
                    operation = command.operation(run.operation + (offset if run.one_each else 0))
                    batch = BatchReader(bytes(batch_of(operation)), count_of(operation))
                    origin = origin_of(batch.body(0 if run.one_each else run.ordinal + offset))
                    self._arrived[name, run.first_sequence + offset] = self._as_sent(machine, now_ms, origin)
            first += count

    def _as_sent(self, machine: QueueMachine, now_ms: int, origin: Origin) -> Arrived:
        ttls = [
            each for each in (machine.messages.config.message_ttl_ms, self._sent[origin].ttl_ms) if each >= 0
        ]
        ttl = min(ttls, default=-1)
        priority = min(self._sent[origin].priority, max(0, machine.messages.config.max_priority))
        delay_ms = self._sent[origin].delay_ms
        due_ms = now_ms + delay_ms if delay_ms else -1
        return Arrived(origin, now_ms + delay_ms + ttl if ttls else -1, ttl, priority, due_ms)

    # ---- the rules

    def _judge(
        self, machine: QueueMachine, entry: Entry, before: Messages, served: Messages, after: Messages
    ) -> None:
        """served: as the operations have left it, before the queue was served."""
        name, config = machine.messages.config.name, machine.messages.config
        new = served.all & ~before.all
        if before.ready & ~served.all:
            self._broken(name, before.ready & ~served.all, "was ready and an operation has removed it")
        for sequence in sequences(before.held & ~served.all):
            self._leaves_held(machine, entry, (name, sequence))
        if served.held & ~after.all:
            self._broken(
                name, served.held & ~after.all, "was checked out and left while the queue was served"
            )
        for sequence in sequences(served.ready & after.held & ~new):
            if self._has_expired((name, sequence), entry):
                self._broken(name, 1 << sequence, "has expired and is handed out")
        for sequence in sequences(after.ready):
            if self._has_expired((name, sequence), entry) and not machine.unfinished:
                self._broken(name, 1 << sequence, "has expired and is ready")
        self._hand_out(name, served.ready & after.held, served.ready & after.ready)
        self._delay(machine, entry.now_ms, before, served, after)
        left = served.ready & ~after.all
        expired = sum(1 << each for each in sequences(left) if self._has_expired((name, each), entry))
        for sequence in sequences(expired):
            self._expires((name, sequence))
        if config.overflow == "drop_head":
            self._drop_head(machine, left & ~expired, after)
        elif left & ~expired:
            self._broken(name, left & ~expired, "has left a queue that refuses what is too much")
        elif new and 0 <= config.max_length < (served.ready & ~before.held).bit_count():
            self._broken(name, new, f"came to a queue of at most {config.max_length} ready messages")

    def _hand_out(self, name: str, given: int, waiting: int) -> None:
        """Messages that were handed out while the queue was served, and those that were ready and still are."""
        if not given or not waiting:
            return
        lowest = min(sequences(given), key=lambda each: self._arrived[name, each].priority)
        highest = max(sequences(waiting), key=lambda each: self._arrived[name, each].priority)
        if self._arrived[name, lowest].priority < self._arrived[name, highest].priority:
            self._broken(
                name, 1 << highest, f"has a higher priority than {lowest}, which is handed out first"
            )

    def _delay(
        self, machine: QueueMachine, now_ms: int, before: Messages, served: Messages, after: Messages
    ) -> None:
        name, delays_returned = machine.messages.config.name, machine.messages.config.delayed_retry_min_ms > 0
        if delays_returned and before.held & served.ready:
            self._broken(name, before.held & served.ready, "was returned and is ready at once")
        returned = before.held & served.delayed
        self._returned.update(dict.fromkeys([(name, sequence) for sequence in sequences(returned)]))
        for sequence in sequences((after.ready | after.held) & ~(before.ready | before.held)):
            arrived = self._arrived[name, sequence]
            sent = self._sent[arrived.origin]
            waited_ms = self._world.now_ms - sent.at_ms
            is_early = waited_ms < sent.delay_ms * EARLIEST_PERCENT // 100 - EARLIEST_MS
            if arrived.due_ms > now_ms or is_early:
                self._broken(
                    name, 1 << sequence, f"has a delay of {sent.delay_ms} ms and is ready before its time"
                )
            self._world.rules.counts["delays ended"] += arrived.due_ms >= 0
        for sequence in sequences(after.delayed):
            key = name, sequence
            if self._arrived[key].due_ms <= now_ms and key not in self._returned:
                self._broken(name, 1 << sequence, "is delayed after its time")

    def _drop_head(self, machine: QueueMachine, dropped: int, after: Messages) -> None:
        name, limit = machine.messages.config.name, machine.messages.config.max_length
        ready = after.ready.bit_count()
        if dropped and limit < 0:
            self._broken(name, dropped, "has left a queue without a length limit")
        if dropped and ready < limit:
            self._broken(name, dropped, f"had to go, and {ready} of {limit} are left")
        if dropped and after.ready and dropped > after.ready & -after.ready:
            self._broken(name, dropped, "had to go, and older ones are left")
        if 0 <= limit < ready and not machine.unfinished:
            self._broken(name, after.ready, f"is ready: {ready} messages of at most {limit}")
        for sequence in sequences(dropped):
            self._leave((name, sequence), "messages dropped by max-length")

    def _leaves_held(self, machine: QueueMachine, entry: Entry, key: Key) -> None:
        """A message that was checked out has left in an operation."""
        limit = machine.messages.config.delivery_limit
        if self._arrived[key].origin in self._world.rules.taken:
            return
        if 0 <= limit < self._tried[key]:
            self._leave(key, "messages dropped by delivery limit")
        elif self._has_expired(key, entry):
            self._expires(key)
        else:
            raise Broken(
                f"{key}, message {self._arrived[key].origin}, left the queue and nobody has settled it"
            )

    def _expires(self, key: Key) -> None:
        arrived = self._arrived[key]
        lived_ms = self._world.now_ms - self._sent[arrived.origin].at_ms
        if lived_ms < arrived.ttl_ms * EARLIEST_PERCENT // 100 - EARLIEST_MS:
            raise Broken(f"{key} has a TTL of {arrived.ttl_ms} ms and expired after {lived_ms} ms")
        self._leave(key, "messages expired")

    def _has_expired(self, key: Key, entry: Entry) -> bool:
        return 0 <= self._arrived[key].expires_ms <= entry.now_ms

    def _leave(self, key: Key, why: str) -> None:
        self._gone[key] = why
        self._world.rules.counts[why] += 1

    def _broken(self, name: str, members: int, what: str) -> None:
        sequence = bitsets.first(members)
        raise Broken(f"message {sequence} of {name!r}, {self._arrived[name, sequence].origin}, {what}")
