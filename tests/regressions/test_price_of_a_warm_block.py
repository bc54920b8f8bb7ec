"""What reading a block's fields costs is kept for what is there, and counted again when that has changed.

What a selector demands of a message is found once, both for its price and for the index.
"""

from __future__ import annotations

import pytest

from fifo.commands import Settle
from fifo.consumers import read_costs
from fifo.consumers import selector as selector_module
from fifo.limits import Limits
from fifo.messages.blocks import Block
from fifo.queue_machine import QueueMachine
from quorum.bench.selectors_alone import SPARSE_CREDIT, encoded, fill
from quorum.bench.selectors_fields import UNIQUE_SELECTOR, Batches, selector_of
from quorum.bench.selectors_machine import QUEUE, LocalQueue
from quorum_selectors import predicates
from quorum_selectors.expression import Expression


def require_price(machine: QueueMachine) -> None:
    """The kept price of the first block is the price of what is in it."""
    block = machine.messages.blocks.get(0)
    expected = read_costs.cost_of(block, block.ready | block.checked_out, machine.limits)
    assert [read_costs.block_cost(machine.messages.blocks, 0) for _ in range(2)] == [expected, expected]


def test_the_kept_price_of_a_block_is_the_price_of_what_is_there() -> None:
    queue = LocalQueue()
    machine = queue.machine.queues[QUEUE]
    batches = Batches(40, 400, 10)
    fill(queue, batches, 200)
    require_price(machine)
    fill(queue, batches, 400, start=5)
    require_price(machine)
    attaches, _ = queue.attach([("sparse", encoded(UNIQUE_SELECTOR))], SPARSE_CREDIT)
    queue.go_on()
    require_price(machine)
    queue.do([Settle(QUEUE, "sparse", attaches[0], ((1, 10),))])
    assert machine.messages.blocks.get(0).live == 390
    require_price(machine)


def test_a_block_is_priced_once_while_nothing_arrives_or_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = LocalQueue()
    fill(queue, Batches(40, 400, 10), 400)
    counted: list[int] = []
    cost_of = read_costs.cost_of

    def noting(block: Block, members: int, limits: Limits) -> int:
        counted.append(members)
        return cost_of(block, members, limits)

    monkeypatch.setattr(read_costs, "cost_of", noting)
    for _ in range(3):
        queue.attach([("sparse", encoded(UNIQUE_SELECTOR))], SPARSE_CREDIT)
        queue.go_on()
        queue.cancel("sparse")
    assert len(counted) == 1


def test_what_a_selector_demands_is_found_once_for_each_attach(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Expression] = []
    requirement = predicates.requirement

    def noting(node: Expression) -> predicates.Requirement | None:
        found.append(node)
        return requirement(node)

    for module in (selector_module, predicates):
        monkeypatch.setattr(module, "requirement", noting)
    selector_module.decoded.cache_clear()
    queue = LocalQueue()
    queue.attach([(f"consumer-{number}", encoded(selector_of("equal", number))) for number in range(20)], 10)
    assert len(found) == 20
