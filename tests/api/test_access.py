"""Log-in and permissions: who may make which call, what ends when a user changes, and what the log says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

import quorum
from quorum.api import server as api_server
from quorum.api.grpc.calls import MAX_CALLS, _client_call
from quorum.api.security.access import Access, FirstAdministrator, is_loopback
from quorum.api.security.passwords import is_right, secret_of
from quorum.api.security.rights import AUDITED, BY_METHOD, OPEN
from quorum.api.status import StatusError
from quorum.catalog.users import User, Users
from quorum.client import encode_batch
from quorum.client.client import Client
from quorum.client.connection.endpoints import CLIENT_CALL
from quorum.client.errors import (
    ConnectionLost,
    PermissionRefused,
    PublishRejected,
    QuorumError,
    RefusedError,
    RolledBack,
    from_rpc_error,
)
from quorum.v1 import admin_pb2, bulk_pb2, queue_pb2, queue_pb2_grpc
from support.members.served import serving

PASSWORD = "a long password"
LIMIT_S = 180.0
MANY = 12
AWAY = "ipv4:192.0.2.7:41000"
HERE = "ipv4:127.0.0.1:41000"


def header(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def as_user(url: str, user: str, password: str = PASSWORD) -> str:
    return url.replace("quorum://", f"quorum://{user}:{password.replace(' ', '%20')}@")


def with_users(body: Callable[[str], Coroutine[Any, Any, None]], max_calls: int = MAX_CALLS) -> None:
    """Runs this with the URL of a member that has the users `admin`, who administers, `monitor`, `nobody`, and three
    with one right each for names that begin with `mine`."""

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving(max_calls=max_calls) as (url, _):
            async with quorum.connect(url) as client:
                await client.declare("mine", {})
                await client.declare("other", {})
                await client.set_user("admin", PASSWORD, administers=True)
            async with quorum.connect(as_user(url, "admin")) as client:
                await client.set_user("monitor", PASSWORD, monitors=True)
                for name, rights in RIGHTS.items():
                    await client.set_user(name, PASSWORD)
                    await client.set_permissions(name, *rights)
            await body(url)

    asyncio.run(scenario())


RIGHTS = {
    "nobody": ("", "", ""),
    "configurer": ("mine*", "", ""),
    "writer": ("", "mine*", ""),
    "reader": ("", "", "mine*"),
}
"""User -> patterns of configure, write and read."""

# ---- the table


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


EVERYBODY = {"admin", "monitor", "nobody", "configurer", "writer", "reader"}
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
    """A request about this queue or exchange. It names nothing else that exists, so whoever may make it changes
    nothing."""
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
    assert needs(exchange="theirs") == {("read", "mine"), ("write", "theirs")}
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


# ---- sessions


def test_a_session_may_publish_and_consume_what_its_user_may() -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "writer")) as client:
            await client.publish("mine", b"one")
            with pytest.raises(PublishRejected, match="no permission: write for 'other'") as refused:
                await client.publish("other", b"two")
            assert refused.value.reason == "NOT_PERMITTED"
            with pytest.raises(PermissionRefused, match="no permission: read for 'mine'"):
                await client.get("mine")
            with pytest.raises(RolledBack):
                await in_transaction(client, "mine", "other")
            await client.publish("mine", b"five")  # the session goes on
        async with quorum.connect(as_user(url, "reader")) as client:
            async with client.consume("mine") as consumer:
                bodies = []
                async for message in consumer:
                    bodies.append(message.body)
                    await message.settle()
                    if len(bodies) == 2:
                        break
            assert bodies == [b"one", b"five"]
            with pytest.raises(PermissionRefused, match="read for 'other'"):
                async with client.consume("other"):
                    pass

    with_users(body)


def test_a_producer_belongs_to_its_user() -> None:
    """A user who has learned the id of another user's producer cannot end its session, nor take its numbers: messages
    under numbers that are taken are confirmed, and dropped as repeats."""

    async def opened(channel: Any, user: str, epoch: int) -> Any:
        call = queue_pb2_grpc.QueueStub(channel).Session(metadata=tuple(header(user, PASSWORD).items()))
        await call.write(queue_pb2.SessionRequest(open=queue_pb2.Open(producer_id=bytes(16), epoch=epoch)))
        assert (await call.read()).HasField("opened")
        return call

    async def publish(call: Any, number: int, queue: str = "mine") -> None:
        batch = encode_batch([b"x"]).data
        sent = queue_pb2.PublishBatch(
            routing_key=queue, first_sequence=number, lowest_unconfirmed=1, batch=batch
        )
        await call.write(queue_pb2.SessionRequest(publish=sent))
        assert (await call.read()).confirms.confirmed, "the session has ended, or the message was refused"

    async def body(url: str) -> None:
        async with grpc.aio.insecure_channel(url.removeprefix("quorum://")) as channel:
            own = await opened(channel, "writer", 1)
            await publish(own, 1)
            others = await opened(channel, "admin", 9)
            for number in (1, 2, 3):
                await publish(others, number)
            await publish(own, 2)
            again = await opened(channel, "writer", 2)
            await publish(again, 2)  # a repeat
            for call in (own, others, again):
                call.cancel()
        async with quorum.connect(as_user(url, "admin")) as client:
            assert (await client.describe("mine")).queue.ready == 2 + 3

    with_users(body)


async def in_transaction(client: Client, *queues: str) -> None:
    async with client.transaction() as tx:
        for queue in queues:
            await tx.publish(queue, b"of a transaction")


def test_a_binding_that_is_named_by_its_id_needs_an_administrator() -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            await client.set_permissions("reader", "", "mine*", "mine*")
            await client.declare_exchange("mine.x", "direct")
            await client.declare_exchange("theirs", "direct")
            await client.bind("mine.x", "mine", routing_key="k")
            await client.bind("theirs", "other", routing_key="k")
            theirs = next(each for each in await client.bindings() if each.source == "theirs")
        async with quorum.connect(as_user(url, "reader")) as client:
            request = admin_pb2.RemoveBindingRequest()
            request.binding.source, request.binding.queue, request.binding.id = "mine.x", "mine", theirs.id
            with pytest.raises(PermissionRefused, match="administer"):
                await client._admin("RemoveBinding", request, None)
            await client.unbind("mine.x", "mine", routing_key="k")

    with_users(body)


async def ends(client: Client) -> QuorumError:
    """The error with which a publish fails in the end."""
    while True:
        try:
            await client.publish("mine", b"x", timeout_ms=5_000)
        except QuorumError as error:
            return error
        await asyncio.sleep(0.01)


def test_what_a_removed_user_has_open_ends() -> None:
    async def body(url: str) -> None:
        async with (
            quorum.connect(as_user(url, "admin")) as admin,
            quorum.connect(as_user(url, "writer")) as client,
        ):
            await client.publish("mine", b"x")
            await admin.delete_user("writer")
            assert isinstance(await ends(client), PermissionRefused)

    with_users(body)


def test_a_changed_permission_counts_for_sessions_that_are_open() -> None:
    async def body(url: str) -> None:
        async with (
            quorum.connect(as_user(url, "admin")) as admin,
            quorum.connect(as_user(url, "writer")) as client,
        ):
            await client.publish("mine", b"x")
            await admin.set_permissions("writer", "", "", "")
            assert (await ends(client)).reason == "NOT_PERMITTED"
            await admin.set_permissions("writer", "", "mine", "")
            await client.publish("mine", b"x")

    with_users(body)


def test_sessions_without_a_user_end_with_the_first_user() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving() as (url, _), quorum.connect(url) as client:
            await client.declare("mine", {})
            await client.publish("mine", b"x")
            await client.set_user("admin", PASSWORD, administers=True)
            assert isinstance(await ends(client), PermissionRefused)

    asyncio.run(scenario())


@pytest.mark.parametrize("takes", ["nothing", "certificates", "tokens"])
def test_the_first_user_can_log_in(takes: str) -> None:
    """Else the cluster would be lost: every call needs a user, and none could log in."""

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving() as (url, [api]), quorum.connect(url) as client:
            api.hub.access.takes_certificates = takes == "certificates"
            if takes == "tokens":
                api.hub.access.reconfigure(lambda _: ("admin", 0.0), is_open_without_users=False)
            made = client.set_user("admin", administers=True)
            if takes == "nothing":
                with pytest.raises(RefusedError, match="no administrator could log in afterwards") as refused:
                    await made
                assert refused.value.reason == "LAST_ADMINISTRATOR"
                assert await client.users() == []
            else:
                assert await made

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128])
def test_a_user_name_of_a_wrong_length_is_refused(name: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving() as (url, _), quorum.connect(url) as client:
            for call in (
                client.set_user(name, PASSWORD, administers=True),
                client.set_permissions(name, "*", "*", "*"),
                client.delete_user(name),
            ):
                with pytest.raises(RefusedError) as refused:
                    await call
                said = f"a user name of {len(name.encode())} bytes; allowed: 1..255"
                assert str(refused.value).endswith(said)
                assert refused.value.reason == "BAD_ARGUMENT"

    asyncio.run(scenario())


def test_the_last_administrator_stays() -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            for change in (client.delete_user("admin"), client.set_user("admin", administers=False)):
                with pytest.raises(QuorumError, match="only administrator"):
                    await change
            assert [each.name for each in await client.users()] == sorted(EVERYBODY)

    with_users(body)


def test_one_administrator_has_to_be_able_to_log_in() -> None:
    """Before, the first administrator could be one without a password, whom no member let in."""

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving() as (url, [api]):
            async with quorum.connect(url) as client:
                with pytest.raises(QuorumError, match="no administrator could log in afterwards") as found:
                    await client.set_user("me", administers=True)
                assert found.value.reason == "LAST_ADMINISTRATOR"
                assert await client.users() == []
                await client.set_user("admin", PASSWORD, administers=True)
            async with quorum.connect(as_user(url, "admin")) as client:
                await client.set_user("me", administers=True)
                for change in (client.delete_user("admin"), client.set_user("admin", administers=False)):
                    with pytest.raises(QuorumError, match=r"give a password to an administrator \('me'\)"):
                        await change
                api.hub.access.takes_certificates = True
                await client.set_user("admin", administers=False)

    asyncio.run(scenario())


# ---- admission


async def user_of(access: Access, peer: str, headers: dict[str, str], certificate: str = "") -> str:
    """The name of the admitted user, `anybody` without one, or the reason of the refusal."""
    try:
        user = await access.admit("Queue/Session", peer, peer, headers, certificate)
    except StatusError as error:
        return error.status.reason
    return "anybody" if user is None else user.name


def test_without_users_only_loopback_addresses_are_served() -> None:
    async def scenario() -> None:
        assert await user_of(Access(), HERE, {}) == "anybody"
        assert await user_of(Access(), "ipv6:[::1]:41000", {}) == "anybody"
        assert await user_of(Access(), AWAY, {}) == "no_users"
        with pytest.raises(StatusError, match=r"loopback address.*first_administrator_file"):
            await Access().admit("Queue/Session", AWAY, AWAY, {})
        assert await user_of(Access(), AWAY, header("admin", PASSWORD)) == "no_users"
        assert await user_of(Access(is_open_without_users=True), AWAY, {}) == "anybody"

    asyncio.run(scenario())


@given(st.text(max_size=60), st.sampled_from(["Basic ", "basic ", "Bearer ", "", "Basic  "]))
@example("é", "Basic ")
@example(base64.b64encode(b"\xff:\xff").decode(), "Basic ")
@example("A" * 9_000, "Basic ")
def test_a_header_of_any_text_is_refused(text: str, kind: str) -> None:
    access = Access()
    access.users_changed(Users([User("admin", secret_of(PASSWORD), administers=True)]))
    reason = asyncio.run(user_of(access, AWAY, {"authorization": kind + text}))
    assert reason in ("log_in_failed", "log_in_needed")


def test_a_configured_administrator_may_log_in_until_there_are_users() -> None:
    async def scenario() -> None:
        access = Access(FirstAdministrator("root", secret_of(PASSWORD)))
        assert await user_of(access, AWAY, {}) == "log_in_needed"
        assert await user_of(access, HERE, {}) == "anybody"
        assert await user_of(access, AWAY, header("root", PASSWORD)) == "root"
        assert await user_of(access, AWAY, header("root", "another password")) == "log_in_failed"
        access.users_changed(Users([User("admin", secret_of(PASSWORD), administers=True)]))
        assert await user_of(access, AWAY, header("root", PASSWORD)) == "log_in_failed"
        assert await user_of(access, AWAY, header("admin", PASSWORD)) == "admin"
        assert await user_of(access, HERE, {}) == "log_in_needed"

    asyncio.run(scenario())


def test_a_certificate_names_its_user() -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", "", administers=True)]))
        assert await user_of(access, AWAY, {}, "admin") == "admin"
        assert await user_of(access, AWAY, {}, "somebody") == "log_in_failed"
        assert await user_of(access, AWAY, header("admin", ""), "") == "log_in_failed"  # it has no password

    asyncio.run(scenario())


def test_a_changed_password_counts_at_once() -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", secret_of(PASSWORD), administers=True)]))
        assert await user_of(access, AWAY, header("admin", PASSWORD)) == "admin"
        access.users_changed(Users([User("admin", secret_of("another password"), administers=True)]))
        assert await user_of(access, AWAY, header("admin", PASSWORD)) == "log_in_failed"

    asyncio.run(scenario())


def test_a_user_that_is_removed_while_its_password_is_checked_does_not_get_in() -> None:
    async def scenario() -> None:
        access = Access()
        users = [User("admin", secret_of(PASSWORD), administers=True), User("ann", secret_of(PASSWORD))]
        access.users_changed(Users(users))
        entering = asyncio.create_task(user_of(access, AWAY, header("ann", PASSWORD)))
        await asyncio.sleep(0)
        access.users_changed(Users(users[:1]))
        assert await entering == "user_changed"

    asyncio.run(scenario())


BOSS, ANN = User("boss", "", administers=True), User("ann", "", administers=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([BOSS, ANN], [BOSS]),
        ([BOSS, ANN], [BOSS, replace(ANN, administers=False)]),
        ([BOSS, ANN], [BOSS, replace(ANN, secret="another")]),
        ([], [BOSS]),
    ],
    ids=["removed", "a right less", "another password", "the first user"],
)
def test_a_request_that_comes_after_a_change_of_its_user_is_refused(
    before: list[User], after: list[User]
) -> None:
    """A client has 30 s between the headers of a call and its request."""

    async def scenario() -> None:
        access = Access()
        request = admin_pb2.SetUserRequest(user="another", password=PASSWORD, administers=True)
        access.users_changed(Users(before))
        user = await access.admit("Admin/SetUser", HERE, HERE, {}, "ann")
        access.check("Admin/SetUser", request, user, HERE)
        access.users_changed(Users(after))
        with pytest.raises(StatusError) as refused:
            access.check("Admin/SetUser", request, user, HERE)
        assert refused.value.status.reason == "user_changed"

    asyncio.run(scenario())


def test_a_flood_of_wrong_passwords_leaves_others_their_share() -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", secret_of(PASSWORD), administers=True)]))
        flood = [
            asyncio.create_task(user_of(access, AWAY, header("admin", f"wrong {n}"))) for n in range(600)
        ]
        await asyncio.sleep(0)
        other = asyncio.create_task(access.admit("Queue/Get", HERE, HERE, header("admin", PASSWORD)))
        async with asyncio.timeout(LIMIT_S):
            while sum(task.done() for task in flood) < 300:
                await asyncio.sleep(0.01)
        for task in flood:
            task.cancel()
        found = await asyncio.gather(*flood, return_exceptions=True)
        assert found.count("too_many_log_ins") >= 300
        assert (await other) is not None

    asyncio.run(scenario())


def test_a_session_without_a_log_in_ends_when_the_configuration_demands_one() -> None:
    """Before, it went on for ever. One from a loopback address needs none until there are users."""

    @dataclass(eq=False)
    class Session:
        peer: str
        ended: str = ""

        def wire_peer(self) -> str:
            return self.peer

        def end(self, why: StatusError) -> None:
            self.ended = why.status.reason

    access = Access(is_open_without_users=True)
    away, here = Session(AWAY), Session(HERE)
    for session in (away, here):
        access.begin(session, None, {})
    access.reconfigure(None, is_open_without_users=True)
    assert (away.ended, here.ended) == ("", "")
    access.reconfigure(None, is_open_without_users=False)
    assert (away.ended, here.ended) == ("user_changed", "")


def test_addresses_take_turns_with_their_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a log-in waited for all passwords that another address had sent before it."""
    checked: list[str] = []

    def is_right(password: str, secret: str) -> bool:
        checked.append(password)
        return secret == password

    monkeypatch.setattr("quorum.api.security.access.is_right", is_right)

    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", "right", administers=True)]))
        flood = [
            asyncio.create_task(user_of(access, AWAY, header("admin", f"wrong {number}")))
            for number in range(40)
        ]
        await asyncio.sleep(0)
        assert await user_of(access, "ipv4:192.0.2.200:1", header("admin", "right")) == "admin"
        await asyncio.gather(*flood)

    asyncio.run(scenario())
    assert len(checked) == 41 and checked.index("right") <= 2


