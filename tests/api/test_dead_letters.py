"""The node's worker for dead letters: what it writes, what it waits for, and what it publishes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import quorum
from fifo import commands as c
from fifo.effects import Run
from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION
from fifo.results import ClaimedRun, DeadWork
from quorum.api import process, status
from quorum.api.dead_letters import queues as dead_queues
from quorum.api.dead_letters import worker
from quorum.api.dead_letters.history import Death, letter_of
from quorum.api.hub.deliveries import BodyReader
from quorum.api.session import routing
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import Confirms, Rejection, Span
from quorum.client.client import Client
from quorum.client.messages.batch import Message
from quorum.node.queries import FindDeadQueues, FindDeadWork
from quorum.node.wire.batches import StoredBatch
from quorum.v1 import queue_pb2 as pb
from quorum.v1 import queue_pb2_grpc
from support.members.served import serving
from support.members.services import Api

PATIENCE_S = 60.0
"""The machine may be busy."""
LONG_S = 600.0
"""A pause that no test waits for."""
TARGET = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
SMALL = {"x-overflow": "reject-publish"}


class Node:
    """A served member, and its client."""

    def __init__(self, url: str, api: Api, client: Client) -> None:
        self.url, self.api, self.client = url, api, client

    async def until(self, queue: str, condition: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(info := (await self.client.describe(queue)).queue):
                await asyncio.sleep(0.02)
        return info

    async def die(self, queue: str, bodies: list[bytes | Message]) -> None:
        await self.client.publish_batch(queue, bodies)
        await self.client.discard(await self.client.get(queue, len(bodies)), wait=True)

    def key(self, queue: str) -> tuple[int, int]:
        found = self.api.hub.catalog.queue(queue)
        assert found is not None
        return found.group, found.id

    async def work(self, queue: str) -> DeadWork:
        found = await self.api.hub.requests.query(FindDeadWork(*self.key(queue), 1))
        assert found is not None
        return found

    def entries(self, queue: str) -> int:
        """The applied entries of the queue's group."""
        member = self.api.cluster.members[self.api.name]
        machine = member.replicas[self.key(queue)[0]].machine
        assert isinstance(machine, GroupMachine)
        return machine.index


