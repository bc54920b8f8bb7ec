"""Hostile connections against a real member, while a client that does nothing wrong publishes and consumes.

The short form is tests/processes/test_processes_hostile.py, the long one a part of campaign.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time

import quorum
from support.hostile.connections import AT_ONCE, Attack
from support.processes.secured_member import HEALTHY, SecuredMember

SLICES = 5
"""The connections come in so many equal parts. After the first one, the member has used every path, and its memory is
measured for the first time."""
MAX_GROWTH_BYTES = 64 << 20
SPARE_DESCRIPTORS = 10
"""A segment of the log more, and connections that are about to end."""
REST_LIMIT_S = 90.0
"""The member has closed what it times out by then, and returned its memory."""
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
    seen = []
    begun = time.monotonic()
    for number in range(SLICES):
        await healthy.beside(attack, count * (number + 1) // SLICES - attack.counts.total())
        seen.append(member.processes.resident_bytes()[member.name] >> 20)
        if not number:
            before = await _at_rest(member, 0, 1 << 60, 2.0)
    took_s = time.monotonic() - begun
    after = await _at_rest(member, before[0] + SPARE_DESCRIPTORS, before[1] + MAX_GROWTH_BYTES, REST_LIMIT_S)
    served = await healthy.ends()
    assert attack.counts.total() == count
    assert served >= 10, "the healthy client did next to nothing"
    assert not attack.unanswered, f"the member did not take {attack.unanswered} connections"
    assert member.process(member.name) == process, member.processes.last_output(member.name)
    defects = [line for line in member.output.splitlines() if _DEFECT.search(line)]
    assert not defects, defects[:5]
    kinds = ", ".join(f"{kind} {found:,}" for kind, found in sorted(attack.counts.items()))
    return (
        f"{count:,} connections, {AT_ONCE} at a time, in {took_s:.0f} s; {served:,} messages of a healthy client; "
        f"resident {', '.join(map(str, seen))} MiB after each part, {after[1] >> 20} MiB at rest; open files "
        f"{before[0]} before, {after[0]} at rest; {len(member.output) >> 10:,} KiB of log; {kinds}"
    )


async def _at_rest(member: SecuredMember, files: int, resident: int, limit_s: float) -> tuple[int, int]:
    """(open files, resident bytes) when both are at most these, or the limit is over."""
    deadline = time.monotonic() + limit_s
    while True:
        found = member.descriptors(), member.processes.resident_bytes()[member.name]
        if found[0] <= files and found[1] <= resident:
            return found
        if time.monotonic() > deadline:
            assert files == 0, f"{found[0]} open files and {found[1]:,} bytes; at most {files}, {resident:,}"
            return found
        await asyncio.sleep(0.5)
