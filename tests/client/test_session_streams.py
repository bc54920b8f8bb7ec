"""A session replaces streams that end or fall silent. The service is scripted, and the clock is the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, status_pb2

from quorum.client.errors import ClosedError, ConnectionLost, RefusedError, TimedOut, TlsError, UnreadableFile
from quorum.client.messages.batch import Message, PreparedBatch, encode_batch
from quorum.client.session import session as sessions
from quorum.client.session.attachments import ATTACH_PAUSE_S
from quorum.client.session.consumer import Consumer, ConsumerOptions
from quorum.client.session.session import Session
from quorum.v1 import queue_pb2
from support import virtual_time
from support.fake_server.scripted import SILENCE_MS, ScriptedService, ended

HOUR_MS = 3_600_000
REFUSED = grpc.StatusCode.INVALID_ARGUMENT


@contextlib.asynccontextmanager
async def _opened(service: ScriptedService) -> AsyncIterator[Session]:
    session = service.session()
    await session.open(HOUR_MS)
    yield session
    await session.close(0)


async def _publish(session: Session) -> asyncio.Future[int]:
    """Publish one message. Returns the future of its outcome."""
    outcome = await session.publisher.admit("q", PreparedBatch(b"x", 1), None)
    await asyncio.sleep(0)
    return outcome


async def _refuse(service: ScriptedService, session: Session) -> None:
    """The service refuses the present stream. The session opens another one."""
    service.stream.end(REFUSED)
    await service.next_stream(session)


async def _silence_s(service: ScriptedService, session: Session) -> float:
    """How long the session waits for an answer that does not come, in whole seconds."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    _, answer = session._stream.ask("something that is not answered")
    await service.next_stream(session)
    assert isinstance(answer.exception(), ConnectionLost)
    return round(loop.time() - began_s)


def _attaches(service: ScriptedService) -> list[Any]:
    return [each.attach for each in service.stream.requests if each.HasField("attach")]


async def _answer_attach(service: ScriptedService) -> None:
    """The consumer with the tag 'tag' is attached, as the first one of its stream."""
    await asyncio.sleep(0.1)
    [attach] = _attaches(service)
    service.stream.answer(
        attached=queue_pb2.Attached(request_id=attach.request_id, consumer_tag="tag", attach=1)
    )


async def _attached(service: ScriptedService, session: Session) -> Consumer:
    """The consumer with the tag 'tag', which the service has attached."""
    consumer = Consumer(session.attachments, "q", "tag", ConsumerOptions(timeout_ms=HOUR_MS))
    attaching = asyncio.create_task(session.attachments.attach(consumer))
    await _answer_attach(service)
    await attaching
    return consumer


def test_a_session_closes_the_channel_of_every_stream() -> None:
    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            for _ in range(3):
                service.stream.end()
                await service.next_stream(session)
            assert [each.is_closed for each in service.channels] == [True, True, True, False]
        assert service.channels[-1].is_closed

    virtual_time.run(scenario())


def test_a_session_that_is_closed_while_its_stream_ends_closes_the_channel() -> None:
    """Also if the end takes longer than the session waits for it, as on a busy machine."""

    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            service.stream.breaks = True
            session._stream.outbox.send(rollback=queue_pb2.Rollback(tx=1))
            await asyncio.sleep(0.1)
        assert len(service.channels) == 1
        assert service.channels[0].is_closed

    virtual_time.run(scenario())


