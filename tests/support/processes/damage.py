"""Bits turned over in the files of one of three real members: noticed everywhere, nothing lost, no wrong body ever.

What may happen to a bit while the member is down: at its start it *stops* and says what is damaged, or is *repaired*:
the member serves, and the bit is as it was, or the file was replaced or is needed no more, or the body is refused or
fetched from elsewhere. While it runs: the member names the place, and puts it right. A bit that stays turned over in a
file that is used, without a word, is a failure. At any time no two bits are turned over that one word could mean.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import quorum
from quorum.client import Client
from quorum.client.errors import QuorumError
from quorum.errors import DEFECT
from quorum.log.inspection import RecordInfo, inspect
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.segments import HEADER_BLOCK
from support.processes.cluster import FaultyCluster, all_equal
from support.processes.load import CONNECT_LIMIT_MS, leader_of
from support.processes.scenarios import RESTART_LIMIT_S

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
QUIET_KINDS = ("manifest", "index file", "snapshot", "node.json")
LIVELY_KINDS = ("sealed record", "active record", "segment block")
"""What mends these goes to the log, which takes another manifest now and then."""
RUNNING_KINDS = (*QUIET_KINDS, *LIVELY_KINDS)
"""Of a member that runs: it looks at all of them, so none has to be read, and it is not started for any of them."""
PACE = {"piece_bytes": 64 << 20, "piece_ms": 0, "round_ms": 300}
"""All files in one piece, three times a second: without a pause all three members would do nothing else."""
OPTIONS: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "snapshot_bytes": SNAPSHOT_BYTES, "pace": PACE}
NO_BODY = ("TRUNCATE", "HARD_STATE", "COMPACT", "RESET", "MARK")
AT_ONCE = 20
SETTLE_S = 3.0
"""Whatever a round has found of a file that is replaced now, it has said by then."""
NOTICE_LIMIT_S = 60.0
"""A round takes less than a second, on a machine that has time for it."""
FIRST_BODY = re.compile(rb"([0-9]{8}):\1:")
READ_LIMIT_MS = 30_000
POLL_S = 0.05


def body(number: int) -> bytes:
    return f"{number:08d}:".encode() * (BODY_BYTES // 9)


@dataclass(frozen=True, slots=True)
class Place:
    """A bit of a file. message: the number of the first one that is stored around it, where one is. named: what a
    running member says when it has found it, and says of no other place at that time."""

    kind: str
    path: Path
    bit: int
    message: int | None = None
    named: str = ""

    @property
    def is_in_record(self) -> bool:
        return self.kind in ("sealed record", "active record")

    def inode(self) -> int:
        """0 if the file is gone."""
        try:
            return self.path.stat().st_ino
        except FileNotFoundError:
            return 0

    def flip(self) -> int:
        """The inode of the file that was changed."""
        with open(self.path, "r+b") as file:
            file.seek(self.bit >> 3)
            (byte,) = file.read(1)
            file.seek(self.bit >> 3)
            file.write(bytes([byte ^ 1 << (self.bit & 7)]))
            return os.fstat(file.fileno()).st_ino

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
        """So many bits turned over one at a time while the victim is down, and so many of each kind while it runs."""
        await self.begin()
        begun = time.monotonic()
        if running:
            await self._while_running(running)
        for number in range(stopped):
            await self._while_stopped(number)
        await self.restart()
        await self.all_is_there()
        counts = ", ".join(
            f"{kind} {outcome} {count}" for (kind, outcome), count in sorted(self.outcomes.items())
        )
        all_flips = stopped + running * len(RUNNING_KINDS)
        assert sum(self.outcomes.values()) == all_flips
        equal = await all_equal(self.cluster)
        took = time.monotonic() - begun
        flipped = f"{all_flips:,} bits turned over in {took:.0f} s, all noticed: {counts}"
        return f"{flipped}; {self.total:,} messages right; {equal}"

    async def begin(self) -> None:
        """Something to damage, and who suffers it."""
        await self.fill()
        leader = await leader_of(self.cluster, self.queue)
        self.victim = next(name for name in self.cluster.names if name != leader)

    # ---- the queue

    async def fill(self) -> None:
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.declare(self.queue)
            for _ in range(BATCHES):
                await self.publish(client)

    async def publish(self, client: Client) -> None:
        await client.publish_batch(self.queue, [body(n) for n in range(self.total, self.total + BATCH)])
        self.total += BATCH

    async def all_is_there(self) -> None:
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
        """So many bits of each kind of file of the running victim: at the same time as many as are told apart by what
        the member says of them, one in a record or in a file that is checked as a whole."""
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            for kinds in (QUIET_KINDS, LIVELY_KINDS):
                wanted = dict.fromkeys(kinds, count)
                while any(wanted.values()):
                    if kinds is LIVELY_KINDS:
                        await self.publish(client)  # something for the active segment
                    places = [
                        place
                        for kind, left in wanted.items()
                        for place in self._running_places(kind, min(left, AT_ONCE))
                    ]
                    said = self.output_size()
                    flips = [(place, place.byte(), place.flip()) for place in places]
                    noticed = await asyncio.gather(*(self._noticed(*flip, said) for flip in flips))
                    for place, is_noticed in zip(places, noticed, strict=True):
                        if is_noticed:
                            self.outcomes[place.kind, "named and put right"] += 1
                            wanted[place.kind] -= 1
        await self.is_healed()

    def output_size(self) -> int:
        return self.cluster.member(self.victim).output.stat().st_size

    async def _noticed(self, place: Place, before: int | None, inode: int, said: int) -> bool:
        """The member has named it, and has put right what it knows; copies of bodies are looked for at the end. False
        if the file was replaced, as files are, before anybody looked into it: that bit does not count. Nor does one in
        a record without a message if its segment was sealed meanwhile: in a sealed segment nobody needs such records,
        and only its table and its messages are looked at."""
        deadline = time.monotonic() + NOTICE_LIMIT_S
        while True:
            is_replaced = place.inode() != inode
            is_needless = (
                place.kind == "active record" and place.message is None and place.path != self.segments()[-1]
            )
            if (is_replaced or is_needless) and not self._is_named(place, said):
                await asyncio.sleep(SETTLE_S)  # no word about it may be taken for one about the next bit
                return self._is_named(place, said)
            is_right = is_replaced or place.byte() == before or place.is_in_record
            if is_right and self._is_named(place, said):
                return True
            ended = self.cluster.processes.ended()
            assert not ended, f"{place}: {ended}\n{self.cluster.processes.last_output(self.victim)}"
            assert time.monotonic() < deadline, (
                f"{place}: not noticed, or not put right, in {NOTICE_LIMIT_S} s"
            )
            await asyncio.sleep(POLL_S)

    def _is_named(self, place: Place, said: int) -> bool:
        with open(self.cluster.member(self.victim).output, "rb") as file:
            file.seek(said)
            return place.named.encode() in file.read()

    async def is_healed(self) -> None:
        """Nothing is left that the victim cannot read."""
        deadline = time.monotonic() + NOTICE_LIMIT_S
        while True:
            status = await asyncio.to_thread(self.cluster.status, self.victim)
            if status is not None and not any(group.unreadable for group in status.groups):
                return
            assert time.monotonic() < deadline, f"{self.victim} still has unreadable entries: {status}"
            await asyncio.sleep(POLL_S)

    def _running_places(self, kind: str, most: int) -> list[Place]:
        """Up to so many, each of which the member names by itself."""
        chance, segments = self.cluster.chance, self.segments()
        if kind == "sealed record":
            stored = [each for each in self._stored_entries() if each[0] != segments[-1]]
            return [self._in_batch(kind, *each) for each in chance.sample(stored, min(most, len(stored)))]
        if (
            kind == "active record"
        ):  # one: behind one whose header is bad, the next one is only found if it is good
            place = self._in_active(kind, list(inspect(segments[-1])))
            return [] if place is None else [place]
        found = {
            "segment block": segments,
            "index file": sorted(self.log().glob("segment-*.index")),
            "manifest": [self.log() / "MANIFEST"],
            "snapshot": sorted((self.log() / "snapshots").glob("*.snapshot")),
            "node.json": [self.log().parent / "node.json"],
        }[kind]
        places = []
        for path in chance.sample(found, min(most, len(found))):
            try:
                bits = 8 * (HEADER_BLOCK if kind == "segment block" else path.stat().st_size)
            except FileNotFoundError:
                continue  # replaced just now
            named = "node.json could not be read" if kind == "node.json" else f"{path} at byte 0: "
            places.append(Place(kind, path, chance.randrange(bits), named=named))
        return places

    def _in_batch(self, kind: str, path: Path, record: RecordInfo, number: int) -> Place:
        """One bit of three is the header's."""
        start, length = record.offset, HEADER_BYTES
        if self.cluster.chance.random() < 2 / 3:
            start, length = record.offset + HEADER_BYTES, record.length
        bit = 8 * start + self.cluster.chance.randrange(8 * length)
        return Place(kind, path, bit, number, f"{path} at byte {record.offset}")

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
        return "repaired"

    def _stored_entries(self) -> Iterator[tuple[Path, RecordInfo, int]]:
        """The victim's stored batches, each with the number of its first message. If a batch was repaired, only its
        copy counts. If a client sent it twice, only the first entry counts: the queue has dropped the messages of the
        second one."""
        found: dict[int, tuple[tuple[int, int], Path, RecordInfo]] = {}
        for path in self.segments():
            try:
                records = [each for each in inspect(path) if each.problem is None and _may_be_batch(each)]
            except FileNotFoundError:
                continue  # a collection has replaced it
            for record in records:
                with open(path, "rb") as file:
                    file.seek(record.offset + HEADER_BYTES)
                    first = FIRST_BODY.search(file.read(record.length))
                if first is None:
                    continue
                number, order = int(first[1]), (-record.index, record.lsn)
                if number not in found or found[number][0] < order:
                    found[number] = (order, path, record)
        for number, (_, path, record) in found.items():
            yield path, record, number

    def log(self) -> Path:
        return self.cluster.member(self.victim).folder / "data" / "log"

    def segments(self) -> list[Path]:
        return sorted(self.log().glob("segment-*.log"))

    # ---- while it is down

    async def _while_stopped(self, number: int) -> None:
        """One bit of the victim's files, of each kind in turn; then it is started."""
        await asyncio.to_thread(self.cluster.stop, [self.victim])
        kind = KINDS[number % len(KINDS)]
        while (place := self._place(kind)) is None:  # it has begun a new log meanwhile
            await self.restart()
            await self.fill()
            await asyncio.to_thread(self.cluster.stop, [self.victim])
        before = place.byte()
        place.flip()
        flipped = place.byte()
        said = len(self.cluster.output(self.victim))
        self.cluster.start([self.victim])
        async with quorum.connect(self.cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await self.publish(client)  # the others go on
        status = await self.ended_or_serving()
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
            self.outcomes[place.kind, "repaired" if is_healed else "did without, and said so"] += 1

    async def ended_or_serving(self) -> int | None:
        """The exit status, None if it serves."""
        deadline = time.monotonic() + RESTART_LIMIT_S
        while True:
            if self.victim in self.cluster.processes.ended():
                return await asyncio.to_thread(self.cluster.await_end, self.victim)
            if await asyncio.to_thread(self.cluster.is_serving, self.victim):
                return None
            assert time.monotonic() < deadline, (
                f"neither ends nor serves: {self.cluster.processes.last_output(self.victim)}"
            )
            await asyncio.sleep(POLL_S)

    async def restart(self) -> None:
        await asyncio.to_thread(self.cluster.restart, self.victim, RESTART_LIMIT_S)

    def _place(self, kind: str) -> Place | None:
        """Somewhere in a file of this kind, None if there is none."""
        chance = self.cluster.chance
        segments = self.segments()
        if kind == "node.json":
            return _anywhere(kind, self.log().parent / "node.json", chance)
        if kind == "manifest":
            return _anywhere(kind, self.log() / "MANIFEST", chance)
        if kind == "snapshot":
            found = sorted((self.log() / "snapshots").glob("*.snapshot"), key=lambda path: path.name)
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
                return _anywhere(kind, self.log() / "MANIFEST", chance)
            return _in_record(kind, segments[-1], states, chance)
        return self._in_active(kind, records)

    def _in_active(self, kind: str, records: Sequence[RecordInfo]) -> Place | None:
        """In one of these records of the active segment: one that is no body, or a batch that no copy has replaced."""
        chance, path = self.cluster.chance, self.segments()[-1]
        offsets = {record.offset for record in records}
        others = [each for each in records if each.problem is None and each.kind in NO_BODY]
        stored = [each for each in self._stored_entries() if each[0] == path and each[1].offset in offsets]
        if stored and (not others or chance.random() < 1 / 2):
            return self._in_batch(kind, *chance.choice(stored))
        return _in_record(kind, path, others, chance) if others else None


def _may_be_batch(record: RecordInfo) -> bool:
    return record.kind in ("ENTRY", "COPY") and record.length >= BATCH * (BODY_BYTES - 9)


def _anywhere(kind: str, path: Path, chance: random.Random) -> Place:
    return Place(kind, path, chance.randrange(8 * path.stat().st_size))


def _in_record(kind: str, path: Path, records: Sequence[RecordInfo], chance: random.Random) -> Place:
    """A record by its place, not by its size: short ones matter as much."""
    record = chance.choice(records)
    bit = 8 * record.offset + chance.randrange(8 * (HEADER_BYTES + record.length))
    return Place(kind, path, bit, named=f"{path} at byte {record.offset}")
