"""Hostile connections against a real member, while a client that does nothing wrong publishes and consumes.

The short form is tests/processes/test_processes_hostile.py, the long one a part of campaign.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Coroutine

import quorum
from support.hostile.connections import AT_ONCE, Attack
from support.processes.secured_member import HEALTHY, SecuredMember

PARTS = 5
"""The connections come in so many equal parts. After the first one, the member has used every path."""
MAX_GROWTH_BYTES = 48 << 20
"""From the second part to the last one, between the lowest values. What a connection leaves behind is garbage in
cycles, which Python frees every few thousand connections: memory goes up and down by some 80 MiB meanwhile."""
SAMPLE_S = 0.25
SPARE_DESCRIPTORS = 10
"""A segment of the log more, and connections that are about to end."""
REST_LIMIT_S = 90.0
"""The member has closed what it times out by then."""
HEALTHY_LIMIT_MS = 60_000
PAUSE_S = 0.02
_DEFECT = re.compile(r"Traceback|\bdefect\b|never (awaited|retrieved)|Unhandled|Fatal error")


class HealthyClient:
    """Publishes messages and gets each of them, in order. `ends` returns how many."""

    def __init__(self, member: SecuredMember) -> None:
        self._url = member.url_as(HEALTHY)
        self._is_over = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> int:
        done = 0
        async with quorum.connect(self._url, connect_timeout_ms=HEALTHY_LIMIT_MS) as client:
            await client.declare("healthy", {})
            while not self._is_over:
                body = str(done).encode()
                await client.publish("healthy", body, timeout_ms=HEALTHY_LIMIT_MS)
                [message] = await client.get("healthy", 1)
                assert message.body == body
                done += 1
                await asyncio.sleep(PAUSE_S)
        return done

    async def beside(self, attack: Attack, count: int) -> None:
        """Runs the attack; raises as soon as this client fails."""
        attacking = asyncio.create_task(attack.run(count))
        await asyncio.wait({attacking, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            attacking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await attacking
            self._task.result()
            raise AssertionError("the healthy client has ended by itself")
        attacking.result()

    async def ends(self) -> int:
        self._is_over = True
        return await self._task


async def hostile_connections(member: SecuredMember, count: int, seed: int = 1) -> str:
    """Lets `count` hostile connections come, and judges the member: it runs, serves, has written no traceback, and has
    as much memory and as many open files as before. It has its users. Returns a report."""
    process = member.process(member.name)
    healthy, attack = HealthyClient(member), Attack(member, seed)
    lowest = []
    begun = time.monotonic()
    for number in range(PARTS):
        part = count * (number + 1) // PARTS - attack.counts.total()
        lowest.append(await _lowest_resident(member, healthy.beside(attack, part)))
        if not number:
            await asyncio.sleep(2)
            files = member.descriptors()
    took_s = time.monotonic() - begun
    await _closed_but(member, files + SPARE_DESCRIPTORS)
    served = await healthy.ends()
    assert attack.counts.total() == count
    assert served >= 10, "the healthy client did next to nothing"
    assert not attack.unanswered, f"the member did not take {attack.unanswered} connections"
    assert member.process(member.name) == process, member.processes.last_output(member.name)
    defects = [line for line in member.output.splitlines() if _DEFECT.search(line)]
    assert not defects, defects[:5]
    in_mib = ", ".join(str(each >> 20) for each in lowest)
    assert lowest[-1] <= lowest[1] + MAX_GROWTH_BYTES, f"memory grows: at least {in_mib} MiB in the parts"
    kinds = ", ".join(f"{kind} {found:,}" for kind, found in sorted(attack.counts.items()))
    return (
        f"{count:,} connections, {AT_ONCE} at a time, in {took_s:.0f} s; {served:,} messages of a healthy client; "
        f"resident at least {in_mib} MiB in the parts; open files {files} before, {member.descriptors()} at rest; "
        f"{len(member.output) >> 10:,} KiB of log; {kinds}"
    )


async def _lowest_resident(member: SecuredMember, work: Coroutine[None, None, None]) -> int:
    """Does the work. The smallest resident memory meanwhile, in bytes."""
    found, task = [], asyncio.create_task(work)
    while not task.done():
        found.append(member.processes.resident_bytes()[member.name])
        await asyncio.wait({task}, timeout=SAMPLE_S)
    task.result()
    return min(found)


async def _closed_but(member: SecuredMember, files: int) -> None:
    """Returns when at most so many files are open."""
    deadline = time.monotonic() + REST_LIMIT_S
    while (found := member.descriptors()) > files:
        assert time.monotonic() < deadline, f"{found} open files; at most {files}"
        await asyncio.sleep(0.5)
