"""A rehearsal: a copy of the catalog replies to commands as the catalog itself does."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from fifo.effects import Ok, Refused, Reply
from fifo.versions import CURRENT
from quorum.catalog.commands import CatalogCommand, DeclareQueue, RemovePolicy, RemoveQueue, SetPolicy
from quorum.catalog.exchanges import Bind, DeclareExchange, DeleteExchange, Unbind
from quorum.catalog.machine import CatalogMachine
from support.catalog import Catalog

names = st.sampled_from(["a", "b", "amq.topic", ""])
arguments = st.sampled_from([(), (("x-max-length", 5),), (("x-max-length", 6),), (("x-wrong", 1),)])
COMMANDS: st.SearchStrategy[CatalogCommand] = st.one_of(
    st.builds(DeclareQueue, names, arguments, max_queues=st.sampled_from([1, 100])),
    st.builds(DeclareQueue, names, arguments, owner=st.sampled_from(["ann", "ben"]), max_owned=st.just(1)),
    st.builds(RemoveQueue, names),
    st.builds(SetPolicy, names, st.sampled_from(["*", "a", ""]), st.integers(0, 2), arguments),
    st.builds(RemovePolicy, names),
    st.builds(
        DeclareExchange,
        names,
        st.sampled_from(["direct", "topic", "fanout"]),
        st.sampled_from([(), (("alternate-exchange", "a"),)]),
    ),
    st.builds(DeleteExchange, names, if_unused=st.booleans()),
    st.builds(Bind, names, st.sampled_from(["queue", "exchange"]), names, st.sampled_from(["", "k.*"])),
    st.builds(Unbind, st.integers(1, 4)),
)


def copied(machine: CatalogMachine) -> CatalogMachine:
    return CatalogMachine.rehearsing(
        machine.queue_groups,
        machine.queues(),
        machine.policies.by_name.values(),
        machine.exchanges.by_name.values(),
        machine.exchanges.bindings.values(),
    )


def meaning(reply: Reply | None) -> object:
    """A reply without the ids that the catalog gives out."""
    if isinstance(reply, Refused):
        return reply.reason, reply.detail
    assert isinstance(reply, Ok)
    return reply.count


@example(
    [
        DeclareQueue("a", ()),
        SetPolicy("a", "*", 1, (("x-max-length", 5),)),
        DeclareExchange("b", "fanout", ()),
        Bind("b", "queue", "a", ""),
    ],
    [DeleteExchange("b", if_unused=True), RemoveQueue("a"), RemovePolicy("a"), DeleteExchange("b")],
)
@given(
    st.lists(COMMANDS, max_size=12),
    # the copy gives out other ids
    st.lists(COMMANDS.filter(lambda each: not isinstance(each, Unbind)), max_size=12),
)
def test_a_rehearsal_gets_the_replies_of_the_catalog(
    before: list[CatalogCommand], after: list[CatalogCommand]
) -> None:
    catalog = Catalog()
    for command in before:
        catalog.apply(command)
    copy, state = copied(catalog.machine), catalog.machine.snapshot()
    rehearsed = [meaning(copy.rehearse(command, CURRENT)) for command in after]
    assert catalog.machine.snapshot() == state, "the catalog itself has not changed"
    assert rehearsed == [meaning(catalog.apply(command)) for command in after]