def on_node(scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving() as (url, [api]), quorum.connect(url) as client:
            await scenario(Node(url, api, client))

    asyncio.run(run())


# ---- the producer


async def publish_as(node: Node, producer: bytes, epoch: int, first: int) -> None:
    """A client's session that takes this producer, and publishes one message to the grave."""
    batch = pb.MessageBatch(count=1, bodies=b"x", body_ends=[1]).SerializeToString()
    publish = pb.PublishBatch(
        routing_key="grave", first_sequence=first, lowest_unconfirmed=first, batch=batch
    )

    async with grpc.aio.insecure_channel(node.url.removeprefix("quorum://")) as channel:
        call = queue_pb2_grpc.QueueStub(channel).Session()
        await call.write(pb.SessionRequest(open=pb.Open(producer_id=producer, epoch=epoch)))
        await call.write(pb.SessionRequest(publish=publish))
        while (await call.read()).WhichOneof("response") != "confirms":
            pass


def test_a_client_that_guesses_the_producer_of_a_queue_takes_no_letters() -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        await node.client.declare("orders", TARGET)
        guessed = hashlib.blake2b(
            b"dead letters of queue %d" % node.key("orders")[1], digest_size=16
        ).digest()
        await publish_as(node, guessed, 1 << 31, 1 << 40)
        await node.die("orders", [b"1", b"2"])
        await node.until("grave", lambda info: info.ready == 3)
        assert (await node.work("orders")).producer != guessed

    on_node(scenario)


# ---- what is written


def test_nothing_is_written_while_there_is_no_route() -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare("orders", TARGET)
        await node.client.declare_exchange("dead", "direct")
        await node.client.declare("bills", {"x-dead-letter-exchange": "dead"})
        for queue in ("orders", "bills"):
            await node.die(queue, [b"1", b"2"])
            await node.until(queue, lambda info: info.dead_letter_problem)
        assert (await node.work("orders")).epoch == 0
        before = [node.entries(queue) for queue in ("orders", "bills")]
        await asyncio.sleep(1.0)
        assert [node.entries(queue) for queue in ("orders", "bills")] == before

    on_node(scenario)


def test_a_batch_that_is_halved_needs_no_other_session() -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare("grave", {"x-max-length": 3, **SMALL})
        await node.client.declare("orders", TARGET)
        await node.die("orders", [b"%d" % n for n in range(20)])
        await node.until("orders", lambda info: info.dead_letter_problem)
        assert (await node.work("orders")).epoch == 1

    on_node(scenario)


def test_a_reason_is_written_once_whatever_counts_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        problems = []
        call = node.api.hub.own_session.call

        async def counted(group: int, command: Any) -> Any:
            problems.extend([found] if (found := getattr(command, "problem", "")) else [])
            return await call(group, command)

        monkeypatch.setattr(node.api.hub.own_session, "call", counted)
        await node.client.declare("grave", {"x-max-length": 2, **SMALL})
        await node.client.declare("orders", TARGET)
        await node.client.publish_batch("grave", [b"1", b"2"])
        await node.die("orders", [b"3"])
        await node.until("orders", lambda info: info.dead_letter_problem)
        await node.client.set_policy("less", "grave", {"x-max-length": 1})
        await asyncio.sleep(1.0)
        assert len(problems) == 1, problems

    on_node(scenario)


def test_a_queue_that_waits_for_a_full_target_takes_no_place_of_a_producer_there() -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare("grave", {"x-max-length": 3, **SMALL})
        await node.client.declare("orders", TARGET)
        await node.die("orders", [b"%d" % n for n in range(5)])
        await node.until("orders", lambda info: info.dead_letter_problem)
        replica = node.api.cluster.members[node.api.name].replicas[node.key("grave")[0]]
        assert isinstance(replica.machine, GroupMachine)
        async with asyncio.timeout(PATIENCE_S):
            while worker.OWNER in replica.machine.sessions.owned:
                await asyncio.sleep(0.01)

    on_node(scenario)


def test_a_queue_whose_target_was_missing_takes_no_place_of_a_producer_of_a_full_one() -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare("orders", TARGET)
        await node.die("orders", [b"%d" % n for n in range(5)])
        await node.until("orders", lambda info: info.dead_letter_problem.startswith("NOT_FOUND"))
        await node.client.declare("grave", {"x-max-length": 3, **SMALL})
        await node.client.publish_batch("grave", [b"1", b"2", b"3"])
        await node.until("orders", lambda info: info.dead_letter_problem.startswith("QUEUE_FULL"))
        replica = node.api.cluster.members[node.api.name].replicas[node.key("grave")[0]]
        assert isinstance(replica.machine, GroupMachine)
        async with asyncio.timeout(PATIENCE_S):
            while worker.OWNER in replica.machine.sessions.owned:
                await asyncio.sleep(0.01)

    on_node(scenario)


def test_no_history_is_searched_for_letters_with_too_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        queue = node.api.hub.catalog.queue("grave")
        assert queue is not None
        copies = (queue,) * (PRODUCTION.max_targeted + 1)
        session = ClientSession(node.api.hub)
        session.open(b"p" * 16, 1, 9)

        async def routed(*_: object, **__: object) -> Any:
            return routing.Routes([copies], {}, False), {}

        class Letters(list[Any]):
            def __getitem__(self, _: Any) -> Any:
                raise AssertionError("searched")

            __iter__ = __getitem__  # type: ignore[assignment]

        monkeypatch.setattr(session.publisher._routes, "through", routed)
        data = stored(1).SerializeToString()
        await session.publisher.forward("dead", "", 1, data, Letters(), independent=True)
        [outcome] = await anext(session.outcomes())
        assert isinstance(outcome, Confirms)
        assert [each.why.reason for each in outcome.rejected] == ["batch_too_large"]
        session.release()

    on_node(scenario)


# ---- places and waiting


def test_a_worker_whose_target_does_not_answer_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_queues, "PLACES", 1)
    send = worker._Session.send

    async def hangs(session: Any, config: Any, batch: Any) -> Any:
        if config.name == "orders":
            await asyncio.sleep(2 * LONG_S)
        return await send(session, config, batch)

    monkeypatch.setattr(worker._Session, "send", hangs)

    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        for queue in ("orders", "bills"):
            await node.client.declare(queue, TARGET)
            await node.die(queue, [b"1"])
        await node.until("grave", lambda info: info.ready == 1)

    on_node(scenario)


