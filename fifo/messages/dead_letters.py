"""Dead messages: those that have left a queue with a dead-letter target, and that the target does not have yet.

A message dies when it leaves for one of CAUSES. It is then in the place *dead*: no consumer gets it, no view shows it,
and its body is kept. The leader's node brings dead messages to the target (quorum/api/dead_letters/worker.py):

1. ClaimDead says that a worker begins. Its epoch is higher than those of all workers before it.
2. Some dead messages get numbers, the lowest sequences first. Numbers ascend, and no number is given twice. A purge may
   take messages with numbers away, so some numbers may be missing. They are the client sequences with which the
   messages are published to the target.
3. SettleDead says up to which number the target has confirmed all. These messages are gone, and others get numbers.

A claim is state, so the next leader continues with the same numbers, and the target drops what it has taken already.
Sequences could not be these numbers: messages die in any order, and a group refuses a number below the highest one that
it has taken. The epoch is that of the worker's session at the target, so it fences the sessions before it. SettleDead
of an earlier worker is refused.

All workers of a queue publish as one producer. Its name is random and state of the queue. No client may learn it: a
client that knew it could take the place of the worker at the target, which would drop the dead letters as repeats.

A dead message is counted by its cause when it is gone, like any message (`Messages.left_count`). `forwarded_count` says
how many of these the target has.
"""

from __future__ import annotations

from dataclasses import replace

from sortedcontainers import SortedList

from fifo.frozen_dataclasses import dataclass
from fifo.limits import Limits
from fifo.messages import bitsets
from fifo.messages.block_store import BlockStore
from fifo.messages.blocks import Block, Stored

CAUSES = ("expired", "rejected", "delivery_limit", "maxlen")
"""The causes of death. Blocks and claims name them by their places here: more are added at the end."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Neighbouring messages of one block that have died of the same cause, and have numbers. number, sequence: of the
    first one. time_ms: group time of the claim. epoch: of the worker then."""

    number: int
    sequence: int
    count: int
    time_ms: int
    epoch: int


class DeadLetters:
    """The dead messages of one queue."""

    __slots__ = (
        "blocks",
        "claims",
        "count",
        "epoch",
        "forwarded_count",
        "last_number",
        "limits",
        "numbers",
        "problem",
        "producer",
        "size_bytes",
    )

    def __init__(self, blocks: BlockStore, limits: Limits) -> None:
        self.blocks = blocks
        self.limits = limits
        self.count = 0
        self.size_bytes = 0
        """of the dead messages, while there is a limit on bytes; else 0"""
        self.numbers: SortedList[int] = SortedList()
        """the numbers of the blocks with dead messages"""
        self.claims: tuple[Claim, ...] = ()
        """ascending; the first begins above the last number that was settled"""
        self.last_number = 0
        self.epoch = 0
        """of the last worker that has begun"""
        self.producer = b""
        """of the workers' sessions; empty before the first one"""
        self.forwarded_count = 0
        self.problem = ""
        """why the target does not take the first claim; empty if it does, as far as is known"""

    @property
    def claimed_count(self) -> int:
        return sum([claim.count for claim in self.claims])

    # ---- dying

    def add(self, block: Block, cause: str, members: int) -> None:
        """Messages of a block, which are in no place's set any more, have died."""
        if not block.deaths:
            self.numbers.add(block.number)
        place = CAUSES.index(cause)
        block.deaths[place] = block.deaths.get(place, 0) | members
        self.count += members.bit_count()

    def remove(self, block: Block, members: int) -> list[tuple[str, int]]:
        """These dead messages of a block are gone. Returns them by their causes."""
        block.stored = None
        found = [(CAUSES[place], dead & members) for place, dead in sorted(block.deaths.items())]
        left = {place: dead & ~members for place, dead in block.deaths.items()}
        block.deaths = {place: dead for place, dead in left.items() if dead}
        if not block.deaths:
            self.numbers.remove(block.number)
        self._lose(members.bit_count())
        return found

    def forget(self, block: Stored) -> None:
        """All dead messages of a cold block are gone."""
        self.numbers.remove(block.number)
        self._lose(block.dead_count)

    def _lose(self, count: int) -> None:
        self.count -= count
        if not self.count:
            self.problem = ""

    def restored(self, block: Block | Stored) -> None:
        """A block with dead messages was read from a snapshot or checkpoint."""
        self.numbers.add(block.number)
        self.count += block.dead_count

    # ---- claims

    def claim(self, now_ms: int) -> int:
        """Gives numbers to dead messages, as far as claims are allowed. Returns how many have numbers now. It reads a
        bounded number of blocks, those with messages that have no number."""
        wanted, left = self.limits.max_claimed - self.claimed_count, self.limits.block_budget
        claimed = self._claimed()
        made = list(self.claims)
        for number in self.numbers:
            if wanted <= 0 or left <= 0:
                break
            if self.blocks.at(number).dead_count == claimed.get(number, 0).bit_count():
                continue
            left -= 1
            block = self.blocks.get(number)
            unclaimed = block.dead & ~claimed.get(number, 0)
            for slot, count in self._stretches(block, bitsets.lowest(unclaimed, wanted)):
                made.append(Claim(self.last_number + 1, block.base + slot, count, now_ms, self.epoch))
                self.last_number += count
                wanted -= count
        self.claims = tuple(made)
        return self.claimed_count

    def _claimed(self) -> dict[int, int]:
        """The messages with numbers, by their blocks."""
        found: dict[int, int] = {}
        for claim in self.claims:
            number, slot = claim.sequence >> self.limits.block_bits, claim.sequence & self.limits.slot_mask
            found[number] = found.get(number, 0) | bitsets.span(slot, claim.count)
        return found

    def _stretches(self, block: Block, members: int) -> list[tuple[int, int]]:
        """(slot, count) of neighbours that have died of the same cause, ascending."""
        return sorted([each for dead in block.deaths.values() for each in bitsets.ranges(dead & members)])

    def take_claims(self, to: int) -> list[tuple[int, int]]:
        """Removes the claims up to this number. Returns their messages as (sequence, count)."""
        found, left = [], []
        for claim in self.claims:
            taken = min(max(to + 1 - claim.number, 0), claim.count)
            if taken:
                found.append((claim.sequence, taken))
            if taken < claim.count:
                rest = replace(
                    claim,
                    number=claim.number + taken,
                    sequence=claim.sequence + taken,
                    count=claim.count - taken,
                )
                left.append(rest)
        self.claims = tuple(left)
        return found

    def drop_claims(self, before: int) -> None:
        """The dead messages with a sequence below `before` are gone: their claims end. Their numbers are not given
        again, so they are missing between those of others."""
        kept: list[Claim] = []
        for claim in self.claims:
            gone = min(max(before - claim.sequence, 0), claim.count)
            if gone < claim.count:
                kept.append(
                    replace(
                        claim,
                        number=claim.number + gone,
                        sequence=claim.sequence + gone,
                        count=claim.count - gone,
                    )
                )
        self.claims = tuple(kept)
