"""What is done to the links between real member processes, and to those of clients: partitions, cut connections.

As in scenarios.py: each scenario answers a line for people, and fails if nothing got through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import quorum
from quorum.client.errors import QuorumError
from quorum.histories import now_us
from quorum.histories.records import UNKNOWN
from support.histories import checkers
from support.processes.cluster import FaultyCluster, all_equal
from support.processes.load import (
    CONNECT_LIMIT_MS,
    LIGHT,
    Load,
    Recorder,
    body,
    describe_times,
    leader_of,
)
from support.processes.proxy import Proxies, Way
from support.processes.scenarios import RESTART_LIMIT_S

REFUSAL_MS = 1_500
"""A minority is asked for this long; it may not confirm."""
FLAPS = 8
FLAP_S = 0.4
CUT_EVERY_S = 0.25
CUT_SHARE = 0.4

Partition = Callable[[list[str]], list[Way]]
"""Members, the leader first -> the ways that are blocked."""


def both(pairs: Iterator[Way]) -> list[Way]:
    return [way for one, other in pairs for way in ((one, other), (other, one))]


def between(one: list[str], other: list[str]) -> list[Way]:
    return both((a, b) for a in one for b in other)


def halves(names: list[str]) -> list[Way]:
    """The leader is with the smaller part."""
    middle = len(names) // 2
    return between(names[:middle], names[middle:])


def leader_alone(names: list[str]) -> list[Way]:
    return between(names[:1], names[1:])


def follower_alone(names: list[str]) -> list[Way]:
    return between(names[-1:], names[:-1])


def ring(names: list[str]) -> list[Way]:
    """Everybody sees the neighbours alone: of five, a majority, and no two see the same."""
    near = {frozenset(pair) for pair in pairwise([*names, names[0]])}
    return both((a, b) for a in names for b in names if a < b and frozenset((a, b)) not in near)


def bridge(names: list[str]) -> list[Way]:
    """Two parts that only the last one sees both."""
    middle = len(names) // 2
    return between(names[:middle], names[middle:-1])


def deaf_leader(names: list[str]) -> list[Way]:
    """One way: the leader speaks and hears nothing."""
    return [(other, names[0]) for other in names[1:]]


def mute_leader(names: list[str]) -> list[Way]:
    """One way: the leader hears and is not heard."""
    return [(names[0], other) for other in names[1:]]


SHAPES: dict[str, Partition] = {
    each.__name__: each
    for each in (halves, leader_alone, follower_alone, ring, bridge, deaf_leader, mute_leader)
}
CUTS_OFF: dict[str, int] = {"leader_alone": 0, "follower_alone": -1, "halves": 0}
"""Shapes in which this one is surely without a majority."""


async def partition(cluster: FaultyCluster, queue: str, shapes: list[str], load: Load = LIGHT) -> str:
    """One shape after the other under load: the cluster goes on during each, whoever has no majority confirms nothing,
    and all is well after it."""
    assert cluster.proxies is not None
    said: list[str] = []
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        for shape in shapes:
            names = await _leader_first(cluster, queue)
            before = await asyncio.to_thread(_term, cluster)
            fault_at = time.monotonic()
            cluster.proxies.block(SHAPES[shape](names))
            if shape in CUTS_OFF:
                await _refuses(cluster, recorder, names[CUTS_OFF[shape]])
            during = await recorder.resumed(fault_at)
            await recorder.progress()
            mended_at = time.monotonic()
            cluster.proxies.repair(cluster.chance)
            after = await recorder.resumed(mended_at)
            await asyncio.to_thread(cluster.wait_ready, None, RESTART_LIMIT_S)
            repaired = time.monotonic() - mended_at
            await recorder.progress()
            terms = await asyncio.to_thread(_term, cluster) - before
            said.append(
                f"{shape}: publishing went on after {during:.2f} s, mended {after:.2f} s, "
                f"all serving {repaired:.2f} s, {terms} terms"
            )
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    assert cluster.proxies.held_up, "no link was in the way of anything"
    return "; ".join([*said, verdict, await all_equal(cluster)])


async def flapping(cluster: FaultyCluster, queue: str, flaps: int, load: Load = LIGHT) -> str:
    """Random ways are blocked and opened again, faster than members can agree on anything."""
    assert cluster.proxies is not None
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        for _ in range(flaps):
            ways = [(a, b) for a in cluster.names for b in cluster.names if a != b]
            cluster.proxies.block(cluster.chance.sample(ways, cluster.chance.randint(1, len(ways) // 2)))
            await asyncio.sleep(FLAP_S * cluster.chance.random())
            cluster.proxies.repair(cluster.chance)
            await asyncio.sleep(FLAP_S * cluster.chance.random())
        mended_at = time.monotonic()
        took = await recorder.resumed(mended_at)
        await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    assert cluster.proxies.held_up, "no link was in the way of anything"
    return f"{flaps} flaps, publishing went on {took:.2f} s after the last; {verdict}; {await all_equal(cluster)}"


async def _leader_first(cluster: FaultyCluster, queue: str) -> list[str]:
    leader = await leader_of(cluster, queue)
    return [leader, *(name for name in cluster.names if name != leader)]


def _term(cluster: FaultyCluster) -> int:
    """The highest term of any group at any member."""
    return max(
        group.term
        for name in cluster.running()
        if (status := cluster.status(name)) is not None
        for group in status.groups
    )


async def _refuses(cluster: FaultyCluster, recorder: Recorder, name: str) -> None:
    """A member without a majority confirms nothing. What it was sent may be taken later."""
    producer = f"refused-{len(recorder.history.records)}"
    recorder.history.publish(recorder.queue, producer, 0, invoked_us=now_us(), outcome=UNKNOWN)
    async with quorum.connect(cluster.url_of(name), connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        try:
            await client.publish_batch(recorder.queue, [body(producer, 0)], timeout_ms=REFUSAL_MS)
        except QuorumError:
            await client.close(timeout_ms=0)  # nothing confirms that message now
            return
    raise AssertionError(f"{name} has confirmed a message though it has no majority")


async def cut_clients(cluster: FaultyCluster, queue: str, kills: int, load: Load = LIGHT) -> str:
    """Clients' connections are reset again and again, many with answers under way, and leaders are killed meanwhile:
    producers send again what they heard nothing about, and nothing is taken twice."""
    links = Proxies()
    try:
        addresses = [links.address("client", each.name, each.client) for each in cluster.members]
        url = "quorum://" + ",".join(addresses)
        times: list[float] = []
        async with Recorder(cluster, queue, load=load, url=url) as recorder:
            await recorder.progress()
            cutting = asyncio.create_task(_keep_cutting(cluster, links))
            try:
                for _ in range(kills):
                    await recorder.progress()
                    leader = await leader_of(cluster, queue)
                    cluster.kill(leader)
                    times.append(await recorder.resumed(time.monotonic()))
                    await recorder.progress()
                    await asyncio.to_thread(cluster.restart, leader, RESTART_LIMIT_S)
                await recorder.progress()
            finally:
                cutting.cancel()
                await asyncio.gather(cutting, return_exceptions=True)
            await recorder.finish()
            verdict = checkers.check_all(recorder.history.records)
    finally:
        links.close()
    assert links.cut_connections > 2 * kills, f"only {links.cut_connections} connections were cut"
    said = f"{links.cut_connections} connections of producers cut, leader killed {kills} times"
    return f"{said}, publishing went on after {describe_times(times)}; {verdict}; {await all_equal(cluster)}"


async def _keep_cutting(cluster: FaultyCluster, links: Proxies) -> None:
    while True:
        await asyncio.sleep(CUT_EVERY_S * 2 * cluster.chance.random())
        links.cut_some(cluster.chance, CUT_SHARE)
