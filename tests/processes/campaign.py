"""The long rounds of the tests with real processes, with a report: `python tests/processes/campaign.py`.

Run from the repository root. By default 30 rounds of SIGKILL of all members and 30 power cuts of all, 100 kills of the
leader, under full load, 31 kills of the drivers of data flows, 100,000 hostile connections, and 1,000 bits turned over
in each kind of file; `--rounds N` is the number of leaders killed, and everything else scales with it. `--only WORD`
runs the parts whose names have this word in them, and `--lane 1/2` every second one, so that two processes can share
the work. `--secured` runs the parts in which processes are killed or power is cut, on clusters with TLS for clients and
between members, whose clients log in. Every part runs on a cluster of its own. If a part fails, the campaign keeps the
directory of its cluster, prints it, and continues. The last lines are totals. The exit status is 0 only if all parts
held.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quorum.local_cluster.cluster import LocalCluster
from support.processes import damage, disks, features, links, losses, membership, scenarios, unlike
from support.processes.cluster import FaultyCluster
from support.processes.hostile import hostile_connections
from support.processes.load import FULL
from support.processes.secured_member import SecuredMember
from support.spark import kills as flows

ROUNDS_A_CLUSTER = 5
"""Rounds under one history: more would only make the check's memory grow."""
BITS_A_CLUSTER = 100
STARTS_SHARE = 10
"""For so many bits in each kind of file of a running member one is turned over while it is down: it costs a start."""
QUEUE = "orders"
WIDTH = 118
"""Of the report's lines."""
INDENT = " " * 8
# What scenarios say, for the totals.
CONFIRMED = re.compile(r"([\d,]+) confirmed")
SETTLED = re.compile(r"settled ([\d,]+) messages")
TRANSACTIONS = re.compile(r"([\d,]+) transactions committed")
BITS = re.compile(r"([\d,]+) bits turned over")
WORST = re.compile(r"worst ([\d.]+) s")

