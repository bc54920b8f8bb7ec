"""Pins as bytes: a part of a queue's head in snapshots and checkpoints. Their copies are in the blocks."""

from __future__ import annotations

from fifo.codec import Reader, Writer
from fifo.pins import Pins, QueuePin


def write_pins(out: Writer, pins: Pins) -> None:
    out.number(pins.next_pin)
    for part in (list(pins.by_number.values()), pins.ended):
        out.number(len(part))
        for pin in part:
            for value in (
                pin.number,
                pin.index,
                pin.made_ms,
                pin.expires_ms,
                pin.first_sequence,
                pin.end_sequence,
                pin.count,
                pin.copy_bytes,
                len(pin.blocks),
            ):
                out.number(value)
            for number in pin.blocks:
                out.number(number)


def read_pins(data: Reader, pins: Pins) -> None:
    pins.next_pin = data.number()
    pins.by_number = {pin.number: pin for pin in _read_part(data)}
    pins.ended = _read_part(data)
    pins.watch()


def _read_part(data: Reader) -> list[QueuePin]:
    found = []
    for _ in range(data.number()):
        number, index, made, expires, first, end, count, size, blocks = [data.number() for _ in range(9)]
        pin = QueuePin(number, index, made, expires, first, end, count, size)
        pin.blocks = {data.number(): None for _ in range(blocks)}
        found.append(pin)
    return found
