"""Decides which blocks of this node's queues are in memory. The choice is local: other members do not see it.

Blocks that will be needed soonest stay: those that a queue's head and its selectors' scan positions reach next, at the
measured rates, and the last block, which is being filled. Every other block can be read again from its page:

- A full block that will not be reached within IDLE_S is written to its page early, so that a checkpoint finds little
  to write. Blocks that are about to be consumed are not written: they would be gone before they were read.
- Above a PLAIN_PART of the target, blocks without columns are dropped: one read restores them.
- Above the target, blocks are dropped with their columns: restoring those takes reading the messages, too.
- A queue with `x-queue-mode=lazy` keeps only the blocks that are reached within AHEAD_S.
- Blocks that a reader is about to reach are read before it gets there.

A turn is bounded in blocks and bytes, and costs next to nothing while nothing happens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fifo.consumers.selector import decoded
from fifo.group_machine import GroupMachine
from fifo.messages.blocks import Block
from fifo.queries.storage import scan_positions
from fifo.queue_machine import QueueMachine
from quorum.log import LogFull

IDLE_S = 10.0
"""A block that no reader reaches within this time is idle."""
AHEAD_S = 2.0
"""A block that is reached within this time stays, and is read before it is needed."""
SETTLE_S = 5.0
"""Time after which checked-out messages are likely to be settled."""
PLAIN_PART = 32
"""Plain blocks may take this part of the memory target, 8 MiB of 256: one read restores them."""
ENOUGH = 0.9
"""Paging out ends at this part of the limit that was exceeded, so that it does not begin again immediately."""
UNREAD_S = 60.0
"""Seconds until a reader that makes no progress is assumed to start, plus one for each message of distance: the blocks
that it would reach first are paged out last."""
BLOCKS_A_TURN = 32
"""Pages written, and pages read, in a turn: ten turns a second keep up with five million messages a second."""
BYTES_A_TURN = 2 << 20
"""Bytes of blocks written in a turn: two or three milliseconds, and a million single messages a second."""
PREFETCH_BLOCKS = 8
MEASURE_MS = 500
"""Rates are taken over at least this long."""
PLAN_MS = 1_000
"""Shortest interval between walks over all warm blocks."""
SMOOTHING = 0.5


@dataclass(slots=True)
class Pace:
    """The speed of a queue's readers. positions: sequences; rates: messages a second."""

    touched_ms: int
    measured_ms: int
    positions: dict[bytes, int] = field(default_factory=dict)
    rates: dict[bytes, float] = field(default_factory=dict)

    def observe(self, now_ms: int, positions: dict[bytes, int]) -> None:
        self.touched_ms = now_ms
        passed_s = (now_ms - self.measured_ms) / 1000
        if passed_s * 1000 >= MEASURE_MS:
            rates = {}
            for reader, position in positions.items():
                rate = max(0, position - self.positions.get(reader, position)) / passed_s
                rates[reader] = SMOOTHING * rate + (1 - SMOOTHING) * self.rates.get(reader, rate)
            self.rates = rates
            self.measured_ms = now_ms
            self.positions = positions

    def wait_s(self, block: Block, now_ms: int) -> float:
        """Seconds until this block will be needed."""
        found = SETTLE_S if block.checked_out else math.inf
        is_quiet = now_ms - self.touched_ms > IDLE_S * 1000
        for reader, position in self.positions.items():
            if position < block.base + block.size:
                rate = 0.0 if is_quiet else self.rates.get(reader, 0.0)
                distance = max(0, block.base - position)
                found = min(found, distance / rate if rate > 0 else UNREAD_S + distance)
        return found


def _is_there(machines: Mapping[int, GroupMachine], group: int, queue: int) -> bool:
    return group in machines and queue in machines[group].queues


