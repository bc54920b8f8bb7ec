"""The services as JSON over HTTP: what curl gets, what is refused, and that the description is true."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

import quorum
from quorum.api import shares
from quorum.api.http import answers, events, json_api, json_codec
from quorum.api.http import server as http_server
from quorum.api.http.calls import CALLS, PREFIX, request_of
from quorum.api.http.description import openapi
from quorum.api.http.json_api import MAX_BODY
from quorum.api.http.json_codec import MAX_VALUES, JsonError
from quorum.api.http.metrics import Metrics
from quorum.api.http.server import MOST_CONNECTIONS
from quorum.api.security.access import refusal
from quorum.api.security.rights import BY_METHOD
from quorum.bulk import BulkClient
from quorum.catalog.users import User
from quorum.local_cluster.certificate_files import write_certificates
from quorum.v1 import admin_pb2, queue_pb2
from support.members.http_port import PASSWORD, Http, member

IDLE_LIMIT_S = 120.0
HEAD_LIMIT_S = 60.0
"""Time limit for the answer to a HEAD; a stream of events takes an hour."""
FUZZED = settings(
    max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
"""Of the requests of each call that are made from the description."""


def test_a_queue_is_declared_used_and_deleted() -> None:
    async def run() -> None:
        async with member() as http:
            api = "/api/v1/queues/orders"
            assert await http.ok("PUT", api, {"arguments": {"x-max-length": 5}}) == {"created": True}
            assert await http.ok("PUT", api, {"arguments": {"x-max-length": 5}}) == {"created": False}
            messages = [
                {
                    "body": "one",
                    "properties": {"priority": 3},
                    "application_properties": {"colour": "red", "n": 1},
                },
                {"body_base64": "/w=="},
            ]
            assert await http.ok("POST", f"{api}/messages", {"messages": messages}) == {"count": 2}
            listed = (await http.ok("GET", "/api/v1/queues?prefix=ord&limit=5"))["queues"]
            assert [(each["name"], each["ready"], each["arguments"]) for each in listed] == [
                ("orders", 2, {"x-max-length": 5})
            ]
            found = await http.got(f"{api}/get", 10)
            assert [each["message"] for each in found] == messages
            assert (await http.ok("GET", api))["queue"]["ready"] == 0
            await http.ok("POST", f"{api}/purge", {})
            await http.ok("DELETE", api)
            assert (await http.refused("GET", api))[:2] == (404, "NOT_FOUND")

    asyncio.run(run())


def test_the_subscriptions_of_a_queue_are_listed() -> None:
    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/queues/q", {"arguments": {"x-filter-enabled": True}})
            assert (await http.ok("GET", "/api/v1/queues/q/subscriptions"))["subscriptions"] == []

            def subscribe() -> None:
                with BulkClient(http.url) as client:
                    client.open_subscription("q", "archive", selector="colour = 'red'", on_expiry="keep")

            await asyncio.to_thread(subscribe)
            [found] = (await http.ok("GET", "/api/v1/queues/q/subscriptions"))["subscriptions"]
            assert (found["subscription"], found["selector"]) == ("archive", "colour = 'red'")
            assert (found["on_expiry"], found["state"]["outstanding"]) == ("KEEP", 0)
            assert (await http.ask("GET", "/api/v1/queues/none/subscriptions"))[0] == 404

    asyncio.run(run())


def test_a_name_may_have_slashes_and_spaces() -> None:
    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/queues/a%2Fb%20c", {})
            assert [each["name"] for each in (await http.ok("GET", "/api/v1/queues"))["queues"]] == ["a/b c"]
            await http.ok("POST", "/api/v1/queues/a/b%20c/messages", {"messages": [{"body": "x"}]})

    asyncio.run(run())


def test_exchanges_bindings_policies_and_definitions() -> None:
    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/queues/orders", {})
            await http.ok("PUT", "/api/v1/exchanges/shop", {"type": "topic"})
            binding = {"source": "shop", "queue": "orders", "routing_key": "orders.#"}
            assert await http.ok("POST", "/api/v1/bindings", binding) == {"added": True}
            assert [
                each["source"] for each in (await http.ok("GET", "/api/v1/bindings?source=shop"))["bindings"]
            ]
            await http.ok(
                "PUT", "/api/v1/policies/short", {"pattern": "o*", "arguments": {"x-max-length": 7}}
            )
            exported = (await http.ok("GET", "/api/v1/definitions"))["definitions"]
            assert [each["name"] for each in exported["policies"]] == ["short"]
            await http.ok("POST", "/api/v1/bindings/remove", binding)
            results = (await http.ok("POST", "/api/v1/definitions", {"definitions": exported}))["results"]
            assert [each["outcome"] for each in results].count("ADDED") == 1
            status = await http.ok("GET", "/api/v1/cluster")
            assert [each["name"] for each in status["members"]] == ["n1"]
            file = {
                "quorum_definitions": 1,
                "queues": [{"name": "orders"}, {"name": "bills", "arguments": {"x-max-length": 5}}],
                "bindings": [{"source": "shop", "destination": "bills", "routing_key": "bills"}],
            }
            for more in ({"dry_run": True}, {}):
                results = (await http.ok("POST", "/api/v1/definitions", {**file, **more}))["results"]
                assert [(each["kind"], each["name"], each["outcome"]) for each in results] == [
                    ("queue", "orders", "SAME"),
                    ("queue", "bills", "ADDED"),
                    ("binding", "shop -> bills (bills)", "ADDED"),
                ]
            refused = await http.refused("POST", "/api/v1/definitions", {**file, "queues": [{"nam": "x"}]})
            assert refused[:2] == (400, "BAD_REQUEST") and "$.queues[0]" in refused[2]

    asyncio.run(run())


def test_users_and_permissions_count_here_as_everywhere() -> None:
    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/queues/mine", {})
            await http.ok("PUT", "/api/v1/users/admin", {"password": PASSWORD, "administers": True})
            assert (await http.refused("GET", "/api/v1/queues"))[:2] == (401, "LOG_IN_NEEDED")
            await http.ok("PUT", "/api/v1/users/ann", {"password": PASSWORD}, user="admin")
            await http.ok("PUT", "/api/v1/users/ann/permissions", {"write": "mine"}, user="admin")
            await http.ok("POST", "/api/v1/queues/mine/messages", {"messages": [{"body": "x"}]}, user="ann")
            assert await http.refused("POST", "/api/v1/queues/mine/get", {}, user="ann") == (
                403,
                "NOT_PERMITTED",
                "user 'ann' has no permission: read for 'mine'",
            )
            async with quorum.connect(http.url.replace("//", f"//admin:{PASSWORD}@")) as client:
                assert [each.ready for each in await client.queues()] == [1]

    asyncio.run(run())


def test_a_user_name_of_a_wrong_length_is_refused() -> None:
    async def run() -> None:
        async with member() as http:
            for path in ("", "/permissions"):
                for name, size in (("", 0), ("x" * 256, 256), ("%C3%A9" * 128, 256)):
                    refused = await http.refused("PUT", f"/api/v1/users/{name}{path}", {})
                    said = f"a user name of {size} bytes; allowed: 1..255"
                    assert refused == (400, "BAD_ARGUMENT", said)

    asyncio.run(run())


def test_idle_connections_of_an_address_leave_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have all of them for ever: nothing else ends a connection that has sent no request."""
    close_excess, are_all_open = http_server.close_excess, False

    def when_all_are_open(port: int, most: int) -> int:
        return close_excess(port, most) if are_all_open else 0

    monkeypatch.setattr(http_server, "close_excess", when_all_are_open)

    async def run() -> None:
        nonlocal are_all_open
        async with member() as http, asyncio.timeout(IDLE_LIMIT_S):
            idle = [
                await asyncio.open_connection(*http.base.removeprefix("http://").split(":"))
                for _ in range(MOST_CONNECTIONS)
            ]
            status, answer = await http.ask("GET", "/healthz")
            assert (status, answer["error"]["reason"]) == (503, "OVERLOADED")
            are_all_open = True
            while (await http.ask("GET", "/healthz"))[0] != 200:
                await asyncio.sleep(0.1)
            for _, writer in idle:
                writer.close()

    asyncio.run(run())


