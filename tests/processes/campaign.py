"""The long rounds of the crash tests, with a report: `python tests/processes/campaign.py --rounds 20`.

Run from the repository root. Every scenario runs on a cluster of its own; a failed one keeps its directory,
says where, and the campaign goes on. Exit status 0 only if all held.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quorum.cli.local_cluster import LocalCluster
from support import processes_scenarios as scenarios

ROUNDS_A_CLUSTER = 5
"""Rounds under one history: more would only make the check's memory grow."""

Scenario = Callable[[LocalCluster], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    members: int
    scenario: Scenario


def parts(rounds: int) -> list[Part]:
    """What is run, in order; `rounds` kills of a leader in all, and a quarter as many of the others."""
    planned: list[Part] = []
    left = rounds
    while left > 0:
        now = min(ROUNDS_A_CLUSTER, left)
        left -= now
        planned.append(
            Part(f"leader killed {now} times", 3, lambda c, now=now: scenarios.kill_leader(c, "orders", now))  # type: ignore[misc]
        )
    quarter = max(1, rounds // 4)
    planned.append(Part("all killed at once", 3, lambda c: scenarios.kill_all(c, "orders", quarter)))
    planned += [
        Part("node paused past its lease", 3, lambda c: scenarios.PausedNode(c, "orders").run())
    ] * quarter
    planned.append(Part("five members, two killed", 5, lambda c: scenarios.kill_minority(c, "orders")))
    return planned


def run(part: Part) -> tuple[bool, str]:
    """(whether all held, what there is to say)."""
    directory = Path(tempfile.mkdtemp(prefix="quorum-campaign-"))
    try:
        with LocalCluster(directory / "cluster", members=part.members) as cluster:

            async def scenario() -> str:
                return await part.scenario(cluster)

            said = asyncio.run(scenario())
            if cluster.ended():
                raise AssertionError(f"members ended by themselves: {cluster.ended()}")
    except Exception as failure:
        traceback.print_exc()
        return False, f"{type(failure).__name__}: {failure} (kept: {directory})"
    shutil.rmtree(directory)
    return True, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="kills of the leader in all")
    rounds = parser.parse_args().rounds
    failures = 0
    report: list[str] = []
    for part in parts(rounds):
        begun = time.monotonic()
        held, said = run(part)
        failures += not held
        report.append(
            f"{'held  ' if held else 'FAILED'}  {part.name} ({time.monotonic() - begun:.0f} s): {said}"
        )
        print(report[-1], flush=True)
    print("\n".join(["", "report", *report, "", f"{len(report) - failures} of {len(report)} held"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
