"""A field that a later version adds to a record of the catalog's snapshot: written from the switch on, read with its
default from older states."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from fifo import commands as c
from fifo.layouts import FENCE
from fifo.records import Record
from quorum.catalog import layouts
from quorum.catalog.commands import DeclareQueue, SetPolicy
from quorum.catalog.exchanges import Bind, DeclareExchange
from quorum.catalog.lease_times import FoundLeaseTimes
from quorum.catalog.machine import COUNTERS, CatalogMachine
from quorum.catalog.members import AddMember, BootstrapCluster, founders
from support.versions.later_fields import DEFAULT, MADE, NEW, add_note, notes


def catalog_with_every_record() -> CatalogMachine:
    machine = CatalogMachine((1, 2), NEW)
    producers = [bytes([number]) * 16 for number in (1, 2)]
    commands = [
        (None, BootstrapCluster(founders({"n1": ("a:1", "a:2")}))),
        (None, FoundLeaseTimes(4_000, 1_500)),
        *[(c.Origin(producer, 1, 0), c.RegisterProducer(c.Address(1, 1, 1))) for producer in producers],
        (c.Origin(producers[0], 1, 1), DeclareQueue("orders", (("x-max-length", 5),))),
        (c.Origin(producers[0], 1, 2), SetPolicy("short", "*", 1, (("x-max-length", 3),))),
        (c.Origin(producers[0], 1, 3), AddMember("n2~010101010101", "n2", "b:1", "b:2", "01" * 16)),
        (c.Origin(producers[0], 1, 4), DeclareExchange("routes", "fanout", ())),
        (c.Origin(producers[0], 1, 5), Bind("routes", "queue", "orders")),
        (c.Origin(producers[1], 1, 1), c.CloseSession()),
    ]
    for index, (origin, command) in enumerate(commands, 1):
        machine.apply(c.Meta(index, 1, 1_000, 2), [c.Operation(0, origin, command)])  # type: ignore[arg-type]
    return machine


OBJECTS: dict[str, tuple[Record, Callable[[CatalogMachine], Iterable[object]]]] = {
    "counters": (COUNTERS, lambda machine: [machine]),
    "queue": (layouts.QUEUE, lambda machine: machine.queues()),
    "policy": (layouts.POLICY, lambda machine: machine.policies.by_name.values()),
    "exchange": (
        layouts.EXCHANGE,
        lambda machine: [each for each in machine.exchanges.by_name.values() if each.id],
    ),
    "binding": (layouts.BINDING, lambda machine: machine.exchanges.bindings.values()),
    "member": (layouts.MEMBER, lambda machine: machine.members.by_id.values()),
    "lease settings": (layouts.LEASE_SETTINGS, lambda machine: [machine.lease_settings]),
    "lease times": (
        layouts.TIMES,
        lambda machine: machine.lease_settings and [machine.lease_settings.wanted],  # type: ignore[return-value]
    ),
    "session": (layouts.SPEAKER, lambda machine: machine._numbering.speakers.values()),
    "fence": (FENCE, lambda machine: machine._numbering.fences.by_name.values()),
}
"""Each record, and its objects in a catalog."""


@pytest.mark.parametrize(("record", "objects"), OBJECTS.values(), ids=OBJECTS)
def test_a_later_field_is_in_the_snapshot_from_its_version_on(
    record: Record, objects: Callable[[CatalogMachine], Iterable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = catalog_with_every_record().snapshot()
    add_note(monkeypatch, record)
    machine = catalog_with_every_record()
    assert len(machine.members.by_id) == 2
    assert machine.snapshot() == earlier, "an older member can read it"
    restored = CatalogMachine.restore(earlier, NEW)
    assert notes(objects(restored)) == {DEFAULT}
    assert restored.snapshot() == earlier

    for each in (machine, restored):
        each.apply(c.Meta(99, 1, 1_000, 2), [c.Operation(0, None, c.SetVersion(NEW))])
    assert notes(objects(CatalogMachine.restore(restored.snapshot(), NEW))) == {DEFAULT}
    later = machine.snapshot()
    assert MADE.encode() in later
    again = CatalogMachine.restore(later, NEW)
    assert notes(objects(again)) == {MADE}
    assert again.snapshot() == later
