"""What the ledger of bounded queues takes for gone (simulator/rules/ledger.py), on machines without a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fifo import commands as c
from fifo import versions
from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION
from fifo.messages.pages import MemoryPages
from quorum.client.messages.batch import encode_batch
from quorum.node.replica.applier import Applier
from quorum.node.wire import operations as op
from simulator.clients.apps import Place
from simulator.rules.ledger import Ledger

BRIEF, SHORT = 1, 2
CONFIGS = {
    BRIEF: c.QueueConfig("brief", message_ttl_ms=100),
    SHORT: c.QueueConfig("short", max_length=2),
}
PRODUCER = 7
NAME = bytes(16)
LIMITS = replace(PRODUCTION, block_bits=4, arrival_budget=0)
"""An entry serves one queue, and leaves the others that it has touched for later ones."""


class Group:
    """A group of queues as one member has it."""

    def __init__(self, *queues: int) -> None:
        self.machine = GroupMachine(SimpleNamespace(columns=None), MemoryPages(), LIMITS)  # type: ignore[arg-type]
        self._replica: Any = SimpleNamespace(
            machine=self.machine,
            clock=SimpleNamespace(observe=lambda *_: None),
            state_changed=lambda *_: False,
            state_hashes=SimpleNamespace(applied=lambda *_: None),
            parted=0,
        )
        self._sent = 0
        created = [op.encode(c.CreateQueue(queue, CONFIGS[queue]), None) for queue in queues]
        self.apply(1, 0, *created)
        self.apply(2, 0, op.encode(c.RegisterProducer(c.Address(1, 1, 1)), c.Origin(NAME, 1, 0)))

    def apply(self, index: int, now_ms: int, *operations: bytes) -> None:
        body = b"".join(op.command_parts(operations, now_ms, versions.CURRENT))
        assert Applier._apply_entry(object.__new__(Applier), self._replica, index, 1, body, now_ms)

    def wake(self, index: int, now_ms: int) -> None:
        self.apply(index, now_ms, op.encode(c.Wake(), None))

    def publish(self, index: int, now_ms: int, *batches: tuple[int, tuple[int, ...]]) -> None:
        """One entry. batches: of (queue, the producer's numbers of the messages)."""
        operations = []
        for queue, numbers in batches:
            self._sent += 1
            batch = bytes(encode_batch([b"%d:%d:" % (PRODUCER, n) for n in numbers]).data)
            enqueue = c.Enqueue(queue, numbers[0], 1, len(numbers), 1)
            operations.append(op.encode(enqueue, c.Origin(NAME, 1, self._sent), batch))
        self.apply(index, now_ms, *operations)


@pytest.fixture
def world() -> Any:
    """now_ms is far beyond when anything may expire: that is judged by group time here."""
    rules = SimpleNamespace(counts=Counter(), taken={})
    bounded = [Place(CONFIGS[queue].name, {}) for queue in (BRIEF, SHORT)]
    return SimpleNamespace(now_ms=0, stepping=None, bounded=bounded, rules=rules)


@pytest.fixture
def ledger(world: Any) -> Iterator[Ledger]:
    found = Ledger(world)
    for n in range(1, 20):
        found.send((PRODUCER, n), None)
    world.now_ms = 10_000
    with found.watching():
        yield found


def gone(ledger: Ledger) -> set[tuple[int, int]]:
    """(producer, its number) of each message that has left."""
    return {(int(run.producer), run.number) for _, run in ledger.left()}


def unsynced_step(world: Any) -> Any:
    """What is applied now belongs to a step that still waits for the disk."""
    world.stepping = SimpleNamespace(delay_ms=1, unsynced=[])
    return world.stepping


def test_a_step_that_is_taken_back_takes_nothing_back_of_other_queues(world: Any, ledger: Ledger) -> None:
    first, other, brief = Group(SHORT), Group(SHORT), Group(BRIEF)
    node = unsynced_step(world)
    first.publish(3, 10, (SHORT, (1,)))
    world.stepping = None
    ledger.power_cut(node)
    brief.publish(3, 10, (BRIEF, (2,)))
    brief.wake(4, 200)
    assert gone(ledger) == {(PRODUCER, 2)}, "it has expired"
    other.publish(3, 20, (SHORT, (3,)))
    assert gone(ledger) == {(PRODUCER, 2)}


def test_what_has_left_in_a_step_that_is_taken_back_has_not_left(world: Any, ledger: Ledger) -> None:
    groups = Group(BRIEF, SHORT), Group(BRIEF, SHORT)
    for group in groups:
        group.publish(3, 10, (BRIEF, (1,)))
    node = unsynced_step(world)
    groups[0].wake(4, 200)
    assert gone(ledger) == {(PRODUCER, 1)}
    world.stepping = None
    ledger.power_cut(node)
    groups[1].wake(4, 50)
    assert gone(ledger) == set()
    groups[1].wake(5, 200)
    assert gone(ledger) == {(PRODUCER, 1)}


def test_what_came_in_an_entry_that_did_not_serve_its_queue_is_seen_to_leave(ledger: Ledger) -> None:
    """Also where its block has left the memory in between."""
    group = Group(BRIEF, SHORT)
    group.publish(3, 10, (SHORT, (1, 2)))
    group.publish(4, 10, (BRIEF, (3,)), (SHORT, (4, 5, 6, 7)))
    assert group.machine.queues[SHORT].unfinished and not gone(ledger)
    group.machine.page_out(SHORT, 0)
    group.wake(5, 10)
    assert gone(ledger) == {(PRODUCER, n) for n in (1, 2, 4, 5)}
