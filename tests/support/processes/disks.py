"""What is done to the disks of real member processes: power cuts, failing and slow syncs, a full disk, under load.

As in scenarios.py: each scenario answers a line for people, and fails if nothing got through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import quorum
from quorum.client.errors import PublishRejected, QuorumError
from quorum.errors import ClusterError
from quorum.histories.records import CONFIRMED, Record
from quorum.local_cluster.cluster import LocalCluster
from quorum.node.driver import DISK_FAILED
from support.histories import checkers
from support.histories.checkers import Violation
from support.log.faulty_files import FAILED, TOUCHED, Faults
from support.processes.cluster import FaultyCluster, PowerCutSaid, all_equal
from support.processes.load import (
    CONNECT_LIMIT_MS,
    LIGHT,
    POLL_S,
    Load,
    Recorder,
    body,
    describe_times,
    in_us,
    leader_of,
)
from support.processes.scenarios import RESTART_LIMIT_S

LEISURELY = Faults(sync_delay_s=0.002)
"""Power cuts shall meet writes that are not yet synced."""
MANY_SYNCS = 25
SLOW_S = (0.15, 0.5, 2.0)
HAND_OVER_LIMIT_S = 30.0
"""The aim is 10 s; the machine may be busy."""
LOST = 200


class PowerCuts:
    """What the disks forgot, all together."""

    def __init__(self) -> None:
        self.count = 0
        self.sectors = 0
        self.kept = 0

    def add(self, said: Sequence[PowerCutSaid]) -> None:
        self.count += len(said)
        self.sectors += sum(each.sectors for each in said)
        self.kept += sum(each.kept for each in said)

    def __str__(self) -> str:
        assert self.sectors, "no power cut met anything that was not synced: nothing was shown"
        return f"{self.count} power cuts, {self.sectors:,} sectors were not synced, {self.kept:,} kept something of it"


async def cut_all(cluster: FaultyCluster, queue: str, rounds: int, load: Load = LIGHT) -> str:
    """The power of every member is cut at once under load."""
    times: list[float] = []
    cuts = PowerCuts()
    _set_faults(cluster, LEISURELY)
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        for _ in range(rounds):
            cuts.add(cluster.cut_power(*cluster.names))
            fault_at = time.monotonic()
            cluster.start()
            await asyncio.to_thread(cluster.wait_ready, None, RESTART_LIMIT_S)
            times.append(await recorder.resumed(fault_at))
            await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    return _report(f"all cut {rounds} times, {cuts}", times, verdict, await all_equal(cluster))


async def cut_one(cluster: FaultyCluster, queue: str, rounds: int, load: Load = LIGHT) -> str:
    """The power of one member is cut under load, the leader's and a follower's in turn."""
    times: list[float] = []
    cuts = PowerCuts()
    _set_faults(cluster, LEISURELY)
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        for number in range(rounds):
            leader = await leader_of(cluster, queue)
            victim = leader if number % 2 == 0 else _others(cluster, leader)[0]
            cuts.add(cluster.cut_power(victim))
            times.append(await recorder.resumed(time.monotonic()))
            await recorder.progress()
            await asyncio.to_thread(cluster.restart, victim, RESTART_LIMIT_S)
            await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    return _report(f"one cut {rounds} times, {cuts}", times, verdict, await all_equal(cluster))


async def cut_while_one_lags(
    cluster: FaultyCluster, queue: str, *, pauses: bool, cuts_leader: bool, load: Load = LIGHT
) -> str:
    """One member is cut off (or paused) and lags; the two others confirm; the power of one of them is cut and the
    other killed; the one that lagged and the one that was cut make the new majority. What was confirmed is on the
    one that was cut alone, so it must all have been synced there."""
    cuts = PowerCuts()
    _set_faults(cluster, LEISURELY)
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        leader = await leader_of(cluster, queue)
        first, lagging = _others(cluster, leader)
        cut, killed = (leader, first) if cuts_leader else (first, leader)
        if pauses:
            cluster.pause(lagging)
        else:
            assert cluster.proxies is not None
            cluster.proxies.isolate([lagging], [cut, killed])
        behind_at = time.monotonic()
        await recorder.resumed(behind_at)
        await recorder.progress()
        cuts.add(cluster.cut_power(cut))
        cluster.kill(killed)
        fault_at = time.monotonic()
        if pauses:
            cluster.resume(lagging)
        else:
            assert cluster.proxies is not None
            cluster.proxies.repair(cluster.chance)
        cluster.start([cut])
        await asyncio.to_thread(cluster.wait_ready, [cut, lagging], RESTART_LIMIT_S)
        took = await recorder.resumed(fault_at)
        await recorder.progress()
        await asyncio.to_thread(cluster.restart, killed, RESTART_LIMIT_S)
        await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    lagged, victim = "paused" if pauses else "cut off", "leader" if cuts_leader else "follower"
    how = f"one {lagged}, the {victim} cut, the other killed"
    return _report(f"{how}, {cuts}", [took], verdict, await all_equal(cluster))


async def disk_fails(cluster: FaultyCluster, queue: str, whats: Sequence[str], load: Load = LIGHT) -> str:
    """The n-th write or sync of a member fails under load, the leader's and a follower's in turn: the process stops at
    once and touches its disk no more; the others go on; it is taken back on a good disk."""
    times: list[float] = []
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        for number, what in enumerate(whats):
            leader = await leader_of(cluster, queue)
            victim = leader if number % 2 == 0 else _others(cluster, leader)[0]
            await _fail(cluster, victim, what)
            times.append(await recorder.resumed(time.monotonic()))
            await recorder.progress()
            await asyncio.to_thread(cluster.restart, victim, RESTART_LIMIT_S)
            await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    return _report(f"disks failed: {', '.join(whats)}", times, verdict, await all_equal(cluster))


async def only_disk_fails(
    cluster: FaultyCluster, queue: str, whats: Sequence[str], load: Load = LIGHT
) -> str:
    """The same with a single member, whose every confirm is a promise of this one disk: what the failed sync was to
    make durable is gone, so nothing of it may have been confirmed."""
    assert len(cluster.names) == 1
    async with Recorder(cluster, queue, load=load) as recorder:
        await recorder.progress()
        for what in whats:
            await _fail(cluster, cluster.names[0], what)
            fault_at = time.monotonic()
            await asyncio.to_thread(cluster.restart, cluster.names[0], RESTART_LIMIT_S)
            await recorder.resumed(fault_at)
            await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    return f"the only disk failed: {', '.join(whats)}; {verdict}"


async def _fail(cluster: FaultyCluster, victim: str, what: str) -> None:
    """Until the process has ended as it should."""
    said = len(cluster.output(victim))
    cluster.set_faults(victim, Faults(fail=what, after=cluster.chance.randint(1, MANY_SYNCS)))
    status = await asyncio.to_thread(cluster.await_end, victim)
    output = cluster.output(victim)[said:]
    cluster.set_faults(victim, Faults())
    assert FAILED in output, f"{victim} ended with {status}, not by the fault:\n{output}"
    assert status == DISK_FAILED, f"{victim} ended with {status}:\n{output}"
    assert "member stops" in output and "could not write" in output, f"no clear message:\n{output}"
    assert TOUCHED not in output, f"the disk was used after it had failed:\n{output}"


async def slow_disk(cluster: FaultyCluster, queue: str, delays_s: Sequence[float], load: Load = LIGHT) -> str:
    """Syncs of a follower, then of the leader, take this much longer: the cluster goes on all the same, and the leader
    hands over."""
    said: list[str] = []
    async with Recorder(cluster, queue, load=load) as recorder:
        begun = time.monotonic()
        await recorder.progress()
        said.append(f"before: {_confirm_times(recorder.history.records, begun)}")
        for delay_s in delays_s:
            for who in ("follower", "leader"):
                leader = await leader_of(cluster, queue)
                victim = leader if who == "leader" else _others(cluster, leader)[0]
                cluster.set_faults(victim, Faults(sync_delay_s=delay_s))
                begun = time.monotonic()
                await recorder.resumed(begun)
                await recorder.progress()
                words = f"{who} {delay_s:g} s: {_confirm_times(recorder.history.records, begun)}"
                if who == "leader":
                    words += f", handed over after {await _handed_over(cluster, queue, victim, begun):.1f} s"
                said.append(words)
                cluster.set_faults(victim, Faults())
                await recorder.progress()
        await recorder.finish()
        verdict = checkers.check_all(recorder.history.records)
    return f"slow syncs, {'; '.join(said)}; {verdict}; {await all_equal(cluster)}"


async def _handed_over(cluster: FaultyCluster, queue: str, slow: str, since: float) -> float:
    """Seconds until somebody else leads the queue's group."""
    while await leader_of(cluster, queue) == slow:
        assert time.monotonic() < since + HAND_OVER_LIMIT_S, f"{slow} leads on, and its disk is slow"
        await asyncio.sleep(POLL_S)
    return time.monotonic() - since


