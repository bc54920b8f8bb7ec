"""Where the event loop meets the Raft thread (quorum/api/hub/hub.py): the node's own session, budgets and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from google.rpc import code_pb2

from fifo import commands as c
from fifo.effects import Confirmed, Deliver, Ok, Refused
from quorum.api.hub import member_requests, own_session
from quorum.api.hub.hub import Hub
from quorum.api.owners import CALLER
from quorum.api.status import StatusError
from quorum.catalog.members import DrainMember
from quorum.node import events as ev
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import AppliedIndex, CheckHealth, FindUnserved, ReadBarrier, Unserved
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire.batches import BatchLimits

WINDOW = 1_000


class FakeDriver:
    def __init__(self) -> None:
        self.items: list[ev.Input] = []

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.items += items

    @property
    def submitted(self) -> list[ev.Submit]:
        return [item for item in self.items if isinstance(item, ev.Submit)]


class FakeStream:
    def __init__(self, groups: set[int]) -> None:
        self.groups = groups
        self.reasons: list[str] = []

    def consumed_groups(self) -> set[int]:
        return self.groups

    def answered(self, token: object, reply: object) -> None:
        raise RuntimeError("a defect")

    def ended(self, reason: str) -> None:
        self.reasons.append(reason)


def with_hub(run: Callable[[Hub, FakeDriver], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        made = Hub("n3", None, BatchLimits(10, 100, 1_000), WINDOW, WINDOW)  # type: ignore[arg-type]
        driver = FakeDriver()
        made.attach(driver)  # type: ignore[arg-type]
        await run(made, driver)

    asyncio.run(body())


ENQUEUE = c.Enqueue(7, 0, 0, 1, 1)
"""The node's session gives it its numbers."""


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (c.DeleteSubscription(7, "x" * 70_000), "DeleteSubscription has no wire form"),
        (
            c.DiscardStaged(7, "p", 1, (b"abc",)),
            "DiscardStaged has no wire form: the name of a part has 3 bytes",
        ),
        (c.Unpin(7, 1 << 64), "Unpin has no wire form"),
        (
            c.OpenSubscription(7, "r", bytes(29 << 20), "earliest", 1_000, "keep"),
            "OpenSubscription takes 304\\d* bytes",
        ),
    ],
)
def test_a_command_that_the_raft_thread_could_not_write_does_not_reach_it(
    command: c.Command, problem: str
) -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        with pytest.raises(StatusError, match=problem):
            await hub.own_session.call(1, command)
        assert driver.submitted == []

    with_hub(run)


async def settle_down() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_publish_nobody_waits_for_any_more_still_counts_until_it_is_answered() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        first = asyncio.create_task(hub.own_session.publish(1, ENQUEUE, bytes(600)))
        await settle_down()
        first.cancel()
        second = asyncio.create_task(hub.own_session.publish(1, ENQUEUE, bytes(600)))
        await settle_down()
        assert len(driver.submitted) == 1, "the window holds one of them"
        submit = driver.submitted[0]
        hub._dispatch([ev.Answered(submit.session, submit.token, Confirmed(1, 1))])
        await settle_down()
        assert len(driver.submitted) == 2
        command = driver.submitted[1].command
        assert isinstance(command, c.Enqueue)
        assert (command.first_client_sequence, command.lowest_unconfirmed) == (2, 2)
        hub._dispatch([ev.Answered(submit.session, driver.submitted[1].token, Confirmed(2, 2))])
        await second

    with_hub(run)


def test_filter_fields_of_publishes_and_staged_chunks_count_until_they_are_answered() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        publish = asyncio.create_task(
            hub.own_session.publish(1, replace(ENQUEUE, columns=bytes(200)), bytes(100))
        )
        await settle_down()
        assert hub.publishing.used == 300
        chunk = c.Stage(1, "writer", 1, bytes(16), 0, 2, 100, -1, (5, 6), bytes(50))
        await hub.own_session.send(1, chunk, bytes(100))
        assert hub.publishing.used == 300 + 100 + 16 + 50
        for submit in driver.submitted:
            hub._dispatch([ev.Answered(submit.session, submit.token, Confirmed(1, 1))])
        await publish
        assert hub.publishing.used == 0

    with_hub(run)


