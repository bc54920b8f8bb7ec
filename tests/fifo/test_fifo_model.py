"""The machine against a list: FifoAgainstModel (support/fifo/against_model.py), alone and with a preference for one
feature or another. And broken machines, which it has to notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from fifo import commands as c
from fifo import embargo
from fifo.budgets import Entry
from fifo.consumers.consumer import CheckedOut, Consumer
from fifo.decisions import Decision, Decisions
from fifo.effects import Applied, Refused
from fifo.embargo import Embargo, EmbargoedBatch, EmbargoedSettlement, Key
from fifo.limits import SMALL
from fifo.messages import delays, purging
from fifo.messages.dead_letters import DeadLetters
from fifo.messages.messages import Messages
from fifo.persistence import invariants, snapshot
from fifo.producers import Producer
from fifo.queue_transactions import QueueTransactions
from fifo.transactions import Transactions
from support.examples import examples
from support.fifo.against_model import FifoAgainstModel
from support.fifo.model.records import ModelConsumer
from support.fifo.steps import (
    ADMIN,
    ANSWER,
    ATTACH,
    CONSUME,
    PASSED_MS,
    PLAIN,
    PRODUCERS,
    PUBLISH,
    QUEUES,
    ROUTED,
    SESSIONS,
    SINGLES,
    STAGE,
    STAGED,
    TRANSACTION,
)
from support.fifo.world import of_keys, producer, selector


class StagingAgainstModel(FifoAgainstModel):
    """The same with a preference for staging, and with silences in which parts expire."""

    @rule(
        entry=st.lists(STAGE | STAGE | STAGED | CONSUME | PUBLISH, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def staging(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    @rule(step=STAGE, order=st.permutations(range(4)), passed_ms=PASSED_MS)
    def whole(self, step: dict[str, Any], order: list[int], passed_ms: int) -> None:
        """More parts of the batch that is under way, then all of it."""
        for part in order[:2]:
            self.entry([step | {"chunk": 0, "batch": 1, "part": part, "publish": False}], passed_ms)
        self.entry([step | {"what": "publish_staged", "batch": 1, "order": order, "wrong": ""}], passed_ms)


FifoAgainstModel.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestFifoAgainstModel = FifoAgainstModel.TestCase

StagingAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestStagingAgainstModel = StagingAgainstModel.TestCase


class RoutedAgainstModel(FifoAgainstModel):
    """The same with a preference for batches for several queues, which consumers empty and limits fill."""

    @rule(
        entry=st.lists(ROUTED | ROUTED | CONSUME | ANSWER | PUBLISH, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def routed_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)


class ConsumersAgainstModel(FifoAgainstModel):
    """The same with a preference for consumers, also those of a queue with a single active one."""

    @rule(
        entry=st.lists(
            CONSUME.map(lambda step: step | {"text": "", "queue": 4}) | ATTACH | CONSUME | ANSWER | PUBLISH,
            min_size=1,
            max_size=4,
        ),
        passed_ms=PASSED_MS,
    )
    def consuming(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)


ConsumersAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestConsumersAgainstModel = ConsumersAgainstModel.TestCase


class TransactionsAgainstModel(FifoAgainstModel):
    """The same with a preference for transactions."""

    max_length, overflow = 5, "reject_publish"

    @rule(
        entry=st.lists(TRANSACTION | TRANSACTION | CONSUME | ANSWER | PUBLISH, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def transactions_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    @rule(
        steps=st.lists(TRANSACTION, min_size=1, max_size=3),
        who=PRODUCERS,
        queue=QUEUES,
        text=st.sampled_from(("", "", "size > 2")),
        credit=st.sampled_from((0, 3, 30)),
        end=st.sampled_from(("commit", "commit", "rollback", "twice", "")),
        passed_ms=PASSED_MS,
    )
    def whole_transaction(
        self,
        steps: list[dict[str, Any]],
        who: int,
        queue: int,
        text: str,
        credit: int,
        end: str,
        passed_ms: int,
    ) -> None:
        """One session consumes, publishes and settles, in several entries of one transaction."""
        name, world = producer(who), self.world
        text = text if queue not in PLAIN else ""
        self.world.apply(
            [world.batch(name, 3, queue=queue), world.op(name, c.Attach(queue, "a", selector(text), credit))]
        )
        for place, step in enumerate(steps):
            parts = [part | {"queue": queue} if part["what"] != "routed" else part for part in step["parts"]]
            whole = {"who": who, "parts": parts, "wrong": False, "end": "" if place < len(steps) - 1 else end}
            self.entry([step | whole | {"number": "same" if place else "new"}], passed_ms)

    @rule(
        publish=PUBLISH,
        answer=ANSWER,
        session=SESSIONS,
        who=PRODUCERS,
        queue=QUEUES,
        what=st.sampled_from(("session", "session", "old", "overdue", "full", "cancel", "delete")),
    )
    def cut_short(
        self,
        publish: dict[str, Any],
        answer: dict[str, Any],
        session: dict[str, Any],
        who: int,
        queue: int,
        what: str,
    ) -> None:
        """A transaction is open when something ends it; its commit comes after that."""
        name, world = producer(who), self.world
        queue = {"overdue": 2, "full": 3}.get(what, queue)
        world.apply([world.batch(name, 3, queue=queue), world.op(name, c.Attach(queue, "a", b"", 30))])
        parts = [publish | {"queue": queue}, answer | {"queue": queue}]
        if what == "full":
            limited = c.QueueConfig("queue-3", True, (), -1, self.max_length, self.overflow, **self.orders(3))
            world.apply([(None, c.UpdateConfig(3, limited))])
            parts = [
                publish
                | {"queue": queue, "rows": [{}] * 4, "ttls": None, "priorities": (), "dues": (), "keys": ()}
            ] * 2
        step = {"what": "transaction", "who": who, "wrong": False}
        self.entry([step | {"number": "new", "parts": parts, "end": ""}], 0)
        if what == "session":
            self.sessions(session | {"who": who})
        elif what == "old":
            world.wake(SMALL.transaction_ms)
        elif what == "overdue":
            world.wake(SMALL.transaction_ms - 10)
        elif what == "cancel":
            world.do(name, c.Cancel(queue, "a", True))
        elif what == "delete" and queue == 3:
            world.apply([(None, c.DeleteQueue(queue))])
        self.entry([step | {"number": "same", "parts": [], "end": "commit"}], 0)


class DecisionsAgainstModel(TransactionsAgainstModel):
    """Transactions over several groups: this group prepares its part, or decides."""

    @rule(
        steps=st.lists(TRANSACTION, min_size=1, max_size=2),
        who=PRODUCERS,
        queue=QUEUES,
        credit=st.sampled_from((3, 30)),
        between=st.sampled_from(("", "session", "session", "cancel", "attach", "settle", "late", "delete")),
        session=SESSIONS,
        says=st.sampled_from(("commit", "commit", "drop", "drop", "ask")),
        passed_ms=PASSED_MS,
    )
    def prepared(
        self,
        steps: list[dict[str, Any]],
        who: int,
        queue: int,
        credit: int,
        between: str,
        session: dict[str, Any],
        says: str,
        passed_ms: int,
    ) -> None:
        """A part is prepared, something else happens, and then the decision is heard."""
        self.whole_transaction(steps, who, queue, "", credit, "", passed_ms)
        name, world = producer(who), self.world
        number, held = self.numbers.get(name, 1), self.held_by(name, queue)
        settle = c.Settle(queue, "a", self.attach_of(name, queue), ((held, held),))
        world.do(name, c.InTransaction(number, settle))
        world.do(name, c.Prepare(number, 0, 9, 7), passed_ms)
        if between == "session":
            self.sessions(session | {"who": who})
        elif between == "cancel":
            world.do(name, c.Cancel(queue, "a", True))
        elif between == "attach":
            world.do(name, c.Attach(queue, "a", selector("TRUE"), 40))
        elif between == "settle":
            world.do(name, c.Settle(queue, "a", self.attach_of(name, queue), ((1, 99),)))
        elif between == "late":
            world.wake(SMALL.transaction_ms)
        elif between == "delete" and queue == 3:
            world.apply([(None, c.DeleteQueue(queue))])
        else:
            world.apply([world.batch(name, 3, queue=queue)])
        self.entry([{"what": "decision", "who": who, "says": says, "before": 0}], passed_ms)
        world.do(name, c.Settle(queue, "a", self.attach_of(name, queue), ((1, 2),)))

    @rule(
        steps=st.lists(TRANSACTION, min_size=1, max_size=2),
        who=PRODUCERS,
        queue=QUEUES,
        first=st.sampled_from(("", "", "ask")),
        says=st.sampled_from(("ask", "ask", "forget")),
    )
    def decided(self, steps: list[dict[str, Any]], who: int, queue: int, first: str, says: str) -> None:
        """This group decides, or was asked before; then it is asked, and the commit is repeated."""
        name = producer(who)
        self.whole_transaction(steps, who, queue, "", 3, "", 1)
        decision = {"what": "decision", "who": who, "before": 0}
        if first:
            self.entry([decision | {"says": first}], 0)
        number = self.numbers.get(name, 1)
        self.world.do(name, c.Decide(number, 0, 9, (2, 3)))
        self.entry([decision | {"says": says}], 0)
        self.world.do(name, c.Commit(number))

    def consumer(self, name: bytes, queue: int) -> ModelConsumer | None:
        assert self.world.model is not None
        model = self.world.model.queues.get(queue)
        return None if model is None else model.find(name, "a")

    def attach_of(self, name: bytes, queue: int) -> int:
        found = self.consumer(name, queue)
        return 1 if found is None else found.attach

    def held_by(self, name: bytes, queue: int) -> int:
        """The last tag that a consumer holds, 1 if it holds nothing."""
        found = self.consumer(name, queue)
        return 1 if found is None else max(found.checked_out, default=1)


DecisionsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDecisionsAgainstModel = DecisionsAgainstModel.TestCase


TransactionsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestTransactionsAgainstModel = TransactionsAgainstModel.TestCase


RoutedAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestRoutedAgainstModel = RoutedAgainstModel.TestCase


class PrioritiesAgainstModel(FifoAgainstModel):
    """The same with priorities in every queue, and a preference for what is published and handed out."""

    max_priorities: ClassVar = {1: 3, 2: 31, 3: 1, 4: 2}

    @rule(
        entry=st.lists(PUBLISH | CONSUME | ANSWER | ROUTED | SINGLES, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def usual_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)


PrioritiesAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestPrioritiesAgainstModel = PrioritiesAgainstModel.TestCase


class DelaysAgainstModel(FifoAgainstModel):
    """The same with queues that delay what is requeued, and a preference for what is published and requeued."""

    delayed_retry = (10, 25)

    @rule(
        entry=st.lists(
            PUBLISH | SINGLES | ROUTED | CONSUME | ANSWER.map(lambda step: step | {"what": "fail"}) | ANSWER,
            min_size=1,
            max_size=4,
        ),
        passed_ms=PASSED_MS,
    )
    def delaying(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    @rule(who=PRODUCERS, queue=QUEUES, step=ADMIN, passed_ms=PASSED_MS)
    def purged(self, who: int, queue: int, step: dict[str, Any], passed_ms: int) -> None:
        """A purge comes while messages are delayed."""
        name, world = producer(who), self.world
        publish = world.batch(name, 4 + step["behind"], queue=queue, ttl_ms=step["ttl"])
        world.apply([publish, world.op(name, c.Attach(queue, "a", b"", 30))])
        fail = {"what": "fail", "pick": 0, "first": 0, "width": 12, "more": False, "credit": 0}
        world.apply([world.op(name, self.answer(fail | {"queue": queue}, name))])
        self.administration(step | {"what": "purge", "queue": queue}, passed_ms)


DelaysAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDelaysAgainstModel = DelaysAgainstModel.TestCase


class MessageGroupsAgainstModel(FifoAgainstModel):
    """The same with message groups in every queue that can have them."""

    message_groups = (1, 2, 3)

    @rule(
        entry=st.lists(PUBLISH | CONSUME | ANSWER | ROUTED | SINGLES, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def usual_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)


MessageGroupsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestMessageGroupsAgainstModel = MessageGroupsAgainstModel.TestCase


class HeldGroupsAgainstModel(DecisionsAgainstModel):
    """Transactions that are prepared hold message groups, perhaps longer than their consumers are there."""

    message_groups = (1, 2, 3)

    @rule(
        who=PRODUCERS,
        other=PRODUCERS,
        queue=st.sampled_from(message_groups),
        ending=st.sampled_from(("", "session", "cancel")),
        session=SESSIONS,
        says=st.sampled_from(("commit", "drop")),
    )
    def held(self, who: int, other: int, queue: int, ending: str, session: dict[str, Any], says: str) -> None:
        """A group is held by a transaction; the twin is restored, and another consumer wants it."""
        name, world = producer(who), self.world
        twin = world.twin
        assert twin is not None
        world.apply(
            [
                world.batch(name, 3, queue=queue, group_keys=of_keys([1])),
                world.op(name, c.Attach(queue, "a", b"", 30)),
            ]
        )
        number, last = self.numbers.get(name, 0) + 1, self.held_by(name, queue)
        self.numbers[name] = number
        settle = c.Settle(queue, "a", self.attach_of(name, queue), ((last, last),))
        world.do(name, c.InTransaction(number, settle))
        world.do(name, c.Prepare(number, 0, 9, 7))
        world.do(name, c.Settle(queue, "a", self.attach_of(name, queue), ((1, 99),)))
        if ending == "session":
            self.sessions(session | {"who": who})
        elif ending == "cancel":
            world.do(name, c.Cancel(queue, "a", True))
        world.twin = world.restored(snapshot.encode(twin))
        world.do(producer(other), c.Attach(queue, "b", b"", 40))
        world.apply([world.batch(producer(other), 2, queue=queue, group_keys=of_keys([1]))])
        self.entry([{"what": "decision", "who": who, "says": says, "before": 0}], 0)


HeldGroupsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestHeldGroupsAgainstModel = HeldGroupsAgainstModel.TestCase


class DeadLettersAgainstModel(FifoAgainstModel):
    """The same with a preference for messages that die, and for what becomes of them."""

    mortal: ClassVar = (1, 2, 3, 4)
    max_length, overflow = 5, "reject_publish"

    @rule(
        entry=st.lists(
            PUBLISH
            | CONSUME
            | ANSWER.map(lambda step: step | {"what": "discard"})
            | ANSWER.map(lambda step: step | {"what": "fail"}),
            min_size=1,
            max_size=4,
        ),
        passed_ms=PASSED_MS,
    )
    def deaths(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    @rule(
        publish=PUBLISH,
        steps=st.lists(
            st.tuples(
                ADMIN, st.sampled_from(("claim", "claim", "settle_dead", "settle_dead", "purge", "config"))
            ),
            min_size=1,
            max_size=5,
        ),
        queue=QUEUES,
        passed_ms=PASSED_MS,
    )
    def lives(
        self, publish: dict[str, Any], steps: list[tuple[dict[str, Any], str]], queue: int, passed_ms: int
    ) -> None:
        """Messages are published and expire; then they get numbers and are settled."""
        self.entry([publish | {"queue": queue, "ttl": 1, "ttls": None}], passed_ms)
        self.world.wake(10)
        for step, what in steps:
            self.administration(step | {"what": what, "queue": queue}, passed_ms)


DeadLettersAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDeadLettersAgainstModel = DeadLettersAgainstModel.TestCase


class ColdAgainstModel(DelaysAgainstModel, DeadLettersAgainstModel):
    """The same with a twin that goes on from a checkpoint after every entry: all its blocks are cold then, as after a
    restart. Messages are delayed and die."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        world, apply = self.world, self.world.apply

        def cold(operations: Sequence[tuple[c.Origin | None, c.Command]], passed_ms: int = 1) -> Applied:
            assert world.twin is not None
            pages = world.twin.memory.pages
            world.twin = world.resumed(world.checkpointer(world.twin).take().state, pages)
            applied = apply(operations, passed_ms)
            invariants.check(world.twin)
            return applied

        world.apply = cold  # type: ignore[method-assign]


ColdAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestColdAgainstModel = ColdAgainstModel.TestCase


class DeadAndDelayedAgainstModel(DeadLettersAgainstModel):
    """The same with queues that delay what is requeued: delayed messages die, too."""

    delayed_retry = (10, 25)
    overflow = "drop_head"


DeadAndDelayedAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDeadAndDelayedAgainstModel = DeadAndDelayedAgainstModel.TestCase


class DeadInGroupsAgainstModel(DeadLettersAgainstModel):
    """The same with message groups: what is dead holds up nobody."""

    message_groups = (1, 2, 3)


DeadInGroupsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDeadInGroupsAgainstModel = DeadInGroupsAgainstModel.TestCase


# ---- broken machines


def shared(self: CheckedOut, ranges: Sequence[tuple[int, int]]) -> CheckedOut:
    """Other settlements may take what a transaction settles."""
    found = take(self, ranges)
    self.take_back(found)
    return found


def settled_by_rollback(self: QueueTransactions, entry: Entry, key: Key) -> None:
    """A rollback keeps the settlements."""
    for part in self.embargo.parts[key]:
        if isinstance(part, EmbargoedSettlement):
            self._messages.settle(part.held.ranges())
            part.held.remove_all()
    drop(self, entry, key)


def returned_by_rollback(self: QueueTransactions, entry: Entry, key: Key) -> None:
    """A rollback keeps the publishes."""
    for part in self.embargo.parts[key]:
        if isinstance(part, EmbargoedBatch):
            part.place(self._messages, entry)
    drop(self, entry, key)


