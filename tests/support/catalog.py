"""The catalog's machine, and one client that changes it."""

from __future__ import annotations

from typing import Any

from fifo import commands as c
from fifo.effects import Reply
from fifo.versions import CURRENT
from quorum.catalog.machine import CatalogMachine
from quorum.node.wire.operations import Command, command_parts, encode

PRODUCER = b"p" * 16


class Catalog:
    """Each command is an entry."""

    def __init__(self, queue_groups: tuple[int, ...] = (1, 2)) -> None:
        self.machine = CatalogMachine(queue_groups)
        self.n = 0
        self.apply(c.RegisterProducer(c.Address(1, 1, 1)))

    def apply(self, command: Any) -> Reply | None:
        """The reply to a command as it is."""
        operation = c.Operation(0, c.Origin(PRODUCER, 1, self.n), command)
        self.n += 1
        return self.machine.apply(c.Meta(self.n, 1, 1_000, CURRENT), (operation,)).replies[0]

    def call(self, command: Any) -> Reply | None:
        """The reply to a command as it comes out of the log."""
        data = encode(command, c.Origin(PRODUCER, 1, self.n))
        [found] = Command(b"".join(command_parts([data], 1_000, CURRENT))).decode()
        return self.apply(found.command)
