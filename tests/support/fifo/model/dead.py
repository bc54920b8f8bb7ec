"""Dead messages as simply as they can be said: two lists (beside group.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fifo import commands as c
from fifo.messages.dead_letters import CAUSES

if TYPE_CHECKING:
    from support.fifo.model.queues import ModelQueue
    from support.fifo.model.records import Message


@dataclass(eq=False)
class Dead:
    """number: 0 until it is claimed."""

    message: Message
    cause: str
    number: int = 0
    time_ms: int = 0
    epoch: int = 0


class ModelDead:
    def __init__(self, queue: ModelQueue) -> None:
        self.queue = queue
        self.messages: list[Dead] = []
        self.last_number = 0
        self.epoch = 0
        self.producer = b""
        self.problem = ""

    def takes(self, cause: str) -> bool:
        return cause in CAUSES and self.queue.config.dead_letter_strategy != "none"

    def claimed(self) -> list[Dead]:
        return sorted([each for each in self.messages if each.number], key=lambda each: each.number)

    def inherited_to(self) -> int:
        return max([each.number for each in self.claimed() if each.epoch < self.epoch], default=0)

    def size_bytes(self) -> int:
        return sum(self.queue.size_of(each.message) for each in self.messages)

    def begin(self, now_ms: int, command: c.ClaimDead) -> int:
        self.epoch = command.epoch
        self.producer = self.producer or command.producer
        return self.claim(now_ms)

    def claim(self, now_ms: int) -> int:
        queue = self.queue
        unclaimed = sorted(
            [each for each in self.messages if not each.number], key=lambda each: each.message.sequence
        )
        blocks = list(dict.fromkeys([queue.block_of(each.message) for each in unclaimed]))
        for each in unclaimed:
            is_near = queue.block_of(each.message) in blocks[: queue.rules.block_budget]
            if is_near and len(self.claimed()) < queue.rules.max_claimed:
                self.last_number += 1
                each.number, each.time_ms, each.epoch = self.last_number, now_ms, self.epoch
        return len(self.claimed())

    def settle(self, now_ms: int, command: c.SettleDead) -> int:
        gone = [each for each in self.claimed() if each.number <= command.to]
        for each in gone:
            self.remove(each, each.cause)
        self.queue.counts["dead_lettered"] += min(command.forwarded, len(gone))
        for each in self.messages:
            each.number *= each.number > command.again_to
        if not command.problem:
            self.claim(now_ms)
        self.problem = command.problem[:200] if self.messages else ""
        return len(gone)

    def purge(self, before: int | None) -> int:
        gone = [each for each in self.messages if before is None or each.message.sequence < before]
        for each in gone:
            self.remove(each, "purged")
        return len(gone)

    def remove(self, dead: Dead, cause: str) -> None:
        self.queue.counts[cause] += 1
        self.messages.remove(dead)
        self.queue.forget_sizes(self.queue.block_of(dead.message))
        if not self.messages:
            self.problem = ""
