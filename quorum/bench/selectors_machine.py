"""One queue without a network: the machine that every member runs, fed entry by entry in this process.

The bench measures the processor time inside `apply`. Encoding, which a node does once for all members, comes before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fifo import versions
from fifo.commands import (
    UNKNOWN,
    Address,
    Attach,
    Cancel,
    Command,
    CreateQueue,
    Enqueue,
    Meta,
    Operation,
    Origin,
    QueueConfig,
    RegisterProducer,
    Return,
    Wake,
)
from fifo.consumers.filter_fields import StoredFields
from fifo.effects import Applied, AttachedReply, Deliver, Refused
from fifo.group_machine import GroupMachine
from fifo.queries import group as queries
from quorum.bench.run import BenchFailed

QUEUE = 1
PRODUCER = b"selectors bench!"
CONSUMERS_A_SESSION = 4_096
"""Each session has its own client address, because one address may have only as many consumers as are left free."""
BODY_BYTES = 256
START_MS = 1_000_000
MS_PER_ENTRY = 1


class StoredColumns:
    """The columns of all entries, in place of a member's log; the machine reads columns that it has dropped from
    here."""

    def __init__(self) -> None:
        self._stored: dict[tuple[int, int], bytes] = {}
        self.size_bytes = 0

    def put(self, index: int, operation: int, data: bytes) -> None:
        self._stored[index, operation] = data
        self.size_bytes += len(data)

    def columns(self, index: int, operation: int, queue: int) -> StoredFields:
        return self._stored[index, operation], ()


@dataclass(frozen=True, slots=True)
class Step:
    """An applied entry, with its processor time."""

    applied: Applied
    cpu_s: float

    @property
    def deliveries(self) -> list[Deliver]:
        return [effect for effect in self.applied.effects if isinstance(effect, Deliver)]

    @property
    def delivered(self) -> int:
        """Number of delivered messages."""
        return sum(run.count for effect in self.deliveries for run in effect.runs)


class LocalQueue:
    """One queue that filters by all application properties, and the entries that a leader would propose.

    One session publishes and also has the first consumers; further sessions have the next ones.
    """

    def __init__(self) -> None:
        self.stored = StoredColumns()
        self.machine = GroupMachine(self.stored)
        self._index = 0
        self._now_ms = START_MS
        self._sent: dict[bytes, int] = {}  # by session
        self._session_of: dict[str, bytes] = {}  # by the consumer's tag
        self._next_client_sequence = 1
        config = QueueConfig("bench", filter_enabled=True, filter_field_names=("*",))
        self._apply([(None, CreateQueue(QUEUE, config))])
        self._open(PRODUCER)

    # ---- entries

    def _apply(self, operations: Sequence[tuple[Origin | None, Command]]) -> Step:
        self._index += 1
        self._now_ms += MS_PER_ENTRY
        meta = Meta(self._index, 1, self._now_ms, versions.CURRENT)
        numbered = tuple([Operation(i, origin, command) for i, (origin, command) in enumerate(operations)])
        began = time.process_time()
        applied = self.machine.apply(meta, numbered)
        cpu_s = time.process_time() - began
        for reply in applied.replies:
            if isinstance(reply, Refused):
                raise BenchFailed(f"the queue refuses: {reply.detail}")
        return Step(applied, cpu_s)

    def _open(self, session: bytes) -> None:
        """Open a session from its own client address."""
        number = len(self._sent)
        self._apply([(Origin(session, 1, 0), RegisterProducer(Address(1, 1, 1), UNKNOWN + number))])
        self._sent[session] = 0

    def do(self, commands: Sequence[Command], session: bytes = PRODUCER) -> Step:
        """Apply the session's next commands as one entry."""
        operations: list[tuple[Origin | None, Command]] = []
        for n, command in enumerate(commands, self._sent[session] + 1):
            operations.append((Origin(session, 1, n), command))
        self._sent[session] += len(commands)
        return self._apply(operations)

    def publish(self, batches: Sequence[tuple[int, bytes]]) -> Step:
        """Publish batches, each (number of messages, columns), as one entry."""
        commands: list[Command] = []
        for place, (count, data) in enumerate(batches):
            first = self._next_client_sequence
            self._next_client_sequence += count
            self.stored.put(self._index + 1, place, data)
            commands.append(Enqueue(QUEUE, first, first, count, count * BODY_BYTES, columns=data))
        return self.do(commands)

    def attach(self, consumers: Sequence[tuple[str, bytes]], credit: int) -> tuple[list[int], Step]:
        """Attach consumers, each (tag, encoded selector), as one entry. Returns their attachments and the step."""
        number = len(self._session_of) // CONSUMERS_A_SESSION
        session = b"consumers %6d" % number if number else PRODUCER
        if session not in self._sent:
            self._open(session)
        self._session_of.update((tag, session) for tag, _ in consumers)
        step = self.do([Attach(QUEUE, tag, selector, credit) for tag, selector in consumers], session)
        replies = step.applied.replies
        return [reply.attach for reply in replies if isinstance(reply, AttachedReply)], step

    def cancel(self, tag: str) -> Step:
        """Detach a consumer; its messages are returned."""
        return self.do([Cancel(QUEUE, tag, True)], self._session_of.pop(tag))

    def give_back(self, tag: str, attach: int, delivery_tag: int) -> Step:
        """Return one message to the queue."""
        command = Return(QUEUE, tag, attach, ((delivery_tag, delivery_tag),))
        return self.do([command], self._session_of[tag])

    def go_on(self) -> list[Step]:
        """Apply wakes, as a leader proposes them, until no work is due."""
        steps = []
        while (due := self.machine.next_wake()) is not None and due <= self._now_ms:
            steps.append(self._apply([(None, Wake())]))
        return steps

    # ---- figures

    @property
    def evaluations(self) -> int:
        """Number of evaluations of selectors on messages so far."""
        return self.machine.queues[QUEUE].groups.fields.evaluated

    @property
    def memory_bytes(self) -> int:
        """Memory of the queue's blocks by their own accounting, columns included."""
        storage = queries.storage(self.machine, QUEUE, 0)
        assert storage is not None
        return storage.warm_bytes

    @property
    def waiting(self) -> int:
        """Number of ready messages."""
        return self.machine.queues[QUEUE].messages.ready_count
