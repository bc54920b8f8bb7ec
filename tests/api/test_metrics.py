"""`/metrics` of a real member, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import quorum
from fifo.versions import CURRENT
from quorum.api.http.json_api import JsonApi
from quorum.api.http.server import HttpServer
from quorum.api.session.client_session import ClientSession
from quorum.errors import OperatorError
from quorum.local_cluster.ports import free_ports
from quorum.node import queries as q
from support.members.served import serving
from support.members.services import Api
from support.repository import ROOT

Sample = tuple[str, tuple[tuple[str, str], ...]]

PASSWORD = "longpassword"


@dataclass(frozen=True)
class Answer:
    status: int
    kind: str
    text: str

    def value(self, name: str, **labels: str) -> float:
        found = self.values()
        return found[name, tuple(sorted(labels.items()))]

    def values(self) -> dict[Sample, float]:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }


async def get(port: int, path: str, method: str = "GET", user: str = "") -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    pair = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    login = f"Authorization: Basic {pair}\r\n" if user else ""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{login}Connection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    lines = head.decode().lower().split("\r\n")
    kind = next((line.partition(": ")[2] for line in lines if line.startswith("content-type: ")), "")
    return Answer(int(lines[0].split()[1]), kind, body.decode())


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[str, int, Api]]:
    """(URL for clients, port for HTTP, services) of a cluster of one."""
    async with serving() as (url, [api]):
        http = HttpServer(api.hub, JsonApi(api.hub, api.admin, api.queues, api.bulk))
        port = await http.start(f"127.0.0.1:{free_ports(1)[0]}")
        try:
            yield url, port, api
        finally:
            await http.stop()


@contextlib.asynccontextmanager
async def member() -> AsyncIterator[tuple[str, int]]:
    """(URL for clients, port for HTTP) of a cluster of one."""
    async with served() as (url, port, _):
        yield url, port


def test_the_counts_of_queues_are_sums_over_the_groups_that_the_member_leads() -> None:
    async def run() -> None:
        async with member() as (url, port), quorum.connect(url) as client:
            await client.declare("orders")
            await client.declare("other", {"x-max-length": 1})
            for _ in range(3):
                await client.publish("orders", b"1234")
                await client.publish("other", b"")
            [first] = await client.get("orders", 1)
            await first.settle(wait=True)
            found = await get(port, "/metrics")
            assert (found.status, found.kind.split(";")[0]) == (200, "text/plain")
            values = found.values()
            ready = [
                value
                for (name, labels), value in values.items()
                if name == "quorum_messages" and ("state", "ready") in labels
            ]
            assert sum(ready) == 3
            events: dict[str, float] = {}
            for (name, labels), value in values.items():
                if name == "quorum_message_events_total":
                    event = dict(labels)["event"]
                    events[event] = events.get(event, 0) + value
            assert (events["published"], events["settled"], events["maxlen"]) == (6, 1, 2)
            assert found.value("quorum_group_has_leader", group="1") == 1
            assert found.value("quorum_standing", standing="member") == 1
            assert found.value("quorum_standing", standing="removed") == 0
            assert found.value("quorum_peer_events_total", event="ignored_frame") == 0
            assert values["process_resident_memory_bytes", ()] > 1_000_000
            build = {"version": quorum.__version__, "machine_version": str(CURRENT)}
            assert found.value("quorum_build_info", **build) == 1

    asyncio.run(run())


def test_single_queues_are_shown_where_they_are_asked_for() -> None:
    async def run() -> None:
        async with member() as (url, port), quorum.connect(url) as client:
            for name in ("orders.a", "orders.b", "other"):
                await client.declare(name)
            await client.publish("orders.b", b"1234")
            found = await get(port, "/metrics/queues?prefix=orders.")
            assert found.value("quorum_queue_messages", queue="orders.a", state="ready") == 0
            assert found.value("quorum_queue_messages", queue="orders.b", state="ready") == 1
            assert found.value("quorum_queue_message_events_total", queue="orders.b", event="published") == 1
            assert "other" not in found.text
            assert "queue=" not in (await get(port, "/metrics")).text
            assert (await get(port, f"/metrics/queues?prefix={'x' * 300}")).status == 400

    asyncio.run(run())


def test_only_sessions_of_clients_are_counted() -> None:
    async def run() -> None:
        async with served() as (url, port, api):
            ClientSession(api.hub).open(bytes(16), 1, 7)  # as for forwarding dead letters

            async def counted() -> float:
                return (await get(port, "/metrics")).value("quorum_sessions")

            assert await counted() == 0
            async with quorum.connect(url):
                assert await counted() == 1
            async with asyncio.timeout(60):
                while await counted():
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_member_of_the_same_name_does_not_count_as_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """n1~new is about to replace n1, and leads already."""

    async def run() -> None:
        async with served() as (url, port, api), quorum.connect(url) as client:
            await client.declare("orders")
            ask = api.hub.requests.query

            async def query(asked: Any) -> Any:
                found = await ask(asked)
                if not isinstance(found, q.ClusterStatus):
                    return found
                [own] = found.members
                newcomer = replace(own.member, number=2, id="n1~new", replaces="n1", is_joining=True)
                return replace(
                    found,
                    members=(own, replace(own, member=newcomer)),
                    groups=tuple([replace(each, leader_id="n1~new") for each in found.groups]),
                )

            monkeypatch.setattr(api.hub.requests, "query", query)
            found = await get(port, "/metrics")
            samples = [line.rpartition(" ")[0] for line in found.text.splitlines() if line[0] != "#"]
            assert len(samples) == len(set(samples))
            assert found.value("quorum_member_reachable", member="n1~new") == 1
            assert found.value("quorum_group_leads", group="1") == 0
            assert "quorum_messages" not in found.text
            assert "orders" not in (await get(port, "/metrics/queues")).text

    asyncio.run(run())


def test_the_page_names_every_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(quorum_\w+)", page, re.MULTILINE))

    async def run() -> set[str]:
        async with member() as (url, port), quorum.connect(url) as client:
            await client.declare("orders")
            answers = [await get(port, path) for path in ("/metrics", "/metrics/queues")]
            return {name for answer in answers for name, _ in answer.values()}

    exported = {name for name in asyncio.run(run()) if name.startswith("quorum_")}
    of_others = {"quorum_member_reachable", "quorum_group_behind_entries"}
    with_tls = {"quorum_certificate_end_timestamp_seconds"}
    assert documented - of_others - with_tls == exported


def test_readiness_and_wrong_requests() -> None:
    async def run() -> None:
        async with member() as (_, port):
            assert (await get(port, "/healthz")).status == 200
            assert (await get(port, "/readyz")).text == "serves clients\n"
            assert (await get(port, "/none")).status == 404
            assert (await get(port, "/metrics", method="DELETE")).status == 405

    asyncio.run(run())


def test_metrics_need_a_user_who_monitors_once_there_are_users() -> None:
    async def run() -> None:
        async with member() as (url, port):
            async with quorum.connect(url) as client:
                await client.set_user("admin", PASSWORD, administers=True)
            async with quorum.connect(url.replace("//", f"//admin:{PASSWORD}@")) as client:
                await client.set_user("ann", PASSWORD)
            assert (await get(port, "/healthz")).status == (await get(port, "/readyz")).status == 200
            for path in ("/metrics", "/metrics/queues"):
                assert (await get(port, path)).status == 401
                assert (await get(port, path, user="ann")).status == 403
                assert (await get(port, path, user="admin")).status == 200

    asyncio.run(run())


def test_an_address_in_use_is_told() -> None:
    async def run() -> None:
        async with serving() as (_, [api]):
            http = HttpServer(api.hub, JsonApi(api.hub, api.admin, api.queues, api.bulk))
            port = await http.start(f"127.0.0.1:{free_ports(1)[0]}")
            with pytest.raises(
                OperatorError, match=f"cannot listen for HTTP on 127.0.0.1:{port}: Address already"
            ):
                await HttpServer(api.hub, JsonApi(api.hub, api.admin, api.queues, api.bulk)).start(
                    f"127.0.0.1:{port}"
                )
            await http.stop()

    asyncio.run(run())
