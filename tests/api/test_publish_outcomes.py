"""What the errors of unary publishes and gets say, on a member whose leader is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quorum.api.hub import member_requests, published_state
from quorum.v1 import queue_pb2 as pb
from support.members.cluster import Cluster
from support.members.services import Aborted, Api

ONE = pb.Message(body=b"one")


@pytest.fixture(autouse=True)
def few_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_requests, "NO_LEADER_POLL_S", 0.05)
    monkeypatch.setattr(member_requests, "SERVED_POLL_S", 0.01)


def on_follower(run: Callable[[Api, Cluster, list[str]], Awaitable[None]]) -> None:
    """Runs it on a member that leads no group of the queue, with the names of the other members."""
    cluster = Cluster(3, queue_groups=1)

    async def body() -> None:
        cluster.ready()
        group, _ = cluster.declare("orders")
        cluster.settle()
        leader = cluster.leader(group)
        name = next(each for each in cluster.names if each != leader)
        api = Api(cluster, name)
        cluster.run(1_000)  # its lease is renewed
        await run(api, cluster, [each for each in cluster.names if each != name])

    asyncio.run(body())


async def published(api: Api, cluster: Cluster, others: list[str]) -> int:
    """The messages that the queue has got once the other members are back."""
    for name in others:
        cluster.start(name)
    cluster.ready()
    cluster.run(5_000)
    return int((await api.info()).next_sequence) - 1


def test_a_publish_that_is_refused_without_a_leader_is_never_published() -> None:
    async def run(api: Api, cluster: Cluster, others: list[str]) -> None:
        await api.publish(ONE)
        for name in others:
            cluster.crash(name)
        cluster.run(10_000)
        for _ in range(3):
            with pytest.raises(Aborted, match="has no leader") as failed:
                await api.publish(ONE)
            assert "publishing it again" not in str(failed.value)
        assert await published(api, cluster, others) == 1

    on_follower(run)


def test_a_publish_whose_leader_is_lost_meanwhile_has_an_unknown_outcome_and_is_not_sent_again() -> None:
    async def run(api: Api, cluster: Cluster, others: list[str]) -> None:
        for name in others:
            cluster.crash(name)
        with pytest.raises(
            Aborted, match="publishing it again may double its messages: group 1 has no leader"
        ):
            await api.publish(ONE)
        assert await published(api, cluster, others) == 0

    on_follower(run)


def test_a_get_without_a_lease_says_to_repeat_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_state, "LEASE_LIMIT_S", 0.05)

    async def run(api: Api, cluster: Cluster, others: list[str]) -> None:
        for name in others:
            cluster.crash(name)
        cluster.run(10_000)
        with pytest.raises(Aborted, match="lost its lease; repeat the call, at any member"):
            await api.get(1)

    on_follower(run)
