"""Golden data: what a released version has written, kept so that every later one is seen to read it.

`golden_recording.py` writes one archive:

    about.json                   the machine version, the kinds of commands, the queues, what is in them
    groups/N/entries             each entry of a group: index, term, the machine's running hash after it, body
    groups/N/snapshot            the machine's canonical snapshot after the last entry
    groups/N/checkpoint, pages   the machine's checkpoint there, and the pages that it names
    members/NAME/...             the member's files: log segments, index files, manifest, snapshots; and node.json

The archive of a version is never written again. `tests/regressions/test_golden.py` reads all of them.
"""

from __future__ import annotations

import json
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fifo import commands as c
from fifo.consumers.filter_fields import StoredFields
from fifo.effects import Applied
from fifo.group_machine import GroupMachine
from fifo.messages.pages import MemoryPages
from quorum.catalog.machine import CatalogMachine
from quorum.node.identity.identity import NodeState, read_identity
from quorum.node.wire.operations import Command, columns_of
from support.log.disk import SimDisk

ENTRY = struct.Struct("<QQII")
"""index, term, running hash (0 in the system group), length of the body"""

MEMBERS = ("n1", "n2", "n3")
DATA = Path("/data")


@dataclass(frozen=True)
class Entry:
    index: int
    term: int
    running_hash: int
    body: bytes


class Bodies:
    """A field source over recorded entries."""

    def __init__(self) -> None:
        self.by_index: dict[int, bytes] = {}

    def columns(self, index: int, operation: int, queue: int) -> StoredFields:
        return columns_of(Command(self.by_index[index]).operation(operation), queue)


class Replay:
    """A group's recorded entries, applied one after the other to a new machine."""

    def __init__(self, group: int, queue_groups: int, pages: MemoryPages | None = None) -> None:
        self.bodies = Bodies()
        self.machine: GroupMachine | CatalogMachine = (
            GroupMachine(self.bodies, pages) if group else CatalogMachine(range(1, queue_groups + 1))
        )

    def apply(self, index: int, term: int, body: bytes) -> Applied:
        self.bodies.by_index[index] = body
        command = Command(body)
        meta = c.Meta(index, term, command.now_ms, command.version)
        return self.machine.apply(meta, command.decode())

    @property
    def running_hash(self) -> int:
        return self.machine.running_hash if isinstance(self.machine, GroupMachine) else 0


class Golden:
    """An archive, read."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as archive:
            self.files = {
                entry.name: archive.extractfile(entry).read()  # type: ignore[union-attr]
                for entry in archive
                if entry.isfile()
            }
        self.about: dict[str, Any] = json.loads(self.files["about.json"])
        self.groups = range(self.about["queue_groups"] + 1)

    def entries(self, group: int) -> list[Entry]:
        data = self.files[f"groups/{group}/entries"]
        found = []
        place = 0
        while place < len(data):
            index, term, running_hash, length = ENTRY.unpack_from(data, place)
            place += ENTRY.size
            found.append(Entry(index, term, running_hash, data[place : place + length]))
            place += length
        return found

    def replay(self, group: int, pages: MemoryPages | None = None) -> Replay:
        return Replay(group, self.about["queue_groups"], pages)

    def pages(self, group: int) -> MemoryPages:
        pages = MemoryPages()
        data = memoryview(self.files[f"groups/{group}/pages"])
        while data:
            page, length = struct.unpack_from("<QI", data)
            pages.pages[page] = bytes(data[12 : 12 + length])
            pages.last = max(pages.last, page)
            data = data[12 + length :]
        return pages

    def disk(self, member: str) -> SimDisk:
        """A disk with the member's log."""
        disk = SimDisk()
        prefix = f"members/{member}/"
        for name, data in self.files.items():
            if name.startswith(prefix):
                path = DATA / name.removeprefix(prefix)
                file = disk.create(path)
                file.pwritev([data], 0)
                file.sync()
                disk.sync_directory(path.parent)
        return disk

    def node_state(self, member: str) -> NodeState:
        """What the member's node.json says."""
        known = read_identity(DATA, self.disk(member))
        assert known is not None
        return known.node_state
