"""Bits turned over in the files of one of three real members: noticed everywhere, nothing lost, no wrong body ever.

What may happen to a bit: the member *stops* and says what is damaged; or it is *healed*: the member serves, and the
bit is as it was, or the file was replaced or is needed no more, or the body is refused or fetched from elsewhere. A bit
that stays turned over in a file that is used, without a word, is a failure. Opening a log does not read its sealed
segments: a batch that is damaged in one is noticed at the latest by whoever reads it, so the test does.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import quorum
from quorum.client import Client
from quorum.client.errors import QuorumError
from quorum.log.inspection import RecordInfo, inspect
from quorum.log.record import HEADER_BYTES
from quorum.log.segments import HEADER_BLOCK
from quorum.node.driver import DEFECT
from support.processes_cluster import FaultyCluster, all_equal
from support.processes_load import CONNECT_LIMIT_MS, leader_of
from support.processes_scenarios import RESTART_LIMIT_S

SEGMENT_BYTES = 1 << 20
SNAPSHOT_BYTES = 1 << 20
BODY_BYTES = 2_000
BATCH = 25
BATCHES = 200
"""10 MB: several segments and snapshots, and more than a member keeps in memory."""
KINDS = (
    "sealed segment",
    "active segment",
    "hard state",
    "snapshot",
    "manifest",
    "segment header",
    "node.json",
)
IN_MEMORY = 3_000
"""Messages, 6 MB: the newest bodies are not read from the disk."""
FIRST_BODY = re.compile(rb"([0-9]{8}):\1:")
READ_LIMIT_MS = 30_000
POLL_S = 0.05


def body(number: int) -> bytes:
    return f"{number:08d}:".encode() * (BODY_BYTES // 9)


@dataclass(frozen=True, slots=True)
class Place:
    """A bit of a file. message: the number of the first one that is stored around it, where one is."""

    kind: str
    path: Path
    bit: int
    message: int | None = None

    def flip(self) -> None:
        with open(self.path, "r+b") as file:
            file.seek(self.bit >> 3)
            (byte,) = file.read(1)
            file.seek(self.bit >> 3)
            file.write(bytes([byte ^ 1 << (self.bit & 7)]))

    def byte(self) -> int | None:
        """None if the file is gone or shorter."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.bit >> 3)
                found = file.read(1)
        except FileNotFoundError:
            return None
        return found[0] if found else None


