"""Selectors and filters as they come from clients."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from fifo import commands as c
from quorum.api.hub import filters
from quorum.api.hub.filters import Filters, PropertyFilter, SelectorText
from quorum.api.services.request_filters import filter_of
from quorum.api.status import StatusError
from quorum.api.turns import Turns
from quorum.catalog.queues import CatalogQueue
from quorum.v1 import queue_pb2 as pb
from quorum_selectors import canonical, jms
from quorum_selectors.errors import SelectorError
from quorum_selectors.expression import Expression


@pytest.mark.parametrize("selector", ["", " ", " \t\f\r\n"])
def test_a_blank_selector_is_none(selector: str) -> None:
    assert filters.parse(filter_of(pb.Attach(selector=selector))) is None


@pytest.mark.parametrize("selector", ["\u00a0", "\x0b", " \u2003 "])
def test_what_only_looks_blank_is_refused_and_does_not_select_everything(selector: str) -> None:
    with pytest.raises(SelectorError, match="line 1, column"):
        filters.parse(filter_of(pb.Attach(selector=selector)))


def test_a_filter_of_properties_compares_no_bytes() -> None:
    request = pb.Attach()
    request.property_filter.application_properties["a"].binary = b"x"
    with pytest.raises(StatusError, match="not bytes"):
        filters.parse(filter_of(request))
    request.property_filter.application_properties["a"].integer = 3
    assert filters.parse(filter_of(request)) is not None


def test_a_message_for_several_queues_is_read_for_what_orders_any_of_them() -> None:
    configs: list[dict[str, Any]] = [{}, {"max_priority": 1}, {"message_groups": True}]
    plain, urgent, grouped = (
        CatalogQueue(number, f"q{number}", 1, (), c.QueueConfig(f"q{number}", **config))
        for number, config in enumerate(configs, 1)
    )
    assert filters.ordered_by([plain, urgent]) == {"has_priorities": True, "has_groups": False}
    assert filters.ordered_by([grouped, plain]) == {"has_priorities": False, "has_groups": True}
    assert filters.ordered_by([plain]) == {"has_priorities": False, "has_groups": False}


# ---- parsing in turns


OWNER = 9
RED, WRONG = SelectorText("colour = 'red'"), SelectorText("colour = ")


class Parser:
    """Stands in for the parser, and notes what is parsed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed: list[str] = []
        self._parse = jms.parse
        monkeypatch.setattr(filters.jms, "parse", self)

    def __call__(self, text: str) -> Expression:
        self.parsed.append(text)
        return self._parse(text)


def queue(*, filters_messages: bool) -> CatalogQueue:
    return CatalogQueue(7, "orders", 1, (), c.QueueConfig("orders", filter_enabled=filters_messages))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_selector_is_not_parsed_for_a_queue_that_does_not_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        parser = Parser(monkeypatch)
        for wanted in (RED, WRONG):
            with pytest.raises(StatusError, match="keeps no filter fields"):
                await Filters(Turns()).encoding_for(queue(filters_messages=False), wanted, OWNER)
        assert (
            await Filters(Turns()).encoding_for(queue(filters_messages=False), SelectorText(" "), OWNER)
            == b""
        )
        assert parser.parsed == []

    run(scenario())


def test_a_selector_is_parsed_once_for_many_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        parser, known = Parser(monkeypatch), Filters(Turns())
        found = [await known.encoding_for(queue(filters_messages=True), RED, owner) for owner in range(5)]
        assert parser.parsed == [RED.text]
        assert set(found) == {canonical.encode(jms.parse(RED.text))}

    run(scenario())


def test_a_refusal_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        parser, known = Parser(monkeypatch), Filters(Turns())
        told = set()
        for _ in range(3):
            for find in (known.encoding, known.expression):
                with pytest.raises(StatusError) as refused:
                    await find(WRONG, OWNER)
                told.add(refused.value.status)
        assert parser.parsed == [WRONG.text]
        assert [(why.reason, dict(why.metadata)["line"]) for why in told] == [("bad_selector", "1")]

    run(scenario())


def test_what_is_remembered_has_a_limit_and_the_selectors_in_use_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        parser, most = Parser(monkeypatch), 20_000
        known = Filters(Turns(), most)
        for number in range(200):
            await known.encoding(RED, OWNER)
            await known.encoding(SelectorText(f"size = {number}"), OWNER)
            with pytest.raises(StatusError):
                await known.encoding(SelectorText(f"size = {number} AND"), OWNER)
            assert known.remembered_bytes <= most
        assert parser.parsed.count(RED.text) == 1
        parser.parsed.clear()
        await known.encoding(SelectorText("size = 0"), OWNER)
        assert parser.parsed == ["size = 0"], "it was forgotten"

    run(scenario())


def test_a_selector_that_is_too_long_is_refused_at_once_and_not_remembered() -> None:
    async def scenario() -> None:
        known = Filters(Turns())
        waiting = [
            asyncio.create_task(known.encoding(SelectorText(f"{'a' * 4_000} = {each}"), 1))
            for each in range(3)
        ]
        await asyncio.sleep(0)
        with pytest.raises(StatusError, match="at most 4096"):
            await known.encoding(SelectorText("a" * 16_000), OWNER)
        assert not all(task.done() for task in waiting)
        await asyncio.gather(*waiting)
        assert known.remembered_bytes < 3 * 10_000

    run(scenario())


def test_addresses_take_turns_with_their_selectors(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        parser, known = Parser(monkeypatch), Filters(Turns())
        texts = [f"{'a' * 600} = {number}" for number in range(10)]
        many = [asyncio.create_task(known.encoding(SelectorText(text), 1)) for text in texts]
        await asyncio.sleep(0)
        await known.encoding(RED, 2)
        assert parser.parsed.index(RED.text) <= 2
        await asyncio.gather(*many)

    run(scenario())


def test_property_filters_take_turns_and_are_told_apart_by_the_types_of_their_values() -> None:
    async def scenario() -> None:
        known = Filters(Turns())
        number, truth = ({"a": 1}, {"a": True})
        found = [await known.encoding(PropertyFilter({}, values), OWNER) for values in (number, truth)]
        assert len(set(found)) == 2
        with pytest.raises(StatusError) as refused:
            await known.expression(PropertyFilter({}, {}), OWNER)
        assert refused.value.status.reason == "bad_filter"

    run(scenario())
