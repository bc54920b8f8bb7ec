"""What one step of a member builds for a question, however many consumers and readers there are."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fifo.commands import OpenSubscription, Reserve
from fifo.queries import subscriptions
from quorum.node import queries as q
from quorum.node.reads.query_table import QueryTable
from quorum.node.reads.queue_answers import QueueAnswers
from support.fifo.world import World, nth_number


class Replicas(dict[int, Any]):
    """The replica of a world's machine, as group 1."""

    def __init__(self, world: World) -> None:
        replica = SimpleNamespace(raft=SimpleNamespace(leader="n1"), recent_from=lambda log: 0)
        super().__init__({1: replica})
        self.queue_machine = lambda group: world.machine


def answers(world: World) -> QueryTable:
    table = QueryTable()
    directory: Any = SimpleNamespace(me="n1", by_id={}, name=str, name_of=str)
    QueueAnswers(Replicas(world), directory, None, None).take_queries(table)  # type: ignore[arg-type]
    return table


def pages(world: World, most_consumers: int, most_selector_bytes: int) -> Iterator[q.QueueDescription]:
    after: int | None = 0
    while after is not None:
        query = q.DescribeQueue(1, 1, after, most_consumers, most_selector_bytes)
        found = answers(world).answer(query, 0)
        assert found is not None
        yield found
        after = found.consumers_after


def test_a_description_has_the_consumers_page_by_page() -> None:
    world = World()
    world.queue()
    name = world.session()
    tags = [f"c{number}" for number in range(25)]
    for tag in tags:
        world.attach(name, tag, 1)
    found = list(pages(world, 10, 1_000))
    assert [len(page.consumers) for page in found] == [10, 10, 5]
    assert [each.tag for page in found for each in page.consumers] == tags
    assert {page.status.info.consumers for page in found} == {25}


def test_long_filters_make_short_pages() -> None:
    world = World()
    world.queue(filter_enabled=True, filter_field_names=("application-properties.size",))
    name = world.session()
    for number in range(6):
        world.attach(name, f"c{number}", 1, f"size = '{'x' * 900}{number}'")
    assert [len(page.consumers) for page in pages(world, 100, 2_000)] == [2, 2, 2]


def test_a_poll_for_a_reservation_looks_at_its_own_reader_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.queue()
    name = world.session()
    for number in range(20):
        world.do(name, OpenSubscription(1, f"r{number}", b"", "earliest", 60_000, "release"))
    built: list[str] = []
    build = subscriptions._info
    monkeypatch.setattr(subscriptions, "_info", lambda reader: built.append(reader.name) or build(reader))
    preview = answers(world).answer(q.PreviewReserve(1, 1, "r7", generation=nth_number(1), after=0), 0)
    assert preview.subscription is not None and preview.subscription.name == "r7"
    assert built == ["r7"]


def test_a_reader_that_lost_its_messages_by_a_silence_is_told_at_once_though_nothing_is_ready() -> None:
    """A Reserve that waits for messages goes to the group without waiting, which refuses it."""
    world = World()
    world.queue(1)
    name = world.session()
    world.do(name, OpenSubscription(1, "etl", b"", "earliest", 2_000, "discard"))
    world.publish(name, 1)
    world.do(name, Reserve(1, "etl", nth_number(1), 0, 1, 100))
    query = q.PreviewReserve(1, 1, "etl", generation=nth_number(1), after=1)
    assert not answers(world).answer(query, 0).may_reserve
    world.wake(2_000)
    assert answers(world).answer(query, 0) == q.ReservePreview(None, True, 0, world.index)
