"""The Raft thread as the event loop sees it: one queue of inputs, and the sessions that are open there, by number.

Outputs come to `Hub.on_outputs`; those of a session are passed to its handler here. The sessions are those of clients
and the node's own.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Protocol

from fifo.commands import UNKNOWN
from fifo.effects import Deliver, Notify, Reply
from quorum.node import events as ev

MAX_DELAY_S = 0.02
"""How long an input whose outcome no caller awaits may be held here."""


class RaftThread(Protocol):
    """The member's driver."""

    def submit(self, items: tuple[ev.Input, ...]) -> None: ...

    def leave(self, item: ev.Input) -> None:
        """Submit without a wake-up: for the next turn, which an idle thread makes several times a second."""
        ...


class RaftInputs:
    """The queue of inputs. Nothing may be submitted before `attach`.

    An input whose outcome no caller awaits leaves with the next other one. So one step takes both, and the
    groups one entry: a program that settles a message and publishes the next one costs one entry for each message.
    """

    def __init__(self) -> None:
        self._raft_thread: RaftThread | None = None
        self._held: list[ev.Input] = []
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, raft_thread: RaftThread) -> None:
        self._raft_thread = raft_thread

    def submit(self, *items: ev.Input) -> None:
        assert self._raft_thread is not None
        if self._held:
            items = (*self._held, *items)
            self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._raft_thread.submit(items)

    def leave(self, item: ev.Input) -> None:
        """See RaftThread.leave. Inputs that are submitted earlier or later may overtake it."""
        assert self._raft_thread is not None
        self._raft_thread.leave(item)

    def submit_soon(self, item: ev.Input) -> None:
        """Submit with the next input, after MAX_DELAY_S at the latest. The order of all inputs is that of the calls."""
        self._held.append(item)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MAX_DELAY_S, self._submit_held)

    def _submit_held(self) -> None:
        self._timer = None
        self.submit()


class SessionHandler(Protocol):
    """A session, as the hub sees it. Called on the event loop; must not block or raise."""

    def answered(self, token: Any, reply: Reply | None) -> None: ...

    def delivered(self, group: int, deliver: Deliver) -> None: ...

    def notified(self, notify: Notify) -> None: ...

    def ended(self, reason: str) -> None: ...

    def consumed_groups(self) -> set[int]:
        """The groups in which this session holds messages, or may come to hold some."""
        ...


class OpenSessions:
    """Numbers sessions, and tells the member when one is opened or ended."""

    def __init__(self, inputs: RaftInputs) -> None:
        self._inputs = inputs
        self._handlers: dict[int, SessionHandler] = {}
        self._numbers = itertools.count(1)

    def open(self, handler: SessionHandler, producer: bytes, epoch: int, owner: int = UNKNOWN) -> int:
        """Open a session; returns its number. owner: as in RegisterProducer."""
        number = next(self._numbers)
        self._handlers[number] = handler
        self._inputs.submit(ev.OpenSession(number, producer, epoch, owner))
        return number

    def end(self, number: int, *, is_clean: bool = False) -> None:
        """End a session that is open. is_clean: its producer has nothing unconfirmed, and sends nothing again."""
        if self._handlers.pop(number, None) is not None:
            self._inputs.submit(ev.EndSession(number, is_clean))

    def fail(self, number: int) -> None:
        """End the session, if it is open, because of a defect in its handler."""
        if number in self._handlers:
            self._handlers[number].ended("failed")

    def __contains__(self, number: int) -> bool:
        return number in self._handlers

    def all(self) -> list[SessionHandler]:
        """A new list."""
        return list(self._handlers.values())

    # ---- outputs of the member, for sessions that are open

    def answered(self, output: ev.Answered) -> None:
        self._handlers[output.session].answered(output.token, output.reply)

    def delivered(self, output: ev.Delivered) -> None:
        self._handlers[output.session].delivered(output.group, output.deliver)

    def notified(self, output: ev.Notified) -> None:
        self._handlers[output.session].notified(output.notify)

    def ended(self, output: ev.Ended) -> None:
        self._handlers[output.session].ended(output.reason)

    # ---- leases

    def end_consumers(self, groups: set[int]) -> None:
        """End the sessions that consume from one of these groups, because this node may no longer deliver from it."""
        for session in self.all():
            if groups & session.consumed_groups():
                session.ended("node_down")