class Pager:
    """The node's memory for blocks. Turns come from the member's thread, between entries."""

    def __init__(self, target_bytes: int) -> None:
        self.target_bytes = target_bytes
        self._paces: dict[tuple[int, int], Pace] = {}
        self._busy: dict[tuple[int, int], Pace] = {}
        """those of the queues that have changed within twice IDLE_S"""
        self._seen: list[tuple[int, int, int]] = []
        """group, machine and number of queues, at the last turn"""
        self._plan: list[tuple[float, int, int, int]] = []
        """(wait, group, queue, block) of the blocks to page out next, the next one last"""
        self._next_plan_ms = 0
        self._written_bytes = 0
        self._written = 0

    def warm_bytes(self, machines: Mapping[int, GroupMachine]) -> int:
        return sum(machine.memory.warm_bytes for machine in machines.values())

    def turn(self, now_ms: int, machines: Mapping[int, GroupMachine]) -> None:
        """Checks the queues that have changed, and makes room."""
        self._written = self._written_bytes = 0
        for group, machine in machines.items():
            touched, machine.touched = machine.touched, {}
            loads = BLOCKS_A_TURN
            for queue in touched:
                queue_machine = machine.queues.get(queue)
                if queue_machine is None:
                    continue
                pace = self._paces.get((group, queue))
                if pace is None:
                    pace = self._paces[group, queue] = Pace(now_ms, now_ms)
                self._busy[group, queue] = pace
                pace.observe(now_ms, scan_positions(queue_machine))
                self._measure_tail(queue_machine)
                loads -= self._prefetch(queue_machine, pace, loads)
        seen = [(group, id(machine), len(machine.queues)) for group, machine in machines.items()]
        if seen != self._seen:  # an installed snapshot may be without queues that were there before
            self._seen = seen
            for paces in (self._paces, self._busy):
                for key in [key for key in paces if not _is_there(machines, *key)]:
                    del paces[key]
        idle = [key for key, pace in self._busy.items() if now_ms - pace.touched_ms > 2 * IDLE_S * 1000]
        for key in idle:
            del self._busy[key]
        try:
            for (group, queue), pace in self._busy.items():
                self._write_idle(machines[group], queue, pace, now_ms)
            self._make_room(now_ms, machines)
        except LogFull:
            self._plan.clear()  # a full disk: everything stays where it is

    # ---- one queue

    def _measure_tail(self, queue: QueueMachine) -> None:
        tail = next(queue.messages.blocks.latest(), None)
        if isinstance(tail, Block):
            queue.messages.blocks.measure(tail)

    def _prefetch(self, queue: QueueMachine, pace: Pace, most: int) -> int:
        """Reads the blocks that readers are about to reach; returns their number."""
        count = 0
        for reader, rate in pace.rates.items():
            position = pace.positions.get(reader)
            if position is None or rate <= 0:
                continue
            place = position >> queue.limits.block_bits
            last = place + 1 + min(PREFETCH_BLOCKS, int(rate * AHEAD_S) >> queue.limits.block_bits)
            while count < most:
                number = queue.messages.blocks.next_from(place)
                if number is None or number > last:
                    break
                is_passed = bool(reader) and queue.groups.ruled_out(decoded(reader), number) is not None
                if not is_passed and queue.messages.blocks.find_warm(number) is None:
                    queue.messages.blocks.get(number)
                    count += 1
                place = number + 1
        return count

    def _write_idle(self, machine: GroupMachine, queue: int, pace: Pace, now_ms: int) -> None:
        """Writes the blocks that have filled since the last time; a lazy queue's immediately."""
        queue_machine = machine.queues.get(queue)
        if queue_machine is None or len(queue_machine.messages.blocks) < 2:
            return
        messages = queue_machine.messages
        is_lazy = messages.config.queue_mode == "lazy"
        blocks = messages.blocks.latest()
        for block in list(blocks) if is_lazy else blocks:
            if not self._may_write():
                return
            if block.number == messages.tail:
                continue
            if not isinstance(block, Block) or (block.stored is not None and not is_lazy):
                if is_lazy:
                    continue
                return
            wait_s = pace.wait_s(block, now_ms)
            if is_lazy and wait_s > AHEAD_S:
                self._page_out(machine, queue, block)
            elif wait_s > IDLE_S and block.stored is None:
                self._note(block)
                messages.blocks.write(block)

    # ---- all of them

    def _make_room(self, now_ms: int, machines: Mapping[int, GroupMachine]) -> None:
        warm = self.warm_bytes(machines)
        limit = self.target_bytes // PLAIN_PART
        if warm <= limit:
            self._plan.clear()
            return
        if not self._plan:
            if now_ms < self._next_plan_ms:
                return
            self._next_plan_ms = now_ms + PLAN_MS
            self._plan = self._planned(now_ms, machines, plain_only=warm <= self.target_bytes)
        while self._plan and self._may_write():
            _, group, queue, number = self._plan.pop()
            machine = machines[group]
            queue_machine = machine.queues.get(queue)
            if queue_machine is None or queue_machine.messages.blocks.find_warm(number) is None:
                continue
            block = queue_machine.messages.blocks.get(number)
            limit = self.target_bytes // (1 if block.columns is not None else PLAIN_PART)
            if self.warm_bytes(machines) > ENOUGH * limit:
                self._page_out(machine, queue, block)

    def _planned(
        self, now_ms: int, machines: Mapping[int, GroupMachine], *, plain_only: bool
    ) -> list[tuple[float, int, int, int]]:
        """The blocks that may be paged out, the one that is needed last at the end."""
        found = []
        for group, machine in machines.items():
            for queue, queue_machine in machine.queues.items():
                pace = self._paces.get((group, queue))
                if pace is None:
                    pace = self._paces[group, queue] = Pace(now_ms, now_ms, scan_positions(queue_machine))
                tail = queue_machine.messages.tail
                is_quiet = now_ms - pace.touched_ms > IDLE_S * 1000
                for block in queue_machine.messages.blocks.warm():
                    if (plain_only and block.columns is not None) or (block.number == tail and not is_quiet):
                        continue
                    wait_s = pace.wait_s(block, now_ms)
                    if wait_s > AHEAD_S:
                        found.append((wait_s, group, queue, block.number))
        found.sort(key=lambda each: (each[0], each[3]))
        return found

    def _page_out(self, machine: GroupMachine, queue: int, block: Block) -> None:
        self._note(block)
        machine.page_out(queue, block.number)

    def _note(self, block: Block) -> None:
        """Counts a block that is about to be written. Its columns are not written, but read once for their summary."""
        self._written += 1
        if block.stored is None:
            has_summary = bool(block.summary) or not block.has_fields
            self._written_bytes += block.stored_bytes() if has_summary else block.memory_bytes()

    def _may_write(self) -> bool:
        return self._written < BLOCKS_A_TURN and self._written_bytes < BYTES_A_TURN
