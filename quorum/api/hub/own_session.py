"""The node's own session: commands of unary calls and of administration, sent as by a client of the groups.

It is numbered like any session, and opened again when it has ended. A group that does not answer delays no other group:
each has message numbers and a share of the calls of its own.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fifo import commands as c
from fifo.effects import Deliver, Notify, Ok, Refused, Reply
from quorum.api import status
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.hub.member_requests import MemberRequests
from quorum.api.hub.published_state import PublishedState
from quorum.api.hub.raft_thread import OpenSessions, RaftInputs
from quorum.api.shares import PublishWindow, Shares
from quorum.catalog.commands import CatalogCommand
from quorum.node import events as ev
from quorum.node.queries import GroupQuery
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire.batches import command_bytes
from quorum.node.wire.operations import MAX_OPERATION_BYTES, encode

T = TypeVar("T")

MAX_CALLS = 10_000
"""Unary calls of a node that their groups have not answered yet. One group may have as many as are left free, so a
group without a leader leaves space for the other groups."""


@dataclass(slots=True)
class _Numbers:
    """The node's own messages to one group."""

    next_sequence: int = 1
    unconfirmed: dict[int, None] = field(default_factory=dict)
    """first numbers of batches, ascending"""


class OwnSession:
    """The node as a client of its groups (raft_thread.SessionHandler)."""

    def __init__(
        self,
        inputs: RaftInputs,
        sessions: OpenSessions,
        requests: MemberRequests,
        catalog: CatalogView,
        published: PublishedState,
        window: PublishWindow,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._inputs = inputs
        self._sessions = sessions
        self._requests = requests
        self._catalog = catalog
        self._published = published
        self._window = window
        self._random_bytes = random_bytes
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._numbers: defaultdict[int, _Numbers] = defaultdict(_Numbers)
        self._calls: dict[asyncio.Future[Reply | None], int] = {}
        """Calls without an answer, by their future; their callers may be gone."""
        self._shares = Shares(MAX_CALLS)
        self._gets: dict[int, deque[asyncio.Future[Deliver | None]]] = {}

    def open(self) -> None:
        self._numbers = defaultdict(_Numbers)
        self._number = self._sessions.open(self, self._random_bytes(16), 1, c.NODE)

    @property
    def is_waiting(self) -> bool:
        """Whether calls wait for their group."""
        return bool(self._calls)

    # ---- commands

    async def call(self, group: int, command: c.Command | CatalogCommand) -> Reply | None:
        """The group's answer to a command; StatusError if it is refused."""
        return _accepted(await self._call(group, command))

    async def change(self, make: Callable[[CatalogView], CatalogCommand | None]) -> Reply | None:
        """A command to the catalog, made from the node's view of the catalog. If that was outdated when the command was
        applied, it is made again from the present state. None if make finds nothing to do."""
        command = make(self._catalog)
        while command is not None:
            reply = await self._call(SYSTEM_GROUP, command)
            if not _is_outdated(reply):
                return _accepted(reply)
            command = make(await self._requests.current_catalog())
        return None

    async def change_group(
        self, query: GroupQuery[T], make: Callable[[T], c.Command | CatalogCommand]
    ) -> Reply | None:
        """The same for a command to a group, made from the answer to this query."""
        command = make(await self._requests.query(query))
        while True:
            reply = await self._call(query.group, command)
            if not _is_outdated(reply):
                return _accepted(reply)
            command = make(await self._requests.query_current(query))

    async def _call(self, group: int, command: c.Command | CatalogCommand) -> Reply | None:
        """The group's answer, a refusal too."""
        _check_wire_form(command)
        self._published.check_version(command)
        future = self._expect(group)
        self._inputs.submit(ev.Submit(self._number, group, command, future))
        with self._withdrawing(group, future, future):
            return await self._requests.decided((group,), future)

    async def get(self, group: int, queue: int, count: int) -> Deliver | None:
        """Take and settle messages that are ready; None if there are none."""
        delivery: asyncio.Future[Deliver | None] = self._loop.create_future()
        delivery.add_done_callback(_looked_at)
        future = self._expect(group)
        command = c.Get(queue, count, settled=True)
        token = (future, delivery, queue)
        self._inputs.submit(ev.Submit(self._number, group, command, token))
        with self._withdrawing(group, token, future):
            _accepted(await self._requests.decided((group,), future))
        return await delivery

    # ---- batches

    async def publish(
        self,
        group: int,
        command: c.Enqueue,
        batch: bytes,
    ) -> None:
        """Publish a new batch. It gets its numbers when it is sent.

        The error OUTCOME_UNKNOWN says that the group has not decided. Then the batch is not sent again, but one that
        has arrived may still be published. After any other error nothing has been published."""
        answer = await self.send(group, command, batch)
        number = self._number
        try:
            reply = await self._requests.decided((group,), answer)
        except BaseException as error:
            # the answer still counts against the window until it comes: see `send`
            self._inputs.submit(ev.Withdraw(number, group, answer))
            if isinstance(error, status.StatusError):
                raise status.outcome_unknown(error.status) from error
            raise
        _accepted(reply)

    async def sent(self, group: int, answer: asyncio.Future[Reply | None]) -> Reply | None:
        """The answer to what `send` has sent; StatusError if it is refused."""
        return _accepted(await self._requests.decided((group,), answer))

    async def send(
        self, group: int, command: c.Enqueue | c.Stage, batch: bytes
    ) -> asyncio.Future[Reply | None]:
        """Send a command that carries a batch, in the order of the calls; `sent` waits for its answer. Its bytes count
        against the node's window until it is answered, also if its caller waits no more."""
        self._published.check_disks(group)
        window, size = self._window, command_bytes(batch, command)
        await window.take_room(size, group)
        try:
            future = self._expect(group)
        except status.StatusError:
            window.give(size, group)
            raise
        future.add_done_callback(lambda _: window.give(size, group))
        if isinstance(command, c.Enqueue):
            command = self._numbered(group, command, future)
        self._inputs.submit(ev.Submit(self._number, group, command, future, batch))
        return future

    def _numbered(self, group: int, command: c.Enqueue, answer: asyncio.Future[Reply | None]) -> c.Enqueue:
        """The command with the next numbers. They are unconfirmed until the answer comes."""
        numbers = self._numbers[group]
        first, unconfirmed = numbers.next_sequence, numbers.unconfirmed
        numbers.next_sequence += command.count
        unconfirmed[first] = None
        answer.add_done_callback(lambda _: unconfirmed.pop(first, None))
        return replace(command, first_client_sequence=first, lowest_unconfirmed=next(iter(unconfirmed)))

    # ---- answers

    def _expect(self, group: int) -> asyncio.Future[Reply | None]:
        """The future of an answer. It is kept until the answer comes, also without a caller: then the operation is
        replaced by one that does nothing (ev.Withdraw), but its number has to be answered. So their number is limited
        here."""
        if not self._shares.enter(group):
            raise status.unavailable(
                "overloaded",
                f"{self._shares.of(group)} calls at this node wait for group {group}, {self._shares.total} for all "
                f"groups; allowed for one group: as many as are left free of {self._shares.most}",
            )
        future: asyncio.Future[Reply | None] = self._loop.create_future()
        future.add_done_callback(_looked_at)
        self._calls[future] = group
        return future

    @contextmanager
    def _withdrawing(self, group: int, token: object, future: asyncio.Future[Any]) -> Iterator[None]:
        """Withdraw the operation if the block fails, because its caller waits no more."""
        number = self._number
        try:
            yield
        except BaseException:
            if future.cancel():
                self._inputs.submit(ev.Withdraw(number, group, token))
            raise

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
        if waiting is not None:
            future = waiting.popleft()
            if not waiting:
                del self._gets[deliver.queue]
            if not future.done():
                future.set_result(deliver)

    def notified(self, notify: Notify) -> None:
        """The node's own session has no consumers, only gets, and no notification is about a get."""

    def consumed_groups(self) -> set[int]:
        return set()

    def ended(self, reason: str) -> None:
        self._sessions.end(self._number)
        # the system group forgets a session that was silent for a day: the call that says so may be repeated
        error = status.of_call_ended("resync" if reason == "expired" else reason)
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
    """INVALID_ARGUMENT for a command that the Raft thread could not encode, or would find too large: it would end
    there."""
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
    """The reply; StatusError if it is a refusal."""
    if isinstance(reply, Refused):
        raise status.StatusError(status.of_refused(reply))
    return reply


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Mark the error of a future without a waiting caller as seen."""
    if not future.cancelled():
        future.exception()
