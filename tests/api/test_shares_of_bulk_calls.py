"""Subscriptions, pins and producers of staged batches count for the address of the call (quorum/api/owners.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from fifo import commands as c
from fifo.effects import Ok
from fifo.limits import PRODUCTION
from fifo.queue_machine import QueueMachine
from quorum.api.owners import owner_of
from quorum.api.security.access import USER
from quorum.catalog.users import User
from quorum.v1 import bulk_pb2 as pb
from support.members.cluster import Cluster, Session, batch
from support.members.services import Aborted, Api, Context

PLACES = 4

Call = Callable[[Api, Context, str], Coroutine[Any, Any, Any]]


def open_subscription(api: Api, context: Context, name: str) -> Coroutine[Any, Any, Any]:
    return api.bulk.OpenSubscription(pb.OpenSubscriptionRequest(queue="orders", subscription=name), context)  # type: ignore[arg-type]


def open_view(api: Api, context: Context, name: str) -> Coroutine[Any, Any, Any]:
    return api.bulk.OpenView(pb.OpenViewRequest(queue="orders"), context)  # type: ignore[arg-type]


def publish(api: Api, context: Context, name: str) -> Coroutine[Any, Any, Any]:
    """Something is staged, so the producer is remembered although the batch is empty."""
    queue = api.hub.catalog.queue("orders")
    assert queue is not None
    chunk = c.Stage(queue.id, name, 1, bytes(16), 0, 1, 1)
    assert Session(api.cluster, api.name).call(queue.group, chunk, batch([b"x"])) == Ok(1)
    request = pb.PublishStagedRequest(queue="orders", producer=name, batch=1, parts=[])
    return api.bulk.Publish(request, context)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "owners"),
    [
        (open_subscription, lambda queue: [each.owner for each in queue.subscriptions.by_name.values()]),
        (open_view, lambda queue: [each.owner for each in queue.pins.by_number.values()]),
        (publish, lambda queue: [each.owner for each in queue.staging.last_batches.values()]),
    ],
    ids=["reader", "pin", "producer"],
)
def test_what_a_bulk_call_makes_counts_for_the_address_it_came_from(
    call: Call, owners: Callable[[QueueMachine], list[int]]
) -> None:
    peers = ["ipv4:10.0.0.7:1", "ipv4:10.0.0.8:1", "ipv4:10.0.0.7:2"]
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")

    async def run() -> None:
        api = Api(cluster, "n1")
        for number, peer in enumerate(peers):
            await api.call(call(api, Context(peer), f"name-{number}"))

    asyncio.run(run())
    cluster.settle()
    for member in cluster.members.values():
        assert owners(member.queue_machine(group).queues[queue]) == [owner_of(peer) for peer in peers]


async def requests(producer: str) -> AsyncIterator[pb.StageRequest]:
    made = pa.RecordBatch.from_pydict({"body": [b"x"] * 3})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as stream:
        stream.write_batch(made)
    yield pb.StageRequest(
        queue="orders", producer=producer, part=bytes(16), arrow=sink.getvalue().to_pybytes()
    )


def test_another_user_s_producer_is_forgotten_by_an_administrator_only() -> None:
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")

    async def forget(api: Api, user: User | None) -> None:
        USER.set(user)
        peer = Context("ipv4:10.0.0.9:1" if user is None else f"user:{user.name}")
        discard = pb.DiscardStagedRequest(queue="orders", producer="nightly", forget=True)
        await api.call(api.bulk.Discard(discard, peer))  # type: ignore[arg-type]

    def is_known() -> bool:
        cluster.settle()
        return "nightly" in cluster.members["n1"].queue_machine(group).queues[queue].staging.last_batches

    async def run() -> None:
        api = Api(cluster, "n1")
        anna, ben = User("anna", "", write="*"), User("ben", "", write="*")
        await forget(api, ben)  # it is not known yet
        for may in (anna, User("root", "", administers=True), None):
            await api.call(publish(api, Context("user:anna"), "nightly"))
            with pytest.raises(Aborted, match="another user has published with the producer 'nightly'"):
                await forget(api, ben)
            assert is_known()
            await forget(api, may)
            assert not is_known()

    asyncio.run(run())


@pytest.mark.parametrize("forget", [False, True], ids=["kept", "forgotten"])
def test_producers_that_are_used_once_and_forgotten_take_no_places(forget: bool) -> None:
    cluster = Cluster(limits=replace(PRODUCTION, known_producers=PLACES))
    cluster.ready()
    group, queue = cluster.declare("orders")
    published = 0

    async def write(api: Api, producer: str) -> None:
        nonlocal published
        staged = await api.call(api.bulk.Stage(requests(producer), Context()))  # type: ignore[arg-type]
        assert staged.rows == 3
        part = pb.StagedPart(part=bytes(16), rows=3)
        publish = pb.PublishStagedRequest(
            queue="orders", producer=producer, parts=[part], staged_to=staged.index
        )
        done = await api.call(api.bulk.Publish(publish, Context()))  # type: ignore[arg-type]
        published += done.count
        discard = pb.DiscardStagedRequest(queue="orders", producer=producer, forget=forget)
        await api.call(api.bulk.Discard(discard, Context()))  # type: ignore[arg-type]

    async def run() -> None:
        api = Api(cluster, "n1")
        for number in range(2 * PLACES):
            await write(api, f"once-{number}")

    if forget:
        asyncio.run(run())
        assert published == 3 * 2 * PLACES
    else:
        with pytest.raises(Aborted, match="2 producers of staged batches of this client address"):
            asyncio.run(run())
        assert published == 3 * 2
    cluster.settle()
    for member in cluster.members.values():
        assert bool(member.queue_machine(group).queues[queue].staging.last_batches) != forget
