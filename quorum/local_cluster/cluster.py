"""A cluster of member processes on this machine: for development, the demo, the bench, and tests with real processes.

No command goes through a shell. Members run in their own process sessions. The program that starts them stops them: by
`stop`, by leaving the `with` block, or from another process by `LocalCluster.open(directory).stop()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quorum.addresses import host_port
from quorum.errors import ClusterError
from quorum.local_cluster.listeners import listeners
from quorum.local_cluster.running import RunningCluster

if TYPE_CHECKING:
    from quorum.v1.admin_pb2 import ClusterStatusResponse

START_LIMIT_S = 60.0
LONG_WAIT_S = 5.0
"""Seconds after which a wait for members is mentioned."""
POLL_S = 0.05
CALL_LIMIT_S = 2.0
OUTSIDE_S = 2.0
"""Seconds for which a starting node may report that it is no member, until it has read its log."""


class LocalCluster(RunningCluster):
    """`members` processes under `directory`: a new cluster, or the one that the directory holds already.

    settings: further keys of each node's configuration. client_ports: for members in order of name; free ports if not
    given. http_ports: the same for the page, JSON and metrics; none if not given. sink: also gets each line of each
    member's output. secured: the cluster has TLS for clients and between members, with authorities for development, and
    `url` logs in as its administrator.
    """

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

    # ---- asking members

    def is_serving(self, name: str) -> bool:
        """Whether the member's health service reports SERVING; False if it does not answer."""
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with self._channel(name) as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=CALL_LIMIT_S
                )
            except grpc.RpcError:
                return False
            return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def status(
        self, name: str | None = None, *, with_state_hash: bool = False
    ) -> ClusterStatusResponse | None:
        """The cluster's status from this member, or from the first one that answers; None if none answers."""
        import grpc

        for each in self._members if name is None else (name,):
            try:
                return self._status_of(each, with_state_hash=with_state_hash)
            except grpc.RpcError:
                continue
        return None

    def _status_of(self, name: str, *, with_state_hash: bool = False) -> ClusterStatusResponse:
        """grpc.RpcError if the member does not answer, or refuses."""
        from quorum.v1 import admin_pb2, admin_pb2_grpc

        with self._channel(name) as channel:
            request = admin_pb2.ClusterStatusRequest(with_state_hash=with_state_hash)
            response: ClusterStatusResponse = admin_pb2_grpc.AdminStub(channel).ClusterStatus(
                request, timeout=CALL_LIMIT_S
            )
            return response

    def leader_of(self, group: int) -> str | None:
        """The group's leader, of the highest term among the answers of all members; None if none is known."""
        best: tuple[int, str] = (-1, "")
        for name in self.running():
            status = self.status(name)
            for each in status.groups if status is not None else ():
                if each.group == group and each.leader in self._members:
                    best = max(best, (each.term, each.leader))
        return best[1] or None

    def leader_of_queue(self, queue: str) -> str | None:
        """The leader of the queue's group; None while none is known. ClusterError if there is no such queue."""
        import grpc

        from quorum.v1 import admin_pb2, admin_pb2_grpc

        for name in self.running():
            with self._channel(name) as channel:
                try:
                    request = admin_pb2.DescribeQueueRequest(queue=queue)
                    response = admin_pb2_grpc.AdminStub(channel).DescribeQueue(request, timeout=CALL_LIMIT_S)
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.NOT_FOUND:
                        raise ClusterError(f"there is no queue {queue!r}") from error
                    continue
                return self.leader_of(response.queue.group)
        return None

    def _channel(self, name: str) -> Any:
        """A channel to a member. If the cluster is not secured, it has the user of the environment, if there is one."""
        from quorum.client.connection.endpoints import parse_url

        service = parse_url(self.url_of(name))
        return service.open_blocking_channel(service.endpoints[0])

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
        waiting = list(self._members if names is None else names)
        new: dict[str, str] = {}
        deadline = time.monotonic() + limit_s
        long_s = time.monotonic() + LONG_WAIT_S
        since_s = time.monotonic()
        while True:
            for name, status in self.ended().items():
                raise ClusterError(f"member {name} has ended with status {status}:\n{self.last_output(name)}")
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
                on_long_wait(
                    f"{', '.join(waiting)} {'does' if len(waiting) == 1 else 'do'} not serve yet; waiting for at most "
                    f"{limit_s:g} s. The output of {waiting[0]}: {self.member(waiting[0]).output}"
                )
                on_long_wait = None
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"member {waiting[0]} does not serve after {limit_s:g} s:\n{self.last_output(waiting[0])}"
                )
            time.sleep(POLL_S)

    def wait_standing(self, name: str, standing: str) -> None:
        """Wait until this node reports this standing. Raises ClusterError as wait_ready does."""
        deadline = time.monotonic() + START_LIMIT_S
        while (seen := self.status(name)) is None or seen.standing != standing:
            if name in self.ended() or time.monotonic() > deadline:
                raise ClusterError(f"member {name} is not {standing}:\n{self.last_output(name)}")
            time.sleep(POLL_S)

    def _outsiders(self, waiting: Sequence[str]) -> dict[str, str]:
        """The standing of these nodes, if a member that serves knows none of them as a member. A node that missed the
        entry of its own removal takes itself for a member; the others do not tell it."""
        found = {}
        for name in waiting:
            seen = self.status(name)
            if seen is None or seen.standing == "meeting":
                return {}
            is_new = seen.standing == "waiting" and not self.was_member(name)
            found[name] = "waiting" if is_new else "removed"
        for name in self._members if found else ():
            if name not in found and self._is_ready(name) and (known := self.status(name)) is not None:
                return {} if any(each.name in found for each in known.members) else found
        return {}

    def _is_ready(self, name: str) -> bool:
        import grpc

        if not self.is_serving(name):
            return False
        try:
            status = self._status_of(name)
        except grpc.RpcError as error:
            wants_user = error.code() in (
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.PERMISSION_DENIED,
            )
            return wants_user and self._listens(name)  # it says no more without a user who may monitor
        return (
            (status.own.name, status.own.incarnation) == (name, self._incarnation(name))
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
            self._incarnation(name),
        )
