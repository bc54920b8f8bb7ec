"""Node leases, which say which node may deliver a group's messages: the holder's side and the leader's side.

Every node sends every other node a heartbeat. The answer says which node leads which group, in which term. Times are of
the sender's own clock, which the answer echoes; that clock must count suspended time.

*Holder.* A node may deliver a group's messages until `sent + lease`, where `sent` is when it sent the latest heartbeat
that the group's leader has answered as leader in the term the holder knows. If the holder is itself the leader, a
majority of the group's voters must have answered that they follow it in its term; so a leader that was paused or cut
off loses its own lease. An only voter answers itself with each of its heartbeats, so its lease also ends.

*Lease times* are the cluster's (catalog/lease_times.py). The leader's answer names the lease that it grants. A member
that does not know the cluster's times grants nothing and declares no node down.

*Leader.* It declares a node's process down only `lease + drift` after it last heard of it, and, after its election, not
before `lease + step_down + drift`: by then every lease that an earlier leader granted has ended. A heartbeat of a newer
process of the same node proves that the older one is gone, as processes exclude each other from a data directory.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import field

from fifo.frozen_dataclasses import dataclass
from quorum.catalog.lease_times import LeaseSettings
from quorum.node.errors import PeerFrameError
from quorum.node.leases import disk_state as disks
from quorum.node.leases.disk_state import DiskState
from quorum.replication.configuration import majority

HEARTBEAT_MS = 400
"""Interval between a node's heartbeats, or a third of the shorter lease time if that is less (catalog/lease_times.py).
"""
DRIFT_MS = 500
"""How far two members' clocks may drift apart within a lease, with a margin."""

_HEARTBEAT = struct.Struct("<QQQQ")
_ANSWER = struct.Struct("<QH")
_GROUP = struct.Struct("<IIQIQI")
_MOST = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """sent_ms: sender's clock; boot: its process; wall_ms: its wall clock, for group time; disk: its own; low: the
    nodes whose disks it knows to be low. lease_revision: of the lease settings that it uses, 0 for none."""

    sent_ms: int
    boot: int
    wall_ms: int
    disk: DiskState = disks.UNKNOWN
    low: tuple[int, ...] = ()
    lease_revision: int = 0

    def encode(self) -> bytes:
        head = _HEARTBEAT.pack(self.sent_ms, self.boot, self.wall_ms, self.lease_revision)
        return head + self.disk.encode(self.low)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Heartbeat:
        try:
            sent, boot, wall, revision = _HEARTBEAT.unpack_from(data)
            disk, low = disks.decode(data[_HEARTBEAT.size :])
        except (struct.error, disks.DiskStateError) as error:
            raise PeerFrameError(f"a heartbeat of {len(data)} bytes: {error}") from error
        return cls(sent, boot, wall, disk, low, revision)


@dataclass(frozen=True, slots=True)
class LeaderView:
    """A member's view of one group. leader: the node number of the leader that it follows, 0 for none. behind: how many
    entries it knows to be committed and has not applied. The leader itself adds lease_ms: the lease that it grants with
    this answer, and time_ms: group time at this moment, 0 where it cannot tell."""

    leader: int
    term: int
    lease_ms: int = 0
    time_ms: int = 0
    behind: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """sent_ms: of the heartbeat that is answered."""

    sent_ms: int
    groups: Mapping[int, LeaderView]

    def encode(self) -> bytes:
        parts = [_ANSWER.pack(self.sent_ms, len(self.groups))]
        parts += [
            _GROUP.pack(group, view.leader, view.term, view.lease_ms, view.time_ms, min(view.behind, _MOST))
            for group, view in self.groups.items()
        ]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> HeartbeatAnswer:
        try:
            sent, count = _ANSWER.unpack_from(data)
            rows = [_GROUP.unpack_from(data, _ANSWER.size + i * _GROUP.size) for i in range(count)]
        except struct.error as error:
            raise PeerFrameError(f"a heartbeat answer of {len(data)} bytes is cut off") from error
        return cls(sent, {group: LeaderView(*rest) for group, *rest in rows})


_NOTHING = LeaderView(0, 0)


