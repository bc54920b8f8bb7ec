"""The client's calls about policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorum.client.errors import UsageError
from quorum.client.records import Policy
from quorum.client.values import arguments as values
from quorum.v1 import admin_pb2

MAX_PRIORITY = (1 << 31) - 1
"""Either way; what the service's 32 bits hold."""


class PolicyCalls:
    """Part of Client."""

    async def set_policy(
        self,
        name: str,
        pattern: str,
        arguments: Mapping[str, object],
        priority: int = 0,
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        """Makes a policy, or changes the one of this name; True if that changed anything.

        pattern: a queue's whole name, `*` for any characters. Of those that match a queue the highest priority applies.
        Returns when all queues are configured accordingly.
        """
        if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise UsageError(f"priority {priority}; allowed: {-MAX_PRIORITY}..{MAX_PRIORITY}")
        policy = admin_pb2.Policy(name=name, pattern=pattern, priority=priority, arguments=values(arguments))
        request = admin_pb2.SetPolicyRequest(policy=policy)
        return bool((await self._admin("SetPolicy", request, timeout_ms)).changed)

    async def delete_policy(self, name: str, *, timeout_ms: int | None = None) -> None:
        """Returns when all queues are configured without it."""
        await self._admin("DeletePolicy", admin_pb2.DeletePolicyRequest(name=name), timeout_ms)

    async def policies(self, *, timeout_ms: int | None = None) -> list[Policy]:
        """All of them, by name."""
        response = await self._admin("ListPolicies", admin_pb2.ListPoliciesRequest(), timeout_ms)
        return [Policy.of(policy) for policy in response.policies]

    async def _admin(self, method: str, request: Any, timeout_ms: int | None) -> Any:
        raise NotImplementedError
