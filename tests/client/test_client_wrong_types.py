"""Arguments of a wrong type: every call of both clients raises UsageError, and sends nothing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import quorum
import quorum.sync
from quorum.client.errors import QuorumError, TimedOut, UsageError
from quorum.client.values import arguments, property_filter, require_whole
from support.fake_server.harness import World, on_cluster

WRONG = (None, 7, b"name", ["name"], {"name": 1}, object())
ALSO_WRONG = (*WRONG, True, -1, 1.5, float("nan"), "\ud800", 1 << 70, {1: 2}, ("a", "b"))
CALLS: dict[str, tuple[Any, ...]] = {
    "add_member": (None,),
    "bind": ("logs", "q", "key"),
    "bindings": ("logs",),
    "browse": ("q",),
    "cluster_status": (),
    "consume": ("q",),
    "declare": ("q",),
    "declare_exchange": ("logs", "topic"),
    "delete": ("absent",),
    "delete_exchange": ("absent",),
    "delete_policy": ("absent",),
    "delete_user": ("ada",),
    "describe": ("q",),
    "describe_exchange": ("absent",),
    "discard": (None,),
    "drain_member": ("n1",),
    "exchanges": ("lo",),
    "export_definitions": (),
    "get": ("q",),
    "import_definitions": ({"quorum_definitions": 1},),
    "modify": (None,),
    "policies": (),
    "publish": ("q", b"body"),
    "publish_batch": ("q", [b"body"]),
    "publish_batch_to": ("", "q", [b"body"]),
    "publish_to": ("", "q", b"body"),
    "purge": ("q",),
    "queues": ("q",),
    "rebalance_leaders": (),
    "redrive": ("q",),
    "remove_member": ("absent",),
    "resolve_transaction": (1, b"producer", 1),
    "return_": (None,),
    "send_batch": ("q", [b"body"]),
    "send_batch_to": ("", "q", [b"body"]),
    "set_lease_times": (2_000, 4_000),
    "set_permissions": ("ada", "c*", "w*", "r*"),
    "set_policy": ("p", "q*", {}),
    "set_user": ("ada", "password"),
    "settle": (None,),
    "transaction": (),
    "transactions": (),
    "transfer_leadership": (1, "n1"),
    "users": (),
}
"""Each call of a client, with arguments that may be right."""
TEXTS = [
    ("set_policy", "name"),
    ("set_policy", "pattern"),
    ("delete_policy", "name"),
    ("set_user", "user"),
    ("set_user", "password"),
    ("set_permissions", "user"),
    ("set_permissions", "configure"),
    ("set_permissions", "write"),
    ("set_permissions", "read"),
    ("delete_user", "user"),
    ("declare_exchange", "name"),
    ("declare_exchange", "type"),
    ("delete_exchange", "name"),
    ("describe_exchange", "name"),
    ("exchanges", "prefix"),
    ("bind", "source"),
    ("bind", "destination"),
    ("bind", "routing_key"),
    ("unbind", "source"),
    ("bindings", "queue"),
    ("remove_member", "name"),
    ("drain_member", "name"),
    ("transfer_leadership", "to"),
    ("resolve_transaction", "outcome"),
]


async def call(client: Any, name: str, given: dict[str, Any]) -> None:
    """Make the call and wait for all of it. The client is one for asyncio."""
    made = getattr(client, name)(**given)
    if name == "browse":
        async for _ in made:
            break
    elif name in ("consume", "transaction"):
        async with made:
            pass
    else:
        found = await made
        if isinstance(found, asyncio.Future):
            await found


def call_blocking(client: quorum.sync.Client, name: str, given: dict[str, Any]) -> None:
    made = getattr(client, name)(**given)
    if name == "browse":
        next(made, None)
    elif name in ("consume", "transaction"):
        with made:
            pass
    elif name in ("send_batch", "send_batch_to"):
        made.result()


def spoiled(kind: type, name: str, wrong: str, value: object) -> dict[str, Any]:
    """The call's arguments, one of them wrong."""
    names = list(inspect.signature(getattr(kind, name)).parameters)[1:]
    return {**dict(zip(names, CALLS.get(name, CALLS["bind"]), strict=False)), wrong: value}


