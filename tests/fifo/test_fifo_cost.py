"""What an entry costs, in executed lines: a plain queue does nothing for each message."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType, MappingProxyType
from typing import Any

import pytest

from fifo.commands import Commit, Discard, Meta, Modify, Operation, PublishStaged, Return, Settle
from fifo.effects import Confirmed, Deliver, Refused
from fifo.limits import Limits
from fifo.versions import CURRENT
from support.fifo.world import World, in_transaction, of_keys, part_name, sequences

NOTHING: Mapping[str, Any] = MappingProxyType({})


def lines_of(world: World, operations: list[Any]) -> tuple[int, Any]:
    """Lines of `fifo` executed to apply one entry, and what came of it."""
    world.index += 1
    meta = Meta(world.index, 1, world.now_ms, CURRENT)
    numbered = [Operation(i, origin, command) for i, (origin, command) in enumerate(operations)]
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if "/fifo/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        applied = world.machine.apply(meta, numbered)
    finally:
        sys.settrace(before)
    return count, applied


def cost(
    size: int,
    consumers: int,
    answer: type[Settle] = Settle,
    arguments: Mapping[str, Any] = NOTHING,
    more: Mapping[str, Any] = NOTHING,
) -> int:
    """Lines to publish a batch, hand it out and settle the batch before, in one entry. arguments: of the queue; more:
    of the batch."""
    world = World()
    world.checks = False
    world.queue(**arguments)
    name = world.session()
    attached = [world.attach(name, f"c{i}", 50_000)[0] for i in range(consumers)]
    applied = world.publish(name, size, **more)
    operations = [world.batch(name, size, **more)]
    for effect in applied.effects:
        assert isinstance(effect, Deliver)
        last = effect.first_tag + sum(run.count for run in effect.runs) - 1
        operations.append(world.op(name, answer(1, effect.consumer_tag, effect.attach, ((1, last),))))
    lines, applied = lines_of(world, operations)
    assert len(sequences(applied)) == size * (1 if answer in (Settle, Discard) else 2)
    assert len(attached) == consumers
    return lines


@pytest.mark.parametrize("answer", [Settle, Discard, Return, Modify])
def test_a_batch_of_10000_executes_at_most_twice_the_lines_of_one_of_10(answer: type[Settle]) -> None:
    small, large = cost(10, 1, answer), cost(10_000, 1, answer)
    assert small > 50
    assert large <= 2 * small


def test_the_turns_of_several_consumers_add_a_few_lines_each() -> None:
    """A turn takes at most 1,024 messages where others wait: ten turns instead of two."""
    small, large = cost(10, 2), cost(10_000, 2)
    assert large <= 5 * small


def test_a_batch_that_expires_executes_no_line_a_message() -> None:
    def expire(size: int) -> int:
        world = World()
        world.checks = False
        world.queue()
        world.publish(world.session(), size, ttl_ms=10)
        world.now_ms += 100
        from fifo.commands import Wake

        lines, _ = lines_of(world, [(None, Wake())])
        info = world.info()
        assert info.totals.expired == size
        return lines

    assert expire(10_000) <= 2 * expire(10)


def test_publishing_with_priorities_costs_lines_for_each_priority_and_not_for_each_message() -> None:
    def publish(size: int) -> int:
        world = World()
        world.checks = False
        world.queue(max_priority=9)
        batch = world.batch(world.session(), size, priorities=bytes(number % 10 for number in range(size)))
        lines, _ = lines_of(world, [batch])
        info = world.info()
        assert info.ready_levels == tuple((priority, size // 10) for priority in range(9, -1, -1))
        return lines

    assert publish(10_000) <= 2 * publish(10)


@pytest.mark.parametrize("answer", [Settle, Return])
def test_a_batch_of_one_priority_costs_as_few_lines_as_any(answer: type[Settle]) -> None:
    urgent = {"max_priority": 9}, {"priorities": b"\x05"}
    assert cost(10_000, 1, answer, *urgent) <= 2 * cost(10, 1, answer, *urgent)


def test_a_message_that_arrives_alone_takes_no_step_for_each_priority() -> None:
    """Each message of the batch has a time to live of its own, and they are few enough to be added one by one."""

    def publish(priorities: int) -> int:
        size = 2_000
        world = World(Limits(few_stretches=size))
        world.checks = False
        world.queue(max_priority=255)
        batch = world.batch(
            world.session(),
            size,
            priorities=bytes(number % priorities for number in range(size)),
            ttls_ms=tuple(range(1_000, 1_000 + size)),
        )
        lines, _ = lines_of(world, [batch])
        info = world.info()
        assert len(info.ready_levels) == priorities
        return lines

    assert publish(200) <= 1.5 * publish(2)


TIMES = {
    "ttls": {"ttls_ms": tuple(range(10_000, 2_000, -1))},
    "delays": {"due_times_ms": tuple(range(-1, -8_001, -1))},
    "some delays": {"due_times_ms": tuple([-each if each % 2 else 0 for each in range(8_000)])},
    "both": {"ttls_ms": tuple(range(1, 8_001)), "due_times_ms": tuple(range(-8_000, 0))},
}


@pytest.mark.parametrize(
    "queue", [{}, {"max_priority": 3}, {"message_groups": True}, {"max_length_bytes": 1 << 30}]
)
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_a_message_with_a_time_of_its_own_executes_no_line(
    queue: dict[str, Any], times: dict[str, Any]
) -> None:
    world = World()
    world.checks = False
    world.queue(**queue)
    more = {**times, "priorities": bytes([each % 4 for each in range(8_000)])}
    more["group_keys"] = of_keys([each % 9 for each in range(8_000)])
    lines, applied = lines_of(world, [world.batch(world.session(), 8_000, **more)])
    assert applied.replies == (Confirmed(1, 8_000),)
    assert lines < 1_000


def test_ranges_of_a_batch_for_several_queues_execute_few_lines_each() -> None:
    world = World()
    world.checks = False
    world.queue(1)
    world.queue(2)
    count = 8_000
    batch = world.routed(world.session(), [[1 + each % 2] for each in range(count)])
    lines, _ = lines_of(world, [batch])
    for queue in (1, 2):
        info = world.info(queue)
        assert info.ready == count // 2
    assert lines < 60 * count


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_the_commit_of_messages_with_times_of_their_own_executes_no_line_a_message(
    times: dict[str, Any],
) -> None:
    world = World()
    world.checks = False
    world.queue()
    name = world.session()
    world.apply([in_transaction(1, world.batch(name, 8_000, **times))])
    lines, applied = lines_of(world, [world.op(name, Commit(1))])
    assert not isinstance(applied.replies[0], Refused)
    info = world.info()
    assert info.ready + info.delayed == 8_000
    assert lines < 1_000


def test_the_publish_of_a_staged_chunk_executes_few_lines_for_each_time_of_its_messages() -> None:
    world = World()
    world.checks = False
    world.queue()
    name = world.session()
    world.stage(name, 1, 1, 0, 8_000, **TIMES["ttls"])
    publish = PublishStaged(1, "writer", 1, ((part_name(1), 8_000),))
    lines, applied = lines_of(world, [world.op(name, publish)])
    assert not isinstance(applied.replies[0], Refused)
    info = world.info()
    assert info.ready == 8_000
    assert lines < 10 * 8_000
