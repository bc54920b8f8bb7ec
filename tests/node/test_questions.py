"""Questions about now (quorum/node/reads/questions.py, read_indexes.py): answered by ReadIndex, without a log entry."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from fifo import commands as c
from fifo.results import QueueInfo
from quorum.catalog.commands import DeclareQueue
from quorum.node import events as ev
from quorum.node.errors import PeerFrameError
from quorum.node.member import Member
from quorum.node.queries import CheckHealth, QueueCounts, ReadBarrier
from quorum.node.reads import questions
from quorum.node.reads.read_indexes import (
    KIND_READ,
    KIND_READ_INDEX,
    REFUSED_MS,
    REPEAT_MS,
    ReadIndex,
    ReadIndexes,
    ReadRequest,
)
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.replica.replicas import KIND_RAFT
from quorum.node.wire.frames import Frame
from support.members.cluster import Cluster, Session

BARRIER = ReadBarrier((SYSTEM_GROUP,))


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.ready()
    return made


def counted(cluster: Cluster, kind: int) -> list[Frame]:
    """The frames of a kind, as they are sent from now on."""
    found: list[Frame] = []
    carry = cluster.carry

    def watch(sender: str, to: str, what: int, data: bytes) -> None:
        if what == kind:
            found.append(Frame(sender, what, data))
        carry(sender, to, what, data)

    cluster.carry = watch  # type: ignore[method-assign]
    return found


def follower(cluster: Cluster, group: int) -> str:
    return next(name for name in cluster.names if name != cluster.leader(group))


def last_entries(cluster: Cluster) -> list[list[int]]:
    return [[replica.raft.last_index for replica in m.replicas.values()] for m in cluster.members.values()]


def test_every_member_shows_what_was_confirmed_elsewhere_and_writes_nothing(cluster: Cluster) -> None:
    group, queue = cluster.declare("ledger")
    writer = Session(cluster, str(cluster.leader(group)))
    for number in range(1, 20):
        writer.publish(group, queue, b"x")
        while len(writer.confirmed()) < number:
            cluster.run(5)
        entries = [member.replicas[group].raft.last_index for member in cluster.members.values()]
        tokens = [cluster.ask_now(name, QueueCounts(group, queue)) for name in cluster.names]
        for token in tokens:
            info = cluster.answer(token)
            assert isinstance(info, QueueInfo)
            assert info.total == number
        assert max(entries) == max(m.replicas[group].raft.last_index for m in cluster.members.values())


def test_a_member_that_lags_answers_once_it_has_applied_what_was_answered_before(cluster: Cluster) -> None:
    name = follower(cluster, SYSTEM_GROUP)
    answers = counted(cluster, KIND_READ_INDEX)
    carry = cluster.carry
    is_lagging = True

    def lag(sender: str, to: str, kind: int, data: bytes) -> None:
        if not (is_lagging and kind == KIND_RAFT and to == name):
            carry(sender, to, kind, data)

    cluster.carry = lag  # type: ignore[method-assign]
    cluster.administer(DeclareQueue("new", ()), at=cluster.leader(SYSTEM_GROUP))
    token = cluster.ask_now(name, BARRIER)
    cluster.run(50)
    assert answers, "the read index is known"
    assert token not in cluster.told, "the entry is not here"
    is_lagging = False
    cluster.answer(token)
    assert cluster.members[name].catalog.queue("new") is not None


def test_a_leader_that_was_cut_off_answers_nothing_and_then_from_its_successors_state(
    cluster: Cluster,
) -> None:
    old = str(cluster.leader(SYSTEM_GROUP))
    cluster.isolate(old)
    token = cluster.ask_now(old, BARRIER)
    rest = [name for name in cluster.names if name != old]
    cluster.until(lambda: cluster.leader(SYSTEM_GROUP) in rest, "another member leads")
    cluster.administer(DeclareQueue("new", ()), at=cluster.leader(SYSTEM_GROUP))
    assert token not in cluster.told
    cluster.heal()
    cluster.answer(token)
    assert cluster.members[old].catalog.queue("new") is not None


def test_a_request_goes_to_the_next_leader(cluster: Cluster) -> None:
    old, name = str(cluster.leader(SYSTEM_GROUP)), follower(cluster, SYSTEM_GROUP)
    cluster.paused.add(old)
    token = cluster.ask_now(name, BARRIER)
    cluster.run(200)
    assert token not in cluster.told
    cluster.answer(token)
    assert cluster.leader(SYSTEM_GROUP) != old


def test_a_lost_request_and_a_lost_answer_are_repeated(cluster: Cluster) -> None:
    name = follower(cluster, SYSTEM_GROUP)
    lost = [KIND_READ, KIND_READ_INDEX]
    carry = cluster.carry

    def lose(sender: str, to: str, kind: int, data: bytes) -> None:
        if kind in lost:
            lost.remove(kind)
        else:
            carry(sender, to, kind, data)

    cluster.carry = lose  # type: ignore[method-assign]
    cluster.answer(cluster.ask_now(name, BARRIER))
    assert lost == []


def test_questions_that_wait_together_share_one_request(cluster: Cluster) -> None:
    name = follower(cluster, SYSTEM_GROUP)
    requests = counted(cluster, KIND_READ)
    first = cluster.ask_now(name, BARRIER)
    cluster.step(name)
    tokens = [cluster.ask_now(name, BARRIER) for _ in range(100)]
    for token in (first, *tokens):
        cluster.answer(token)
    assert len(requests) == 2


def test_a_question_that_comes_while_a_request_is_under_way_is_not_answered_by_it(cluster: Cluster) -> None:
    name = follower(cluster, SYSTEM_GROUP)
    member = cluster.members[name]
    cluster.ask_now(name, BARRIER)
    cluster.step(name)
    early = ReadRequest(SYSTEM_GROUP, member.config.boot, member.read_indexes._number)
    token = cluster.ask_now(name, BARRIER)
    cluster.step(name)
    member.read_indexes.answered(ReadIndex(early, 2))
    cluster.step(name)
    assert token not in cluster.told
    cluster.answer(token)


def test_an_answer_to_an_earlier_process_is_ignored(cluster: Cluster) -> None:
    name = follower(cluster, SYSTEM_GROUP)
    member = cluster.members[name]
    token = cluster.ask_now(name, BARRIER)
    cluster.step(name)
    number = member.read_indexes._number
    member.read_indexes.answered(ReadIndex(ReadRequest(SYSTEM_GROUP, member.config.boot - 1, number), 2))
    cluster.step(name)
    assert token not in cluster.told


def test_the_only_voter_answers_at_once() -> None:
    alone = Cluster(1)
    alone.ready()
    token = alone.ask_now("n1", ReadBarrier(tuple(alone.members["n1"].replicas)))
    alone.step("n1")
    assert token in alone.told


def test_a_question_about_all_groups_needs_each_of_them(cluster: Cluster) -> None:
    groups = (*cluster.members["n1"].replicas,)
    cluster.run(50)
    before = last_entries(cluster)
    token = cluster.ask_now("n1", ReadBarrier(groups))
    cluster.answer(token)
    assert last_entries(cluster) == before


def test_a_step_answers_questions_for_a_limited_time_and_at_least_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "STEP_S", 0.0)
    member = cluster.members["n1"]
    cluster.submit("n1", *(ev.RunQuery(CheckHealth(), number) for number in range(5)))
    for done in range(1, 6):
        cluster.step("n1")
        assert [*cluster.told] == list(range(done))
        assert (member.next_due_ms() <= cluster.clock_ms("n1")) == (done < 5), "the rest comes at once"


def ask_as(cluster: Cluster, owner: str, count: int) -> None:
    cluster.submit(
        "n1", *(ev.RunQuery(CheckHealth(), f"{owner}{number}", owner=owner) for number in range(count))
    )


def test_owners_take_turns_and_each_of_them_keeps_its_order(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "STEP_S", 0.0)
    ask_as(cluster, "a", 300)
    ask_as(cluster, "b", 2)
    ask_as(cluster, "", 1)
    for _ in range(4):
        cluster.step("n1")
    ask_as(cluster, "c", 1)
    for _ in range(4):
        cluster.step("n1")
    assert [*cluster.told] == ["a0", "b0", "0", "a1", "b1", "a2", "c0", "a3"]


def test_a_question_that_is_given_up_takes_no_turn(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "STEP_S", 0.0)
    ask_as(cluster, "a", 4)
    ask_as(cluster, "b", 2)
    cluster.submit("n1", *(ev.Forget(token) for token in ("a0", "a1", "b0", "b1")))
    cluster.step("n1")
    cluster.step("n1")
    assert [*cluster.told] == ["a2", "a3"]
    assert not cluster.members["n1"].questions.is_busy


def test_a_question_that_has_waited_for_its_read_index_takes_its_owners_turn(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "STEP_S", 0.0)
    name = str(cluster.leader(SYSTEM_GROUP))
    for token in ("b0", "b1"):
        cluster.submit(name, ev.RunQuery(BARRIER, token, is_current=True, owner="b"))
    cluster.submit(name, *(ev.RunQuery(CheckHealth(), f"a{number}", owner="a") for number in range(100)))
    cluster.until(lambda: "b1" in cluster.told, "both were answered")
    told = [*cluster.told]
    assert told.index("b1") - told.index("b0") == 2, "one of the other owner is between them"


def test_frames_of_another_length_are_ignored(cluster: Cluster) -> None:
    member: Member = cluster.members["n1"]
    before = member._frames.malformed
    for kind in (KIND_READ, KIND_READ_INDEX):
        for data in (b"", b"x" * 19, b"x" * 100):
            member.step(cluster.clock_ms("n1"), [Frame("n2", kind, data)], [])
    assert member._frames.malformed == before + 6
    request = ReadRequest(3, 1 << 40, 7)
    assert ReadRequest.decode(request.encode()) == request
    assert ReadIndex.decode(ReadIndex(request, 9).encode()) == ReadIndex(request, 9)
    with pytest.raises(PeerFrameError, match="a read index has 28 bytes, not 20"):
        ReadIndex.decode(request.encode())


def test_a_refusal_and_an_answer_to_an_earlier_request_answer_nothing(cluster: Cluster) -> None:
    name = follower(cluster, SYSTEM_GROUP)
    member = cluster.members[name]
    token = cluster.ask_now(name, BARRIER)
    cluster.step(name)
    request = member.read_indexes._rounds[SYSTEM_GROUP].request
    for answer in (
        ReadIndex(request, 0),
        ReadIndex(replace(request, number=request.number - 1), 1),
        ReadIndex(replace(request, boot=request.boot - 1), 1),
        ReadIndex(replace(request, group=99), 1),
    ):
        frame = Frame(str(cluster.leader(SYSTEM_GROUP)), KIND_READ_INDEX, answer.encode())
        outputs = member.step(cluster.clock_ms(name), [frame], [])
        assert not any(isinstance(each, ev.QueryResult) for each in outputs)
    cluster.answer(token)


def test_a_request_about_a_group_that_is_not_here_is_refused(cluster: Cluster) -> None:
    answers = counted(cluster, KIND_READ_INDEX)
    request = ReadRequest(99, 1, 1)
    cluster.members["n1"].step(cluster.clock_ms("n1"), [Frame("n2", KIND_READ, request.encode())], [])
    assert [ReadIndex.decode(frame.data).index for frame in answers] == [0]


def test_a_settled_message_is_not_counted_at_any_member(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    session.publish(group, queue, *[b"x"] * 10)
    session.call(group, c.Get(queue, 4, settled=True))
    for name in cluster.names:
        info = cluster.answer(cluster.ask_now(name, QueueCounts(group, queue)))
        assert isinstance(info, QueueInfo)
        assert info.total == 6


# ---- requests for read indexes


@dataclass(eq=False)
class Question:
    found: list[int] = field(default_factory=list)

    def read_index_found(self, group: int, index: int) -> None:
        self.found.append(index)


class Requesting:
    """The read indexes of a member that follows, and the requests that it sends: (leader, number)."""

    def __init__(self) -> None:
        self.leader: str | None = "n1"
        self.sent: list[tuple[str, int]] = []
        self.disk_monitor: Any = SimpleNamespace(is_silent=False)
        routes: Any = SimpleNamespace(link=lambda group: self.leader)
        self.indexes = ReadIndexes(5, routes, {}, self.disk_monitor, self._send)

    def _send(self, peer: str, kind: int, parts: list[bytes]) -> None:
        number = ReadRequest.decode(parts[0]).number if kind == KIND_READ else 0
        self.sent.append((peer, number))

    def ask(self) -> Question:
        question = Question()
        self.indexes.ask(3, question)
        return question

    def turn(self, now_ms: int) -> list[tuple[str, int]]:
        """What is sent in this turn."""
        self.sent.clear()
        self.indexes.turn(now_ms)
        return [*self.sent]

    def answered(self, number: int, index: int) -> None:
        self.indexes.answered(ReadIndex(ReadRequest(3, 5, number), index))


def test_a_request_is_due_for_questions_that_no_request_is_under_way_for() -> None:
    member = Requesting()
    assert (member.indexes.is_due, member.indexes.is_busy) == (False, False)
    first = member.ask()
    assert (member.indexes.is_due, member.indexes.is_busy) == (True, True)
    assert member.turn(0) == [("n1", 1)]
    second = member.ask()
    assert (member.indexes.is_due, member.indexes.is_busy) == (False, True)
    member.answered(1, 40)
    assert (first.found, second.found, member.indexes.is_due) == ([40], [], True)
    assert member.turn(1) == [("n1", 2)]
    member.answered(2, 41)
    assert (first.found, second.found, member.indexes.is_busy) == ([40], [41], False)


def test_for_a_question_that_is_given_up_nothing_is_sent_or_repeated() -> None:
    member = Requesting()
    member.indexes.forget(3, member.ask())
    assert not member.indexes.is_due
    assert member.turn(0) == []
    assert not member.indexes.is_busy
    given_up, stays = member.ask(), member.ask()
    assert member.turn(1) == [("n1", 1)]
    member.indexes.forget(3, given_up)
    assert member.turn(1 + REPEAT_MS) == [("n1", 1)]
    member.answered(1, 7)
    assert (given_up.found, stays.found) == ([], [7])
    last = member.ask()
    member.turn(REPEAT_MS + 2)
    member.indexes.forget(3, last)
    assert member.turn(3 * REPEAT_MS) == []
    assert not member.indexes.is_busy


def test_a_request_waits_for_a_leader_and_is_repeated_after_its_time_or_to_another_leader() -> None:
    member = Requesting()
    member.ask()
    member.leader = None
    assert member.turn(0) == []
    member.leader = "n1"
    assert member.turn(1) == [("n1", 1)]
    assert member.turn(REPEAT_MS) == []
    member.leader = None
    assert member.turn(REPEAT_MS + 1) == []
    member.leader = "n2"
    assert member.turn(REPEAT_MS + 1) == [("n2", 1)], "at once"
    member.leader = "n1"
    assert member.turn(REPEAT_MS + 2) == [("n1", 1)]


def test_a_refused_request_is_repeated_soon() -> None:
    member = Requesting()
    question = member.ask()
    member.turn(0)
    assert member.turn(1) == []
    member.answered(1, 0)
    assert question.found == []
    assert member.turn(REFUSED_MS) == []
    assert member.turn(1 + REFUSED_MS) == [("n1", 1)]


def test_a_member_whose_disk_is_silent_leaves_requests_unanswered() -> None:
    member = Requesting()
    member.disk_monitor.is_silent = True
    member.indexes.requested("n2", ReadRequest(99, 9, 1))
    assert member.sent == []
    member.disk_monitor.is_silent = False
    member.indexes.requested("n2", ReadRequest(99, 9, 1))
    assert member.sent == [("n2", 0)]
