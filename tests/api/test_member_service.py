"""Calls that change members (quorum/api/services/member_service.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quorum.v1 import admin_pb2 as pb
from support.members.cluster import Cluster
from support.members.services import Aborted, Api, Context

Change = Callable[[Api, str], Coroutine[Any, Any, object]]


async def remove(api: Api, name: str) -> object:
    return await api.call(api.admin.RemoveMember(pb.RemoveMemberRequest(name=name), Context()))  # type: ignore[arg-type]


async def drain(api: Api, name: str) -> object:
    request = pb.DrainMemberRequest(name=name, drained=True)
    return await api.call(api.admin.DrainMember(request, Context()))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [remove, drain])
def test_the_last_reachable_member_serves_on_until_another_one_is_back(change: Change) -> None:
    """By the catalog n3 may lead, but it is down. Without n2 clients and commands would find no member."""
    cluster = Cluster(3)
    cluster.ready()
    cluster.crash("n3")
    cluster.run(6_000)

    async def body() -> None:
        api = Api(cluster, "n1")
        await change(api, "n1")
        with pytest.raises(Aborted, match="n1 cannot reach n3"):
            await change(api, "n2")
        with pytest.raises(Aborted, match="there is no member 'nobody'"):
            await change(api, "nobody")
        cluster.start("n3")
        cluster.until(lambda: cluster.members["n1"].peers.is_reachable("n3"), "it is back")
        await change(api, "n2")

    asyncio.run(body())