def test_a_users_flood_of_sessions_leaves_another_one_of_the_same_address_its_share() -> None:
    async def body(url: str) -> None:
        async with contextlib.AsyncExitStack() as held:
            reasons = set()
            for _ in range(MANY):
                try:
                    await held.enter_async_context(quorum.connect(as_user(url, "writer"), timeout_ms=3_000))
                except QuorumError as error:
                    reasons.add(error.reason)
            assert reasons == {"TOO_MANY_CALLS"}
            async with quorum.connect(as_user(url, "reader")) as client:
                assert await client.get("mine") == []

    with_users(body, max_calls=MANY)


def test_a_failed_log_in_is_in_the_log_without_its_password() -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", secret_of(PASSWORD), administers=True)]))
        with capture_logs() as lines:
            await user_of(access, AWAY, header("admin", "a wrong secret"))
        assert [(each["event"], each["user"], each["peer"]) for each in lines] == [
            ("log-in failed", "admin", AWAY)
        ]
        assert "wrong secret" not in str(lines)

    asyncio.run(scenario())


def test_the_log_says_who_changed_what() -> None:
    with capture_logs() as lines:

        async def body(url: str) -> None:
            async with quorum.connect(as_user(url, "configurer")) as client:
                await client.declare("mine.too", {})
                with pytest.raises(PermissionRefused):
                    await client.declare("other.too", {})

        with_users(body)
    found = [
        (each["user"], each["call"], each["target"], each["outcome"].partition(":")[0])
        for each in lines
        if each["event"] in ("administration", "refused") and "too" in each["target"]
    ]
    assert found == [
        ("configurer", "Admin/DeclareQueue", "queue=mine.too", "begun"),
        ("configurer", "Admin/DeclareQueue", "queue=mine.too", "done"),
        ("configurer", "Admin/DeclareQueue", "queue=other.too", "user 'configurer' has no permission"),
    ]
    assert PASSWORD not in str(lines)


