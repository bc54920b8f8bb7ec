"""The identity of a data directory: its node, the number of its starts, and what it remembers of the other members.

The boot number distinguishes two processes of one node: effects for an earlier process are dropped, and a peer that
hears a newer number knows that the older process is gone. The number never decreases, even if the directory was
emptied: it is at least the wall clock at the start, in milliseconds. The numbers between two starts are for a process
that was declared down while it was alive: it continues under its next one.

The *incarnation* is a random name of the directory, created with it. A member whose directory was emptied has forgotten
its votes and acknowledgements. It returns with another incarnation and must not be taken for the earlier member. Two
rules ensure that:

  - a member remembers the incarnation under which it first met another one, and refuses any other (handshake);
  - a founding member takes part only once every other founding member has said that it remembers it (`is_established`).
    So a cluster begins when all its founding members have met, and a founding member that forgot meets one that did
    not.

A member that joins later has the incarnation in its id (catalog.members) and needs neither rule.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from fifo.frozen_dataclasses import dataclass
from fifo.versions import CURRENT
from quorum.catalog.layouts import LEASE_SETTINGS
from quorum.catalog.lease_times import LeaseSettings
from quorum.catalog.members import CatalogMember, joined_id
from quorum.log.files import NO_ROOM, Files, RealFiles, commit_file, prepare_file, read_file
from quorum.log.record import crc32c
from quorum.replication.network.handshake import INCARNATION_BYTES

FILE = "node.json"
BOOT_STEP = 1_000
"""Boot numbers reserved for each process."""


class IdentityError(Exception):
    """The data directory belongs to another node or cluster, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Founding:
    """Settings that never change after the cluster has begun: members that differ in them would not compute the same
    states."""

    cluster: str
    queue_groups: int
    members: tuple[str, ...]
    """all names, sorted; none at a node that joins a running cluster"""

    def __str__(self) -> str:
        members = f"members {', '.join(self.members)}" if self.members else "joining"
        return f"cluster {self.cluster!r}, queue_groups {self.queue_groups}, {members}"


@dataclass(slots=True)
class NodeState:
    """Everything that a node knows of itself and others beside its log. Changed on the Raft thread; saved before it is
    relied on."""

    incarnation: str = ""
    """hex; empty where it is not used (tests)"""
    is_established: bool = True
    known_incarnations: dict[str, str] = field(default_factory=dict)
    """id -> incarnation under which it was first met"""
    members: tuple[CatalogMember, ...] = ()
    """the catalog's members when this node last read them: their addresses after a start"""
    lease_settings: LeaseSettings | None = None
    """the newest of the catalog's settings that this node has seen"""
    mark: int = 0
    """the last mark that this node has given to any peer (rollback_marks.py)"""
    heard: dict[str, int] = field(default_factory=dict)
    """id -> the last mark that it has given to this node"""
    skipped: tuple[tuple[int, int], ...] = ()
    """(group, index) of entries whose effect was ever left out here (skipped_entries.py)"""
    parted: tuple[tuple[int, int], ...] = ()
    """(group, index) of entries at which the state here differed from most voters' states, and is not rebuilt yet"""
    is_unsaved: bool = False
    """the disk had no room for the last change; the member tries again (`try_save`)"""
    save: Callable[[], None] = lambda: None
    """raises OSError"""
    is_whole: Callable[[], bool] = lambda: True
    """whether the file can be read; any thread"""

    def try_save(self) -> bool:
        """Save it. False if the disk has no room: nothing may depend on the change yet. Any other OSError is raised,
        because then the disk has failed."""
        try:
            self.save()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.is_unsaved = True
            return False
        self.is_unsaved = False
        return True


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """One start on a data directory. id: the member's, see catalog.members."""

    id: str
    boot: int
    node_state: NodeState


@dataclass(frozen=True, slots=True)
class Identity:
    """A data directory's owner, the boot number of the latest process on it, and what that process knew."""

    name: str
    boot: int
    founding: Founding
    node_state: NodeState


