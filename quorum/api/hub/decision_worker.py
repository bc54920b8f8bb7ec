"""Tells groups the decisions of transactions over several groups, and asks groups for decisions.

fifo/decisions.py has the protocol. The node of a session drives it (session/shared_commit.py). If that node is lost,
or a group did not answer, the node of the waiting group's leader continues here. Its Raft thread reports such
transactions twice a second (`DecisionsDue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from fifo import commands as c
from fifo.results import DecidedTransaction, PreparedPart
from quorum.api import status
from quorum.api.hub.own_session import OwnSession
from quorum.node import events as ev

ROLLED_BACK = "rolled_back"


class DecisionWorker:
    """One per node. Every command that it sends may be repeated."""

    def __init__(self, own_session: OwnSession) -> None:
        self._own = own_session
        self._running: dict[tuple[int, bytes, int], asyncio.Task[Any]] = {}
        """by group, producer and transaction"""

    def take(self, output: ev.DecisionsDue) -> None:
        """A group that this node leads has waited too long."""
        for part in output.prepared:
            self._start((output.group, part.producer, part.tx), self._ask(output.group, part))
        for decided in output.decided:
            self._start((output.group, decided.producer, decided.tx), self._end(output.group, decided))

    async def tell(
        self, producer: bytes, tx: int, ranges: int, groups: Sequence[int], *, is_committed: bool
    ) -> bool:
        """Tell groups a decision that has been made. Whether all of them have answered."""
        command = c.Finish(producer, tx, is_committed, ranges)
        calls = [self._own.call(group, command) for group in groups]
        found = await asyncio.gather(*calls, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, status.StatusError):
                raise each
        return not any(isinstance(each, BaseException) for each in found)

    async def forget(self, record: int, producer: bytes, tx: int) -> None:
        """Tell the group that has decided that all others have heard it. If that fails, its leader repeats it."""
        try:
            await self._own.call(record, c.Finished(producer, tx))
        except status.StatusError:
            pass

    async def ask(self, part: PreparedPart) -> bool:
        """Whether the group that decides has committed. If it had not decided, it has rolled back now. StatusError if
        it does not answer."""
        try:
            await self._own.call(part.record, c.Resolve(part.producer, part.tx))
        except status.StatusError as error:
            if error.status.reason != ROLLED_BACK:
                raise
            return False
        return True

    # ---- inside

    def _start(self, key: tuple[int, bytes, int], work: Coroutine[Any, Any, None]) -> None:
        if key in self._running:
            work.close()
            return
        task = self._running[key] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._running.pop(key, None))

    async def _ask(self, group: int, part: PreparedPart) -> None:
        try:
            is_committed = await self.ask(part)
        except status.StatusError:
            return  # it is asked again
        await self.tell(part.producer, part.tx, part.ranges, [group], is_committed=is_committed)

    async def _end(self, group: int, decided: DecidedTransaction) -> None:
        if await self.tell(decided.producer, decided.tx, decided.ranges, decided.groups, is_committed=True):
            await self.forget(group, decided.producer, decided.tx)