def test_queues_that_wait_for_a_target_have_no_tasks() -> None:
    async def scenario(node: Node) -> None:
        before = len(asyncio.all_tasks())
        for number in range(20):
            await node.client.declare(f"orders-{number}", TARGET)
            await node.die(f"orders-{number}", [b"1"])
        for number in range(20):
            await node.until(f"orders-{number}", lambda info: info.dead_letter_problem)
        async with asyncio.timeout(PATIENCE_S):
            while len(asyncio.all_tasks()) > before + 3:
                await asyncio.sleep(0.01)
        await node.client.declare("grave")
        await node.until("grave", lambda info: info.ready == 20)

    on_node(scenario)


def test_queues_with_dead_messages_are_found_page_by_page() -> None:
    async def scenario(node: Node) -> None:
        for number in range(5):
            await node.client.declare(f"orders-{number}", TARGET)
            await node.die(f"orders-{number}", [b"1"])
        keys = sorted([node.key(f"orders-{number}") for number in range(5)])
        found: list[tuple[int, int]] = []
        after = (0, 0)
        for _ in range(3):
            page = await node.api.hub.requests.query(FindDeadQueues(after, 2))
            found += page.queues
            after = page.queues[-1]
        assert found == keys
        assert (await node.api.hub.requests.query(FindDeadQueues(after, 2))).queues == ()

    on_node(scenario)


def test_a_target_that_fails_costs_few_entries_for_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_queues, "PLACES", 4)
    monkeypatch.setattr(dead_queues, "PAUSES_S", (0.5,))

    async def fails(*_: object) -> Any:
        raise status.StatusError(status.make(status.Code.UNAVAILABLE, "session_limit", "too many"))

    monkeypatch.setattr(worker._Session, "send", fails)

    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        for number in range(20):
            await node.client.declare(f"orders-{number}", TARGET)
            await node.die(f"orders-{number}", [b"1"])
        begun: list[Any] = []
        call = node.api.hub.own_session.call

        async def counted(group: int, command: Any) -> Any:
            begun.extend([command] if isinstance(command, c.ClaimDead) else [])
            return await call(group, command)

        monkeypatch.setattr(node.api.hub.own_session, "call", counted)
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        async with asyncio.timeout(PATIENCE_S):
            while loop.time() < since_s + 3.0 or not begun:
                await asyncio.sleep(0.05)
        # one after each pause, and those that were under way
        assert len(begun) <= 4 + (loop.time() - since_s) / 0.5, begun
        info = await node.until("orders-19", lambda info: info.dead_letter_problem)
        assert info.dead_letter_problem == "SESSION_LIMIT: too many"

    on_node(scenario)


def test_a_target_that_does_not_answer_gets_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_queues, "PLACES", 2)
    monkeypatch.setattr(dead_queues, "PAUSES_S", (LONG_S,))
    monkeypatch.setattr(worker, "PATIENCE_S", 0.2)
    sent: list[str] = []
    dropped: list[BodyReader] = []
    drop = BodyReader.drop

    def dropping(reader: BodyReader) -> None:
        dropped.append(reader)
        drop(reader)

    monkeypatch.setattr(BodyReader, "drop", dropping)

    async def hangs(session: Any, config: Any, batch: Any) -> Any:
        sent.append(config.name)
        await asyncio.sleep(2 * LONG_S)

    monkeypatch.setattr(worker._Session, "send", hangs)

    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        for number in range(10):
            await node.client.declare(f"orders-{number}", TARGET)
            await node.die(f"orders-{number}", [b"1"])
        async with asyncio.timeout(PATIENCE_S):
            while not sent or len(dropped) < len(sent):  # whose batches are under way, keep no others
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        assert len(sent) <= 2 + 2, sent

    on_node(scenario)