def test_publishes_to_a_group_that_does_not_answer_leave_room_for_the_other_groups() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        stuck = [asyncio.create_task(hub.own_session.publish(1, ENQUEUE, bytes(100))) for _ in range(20)]
        await settle_down()
        other = asyncio.create_task(hub.own_session.publish(2, ENQUEUE, bytes(200)))
        await settle_down()
        assert [submit.group for submit in driver.submitted] == [1] * 5 + [2], (
            "half of the window is one group's"
        )
        submit = driver.submitted[-1]
        hub._dispatch([ev.Answered(submit.session, submit.token, Confirmed(1, 1))])
        await other
        for task in stuck:
            task.cancel()

    with_hub(run)


def test_a_publish_does_not_wait_for_a_group_that_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorum.api.shares.PATIENCE_S", 0)

    async def run(hub: Hub, driver: FakeDriver) -> None:
        first = asyncio.create_task(hub.own_session.publish(1, ENQUEUE, bytes(600)))
        await settle_down()
        with pytest.raises(StatusError, match="no room for a batch of 600 bytes to group 1") as caught:
            await hub.own_session.publish(1, ENQUEUE, bytes(600))
        assert caught.value.status.code == code_pb2.UNAVAILABLE
        first.cancel()

    with_hub(run)


def test_calls_beyond_a_groups_share_are_refused_even_if_their_callers_have_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_session, "MAX_CALLS", 6)

    async def run(hub: Hub, driver: FakeDriver) -> None:
        for _ in range(3):
            task = asyncio.create_task(hub.own_session.call(1, c.Wake()))
            await settle_down()
            task.cancel()
        with pytest.raises(StatusError, match="3 calls at this node wait for group 1"):
            await hub.own_session.call(1, c.Wake())
        with pytest.raises(StatusError, match="wait for group 1"):
            await hub.own_session.publish(1, ENQUEUE, bytes(10))
        with pytest.raises(StatusError, match="wait for group 1"):
            await hub.own_session.get(1, 7, 1)
        submit = driver.submitted[0]
        hub._dispatch([ev.Answered(submit.session, submit.token, Ok())])
        again = asyncio.create_task(hub.own_session.call(1, c.Wake()))
        await settle_down()
        assert len(driver.submitted) == 4
        hub._dispatch([ev.Answered(submit.session, driver.submitted[3].token, Refused("not_found", "x"))])
        with pytest.raises(StatusError):
            await again

    with_hub(run)


def test_calls_to_a_group_that_does_not_answer_leave_room_for_the_other_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_session, "MAX_CALLS", 6)

    async def run(hub: Hub, driver: FakeDriver) -> None:
        stuck = [asyncio.create_task(hub.own_session.call(1, c.Wake())) for _ in range(10)]
        await settle_down()
        for group in (0, 2, 0, 2):
            other = asyncio.create_task(hub.own_session.call(group, c.Wake()))
            await settle_down()
            submit = driver.submitted[-1]
            assert submit.group == group
            hub._dispatch([ev.Answered(submit.session, submit.token, Ok())])
            assert await other == Ok()
        for task in stuck:
            task.cancel()

    with_hub(run)


def test_a_message_that_its_group_does_not_confirm_holds_up_no_numbers_of_the_other_groups() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        stuck = asyncio.create_task(hub.own_session.publish(1, ENQUEUE, bytes(10)))
        await settle_down()
        for expected in (1, 2, 3):
            other = asyncio.create_task(hub.own_session.publish(2, ENQUEUE, bytes(10)))
            await settle_down()
            submit = driver.submitted[-1]
            command = submit.command
            assert isinstance(command, c.Enqueue)
            assert (command.first_client_sequence, command.lowest_unconfirmed) == (expected, expected)
            hub._dispatch([ev.Answered(submit.session, submit.token, Confirmed(expected, expected))])
            await other
        stuck.cancel()

    with_hub(run)


def test_the_nodes_own_session_begins_anew_and_hears_nothing_of_the_old_one() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        call = asyncio.create_task(hub.own_session.get(1, 7, 5))
        publish = asyncio.create_task(hub.own_session.publish(1, ENQUEUE, bytes(600)))
        await settle_down()
        old = driver.submitted[0]
        hub._dispatch([ev.Ended(old.session, "node_down"), ev.Answered(old.session, old.token, Ok(5))])
        for task in (call, publish):
            with pytest.raises(StatusError, match="lost its lease"):
                await task
        assert hub.publishing.used == 0
        assert any(isinstance(item, ev.EndSession) and item.number == old.session for item in driver.items)
        again = asyncio.create_task(hub.own_session.get(1, 7, 1))
        await settle_down()
        new = driver.submitted[-1]
        assert new.session != old.session
        hub._dispatch([ev.Answered(new.session, new.token, Ok(0))])
        assert await again is None

    with_hub(run)


