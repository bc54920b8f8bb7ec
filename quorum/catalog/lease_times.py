"""The times that the safety of leases depends on: settings of the cluster, committed in the catalog.

A member's configuration counts once, when the cluster is founded. Afterwards all members use the catalog's times, so
members with other configurations are no danger.

A change takes two steps, because members apply the catalog at different times:

1. `SetLeaseTimes` commits the wanted times. At once the leases that leaders grant shrink to the smaller of the old and
   the wanted times, and a successor's wait grows to the larger of them.
2. `SettleLeaseTimes` makes the wanted times the only ones. The system group's leader proposes it when every member has
   said that it uses step 1, and every lease that was granted before that has ended
   (node/cluster/lease_times.py).

So a successor waits for every lease that any member may hold, whichever step the successor or the leader before it has
applied.

A catalog from before these settings says nothing about the leases that its members granted. They may have granted the
largest lease that configuration allows, so a successor waits for that one until step 2.
"""

from __future__ import annotations

from dataclasses import replace

from fifo.frozen_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """lease_ms: the time for which a member may deliver after a leader last heard of it. step_down_ms: the time for
    which a leader may grant leases after a majority last answered it."""

    lease_ms: int
    step_down_ms: int

    def smaller(self, other: LeaseTimes) -> LeaseTimes:
        return LeaseTimes(min(self.lease_ms, other.lease_ms), min(self.step_down_ms, other.step_down_ms))

    def larger(self, other: LeaseTimes) -> LeaseTimes:
        return LeaseTimes(max(self.lease_ms, other.lease_ms), max(self.step_down_ms, other.step_down_ms))


UNSEEN = -1
"""In a command's `seen`: the command is applied whatever was changed before it."""
SMALLEST = LeaseTimes(500, 500)
LARGEST = LeaseTimes(60_000, 120_000)
"""The values of `lease_ms` and `leader_fallback_ms` that the configuration allows. A lease holds only if the next
heartbeat is answered before it ends. The interval between heartbeats is at most a third of either time, but an idle
member may send one 150 ms late. With the smallest times, 180 ms are left for the heartbeat and its answer."""


@dataclass(frozen=True, slots=True)
class FoundLeaseTimes:
    """Sets the times of a cluster that has none; proposed by the system group's leader from its configuration."""

    lease_ms: int
    step_down_ms: int


@dataclass(frozen=True, slots=True)
class SetLeaseTimes:
    """An administrator's request for other times. seen: as in commands.SeenChanges."""

    lease_ms: int
    step_down_ms: int
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class SettleLeaseTimes:
    """Says that every member uses this revision, and that all earlier leases have ended."""

    revision: int


LeaseTimesCommand = FoundLeaseTimes | SetLeaseTimes | SettleLeaseTimes


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """revision: grows with each change. granted: the times that leaders use. awaited: the times that successors wait
    for, at least the times that any leader uses."""

    revision: int
    wanted: LeaseTimes
    granted: LeaseTimes
    awaited: LeaseTimes

    @classmethod
    def founded(cls, wanted: LeaseTimes, *, is_new: bool = True) -> LeaseSettings:
        """The settings of a cluster that had none. is_new: no member can have granted a lease before."""
        return cls(1, wanted, wanted, wanted if is_new else wanted.larger(LARGEST))

    @property
    def is_settled(self) -> bool:
        return self.wanted == self.granted == self.awaited

    def changed(self, wanted: LeaseTimes) -> LeaseSettings:
        """The settings after step 1."""
        return LeaseSettings(
            self.revision + 1, wanted, self.granted.smaller(wanted), self.awaited.larger(wanted)
        )

    def settled(self) -> LeaseSettings:
        """The settings after step 2."""
        return replace(self, revision=self.revision + 1, granted=self.wanted, awaited=self.wanted)


def check_times(wanted: LeaseTimes) -> None:
    """Raise ValueError, with a text for the administrator, if these times are not allowed."""
    for name, least, value, most in (
        ("lease_ms", SMALLEST.lease_ms, wanted.lease_ms, LARGEST.lease_ms),
        ("leader_fallback_ms", SMALLEST.step_down_ms, wanted.step_down_ms, LARGEST.step_down_ms),
    ):
        if not least <= value <= most:
            raise ValueError(f"{name} is {value}; allowed: {least}..{most}")
