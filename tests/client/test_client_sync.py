"""The blocking facade: the same calls from ordinary threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

import quorum.sync
from quorum.client import client as aio
from quorum.client.errors import ClosedError, NotFound, PublishRejected, UnavailableError, UsageError
from quorum.client.messages.delivery import Delivery
from quorum.client.session import consumer as aio_consumer
from support.fake_server.harness import EVENTUALLY_S, World, on_cluster

T = TypeVar("T")


def blocking(scenario: Callable[[World], None]) -> Callable[[], None]:
    """Runs the scenario in a thread beside the cluster's loop."""

    async def test(world: World) -> None:
        await asyncio.to_thread(scenario, world)

    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    return on_cluster()(test)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + EVENTUALLY_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def public(kind: type) -> dict[str, inspect.Signature]:
    """Its own methods and those it takes from its bases."""
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("facade", "original", "extra"),
    [
        (quorum.sync.Client, aio.Client, {"open", "gather"}),
        (
            quorum.sync.Consumer,
            aio_consumer.Consumer,
            {
                "start",
                "attach_request",
                "drain_more",
                "drain_request",
                "receive",
                "void",
                "end",
                "drained",
                "next_request",
                "give_back",
                "settle_if_held",
                "take",
                "dispositions",
                "committed",
                "rolled_back",
                "given_up",
                "attached",
                "timed_out",
                "too_late_to",
            },
        ),
        (quorum.sync.Transaction, quorum.client.Transaction, set()),
        (quorum.sync.DeliveredMessage, quorum.client.DeliveredMessage, set()),
    ],
)
def test_the_facade_has_the_same_methods_with_the_same_parameters(
    facade: type, original: type, extra: set[str]
) -> None:
    here, there = public(facade), public(original)
    assert set(here) == set(there) - extra
    for name in sorted(set(here) - {"next_delivery"}):
        assert [*here[name].parameters] == [*there[name].parameters], name


