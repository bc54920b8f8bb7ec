"""A field that a later version adds to a record of snapshots: written from the switch on, read with its default from
older states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from fifo import commands as c
from fifo.embargo import EmbargoedBatch, EmbargoedSettlement
from fifo.group_machine import GroupMachine
from fifo.layouts import CONFIG, FENCE
from fifo.limits import PRODUCTION
from fifo.persistence import checkpoint, layouts, snapshot
from fifo.persistence.references import references
from fifo.queue_machine import QueueMachine
from fifo.records import Record
from fifo.subscriptions import Subscription
from support.fifo.world import World, in_transaction, nth_number
from support.versions.later_fields import DEFAULT, MADE, NEW, add_note, notes


def world_with_every_record() -> World:
    """A group whose state has each record of fifo/persistence/layouts.py."""
    world = World(replace(PRODUCTION, newest_version=NEW))
    world.queue(1)
    world.queue(2)
    first, second, third = world.session(1), world.session(2), world.session(3)
    world.do(third, c.CloseSession(is_clean=True))
    world.publish(first, 20)
    world.attach(second, "all", 3)
    for name in ("one", "other"):
        world.do(second, c.OpenSubscription(1, name, b"", "earliest", 60_000, "keep"))
        world.do(second, c.Reserve(1, name, nth_number(1), 0, 4, 10_000))
    world.do(second, c.Pin(1, 60_000))
    world.stage(first, 1, 1, 0, 2)
    world.publish_staged(first, 1, (1, 2))
    world.stage(first, 2, 1, 0, 2)
    attach, _ = world.attach(first, "mine", 2)
    settle = c.Settle(1, "mine", attach, ((1, 1),))
    world.apply([in_transaction(1, world.batch(first, 2)), in_transaction(1, world.op(first, settle))])
    return world


def queue(group: GroupMachine) -> QueueMachine:
    return group.queues[1]


def embargoed(group: GroupMachine, kind: type) -> list[object]:
    return [
        part
        for parts in queue(group).transactions.embargo.parts.values()
        for part in parts
        if isinstance(part, kind)
    ]


def subscriptions(group: GroupMachine) -> list[Subscription]:
    return list(queue(group).subscriptions.by_name.values())


OBJECTS: dict[str, tuple[Record, Callable[[GroupMachine], Iterable[object]]]] = {
    "group": (layouts.GROUP, lambda group: [group]),
    "producer": (layouts.PRODUCER, lambda group: group.sessions.producers.values()),
    "fence": (FENCE, lambda group: group.sessions.fences.by_name.values()),
    "config": (CONFIG, lambda group: [each.messages.config for each in group.queues.values()]),
    "consumer": (layouts.CONSUMER, lambda group: queue(group).consumers.by_key.values()),
    "subscription": (layouts.SUBSCRIPTION, subscriptions),
    "reservation": (
        layouts.RESERVATION,
        lambda group: [made for each in subscriptions(group) for made in each.reservations],
    ),
    "pin": (layouts.PIN, lambda group: queue(group).pins.by_number.values()),
    "part": (layouts.PART, lambda group: queue(group).staging.parts.values()),
    "last batch": (layouts.LAST_BATCH, lambda group: queue(group).staging.last_batches.values()),
    "transaction": (layouts.TRANSACTION, lambda group: group.transactions.by_key.values()),
    "embargoed batch": (layouts.EMBARGOED_BATCH, lambda group: embargoed(group, EmbargoedBatch)),
    "embargoed settlement": (
        layouts.EMBARGOED_SETTLEMENT,
        lambda group: embargoed(group, EmbargoedSettlement),
    ),
}
"""Each record, and its objects in a group."""


@pytest.mark.parametrize(("record", "objects"), OBJECTS.values(), ids=OBJECTS)
def test_a_later_field_is_in_states_from_its_version_on(
    record: Record, objects: Callable[[GroupMachine], Iterable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = snapshot.encode(world_with_every_record().machine)
    add_note(monkeypatch, record)
    world = world_with_every_record()
    assert snapshot.encode(world.machine) == earlier, "an older member can read it"
    restored = world.restored(earlier)
    assert notes(objects(restored)) == {DEFAULT}
    assert snapshot.encode(restored) == earlier
    before = references(earlier)

    world.apply([(None, c.SetVersion(NEW))])
    assert notes(objects(world.machine)) == {MADE}
    later = snapshot.encode(world.machine)
    assert MADE.encode() in later
    assert notes(objects(world.restored(later))) == {MADE}
    assert list(references(later)) == list(before)
    world.machine = world.restored(later)
    taken = checkpoint.Checkpointer(world.machine).take()
    resumed = world.resumed(taken.state, world.machine.memory.pages)
    assert notes(objects(resumed)) == {MADE}
    assert snapshot.encode(resumed) == later
    assert list(checkpoint.contents(taken.state)[0]) == list(before)


def test_a_state_keeps_the_defaults_of_later_fields_through_the_switch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_with_every_record()
    earlier = snapshot.encode(world.machine)
    for record, _ in OBJECTS.values():
        add_note(monkeypatch, record)
    world.machine = world.restored(earlier)
    world.apply([(None, c.SetVersion(NEW))])
    again = world.restored(snapshot.encode(world.machine))
    for _, objects in OBJECTS.values():
        assert notes(objects(again)) == {DEFAULT}