Scenario = Callable[[Any], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Part:
    """options: of FaultyCluster; None: members as everybody starts them."""

    name: str
    scenario: Scenario
    members: int = 3
    options: dict[str, Any] | None = field(default_factory=dict)
    rounds: int = 1
    needs_one_secured: bool = False
    """whether it runs on one member with TLS and users"""
    can_be_secured: bool = False
    """whether its clients connect with the cluster's own URL"""


def parts(rounds: int) -> Iterator[Part]:
    """What is run, in order; `rounds` kills of a leader in all."""
    third = max(1, rounds * 3 // 10)
    tenth = max(1, rounds // 10)
    yield from _in_turns("leader killed", rounds, None, lambda c, n: scenarios.kill_leader(c, QUEUE, n, FULL))
    yield from _in_turns(
        "all killed at once", third, None, lambda c, n: scenarios.kill_all(c, QUEUE, n, FULL)
    )
    yield from _in_turns("power of all cut", third, {}, lambda c, n: disks.cut_all(c, QUEUE, n, FULL))
    yield from _in_turns("power of one cut", third, {}, lambda c, n: disks.cut_one(c, QUEUE, n, FULL))
    for number in range(tenth):
        for pauses in (False, True):
            for cuts_leader in (False, True):
                who = "the leader" if cuts_leader else "a follower"
                yield Part(
                    f"power of {who} cut while one is {'paused' if pauses else 'cut off'}",
                    lambda c, p=pauses, leads=cuts_leader: disks.cut_while_one_lags(  # type: ignore[misc]
                        c, QUEUE, pauses=p, cuts_leader=leads, load=FULL
                    ),
                    options={"seed": number, "with_proxies": True},
                )
    whats = ["sync", "write"] * ROUNDS_A_CLUSTER
    yield from _in_turns("disk failed", third, {}, lambda c, n: disks.disk_fails(c, QUEUE, whats[:n], FULL))
    yield from _in_turns(
        "only disk failed", third, {}, lambda c, n: disks.only_disk_fails(c, QUEUE, whats[:n]), members=1
    )
    sizes = {"segment_bytes": disks.FULL_SEGMENT_BYTES, "settings": disks.FULL_SETTINGS}
    yield Part("disk full", lambda c: disks.disk_full(c, QUEUE, disks.FULL_ROOM_BYTES), options=sizes)
    yield Part("disks that lie", lambda c: disks.lying_disks_are_noticed(c, QUEUE))
    yield Part("slow disks", lambda c: disks.slow_disk(c, QUEUE, disks.SLOW_S))
    shapes = list(links.SHAPES)
    few = [each for each in shapes if each not in ("halves", "ring")]
    for number in range(tenth):
        proxies = {"seed": number, "with_proxies": True}
        yield Part("partitions of three", lambda c: links.partition(c, QUEUE, few), options=proxies)
        yield Part("partitions of five", lambda c: links.partition(c, QUEUE, shapes), 5, proxies)
        yield Part("flapping links", lambda c: links.flapping(c, QUEUE, 10 * links.FLAPS), options=proxies)
        yield Part("clients' connections cut", lambda c: links.cut_clients(c, QUEUE, 3), options=proxies)
        yield Part(
            "leader paused",
            lambda c: scenarios.PausedNode(c, QUEUE, pauses_leader=True).run(),
            options=None,
        )
        yield Part("node paused", lambda c: scenarios.PausedNode(c, QUEUE).run(), options=None)
        yield Part(
            "members come and go", lambda c: membership.members_come_and_go(c, QUEUE, FULL), options=None
        )
        yield Part("member drained", lambda c: membership.drained_and_stopped(c, QUEUE, FULL), options=None)
    yield Part("five members, two killed", lambda c: scenarios.kill_minority(c, QUEUE, FULL), 5, None)
    yield Part("members unlike each other", lambda c: unlike.unlike_members(c, QUEUE, 10 * rounds))
    yield from _in_turns("leaders of all kinds of queues killed", third, None, features.kill_leaders)
    for number in range(tenth):
        lossy = {"seed": number, **damage.OPTIONS}
        yield Part("files lost", lambda c: losses.FileLosses(c, QUEUE).run(at_start=True), options=lossy)
    yield Part(
        "data flow's driver killed, archive",
        lambda c: flows.all_flights(c, tenth),
        options=None,
        rounds=tenth,
    )
    fifth = max(1, rounds // 5)
    yield Part(
        "data flow's driver killed, queue to queue",
        lambda c: flows.many_kills(c, fifth),
        options=None,
        rounds=fifth,
    )
    yield Part(
        "data flow's driver killed, one batch", lambda c: flows.many_rows(c, 10_000 * rounds), options=None
    )
    yield Part("hostile connections", lambda c: _hostile(c, 1_000 * rounds), needs_one_secured=True)
    yield from _in_turns(
        "bits turned over in each kind of file",
        10 * rounds,
        damage.OPTIONS,
        lambda c, n: damage.BitFlips(c, QUEUE).run(max(1, n // STARTS_SHARE), n),
        most=BITS_A_CLUSTER,
    )


async def _hostile(member: SecuredMember, count: int) -> str:
    await member.make_users()
    return await hostile_connections(member, count)


def _in_turns(
    name: str,
    rounds: int,
    options: dict[str, Any] | None,
    scenario: Callable[[Any, int], Awaitable[str]],
    *,
    members: int = 3,
    most: int = ROUNDS_A_CLUSTER,
) -> Iterator[Part]:
    """Not more than `most` rounds with one cluster."""
    for done in range(0, rounds, most):
        now = min(most, rounds - done)
        seeded = None if options is None else {"seed": done, **options}
        yield Part(
            f"{name} ({done + 1}-{done + now} of {rounds})",
            lambda c, now=now: scenario(c, now),  # type: ignore[misc]
            members,
            seeded,
            now,
            can_be_secured=any(word in name for word in ("killed", "power")),
        )


def run(part: Part, *, secured: bool = False) -> tuple[bool, str]:
    """(whether all held, what there is to say)."""
    directory = Path(tempfile.mkdtemp(prefix="quorum-campaign-"))
    cluster: LocalCluster
    try:
        if part.needs_one_secured:
            cluster = SecuredMember(directory / "cluster")
        elif part.options is None:
            cluster = LocalCluster(directory / "cluster", part.members, secured=secured)
        else:
            cluster = FaultyCluster(directory / "cluster", part.members, secured=secured, **part.options)
        with cluster:

            async def scenario() -> str:
                return await part.scenario(cluster)

            said = asyncio.run(scenario())
            if cluster.processes.ended():
                raise AssertionError(f"members ended by themselves: {cluster.processes.ended()}")
    except Exception as failure:
        traceback.print_exc()
        what = next(iter(str(failure).splitlines()), "")
        return False, f"{type(failure).__name__}: {what} (kept: {directory})"
    shutil.rmtree(directory)
    return True, said


def lines(name: str, held: bool, took_s: float, said: str) -> list[str]:
    """What is said of a part, in lines that can be read."""
    head = f"{'held  ' if held else 'FAILED'}  {name} ({took_s:.0f} s)"
    return [head, *textwrap.wrap(said, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)]


@dataclass(slots=True)
class Totals:
    """What all parts together have shown."""

    parts: int = 0
    failed: int = 0
    rounds: int = 0
    confirmed: int = 0
    settled: int = 0
    """in queues of all kinds"""
    transactions: int = 0
    bits: int = 0
    longest_s: float = 0.0

    def add(self, part: Part, held: bool, said: str) -> None:
        self.parts += 1
        if not held:
            self.failed += 1
            return  # nothing it has said is proven
        self.rounds += part.rounds
        self.confirmed += _sum(CONFIRMED, said)
        self.settled += _sum(SETTLED, said)
        self.transactions += _sum(TRANSACTIONS, said)
        self.bits += _sum(BITS, said)
        self.longest_s = max([self.longest_s, *map(float, WORST.findall(said))])

    def __str__(self) -> str:
        """Only what these parts have counted."""
        lost = "none lost" if not self.failed else "none lost where it held"
        counted = [
            f"{count:,} {what}"
            for count, what in (
                (self.confirmed, f"messages confirmed, {lost}"),
                (self.settled, f"messages settled in queues of all kinds, {lost}"),
                (self.transactions, "transactions committed"),
                (self.bits, "bits turned over"),
            )
            if count
        ]
        if self.longest_s:
            counted.append(f"longest time until publishing went on {self.longest_s:.2f} s")
        held = f"total: {self.parts - self.failed} of {self.parts} parts held, {self.rounds:,} rounds"
        return ", ".join([held, *counted])


def _sum(pattern: re.Pattern[str], said: str) -> int:
    return sum(int(found.replace(",", "")) for found in pattern.findall(said))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="kills of the leader in all (default 100)")
    parser.add_argument("--only", default="", help="only the parts with this in their names")
    parser.add_argument(
        "--lane",
        default="1/1",
        help="K/N: every Nth part, from the Kth on; 1/2 and 2/2 together are all parts",
    )
    parser.add_argument(
        "--secured",
        action="store_true",
        help="the parts with kills and power cuts, on clusters with TLS and users",
    )
    arguments = parser.parse_args()
    lane, lanes = map(int, arguments.lane.split("/"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves no members behind
    totals = Totals()
    report: list[str] = []
    chosen = [part for part in parts(arguments.rounds) if arguments.only in part.name]
    if arguments.secured:
        chosen = [part for part in chosen if part.can_be_secured]
    for part in chosen[lane - 1 :: lanes]:
        begun = time.monotonic()
        held, said = run(part, secured=arguments.secured)
        totals.add(part, held, said)
        told = lines(part.name, held, time.monotonic() - begun, said)
        report += told
        print("\n".join(told), flush=True)
    print("\n".join(["", "report", *report, "", *textwrap.wrap(str(totals), WIDTH)]))
    return 1 if totals.failed or not totals.parts else 0


if __name__ == "__main__":
    sys.exit(main())