def test_refusals_add_up_until_the_service_has_decided_a_publish() -> None:
    """What a stream resends is not refused then."""

    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            for number in range(1, 4):
                for _ in range(sessions.REFUSALS_BEFORE_GIVING_UP - 1):
                    await _refuse(service, session)
                outcome = await _publish(session)
                service.stream.confirm(number, number)
                assert await outcome == 1
            for _ in range(sessions.REFUSALS_BEFORE_GIVING_UP - 1):
                await _refuse(service, session)
            service.stream.end(REFUSED)
            await asyncio.sleep(1)
            with pytest.raises(RefusedError):
                await _publish(session)

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("lasts_s", "gives_up"), [(sessions.HEALTHY_S, False), (sessions.HEALTHY_S - 1, True)]
)
def test_refusals_of_streams_that_were_healthy_do_not_add_up(lasts_s: float, gives_up: bool) -> None:
    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            for _ in range(sessions.REFUSALS_BEFORE_GIVING_UP):
                await asyncio.sleep(lasts_s)
                service.stream.end(REFUSED)
                await asyncio.sleep(1)
            assert session.is_up is not gives_up

    virtual_time.run(scenario())


def test_a_session_that_was_never_open_is_refused_once() -> None:
    async def scenario() -> None:
        service = ScriptedService()
        service.refusals = dict.fromkeys(("n1:1", "n2:1"), ended(REFUSED))
        session = service.session()
        with pytest.raises(RefusedError):
            await session.open(HOUR_MS)
        assert len(service.streams) == 1
        await session.close(0)

    virtual_time.run(scenario())


@pytest.mark.parametrize("reason", sessions.CURED_BY_EPOCH)
def test_what_another_epoch_resolves_is_no_refusal(reason: str) -> None:
    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            for _ in range(2 * sessions.REFUSALS_BEFORE_GIVING_UP):
                service.stream.end(grpc.StatusCode.FAILED_PRECONDITION, reason)
                await service.next_stream(session)
            opened = [each.requests[0].open for each in service.streams]
            assert [each.epoch for each in opened] == list(range(1, len(opened) + 1))
            assert len({each.producer_id for each in opened}) == 1

    virtual_time.run(scenario())


def test_a_session_is_as_impatient_as_at_first_after_a_publish_was_decided() -> None:
    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            assert [await _silence_s(service, session) for _ in range(3)] == [3, 6, 12]
            outcome = await _publish(session)
            service.stream.confirm(1, 1)
            await outcome
            service.stream.end()
            await service.next_stream(session)
            assert await _silence_s(service, session) == SILENCE_MS / 1000

    virtual_time.run(scenario())


@pytest.mark.parametrize(("is_undecided", "expected_s"), [(False, 3), (True, 24)])
def test_a_session_is_as_impatient_as_at_first_after_an_attach_if_all_publishes_are_decided(
    is_undecided: bool, expected_s: int
) -> None:
    """Else the group of the publish may still have no majority."""

    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            assert [await _silence_s(service, session) for _ in range(3)] == [3, 6, 12]
            if is_undecided:
                await _publish(session)
            await _attached(service, session)
            service.stream.end()
            await service.next_stream(session)
            assert await _silence_s(service, session) == expected_s

    virtual_time.run(scenario())


@pytest.mark.parametrize(("attach", "is_active"), [(1, True), (2, False)])
def test_a_consumer_is_active_by_its_present_attachment_alone(attach: int, is_active: bool) -> None:
    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            consumer = await _attached(service, session)
            changed = queue_pb2.ActiveChanged(consumer_tag="tag", attach=attach, active=True)
            service.stream.answer(active_changed=changed)
            await asyncio.sleep(0.1)
            assert consumer.is_active is is_active

    virtual_time.run(scenario())


@pytest.mark.parametrize(("attach", "is_void"), [(1, True), (2, False)])
def test_a_consumer_timeout_is_of_one_attachment(attach: int, is_void: bool) -> None:
    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            consumer = Consumer(session.attachments, "q", "tag", ConsumerOptions(timeout_ms=HOUR_MS))
            attaching = asyncio.create_task(consumer.start())
            await _answer_attach(service)
            await attaching
            service.stream.answer(
                delivery=queue_pb2.Delivery(
                    consumer_tag="tag",
                    attach=1,
                    first_tag=1,
                    count=1,
                    batch=encode_batch([Message(b"x")]).data,
                )
            )
            await asyncio.sleep(0.1)
            delivery = await consumer.next_delivery()
            assert delivery is not None
            service.stream.answer(timed_out=queue_pb2.TimedOut(consumer_tag="tag", attach=attach, last_tag=1))
            await asyncio.sleep(0.1)
            assert delivery.is_void is is_void

    virtual_time.run(scenario())


