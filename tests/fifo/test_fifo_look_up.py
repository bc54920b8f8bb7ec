"""Looking up arrivals: a few messages one by one, and many together, with the same outcome."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fifo.consumers.consumer import SelectorGroup
from fifo.consumers.filter_fields import Fields
from fifo.limits import PRODUCTION
from fifo.messages.block_store import BlockMemory, BlockStore
from fifo.messages.blocks import Block
from fifo.messages.pages import MemoryPages
from quorum_selectors import canonical
from quorum_selectors.columns import decode, encode
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Expression, FieldValue
from quorum_selectors.predicates import PredicateIndex
from support.examples import examples
from support.selectors.expressions import EXPRESSIONS, MESSAGES, normalized


class NoLog:
    def columns(self, index: int, operation: int) -> bytes:
        raise AssertionError("the fields are in memory")


@settings(max_examples=examples(300))
@given(
    st.lists(EXPRESSIONS.map(normalized), min_size=1, max_size=8),
    st.lists(MESSAGES, min_size=1, max_size=12),
    st.integers(0, 2000),
    st.integers(0, (1 << 12) - 1),
    st.sampled_from([0, 1, 4, 16]),
)
def test_few_messages_are_looked_up_like_many(
    expressions: list[Expression], rows: list[dict[str, FieldValue]], first: int, wanted: int, few: int
) -> None:
    limits = replace(PRODUCTION, few_messages=few)
    fields = Fields(NoLog(), BlockStore(1, BlockMemory(MemoryPages(), limits)))
    store = BlockStore(1, BlockMemory(MemoryPages(), limits))
    store.add(Block(0, limits.block_size))
    fields.arrived(store, first, decode(encode(rows), len(rows)), [(0, len(rows))])
    index: PredicateIndex[bytes] = PredicateIndex()
    groups: dict[bytes, SelectorGroup] = {}
    trees = {canonical.encode(expression): expression for expression in expressions}
    for number, (selector, tree) in enumerate(trees.items()):
        index.add(selector, tree)
        if number != 1:  # one that is in the index and does not follow
            groups[selector] = SelectorGroup(selector)
    members = (wanted & ((1 << len(rows)) - 1)) << first
    found: dict[bytes, int] = {}
    for selector, chosen in fields.look_up(store.get(0), index, groups, members):
        assert chosen
        found[selector] = found.get(selector, 0) | chosen
    expected = {}
    for selector in groups:
        chosen = 0
        for place, row in enumerate(rows):
            if evaluate(trees[selector], row) is True:
                chosen |= 1 << (first + place)
        if chosen & members:
            expected[selector] = chosen & members
    assert found == expected
