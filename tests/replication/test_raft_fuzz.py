"""Seeded random faults over everything: some dozens of runs here, thousands with `make campaign`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorum.replication.group import Group
from support.raft import fuzz as raft_fuzz
from support.raft.ablations import RULES, Rule
from support.raft.fuzz import MOST_SEEDS, catch, run, run_without
from support.raft.world import RealLogWorld

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


def test_raft_holds_while_frames_of_earlier_terms_arrive_again() -> None:
    for seed in range(1, SEEDS // 3 + 1):
        run(seed, STEPS, 3, echoes=True)


@pytest.mark.parametrize("rule", [each for each in RULES if not each.scene], ids=lambda rule: rule.name)
def test_the_fuzz_finds_a_missing_rule(rule: Rule) -> None:
    """Those that are too rare in it have a scene of their own: test_defects.py."""
    assert any(run_without(rule, seed) for seed in range(1, 2 * MOST_SEEDS))


def test_a_rule_that_the_fuzz_cannot_find_missing_has_a_scene_of_its_own() -> None:
    scenes = Path(__file__).with_name("test_defects.py").read_text(encoding="utf-8")
    assert all(f"def {rule.scene}(" in scenes for rule in RULES if rule.scene)


def test_the_search_for_missing_rules_prints_their_seeds_and_the_median(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    wanted = [rule for rule in RULES if rule.name in ("hold", "read")]
    assert catch(wanted, 1, said.append) == []
    assert said[0].split()[:7] == ["hold", "1,", "2,", "3,", "4,", "5", "1"]
    assert said[1].split()[:4] == ["read", "not", "by", "seeds:"]
    monkeypatch.setattr(raft_fuzz, "MOST_SEEDS", 2)  # no seed finds it: more would only take longer
    assert catch([Rule("sound", "nothing", Group)], 1, said.append) == ["sound"]


def test_a_seed_is_the_same_run_under_any_hash_seed() -> None:
    root = Path(__file__).parents[2]
    program = (
        "from support.raft.fuzz import run\n"
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
