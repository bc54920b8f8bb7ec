"""The common part of a session's publishing and consuming sides: its commands at the groups, and its outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from fifo import commands as c
from fifo.effects import Refused, Reply
from fifo.frozen_dataclasses import dataclass
from quorum.api import status
from quorum.api.hub.hub import Hub
from quorum.api.hub.raft_thread import SessionHandler
from quorum.api.session.outcomes import Failed, Outbox
from quorum.catalog.queues import CatalogQueue
from quorum.node import events


class Token(Protocol):
    """What a command's answer means. queues: those that its request named; none if no queue can be outdated."""

    @property
    def queues(self) -> Sequence[CatalogQueue]: ...

    def answered(self, reply: Reply | None) -> None: ...


Answered = Callable[[Reply | None], object]
"""Called with the group's answer to a command."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """The token of a command that counts as under way."""

    commands: SessionCommands
    then: Answered
    queues: Sequence[CatalogQueue]

    def answered(self, reply: Reply | None) -> None:
        self.commands.under_way -= 1
        self.commands.room.set()
        self.then(reply)


class SessionCommands:
    """The commands of one session."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.number = 0
        """0 until the session is open"""
        self.producer = b""
        self.owner = c.UNKNOWN
        """the client's address, as in RegisterProducer"""
        self.outbox = Outbox()
        self.under_way = 0
        """requests, publishing apart, that their groups have not answered"""
        self.undecided = 0
        """batches that their groups have not decided"""
        self.is_clean = False
        """the client has said that nothing is unconfirmed, and has sent nothing since"""
        self.work = asyncio.Event()
        """set when there is something to tell, or the session ends"""
        self.room = asyncio.Event()
        """set when something is decided or told"""

    def open(self, handler: SessionHandler, producer: bytes, epoch: int, owner: int) -> None:
        self.producer = producer
        self.owner = owner
        self.number = self._hub.sessions.open(handler, producer, epoch, owner)

    def close(self, *, is_clean: bool) -> None:
        """The client says that it sends nothing again."""
        self.is_clean = is_clean

    def resume(self) -> None:
        """The client sends something all the same."""
        self.is_clean = False

    def submit(
        self,
        group: int,
        command: c.Command,
        answered: Answered,
        queues: Sequence[CatalogQueue] = (),
        *,
        can_wait: bool = False,
    ) -> None:
        """Send a command. queues: as in Token. can_wait: no caller awaits its outcome."""
        self.under_way += 1
        submit = self._hub.submit_soon if can_wait else self._hub.submit
        submit(events.Submit(self.number, group, command, _Counted(self, answered, queues)))

    def publish(self, group: int, command: c.Enqueue | c.InTransaction, token: Token, batch: bytes) -> None:
        """Send a command with its batch, which is not counted here."""
        self._hub.submit(events.Submit(self.number, group, command, token, batch))

    def finish(self, request_id: int, reply: Reply | None) -> None:
        """A request is done, or refused by its group."""
        if isinstance(reply, Refused) and request_id:
            self.outbox.add(Failed(request_id, status.of_refused(reply)))
        else:
            self.outbox.done(request_id)

    def refuse(self, request_id: int, error: status.StatusError) -> None:
        """A request is refused here."""
        self.outbox.add(Failed(request_id, error.status))
        self.work.set()
