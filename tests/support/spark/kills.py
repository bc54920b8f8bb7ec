"""Data flows whose driver is killed, with members that die beside them: what must hold then, in full numbers.

Every scenario takes a running cluster and says in a sentence what it saw; it raises AssertionError where something is
lost, double or left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorum import sync
from quorum.bulk import BulkClient
from quorum.client import Message
from quorum.demo.flights import Flight, everything
from quorum.local_cluster.cluster import LocalCluster
from support.repository import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHT_FIELDS = {
    "carrier": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "month": "BIGINT",
    "distance": "BIGINT",
    "cancelled": "BOOLEAN",
    "dep_time": "BIGINT",
    "dep_delay": "BIGINT",
}
DRIVER_LIMIT_S = 600.0
"""One life of a driver, on a machine with other work."""
SPARK_GAVE_UP = "Python worker failed to connect back"
"""Spark gives a stream's own worker ten seconds to start, which no setting changes: on a very busy machine it ends the
query itself."""
BATCH = 500


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "selectors"), str(ROOT / "spark"), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}


class Driver:
    """A driver's process and everything it starts. Where Spark gave up on its own worker the driver is started again:
    it died without this test's help, and has to go on all the same."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._command = command
        self._output = output
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._begin = self._output.stat().st_size if self._output.exists() else 0
        with self._output.open("ab") as file:
            return subprocess.Popen(
                self._command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def wait(self, done: Callable[[], bool] = lambda: False) -> None:
        """Until it ends, or `done`. AssertionError if it takes too long, or failed."""
        end = time.monotonic() + DRIVER_LIMIT_S
        while not done():
            if self.is_over:
                if not self._process.returncode or SPARK_GAVE_UP not in self._said():
                    break
                self._process = self._start()
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"the driver is not done within {DRIVER_LIMIT_S} s:\n{self._said()}")
            time.sleep(0.02)
        if self._process.returncode:
            raise AssertionError(f"the driver ended with {self._process.returncode}:\n{self._said()}")

    def _said(self) -> str:
        """The end of what this life of the driver has written."""
        return self._output.read_bytes()[self._begin :].decode(errors="replace")[-4_000:]


def killed_again_and_again(
    command: Sequence[str],
    output: Path,
    planned: Callable[[], int],
    kills: int,
    chance: random.Random,
    longest_s: float,
) -> int:
    """Runs a driver to its end, killing it so often, each time some moment after it planned a batch more; how often
    it was killed (it may be done earlier)."""
    done = 0
    while done < kills:
        driver = Driver(command, output)
        driver.wait(more_than(planned(), planned))
        time.sleep(chance.uniform(0, longest_s))
        if driver.is_over:
            driver.wait()
            return done
        driver.kill()
        done += 1
    Driver(command, output).wait()
    return done


def more_than(before: int, planned: Callable[[], int]) -> Callable[[], bool]:
    return lambda: planned() > before


class MemberKills:
    """While it is entered one member after the other is killed and started again."""

    def __init__(self, cluster: LocalCluster, every_s: float, chance: random.Random) -> None:
        self._cluster = cluster
        self._every_s = every_s
        self._chance = chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None
        self.count = 0

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                name = self._chance.choice(self._cluster.names)
                self._cluster.kill(name)
                self.count += 1
                self._stop.wait(self._chance.uniform(0, 3))
                self._cluster.restart(name)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> MemberKills:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error
        self._cluster.wait_ready()


def offsets_in(checkpoint: Path) -> Callable[[], int]:
    """How many batches a query with this checkpoint has planned: the number of the last one, and one."""
    folder = checkpoint / "offsets"

    def planned() -> int:
        numbers = (
            [int(each.name) for each in folder.glob("*") if each.name.isdigit()] if folder.is_dir() else []
        )
        return max(numbers) + 1 if numbers else 0

    return planned


