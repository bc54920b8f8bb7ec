"""The commit of a transaction with parts in several Raft groups, as its session's node drives it (fifo/decisions.py).

The first group of the transaction decides. When this group has answered all requests of the transaction, the node asks
the other groups to prepare. When all have prepared, the first group decides. Then the node tells the decision to the
other groups, and then to the client. Any refusal before the decision ends the transaction in all groups.

If the session ends before a group has answered its Decide or Rollback, this node does nothing more for this command,
and the leaders of the groups end the transaction (hub/decision_worker.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from fifo import commands as c
from fifo.effects import Refused, Reply
from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.hub.decision_worker import DecisionWorker
from quorum.api.session.commands import SessionCommands
from quorum.api.session.outcomes import Failed


@dataclass(slots=True)
class GroupPart:
    """What a group has of a transaction. waiting: its requests that the group has not answered."""

    operations: int = 0
    ranges: int = 0
    waiting: int = 0

    @property
    def most_ranges(self) -> int:
        return min(self.ranges, PRODUCTION.transaction_ranges)


@dataclass(slots=True, eq=False)
class Parts:
    """The parts of one transaction by group, the first group first. refusal: why it cannot be committed. on_answer: is
    called when a group has answered a request."""

    number: int
    by_group: dict[int, GroupPart] = field(default_factory=dict)
    refusal: status.Status | None = None
    on_answer: Callable[[], None] | None = None

    @property
    def record(self) -> int:
        """The group that decides."""
        return next(iter(self.by_group))

    @property
    def others(self) -> list[int]:
        return list(self.by_group)[1:]

    @property
    def most_ranges(self) -> int:
        """The highest number of ranges that a group has of it."""
        return max(part.most_ranges for part in self.by_group.values())

    def refuse(self, refused: Refused) -> None:
        """The first refusal counts."""
        self.refusal = self.refusal or status.of_refused(refused)

    def answered(self, group: int, reply: Reply | None) -> None:
        """The group has answered a publish or settlement."""
        self.by_group[group].waiting -= 1
        if isinstance(reply, Refused):
            self.refuse(reply)
        if self.on_answer is not None:
            self.on_answer()


class SharedCommit:
    """One commit. over: is called once it is told."""

    def __init__(
        self,
        commands: SessionCommands,
        decisions: DecisionWorker,
        parts: Parts,
        request_id: int,
        over: Callable[[], object],
    ) -> None:
        self._commands = commands
        self._decisions = decisions
        self._parts = parts
        self.request_ids = [request_id]
        """all that ask for this commit"""
        self._over = over
        self._unprepared = 0
        self._prepared: list[int] = []
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Prepare the other groups, as soon as the first one has answered everything."""
        parts = self._parts
        if parts.by_group[parts.record].waiting:
            parts.on_answer = self.begin
            return
        parts.on_answer = None
        if parts.refusal is not None:
            self._roll_back()
            return
        self._unprepared = len(parts.others)
        for group in parts.others:
            part = parts.by_group[group]
            command = c.Prepare(parts.number, part.operations, part.most_ranges, parts.record)
            self._commands.submit(group, command, partial(self._has_prepared, group))

    def _has_prepared(self, group: int, reply: Reply | None) -> None:
        parts = self._parts
        self._unprepared -= 1
        if isinstance(reply, Refused):
            parts.refuse(reply)
        else:
            self._prepared.append(group)
        if self._unprepared:
            return
        if parts.refusal is not None:
            self._roll_back()
            return
        own = parts.by_group[parts.record]
        command = c.Decide(parts.number, own.operations, parts.most_ranges, tuple(parts.others))
        self._commands.submit(parts.record, command, self._has_decided)

    def _has_decided(self, reply: Reply | None) -> None:
        if isinstance(reply, Refused):
            self._parts.refuse(reply)
            self._start(self._drop_prepared())
        else:
            self._start(self._finish())

    def _roll_back(self) -> None:
        """The first group ends the transaction; then it can never be committed."""
        command = c.Rollback(self._parts.number)
        for group in self._parts.by_group:
            if group not in self._prepared and group != self._parts.record:
                self._commands.submit(group, command, lambda _: None)
        self._commands.submit(self._parts.record, command, lambda _: self._start(self._drop_prepared()))

    async def _drop_prepared(self) -> None:
        parts = self._parts
        await self._tell_groups(self._prepared, is_committed=False)
        assert parts.refusal is not None
        self._tell(parts.refusal)

    async def _finish(self) -> None:
        parts = self._parts
        if await self._tell_groups(parts.others, is_committed=True):
            self._tell(None)
            await self._decisions.forget(parts.record, self._commands.producer, parts.number)
        else:
            text = f"transaction {parts.number} is committed, but a group did not answer that it has finished"
            self._tell(status.make(status.Code.UNAVAILABLE, "in_doubt", text))

    # ---- inside

    async def _tell_groups(self, groups: Sequence[int], *, is_committed: bool) -> bool:
        """Whether all of them have answered."""
        parts = self._parts
        return await self._decisions.tell(
            self._commands.producer, parts.number, parts.most_ranges, groups, is_committed=is_committed
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    def _tell(self, refusal: status.Status | None) -> None:
        self._over()
        for request_id in self.request_ids:
            if refusal is None:
                self._commands.outbox.done(request_id)
            elif request_id:
                self._commands.outbox.add(Failed(request_id, refusal))
        self._commands.work.set()
