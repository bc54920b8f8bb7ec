"""The part of quorum.v1.Admin for policies."""

from __future__ import annotations

from dataclasses import replace

from fifo.effects import Ok
from quorum.api.grpc.argument_values import argument, set_arguments
from quorum.api.grpc.handlers import Context, unary
from quorum.api.hub.hub import Hub
from quorum.catalog.arguments import check_policy_arguments, check_size, check_text
from quorum.catalog.commands import RemovePolicy, SetPolicy
from quorum.catalog.policies import Effective, Policy, check_policy
from quorum.v1 import admin_pb2 as pb


class PolicyService:
    """Methods for policies; AdminService has the others."""

    _hub: Hub

    @unary
    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Context) -> pb.SetPolicyResponse:
        command = policy_command(request.policy)
        if command.name not in self._hub.catalog.policies.by_name:
            check_size(dict(command.arguments))
        reply = await self._hub.own_session.change(lambda catalog: replace(command, seen=catalog.changes))
        await self._hub.requests.await_configured()
        assert isinstance(reply, Ok)
        return pb.SetPolicyResponse(changed=bool(reply.count))

    @unary
    async def DeletePolicy(
        self, request: pb.DeletePolicyRequest, context: Context
    ) -> pb.DeletePolicyResponse:
        check_text("policy name", request.name)
        try:
            await self._hub.own_session.change(lambda catalog: RemovePolicy(request.name, catalog.changes))
        finally:
            await self._hub.requests.await_configured()  # an earlier attempt may have removed it
        return pb.DeletePolicyResponse()

    @unary
    async def ListPolicies(
        self, request: pb.ListPoliciesRequest, context: Context
    ) -> pb.ListPoliciesResponse:
        policies = (await self._hub.requests.current_catalog()).policies
        response = pb.ListPoliciesResponse()
        for policy in policies.by_name.values():
            response.policies.append(shown_policy(policy))
        return response


def policy_command(policy: pb.Policy) -> SetPolicy:
    """The command that sets a policy. Raises ArgumentError."""
    arguments = {name: argument(name, value) for name, value in policy.arguments.items()}
    check_policy(policy.name, policy.pattern, policy.priority)
    check_policy_arguments(arguments)
    return SetPolicy(policy.name, policy.pattern, policy.priority, tuple(sorted(arguments.items())))


def shown_policy(policy: Policy) -> pb.Policy:
    shown = pb.Policy(name=policy.name, pattern=policy.pattern, priority=policy.priority)
    set_arguments(shown.arguments, policy.arguments)
    return shown


def show_policy(info: pb.QueueInfo, effective: Effective) -> None:
    info.policy = effective.policy
    set_arguments(info.effective_arguments, effective.arguments)
