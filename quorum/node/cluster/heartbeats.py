"""Heartbeats between members, and the delivery leases that follow from their answers.

Every member sends every other member a heartbeat: its boot number, its wall clock, the state of its disk. The answer
names the leaders that the answering member follows. From these answers a node derives how long it may deliver
(leases.py) and the time of each group (group_clock.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quorum.node import events as ev
from quorum.node.cluster.disk_monitor import DiskMonitor
from quorum.node.cluster.peers import Peers
from quorum.node.identity.member_directory import MemberDirectory
from quorum.node.leases.leases import HEARTBEAT_MS, Heartbeat, HeartbeatAnswer, LeaderView, Leases
from quorum.node.replica.replica import Replica
from quorum.node.schedule import Due
from quorum.node.wire.frames import Data, FrameTable, Send

KIND_HEARTBEAT, KIND_HEARTBEAT_ANSWER = BEAT_KINDS = 2, 3


class Heartbeats:
    """One of a member. Times are of the member's clock, which counts suspended time."""

    def __init__(
        self,
        leases: Leases,
        member_directory: MemberDirectory,
        peers: Peers,
        boot: int,
        replicas: Mapping[int, Replica],
        disk_monitor: DiskMonitor,
        wall_ms: Callable[[], int],
        send: Send,
        outputs: ev.Outputs,
    ) -> None:
        self.leases = leases
        self.lease_until: dict[int, int] = {}
        """group -> time until which this node may deliver. A lease that a leader has granted holds to its end, even if
        that leader has been replaced, because its successor waits for that. A leader's own lease follows from its
        group's voters and is derived again when they change: it may end earlier then. The API hears of leases by
        outputs, in their order: the end of a lease is never overtaken by its renewal."""
        self._own_voters: dict[int, list[int]] = {}
        """group that this node leads -> the voters that its own lease was derived from last"""
        self.next_ms = 0
        """When the next heartbeats leave."""
        self.due = Due()
        """Also when there is something to answer, or news for the leases."""
        self._peers = peers
        self._member_directory = member_directory
        self._boot = boot
        self._replicas = replicas
        self._disk_monitor = disk_monitor
        self._wall_ms = wall_ms
        self._send = send
        self._outputs = outputs
        self._wall_offsets: dict[int, int] = {}
        self._answers_due: list[tuple[str, Heartbeat]] = []
        self._news = True
        """Facts that leases depend on may have changed."""

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_HEARTBEAT, self._heard, since=1)
        table.add(KIND_HEARTBEAT_ANSWER, self._answered, since=1)

    def _heard(self, peer: str, data: Data, now_ms: int) -> None:
        heartbeat = Heartbeat.decode(data)
        node = self._member_directory.number(peer)
        if not node:
            return  # not a member, as far as known here: no member waits for it
        self.leases.hear(node, heartbeat.boot, now_ms)
        self.leases.revisions[node] = heartbeat.lease_revision
        self._disk_monitor.disks.hear(node, heartbeat.disk, heartbeat.low, now_ms)
        self._wall_offsets[node] = heartbeat.wall_ms - now_ms
        self._answers_due.append((peer, heartbeat))
        self.due.soon()

    def _answered(self, peer: str, data: Data, now_ms: int) -> None:
        self.answered(peer, HeartbeatAnswer.decode(data), now_ms)

    def answered(self, peer: str, answer: HeartbeatAnswer, now_ms: int) -> None:
        self._news = True
        self.due.soon()
        node = self._member_directory.number(peer)
        if not node:
            return
        self.leases.answered(node, answer)
        for number, view in answer.groups.items():
            replica = self._replicas.get(number)
            if replica is None:
                continue
            replica.hear_behind(peer, view.behind if view.leader else None)
            if (view.leader, view.term) == (node, replica.raft.term):
                replica.clock.heard(view.time_ms, answer.sent_ms, now_ms, view.term)

    def leader_changed(self, replica: Replica, now_ms: int) -> None:
        self._news = True
        self.due.soon()
        if replica.raft.is_leader:
            self.leases.elected(replica.number, now_ms)
            self.next_ms = now_ms  # leases are granted once a majority has answered

    def may_deliver(self, group: int, now_ms: int) -> bool:
        return self.lease_until.get(group, 0) > now_ms

    def wall_clocks(self, now_ms: int) -> list[int]:
        """The wall clocks of all members heard of, in milliseconds, as far as known; this member's first."""
        return [self._wall_ms(), *(now_ms + offset for offset in self._wall_offsets.values())]

    def lapse(self, now_ms: int) -> None:
        """Reports each ended lease once, before a renewal is considered: messages checked out to sessions here may be
        checked out to consumers elsewhere by now, and a new lease does not change that."""
        for number, until in self.lease_until.items():
            if 0 < until <= now_ms:
                self.lease_until[number] = 0
                self._outputs.emit(ev.LeaseLapsed(number))

    def turn(self, now_ms: int) -> None:
        """Answers heartbeats, sends those that are due, and reports new leases."""
        if self._answers_due:
            groups = {number: self._view(replica, now_ms) for number, replica in self._replicas.items()}
            for peer, heartbeat in self._answers_due:
                answer = HeartbeatAnswer(heartbeat.sent_ms, groups)
                self._send(peer, KIND_HEARTBEAT_ANSWER, [answer.encode()])
            self._answers_due.clear()
        if now_ms >= self.next_ms:
            self.next_ms = now_ms + self._interval_ms
            disks = self._disk_monitor.disks
            low = tuple(disks.known_low(now_ms))
            heartbeat = Heartbeat(now_ms, self._boot, self._wall_ms(), disks.own, low, self.leases.revision)
            for peer in self._peers.all:
                self._send(peer, KIND_HEARTBEAT, [heartbeat.encode()])
            self.leases.hear(self.leases.me, self._boot, now_ms)
            self._news = True  # an only voter's lease goes by this, and voters may have changed
        self.due.next_ms = self.next_ms
        if not self._news:
            return
        self._news = False
        if not self.leases.me:
            return
        for replica in self._replicas.values():
            self._derive(replica, now_ms)

    @property
    def patience_ms(self) -> int:
        """How long a heartbeat that is due waits for a step that has another reason."""
        return self._interval_ms * 5 // 8

    @property
    def _interval_ms(self) -> int:
        """The shorter of the two lease times has room for three heartbeats. While a member idles, one may leave
        later (`patience_ms`); the times have room for that, and for the way of an answer."""
        settings = self.leases.settings
        if settings is None:
            return HEARTBEAT_MS
        granted = settings.granted
        return min(HEARTBEAT_MS, granted.lease_ms // 3, granted.step_down_ms // 3)

    def _derive(self, replica: Replica, now_ms: int) -> None:
        """Derives the lease on one group from the answers so far."""
        number, raft = replica.number, replica.raft
        leader, voters = self._member_directory.number(raft.leader), _voters(replica, self._member_directory)
        granted = self.leases.held_until(number, leader, raft.term, voters)
        until = self.lease_until.get(number, 0)
        is_leader = raft.is_leader
        is_of_other_voters = is_leader and self._own_voters.get(number, voters) != voters
        if granted > now_ms and (granted > until or is_of_other_voters):
            self.lease_until[number] = granted
            if not replica.disputed:
                self._outputs.emit(ev.LeaseGranted(number, granted))
        elif until and is_of_other_voters:
            self.lease_until[number] = 0
            self._outputs.emit(ev.LeaseLapsed(number))
        if is_leader:
            self._own_voters[number] = voters
        else:
            self._own_voters.pop(number, None)

    def _view(self, replica: Replica, now_ms: int) -> LeaderView:
        """This node's view of a group, for a heartbeat answer: it grants a lease if the leader is this node."""
        term = replica.raft.term
        leader = self._member_directory.number(replica.raft.leader)
        if leader != self.leases.me:
            return LeaderView(leader, term, behind=replica.behind)
        settings = self.leases.settings
        if settings is None or not self.leases.may_grant(
            replica.number, term, now_ms, _voters(replica, self._member_directory)
        ):
            return LeaderView(0, term)
        has_time = replica.leads and replica.clock.last
        time_ms = replica.clock.now(now_ms, self.wall_clocks(now_ms), term) if has_time else 0
        return LeaderView(leader, term, settings.granted.lease_ms, time_ms, replica.behind)


def _voters(replica: Replica, member_directory: MemberDirectory) -> list[int]:
    return [member_directory.number(voter) for voter in replica.raft.configuration.voters]
