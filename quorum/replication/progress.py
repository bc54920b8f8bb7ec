"""What a leader knows of one follower beside its match and next index, which the engine has.

A follower is in one of three states:

    REPLICATE   it gets entries as they come, a window ahead of its answers
    PROBE       it has rejected an index that it had acknowledged, or an entry that it needs cannot be read here: it is
                sent something at heartbeats and with news of a commit only, which prevents a busy loop
    SNAPSHOT    the entries it needs have left the journal: it gets a snapshot

    REPLICATE -> SNAPSHOT, and back    as its next index is below the journal's view, or not
    REPLICATE, SNAPSHOT -> PROBE       `probe`
    PROBE -> REPLICATE                 `end_probe`: the next heartbeat, or a rejection that agrees with what is known

A follower that has lost its state, not its log, is sent a snapshot beside its entries (`wants_state`): it stays in
REPLICATE.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from quorum.replication.configuration import CatchUp
from quorum.replication.snapshots import Outgoing


class ProgressState(Enum):
    REPLICATE = "replicate"
    PROBE = "probe"
    SNAPSHOT = "snapshot"


class Inflights:
    """The frames of entries that a follower has not yet acknowledged."""

    __slots__ = ("_frames", "bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[int, int]] = deque()
        """(last index, bytes) of each frame"""
        self.bytes = 0

    def add(self, last_index: int, size: int) -> None:
        self._frames.append((last_index, size))
        self.bytes += size

    def free_to(self, index: int) -> None:
        """Remove the frames up to an index that the follower has."""
        while self._frames and self._frames[0][0] <= index:
            self.bytes -= self._frames.popleft()[1]

    def clear(self) -> None:
        """Forget all frames: none is in flight any more."""
        self._frames.clear()
        self.bytes = 0


class Progress:
    """A leader's view of one follower."""

    __slots__ = (
        "_state_from",
        "_state_until_s",
        "asked_for_state",
        "catch_up",
        "inflights",
        "is_behind",
        "is_connected",
        "log_end",
        "nonce",
        "outgoing",
        "state",
    )

    def __init__(self) -> None:
        self.state = ProgressState.REPLICATE
        self.is_connected = False
        self.inflights = Inflights()
        self.is_behind = False
        """Whether its last turn was not enough: the rest is sent in small turns."""
        self.log_end = 0
        """The end of the log at its last turn."""
        self.outgoing: Outgoing | None = None
        """The snapshot that is being sent."""
        self.nonce: int | None = None
        """For a quarantined follower: the process for which this leadership has reset its progress."""
        self.catch_up: CatchUp | None = None
        """A learner's progress, measured since the members or the leadership changed."""
        self.asked_for_state = False
        """Whether it has asked for a snapshot in this leadership, because it had lost its state."""
        self._state_from = 0
        self._state_until_s = float("-inf")

    # ---- the three states

    def probe(self) -> None:
        """Stop sending entries as they come."""
        self.state = ProgressState.PROBE

    def end_probe(self) -> None:
        if self.state is ProgressState.PROBE:
            self.state = ProgressState.REPLICATE

    def follow_journal(self, *, has_next: bool) -> None:
        """Set REPLICATE or SNAPSHOT, as the journal has the entry that the follower needs next or not. A probe
        continues."""
        if self.state is not ProgressState.PROBE:
            self.state = ProgressState.REPLICATE if has_next else ProgressState.SNAPSHOT

    # ---- a state that is lost

    def want_state(self, from_index: int, until_s: float) -> None:
        """Note that the follower has lost its state: a snapshot at this index or later can replace it. While it needs
        one, it asks again before until_s."""
        self.asked_for_state = True
        self._state_from, self._state_until_s = from_index, until_s

    def wants_state(self, now_s: float) -> bool:
        return now_s < self._state_until_s

    @property
    def state_from(self) -> int:
        """The lowest index of a snapshot that can replace the lost state."""
        return self._state_from

    # ---- events

    def begin_leadership(self) -> None:
        """Reset everything in flight, because it was sent in another term."""
        self.inflights.clear()
        self.end_transfer()
        self.nonce = None
        self.asked_for_state = False
        self._state_until_s = float("-inf")

    def reset_for(self, nonce: int) -> bool:
        """Begin a quarantined follower's progress again; False if this process of it is known."""
        if self.nonce == nonce:
            return False
        self.nonce = nonce
        self.inflights.clear()
        self.end_transfer()
        self.end_probe()
        return True

    def end_transfer(self) -> None:
        """End the sending of a snapshot."""
        if self.outgoing is not None:
            self.outgoing.source.close()
            self.outgoing = None