def outcome_forgotten(self: Transactions, entry: Entry, producer: Producer, command: c.Commit) -> Any:
    """A repeated commit does not hear its outcome."""
    reply = commit(self, entry, producer, command)
    producer.committed.forget_below(command.tx + 1)
    return reply


def begun_again(self: Transactions, producer: Producer, number: int) -> Refused | None:
    """What comes late for a transaction begins it again."""
    refused = refuse_begin(self, producer, number)
    return None if refused is not None and refused.reason == "rolled_back" else refused


def unlimited(self: Transactions, *_: Any) -> None:
    """A transaction may be of any size."""


def aged_under_embargo(self: EmbargoedBatch, messages: Messages, entry: Entry) -> None:
    """Times to live begin before the commit."""
    place(self, messages, Entry(entry.index, entry.now_ms - 1, entry.version, entry.limits))


def backwards(self: QueueTransactions, entry: Entry, key: Key) -> list[str]:
    """The parts of a transaction count in another order."""
    self.embargo.parts[key].reverse()
    return commit_queue(self, entry, key)


def of_no_size(self: Embargo, key: Any) -> tuple[int, int]:
    """The limits of queues do not count what a transaction publishes."""
    return 0, 0


def of_one_priority(priorities: bytes, first: int) -> bytes:
    """Messages of a transaction lose their priorities."""
    return b""


