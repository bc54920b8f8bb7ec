"""Queries of pins. Queries decide nothing; they may make cold blocks warm."""

from __future__ import annotations

from fifo.consumers.read_costs import within
from fifo.consumers.selector import decoded, refuse_selector
from fifo.effects import Refused, Run
from fifo.messages import bitsets
from fifo.queue_machine import QueueMachine
from fifo.results import BrowsePage, PinInfo


def infos(machine: QueueMachine) -> tuple[PinInfo, ...]:
    """A queue's pins, the oldest first."""
    return tuple(
        [
            PinInfo(
                pin.number,
                pin.index,
                pin.first_sequence,
                pin.end_sequence,
                pin.count,
                pin.made_ms,
                pin.expires_ms,
                pin.copy_bytes,
            )
            for pin in machine.pins.by_number.values()
        ]
    )


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
    refused = refuse_selector(machine.messages.config, selector)
    if refused is not None:
        return refused
    wanted = decoded(selector) if selector else None
    start, end = max(start_sequence, 0), min(end_sequence, pin.end_sequence)
    runs: list[Run] = []
    limits = machine.limits
    rest, steps, passed = limit, limits.step_budget, 0
    for block_number in machine.messages.blocks.numbers(start >> limits.block_bits):
        base = block_number << limits.block_bits
        if base >= end:
            break
        if passed == limits.block_budget or rest <= 0 or steps <= 0:
            return BrowsePage(tuple(runs), max(base, start))
        passed += 1
        if block_number not in pin.blocks and not machine.messages.blocks.at(block_number).ready_count:
            continue
        if wanted is not None and machine.groups.ruled_out(wanted, block_number) is not None:
            steps -= wanted.steps
            continue
        block = machine.messages.blocks.get(block_number)
        members = pin.shown(block) & bitsets.span(0, min(end - base, block.size))
        cut = 0
        if start > base:
            members &= -1 << (start - base)
        if wanted is not None:
            looked_at, cost = within(block, members, wanted.steps, steps, limits)
            steps -= cost
            cut = looked_at.bit_length() if looked_at != members else 0
            members = machine.groups.fields.select(block, wanted, looked_at)
        shown = bitsets.lowest(members, rest)
        for slot, count in bitsets.ranges(shown):
            block.runs.clip(base, slot, count, runs)
            rest -= count
        if shown != members or cut:
            return BrowsePage(tuple(runs), base + (shown.bit_length() if shown != members else cut))
    return BrowsePage(tuple(runs), None)
