"""A batch that its group had taken was refused for good when it was sent again, where a limit had changed meanwhile.
A client that called all its messages old was never refused for a low disk. The group says what it has taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from google.rpc import code_pb2

from quorum.api.hub import member_requests
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import Confirms
from quorum.api.status import StatusError
from quorum.catalog.queues import CatalogQueue
from quorum.node import events as ev
from quorum.node.wire.batches import BatchLimits
from support.members.cluster import Cluster, Session, batch
from support.members.services import Api

PRODUCER = b"p" * 16
LONG = b"longer than the limit"
Ranges = list[tuple[int, int]]


LIMITS = BatchLimits(max_messages=100, max_message_bytes=10, max_batch_bytes=1_000)


class Edge(Api):
    """The API of one member, and what a client sends on a stream to it."""

    def open(self, epoch: int, first_new: int) -> ClientSession:
        session = ClientSession(self.hub)
        session.open(PRODUCER, epoch, owner=7, first_new=first_new)
        return session

    async def publish(
        self, session: ClientSession, first: int, *bodies: bytes
    ) -> tuple[Ranges, Ranges, set[str]]:
        """(confirmed, rejected, why) when it is decided."""
        await self.call(session.publisher.publish("orders", first, 1, batch(bodies)))
        self.cluster.until(lambda: not session._commands.undecided, "the batch is decided")
        decided = [each for each in session.outbox.take() if isinstance(each, Confirms)]
        rejected = [each for confirms in decided for each in confirms.rejected]
        return (
            [tuple(span) for confirms in decided for span in confirms.confirmed],
            [tuple(each.span) for each in rejected],
            {each.why.reason.upper() for each in rejected},
        )


class World:
    """Three members with the queue "orders". `edge` is at the member that leads its group."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.ready()
        self.group, self.queue = self.cluster.declare("orders")
        leader = self.cluster.leader(self.group)
        assert leader is not None
        self.edge = Edge(self.cluster, leader, LIMITS)
        other = next(name for name in self.cluster.names if name != leader)
        self.earlier = Session(self.cluster, other, PRODUCER)

    def take(self, *bodies: bytes) -> None:
        """The group takes a batch in the producer's first session; its client does not hear of it."""
        first, last = self.earlier.publish(self.group, self.queue, *bodies)
        self.cluster.until(
            lambda: set(range(first, last + 1)) <= set(self.earlier.confirmed()), "the batch is taken"
        )

    @property
    def ready(self) -> int:
        return self.cluster.info(self.edge.name, self.group, self.queue).ready


def in_world(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await scenario(World())

    asyncio.run(body())


def test_what_was_taken_before_is_confirmed_although_a_limit_would_refuse_it_now() -> None:
    async def scenario(world: World) -> None:
        world.take(LONG, LONG)
        session = world.edge.open(2, first_new=5)
        assert await world.edge.publish(session, 1, LONG) == ([(1, 1)], [], set())
        assert await world.edge.publish(session, 2, LONG, LONG, LONG) == (
            [(2, 2)],
            [(3, 4)],
            {"MESSAGE_TOO_LARGE"},
        )
        assert await world.edge.publish(session, 5, LONG) == ([], [(5, 5)], {"MESSAGE_TOO_LARGE"})
        assert await world.edge.publish(session, 6, b"short") == ([(6, 6)], [], set())
        assert world.ready == 3

    in_world(scenario)


def test_what_was_refused_is_not_taken_when_it_arrives_late_in_an_earlier_session() -> None:
    async def scenario(world: World) -> None:
        world.cluster.isolate(world.earlier.name)
        world.earlier.publish(world.group, world.queue, LONG)
        session = world.edge.open(2, first_new=2)
        assert await world.edge.publish(session, 1, LONG) == ([], [(1, 1)], {"MESSAGE_TOO_LARGE"})
        world.cluster.heal()
        world.cluster.until(
            lambda: world.earlier.ended == "fenced", "the earlier session hears that it is over"
        )
        assert world.ready == 0

    in_world(scenario)


@pytest.mark.parametrize(
    ("epoch", "first_new"), [(1, 1 << 63), (2, 1 << 63), (2, 0)], ids=["first", "later", "not told"]
)
def test_a_client_that_calls_its_messages_old_is_refused_where_a_disk_is_low(
    epoch: int, first_new: int
) -> None:
    async def scenario(world: World) -> None:
        if epoch > 1:
            world.take(b"1", b"2")
        session = world.edge.open(epoch, first_new)
        world.edge.hub._dispatch([ev.DisksLow({world.group: (ev.LowDisk("n2", 1, 2),)})])
        before = world.ready
        if epoch > 1:
            assert await world.edge.publish(session, 1, b"1", b"2", b"3") == (
                [(1, 2)],
                [(3, 3)],
                {"DISK_LOW"},
            )
        last_index = world.cluster.members[world.edge.name].replicas[world.group].raft.last_index
        for first in range(10, 20):
            assert await world.edge.publish(session, first, b"x") == ([], [(first, first)], {"DISK_LOW"})
        raft = world.cluster.members[world.edge.name].replicas[world.group].raft
        assert raft.last_index <= last_index + 2, "one question, however much is refused"
        assert world.ready == before
        world.edge.hub._dispatch([ev.DisksLow({})])
        assert await world.edge.publish(session, 20, b"x") == ([(20, 20)], [], set())

    in_world(scenario)


def test_nothing_is_refused_for_good_while_nobody_can_tell_what_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_requests, "NO_LEADER_POLL_S", 0.0)

    async def scenario(world: World) -> None:
        world.take(LONG)
        session = world.edge.open(2, first_new=2)
        world.cluster.isolate(world.edge.name)
        world.cluster.until(
            lambda: world.cluster.members[world.edge.name].replicas[world.group].raft.leader is None,
            "the member knows no leader",
        )
        with pytest.raises(StatusError) as ended:
            await world.edge.publish(session, 1, LONG)
        assert ended.value.status.code == code_pb2.UNAVAILABLE
        assert len(session.outbox) == 0

    in_world(scenario)


def test_a_node_that_takes_the_name_for_a_deleted_queue_refuses_nothing_for_good() -> None:
    async def scenario(world: World) -> None:
        world.take(LONG)
        session = world.edge.open(2, first_new=2)
        present = await world.edge.hub.requests.queue("orders")

        async def deleted(name: str) -> CatalogQueue:
            return replace(present, id=present.id + 1)

        world.edge.hub.requests.queue = deleted  # type: ignore[method-assign]
        with pytest.raises(StatusError, match="its name may belong to another queue now"):
            await world.edge.publish(session, 1, LONG)
        assert len(session.outbox) == 0

    in_world(scenario)