def test_an_attach_that_cannot_be_served_now_is_repeated_after_a_pause() -> None:
    async def scenario() -> None:
        service, loop = ScriptedService(), asyncio.get_running_loop()
        async with _opened(service) as session:
            consumer = Consumer(session.attachments, "q", "tag", ConsumerOptions(timeout_ms=HOUR_MS))
            attaching = asyncio.create_task(session.attachments.attach(consumer))
            times_s = []
            for number in range(3):
                while len(attaches := _attaches(service)) <= number:
                    await asyncio.sleep(0.001)
                times_s.append(round(loop.time(), 1))
                status = status_pb2.Status(code=code_pb2.UNAVAILABLE)
                service.stream.answer(
                    failed=queue_pb2.Failed(request_id=attaches[-1].request_id, status=status)
                )
            assert times_s == [0, ATTACH_PAUSE_S, 2 * ATTACH_PAUSE_S]
            attaching.cancel()

    virtual_time.run(scenario())


def test_a_consumer_that_was_cancelled_while_it_was_being_attached_is_owed_nothing() -> None:
    """So the service is not silent."""

    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            consumer = Consumer(session.attachments, "q", "tag", ConsumerOptions(timeout_ms=HOUR_MS))
            attaching = asyncio.create_task(session.attachments.attach(consumer))
            await asyncio.sleep(0.1)
            session.attachments.cancel_soon(consumer)
            await asyncio.sleep(0.1)
            [cancel] = [each.cancel for each in service.stream.requests if each.HasField("cancel")]
            for request_id in (_attaches(service)[0].request_id, cancel.request_id):
                service.stream.answer(done=queue_pb2.Done(request_ids=[request_id]))
            with pytest.raises(ClosedError):
                await attaching
            assert session.attachments.tasks == []
            await asyncio.sleep(60)
            assert len(service.streams) == 1

    virtual_time.run(scenario())


def test_a_cancel_that_nobody_waits_for_reports_no_lost_stream() -> None:
    reported: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        service = ScriptedService()
        async with _opened(service) as session:
            consumer = await _attached(service, session)
            session.attachments.cancel_soon(consumer)
            service.stream.end()
            await service.next_stream(session)
        gc.collect()

    virtual_time.run(scenario())
    assert reported == []


@pytest.mark.parametrize("is_settled", [False, True])
def test_only_a_get_whose_messages_cannot_be_lost_is_repeated_on_another_stream(is_settled: bool) -> None:
    """Messages that are settled when they are sent may be lost with their stream."""

    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            getting = asyncio.create_task(session.gets.get("q", 1, is_settled))
            await asyncio.sleep(0.1)
            service.stream.end()
            again = await service.next_stream(session)
            await asyncio.sleep(0.1)
            requests = [each.get for each in again.requests if each.HasField("get")]
            if is_settled:
                assert requests == []
                with pytest.raises(ConnectionLost):
                    await getting
            else:
                again.answer(done=queue_pb2.Done(request_ids=[requests[0].request_id]))
                assert await getting == []

    virtual_time.run(scenario())


# ---- opening


def test_a_session_that_is_not_opened_in_time_says_what_happened_last() -> None:
    async def scenario() -> list[str]:
        service, told = ScriptedService(), []
        service.opens = False
        for limit_ms in (1_000, int(sessions.OPEN_TIMEOUT_S * 1_000) + 500):
            session = service.session()
            with pytest.raises(TimedOut) as error:
                await session.open(limit_ms)
            told.append(str(error.value))
            await session.close(0)
        return told

    at_once, later = virtual_time.run(scenario())
    assert at_once == "no session within 1000 ms; last error: no answer from n1:1, n2:1"
    assert later == "no session within 3500 ms; last error: n1:1 did not open a session within 3.0 s"