def test_a_password_is_known_by_its_secret_alone() -> None:
    secret = secret_of(PASSWORD, bytes(16))
    assert is_right(PASSWORD, secret)
    assert not is_right("another password", secret)
    assert not is_right(PASSWORD, "")
    assert PASSWORD not in secret
    assert secret_of(PASSWORD) != secret_of(PASSWORD)


def test_what_is_a_loopback_address() -> None:
    assert (
        is_loopback("ipv6:%5B::1%5D:7400") and is_loopback("unix:/run/q") and is_loopback("ipv4:127.9.9.9:1")
    )
    assert is_loopback("ipv6:[::ffff:127.0.0.1]:1")
    assert (
        not is_loopback("ipv4:10.0.0.1:1")
        and not is_loopback("")
        and not is_loopback("ipv6:[fe80::1%eth0]:1")
    )


def test_the_tries_of_one_call_have_one_id_in_the_log() -> None:
    with capture_logs() as lines:

        async def body(url: str) -> None:
            async with quorum.connect(as_user(url, "admin")) as client:

                async def declare(stub: Any, timeout_s: float, attempt: int) -> None:
                    await stub.DeclareQueue(admin_pb2.DeclareQueueRequest(queue="tried"), timeout=timeout_s)
                    if attempt < 2:
                        empty = grpc.aio.Metadata()
                        raise grpc.aio.AioRpcError(
                            grpc.StatusCode.UNAVAILABLE, empty, empty, "its answer is lost"
                        )

                await client._attempts("declaring", None, declare)
                await client.declare("tried.too")

        with_users(body)
    begun = [each for each in lines if "tried" in each.get("target", "") and each["outcome"] == "begun"]
    assert len({each["request"] for each in begun}) == len(begun) == 4
    first, second, third, other = (each["client_call"] for each in begun)
    assert first == second == third != other


@pytest.mark.parametrize(
    ("sent", "written"),
    [("0a-Z", "0a-Z"), ("x" * 64, "x" * 64), ("x" * 65, None), ("a b", None), ("a=b'", None), ("", None)],
)
def test_an_id_of_a_call_is_written_down_if_it_is_short_and_plain(sent: str, written: str | None) -> None:
    assert _client_call({CLIENT_CALL: sent}) == (written or "")
    with capture_logs() as lines:
        request = admin_pb2.DeleteUserRequest(user="ann")
        context = Context()
        context.run(
            Access().check, "Admin/DeleteUser", request, None, HERE, _client_call({CLIENT_CALL: sent})
        )
    assert lines[0].get("client_call") == written


def test_a_cluster_without_users_is_told_when_the_member_serves_and_not_before() -> None:
    """A node that joins learns the users with its first entries."""
    with capture_logs() as lines:
        joined, fresh = Access(), Access()
        for access in (joined, fresh):
            access.users_changed(Users())
        joined.users_changed(Users([User("ann", "secret")]))
        joined.serves()
        assert lines == []
        fresh.serves()
        fresh.serves()
    assert [line["event"] for line in lines] == [
        "no users yet: only connections from a loopback address are served"
    ]