def every_argument(kind: type) -> Iterator[tuple[str, str]]:
    for name in CALLS:
        for argument in list(inspect.signature(getattr(kind, name)).parameters)[1:]:
            yield name, argument


@pytest.mark.parametrize("kind", [quorum.client.client.Client, quorum.sync.Client])
def test_all_calls_are_tried(kind: type) -> None:
    others = {"open", "close", "gather", "unbind", "node", "endpoint", "reconnect_count"}
    assert {name for name in dir(kind) if not name.startswith("_")} - others == set(CALLS)


@on_cluster(1)
async def test_a_name_that_is_no_text_is_refused_by_its_argument(world: World) -> None:
    async with quorum.connect(world.url) as client:
        for name, argument in TEXTS:
            for value in WRONG:
                with pytest.raises(UsageError, match=rf"^{argument} is text, not {type(value).__name__}$"):
                    await call(client, name, spoiled(type(client), name, argument, value))
            said = rf"^{argument} is not UTF-8 text: character 2 is half a surrogate pair$"
            with pytest.raises(UsageError, match=said):
                await call(client, name, spoiled(type(client), name, argument, "x\ud800"))


@on_cluster(1)
async def test_the_text_of_the_error_does_not_hold_a_password(world: World) -> None:
    async with quorum.connect(world.url) as client:
        for password in (b"a secret", "a secret\ud800", ["a secret"]):
            with pytest.raises(UsageError) as refused:
                await client.set_user("ada", password)  # type: ignore[arg-type]
            assert "secret" not in str(refused.value)


@on_cluster(1)
async def test_other_arguments_say_what_is_allowed(world: World) -> None:
    cases: list[tuple[str, str, object, str]] = [
        ("set_user", "administers", "yes", "administers is True or False, not 'yes'"),
        ("set_user", "monitors", 1, "monitors is True or False, not 1"),
        ("delete_exchange", "if_unused", None, "if_unused is True or False, not None"),
        ("drain_member", "drained", "no", "drained is True or False, not 'no'"),
        ("purge", "dead_only", 1, "dead_only is True or False, not 1"),
        ("browse", "delayed", 1, "delayed is True or False, not 1"),
        ("import_definitions", "dry_run", "no", "dry_run is True or False, not 'no'"),
        ("import_definitions", "data", 7, "definitions are JSON, as text or bytes, or its object, not int"),
        ("import_definitions", "vhost", 7, "vhost is text, not int"),
        ("add_member", "member", "n2", "member is a MemberInfo, as in `cluster_status().own`, not str"),
        ("resolve_transaction", "producer", "p", "producer is bytes, not str"),
        ("consume", "consumer_tag", ["tag"], "consumer_tag is text, not list"),
        ("redrive", "only", 7, "only is text, not int"),
        ("redrive", "limit", "7", "limit '7'; allowed: a whole number from 0 to 18446744073709551615"),
        ("describe", "timeout_ms", "5", "timeout_ms '5'; allowed: milliseconds from 0 to 1000000000000"),
        (
            "publish",
            "timeout_ms",
            float("nan"),
            "timeout_ms nan; allowed: milliseconds from 0 to 1000000000000",
        ),
        (
            "publish_batch",
            "queue",
            7,
            "the queue or routing key of a batch is text, or a list with a text for each message; not int",
        ),
    ]
    async with quorum.connect(world.url) as client:
        for name, argument, value, said in cases:
            with pytest.raises(UsageError) as refused:
                await call(client, name, spoiled(type(client), name, argument, value))
            assert str(refused.value) == said


@on_cluster(1)
async def test_no_argument_raises_an_error_from_inside_the_asyncio_client(world: World) -> None:
    async with quorum.connect(world.url, timeout_ms=300) as client:
        for name, argument in every_argument(type(client)):
            for value in ALSO_WRONG:
                try:
                    await call(client, name, spoiled(type(client), name, argument, value))
                except QuorumError:
                    continue
                except Exception as error:
                    raise AssertionError(f"{name}({argument}={value!r})") from error