def test_a_queue_that_joins_others_says_why_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_queues, "PAUSES_S", (LONG_S,))

    async def scenario(node: Node) -> None:
        await node.client.declare("grave", {"x-max-length": 1, **SMALL})
        await node.client.publish("grave", b"0")
        for queue in ("orders", "bills"):
            await node.client.declare(queue, TARGET)
            await node.die(queue, [b"1"])
            info = await node.until(queue, lambda info: info.dead_letter_problem)
            assert info.dead_letter_problem.startswith("QUEUE_FULL")

    on_node(scenario)


def test_whatever_stops_a_queue_is_told_after_three_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise ValueError("no letter")

    monkeypatch.setattr(worker, "letter_of", broken)

    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        await node.client.declare("orders", TARGET)
        await node.die("orders", [b"1"])
        info = await node.until("orders", lambda info: info.dead_letter_problem)
        assert info.dead_letter_problem == "FAILED: ValueError: no letter"

    on_node(scenario)


def test_the_process_ends_if_letters_are_not_forwarded_any_more() -> None:
    async def run() -> None:
        async def fails() -> None:
            raise ValueError("a defect")

        async def waits() -> None:
            await asyncio.sleep(2 * LONG_S)

        with pytest.raises(ValueError, match="a defect"):
            await process._until(asyncio.Event(), [waits(), fails()])
        port = asyncio.create_task(fails())
        with pytest.raises(ValueError, match="a defect"):
            await process._until(asyncio.Event(), [waits()], [port])

    asyncio.run(run())


# ---- letters that the target does not take


@pytest.mark.parametrize("strategy", ["at-least-once", "at-most-once"])
def test_a_letter_that_is_too_large_with_its_history_goes_without(strategy: str) -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare(
            "grave", {"x-filter-enabled": True, "x-filter-max-in-memory-bytes-per-msg": 100}
        )
        await node.client.declare("orders", {**TARGET, "x-dead-letter-strategy": strategy})
        await node.die("orders", [Message(b"1", None, {"n": 1}), Message(b"2", None, {"n": 2})])
        await node.until("grave", lambda info: info.ready == 2)
        for message in await node.client.get("grave", 2):
            assert set(message.application_properties) == {"n"}

    on_node(scenario)


@pytest.mark.parametrize("strategy", ["at-least-once", "at-most-once"])
def test_a_letter_that_is_too_large_with_its_history_is_not_lost_between_others(strategy: str) -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare(
            "grave", {"x-filter-enabled": True, "x-filter-max-in-memory-bytes-per-msg": 600}
        )
        await node.client.declare("orders", {**TARGET, "x-dead-letter-strategy": strategy})
        await node.die("orders", [b"1", Message(b"2", None, {"n": "x" * 500}), b"3"])
        await node.until("grave", lambda info: info.ready == 3)
        found = {
            message.body: set(message.application_properties) for message in await node.client.get("grave", 3)
        }
        assert "x-death" in found[b"1"] and found[b"2"] == {"n"} and "x-death" in found[b"3"]

    on_node(scenario)


def test_a_letter_that_is_too_large_holds_up_no_other_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_queues, "PAUSES_S", (LONG_S,))

    async def scenario(node: Node) -> None:
        await node.client.declare(
            "grave", {"x-filter-enabled": True, "x-filter-max-in-memory-bytes-per-msg": 100}
        )
        for queue in ("orders", "bills"):
            await node.client.declare(queue, TARGET)
        await node.die("orders", [Message(b"1", None, {"n": "x" * 200})])
        info = await node.until("orders", lambda info: info.dead_letter_problem)
        assert info.dead_letter_problem.startswith("METADATA_TOO_LARGE")
        await node.die("bills", [b"2"])
        await node.until("grave", lambda info: info.ready == 1)

    on_node(scenario)


def test_what_is_larger_than_clients_may_publish_now_is_forwarded() -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        await node.client.declare("orders", TARGET)
        await node.client.publish_batch("orders", [bytes(50_000)])
        limits = node.api.hub.limits
        node.api.hub.limits = type(limits)(limits.max_messages, 1_000, 1_000)
        await node.client.discard(await node.client.get("orders", 1), wait=True)
        await node.until("grave", lambda info: info.ready == 1)

    on_node(scenario)


