"""Starting, stopping and signalling the members of a local cluster, and the figures of their processes."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from quorum.errors import ClusterError
from quorum.local_cluster.cluster_file import read_cluster_file, require_cluster
from quorum.local_cluster.directory import ClusterDirectory
from quorum.local_cluster.member import LocalMember
from quorum.local_cluster.processes import LineSink, MemberProcess, but_paused, stop

STOP_GRACE_S = 10.0


class RunningCluster(ClusterDirectory):
    """A local cluster whose members can be started and stopped. The arguments are those of LocalCluster."""

    def __init__(
        self,
        directory: Path,
        members: int = 3,
        *,
        settings: Mapping[str, str | int] | None = None,
        client_ports: Sequence[int] | None = None,
        http_ports: Sequence[int] | None = None,
        sink: LineSink | None = None,
        secured: bool = False,
    ) -> None:
        self._sink = sink
        self._processes: dict[str, MemberProcess] = {}
        super().__init__(
            directory,
            members,
            settings=settings,
            client_ports=client_ports,
            http_ports=http_ports,
            secured=secured,
        )

    @classmethod
    def open(cls, directory: Path, *, sink: LineSink | None = None) -> Self:
        """The cluster that the directory holds. ClusterError if it holds none."""
        return cls(directory, len(read_cluster_file(require_cluster(directory)).members), sink=sink)

    def start(self, names: Sequence[str] | None = None) -> None:
        """Start these members (default: all that are down) without waiting until they serve."""
        for name in self._members if names is None else names:
            member = self.member(name)
            found = self.process(name)
            if found is not None or self._is_locked(name):
                if names is not None:
                    raise ClusterError(f"member {name} is running already{but_paused(found)}")
                continue
            process = self._launch(member)
            process.id.write(member.pid_file)
            self._processes[name] = process

    def _launch(self, member: LocalMember) -> MemberProcess:
        return MemberProcess(member.name, member.config, member.output, self._sink)

    def stop(self, names: Sequence[str] | None = None, grace_s: float = STOP_GRACE_S) -> list[str]:
        """Stop these members (default: all), first by SIGTERM. Returns those that had to be killed."""
        chosen = tuple(self._members) if names is None else tuple(names)
        ids = {found: name for name in chosen if (found := self.process(name)) is not None}
        killed = [ids[each] for each in stop(list(ids), grace_s)]
        for name in chosen:
            self._forget(name)
        return killed

    def kill(self, name: str) -> None:
        """Send SIGKILL: the member informs no peer and flushes nothing."""
        self._signal(name, signal.SIGKILL)
        self._forget(name)

    def pause(self, name: str) -> None:
        """Send SIGSTOP: the process keeps its connections and reads nothing."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        found = self.process(name)
        if found is None or not found.signal(number):
            raise ClusterError(f"member {name} is not running")

    def _forget(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None and process.wait(STOP_GRACE_S) is None:
            raise ClusterError(f"member {name} does not end")
        self.member(name).pid_file.unlink(missing_ok=True)

    def ended(self) -> dict[str, int]:
        """Exit status of the members that this object started and that have ended by themselves."""
        return {name: status for name, each in self._processes.items() if (status := each.poll()) is not None}

    def last_output(self, name: str, lines: int = 15) -> str:
        """The last lines of the member's output; only those since its start, if this object has started it."""
        process = self._processes.get(name)
        try:
            with self.member(name).output.open("rb") as file:
                file.seek(0 if process is None else process.output_start)
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return "(no output)"
        return "\n".join(text.splitlines()[-lines:]) or "(no output)"

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the running members, in order of name."""
        return tuple(each.pid for each in self.running().values())

    def cpu_seconds(self) -> float:
        """User and system time of all running members, in seconds."""
        return sum(each.cpu_seconds() for each in self.running().values())

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of the running members, by name."""
        return {name: each.resident_bytes() for name, each in self.running().items()}
