"""What operators of other brokers complain about, each as a story of a cluster with three members."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import quorum
from fifo import commands as c
from fifo.effects import AttachedReply, Deliver, Ok
from fifo.results import QueueInfo
from support.log.usage import usage
from support.members.cluster import Cluster, Session, batch, enqueue
from support.members.served import serving

LIMIT_S = 60.0


class Story:
    """A cluster with one queue."""

    def __init__(self, cluster: Cluster | None = None, **arguments: bool | int | str) -> None:
        self.cluster = cluster or Cluster()
        self.cluster.ready()
        self.group, self.queue = self.cluster.declare("orders", **arguments)
        self.producer = Session(self.cluster, "n1")

    def info(self) -> QueueInfo:
        return self.cluster.info(next(iter(self.cluster.members)), self.group, self.queue)

    def publish(self, *bodies: bytes, ttl_ms: int = -1, priority: int = 0) -> None:
        first = self.producer.next_sequence
        self.producer.next_sequence += len(bodies)
        command = enqueue(self.queue, first, bodies)
        priorities = bytes([priority]) if priority else b""
        self.producer.call(self.group, replace(command, ttl_ms=ttl_ms, priorities=priorities), batch(bodies))

    def consume(self, session: Session, credit: int, tag: str = "c") -> int:
        """Returns the attach number."""
        reply = session.call(self.group, c.Attach(self.queue, tag, b"", credit))
        assert isinstance(reply, AttachedReply)
        return reply.attach

    def wait_for(self, session: Session, deliveries: int) -> Deliver:
        self.cluster.until(lambda: len(session.deliveries) >= deliveries, f"{deliveries} deliveries")
        return session.deliveries[-1]


def test_a_message_expires_behind_one_that_does_not() -> None:
    story = Story()
    story.publish(b"for ever")
    story.publish(b"brief", ttl_ms=1_000)
    story.publish(b"for ever, too")
    story.cluster.run(3_000)
    assert (story.info().ready, story.info().totals.expired) == (2, 1), "nobody has read the head"


def test_a_returned_message_keeps_its_priority_also_under_a_new_leader() -> None:
    story = Story(max_priority=9)
    consumer = Session(story.cluster, "n2")
    attach = story.consume(consumer, 1)
    story.publish(b"urgent", priority=9)
    tag = story.wait_for(consumer, 1).first_tag
    story.publish(b"idle")
    story.publish(b"important", priority=5)
    consumer.call(story.group, c.Return(story.queue, "c", attach, ((tag, tag),)))
    leader = story.cluster.leader(story.group)
    assert leader is not None
    story.cluster.crash(leader)
    story.cluster.until(lambda: story.cluster.leader(story.group) is not None, "another member leads")
    reader = Session(story.cluster, next(iter(story.cluster.members)))
    for _ in range(3):
        reader.call(story.group, c.Get(story.queue, 1, True))
    story.cluster.until(lambda: len(reader.deliveries) == 3, "three deliveries")
    assert reader.received(story.group) == [b"urgent", b"important", b"idle"]


def test_dead_letters_are_in_their_target_once_though_the_leader_dies() -> None:
    async def run() -> None:
        async with serving(3, 3) as (url, apis):
            cluster = apis[0].cluster
            async with quorum.connect(url) as client:
                await client.declare("parking")
                target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parking"}
                await client.declare("orders", target)
                found = apis[0].hub.catalog.queue("orders")
                assert found is not None
                await client.publish_batch("orders", [b"%d" % number for number in range(300)])
                await client.discard(await client.get("orders", 300), wait=True)
            leader = cluster.leader(found.group)
            assert leader is not None
            cluster.crash(leader)  # it has forwarded some of them, all or none
            [endpoint, *_] = [
                each
                for each, api in zip(url.removeprefix("quorum://").split(","), apis, strict=True)
                if api.name != leader
            ]
            async with quorum.connect(f"quorum://{endpoint}") as client, asyncio.timeout(LIMIT_S):
                while (await client.describe("orders")).queue.dead:
                    await asyncio.sleep(0.02)
                letters = [message.body async for message in client.browse("parking")]
            assert sorted(letters, key=int) == [b"%d" % number for number in range(300)]

    asyncio.run(run())


def test_a_single_active_consumer_that_has_timed_out_is_not_the_last_one() -> None:
    story = Story(single_active_consumer=True, consumer_timeout=2_000)
    stuck, waiting = Session(story.cluster, "n2"), Session(story.cluster, "n3")
    story.consume(stuck, 10)
    story.consume(waiting, 10)
    story.publish(b"one")
    story.wait_for(stuck, 1)
    for number in range(3):
        story.publish(b"%d" % number)
    story.wait_for(waiting, 1)
    story.cluster.until(lambda: len(waiting.received(story.group)) == 4, "the other one has all of them")


def test_a_consumer_that_always_fails_does_not_go_round_for_ever() -> None:
    story = Story()
    consumer = Session(story.cluster, "n2")
    attach = story.consume(consumer, 1_000)
    story.publish(b"poison", b"food")
    for number in range(1, 22):  # the default limit is 20 failed deliveries
        deliver = story.wait_for(consumer, number)
        first = deliver.first_tag
        if number == 1:
            consumer.call(story.group, c.Settle(story.queue, "c", attach, ((first + 1, first + 1),)))
        failed = c.Modify(story.queue, "c", attach, ((first, first),), delivery_failed=True)
        assert consumer.call(story.group, failed) == Ok(1)
    story.cluster.run(1_000)
    assert len(consumer.deliveries) == 21
    assert (story.info().total, story.info().totals.delivery_limit, story.info().totals.settled) == (0, 1, 1)


def test_what_a_lost_consumer_holds_is_ready_again_though_the_leader_is_lost_with_it() -> None:
    story = Story(Cluster(5))
    leader = story.cluster.leader(story.group)
    assert leader is not None
    other = next(name for name in story.cluster.names if name not in (leader, "n1"))
    lost = Session(story.cluster, other)
    story.consume(lost, 10)
    story.publish(*(b"%d" % number for number in range(10)))
    story.wait_for(lost, 1)
    for name in {leader, other}:
        story.cluster.crash(name)
    story.cluster.until(lambda: story.info().ready == 10, "nobody holds them any more")
    assert story.info().consumers == 0


@pytest.mark.parametrize(("snapshot_ms", "is_bounded"), [(1_000, True), (1_000_000, False)])
def test_consumers_that_come_and_go_do_not_make_the_log_grow(snapshot_ms: int, is_bounded: bool) -> None:
    segment = 32 << 10
    log = {"segment_bytes": segment, "recent_bytes": 16 << 10}
    story = Story(Cluster(log=log, snapshot_ms=snapshot_ms))
    session = Session(story.cluster, "n2")
    sizes = []
    for round_number in range(8):
        for number in range(400):
            tag = f"{round_number}-{number}"
            session.send(story.group, c.Attach(story.queue, tag, b"", 10), tag)
            session.send(story.group, c.Cancel(story.queue, tag, True), f"-{tag}")
            if number % 50 == 49:
                story.cluster.run(50)
        story.cluster.until(
            lambda last=f"-{tag}": last in session.replies,  # type: ignore[misc]
            "the last consumer is gone",
        )
        story.cluster.run(3_000)
        sizes.append(max(usage(log).total_bytes for log in story.cluster.logs.values()))
    assert story.info().consumers == 0
    assert (max(sizes) <= 4 * segment) == is_bounded, sizes


def test_a_lower_limit_is_reached_in_steps() -> None:
    """For 1,000,000 messages see tests/fifo/test_fifo_queue_limits.py."""
    limit = 10
    story = Story()
    for first in range(0, 2_000, 500):
        story.publish(*(b"%d" % number for number in range(first, first + 500)))
    config = replace(
        story.cluster.members["n1"].queue_machine(story.group).queues[story.queue].messages.config,
        max_length=limit,
    )
    story.producer.call(story.group, c.UpdateConfig(story.queue, config))
    story.cluster.until(lambda: story.info().ready == limit, "the queue has so many messages")
    assert story.info().totals.maxlen == 2_000 - limit
