"""Queries by which a member decides what of a queue stays in memory. They change nothing."""

from __future__ import annotations

import numpy as np

from fifo.consumers.shared_scan import CAUGHT_UP
from fifo.frozen_dataclasses import dataclass
from fifo.messages import bitsets
from fifo.messages.blocks import Block
from fifo.queue_machine import QueueMachine


@dataclass(frozen=True, slots=True)
class Storage:
    """The places of a queue's messages on this member. The four counts add up to its total.

    alpha: body in the log's memory, block warm. beta: body on disk only, block warm. gamma: the same, and the block has
    a valid page. delta: block cold. warm_bytes: of runs, bit sets and columns of the warm blocks.
    """

    alpha: int
    beta: int
    gamma: int
    delta: int
    warm_blocks: int
    cold_blocks: int
    warm_bytes: int


def storage(machine: QueueMachine, recent_from: int) -> Storage:
    """Counts a queue's messages by their places. It visits every block. recent_from: the first Raft index whose body is
    in memory."""
    alpha = beta = gamma = delta = warm_blocks = cold_blocks = warm_bytes = 0
    for block in machine.messages.blocks.values():
        if not isinstance(block, Block):
            cold_blocks += 1
            delta += block.live + block.dead_count
            continue
        warm_blocks += 1
        warm_bytes += block.memory_bytes()
        recent = _recent(block, recent_from)
        alpha += recent
        if block.stored is None:
            beta += block.live + block.dead_count - recent
        else:
            gamma += block.live + block.dead_count - recent
    return Storage(alpha, beta, gamma, delta, warm_blocks, cold_blocks, warm_bytes)


def _recent(block: Block, recent_from: int) -> int:
    """The number of a block's messages whose bodies are at or above this Raft index."""
    runs = block.runs
    recent = np.frombuffer(runs.indexes, dtype=np.uint64) >= recent_from
    count = block.live + block.dead_count
    if not count or not recent.any():
        return 0
    if recent.all():
        return count
    return int(runs.counted(block.present | block.dead)[recent].sum())


def scan_positions(machine: QueueMachine) -> dict[bytes, int]:
    """The sequences where messages are taken next: the scan position of each selector, and the first ready message as
    that of b""."""
    found: dict[bytes, int] = {}
    number = machine.messages.order.first(0)
    if number is not None:
        block = machine.messages.blocks.at(number)
        slot = block.first_slot
        if isinstance(block, Block):
            slot = bitsets.first(machine.messages.order.next_of(block))
        found[b""] = (block.number << machine.limits.block_bits) + slot
    reserving = {subscription.selector: None for subscription in machine.subscriptions.by_name.values()}
    for selector, group in machine.groups.by_selector.items():
        if selector and group.scan_position != CAUGHT_UP and (group.eligible or selector in reserving):
            found[selector] = group.scan_position
    return found