def test_at_most_once_drops_the_letters_of_a_missing_target() -> None:
    async def scenario(node: Node) -> None:
        await node.client.declare("orders", {**TARGET, "x-dead-letter-strategy": "at-most-once"})
        await node.die("orders", [b"1", b"2"])
        info = await node.until("orders", lambda info: info.totals.rejected == 2)
        assert (info.dead, info.totals.dead_lettered) == (0, 0)

    on_node(scenario)


def test_at_most_once_does_not_wait_with_others_for_a_full_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_queues, "PAUSES_S", (LONG_S,))

    async def scenario(node: Node) -> None:
        await node.client.declare("grave", {"x-max-length": 1, **SMALL})
        await node.client.publish("grave", b"0")
        await node.client.declare("orders", TARGET)
        await node.client.declare("bills", {**TARGET, "x-dead-letter-strategy": "at-most-once"})
        await node.die("orders", [b"1"])
        await node.until("orders", lambda info: info.dead_letter_problem)
        await node.die("bills", [b"2"])
        await node.until("bills", lambda info: info.totals.rejected == 1)

    on_node(scenario)


def test_only_the_leaders_node_has_work() -> None:
    async def run() -> None:
        async with serving(3, 3) as (url, apis), quorum.connect(url) as client:
            await client.declare("orders", TARGET)
            await Node(url, apis[0], client).die("orders", [b"1"])
            async with asyncio.timeout(PATIENCE_S):
                while not (await client.describe("orders")).queue.dead_letter_problem:
                    await asyncio.sleep(0.05)
            found = apis[0].hub.catalog.queue("orders")
            assert found is not None
            query = FindDeadWork(found.group, found.id, 1)
            works = [await api.hub.requests.query(query) for api in apis]
            assert len([work for work in works if work is not None]) == 1

    asyncio.run(run())


def result_of(confirms: Confirms, count: int, barred: set[int]) -> worker._Result:
    """What a worker's session makes of the outcome of a batch whose first letter has the number 7."""

    class Publisher:
        async def forward(self, *_: object, **__: object) -> set[int]:
            return barred

    async def turns() -> Any:
        yield [confirms]

    async def run() -> worker._Result:
        session = worker._Session.__new__(worker._Session)
        session._session = SimpleNamespace(publisher=Publisher())  # type: ignore[assignment]
        session._turns = turns()
        batch = worker._Batch(7, [letter_of(None, Death("a", "maxlen", 1))] * count, b"")
        config = SimpleNamespace(
            dead_letter_exchange="", dead_letter_routing_key="", name="a", dead_letter_strategy="at_most_once"
        )
        return await session.send(config, batch)  # type: ignore[arg-type]

    return asyncio.run(run())


FULL = status.make(status.Code.RESOURCE_EXHAUSTED, "queue_full", "full")


def test_letters_that_close_a_cycle_do_not_count_as_forwarded_if_their_batch_is_refused() -> None:
    result = result_of(Confirms((Span(7, 7),), (Rejection(Span(8, 9), FULL),)), 3, {0, 2})
    assert (result.taken, result.forwarded, result.forwarded_in_all) == (1, 0, 0)
    assert result.why == FULL and result.is_anywhere


def test_only_neighbours_of_the_first_late_letter_get_new_numbers() -> None:
    late = replace(FULL, reason="refused_earlier")
    spans = ((8, 9), (11, 11))
    late_ones = tuple([Rejection(Span(first, last), late) for first, last in spans])
    result = result_of(Confirms((Span(7, 7), Span(10, 10)), late_ones), 5, set())
    assert (result.taken, result.refused_earlier) == (1, 2)


def test_a_batch_that_all_groups_refuse_as_a_whole_is_nowhere() -> None:
    assert not result_of(Confirms((), (Rejection(Span(7, 8), FULL),)), 2, set()).is_anywhere


def test_a_letter_that_one_of_its_groups_has_counts_also_behind_one_that_no_group_has() -> None:
    partly = replace(FULL, metadata=((status.MAY_BE_IN, "other"),))
    result = result_of(Confirms((), (Rejection(Span(7, 7), FULL), Rejection(Span(8, 8), partly))), 2, set())
    assert (result.taken, result.why) == (0, FULL)
    assert result.is_anywhere


