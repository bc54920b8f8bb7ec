"""This member's handling of the cluster's lease times (catalog/lease_times.py): follows them, and as the system group's
leader founds and settles them.

A member stores the newest settings that it has seen durably, before it uses or names them. So it never uses older ones
after a restart, even if its catalog has not caught up. Each heartbeat names their revision.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from quorum.catalog.lease_times import FoundLeaseTimes, LeaseSettings, LeaseTimes, SettleLeaseTimes
from quorum.node.identity.identity import NodeState
from quorum.node.leases.leases import DRIFT_MS, Leases
from quorum.node.replica.replica import Replica


class LeaseTimesKeeper:
    """The lease times of one member. configured: the lease times of its configuration."""

    def __init__(
        self, leases: Leases, node_state: NodeState, configured: LeaseTimes, logger: FilteringBoundLogger
    ) -> None:
        self._leases = leases
        self._node_state = node_state
        self._configured = configured
        self._logger = logger
        self._all_follow: tuple[int, int] | None = None
        """(revision, since when all members use it), as far as this member knows as the system group's leader."""
        self._use(node_state.lease_settings)

    def follow(self, found: LeaseSettings | None) -> None:
        """Adopts the catalog's settings if they are newer than those used here and the disk has room to store them;
        else the next call tries again."""
        if found is None or found.revision <= self._leases.revision:
            return
        self._node_state.lease_settings = found
        if self._node_state.try_save():
            self._use(found)

    def _use(self, settings: LeaseSettings | None) -> None:
        self._leases.settings = settings
        if settings is not None and settings.wanted != self._configured:
            self._logger.warning(
                "the cluster's lease times are used, not those of this member's configuration",
                cluster_lease_ms=settings.wanted.lease_ms,
                configured_lease_ms=self._configured.lease_ms,
                cluster_leader_fallback_ms=settings.wanted.step_down_ms,
                configured_leader_fallback_ms=self._configured.step_down_ms,
            )

    def is_followed_by(self, node: int) -> bool:
        """Whether a member has said that it uses settings at least as new as this one does."""
        return self._leases.revision_of(node) >= self._leases.revision

    def lead(self, system: Replica, found: LeaseSettings | None, others: list[int], now_ms: int) -> None:
        """As the system group's leader. found: the catalog's settings; others: the other members' numbers."""
        if not system.leads:
            self._all_follow = None
        elif system.proposals.pending or system.raft.applied_index < system.raft.last_index:
            return
        elif found is None:
            system.propose_internal(FoundLeaseTimes(self._configured.lease_ms, self._configured.step_down_ms))
        elif not found.is_settled:
            self._settle(system, found, others, now_ms)

    def _settle(self, system: Replica, found: LeaseSettings, others: list[int], now_ms: int) -> None:
        if not all(self._leases.revision_of(node) >= found.revision for node in others):
            self._all_follow = None
            return
        if self._all_follow is None or self._all_follow[0] != found.revision:
            self._all_follow = found.revision, now_ms
        if now_ms - self._all_follow[1] > found.awaited.lease_ms + DRIFT_MS:
            system.propose_internal(SettleLeaseTimes(found.revision))
