"""The API's questions about this member's state, and the conditions that the API waits for there.

A question is answered in one piece on the Raft thread, between two steps of the groups. So each step limits the time
for questions, and a question has to be small: the API asks for a long answer in parts. The owners of the questions take
turns (quorum/round_robin.py), so the questions of one client do not hold up those of another.

A question names the groups that it reads. It is answered only from a state that is at least as new as everything that
this member has shown of those groups: a replica that was reset to its snapshot first applies what it had applied
before. A question about the current state is answered only at or past a read index of each of its groups. The member
requests that index after the question has arrived (read_indexes.py). It does not answer while no member serves the
group because states differ. A replica whose state differs from most voters' states answers nothing. All this is checked
in the very step that answers.

A question that meets an unreadable body waits until the body is repaired. A caller that stops waiting sends Forget, and
the member drops the question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from fifo.frozen_dataclasses import dataclass
from fifo.group_machine import GroupMachine
from quorum.catalog.machine import CatalogMachine
from quorum.node import events as ev
from quorum.node.errors import BodyUnreadable, PageUnreadable
from quorum.node.reads.query_table import QueryTable
from quorum.node.reads.read_indexes import ReadIndexes
from quorum.node.repair.repairer import Repairer
from quorum.node.replica.replica import SYSTEM_GROUP, Replica
from quorum.round_robin import RoundRobin

STEP_S = 0.005
"""No further question is begun in a step after this time. At least one is answered."""


@dataclass(eq=False, slots=True)
class _Asked:
    """A question that waits."""

    item: ev.RunQuery
    groups: tuple[int, ...]
    ready: RoundRobin[_Asked]
    """the questions that it joins once it waits for nothing else"""
    read_indexes: dict[int, int] = field(default_factory=dict)
    """group -> its read index, for a question about the current state"""

    def read_index_found(self, group: int, index: int) -> None:
        self.read_indexes[group] = index
        if len(self.read_indexes) == len(self.groups):
            self.can_be_answered()

    def repaired(self) -> None:
        self.can_be_answered()

    def can_be_answered(self) -> None:
        self.ready.add(self.item.owner, self)


@dataclass(frozen=True, slots=True)
class _BodyAwaited:
    """The API waits for a body."""

    token: object
    outputs: ev.Outputs = field(compare=False)

    def repaired(self) -> None:
        self.outputs.emit(ev.QueryResult(self.token, True))


class Questions:
    """The questions of one member. See the module's text."""

    def __init__(
        self,
        table: QueryTable,
        replicas: Mapping[int, Replica],
        read_indexes: ReadIndexes,
        repairer: Repairer,
        clock: Callable[[], float],
        outputs: ev.Outputs,
    ) -> None:
        self._table = table
        self._replicas = replicas
        self._read_indexes = read_indexes
        self._repairer = repairer
        self._clock = clock
        self._outputs = outputs
        self._asked: dict[object, _Asked] = {}
        """by token"""
        self._ready: RoundRobin[_Asked] = RoundRobin()
        self._behind: dict[int, dict[_Asked, int]] = {}
        """group -> questions that wait until it has applied this entry"""
        self._awaited: dict[object, ev.AwaitQueue | ev.AwaitConfigured] = {}
        """by token"""

    @property
    def is_busy(self) -> bool:
        """Whether `answer` has anything to do."""
        return bool(self._ready or self._asked or self._awaited)

    @property
    def is_due(self) -> bool:
        """Whether questions are left that could be answered immediately."""
        return bool(self._ready)

    def __len__(self) -> int:
        """The number of questions and awaited changes."""
        return len(self._asked) + len(self._awaited)

    def ask(self, item: ev.RunQuery, now_ms: int) -> None:
        """Takes a query; QueryResult(token, answer) follows, in this step or a later one."""
        groups = item.query.groups
        asked = self._asked[item.token] = _Asked(item, groups, self._ready)
        if item.is_current and groups:
            for group in groups:
                self._read_indexes.ask(group, asked)
        else:
            asked.can_be_answered()

    def wait(self, item: ev.AwaitQueue | ev.AwaitConfigured, now_ms: int) -> None:
        """Takes a wait; QueryResult(token, True) follows once its condition holds."""
        self._awaited[item.token] = item

    def wait_for_body(self, item: ev.RepairBody, now_ms: int) -> None:
        """Takes a wait for a body; QueryResult(token, True) follows once the body can be read."""
        self._repairer.wait(item.group, item.index, _BodyAwaited(item.token, self._outputs))

    def forget(self, item: ev.Forget, now_ms: int) -> None:
        """Drops a question or wait whose caller has stopped waiting."""
        token = item.token
        self._awaited.pop(token, None)
        self._repairer.forget_waiter(_BodyAwaited(token, self._outputs))
        asked = self._asked.pop(token, None)
        if asked is None:
            return
        self._ready.remove(asked.item.owner, asked)
        self._repairer.forget_waiter(asked)
        for group in asked.groups:
            self._read_indexes.forget(group, asked)
            self._behind.get(group, {}).pop(asked, None)

    def answer(self, now_ms: int) -> None:
        """Run at the end of a step: answers the questions that can be answered now, within the time limit."""
        self._answer_awaited()
        self._take_caught_up()
        began_s = self._clock()
        while self._ready:
            asked = self._ready.take()
            if self._waits_for_replica(asked):
                continue
            self._answer(asked, now_ms)
            if self._clock() - began_s >= STEP_S:
                return

    def _answer(self, asked: _Asked, now_ms: int) -> None:
        item = asked.item
        try:
            answer = self._table.answer(item.query, now_ms)
        except BodyUnreadable as error:
            self._repairer.note(error.group, error.index, 0, error.reason)
            self._repairer.wait(error.group, error.index, asked)
            return
        except PageUnreadable:
            asked.can_be_answered()  # it waits for another member's state
            raise
        del self._asked[item.token]
        self._outputs.emit(ev.QueryResult(item.token, answer))

    def _waits_for_replica(self, asked: _Asked) -> bool:
        for group in asked.groups:
            replica = self._replicas[group]
            needed = max(asked.read_indexes.get(group, 0), replica.effects_dispatched_to)
            if replica.raft.applied_index < needed or _is_doubtful(asked, replica):
                self._behind.setdefault(group, {})[asked] = needed
                return True
        return False

    def _take_caught_up(self) -> None:
        for group, waiting in self._behind.items():
            replica = self._replicas[group]
            for asked, needed in [*waiting.items()]:
                if needed <= replica.raft.applied_index and not _is_doubtful(asked, replica):
                    del waiting[asked]
                    asked.can_be_answered()

    def _answer_awaited(self) -> None:
        for item in [*self._awaited.values()]:
            replica = self._replicas[item.group]
            machine = replica.machine
            if replica.raft.applied_index < replica.effects_dispatched_to or replica.parted:
                continue  # it first applies again what it had applied before, or is rebuilt
            assert isinstance(machine, GroupMachine)
            if isinstance(item, ev.AwaitConfigured):
                is_done = machine.configured >= item.revision
            else:
                is_done = (
                    machine.has_queue(item.queue) == item.present
                    or machine.was_deleted(item.queue)
                    or (item.present and self._is_gone(item.queue, item.group))
                )
            if is_done:
                del self._awaited[item.token]
                self._outputs.emit(ev.QueryResult(item.token, True))

    def _is_gone(self, queue: int, group: int) -> bool:
        """Whether the queue was removed from the catalog. Its group then creates it no more, or deletes it again."""
        system = self._replicas[SYSTEM_GROUP]
        assert isinstance(system.machine, CatalogMachine)
        return not system.parted and system.machine.is_gone(queue, group)


def _is_doubtful(asked: _Asked, replica: Replica) -> bool:
    return replica.parted > 0 or (asked.item.is_current and replica.disputed != "")
