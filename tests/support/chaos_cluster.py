"""A cluster whose links delay, stall and break, and whose members are stepped only when something is due."""

from __future__ import annotations

import random
from typing import Any

from support.cluster import STEP_MS, Cluster


class ChaosCluster(Cluster):
    """Links that delay, stall and break; members that are only stepped when something is due."""

    def __init__(self, size: int, seed: int, **config: Any) -> None:
        self.stalled: set[tuple[str, str]] = set()
        self.slow_until_ms = 0
        self.chance = random.Random(seed)
        self.broken_until: dict[tuple[str, str], int] = {}
        super().__init__(size, seed, **config)

    def delay_ms(self, sender: str, to: str) -> int:
        slow = self.now_ms < self.slow_until_ms
        return self.chance.choice((0, 0, 0, STEP_MS, 2 * STEP_MS)) + (
            self.chance.randrange(120) if slow else 0
        )

    def is_stalled(self, sender: str, to: str) -> bool:
        return (sender, to) in self.stalled

    def is_due(self, name: str) -> bool:
        if self._inputs[name] or self.members[name].next_due_ms() <= self.clock_ms(name):
            return True
        return any(
            link and link[0][0] <= self.now_ms and not self.is_stalled(*ends)
            for ends, link in self._links.items()
            if ends[1] == name
        )

    def sever(self, one: str, other: str, for_ms: int) -> None:
        """The connection breaks: what is on its way is lost."""
        self.cut(one, other)
        self.stalled -= {(one, other), (other, one)}
        ends = (min(one, other), max(one, other))
        self.broken_until[ends] = max(self.broken_until.get(ends, 0), self.now_ms + for_ms)

    def mend(self) -> None:
        """Connections whose time has come are made again."""
        for ends, until in list(self.broken_until.items()):
            if until <= self.now_ms:
                del self.broken_until[ends]
                self._cut -= {ends, ends[::-1]}

    def heal(self) -> None:
        super().heal()
        self.broken_until.clear()
        self.stalled.clear()
        self.slow_until_ms = 0
        self.paused.clear()
