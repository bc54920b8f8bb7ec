"""The consuming side of a client's session: its consumers and gets, their credit, deliveries and dispositions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

import structlog

from fifo import commands as c
from fifo.effects import AttachedReply, Deliver, Notify, Ok, Reply
from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.hub import deliveries
from quorum.api.hub.filters import Filter
from quorum.api.hub.hub import Hub
from quorum.api.session.commands import Answered, SessionCommands
from quorum.api.session.outcomes import ActiveChanged, Attached, Cancelled, Drained, PendingDelivery, TimedOut
from quorum.catalog.queues import CatalogQueue
from quorum.log import LogError
from quorum.node.errors import BodyUnreadable

MAX_CONSUMERS = 1_000
MAX_RANGES = 10_000
FEW_GETTERS = 100
"""So many holders of got messages are kept without a look whether their queues still exist."""
QUOTED_CHARACTERS = 64
"""Maximum characters of a client's tag or name that a refusal quotes. So the answer to a small request stays small."""


@dataclass(slots=True)
class Consumer:
    tag: str
    group: int
    queue: int
    attach: int = 0
    attaching: int = 0
    """requests to attach it that are not answered"""
    credit_to: int = 0
    """the highest tag up to which it was given credit"""
    delivered_to: int = 0
    """the highest tag that was delivered to it"""
    timed_out_to: int = 0
    """the highest tag of this attachment that has timed out"""
    is_cancelled: bool = False
    """it is given nothing more; what it holds may still be settled"""

    def raise_credit(self, credit_to: int) -> bool:
        """Take note of credit. Returns whether it ends a wait: the consumer has used all that it had before."""
        is_awaited = credit_to > self.credit_to <= self.delivered_to
        self.credit_to = max(self.credit_to, credit_to)
        return is_awaited


@dataclass(frozen=True, slots=True)
class Disposition:
    """What becomes of delivered messages. kind: None if the client has not said. tags: ranges (first, last) of
    delivery tags of the attachment `attach`. delivery_failed, undeliverable_here: of Modify only."""

    kind: type[c.Settle] | None
    attach: int
    tags: tuple[tuple[int, int], ...]
    credit_to: int = 0
    delivery_failed: bool = False
    undeliverable_here: bool = False

    def command(self, kind: type[c.Settle], consumer: Consumer) -> c.Settle:
        if kind is c.Modify:
            return c.Modify(
                consumer.queue,
                consumer.tag,
                self.attach,
                self.tags,
                self.credit_to,
                self.delivery_failed,
                self.undeliverable_here,
            )
        return kind(consumer.queue, consumer.tag, self.attach, self.tags, self.credit_to)


