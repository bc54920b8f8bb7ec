"""Seeded random faults over everything: some dozens of runs here, thousands with `make campaign`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorum.replication.errors import ReplicationFailed
from support.raft_ablations import ABLATIONS
from support.raft_checks import Violation
from support.raft_fuzz import run
from support.raft_world import RealLogWorld

CAMPAIGN = bool(os.environ.get("QUORUM_CAMPAIGN"))
SEEDS = 1500 if CAMPAIGN else 30
STEPS = 6000 if CAMPAIGN else 4000


@pytest.mark.parametrize("size", [3, 5])
def test_raft_holds_under_random_faults(size: int) -> None:
    committed = reads = 0
    for seed in range(1, SEEDS + 1):
        done = run(seed, STEPS, size)
        committed += len(done.world.checks.committed)
        reads += done.world.checks.reads
    assert committed > 100 * SEEDS
    assert reads > 5 * SEEDS


def test_raft_holds_on_the_real_log() -> None:
    for seed in range(1, SEEDS // 2 + 1):
        run(seed, STEPS // 2, 3, world_class=RealLogWorld)


def test_raft_holds_while_logs_run_out_of_room_and_have_it_again() -> None:
    committed = refusals = 0
    seeds = range(1, SEEDS // 3 + 1)
    for seed in seeds:
        done = run(seed, STEPS, 3, fills_disks=True)
        committed += len(done.world.checks.committed)
        refusals += done.refusals
    assert committed > 50 * len(seeds)
    assert refusals > 2 * len(seeds)


def test_the_fuzz_finds_a_full_log_that_acknowledges_what_it_has() -> None:
    for seed in range(1, 31):
        try:
            run(seed, 5000, 3, ABLATIONS["full-log"], fills_disks=True)
        except (Violation, ReplicationFailed):
            return
    pytest.fail("nothing went wrong")


CAUGHT_BY_FUZZ = {
    "conflict": (3, range(1, 16)),
    "acknowledgement-clamp": (3, range(1, 26)),
    "snapshot-commit": (3, range(1, 16)),
    "vote": (5, range(1, 26)),
    "reset": (3, range(1, 16)),
    "park": (3, range(1, 26)),
    "hold": (3, range(1, 4)),
}
"""Which runs find a rule missing. The others (commit-clamp, answer-term, snapshot-newer, read) are
too rare in it and have a scene of their own: test_defects.py."""


@pytest.mark.parametrize("rule", CAUGHT_BY_FUZZ)
def test_the_fuzz_finds_a_missing_rule(rule: str) -> None:
    size, seeds = CAUGHT_BY_FUZZ[rule]
    for seed in seeds:
        try:
            run(seed, 5000, size, ABLATIONS[rule])
        except (Violation, ReplicationFailed):
            return
    pytest.fail(f"without the rule {rule!r} nothing went wrong")


def test_a_seed_is_the_same_run_under_any_hash_seed() -> None:
    root = Path(__file__).parents[2]
    program = (
        "from support.raft_fuzz import run\n"
        "checks = run(5, 1500).world.checks\n"
        "print(sorted(checks.committed.items()), sorted(checks.leaders.items()))"
    )
    path = os.pathsep.join(str(each) for each in (root, root / "selectors", root / "tests"))
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in (1, 2)
    }
    assert len(outputs) == 1
    assert len(next(iter(outputs))) > 1000
