"""The whole cluster in one thread: some seeds of the product, some of broken builds, and what the report is worth."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from quorum.api.turns import LARGE_STEPS, Turns
from quorum.node.errors import PageUnreadable
from quorum.node.repair.snapshot_bodies import SnapshotBodies
from simulator import runner, world
from simulator.broken import parts
from simulator.broken.canaries import CANARIES, QUICK_SEEDS, Canary
from simulator.changes import PART as CHANGES_PART
from simulator.faults import LANDABLE
from simulator.machines.loop import SimLoop
from simulator.machines.node import Node
from simulator.report import MANY, Outcome, Report
from simulator.rules.rules import Broken
from simulator.seed import fails_by_itself, prepared
from support.repository import ROOT

SEEDS = 3
BY_NAME = {canary.name: canary for canary in CANARIES}
NOTICED = {
    "TTL never expires": "has expired and is",
    "drop-head drops the newest": "had to go, and older ones are left",
    "reject-publish refuses nothing": "came to a queue of at most",
    "delivery limit of one": "left the queue and nobody has settled it",
    "an urgent message waits": "has a higher priority than",
    "embargo ended by a failover": "is ready before its time",
}
"""What is said of a build that breaks a promise about a bounded queue."""
SHORT_SEED = 3
"""It takes less than half the time of the two before it, and catches most builds."""
CAUGHT_BY = {"an urgent message waits": 2}
"""Where the search for such a build begins, if not there: at the seed that caught it last time."""


def simulate(*arguments: str, hash_seed: str = "0") -> str:
    """What `make simulate` prints, of a process of its own."""
    return run_module("simulator", *arguments, hash_seed=hash_seed)


def run_module(module: str, *arguments: str, hash_seed: str = "0") -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "selectors"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode in (0, 1)
    return done.stdout


@pytest.fixture(scope="module")
def first_seeds() -> list[str]:
    """The lines that are printed of them. Two processes run them, so the last ones run behind others."""
    jobs = min(2, runner.cores())
    return simulate("--first", "1", "--seeds", f"{SEEDS}", "--jobs", f"{jobs}", hash_seed="1").splitlines()


def test_nothing_is_lost_doubled_reordered_or_stuck(first_seeds: list[str]) -> None:
    wanted = rf"{SEEDS} seeds, none broken; [\d,]{{5,}} messages confirmed, \d{{2,}}"
    assert re.match(wanted, first_seeds[-1]), first_seeds
    assert not [line for line in first_seeds if line.startswith("an empty proof")], first_seeds


CHANGING_SEEDS = 12
"""So many seeds in which members change show every kind of change."""


def test_members_come_go_and_lose_their_disks_while_everything_fails() -> None:
    counts: Counter[str] = Counter()
    amid: set[str] = set()
    wanted = {f"members {each}" for each in ("added", "removed", "replaced", "mended")}
    tried = 0
    for seed in range(44, 200):  # the first two show all of it
        if random.Random(f"{seed} members").random() >= CHANGES_PART or seed % 4 == 1:
            continue
        tried += 1
        assert tried <= CHANGING_SEEDS, counts
        outcome = runner.one(seed)
        assert outcome.broken == ""
        counts += outcome.counts
        amid |= {kind for kind, state in outcome.coverage if state == "members changing"}
        if (
            all(counts[each] for each in (*wanted, "wiped members refused"))
            and counts["leaders removed"] + counts["leaders replaced"]
            and {"disk lost", "kill", "power cut"} <= amid
        ):
            return


def test_a_cluster_of_one_member_grows_to_three_while_everything_fails() -> None:
    for seed in range(SHORT_SEED, SHORT_SEED + 3):
        outcome = runner.one(seed, build=world.Build("few founders", scenario="few"))
        assert outcome.broken == ""
        if outcome.counts["clusters grown"]:
            return
    pytest.fail("no cluster has grown")


@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [
        ("leases", "lease times changed or settled"),
        ("wide", "wide batches"),
        ("routing", "batches for several queues"),
        ("versions", "groups switched to a new version"),
    ],
)
def test_a_scenario_does_what_it_is_for_while_everything_fails(scenario: str, wanted: str) -> None:
    outcome = runner.one(SHORT_SEED, build=world.Build(scenario, scenario=scenario))
    assert outcome.broken == ""
    assert outcome.counts[wanted]


def test_a_disk_is_lost_only_where_the_groups_can_do_without() -> None:
    with prepared(24, world.Build()):
        made = world.World(24)
        changes = made.changes
        assert changes.has_any
        made.run_until(made._is_ready, "every group has a leader", 30_000)
        made.run_for(500)
        assert changes.is_carried_out
        members = dict(changes.wished)
        assert all(changes.may_lose(each) for each in members)
        changes.wished = {each: member for each, member in members.items() if each != "n2"}
        assert not changes.is_carried_out
        assert not any(changes.may_lose(each) for each in members), "a member is about to go"
        changes.wished = members
        made.faults.stop()
        made.down("n3", power=False)
        assert not any(changes.may_lose(each) for each in members), "a member is away"
        made.bury()


def test_a_power_cut_in_a_sync_may_leave_nothing_of_it() -> None:
    with prepared(1, world.Build()):
        made = world.World(1)
        made.run_until(made._is_ready, "every group has a leader", 30_000)
        made.faults.stop()
        node = made.nodes["n1"]
        before = {path: bytes(inode.durable) for path, inode in node.disk.names.items()}
        node.disk.slow_ms = 500
        made.down("n2", power=False)  # its groups elect other leaders
        made.run_until(lambda: node.is_syncing, "something is synced", 30_000)
        assert before != {path: bytes(inode.durable) for path, inode in node.disk.names.items()}
        node.disk.drops_all = True
        made.down("n1", power=True)
        assert before == {path: bytes(inode.durable) for path, inode in node.disk.names.items()}
        made.bury()


def test_a_follower_on_a_slow_disk_holds_up_no_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much is confirmed as with three quick disks, or nearly so."""
    monkeypatch.setattr(world, "SPREAD_AFTER_MS", (None,))
    confirmed = []
    for is_slow in (False, True):
        with prepared(1, world.Build()):
            made = world.World(1)
            made.run_until(made._is_ready, "every group has a leader", 30_000)
            follower = made.nodes["n3"]
            for group in follower.member.replicas:
                follower.member.membership.transfer(group, "n1")
            made._declare()
            made._start_apps()
            made.run_for(2_000)
            assert {replica.raft.leader for replica in follower.member.replicas.values()} == {"n1"}
            follower.disk.slow_ms = 2_000 if is_slow else 0
            before = made.rules.counts["confirmed"]
            made.run_for(2_500)
            confirmed.append(made.rules.counts["confirmed"] - before)
            made.bury()
    quick, slow = confirmed
    assert quick > 100
    assert slow > 0.9 * quick


