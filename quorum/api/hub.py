"""The bridge between the asyncio thread and the Raft thread.

The hub passes inputs to the member's driver, and outputs back to the event loop, with one wake-up for all outputs of a
step. It does not access the member itself. It knows the member's state in two ways:

  - it keeps what the member publishes: the catalog, leases, disks with little room, the node's standing, the machine
    version
  - it sends queries (node/queries.py), whose answers are frozen

Client sessions register here. All other operations (unary calls, bulk calls, administration) use the node's own
session, whose answers are futures.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog

from fifo import commands as c
from fifo.effects import Deliver, Notify, Ok, Refused, Reply
from fifo.versions import BASE
from quorum.api import status
from quorum.api.catalog_view import CatalogView
from quorum.api.deliveries import BodyReader
from quorum.api.reading import Workers
from quorum.api.shares import ByteWindow, Shares, WindowFull
from quorum.catalog.commands import CatalogCommand
from quorum.catalog.queues import CatalogQueue
from quorum.log import Log
from quorum.node import events as ev
from quorum.node.driver import boottime_s
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import FindUnserved, GroupQuery, Query, ReadBarrier
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire.batches import BatchLimits
from quorum.node.wire.operations import MAX_OPERATION_BYTES, encode, needed_version

T = TypeVar("T")

MAX_CALLS = 10_000
"""Operations of the node's own session that their groups have not answered yet. One group may have as many as are left
free, so a group without a leader leaves room for the other groups."""
NO_LEADER_POLL_S = 1.0
NO_LEADER_POLLS = 3
"""A call fails after this number of consecutive polls that found one of its groups without a leader, or not served
because states differ. With the default timeouts an election takes far less time."""


ANSWER_WAIT_S = 10.0
"""Time limit for a query that reads groups. After it the client should ask another node."""
_OF_A_SESSION = (ev.Answered, ev.Delivered, ev.Notified, ev.Ended)
MEND_WAIT_S = 5.0
"""Time that a reader waits until a damaged body has been fetched from another member. After it the client should use
another node."""


class SessionHandler(Protocol):
    """The hub's interface to a session. Called on the event loop; must not block or raise."""

    def answered(self, token: Any, reply: Reply | None) -> None: ...

    def delivered(self, group: int, deliver: Deliver) -> None: ...

    def notified(self, notify: Notify) -> None: ...

    def ended(self, reason: str) -> None: ...

    def consumed_groups(self) -> set[int]:
        """The groups in which messages are, or may become, checked out to this session."""
        ...


class RaftThread(Protocol):
    """The hub's interface to the Raft thread: a queue of inputs. It passes its outputs to `Hub.on_outputs`."""

    def submit(self, items: tuple[ev.Input, ...]) -> None: ...


