"""Pins as bytes: a part of a queue's head in snapshots and checkpoints. Their copies are in the blocks."""

from __future__ import annotations

from fifo.codec import Reader, Writer
from fifo.persistence.layouts import PINS
from fifo.pins import Pins


def write_pins(out: Writer, pins: Pins) -> None:
    out.number(pins.next_pin)
    PINS.write(out, pins.by_number.values())
    PINS.write(out, pins.ended)


def read_pins(data: Reader, pins: Pins) -> None:
    pins.next_pin = data.number()
    pins.by_number = {pin.number: pin for pin in PINS.read(data)}
    pins.ended = PINS.read(data)
    pins.watch()
