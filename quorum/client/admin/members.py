"""The client's calls for members, leaders and lease times."""

from __future__ import annotations

from quorum.client.admin.calls import AdminCalls
from quorum.client.admin.records import ClusterStatus, MemberInfo
from quorum.client.admin.transactions import MAX_GROUP
from quorum.client.errors import UsageError
from quorum.client.values import require_flag, require_text, require_whole
from quorum.v1 import admin_pb2

MAX_LEASE_TIME_MS = (1 << 64) - 1


class MemberCalls(AdminCalls):
    """The calls of Client for members, leaders and lease times."""

    async def cluster_status(self, *, timeout_ms: int | None = None) -> ClusterStatus:
        return ClusterStatus.of(
            await self._admin("ClusterStatus", admin_pb2.ClusterStatusRequest(), timeout_ms)
        )

    async def add_member(
        self, member: MemberInfo, *, replace: bool = False, timeout_ms: int | None = None
    ) -> bool:
        """Add a member. True if it is new. member: `cluster_status().own`, asked at the new node. replace: it replaces
        the member of its name. The groups add it one after the other; `cluster_status` shows the progress."""
        if not isinstance(member, MemberInfo):
            raise UsageError(
                f"member is a MemberInfo, as in `cluster_status().own`, not {type(member).__name__}"
            )
        require_flag("replace", replace)
        request = admin_pb2.AddMemberRequest(replace=replace)
        request.member.id, request.member.name = member.id, member.name
        request.member.client_address, request.member.peer_address = (
            member.client_address,
            member.peer_address,
        )
        request.member.incarnation = member.incarnation
        response = await self._admin("AddMember", request, timeout_ms)
        return bool(response.added)

    async def remove_member(self, name: str, *, timeout_ms: int | None = None) -> None:
        """Remove a member; the groups remove it one after the other. It may be the member that serves this call."""
        require_text("name", name)
        await self._admin("RemoveMember", admin_pb2.RemoveMemberRequest(name=name), timeout_ms)

    async def drain_member(self, name: str, *, drained: bool = True, timeout_ms: int | None = None) -> None:
        """Drain a member: it transfers its leaderships and ends its sessions. drained=False: it works again."""
        require_text("name", name)
        require_flag("drained", drained)
        await self._admin("DrainMember", admin_pb2.DrainMemberRequest(name=name, drained=drained), timeout_ms)

    async def transfer_leadership(self, group: int, to: str, *, timeout_ms: int | None = None) -> None:
        """Transfer a group's leadership to member `to`. Returns when this member leads the group."""
        require_whole("group", group, 0, MAX_GROUP)
        require_text("to", to)
        await self._admin(
            "TransferLeadership", admin_pb2.TransferLeadershipRequest(group=group, to=to), timeout_ms
        )

    async def rebalance_leaders(self, *, timeout_ms: int | None = None) -> dict[int, str]:
        """Spread leaders evenly. Returns the groups whose leader changed, with their new leaders."""
        response = await self._admin("RebalanceLeaders", admin_pb2.RebalanceLeadersRequest(), timeout_ms)
        return {each.group: each.leader for each in response.moved}

    async def set_lease_times(
        self, lease_ms: int, leader_fallback_ms: int, *, timeout_ms: int | None = None
    ) -> bool:
        """Set the cluster's lease times; True if that changes anything. lease_ms: 500 to 60,000. leader_fallback_ms:
        500 to 120,000. RefusedError otherwise. `cluster_status().lease_times` shows when every member uses them."""
        for name, value in (("lease_ms", lease_ms), ("leader_fallback_ms", leader_fallback_ms)):
            require_whole(name, value, 0, MAX_LEASE_TIME_MS)
        times = admin_pb2.LeaseTimes(lease_ms=lease_ms, leader_fallback_ms=leader_fallback_ms)
        request = admin_pb2.SetLeaseTimesRequest(lease_times=times)
        return bool((await self._admin("SetLeaseTimes", request, timeout_ms)).changed)
