"""One user's share of the cluster's queues: it counts on all ways that declare queues, and others keep theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import quorum
from fifo.versions import OWNED_QUEUES
from quorum.api.security.access import USER
from quorum.catalog.commands import DeclareQueue
from quorum.catalog.users import User
from quorum.client.errors import RefusedError
from quorum.v1 import admin_pb2
from support.members.cluster import Cluster
from support.members.http_port import PASSWORD, member
from support.members.services import Api, Context
from support.members.users import as_user, with_users

SERVICE = "quorum.api.services.queue_admin_service"
FORMAT = {"quorum_definitions": 1}


@pytest.fixture
def ann() -> Iterator[None]:
    """Calls of this test are hers."""
    token = USER.set(User("ann", "", administers=True))
    yield
    USER.reset(token)


async def declared(api: Api, name: str) -> bool:
    request = admin_pb2.DeclareQueueRequest(queue=name)
    answer = await api.call(api.admin.DeclareQueue(request, Context()))  # type: ignore[arg-type]
    return bool(answer.created)


def declaration(max_queues: int | None, of_user: int | None) -> DeclareQueue:
    """What a member with this configuration makes of a declaration."""
    cluster = Cluster(1)
    cluster.ready()
    cluster.switched()

    async def run() -> DeclareQueue:
        api = Api(cluster, "n1")
        api.admin._config.max_queues, api.admin._config.max_queues_per_user = max_queues, of_user
        return api.admin._queue_declaration("orders", {})

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("max_queues", "of_user", "allowed"),
    [(None, None, 50_000), (10, None, 5), (7, None, 4), (1, None, 1), (200_000, None, 50_000), (10, 9, 9)],
)
def test_a_user_may_declare_half_of_the_queues_unless_the_configuration_says_otherwise(
    ann: None, max_queues: int | None, of_user: int | None, allowed: int
) -> None:
    made = declaration(max_queues, of_user)
    assert (made.owner, made.max_owned) == ("ann", allowed)


def test_without_users_a_queue_has_no_owner() -> None:
    assert declaration(10, 2) == DeclareQueue("orders", (), max_queues=10)


def test_users_declare_queues_until_the_cluster_knows_owners_and_those_are_nobodys(ann: None) -> None:
    cluster = Cluster(3, is_started=False)
    older = OWNED_QUEUES - 1
    cluster.known_versions = {"n1": OWNED_QUEUES, "n2": OWNED_QUEUES, "n3": older}
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()

    async def run() -> None:
        api = Api(cluster, "n1")
        assert await declared(api, "earlier")
        assert cluster.members["n3"].version == older  # type: ignore[union-attr]
        cluster.crash("n3", power=False)
        cluster.known_versions["n3"] = OWNED_QUEUES
        cluster.start("n3")
        cluster.until(lambda: api.hub.published.version == OWNED_QUEUES, "the switch")
        assert await declared(api, "later")
        cluster.settle()
        for name in cluster.names:
            machine = cluster.members[name].replicas[0].machine  # type: ignore[union-attr]
            assert {each.name: each.owner for each in machine.queues()} == {"earlier": "", "later": "ann"}

    asyncio.run(run())


def test_a_user_who_declares_queues_in_a_loop_leaves_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SERVICE}.MAX_QUEUES", 6)

    async def body(url: str) -> None:
        async with (
            quorum.connect(as_user(url, "configurer")) as client,
            quorum.connect(as_user(url, "admin")) as admin,
        ):
            for number in range(3):
                assert await client.declare(f"mine.{number}")
            with pytest.raises(RefusedError) as refused:
                await client.declare("mine.3")
            assert refused.value.reason == "LIMIT"
            text = "user 'configurer' has 3 queues; allowed: 3 (max_queues_per_user)"
            assert text in str(refused.value)
            assert not await client.declare("mine.0"), "it exists"
            assert not await client.declare("mine"), "it exists, and is not theirs"
            assert await admin.declare("theirs")
            owners = {each.name: each.owner for each in await admin.queues()}
            assert owners.pop("theirs") == "admin"
            assert owners == dict.fromkeys(("mine", "other"), "") | dict.fromkeys(
                ("mine.0", "mine.1", "mine.2"), "configurer"
            )
            assert (await client.describe("mine.1")).queue.owner == "configurer"
            assert {each.name: each.queues for each in await admin.users() if each.queues} == {
                "admin": 1,
                "configurer": 3,
            }
            await client.delete("mine.0")
            assert await client.declare("mine.3"), "there is a place now"
            await admin.delete_user("configurer")
            assert (await admin.describe("mine.3")).queue.owner == "configurer"

    with_users(body)


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_queues_of_an_import_are_those_of_its_user(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{SERVICE}.MAX_QUEUES", 6)
    file = FORMAT | {"queues": [{"name": f"q{number}"} for number in range(5)]}

    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            found = (await client.import_definitions(file, dry_run=dry_run)).results
            assert [each.outcome for each in found] == ["added"] * 3 + ["refused"] * 2
            assert {each.reason for each in found[3:]} == {"LIMIT"}
            owned = [each.name for each in await client.queues() if each.owner == "admin"]
            assert owned == ([] if dry_run else ["q0", "q1", "q2"])

    with_users(body)


def test_queues_that_are_declared_over_http_are_those_of_the_user_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{SERVICE}.MAX_QUEUES", 6)

    async def run() -> None:
        async with member() as http:
            await http.ok("PUT", "/api/v1/queues/q", {})
            assert (await http.ok("GET", "/api/v1/queues/q"))["queue"]["owner"] == ""
            await http.ok("PUT", "/api/v1/users/ann", {"password": PASSWORD, "administers": True})

            async def ask(method: str, path: str, body: Any = None) -> Any:
                return await http.ok(method, path, body, user="ann")

            await ask("PUT", "/api/v1/queues/q0", {})
            file = FORMAT | {"queues": [{"name": "q1"}, {"name": "q2"}]}
            await ask("POST", "/api/v1/definitions", file)
            refused = await http.refused("PUT", "/api/v1/queues/q3", {}, user="ann")
            assert refused[1] == "LIMIT" and "user 'ann' has 3 queues" in refused[2]
            assert (await ask("GET", "/api/v1/queues/q1"))["queue"]["owner"] == "ann"
            assert [each["queues"] for each in (await ask("GET", "/api/v1/users"))["users"]] == [3]

    asyncio.run(run())