def nothing(self: Transactions, *_: Any) -> None:
    """In the place of a method that ends or changes a transaction: it does nothing."""


def unreserved(self: Messages, count: int, size_bytes: int) -> None:
    """Queues keep no room for what is prepared."""


def never_released(self: QueueTransactions, entry: Entry, key: Key, part: EmbargoedSettlement) -> list[str]:
    """Consumers count for ever what a transaction has settled."""
    return []


def never_given_back(self: Consumer, attach: int, held: CheckedOut) -> bool:
    """A part that is dropped requeues its messages always."""
    return False


def registered_early(self: Decisions, name: bytes) -> None:
    """A later session begins while a part of the last one waits."""


def undecided(self: Decisions, decision: Decision) -> None:
    """A group forgets at once what it has decided."""


take = CheckedOut.take


def ended_early(messages: Messages, entry: Entry) -> None:
    """Delayed messages are ready before their time."""
    end_delays(messages, Entry(entry.index, entry.now_ms + 20, entry.version, entry.limits))


def not_purged(*_: Any) -> None:
    """A purge leaves delayed messages."""


drop, commit, refuse_begin = (
    QueueTransactions.drop,
    Transactions.commit,
    Transactions._refuse_begin,
)
place, commit_queue = EmbargoedBatch.place, QueueTransactions.commit
end_delays = delays.end_delays