class Hub:
    """One per member. All methods except `on_outputs` are called on the event loop."""

    def __init__(
        self,
        node: str,
        log: Log,
        limits: BatchLimits,
        session_window: int,
        node_window: int,
        *,
        clock_s: Callable[[], float] = boottime_s,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """node: the id of this node's member. session_window: bytes of undecided batches above which a session accepts
        no further request. node_window: limit of the bytes of undecided batches of all sessions, and of the bytes of
        received requests. clock_s: the member's clock, as its driver reads it, in seconds."""
        self.node = node
        self.catalog = CatalogView()
        self.reader = BodyReader(log)
        self._log = log
        self.limits = limits
        self.session_window = session_window
        self.random_bytes = random_bytes
        self._clock_s = clock_s
        self.received = ByteWindow(node_window, max_waiting=node_window)
        """bytes of requests that services are handling, by client address"""
        self.publishing = ByteWindow(node_window, always_one=True)
        """bytes of batches that their groups have not answered yet, by group"""
        self.loop = asyncio.get_running_loop()
        self._raft_thread: RaftThread | None = None
        self._sessions: dict[int, SessionHandler] = {}
        self._numbers = itertools.count(1)
        self._lease_until: dict[int, int] = {}
        self.workers = Workers()
        self._low_disks: Mapping[int, tuple[ev.LowDisk, ...]] = {}
        self._standing = "meeting"
        """this node's standing in its cluster (node/cluster/membership.STANDINGS)"""
        self._version = BASE
        """the machine version that the cluster uses"""
        self._takers: dict[type, Callable[[Any], object]] = {
            ev.Answered: lambda output: self._sessions[output.session].answered(output.token, output.reply),
            ev.Delivered: lambda output: self._sessions[output.session].delivered(
                output.group, output.deliver
            ),
            ev.Notified: lambda output: self._sessions[output.session].notified(output.notify),
            ev.Ended: lambda output: self._sessions[output.session].ended(output.reason),
            ev.LeaseGranted: self._take_lease,
            ev.LeaseLapsed: self._lose_lease,
            ev.DisksLow: self._take_low_disks,
            ev.CatalogChanged: self.catalog.apply,
            ev.QueueDeleted: lambda output: self.catalog.queue_deleted(output.queue),
            ev.StandingChanged: self._take_standing,
            ev.VersionChanged: self._take_version,
            ev.QueryResult: self._take_result,
        }
        self._own = _OwnSession(self)

    def attach(self, raft_thread: RaftThread) -> None:
        self._raft_thread = raft_thread
        self._own.open()

    def submit(self, *items: ev.Input) -> None:
        assert self._raft_thread is not None
        self._raft_thread.submit(items)

    def on_outputs(self, outputs: list[ev.Output]) -> None:
        """Pass a step's outputs to the event loop. Called on the Raft thread."""
        self.loop.call_soon_threadsafe(self._dispatch, outputs)

    def _dispatch(self, outputs: Iterable[ev.Output]) -> None:
        for output in outputs:
            number = output.session if isinstance(output, _OF_A_SESSION) else None
            if number is not None and number not in self._sessions:
                continue  # the session has ended here
            try:
                self._takers[type(output)](output)
            except Exception as error:
                # a defect in one handler: the outputs for other sessions must not be lost
                structlog.get_logger().critical(
                    "an output was not taken", output=repr(output)[:500], exc_info=error
                )
                if number is not None and number in self._sessions:
                    self._sessions[number].ended("failed")

    def _take_result(self, output: ev.QueryResult) -> None:
        future = output.token
        assert isinstance(future, asyncio.Future)
        if not future.done():
            future.set_result(output.value)

    def _take_lease(self, output: ev.LeaseGranted) -> None:
        self._lease_until[output.group] = output.until_ms

    def _lose_lease(self, output: ev.LeaseLapsed) -> None:
        self._lease_until.pop(output.group, None)
        self._end_consumers({output.group})

    def _take_low_disks(self, output: ev.DisksLow) -> None:
        self._low_disks = output.groups

    def _take_standing(self, output: ev.StandingChanged) -> None:
        self._standing = output.standing

    def _take_version(self, output: ev.VersionChanged) -> None:
        self._version = output.version

    # ---- sessions

    def open_session(
        self, handler: SessionHandler, producer: bytes, epoch: int, owner: int = c.UNKNOWN
    ) -> int:
        """Register a session; return its number. owner: as in RegisterProducer."""
        number = next(self._numbers)
        self._sessions[number] = handler
        self.submit(ev.OpenSession(number, producer, epoch, owner))
        return number

    def end_session(self, number: int, *, is_clean: bool = False) -> None:
        """Remove a session and end it at its groups. is_clean: as in CloseSession."""
        if self._sessions.pop(number, None) is not None:
            self.submit(ev.EndSession(number, is_clean))

    def may_deliver(self, group: int) -> bool:
        """Whether this node's lease on the group is valid now."""
        return self._clock_s() * 1000 < self._lease_until.get(group, 0)

    def check_room(self, group: int) -> None:
        """RESOURCE_EXHAUSTED if a voter of the group has too little room on its disk for more messages."""
        low = self._low_disks.get(group)
        if low:
            raise status.disk_low(low)

    def check_version(self, command: c.Command | CatalogCommand) -> None:
        """FAILED_PRECONDITION if the command needs a machine version to which the cluster has not switched yet."""
        needed = needed_version(command)
        if needed > self._version:
            raise status.old_version(type(command).__name__, needed, self._version)

    async def take_room(self, group: int, size: int) -> None:
        """Take a batch's bytes from the node's window for publishing; `publishing.give` has to follow. UNAVAILABLE if
        the group has used its share of the window and answers nothing (shares.PATIENCE_S)."""
        if self.publishing.take_now(size, group):
            return
        try:
            await self.publishing.take(size, group)
        except WindowFull as error:
            text = f"no room for a batch of {size} bytes to group {group}, which does not answer: {error}"
            raise status.unavailable("overloaded", text) from error

    def check_leases(self) -> None:
        """End the sessions whose consumers use a group to which this node has no valid lease; their clients reconnect
        to another node. The member reports lapsed leases too (LeaseLapsed). This check needs only the clock, not the
        Raft thread."""
        lapsed = {group for group in self.catalog.queue_groups if not self.may_deliver(group)}
        if lapsed:
            self._end_consumers(lapsed)

    def _end_consumers(self, groups: set[int]) -> None:
        for session in list(self._sessions.values()):
            if groups & session.consumed_groups():
                session.ended("node_down")

    def leave(self, reason: str) -> None:
        """End all sessions and the waiting calls, because another node can serve them and this one cannot. reason:
        as in status.of_ended."""
        for session in list(self._sessions.values()):
            if session is not self._own:
                session.ended(reason)
        if self._own.is_waiting:
            self._own.ended(reason)

    async def stop(self) -> None:
        for session in list(self._sessions.values()):
            session.ended("stopping")

    def body_reader(self, cached_bytes: int = 0) -> BodyReader:
        """Return a new reader for use in another thread. cached_bytes: the size of its own cache of parsed
        batches."""
        return BodyReader(self._log, cached_bytes)

    def refusal(self) -> str | None:
        """The reason why this node opens no sessions now: its standing. None if it opens them."""
        return None if self._standing == "member" else self._standing

    # ---- queries

    async def query(self, query: Query[T]) -> T:
        """Return an answer from the state that this node has applied.

        A query that reads groups may have to wait for a replica that was reset to its snapshot or is being rebuilt, or
        for an unreadable body: UNAVAILABLE after ANSWER_WAIT_S. A query that reads no group has no time limit.
        """
        future: asyncio.Future[T] = self._future()
        return await self._result(
            future, ev.RunQuery(query, future), (), ANSWER_WAIT_S if query.groups else None
        )

    async def query_current(self, query: Query[T]) -> T:
        """Return an answer that shows everything that any node answered before the call. UNAVAILABLE if one of the
        groups has no leader or is not served because states differ, and after ANSWER_WAIT_S."""
        future: asyncio.Future[T] = self._future()
        item = ev.RunQuery(query, future, is_current=True)
        return await self._result(future, item, query.groups, ANSWER_WAIT_S)

    async def current_catalog(self) -> CatalogView:
        """Return the catalog when it shows everything that any node answered before the call. UNAVAILABLE as in
        `query_current`."""
        await self.query_current(ReadBarrier((SYSTEM_GROUP,)))
        return self.catalog

    def _future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    async def _result(
        self,
        future: asyncio.Future[T],
        item: ev.RunQuery | ev.AwaitQueue | ev.AwaitConfigured,
        groups: Collection[int],
        wait_s: float | None = None,
    ) -> T:
        """Submit an item and return its result. If the caller stops waiting, the member drops the item (Forget)."""
        self.submit(item)
        try:
            if not groups and wait_s is None:
                return await future
            return await self.decided(groups, future, wait_s)
        finally:
            if not future.done() or future.cancelled():
                self.submit(ev.Forget(future))

    def is_outdated(self, queue: CatalogQueue) -> bool:
        """Whether this node knows that the queue was deleted, and its name may belong to another queue now."""
        return self.catalog.was_deleted(queue) and self.catalog.queue(queue.name) is not None

    async def queue(self, name: str) -> CatalogQueue:
        """Return the queue of this name.

        The node's own catalog is used first, and the current catalog of the cluster if the node knows no such queue, or
        a deleted one. The queue may have been deleted since; its group then refuses it (handlers.py). NOT_FOUND if
        there is no such queue, UNAVAILABLE as in `query_current`.
        """
        known = self.catalog.queue(name)
        if known is None or self.catalog.was_deleted(known):
            known = (await self.current_catalog()).queue(name)
        if known is None:
            raise status.no_queue(name)
        return known

    async def await_queue(self, group: int, queue: int, present: bool) -> None:
        """Return when this node's replica of the group has the queue (present), or no longer has it (not present).
        UNAVAILABLE as in `decided`."""
        future = self._future()
        await self._result(future, ev.AwaitQueue(group, queue, present, future), (group,))

    async def await_configured(self) -> None:
        """Return when this node's replicas have configured their queues by the policies that this node knows at the
        call. UNAVAILABLE as in `decided`."""
        revision = self.catalog.revision
        for group in self.catalog.queue_groups:
            future = self._future()
            await self._result(future, ev.AwaitConfigured(group, revision, future), (group,))

    async def decided(
        self, groups: Collection[int], future: asyncio.Future[T], wait_s: float | None = None
    ) -> T:
        """Return the future's result, which needs the groups.

        UNAVAILABLE if a group has no leader, or is not served because states differ, in NO_LEADER_POLLS polls in
        succession; then the caller knows why there is no answer. The operation may still be carried out, and the future
        is not cancelled. wait_s: time limit, then UNAVAILABLE too; None for no limit.
        """
        missed = 0
        deadline_s = None if wait_s is None else self.loop.time() + wait_s
        while not future.done():
            await asyncio.wait({future}, timeout=NO_LEADER_POLL_S)
            if future.done():
                break
            if groups:
                found = await self._unserved(groups)
                missed = 0 if found is None else missed + 1
                if found is not None and missed >= NO_LEADER_POLLS and not future.done():
                    raise found
            if deadline_s is not None and self.loop.time() >= deadline_s and not future.done():
                raise status.unavailable(
                    "behind", f"this node could not answer within {wait_s:g} s; ask another node"
                )
        return future.result()

    async def _unserved(self, groups: Collection[int]) -> status.StatusError | None:
        """Return an error that names the first group that has no leader, or is not served, as far as this node knows.
        None if there is none."""

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

    async def readable(self, items: Iterable[T | BodyUnreadable]) -> AsyncIterator[T]:
        """Yield the items of an iterable that yields BodyUnreadable instead of an item that it cannot read. The body is
        repaired before the iteration continues. UNAVAILABLE if that takes longer than MEND_WAIT_S."""
        for item in items:
            if isinstance(item, BodyUnreadable):
                await self.repair(item)
            else:
                yield item

    async def repair(self, unreadable: BodyUnreadable) -> None:
        """Return when the body can be read. UNAVAILABLE after MEND_WAIT_S."""
        future = self._future()
        self.submit(ev.RepairBody(unreadable.group, unreadable.index, future))
        try:
            await asyncio.wait({future}, timeout=MEND_WAIT_S)
        finally:
            if not future.done():
                self.submit(ev.Forget(future))
        if not future.done():
            structlog.get_logger().error(
                "a body cannot be read", group=unreadable.group, error=str(unreadable)
            )
            raise status.of_ended("unreadable")

    # ---- the node's own session

    async def call(self, group: int, command: c.Command | CatalogCommand) -> Reply | None:
        """Return the group's reply to an operation of the node's own session. StatusError if it cannot be sent or is
        refused; UNAVAILABLE as in `decided`, or if the group has too many calls."""
        return _accepted(await self._own.call(group, command))

    async def change(self, make: Callable[[CatalogView], CatalogCommand | None]) -> Reply | None:
        """Send a command that `make` builds from this node's view of the catalog; return the reply.

        If the view was outdated when the command was applied, `make` is called again with the current catalog. None if
        `make` returns None, because there is nothing to do. Errors as in `call` and `query_current`.
        """
        command = make(self.catalog)
        while command is not None:
            reply = await self._own.call(SYSTEM_GROUP, command)
            if not _is_outdated(reply):
                return _accepted(reply)
            command = make(await self.current_catalog())
        return None

    async def change_group(self, query: GroupQuery[T], make: Callable[[T], c.Command]) -> Reply | None:
        """Send a command to a queue's group that `make` builds from the answer to the query; return the reply. If the
        answer was outdated when the command was applied, `make` is called again with a current answer."""
        command = make(await self.query(query))
        while True:
            reply = await self._own.call(query.group, command)
            if not _is_outdated(reply):
                return _accepted(reply)
            command = make(await self.query_current(query))

    async def publish(
        self, group: int, make: Callable[[int, int], c.Enqueue], batch: bytes, count: int
    ) -> None:
        """Publish a batch of `count` messages. make(first_client_sequence, lowest_unconfirmed) returns the command.
        StatusError if it is refused. Further errors as in `send` and `decided`."""
        await self._own.publish(group, make, batch, count)

    async def send(self, group: int, command: c.Stage, batch: bytes) -> asyncio.Future[Reply | None]:
        """Send an operation that carries a batch; return the future of its answer, which `sent` awaits. Operations are
        sent in order if the caller awaits each `send` before the next. UNAVAILABLE as in `take_room`, or if the group
        has too many calls; RESOURCE_EXHAUSTED as in `check_room`."""
        return await self._own.send(group, lambda _: command, batch)

    async def sent(self, group: int, answer: asyncio.Future[Reply | None]) -> Reply | None:
        """Return the answer to an operation of `send`. StatusError if it is refused, UNAVAILABLE as in `decided`."""
        return _accepted(await self.decided((group,), answer))

    async def get(self, group: int, queue: int, count: int) -> Deliver | None:
        """Take up to `count` ready messages and settle them immediately. None if no message is ready. Errors as in
        `call`."""
        return await self._own.get(group, queue, count)


@dataclass(slots=True)
class _Numbers:
    """The client sequences of the node's own messages to one group."""

    next_sequence: int = 1
    unconfirmed: dict[int, None] = field(default_factory=dict)
    """first client sequences of unconfirmed batches, ascending"""


class _OwnSession:
    """The node as a client of its groups. Its operations are numbered as in any session. A new session begins when the
    old one was ended, unless the node is stopping. Each group has its own client sequences and its own share of the
    calls, so a group that does not answer does not delay the others."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._number = 0
        self._numbers: defaultdict[int, _Numbers] = defaultdict(_Numbers)
        self._calls: dict[asyncio.Future[Reply | None], int] = {}
        """future of each operation that its group has not answered yet -> the group; also if its caller has stopped
        waiting"""
        self._shares = Shares(MAX_CALLS)
        self._gets: dict[int, deque[asyncio.Future[Deliver | None]]] = {}
        """queue id -> futures of answered gets whose delivery follows, the oldest first"""

    def open(self) -> None:
        self._numbers = defaultdict(_Numbers)
        self._number = self._hub.open_session(self, self._hub.random_bytes(16), 1, c.NODE)

    @property
    def is_waiting(self) -> bool:
        """Whether any operation is unanswered."""
        return bool(self._calls)

    async def call(self, group: int, command: c.Command | CatalogCommand) -> Reply | None:
        """Return the group's answer, which may be a refusal."""
        _check_wire_form(command)
        self._hub.check_version(command)
        future = self._expect(group)
        self._hub.submit(ev.Submit(self._number, group, command, future))
        with self._withdrawing(group, future, future):
            return await self._hub.decided((group,), future)

    def _expect(self, group: int) -> asyncio.Future[Reply | None]:
        """Return the future for the answer to one operation. UNAVAILABLE if the group has used its share.

        The future is kept until the answer arrives. An operation whose caller has stopped waiting (ev.Withdraw) keeps
        its number in the session, and that number still gets an answer. Therefore the futures are limited here.
        """
        if not self._shares.enter(group):
            raise status.unavailable(
                "overloaded",
                f"{self._shares.of(group)} calls at this node wait for group {group}, {self._shares.total} for all "
                f"groups; allowed for one group: as many as are left free of {self._shares.most}",
            )
        future: asyncio.Future[Reply | None] = self._hub.loop.create_future()
        future.add_done_callback(_looked_at)
        self._calls[future] = group
        return future

    @contextmanager
    def _withdrawing(self, group: int, token: object, future: asyncio.Future[Any]) -> Iterator[None]:
        """Withdraw the operation if the block fails before the answer arrives."""
        number = self._number
        try:
            yield
        except BaseException:
            if future.cancel():
                self._hub.submit(ev.Withdraw(number, group, token))
            raise

    async def publish(
        self, group: int, make: Callable[[int, int], c.Enqueue], batch: bytes, count: int
    ) -> None:
        """Publish a batch, as in Hub.publish. It is never a repeat, because the node assigns its client sequences."""

        def numbered(future: asyncio.Future[Reply | None]) -> c.Enqueue:
            numbers = self._numbers[group]
            first, unconfirmed = numbers.next_sequence, numbers.unconfirmed
            numbers.next_sequence += count
            unconfirmed[first] = None
            future.add_done_callback(lambda _: unconfirmed.pop(first, None))
            return make(first, next(iter(unconfirmed)))

        _accepted(await self._hub.decided((group,), await self.send(group, numbered, batch)))

    async def send(
        self,
        group: int,
        make: Callable[[asyncio.Future[Reply | None]], c.Enqueue | c.Stage],
        batch: bytes,
    ) -> asyncio.Future[Reply | None]:
        """Send a command with its batch; return the future of its answer. make(future) returns the command and is
        called when the window has room. The batch uses the node's window until it is answered or the session ends,
        also if its caller has stopped waiting."""
        self._hub.check_room(group)
        window, size = self._hub.publishing, len(batch)
        await self._hub.take_room(group, size)
        try:
            future = self._expect(group)
        except status.StatusError:
            window.give(size, group)
            raise
        future.add_done_callback(lambda _: window.give(size, group))
        self._hub.submit(ev.Submit(self._number, group, make(future), future, batch))
        return future

    async def get(self, group: int, queue: int, count: int) -> Deliver | None:
        delivery: asyncio.Future[Deliver | None] = self._hub.loop.create_future()
        delivery.add_done_callback(_looked_at)
        future = self._expect(group)
        command = c.Get(queue, count, settled=True)
        token = (future, delivery, queue)
        self._hub.submit(ev.Submit(self._number, group, command, token))
        with self._withdrawing(group, token, future):
            _accepted(await self._hub.decided((group,), future))
        return await delivery

    def answered(self, token: object, reply: Reply | None) -> None:
        if isinstance(token, tuple):
            future, delivery, queue = token
            if isinstance(reply, Ok) and reply.count:
                self._gets.setdefault(queue, deque()).append(delivery)
            elif not delivery.done():
                delivery.set_result(None)
        else:
            future = token
        assert isinstance(future, asyncio.Future)
        group = self._calls.pop(future, None)
        if group is not None:
            self._shares.leave(group)
        if not future.done():
            future.set_result(reply)

    def delivered(self, group: int, deliver: Deliver) -> None:
        waiting = self._gets.get(deliver.queue)
        if waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(deliver)

    def notified(self, notify: Notify) -> None:
        """Ignore the notification. The session's only consumers are its gets, and these receive none. If the session is
        fenced, `ended` follows."""

    def consumed_groups(self) -> set[int]:
        return set()

    def ended(self, reason: str) -> None:
        self._hub.end_session(self._number)
        # the system group forgets a session after a day of silence; the call that finds this out may be retried
        error = status.of_ended("resync" if reason == "expired" else reason)
        deliveries = [future for waiting in self._gets.values() for future in waiting]
        for call in list(self._calls):
            if not call.done():
                call.set_exception(error)
        for delivery in deliveries:
            if not delivery.done():
                delivery.set_exception(error)
        self._calls.clear()
        self._shares = Shares(MAX_CALLS)
        self._gets.clear()
        if reason != "stopping":
            self.open()


def _check_wire_form(command: c.Command | CatalogCommand) -> None:
    """INVALID_ARGUMENT if the command cannot be encoded, because on the Raft thread that would stop the process, or is
    longer than the operations that a peer accepts (wire/forwarding.py)."""
    try:
        size = len(encode(command, None))
    except (struct.error, ValueError, OverflowError) as error:
        raise status.invalid("bad_argument", f"{type(command).__name__} has no wire form: {error}") from error
    if size > MAX_OPERATION_BYTES:
        raise status.invalid(
            "limit", f"{type(command).__name__} takes {size} bytes; allowed: {MAX_OPERATION_BYTES}"
        )


def _is_outdated(reply: Reply | None) -> bool:
    return isinstance(reply, Refused) and reply.reason == "outdated"


def _accepted(reply: Reply | None) -> Reply | None:
    """Return the reply; StatusError if it is a refusal."""
    if isinstance(reply, Refused):
        raise status.StatusError(status.of_refused(reply))
    return reply


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Retrieve the future's error, so that asyncio does not log it if no caller waits for it."""
    if not future.cancelled():
        future.exception()
