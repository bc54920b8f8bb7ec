"""The part of quorum.v1.Admin that changes members, leaders and lease times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fifo.effects import Ok
from quorum.addresses import check_id
from quorum.api import status
from quorum.api.grpc.handlers import Context, unary
from quorum.api.hub.hub import Hub
from quorum.catalog.lease_times import LeaseTimes, SetLeaseTimes, check_times
from quorum.catalog.members import AddMember, DrainMember, MemberCommand, RemoveMember, check_member
from quorum.config import NodeConfig
from quorum.node import events as ev
from quorum.node import queries as q
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.v1 import admin_pb2 as pb

T = TypeVar("T")

TRANSFER_LIMIT_S = 3.0
"""Time limit for a leadership transfer. A transfer takes at most an election timeout, but the request may have to be
forwarded to the leader and repeated."""
TRANSFER_POLL_S = 0.05
TRANSFER_ASK_EVERY = 10
"""Number of polls between two requests to the leader. A leader that cannot begin yet, because its group's members are
being changed, needs another request."""


class MemberService:
    """Methods for members, leaders and lease times; AdminService has the others."""

    _hub: Hub
    _config: NodeConfig

    @unary
    async def AddMember(self, request: pb.AddMemberRequest, context: Context) -> pb.AddMemberResponse:
        new = request.member
        command = AddMember(
            new.id, new.name, new.peer_address, new.client_address, new.incarnation, request.replace
        )
        _checked(check_member, command)
        reply = await self._hub.own_session.change(lambda catalog: replace(command, seen=catalog.changes))
        assert isinstance(reply, Ok)
        return pb.AddMemberResponse(added=bool(reply.count))

    @unary
    async def RemoveMember(
        self, request: pb.RemoveMemberRequest, context: Context
    ) -> pb.RemoveMemberResponse:
        _checked(check_id, request.name)
        await self._do_without(request.name, lambda changes: RemoveMember(request.name, changes))
        return pb.RemoveMemberResponse()

    @unary
    async def DrainMember(self, request: pb.DrainMemberRequest, context: Context) -> pb.DrainMemberResponse:
        _checked(check_id, request.name)
        if request.drained:
            await self._do_without(request.name, lambda changes: DrainMember(request.name, True, changes))
        else:
            await self._hub.own_session.change(
                lambda catalog: DrainMember(request.name, False, catalog.changes)
            )
        return pb.DrainMemberResponse()

    @unary
    async def TransferLeadership(
        self, request: pb.TransferLeadershipRequest, context: Context
    ) -> pb.TransferLeadershipResponse:
        _checked(check_id, request.to)
        await self._transfer(request.group, request.to)
        return pb.TransferLeadershipResponse(leader=request.to)

    @unary
    async def RebalanceLeaders(
        self, request: pb.RebalanceLeadersRequest, context: Context
    ) -> pb.RebalanceLeadersResponse:
        response = pb.RebalanceLeadersResponse()
        for group, name in await self._hub.requests.query(q.PlanRebalance()):
            await self._transfer(group, name)
            response.moved.add(group=group, leader=name)
        return response

    @unary
    async def SetLeaseTimes(
        self, request: pb.SetLeaseTimesRequest, context: Context
    ) -> pb.SetLeaseTimesResponse:
        wanted = LeaseTimes(request.lease_times.lease_ms, request.lease_times.leader_fallback_ms)
        _checked(check_times, wanted)
        reply = await self._hub.own_session.change(
            lambda catalog: SetLeaseTimes(wanted.lease_ms, wanted.step_down_ms, catalog.changes)
        )
        assert isinstance(reply, Ok)
        return pb.SetLeaseTimesResponse(changed=bool(reply.count))

    async def _do_without(self, name: str, make: Callable[[int], MemberCommand]) -> None:
        """Propose a command after which this member serves no clients. UNAVAILABLE while no other member that is
        reachable now could serve them. make: the command, from CatalogMachine.changes."""

        def checked(found: q.Successors) -> MemberCommand:
            if found.problem:
                raise status.unavailable("no_successor", found.problem)
            return make(found.changes)

        await self._hub.own_session.change_group(q.FindSuccessors(SYSTEM_GROUP, name), checked)

    async def _transfer(self, group: int, name: str) -> None:
        target = await self._hub.requests.query(q.FindTransferTarget(group, name))
        if target.problem:
            raise status.invalid("bad_argument", target.problem)
        for poll in range(int(TRANSFER_LIMIT_S / TRANSFER_POLL_S)):
            if poll % TRANSFER_ASK_EVERY == 0:
                self._hub.submit(ev.Transfer(group, target.id))
            if await self._hub.requests.query(q.FindLeader(group)) == target.id:
                return
            await asyncio.sleep(TRANSFER_POLL_S)
        raise status.unavailable(
            "not_transferred",
            f"leadership of group {group} was not transferred to {name!r}; another member leads, or none is known",
        )


def _checked(check: Callable[[T], object], value: T) -> None:
    """Check a value before anything enters the log. A ValueError of the check becomes INVALID_ARGUMENT."""
    try:
        check(value)
    except ValueError as error:
        raise status.invalid("bad_argument", str(error)) from error