class BitFlips:
    """One cluster, one victim, many bits."""

    def __init__(self, cluster: FaultyCluster, queue: str) -> None:
        self.cluster = cluster
        self.queue = queue
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.victim = ""
        self.total = 0

    async def run(self, stopped: int, running: int) -> str:
        """So many bits turned over one at a time while the victim is down, and so many at once while it runs."""
        await self._fill()
        leader = await leader_of(self.cluster, self.queue)
        self.victim = next(name for name in self.cluster.names if name != leader)
        begun = time.monotonic()
        if running:
            await self._while_running(running)
        for number in range(stopped):
            await self._while_stopped(number)
        await asyncio.to_thread(self._restart)
        await self._all_is_there()
        counts = ", ".join(
            f"{kind} {outcome} {count}" for (kind, outcome), count in sorted(self.outcomes.items())
        )
        assert sum(self.outcomes.values()) == stopped + running
        equal = await all_equal(self.cluster)
        took = time.monotonic() - begun
        flipped = f"{stopped + running} bits turned over in {took:.0f} s, all noticed: {counts}"
        return f"{flipped}; {self.total:,} messages right; {equal}"

    # ---- the queue

    async def _fill(self) -> None:
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.declare(self.queue)
            for _ in range(BATCHES):
                await self._publish(client)

    async def _publish(self, client: Client) -> None:
        await client.publish_batch(self.queue, [body(n) for n in range(self.total, self.total + BATCH)])
        self.total += BATCH

    async def _all_is_there(self) -> None:
        """Every member can read every message, as it was published."""
        for name in self.cluster.names:
            found = await self._browse(name)
            assert found == self.total, f"{name} reads {found} of {self.total} messages"

    async def _browse(self, name: str) -> int:
        """How many messages the member has. Fails at a wrong body, and at one that it refuses."""
        count = 0
        async with quorum.connect(self.cluster.url_of(name), connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            async for message in client.browse(self.queue):
                assert bytes(message.body) == body(count), f"{name}: message {count} has another body"
                count += 1
        return count

    # ---- while it runs

    async def _while_running(self, count: int) -> None:
        """One bit each in so many stored batches of a running member; then a message of each is read from it."""
        entries = list(self._stored_entries())
        assert len(entries) >= count, f"{len(entries)} batches outside of memory, {count} wanted"
        flipped = []
        for path, record, number in self.cluster.chance.sample(entries, count):
            place = self._in_batch("stored batch", path, record, number)
            place.flip()
            flipped.append((place, place.byte()))
        async with quorum.connect(
            self.cluster.url_of(self.victim), connect_timeout_ms=CONNECT_LIMIT_MS
        ) as client:
            for place, byte in flipped:
                self.outcomes[place.kind, await self._read(client, place)] += 1
                if place.byte() == byte:
                    place.flip()

    def _in_batch(self, kind: str, path: Path, record: RecordInfo, number: int) -> Place:
        """One bit of three is the header's."""
        start, length = record.offset, HEADER_BYTES
        if self.cluster.chance.random() < 2 / 3:
            start, length = record.offset + HEADER_BYTES, record.length
        return Place(kind, path, 8 * start + self.cluster.chance.randrange(8 * length), number)

    async def _read(self, client: Client, place: Place) -> str:
        """What comes of reading the message there."""
        assert place.message is not None
        first = (await client.describe(self.queue)).queue.first_sequence
        read = client.browse(
            self.queue, start_sequence=first + place.message, limit=1, timeout_ms=READ_LIMIT_MS
        )
        try:
            found = [bytes(each.body) async for each in read]
        except QuorumError:
            return "refused"
        assert found == [body(place.message)], f"{place}: message {place.message} has another body"
        return "healed"

    def _stored_entries(self) -> Iterator[tuple[Path, RecordInfo, int]]:
        """The victim's stored batches that are not in its memory, each with the number of its first message. Of one
        that was healed its copy counts, and what it was copied from is needed no more."""
        newest = self.total - IN_MEMORY
        found: dict[int, tuple[int, Path, RecordInfo]] = {}
        for path in self._segments():
            for record in inspect(path):
                if record.kind not in ("ENTRY", "COPY") or record.length < BATCH * (BODY_BYTES - 9):
                    continue
                with open(path, "rb") as file:
                    file.seek(record.offset + HEADER_BYTES)
                    first = FIRST_BODY.search(file.read(record.length))
                if first is None:
                    continue
                number = int(first[1])
                if number < newest and (number not in found or found[number][0] < record.lsn):
                    found[number] = (record.lsn, path, record)
        for number, (_, path, record) in found.items():
            yield path, record, number

    def _log(self) -> Path:
        return self.cluster.member(self.victim).folder / "data" / "log"

    def _segments(self) -> list[Path]:
        return sorted(self._log().glob("segment-*.log"))

    # ---- while it is down

    async def _while_stopped(self, number: int) -> None:
        """One bit of the victim's files, of each kind in turn; then it is started."""
        await asyncio.to_thread(self.cluster.stop, [self.victim])
        kind = KINDS[number % len(KINDS)]
        while (place := self._place(kind)) is None:  # it has begun a new log meanwhile
            await asyncio.to_thread(self._restart)
            await self._fill()
            await asyncio.to_thread(self.cluster.stop, [self.victim])
        before = place.byte()
        place.flip()
        flipped = place.byte()
        said = len(self.cluster.output(self.victim))
        self.cluster.start([self.victim])
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await self._publish(client)  # the others go on
        status = await self._ended_or_serving()
        if status is None and place.message is not None:
            async with quorum.connect(
                self.cluster.url_of(self.victim), connect_timeout_ms=CONNECT_LIMIT_MS
            ) as client:
                await self._read(client, place)
        output = self.cluster.output(self.victim)[said:]
        if status is not None:
            assert status not in (0, DEFECT), f"{place}: the member ended with {status}:\n{output}"
            assert place.path.name in output, (
                f"{place}: ended with {status}, without the file's name:\n{output}"
            )
            self.outcomes[place.kind, "stopped"] += 1
            assert place.byte() == flipped, f"{place}: a damaged file was changed"
            place.flip()
            assert place.byte() == before
        else:
            is_healed = place.byte() != flipped
            assert is_healed or place.path.name in output, f"{place}: served without a word:\n{output}"
            self.outcomes[place.kind, "healed" if is_healed else "did without, and said so"] += 1

    async def _ended_or_serving(self) -> int | None:
        """The exit status, None if it serves."""
        deadline = time.monotonic() + RESTART_LIMIT_S
        while True:
            if self.victim in self.cluster.ended():
                return await asyncio.to_thread(self.cluster.await_end, self.victim)
            if await asyncio.to_thread(self.cluster.is_serving, self.victim):
                return None
            assert time.monotonic() < deadline, (
                f"neither ends nor serves: {self.cluster.last_output(self.victim)}"
            )
            await asyncio.sleep(POLL_S)

    def _restart(self) -> None:
        self.cluster.restart(self.victim, RESTART_LIMIT_S)

    def _place(self, kind: str) -> Place | None:
        """Somewhere in a file of this kind, None if there is none."""
        chance = self.cluster.chance
        segments = self._segments()
        if kind == "node.json":
            return _anywhere(kind, self._log().parent / "node.json", chance)
        if kind == "manifest":
            return _anywhere(kind, self._log() / "MANIFEST", chance)
        if kind == "snapshot":
            found = sorted((self._log() / "snapshots").glob("*.snapshot"), key=lambda path: path.name)
            if not found:
                return None
            newest = [path for path in found if path.name.split("-")[:2] == found[-1].name.split("-")[:2]][-1]
            return _anywhere(kind, newest, chance)
        if kind == "segment header":
            return Place(kind, chance.choice(segments), chance.randrange(8 * HEADER_BLOCK))
        if len(segments) < 2:
            return None
        if kind == "sealed segment":
            stored = [each for each in self._stored_entries() if each[0] != segments[-1]]
            return self._in_batch(kind, *chance.choice(stored)) if stored else None
        records = list(inspect(segments[-1]))[
            :-1
        ]  # the last one states what is synced, and nothing states that it is
        if kind == "hard state":
            states = [each for each in records if each.kind == "HARD_STATE"]
            if not states:  # then the manifest's are the newest
                return _anywhere(kind, self._log() / "MANIFEST", chance)
            return _in_record(kind, segments[-1], states, chance)
        return _in_record(kind, segments[-1], records, chance) if records else None


def _anywhere(kind: str, path: Path, chance: random.Random) -> Place:
    return Place(kind, path, chance.randrange(8 * path.stat().st_size))


def _in_record(kind: str, path: Path, records: Sequence[RecordInfo], chance: random.Random) -> Place:
    """A record by its place, not by its size: short ones matter as much."""
    record = chance.choice(records)
    return Place(kind, path, 8 * record.offset + chance.randrange(8 * (HEADER_BYTES + record.length)))
