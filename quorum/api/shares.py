"""Fair shares of limited resources, such as places and bytes. One owner cannot take all; waiting owners take turns
(round robin).

An owner is an address or a Raft group. It may hold as much as is left free: a single owner has half of all, the next
one half of the rest. Therefore room is left for a further owner, as long as requests are small compared to the rest.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from quorum.api import status

PATIENCE_S = 3.0
"""A waiting request fails if nothing of its owner was given back for this time, because waiting requests take memory,
too."""


class Shares:
    """The amount that each owner holds of a limited total."""

    __slots__ = ("_held", "most", "total")

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: dict[Hashable, int] = {}

    def of(self, owner: Hashable) -> int:
        return self._held.get(owner, 0)

    def enter(self, owner: Hashable, size: int = 1) -> bool:
        """Add an amount within the owner's share. True: `leave` has to follow. False: it exceeds the share."""
        if self._held.get(owner, 0) + size > self.most - self.total:
            return False
        self.add(owner, size)
        return True

    def add(self, owner: Hashable, size: int) -> None:
        """Add an amount, even beyond the owner's share; `leave` has to follow."""
        self._held[owner] = self._held.get(owner, 0) + size
        self.total += size

    def leave(self, owner: Hashable, size: int = 1) -> None:
        self.total -= size
        left = self._held.get(owner, 0) - size
        if left:
            self._held[owner] = left
        else:
            self._held.pop(owner, None)


class WindowFull(Exception):
    """The window has no room for a request, and too many bytes wait already or the request has waited too long."""


@dataclass(slots=True, eq=False)
class _Line:
    """The waiting requests of one owner, in order, each with its size."""

    waiters: OrderedDict[asyncio.Future[None], int] = field(default_factory=OrderedDict)
    given: int = 0
    """how often something of the owner was given back while it waits"""


class ByteWindow:
    """A limit for the bytes that requests hold at a time. An owner's requests are admitted in order; owners take turns.

    If nothing is held, a request of any size is admitted. If an owner that holds nothing waits for room, no owner
    behind it is admitted before it, so small requests do not starve a large one.
    """

    def __init__(self, limit: int, *, max_waiting: int | None = None, always_one: bool = False) -> None:
        """max_waiting: maximum bytes of waiting requests, shared in the same way; None for no limit. always_one: an
        owner that holds nothing is admitted at once, even beyond the limit; use it only for a small number of owners.
        """
        self.limit = limit
        self._held = Shares(limit)
        self._waiting = Shares(1 << 62 if max_waiting is None else max_waiting)
        self._always_one = always_one
        self._lines: dict[Hashable, _Line] = {}

    @property
    def used(self) -> int:
        return self._held.total

    @property
    def waiting(self) -> int:
        return self._waiting.total

    def take_now(self, size: int, owner: Hashable) -> bool:
        """Take bytes if there is room and no request waits. True: `give` has to follow."""
        return not self._lines and self._enter(size, owner)

    async def take(self, size: int, owner: Hashable) -> None:
        """Take bytes, and wait for the owner's turn if necessary; `give` has to follow. Raises WindowFull."""
        if self.take_now(size, owner):
            return
        if not self._waiting.enter(owner, size):
            raise WindowFull(
                f"requests of {self._waiting.total} bytes wait already, {self._waiting.of(owner)} of them of this "
                f"origin; allowed: {self._waiting.most}, and of one origin as many as are left free"
            )
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(owner, _Line())
        line.waiters[waiter] = size
        try:
            self._admit()
            await self._wait(line, waiter)
        except BaseException:
            if waiter.done():
                self.give(size, owner)
            else:
                self._forget(owner, line, waiter)
                self._admit()
            raise

    async def _wait(self, line: _Line, waiter: asyncio.Future[None]) -> None:
        while not waiter.done():
            given = line.given
            await asyncio.wait({waiter}, timeout=PATIENCE_S)
            if not waiter.done() and line.given == given:
                raise WindowFull(
                    f"{self._held.total} of {self.limit} bytes are held, and nothing was given back for "
                    f"{PATIENCE_S:g} s; allowed of one origin: as many as are left free"
                )

    def give(self, size: int, owner: Hashable) -> None:
        self._held.leave(owner, size)
        if self._lines:
            line = self._lines.get(owner)
            if line is not None:
                line.given += 1
            self._admit()

    def _enter(self, size: int, owner: Hashable) -> bool:
        if self._held.enter(owner, size):
            return True
        is_let_in = not self._held.total or (self._always_one and not self._held.of(owner))
        if is_let_in:
            self._held.add(owner, size)
        return is_let_in

    def _admit(self) -> None:
        """Admit the waiting requests that have room now: one request of each owner in turn."""
        turns = deque(self._lines)
        while turns:
            owner = turns.popleft()
            line = self._lines[owner]
            waiter, size = next(iter(line.waiters.items()))
            if self._enter(size, owner):
                self._forget(owner, line, waiter)
                waiter.set_result(None)
                if line.waiters:
                    self._lines[owner] = self._lines.pop(owner)  # the other owners come first the next time
                    turns.append(owner)
            elif not self._held.of(owner):
                return

    def _forget(self, owner: Hashable, line: _Line, waiter: asyncio.Future[None]) -> None:
        self._waiting.leave(owner, line.waiters.pop(waiter))
        if not line.waiters:
            del self._lines[owner]


