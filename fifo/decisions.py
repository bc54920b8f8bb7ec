"""Transactions over several groups: parts that wait for a decision, and the decisions.

Each group has its part of the transaction under embargo (`fifo.transactions`). One group decides: the *record's group*,
which has the transaction's first part. The session's node asks in this order:

1. Prepare, in every other group. From then on only the decision and the deletion of a queue change this part. The end
   of the session or of a consumer, a timeout, a new policy and its age do not. It cannot fail later either: room in the
   queues is reserved, and the messages that it settles belong to it, no longer to their consumers. The deletion of a
   queue deletes the part of this queue.
2. Decide, in the record's group, when all are prepared. The part of this group counts with this entry, and a record
   says that the transaction is committed and which groups have not heard of it.
3. Finish, in every other group: the part counts.
4. Finished, in the record's group: the record is forgotten.

Nothing is written for a transaction that does not commit: no record means that it is rolled back. Where a group waits
too long for the decision, its leader asks with Resolve. That ends a transaction which is not decided: a Decide that
arrives later is refused, so the answer never changes. If the node of the session is lost after the decision, the node
of the leader of the record's group sends Finish and Finished.

Until a part is finished, its group refuses a later session of the producer. So what the client publishes after the
commit is behind what the transaction published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fifo.budgets import Entry
from fifo.commands import Commit, Decide, Finish, Finished, Prepare, Resolve
from fifo.effects import Ok, Refused, Reply
from fifo.embargo import Key, Part
from fifo.producers import Producer, Sessions
from fifo.queue_machine import QueueMachine
from fifo.results import DecidedTransaction, PreparedPart
from fifo.transactions import Transactions


@dataclass(slots=True, eq=False)
class Prepared:
    """A part of a transaction that another group decides. record: that group. The counts follow from the parts."""

    producer: bytes
    owner: int
    number: int
    record: int
    prepared_ms: int
    queues: dict[int, None] = field(default_factory=dict)
    messages: int = 0
    size_bytes: int = 0
    ranges: int = 0

    @property
    def key(self) -> Key:
        return self.producer, self.number

    def count(self, queue: int, part: Part) -> None:
        self.queues[queue] = None
        self.messages += part.message_count
        self.size_bytes += part.size_bytes
        self.ranges += part.range_count


@dataclass(slots=True, eq=False)
class Decision:
    """A transaction that was committed here. groups: those whose parts are perhaps not finished. ranges: the most that
    each of them has."""

    producer: bytes
    owner: int
    number: int
    decided_ms: int
    ranges: int
    groups: tuple[int, ...]

    @property
    def key(self) -> Key:
        return self.producer, self.number


class Decisions:
    """What a group has prepared for the decisions of others, and what it has decided itself."""

    __slots__ = ("_dirty", "_open", "_queues", "_sessions", "decided", "prepared", "waiting")

    def __init__(
        self,
        transactions: Transactions,
        sessions: Sessions,
        queues: Mapping[int, QueueMachine],
        dirty: dict[int, None],
    ) -> None:
        """dirty: the queues that an entry has to finish."""
        self._open = transactions
        self._sessions = sessions
        self._queues = queues
        self._dirty = dirty
        self.prepared: dict[Key, Prepared] = {}  # in the order of preparing
        self.decided: dict[Key, Decision] = {}  # in the order of deciding
        self.waiting: dict[bytes, int] = {}  # producer -> its prepared parts: follows from them

    # ---- commands of the session

    def prepare(self, entry: Entry, producer: Producer, command: Prepare) -> Reply:
        key = producer.name, command.tx
        if key in self.prepared:
            return Ok()
        found = self._open.committable(entry, producer, command.tx, command.operations)
        if isinstance(found, Refused):
            return found
        queues = sorted(found.queues)
        self._open.remove(found)
        part = Prepared(producer.name, producer.owner, command.tx, command.record, entry.now_ms)
        for queue in queues:
            machine = self._queues[queue]
            for tag in machine.transactions.prepare(entry, key):
                del producer.consumers[queue, tag]
            for each in machine.transactions.embargo.parts[key]:
                part.count(queue, each)
            self._dirty[queue] = None
        self.add(part)
        return Ok()

    def decide(self, entry: Entry, producer: Producer, command: Decide) -> Reply:
        """Commits the part of this group, and with it the transaction."""
        was_open = (producer.name, command.tx) in self._open.by_key
        reply = self._open.commit(entry, producer, Commit(command.tx, command.operations, command.ranges))
        if was_open and isinstance(reply, Ok):
            found = Decision(
                producer.name, producer.owner, command.tx, entry.now_ms, command.ranges, command.groups
            )
            self.add_decision(found)
        return reply

    def refuse_commit(self, producer: Producer, number: int) -> Refused | None:
        """The refusal of a Commit that is asked again while other groups have not finished, else None."""
        if (producer.name, number) not in self.decided:
            return None
        return Refused("in_doubt", f"transaction {number} is committed, but not finished in all groups yet")

    def refuse_register(self, name: bytes) -> Refused | None:
        """The refusal of a later session of this producer, while a part of its transactions waits; else None."""
        if name not in self.waiting:
            return None
        return Refused("in_doubt", "a transaction of this producer waits for the decision of another group")

    # ---- commands of leaders and nodes

    def finish(self, entry: Entry, command: Finish) -> Reply:
        """The decision has been made. A part that is not known here has been finished before."""
        key = command.producer, command.tx
        part = self.prepared.get(key)
        if part is None:
            return Ok()
        self._remove(part)
        for queue in sorted(part.queues):
            self._queues[queue].transactions.decide(entry, key, is_committed=command.is_committed)
            self._dirty[queue] = None
        return Ok()

    def resolve(self, entry: Entry, command: Resolve) -> Reply:
        """Ok if the transaction is committed. Otherwise it is rolled back, and can never be committed."""
        key = command.producer, command.tx
        if key in self.decided:
            return Ok()
        producer = self._sessions.producers.get(command.producer)
        if producer is not None:
            if any(producer.committed.overlapping(command.tx, command.tx)):
                return Ok()
            self._open.end(entry, producer, command.tx)
        return Refused("rolled_back", f"transaction {command.tx} is not committed")

    def finished(self, command: Finished) -> Reply:
        """All other groups have finished."""
        found = self.decided.pop((command.producer, command.tx), None)
        if found is not None:
            self._open.owned.remove(found.owner)
        return Ok()

    def queue_ends(self, machine: QueueMachine) -> None:
        """A queue is about to be deleted, with its parts."""
        for key, parts in machine.transactions.embargo.parts.items():
            found = self.prepared.get(key)
            if found is None:
                continue
            del found.queues[machine.queue]
            ranges, size = sum(each.range_count for each in parts), sum(each.size_bytes for each in parts)
            found.messages -= sum(each.message_count for each in parts)
            found.ranges -= ranges
            found.size_bytes -= size
            self._open.owned_ranges.remove(found.owner, ranges)
            self._open.owned_bytes.remove(found.owner, size)

    # ---- what leaders do

    @property
    def are_waiting(self) -> bool:
        """Whether a part waits for its decision, or a decision may not be known everywhere."""
        return bool(self.prepared or self.decided)

    def due(self, now_ms: int) -> tuple[tuple[PreparedPart, ...], tuple[DecidedTransaction, ...]]:
        """The parts whose decision has to be asked for, and the decisions that have to be told once more: a bounded
        number of both for each group that is asked or told, so that none waits behind those of a group that does not
        answer. A part is due at once if its session has ended, because then nobody else may decide."""
        limits, producers = self._open.limits, self._sessions.producers
        most = limits.decisions_at_a_time
        asked: list[PreparedPart] = []
        told: list[DecidedTransaction] = []
        of_group: Counter[int] = Counter()
        for part in self.prepared.values():
            producer = producers.get(part.producer)
            has_ended = producer is None or producer.ended_ms >= 0
            is_due = has_ended or part.prepared_ms + limits.prepared_ms <= now_ms
            if is_due and of_group[part.record] < most:
                of_group[part.record] += 1
                asked.append(PreparedPart(part.producer, part.number, part.record, part.ranges))
        of_group.clear()
        for each in self.decided.values():
            if each.decided_ms + limits.finishing_ms > now_ms:
                break
            if any(of_group[group] < most for group in each.groups):
                of_group.update(each.groups)
                told.append(DecidedTransaction(each.producer, each.number, each.ranges, each.groups))
        return tuple(asked), tuple(told)

    # ---- inside

    def add(self, part: Prepared) -> None:
        """Adds a part as it is, with what it counts."""
        self.prepared[part.key] = part
        self.waiting[part.producer] = self.waiting.get(part.producer, 0) + 1
        shares = self._open
        shares.owned.add(part.owner)
        shares.owned_ranges.add(part.owner, part.ranges)
        shares.owned_bytes.add(part.owner, part.size_bytes)

    def add_decision(self, decision: Decision) -> None:
        """Adds a decision as it is. It keeps the place of its transaction among those of the owner."""
        self.decided[decision.key] = decision
        self._open.owned.add(decision.owner)

    def restore(self) -> None:
        """Counts the prepared parts, when a state has been read."""
        for queue in sorted(self._queues):
            machine = self._queues[queue]
            embargo = machine.transactions.embargo
            for key, parts in embargo.parts.items():
                found = self.prepared.get(key)
                if found is None:
                    continue
                for part in parts:
                    found.count(queue, part)
                    self._open.owned_ranges.add(found.owner, part.range_count)
                    self._open.owned_bytes.add(found.owner, part.size_bytes)
                machine.messages.reserve(*embargo.published(key))

    def _remove(self, part: Prepared) -> None:
        del self.prepared[part.key]
        left = self.waiting.pop(part.producer) - 1
        if left:
            self.waiting[part.producer] = left
        shares = self._open
        shares.owned.remove(part.owner)
        shares.owned_ranges.remove(part.owner, part.ranges)
        shares.owned_bytes.remove(part.owner, part.size_bytes)