def test_a_get_leaves_nothing_behind_in_the_nodes_own_session() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        calls = [asyncio.create_task(hub.own_session.get(1, 7, 1)) for _ in range(2)]
        await settle_down()
        found = [Deliver(c.Address(1, 1, 1), 7, "", 1, tag, ()) for tag in (1, 2)]
        for submit, deliver in zip(driver.submitted, found, strict=True):
            hub._dispatch([ev.Answered(submit.session, submit.token, Ok(1))])
            hub._dispatch([ev.Delivered(submit.session, 1, deliver)])
        assert [await call for call in calls] == found
        assert hub.own_session._gets == {}

    with_hub(run)


def test_a_call_whose_session_was_silent_for_a_day_may_be_repeated() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        call = asyncio.create_task(hub.own_session.call(0, c.Wake()))
        await settle_down()
        hub._dispatch([ev.Ended(driver.submitted[-1].session, "expired")])
        with pytest.raises(StatusError) as failed:
            await call
        assert failed.value.status.code == code_pb2.UNAVAILABLE

    with_hub(run)


def test_a_lapsed_lease_ends_who_may_hold_something_and_a_renewal_does_not_undo_it() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        holder, other = FakeStream({3}), FakeStream({4})
        for stream in (holder, other):
            hub.sessions.open(stream, bytes(16), 1)  # type: ignore[arg-type]
        hub._dispatch([ev.LeaseGranted(3, 1 << 60), ev.LeaseGranted(4, 1 << 60)])
        assert hub.published.may_deliver(3)
        hub._dispatch([ev.LeaseLapsed(3), ev.LeaseGranted(3, 1 << 61)])
        assert hub.published.may_deliver(3)
        assert (holder.reasons, other.reasons) == (["node_down"], [])

    with_hub(run)


def test_a_defect_in_one_stream_does_not_swallow_what_others_wait_for() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        broken = FakeStream(set())
        number = hub.sessions.open(broken, bytes(16), 1)  # type: ignore[arg-type]
        call = asyncio.create_task(hub.own_session.call(0, c.Wake()))
        await settle_down()
        submit = driver.submitted[0]
        hub._dispatch([ev.Answered(number, object(), Ok()), ev.Answered(submit.session, submit.token, Ok(3))])
        assert await call == Ok(3)
        assert broken.reasons == ["failed"]

    with_hub(run)


async def answer_ask(hub: Hub, driver: FakeDriver, leader: str | None, disputed: str = "") -> None:
    """Answers the next question about group 2's leader, and whether states differ there."""
    while not isinstance(driver.items[-1], ev.RunQuery):
        await asyncio.sleep(0)
    asked = driver.items.pop()
    assert isinstance(asked, ev.RunQuery)
    assert asked.query == FindUnserved((2,))
    found = Unserved(2, "n3", disputed) if leader is None or disputed else None
    hub._dispatch([ev.QueryResult(asked.token, found)])
    await settle_down()


def test_a_query_takes_the_turns_of_the_client_whose_call_is_served() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        async def call(address: str) -> None:
            CALLER.set(address)
            await asyncio.gather(hub.requests.query(CheckHealth()), hub.requests.current_catalog())

        calls = [asyncio.create_task(call(f"10.0.0.{number}")) for number in (7, 8)]
        calls.append(asyncio.create_task(hub.requests.query(CheckHealth())))
        await settle_down()
        asked = [item for item in driver.items if isinstance(item, ev.RunQuery)]
        assert sorted((item.owner, item.is_current) for item in asked) == [
            ("", False),
            *((f"10.0.0.{number}", is_current) for number in (7, 8) for is_current in (False, True)),
        ]
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    with_hub(run)


def test_a_call_to_a_group_without_a_leader_is_told_so_instead_of_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_requests, "NO_LEADER_POLL_S", 0.0)
    leaders = [None, None, "n1", None, None, None]

    async def run(hub: Hub, driver: FakeDriver) -> None:
        call = asyncio.create_task(hub.own_session.call(2, c.Wake()))
        for leader in leaders:
            assert not call.done(), "an election may be under way"
            await answer_ask(hub, driver, leader)
        with pytest.raises(StatusError, match="group 2 has no leader that n3 knows of"):
            await call
        late = asyncio.create_task(hub.own_session.call(2, c.Wake()))
        await settle_down()
        submit = driver.submitted[-1]
        hub._dispatch([ev.Answered(submit.session, submit.token, Ok())])
        await answer_ask(hub, driver, None)
        assert await late == Ok()

    with_hub(run)


