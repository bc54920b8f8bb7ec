"""What a leader says of its group's configurations is true, however its proposals are delayed or lost, however far its
catalog lags behind, and whoever follows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fifo import commands as c
from fifo.group_machine import GroupMachine
from fifo.versions import CURRENT
from quorum.catalog.commands import (
    CatalogCommand,
    DeclareQueue,
    RemoveExpired,
    RemovePolicy,
    RemoveQueue,
    SetPolicy,
)
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.policies import Effective
from quorum.catalog.queues import CatalogQueue
from quorum.node.replica import policy_reconciler
from quorum.node.replica.reconciler import Reconciler
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.schedule import NEVER
from quorum.node.sessions.conversation import RESEND_AFTER_MS
from quorum.node.wire.operations import decode, encode
from support.examples import examples

GROUP = 1
PRODUCER = b"p" * 16


class Scene:
    """One group and the catalog's entries, of which its leader knows the first. What it proposes is `on_its_way`."""

    def __init__(self) -> None:
        self.entries: list[c.Operation] = []
        self.machine = GroupMachine(SimpleNamespace(columns=None))  # type: ignore[arg-type]
        self.on_its_way: list[c.Command] = []
        self.index = self.now_ms = self.mark = self.term = 0
        self.wished: dict[int, tuple[int, dict[int, c.QueueConfig]]] = {}
        """revision -> (the first queue id after it, what it made of each queue)"""
        self.whole = self.catalog = CatalogMachine((GROUP,))
        self.enter(c.RegisterProducer(c.Address(1, 1, 1)))
        self.lead(0)

    # ---- the catalog

    def enter(self, command: c.Command | CatalogCommand) -> None:
        operation = c.Operation(0, c.Origin(PRODUCER, 1, len(self.entries)), command)  # type: ignore[arg-type]
        self.entries.append(operation)
        whole = self.whole = self.known(len(self.entries))
        if whole.revision not in self.wished:
            configs = {each.id: whole.effective(each).config for each in whole.queues()}
            self.wished[whole.revision] = (whole.next_queue_id, configs)

    def known(self, count: int) -> CatalogMachine:
        made = CatalogMachine((GROUP,))
        for index, operation in enumerate(self.entries[:count], 1):
            made.apply(c.Meta(index, 1, 1_000, CURRENT), (operation,))
        return made

    def learn(self, count: int) -> None:
        self.learned = min(self.learned + count, len(self.entries))
        self.catalog = self.known(self.learned)

    # ---- the group's leader

    def lead(self, behind: int) -> None:
        """A new one, whose catalog lags behind by so many entries. What the old one had under way is lost."""
        self.on_its_way.clear()
        self.term += 1
        self.learned = max(len(self.entries) - behind, 0)
        self.learn(0)
        replica: Any = SimpleNamespace(
            number=GROUP,
            machine=self.machine,
            raft=SimpleNamespace(is_leader=True, term=self.term),
            leads=True,
            is_behind=False,
            barrier_id=self.mark,
            propose_internal=self.on_its_way.append,
        )
        self.replica = replica
        system: Any = SimpleNamespace(disputed="", raft=SimpleNamespace(is_leader=False))
        self.carrying_out = Reconciler({SYSTEM_GROUP: system, GROUP: replica})

    def turn(self) -> bool:
        return self.carrying_out.turn(self.catalog, self.now_ms)

    def apply(self, count: int) -> None:
        for command in self.on_its_way[:count]:
            del self.on_its_way[0]
            self.index += 1
            sent = decode(memoryview(encode(command, None)), 0)
            self.machine.apply(c.Meta(self.index, 1, 1_000, CURRENT), (sent,))
            if isinstance(command, c.Configured):
                self.mark = self.replica.barrier_id = command.mark
            self.check()

    def check(self) -> None:
        """What `configured` says is so."""
        revision = self.machine.configured
        first_later, configs = self.wished[revision]
        for queue in self.machine.queue_ids():
            present = self.machine.config_of(queue)
            assert present is not None
            later = [
                other[1][queue]
                for number, other in self.wished.items()
                if number > revision and queue in other[1]
            ]
            allowed = [*later, configs[queue]] if queue in configs else later
            if queue < first_later and allowed:  # else it is about to be deleted
                assert present in allowed, f"queue {queue} at revision {revision}: {present}"

    def settle(self) -> None:
        self.learn(len(self.entries))
        for _ in range(200):
            if self.turn():
                break
            self.apply(len(self.on_its_way))
            self.now_ms += RESEND_AFTER_MS + 1
        assert self.turn() and not self.on_its_way
        assert self.machine.configured == self.whole.revision
        wished = {each.id: self.whole.effective(each).config for each in self.whole.queues()}
        assert {queue: self.machine.config_of(queue) for queue in self.machine.queue_ids()} == wished


