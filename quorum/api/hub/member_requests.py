"""Requests of the event loop to the member, each with one answer: queries, awaited facts, repair of a body.

Most answers come at once. A request whose group has no leader, or is not served, fails with UNAVAILABLE after some
seconds, so that no caller waits without knowing why. The member forgets a request without a waiting caller.
Queries take turns by the client's address (owners.CALLER).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any, TypeVar

import structlog

from quorum.api import status
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.hub.deliveries import BodyOnDisk
from quorum.api.hub.raft_thread import RaftInputs
from quorum.api.owners import CALLER
from quorum.catalog.queues import CatalogQueue
from quorum.node import events as ev
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import FindUnserved, Query, ReadBarrier
from quorum.node.replica.replica import SYSTEM_GROUP

T = TypeVar("T")

NO_LEADER_POLL_S = 1.0
NO_LEADER_POLLS = 3
"""A call gives up after this many looks in a row at a group without a leader, or one that is not served because states
differ. With the default timeouts an election takes far less."""
SERVED_POLL_S = 0.1
"""Between two looks of a call that is not sent before its group has a leader."""
ANSWER_WAIT_S = 10.0
"""A query that this node has not answered after this time is better sent to another node."""
REPAIR_WAIT_S = 5.0
"""Time that a reader waits for a damaged body to be fetched from another member; then it is sent to that member."""


class MemberRequests:
    """The requests of one node. Used on the event loop only."""

    def __init__(self, inputs: RaftInputs, catalog: CatalogView) -> None:
        self._inputs = inputs
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()

    # ---- queries

    async def query(self, query: Query[T]) -> T:
        """An answer from this node's applied state. UNAVAILABLE if a replica that went back to its snapshot, or an
        unreadable body, delays it too long."""
        future: asyncio.Future[T] = self._future()
        item = ev.RunQuery(query, future, owner=CALLER.get())
        return await self._result(future, item, (), ANSWER_WAIT_S if query.groups else None)

    async def query_at_leisure(self, query: Query[T]) -> T:
        """The same for a query of no group, with the member's next step: an idle member makes none for it."""
        future: asyncio.Future[T] = self._future()
        self._inputs.leave(ev.RunQuery(query, future, owner=CALLER.get()))
        return await future

    async def query_current(self, query: Query[T]) -> T:
        """The same, and the answer shows everything that was answered on any member before the call. UNAVAILABLE if one
        of the groups has no leader."""
        future: asyncio.Future[T] = self._future()
        item = ev.RunQuery(query, future, is_current=True, owner=CALLER.get())
        return await self._result(future, item, query.groups, ANSWER_WAIT_S)

    async def current_catalog(self) -> CatalogView:
        """The catalog, once it shows everything that was answered on any member before the call."""
        await self.query_current(ReadBarrier((SYSTEM_GROUP,)))
        return self._catalog

    async def queue(self, name: str) -> CatalogQueue:
        """The queue of this name, as this node knows it. If the node knows none, or one that was deleted, the cluster's
        current queue. A queue that was deleted a moment ago is refused by its group: see grpc/handlers.py."""
        known = self._catalog.queue(name)
        if known is None or self._catalog.was_deleted(known):
            known = (await self.current_catalog()).queue(name)
        if known is None:
            raise status.no_queue(name)
        return known

    def take_result(self, output: ev.QueryResult) -> None:
        """An answer has come."""
        future = output.token
        assert isinstance(future, asyncio.Future)
        if not future.done():
            future.set_result(output.value)

    # ---- facts

    async def await_queue(self, group: int, queue: int, present: bool) -> None:
        """Return when the group's machine has this queue, or has it no more."""
        future = self._future()
        await self._result(future, ev.AwaitQueue(group, queue, present, future), (group,))

    async def await_configured(self) -> None:
        """Return when the queues have the configuration of the policies that are known here."""
        revision = self._catalog.revision
        for group in self._catalog.queue_groups:
            future = self._future()
            await self._result(future, ev.AwaitConfigured(group, revision, future), (group,))

    # ---- bodies

    async def readable(self, items: Iterable[T | BodyUnreadable]) -> AsyncIterator[T]:
        """Yield the items, each once it can be read: a damaged body is repaired before the next item is requested.
        UNAVAILABLE if that takes too long."""
        for item in items:
            if isinstance(item, BodyUnreadable):
                await self.repair(item)
            else:
                yield item

    async def repair(self, unreadable: BodyUnreadable) -> None:
        """Return when the body can be read: from the disk, or after another member has sent it. UNAVAILABLE if that
        takes too long."""
        if isinstance(unreadable, BodyOnDisk):
            try:
                await unreadable.load()
                return
            except BodyUnreadable as error:
                unreadable = error
        future = self._future()
        self._inputs.submit(ev.RepairBody(unreadable.group, unreadable.index, future))
        try:
            await asyncio.wait({future}, timeout=REPAIR_WAIT_S)
        finally:
            if not future.done():
                self._inputs.submit(ev.Forget(future))
        if not future.done():
            structlog.get_logger().error(
                "a body cannot be read", group=unreadable.group, error=str(unreadable)
            )
            raise status.of_call_ended("unreadable")

    # ---- waiting

    def _future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    async def _result(
        self,
        future: asyncio.Future[T],
        item: ev.RunQuery | ev.AwaitQueue | ev.AwaitConfigured,
        groups: Collection[int],
        wait_s: float | None = None,
    ) -> T:
        self._inputs.submit(item)
        try:
            if not groups and wait_s is None:
                return await future
            return await self.decided(groups, future, wait_s)
        finally:
            if not future.done() or future.cancelled():
                self._inputs.submit(ev.Forget(future))

    async def decided(
        self, groups: Collection[int], future: asyncio.Future[T], wait_s: float | None = None
    ) -> T:
        """The answer of the groups. UNAVAILABLE if one of them has no leader, or is not served because states differ:
        the request may still be carried out, and its answer may still come. wait_s: UNAVAILABLE after this time."""
        missed = 0
        deadline_s = None if wait_s is None else self._loop.time() + wait_s
        while not future.done():
            await asyncio.wait({future}, timeout=NO_LEADER_POLL_S)
            if future.done():
                break
            if groups:
                found = await self._unserved(groups)
                missed = 0 if found is None else missed + 1
                if found is not None and missed >= NO_LEADER_POLLS and not future.done():
                    raise found
            if deadline_s is not None and self._loop.time() >= deadline_s and not future.done():
                raise status.unavailable(
                    "behind", f"this node could not answer within {wait_s:g} s; ask another node"
                )
        return future.result()

    async def await_served(self, group: int) -> None:
        """Return when this node knows a leader of the group, and serves it. UNAVAILABLE if that takes too long."""
        deadline_s = self._loop.time() + NO_LEADER_POLLS * NO_LEADER_POLL_S
        while (found := await self._unserved((group,))) is not None:
            if self._loop.time() >= deadline_s:
                raise found
            await asyncio.sleep(SERVED_POLL_S)

    async def _unserved(self, groups: Collection[int]) -> status.StatusError | None:
        """Which of the groups has no leader that this node knows of, or is not served, as far as the node knows."""
        found = await self.query(FindUnserved(tuple(groups)))
        if found is None:
            return None
        name = "the system group" if found.group == SYSTEM_GROUP else f"group {found.group}"
        if found.disputed:
            return status.unavailable(
                "states_differ", f"{found.node} does not serve {name}: {found.disputed}"
            )
        text = f"{name} has no leader that {found.node} knows of: too few members can reach each other"
        return status.unavailable("no_leader", text)
