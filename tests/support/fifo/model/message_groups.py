"""Message groups as simply as they can be said: the first ready message of each (beside group.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fifo import commands as c
from quorum_selectors.evaluate import evaluate
from support.fifo.model.records import tree_of

if TYPE_CHECKING:
    from support.fifo.model.queues import ModelQueue
    from support.fifo.model.records import Left, Line, Message, ModelConsumer


class ModelMessageGroups:
    """filed_to: ready messages below it may be handed out."""

    def __init__(self, queue: ModelQueue) -> None:
        self.queue = queue
        self.filed_to = 0

    def filed(self) -> list[Message]:
        return [message for message in self.queue.ready() if message.sequence < self.filed_to]

    def places(self) -> int:
        return len({(message.key, self.queue.block_of(message)) for message in self.filed() if message.key})

    def file(self, left: Left) -> bool:
        """Returns False if the budget ended it."""
        queue, rules = self.queue, self.queue.rules
        while True:
            rest = [message for message in queue.ready() if message.sequence >= self.filed_to]
            if not rest:
                self.filed_to = queue.next_sequence
                return True
            before, number = self.places(), queue.block_of(rest[0])
            if before >= rules.filed_places:
                return True
            if left.rest.blocks <= 0 or left.rest.steps <= 0:
                return False
            end = min((number + 1) * rules.block_size, rest[0].sequence + rules.file_slots)
            self.filed_to = min(end, queue.next_sequence)
            left.rest.blocks -= 1
            count = sum(message.sequence < end for message in rest)
            left.rest.steps -= count + (self.places() - before) * rules.file_steps

    def may_file(self) -> bool:
        rest = any(message.sequence >= self.filed_to for message in self.queue.ready())
        return rest and self.places() < self.queue.rules.filed_places

    def holder(self, key: int) -> ModelConsumer | None:
        for consumer in self.queue.consumers:
            if any(message.key == key for message in consumer.checked_out.values()):
                return consumer
        for part in self.queue.prepared():  # their consumers may be gone
            if any(message.key == key for message in part.messages.values()):
                return part.consumer
        return None

    def heads(self, chosen: list[Message]) -> list[Message]:
        """Once these messages are handed out: messages without a group, and the first of each."""
        found, known = [], set()
        for message in self.filed():
            if message not in chosen and message.key not in known:
                found.append(message)
                if message.key:
                    known.add(message.key)
        return found

    def share(self, consumers: int) -> int:
        """Heads that a consumer may take in a turn and that it does not hold yet."""
        free = sum(not each.key or self.holder(each.key) is None for each in self.heads([]))
        return 1 << 70 if consumers == 1 else -(-free // consumers)

    def continuing(self, priority: int) -> list[ModelConsumer]:
        """Those with credit that hold groups of which more is ready."""
        if not self.queue.config.message_groups:
            return []
        holders = [self.holder(each.key) for each in self.heads([]) if each.key]
        eligible = [consumer for line in self.queue.line for consumer in line.of(priority)]
        return sorted([each for each in eligible if each in holders], key=lambda each: each.attach)

    def choose(
        self,
        meta: c.Meta,
        left: Left,
        consumer: ModelConsumer,
        group: Line | None,
        wanted: int,
        opens: int,
    ) -> tuple[list[Message], bool]:
        """The messages of one turn, and False if the budget ended it. opens: as `share` says."""
        queue, is_scanned = self.queue, True
        if group is not None and group.selector:
            while is_scanned and not queue.fronts.is_at_end(group):
                is_scanned = queue.fronts.pass_messages(left, group)
        mine = {each.key for each in self.heads([]) if each.key and self.holder(each.key) is consumer}
        chosen: list[Message] = []
        before: Message | None = None
        while len(chosen) < wanted:
            message = self.next_match(consumer, group, chosen, mine, opens)
            if message is None:
                return chosen, is_scanned
            is_new = queue.config.max_priority > 0 or not queue.belongs(before, message)
            if is_new and left.rest.runs <= 0:
                return chosen, False
            number = queue.block_of(message)
            if queue.earliest.get(number, 1 << 70) <= meta.now_ms and number not in left.expired:
                if not left.rest.blocks:
                    return chosen, False
                queue.expire_block(meta, left, number, meta.index)
                continue
            opens -= message.key not in mine
            if message.key:
                mine.add(message.key)
            chosen.append(message)
            left.rest.runs -= is_new
            before = message
        return chosen, True

    def next_match(
        self, consumer: ModelConsumer, group: Line | None, chosen: list[Message], mine: set[int], opens: int
    ) -> Message | None:
        queue = self.queue
        for message in sorted(self.heads(chosen), key=lambda each: (-each.priority, each.sequence)):
            holder = self.holder(message.key) if message.key else None
            if message.key not in mine and (opens <= 0 or holder is not None):
                continue
            if group is None or not group.selector:
                return message
            expression = tree_of(group.selector)
            if message.sequence < queue.fronts.place(group) and evaluate(expression, message.fields) is True:
                return message
        return None
