"""Queries of pins. Queries decide nothing; they may make cold blocks warm."""

from __future__ import annotations

from fifo.effects import Refused
from fifo.queries.queues import page
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
    end = min(end_sequence, pin.end_sequence)
    return page(machine, start_sequence, end, limit, selector, pin.shown, pin.blocks)
