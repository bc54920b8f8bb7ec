"""Log-in: which users and addresses are accepted, and what the log says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

import quorum
from quorum.api.grpc.calls import _client_call
from quorum.api.hub.member_requests import MemberRequests
from quorum.api.security.access import MAX_HEADER, MAX_LOG_INS, Access, FirstAdministrator, is_loopback
from quorum.api.security.passwords import secret_of
from quorum.api.services.session_service import MAX_NOTED
from quorum.api.status import Code, StatusError, make
from quorum.catalog.users import User, Users
from quorum.client.connection.endpoints import CLIENT_CALL
from quorum.client.errors import PermissionRefused, PublishRejected, QuorumError
from quorum.v1 import admin_pb2
from support.members.users import AWAY, HERE, LIMIT_S, PASSWORD, as_user, header, with_users

MANY = 12
BOSS, ANN = User("boss", "", administers=True), User("ann", "", administers=True)


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
        access = Access()
        with pytest.raises(StatusError, match=r"to add it to a cluster.* give it first_administrator_file"):
            await access.admit("Queue/Session", AWAY, AWAY, {})
        access.serves()
        with pytest.raises(
            StatusError, match=r"cluster has no users.*loopback address.*first_administrator_file"
        ):
            await access.admit("Queue/Session", AWAY, AWAY, {})
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
        assert await user_of(access, AWAY, header("another", PASSWORD)) == "log_in_failed"
        access.users_changed(Users([User("admin", secret_of(PASSWORD), administers=True)]))
        assert await user_of(access, AWAY, header("root", PASSWORD)) == "log_in_failed"
        assert await user_of(access, AWAY, header("admin", PASSWORD)) == "admin"
        assert await user_of(access, HERE, {}) == "log_in_needed"

    asyncio.run(scenario())


@pytest.mark.parametrize("first", [None, FirstAdministrator("root", secret_of(PASSWORD))])
def test_allow_without_users_counts_until_there_are_users(first: FirstAdministrator | None) -> None:
    async def scenario() -> None:
        access = Access(first, is_open_without_users=True)
        assert await user_of(access, AWAY, {}) == "anybody"
        assert await user_of(access, AWAY, {}, "a client's certificate") == "anybody"
        access.users_changed(Users([BOSS]))
        assert await user_of(access, AWAY, {}) == "log_in_needed"
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


def test_a_password_beside_a_certificate_is_what_counts() -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", "", administers=True), User("ann", secret_of(PASSWORD))]))
        assert await user_of(access, AWAY, header("ann", PASSWORD), "admin") == "ann"
        assert await user_of(access, AWAY, header("ann", "another password"), "admin") == "log_in_failed"

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
    away, here, named, over = Session(AWAY), Session(HERE), Session(AWAY), Session(AWAY)
    for session in (away, here, over):
        access.begin(session, None, {})
    access.over(over)
    access.begin(named, BOSS, {})
    access.reconfigure(None, is_open_without_users=True)
    assert (away.ended, here.ended, named.ended) == ("", "", "")
    assert asyncio.run(user_of(access, AWAY, {})) == "anybody"
    access.reconfigure(None, is_open_without_users=False)
    assert (away.ended, here.ended, named.ended, over.ended) == ("user_changed", "", "", "")
    assert asyncio.run(user_of(access, AWAY, {})) == "no_users"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that were checked. A user's secret is the password itself."""
    found: list[str] = []

    def is_right(password: str, secret: str) -> bool:
        found.append(password)
        return secret == password

    monkeypatch.setattr("quorum.api.security.access.is_right", is_right)
    return found


def test_a_header_is_of_the_kind_basic_and_has_a_limit(checked: list[str]) -> None:
    async def scenario() -> None:
        access = Access()
        with_colon = "a:long:password"
        access.users_changed(Users([User("admin", with_colon, administers=True)]))
        given = header("admin", with_colon)["authorization"].removeprefix("Basic ")
        for kind, found in (("Basic", "admin"), ("bAsIc", "admin"), ("Digest", "log_in_failed")):
            assert await user_of(access, AWAY, {"authorization": f"{kind} {given}"}) == found
        long = header("admin", "x" * MAX_HEADER)
        assert await user_of(access, AWAY, long) == "log_in_failed"
        assert checked == [with_colon], "no password of that length is checked"

    asyncio.run(scenario())


def test_addresses_take_turns_with_their_passwords(checked: list[str]) -> None:
    """Before, a log-in waited for all passwords that another address had sent before it."""

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


