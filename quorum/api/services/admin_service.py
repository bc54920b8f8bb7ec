"""quorum.v1.Admin: the cluster's status. Each other kind of object has its own module: queue_admin_service.py,
exchange_service.py, policy_service.py, definition_service.py, user_service.py, member_service.py and
transaction_service.py."""

from __future__ import annotations

import asyncio
import os
from dataclasses import astuple

from quorum.api.grpc.handlers import Context, unary
from quorum.api.hub.hub import Hub
from quorum.api.services.definition_service import DefinitionService
from quorum.api.services.member_service import MemberService
from quorum.api.services.policy_service import PolicyService
from quorum.api.services.transaction_service import TransactionService
from quorum.api.services.user_service import UserService
from quorum.config import NodeConfig
from quorum.node import queries as q
from quorum.v1 import admin_pb2 as pb
from quorum.v1 import admin_pb2_grpc

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class AdminService(
    MemberService,
    PolicyService,
    UserService,
    DefinitionService,
    TransactionService,
    admin_pb2_grpc.AdminServicer,
):
    def __init__(self, hub: Hub, config: NodeConfig) -> None:
        super().__init__()
        self._hub = hub
        self._config = config
        self._hashing = asyncio.Lock()
        """A hash reads a group's whole state. Therefore only one is computed at a time, each in its own step."""

    @unary
    async def ClusterStatus(
        self, request: pb.ClusterStatusRequest, context: Context
    ) -> pb.ClusterStatusResponse:
        response = _cluster_status(await self._hub.requests.query(q.DescribeCluster()))
        for group in response.groups if request.with_state_hash else ():
            async with self._hashing:
                while (found := await self._hub.requests.query(q.HashState(group.group))) is None:
                    pass  # a part of it is made by each query
            group.applied_index, group.state_hash = found.index, found.crc
        own = self._config.members[self._config.name]
        response.answering_node = response.own.name = self._config.name
        response.own.client_address, response.own.peer_address = own.client, own.peer
        response.resident_bytes = _resident_bytes()
        return response


def _cluster_status(found: q.ClusterStatus) -> pb.ClusterStatusResponse:
    response = pb.ClusterStatusResponse(standing=found.standing)
    response.own.id, response.own.incarnation = found.id, found.incarnation
    response.own.known_version = found.known_version
    for each in found.members:
        member = each.member
        info = response.members.add(
            name=member.name,
            client_address=member.client,
            peer_address=member.peer,
            boot=each.boot,
            reachable=each.is_reachable,
            id=member.id,
            incarnation=member.incarnation,
            drained=member.is_drained,
            joining=member.is_joining,
            replaces=member.replaces,
            known_version=each.known_version,
        )
        if each.disk is not None:
            info.disk.CopyFrom(
                pb.Disk(
                    free_bytes=each.disk.free_bytes,
                    limit_bytes=each.disk.limit_bytes,
                    low=each.disk.is_low,
                    full=each.disk.is_full,
                    slow=each.disk.is_slow,
                    sync_p99_us=each.disk.sync_p99_us,
                )
            )
    response.skipped_entries.extend(found.skipped_entries)
    settings = found.lease_settings
    if settings is not None:
        response.lease_times.lease_ms, response.lease_times.leader_fallback_ms = astuple(settings.wanted)
        response.lease_times_settled = settings.is_settled
    for group in found.groups:
        response.groups.add(
            group=group.group,
            leader=group.leader,
            term=group.term,
            commit_index=group.commit_index,
            applied_index=group.applied_index,
            members=group.voters,
            learners=group.learners,
            settled=group.is_settled,
            repaired=group.repaired,
            unreadable=group.unreadable,
            fetching=group.fetching,
            quarantined=group.is_quarantined,
            disputed=group.disputed,
            version=group.version,
            last_index=group.last_index,
            progress=[
                pb.MemberProgress(name=each.name, match_index=each.match_index) for each in group.progress
            ],
        )
    return response


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * PAGE_BYTES
