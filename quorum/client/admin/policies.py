"""The client's policy calls."""

from __future__ import annotations

from collections.abc import Mapping

from quorum.client.admin.calls import AdminCalls
from quorum.client.admin.records import Policy
from quorum.client.values import arguments as values
from quorum.client.values import require_text, require_texts, require_whole
from quorum.v1 import admin_pb2

MAX_PRIORITY = (1 << 31) - 1
"""Highest absolute value of a priority, because the service stores 32 bits."""


class PolicyCalls(AdminCalls):
    """The policy calls of Client."""

    async def set_policy(
        self,
        name: str,
        pattern: str,
        arguments: Mapping[str, object],
        priority: int = 0,
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        """Make a policy or change the one of this name. True if that changed anything.

        pattern: matches a queue's whole name, `*` for any characters. The matching policy with the highest priority
        applies. Returns when all queues are configured accordingly.
        """
        require_texts(name=name, pattern=pattern)
        require_whole("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        policy = admin_pb2.Policy(name=name, pattern=pattern, priority=priority, arguments=values(arguments))
        request = admin_pb2.SetPolicyRequest(policy=policy)
        return bool((await self._admin("SetPolicy", request, timeout_ms)).changed)

    async def delete_policy(self, name: str, *, timeout_ms: int | None = None) -> None:
        """Delete a policy. Returns when all queues are configured without it."""
        require_text("name", name)
        await self._admin("DeletePolicy", admin_pb2.DeletePolicyRequest(name=name), timeout_ms)

    async def policies(self, *, timeout_ms: int | None = None) -> list[Policy]:
        """All policies, sorted by name."""
        response = await self._admin("ListPolicies", admin_pb2.ListPoliciesRequest(), timeout_ms)
        return [Policy.of(policy) for policy in response.policies]