def test_a_call_to_a_group_that_nobody_serves_is_told_why_instead_of_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_requests, "NO_LEADER_POLL_S", 0.0)
    seen = ["entry 9: differ", "entry 9: differ", "", *["entry 9: no majority"] * 3]

    async def run(hub: Hub, driver: FakeDriver) -> None:
        call = asyncio.create_task(hub.own_session.publish(2, ENQUEUE, bytes(600)))
        await settle_down()
        for disputed in seen:
            assert not call.done(), "the hash of one more voter may decide it"
            await answer_ask(hub, driver, "n1", disputed)
        with pytest.raises(
            StatusError, match=r"may double .*: n3 does not serve group 2: entry 9: no"
        ) as failed:
            await call
        assert failed.value.status.reason == "outcome_unknown"

    with_hub(run)


def forgotten(driver: FakeDriver) -> list[object]:
    return [item.token for item in driver.items if isinstance(item, ev.Forget)]


def test_a_question_without_an_answer_is_given_up_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_requests, "NO_LEADER_POLL_S", 0.0)
    monkeypatch.setattr(member_requests, "ANSWER_WAIT_S", 0.0)

    async def run(hub: Hub, driver: FakeDriver) -> None:
        with pytest.raises(StatusError, match="this node could not answer within 0 s; ask another node"):
            await hub.requests.query(AppliedIndex(2))
        [asked] = [item for item in driver.items if isinstance(item, ev.RunQuery)]
        assert forgotten(driver) == [asked.token]

    with_hub(run)


def test_what_a_caller_that_is_gone_waited_for_is_forgotten() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        waits: list[Coroutine[Any, Any, Any]] = [
            hub.requests.query(CheckHealth()),
            hub.requests.query(AppliedIndex(2)),
            hub.requests.query_current(ReadBarrier((0, 2))),
            hub.requests.await_queue(2, 7, present=True),
            hub.requests.repair(BodyUnreadable(2, 9, "damaged")),
        ]
        for wait in waits:
            driver.items.clear()
            call = asyncio.create_task(wait)
            await settle_down()
            [item] = driver.items
            call.cancel()
            await settle_down()
            assert forgotten(driver) == [item.token]  # type: ignore[union-attr]

    with_hub(run)


def test_nothing_is_forgotten_that_was_answered() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        call = asyncio.create_task(hub.requests.query_current(AppliedIndex(2)))
        await settle_down()
        asked = driver.items[-1]
        assert isinstance(asked, ev.RunQuery)
        assert asked.is_current
        hub._dispatch([ev.QueryResult(asked.token, 17)])
        assert await call == 17
        assert forgotten(driver) == []

    with_hub(run)


def test_a_call_that_nobody_waits_for_is_not_sent_again() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        for call in (lambda: hub.own_session.call(0, c.Wake()), lambda: hub.own_session.get(1, 7, 1)):
            task = asyncio.create_task(call())
            await settle_down()
            submit = driver.submitted[-1]
            task.cancel()
            await settle_down()
            withdrawn = driver.items[-1]
            assert withdrawn == ev.Withdraw(submit.session, submit.group, submit.token)
            hub._dispatch([ev.Answered(submit.session, submit.token, None)])

    with_hub(run)


def test_a_change_of_the_catalog_is_made_again_where_it_was_outdated() -> None:
    async def run(hub: Hub, driver: FakeDriver) -> None:
        task = asyncio.create_task(
            hub.own_session.change(lambda found: DrainMember("n1", True, found.changes))
        )
        await settle_down()
        first = driver.submitted[0]
        assert first.command == DrainMember("n1", True, 0)
        hub._dispatch([ev.Answered(first.session, first.token, Refused("outdated", ""))])
        await settle_down()
        [asked] = [item for item in driver.items if isinstance(item, ev.RunQuery)]
        assert asked.is_current and asked.query == ReadBarrier((SYSTEM_GROUP,))
        changed = ev.CatalogChanged((), (), (), 1, removals=0, changes=3, revision=0, queue_groups=(1,))
        hub._dispatch([changed, ev.QueryResult(asked.token, None)])
        await settle_down()
        second = driver.submitted[1]
        assert second.command == DrainMember("n1", True, 3)
        hub._dispatch([ev.Answered(second.session, second.token, Ok(1))])
        assert await task == Ok(1)

    with_hub(run)
