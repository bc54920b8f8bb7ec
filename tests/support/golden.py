"""Golden data: what a released version has written, kept so that every later one is seen to read it.

`python -m support.golden FILE` (with PYTHONPATH=.:selectors:tests, in a checkout of the version to be recorded) runs a
cluster of three members, gives it every kind of command, and writes one archive:

    about.json                   the machine version, the kinds of commands, the queues, what is in them
    groups/N/entries             each entry of a group: index, term, the machine's running hash after it, body
    groups/N/snapshot            the machine's canonical snapshot after the last entry
    groups/N/checkpoint, pages   the machine's checkpoint there, and the pages that it names
    members/NAME/...             the member's files: log segments, index files, manifest, snapshots; and node.json

The archive of a version is never written again. `tests/regressions/test_golden.py` reads all of them.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fifo import commands as c
from fifo.consumers.filter_fields import StoredFields
from fifo.effects import Applied, Reply
from fifo.group_machine import GroupMachine
from fifo.messages.pages import MemoryPages
from fifo.persistence import checkpoint
from fifo.queries import group as queries
from quorum.catalog import commands as cat
from quorum.catalog import members as who
from quorum.catalog.machine import CatalogMachine
from quorum.node.identity.identity import Founding, NodeState, read_identity, record_start
from quorum.node.replica.replica import state_of
from quorum.node.wire.operations import Command, columns_of
from quorum.replication.group import Group
from quorum_selectors import canonical, columns, jms
from support.cluster import Cluster, Session, batch
from support.disk import SimDisk

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


# ---- recording


class Recorder:
    """Sees what one member's groups commit."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, tuple[int, bytes]]] = {}
        self._take = Group.take_committed
        recorder = self

        def take(group: Group, *given: Any) -> Any:
            taken = recorder._take(group, *given)
            for index, term, body in taken:
                if body:
                    recorder.entries.setdefault(group.group, {})[index] = (term, bytes(body))
            return taken

        Group.take_committed = take  # type: ignore[method-assign]

    def stop(self) -> None:
        Group.take_committed = self._take  # type: ignore[method-assign]


def selector(text: str) -> bytes:
    return canonical.encode(jms.parse(text))


