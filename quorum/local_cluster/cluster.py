"""A cluster of member processes on this machine: for development, the demo, the bench, and tests with real processes.

No command goes through a shell. Members run in their own process sessions. The program that starts them stops them: by
`stop`, by leaving the `with` block, or from another process by `LocalCluster.open(directory).stop()`.

A cluster has three parts: `files` (directory.py), `processes` (member_processes.py) and `calls` (member_calls.py).
LocalCluster itself has what takes several of them, and short ways to what tests and commands use most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from quorum.addresses import host_port
from quorum.errors import ClusterError
from quorum.local_cluster.cluster_file import read_cluster_file, require_cluster
from quorum.local_cluster.directory import ClusterDirectory, ClusterOptions
from quorum.local_cluster.listeners import listeners
from quorum.local_cluster.member import LocalMember
from quorum.local_cluster.member_calls import MemberCalls
from quorum.local_cluster.member_processes import STOP_GRACE_S, Launch, MemberProcesses, launch_member
from quorum.local_cluster.processes import LineSink, ProcessId

if TYPE_CHECKING:
    from quorum.v1.admin_pb2 import ClusterStatusResponse

START_LIMIT_S = 60.0
LONG_WAIT_S = 5.0
"""Seconds after which a wait for members is mentioned."""
POLL_S = 0.05
OUTSIDE_S = 2.0
"""Seconds for which a starting node may report that it is no member, until it has read its log."""


class LocalCluster:
    """`members` processes under `directory`: a new cluster, or the one that the directory holds already.

    sink: also gets each line of each member's output. launch: starts a member, if it is not to be `quorum node`.
    options: of `files`.
    """

    def __init__(
        self,
        directory: Path,
        members: int = 3,
        *,
        sink: LineSink | None = None,
        launch: Launch = launch_member,
        **options: Unpack[ClusterOptions],
    ) -> None:
        self.files = ClusterDirectory(directory, members, **options)
        self.processes = MemberProcesses(self.files, sink, launch)
        self.calls = MemberCalls(self.files)

    @classmethod
    def open(cls, directory: Path, *, sink: LineSink | None = None) -> Self:
        """The cluster that the directory holds. ClusterError if it holds none."""
        return cls(directory, len(read_cluster_file(require_cluster(directory)).members), sink=sink)

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def restart(self, name: str, limit_s: float = START_LIMIT_S) -> None:
        """Stop the member if it runs, start it, and wait until it serves."""
        self.stop([name])
        self.start([name])
        for standing in self.wait_ready([name], limit_s).values():
            raise ClusterError(f"{name} is no member of the cluster ({standing})")

    # ---- short ways to the parts

    @property
    def names(self) -> tuple[str, ...]:
        return self.files.names

    @property
    def members(self) -> tuple[LocalMember, ...]:
        """In order of name."""
        return self.files.members

    def member(self, name: str) -> LocalMember:
        return self.files.member(name)

    @property
    def url(self) -> str:
        """URL of all members for `quorum.connect`, also of those that are down."""
        return self.files.url

    def url_of(self, *names: str, logs_in: bool = True) -> str:
        return self.files.url_of(*names, logs_in=logs_in)

    def process(self, name: str) -> ProcessId | None:
        return self.files.process(name)

    def running(self) -> dict[str, ProcessId]:
        return self.files.running()

    def start(self, names: Sequence[str] | None = None) -> None:
        self.processes.start(names)

    def stop(self, names: Sequence[str] | None = None, grace_s: float = STOP_GRACE_S) -> list[str]:
        return self.processes.stop(names, grace_s)

    def kill(self, name: str) -> None:
        self.processes.kill(name)

    def pause(self, name: str) -> None:
        self.processes.pause(name)

    def resume(self, name: str) -> None:
        self.processes.resume(name)

    def is_serving(self, name: str) -> bool:
        return self.calls.is_serving(name)

    def status(
        self, name: str | None = None, *, with_state_hash: bool = False
    ) -> ClusterStatusResponse | None:
        return self.calls.status(name, with_state_hash=with_state_hash)

    def leader_of(self, group: int) -> str | None:
        return self.calls.leader_of(group)

    # ---- waiting for members

    def wait_ready(
        self,
        names: Sequence[str] | None = None,
        limit_s: float = START_LIMIT_S,
        *,
        new_nodes: Sequence[str] = (),
        on_long_wait: Callable[[str], None] | None = None,
    ) -> dict[str, str]:
        """Wait until these members (default: all) serve and know a leader of every group. A member of another cluster
        that has the port of one of them does not count.

        Nodes that have not joined the cluster or were removed are not waited for, if a member that serves says so.
        new_nodes: nodes that may wait to be added. Returns the standing of those that are no members by name.
        on_long_wait: gets one line about those that do not serve after some seconds.

        Raises ClusterError, with the end of a member's output, if a member ends before that or the time is over.
        """
        waiting = list(self.names if names is None else names)
        new: dict[str, str] = {}
        deadline = time.monotonic() + limit_s
        long_s = time.monotonic() + LONG_WAIT_S
        since_s = time.monotonic()
        while True:
            for name, status in self.processes.ended().items():
                raise ClusterError(
                    f"member {name} has ended with status {status}:\n{self.processes.last_output(name)}"
                )
            for name in tuple(waiting):
                if self._is_ready(name):
                    waiting.remove(name)
                elif name in new_nodes and self._waits_to_be_added(name):
                    waiting.remove(name)
                    new[name] = "waiting"
            outside = self._outsiders(waiting)
            since_s = since_s if outside else time.monotonic()
            if not waiting or (outside and time.monotonic() - since_s > OUTSIDE_S):
                return outside | new
            if on_long_wait is not None and time.monotonic() > long_s:
                on_long_wait(self._long_wait(waiting, limit_s))
                on_long_wait = None
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"member {waiting[0]} does not serve after {limit_s:g} s:\n{self.processes.last_output(waiting[0])}"
                )
            time.sleep(POLL_S)

    def wait_standing(
        self, name: str, standing: str, *, on_long_wait: Callable[[str], None] | None = None
    ) -> None:
        """Wait until this node reports this standing. Raises ClusterError, and calls on_long_wait, as wait_ready
        does."""
        deadline = time.monotonic() + START_LIMIT_S
        long_s = time.monotonic() + LONG_WAIT_S
        while (seen := self.status(name)) is None or seen.standing != standing:
            if name in self.processes.ended() or time.monotonic() > deadline:
                raise ClusterError(f"member {name} is not {standing}:\n{self.processes.last_output(name)}")
            if on_long_wait is not None and time.monotonic() > long_s:
                on_long_wait(self._long_wait([name], START_LIMIT_S))
                on_long_wait = None
            time.sleep(POLL_S)

    def _long_wait(self, waiting: Sequence[str], limit_s: float) -> str:
        return (
            f"{', '.join(waiting)} {'does' if len(waiting) == 1 else 'do'} not serve yet; waiting for at most "
            f"{limit_s:g} s. The output of {waiting[0]}: {self.member(waiting[0]).output}"
        )

    def _outsiders(self, waiting: Sequence[str]) -> dict[str, str]:
        """The standing of these nodes, if a member that serves knows none of them as a member. A node that missed the
        entry of its own removal takes itself for a member; the others do not tell it."""
        found = {}
        for name in waiting:
            seen = self.status(name)
            if seen is None or seen.standing == "meeting":
                return {}
            is_new = seen.standing == "waiting" and not self.files.was_member(name)
            found[name] = "waiting" if is_new else "removed"
        for name in self.names if found else ():
            if name not in found and self._is_ready(name) and (known := self.status(name)) is not None:
                return {} if any(each.name in found for each in known.members) else found
        return {}

    def _is_ready(self, name: str) -> bool:
        import grpc

        if not self.is_serving(name):
            return False
        try:
            status = self.calls.status_of(name)
        except grpc.RpcError as error:
            wants_user = error.code() in (
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.PERMISSION_DENIED,
            )
            return wants_user and self._listens(name)  # it says no more without a user who may monitor
        return (
            (status.own.name, status.own.incarnation) == (name, self.files.incarnation(name))
            and len(status.groups) > 0
            and all(group.leader for group in status.groups)
        )

    def _listens(self, name: str) -> bool:
        """Whether it is this member, and no other one, that has its port for clients."""
        process = self.process(name)
        port = host_port(self.member(name).client)[1]
        return process is not None and process.pid in [each.pid for each in listeners(port)]

    def _waits_to_be_added(self, name: str) -> bool:
        seen = self.status(name)
        return seen is not None and (seen.standing, seen.own.incarnation) == (
            "waiting",
            self.files.incarnation(name),
        )
