"""`quorum pipeline verify` judges a small history where there is no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from quorum.histories import Recorder, Run
from support.repository import environment

SCRIPT = "import sys; sys.modules['pyspark'] = None; from quorum.cli.main import main; main()"


def verify(*arguments: str | Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "pipeline", "verify", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def recorded(path: Path, *, settled: int) -> Path:
    """Ten messages are confirmed and delivered, and some of them settled."""
    with Recorder(path) as recorder:
        recorder.publish("orders", "shop", 0, count=10, invoked_us=1, returned_us=2, outcome="confirmed")
        recorder.deliver("orders", "billing/1", [Run(5, "shop", 0, count=10)], at_us=3)
        done = [Run(5, "shop", 0, count=settled)]
        recorder.settle("orders", "billing/1", done, invoked_us=4, returned_us=5, outcome="ok")
        recorder.left("orders")
    return path


def test_violations_are_told_and_are_status_1(tmp_path: Path) -> None:
    status, out, err = verify(recorded(tmp_path / "history.jsonl", settled=9), "--json")
    told = json.loads(out)
    assert (status, told["clean"], told["operations"]) == (1, False, 29)
    assert told["culprits"]["lost"] == [
        {
            "queue": "orders",
            "producer": "shop",
            "number": 9,
            "why": "confirmed, found at sequence 14 of 'orders', never settled, not left in the queue",
        }
    ]
    assert "29 operations in 4 records" in err


def test_a_clean_history_is_status_0(tmp_path: Path) -> None:
    status, out, _ = verify(recorded(tmp_path / "history.jsonl", settled=10))
    assert status == 0
    assert "no violation: 30 operations, 10 messages confirmed, 10 settled, 0 left" in out


def test_names_are_shown_as_they_are_and_no_terminal_obeys_them(tmp_path: Path) -> None:
    queue, shop = "orders[/]", "[red]shop\x1b[2J"
    with Recorder(tmp_path / "history.jsonl") as recorder:
        recorder.publish(queue, shop, 0, count=1, invoked_us=1, returned_us=2, outcome="confirmed")
        recorder.left(queue)
    status, out, err = verify(tmp_path / "history.jsonl")
    assert status == 1, err
    row, *_ = (line for line in out.splitlines() if "lost: 1" in line)
    assert "orders[/]" in row and r"[red]shop\x1b[2J" in row
    assert r"  queue 'orders[/]', [red]shop\x1b[2J:0: confirmed, never delivered" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_without_spark_a_cluster_cannot_be_asked(tmp_path: Path) -> None:
    status, _, err = verify(
        recorded(tmp_path / "history.jsonl", settled=10), "--conf", "spark.ui.enabled=false"
    )
    assert status == 2
    assert "pip install" in err
    assert "Traceback" not in err
