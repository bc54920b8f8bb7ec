"""Many stretches of a batch at once: the same state as one after the other."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fifo.commands import Commit, QueueConfig, UpdateConfig
from fifo.limits import Limits
from fifo.persistence import invariants, snapshot
from support.fifo.world import World, in_transaction, of_keys

COUNT = 30
KINDS = st.sampled_from(("", "", "commit", "routed", "staged", "limited"))
TTLS = st.just(()) | st.lists(
    st.sampled_from((-1, 0, 5, 5, 40, (1 << 63) - 1)), min_size=COUNT, max_size=COUNT
)
DUES = st.just(()) | st.lists(
    st.sampled_from((0, 0, -1, -5, -20, 1_000_010, (1 << 63) - 1)), min_size=COUNT, max_size=COUNT
)
PRIORITIES = st.sampled_from((b"", b"\x02")) | st.binary(min_size=COUNT, max_size=COUNT)
KEYS = st.sampled_from((b"", b"\x01" * 8)) | st.lists(st.integers(0, 3), min_size=COUNT, max_size=COUNT).map(
    of_keys
)
BATCH = st.fixed_dictionaries(
    {
        "ttls_ms": TTLS.map(tuple),
        "due_times_ms": DUES.map(tuple),
        "priorities": PRIORITIES,
        "group_keys": KEYS,
        "size": st.sampled_from((0, 1, 77)),
    }
)
QUEUE = st.fixed_dictionaries(
    {
        "max_priority": st.sampled_from((-1, 2, 255)),
        "message_groups": st.booleans(),
        "max_length_bytes": st.sampled_from((-1, 1 << 40)),
        "message_ttl_ms": st.sampled_from((-1, 10)),
    }
)


def arrived(limits: Limits, queue: dict[str, Any], batches: list[tuple[str, dict[str, Any]]]) -> bytes:
    """The state after these batches."""
    world = World(limits)
    world.queue(1, **queue)
    world.queue(2, **queue)
    name = world.session()
    for number, (kind, arguments) in enumerate(batches, 1):
        batch = dict(arguments)
        if kind == "commit":
            world.apply([in_transaction(number, world.batch(name, COUNT, **batch))])
            world.do(name, Commit(number), passed_ms=3)
        elif kind == "routed":
            del batch["size"]
            world.apply(
                [
                    world.routed(
                        name, [[1 + (each % 3 > 1), 2][: 1 + each % 2] for each in range(COUNT)], **batch
                    )
                ]
            )
        elif kind == "staged":
            del batch["due_times_ms"]
            world.stage(name, number, 1, 0, COUNT, **batch)
            world.publish_staged(name, number, (1, COUNT))
        elif kind == "limited":
            world.apply(
                [(None, UpdateConfig(1, QueueConfig("queue-1", **{**queue, "max_length_bytes": 1 << 40})))]
            )
        else:
            world.apply([world.batch(name, COUNT, **batch)])
    invariants.check(world.machine)
    return snapshot.encode(world.machine)


@settings(max_examples=150, deadline=None)
@given(
    QUEUE,
    st.lists(st.tuples(KINDS, BATCH), max_size=5),
)
def test_many_stretches_at_once_make_the_same_state_as_one_after_the_other(
    queue: dict[str, Any], batches: list[tuple[str, dict[str, Any]]]
) -> None:
    at_once, one_by_one = [Limits(block_bits=5, few_stretches=few) for few in (1, 1 << 30)]
    assert arrived(at_once, queue, batches) == arrived(one_by_one, queue, batches)
