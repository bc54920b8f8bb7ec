"""Found by seeded chaos: a queue whose removal overtook its creation stayed in its group for ever."""

from __future__ import annotations

import asyncio

import pytest

from fifo.commands import CreateQueue, QueueConfig
from quorum.catalog.commands import RemoveQueue
from quorum.node.replica import reconciler
from quorum.v1 import admin_pb2
from support.members.cluster import Cluster
from support.members.services import Api, Context


def test_a_queue_that_the_catalog_no_longer_has_is_deleted_when_its_creation_arrives_late() -> None:
    cluster = Cluster()
    cluster.ready()
    places = [cluster.declare(f"q{number}") for number in range(3)]
    group = places[0][0]
    elsewhere = next(queue for other, queue in places if other != group)
    leader = cluster.leader(group)
    assert leader is not None
    cluster.run(1_000)  # everything is carried out, nothing is left to look at
    cluster.members[leader].replicas[group].propose_internal(CreateQueue(elsewhere, QueueConfig("late")))
    machine = cluster.members[leader].queue_machine(group)
    cluster.until(lambda: machine.was_deleted(elsewhere), "the late queue is deleted again", limit_ms=5_000)
    assert machine.queue_ids() == [queue for other, queue in places if other == group]


def test_a_queue_that_is_removed_before_its_group_has_it_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group's leader proposes nothing meanwhile, as during an election."""
    monkeypatch.setattr(reconciler, "_reconcile_queues", lambda *_: False)
    cluster = Cluster(1)
    cluster.ready()

    async def run() -> None:
        api = Api(cluster, "n1")
        request = admin_pb2.DeclareQueueRequest(queue="orders")
        declaring = asyncio.create_task(api.admin.DeclareQueue(request, Context()))  # type: ignore[arg-type]
        while (queue := api.hub.catalog.queue("orders")) is None:
            cluster.run(5)
            await asyncio.sleep(0)
        cluster.run(100)
        await asyncio.sleep(0)
        assert not cluster.members["n1"].queue_machine(queue.group).has_queue(queue.id)
        assert not declaring.done()
        cluster.administer(RemoveQueue("orders"))
        async with asyncio.timeout(60):
            assert (await api.call(declaring)).created, "it was declared, and deleted since"
        assert len(cluster.members["n1"].questions) == 0

    asyncio.run(run())
