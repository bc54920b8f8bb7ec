"""Durable subscriptions as simply as they can be said: lists of messages (beside group.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fifo import commands as c
from fifo import effects as e
from support.fifo.model.scans import END
from support.fifo.model.staging import is_crowded

if TYPE_CHECKING:
    from support.fifo.model.queues import ModelQueue
    from support.fifo.model.records import Left, Message

MESSAGE_BYTES = 100  # of every message that tests publish against the model

COMMANDS = (
    c.OpenSubscription,
    c.Reserve,
    c.SettleReserved,
    c.KeepSubscription,
    c.ReleaseSubscription,
    c.DeleteSubscription,
)


@dataclass(eq=False)
class ModelReservation:
    reply: e.Reserved
    messages: list[Message]
    time_ms: int
    opens: int = 0
    disposition: str = ""


@dataclass(eq=False)
class ModelSubscription:
    name: str
    generation: int
    start: int
    owner: int = c.UNKNOWN
    selector: bytes = b""
    timeout_ms: int = 0
    on_expiry: str = ""
    last_seen_ms: int = 0
    settled: int = 0
    last: int = 0
    reservations: list[ModelReservation] = field(default_factory=list)
    released: set[int] = field(default_factory=set)
    has_untold_loss: bool = False

    def outstanding(self) -> list[ModelReservation]:
        return [each for each in self.reservations if not each.disposition]

    def due_ms(self) -> int | None:
        silent = self.outstanding() and self.on_expiry != "keep"
        return self.last_seen_ms + self.timeout_ms if silent else None

    def state(self) -> e.SubscriptionState:
        messages = sum(len(each.messages) for each in self.outstanding())
        return e.SubscriptionState(self.generation, self.settled, self.last, messages)

    def gone(self, offset: int) -> e.Refused:
        return e.Refused("released" if offset in self.released else "settled", "")

    def release_all(self, disposition: str) -> None:
        for each in self.outstanding():
            each.disposition = disposition
        self.released |= set(range(self.settled + 1, self.last + 1))
        self.settled = self.last


class ModelSubscriptions:
    def __init__(self, queue: ModelQueue) -> None:
        self.queue = queue
        self.subscriptions: list[ModelSubscription] = []
        self.deleted: list[ModelSubscription] = []
        self.past_generation = queue.past_number

    def due_times(self) -> list[int]:
        return [due for subscription in self.subscriptions if (due := subscription.due_ms()) is not None]

    def answer(self, meta: c.Meta, left: Left, command: Any) -> e.Reply:
        subscription = next((each for each in self.subscriptions if each.name == command.subscription), None)
        if isinstance(command, c.OpenSubscription):
            return self.open(meta, subscription, command)
        if isinstance(command, c.DeleteSubscription) and subscription is None:
            return e.Ok()
        if subscription is None:
            return e.Refused("not_found", "")
        if command.generation not in (subscription.generation, None):
            return e.Refused("wrong_generation", "")
        if isinstance(command, c.DeleteSubscription):
            return self.delete(subscription)
        if isinstance(command, c.ReleaseSubscription) and command.last not in (subscription.last, None):
            return e.Refused("outdated", "")
        if isinstance(command, c.Reserve):
            return self.reserve(meta, left, subscription, command)
        if isinstance(command, c.SettleReserved):
            if command.to > subscription.last:
                return e.Refused("not_given", "")
            if command.to == subscription.last:
                subscription.has_untold_loss = False
            for each in subscription.outstanding():
                if each.reply.offset > command.to or not self.may_move(left, each):
                    break
                subscription.reservations.remove(each)
                subscription.settled = each.reply.offset
                for message in each.messages:
                    self.queue.gone(message, "settled")
        if isinstance(command, c.ReleaseSubscription):
            subscription.release_all("returned")
            subscription.has_untold_loss = False
        subscription.last_seen_ms = meta.now_ms
        return subscription.state()

    def open(
        self, meta: c.Meta, subscription: ModelSubscription | None, command: c.OpenSubscription
    ) -> e.Reply:
        queue = self.queue
        if not command.subscription or command.timeout_ms < 1000:
            return e.Refused("bad_argument", "")
        refused = queue.refuse_selector(command.selector)
        if refused is not None:
            return refused
        if queue.config.single_active_consumer or queue.config.message_groups:
            return e.Refused("bad_argument", "")
        if command.found not in (subscription.generation if subscription else 0, None):
            return e.Refused("outdated", "")
        if subscription is None:
            owners = [each.owner for each in self.subscriptions + self.deleted]
            if is_crowded(owners, command.owner, queue.rules.max_subscriptions):
                return e.Refused("limit", "")
            start = queue.next_sequence if command.start == "latest" else 0
            subscription = ModelSubscription(command.subscription, self.past_generation, start)
            self.subscriptions.append(subscription)
        before, subscription.selector = subscription.selector, command.selector
        queue.forget_group(before)
        queue.use_group(command.selector)
        subscription.generation += 1
        subscription.has_untold_loss = False
        subscription.owner = command.owner
        subscription.timeout_ms, subscription.on_expiry = command.timeout_ms, command.on_expiry
        subscription.last_seen_ms = meta.now_ms
        for each in subscription.outstanding():
            each.opens += 1
        return subscription.state()

    def reserve(
        self, meta: c.Meta, left: Left, subscription: ModelSubscription, command: c.Reserve
    ) -> e.Reply:
        rules, after = self.queue.rules, command.after
        if command.max_messages < 1 or command.max_bytes < 1:
            return e.Refused("bad_argument", "")
        if after > subscription.last:
            return e.Refused("not_given", "")
        if after < subscription.settled:
            return subscription.gone(after + 1)
        if after == subscription.last and subscription.has_untold_loss:
            return e.Refused("released", "")
        checked_out = sum(len(each.messages) for each in subscription.reservations)
        is_new = after == subscription.last
        if is_new and (
            len(subscription.reservations) >= rules.max_reservations or checked_out >= rules.max_outstanding
        ):
            return e.Refused("limit", "")
        subscription.last_seen_ms = meta.now_ms
        if not is_new:
            return next(each.reply for each in subscription.outstanding() if each.reply.offset == after + 1)
        if left.rest.messages <= 0 or left.rest.runs <= 0:
            return e.Reserved(after, meta.index, 0, 0, False)
        wanted = min(command.max_messages, rules.max_reserved, rules.max_outstanding - checked_out)
        bytes_allow = max(1, command.max_bytes // MESSAGE_BYTES)
        most = min(wanted, left.rest.messages, bytes_allow)
        group = self.queue.groups[subscription.selector]
        self.queue.fronts.move(meta, left)
        queue_is_behind = self.queue.fronts.behind is not None
        chosen, is_complete = self.queue.choose(meta, left, group, most, subscription.start, is_reserved=True)
        if group.scan_position == END and queue_is_behind:
            is_complete = False
        self.queue.rest(group)
        if len(chosen) == left.rest.messages < wanted:
            is_complete = False
        left.rest.messages -= len(chosen)
        if not chosen:
            return e.Reserved(after, meta.index, 0, 0, is_complete)
        for message in chosen:
            self.queue.hold(message)
        subscription.last += 1
        size = MESSAGE_BYTES * len(chosen)
        reply = e.Reserved(subscription.last, meta.index, len(chosen), size, is_complete)
        subscription.reservations.append(ModelReservation(reply, chosen, meta.now_ms))
        return reply

    def delete(self, subscription: ModelSubscription) -> e.Reply:
        count = subscription.state().outstanding
        subscription.release_all("returned")
        self.subscriptions.remove(subscription)
        self.queue.forget_group(subscription.selector)
        self.past_generation = max(self.past_generation, subscription.generation)
        if subscription.reservations:
            self.deleted.append(subscription)
        return e.Ok(count)

    def may_move(self, left: Left, reservation: ModelReservation) -> bool:
        count = len(reservation.messages)
        if left.rest.moved and left.rest.moved + count > self.queue.rules.message_budget:
            return False
        left.rest.moved += count
        return True

    def finish(self, meta: c.Meta, left: Left) -> bool:
        for subscription in self.subscriptions:
            due = subscription.due_ms()
            if due is not None and due <= meta.now_ms:
                subscription.release_all("returned" if subscription.on_expiry == "release" else "discarded")
                subscription.has_untold_loss = meta.version >= 2
        for subscription in self.subscriptions + self.deleted:
            for each in [each for each in subscription.reservations if each.disposition]:
                if not self.may_move(left, each):
                    return False
                subscription.reservations.remove(each)
                if each.disposition == "returned":
                    self.queue.put_back(meta, each.messages, failed=False)
                    continue
                for message in each.messages:
                    self.queue.gone(message, "rejected")
            self.deleted = [each for each in self.deleted if each.reservations]
        return True
