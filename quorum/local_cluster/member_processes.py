"""The processes of a local cluster's members: starting, stopping and signalling them, their output, their figures."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from quorum.errors import ClusterError
from quorum.local_cluster.directory import ClusterDirectory
from quorum.local_cluster.member import LocalMember
from quorum.local_cluster.processes import LineSink, MemberProcess, but_paused, stop

STOP_GRACE_S = 10.0

Launch = Callable[[LocalMember, LineSink | None], MemberProcess]
"""Starts the process of a member."""


def launch_member(member: LocalMember, sink: LineSink | None) -> MemberProcess:
    return MemberProcess(member.name, member.config, member.output, sink)


class MemberProcesses:
    """sink: also gets each line of each member's output."""

    def __init__(
        self, files: ClusterDirectory, sink: LineSink | None = None, launch: Launch = launch_member
    ) -> None:
        self._files = files
        self._sink = sink
        self._launch = launch
        self._started: dict[str, MemberProcess] = {}
        """those that this object has started, by name"""

    def start(self, names: Sequence[str] | None = None) -> None:
        """Start these members (default: all that are down) without waiting until they serve. ClusterError if one of
        them runs already; then none is started."""
        wanted = dict.fromkeys(self._files.names if names is None else names)
        running = [name for name in wanted if self._files.is_in_use(name)]
        if running and names is not None:
            found = self._files.process(running[0])
            raise ClusterError(f"member {running[0]} is running already{but_paused(found)}")
        for name in wanted:
            if name not in running:
                member = self._files.member(name)
                process = self._launch(member, self._sink)
                process.id.write(member.pid_file)
                self._started[name] = process

    def stop(self, names: Sequence[str] | None = None, grace_s: float = STOP_GRACE_S) -> list[str]:
        """Stop these members (default: all), first by SIGTERM. Returns those that had to be killed."""
        chosen = self._files.names if names is None else tuple(names)
        ids = {found: name for name in chosen if (found := self._files.process(name)) is not None}
        killed = [ids[each] for each in stop(list(ids), grace_s)]
        for name in chosen:
            self._forget(name, STOP_GRACE_S)
        return killed

    def kill(self, name: str) -> None:
        """Send SIGKILL: the member informs no peer and flushes nothing."""
        self.send(name, signal.SIGKILL)
        self._forget(name, STOP_GRACE_S)

    def pause(self, name: str) -> None:
        """Send SIGSTOP: the process keeps its connections and reads nothing."""
        self.send(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.send(name, signal.SIGCONT)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal. ClusterError if the member is not running."""
        found = self._files.process(name)
        if found is None or not found.signal(number):
            raise ClusterError(f"member {name} is not running")

    def await_end(self, name: str, limit_s: float) -> int:
        """The exit status of a member that this object has started and that ends by itself; it may be started again
        afterwards. ClusterError if it still runs after limit_s."""
        process = self._started[name]
        self._forget(name, limit_s)
        status = process.poll()
        assert status is not None
        return status

    def _forget(self, name: str, limit_s: float) -> None:
        """Wait for the end of a process, and remove its pid file."""
        process = self._started.get(name)
        if process is not None and process.wait(limit_s) is None:
            raise ClusterError(f"member {name} does not end:\n{self.last_output(name)}")
        self._started.pop(name, None)
        self._files.member(name).pid_file.unlink(missing_ok=True)

    def ended(self) -> dict[str, int]:
        """Exit status of the members that this object started and that have ended by themselves."""
        return {name: status for name, each in self._started.items() if (status := each.poll()) is not None}

    def last_output(self, name: str, lines: int = 15) -> str:
        """The last lines of the member's output; only those since its start, if this object has started it."""
        process = self._started.get(name)
        try:
            with self._files.member(name).output.open("rb") as file:
                file.seek(0 if process is None else process.output_start)
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return "(no output)"
        return "\n".join(text.splitlines()[-lines:]) or "(no output)"

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the running members, in order of name."""
        return tuple(each.pid for each in self._files.running().values())

    def cpu_seconds(self) -> float:
        """User and system time of all running members, in seconds."""
        return sum(each.cpu_seconds() for each in self._files.running().values())

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of the running members, by name."""
        return {name: each.resident_bytes() for name, each in self._files.running().items()}
