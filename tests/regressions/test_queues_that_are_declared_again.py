"""A name may belong to another queue than the one that a node knows. What was answered at any node before a call began
counts at every node: a queue that exists is found under its name, however far behind the node is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.replica.replicas import KIND_RAFT
from quorum.v1 import admin_pb2, bulk_pb2, queue_pb2
from support.members.cluster import Cluster, Session, batch
from support.members.services import Aborted, Api, Context, collected

QUEUE_GROUP = 1


def behind(cluster: Cluster, name: str, until_ms: dict[int, int]) -> None:
    """This member hears nothing of these groups until then."""
    carry = cluster.carry

    def held(sender: str, to: str, kind: int, data: bytes) -> None:
        group = int.from_bytes(data[:4], "little")
        if to != name or kind != KIND_RAFT or cluster.now_ms >= until_ms.get(group, 0):
            carry(sender, to, kind, data)

    cluster.carry = held  # type: ignore[method-assign]


def declared_again(cluster: Cluster, *, late: tuple[int, ...]) -> Api:
    """The services of a member that is behind in these groups. It knows the queue "orders" under the id it had; another
    member has deleted it, declared it again, and confirmed a message in it. It catches up while it is asked."""
    cluster.ready()
    group, old = cluster.declare("orders")
    cluster.settle()
    leaders = (cluster.leader(SYSTEM_GROUP), cluster.leader(group))
    name = next(each for each in cluster.names if each not in leaders)
    other = next(each for each in cluster.names if each != name)
    until_ms = dict.fromkeys(late, 1 << 62)
    behind(cluster, name, until_ms)
    up_to_date = [each for each in cluster.names if each != name or group not in late]
    admin = Session(cluster, other)
    admin.call(SYSTEM_GROUP, RemoveQueue("orders"))
    admin.call(SYSTEM_GROUP, DeclareQueue("orders", ()))
    found = cluster.members[other].catalog.queue("orders")
    assert found is not None
    session = Session(cluster, other)

    def is_new(each: str) -> bool:
        machine = cluster.members[each].queue_machine(group)
        return machine.was_deleted(old) and machine.has_queue(found.id)

    cluster.until(lambda: all(is_new(each) for each in up_to_date), "the new queue is there")
    session.publish(group, found.id, b"first")
    cluster.until(lambda: session.confirmed() == [1], "a confirm")
    known = cluster.members[name].catalog.queue("orders")
    assert known is not None
    assert known.id == old
    until_ms.update(dict.fromkeys(late, cluster.now_ms + 300))
    if SYSTEM_GROUP in late:
        until_ms[SYSTEM_GROUP] += 700  # the queue's group is heard of first
    return Api(cluster, name)


def with_queue_declared_again(
    late: tuple[int, ...], run: Callable[[Api], Awaitable[None]], **config: Any
) -> None:
    cluster = Cluster(queue_groups=1, **config)

    async def body() -> None:
        await run(declared_again(cluster, late=late))

    asyncio.run(body())


LATE = pytest.mark.parametrize("late", [(SYSTEM_GROUP,), (SYSTEM_GROUP, QUEUE_GROUP)])


async def bodies(api: Api) -> list[bytes]:
    request = queue_pb2.BrowseRequest(queue="orders")
    found = await api.call(collected(api.queues.Browse(request, Context())))  # type: ignore[arg-type]
    return [each.message.body for response in found for each in response.messages]


@LATE
def test_browse_shows_what_was_confirmed_in_the_new_queue(late: tuple[int, ...]) -> None:
    async def run(api: Api) -> None:
        assert await bodies(api) == [b"first"]

    with_queue_declared_again(late, run)


@LATE
def test_a_publish_goes_to_the_new_queue(late: tuple[int, ...]) -> None:
    async def run(api: Api) -> None:
        request = queue_pb2.PublishRequest(queue="orders", messages=[queue_pb2.Message(body=b"second")])
        await api.call(api.queues.Publish(request, Context()))  # type: ignore[arg-type]
        assert await bodies(api) == [b"first", b"second"]

    with_queue_declared_again(late, run)


@LATE
def test_a_get_takes_from_the_new_queue(late: tuple[int, ...]) -> None:
    async def run(api: Api) -> None:
        taken = await api.call(api.queues.Get(queue_pb2.GetRequest(queue="orders"), Context()))  # type: ignore[arg-type]
        assert [each.message.body for each in taken.messages] == [b"first"]

    with_queue_declared_again(late, run)


def test_queue_info_is_of_the_new_queue() -> None:
    async def run(api: Api) -> None:
        info = await api.call(api.bulk.QueueInfo(bulk_pb2.QueueInfoRequest(queue="orders"), Context()))
        assert info.ready == 1

    with_queue_declared_again((SYSTEM_GROUP,), run)


@LATE
def test_a_delete_of_the_old_queue_is_refused_and_the_new_one_stays(late: tuple[int, ...]) -> None:
    async def run(api: Api) -> None:
        old = api.cluster.members[api.name].catalog.queue("orders")
        assert old is not None
        request = admin_pb2.DeleteQueueRequest(queue="orders", id=old.id)
        with pytest.raises(Aborted, match=f"no queue 'orders' with the id {old.id}"):
            await api.call(api.admin.DeleteQueue(request, Context()))  # type: ignore[arg-type]
        assert (await api.info()).ready == 1

    with_queue_declared_again(late, run)


@LATE
def test_a_delete_by_id_of_the_new_queue_is_done_though_the_node_is_behind(late: tuple[int, ...]) -> None:
    async def run(api: Api) -> None:
        leader = api.cluster.members[api.cluster.leader(SYSTEM_GROUP)]
        new = leader.catalog.queue("orders")
        assert new is not None
        request = admin_pb2.DeleteQueueRequest(queue="orders", id=new.id)
        answer = await api.call(api.admin.DeleteQueue(request, Context()))  # type: ignore[arg-type]
        assert answer.message_count == 1
        assert not (await api.list()).queues

    with_queue_declared_again(late, run)


@LATE
def test_a_purge_of_the_old_queue_is_refused_and_leaves_the_new_one(late: tuple[int, ...]) -> None:
    async def run(api: Api) -> None:
        old = api.cluster.members[api.name].catalog.queue("orders")
        assert old is not None
        request = admin_pb2.PurgeQueueRequest(queue="orders", id=old.id, before_sequence=10)
        with pytest.raises(Aborted, match="no queue"):
            await api.call(api.admin.PurgeQueue(request, Context()))  # type: ignore[arg-type]
        assert (await api.info()).ready == 1

    with_queue_declared_again(late, run)


def test_a_purge_removes_only_what_is_before_the_sequence_that_it_names() -> None:
    async def run(api: Api) -> None:
        queue = await api.info()
        publish = queue_pb2.PublishRequest(queue="orders", messages=[queue_pb2.Message(body=b"second")])
        await api.call(api.queues.Publish(publish, Context()))  # type: ignore[arg-type]
        request = admin_pb2.PurgeQueueRequest(
            queue="orders", id=queue.id, before_sequence=queue.next_sequence
        )
        answer = await api.call(api.admin.PurgeQueue(request, Context()))  # type: ignore[arg-type]
        assert answer.message_count == 1
        assert await bodies(api) == [b"second"]
        wrong = admin_pb2.PurgeQueueRequest(queue="orders", before_sequence=2)
        with pytest.raises(Aborted, match="before_sequence 2 without an id"):
            await api.call(api.admin.PurgeQueue(wrong, Context()))  # type: ignore[arg-type]

    with_queue_declared_again((SYSTEM_GROUP,), run)


class Client:
    """One Session call; requests are sent as they are given."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.requests: asyncio.Queue[queue_pb2.SessionRequest | None] = asyncio.Queue()
        self.responses: list[queue_pb2.SessionResponse] = []

    def peer(self) -> str:
        return "ipv4:10.0.0.7:51234"

    async def write(self, response: queue_pb2.SessionResponse) -> None:
        self.responses.append(response)

    async def abort_with_status(self, status: Any) -> None:
        raise Aborted(status.code, status.details)

    async def __aiter__(self) -> AsyncIterator[queue_pb2.SessionRequest]:
        while (request := await self.requests.get()) is not None:
            yield request

    async def publish(self, epoch: int, body: bytes) -> list[tuple[int, int]]:
        """Publishes one message with the number 1; the numbers that are confirmed in the call."""
        opened = queue_pb2.Open(producer_id=bytes(16), epoch=epoch, first_new_sequence=1)
        sent = queue_pb2.PublishBatch(
            routing_key="orders", first_sequence=1, lowest_unconfirmed=1, batch=batch([body])
        )
        for request in (queue_pb2.SessionRequest(open=opened), queue_pb2.SessionRequest(publish=sent), None):
            self.requests.put_nowait(request)
        await self.api.call(self.api.queues.Session(aiter(self), self))  # type: ignore[arg-type]
        rejected = [each for response in self.responses for each in response.confirms.rejected]
        assert not rejected
        return [
            (each.first, each.last) for response in self.responses for each in response.confirms.confirmed
        ]


def test_a_session_publishes_to_the_new_queue() -> None:
    async def run(api: Api) -> None:
        assert await Client(api).publish(1, b"second") == [(1, 1)]
        assert await bodies(api) == [b"first", b"second"]

    with_queue_declared_again((SYSTEM_GROUP,), run)


def test_a_session_whose_batch_went_to_the_old_queue_ends_and_its_client_sends_the_batch_again() -> None:
    async def run(api: Api) -> None:
        with pytest.raises(Aborted) as ended:
            await Client(api).publish(1, b"second")
        assert ended.value.args[0] == grpc.StatusCode.UNAVAILABLE
        assert await Client(api).publish(2, b"second") == [(1, 1)]
        assert await bodies(api) == [b"first", b"second"]

    with_queue_declared_again((SYSTEM_GROUP, QUEUE_GROUP), run)


def test_a_queue_that_is_gone_for_good_is_not_found() -> None:
    async def run(api: Api) -> None:
        other = next(name for name in api.cluster.names if name != api.name)
        Session(api.cluster, other).call(SYSTEM_GROUP, RemoveQueue("orders"))
        with pytest.raises(Aborted, match="there is no queue 'orders'"):
            await bodies(api)

    with_queue_declared_again((SYSTEM_GROUP,), run)
