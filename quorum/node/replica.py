"""This node's share in one group: the Raft group, the machine it feeds, and what a leader has to keep beside them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fifo import commands as c
from fifo.group import GroupMachine
from quorum.catalog.commands import CatalogCommand
from quorum.catalog.machine import CatalogMachine
from quorum.log import Log
from quorum.node.digests import Digests
from quorum.node.group_time import GroupClock
from quorum.node.operations import COMMAND_BYTES, MAX_OPERATIONS, Command, columns_of, command_parts, encode
from quorum.replication.group import Group

SYSTEM_GROUP = 0
MACHINE_VERSION = 1
IN_FLIGHT_BYTES = 32 << 20
"""A leader holds operations back while this much of a group's log is not yet committed."""

_TIME_BYTES = 8


class FieldSource:
    """Where a queue machine finds the columns of a stored batch again."""

    def __init__(self, log: Log, group: int) -> None:
        self._log = log
        self._group = group

    def columns(self, index: int, operation: int) -> bytes | memoryview:
        return columns_of(Command(memoryview(self._log.read(self._group, index))[1:]).operation(operation))


@dataclass(slots=True)
class Replica:
    """One group. `pending` are operations that this node, as leader, has to pack into entries."""

    number: int
    raft: Group
    machine: GroupMachine | CatalogMachine
    field_source: FieldSource
    digests: Digests
    clock: GroupClock = field(default_factory=GroupClock)
    pending: deque[bytes] = field(default_factory=deque)
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(index, bytes) of own proposals not yet applied"""
    in_flight_bytes: int = 0
    announced_commit: int = 0
    seen: tuple[str | None, int] = (None, 0)
    """(leader, term) as of the last step"""
    bytes_since_snapshot: int = 0
    wake_pending: bool = False
    ready_term: int = -1
    """the term this node leads in with everything of earlier terms applied: only then it may propose, as group time
    goes on from the last entry"""
    touched: bool = True
    """something has come for it since its last turn"""
    down_proposed_ms: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def is_behind(self) -> bool:
        """Committed entries wait to be applied."""
        return self.raft.applied_index < self.raft.commit_index

    @property
    def leads(self) -> bool:
        """This node leads and knows all that was there before."""
        return self.raft.is_leader and self.ready_term == self.raft.term

    @property
    def can_propose(self) -> bool:
        return (
            bool(self.pending)
            and self.in_flight_bytes < IN_FLIGHT_BYTES
            and self.leads
            and not self.raft.is_handing_over  # then it waits: for the successor, or for this leader to go on
        )

    def is_active(self, now_ms: int) -> bool:
        """Whether a step has anything to do for the group: idle groups cost next to nothing."""
        return self.touched or self.is_behind or self.raft.next_due() * 1000 <= now_ms or self.can_propose

    def begin_term(self) -> None:
        """The leader or the term has changed: what was pending or under way is up to the sessions' nodes again."""
        self.pending.clear()
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.wake_pending = False
        self.down_proposed_ms.clear()

    def own(self, command: c.Command | CatalogCommand) -> None:
        """A leader's own, unnumbered operation."""
        self.pending.append(encode(command, None))

    def propose(self, now_ms: int, wall_clocks_ms: list[int]) -> None:
        """Packs what is pending into entries. They go out with the new commit index, which otherwise goes out by
        itself: sessions at other nodes wait for it."""
        if not self.raft.is_leader:
            self.pending.clear()
            return
        commit_index = self.raft.commit_index
        is_news = commit_index > self.announced_commit
        self.announced_commit = commit_index
        while self.can_propose:
            operations = [self.pending.popleft()]
            size = len(operations[0])
            while (
                self.pending
                and size + len(self.pending[0]) <= COMMAND_BYTES
                and len(operations) < MAX_OPERATIONS
            ):
                operations.append(self.pending.popleft())
                size += len(operations[-1])
            now = self.clock.now(now_ms, wall_clocks_ms)
            index = self.raft.propose(command_parts(operations, now, MACHINE_VERSION))
            if index is None:
                break  # no longer leader: the sessions' nodes send again
            self.in_flight.append((index, size))
            self.in_flight_bytes += size
            is_news = True
        if is_news:
            self.raft.send_appends()

    def applied(self, index: int) -> None:
        while self.in_flight and self.in_flight[0][0] <= index:
            self.in_flight_bytes -= self.in_flight.popleft()[1]

    def save_snapshot(self) -> None:
        self.bytes_since_snapshot = 0
        self.raft.save_snapshot(self.clock.last.to_bytes(_TIME_BYTES, "little") + self.machine.snapshot())

    def restore(self, state: bytes) -> None:
        """Goes on from what save_snapshot has kept, here or at the leader."""
        self.clock.observe(int.from_bytes(state[:_TIME_BYTES], "little"))
        if isinstance(self.machine, CatalogMachine):
            self.machine = CatalogMachine.restore(state[_TIME_BYTES:])
        else:
            self.machine = GroupMachine.restore(state[_TIME_BYTES:], self.field_source)
