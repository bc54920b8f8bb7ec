"""The settings of a Raft group: timing and sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Timing in seconds, and sizes.

    A follower that hears no leader waits for a random time between election_min_s and election_max_s. Then it tries to
    become the leader. So a new leader is elected soon after election_max_s at the latest. election_min_s is long enough
    that a leader on a busy machine with two cores is still heard in time.
    """

    election_min_s: float = 0.5
    election_max_s: float = 1.0
    heartbeat_s: float = 0.1
    leader_fallback_s: float = 1.5
    """A leader without answers from a majority for this long steps down."""
    keep_bytes: int = 64 << 20
    """The journal keeps entries that a snapshot covers while a member lacks them, up to this many bytes of bodies. A
    member that lacks older entries gets the snapshot instead, and the bodies to which the snapshot refers."""
    keep_entries: int = 250_000
    """The same, counted in entries (20 bytes of memory each)."""
    window_bytes: int = 8 << 20
    """Maximum bytes of entries of this group that were sent to one peer and are not acknowledged. The windows of a few
    groups together are far below the limit of the peer's send queue (network.connection.MAX_QUEUED_BYTES)."""
    frame_bytes: int = 1 << 20
    """A frame of entries ends with the entry with which it reaches this many bytes."""
    chunk_bytes: int = 256 << 10
    """Bytes of a snapshot chunk."""