class PublishWindow(ByteWindow):
    """Bytes of published batches that their groups have not answered yet. The owners are Raft groups."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, always_one=True)

    async def take_room(self, size: int, group: int) -> None:
        """Takes a batch's bytes; `give` has to follow. UNAVAILABLE if the group has its share of the window and answers
        nothing."""
        try:
            await self.take(size, group)
        except WindowFull as error:
            text = f"no room for a batch of {size} bytes to group {group}, which does not answer: {error}"
            raise status.unavailable("overloaded", text) from error


class PlacesWindow:
    """Queues in which groups have to place batches of several queues, and have not yet. It takes each member some 20 us
    a queue, and a group does one after the other. Each group has a window of its own, so that one that does not answer
    holds up no other one. Its owners are clients' addresses."""

    def __init__(self, limit: int) -> None:
        """limit: of each group."""
        self.limit = limit
        self._windows: dict[int, ByteWindow] = {}

    @property
    def used(self) -> int:
        return sum([each.used for each in self._windows.values()])

    async def take(self, count: int, group: int, owner: int) -> None:
        """Takes places for a batch; `give` has to follow. UNAVAILABLE if the address has its share of the group's
        places and the group answers nothing."""
        window = self._windows.setdefault(group, ByteWindow(self.limit))
        try:
            await window.take(count, owner)
        except WindowFull:
            text = (
                f"no room for a batch of {count + 1} queues of group {group}, which does not answer: it still has to "
                f"place {window.used} of at most {self.limit}; allowed of one address: as many as are left free"
            )
            raise status.unavailable("overloaded", text) from None

    def give(self, count: int, group: int, owner: int) -> None:
        self._windows[group].give(count, owner)


class Receiver(Protocol):
    """A session that is sent deliveries."""

    def overloaded(self) -> None:
        """Too much waits for the session's client: the session ends, and has dropped its deliveries."""
        ...


class DeliveryWindow:
    """Memory of the deliveries that wait for slow clients. The owners are addresses.

    If an owner has no room for a delivery, its session with the most bytes is ended. An owner without waiting
    deliveries is given the first one in any case: a client that reads is not ended for those that do not.
    """

    def __init__(self, limit: int) -> None:
        self._held = Shares(limit)
        self._sizes: dict[Hashable, dict[Receiver, int]] = {}

    @property
    def used(self) -> int:
        return self._held.total

    def of(self, owner: Hashable, session: Receiver) -> int:
        return self._sizes.get(owner, {}).get(session, 0)

    def take(self, size: int, owner: Hashable, session: Receiver) -> bool:
        """Take bytes for a delivery. True: `give` has to follow. False: the session is ended."""
        while not self._held.enter(owner, size):
            sizes = self._sizes.get(owner)
            if not sizes:
                self._held.add(owner, size)
                break
            largest = max(sizes, key=sizes.__getitem__)
            self.give_all(owner, largest)
            largest.overloaded()
            if largest is session:
                return False
        sizes = self._sizes.setdefault(owner, {})
        sizes[session] = sizes.get(session, 0) + size
        return True

    def give(self, size: int, owner: Hashable, session: Receiver) -> None:
        """Give bytes back, as many as the session still has."""
        had = self.of(owner, session)
        size = min(size, had)
        if not size:
            return
        self._held.leave(owner, size)
        sizes = self._sizes[owner]
        if size < had:
            sizes[session] = had - size
            return
        del sizes[session]
        if not sizes:
            del self._sizes[owner]

    def give_all(self, owner: Hashable, session: Receiver) -> None:
        self.give(self.of(owner, session), owner, session)
