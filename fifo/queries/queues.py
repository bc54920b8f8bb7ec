"""Queries of one queue. Queries decide nothing; they may make cold blocks warm."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence

from fifo.consumers.read_costs import within
from fifo.consumers.selector import decoded, refuse_selector
from fifo.effects import Refused, Run
from fifo.messages import bitsets
from fifo.messages.blocks import Block, Stored
from fifo.messages.dead_letters import CAUSES
from fifo.messages.message_groups import MessageGroups
from fifo.messages.ready_order import PriorityOrder
from fifo.queue_machine import QueueMachine
from fifo.results import BrowsePage, ClaimedRun, DeadWork, QueueInfo, QueueTotals


def info(machine: QueueMachine) -> QueueInfo:
    """The counts of the queue. It takes a constant number of steps a block."""
    first_sequence = machine.messages.next_sequence
    ready_bytes = 0
    levels: dict[int, int] = {}
    machine.build_groups()
    for block in machine.messages.blocks.values():
        if not block.live:
            continue
        if first_sequence == machine.messages.next_sequence:
            first_sequence = (block.number << machine.limits.block_bits) + block.first_slot
        ready_bytes += block.size_bytes * block.ready_count // block.placed
        for priority, count in block.ready_levels:
            levels[priority] = levels.get(priority, 0) + count
    return QueueInfo(
        ready=machine.messages.ready_count,
        checked_out=machine.messages.checked_out_count,
        delayed=machine.messages.delayed_count,
        total=machine.messages.total_count,
        consumers=sum(1 for consumer in machine.consumers.by_key.values() if consumer.group is not None),
        first_sequence=first_sequence,
        next_sequence=machine.messages.next_sequence,
        ready_bytes=machine.messages.ready_bytes if machine.messages.counts_bytes else ready_bytes,
        totals=totals(machine),
        ready_levels=tuple(sorted(levels.items(), reverse=True)),
        held_groups=0 if machine.messages.grouped is None else machine.messages.grouped.held_count,
        dead=machine.messages.dead.count,
        dead_letter_problem=machine.messages.dead.problem if machine.messages.dead.count else "",
    )


def totals(machine: QueueMachine) -> QueueTotals:
    """The numbers of messages that came and left."""
    messages = machine.messages
    return QueueTotals(
        published=messages.published_count,
        settled=messages.settled_count,
        purged=messages.purged_count,
        returned=messages.returned_count,
        redelivered=messages.redelivered_count,
        dead_lettered=messages.dead.forwarded_count,
        **messages.dropped,
    )


def dead_work(machine: QueueMachine, most: int) -> DeadWork:
    """What the queue's dead-letter worker has to do. most: claimed messages to name; only their blocks are read."""
    messages, dead = machine.messages, machine.messages.dead
    claimed: list[ClaimedRun] = []
    left = most
    for claim in dead.claims:
        if left <= 0:
            break
        block = messages.blocks.get(claim.sequence >> machine.limits.block_bits)
        slot = claim.sequence - block.base
        cause = next(cause for cause, members in block.deaths.items() if members >> slot & 1)
        number, runs = claim.number, list[Run]()
        block.runs.clip(block.base, slot, min(claim.count, left), runs)
        for run in runs:
            claimed.append(ClaimedRun(number, run, CAUSES[cause], claim.time_ms))
            number += run.count
        left -= claim.count
    earlier = [claim.number + claim.count - 1 for claim in dead.claims if claim.epoch < dead.epoch]
    return DeadWork(
        config=messages.config,
        claimed=tuple(claimed),
        waiting=dead.count - dead.claimed_count,
        epoch=dead.epoch,
        inherited_to=max(earlier, default=0),
        producer=dead.producer,
        problem=dead.problem,
    )


def browse(
    machine: QueueMachine, start_sequence: int, limit: int, selector: bytes = b""
) -> BrowsePage | Refused:
    """A page of the ready messages that match, from a sequence on. It is by sequence, also in a queue with priorities:
    the order of deliveries changes between two pages."""
    messages = machine.messages
    return page(machine, start_sequence, messages.next_sequence, limit, selector, lambda block: block.ready)


def pinned(
    machine: QueueMachine,
    number: int,
    start_sequence: int,
    end_sequence: int,
    limit: int,
    selector: bytes = b"",
) -> BrowsePage | Refused:
    """A page of the pinned messages that match, start_sequence <= sequence < end_sequence."""
    pin = machine.pins.find(number)
    if isinstance(pin, Refused):
        return pin
    end = min(end_sequence, pin.end_sequence)
    return page(machine, start_sequence, end, limit, selector, pin.shown, pin.blocks)


