"""The simulation's rule of consumer timeouts (tests/simulator/rules): when a message may be with another consumer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fifo.commands import Address
from fifo.effects import Deliver, Run
from quorum.client.messages.batch import encode_batch
from quorum.node.sessions.session_table import SessionTable
from quorum.v1 import queue_pb2 as wire
from simulator.rules.rules import Broken, Rules

TIMEOUT_MS = 2_000


@pytest.fixture
def world() -> Any:
    machine = SimpleNamespace(index=1, queues={})
    return SimpleNamespace(
        now_ms=0,
        ledger=SimpleNamespace(delivery_limit=lambda queue: -1, failures_of=lambda key: 0),
        single_active=(),
        grouped=(),
        consumer_timeouts={"q": TIMEOUT_MS},
        members=lambda: [SimpleNamespace(member=SimpleNamespace(queue_machine=lambda group: machine))],
    )


@pytest.fixture
def rules(world: Any) -> Any:
    rules = Rules(world)
    for sequence in (1, 2):
        rules.sent[body(sequence)] = None
    with rules.hand_outs.watching():
        yield rules


def body(sequence: int) -> bytes:
    return b"1:%d:" % sequence


def call() -> Any:
    """A session whose node has a lease."""
    member = SimpleNamespace(catalog=SimpleNamespace(queue=lambda name: SimpleNamespace(id=1, group=1)))
    node = SimpleNamespace(name="n", member=member, may_deliver=lambda group: True)
    connection = SimpleNamespace(client=SimpleNamespace(name="c"), client_is_there=False)
    return SimpleNamespace(connection=connection, node=node, is_used=True, held={}, queues={"t": "q"})


def give_out(attach: int, tag: int) -> None:
    """What each member does when it applies an entry that gives a message out."""
    effect = Deliver(Address(9, 1, 1), 1, "t", attach, tag, (Run(tag, 1, 1, 0, 0),), 0, (), False)
    SessionTable.effect(SimpleNamespace(me=1), 1, effect)  # type: ignore[arg-type]


def handed(rules: Rules, to: Any, attach: int, *sequences: int) -> None:
    rules.answered(
        to,
        wire.SessionResponse(
            delivery=wire.Delivery(
                consumer_tag="t",
                attach=attach,
                first_tag=sequences[0],
                count=len(sequences),
                batch=encode_batch([body(each) for each in sequences]).data,
                sequences=[wire.Range(first=sequences[0], last=sequences[-1])],
            )
        ),
    )


def test_the_timeout_takes_all_that_an_overdue_consumer_holds(world: Any, rules: Rules) -> None:
    slow = call()
    for at_ms, sequence in ((0, 1), (1_500, 2)):
        world.now_ms = at_ms
        give_out(7, sequence)
        handed(rules, slow, 7, sequence)
    world.now_ms = TIMEOUT_MS
    handed(rules, call(), 8, 1, 2)


def test_the_time_counts_from_the_queue_and_not_from_the_node(world: Any, rules: Rules) -> None:
    give_out(7, 1)
    world.now_ms = TIMEOUT_MS - 100
    handed(rules, slow := call(), 7, 1)
    assert slow.held
    world.now_ms = TIMEOUT_MS
    handed(rules, call(), 8, 1)


def test_the_time_counts_from_the_leader_and_not_from_the_first_member_that_applies(
    world: Any, rules: Rules
) -> None:
    """No majority ran in between: seed 700093."""
    rules.hand_outs.wrote(1, 5_000)
    world.now_ms = TIMEOUT_MS - 10
    rules.hand_outs.applies(5_000)
    give_out(7, 1)
    handed(rules, slow := call(), 7, 1)
    assert slow.held
    world.now_ms = TIMEOUT_MS
    handed(rules, call(), 8, 1)


def test_a_message_that_is_held_for_less_is_with_one_consumer(world: Any, rules: Rules) -> None:
    give_out(7, 1)
    handed(rules, call(), 7, 1)
    world.now_ms = TIMEOUT_MS // 2
    with pytest.raises(Broken, match="while 't' at n holds it"):
        handed(rules, call(), 8, 1)
