"""What selectors have matched: small forms of sets, and what happens beyond the budget."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fifo.commands import Credit, Return, Settle
from fifo.consumers.match_cache import EVICTED, MatchCache, pack, unpack
from fifo.limits import PRODUCTION, SMALL
from fifo.messages.packed_sets import is_single, lowest, pack_slots, united, without
from support.fifo.world import World, selector, sequences

SETS = st.sets(st.integers(0, 16_383), min_size=1, max_size=40).map(lambda slots: sum(1 << s for s in slots))


@given(SETS | st.integers(1, 1 << 2_000))
def test_a_set_comes_back_from_its_smaller_form(members: int) -> None:
    sparse = PRODUCTION.sparse_matches
    packed = pack(members, sparse)
    assert unpack(packed) == members
    assert isinstance(packed, int) == (members.bit_count() > sparse)


def slots_of(slots: set[int]) -> bytes:
    return b"".join([slot.to_bytes(2, "little") for slot in sorted(slots)])


def as_set(slots: set[int]) -> int:
    return sum(1 << slot for slot in slots)


SLOTS = st.integers(0, 16_383) | st.integers(0, 20)


@given(
    st.sets(SLOTS, min_size=1, max_size=40),
    st.sets(SLOTS, min_size=1, max_size=40),
    st.sampled_from((3, 1_024)),
)
def test_packed_sets_gain_and_lose_members(members: set[int], others: set[int], sparse: int) -> None:
    packed = pack_slots(slots_of(members), sparse)
    assert packed == pack(as_set(members), sparse)
    assert lowest(packed) == min(members).to_bytes(2, "little")
    assert is_single(packed) == (len(members) == 1)
    if others - members:
        wanted = pack(as_set(members | others), sparse)
        assert united(packed, slots_of(others - members), sparse) == wanted
    for gone in (others, members & others or others, members, {min(members)}):
        rest = without(packed, slots_of(gone), sparse)
        assert (unpack(rest) if rest else 0) == as_set(members - gone)


def test_bytes_are_counted_and_come_back() -> None:
    found = MatchCache(PRODUCTION)
    dense = (1 << 16_384) - 1
    for number in range(4):
        for token in (b"a", b"b"):
            found.add(token, number, dense if token == b"a" else 1 << number, dense)
    assert 4 * 2_048 < found.size_bytes < 4 * 2_048 + 8 * 300
    assert found.numbers(b"b") == [0, 1, 2, 3]
    found.drop_block(1)
    found.drop(b"b", 2)
    assert (found.get(b"a", 1), found.get(b"b", 2), found.get(b"b", 3)) == (0, 0, 8)
    found.forget(b"a")
    found.forget(b"b")
    assert not found.has(b"a")
    assert not list(found.selectors(0))
    assert found.size_bytes == 0


def test_matches_that_are_gone_leave_a_set_when_others_are_added() -> None:
    found = MatchCache(PRODUCTION)
    found.add(b"a", 0, 0b0111, 0b0111)
    found.add(b"a", 0, 0b1000, 0b1100)
    assert found.get(b"a", 0) == 0b1100


def test_what_does_not_fit_is_forgotten_until_it_does() -> None:
    found = MatchCache(replace(PRODUCTION, matched_bytes=3_000))
    dense = (1 << 16_384) - 1
    found.add(b"a", 0, dense, dense)
    found.add(b"b", 0, dense, dense)
    assert (found.get(b"a", 0), found.get(b"b", 0)) == (dense, EVICTED)
    found.add(b"b", 0, 1, dense)
    assert found.get(b"b", 0) == EVICTED
    found.forget(b"a")
    found.put(b"b", 0, dense)
    assert found.get(b"b", 0) == dense


def test_groups_find_forgotten_matches_again() -> None:
    world = World(replace(PRODUCTION, matched_bytes=0))
    world.queue(filter_enabled=True)
    name = world.session()
    rows = [{"application-properties.colour": colour} for colour in ("red", "green")] * 20
    world.publish(name, 40, rows)
    red, applied = world.attach(name, "red", 3, "colour = 'red'")
    assert sequences(applied) == [1, 3, 5]
    world.do(name, Return(1, "red", red, ((2, 2),)))
    assert sequences(world.apply([world.op(name, Credit(1, "red", 5))])) == [3, 7]
    assert world.machine.queues[1].groups.match_cache.size_bytes < 1_000


def test_forgotten_matches_are_not_looked_for_where_everything_is_held() -> None:
    world = World(replace(PRODUCTION, matched_bytes=0))
    world.queue(filter_enabled=True)
    name = world.session()
    row = {"application-properties.colour": "red"}
    for _ in range(2):
        world.publish(name, 16_384, [row] * 16_384)
    world.attach(name, "all", 32_768)
    world.attach(name, "red", 5, "colour = 'red'")
    world.publish(name, 1, [{}])
    world.wake_until_done()
    before = world.machine.queues[1].groups.fields.evaluated
    assert sequences(world.publish(name, 1, [row]), "red") == [32_770]
    assert world.machine.queues[1].groups.fields.evaluated - before < 10


def test_a_block_that_expires_while_it_is_asked_leaves_nothing() -> None:
    world = World(SMALL)
    world.queue(filter_enabled=True)
    name = world.session()
    attach, _ = world.attach(name, "red", 1, "colour = 'red'")
    row = {"application-properties.colour": "red"}
    assert sequences(world.publish(name, 9, [row] * 9, ttl_ms=50)) == [1]
    world.do(name, Settle(1, "red", attach, ((1, 1),)))
    cache = world.machine.queues[1].groups.match_cache
    assert cache.numbers(selector("colour = 'red'")) == [0, 1]
    assert sequences(world.apply([world.op(name, Credit(1, "red", 9))], 100)) == []
    assert 0 not in cache.numbers(selector("colour = 'red'"))
    assert 0 not in cache._exhausted