def browse_delayed(
    machine: QueueMachine, start_sequence: int, limit: int, selector: bytes = b""
) -> BrowsePage | Refused:
    """A page of the delayed messages that match, by sequence, with the times at which they become ready."""
    messages, limits = machine.messages, machine.limits
    found = page(
        machine,
        start_sequence,
        messages.next_sequence,
        limit,
        selector,
        lambda block: block.delayed,
        counted=lambda block: block.delayed_count,
    )
    if isinstance(found, Refused):
        return found
    times: list[int] = []
    for number, runs in itertools.groupby(found.runs, lambda run: run.first_sequence >> limits.block_bits):
        dues = messages.blocks.get(number).dues
        assert dues is not None
        by_slot = dues.by_slot(limits.block_size)
        for run in runs:
            slot = run.first_sequence & limits.slot_mask
            times += by_slot[slot : slot + run.count].tolist()
    return BrowsePage(found.runs, found.next_sequence, tuple(times))


def upcoming(machine: QueueMachine, limit: int) -> BrowsePage | Refused:
    """The messages that a Get of `limit` messages would take now, in their order. Whether another consumer holds their
    message groups does not count."""
    order, blocks = machine.messages.order, machine.messages.blocks
    if isinstance(order, MessageGroups):
        order = order.base
    if not isinstance(order, PriorityOrder):
        return browse(machine, 0, limit)
    runs: list[Run] = []
    rest = limit
    for rank, number in order.index:
        if rest <= 0:
            break
        block = blocks.get(number)
        found = bitsets.lowest(block.ready & block.levels[-rank], rest)
        for slot, count in bitsets.ranges(found):
            block.runs.clip(block.base, slot, count, runs)
            rest -= count
    return BrowsePage(tuple(runs), None)


def page(
    machine: QueueMachine,
    start_sequence: int,
    end_sequence: int,
    limit: int,
    selector: bytes,
    shown: Callable[[Block], int],
    copied: Container[int] = (),
    counted: Callable[[Block | Stored], int] = lambda block: block.ready_count,
) -> BrowsePage | Refused:
    """A page of up to `limit` messages that match, start_sequence <= sequence < end_sequence.

    shown: the messages of a block that may be on the page. counted: their number, without reading a cold block. copied:
    the numbers of blocks that may have such messages although none is counted.

    A page ends early after `Limits.block_budget` blocks and `Limits.page_runs` runs, and when `Limits.step_budget`
    steps are spent. A block that is ruled out by its summary costs the steps of one message, because the selector is
    evaluated once, over the summary. A scan charges such a block as any other, because its position is replicated and
    summaries are local. A page is local.
    """
    refused = refuse_selector(machine.messages.config, selector)
    if refused is not None:
        return refused
    wanted = decoded(selector) if selector else None
    start, blocks, limits = max(start_sequence, 0), machine.messages.blocks, machine.limits
    runs: list[Run] = []
    rest, steps = limit, limits.step_budget
    for passed, number in enumerate(blocks.numbers(start >> limits.block_bits)):
        base = number << limits.block_bits
        if base >= end_sequence:
            break
        runs_left = limits.page_runs - len(runs)
        if passed == limits.block_budget or rest <= 0 or steps <= 0 or not runs_left:
            return BrowsePage(tuple(runs), max(base, start))
        if not counted(blocks.at(number)) and number not in copied:
            continue
        if wanted is not None and machine.groups.ruled_out(wanted, number) is not None:
            steps -= wanted.steps
            continue
        block = blocks.get(number)
        asked = bitsets.span(0, min(end_sequence - base, block.size)) & (-1 << max(start - base, 0))
        members, cut = shown(block) & asked, 0
        if wanted is not None:
            looked_at, cost = within(block, members, wanted.steps, steps, limits)
            steps -= cost
            cut = looked_at.bit_length() if looked_at != members else 0
            members = machine.groups.fields.select(block, wanted, looked_at)
        found = block.within_runs(bitsets.lowest(members, rest), runs_left)
        for slot, count in bitsets.ranges(found):
            block.runs.clip(base, slot, count, runs)
            rest -= count
        if found != members or cut:
            return BrowsePage(tuple(runs), base + (found.bit_length() if found != members else cut))
    return BrowsePage(tuple(runs), None)


def failed_deliveries(machine: QueueMachine, runs: Sequence[Run]) -> tuple[tuple[int, int], ...]:
    """(number, failed deliveries) of the messages of these runs that have any, numbered from 0. Messages that have left
    the queue are left out. A run is within one block."""
    found: list[tuple[int, int]] = []
    passed, number, failed = 0, -1, 0
    block: Block | None = None
    limits = machine.limits
    for run in runs:
        if run.first_sequence >> limits.block_bits != number:
            number = run.first_sequence >> limits.block_bits
            block = machine.messages.blocks.find(number)
            failed = 0 if block is None else block.failures.nonzero()
        if failed and block is not None:
            slot = run.first_sequence & limits.slot_mask
            for place in bitsets.members((failed >> slot) & ((1 << run.count) - 1)):
                found.append((passed + place, block.failures.value(slot + place)))
        passed += run.count
    return tuple(found)