@dataclass(slots=True)
class Leases:
    """One member's view. Node numbers are positive; times are of its own clock."""

    me: int
    settings: LeaseSettings | None = None
    """None: not known here yet."""
    answers: dict[int, dict[int, tuple[int, LeaderView]]] = field(default_factory=dict)
    """peer -> group -> (sent_ms of the heartbeat answered, what was said)"""
    heard: dict[int, tuple[int, int]] = field(default_factory=dict)
    """node -> (boot, when last heard)"""
    elected_ms: dict[int, int] = field(default_factory=dict)

    revisions: dict[int, int] = field(default_factory=dict)
    """node -> the revision of the lease settings that it uses, as it said last"""

    @property
    def revision(self) -> int:
        """Of the settings that are used here."""
        return 0 if self.settings is None else self.settings.revision

    def revision_of(self, node: int) -> int:
        return self.revision if node == self.me else self.revisions.get(node, 0)

    # ---- as holder

    def answered(self, peer: int, answer: HeartbeatAnswer) -> None:
        known = self.answers.setdefault(peer, {})
        for group, view in answer.groups.items():
            if group not in known or answer.sent_ms >= known[group][0]:
                known[group] = (answer.sent_ms, view)

    def held_until(self, group: int, leader: int, term: int, voters: Sequence[int]) -> int:
        """The time until which this node may deliver messages of the group; 0 if it may not. voters: the group's, 0
        standing for each one whose number is not known here."""
        if leader == 0:
            return 0
        if leader == self.me:
            sent_ms = self._followed_since(group, term, voters)
            return sent_ms + self.settings.granted.lease_ms if self.settings and sent_ms else 0
        sent_ms, view = self.answers.get(leader, {}).get(group, (0, _NOTHING))
        return sent_ms + view.lease_ms if (view.leader, view.term) == (leader, term) else 0

    def may_grant(self, group: int, term: int, now_ms: int, voters: Sequence[int]) -> bool:
        """Whether this node, as leader in this term, may grant leases now: a majority has said that it follows, in
        answers to heartbeats younger than the step-down time. So no lease is granted later than that after a
        successor's election; the successor counts on it (`is_down`). Answers that waited in a buffer while this node
        was paused count for no more than their age."""
        if self.settings is None:
            return False
        return self._followed_since(group, term, voters) + self.settings.granted.step_down_ms > now_ms

    def _followed_since(self, group: int, term: int, voters: Sequence[int]) -> int:
        """When this node, as leader in this term, sent the latest heartbeat that a majority of the voters has answered
        as followers; 0 if there is none."""
        if self.me not in voters:
            return 0
        others = [voter for voter in voters if voter not in (0, self.me)]
        sent = sorted(
            (
                at
                for at, view in self._answers_for(group, others)
                if (view.leader, view.term) == (self.me, term)
            ),
            reverse=True,
        )
        needed = majority(len(voters)) - 1  # of the others, with this node
        if needed == 0:
            return self.heard.get(self.me, (0, 0))[1]
        return sent[needed - 1] if len(sent) >= needed else 0

    def _answers_for(self, group: int, peers: Sequence[int]) -> list[tuple[int, LeaderView]]:
        return [self.answers[peer][group] for peer in peers if group in self.answers.get(peer, {})]

    # ---- as leader

    def hear(self, node: int, boot: int, now_ms: int) -> None:
        known = self.heard.get(node)
        if known is None or boot >= known[0]:
            self.heard[node] = (boot, now_ms)

    def elected(self, group: int, now_ms: int) -> None:
        self.elected_ms[group] = now_ms

    def is_down(self, group: int, node: int, boot: int, now_ms: int) -> bool:
        """Whether the leader of `group` may declare this process of the node down."""
        known = self.heard.get(node)
        if known is not None and known[0] > boot:
            return True
        if self.settings is None:
            return False
        awaited = self.settings.awaited
        if now_ms - self.elected_ms.get(group, now_ms) <= awaited.lease_ms + awaited.step_down_ms + DRIFT_MS:
            return False
        last = known[1] if known is not None else self.elected_ms[group]
        return now_ms - last > awaited.lease_ms + DRIFT_MS
