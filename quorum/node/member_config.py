"""The configuration of a member at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION, Limits
from quorum.node.maintenance.scrubbing import Pace
from quorum.replication.group_config import GroupConfig

APPLY_ENTRIES = 64
SNAPSHOT_BYTES = 128 << 20
"""A snapshot is taken when this much of the group's log was applied since the last one."""
SNAPSHOT_MS = 60_000
"""One is taken this long after the first change since the last one, too: the disk space of settled messages is free
after two."""
QUEUE_MEMORY_BYTES = 256 << 20
SPREAD_AFTER_MS = 5_000
"""The cluster has to be settled for this long before a leader moves. Elections, reconnecting clients and resent
operations take one or two seconds."""


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """name: this member's id. members: those that the cluster began with, or none at a node that joins it; their
    numbers are their places in sorted order, from 1. The catalog holds the current membership."""

    name: str
    members: tuple[str, ...]
    boot: int
    lease_ms: int = 4_000
    queue_groups: int = 3
    raft: GroupConfig = field(default_factory=GroupConfig)
    snapshot_bytes: int | None = None
    """see SNAPSHOT_BYTES"""
    snapshot_ms: int = SNAPSHOT_MS
    apply_entries: int = APPLY_ENTRIES
    addresses: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """founding member -> (peer, client), host:port each"""
    queue_memory_bytes: int = QUEUE_MEMORY_BYTES
    """see maintenance/paging.py"""
    limits: Limits = PRODUCTION
    """of the machines of queues, the same on all members"""
    scrubbing: Pace = field(default_factory=Pace)
    spread_after_ms: int | None = SPREAD_AFTER_MS
    """see cluster/leader_spread.py; None if leaders do not spread by themselves"""
    skip_entries: tuple[tuple[int, int], ...] = ()
    """(group, index) of entries whose effect is left out, see replica/skipped_entries.py"""
