"""Spreads the groups' leaders over the members, after a start, a failover or a drain.

The leader of the system group decides alone. It moves one leader at a time, from a member that leads at least two
groups more than another one, and only in a settled cluster: nothing that a move depends on has changed for a while.
A move is itself such a change, so there is a pause between two moves. No leader moves

  - while a member is away, because each election postpones the moment at which its processes may be declared down
  - while a member leads that should not: one that is drained, or has a slow or full disk, hands over by itself
  - to such a member, or to one that has not applied nearly everything that is committed
  - if its group has moved a short time ago (GROUP_PAUSE): a member that cannot lead a group for long does not get it
    again and again

A publish waits for a move no longer than for an election: a leader hands over only to a member that has, and has
applied, nearly all of its log (Membership.transfer_leadership).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from quorum.node.cluster.disk_monitor import DiskMonitor
from quorum.node.cluster.membership import Membership
from quorum.node.cluster.peers import Peers
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.replica.replicas import Replicas

GROUP_PAUSE = 12
"""Minimum interval between two moves of one group, as a multiple of `settled_ms`: a minute."""


def find_move(
    leaders: Mapping[int, str], voters: Mapping[int, Collection[str]], able: Sequence[str]
) -> tuple[int, str] | None:
    """The next group whose leader should change, and the member that should lead it; None if no move helps. If a member
    that may not lead leads a group, this group comes first.

    leaders: group -> its leader, for all groups that are counted. voters: group -> the members that may get it; empty
    if the group must not move. able: the members that may lead; among equal ones, the first is chosen."""
    led = Counter(leader for leader in leaders.values() if leader in able)
    best: tuple[int, str] | None = None
    best_gain = 1
    # of equal groups, the system group is the last: its next leader has to watch the cluster for a while
    for group in sorted(leaders, key=lambda each: (each == SYSTEM_GROUP, each)):
        leader = leaders[group]
        targets = [member for member in able if member in voters[group]]
        if not targets:
            continue
        target = min(targets, key=led.__getitem__)
        gain = led[leader] - led[target] if leader in able else len(leaders) + 1
        if gain > best_gain:
            best, best_gain = (group, target), gain
    return best


class LeaderSpread:
    """The part of a member that spreads leaders. Times are of the member's clock."""

    def __init__(
        self,
        replicas: Replicas,
        membership: Membership,
        peers: Peers,
        disk_monitor: DiskMonitor,
        logger: Any,
        settled_ms: int | None,
    ) -> None:
        """settled_ms: a leader moves only after nothing relevant has changed for this time. None: leaders never
        move."""
        self._replicas = replicas
        self._membership = membership
        self._peers = peers
        self._disk_monitor = disk_monitor
        self._logger = logger
        self._settled_ms = settled_ms
        self._seen: object = None
        """what moves depend on, at the last look"""
        self._unchanged_since_ms = 0
        """the time of the last change, or of the last move"""
        self._next_move_ms: dict[int, int] = {}
        """group -> time before which it does not move again"""

    def turn(self, now_ms: int) -> None:
        """Moves a leader if the cluster is settled and one member leads too many groups."""
        settled_ms = self._settled_ms
        if settled_ms is None or not self._replicas[SYSTEM_GROUP].leads or self._membership.is_leaving:
            self._seen = None
            return
        able, is_anybody_away = self._able(now_ms)
        leaders = {number: each.raft.leader for number, each in self._replicas.items()}
        seen = (able, is_anybody_away, leaders, [each.raft.term for each in self._replicas.values()])
        if seen != self._seen:
            self._seen, self._unchanged_since_ms = seen, now_ms
        if is_anybody_away or now_ms - self._unchanged_since_ms < settled_ms:
            return
        known = {number: leader for number, leader in leaders.items() if leader in able}
        if len(known) < len(leaders):
            return
        voters = {
            number: [voter for voter in each.raft.configuration.voters if each.has_applied(voter)]
            if each.raft.is_settled and now_ms >= self._next_move_ms.get(number, 0)
            else ()
            for number, each in self._replicas.items()
        }
        move = find_move(known, voters, able)
        if move is not None:
            self._unchanged_since_ms = now_ms
            self._next_move_ms[move[0]] = now_ms + GROUP_PAUSE * settled_ms
            self._move(*move)

    def _move(self, group: int, target: str) -> None:
        directory = self._membership.member_directory
        leader = self._replicas[group].raft.leader
        self._logger.info(
            "spreading leaders", group=group, leader=directory.name_of(leader), to=directory.name_of(target)
        )
        self._membership.transfer(group, target)

    def _able(self, now_ms: int) -> tuple[list[str], bool]:
        """The members that may lead, in the order of their numbers, and whether any member is away."""
        disks = self._disk_monitor.disks
        able, is_anybody_away = [], False
        for each in sorted(self._membership.catalog.members.by_id.values(), key=lambda each: each.number):
            disk = disks.state(each.number, now_ms)
            if not self._peers.is_reachable(each.id) or disk is None:
                is_anybody_away = True
            elif not each.is_drained and not disk.is_worse_to_lead:
                able.append(each.id)
        return able, is_anybody_away