def policy(number: int, length: int) -> SetPolicy:
    return SetPolicy(f"p{number}", f"q{number}*", 0, (("x-max-length", length),))


STEPS = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 1), st.integers(1, 2)),
    st.tuples(st.just("unset"), st.integers(0, 1)),
    st.tuples(st.just("declare"), st.integers(0, 3)),
    st.tuples(st.just("remove"), st.integers(0, 3)),
    st.tuples(st.just("learn"), st.integers(1, 3)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.just("carry"), st.integers(1, 9)),
    st.tuples(st.just("carry"), st.integers(5, 9)),
    st.tuples(st.just("apply"), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.just(0)),
    st.tuples(st.just("lead"), st.integers(0, 3)),
)


@settings(max_examples=examples(300))
@given(st.lists(STEPS, min_size=10, max_size=40), st.sampled_from((1, policy_reconciler.TURN_WORK)))
def test_what_the_log_says_is_configured_is(steps: list[tuple[Any, ...]], work: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_reconciler, "TURN_WORK", work)
        scene = Scene()
        for what, number, *more in steps:
            if what == "set":
                scene.enter(policy(number, more[0]))
            elif what == "unset":
                scene.enter(RemovePolicy(f"p{number}"))
            elif what == "declare":
                scene.enter(DeclareQueue(f"q{number % 2}-{number}", ()))
            elif what == "remove":
                scene.enter(RemoveQueue(f"q{number % 2}-{number}"))
            elif what == "learn":
                scene.learn(number)
            elif what == "turn":
                for _ in range(number):
                    scene.turn()
            elif what == "carry":
                scene.learn(number)
                for _ in range(number):
                    scene.turn()
                    scene.apply(len(scene.on_its_way))
            elif what == "apply":
                scene.apply(number)
            elif what == "lose":  # its log is full
                del scene.on_its_way[number:]
            elif what == "wait":
                scene.now_ms += RESEND_AFTER_MS + 1
            else:
                scene.lead(number)
        scene.settle()


def test_a_leader_whose_catalog_is_older_than_what_is_configured_proposes_nothing() -> None:
    scene = Scene()
    scene.enter(DeclareQueue("q0", ()))
    for length in (5, 7):
        scene.enter(policy(0, length))
        scene.settle()
    scene.lead(1)
    assert not scene.turn()
    assert scene.on_its_way == []
    scene.learn(1)
    assert scene.turn()


