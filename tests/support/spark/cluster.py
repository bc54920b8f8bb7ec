"""A standalone cluster of Spark's on this machine, out of the wheel: a master and workers, each a process of its own.

Workers start executors, which are processes, too; all are of the session (in POSIX's sense) of what started them, and
are gone when the `with` block is left.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from quorum.local_cluster.ports import free_ports
from quorum.spark.java import java_home
from quorum.spark.session import LOGGING
from support.spark.environment import FAST_START, SMALL_DATA

HOST = "127.0.0.1"
LIMIT_S = 400.0
"""For a step, such as a driver's whole life, on a machine with other work."""
POLL_S = 0.05
NOTHING_FROM_HERE = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Operators start masters and workers elsewhere: what executors need of these, the driver has to hand on."""


class SparkCluster:
    """A master and `workers` workers of one core each: worker-0, worker-1, ... under `folder`."""

    def __init__(self, folder: Path, environment: dict[str, str], workers: int = 2) -> None:
        self.folder = folder
        self.workers = [f"worker-{number}" for number in range(workers)]
        self._environment = _environment(environment)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: list[int] = []
        (self._port,) = free_ports(1)

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start("master", "master.Master", "--port", str(self._port))
            self._wait("the master listens", self._listens)
            for name in self.workers:
                self.start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """Starts a worker. Does not wait until the master knows it."""
        arguments = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name), self.master]
        self._start(name, "worker.Worker", *arguments)

    def kill(self, name: str) -> None:
        """SIGKILL to a worker and all it has started, as if its machine were gone."""
        process = self._processes.pop(name)
        _kill_session(process.pid)
        process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for session in self._sessions:
            _kill_session(session)
        self._wait("everything that was started is gone", lambda: not any(map(in_session, self._sessions)))

    def worker_of(self, executor: str) -> str:
        """Which worker has started an application's executor; there must have been one application until now."""
        (found,) = (name for name in self.workers if list((self.folder / name).glob(f"app-*/{executor}")))
        return found

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        home = Path(self._environment["SPARK_HOME"])
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", HOST]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[name] = process
        self._sessions.append(process.pid)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not is_so():
            ended = {name: each.poll() for name, each in self._processes.items() if each.poll() is not None}
            if ended or time.monotonic() > end:
                raise AssertionError(f"not so: {what}; ended: {ended}; {self.said()}")
            time.sleep(POLL_S)

    def said(self) -> str:
        """The ends of everything that master, workers and executors have written."""
        files = [*sorted(self.folder.glob("*.log")), *sorted(self.folder.glob("worker-*/*/*/stderr"))]
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-2_000:]}" for file in files)


def _environment(given: dict[str, str]) -> dict[str, str]:
    """An operator's, who has no Java but the one from PyPI, and whose machines have this process's Python."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    kept = {name: value for name, value in given.items() if name not in NOTHING_FROM_HERE}
    assert "JAVA_HOME" not in kept and shutil.which("java", path=kept["PATH"]) is None
    return kept | {
        "JAVA_HOME": str(java_home(kept)),
        "SPARK_HOME": str(Path(spec.origin).parent),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {FAST_START}",
    }


def in_session(session: int) -> list[int]:
    """The processes of a POSIX session; those that have ended and are not yet waited for do not count."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue  # it has just ended
        # "pid (name) state ppid pgrp session ..."; a name may have anything in it
        fields = text.rpartition(")")[2].split()
        if fields[0] != "Z" and int(fields[3]) == session:
            found.append(int(file.parent.name))
    return found


def _kill_session(session: int) -> None:
    # again and again: one may have just started another
    while pids := in_session(session):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has just ended


@dataclass(frozen=True, slots=True)
class Events:
    """What Spark's event log says of a driver's life, as far as it is written."""

    tasks: list[str]
    """For each task that has ended well, in order, the id of its executor."""
    removed: list[str]
    """The executors that were lost."""

    @classmethod
    def read(cls, folder: Path) -> Events:
        """Of the only driver that has this folder; of none yet, nothing."""
        found = cls([], [])
        for file in folder.iterdir():
            for line in file.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    break  # it is being written
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd" and not event["Task Info"]["Failed"]:
                    found.tasks.append(event["Task Info"]["Executor ID"])
                elif event["Event"] == "SparkListenerExecutorRemoved":
                    found.removed.append(event["Executor ID"])
        return found


def settings(events: Path | None = None) -> dict[str, str]:
    """What a driver on this machine gives to Spark to use such a cluster. events: a directory for event logs."""
    found = {
        **SMALL_DATA,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.extraJavaOptions": FAST_START,
        "spark.executor.extraJavaOptions": FAST_START,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        # tasks wait until both workers have their executors
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{LIMIT_S:.0f}s",
        "spark.cores.max": "2",
    }
    if events is not None:
        found |= {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
    return found
