"""`quorum bench sizing`: its figures, and a small run on real members."""

from __future__ import annotations

import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

from quorum.bench import sizing
from quorum.bench.plan import Plan
from quorum.bench.run import BenchFailed
from quorum.bench.sizing import ROWS, Reading, Sizes, counted_bytes
from quorum.local_cluster.cluster import LocalCluster

SHOWN = """\
ESTAB 0 0 127.0.0.1:7401 127.0.0.1:50000 cubic bytes_sent:700 bytes_acked:701 bytes_received:30 segs_out:9
ESTAB 0 0 127.0.0.1:50000 127.0.0.1:7401 cubic bytes_sent:30 bytes_acked:31 bytes_received:700 segs_out:9
ESTAB 0 0 [::ffff:127.0.0.1]:7411 [::ffff:127.0.0.1]:50001 cubic bytes_received:5
ESTAB 0 0 127.0.0.1:7400 127.0.0.1:50002 cubic bytes_sent:9999 bytes_received:9999
"""


def test_a_connection_between_members_counts_once_and_clients_do_not() -> None:
    assert counted_bytes(SHOWN, {"7401", "7411"}) == 735
    assert counted_bytes("", {"7401"}) == 0


def test_replicated_things_count_where_they_cost_most_and_sessions_in_all() -> None:
    before = Reading((100.0, 100.0, 100.0), (10, 10, 10), (0.0, 0.0, 0.0))
    after = Reading((110.0, 130.0, 120.0), (10, 10, 10), (0.0, 0.0, 0.0))
    assert sizing._largest_growth(before, after, 1_000) == 30_000
    assert sizing._sum_of_growth(before, after, 1_000) == 60_000


def test_a_machine_that_does_not_show_connections_is_told(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", 1)
    with (
        patch.object(subprocess, "run", side_effect=FileNotFoundError("ss")),
        pytest.raises(BenchFailed, match="ss \\(of iproute2\\) does not show connections"),
    ):
        sizing.peer_bytes(cluster)


def test_a_small_run_has_every_figure() -> None:
    sizes = Sizes(
        queues=20, sessions=4, consumers=8, of_a_session=4, messages=1_000, settle_s=0.1, idle_s=0.2
    )
    plan = Plan(mode="sizing", members=2, body_bytes=100, batch=100)
    made = sizing.run(plan, lambda _: None, sizes)
    assert set(made.figures) == {name for name, _ in ROWS}
    assert made.to_dict()["queues"] == 20
    # each body reaches the other member; resident memory of a few things is noise
    assert 100 < made.figures["peer_bytes_per_message"] < 400
    assert made.figures["peer_bytes_per_single_message"] > 100
    assert made.figures["session_descriptors"] >= 1
    assert made.figures["member_descriptors"] > 10
    sizing.table(made)
