"""Files of one of three real members that are removed, or lose their second half: while it runs, and while it is down.

While it runs the member names the file, and puts it back or does without it. At its start it does the same, or begins
a new log in quarantine, or stops and names the file; what it stopped at is put back by hand then. In the end everything
can be read from every member, as it was published.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import quorum
from quorum.errors import DEFECT
from support.processes.cluster import FaultyCluster, all_equal
from support.processes.damage import NOTICE_LIMIT_S, POLL_S, SETTLE_S, BitFlips
from support.processes.load import CONNECT_LIMIT_MS

KINDS = ("sealed segment", "active segment", "index file", "manifest", "snapshot", "node.json")
PUT_BACK = ("sealed segment", "index file", "manifest", "node.json")
"""As they were. A snapshot is followed by another one; the active segment is sealed, and ends where it was written."""
HARMS = ("removed", "cut off")
ATTEMPTS = 5
"""A file may be replaced, as files are, before anybody looks for it: then another one is taken."""


class FileLosses:
    """One cluster, one victim, a loss after the other."""

    def __init__(self, cluster: FaultyCluster, queue: str) -> None:
        self.cluster = cluster
        self.flips = BitFlips(cluster, queue)
        self.outcomes: Counter[str] = Counter()

    async def run(self, *, at_start: bool) -> str:
        """Each kind of file once removed and once cut off; with at_start, also while the member is down."""
        await self.flips.begin()
        for kind in KINDS:
            for harm in HARMS:
                await self._while_running(kind, harm)
        await self.flips.is_healed()
        for kind in KINDS if at_start else ():
            for harm in HARMS:
                if (kind, harm) != ("node.json", "removed"):  # another directory: the operator's business
                    await self._while_stopped(kind, harm)
        await self.flips.restart()
        await self.flips.all_is_there()
        said = ", ".join(f"{what} ({count})" for what, count in sorted(self.outcomes.items()))
        return f"files lost: {said}; {self.flips.total:,} messages right; {await all_equal(self.cluster)}"

    async def _while_running(self, kind: str, harm: str) -> None:
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await self.flips.publish(client)  # something for the active segment
        for _ in range(ATTEMPTS):
            path = self._choose(kind)
            said = self.flips.output_size()
            size = _harm(path, harm)
            deadline = time.monotonic() + NOTICE_LIMIT_S
            while not (is_named := self._is_named(path, said)) and not is_replaced(path, size):
                ended = self.cluster.processes.ended()
                assert not ended, (
                    f"{path} {harm}: {ended}\n{self.cluster.processes.last_output(self.flips.victim)}"
                )
                assert time.monotonic() < deadline, f"{path} {harm}: not noticed in {NOTICE_LIMIT_S} s"
                await asyncio.sleep(POLL_S)
            if not is_named:
                await asyncio.sleep(SETTLE_S)
                is_named = self._is_named(path, said)
            if is_named:
                while kind in PUT_BACK and not _is_back(path, size):
                    assert time.monotonic() < deadline, f"{path} {harm}: not put back in {NOTICE_LIMIT_S} s"
                    await asyncio.sleep(POLL_S)
                self.outcomes[f"{kind} {harm} while running"] += 1
                return
        raise AssertionError(f"{kind} {harm}: replaced {ATTEMPTS} times before it was noticed")

    async def _while_stopped(self, kind: str, harm: str) -> None:
        victim = self.flips.victim
        await asyncio.to_thread(self.cluster.stop, [victim])
        while not self._candidates(kind):  # it has begun a new log meanwhile
            await self.flips.restart()
            await self.flips.fill()
            await asyncio.to_thread(self.cluster.stop, [victim])
        path = self._choose(kind)
        before = path.read_bytes()
        size = _harm(path, harm)
        said = self.flips.output_size()
        self.cluster.start([victim])
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await self.flips.publish(client)  # the others go on
        status = await self.flips.ended_or_serving()
        if status is not None:
            assert status not in (0, DEFECT), f"{path} {harm}: ended with {status}"
            assert self._is_named(path, said), f"{path} {harm}: ended with {status}, without the file's name"
            path.write_bytes(before)
            await self.flips.restart()
            self.outcomes[f"{kind} {harm} at a start: stopped"] += 1
        else:
            is_known = self._is_named(path, said) or (kind == "index file" and _is_back(path, size))
            if harm == "removed" and kind == "manifest":
                is_known = self._is_named(Path("log set aside"), said)  # it names what nobody lists
            elif kind == "snapshot":
                # of one that is gone nobody knows that there was one, unless the journal does not go on without it
                is_known |= harm == "removed" or self._is_named(Path("replica lost"), said)
            assert is_known, f"{path} {harm}: served without a word"
            self.outcomes[f"{kind} {harm} at a start: served"] += 1

    def _choose(self, kind: str) -> Path:
        return self.cluster.chance.choice(self._candidates(kind))

    def _candidates(self, kind: str) -> list[Path]:
        log, segments = self.flips.log(), self.flips.segments()
        return {
            "sealed segment": segments[:-1],
            "active segment": segments[-1:],
            "index file": sorted(log.glob("segment-*.index")),
            "manifest": [log / "MANIFEST"],
            "snapshot": sorted((log / "snapshots").glob("*.snapshot")),
            "node.json": [log.parent / "node.json"],
        }[kind]

    def _is_named(self, path: Path, said: int) -> bool:
        with open(self.cluster.member(self.flips.victim).output, "rb") as file:
            file.seek(said)
            return path.name.encode() in file.read()


def _harm(path: Path, harm: str) -> int:
    """What is left of its length."""
    if harm == "removed":
        path.unlink()
        return -1
    size = path.stat().st_size // 2
    with open(path, "r+b") as file:
        file.truncate(size)
    return size


def is_replaced(path: Path, size: int) -> bool:
    """Whether the member has made the file again, has deleted what was cut off of it, or needs it no more: a snapshot
    goes when two newer ones are there. size: what is left of its length, -1 if the file was removed."""
    return _is_back(path, size) or (size >= 0 and not path.exists()) or _has_successors(path)


def _has_successors(path: Path) -> bool:
    """Whether it is a snapshot, and its group has two newer ones."""
    if path.suffix != ".snapshot":
        return False
    group = path.name.partition("-index-")[0]
    snapshots = path.parent.glob(f"{group}-index-*.snapshot")
    return len([each for each in snapshots if each.name > path.name]) >= 2


def _is_back(path: Path, size: int) -> bool:
    """Whether more is there than was left."""
    try:
        return path.stat().st_size > size
    except FileNotFoundError:
        return False
