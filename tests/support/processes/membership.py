"""Members that come, go, lose their disks and are drained, as real processes and under load."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable

import quorum
from quorum.cli.commands.members import ask
from quorum.client.admin.records import ClusterStatus
from quorum.client.connection.endpoints import parse_url
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.member import LocalMember
from support.histories import checkers
from support.processes.load import CONNECT_LIMIT_MS, LIGHT, POLL_S, Load, Recorder, leader_of

CHANGE_LIMIT_S = 90.0
"""A change takes a second or two in a group; the machine may be busy."""


def _ask(cluster: LocalCluster, name: str) -> ClusterStatus | None:
    return ask(parse_url(cluster.url), cluster.member(name).client)


async def until(cluster: LocalCluster, at: str, done: Callable[[ClusterStatus], bool], what: str) -> None:
    deadline = time.monotonic() + CHANGE_LIMIT_S
    while (seen := await asyncio.to_thread(_ask, cluster, at)) is None or not done(seen):
        outputs = "\n".join(cluster.processes.last_output(name, 5) for name in cluster.names)
        assert time.monotonic() < deadline, f"{what}: not within {CHANGE_LIMIT_S} s: {seen}\n{outputs}"
        await asyncio.sleep(POLL_S)


async def said(cluster: LocalCluster, name: str, what: str) -> None:
    deadline = time.monotonic() + CHANGE_LIMIT_S
    while what not in cluster.processes.last_output(name, 1_000):
        assert time.monotonic() < deadline, (
            f"{name} has not said {what!r}: {cluster.processes.last_output(name)}"
        )
        await asyncio.sleep(POLL_S)


def are_voters(*names: str) -> Callable[[ClusterStatus], bool]:
    """Exactly these vote in every group, for good."""
    wanted = tuple(sorted(names))
    return lambda seen: all(
        (group.members, group.learners, group.settled) == (wanted, (), True) and group.leader in wanted
        for group in seen.groups
    )


async def bring_in(cluster: LocalCluster, new: LocalMember, *, replace: bool = False) -> None:
    """A new node, added through a member that is there."""
    cluster.start([new.name])
    await asyncio.to_thread(cluster.wait_standing, new.name, "waiting")
    waiting = await asyncio.to_thread(_ask, cluster, new.name)
    assert waiting is not None
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        assert await client.add_member(waiting.own, replace=replace)


async def members_come_and_go(cluster: LocalCluster, queue: str, load: Load = LIGHT) -> str:
    """Three grow to five, one loses its disk and is replaced under its name, the two other first ones leave."""
    names = set(cluster.names)
    # clients know all five addresses from the beginning
    newcomers = [cluster.files.prepare(), cluster.files.prepare()]
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress(load.progress // 2)
        for new in newcomers:
            await bring_in(cluster, new)
            names.add(new.name)
            await until(cluster, "node-1", are_voters(*names), f"{names} vote")
        await recorder.progress(load.progress // 2)

        cluster.kill("node-2")
        shutil.rmtree(cluster.member("node-2").folder / "data")
        fault_at = time.monotonic()
        cluster.start(["node-2"])
        await recorder.resumed(fault_at)
        await recorder.progress(load.progress // 2)
        await asyncio.to_thread(cluster.wait_standing, "node-2", "meeting")
        assert not cluster.is_serving("node-2")
        await said(cluster, "node-2", "knows 'node-2' with another data directory")
        await said(cluster, "node-1", "'node-2' has come back with another data directory")
        await asyncio.to_thread(cluster.stop, ["node-2"])
        await bring_in(cluster, cluster.files.prepare("node-2"), replace=True)
        await until(cluster, "node-4", are_voters(*names), f"{names} vote, node-2 anew")
        await asyncio.to_thread(cluster.wait_ready, ["node-2"])
        await recorder.progress(load.progress // 2)

        async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            for name in ("node-1", "node-3"):
                await client.remove_member(name)
                names.remove(name)
                await until(cluster, "node-4", are_voters(*names), f"{names} vote")
        for name in ("node-1", "node-3"):
            await asyncio.to_thread(cluster.wait_standing, name, "removed")
            await asyncio.to_thread(cluster.stop, [name])
            cluster.files.forget(name)
        await recorder.progress(load.progress // 2)
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    return f"3 -> 5 members, one replaced, -> 3 members; {verdict}"


async def drained_and_stopped(cluster: LocalCluster, queue: str, load: Load = LIGHT) -> str:
    """A drained member leads nothing and has no sessions; one that stops has handed over before."""
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress(load.progress // 2)
        drained = await leader_of(cluster, queue)
        async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.drain_member(drained)
            others = [name for name in cluster.names if name != drained]
            await until(
                cluster,
                drained,
                lambda seen: all(group.leader in others for group in seen.groups),
                f"{drained} leads nothing",
            )
            told_by = time.monotonic() + CHANGE_LIMIT_S  # its health service hears of it a little later
            while await asyncio.to_thread(cluster.is_serving, drained):
                assert time.monotonic() < told_by, f"{drained} serves though it is drained"
                await asyncio.sleep(POLL_S)
            await recorder.progress(load.progress // 2)
            await client.drain_member(drained, drained=False)
            await asyncio.to_thread(cluster.wait_ready, [drained])
            await client.rebalance_leaders()
            seen = await client.cluster_status()
            led = [sum(group.leader == name for group in seen.groups) for name in cluster.names]
            assert max(led) - min(led) <= 1, led

        stopped = await leader_of(cluster, queue)
        fault_at = time.monotonic()
        await asyncio.to_thread(cluster.stop, [stopped])
        took = await recorder.resumed(fault_at)
        cluster.start([stopped])
        await asyncio.to_thread(cluster.wait_ready, [stopped])
        await recorder.progress(load.progress // 2)
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    return f"a member drained, a leader stopped (publishing went on after {took:.2f} s); {verdict}"


async def away_while_one_joins(cluster: LocalCluster) -> None:
    """A member comes back to a cluster that is led by one of whom it has never heard."""
    here, *_, away = cluster.names
    cluster.kill(away)
    new = cluster.files.prepare()
    await bring_in(cluster, new)
    names = cluster.names
    await until(cluster, here, are_voters(*names), f"{names} vote")
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        for group in (await client.cluster_status()).groups:
            await client.transfer_leadership(group.group, new.name)
    cluster.start([away])
    await until(cluster, away, are_voters(*names), f"{away} has heard of everything")
    await asyncio.to_thread(cluster.wait_ready, [away])
    seen = await asyncio.to_thread(_ask, cluster, away)
    assert seen is not None
    assert {group.leader for group in seen.groups} == {new.name}, "it did not take another leader"
