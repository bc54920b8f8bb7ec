"""Which processes of this machine listen on a port, as Linux shows it in /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LISTENS = "0A"
"""The state TCP_LISTEN in /proc/net/tcp."""


@dataclass(frozen=True, slots=True)
class Listener:
    """files: what the process has open, among them the lock of a member's log."""

    pid: int
    command: str
    files: frozenset[str]


def listeners(port: int) -> list[Listener]:
    """The processes that listen on this port of any address. Those of other users are seen by root only."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            files = frozenset([os.readlink(each) for each in (folder / "fd").iterdir()])
            if sockets & files:
                command = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
                found.append(Listener(int(folder.name), command, files))
        except OSError:  # ended meanwhile, or of another user
            continue
    return sorted(found, key=lambda each: each.pid)


def _inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:  # without IPv6
            continue
        for line in lines:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
                found.add(inode)
    return found