def _confirm_times(records: list[Record], since: float) -> str:
    times = sorted(
        (each["returned_us"] - each["invoked_us"]) / 1e6
        for each in records
        if each["op"] == "publish" and each["outcome"] == CONFIRMED and each["invoked_us"] >= in_us(since)
    )
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
    return f"confirms p99 {1000 * p99:.0f} ms, slowest {times[-1]:.2f} s"


FULL_SEGMENT_BYTES = 8 << 20
FULL_ROOM_BYTES = 36 << 20
FULL_SETTINGS = {"disk_free_limit_bytes": FULL_SEGMENT_BYTES}
FULL_BODY = bytes(16 << 10)
FULL_BATCH = 16


async def disk_full(cluster: FaultyCluster, queue: str, room: int) -> str:
    """The leader's disk has room for so many bytes more. Publishing is refused when they are used up, settling goes on,
    and publishing too when there is room again, without a restart."""
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        await client.declare(queue)
    leader = await leader_of(cluster, queue)
    cluster.set_faults(leader, Faults(room=room))
    refused_with = ""
    confirmed = settled = 0
    async with quorum.connect(cluster.url_of(leader), connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        deadline = time.monotonic() + RESTART_LIMIT_S
        while not refused_with:
            assert time.monotonic() < deadline, "publishing was never refused"
            try:
                await client.publish_batch(queue, [FULL_BODY] * FULL_BATCH)
                confirmed += FULL_BATCH
            except PublishRejected as error:
                refused_with = f"{error.reason}: {error}"
        async with client.consume(queue, consumer_tag="emptying") as consumer:
            while settled < confirmed:
                delivery = await asyncio.wait_for(consumer.next_delivery(), RESTART_LIMIT_S)
                assert delivery is not None
                assert await consumer.settle_batch(delivery, wait=True)
                settled += delivery.count
        cluster.set_faults(leader, Faults())
        while True:
            try:
                await client.publish_batch(queue, [b"there is room again"])
                break
            except QuorumError:
                assert time.monotonic() < deadline, "publishing does not go on though there is room again"
                await asyncio.sleep(0.1)
    assert not cluster.processes.ended(), f"members ended: {cluster.processes.ended()}"
    assert refused_with.startswith("DISK_LOW") and leader in refused_with, refused_with
    assert confirmed, "nothing was published before the disk was full"
    return f"{confirmed:,} taken, refused with {refused_with}, {settled:,} settled on the full disk"


async def lying_disks_are_noticed(cluster: FaultyCluster, queue: str) -> str:
    """The proof that a power cut takes something away: with syncs that do nothing, confirmed messages are gone, or the
    members refuse what is left of their logs."""
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        await client.declare(queue)
        await client.publish_batch(queue, [body("before", n) for n in range(LOST)])
        _set_faults(cluster, Faults(ignore_syncs=True))
        for first in range(0, LOST, 10):
            await client.publish_batch(queue, [body("after", n) for n in range(first, first + 10)])
    cluster.cut_power(*cluster.names)
    _set_faults(cluster, Faults())
    cluster.start()
    try:
        await asyncio.to_thread(cluster.wait_ready, None, RESTART_LIMIT_S)
    except ClusterError:
        said = [name for name in cluster.names if "was synced" in cluster.output(name)]
        if len(said) <= len(cluster.names) // 2:  # a majority that has lost its log waits for each other
            raise
        for name in cluster.names:
            cluster.stop([name])
        return "the members refuse to go on with what is left"
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        left = (await client.describe(queue)).queue.total
    if left >= 2 * LOST:
        raise Violation("disks that never synced lost nothing at a power cut: the power cut is none")
    assert left >= LOST, f"{left} left, {LOST} were synced"
    return f"{2 * LOST - left} of {2 * LOST} confirmed messages gone with disks that lie"


def _report(what: str, times: Sequence[float], *rest: str) -> str:
    return "; ".join([what, f"publishing went on after {describe_times(times)}", *rest])


def _set_faults(cluster: FaultyCluster, faults: Faults) -> None:
    for name in cluster.names:
        cluster.set_faults(name, faults)


def _others(cluster: LocalCluster, name: str) -> list[str]:
    return [each for each in cluster.names if each != name]