def test_a_member_whose_state_has_rotted_gets_another_one() -> None:
    def meets_rot(node: Node) -> None:
        node.member.lose_state(PageUnreadable(1, 7, "rotten"))

    with prepared(1, world.Build()):
        made = world.World(1)
        made.run_until(made._is_ready, "every group has a leader", 30_000)
        node = made.nodes["n1"]
        node.disk.is_rotten = True
        meets_rot(node)
        made.run_until(lambda: made.faults.landed["bit rot"] == 1, "it lands", 5_000)
        made.run_until(lambda: not node.member.replicas[1].wants_state, "it has another state", 10_000)
        meets_rot(made.nodes["n2"])
        with pytest.raises(Broken, match="parted"):  # nothing has rotted there
            made.run_for(5_000)
        made.bury()


def test_a_seed_repeats_byte_for_byte(first_seeds: list[str]) -> None:
    """In another process, under another hash seed, and whatever ran there before."""
    alone = simulate("--first", f"{SEEDS}", "--seeds", "1", "--jobs", "1", hash_seed="4711")
    line = next(line for line in alone.splitlines() if line.startswith(f"seed {SEEDS}: digest "))
    assert line in first_seeds
    digests = {line.split(",")[0].split()[-1] for line in first_seeds if ": digest " in line}
    assert len(digests) == SEEDS


