"""Snapshots: the same state gives the same bytes, everywhere."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fifo.commands import UNKNOWN, CloseSession, Credit, Modify, NodeDown, Return
from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION
from fifo.messages.pages import MemoryPages
from fifo.persistence import checkpoint, invariants, snapshot
from fifo.persistence.references import references
from fifo.queries import group as queries
from support.fifo.world import Log, World, exported, producer

ROOT = Path(__file__).parents[2]


def busy_world() -> World:
    """A group with some of everything in it."""
    world = World()
    world.queue(1, filter_enabled=True)
    world.queue(2, message_ttl_ms=1000, max_length=50, delivery_limit=3)
    first, second, third = world.session(1), world.session(2, node=2), world.session(3, node=3)
    rows = [{"application-properties.colour": colour} for colour in ("red", "green", "blue")]
    world.publish(first, 3, rows)
    world.publish(first, 40, queue=2)
    world.publish(second, 1, queue=2)
    world.attach(second, "red", 5, "colour = 'red'")
    world.attach(second, "green", 5, "colour = 'green' OR colour IS NULL")
    attach, _ = world.attach(third, "all", 10, queue=2)
    world.do(third, Modify(2, "all", attach, ((2, 3), (7, 8)), delivery_failed=True))
    world.do(third, Return(2, "all", attach, ((5, 5),), 12))
    world.do(second, Credit(1, "red", 7, drain=True))
    world.publish(first, 2, rows[:2], first=900, lowest_unconfirmed=40)
    world.do(first, CloseSession())
    world.apply([(None, NodeDown(2, 1))])
    return world


def test_the_rest_of_a_log_after_a_snapshot_gives_the_same_state_as_all_of_it() -> None:
    world = busy_world()
    for cut in range(len(world.entries)):
        fresh = world.empty()
        for meta, operations in world.entries[:cut]:
            fresh.apply(meta, operations)
        again = world.restored(snapshot.encode(fresh))
        for meta, operations in world.entries[cut:]:
            again.apply(meta, operations)
        assert snapshot.encode(again) == snapshot.encode(world.machine)


def state_hash(world: World) -> str:
    return hashlib.sha256(snapshot.encode(world.machine)).hexdigest()


def replay_under(python: str, hash_seed: str) -> str:
    """The hashes of the busy world's state and history, computed in a process of its own."""
    code = (
        "import sys; sys.path[:0] = ['.', 'selectors', 'tests', 'tests/fifo']\n"
        "from test_fifo_snapshot import busy_world, state_hash\n"
        "world = busy_world(); print(state_hash(world), world.machine.running_hash)"
    )
    done = subprocess.run(
        [python, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_replay_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    found = {replay_under(sys.executable, seed) for seed in ("0", "1", "4711")}
    world = busy_world()
    assert found == {f"{state_hash(world)} {world.machine.running_hash}\n"}


def other_pythons() -> list[str]:
    """Interpreters of other versions, with what this module imports: QUORUM_OTHER_PYTHONS names them, or PATH has
    them."""
    named = os.environ.get("QUORUM_OTHER_PYTHONS", "").split(os.pathsep)
    found = [shutil.which(f"python3.{minor}") for minor in range(11, 20) if minor != sys.version_info.minor]
    probe = (
        "import sys, numpy, lark, sortedcontainers, hypothesis, pytest\n"
        f"sys.exit(not (3, 11) <= sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    )

    def has_all(python: str) -> bool:
        return subprocess.run([python, "-c", probe], check=False, capture_output=True).returncode == 0

    return [each for each in (*named, *found) if each and has_all(each)]


def test_replay_gives_the_same_bytes_in_another_version_of_python() -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no other version of Python here has the packages; name one in QUORUM_OTHER_PYTHONS")
    assert {replay_under(each, "1") for each in pythons} == {replay_under(sys.executable, "1")}


def test_a_changed_reply_changes_the_running_hash() -> None:
    one, other = World(), World()
    for world, count in ((one, 5), (other, 6)):
        world.queue()
        world.publish(world.session(), count)
    assert one.machine.running_hash != other.machine.running_hash


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    data = snapshot.encode(busy_world().machine)
    with pytest.raises(ValueError, match="begin"):
        snapshot.decode(b"", Log())
    with pytest.raises(ValueError, match="format"):
        snapshot.decode(data[:5] + b"\x7f" + data[6:], Log())
    with pytest.raises(ValueError, match="too many"):
        snapshot.decode(data + b"x", Log())
    for size in range(6, len(data)):
        with pytest.raises(ValueError, match="ends"):
            snapshot.decode(data[:size], Log())


def test_an_entry_that_cannot_be_next_is_an_error() -> None:
    world = busy_world()
    meta, operations = world.entries[-1]
    with pytest.raises(ValueError, match="both must not go back"):
        world.machine.apply(meta, operations)


class Elsewhere:
    """Bytes that are read a little at a time."""

    def __init__(self, data: bytes, least: int) -> None:
        self._data = data
        self._least = least
        self.size = len(data)
        self.most = 0

    def read(self, offset: int, length: int) -> bytes:
        self.most = max(self.most, length)
        return self._data[offset : offset + min(length, self._least)]


@pytest.mark.parametrize("least", [1, 7, 1 << 20])
def test_a_snapshot_is_read_from_elsewhere_with_little_of_it_in_memory(least: int) -> None:
    limits = replace(PRODUCTION, source_bytes=16)
    world = busy_world()
    data = snapshot.encode(world.machine)
    longest = max(len(section) for section in snapshot.sections(world.machine))
    source = Elsewhere(data, least)
    assert snapshot.encode(snapshot.decode(source, world.log, limits=limits)) == data
    assert source.most <= max(16, longest) < len(data)
    assert references(source) == references(data)


@pytest.mark.parametrize("cut", [0, 3, 6, 20, -1])
def test_a_snapshot_elsewhere_that_ends_too_early_is_refused(cut: int) -> None:
    data = snapshot.encode(busy_world().machine)
    with pytest.raises(ValueError, match="snapshot"):
        references(Elsewhere(data[:cut], 5))
    whole = Elsewhere(data, 5)
    whole.size += 1
    with pytest.raises(ValueError, match="snapshot"):
        references(whole)


# ---- what the format before this one wrote: two ended producers, one of them with a gap, and a consumer

SNAPSHOT_3 = bytes.fromhex(
    "514649464f0393010aca843d01c2c48acd0a0100000001020100031070726f647563657200000000000000010101016503029289"
    "7a020203090a001070726f64756365720000000000000002010201c901010194897a010102001070726f64756365720000000000"
    "000003010101ad020100010001010174021070726f647563657200000000000000011070726f647563657200000000000000026c"
    "01010200000771756575652d31000001010964726f705f6865616401010764656661756c7408020000000000011070726f647563"
    "6572000000000000000301740101ad02010203010008010000000000000008010000000000000004020000000100000000000000"
    "000100004e0001f8010600000007bc05000601000400060006030002000200180500000000000000060000000000000007000000"
    "000000000c0000000000000000000000000c00000000000000000000000000"
)
CHECKPOINT_3 = bytes.fromhex(
    "51504147450393010aca843d01c2c48acd0a0100000001020100031070726f647563657200000000000000010101016503029289"
    "7a020203090a001070726f64756365720000000000000002010201c901010194897a010102001070726f64756365720000000000"
    "000003010101ad020100010001010174021070726f647563657200000000000000011070726f6475636572000000000000000281"
    "016c01010200000771756575652d31000001010964726f705f6865616401010764656661756c7408020000000000011070726f64"
    "75636572000000000000000301740101ad0201020301000801000000000000000801000000000000000402000000010000000000"
    "000000010000130001a9d399cd020502010007bc050403050000"
)
PAGE_3 = bytes.fromhex(
    "0001f8010600000007bc05000601000400060006030002000200180500000000000000060000000000000007000000000000000c"
    "0000000000000000000000000c00000000000000000000000000"
)


def check_format_3(machine: GroupMachine) -> None:
    invariants.check(machine)
    sessions = machine.sessions
    assert {p.owner for p in sessions.producers.values()} == {UNKNOWN}
    assert [list(p.accepted) for p in sessions.producers.values()] == [[(2, 3), (9, 10)], [(1, 2)], []]
    assert list(sessions.ended) == [producer(1), producer(2)]
    assert not sessions.fences.by_name
    info = queries.info(machine, 1)
    assert info is not None
    assert (info.ready, info.total) == (5, 7)
    again = snapshot.decode(snapshot.encode(machine), Log())
    assert snapshot.encode(again) == snapshot.encode(machine)


def test_a_snapshot_of_format_3_is_read() -> None:
    check_format_3(snapshot.decode(SNAPSHOT_3, Log()))
    assert list(references(SNAPSHOT_3)) == [5, 6, 7]


def test_a_checkpoint_of_format_3_is_read_and_sent_to_others() -> None:
    pages = MemoryPages()
    pages.pages, pages.last = {1: PAGE_3}, 1
    check_format_3(checkpoint.resume(CHECKPOINT_3, Log(), pages))
    sent = exported(CHECKPOINT_3, pages)
    check_format_3(snapshot.decode(sent, Log()))