@on_cluster(1)
async def test_no_argument_raises_an_error_from_inside_the_blocking_client(world: World) -> None:
    def all_calls() -> None:
        with quorum.sync.connect(world.url, timeout_ms=300) as client:
            for name, argument in every_argument(type(client)):
                for value in ALSO_WRONG:
                    try:
                        call_blocking(client, name, spoiled(type(client), name, argument, value))
                    except QuorumError:
                        continue
                    except Exception as error:
                        raise AssertionError(f"{name}({argument}={value!r})") from error

    await asyncio.to_thread(all_calls)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x\ud800": 1}, "the name of an argument is not UTF-8 text: character 2 is half a surrogate pair"),
        ({"x-queue-mode": "\ud800"}, "value of 'x-queue-mode' is not UTF-8 text: half a surrogate pair"),
        ({"x-max-length": 10**5_000}, "value of 'x-max-length' does not fit 64 bits: a number of thousands"),
    ],
)
def test_arguments_that_no_request_can_hold(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        arguments(given)


@pytest.mark.parametrize("entries", [{"x\ud800": 1}, {"x": "\ud800"}])
def test_a_filter_that_no_request_can_hold(entries: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"half a surrogate pair$"):
        property_filter({"properties": entries})


def test_a_long_value_is_cut_in_the_text_of_an_error() -> None:
    for value in ("x" * 1_000, 10**200, 10**5_000):
        with pytest.raises(UsageError) as refused:
            require_whole("limit", value, 0, 9)
        assert len(str(refused.value)) < 200


@on_cluster(1)
async def test_batches_of_a_transaction_say_what_their_queues_may_be(world: World) -> None:
    async with quorum.connect(world.url) as client:
        for publish in (
            lambda tx, names: tx.publish_batch(names, [b"1"]),
            lambda tx, names: tx.publish_batch_to("logs", names, [b"1"]),
        ):
            for names in (7, None, b"q"):
                with pytest.raises(UsageError, match="a list with a text for each message; not "):
                    await publish(client.transaction(), names)


@on_cluster(1)
async def test_a_time_that_is_over_is_no_wrong_one(world: World) -> None:
    """A program may count down the time to its own deadline. The call may still succeed, as with a short time."""
    async with quorum.connect(world.url) as client:
        for made in (client.describe("q", timeout_ms=-5), client.get("q", timeout_ms=-5)):
            with contextlib.suppress(TimedOut):
                await made


@on_cluster(1)
async def test_times_of_a_consumer_are_milliseconds(world: World) -> None:
    said = r"^timeout_ms '1'; allowed: milliseconds from 0 to 1000000000000$"

    def blocking() -> None:
        with quorum.sync.connect(world.url) as client, client.consume("q") as consumer:
            with pytest.raises(UsageError, match=said):
                consumer.next_delivery(timeout_ms="1")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match=said):
                consumer.cancel(timeout_ms="1")  # type: ignore[arg-type]

    await asyncio.to_thread(blocking)


@pytest.mark.parametrize("batch", [None, 5, object()])
def test_what_is_no_batch_is_not_encoded(batch: Any) -> None:
    with pytest.raises(UsageError, match=r"^a batch is messages, a PreparedBatch or bytes, not "):
        quorum.encode_batch(batch)


@pytest.mark.parametrize("connect", [quorum.connect, quorum.sync.connect])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": None}, "the address of a service is text, not NoneType"),
        ({"url": b"quorum://a"}, "the address of a service is text, not bytes"),
        ({"timeout_ms": "5"}, "timeout_ms '5'; allowed"),
        ({"connect_timeout_ms": -1}, "connect_timeout_ms -1; allowed"),
        ({"silence_ms": None}, "silence_ms None; allowed"),
        ({"near_leader": "no"}, "near_leader is True or False, not 'no'"),
    ],
)
def test_what_a_connection_cannot_be_made_with(
    connect: Callable[..., Any], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        connect(**{"url": "quorum://127.0.0.1:1", **given})
