"""Dead messages: those that have left a queue with a dead-letter target, and that the target does not have yet.

A message dies when it leaves for one of CAUSES. It is then in the place *dead*: no consumer gets it, no view shows it,
and its body is kept. The leader's node brings dead messages to the target (quorum/api/dead_letters.py):

1. ClaimDead gives numbers to some dead messages, the lowest sequences first. Numbers ascend and are dense, and no
   number is given twice. They are the client sequences with which the messages are published to the target.
2. SettleDead says up to which number the target has confirmed all. These messages are gone.

A claim is state, so the next leader continues with the same numbers, and the target drops what it has taken already.
Sequences could not be these numbers: messages die in any order, and a group refuses a number below the highest one that
it has taken. `epoch` is raised by each worker that begins, so that its session fences the ones before it.

A dead message is counted by its cause when it is gone, like any message (`Messages.left_count`). `forwarded_count` says
how many of these the target has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sortedcontainers import SortedList

from fifo.commands import ClaimDead
from fifo.limits import Limits
from fifo.messages import bitsets
from fifo.messages.block_store import BlockStore
from fifo.messages.blocks import Block, Stored

CAUSES = ("expired", "rejected", "delivery_limit", "maxlen")
"""The causes of death. Blocks and claims name them by their places here: more are added at the end."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Neighbouring dead messages with numbers. number, sequence: of the first one. cause: its place in CAUSES. time_ms:
    group time of the claim."""

    number: int
    sequence: int
    count: int
    cause: int
    time_ms: int


class DeadLetters:
    """The dead messages of one queue."""

    __slots__ = (
        "blocks",
        "claims",
        "count",
        "counts_bytes",
        "epoch",
        "forwarded_count",
        "is_new",
        "last_number",
        "limits",
        "numbers",
        "problem",
        "size_bytes",
    )

    def __init__(self, blocks: BlockStore, limits: Limits) -> None:
        self.blocks = blocks
        self.limits = limits
        self.count = 0
        self.counts_bytes = False
        """whether the queue has a limit on bytes"""
        self.size_bytes = 0
        """of the dead messages, while there is a limit on bytes; else 0"""
        self.numbers: SortedList[int] = SortedList()
        """the numbers of the blocks with dead messages"""
        self.claims: tuple[Claim, ...] = ()
        """ascending; the first begins above the last number that was settled"""
        self.last_number = 0
        self.epoch = 0
        self.forwarded_count = 0
        self.problem = ""
        """why the target does not take the first claim; empty if it does, as far as is known"""
        self.is_new = False
        """local: a message has died since the member looked"""

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
        if self.counts_bytes:
            self.size_bytes += block.bytes_of(members)
        self.is_new = True

    def remove(self, block: Block, members: int) -> list[tuple[str, int]]:
        """These dead messages of a block are gone. Returns them by their causes."""
        block.stored = None
        if self.counts_bytes:
            self.size_bytes -= block.bytes_of(members)
        self.count -= members.bit_count()
        found = [(CAUSES[place], dead & members) for place, dead in sorted(block.deaths.items())]
        left = {place: dead & ~members for place, dead in block.deaths.items()}
        block.deaths = {place: dead for place, dead in left.items() if dead}
        if not block.deaths:
            self.numbers.remove(block.number)
        return found

    def count_bytes(self, *, counts_bytes: bool) -> None:
        """A limit on bytes is new, or there is none any more: a few steps a block."""
        self.counts_bytes = counts_bytes
        self.size_bytes = (
            sum([self.blocks.at(number).dead_bytes for number in self.numbers]) if counts_bytes else 0
        )

    def restored(self, block: Block | Stored) -> None:
        """A block was read from a snapshot or checkpoint."""
        if block.dead_count:
            self.numbers.add(block.number)
            self.count += block.dead_count
            if self.counts_bytes:
                self.size_bytes += block.dead_bytes

    # ---- claims

    def claim(self, now_ms: int, command: ClaimDead) -> int:
        """Gives numbers to dead messages, as far as claims are allowed. Returns how many are claimed now. It visits a
        bounded number of blocks: those whose dead messages are all claimed count, too."""
        self.epoch += command.begins
        if command.again:
            self.claims = ()
        wanted = self.limits.max_claimed - self.claimed_count
        made = list(self.claims)
        for number in list(self.numbers.islice(0, self.limits.block_budget)):
            if wanted <= 0:
                break
            block = self.blocks.get(number)
            unclaimed = block.dead & ~self._claimed(block)
            for slot, count, cause in self._stretches(block, bitsets.lowest(unclaimed, wanted)):
                made.append(Claim(self.last_number + 1, block.base + slot, count, cause, now_ms))
                self.last_number += count
                wanted -= count
        self.claims = tuple(made)
        return self.claimed_count

    def _claimed(self, block: Block) -> int:
        """The claimed messages of a block. A claim is within one block."""
        found = 0
        for claim in self.claims:
            if 0 <= claim.sequence - block.base < block.size:
                found |= bitsets.span(claim.sequence - block.base, claim.count)
        return found

    def _stretches(self, block: Block, members: int) -> list[tuple[int, int, int]]:
        """(slot, count, cause) of neighbours that have died of the same cause, ascending."""
        return sorted(
            [
                (slot, count, cause)
                for cause, dead in block.deaths.items()
                for slot, count in bitsets.ranges(dead & members)
            ]
        )

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
        """The dead messages with a sequence below `before` are gone: their claims end. Their numbers stay used."""
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
