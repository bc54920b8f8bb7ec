"""Pins as simply as they can be said: lists of messages that were ready (beside group.py).

Only how long it takes to end one needs more: which blocks have changed since it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fifo import commands as c
from fifo import effects as e
from support.fifo.model.staging import is_crowded

if TYPE_CHECKING:
    from support.fifo.model.queues import ModelQueue
    from support.fifo.model.records import Left, Message


@dataclass(eq=False)
class ModelPin:
    reply: e.Pinned
    expires_ms: int
    messages: list[Message]
    owner: int
    changed: list[int] = field(default_factory=list)


class ModelPins:
    def __init__(self, queue: ModelQueue) -> None:
        self.queue = queue
        self.pins: list[ModelPin] = []
        self.ended: list[ModelPin] = []
        self.made = queue.past_number

    def due_times(self) -> list[int]:
        return [pin.expires_ms for pin in self.pins]

    def answer(self, meta: c.Meta, command: c.Pin | c.Unpin) -> e.Reply:
        if isinstance(command, c.Unpin):
            for pin in list(self.pins):
                if pin.reply.pin == command.pin:
                    self.end(pin)
            return e.Ok()
        if command.ttl_ms < 1000:
            return e.Refused("bad_argument", "")
        owners = [pin.owner for pin in self.pins + self.ended]
        if is_crowded(owners, command.owner, self.queue.rules.max_pins):
            return e.Refused("limit", "")
        ready, end = self.queue.ready(), self.queue.next_sequence
        first = end
        if ready:
            number = self.queue.block_of(ready[0])
            first = min(m.sequence for m in self.queue.messages if self.queue.block_of(m) == number)
        self.made += 1
        reply = e.Pinned(self.made, meta.index, first, end, len(ready))
        self.pins.append(ModelPin(reply, meta.now_ms + command.ttl_ms, ready, command.owner))
        return reply

    def end(self, pin: ModelPin) -> None:
        self.pins.remove(pin)
        if pin.changed:
            self.ended.append(pin)

    def ready_changes(self, message: Message) -> None:
        number = self.queue.block_of(message)
        for pin in self.pins:
            reaches = pin.reply.end_sequence > number * self.queue.rules.block_size
            if reaches and number not in pin.changed:
                pin.changed.append(number)

    def is_there(self, number: int) -> bool:
        """Whether a block is there, be it for what is dead or pinned."""
        if any(self.queue.block_of(each.message) == number for each in self.queue.dead.messages):
            return True
        return number in self.queue.block_numbers() or any(
            number in pin.changed and any(self.queue.block_of(m) == number for m in pin.messages)
            for pin in self.pins + self.ended
        )

    def finish(self, meta: c.Meta, left: Left) -> bool:
        for pin in list(self.pins):
            if pin.expires_ms <= meta.now_ms:
                self.end(pin)
        while self.ended and left.rest.copies:
            pin = self.ended[0]
            left.rest.copies -= self.is_there(pin.changed[0])
            pin.changed.pop(0)
            if not pin.changed:
                self.ended.pop(0)
        return not self.ended