BROKEN: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "others settle what it settles": (CheckedOut, "take", shared),
    "rollback keeps settlements": (QueueTransactions, "drop", settled_by_rollback),
    "rollback keeps publishes": (QueueTransactions, "drop", returned_by_rollback),
    "outcomes are forgotten": (Transactions, "commit", outcome_forgotten),
    "late commands begin again": (Transactions, "_refuse_begin", begun_again),
    "no limits": (Transactions, "_refuse_more", unlimited),
    "time to live from the publish": (EmbargoedBatch, "place", aged_under_embargo),
    "another order": (QueueTransactions, "commit", backwards),
    "never too old": (Transactions, "end_overdue", nothing),
    "lost sessions keep them": (Transactions, "end_all", nothing),
    "overdue consumers keep them": (Transactions, "consumers_time_out", nothing),
    "limits of queues are not judged": (Embargo, "published", of_no_size),
    "priorities are lost": (embargo, "of_each", of_one_priority),
}
BROKEN_DECISIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "no room is kept for what is prepared": (Messages, "reserve", unreserved),
    "consumers keep what is prepared": (QueueTransactions, "_release", never_released),
    "nothing prepared is given back": (Consumer, "may_have_back", never_given_back),
    "a later session does not wait": (Decisions, "refuse_register", registered_early),
    "decisions are forgotten": (Decisions, "add_decision", undecided),
    "who asks ends nothing": (Transactions, "end", nothing),
}
BROKEN_DELAYS: dict[str, tuple[Any, str, Any]] = {
    "delays end early": (delays, "end_delays", ended_early),
    "delayed ones are not counted": (Messages, "waiting_count", property(lambda self: self.ready_count)),
    "purge leaves delayed ones": (purging, "_purge_delayed", not_purged),
}
"""Of which the machine with delays is to notice each."""
take_claims, purge_ready_and_dead = DeadLetters.take_claims, purging._purge_ready_and_dead


