"""What one step of a member builds for a question, however many consumers and readers there are."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fifo.commands import OpenSubscription
from fifo.queries import group as queries
from fifo.queries import subscriptions
from quorum.api import admin_service, bulk_subscriptions
from quorum.catalog.queues import CatalogQueue
from quorum.v1 import admin_pb2, bulk_pb2
from support.fifo_world import World

QUEUE: Any = CatalogQueue(1, "q", 1, (), None)  # type: ignore[arg-type]


def member_of(world: World) -> Any:
    storage = SimpleNamespace(queue_machine=lambda group: world.machine)
    roster = SimpleNamespace(name=str, name_of=str)
    return SimpleNamespace(
        queue_machine=storage.queue_machine,
        membership=SimpleNamespace(roster=roster),
        replicas={1: SimpleNamespace(raft=SimpleNamespace(leader=1))},
        storage=lambda group, queue: queries.storage(world.machine, queue, 0),
    )


def pages(world: World) -> Iterator[admin_pb2.DescribeQueueResponse]:
    after = 0
    while True:
        found = admin_service._description(member_of(world), QUEUE, after)
        assert found is not None
        yield found
        after = found.next_consumers_after
        if not after:
            return


def test_a_description_has_the_consumers_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_service, "PART_CONSUMERS", 10)
    world = World()
    world.queue()
    name = world.session()
    tags = [f"c{number}" for number in range(25)]
    for tag in tags:
        world.attach(name, tag, 1)
    found = list(pages(world))
    assert [len(page.consumers) for page in found] == [10, 10, 5]
    assert [each.consumer_tag for page in found for each in page.consumers] == tags
    assert {page.queue.consumers for page in found} == {25}


def test_long_filters_make_short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_service, "PART_FILTER_BYTES", 2_000)
    world = World()
    world.queue(filter_enabled=True, filter_field_names=("application-properties.size",))
    name = world.session()
    for number in range(6):
        world.attach(name, f"c{number}", 1, f"size = '{'x' * 900}{number}'")
    assert [len(page.consumers) for page in pages(world)] == [2, 2, 2]


def test_a_poll_for_a_reservation_looks_at_its_own_reader_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.queue()
    name = world.session()
    for number in range(20):
        world.do(name, OpenSubscription(1, f"r{number}", b"", "earliest", 60_000, "release"))
    built: list[str] = []
    build = subscriptions._info
    monkeypatch.setattr(subscriptions, "_info", lambda reader: built.append(reader.name) or build(reader))
    request = bulk_pb2.ReserveRequest(subscription="r7", generation=1)
    looked = bulk_subscriptions._look_at(member_of(world), QUEUE, request)
    assert looked.subscription is not None and looked.subscription.name == "r7"
    assert built == ["r7"]