@pytest.mark.parametrize("lag", [{"leads": False}, {"is_behind": True}])
def test_a_leader_that_has_not_applied_its_log_proposes_nothing_and_holds_no_other_group_up(
    lag: dict[str, bool],
) -> None:
    scene = Scene()
    scene.enter(DeclareQueue("q0", ()))
    scene.enter(policy(0, 5))
    scene.learn(2)
    usual = dict(scene.replica.__dict__)
    said: list[c.Command] = []
    other_machine = GroupMachine(SimpleNamespace(columns=None))  # type: ignore[arg-type]
    other: Any = SimpleNamespace(
        **{**usual, "number": 2, "machine": other_machine, "propose_internal": said.append}
    )
    scene.carrying_out._replicas = {**scene.carrying_out._replicas, 2: other}
    scene.replica.__dict__.update(lag)
    assert not scene.turn()
    assert scene.on_its_way == []
    assert [type(command) for command in said] == [c.Configured]
    scene.replica.__dict__.update(usual)
    scene.turn()
    assert [type(command) for command in scene.on_its_way] == [c.CreateQueue, c.Configured]


def test_nobody_reconciles_a_group_that_it_does_not_lead_or_by_a_catalog_in_doubt() -> None:
    scene = Scene()
    scene.enter(DeclareQueue("q0", ()))
    scene.learn(1)
    scene.replica.raft.is_leader = False
    assert scene.turn()
    scene.replica.raft.is_leader = True
    scene.carrying_out._replicas[SYSTEM_GROUP].disputed = "other members have another state"
    assert not scene.turn()
    assert scene.on_its_way == []


def test_a_removed_queue_is_deleted_until_it_is_gone_and_one_that_is_only_missing_stays() -> None:
    scene = Scene()
    scene.enter(DeclareQueue("q0", ()))
    scene.settle()
    [queue] = scene.machine.queue_ids()
    scene.on_its_way.append(c.CreateQueue(99, c.QueueConfig("unknown")))
    scene.apply(1)
    assert scene.turn()
    assert scene.on_its_way == []
    scene.enter(RemoveQueue("q0"))
    scene.learn(1)
    for _ in range(2):  # the first proposal is lost
        scene.on_its_way.clear()
        assert not scene.turn()
        assert scene.on_its_way == [c.DeleteQueue(queue)]
    scene.apply(1)
    assert scene.turn()
    assert scene.machine.queue_ids() == [99]
    scene.machine.expired[queue] = None
    assert not scene.turn()
    assert scene.on_its_way == [c.DeleteQueue(queue)], "so that its group forgets it"


def test_a_queue_that_its_group_has_deleted_is_not_created_again() -> None:
    scene = Scene()
    scene.enter(DeclareQueue("q0", ()))
    scene.settle()
    [queue] = scene.machine.queue_ids()
    scene.on_its_way.append(c.DeleteQueue(queue))
    scene.apply(1)
    assert scene.turn()
    assert scene.on_its_way == []


@pytest.mark.parametrize("doubt", [{}, {"wants_state": True}, {"disputed": "others have another state"}])
def test_expired_queues_leave_the_catalog_unless_it_is_in_doubt_what_has_expired(
    doubt: dict[str, Any],
) -> None:
    scene = Scene()
    scene.enter(DeclareQueue("q0", ()))
    scene.settle()
    [queue] = scene.machine.queue_ids()
    said: list[CatalogCommand] = []
    scene.replica.__dict__.update({"wants_state": False, "disputed": "", **doubt})
    system: Any = SimpleNamespace(
        machine=scene.catalog,
        disputed="",
        leads=True,
        raft=SimpleNamespace(is_leader=True),
        propose_internal=said.append,
    )
    scene.carrying_out._replicas = {SYSTEM_GROUP: system, GROUP: scene.replica}
    assert scene.turn()
    scene.machine.expired[queue] = None
    assert not scene.turn()
    assert said == ([] if doubt else [RemoveExpired(queue)])
    said.clear()
    system.leads = False
    assert not scene.turn()
    assert said == [], "its catalog may lag behind"
    system.leads = True
    scene.enter(RemoveQueue("q0"))
    scene.learn(1)
    scene.turn()
    assert said == [], "the catalog has removed it"