def one_too_many(self: DeadLetters, to: int) -> Any:
    """A settlement takes one message more than the target has confirmed."""
    return take_claims(self, to + 1)


def purged_alive(messages: Messages, *arguments: Any, dead_only: bool) -> None:
    """A purge takes no dead message."""
    dead, messages.dead = messages.dead, DeadLetters(messages.blocks, messages.limits)
    try:
        if not dead_only:
            purge_ready_and_dead(messages, *arguments, dead_only=False)
    finally:
        messages.dead = dead


BROKEN_DEAD: dict[str, tuple[Any, str, Any]] = {
    "nothing dies": (Messages, "has_dead_letters", property(lambda messages: False)),
    "numbers are given twice": (DeadLetters, "_claimed", lambda dead: {}),
    "one too many is settled": (DeadLetters, "take_claims", one_too_many),
    "a purge keeps them": (purging, "_purge_ready_and_dead", purged_alive),
}
MOST_EXAMPLES = 1_000


@pytest.mark.parametrize(
    ("model", "owner", "name", "broken"),
    [(TransactionsAgainstModel, *each) for each in BROKEN.values()]
    + [(DecisionsAgainstModel, *each) for each in BROKEN_DECISIONS.values()]
    + [(DelaysAgainstModel, *each) for each in BROKEN_DELAYS.values()]
    + [(DeadLettersAgainstModel, *each) for each in BROKEN_DEAD.values()],
    ids=[*BROKEN, *BROKEN_DECISIONS, *BROKEN_DELAYS, *BROKEN_DEAD],
)
def test_the_model_notices_a_broken_machine(
    model: type[FifoAgainstModel],
    owner: Any,
    name: str,
    broken: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the rules that a model adds to those of FifoAgainstModel: they lead to where the fault is."""
    monkeypatch.setattr(owner, name, broken)
    monkeypatch.setattr(model, "is_directed", True)
    only = settings(
        model.TestCase.settings,
        max_examples=MOST_EXAMPLES,
        stateful_step_count=22,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
    )
    with pytest.raises(Exception) as caught:
        run_state_machine_as_test(model, settings=only)  # type: ignore[no-untyped-call]
    assert not isinstance(caught.value, HypothesisException), "that would be an error of the test"
