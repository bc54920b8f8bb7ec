"""The comparison of selector designs with tiny numbers: all deliver the same, at the cost that their rule implies."""

from __future__ import annotations

import json

import pytest

from quorum.bench.run import BenchFailed
from quorum.bench.selectors_designs import (
    DESIGNS,
    Cursor,
    Delivery,
    DesignsResult,
    Done,
    Sizes,
    Walk,
    attach,
    dispatch,
    measure,
    returns,
)

TINY = Sizes(
    selectors=(3, 20),
    entries=3,
    waiting=40,
    backlog=400,
    returning=10,
    return_backlog=200,
    returns=4,
    batch=40,
)


@pytest.fixture(scope="module")
def result() -> DesignsResult:
    return measure(TINY, lambda _: None)


def test_a_walk_evaluates_the_queue_again_for_each_delivery() -> None:
    # an entry has 10 messages for 10 of 20 consumers; what waits before them matches none
    _, evaluations = dispatch(Walk(), 20, TINY)
    assert evaluations > 20 * TINY.waiting / 10
    places = [(2 * i + 1) * 400 // 20 for i in range(10)]  # of the matches
    assert attach(Walk(), TINY)[1] == sum(place + 1 - i for i, place in enumerate(places)) + 390


def test_a_cursor_evaluates_each_message_once_for_each_consumer() -> None:
    _, evaluations = dispatch(Cursor(), 20, TINY)
    # every message of an entry by all 20 consumers, except those that an earlier one has taken
    assert 10 <= evaluations <= 20
    assert attach(Cursor(), TINY)[1] == 400


def test_a_return_moves_all_cursors_back() -> None:
    _, evaluations = returns(Cursor(), TINY)
    assert evaluations > TINY.returning * 50


def test_groups_evaluate_for_one_consumer_only(result: DesignsResult) -> None:
    cost = result.costs["groups"]
    assert max(cost.dispatch_evaluations.values()) <= 2
    assert cost.attach_evaluations <= 400
    assert cost.returned_evaluations == 0


def test_all_designs_are_told_with_all_figures(result: DesignsResult) -> None:
    values = result.to_dict()
    assert json.loads(json.dumps(values)) == values
    for name in ("dispatch_us_per_message", "dispatch_evaluations"):
        assert list(values[f"designs_{name}"]) == list(DESIGNS)
        assert all(list(numbers) == ["3", "20"] for numbers in values[f"designs_{name}"].values())
    for name in ("attach_ms", "attach_evaluations", "return_us", "return_evaluations"):
        assert list(values[f"designs_{name}"]) == list(DESIGNS)


class Losing(Walk):
    """Forgets the last delivery of each turn."""

    def _serve(self) -> Done:
        done = super()._serve()
        return Done(done.deliveries[:-1], done.cpu_s)


class Mixing(Walk):
    """Delivers to the wrong consumer."""

    def _serve(self) -> Done:
        done = super()._serve()
        return Done([("someone", sequence) for _, sequence in done.deliveries], done.cpu_s)


class Forgetting(Cursor):
    """Never looks at a returned message again."""

    def _returned(self, sequence: int) -> None:
        pass


class Repeating(Walk):
    """Delivers a message twice."""

    def _serve(self) -> Done:
        done = super()._serve()
        return Done(done.deliveries * 2, done.cpu_s)


@pytest.mark.parametrize("design", [Losing, Mixing, Forgetting, Repeating])
def test_a_design_that_delivers_something_else_fails_the_bench(design: type[Walk]) -> None:
    with pytest.raises(BenchFailed, match="deliveries differ"):
        measure(TINY, lambda _: None, {"broken": design})


def test_a_returned_message_is_delivered_again() -> None:
    for make in DESIGNS.values():
        queue = make()
        [delivery] = _delivered_first(queue)
        assert queue.give_back(delivery).deliveries == [delivery]


def _delivered_first(queue: object) -> list[Delivery]:
    from quorum.bench.selectors_fields import UNIQUE_SELECTOR, Batches

    assert hasattr(queue, "publish") and hasattr(queue, "attach")
    queue.publish(40, Batches(40, 40, 1).columns(0))
    deliveries: list[Delivery] = queue.attach([("one", UNIQUE_SELECTOR)]).deliveries
    return deliveries


def test_fewer_messages_make_a_shorter_run() -> None:
    sizes = Sizes().up_to(600)
    assert (sizes.waiting, sizes.backlog, sizes.return_backlog, sizes.returning) == (600, 600, 600, 100)
    assert Sizes().up_to(0) == Sizes()
