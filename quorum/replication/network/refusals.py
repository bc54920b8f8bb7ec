"""What a node knows and logs of refused handshakes: a line about some of them, and when a member was refused last."""

from __future__ import annotations

import logging
from typing import Any, Literal

WARN_EVERY_S = 1.0
"""Least time between two lines of one level."""
REPEAT_EVERY_S = 60.0
"""Least time between two lines about the same peer and reason."""

Level = Literal["warning", "info"]


class Refusals:
    """The refusals of one node's network."""

    def __init__(self, log: Any) -> None:
        """log: a logger of structlog."""
        self._log = log
        self._logged_s = {"warning": float("-inf"), "info": float("-inf")}
        """when a refused peer was last logged at this level"""
        self._refused_s: dict[tuple[str | None, str], float] = {}
        """when each reason was logged for a peer, within REPEAT_EVERY_S"""
        self._answered_no_s: dict[str, float] = {}
        """when a handshake with a member was refused last, by it or by this node"""

    def note_member(self, peer: str, now: float) -> None:
        """Note that a handshake with a member was refused, by it or by this node."""
        self._answered_no_s[peer] = now

    def forget_member(self, peer: str) -> None:
        """Note that a handshake with a member has succeeded."""
        self._answered_no_s.pop(peer, None)

    def last_s(self, peer: str) -> float:
        """When a handshake with this member was refused last; minus infinity for never."""
        return self._answered_no_s.get(peer, float("-inf"))

    def log(self, now: float, level: Level, peer: str | None, address: str, reason: str, total: int) -> None:
        """Log a refusal, unless a line of this level or of this peer and reason came a moment ago. peer: the name that
        it claims, None if it has said none. total: of all refusals since the start."""
        said = (peer, reason)
        is_repeated = now < self._refused_s.get(said, float("-inf")) + REPEAT_EVERY_S
        if now < self._logged_s[level] + WARN_EVERY_S or is_repeated:
            return
        self._logged_s[level] = now
        recent = {key: at for key, at in self._refused_s.items() if now < at + REPEAT_EVERY_S}
        self._refused_s = {**recent, said: now}
        named = {} if peer is None else {"peer": peer}
        self._log.log(
            logging.WARNING if level == "warning" else logging.INFO,
            "peer refused",
            **named,
            address=address,
            reason=reason,
            refused=total,
        )
