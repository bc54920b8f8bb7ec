"""The view of exchanges and bindings knows what the catalog has, after every change."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.api.hub.exchange_view import ExchangeView
from quorum.catalog.bindings import Binding
from quorum.catalog.exchanges import Bind, DeclareExchange, DeleteExchange, ExchangeCommand, Exchanges, Unbind
from support.examples import examples

QUEUES = ("q1", "q2")
NAMES = st.sampled_from(["e1", "e2", "e3"])
COMMANDS = st.one_of(
    st.builds(DeclareExchange, NAMES, st.sampled_from(["direct", "fanout"]), st.just(())),
    st.builds(DeleteExchange, NAMES),
    st.builds(Bind, NAMES, st.just("queue"), st.sampled_from(QUEUES)),
    st.builds(Bind, NAMES, st.just("exchange"), NAMES),
    st.builds(Unbind, st.integers(1, 12)),
)


def carry_out(exchanges: Exchanges, command: ExchangeCommand | str) -> None:
    """command: a queue's name if the queue is removed."""
    match command:
        case str():
            exchanges.forget_queue(command)
        case DeclareExchange():
            exchanges.declare(command)
        case DeleteExchange():
            exchanges.delete(command)
        case Bind():
            exchanges.bind(command, QUEUES)
        case Unbind():
            exchanges.unbind(command)


def check(view: ExchangeView, exchanges: Exchanges) -> None:
    """The view has the same exchanges and bindings, and routes by them."""
    assert {each.name: each for each in view.exchanges()} == exchanges.by_name
    known = list(exchanges.bindings.values())
    assert sorted(view.bindings(), key=lambda each: each.id) == known
    assert [view.find(each) for each in known] == known
    assert view.removals == exchanges.removals
    for name in exchanges.by_name:
        leading = [each for each in known if name in (each.source, _exchange_of(each))]
        assert sorted(view.bindings_of("exchange", name), key=lambda each: each.id) == leading
        assert view.count_from(name) == sum(each.source == name for each in known)
        reached = [name]
        for source in reached:
            found = [_exchange_of(each) for each in known if each.source == source]
            reached += dict.fromkeys([each for each in found if each and each not in reached])
        queues = {each.destination for each in known if each.source in reached and each.kind == "queue"}
        assert view.router.route(name, "").queues == tuple(sorted(queues))


def _exchange_of(binding: Binding) -> str:
    return binding.destination if binding.kind == "exchange" else ""


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(COMMANDS | st.sampled_from(QUEUES), st.booleans()), max_size=40))
def test_a_view_follows_every_change(steps: list[tuple[ExchangeCommand | str, bool]]) -> None:
    exchanges, view = Exchanges(), ExchangeView(QUEUES)
    for command, is_taken in [*steps, (Unbind(0), True)]:
        carry_out(exchanges, command)
        if is_taken:
            changes = exchanges.take_changes()
            if changes is not None:
                view.apply(changes)
            check(view, exchanges)


def test_an_exchange_that_was_bound_to_itself_can_be_unbound_and_deleted() -> None:
    exchanges, view = Exchanges(), ExchangeView(QUEUES)
    for command in (DeclareExchange("e1", "fanout", ()), Bind("e1", "exchange", "e1"), DeleteExchange("e1")):
        carry_out(exchanges, command)
        changes = exchanges.take_changes()
        assert changes is not None
        view.apply(changes)
        check(view, exchanges)
    assert view.exchange("e1") is None
