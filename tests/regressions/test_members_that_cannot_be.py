"""Nothing that a call for a new member may say ends a member, now or at a later start: what nobody can use is refused
before it enters the log and when it is applied, and what an older version has let into a catalog is put up with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fifo import commands as c
from fifo import versions
from fifo.effects import Ok, Refused
from quorum.addresses import host_port
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.services.admin_service import AdminService
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.members import AddMember, CatalogMember, RemoveMember
from quorum.catalog.snapshot import members_state
from quorum.node.identity.identity import NodeState
from quorum.node.identity.member_directory import NOBODY, MemberDirectory
from quorum.replication.network.connection import PeerNetwork
from quorum.replication.network.handshake import Identity
from quorum.v1 import admin_pb2 as pb
from support.members.cluster import Cluster

HEX = "ab" * 16
WRONG = {
    "a port beyond what an int of the system holds": {"peer": "127.0.0.1:" + "9" * 30},
    "a port of more digits than Python reads": {"peer": "127.0.0.1:" + "9" * 5_000},
    "a port of another script's digits": {"peer": "127.0.0.1:\u0967\u0968"},
    "a port with one digit too many": {"client": "127.0.0.1:740011"},
    "port 0": {"client": "127.0.0.1:0"},
    "no port": {"peer": "127.0.0.1"},
    "no host": {"peer": ":7401"},
    "a host of two lines": {"peer": "node\n:7401"},
    "a host with a zero": {"peer": "no\0de:7401"},
    "a host with an empty part": {"peer": "node..example:7401"},
    "a host with a part of 64 characters": {"peer": "x" * 64 + ":7401"},
    "a host of 300 characters": {"peer": "x." * 150 + "x:7401"},
    "IPv6 without brackets": {"peer": "::1:7401"},
    "an incarnation that is no hex": {"incarnation": "no hex"},
    "an incarnation of 31 digits": {"incarnation": "a" * 31},
    "an incarnation of 34 digits": {"incarnation": "a" * 34},
    "no id": {"id": ""},
    "an id of 65 characters": {"id": "x" * 65},
    "a name with a slash": {"name": "../etc"},
    "a name of a megabyte": {"name": "x" * (1 << 20)},
}


def member(**wrong: str) -> AddMember:
    right = {"id": "new~1", "name": "new", "peer": "new:1", "client": "new:2", "incarnation": HEX}
    return AddMember(**{**right, **wrong})


class Speaker:
    """A session that speaks to a catalog with entries of one version."""

    def __init__(self, machine: CatalogMachine, version: int) -> None:
        self._machine, self._version, self._n = machine, version, 0
        self.call(c.RegisterProducer(c.Address(1, 1, 1)))

    def call(self, command: Any) -> object:
        origin = c.Origin(b"p" * 16, 1, self._n)
        self._n += 1
        meta = c.Meta(self._n, 1, 1_000, self._version)
        return self._machine.apply(meta, [c.Operation(0, origin, command)]).replies[0]


class Context:
    """Keeps what a call was told."""

    async def abort_with_status(self, status: Any) -> None:
        raise RuntimeError(status.code.name)


class NobodyAsked:
    """A hub that must not be reached, but for what this node knows of a name."""

    catalog = CatalogView()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the hub was asked for {name}")


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_member_that_cannot_be_is_refused_before_it_enters_the_log(wrong: dict[str, str]) -> None:
    said = member(**wrong)
    request = pb.AddMemberRequest()
    request.member.id, request.member.name = said.id, said.name
    request.member.peer_address, request.member.client_address = said.peer, said.client
    request.member.incarnation = said.incarnation
    service = AdminService(NobodyAsked(), None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="INVALID_ARGUMENT"):
        asyncio.run(service.AddMember(request, Context()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "request_",
    [
        pb.RemoveMemberRequest(name="x" * (1 << 20)),
        pb.DrainMemberRequest(name="\n"),
        pb.TransferLeadershipRequest(to=""),
        pb.DeleteQueueRequest(queue="q" * (1 << 20)),
        pb.DeletePolicyRequest(name="p" * (1 << 20)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_name_that_nothing_can_have_is_refused_before_it_enters_the_log(request_: Any) -> None:
    service = AdminService(NobodyAsked(), None)  # type: ignore[arg-type]
    call = getattr(service, type(request_).__name__.removesuffix("Request"))
    with pytest.raises(RuntimeError, match="INVALID_ARGUMENT"):
        asyncio.run(call(request_, Context()))


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_member_that_cannot_be_is_refused_by_the_catalog_too(wrong: dict[str, str]) -> None:
    """Another node may have let it through."""
    machine = CatalogMachine([1])
    speaker = Speaker(machine, version=2)
    before = members_state(machine.members, 2)
    reply = speaker.call(member(**wrong))
    assert isinstance(reply, Refused)
    assert reply.reason == "bad_argument"
    assert len(reply.detail) < 500
    assert members_state(machine.members, 2) == before


def test_entries_of_version_1_are_replayed_as_they_were_applied() -> None:
    machine = CatalogMachine([1])
    speaker = Speaker(machine, version=1)
    long = "127.0.0.1:" + "9" * 5_000
    assert speaker.call(member(peer=long, incarnation="no hex")) == Ok(1)
    assert machine.members.by_id["new~1"].peer == long


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_an_old_entry_put_into_the_catalog_ends_no_member_and_can_be_removed(
    wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if wrong.get("id") == "" or len(wrong.get("id", "")) > 64 or "name" in wrong:
        pytest.skip("no older version let this through")
    cluster = Cluster(3, queue_groups=1)
    cluster.ready()
    monkeypatch.setattr(versions, "BASE", 1)
    assert cluster.administer(member(**wrong)) == Ok(1)
    monkeypatch.undo()
    cluster.run(2_000)
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    for name in cluster.names:
        assert cluster.members[name].membership.member_directory.incarnation_bytes("new~1") in (
            bytes.fromhex(HEX),
            NOBODY,
        )
    assert cluster.administer(RemoveMember("new")) == Ok(1)
    cluster.run(1_000)
    assert "new~1" not in cluster.members["n1"].membership.member_directory.by_id


def test_an_incarnation_that_is_none_belongs_to_nobody() -> None:
    founders = [CatalogMember(1, "n1", "n1"), CatalogMember(2, "x", "x", incarnation="no hex")]
    member_directory = MemberDirectory("n1", NodeState(), founders)
    assert member_directory.incarnation_bytes("n1") == bytes(16), "it would speak to any"
    assert member_directory.incarnation_bytes("x") == NOBODY


@pytest.mark.parametrize(
    "address", ["node-1.example:7400", "[::1]:7400", "10.0.0.1:65535", "a_b:1", "host.:7400"]
)
def test_usual_addresses_are_taken(address: str) -> None:
    host, port = host_port(address)
    assert f"{host}:{port}" == address.replace("[", "").replace("]", "")


@pytest.mark.parametrize("way", [("x" * 70, 7401), ("127.0.0.1", 1 << 70), ("no.such.host.invalid", 7401)])
def test_an_address_that_cannot_be_looked_up_is_tried_again_later(
    way: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    network = PeerNetwork(Identity("b", 1, b"s" * 32, "test"), {"b": ("127.0.0.1", 0)}, clock=lambda: now)
    asked = []

    class AtOnce:
        """A thread that is done when it is started."""

        def __init__(self, target: Any, **_: object) -> None:
            self.start = target

    monkeypatch.setattr("quorum.replication.network.dialing.threading.Thread", AtOnce)
    real = __import__("socket").getaddrinfo

    def look_up(host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        if host.endswith(".invalid"):
            raise OSError("no such host")
        return real(host, port, **options)

    monkeypatch.setattr("quorum.replication.network.dialing.socket.getaddrinfo", look_up)
    try:
        network.set_peers({"a": way}, {}, ())
        for _ in range(5):
            network.poll(0.0)
            now += 2.0
        assert len(asked) == 5
    finally:
        network.close()
