"""Member processes of this machine: starting, signalling and finding them, and their figures in /proc.

A process is identified by its pid and start time, so that a stale pid file never causes a signal to another process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quorum.errors import ClusterError, naming

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
POLL_S = 0.02
OUTPUT_LIMIT_S = 5.0
"""Time to write the rest of a process's output after its end: a sink may not take it."""

LineSink = Callable[[str, str], None]
"""Called with (member's name, a line of its output), on that member's thread."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """started: clock ticks after boot, from /proc/PID/stat; the pair is unique while the machine runs."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a running process; None if there is no such process. A zombie does not count."""
        fields = _stat(pid)
        return None if fields is None or fields[0] == "Z" else cls(pid, int(fields[19]))

    def is_alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def is_paused(self) -> bool:
        """Whether a signal (SIGSTOP) has stopped the process until it gets SIGCONT."""
        fields = _stat(self.pid)
        return fields is not None and fields[0] == "T" and int(fields[19]) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal. False if the process has ended."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def cpu_seconds(self) -> float:
        """User and system time so far, in seconds; 0.0 if the process has ended."""
        fields = _stat(self.pid)
        return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def resident_bytes(self) -> int:
        """Resident memory; 0 if the process has ended."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            return 0

    def write(self, file: Path) -> None:
        with naming(file):
            file.write_text(f"{self.pid} {self.started}\n", encoding="ascii")

    @classmethod
    def read(cls, file: Path) -> ProcessId | None:
        """The process of a pid file; None if the file does not exist or is not valid."""
        try:
            pid, started = file.read_text(encoding="ascii").split()
            return cls(int(pid), int(started))
        except (OSError, ValueError):
            return None


def but_paused(process: ProcessId | None) -> str:
    """The end of a sentence about a member that runs: what to do if its process is paused. Empty if it is not."""
    if process is None or not process.is_paused():
        return ""
    return f", but its process is paused (SIGSTOP); `kill -CONT {process.pid}` continues it"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state (field 3) on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


class MemberProcess:
    """A `python -m quorum node` child process. Its output goes to a file, and to a sink if one is given.

    program: arguments for another program, started with the same `--config FILE`. variables: added to the environment.
    """

    def __init__(
        self,
        name: str,
        config: Path,
        output: Path,
        sink: LineSink | None,
        program: Sequence[str] = ("-m", "quorum", "node"),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        command = [sys.executable, *program, "--config", str(config)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("QUORUM_")}
        environment["PYTHONUNBUFFERED"] = "1"
        environment.update(variables or {})
        self.output_start = output.stat().st_size if output.exists() else 0
        """the place in the file where the output of this process begins, in bytes"""
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file if sink is None else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops members in order
            )
        fields = _stat(self._process.pid)  # also of a child that has ended by now, until `poll`
        if fields is None:
            raise ClusterError(f"member {name} ended at once; its output is in {output}")
        self.id = ProcessId(self._process.pid, int(fields[19]))
        self._pump: threading.Thread | None = None
        if sink is not None:
            assert self._process.stdout is not None
            arguments = (self._process.stdout, output, name, sink)
            self._pump = threading.Thread(target=_pump, args=arguments, name=f"output of {name}", daemon=True)
            self._pump.start()

    def poll(self) -> int | None:
        """The exit status, None while it runs. After its end, its output is in the file."""
        status = self._process.poll()
        if status is not None and self._pump is not None:
            self._pump.join(OUTPUT_LIMIT_S)
        return status

    def wait(self, timeout_s: float) -> int | None:
        """The exit status, None if it still runs after timeout_s."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        if self._pump is not None:
            self._pump.join(timeout_s)
        return status


def _pump(source: IO[bytes], output: Path, name: str, sink: LineSink) -> None:
    with source, output.open("ab") as file:
        for line in source:
            file.write(line)
            file.flush()
            sink(name, line.decode("utf-8", "replace").rstrip("\n"))


def stop(ids: list[ProcessId], grace_s: float) -> list[ProcessId]:
    """Send SIGTERM to all, and SIGKILL to those that still run after grace_s. Returns those that had to be killed."""
    for each in ids:
        each.signal(signal.SIGCONT)  # a paused process cannot stop by itself
        each.signal(signal.SIGTERM)
    if _gone(ids, grace_s):
        return []
    killed = [each for each in ids if each.signal(signal.SIGKILL)]
    if not _gone(ids, grace_s):
        raise ClusterError(f"process {killed[0].pid} does not end, not even by SIGKILL")
    return killed


def _gone(ids: list[ProcessId], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while any(each.is_alive() for each in ids):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