@blocking
def test_publish_consume_settle_and_get(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        assert client.declare("s") is True
        client.publish("s", b"0", {"subject": "x"}, {"n": 1})
        assert client.publish_batch("s", [b"1", b"2"]) == 2
        confirmations = [client.send_batch("s", [b"%d" % n]) for n in range(3, 6)]
        assert [confirmation.result(EVENTUALLY_S) for confirmation in confirmations] == [1, 1, 1]
        with client.consume("s", prefetch=4) as consumer:
            for message in consumer:
                consumer.settle(message, wait=True)
                if message.body == b"4":
                    break
        assert world.cluster.queues["s"].settled == [1, 2, 3, 4, 5]
        assert [message.body for message in client.browse("s")] == [b"5"]
        [message] = client.get("s", 5)
        client.settle(message, wait=True)
        assert client.get("s") == []
        assert client.queues("s")[0].total == 0
        assert client.delete("s") == 0
        with pytest.raises(NotFound):
            client.describe("s")
        with pytest.raises(PublishRejected):
            client.publish("s", b"late")
        with pytest.raises(PublishRejected):
            client.send_batch("s", [b"late"]).result(EVENTUALLY_S)


@blocking
def test_a_message_settles_itself_without_await(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        client.publish_batch("q", [b"%d" % number for number in range(1, 7)])
        [got] = client.get("q")
        got.settle(wait=True)
        assert world.cluster.queues["q"].settled == [1]
        with client.consume("q") as consumer:
            messages = iter(consumer)
            next(messages).settle(wait=True)
            assert world.cluster.queues["q"].settled == [1, 2]
            next(messages).discard(wait=True)
            next(messages).modify(undeliverable_here=True, wait=True)
            next(messages).return_(wait=True)
        assert [message.body for message in client.browse("q")] == [b"5", b"6"]
        with client.consume("q") as consumer:
            consumer.drain()
            for delivery in consumer.deliveries():
                for message in delivery:
                    message.settle(wait=True)
        assert list(client.browse("q")) == []


@blocking
def test_batches_and_a_wait_with_an_end(world: World) -> None:
    with quorum.sync.connect(world.url) as client, client.consume("q") as consumer:
        assert consumer.next_delivery(timeout_ms=20) is None
        client.publish_batch("q", [b"a", b"b"])
        delivery = consumer.next_delivery(timeout_ms=60_000)
        assert delivery is not None
        assert consumer.settle_batch(delivery, wait=True)
        client.publish("q", b"c")
        consumer.drain()
        assert [each.count for each in consumer.deliveries()] == [1]


@blocking
def test_the_loop_is_asked_once_for_the_messages_of_a_delivery(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        client.publish_batch("q", [b"%d" % number for number in range(10)])
        asked: list[int] = []
        with client.consume("q") as consumer:
            next_delivery = consumer._consumer.next_delivery

            async def counted() -> Delivery | None:
                delivery = await next_delivery()
                asked.append(0 if delivery is None else delivery.count)
                return delivery

            consumer._consumer.next_delivery = counted  # type: ignore[method-assign]
            consumer.drain()
            assert [message.body for message in consumer] == [b"%d" % number for number in range(10)]
        assert sum(asked) == 10
        assert len(asked) < 10


@blocking
def test_a_message_is_settled_when_the_next_one_is_requested(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        client.publish_batch("q", [b"%d" % number for number in range(5)])
        with client.consume("q", auto_settle=True) as consumer:
            for message in consumer:
                if message.body == b"3":
                    break
        assert world.cluster.queues["q"].settled == [1, 2, 3]
        assert [message.body for message in client.browse("q")] == [b"3", b"4"]


@blocking
def test_a_message_whose_attachment_ends_while_its_thread_settles_it_settles_no_other(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        client.publish_batch("q", [b"0", b"1", b"2"])
        with client.consume("q", auto_settle=True) as consumer:
            messages = iter(consumer)
            assert [next(messages).body, next(messages).body] == [b"0", b"1"]
            wait_until(lambda: world.cluster.queues["q"].settled == [1])
            at_once = consumer._loop.at_once

            def late(begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
                world.loop.call_soon_threadsafe(world.nodes[0].cut)
                wait_until(lambda: consumer._consumer.generation == 1 and bool(consumer._consumer.held))
                return at_once(begin)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(consumer._loop, "at_once", late)
                again = next(messages)
            assert (again.body, again.tag, again.redelivered) == (b"1", 1, True)
        assert world.cluster.queues["q"].settled == [
            1
        ]  # and not the new second message, which has the tag of b"1"


@blocking
def test_settling_what_is_not_checked_out_is_an_error(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        client.publish_batch("q", [b"0", b"1", b"2", b"3"])
        with client.consume("q") as consumer:
            messages = consumer.__iter__()
            first = next(messages)
            consumer.settle(first)
            for dispose in (consumer.settle, consumer.return_, consumer.discard, consumer.modify):
                with pytest.raises(UsageError):
                    dispose(first)
            consumer.return_(next(messages), wait=True)
            assert consumer.settle_up_to(4) == 2
        assert sorted(world.cluster.queues["q"].settled) == [1, 3, 4]


@blocking
def test_threads_share_a_client(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        threads = [
            threading.Thread(target=lambda: [client.publish("q", b"x") for _ in range(20)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(world.cluster.queues["q"].ready) == 80


@blocking
def test_a_closed_client_says_so_and_leaves_no_thread(world: World) -> None:
    client = quorum.sync.connect(world.url)
    client.close()
    with pytest.raises(ClosedError):
        client.publish("q", b"x")
    client.close()
    assert "quorum-client" not in [thread.name for thread in threading.enumerate()]


@blocking
def test_a_close_that_fails_or_is_interrupted_leaves_no_thread(world: World) -> None:
    for error in (RuntimeError("a defect"), KeyboardInterrupt()):
        client = quorum.sync.connect(world.url)

        def fail(work: Coroutine[Any, Any, Any], error: BaseException = error) -> None:
            work.close()
            raise error

        with patch.object(client._loop, "run", fail), pytest.raises(type(error)):
            client.close()
        assert "quorum-client" not in [thread.name for thread in threading.enumerate()]


@blocking
def test_a_close_with_a_wrong_time_limit_changes_nothing(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        with pytest.raises(UsageError):
            client.close(timeout_ms="soon")  # type: ignore[arg-type]
        client.publish("q", b"x")


@blocking
def test_a_service_that_is_not_there_is_an_error(world: World) -> None:
    with pytest.raises(UnavailableError):
        quorum.sync.connect("quorum://127.0.0.1:1", connect_timeout_ms=200)
    assert "quorum-client" not in [thread.name for thread in threading.enumerate()]


@blocking
def test_an_iteration_that_is_broken_off_is_continued(world: World) -> None:
    with quorum.sync.connect(world.url) as client:
        client.publish_batch("q", [b"%d" % number for number in range(6)])
        with client.consume("q", auto_settle=True) as consumer:
            seen = []
            for _ in range(2):
                for message in consumer:
                    seen.append(message.body)
                    if len(seen) % 2 == 0:
                        break
            rest = consumer.next_delivery(timeout_ms=0)
            assert rest is not None
            assert [*seen, *(each.body for each in rest)] == [b"%d" % number for number in range(6)]
            client.publish("q", b"last")
            assert [each.body for each in next(consumer.deliveries())] == [b"last"]


@blocking
def test_a_delivery_that_arrives_while_its_thread_is_interrupted_is_not_lost(world: World) -> None:
    with quorum.sync.connect(world.url) as client, client.consume("q") as consumer:
        client.publish("q", b"x")
        run = consumer._loop.run

        def interrupted(work: Coroutine[Any, Any, T]) -> T:
            run(work)
            raise KeyboardInterrupt

        with patch.object(consumer._loop, "run", interrupted), pytest.raises(KeyboardInterrupt):
            next(iter(consumer))
        found = consumer.next_delivery(timeout_ms=0)
        assert found is not None
        assert [message.body for message in found] == [b"x"]
