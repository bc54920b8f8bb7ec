"""`quorum doctor`: looks for what would make a member on this machine slow or unsafe, before or while it runs."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from quorum import __version__
from quorum.addresses import host_port
from quorum.cli.console import printable, require_linux
from quorum.errors import ConfigError

if TYPE_CHECKING:
    from quorum.config import NodeConfig

DISTRIBUTION = "quorum-queue"
SYNCS, SYNC_BYTES = 100, 4096
SLOW_SYNC_MS = 20.0
"""99th percentile of syncs, above which publishes take noticeably longer."""
WANTED_FILES = 65_536
CONNECT_S = 2.0
REMOTE = frozenset({"9p", "ceph", "cifs", "fuse.sshfs", "glusterfs", "nfs", "nfs4", "smb3"})
VOLATILE = frozenset({"ramfs", "tmpfs"})

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    what: str
    text: str


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="the member's TOML file; its disk and addresses too"
        ),
    ] = None,
) -> None:
    """Check this machine for a member: packages, limits, and with a configuration its disk and addresses.

    The status is 1 if something is bad."""
    require_linux()
    has_bad = False
    for finding in findings(config):
        print(f"{finding.level:<5} {finding.what}: {printable(finding.text)}", flush=True)
        has_bad |= finding.level == "bad"
    if has_bad:
        raise typer.Exit(1)


def findings(file: Path | None) -> Iterator[Finding]:
    """What was found, as it is found. file: the member's configuration; None for none."""
    yield Finding("ok", "system", f"Python {platform.python_version()}, Linux {platform.release()}")
    yield _packages()
    yield _open_files()
    if file is None:
        return
    from quorum.config import load

    try:
        config = load(file)
        config.read_secret()
    except ConfigError as error:
        yield Finding("bad", "configuration", str(error).replace("\n", "; "))
        return
    yield Finding("ok", "configuration", f"{file}, member {config.name} of {', '.join(config.members)}")
    yield from _disk(config)
    for name, each in config.members.items():
        if name != config.name:
            yield _address(f"{name}, for members", each.peer)
            yield _address(f"{name}, for clients", each.client)


def _packages() -> Finding:
    from packaging.requirements import Requirement

    wrong = []
    for text in metadata.requires(DISTRIBUTION) or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": "server"}):
            continue
        try:
            installed = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{wanted.name} is missing")
            continue
        if not wanted.specifier.contains(installed, prereleases=True):
            wrong.append(f"{wanted.name} is {installed}, wanted is {wanted.specifier}")
    if wrong:
        return Finding("bad", "packages", f"{'; '.join(wrong)}; pip install '{DISTRIBUTION}[server]'")
    return Finding("ok", "packages", f"release {__version__} with all that a member needs")


def _open_files() -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = most == resource.RLIM_INFINITY or most >= WANTED_FILES
    text = "unlimited" if most == resource.RLIM_INFINITY else f"{most:,}"
    return Finding(
        "ok" if enough else "warn",
        "open files",
        f"at most {text}"
        + ("" if enough else f"; {WANTED_FILES:,} for many sessions: ulimit -n, LimitNOFILE="),
    )


def _disk(config: NodeConfig) -> Iterator[Finding]:
    folder = config.data_dir
    while not folder.exists():
        folder = folder.parent
    kind = _file_system(folder)
    if kind in VOLATILE:
        yield Finding("bad", "file system", f"{folder} is {kind}: nothing of it survives a restart")
    elif kind in REMOTE:
        yield Finding("bad", "file system", f"{folder} is {kind}: a member needs a local disk")
    else:
        yield Finding("ok", "file system", f"{folder} is {kind}")
    free, wanted = shutil.disk_usage(folder).free, config.disk_free_limit_bytes
    yield Finding(
        "ok" if free > 2 * wanted else "warn" if free > wanted else "bad",
        "free space",
        f"{free / 1e9:.1f} GB; publishes are refused below {wanted / 1e9:.1f} GB",
    )
    try:
        times_ms = _sync_times_ms(folder)
    except OSError as error:
        yield Finding("bad", "disk", f"{folder} cannot be written: {error.strerror}")
        return
    middle, worst = times_ms[len(times_ms) // 2], times_ms[len(times_ms) * 99 // 100]
    yield Finding(
        "warn" if worst > SLOW_SYNC_MS else "ok",
        "disk",
        f"a sync of {SYNC_BYTES:,} bytes takes {middle:.1f} ms, the slowest of {SYNCS} {worst:.1f} ms"
        + (f"; above {SLOW_SYNC_MS:g} ms every publish is slow" if worst > SLOW_SYNC_MS else ""),
    )


def _file_system(folder: Path) -> str:
    """The type of the file system of an existing folder, as the kernel names it."""
    best, kind = "", "unknown"
    place = str(folder.resolve())
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        _, mounted, found, *_ = line.split(" ")
        at = mounted.replace("\\040", " ")
        if (place == at or place.startswith(at.rstrip("/") + "/")) and len(at) >= len(best):
            best, kind = at, found
    return kind


def _sync_times_ms(folder: Path) -> list[float]:
    """Times of appends with fdatasync to a file of this folder, ascending."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(bytes(SYNC_BYTES))
            file.flush()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return sorted(times)


def _address(who: str, address: str) -> Finding:
    """Whether another member's address can be reached."""
    began = time.perf_counter()
    try:
        with socket.create_connection(host_port(address), timeout=CONNECT_S):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding("warn", who, f"{address} does not answer: {reason}; it may not run yet")
    return Finding("ok", who, f"{address} answers after {(time.perf_counter() - began) * 1000:.1f} ms")