@pytest.mark.parametrize("canary", [each for each in CANARIES if each.is_quick], ids=lambda each: each.name)
def test_a_broken_build_is_caught(canary: Canary) -> None:
    """Within a few seeds; `make simulate CANARIES=1` looks for all of them, several times each."""
    said: list[str] = []
    first = CAUGHT_BY.get(canary.name, SHORT_SEED)
    assert runner.catch([canary], first, QUICK_SEEDS, 1, said.append, catches=1) == 0, said
    assert NOTICED.get(canary.name, "") in said[0], said


@pytest.mark.parametrize("canary", [each for each in CANARIES if each.scene], ids=lambda each: each.name)
def test_a_broken_build_that_seeds_meet_too_seldom_fails_the_test_that_is_named(canary: Canary) -> None:
    file, name = canary.scene.split("::")
    spec = importlib.util.spec_from_file_location(Path(file).stem, ROOT / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scene = getattr(module, name)
    scene()
    with ExitStack() as stack:
        for place, value in canary.build().patches.items():
            stack.enter_context(mock.patch(place, value))
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            scene()


def test_a_broken_build_that_fails_by_itself_is_not_caught() -> None:
    """Such as one that asks for a name that the product does not have any more."""
    fetch: Any = SnapshotBodies.prepare
    for part, is_own in ((parts.without_bodies, True), (fetch, False)):
        with pytest.raises(AttributeError) as found:
            part(None, 1, 1, 1, b"")
        broken = Broken("said by a node")
        broken.__cause__ = found.value
        assert fails_by_itself(found.value) == fails_by_itself(broken) == is_own


def test_a_broken_seed_is_named_with_its_story_and_the_status_says_so() -> None:
    said: list[str] = []
    assert runner.simulate(SHORT_SEED, 1, 1, said.append, "lapse of a lease ignored") == 1
    [broken, *_] = [text for text in said if text.startswith("BROKEN seed ")]
    assert re.search(r"again: make simulate SEEDS=1 FIRST_SEED=\d+$", broken)
    assert " ms, " in broken and "landed: " in broken
    assert " broken: [" in said[-1]


def test_a_build_that_nothing_is_wrong_with_is_not_caught() -> None:
    said: list[str] = []
    sound = Canary("sound", "nothing", world.Build)
    assert runner.catch([sound], 1, 0, 1, said.append) == 1
    assert said[-1] == "1 broken builds, 0 caught; missed: ['sound']"


def test_the_search_ends_with_a_table_of_seeds_and_their_median_gap() -> None:
    said: list[str] = []
    assert runner.catch([BY_NAME["highest first"]], SHORT_SEED, 6, 1, said.append, catches=2) == 0
    heading, row = said[-3:-1]
    assert heading.split()[:4] == ["broken", "build", "seeds", "median"]
    assert re.match(
        r"  highest first +\d+, \d+ +\d +first deliveries .* seed \d+, at \d+ ms, \w+: Broken", row
    )
    assert runner._median_gap(1, [3, 4, 10]) == 3


# ---- what the rules see


def test_a_queue_is_judged_in_every_entry() -> None:
    """A broken machine is noticed by the ledger where it does the wrong thing, not when the run ends."""
    for name, noticed in NOTICED.items():
        if not BY_NAME[name].is_quick:
            said: list[str] = []
            assert runner.catch([BY_NAME[name]], SHORT_SEED, 6, 1, said.append, catches=1) == 0, said
            assert noticed in said[0], said


# ---- empty proofs


def outcome(**counts: int) -> Outcome:
    return Outcome(1, "", "", Counter(counts), Counter({"kill": 1}), Counter(), 0.0, 0, 0)


def test_a_report_of_nothing_is_a_failure() -> None:
    assert Report([]).emptiness() == [
        "nothing was confirmed",
        "nothing was delivered",
        "nothing was settled",
        "nothing was queues drained",
        "no fault has landed",
    ]
    done = outcome(confirmed=1, delivered=1, settled=1, **{"queues drained": 1})
    assert Report([done]).emptiness() == []
    missing = Report([done] * MANY).emptiness()
    assert "no bit rot has landed" in missing
    assert "no kill has landed" not in missing
    assert "no kill has landed with members changing" in missing
    assert "nothing was members mended" in missing
    assert len(missing) > len(LANDABLE)


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    with prepared(1, world.Build()):
        idle = world.World(1)
        idle.run_for(3_000)
        with pytest.raises(Broken, match="an empty proof: nothing was confirmed"):
            idle.rules.judge()
        idle.bury()


def test_a_large_batch_is_checked_in_the_simulations_only_thread() -> None:
    loop = SimLoop(SimpleNamespace(ms=lambda: 0, s=lambda: 0.0), pytest.fail)  # type: ignore[arg-type]
    checked = loop.create_task(Turns().run(1, LARGE_STEPS + 1, threading.get_ident))
    loop.run_now()
    assert checked.done() and checked.result() == threading.get_ident()
    loop.close()


# ---- what it reaches

UNREACHED = """
    quorum/__init__.py
    quorum/__main__.py
    quorum/api/allocator.py
    quorum/api/connections.py
    quorum/api/grpc/calls.py
    quorum/api/grpc/grpc_server.py
    quorum/api/grpc/request_limits.py
    quorum/api/http/answers.py
    quorum/api/http/callers.py
    quorum/api/http/calls.py
    quorum/api/http/dead_letters.py
    quorum/api/http/definition_file.py
    quorum/api/http/description.py
    quorum/api/http/errors.py
    quorum/api/http/events.py
    quorum/api/http/json_answer.py
    quorum/api/http/json_api.py
    quorum/api/http/json_codec.py
    quorum/api/http/metrics.py
    quorum/api/http/page_files.py
    quorum/api/http/server.py
    quorum/api/http/sums.py
    quorum/api/listening.py
    quorum/api/process.py
    quorum/api/security/audit_file.py
    quorum/api/security/certificates.py
    quorum/api/security/named_files.py
    quorum/api/security/passwords.py
    quorum/api/security/reloading.py
    quorum/api/security/rights.py
    quorum/api/security/tokens.py
    quorum/api/server.py
    quorum/api/services/health.py
    quorum/api/services/transaction_service.py
    quorum/bench/backlog.py
    quorum/bench/command.py
    quorum/bench/load.py
    quorum/bench/plan.py
    quorum/bench/receivers.py
    quorum/bench/report.py
    quorum/bench/run.py
    quorum/bench/selectors_alone.py
    quorum/bench/selectors_cluster.py
    quorum/bench/selectors_designs.py
    quorum/bench/selectors_fields.py
    quorum/bench/selectors_machine.py
    quorum/bench/selectors_run.py
    quorum/bench/singles.py
    quorum/bench/singles_load.py
    quorum/bench/sizing.py
    quorum/bench/spark_flows.py
    quorum/bench/transfer.py
    quorum/cli/commands/audit.py
    quorum/cli/commands/backups.py
    quorum/cli/commands/certificates.py
    quorum/cli/commands/cluster.py
    quorum/cli/commands/data_files.py
    quorum/cli/commands/definitions.py
    quorum/cli/commands/doctor.py
    quorum/cli/commands/exchanges.py
    quorum/cli/commands/health.py
    quorum/cli/commands/members.py
    quorum/cli/commands/messages.py
    quorum/cli/commands/policies.py
    quorum/cli/commands/queues.py
    quorum/cli/commands/selector_eval.py
    quorum/cli/commands/serve.py
    quorum/cli/commands/subscriptions.py
    quorum/cli/commands/transactions.py
    quorum/cli/commands/users.py
    quorum/cli/console.py
    quorum/cli/json_lines.py
    quorum/cli/main.py
    quorum/cli/pipelines/archives.py
    quorum/cli/pipelines/dead_letters.py
    quorum/cli/pipelines/live_selectors.py
    quorum/cli/pipelines/pipeline.py
    quorum/cli/pipelines/spark_options.py
    quorum/cli/pipelines/spark_sessions.py
    quorum/client/admin/definitions.py
    quorum/client/admin/members.py
    quorum/client/admin/redrive.py
    quorum/client/admin/transactions.py
    quorum/client/admin/users.py
    quorum/client/answers.py
    quorum/client/bulk/calls.py
    quorum/client/bulk/client.py
    quorum/client/connection/tls.py
    quorum/client/messages/tracing.py
    quorum/counts.py
    quorum/definitions/definition_files.py
    quorum/definitions/rabbitmq_definitions.py
    quorum/demo/extract.py
    quorum/demo/flights.py
    quorum/demo/one_flight.py
    quorum/demo/plan.py
    quorum/demo/run.py
    quorum/errors.py
    quorum/histories/files.py
    quorum/local_cluster/certificate_files.py
    quorum/local_cluster/cluster.py
    quorum/local_cluster/cluster_file.py
    quorum/local_cluster/directory.py
    quorum/local_cluster/listeners.py
    quorum/local_cluster/member.py
    quorum/local_cluster/member_calls.py
    quorum/local_cluster/member_processes.py
    quorum/local_cluster/ports.py
    quorum/local_cluster/processes.py
    quorum/log/inspection.py
    quorum/log/segment_files/reserve.py
    quorum/node/driver.py
    quorum/node/errors.py
    quorum/node/identity/log_owner.py
    quorum/node/offline/backup.py
    quorum/node/offline/lost_log.py
    quorum/node/offline/new_cluster.py
    quorum/node/offline/offline_check.py
    quorum/pytest_plugin.py
    quorum/redrive.py
    quorum/replication/network/certificates.py
    quorum/replication/network/connection.py
    quorum/replication/network/dialing.py
    quorum/replication/network/openssl.py
    quorum/replication/network/refusals.py
    quorum/replication/network/tls.py
    quorum/replication/network/wire.py
    quorum/replication/storage.py
    quorum/spark/failures.py
    quorum/spark/java.py
    quorum/spark/lag.py
    quorum/spark/options.py
    quorum/spark/pipelines/archive.py
    quorum/spark/pipelines/archived_fields.py
    quorum/spark/pipelines/dead_letters.py
    quorum/spark/pipelines/history_input.py
    quorum/spark/pipelines/output_check.py
    quorum/spark/pipelines/selectivity.py
    quorum/spark/pipelines/verify.py
    quorum/spark/pipelines/verify_holders.py
    quorum/spark/pipelines/verify_order.py
    quorum/spark/reading/failing_stream.py
    quorum/spark/reading/open_views.py
    quorum/spark/reading/owned_offsets.py
    quorum/spark/reading/partitions.py
    quorum/spark/reading/pushdown.py
    quorum/spark/reading/start_time.py
    quorum/spark/reading/stream.py
    quorum/spark/reading/tail.py
    quorum/spark/rows.py
    quorum/spark/schema.py
    quorum/spark/selector_text.py
    quorum/spark/service.py
    quorum/spark/session.py
    quorum/spark/sink.py
    quorum/spark/source.py
    quorum/spark/translate.py
    quorum/spark/variant.py
    quorum/sync.py
    fifo/layouts.py
    fifo/persistence/invariants.py
    fifo/queries/transactions.py
    fifo/stretches.py
    selectors/quorum_selectors/evaluate.py
    selectors/quorum_selectors/unparse.py
"""


def test_the_modules_that_the_simulation_never_reaches_are_these() -> None:
    """A module that falls out of the simulation is noticed, and so is one that comes in. Of those listed,
    quorum/node/errors.py has only exceptions: few seeds raise one. quorum/replication/storage.py has only protocols.
    fifo/stretches.py is for batches with more than 64 times; the model test of fifo reaches it."""
    assert run_module("simulator.reached", "5", "33", "57", "79").split() == UNREACHED.split()
