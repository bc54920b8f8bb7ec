"""What needs a machine version is refused until the cluster has switched to it; the status shows how far that is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.rpc import code_pb2

from fifo import commands as c
from fifo.effects import Ok
from fifo.versions import BASE
from quorum.api.hub import published_state
from quorum.api.status import StatusError
from quorum.cli.commands.cluster import _versions
from quorum.client.admin.records import ClusterStatus
from quorum.v1 import admin_pb2
from support.members.cluster import Cluster
from support.members.services import Api, Context

NEW = BASE + 1


async def shown(api: Api) -> ClusterStatus:
    answer = await api.call(api.admin.ClusterStatus(admin_pb2.ClusterStatusRequest(), Context()))  # type: ignore[arg-type]
    return ClusterStatus.of(answer)


def test_a_command_waits_for_the_version_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: dict[type, int] = {c.Purge: NEW}
    monkeypatch.setattr(published_state, "needed_version", lambda command: needed.get(type(command), BASE))
    cluster = Cluster(3, is_started=False)
    cluster.known_versions = {"n1": NEW, "n2": NEW, "n3": BASE}
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    group, queue = cluster.declare("orders")

    async def run() -> None:
        api = Api(cluster, "n1")
        with pytest.raises(
            StatusError, match=f"Purge needs machine version {NEW}, and the cluster uses {BASE}"
        ) as e:
            await api.call(api.hub.own_session.call(group, c.Purge(queue)))
        assert e.value.status.code == code_pb2.FAILED_PRECONDITION
        seen = await shown(api)
        assert {each.name: each.known_version for each in seen.members} == cluster.known_versions
        assert {each.version for each in seen.groups} == {BASE}
        assert _versions(seen) == f"the cluster uses machine version {BASE} of {NEW}, until n3 knows it"
        cluster.crash("n3", power=False)
        cluster.known_versions["n3"] = NEW
        cluster.start("n3")
        cluster.until(lambda: cluster.members["n1"].version == NEW, "the switch")
        assert isinstance(await api.call(api.hub.own_session.call(group, c.Purge(queue))), Ok)
        seen = await shown(api)
        assert {each.version for each in seen.groups} == {NEW}
        assert _versions(seen) == ""
        cluster.crash("n3", power=False)
        cluster.known_versions["n3"] = BASE
        cluster.start("n3")
        cluster.run(1_000)
        seen = await shown(api)
        assert [each.name for each in seen.members if not each.reachable] == ["n3"]

    asyncio.run(run())


def test_the_status_names_members_that_are_too_old() -> None:
    members: Any = [
        admin_pb2.MemberInfo(name="n1", known_version=NEW),
        admin_pb2.MemberInfo(name="n2", known_version=BASE),
        admin_pb2.MemberInfo(name="n3"),
    ]
    groups = [admin_pb2.GroupInfo(group=0, version=BASE), admin_pb2.GroupInfo(group=1, version=NEW)]
    seen = ClusterStatus.of(admin_pb2.ClusterStatusResponse(members=members, groups=groups))
    assert _versions(seen) == f"n2: too old for machine version {NEW}; start a newer release there"
    groups = [admin_pb2.GroupInfo(group=0, version=BASE), admin_pb2.GroupInfo(group=1, version=BASE)]
    seen = ClusterStatus.of(admin_pb2.ClusterStatusResponse(members=members, groups=groups))
    assert _versions(seen) == f"the cluster uses machine version {BASE} of {NEW}, until n2, n3 know it"
