"""The same jobs on a cluster of Spark's: a master and two workers as processes of their own.

The machine's workers have the shared Python, but neither PYTHONPATH nor PYSPARK_PYTHON: sessions hand these on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import quorum
from quorum import sync
from quorum.bulk import BulkClient
from quorum.histories import Recorder, Run
from quorum.local_cluster.cluster import LocalCluster
from quorum.sync import Message
from support.repository import ROOT
from support.spark.cluster import LIMIT_S, POLL_S, Events, SparkCluster, settings

QUEUES = ("far-orders", "far-bills")
MESSAGES = 1_200
"""Of each queue."""
BATCH = 300
COLOURS = ("red", "green", "blue")
KILLED = "worker-1"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark"), dict(os.environ)) as started:
        yield started


def bodies(queue: str) -> list[bytes]:
    return [f"{queue} {number}".encode() for number in range(MESSAGES)]


@dataclass(frozen=True)
class Archived:
    directory: Path
    batches_at_kill: int
    tasks: list[str]
    """For each task, in which worker it ran."""
    tasks_at_kill: list[str]
    lost: list[str]
    """Workers whose executors were lost."""


@pytest.fixture(scope="module")
def archived(
    workers: SparkCluster,
    cluster: LocalCluster,
    client: sync.Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> Archived:
    """`quorum pipeline archive` on the cluster, of which a worker is killed meanwhile."""
    folder = tmp_path_factory.mktemp("archived")
    for queue in QUEUES:
        client.declare(queue)
        rows = [Message(body, None, {"color": COLOURS[n % 3]}) for n, body in enumerate(bodies(queue))]
        client.publish_batch(queue, rows)
    directory, events, output = folder / "archive", folder / "events", folder / "output"
    events.mkdir()
    command = [
        "archive",
        *QUEUES,
        "--to",
        str(directory),
        "--once",
        "--batch",
        str(BATCH),
        "--url",
        cluster.url,
    ]
    command += ["--fields", "color STRING", "--master", workers.master]
    for name, value in settings(events).items():
        command += ["--conf", f"{name}={value}"]
    with output.open("wb") as file:
        driver = subprocess.Popen(
            [sys.executable, "-P", "-m", "quorum", "pipeline", *command], stdout=file, stderr=file
        )
    try:
        end = time.monotonic() + LIMIT_S
        while True:
            assert driver.poll() is None and time.monotonic() < end, output.read_text() + workers.said()
            batches = len({each.name for each in directory.glob("queue=*/date=*/batch=*")})
            before = [workers.worker_of(each) for each in Events.read(events).tasks]
            if batches >= 3 and set(before) == set(workers.workers):
                break
            time.sleep(POLL_S)
        workers.kill(KILLED)
        driver.wait(LIMIT_S)
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 0, output.read_text() + workers.said()
    seen = Events.read(events)
    located = [workers.worker_of(each) for each in seen.tasks]
    lost = [workers.worker_of(each) for each in seen.removed]
    workers.start(KILLED)
    return Archived(directory, batches, located, before, lost)


def test_an_archive_loses_and_doubles_nothing_when_a_worker_dies_in_the_middle(
    archived: Archived, bulk: BulkClient
) -> None:
    batches = {each.name for each in archived.directory.glob("queue=*/date=*/batch=*")}
    assert archived.batches_at_kill < len(batches) == 2 * MESSAGES / BATCH
    assert archived.lost[:1] == [KILLED]
    assert set(archived.tasks_at_kill) == {"worker-0", KILLED}
    assert len(archived.tasks) > len(archived.tasks_at_kill)
    for queue in QUEUES:
        files = sorted((archived.directory / f"queue={queue}").glob("date=*/batch=*/*.parquet"))
        found = Counter(body for file in files for body in _column(file, "body"))
        assert found == Counter(bodies(queue))
        info = bulk.queue_info(queue)
        assert (info.ready, info.checked_out) == (0, 0)


def _column(file: Path, name: str) -> list[Any]:
    return pq.ParquetFile(file).read(columns=[name]).column(name).to_pylist()


def test_jobs_run_in_the_workers_executors(
    workers: SparkCluster, archived: Archived, cluster: LocalCluster, client: sync.Client, tmp_path: Path
) -> None:
    history, scratch, result = tmp_path / "history.jsonl", tmp_path / "scratch", tmp_path / "result"
    scratch.mkdir()
    with Recorder(history) as recorder:
        recorder.publish("orders", "shop", 0, count=10, invoked_us=1, returned_us=2, outcome="confirmed")
        messages = [Run(5, "shop", 0, count=9)]
        recorder.deliver("orders", "billing/1", messages, at_us=3)
        recorder.settle("orders", "billing/1", messages, invoked_us=4, returned_us=5, outcome="ok")
        recorder.left("orders")
    client.declare("far-rows")
    arguments = {
        "master": workers.master,
        "url": cluster.url,
        "queue": "far-rows",
        "rows": 2_000,
        "archive": str(archived.directory),
        "history": str(history),
        "scratch": str(scratch),
        **settings(),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "support.spark.remote", json.dumps(arguments), str(result)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + workers.said()
    told = json.loads(result.read_text())

    numbers, written_in, written_by, read_in, read_by, code, roots = zip(*told["rows"], strict=True)
    assert sorted(numbers) == list(range(2_000))
    for directories, pids in ((written_in, written_by), (read_in, read_by)):
        assert {Path(each).relative_to(workers.folder).parts[0] for each in directories} == set(
            workers.workers
        )
        assert told["driver"] not in pids and len(set(pids)) >= 2
    assert (set(code), set(roots)) == ({quorum.__file__}, {str(ROOT)})
    assert sorted(int(each.body) for each in client.browse("far-rows")) == list(range(2_000))

    assert (told["messages"], told["matched"]) == (2 * MESSAGES, 2 * MESSAGES / len(COLOURS))
    assert (told["operations"], told["lost"]) == (28, 1)
    assert list(scratch.iterdir()) == []
