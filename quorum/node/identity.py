"""Who this data directory belongs to, and how often a process has started on it.

The boot number tells two lives of one node apart: effects for an earlier life are dropped, and a peer that hears a
newer one knows that the older process is gone. It never goes back, even if the directory was emptied: it is at least
the milliseconds of the wall clock at the start. Numbers between are for a process that was declared down while it
lived: it goes on under its next one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quorum.log.files import Files, RealFiles, commit_file, prepare_file, read_file
from quorum.log.record import crc32c

FILE = "node.json"
BOOT_STEP = 1_000
"""How many numbers a process has for itself."""


class IdentityError(Exception):
    """The data directory belongs to another node or cluster, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Founding:
    """What stays as it was when the cluster began: members that differ in it would not compute the same."""

    cluster: str
    queue_groups: int
    members: tuple[str, ...]
    """all names, sorted"""

    def __str__(self) -> str:
        return (
            f"cluster {self.cluster!r}, queue_groups {self.queue_groups}, members {', '.join(self.members)}"
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose a data directory is, and the boot number of the latest process on it."""

    name: str
    boot: int
    founding: Founding


def read_identity(directory: Path, files: Files) -> Identity | None:
    """What the directory says of its owner; None if nobody has begun on it. IdentityError if it cannot be read."""
    path = directory / FILE
    if FILE not in files.list_directory(directory):
        return None
    try:
        known = _decode(read_file(files, path))
        founding = Founding(str(known["cluster"]), int(known["queue_groups"]), tuple(known["members"]))
        return Identity(str(known["name"]), int(known["boot"]), founding)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IdentityError(f"{path} cannot be read: {error!r}") from error


def begin_boot(
    directory: Path, name: str, founding: Founding, wall_ms: int, files: Files | None = None
) -> int:
    """Checks the directory's owner and returns this start's boot number, durable before it is used."""
    files = files or RealFiles()
    path = directory / FILE
    boot = 0
    known = read_identity(directory, files)
    if known is not None:
        boot, begun = known.boot, known.founding
        if known.name != name or begun.cluster != founding.cluster:
            raise IdentityError(
                f"{directory} belongs to node {known.name!r} of cluster {begun.cluster!r}, "
                f"this is node {name!r} of cluster {founding.cluster!r}; give each node a directory of its own"
            )
        if begun != founding:
            raise IdentityError(f"{directory} began as {begun}; it cannot go on as {founding}")
    boot = max(boot + BOOT_STEP, wall_ms)
    prepare_file(files, path, [_encode({"name": name, "boot": boot, **asdict(founding)})])
    commit_file(files, path)
    return boot


def _encode(known: dict[str, Any]) -> bytes:
    """One line of JSON, and the CRC32C of that line: a bit that was turned over must not become a boot number."""
    line = json.dumps(known).encode() + b"\n"
    return line + f"crc32c {crc32c(line):08x}\n".encode()


def _decode(data: bytes) -> Any:
    line, end, check = data.partition(b"\n")
    if check != f"crc32c {crc32c(line + end):08x}\n".encode():
        raise ValueError("it fails its CRC")
    return json.loads(line)
