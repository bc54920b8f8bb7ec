"""Subscriptions, pins and producers of staged batches count for the address of the call (quorum/api/owners.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Ok
from fifo.queue_machine import QueueMachine
from quorum.api.owners import owner_of
from quorum.v1 import bulk_pb2 as pb
from support.cluster import Cluster, Session, batch
from support.services import Api, Context

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