def test_a_flood_of_connections_leaves_another_address_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member does not have to close the connections of the flood first, because the flood opens new ones."""
    monkeypatch.setattr(http_server, "LOOK_S", 2 * IDLE_LIMIT_S)

    async def run() -> None:
        async with member() as http, asyncio.timeout(IDLE_LIMIT_S):
            place = http.base.removeprefix("http://").split(":")
            flood = [await asyncio.open_connection(*place) for _ in range(3 * MOST_CONNECTIONS)]
            status, _ = await http.ask("GET", "/healthz")
            assert status == 503
            reader, writer = await asyncio.open_connection(*place, local_addr=("127.0.0.2", 0))
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b" 200 " in await reader.readline()
            for _, each in [*flood, (reader, writer)]:
                each.close()

    asyncio.run(run())


def test_errors_before_a_call_are_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with member() as http:
            for path in ("/api/v1/none", "/api/v2/queues", "/none", "/metrics/none"):
                status, reason, message = await http.refused("GET", path)
                assert (status, reason) == (404, "NO_PATH"), path
                assert path in message
            for method, path, allowed in (
                ("POST", "/api/v1/queues/orders", "DELETE, GET, HEAD, PUT"),
                ("PATCH", "/api/v1/queues", "GET, HEAD"),
                ("OPTIONS", "/api/v1/queues/orders/purge", "DELETE, GET, HEAD, POST, PUT"),
                ("DELETE", "/metrics", "GET, HEAD"),
            ):
                status, answer = await http.ask(method, path, {})
                assert (status, answer["error"]["reason"]) == (405, "WRONG_METHOD"), path
                assert answer["error"]["metadata"] == {"allowed": allowed}
                assert f"allow: {allowed}" in await http.head(method, path)
            for rubbish in (b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\nA" + b"a" * 20_000 + b": b\r\n\r\n"):
                status, text = await http.raw(rubbish)
                assert (status, json.loads(text)["error"]["reason"]) == (400, "BAD_REQUEST")

            async def broken(*_: object) -> bytes:
                raise RuntimeError("a defect")

            monkeypatch.setattr(Metrics, "of_member", broken)
            assert (await http.refused("GET", "/metrics"))[:2] == (500, "INTERNAL")

    asyncio.run(run())


def test_no_answer_with_data_or_an_error_may_be_stored() -> None:
    async def run() -> None:
        async with member() as http:
            for method, path in (
                ("GET", "/api/v1/queues"),
                ("GET", "/openapi.json"),
                ("GET", "/api/v1/queues/none"),
                ("GET", "/api/v1/events?queue=none"),
                ("GET", "/none"),
                ("DELETE", "/api/v1/queues"),
            ):
                assert "cache-control: no-store" in await http.head(method, path), path
            assert "cache-control: no-store" in await http.head("bad method", "/")
            assert "cache-control: no-store" in await http.event_head("/api/v1/events")

    asyncio.run(run())


def test_a_head_of_the_events_ends_at_once() -> None:
    """Its client waits for the end before it sends the next request on the connection."""

    async def run() -> None:
        async with member() as http:
            async with asyncio.timeout(HEAD_LIMIT_S):
                head = await http.head("HEAD", "/api/v1/events")
            assert head.startswith("HTTP/1.1 200") and "text/event-stream" in head

    asyncio.run(run())


KINDS = {
    "monitor": {"monitors": True},
    "nobody": {},
    "configurer": {"configure": "mine*"},
    "writer": {"write": "mine*"},
    "reader": {"read": "mine*"},
}
"""Users, with what each may do."""


def test_every_path_asks_for_the_rights_of_its_call() -> None:
    """As the table in rights.py says, which tests/api/test_permissions.py judges: every path, as every kind of user."""
    named = {"queue": "mine", "exchange": "mine", "name": "mine", "user": "mine"}

    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/queues/mine", {})
            admin = {"password": PASSWORD, "administers": True}
            await http.ok("PUT", "/api/v1/users/admin", admin)
            for name, given_rights in KINDS.items():
                monitors = bool(given_rights.get("monitors"))
                await http.ok(
                    "PUT", f"/api/v1/users/{name}", {"password": PASSWORD, "monitors": monitors}, "admin"
                )
                rights = {key: value for key, value in given_rights.items() if key != "monitors"}
                await http.ok("PUT", f"/api/v1/users/{name}/permissions", rights, "admin")
            for call in CALLS:
                body = {"source": "mine", "queue": "mine"} if call.within == "binding" else {}
                path = PREFIX + call.path.format(**named)
                request = request_of(call, dict.fromkeys(call.names, "mine"), _Query([]), dict(body))
                for name, given_rights in KINDS.items():
                    user = User(name, "x", **given_rights)  # type: ignore[arg-type]
                    is_allowed = refusal(BY_METHOD[call.rpc](request), user) is None
                    status, found = await http.ask(call.method, path, body if call.has_body else None, name)
                    assert (status != 403) == is_allowed, (name, call, found)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("PUT", "/queues/q", b"{", 400, "the body is no JSON"),
        ("PUT", "/queues/q", b"[" * 100_000, 400, "the body is no JSON"),
        ("PUT", "/queues/q", b"1" * 5_000, 400, "the body is no JSON"),
        ("PUT", "/queues/q", [], 400, "the request: an array; wanted: an object"),
        ("PUT", "/queues/q", {"argumentz": {}}, 400, "unknown field 'argumentz'; allowed: arguments"),
        ("PUT", "/queues/q", {"queue": "other"}, 400, "unknown field 'queue'"),
        (
            "PUT",
            "/queues/q",
            {"arguments": {"x-max-length": None}},
            400,
            "arguments.x-max-length: null; wanted",
        ),
        ("PUT", "/queues/q", {"arguments": {"x-max-lenght": 5}}, 400, "x-max-length"),
        (
            "PUT",
            "/queues/q",
            {"arguments": {"\ud800": 5}},
            400,
            "arguments: text with half of a surrogate pair",
        ),
        (
            "POST",
            "/queues/q/messages",
            {"messages": [{"body": 5}]},
            400,
            "messages[0].body: a number; wanted: text",
        ),
        ("POST", "/queues/q/messages", {"messages": [{"body_base64": "?"}]}, 400, "not base64"),
        (
            "POST",
            "/queues/q/messages",
            {"messages": [{"body": "", "body_base64": ""}]},
            400,
            "exclude each other",
        ),
        ("PUT", "/queues/q", {"arguments": {"x-max-length": {"double": {}}}}, 400, "an object; wanted"),
        ("POST", "/queues/q/get", {"count": -1}, 400, "count: wanted: a whole number from 0 to 4294967295"),
        ("POST", "/queues/q/get", {"count": True}, 400, "count: wanted"),
        ("GET", "/queues?limit=x", None, 400, "limit: wanted: a whole number"),
        ("GET", "/queues?limt=1", None, 400, "unknown query 'limt'; allowed: prefix, limit, after"),
        ("GET", "/queues/none", None, 404, "there is no queue 'none'"),
        ("PUT", "/queues/" + "q" * 300, {}, 400, "255"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    method: str, path: str, body: Any, status: int, text: str
) -> None:
    async def run() -> None:
        async with member() as http:
            found = await http.refused(method, "/api/v1" + path, body)
            assert found[0] == status and text in found[2], found

    asyncio.run(run())


def test_a_body_is_not_read_before_the_log_in_nor_past_its_limit() -> None:
    async def run() -> None:
        async with member() as http:
            head = "PUT /api/v1/queues/q HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            large = f"{head}Content-Length: {MAX_BODY + 1}\r\n\r\n".encode()
            assert (await http.raw(large))[0] == 413
            chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
            assert (await http.raw(chunked))[0] == 400
            both = f"{head}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
            assert (await http.raw(both.encode()))[0] == 400  # the chunks could be any number
            await http.ok("PUT", "/api/v1/users/admin", {"password": PASSWORD, "administers": True})
            assert (await http.raw(large))[0] == 401

    asyncio.run(run())


async def logged_in(http: Http, user: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    """A request of a user whose body, which is returned, has not come. The head of its answer says 100 if it has a
    place among the requests."""
    body = json.dumps({"password": PASSWORD, "administers": True})
    log_in = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    lines = ["PUT /api/v1/users/another HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"Authorization: Basic {log_in}", f"Content-Length: {len(body)}"]
    reader, writer = await asyncio.open_connection(*http.base.removeprefix("http://").split(":"))
    writer.write("\r\n".join([*lines, "Expect: 100-continue", "", ""]).encode())
    return reader, writer, body


def test_a_body_that_comes_after_its_user_was_removed_does_nothing() -> None:
    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/users/admin", {"password": PASSWORD, "administers": True})
            await http.ok("PUT", "/api/v1/users/ann", {"password": PASSWORD, "administers": True}, "admin")
            reader, writer, body = await logged_in(http, "ann")
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # ann has logged in
            await http.ok("DELETE", "/api/v1/users/ann", None, "admin")
            writer.write(body.encode())
            answer = (await reader.read()).decode()
            assert " 503 " in answer and "USER_CHANGED" in answer, answer
            writer.close()
            users = (await http.ok("GET", "/api/v1/users", None, "admin"))["users"]
            assert [each["user"] for each in users] == ["admin"]

    asyncio.run(run())


def test_users_behind_one_address_have_a_share_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_api, "MAX_CALLS", 4)

    async def run() -> None:
        async with member() as http:
            for name in ("admin", "ann", "bob"):
                made = {"password": PASSWORD, "administers": True}
                await http.ok("PUT", f"/api/v1/users/{name}", made, "" if name == "admin" else "admin")
            answers = []
            writers = []
            for user in ("ann", "ann", "ann", "bob"):
                reader, writer, _ = await logged_in(http, user)
                writers.append(writer)
                answers.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
            assert answers == [b"100", b"100", b"429", b"100"]
            for writer in writers:
                writer.close()

    asyncio.run(run())


def test_a_body_has_a_maximum_of_values() -> None:
    """Before, one body kept the member busy for seconds. A large one is read in a thread."""

    async def run() -> None:
        async with member() as http:
            path = "/api/v1/queues/q/messages"
            await http.ok("PUT", "/api/v1/queues/q", {})
            most = {
                "messages": [{"body": "x", "application_properties": dict.fromkeys("abcdefg", 1)}] * 4_000
            }
            assert (await http.ok("POST", path, most)) == {"count": 4_000}
            for many in ([{}] * MAX_VALUES, [[1] * (MAX_VALUES // 10)] * 10, [{"a": [0] * MAX_VALUES}]):
                status, reason, text = await http.refused("POST", path, {"messages": many})
                assert (status, reason) == (413, "REQUEST_TOO_LARGE")
                assert text == f"the body has more than {MAX_VALUES} values"
            loop, in_loop = threading.get_ident(), []
            read = json_codec.read

            def watched(*args: Any, **more: Any) -> None:
                in_loop.append(threading.get_ident() == loop)
                read(*args, **more)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(json_codec, "read", watched)
                await http.ok("POST", path, most)
            assert len(in_loop) > 4_000 and not any(in_loop)

    asyncio.run(run())


def test_an_answer_of_messages_has_a_maximum_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, 100 large messages were in the member's memory at a time, several times over."""
    monkeypatch.setattr(json_api, "BROWSED_BYTES", 1 << 20)

    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/queues/q", {})
            path = "/api/v1/queues/q/messages"
            for letter in "abc":
                await http.ok("POST", path, {"messages": [{"body": letter * (1 << 20)}]})
            found: list[str] = []
            start = 0
            while len(found) < 3:
                [each] = (await http.ok("GET", f"{path}?start_sequence={start}"))["messages"]
                found.append(each["message"]["body"][0])
                start = each["sequence"] + 1
            assert found == ["a", "b", "c"]

    asyncio.run(run())


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_an_unread_answer_takes_room_and_time_within_limits(
    has_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, clients that read nothing could fill the member's memory."""
    for _ in write_certificates(tmp_path, ["127.0.0.1"]) if has_tls else ():
        pass
    monkeypatch.setattr(answers, "ANSWERS_BYTES", 1 << 20)
    monkeypatch.setattr(answers, "ANSWER_LIMIT_S", 10.0)
    monkeypatch.setattr(
        shares, "PATIENCE_S", 0.05
    )  # the second answer is refused before the first one's time is over
    monkeypatch.setattr(json_api, "BROWSED_BYTES", 1 << 30)

    async def run() -> None:
        async with member(tmp_path if has_tls else None) as http:
            await http.ok("PUT", "/api/v1/queues/q", {})
            path = "/api/v1/queues/q/messages"
            for _ in range(24):
                await http.ok("POST", path, {"messages": [{"body": "x" * 1_000_000}]})
            reader, writer = await http.connection()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = int(head.partition("content-length: ")[2].split()[0])
            assert size > 16 << 20, "more than the buffers of the sockets take"
            status, reason, text = await http.refused("GET", path)
            assert (status, reason) == (429, "OVERLOADED") and "no room for an answer" in text
            while (await http.ask("GET", path))[0] != 200:
                await asyncio.sleep(0.2)
            try:
                assert len(await reader.read()) < size
            except ConnectionResetError:
                pass
            writer.close()

    asyncio.run(run())


def test_events_show_what_their_query_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PART_LIMIT_S", IDLE_LIMIT_S)

    async def run() -> None:
        async with member() as http:
            for name in ("a1", "a2", "b1"):
                await http.ok("PUT", f"/api/v1/queues/{name}", {})
            await http.ok("POST", "/api/v1/queues/a1/messages", {"messages": [{"body": "x"}]})
            first, second = await http.events("/api/v1/events?queue=a1&queues=1&prefix=a&totals=true", 2)
            assert second["at_ms"] > first["at_ms"]
            assert first["cluster"]["answering_node"] == "n1" and first["queue"]["queue"]["ready"] == 1
            assert [each["name"] for each in first["queues"]["queues"]] == ["a1"]
            assert first["queues"]["next_after"] == "a1"
            totals = first["totals"]
            assert (totals["queues"], totals["ready"], totals["totals"]["published"]) == (3, 1, 1)
            assert "problem" not in first
            [plain] = await http.events("/api/v1/events", 1)
            assert set(plain) == {"at_ms", "cluster"}
            for query, status, text in (
                ("queue=none", 404, "there is no queue 'none'"),
                ("quue=a1", 400, "unknown query 'quue'; allowed: queue, totals, queues, prefix, after"),
                ("queues=101", 400, "queues: wanted: a whole number from 1 to 100"),
                ("totals=1", 400, "totals: wanted: true or false"),
            ):
                found = await http.refused("GET", f"/api/v1/events?{query}")
                assert found[0] == status and text in found[2], found

    asyncio.run(run())


def test_every_value_comes_back_as_it_was() -> None:
    values = {
        "t": "x",
        "i": -(1 << 63),
        "d": 1.0,
        "b": True,
        "y": {"base64": "AP8="},
        "n": {"double": "-Infinity"},
    }
    request = queue_pb2.PublishRequest()
    given = {"queue": "q", "messages": [{"body": "ü", "application_properties": values}]}
    json_codec.read(request, given)
    kinds = {
        name: each.WhichOneof("kind")
        for name, each in request.messages[0].properties.application_properties.items()
    }
    assert kinds == {
        "t": "text",
        "i": "integer",
        "d": "floating",
        "b": "boolean",
        "y": "binary",
        "n": "floating",
    }
    assert json_codec.write(request) == given


def test_every_call_is_described_and_its_query_names_fields() -> None:
    described = openapi()
    for call in CALLS:
        assert call.method.lower() in described["paths"][PREFIX + call.path]
        assert {*call.query, *call.names} - {*call.request.DESCRIPTOR.fields_by_name} <= {"name"}
    with pytest.raises(JsonError):
        request_of(CALLS[0], {}, _Query([("limit", "1" * 30)]), {})


class _Query:
    def __init__(self, items: list[tuple[str, str]]) -> None:
        self._items = items

    def multi_items(self) -> list[tuple[str, str]]:
        return self._items


def test_what_the_description_allows_is_answered_as_it_says() -> None:
    """Requests that are made from the description, right and wrong ones: no answer is a defect, and each has the form
    that the description gives."""
    checks = [not_a_server_error, response_schema_conformance, content_type_conformance]

    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/queues/q", {})
            await http.ok("PUT", "/api/v1/exchanges/x", {"type": "direct"})
            await asyncio.to_thread(fuzz, http)

    def fuzz(http: Http) -> None:
        schema = schemathesis.openapi.from_dict(openapi())
        schema.config.update(base_url=http.base)
        for found in schema.get_all_operations():
            operation = found.ok()
            if "/users" in operation.path:
                continue  # with users, everything else needs a log-in

            cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
            cases |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

            @settings(FUZZED)
            @given(case=cases)
            def one(case: schemathesis.Case) -> None:
                case.validate_response(case.call(timeout=30), checks=checks)

            one()

    asyncio.run(run())


def test_the_fields_of_an_answer_are_always_there() -> None:
    assert json_codec.write(admin_pb2.DeleteQueueResponse()) == {"message_count": 0}