# ---- what is in doubt


def test_a_letter_whose_settlement_failed_is_in_its_target_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has it, and the queue does not know: the next worker sends it again under its number."""
    settle, failed = worker._Worker._settle, []

    async def fails_once(worker: Any, to: int, *rest: int) -> None:
        if to and not failed:
            failed.append(to)
            raise status.StatusError(FULL)
        await settle(worker, to, *rest)

    monkeypatch.setattr(worker._Worker, "_settle", fails_once)

    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        await node.client.declare("orders", TARGET)
        await node.die("orders", [b"1"])
        await node.until("orders", lambda info: info.dead == 0)
        assert failed == [1] and (await node.work("orders")).epoch == 2
        assert (await node.client.describe("grave")).queue.ready == 1

    on_node(scenario)


def test_what_an_earlier_worker_has_sent_stays_in_doubt_until_it_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The target has a letter of the first worker. The second one hears that no group has it, and waits."""
    settle, send = worker._Worker._settle, worker._Session.send
    failed, refused = [], []

    async def fails_once(worker: Any, to: int, *rest: int) -> None:
        if to and not failed:
            failed.append(to)
            raise status.StatusError(FULL)
        await settle(worker, to, *rest)

    async def is_refused_once(session: Any, config: Any, batch: Any) -> worker._Result:
        result = await send(session, config, batch)
        if failed and not refused:
            refused.append(batch.first)
            return worker._Result([FULL] * len(batch.letters), set())
        return result

    monkeypatch.setattr(worker._Worker, "_settle", fails_once)
    monkeypatch.setattr(worker._Session, "send", is_refused_once)

    async def scenario(node: Node) -> None:
        await node.client.declare("grave")
        await node.client.declare("orders", TARGET)
        await node.die("orders", [b"1"])
        await node.until("orders", lambda info: info.dead == 0)
        assert failed == refused == [1]
        assert (await node.client.describe("grave")).queue.ready == 1

    on_node(scenario)


# ---- batches


class Reader:
    """One stored batch in the place of the log."""

    def __init__(self, batch: pb.MessageBatch) -> None:
        self._batch = StoredBatch(batch)

    def parts(self, group: int, run: Run) -> Iterator[Any]:
        yield self._batch, run.ordinal, run.count


def next_batch(batch: pb.MessageBatch, claims: list[tuple[int, int, int]], most: int = 512) -> Any:
    """claims: number, ordinal and count of each."""
    claimed = [
        ClaimedRun(number, Run(1 + ordinal, count, 1, 0, ordinal), "rejected", 5)
        for number, ordinal, count in claims
    ]
    return worker._next_batch(Reader(batch), 1, "orders", claimed, most, False)  # type: ignore[arg-type]


def stored(count: int, shared_bytes: int = 0) -> pb.MessageBatch:
    batch = pb.MessageBatch(count=count, bodies=bytes(count), body_ends=list(range(1, count + 1)))
    if shared_bytes:
        batch.shared_properties.application_properties["p"].text = "x" * shared_bytes
    return batch


def test_a_batch_ends_where_a_number_is_missing() -> None:
    made = next_batch(stored(6), [(4, 0, 2), (6, 3, 1), (9, 4, 2)])
    assert (made.first, made.last) == (4, 6)
    assert pb.MessageBatch.FromString(made.data).count == 3


def test_shared_properties_are_not_multiplied() -> None:
    claims = [(1 + n, 2 * n, 1) for n in range(100)]
    made = next_batch(stored(200, 60_000), claims)
    assert (made.first, made.last) == (1, 100)
    assert len(made.data) < 70_000
    found = pb.MessageBatch.FromString(made.data)
    assert found.HasField("shared_properties") and not found.properties


def test_a_batch_counts_the_properties_of_each_letter() -> None:
    batch = stored(100)
    for _ in range(100):
        batch.properties.add().application_properties["p"].text = "x" * 60_000
    made = next_batch(batch, [(1, 0, 100)])
    assert 10 < len(made.letters) < 20
    assert len(made.data) < 1.1 * worker.BATCH_BYTES