def read_identity(directory: Path, files: Files) -> Identity | None:
    """Returns the directory's identity; None if no process has begun on it. Raises IdentityError if it cannot be
    read."""
    path = directory / FILE
    if FILE not in files.list_directory(directory):
        return None
    try:
        known = decode_line(read_file(files, path))
        founding = Founding(str(known["cluster"]), int(known["queue_groups"]), tuple(known["members"]))
        settings = known.get("lease_settings")
        node_state = NodeState(
            str(known["incarnation"]),
            bool(known["is_established"]),
            {str(each): str(known_incarnations) for each, known_incarnations in known["met"].items()},
            tuple(CatalogMember(**each) for each in known["known"]),
            None if settings is None else LEASE_SETTINGS.from_row(settings),
            int(known.get("mark", 0)),
            {str(each): int(mark) for each, mark in known.get("heard", {}).items()},
            tuple((int(group), int(index)) for group, index in known.get("skipped", ())),
            tuple((int(group), int(index)) for group, index in known.get("parted", ())),
        )
        return Identity(str(known["name"]), int(known["boot"]), founding, node_state)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IdentityError(f"{path} cannot be read: {error!r}") from error


def check_identity(directory: Path, name: str, founding: Founding, files: Files) -> Identity | None:
    """As `read_identity`. Raises IdentityError also if the directory is not one of this node."""
    known = read_identity(directory, files)
    if known is None:
        return None
    begun = known.founding
    compared = {"name": (known.name, name), "cluster": (begun.cluster, founding.cluster)}
    wrong = [key for key, (begun_as, configured) in compared.items() if begun_as != configured]
    if wrong:
        raise IdentityError(
            f"{directory} belongs to node {known.name!r} of cluster {begun.cluster!r}, "
            f"this is node {name!r} of cluster {founding.cluster!r}. If it is the same member, correct "
            f"{' and '.join(wrong)} in its configuration; only a different member needs a directory of its own"
        )
    if begun != founding:
        raise IdentityError(f"{directory} began as {begun}; it cannot continue as {founding}")
    return known


def record_start(
    directory: Path,
    name: str,
    founding: Founding,
    wall_ms: int,
    files: Files | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> ProcessStart:
    """Checks the directory's owner and begins this start: its boot number is durable before it is used."""
    files = files or RealFiles()
    boot = 0
    node_state = NodeState(random_bytes(INCARNATION_BYTES).hex(), is_established=len(founding.members) <= 1)
    known = check_identity(directory, name, founding, files)
    if known is not None:
        boot, node_state = known.boot, known.node_state
    boot = max(boot + BOOT_STEP, wall_ms)

    def save() -> None:
        _write(directory, Identity(name, boot, founding, node_state), files)

    def is_whole() -> bool:
        try:
            return read_identity(directory, files) is not None
        except IdentityError:
            return False

    node_state.save, node_state.is_whole = save, is_whole
    save()
    own_id = name if founding.members else joined_id(name, node_state.incarnation)
    return ProcessStart(own_id, boot, node_state)


def begin_new_cluster(directory: Path, cluster: str, own: CatalogMember, files: Files) -> None:
    """Make this stopped member the only one of a new cluster, durably: it forgets all others. own: the member as the
    new cluster's catalog has it."""
    known = read_identity(directory, files)
    if known is None:
        raise IdentityError(f"{directory / FILE} is gone")
    state = replace(known.node_state, known_incarnations={}, members=(own,), heard={})
    founding = replace(known.founding, cluster=cluster)
    _write(directory, Identity(known.name, known.boot, founding, state), files)


def _write(directory: Path, known: Identity, files: Files) -> None:
    """Write the file durably."""
    state = known.node_state
    fields = {
        "name": known.name,
        "boot": known.boot,
        **asdict(known.founding),
        "incarnation": state.incarnation,
        "is_established": state.is_established,
        "met": state.known_incarnations,
        "lease_settings": state.lease_settings and LEASE_SETTINGS.row(state.lease_settings, CURRENT),
        "known": [asdict(each) for each in state.members],
        "mark": state.mark,
        "heard": state.heard,
        "skipped": state.skipped,
        "parted": state.parted,
    }
    prepare_file(files, directory / FILE, [encode_line(fields)])
    commit_file(files, directory / FILE)


def encode_line(known: dict[str, Any]) -> bytes:
    """One line of JSON, and the CRC32C of that line: a flipped bit must not become a boot number."""
    line = json.dumps(known).encode() + b"\n"
    return line + f"crc32c {crc32c(line):08x}\n".encode()


def decode_line(data: bytes) -> Any:
    """What `encode_line` has encoded. ValueError if the bytes are damaged."""
    line, end, check = data.partition(b"\n")
    if check != f"crc32c {crc32c(line + end):08x}\n".encode():
        raise ValueError("it fails its CRC")
    return json.loads(line)
