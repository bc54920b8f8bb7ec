"""What a node logs about its health: its standing in the cluster, who leads the Raft groups, and which other members
cannot be reached.

Every change is one line. A state that most starts and failovers pass through is logged only if it lasts: founding
members that have not met, groups without a leader, and members that cannot be reached.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from quorum.node.queries import STANDINGS, Health

MEETING_S = 5.0
"""Time after which founding members that have not met are worth a warning."""
NO_LEADER_S = 3.0
"""Time after which a group without a leader is worth a warning: an election takes about one second."""
NO_LEADER = (
    "publishes to the queues of these groups wait, and their consumers get nothing, until a majority of the members "
    "is reachable"
)

UNREACHABLE_S = 3.0
"""Time after which a member that cannot be reached is worth a warning."""
UNREACHABLE = (
    "it does not run, the network between is broken, or a line `peer refused` names its address; the cluster serves "
    "as long as a majority of its members can reach each other"
)


class HealthLog:
    """Follows the health of one node. All times are seconds of one clock."""

    def __init__(self) -> None:
        self._logger = structlog.get_logger()
        self._standing, self._standing_since_s = "", 0.0
        self._is_standing_logged = True
        self._leaders: dict[int, tuple[str, int]] = {}
        """the leader and term that were logged last, by group"""
        self._leaderless_since_s: dict[int, float] = {}
        self._warned: set[int] = set()
        """groups without a leader that were logged"""
        self._unreachable_since_s: dict[str, float] = {}
        self._missed: set[str] = set()
        """members that cannot be reached and were logged"""

    def follow(self, health: Health, now_s: float) -> None:
        """Log what has changed since the last call."""
        self._follow_standing(health.standing, now_s, is_known_better=health.is_catching_up)
        if health.standing == "member":
            self._follow_leaders(health, now_s)
            self._follow_others(health.others, health.refused, now_s)

    def _follow_standing(self, standing: str, now_s: float, *, is_known_better: bool) -> None:
        if standing != self._standing:
            self._standing, self._standing_since_s = standing, now_s
            self._is_standing_logged = standing == "member"
        lasts = standing != "meeting" or now_s - self._standing_since_s >= MEETING_S
        if lasts and not self._is_standing_logged and not is_known_better:
            self._is_standing_logged = True
            self._logger.warning("not serving", standing=standing, meaning=STANDINGS[standing])

    def _follow_leaders(self, health: Health, now_s: float) -> None:
        missing: list[int] = []
        for group, found in health.leaderships.items():
            if not found.leader:
                since_s = self._leaderless_since_s.setdefault(group, now_s)
                if group not in self._warned and now_s - since_s >= NO_LEADER_S:
                    missing.append(group)
                continue
            self._leaderless_since_s.pop(group, None)
            self._warned.discard(group)
            if self._leaders.get(group) != (found.leader, found.term):
                self._leaders[group] = found.leader, found.term
                self._logger.info("leader of a group", group=group, leader=found.leader, term=found.term)
        if missing:
            self._warned.update(missing)
            since_s = min(self._leaderless_since_s[group] for group in missing)
            self._logger.warning(
                "groups without a leader", groups=missing, for_s=round(now_s - since_s, 1), meaning=NO_LEADER
            )

    def _follow_others(self, others: Mapping[str, bool], refused: Collection[str], now_s: float) -> None:
        """refused: members whose refusal is logged already, with its reason."""
        for name, is_reachable in others.items():
            since_s = self._unreachable_since_s.setdefault(name, now_s)
            if is_reachable:
                del self._unreachable_since_s[name]
                if name in self._missed:
                    self._missed.discard(name)
                    self._logger.info(
                        "member can be reached again", member=name, after_s=round(now_s - since_s, 1)
                    )
            elif name not in self._missed and name not in refused and now_s - since_s >= UNREACHABLE_S:
                self._missed.add(name)
                self._logger.warning(
                    "member cannot be reached",
                    member=name,
                    reachable=f"{1 + sum(others.values())} of {1 + len(others)} members",
                    for_s=round(now_s - since_s, 1),
                    meaning=UNREACHABLE,
                )
        for name in self._unreachable_since_s.keys() - others.keys():  # no members any more
            del self._unreachable_since_s[name]
            self._missed.discard(name)
