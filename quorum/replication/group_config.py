"""The settings of a Raft group: timing and sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Timing in seconds, and sizes. A new leader is elected at the latest election_max_s and a little more after the
    old one's end. The minimum is large enough for a busy two-core machine to keep its heartbeats."""

    election_min_s: float = 0.5
    election_max_s: float = 1.0
    heartbeat_s: float = 0.1
    leader_fallback_s: float = 1.5
    """A leader without answers from a majority for this long steps down."""
    keep_bytes: int = 64 << 20
    """Entries that a snapshot covers stay in the journal for a member that lacks them, up to this many bytes of bodies;
    a member further behind gets the snapshot, and of older bodies only those it refers to."""
    keep_entries: int = 250_000
    """The same, counted in entries (20 bytes of memory each)."""
    window_bytes: int = 8 << 20
    """Maximum of unacknowledged entries for one peer; with a handful of groups well below the limit of a connection's
    queue."""
    frame_bytes: int = 1 << 20
    """Bytes after which a frame ends; the entry that reaches this size is its last."""
    chunk_bytes: int = 256 << 10
    """Size of a snapshot chunk."""
