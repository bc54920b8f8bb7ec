"""Dead letters through the whole service: a member with its worker, and the real client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import quorum
from quorum.client.client import Client
from quorum.client.errors import RefusedError, UnavailableError, VoidDelivery
from quorum.client.messages.batch import Message
from quorum.client.messages.delivery import DeliveredMessage
from support.members.served import served

PATIENCE_S = 20.0
TARGET = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}


def on_member(scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served() as url, quorum.connect(url) as client:
            await scenario(client)

    asyncio.run(run())


async def arrived(client: Client, queue: str, count: int) -> list[DeliveredMessage]:
    """So many messages of a queue, which are settled."""
    found: dict[int, DeliveredMessage] = {}
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            with contextlib.suppress(UnavailableError, VoidDelivery):
                got = await client.get(queue, 100)
                await client.settle(got, wait=True)
                found.update({message.sequence: message for message in got})
            await asyncio.sleep(0.01)
    assert len(found) == count
    return [message for _, message in sorted(found.items())]


async def until(client: Client, queue: str, condition: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not condition(info := (await client.describe(queue)).queue):
            await asyncio.sleep(0.02)
    return info


async def discard(client: Client, queue: str, count: int = 100) -> None:
    await client.discard(await client.get(queue, count), wait=True)


def test_a_discarded_message_goes_to_the_target_with_its_history() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave")
        await client.declare("orders", TARGET)
        properties = {"subject": "s", "ttl_ms": 60_000}
        await client.publish("orders", b"body", properties, {"colour": "red"})
        await discard(client, "orders")
        [letter] = await arrived(client, "grave", 1)
        own = letter.application_properties
        [death] = json.loads(str(own.pop("x-death")))
        assert death.pop("time") > 0
        assert death == {
            "queue": "orders",
            "reason": "rejected",
            "count": 1,
            "exchange": "",
            "routing-keys": ["orders"],
            "original-expiration": "60000",
        }
        assert own == {
            "colour": "red",
            **{f"x-{which}-death-queue": "orders" for which in ("first", "last")},
            **{f"x-{which}-death-reason": "rejected" for which in ("first", "last")},
            **{f"x-{which}-death-exchange": "" for which in ("first", "last")},
        }
        assert (letter.body, letter.properties.subject, letter.properties.ttl_ms) == (b"body", "s", None)
        info = await until(client, "orders", lambda info: not info.dead)
        assert (info.totals.rejected, info.totals.dead_lettered) == (1, 1)

    on_member(scenario)


def test_letters_of_every_cause_go_through_an_exchange_in_the_order_of_their_numbers() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave")
        await client.declare_exchange("dead", "fanout")
        await client.bind("dead", "grave")
        arguments = {"x-dead-letter-exchange": "dead", "x-message-ttl": 100, "x-max-length": 40}
        await client.declare("orders", arguments)
        await client.publish_batch("orders", [Message(b"%d" % n) for n in range(100)])
        letters = await arrived(client, "grave", 100)
        assert [letter.body for letter in letters] == [b"%d" % n for n in range(100)]
        reasons = [letter.application_properties["x-first-death-reason"] for letter in letters]
        assert reasons == ["maxlen"] * 60 + ["expired"] * 40

    on_member(scenario)


def test_a_missing_target_keeps_the_letters_and_says_so() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("orders", TARGET)
        await client.publish_batch("orders", [b"1", b"2"])
        await discard(client, "orders")
        info = await until(client, "orders", lambda info: info.dead_letter_problem)
        assert (info.dead, info.total, info.totals.rejected) == (2, 2, 0)
        assert info.dead_letter_problem.startswith("NOT_FOUND: ") and "grave" in info.dead_letter_problem
        await client.declare("grave")
        assert [each.body for each in await arrived(client, "grave", 2)] == [b"1", b"2"]
        info = await until(client, "orders", lambda info: not info.dead)
        assert (info.dead_letter_problem, info.totals.dead_lettered) == ("", 2)

    on_member(scenario)


def test_letters_wait_when_their_target_is_taken_away_and_the_queue_says_what_to_do() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("orders")
        await client.set_policy("dead", "orders", TARGET)
        await until(client, "orders", lambda info: info.effective_arguments)
        await client.publish("orders", b"1")
        await discard(client, "orders")
        await until(client, "orders", lambda info: info.dead_letter_problem.startswith("NOT_FOUND: "))
        await client.delete_policy("dead")
        info = await until(client, "orders", lambda info: info.dead_letter_problem.startswith("NO_TARGET: "))
        assert info.dead_letter_problem.endswith("; set x-dead-letter-exchange again, or purge the queue")

    on_member(scenario)


def test_a_full_target_takes_what_fits_and_the_rest_waits() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave", {"x-max-length": 3, "x-overflow": "reject-publish"})
        await client.declare("orders", TARGET)
        await client.publish_batch("orders", [b"%d" % n for n in range(5)])
        await discard(client, "orders")
        info = await until(client, "orders", lambda info: info.dead_letter_problem)
        assert info.dead == 2 and info.dead_letter_problem.startswith("QUEUE_FULL")
        assert [each.body for each in await arrived(client, "grave", 3)] == [b"0", b"1", b"2"]
        assert [each.body for each in await arrived(client, "grave", 2)] == [b"3", b"4"]

    on_member(scenario)


def test_dead_messages_alone_can_be_purged() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("orders", TARGET)
        await client.publish_batch("orders", [b"1", b"2", b"3"])
        await discard(client, "orders", 2)
        await until(client, "orders", lambda info: info.dead_letter_problem)
        assert await client.purge("orders", dead_only=True) == 2
        info = (await client.describe("orders")).queue
        assert (info.ready, info.dead, info.dead_letter_problem, info.totals.purged) == (1, 0, "", 2)

    on_member(scenario)


def test_at_most_once_drops_what_the_target_does_not_take() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave", {"x-max-length": 3, "x-overflow": "reject-publish"})
        await client.declare("orders", {**TARGET, "x-dead-letter-strategy": "at-most-once"})
        await client.publish_batch("orders", [b"%d" % n for n in range(5)])
        await discard(client, "orders")
        info = await until(client, "orders", lambda info: info.totals.rejected == 5)
        assert (info.dead, info.totals.dead_lettered) == (0, 3)
        assert (await client.describe("grave")).queue.ready == 3

    on_member(scenario)


def test_a_message_that_comes_back_by_itself_is_dropped_and_one_that_was_rejected_is_not() -> None:
    async def scenario(client: Client) -> None:
        away = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "pause"}
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 50}
        await client.declare("work", away)
        await client.declare("pause", back)
        await client.publish("work", b"again")
        await discard(client, "work")
        [message] = await arrived(client, "work", 1)
        assert message.application_properties["x-last-death-queue"] == "pause"
        await client.delete("work")
        await client.declare("work", {**away, "x-message-ttl": 50})
        await client.publish("pause", b"alone", None, {})
        info = await until(client, "work", lambda info: info.totals.expired == 1)
        assert (info.dead, info.totals.dead_lettered) == (0, 0)
        assert (await client.describe("pause")).queue.totals.published == 2

    on_member(scenario)


def test_a_forged_history_does_not_hold_up_the_letters_behind_it() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave")
        await client.declare("orders", TARGET)
        forged = [
            '[{"queue":"orders","reason":"rejected","count":' + "9" * 4_300 + "}]",
            '[{"queue":"\\ud800","reason":"rejected","count":1}]',
        ]
        batch = [Message(b"forged", None, {"x-death": each}) for each in forged]
        await client.publish_batch("orders", [*batch, Message(b"last")])
        await discard(client, "orders")
        letters = await arrived(client, "grave", 3)
        histories = [json.loads(str(each.application_properties["x-death"])) for each in letters]
        assert [(death["queue"], death["count"]) for [death] in histories] == [("orders", 1)] * 3

    on_member(scenario)


def test_a_message_whose_properties_are_full_does_not_go_round_for_ever() -> None:
    async def scenario(client: Client) -> None:
        for name, other in (("a", "b"), ("b", "a")):
            target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
            await client.declare(name, {**target, "x-message-ttl": 0})
        for count in (1_020, 1_024):
            await client.publish("a", b"body", None, dict.fromkeys([f"p{n}" for n in range(count)], 1))
        info = await until(client, "a", lambda info: info.totals.expired == 2)
        assert (info.dead, info.totals.dead_lettered) == (0, 1)
        info = await until(client, "b", lambda info: info.totals.expired == 1)
        assert (info.dead, info.totals.dead_lettered) == (0, 0)

    on_member(scenario)


def test_queues_that_copy_their_letters_to_each_other_come_to_an_end_soon() -> None:
    """Six queues with a time to live of 0, bound to the exchange that is their target: without a limit on copies, one
    message would make 5 + 5*4 + 5*4*3 + 5*4*3*2 + 5*4*3*2*1 = 325 letters."""

    async def scenario(client: Client) -> None:
        await client.declare_exchange("ring", "fanout")
        names = [f"q{n}" for n in range(6)]
        for name in names:
            await client.declare(name, {"x-dead-letter-exchange": "ring", "x-message-ttl": 0})
            await client.bind("ring", name)
        await client.publish("q0", b"body")
        async with asyncio.timeout(PATIENCE_S):
            is_over = False
            while not is_over:
                infos = [(await client.describe(name)).queue for name in names]
                is_over = all(info.total == 0 for info in infos) and infos[5].totals.published > 0
                await asyncio.sleep(0.05)
        assert sum(info.totals.published for info in infos) - 1 == 5 * 5

    on_member(scenario)


def test_redrive_moves_letters_back_and_leaves_others() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave", {"x-filter-enabled": True})
        for name in ("orders", "bills"):
            await client.declare(name, TARGET)
            await client.publish_batch(name, [Message(b"%d" % n, None, {"n": n}) for n in range(3)])
            await discard(client, name)
        await client.publish("grave", b"not a letter")
        await until(client, "grave", lambda info: info.ready == 7)
        found = await client.redrive("grave", "n = 1")
        assert (found.moved, found.left) == ({"orders": 1, "bills": 1}, {})
        await client.delete("bills")
        found = await client.redrive("grave")
        assert found.moved == {"orders": 2}
        assert sorted(found.left.values()) == [1, 2]
        assert (await client.describe("grave")).queue.ready == 3
        bodies = sorted(each.body for each in await arrived(client, "orders", 3))
        assert bodies == [b"0", b"1", b"2"]

    on_member(scenario)


ONE_CONSUMER = (
    {"x-max-consumers": 1, "x-max-priority": 9},
    {"x-single-active-consumer": True},
    {"x-message-groups": True},
)
"""Arguments of dead-letter queues that give more messages only to the consumer that has some already."""


@pytest.mark.parametrize("arguments", ONE_CONSUMER, ids=lambda each: next(iter(each)))
def test_redrive_needs_one_consumer_for_messages_in_any_order(arguments: dict[str, int | bool]) -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave", arguments)
        for name, count in (("bills", 50), ("orders", 600)):
            await client.declare(name, TARGET)
            batch = [Message(b"%d" % n, {"priority": n % 10, "group-id": f"{n % 3}"}) for n in range(count)]
            await client.publish_batch(name, batch)
            await discard(client, name, count)
        await until(client, "grave", lambda info: info.ready == 650)
        found = await client.redrive("grave", only="orders")
        assert (found.moved, found.left, found.is_complete) == ({"orders": 600}, {}, True)
        await client.delete("bills")
        for limit, left in ((30, 30), (None, 50)):
            found = await client.redrive("grave", limit=limit)
            assert (found.moved, sum(found.left.values()), found.is_complete) == ({}, left, True)
        assert (await client.describe("grave")).queue.ready == 50

    on_member(scenario)


def test_redrive_says_that_another_consumer_is_active() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave", {"x-single-active-consumer": True})
        await client.declare("orders", TARGET)
        await client.publish("orders", b"body")
        async with client.consume("grave", prefetch=1) as active:
            await discard(client, "orders")
            assert await active.next_delivery() is not None
            with pytest.raises(RefusedError, match="another one is active") as error:
                await client.redrive("grave")
            assert error.value.reason == "IN_USE"
        assert (await client.redrive("grave")).moved == {"orders": 1}

    on_member(scenario)


def test_a_message_that_was_moved_back_may_die_again() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave")
        await client.declare("orders", {**TARGET, "x-message-ttl": 50})
        await client.publish("orders", b"body")
        for count in (1, 2, 3):
            await until(client, "grave", lambda info: info.ready == 1)
            assert (await client.redrive("grave")).moved == {"orders": 1}
            info = await until(client, "orders", lambda info, n=count: info.totals.dead_lettered == n + 1)
            assert info.totals.expired == count + 1
        [letter] = await arrived(client, "grave", 1)
        first, second = json.loads(str(letter.application_properties["x-death"]))
        assert (first["queue"], first["reason"], first["count"]) == ("orders", "expired", 4)
        assert (second["queue"], second["reason"], second["count"]) == ("grave", "redriven", 3)
        assert second["time"] > 0

    on_member(scenario)


def test_delayed_messages_that_die_are_in_their_groups_at_the_target_at_once() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave", {"x-message-groups": True})
        await client.declare("orders", {**TARGET, "x-max-length": 1})
        for body in (b"1", b"2", b"3"):
            await client.publish("orders", body, {"group-id": "g"}, delay=3_600)
        info = await until(client, "grave", lambda info: info.ready == 2)
        assert info.delayed == 0
        info = await until(client, "orders", lambda info: not info.dead)
        assert (info.delayed, info.totals.maxlen, info.totals.dead_lettered) == (1, 2, 2)
        first = await client.get("grave", 1)
        assert [message.properties.group_id for message in first] == ["g"]
        assert (await client.describe("grave")).queue.held_groups == 1

    on_member(scenario)


def test_what_a_transaction_discards_dies_with_its_commit() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("grave")
        await client.declare("orders", TARGET)
        await client.publish("orders", b"body")
        got = await client.get("orders", 1)
        async with client.transaction() as tx:
            await tx.discard(got)
            assert (await client.describe("orders")).queue.dead == 0
        [letter] = await arrived(client, "grave", 1)
        assert letter.application_properties["x-last-death-reason"] == "rejected"

    on_member(scenario)