def more_than_a_turn(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A policy is new for three queues, and a turn carries it out for one."""
    monkeypatch.setattr(policy_reconciler, "TURN_WORK", 1)
    scene = Scene()
    for number in range(3):
        scene.enter(DeclareQueue(f"q0-{number}", ()))
    scene.settle()
    scene.enter(policy(0, 5))
    scene.learn(1)
    return scene


def test_work_that_a_turn_has_not_done_goes_on_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = more_than_a_turn(monkeypatch)
    reconciler = scene.carrying_out
    reconciler.run(scene.catalog, 0)
    assert (reconciler.is_wanted, reconciler.due.next_ms) == (True, NEVER), "its mark is not applied yet"
    scene.apply(1)
    reconciler.run(scene.catalog, 0)
    assert (reconciler.is_wanted, reconciler.due.next_ms) == (True, 0)
    scene.settle()
    reconciler.run(scene.catalog, 0)
    assert not reconciler.is_wanted and not reconciler.goes_on_at_once


def test_a_round_judges_only_when_all_before_it_is_known() -> None:
    scene = Scene()
    scene.enter(DeclareQueue("q0", ()))
    scene.settle()
    scene.enter(policy(0, 5))
    scene.learn(1)
    scene.turn()
    scene.apply(1)
    scene.turn()
    [update, mark] = scene.on_its_way
    assert isinstance(update, c.UpdateConfig) and isinstance(mark, c.Configured)
    scene.enter(RemovePolicy("p0"))  # the queue is as it should be, but for what is on its way
    scene.learn(1)
    for _ in range(5):
        scene.turn()
    assert all(each.revision == 0 for each in scene.on_its_way if isinstance(each, c.Configured))
    scene.settle()
    assert scene.machine.configured == 2


def test_a_round_of_which_something_was_lost_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = more_than_a_turn(monkeypatch)
    scene.turn()
    scene.apply(1)
    scene.turn()
    assert [type(each) for each in scene.on_its_way] == [c.UpdateConfig]
    scene.on_its_way.clear()  # the log was full
    for _ in range(2):
        scene.turn()
    scene.apply(3)
    assert scene.machine.configured == 0
    scene.settle()


def test_it_ends_where_every_proposal_takes_longer_than_one_is_waited_for() -> None:
    scene = Scene()
    scene.enter(DeclareQueue("q0", ()))
    scene.settle()
    scene.enter(policy(0, 5))
    scene.learn(1)
    due: list[int] = []
    while scene.machine.configured < 1 and scene.now_ms < 100 * RESEND_AFTER_MS:
        before = len(scene.on_its_way)
        scene.turn()
        due += [scene.now_ms + 3 * RESEND_AFTER_MS // 2] * (len(scene.on_its_way) - before)
        while due and due[0] <= scene.now_ms:
            del due[0]
            scene.apply(1)
        scene.now_ms += 100
    assert scene.machine.configured == 1


@pytest.mark.parametrize(("pattern", "most"), [("x{}", 20), ("*" + "q*" * 100 + "x{}", 1)])
def test_a_turn_ends_after_fewer_queues_if_patterns_have_many_pieces(
    pattern: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    for number in range(60):
        scene.enter(DeclareQueue(f"q{number}", ()))
    for number in range(30 if most > 1 else 80):
        scene.enter(SetPolicy(f"p{number}", pattern.format(number), 0, (("x-max-length", 5),)))
    looked: list[int] = []
    effective = CatalogMachine.effective

    def counted(catalog: CatalogMachine, queue: CatalogQueue) -> Effective:
        looked[-1] += 1
        return effective(catalog, queue)

    scene.learn(len(scene.entries))
    for _ in range(3):  # the queues are created, and the mark of a round is applied
        scene.turn()
        scene.apply(len(scene.on_its_way))
    monkeypatch.setattr(CatalogMachine, "effective", counted)
    for _ in range(4):
        looked.append(0)
        scene.turn()
        scene.apply(len(scene.on_its_way))
    assert most // 2 < max(looked) <= most
