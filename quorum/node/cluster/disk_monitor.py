"""Watches this member's disk, reports its state to the others, and hands leadership to members with a better disk.

The states of a disk that runs out of room, from bad to worse:

  low     the disk is below its limit, or the reserve is not complete: no node accepts publishes for groups in which
          this member votes. Settling, deleting and everything else continue.
  full    not even the reserve has room for another entry: this member acknowledges no new entries, and as a leader it
          packs none. It still votes, follows, and serves the data that it has.
  silent  there is no room even for terms and votes: the groups here make no progress, as if the member were paused.

Each state ends by itself when there is room again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from quorum.log import Log
from quorum.node.events import DisksLow, LowDisk
from quorum.node.leases import disk_state as disks
from quorum.node.leases.disk_state import Disks, DiskState, SyncTimes
from quorum.node.replica.proposals import FULL_RETRY_MS
from quorum.node.replica.replica import Replica

PROBE_BYTES = 64 << 10
"""A log that has no room for this much is full: one entry of many settlements."""
REFUSED_MS = 2 * disks.SPACE_MS
"""Milliseconds for which a full log stays full. A leader resends an entry that did not fit about once a second, so a
log that takes only small entries in between is still full."""
TRANSFER_RETRY_MS = 5_000
"""Interval between attempts to hand leadership over. An attempt ends after an election timeout; while it lasts nothing
is packed, so there are pauses between."""


class DiskMonitor:
    """One per member, on its Raft thread. names: node number -> member."""

    def __init__(
        self, me: int, names: Mapping[int, str], log: Log, clock: Callable[[], float], logger: Any
    ) -> None:
        self.disks = Disks(me)
        self.syncs = SyncTimes()
        self._me = me
        self._names = names
        self._log = log
        self._clock = clock
        self._logger = logger
        self._next_look_ms = 0
        self._rolls = 0
        """of the log, at the last look"""
        self._silent_until_ms = 0
        self._next_transfer_ms: dict[int, int] = {}
        """group -> time before which no attempt is made to hand its leadership to a member with a better disk"""
        self._told: dict[int, tuple[int, ...]] = {}
        self.is_silent = False

    def become(self, number: int) -> None:
        """This node is the member with this number."""
        self._me = self.disks.me = number

    # ---- every step

    def can_write_votes(self, now_ms: int) -> bool:
        """Whether the log has room for the records that a group needs to take part at all (terms, votes, cuts)."""
        if self.is_silent and now_ms < self._silent_until_ms:
            return False
        was_silent, self.is_silent = self.is_silent, not self._log.make_small_room()
        if self.is_silent:
            self._silent_until_ms = now_ms + FULL_RETRY_MS
        if self.is_silent != was_silent:
            self._logger.error(
                "log has no room for votes: groups stop" if self.is_silent else "groups run again"
            )
        return not self.is_silent

    def sync(self) -> None:
        """Syncs the log and notes how long that took."""
        log = self._log
        if log.is_synced:
            log.sync()  # it writes nothing, and says whether the disk has failed
            return
        started = self._clock()
        log.sync()
        ended = self._clock()
        self.syncs.took(round((ended - started) * 1_000_000), int(ended * 1000))

    # ---- now and then

    def look(self, now_ms: int, replicas: Iterable[Replica]) -> None:
        """Once a second, and when the log has taken another segment: fills the reserve, measures the room, hands
        leadership over."""
        rolls = self._log.stats.rolls
        if now_ms < self._next_look_ms and rolls == self._rolls:
            return
        self._rolls = rolls
        self._next_look_ms = now_ms + disks.SPACE_MS
        while self._log.refill_reserve():
            self._logger.info("reserve filled up", reserve_bytes=self._log.space().reserve_bytes)
        space = self._log.space()
        groups = list(replicas)
        has_refused = any(
            each.raft.is_full or now_ms < each.proposals.full_until_ms + REFUSED_MS for each in groups
        )
        is_full = space.is_low and (self.is_silent or has_refused or not self._log.make_room(PROBE_BYTES))
        before = self.disks.own
        self.disks.own = DiskState(
            space.free_bytes,
            space.limit_bytes,
            self.syncs.p99_us(),
            space.is_low,
            is_full,
            self.syncs.is_slow(now_ms),
        )
        self._say(before, self.disks.own, space.reserve_bytes)
        if (
            self.disks.own.is_worse_to_lead and before.is_worse_to_lead
        ):  # by now the others have said how they are
            for replica in groups:
                self._transfer_leadership(replica, now_ms)

    def _say(self, before: DiskState, now: DiskState, reserve_bytes: int) -> None:
        figures = {
            "free_bytes": now.free_bytes,
            "limit_bytes": now.limit_bytes,
            "reserve_bytes": reserve_bytes,
        }
        if now.is_low and not before.is_low:
            self._logger.warning("disk space low: publishes are refused", **figures)
        if now.is_full and not before.is_full:
            self._logger.error("disk full: this member's log takes no entries", **figures)
        if before.is_full and not now.is_full:
            self._logger.info("the log takes entries again", **figures)
        if before.is_low and not now.is_low:
            self._logger.info("disk space is back", **figures)
        if now.is_slow and not before.is_slow:
            self._logger.warning("disk slow: others should lead", sync_p99_us=now.sync_p99_us)
        if before.is_slow and not now.is_slow:
            self._logger.info("the disk is fast again", sync_p99_us=now.sync_p99_us)

    def low_groups(self, now_ms: int, voters: Callable[[], Mapping[int, Iterable[int]]]) -> DisksLow | None:
        """The groups that must get no publishes, if they have changed. voters(): group -> the nodes that vote in it."""
        low = self.disks.low(now_ms)
        if not low and not self._told:
            return None
        found = {
            group: nodes
            for group, members in voters().items()
            if (nodes := tuple(node for node in low if node in members))
        }
        if found == self._told:
            return None
        self._told = found
        return DisksLow(
            {group: tuple(self._low_disk(node, now_ms) for node in nodes) for group, nodes in found.items()}
        )

    def _low_disk(self, node: int, now_ms: int) -> LowDisk:
        state = self.disks.state(node, now_ms)
        name = self._names.get(node, str(node))
        return LowDisk(name, -1, 0) if state is None else LowDisk(name, state.free_bytes, state.limit_bytes)

    def should_drain_clients(self, now_ms: int) -> bool:
        """Whether this member's log is full while another's is not: then it learns of nothing new either, and its
        clients are better served by another member."""
        others = (self.disks.state(node, now_ms) for node in self._names if node != self._me)
        return self.disks.own.is_full and any(state is not None and not state.is_full for state in others)

    # ---- leadership

    def _transfer_leadership(self, replica: Replica, now_ms: int) -> None:
        if not replica.raft.is_leader or now_ms < self._next_transfer_ms.get(replica.number, 0):
            return
        self._next_transfer_ms[replica.number] = now_ms + TRANSFER_RETRY_MS
        # who can lead at once first
        order = sorted(self._names.items(), key=lambda each: (not replica.has_applied(each[1]), each))
        for node, successor in order:
            state = self.disks.state(node, now_ms)
            if node == self._me or state is None or state.is_worse_to_lead:
                continue
            if replica.raft.transfer_leadership(successor):
                reason = "disk full" if self.disks.own.is_full else "disk slow"
                self._logger.warning(
                    "handing leadership over", group=replica.number, to=successor, reason=reason
                )
                return