class Script:
    """Gives a cluster every kind of command."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            3, seed=7, log={"segment_bytes": 48 << 10}, snapshot_ms=1_000, snapshot_bytes=20_000
        )
        self.cluster.ready()
        self.queues: dict[str, tuple[int, int]] = {}

    def declare(self, name: str, **arguments: bool | int | str) -> tuple[int, int]:
        self.queues[name] = self.cluster.declare(name, **arguments)
        return self.queues[name]

    def publish(self, session: Session, name: str, count: int, **more: Any) -> Reply | None:
        group, queue = self.queues[name]
        first = session.next_sequence
        session.next_sequence += count
        own = "application-properties."
        rows = [
            {f"{own}colour": ("red", "blue", "green")[i % 3], f"{own}weight": first + i}
            | ({"header.priority": i % 10} if i % 2 else {f"{own}ratio": i / 7})
            for i in range(count)
        ]  # fmt: skip
        bodies = [f"{name} {first + i}".encode().ljust(40 + i % 90, b".") for i in range(count)]
        filled = columns.encode(rows) if more.pop("filtered", False) else b""
        command = c.Enqueue(
            queue, first, more.pop("lowest", first), count, sum(map(len, bodies)), columns=filled, **more
        )
        return session.call(group, command, batch(bodies))

    def run(self) -> None:
        self._policies()
        self._consumers()
        self._blocks()
        self._readers()
        self._staging()
        self._limits()
        self._singles()
        self._node_down()
        self._members()
        self._versions()
        self.cluster.run(3_000)
        self.cluster.settle()

    def _policies(self) -> None:
        self.declare("plain")
        self.declare("filtered", filter_enabled=True, queue_mode="lazy")
        self.declare("named", filter_enabled=True, filter_field_names="colour,header.priority")
        self.declare("short", max_length=5, overflow="reject-publish")
        self.declare("rolling", max_length=4)
        self.declare("fleeting", message_ttl=3_000)
        self.declare("tried", delivery_limit=2)
        self.declare("gone")
        administer = self.cluster.administer
        administer(cat.SetPolicy("long", "plain", 5, (("x-max-length", 100_000),)))
        administer(cat.SetPolicy("passing", "nothing*", 1, (("x-overflow", "drop-head"),)))
        administer(cat.RemovePolicy("passing"))
        administer(cat.RemoveQueue("gone"))

    def _consumers(self) -> None:
        group, queue = self.queues["filtered"]
        writer = Session(self.cluster, "n1")
        for _ in range(6):
            self.publish(writer, "filtered", 50, filtered=True)
        self.publish(writer, "filtered", 3, filtered=True, ttls_ms=(400, -1, 60_000_000))
        self.publish(writer, "filtered", 2, filtered=True, ttl_ms=50_000_000)
        reader = Session(self.cluster, "n2")
        attached = reader.call(group, c.Attach(queue, "red", selector("colour = 'red' AND weight > 20"), 12))
        attach = attached.attach  # type: ignore[union-attr]
        self.cluster.run(500)
        reader.call(group, c.Settle(queue, "red", attach, ((1, 3), (5, 5)), 20))
        reader.call(group, c.Return(queue, "red", attach, ((4, 4),)))
        reader.call(group, c.Discard(queue, "red", attach, ((6, 6),)))
        reader.call(group, c.Modify(queue, "red", attach, ((7, 8),), 0, delivery_failed=True))
        reader.call(
            group, c.Modify(queue, "red", attach, ((9, 9),), 0, delivery_failed=True, undeliverable_here=True)
        )
        reader.call(group, c.Credit(queue, "red", 30, drain=True))
        reader.call(group, c.Get(queue, 3, settled=False))
        reader.call(group, c.Get(queue, 2, settled=True))
        other = Session(self.cluster, "n3")
        other.call(group, c.Attach(queue, "like", selector("colour LIKE 'b%' OR ratio BETWEEN 1 AND 3"), 5))
        other.call(group, c.Cancel(queue, "like", True))
        other.call(group, c.CloseSession())
        again = Session(self.cluster, "n1", writer.producer, 2)  # a higher epoch: the old one is fenced
        again.next_sequence = writer.next_sequence
        self.publish(again, "filtered", 4, filtered=True)
        self.cluster.run(500)

    def _blocks(self) -> None:
        """More than one block, with holes and messages that are checked out."""
        group, queue = self.declare("long")
        writer = Session(self.cluster, "n3")
        for _ in range(36):
            bodies = [b"%05d" % (writer.next_sequence + i) for i in range(500)]
            first = writer.next_sequence
            writer.next_sequence += len(bodies)
            command = c.Enqueue(queue, first, first, len(bodies), sum(map(len, bodies)))
            writer.call(group, command, batch(bodies))
        reader = Session(self.cluster, "n1")
        attach = reader.call(group, c.Attach(queue, "front", b"", 200)).attach  # type: ignore[union-attr]
        self.cluster.run(300)
        reader.call(group, c.Settle(queue, "front", attach, ((1, 40), (50, 60), (199, 199))))

    def _readers(self) -> None:
        group, queue = self.queues["filtered"]
        session = Session(self.cluster, "n3")
        opening = c.OpenSubscription(
            queue, "archive", selector("weight < 250"), "earliest", 86_400_000, "keep"
        )
        generation = session.call(group, opening).generation  # type: ignore[union-attr]
        session.call(group, c.Reserve(queue, "archive", generation, 0, 20, 1 << 20))
        session.call(group, c.Reserve(queue, "archive", generation, 1, 20, 1 << 20))
        session.call(group, c.SettleReserved(queue, "archive", generation, 1))
        session.call(group, c.KeepSubscription(queue, "archive", generation))
        opening = c.OpenSubscription(queue, "late", b"", "latest", 86_400_000, "release")
        generation = session.call(group, opening).generation  # type: ignore[union-attr]
        session.call(group, c.Reserve(queue, "late", generation, 0, 5, 1 << 20))
        session.call(group, c.ReleaseSubscription(queue, "late", generation))
        session.call(group, c.OpenSubscription(queue, "old", b"", "earliest", 86_400_000, "discard"))
        session.call(group, c.DeleteSubscription(queue, "old"))
        pinned = session.call(group, c.Pin(queue, 10_000_000))
        session.call(group, c.Unpin(queue, pinned.pin))  # type: ignore[union-attr]
        session.call(group, c.Pin(queue, 10_000_000))

    def _staging(self) -> None:
        group, queue = self.queues["filtered"]
        session = Session(self.cluster, "n2")

        def stage(number: int, part: int, chunk: int) -> None:
            bodies = [f"staged {number} {part} {chunk} {i}".encode() for i in range(5)]
            rows = [{"application-properties.colour": "staged"}] * 5
            command = c.Stage(
                queue, "writer", number, bytes([part]) * 16, chunk, 5, sum(map(len, bodies)), 60_000_000,
                columns=columns.encode(rows),
            )  # fmt: skip
            session.call(group, command, batch(bodies))

        for part in (1, 2):
            stage(1, part, 0)
            stage(1, part, 1)
        session.call(group, c.DiscardStaged(queue, "writer", 1, (bytes([2]) * 16,)))
        session.call(group, c.PublishStaged(queue, "writer", 1, ((bytes([1]) * 16, 10),)))
        stage(2, 1, 0)

    def _limits(self) -> None:
        writer = Session(self.cluster, "n2")
        self.publish(writer, "short", 4)
        self.publish(writer, "short", 4)  # refused
        for _ in range(3):
            self.publish(writer, "rolling", 3)
        self.publish(writer, "fleeting", 10)
        self.publish(writer, "tried", 3)
        group, queue = self.queues["tried"]
        reader = Session(self.cluster, "n1")
        attach = reader.call(group, c.Attach(queue, "failing", b"", 3)).attach  # type: ignore[union-attr]
        for time in range(3):
            self.cluster.run(200)
            first = 3 * time + 1
            reader.call(
                group,
                c.Modify(queue, "failing", attach, ((first, first + 2),), first + 5, delivery_failed=True),
            )
        self.cluster.run(4_000)

    def _singles(self) -> None:
        """Many messages that share entries, from several sessions, and a queue that is purged."""
        group, queue = self.queues["filtered"]
        sessions = [Session(self.cluster, name) for name in MEMBERS]
        for number in range(60):
            for session in sessions:
                first = session.next_sequence
                session.next_sequence += 1
                row = [{"application-properties.colour": "single", "application-properties.weight": number}]
                command = c.Enqueue(queue, first, 1, 1, 6, columns=columns.encode(row))
                session.send(group, command, first, batch([b"single"]))
        self.cluster.until(lambda: all(len(s.replies) >= 60 for s in sessions), "the singles are confirmed")
        self.publish(sessions[0], "plain", 30)
        self.publish(sessions[1], "rolling", 2)
        rolling, dropped = self.queues["rolling"]
        sessions[1].call(rolling, c.Purge(dropped))

    def _node_down(self) -> None:
        group, queue = self.queues["plain"]
        session = Session(self.cluster, "n3")
        session.call(group, c.Attach(queue, "lost", b"", 4))
        self.cluster.run(500)
        self.cluster.crash("n3", power=False)
        self.cluster.run(15_000)
        self.cluster.start("n3")
        self.cluster.ready()

    def _members(self) -> None:
        administer = self.cluster.administer
        administer(who.DrainMember("n2", True))
        self.cluster.run(2_000)
        administer(who.DrainMember("n2", False))
        made = "0123456789abcdef" * 2
        administer(who.AddMember(who.joined_id("n9", made), "n9", "n9:1", "n9:2", made))
        administer(who.RemoveMember("n9"))
        self.cluster.run(2_000)

    def _versions(self) -> None:
        for group in (0, 1):
            leader = self.cluster.leader(group)
            assert leader is not None
            self.cluster.members[leader].replicas[group].propose_internal(c.SetVersion(1))
        self.cluster.run(500)


def record(path: Path) -> None:
    """Writes the archive of the version that runs."""
    recorder = Recorder()
    script = Script()
    script.run()
    recorder.stop()
    cluster = script.cluster
    member = cluster.members["n1"]
    out: dict[str, bytes] = {}
    kinds = set()
    for group, replica in sorted(member.replicas.items()):
        pages = MemoryPages()
        replay = Replay(group, len(member.replicas) - 1, pages)
        entries = []
        version = 0
        for index, (term, body) in sorted(recorder.entries[group].items()):
            replay.apply(index, term, body)
            version = Command(body).version
            kinds |= {type(operation.command).__name__ for operation in Command(body).decode()}
            entries.append(ENTRY.pack(index, term, replay.running_hash, len(body)) + body)
        assert state_of(replay.machine) == state_of(replica.machine), "what was recorded is not all"
        out[f"groups/{group}/entries"] = b"".join(entries)
        out[f"groups/{group}/snapshot"] = state_of(replay.machine)
        if isinstance(replay.machine, GroupMachine):
            out[f"groups/{group}/checkpoint"] = checkpoint.Checkpointer(replay.machine).take().state
            kept = sorted(pages.pages.items())
            out[f"groups/{group}/pages"] = b"".join(
                struct.pack("<QI", page, len(data)) + data for page, data in kept
            )
    queues = {
        name: {"group": group, "id": queue, "ready": info.ready, "total": info.total}
        for name, (group, queue) in script.queues.items()
        if (info := queries.info(member.queue_machine(group), queue)) is not None
    }
    for name in MEMBERS:
        cluster.crash(name, power=True)
        for found, inode in cluster.disks[name].names.items():
            out[f"members/{name}/{found.relative_to(DATA)}"] = bytes(inode.data)
        out[f"members/{name}/node.json"] = _node_json(name, cluster.node_states[name])
    about = {
        "machine_version": version,
        "queue_groups": len(member.replicas) - 1,
        "kinds": sorted(kinds),
        "queues": queues,
        "now_ms": cluster.now_ms,
        "config": {"snapshot_ms": 1_000},
    }
    out["about.json"] = json.dumps(about, indent=1).encode()
    _write(path, out)
    print(f"{path}: {path.stat().st_size:,} bytes, {len(out)} files, kinds: {', '.join(sorted(kinds))}")


def _node_json(name: str, node_state: NodeState) -> bytes:
    disk = SimDisk()
    disk.create(DATA / "log" / "LOCK")  # so that the directory is there
    start = record_start(DATA, name, Founding("golden", 3, MEMBERS), 1_700_000_000_000, disk)
    for field in ("incarnation", "is_established", "known_incarnations", "members"):
        setattr(start.node_state, field, getattr(node_state, field))
    start.node_state.save()
    return bytes(disk.names[DATA / "node.json"].data)


def _write(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(str(PurePosixPath(name)))
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
