"""Bodies from other members, one slice after the other (quorum/node/repair/body_transfer.py)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from quorum.log import EntryMissing
from quorum.node.repair import body_transfer as bodies
from quorum.node.wire.frames import Frame, Send
from support.members.cluster import Cluster


class OneLog:
    """Bodies of one group, and copies that come."""

    def __init__(self, *terms: tuple[int, int, bytes]) -> None:
        self.entries = {index: (term, body) for index, term, body in terms}
        self.synced_lsn = 0
        self.lsn = 0

    def read_entry(self, group: int, index: int) -> tuple[int, bytes]:
        if index not in self.entries:
            raise EntryMissing(str(index))
        return self.entries[index]

    def put_copy(self, group: int, index: int, term: int, parts: Any) -> int:
        self.entries[index] = (term, b"".join(bytes(part) for part in parts))
        self.lsn += 1
        return self.lsn


@dataclass
class Replicas:
    commit: int

    def commit_index(self, group: int) -> int:
        return self.commit


@dataclass
class Notes:
    name: str
    lost: list[tuple[str, int]]

    def note(self, group: int, index: int, term: int, reason: str) -> None:
        self.lost.append((self.name, index))


class Talk:
    """A member that asks and others that answer, frame by frame."""

    def __init__(self, here: OneLog, **there: tuple[OneLog, int]) -> None:
        self.now = 0
        self.here = here
        self.up = list(there)
        self.lost: list[tuple[str, int]] = []
        self.frames: list[tuple[str, str, int, bytes]] = []
        self.body_client = bodies.BodyClient(here, self.sender("me"), self)
        self.body_servers = {
            name: bodies.BodyServer(
                log,
                Replicas(commit),
                self.sender(name),
                Notes(name, self.lost),
            )
            for name, (log, commit) in there.items()
        }
        self.change: Callable[[bytes], bytes] = lambda data: data

    def candidates(self, group: int) -> list[str]:
        return self.up

    def sender(self, sender: str) -> Send:
        def send(peer: str, kind: int, parts: list[bytes | memoryview]) -> None:
            self.frames.append((sender, peer, kind, b"".join(parts)))

        return send

    def turn(self, ms: int = 5) -> None:
        self.now += ms
        self.body_client.tick(self.now)
        for body_server in self.body_servers.values():
            body_server.serve(self.now)
        frames, self.frames = self.frames, []
        for sender, peer, kind, data in frames:
            if kind == bodies.KIND_FETCH:
                if peer in self.up:
                    self.body_servers[peer].ask("me", bodies.Question.decode(data))
            else:
                self.body_client.take(sender, bodies.Answer.decode(self.change(data)), self.now)
        self.here.synced_lsn = self.here.lsn
        self.body_client.settle()

    def run(self, job: bodies.Job, turns: int = 200) -> None:
        for _ in range(turns):
            if job.is_complete:
                return
            self.turn()


def many(count: int, size: int = 100, term: int = 3) -> OneLog:
    return OneLog(*((index, term, b"%d" % index * size) for index in range(1, count + 1)))


def wish(*indexes: int) -> Any:
    return array("Q", indexes)


def test_bodies_come_from_whoever_has_them_in_slices() -> None:
    here = OneLog()
    first, second = many(3_000), many(3_000)
    for index in range(1, 3_000, 2):
        del first.entries[index]
    talk = Talk(here, one=(first, 3_000), two=(second, 3_000))
    done: list[int] = []
    job = talk.body_client.fetch(1, wish(*range(1, 3_001)), lambda: done.append(1))
    talk.run(job)
    assert done == [1]
    assert here.entries == second.entries
    assert talk.body_servers["two"].served_bytes < sum(len(body) for _, body in second.entries.values())


def test_bodies_come_once_however_slowly_they_are_served() -> None:
    here, there = OneLog(), many(3 * bodies.QUESTION_ENTRIES, size=1)
    talk = Talk(here, one=(there, len(there.entries)))
    job = talk.body_client.fetch(1, wish(*there.entries), lambda: None)
    for _ in range(2 * len(there.entries) // bodies.SERVE_ENTRIES):
        talk.turn(bodies.SILENCE_MS // 10)  # an answer to one question is no silence about the other
    assert job.is_complete
    assert talk.body_servers["one"].served_bytes == sum(len(body) for _, body in there.entries.values())


def test_large_bodies_travel_within_the_window() -> None:
    here, there = OneLog(), many(40, size=1 << 19)
    talk = Talk(here, one=(there, 40))
    job = talk.body_client.fetch(1, wish(*range(1, 41)), lambda: None)
    before = 0
    while not job.is_complete:
        talk.turn()
        fetched = sum(len(body) for _, body in here.entries.values())
        assert fetched - before <= bodies.WINDOW_BYTES
        before = fetched
    assert here.entries == there.entries


def test_the_pace_does_not_depend_on_how_large_entries_are() -> None:
    for size in (10_000, 1 << 20):
        there = OneLog(*((index, 1, bytes(size)) for index in range(1, 60)))
        talk = Talk(OneLog(), a=(there, 60))
        talk.body_client.fetch(1, array("Q", range(1, 60)), lambda: None)
        served = []
        for _ in range(180):
            talk.turn(1)
            served.append(talk.body_servers["a"].served_bytes)
        paced = bodies.SERVE_BYTES * len(served) / bodies.SERVE_PAUSE_MS
        assert min(served[-1], 59 * size) <= paced + (1 << 20)
        assert served[-1] >= min(59 * size, paced / 2)


def test_nothing_above_the_answerers_commit_index_is_given() -> None:
    here, there = OneLog(), many(10)
    talk = Talk(here, one=(there, 4))
    job = talk.body_client.fetch(1, wish(*range(1, 11)), lambda: None)
    talk.run(job, 400)
    assert sorted(here.entries) == [1, 2, 3, 4]
    assert job.missing == 6
    talk.body_servers["one"]._commits = Replicas(10)
    talk.run(job, 400)
    assert here.entries == there.entries


def test_a_body_of_another_term_than_the_known_one_is_not_taken() -> None:
    here = OneLog()
    talk = Talk(here, one=(many(3, term=4), 3), two=(many(3, term=3), 3))
    job = talk.body_client.fetch(1, wish(1, 2, 3), lambda: None, terms={2: 3})
    talk.run(job)
    assert {index: term for index, (term, _) in here.entries.items()} == {1: 4, 2: 3, 3: 4}


def test_the_same_entry_is_only_said_to_be_the_same() -> None:
    here = OneLog()
    talk = Talk(here, one=(many(5), 5))
    job = talk.body_client.fetch(
        1, wish(1, 2, 3), lambda: None, term_here=lambda index: 3 if index < 3 else 2
    )
    talk.run(job)
    assert sorted(here.entries) == [3]
    assert job.proven == 2


def test_who_is_silent_is_not_waited_for() -> None:
    here, there = OneLog(), many(5)
    talk = Talk(here, one=(many(5), 5), two=(there, 5))
    talk.body_servers["one"].ask = lambda peer, question: None  # type: ignore[method-assign]
    job = talk.body_client.fetch(1, wish(1, 2), lambda: None)
    talk.run(job, bodies.SILENCE_MS // 5 - 2)
    assert not here.entries
    talk.run(job)
    assert job.is_complete and sorted(here.entries) == [1, 2]
    talk.up = ["one", "two"]
    job = talk.body_client.fetch(1, wish(3), lambda: None)
    talk.turn()
    talk.body_client.disconnected("one")
    talk.up = ["two"]
    talk.run(job, 5)
    assert job.is_complete


def test_a_body_that_changed_on_the_way_is_asked_of_the_next() -> None:
    here = OneLog()
    talk = Talk(here, one=(many(3), 3), two=(many(3), 3))
    changed = []

    def change(data: bytes) -> bytes:
        if changed:
            return data
        changed.append(data)
        return data[:-1] + bytes([data[-1] ^ 1])

    talk.change = change
    job = talk.body_client.fetch(1, wish(1, 2, 3), lambda: None)
    talk.run(job)
    assert changed and here.entries == many(3).entries


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 23,
        bodies.Answer(1, 1, True, []).encode()[0] + b"x",
        bodies.Answer(1, 1, True, [bodies.Found(1, 1, bodies.State.ABSENT, 0, b"xx")]).encode()[0] + b"xx",
        bodies.Answer(1, 1, True, [bodies.Found(1, 1, bodies.State.HERE, 0, b"xx")]).encode()[0] + b"x",
        bodies.Question(1, 1, 1, []).encode()[0],
        bodies.Question(1, 1, 1, [(1, 1)]).encode()[0],
    ],
)
def test_rubbish_is_counted_and_ignored(data: bytes) -> None:
    cluster = Cluster()
    member = cluster.members["n1"]
    frames = [Frame("n2", bodies.KIND_FETCH, data), Frame("n2", bodies.KIND_BODIES, data)]
    member.step(cluster.clock_ms("n1"), frames, [])
    assert member._frames.malformed >= 1
