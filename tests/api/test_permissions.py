"""Permissions: who may make which call (quorum/api/security/rights.py)."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import Context
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool

import quorum
from quorum.api import server as api_server
from quorum.api.security.access import Access
from quorum.api.security.rights import AUDITED, BY_METHOD, OPEN, published
from quorum.api.status import StatusError
from quorum.catalog.users import User, Users
from quorum.client.errors import ConnectionLost, PermissionRefused, QuorumError, from_rpc_error
from quorum.v1 import admin_pb2, bulk_pb2, queue_pb2
from support.members.users import EVERYBODY, HERE, PASSWORD, RIGHTS, as_user, header, with_users


def methods() -> dict[str, Any]:
    """Every method that a member serves, by its short name, with its description."""
    names = (*api_server.SERVICES, api_server.HEALTH, "grpc.reflection.v1alpha.ServerReflection")
    services = [descriptor_pool.Default().FindServiceByName(name) for name in names]
    return {
        f"{each.name}/{name}": method for each in services for name, method in each.methods_by_name.items()
    }


def test_every_method_has_an_entry_in_the_table() -> None:
    assert {*BY_METHOD, *OPEN} - {"Health/List"} == set(methods()) - {"Health/List"}
    assert set(BY_METHOD) >= AUDITED


def test_every_administrative_call_that_changes_anything_is_audited() -> None:
    reads = ("List", "Describe", "Export", "ClusterStatus")
    changes = {
        name
        for name in methods()
        if name.startswith("Admin/") and not name.partition("/")[2].startswith(reads)
    }
    assert changes | {"Bulk/DeleteSubscription"} == AUDITED


OF_RIGHTS = {"admin", "monitor", "configurer", "writer", "reader"}
MONITORS = {"admin", "monitor"}
ALLOWED = {
    "Queue/Session": EVERYBODY,
    "Queue/Publish": {"admin", "writer"},
    "Queue/Get": {"admin", "reader"},
    "Queue/FindLeader": OF_RIGHTS,
    "Queue/Browse": {"admin", "reader"},
    "Admin/DeclareQueue": {"admin", "configurer"},
    "Admin/DeleteQueue": {"admin", "configurer"},
    "Admin/PurgeQueue": {"admin", "reader"},
    "Admin/ListQueues": MONITORS,
    "Admin/DescribeQueue": OF_RIGHTS,
    "Admin/ListPolicies": MONITORS,
    "Admin/DeclareExchange": {"admin", "configurer"},
    "Admin/DeleteExchange": {"admin", "configurer"},
    "Admin/ListExchanges": MONITORS,
    "Admin/ListBindings": MONITORS,
    "Admin/ExportDefinitions": MONITORS,
    "Admin/ListTransactions": MONITORS,
    "Admin/ClusterStatus": MONITORS,
    **{
        f"Admin/{name}": {"admin"}
        for name in (
            "SetPolicy",
            "DeletePolicy",
            "AddBinding",  # no user here has both rights that it needs
            "RemoveBinding",
            "ImportDefinitions",
            "ResolveTransaction",
            "AddMember",
            "RemoveMember",
            "DrainMember",
            "TransferLeadership",
            "RebalanceLeaders",
            "SetLeaseTimes",
            "SetUser",
            "SetPermissions",
            "DeleteUser",
            "ListUsers",
        )
    },
    **{
        f"Bulk/{name}": {"admin", *users}
        for name, users in {
            "OpenSubscription": ("reader",),
            "Reserve": ("reader",),
            "DescribeReservations": ("reader",),
            "ReadReserved": ("reader",),
            "Settle": ("reader",),
            "KeepAlive": ("reader",),
            "ReleaseSubscription": ("reader",),
            "DeleteSubscription": ("reader",),
            "ListSubscriptions": OF_RIGHTS,
            "OpenView": ("reader",),
            "Browse": ("reader",),
            "CloseView": ("reader",),
            "Stage": ("writer",),
            "Publish": ("writer",),
            "Discard": ("writer",),
            "QueueInfo": OF_RIGHTS,
        }.items()
    },
}
"""Who may make a call about the queue or exchange `mine`."""


def request_of(method: Any, name: str) -> Any:
    """A request about this queue or exchange. It names nothing else that exists, so it changes nothing even if it is
    allowed."""
    request = {
        **{
            each.name: getattr(queue_pb2, each.name)
            for each in queue_pb2.DESCRIPTOR.message_types_by_name.values()
        },
        **{
            each.name: getattr(admin_pb2, each.name)
            for each in admin_pb2.DESCRIPTOR.message_types_by_name.values()
        },
        **{
            each.name: getattr(bulk_pb2, each.name)
            for each in bulk_pb2.DESCRIPTOR.message_types_by_name.values()
        },
    }[method.input_type.name]()
    for field in ("queue", "exchange"):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, name)
    if "binding" in request.DESCRIPTOR.fields_by_name:
        request.binding.source, request.binding.queue = name, name
    return request


def test_every_call_is_made_by_every_kind_of_user() -> None:
    served = {name: method for name, method in methods().items() if name.startswith(("Queue", "Admin"))}

    async def body(url: str) -> None:
        endpoint = url.removeprefix("quorum://")
        async with grpc.aio.insecure_channel(endpoint) as channel:
            for name, method in served.items():
                path = f"/{method.containing_service.full_name}/{method.name}"
                allowed = set()
                for user in EVERYBODY:
                    code = await code_of(channel, path, request_of(method, "mine"), header(user, PASSWORD))
                    assert code != grpc.StatusCode.UNAUTHENTICATED
                    if code != grpc.StatusCode.PERMISSION_DENIED:
                        allowed.add(user)
                assert allowed == ALLOWED[name], name
                for headers in ({}, header("admin", "a wrong password"), {"authorization": "Bearer x"}):
                    code = await code_of(channel, path, request_of(method, "mine"), headers)
                    assert code == grpc.StatusCode.UNAUTHENTICATED, (name, headers)

    with_users(body)


def test_a_stream_that_is_refused_during_a_write_is_refused_or_lost() -> None:
    """grpcio reports most of these refusals as INTERNAL, which would be a defect of the service."""

    async def refusal(channel: Any) -> QuorumError:
        call = channel.stream_stream("/quorum.v1.Queue/Session")(timeout=60)
        try:
            while True:
                await call.write(bytes(1 << 16))
        except asyncio.InvalidStateError:  # the call had ended before the write
            return PermissionRefused("")
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error, "writing")

    async def body(url: str) -> None:
        async with grpc.aio.insecure_channel(url.removeprefix("quorum://")) as channel:
            found = {type(await refusal(channel)) for _ in range(50)}
        assert found <= {PermissionRefused, ConnectionLost}

    with_users(body)


def test_the_rights_for_bulk_calls_are_those_of_the_table() -> None:
    """Bulk calls pass the same gate; here the table alone is compared."""
    users = {
        name: User(name, "s", False, name == "monitor", *RIGHTS.get(name, ("", "", ""))) for name in EVERYBODY
    }
    users["admin"] = User("admin", "s", administers=True)
    access = Access()
    access.users_changed(Users(users.values()))
    for name, method in methods().items():
        if name.startswith("Bulk"):
            request = request_of(method, "mine")
            allowed = set()
            for user in users.values():
                try:
                    Context().run(access.check, name, request, user, HERE)  # no later task belongs to it
                    allowed.add(user.name)
                    access.audit.finish("done")  # else it is still under way in the tests that follow
                except StatusError:
                    pass
            assert allowed == ALLOWED[name], name


def test_a_dead_letter_target_needs_the_right_to_write_there() -> None:
    def needs(**arguments: str) -> set[tuple[str, str]]:
        request = admin_pb2.DeclareQueueRequest(queue="mine")
        for name, text in arguments.items():
            request.arguments["x-dead-letter-" + name].text = text
        return set(BY_METHOD["Admin/DeclareQueue"](request)) - {("configure", "mine")}

    assert needs() == set()
    assert needs(exchange="") == {("read", "mine"), ("write", "mine")}, (
        "its dead letters return to this queue"
    )
    assert needs(exchange="theirs") == {("read", "mine"), ("write", "theirs")}
    assert needs(exchange="theirs", **{"routing-key": "mine"}) == {("read", "mine"), ("write", "theirs")}
    assert needs(exchange="", **{"routing-key": "other"}) == {("read", "mine"), ("write", "other")}
    assert needs(**{"routing-key": "other"}) == {("read", "mine"), ("write", "other")}, (
        "a policy names exchanges"
    )


def test_a_declaration_without_a_name_that_names_a_target_is_judged_like_any_other() -> None:
    queue = admin_pb2.DeclareQueueRequest()
    queue.arguments["x-dead-letter-exchange"].text = "theirs"
    assert set(BY_METHOD["Admin/DeclareQueue"](queue)) == {
        ("configure", ""),
        ("read", ""),
        ("write", "theirs"),
    }
    exchange = admin_pb2.DeclareExchangeRequest()
    exchange.arguments["alternate-exchange"].text = "theirs"
    assert set(BY_METHOD["Admin/DeclareExchange"](exchange)) == {
        ("configure", ""),
        ("read", ""),
        ("write", "theirs"),
    }


def test_a_binding_without_a_destination_needs_an_administrator() -> None:
    binding = admin_pb2.Binding(source="mine")
    for name in ("Add", "Remove"):
        request = getattr(admin_pb2, f"{name}BindingRequest")(binding=binding)
        assert set(BY_METHOD[f"Admin/{name}Binding"](request)) == {("administer", "")}


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        ({"exchange": "theirs", "routing_key": "mine"}, ["theirs"]),
        ({"exchange": "theirs", "routing_keys": ["mine", "mine"]}, ["theirs"]),
        ({"routing_keys": ["mine", "other", "mine"]}, ["mine", "other"]),
        ({"routing_key": "mine", "routing_keys": ["other"]}, ["other"]),  # it is refused anyway
        ({"routing_key": "mine"}, ["mine"]),
        ({}, [""]),
    ],
)
def test_a_batch_needs_write_for_its_exchange_or_for_each_queue(
    batch: dict[str, Any], names: list[str]
) -> None:
    assert list(published(queue_pb2.PublishBatch(**batch))) == [("write", name) for name in names]


def test_no_policy_makes_a_key_of_dead_letters_a_way_into_a_queue() -> None:
    """The administrator's policy sends dead letters to the default exchange; the key in a queue's own arguments would
    choose where they go."""

    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            await client.set_policy("letters", "mine*", {"x-dead-letter-exchange": "", "x-max-length": 1})
            await client.set_permissions("writer", "mine*", "mine*", "mine*")
        async with quorum.connect(as_user(url, "writer")) as client:
            with pytest.raises(PermissionRefused, match="write for 'other'"):
                await client.declare("mine.way", {"x-dead-letter-routing-key": "other"})
            await client.declare("mine.way", {"x-dead-letter-routing-key": "mine"})

    with_users(body)


async def code_of(channel: Any, path: str, request: Any, headers: dict[str, str]) -> grpc.StatusCode:
    """How the call ends, or OK if it goes on after its first answer. The request is sent together with the call's
    beginning: a later write may fail because the call is refused already, and grpcio then replaces its status."""
    call = channel.unary_stream(path)(
        request.SerializeToString(), metadata=tuple(headers.items()), timeout=60
    )
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            break
    if call.done():
        return await call.code()
    call.cancel()
    return grpc.StatusCode.OK