class SessionConsumers:
    """The consumers of one session."""

    def __init__(self, hub: Hub, commands: SessionCommands) -> None:
        self._hub = hub
        self._commands = commands
        self._outbox = commands.outbox
        self.by_tag: dict[str, Consumer] = {}
        self._ending: set[tuple[int, str, int]] = set()
        """queue id, tag and attachment of the consumers whose cancel with requeue is not answered: their messages may
        time out before a settlement that was sent earlier than the cancel"""
        self._getters: dict[int, Consumer] = {}
        """by queue id: the holder of got messages"""
        self._getters_to_keep = FEW_GETTERS
        """from this number of holders on, those of deleted queues are looked for"""
        self._gets: dict[int, deque[int]] = {}
        """by queue id: requests whose messages are about to come, at least one"""

    def groups(self) -> set[int]:
        """The groups in which the session holds messages, or may come to hold some."""
        return {each.group for holders in (self.by_tag, self._getters) for each in holders.values()}

    # ---- consumers

    async def attach(
        self, request_id: int, tag: str, name: str, wanted: Filter, credit_to: int, priority: int = 0
    ) -> None:
        """A consumer of the queue of this name; one of the same tag is attached again. Attached or Failed follows."""
        try:
            if not 1 <= len(tag.encode()) <= c.MAX_NAME_BYTES:
                raise status.invalid("bad_argument", f"a consumer tag has 1..{c.MAX_NAME_BYTES} bytes")
            if tag not in self.by_tag:
                self._make_room()
            queue = await self._hub.requests.queue(name)
            self._check_tag(tag, queue)
            selector = await self._hub.filters.encoding_for(queue, wanted, self._commands.owner)
        except status.StatusError as error:
            self._commands.refuse(request_id, error)
            return
        consumer = self.by_tag.get(tag) or Consumer(tag, queue.group, queue.id)
        self.by_tag[tag] = consumer
        consumer.attaching += 1
        consumer.is_cancelled = False
        consumer.credit_to, consumer.delivered_to = credit_to, 0
        command = c.Attach(queue.id, tag, selector, credit_to, priority)
        self._submit(consumer, command, partial(self._attach_answered, request_id, consumer), (queue,))

    def _check_tag(self, tag: str, queue: CatalogQueue) -> None:
        """StatusError if a consumer of another queue has the tag."""
        known = self.by_tag.get(tag)
        if known is not None and known.queue != queue.id:
            raise status.invalid(
                "in_use", f"consumer {_quoted(tag)} of this session is attached to another queue"
            )

    def _make_room(self) -> None:
        """Make room for one more consumer. If there is none, the one that was cancelled first is forgotten: what it
        still holds returns to the queue. StatusError if none is cancelled."""
        if len(self.by_tag) < MAX_CONSUMERS:
            return
        cancelled = next((each.tag for each in self.by_tag.values() if each.is_cancelled), None)
        if cancelled is None:
            raise status.invalid("limit", f"a session has at most {MAX_CONSUMERS} consumers")
        self.cancel(0, cancelled, requeue=True)

    def _attach_answered(self, request_id: int, consumer: Consumer, reply: Reply | None) -> None:
        """A refused consumer is forgotten, unless it is attached already or another request may attach it. A consumer
        of the same tag may have taken its place."""
        consumer.attaching -= 1
        if isinstance(reply, AttachedReply):
            if consumer.attach != reply.attach:
                consumer.attach, consumer.timed_out_to = reply.attach, 0
            self._outbox.add(Attached(request_id, consumer.tag, reply.attach))
            return
        is_known = self.by_tag.get(consumer.tag) is consumer
        if is_known and not consumer.attach and not consumer.attaching:
            del self.by_tag[consumer.tag]
        self._commands.finish(request_id, reply)

    def find(self, request_id: int, tag: str) -> Consumer | None:
        """The consumer of this tag; None, and the request is refused, if there is none."""
        consumer = self.by_tag.get(tag)
        if consumer is None:
            text = f"this session has no consumer {_quoted(tag)}; attached: {len(self.by_tag)} others"
            self._commands.refuse(request_id, status.invalid("not_attached", text))
        return consumer

    def credit(self, request_id: int, tag: str, credit_to: int, *, drain: bool) -> None:
        """The consumer may be delivered tags up to `credit_to`. drain: give back the credit that finds no message."""
        consumer = self.find(request_id, tag)
        if consumer is not None:
            consumer.raise_credit(credit_to)
            command = c.Credit(consumer.queue, consumer.tag, credit_to, drain)
            self._submit(consumer, command, partial(self._commands.finish, request_id))

    def cancel(self, request_id: int, tag: str, *, requeue: bool) -> None:
        """End a consumer. requeue: the messages that it holds return to the queue; otherwise they may still be
        settled."""
        consumer = self.find(request_id, tag)
        if consumer is not None:
            command = c.Cancel(consumer.queue, consumer.tag, requeue)
            ending = consumer.queue, consumer.tag, consumer.attach
            self._submit(consumer, command, partial(self._cancel_answered, request_id, ending))
            del self.by_tag[consumer.tag]
            if requeue:
                self._ending.add(ending)
            else:
                consumer.is_cancelled = True
                self.by_tag[consumer.tag] = consumer  # behind those that were cancelled before

    def _cancel_answered(self, request_id: int, ending: tuple[int, str, int], reply: Reply | None) -> None:
        self._ending.discard(ending)
        self._commands.finish(request_id, reply)

    def notified(self, notify: Notify) -> None:
        """A consumer's credit was given back, it has become active or inactive, it has held messages for too long, or
        its queue was deleted. What is about an earlier attachment of its tag means nothing, but the client learns
        which messages of a consumer that it cancels have timed out before: their settlements are answered next."""
        consumer = self._attached(notify.queue, notify.consumer_tag, notify.attach)
        if consumer is None:
            ending = notify.queue, notify.consumer_tag, notify.attach
            if notify.event == "timed_out" and ending in self._ending:
                self._outbox.add(TimedOut(notify.consumer_tag, notify.attach, notify.value))
            return
        if notify.event == "drained":
            self._outbox.add(Drained(notify.consumer_tag, notify.value))
        elif notify.event in ("active", "inactive"):
            changed = ActiveChanged(notify.consumer_tag, notify.attach, notify.event == "active")
            self._outbox.add(changed)
        elif notify.event == "timed_out":
            consumer.timed_out_to = notify.value
            self._outbox.add(TimedOut(notify.consumer_tag, notify.attach, notify.value))
        else:
            del self.by_tag[notify.consumer_tag]
            self._outbox.add(Cancelled(notify.consumer_tag, status.QUEUE_DELETED))

    # ---- gets

    async def get(self, request_id: int, name: str, count: int, *, settled: bool) -> None:
        """Take up to `count` messages that are ready. settled: they leave the queue at once. StatusError if this node
        does not get the lease to deliver such messages: the session ends, and they stay."""
        try:
            queue = await self._hub.requests.queue(name)
            most = min(self._hub.limits.max_messages, PRODUCTION.max_get)
            if not 1 <= count <= most:
                raise status.invalid("bad_argument", f"get {count} messages; allowed: 1..{most}")
        except status.StatusError as error:
            self._commands.refuse(request_id, error)
            return
        if settled and not await self._hub.published.await_lease(queue.group):
            raise status.of_ended("node_down")
        command = c.Get(queue.id, count, settled)
        answered = partial(self._get_answered, request_id, queue.id)
        self._submit(self._getter(queue.id, queue.group), command, answered, (queue,))

    def _get_answered(self, request_id: int, queue: int, reply: Reply | None) -> None:
        """The messages that a get has taken are about to be delivered, or there are none."""
        if isinstance(reply, Ok) and reply.count:
            self._gets.setdefault(queue, deque()).append(request_id)
        else:
            self._commands.finish(request_id, reply)

    def find_getter(self, request_id: int, name: str) -> Consumer | None:
        """The holder of got messages of the queue of this name; None, and the request is refused, if there are none."""
        queue = self._hub.catalog.queue(name)
        getter = None if queue is None else self._getters.get(queue.id)
        if getter is None:
            text = f"nothing was got from queue {_quoted(name)} in this session"
            self._commands.refuse(request_id, status.invalid("not_attached", text))
        return getter

    def _getter(self, queue: int, group: int) -> Consumer:
        getter = self._getters.get(queue)
        if getter is None:
            if len(self._getters) >= self._getters_to_keep:
                self._forget_deleted_queues()
            getter = self._getters[queue] = Consumer("", group, queue)
        return getter

    def _forget_deleted_queues(self) -> None:
        """Forget the holders of got messages whose queues are gone. The next look comes when their number has
        doubled."""
        known = self._hub.catalog.queue_of
        self._getters = {queue: getter for queue, getter in self._getters.items() if known(queue) is not None}
        self._getters_to_keep = max(FEW_GETTERS, 2 * len(self._getters))

    # ---- dispositions

    def settle(self, request_id: int, consumer: Consumer, disposition: Disposition) -> None:
        """Settle, return, discard or modify messages that the consumer holds. A settlement can wait for other inputs
        if no answer is wanted, it brings no credit that the consumer needs now, and no consumer can wait for the
        message group that it frees."""
        try:
            command = self.checked(consumer, disposition)
        except status.StatusError as error:
            self._commands.refuse(request_id, error)
            return
        is_credit_awaited = consumer.raise_credit(disposition.credit_to)
        is_awaited = bool(request_id) or is_credit_awaited or self._has_message_groups(consumer.queue)
        can_wait = type(command) is c.Settle and not is_awaited
        self._submit(consumer, command, partial(self._commands.finish, request_id), can_wait=can_wait)

    def _has_message_groups(self, number: int) -> bool:
        queue = self._hub.catalog.queue_of(number)
        return queue is not None and queue.config.message_groups

    def checked(self, consumer: Consumer, disposition: Disposition) -> c.Settle:
        """The command of a disposition. StatusError if an argument is wrong."""
        tags, kind = disposition.tags, disposition.kind
        bad = [pair for pair in tags if pair[0] > pair[1] or pair[0] < 1]
        if kind is None or bad or len(tags) > MAX_RANGES:
            what = (
                "outcome is not set"
                if kind is None
                else f"ranges {bad[:3]}"
                if bad
                else f"{len(tags)} ranges"
            )
            allowed = f"up to {MAX_RANGES} ranges, first <= last, from 1"
            text = f"disposition of {_quoted(consumer.tag)}: {what}; allowed: {allowed}"
            raise status.invalid("bad_argument", text)
        return disposition.command(kind, consumer)

    def _submit(
        self,
        consumer: Consumer,
        command: c.Command,
        answered: Answered,
        queues: Sequence[CatalogQueue] = (),
        *,
        can_wait: bool = False,
    ) -> None:
        self._commands.resume()
        self._commands.submit(consumer.group, command, answered, queues, can_wait=can_wait)

    # ---- deliveries

    def delivered(self, group: int, deliver: Deliver) -> PendingDelivery:
        """Take note of a delivery. Its bodies are read when it is its turn."""
        request_id = 0
        consumer = self._attached(deliver.queue, deliver.consumer_tag, deliver.attach)
        if consumer is not None:
            consumer.delivered_to = deliver.first_tag + sum(run.count for run in deliver.runs) - 1
        elif not deliver.consumer_tag and deliver.queue in self._gets:
            waiting = self._gets[deliver.queue]
            request_id = waiting.popleft()
            if not waiting:
                del self._gets[deliver.queue]
        return PendingDelivery(group, deliver, request_id)

    def read(self, item: PendingDelivery) -> Iterator[deliveries.DeliveredBatch | BodyUnreadable]:
        """The batches of a delivery. StatusError if this node may not deliver them, or cannot read them."""
        group, deliver = item.group, item.deliver
        if not self._is_current(deliver):
            return
        if not deliver.consumer_tag:
            self._getter(deliver.queue, group).attach = deliver.attach
        try:
            for batch in deliveries.delivered_batches(self._hub.reader, group, deliver):
                if not isinstance(batch, BodyUnreadable):
                    if not self._is_current(deliver):
                        return  # given back while the part before was on its way, or this one was repaired
                    if not self._hub.published.may_deliver(group):
                        raise status.of_ended("node_down")
                yield batch
        except LogError as error:
            structlog.get_logger().error("a body cannot be read", group=group, error=str(error))
            raise status.of_ended("unreadable") from error
        self._outbox.done(item.request_id)

    def _is_current(self, deliver: Deliver) -> bool:
        """Whether messages that waited here are still held by the attachment that they were delivered to. A consumer
        that was cancelled, attached again, or has timed out, has returned them, and another consumer may have them."""
        if not deliver.consumer_tag:
            return True
        consumer = self._attached(deliver.queue, deliver.consumer_tag, deliver.attach)
        return consumer is not None and deliver.first_tag > consumer.timed_out_to

    def _attached(self, queue: int, tag: str, attach: int) -> Consumer | None:
        """The consumer of this tag, if this is its present attachment. The tag may have been one of another queue."""
        consumer = self.by_tag.get(tag)
        if consumer is None or (consumer.queue, consumer.attach) != (queue, attach):
            return None
        return consumer


def _quoted(text: str) -> str:
    """A client's text as a refusal quotes it: its escape sequences count, too."""
    quoted = repr(text)
    return quoted if len(quoted) <= QUOTED_CHARACTERS else f"{quoted[:QUOTED_CHARACTERS]}..."