@pytest.mark.parametrize(("password", "found"), [("right", "admin"), ("wrong", "log_in_failed")])
def test_log_ins_with_the_same_password_share_one_check(
    checked: list[str], password: str, found: str
) -> None:
    """After a restart of a member all sessions of a user log in at once. Before, each was checked by itself, and those
    beyond the share of their address were refused."""

    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", "right", administers=True)]))
        log_ins = [user_of(access, AWAY, header("admin", password)) for _ in range(2 * MAX_LOG_INS)]
        assert set(await asyncio.gather(*log_ins)) == {found}
        assert len(checked) == 1
        assert await user_of(access, AWAY, header("admin", password)) == found

    asyncio.run(scenario())
    assert len(checked) == (1 if password == "right" else 2), "a wrong one is not remembered"


def test_a_check_whose_client_has_gone_is_made_for_the_next_log_in_with_the_same_password(
    checked: list[str],
) -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", "right", administers=True)]))
        before, first, *others = [
            asyncio.create_task(user_of(access, AWAY, header("admin", password)))
            for password in ("another", *["right"] * 3)
        ]
        await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.gather(*others) == ["admin", "admin"]
            assert await before == "log_in_failed"

    asyncio.run(scenario())
    assert checked == ["another", "right"]


def test_a_log_in_that_finds_too_many_waiting_may_be_tried_again(
    checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client gives up after some refusals, and the others have been checked a moment later."""
    monkeypatch.setattr("quorum.api.security.access.MAX_LOG_INS", 2)

    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", "right", administers=True)]))
        waiting = asyncio.create_task(user_of(access, AWAY, header("admin", "wrong")))
        await asyncio.sleep(0)
        with pytest.raises(StatusError, match="try again") as refused:
            await access.admit("Queue/Session", AWAY, AWAY, header("admin", "right"))
        assert refused.value.status.reason == "too_many_log_ins"
        assert refused.value.status.code == Code.UNAVAILABLE
        await waiting
        assert await user_of(access, AWAY, header("admin", "right")) == "admin"

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["password", "token", "certificate"])
def test_a_user_that_this_member_does_not_know_yet_may_log_in(checked: list[str], kind: str) -> None:
    """It was made a moment ago at another member. Before, its program was told that user or password are wrong."""

    async def scenario() -> None:
        access = Access(tokens=lambda token: (token, 2e9))
        access.users_changed(Users([BOSS]))

        async def catch_up() -> None:
            access.users_changed(Users([BOSS, User("ann", "right")]))

        access.catch_up = catch_up
        headers = {
            "password": header("ann", "right"),
            "token": {"authorization": "Bearer ann"},
            "certificate": {},
        }[kind]
        with capture_logs() as logs:
            assert await user_of(access, AWAY, headers, "ann" if kind == "certificate" else "") == "ann"
        assert logs == []

    asyncio.run(scenario())


def test_a_new_password_counts_at_a_member_that_still_knows_the_old_one(checked: list[str]) -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("ann", "old")]))

        async def catch_up() -> None:
            access.users_changed(Users([User("ann", "new")]))

        access.catch_up = catch_up
        assert await user_of(access, AWAY, header("ann", "new")) == "ann"
        assert await user_of(access, AWAY, header("ann", "wrong")) == "log_in_failed"

    asyncio.run(scenario())
    assert checked == ["new", "new", "wrong"], "a wrong one is checked again only if the user has changed"


def test_log_ins_that_fail_ask_together_for_the_present_users(checked: list[str]) -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([BOSS]))
        asked: list[asyncio.Event] = []

        async def catch_up() -> None:
            asked.append(asyncio.Event())
            await asked[-1].wait()

        access.catch_up = catch_up
        log_ins = [asyncio.create_task(user_of(access, AWAY, {}, f"ann {n}")) for n in range(100)]
        async with asyncio.timeout(LIMIT_S):
            while len(asked) < 2:  # the first question came before the other log-ins
                await asyncio.sleep(0)
                asked[0].set()
            assert not any(task.done() for task in log_ins[1:])
            asked[1].set()
            assert set(await asyncio.gather(*log_ins)) == {"log_in_failed"}
        assert len(asked) == 2

    asyncio.run(scenario())


def test_a_question_whose_client_has_gone_is_asked_for_the_others(checked: list[str]) -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([BOSS]))
        asked = 0

        async def catch_up() -> None:
            nonlocal asked
            asked += 1
            if asked < 3:
                await asyncio.Event().wait()
            access.users_changed(Users([BOSS, User("ann", "")]))

        access.catch_up = catch_up
        tasks = [asyncio.create_task(user_of(access, AWAY, {}, "ann")) for _ in range(4)]
        for gone in tasks[:2]:
            while asked == 0:
                await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait({gone})
            await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.gather(*tasks[2:]) == ["ann", "ann"]

    asyncio.run(scenario())


def test_without_a_leader_the_users_that_are_known_count(
    checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorum.api.security.access.CATCH_UP_S", 0.0)

    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("ann", "right")]))

        async def waits() -> None:
            await asyncio.Event().wait()

        async def refused() -> None:
            raise StatusError(make(Code.UNAVAILABLE, "no_leader", "the system group has no leader"))

        for access.catch_up in (waits, refused):
            assert await user_of(access, AWAY, header("ann", "right")) == "ann"
            assert await user_of(access, AWAY, header("ann", "wrong")) == "log_in_failed"

    asyncio.run(scenario())


def test_a_member_asks_its_cluster_before_it_refuses_a_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    ask = MemberRequests.current_catalog

    async def counted(requests: MemberRequests) -> Any:
        asked.append(None)
        return await ask(requests)

    monkeypatch.setattr(MemberRequests, "current_catalog", counted)

    async def body(url: str) -> None:
        asked.clear()
        async with quorum.connect(as_user(url, "writer")):
            assert not asked
        with pytest.raises(PermissionRefused, match="wrong user or password"):
            await quorum.connect(as_user(url, "writer", "another password"))
        assert len(asked) == 1

    with_users(body)


def test_a_wrong_password_is_wrong_each_time_and_its_refusal_is_short() -> None:
    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", secret_of(PASSWORD), administers=True)]))
        for name in ("admin", "admin", "n" * 5_000):
            with pytest.raises(StatusError) as refused:
                await access.admit("Queue/Get", AWAY, AWAY, header(name, "wrong"))
            assert refused.value.status.reason == "log_in_failed"
            assert len(refused.value.status.message) < 400, "headers have a limit"

    asyncio.run(scenario())


def test_a_log_in_that_has_ended_takes_no_share_of_its_address(
    checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorum.api.security.access.MAX_LOG_INS", 2)

    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User("admin", "right", administers=True)]))
        for number in range(4):
            assert await user_of(access, AWAY, header("admin", f"wrong {number}")) == "log_in_failed"
            ended = asyncio.create_task(user_of(access, AWAY, header("admin", "its client has gone")))
            await asyncio.sleep(0)
            ended.cancel()
            await asyncio.wait({ended})
        assert await user_of(access, AWAY, header("admin", "right")) == "admin"

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["ann", "without", "nobody"])
def test_a_refused_log_in_costs_one_check_whether_or_not_there_is_such_a_user(
    checked: list[str], name: str
) -> None:
    """Else its time tells which users there are."""
    access = Access()
    access.users_changed(Users([User("ann", "right", administers=True), User("without", "")]))
    assert asyncio.run(user_of(access, AWAY, header(name, "wrong"))) == "log_in_failed"
    assert checked == ["wrong"]


def test_a_right_password_is_checked_again_when_so_many_others_came_after_it(
    checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorum.api.security.access.KNOWN_LOG_INS", 2)

    async def scenario() -> None:
        access = Access()
        access.users_changed(Users([User(name, name.upper(), administers=True) for name in "abc"]))
        for name in "abacab":
            assert await user_of(access, AWAY, header(name, name.upper())) == name

    asyncio.run(scenario())
    assert checked == ["A", "B", "C", "B"]


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


def test_the_log_names_what_a_session_was_refused_once_for_each_queue() -> None:
    """So a client that keeps trying leaves the lines of a minute to others."""
    with capture_logs() as lines:

        async def body(url: str) -> None:
            async with quorum.connect(as_user(url, "writer")) as client:
                for _ in range(3):
                    with pytest.raises(PublishRejected):
                        await client.publish("other", b"x")
                    with pytest.raises(PermissionRefused):
                        await client.get("mine")
                with pytest.raises(PermissionRefused):
                    async with client.consume("third"):
                        pass
                for number in range(2 * MAX_NOTED):
                    with pytest.raises(PublishRejected):
                        await client.publish(f"other.{number}", b"x")

        with_users(body)
    found = [each for each in lines if each["event"] == "refused" and each["call"].startswith("Session/")]
    assert [(each["user"], each["call"], each["target"]) for each in found[:3]] == [
        ("writer", "Session/publish", "queue=other"),
        ("writer", "Session/get", "queue=mine"),
        ("writer", "Session/attach", "queue=third"),
    ]
    assert len(found) == MAX_NOTED
    assert all("no permission" in each["outcome"] and "127.0.0.1" in each["peer"] for each in found)


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