def after(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def publish(cluster: LocalCluster, queue: str, bodies: Iterable[bytes]) -> int:
    """Publishes in batches; how many messages."""
    count = 0
    rows = list(bodies)
    with sync.connect(cluster.url) as client:
        client.declare(queue)
        for start in range(0, len(rows), BATCH):
            client.publish_batch(queue, rows[start : start + BATCH])
            count += len(rows[start : start + BATCH])
    return count


def everything_in(cluster: LocalCluster, queue: str) -> Counter[bytes]:
    """The bodies in a queue."""
    with sync.connect(cluster.url) as client:
        return Counter(message.body for message in client.browse(queue))


def is_empty(cluster: LocalCluster, queue: str) -> bool:
    with sync.connect(cluster.url) as client:
        return client.describe(queue).queue.total == 0


def driver(name: str, **arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "support.spark.drivers", name, json.dumps(arguments)]


# ---- scenarios


def queue_to_queue(
    cluster: LocalCluster,
    folder: Path,
    *,
    messages: int,
    per_trigger: int,
    kills: int,
    longest_s: float,
    seed: int,
) -> str:
    """From a queue through a shuffle into another one, whose every message must be there once. longest_s: from a batch
    that is planned to the kill; what is left must take longer."""
    chance = random.Random(seed)
    bodies = [b"%d" % number for number in range(messages)]
    source, target = f"from-{seed}", f"to-{seed}"
    publish(cluster, source, bodies)
    publish(cluster, target, [])
    checkpoint = folder / "shuffled"
    command = driver(
        "shuffled",
        url=cluster.url,
        source=source,
        target=target,
        checkpoint=str(checkpoint),
        per_trigger=per_trigger,
    )
    done = killed_again_and_again(
        command, folder / "shuffled.log", offsets_in(checkpoint), kills, chance, longest_s
    )
    assert done == kills, f"the flow was over after {done} kills; wanted: {kills}"
    found = everything_in(cluster, target)
    _equal(found, Counter(bodies))
    assert is_empty(cluster, source)
    return f"{messages:,} messages through a shuffle, driver killed {done} times, none lost, none twice"


def batch_write(cluster: LocalCluster, folder: Path, *, rows: int, kills: int, seed: int) -> str:
    """A frame written as one batch, its tasks failing, its driver killed, and written again."""
    chance = random.Random(seed)
    queue = f"rows-{seed}"
    publish(cluster, queue, [])
    command = driver(
        "written", url=cluster.url, queue=queue, rows=rows, partitions=8, application=queue, version=7
    )
    for _ in range(kills):
        life = Driver(command, folder / "written.log")
        life.wait(after(chance.uniform(12, 20)))
        if not life.is_over:
            life.kill()
    for _ in range(2):  # the second one is a repeat, and changes nothing
        Driver(command, folder / "written.log").wait()
    found = everything_in(cluster, queue)
    _equal(found, Counter(b"%d" % number for number in range(rows)))
    return f"{rows:,} rows written, driver killed {kills} times, tasks failed, written again: none lost, none twice"


def _equal(found: Counter[bytes], wanted: Counter[bytes]) -> None:
    lost, more = wanted - found, found - wanted
    assert not lost, f"{lost.total():,} messages are lost: {list(lost)[:10]}"
    assert not more, f"{more.total():,} messages are there too often: {list(more)[:10]}"


def archive_flights(
    cluster: LocalCluster,
    folder: Path,
    flights: Sequence[Flight],
    spark: SparkSession,
    *,
    batch: int,
    kills: int,
    seed: int,
) -> str:
    """Flights from a queue into Parquet, by the command, while members are killed, too. Spark compares what is there
    with the data; the queue is empty; no subscription is left."""
    from quorum.spark.pipelines.archive import CHECKPOINT, read_archive

    chance = random.Random(seed)
    queue, directory = f"flights-{seed}", folder / "archive"
    with sync.connect(cluster.url) as client:
        client.declare(queue)
        for start in range(0, len(flights), BATCH):
            part = flights[start : start + BATCH]
            client.publish_batch(
                queue, [Message(each.body, None, each.application_properties) for each in part]
            )
    command = [sys.executable, "-P", "-m", "quorum", "pipeline", "archive", queue, "--to", str(directory)]
    command += ["--once", "--batch", str(batch), "--url", cluster.url]
    command += ["--fields", ", ".join(f"{name} {kind}" for name, kind in FLIGHT_FIELDS.items())]
    checkpoint = directory / CHECKPOINT / "0"
    with MemberKills(cluster, every_s=8.0, chance=random.Random(seed + 1)) as members:
        done = killed_again_and_again(
            command, folder / "archive.log", offsets_in(checkpoint), kills, chance, longest_s=3.0
        )
    assert done == kills, f"the archive was complete after {done} kills; wanted: {kills}"
    assert members.count, "no member was killed"
    columns = [f"fields.{name} AS {name}" for name in FLIGHT_FIELDS]
    archived = read_archive(spark, directory).selectExpr("body", *columns)
    schema = "body BINARY, " + ", ".join(f"{name} {kind}" for name, kind in FLIGHT_FIELDS.items())
    rows = [
        (bytearray(each.body), *(each.application_properties.get(name) for name in FLIGHT_FIELDS))
        for each in flights
    ]
    data = spark.createDataFrame(rows, schema)
    lost, more = data.exceptAll(archived).count(), archived.exceptAll(data).count()
    assert (lost, more) == (0, 0), f"{lost:,} flights are lost, {more:,} are there too often or were changed"
    assert is_empty(cluster, queue)
    with BulkClient(cluster.url) as bulk:
        assert bulk.subscriptions(queue) == []
    return (
        f"{len(flights):,} flights archived, driver killed {done} times, members {members.count} times; "
        "equal to the data, row by row"
    )


# ---- in full


async def all_flights(cluster: LocalCluster, kills: int) -> str:
    """Every flight there is into an archive."""
    return await _with_folder(_all_flights, cluster, kills)


def _all_flights(cluster: LocalCluster, folder: Path, kills: int) -> str:
    from quorum.spark import session

    spark = session("compare", "local[2]")
    try:
        return archive_flights(cluster, folder, everything(), spark, batch=10_000, kills=kills, seed=1)
    finally:
        spark.stop()


async def many_kills(cluster: LocalCluster, kills: int) -> str:
    """A flow between two queues whose driver is killed so often."""

    def run(cluster: LocalCluster, folder: Path, kills: int) -> str:
        return queue_to_queue(
            cluster,
            folder,
            messages=4_000 * kills,
            per_trigger=1_000,
            kills=kills,
            longest_s=2.0,
            seed=2,
        )

    return await _with_folder(run, cluster, kills)


async def many_rows(cluster: LocalCluster, rows: int) -> str:
    """One large batch."""

    def run(cluster: LocalCluster, folder: Path, rows: int) -> str:
        return batch_write(cluster, folder, rows=rows, kills=1, seed=3)

    return await _with_folder(run, cluster, rows)


async def _with_folder(
    work: Callable[[LocalCluster, Path, int], str], cluster: LocalCluster, number: int
) -> str:
    with tempfile.TemporaryDirectory(prefix="quorum-flows-") as folder:
        return await asyncio.to_thread(work, cluster, Path(folder), number)
