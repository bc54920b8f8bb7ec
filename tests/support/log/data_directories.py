"""Data directories of members, made entry by entry, and read again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fifo import commands as c
from fifo.versions import BASE
from quorum.catalog.commands import CatalogCommand
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.members import BootstrapCluster, founders
from quorum.log import Log, RealFiles
from quorum.node.identity.identity import Founding, NodeState, record_start
from quorum.node.identity.log_owner import claim_log
from quorum.node.wire.operations import Command, command_parts, encode
from quorum.replication.codec import COMMAND, NO_OP
from quorum.replication.configuration import CONFIGURATION, Configuration
from quorum.replication.journal_view import JournalView

NAMES = ("n1", "n2", "n3")
SEGMENT = 60_000
TERM = 4
PRODUCER = bytes(range(16))
MEMBERS = founders({name: (f"{name}.example:7401", f"{name}.example:7400") for name in NAMES})

Commands = Sequence[c.Command | CatalogCommand]


@dataclass(slots=True)
class Data:
    """A member's data directory in the making. The log's owner is n3 of three founding members."""

    directory: Path
    queue_groups: int = 1
    sent: dict[int, int] = field(default_factory=dict)
    """group -> number of the last command of the one session"""

    def make(self, *, joined: bool = False) -> NodeState:
        """The directory, with the founding members in its catalog. joined: its owner is none of them."""
        self.directory.mkdir()
        founding = Founding("test", self.queue_groups, () if joined else NAMES)
        start = record_start(self.directory, "n3", founding, 1)
        start.node_state.is_established = True
        start.node_state.save()
        with_log = self.log()
        claim_log(self.directory / "log", start.node_state.incarnation, RealFiles())
        for group in range(self.queue_groups + 1):
            journal = with_log.journal(group)
            journal.append([bytes([NO_OP])], 1, 0)
            journal.set_hard_state(TERM, "n1")
        with_log.sync()
        with_log.close()
        self.add(0, [BootstrapCluster(MEMBERS)], is_numbered=False)
        for group in range(self.queue_groups + 1):
            self.add(group, [c.RegisterProducer(c.Address(1, 7, 1))])
        return start.node_state

    def log(self) -> Log:
        return Log.open(self.directory / "log", segment_bytes=SEGMENT)

    def add(self, group: int, commands: Commands, *, is_numbered: bool = True, version: int = BASE) -> None:
        """An entry with these commands at the end of a group's journal."""
        operations = []
        for each in commands:
            origin = None
            if is_numbered:
                number = self.sent[group] = self.sent.get(group, -1) + 1
                origin = c.Origin(PRODUCER, 1, number)
            operations.append(encode(each, origin))
        self.add_body(group, bytes([COMMAND]) + b"".join(command_parts(operations, 1_000, version)))

    def configure(self, group: int, configuration: Configuration) -> None:
        self.add_body(group, bytes([CONFIGURATION]) + configuration.encode())

    def add_body(self, group: int, body: bytes) -> None:
        log = self.log()
        journal = log.journal(group)
        journal.append([body], journal.last_index + 1, TERM)
        log.sync()
        log.close()


def configurations(directory: Path, groups: int = 2) -> list[Configuration]:
    """The one in force in each group."""
    log = Log.open(directory / "log", segment_bytes=SEGMENT)
    try:
        views = [JournalView(log, group) for group in range(groups)]
        for view in views:
            view.begin(Configuration(NAMES))
        return [view.configurations.current for view in views]
    finally:
        log.close()


def catalog_of(directory: Path) -> CatalogMachine:
    """The catalog after all entries of a log without snapshots."""
    log = Log.open(directory / "log", segment_bytes=SEGMENT)
    catalog = CatalogMachine((1,))
    try:
        journal = log.journal(0)
        for index in range(1, journal.last_index + 1):
            body = journal.read(index)
            if body[0] == COMMAND:
                command = Command(memoryview(body)[1:])
                meta = c.Meta(index, journal.term_at(index), command.now_ms, command.version)
                catalog.apply(meta, command.decode())
    finally:
        log.close()
    return catalog


def tree(directory: Path) -> dict[str, str]:
    """The files of a directory: name -> hash of the content. The lock's file is no content."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }
