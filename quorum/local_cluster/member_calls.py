"""What the members of a local cluster answer: whether they serve, the cluster's status, and who leads."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from quorum.addresses import host_port
from quorum.errors import ClusterError
from quorum.local_cluster.directory import ClusterDirectory

if TYPE_CHECKING:
    from quorum.v1.admin_pb2 import ClusterStatusResponse

CALL_LIMIT_S = 2.0


class MemberCalls:
    """Calls of single members. If the cluster is secured, they log in as its administrator."""

    def __init__(self, files: ClusterDirectory) -> None:
        self._files = files

    def is_serving(self, name: str) -> bool:
        """Whether the member's health service reports SERVING; False if it does not answer."""
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        if not self._takes_connections(name):
            return False
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

        for each in self._files.names if name is None else (name,):
            if not self._takes_connections(each):
                continue
            try:
                return self.status_of(each, with_state_hash=with_state_hash)
            except grpc.RpcError:
                continue
        return None

    def status_of(self, name: str, *, with_state_hash: bool = False) -> ClusterStatusResponse:
        """The same from one member. grpc.RpcError if it does not answer, or refuses."""
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
        for name in self._files.running():
            status = self.status(name)
            for each in status.groups if status is not None else ():
                if each.group == group and each.leader in self._files.names:
                    best = max(best, (each.term, each.leader))
        return best[1] or None

    def leader_of_queue(self, queue: str) -> str | None:
        """The leader of the queue's group; None while none is known. ClusterError if there is no such queue."""
        import grpc

        from quorum.v1 import admin_pb2, admin_pb2_grpc

        for name in self._files.running():
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

    def _takes_connections(self, name: str) -> bool:
        """Whether its port for clients is open. This costs much less CPU time than a channel that finds it closed."""
        try:
            with socket.create_connection(host_port(self._files.member(name).client), CALL_LIMIT_S):
                return True
        except OSError:
            return False

    def _channel(self, name: str) -> Any:
        """A channel to a member. If the cluster is not secured, it has the user of the environment, if there is one."""
        from quorum.client.connection.endpoints import parse_url

        service = parse_url(self._files.url_of(name))
        return service.open_blocking_channel(service.endpoints[0])