def test_an_endpoint_that_opens_no_stream_in_time_is_left_for_the_next_one() -> None:
    async def scenario() -> None:
        service = ScriptedService()
        service.opens = False
        session = service.session()
        opening = asyncio.create_task(session.open(HOUR_MS))
        await asyncio.sleep(sessions.OPEN_TIMEOUT_S - 0.1)
        assert [each.endpoint for each in service.streams] == ["n1:1"]
        service.opens = True
        await opening
        assert [each.endpoint for each in service.streams] == ["n1:1", "n2:1"]
        assert session.node == "n2:1"
        await session.close(0)

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("answer", "text"), [(grpc.aio.EOF, "ended before it was opened"), ("done", "not opened")]
)
def test_what_is_no_opened_session_opens_none(answer: Any, text: str) -> None:
    async def scenario() -> None:
        service = ScriptedService()
        service.first_answer = (
            queue_pb2.SessionResponse(done=queue_pb2.Done()) if answer == "done" else answer
        )
        session = service.session()
        with pytest.raises(TimedOut, match=text):
            await session.open(1_000)
        assert not session.is_up
        await session.close(0)

    virtual_time.run(scenario())


# ---- pauses


def test_the_pauses_between_failed_attempts_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that lasts, or decides a publish, ends the growth."""
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)

    async def scenario() -> None:
        service, loop = ScriptedService(), asyncio.get_running_loop()

        async def pause_s() -> float:
            began_s = loop.time()
            service.stream.end()
            await service.next_stream(session)
            return round(loop.time() - began_s, 2)

        async with _opened(service) as session:
            assert [await pause_s() for _ in range(6)] == [0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
            await asyncio.sleep(sessions.LASTED_S)
            assert [await pause_s() for _ in range(2)] == [0.02, 0.04]
            outcome = await _publish(session)
            service.stream.confirm(1, 1)
            await outcome
            assert [await pause_s() for _ in range(2)] == [0.02, 0.04]

    virtual_time.run(scenario())


def test_the_pauses_of_many_clients_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []

    def lowest(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    monkeypatch.setattr(random, "uniform", lowest)

    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service):
            service.stream.end()
            await asyncio.sleep(1)

    virtual_time.run(scenario())
    assert drawn == [(0.5, 1.5)]


# ---- streams that end in other ways


@pytest.mark.parametrize(
    "end",
    [
        grpc.aio.EOF,
        asyncio.InvalidStateError("the call has ended"),
        queue_pb2.SessionResponse(opened=queue_pb2.Opened(node="again")),
    ],
    ids=["by the service", "before a write", "opened twice"],
)
def test_a_stream_that_ends_in_any_way_is_replaced_and_publishes_are_sent_again(end: Any) -> None:
    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            outcome = await _publish(session)
            service.stream.say(end)
            began_s = asyncio.get_running_loop().time()
            again = await service.next_stream(session)
            assert asyncio.get_running_loop().time() - began_s < 1, "and not for its silence"
            await asyncio.sleep(0.1)
            assert [each.publish.first_sequence for each in again.requests if each.HasField("publish")] == [1]
            again.confirm(1, 1)
            assert await outcome == 1

    virtual_time.run(scenario())


def test_a_file_that_cannot_be_read_ends_the_opening_of_a_session() -> None:
    async def scenario() -> None:
        service = ScriptedService()
        service.unreadable = UnreadableFile("ca.pem cannot be read")
        session = service.session()
        with pytest.raises(UnreadableFile):
            await session.open(HOUR_MS)
        await session.close(0)

    virtual_time.run(scenario())


def test_a_session_waits_for_a_file_that_could_be_read_when_it_was_opened() -> None:
    """A program that renews it may be about to write it."""

    async def scenario() -> None:
        service = ScriptedService()
        async with _opened(service) as session:
            service.unreadable = UnreadableFile("ca.pem cannot be read")
            service.stream.end()
            await asyncio.sleep(60)
            service.unreadable = None
            await service.next_stream(session)

    virtual_time.run(scenario())


# ---- what is wrong about TLS


NO_PROBLEM = ("", False)
NO_CONNECTION = ended()
CERTAIN, LIKELY = ("no TLS there", True), ("perhaps no certificate", False)


async def _opening(
    problems: dict[str, tuple[str, bool]],
    error: grpc.aio.AioRpcError = NO_CONNECTION,
    refused: Sequence[str] = ("n1:1", "n2:1"),
) -> Session:
    """A session with a service that has these problems at its endpoints, and ends streams at those that are refused. It
    is opened, or not, within ten seconds."""

    async def found(endpoint: str) -> tuple[str, bool]:
        return problems[endpoint]

    service = ScriptedService()
    service.refusals = dict.fromkeys(refused, error)
    session = service.session(found)
    try:
        await session.open(10_000)
    finally:
        await session.close(0)
    return session


def test_a_problem_of_tls_at_every_endpoint_ends_the_opening_of_a_session() -> None:
    with pytest.raises(TlsError) as error:
        virtual_time.run(_opening({"n1:1": CERTAIN, "n2:1": CERTAIN}))
    assert str(error.value) == "no TLS there"


@pytest.mark.parametrize("problem", [CERTAIN, LIKELY])
def test_an_endpoint_with_a_problem_of_tls_is_passed_over(problem: tuple[str, bool]) -> None:
    session = virtual_time.run(_opening({"n1:1": problem, "n2:1": NO_PROBLEM}, refused=["n1:1"]))
    assert session.node == "n2:1"


@pytest.mark.parametrize(
    ("problems", "told"),
    [
        ({"n1:1": CERTAIN, "n2:1": LIKELY}, ": no TLS there"),
        ({"n1:1": LIKELY, "n2:1": LIKELY}, ": ended by the test; perhaps no certificate"),
        ({"n1:1": NO_PROBLEM, "n2:1": NO_PROBLEM}, ": ended by the test"),
    ],
)
def test_a_session_that_is_not_opened_in_time_names_a_problem_of_tls(
    problems: dict[str, tuple[str, bool]], told: str
) -> None:
    """A certain one before all others."""
    with pytest.raises(TimedOut) as error:
        virtual_time.run(_opening(problems))
    assert str(error.value).endswith(told)


@pytest.mark.parametrize(
    ("code", "reason"),
    [("UNAVAILABLE", "NO_LEADER"), ("RESOURCE_EXHAUSTED", ""), ("DEADLINE_EXCEEDED", "")],
)
def test_no_problem_of_tls_is_looked_for_if_the_service_has_answered_or_was_too_slow(
    code: str, reason: str
) -> None:
    with pytest.raises((RefusedError, TimedOut)) as error:
        virtual_time.run(_opening({"n1:1": CERTAIN, "n2:1": CERTAIN}, ended(grpc.StatusCode[code], reason)))
    assert "TLS" not in str(error.value)


def test_a_problem_of_tls_that_has_been_solved_is_forgotten() -> None:
    """Of two endpoints, one is repaired before the problem of the other one is found."""
    problems = {"n1:1": [CERTAIN, NO_PROBLEM, NO_PROBLEM], "n2:1": [NO_PROBLEM, CERTAIN, CERTAIN]}

    async def scenario() -> None:
        async def found(endpoint: str) -> tuple[str, bool]:
            return problems[endpoint].pop(0)

        service = ScriptedService()
        service.refusals = dict.fromkeys(problems, NO_CONNECTION)
        session = service.session(found)
        opening = asyncio.create_task(session.open(HOUR_MS))
        while problems["n1:1"]:
            await asyncio.sleep(0.001)
        service.refusals.clear()
        await opening
        await session.close(0)

    virtual_time.run(scenario())
