"""Durable subscriptions: named consumers of one queue that no session owns.

A subscription takes messages by *reservations*. They are numbered 1, 2, 3, ... for each subscription; these numbers are
its *offsets*. A reservation never changes. It can be read any number of times, from every member, by ordinals, until it
is settled or released as a whole. Reserve names the offset before the new one. A caller that lost the answer repeats
the command and gets the same reservation.

The messages that a subscription holds are kept by consecutive tags, like those of any consumer (`Consumer`,
`CheckedOut`). A reservation is a range of tags. A subscription belongs to the group of its selector, but it never has
credit: a checkout never serves it. Ordinary consumers work beside it.

Offsets at or below `settled` are done. Reservations that are released all at once are done, too, although their
messages are requeued in steps (`finish`). Until then the reservations are kept, with a disposition. An entry moves the
messages of one reservation of a queue, or of several as far as its budget allows.

When a subscription has been silent for its timeout, `on_expiry` is done with its outstanding messages. The subscription
stays. Its reader may have reserved ahead, and may believe that it still holds its oldest messages. The subscription
therefore gets no new reservation before the reader shows that it knows of the loss, in one of three ways:
- it opens the subscription again;
- it releases what it holds;
- it settles up to its last offset; the answer is that this offset was released.
In entries of version 1 it gets a new reservation at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from fifo.budgets import Entry, Left
from fifo.commands import (
    MAX_NAME_BYTES,
    ON_EXPIRY,
    STARTS,
    UNKNOWN,
    Address,
    DeleteSubscription,
    KeepSubscription,
    OpenSubscription,
    ReleaseSubscription,
    Reserve,
    SettleReserved,
)
from fifo.consumers.consumer import Consumer
from fifo.consumers.delivery import Delivery
from fifo.consumers.selector import refuse_others, refuse_selector
from fifo.consumers.selector_groups import SelectorGroups
from fifo.consumers.shared_scan import CAUGHT_UP
from fifo.effects import Ok, Refused, Reply, Reserved, SubscriptionState
from fifo.messages import bitsets
from fifo.messages.blocks import Block
from fifo.messages.messages import Messages
from fifo.messages.runs import NEVER
from fifo.shares import Owned
from fifo.versions import SHARED_PLACES, TOLD_LOSSES

MIN_TIMEOUT_MS = 1_000
MAX_TIMEOUT_MS = 30 * 24 * 3600 * 1000

SubscriptionCommand = (
    OpenSubscription | Reserve | SettleReserved | KeepSubscription | ReleaseSubscription | DeleteSubscription
)


class Disposition(IntEnum):
    """The action on the messages of a reservation when it ends."""

    OUTSTANDING = 0
    RETURNED = 1
    DISCARDED = 2


@dataclass(slots=True, eq=False)
class Reservation:
    """The messages that its subscription holds by the tags first_tag .. first_tag+count-1, ascending by sequence."""

    offset: int
    first_tag: int
    count: int
    size_bytes: int  # estimated from the mean size in each block
    index: int  # of the Raft entry that made it
    time_ms: int
    is_complete: bool  # no budget ended the search for messages
    opens: int = 0  # number of openings of the subscription while it was outstanding
    disposition: Disposition = Disposition.OUTSTANDING


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription. Its reservations ascend by offset; those with a disposition are first."""

    consumer: Consumer
    generation: int
    start_sequence: int  # nothing before it is ever reserved
    timeout_ms: int = 0
    on_expiry: str = "keep"
    last_seen_ms: int = 0
    settled: int = 0
    last: int = 0
    reservations: list[Reservation] = field(default_factory=list)
    released: list[tuple[int, int]] = field(default_factory=list)  # offsets (first, last), ascending
    has_untold_loss: bool = False  # it lost messages by silence, and its reader has not shown that it knows
    owner: int = UNKNOWN  # of the session that opened it last

    @property
    def name(self) -> str:
        return self.consumer.tag

    @property
    def selector(self) -> bytes:
        """The selector; empty once the subscription is deleted."""
        return self.consumer.selector or b""

    @property
    def due_ms(self) -> int:
        """The group time at which its silence is too long; NEVER if it holds nothing or keeps its messages."""
        if self.settled == self.last or self.on_expiry == "keep":
            return NEVER
        return self.last_seen_ms + self.timeout_ms

    def state(self) -> SubscriptionState:
        outstanding = sum([each.count for each in self.reservations if not each.disposition])
        return SubscriptionState(self.generation, self.settled, self.last, outstanding)

    def find(self, offset: int) -> Reservation | Refused:
        """The outstanding reservation with this offset, or the refusal if there is none."""
        if offset > self.last or offset < 1:
            return Refused(
                "not_given", f"offset {offset} of subscription {self.name!r}; given out: up to {self.last}"
            )
        if offset > self.settled:
            return next(each for each in self.reservations if each.offset == offset)
        for first, last in self.released:
            if first <= offset <= last:
                return Refused(
                    "released",
                    f"subscription {self.name!r}: the reservations {first}..{last} were released, after a silence of"
                    f" {self.timeout_ms} ms or by command",
                )
        return Refused(
            "settled",
            f"offset {offset} of subscription {self.name!r}; everything is settled up to {self.settled}",
        )

    def release_all(self, disposition: Disposition, max_released: int) -> None:
        """Ends all outstanding reservations with this disposition."""
        if self.settled == self.last:
            return
        for each in self.reservations:
            each.disposition = each.disposition or disposition
        first, self.settled = self.settled + 1, self.last
        released = self.released
        if released and released[-1][1] + 1 == first:
            first = released.pop()[0]
        released.append((first, self.last))
        if len(released) > max_released:
            released[:2] = [(released[0][0], released[1][1])]


class ReservationBuilder(Delivery):
    """Gathers the messages of one Reserve, from a sequence on: at most `most_bytes` bytes, but always one message. A
    reservation ascends by sequence, also in a queue with priorities: a reader divides it into ranges, and reads all of
    it anyway."""

    __slots__ = ("is_full", "rest_bytes", "size_bytes", "start")

    is_by_sequence = True

    def __init__(self, subscription: Subscription, queue: int, most_bytes: int) -> None:
        super().__init__(subscription.consumer, queue)
        self.start = subscription.start_sequence
        self.is_full = False
        self.rest_bytes = most_bytes
        self.size_bytes = 0

    def choose(self, block: Block, members: int, wanted: int) -> int:
        if not members:
            return 0  # the block may even be empty: its ready messages have expired
        size, placed = block.size_bytes, block.placed
        allowed = wanted + 1
        if size:
            allowed = max(self.rest_bytes * placed // size, 0 if self.count else 1)
        chosen = bitsets.lowest(members, min(wanted, allowed))
        count = chosen.bit_count()
        self.is_full = count == allowed
        self.rest_bytes -= size * count // placed
        self.size_bytes += size * count // placed
        return chosen

    def within(self, left: Left, block: Block, members: int, wanted: int) -> int:
        """All messages: a reservation does not describe its runs, so only the number of messages counts."""
        return members

    def take(self, messages: Messages, block: Block, members: int, count: int) -> int:
        messages.check_out(block, members, count)
        self.again += (block.redelivered & members).bit_count()
        consumer = self.consumer
        for slot, width in bitsets.ranges(members):
            consumer.checked_out.add(consumer.next_tag, block.base + slot, width)
            consumer.next_tag += width
        self.count += count
        return 0


class Subscriptions:
    """The subscriptions of one queue."""

    __slots__ = ("by_name", "deleted", "groups", "messages", "past_generation")

    def __init__(self, messages: Messages, groups: SelectorGroups) -> None:
        self.messages = messages
        self.groups = groups
        self.by_name: dict[str, Subscription] = {}  # in the order of being made
        self.deleted: list[Subscription] = []  # those with messages that are not requeued yet
        self.past_generation = 0  # the highest of deleted subscriptions: a new one begins above

    # ---- commands

    def answer(self, entry: Entry, command: SubscriptionCommand) -> Reply:
        if isinstance(command, OpenSubscription):
            return self._open(entry, command)
        subscription = self.by_name.get(command.subscription)
        is_deletion = isinstance(command, DeleteSubscription)
        if subscription is None and is_deletion:
            return Ok()
        if subscription is None:
            return Refused(
                "not_found",
                f"queue {self.messages.config.name!r} has no subscription {command.subscription!r}",
            )
        if command.generation not in (subscription.generation, None):
            return Refused(
                "wrong_generation",
                f"subscription {subscription.name!r} was opened by another caller: this is generation"
                f" {command.generation}, the present one is {subscription.generation}",
            )
        if is_deletion:
            return self._delete(entry, subscription)
        if isinstance(command, ReleaseSubscription) and command.last not in (subscription.last, None):
            return _outdated(command, f"its newest offset is {subscription.last}")
        if isinstance(command, Reserve):
            return self._reserve(entry, subscription, command)
        if isinstance(command, SettleReserved):
            return self._settle(entry, subscription, command.to)
        subscription.last_seen_ms = entry.now_ms
        if isinstance(command, ReleaseSubscription):
            subscription.release_all(Disposition.RETURNED, entry.limits.max_released)
            subscription.has_untold_loss = False
        return subscription.state()

    def _open(self, entry: Entry, command: OpenSubscription) -> Reply:
        messages, name = self.messages, command.subscription
        refused = refuse_open(command) or refuse_selector(messages.config, command.selector)
        if refused is not None:
            return refused
        if messages.config.single_active_consumer or messages.config.message_groups:
            return refuse_others(messages.config, "a subscription")
        subscription = self.by_name.get(name)
        present = 0 if subscription is None else subscription.generation
        if command.found not in (present, None):
            return _outdated(command, f"its generation is {present}")
        if subscription is None:
            refused = self._refuse_more(entry, command.owner)
            if refused is not None:
                return refused
            consumer = Consumer(b"", name, Address(0, 0, 0), 0, None, entry.limits.max_checked_out)
            start = messages.next_sequence if command.start == "latest" else 0
            subscription = self.by_name[name] = Subscription(consumer, self.past_generation, start)
        consumer = subscription.consumer
        if consumer.group is not None and consumer.group.selector != command.selector:
            self.groups.leave(consumer)
        if consumer.group is None:
            self.groups.join(consumer, command.selector)
        subscription.generation += 1
        subscription.has_untold_loss = False
        subscription.owner = command.owner if entry.version >= SHARED_PLACES else UNKNOWN
        subscription.timeout_ms, subscription.on_expiry = command.timeout_ms, command.on_expiry
        subscription.last_seen_ms = entry.now_ms
        for each in subscription.reservations:
            each.opens += not each.disposition
        return subscription.state()

    def _refuse_more(self, entry: Entry, owner: int) -> Refused | None:
        """The refusal if there is no room for one more subscription, else None."""
        owned = Owned([subscription.owner for subscription in (*self.by_name.values(), *self.deleted)])
        most = entry.limits.max_subscriptions
        return owned.refuse_more(entry.version, owner, most, self.messages.config.name, "subscriptions")

    def _reserve(self, entry: Entry, subscription: Subscription, command: Reserve) -> Reply:
        after = command.after
        if after < 0 or command.max_messages < 1 or command.max_bytes < 1:
            return Refused(
                "bad_argument",
                f"{command.max_messages} messages of {command.max_bytes} bytes after offset {after};"
                " allowed: offsets from 0 on, of the others 1 and more",
            )
        if after > subscription.last:
            return subscription.find(after)  # type: ignore[return-value]
        if after < subscription.last:
            known = subscription.find(after + 1)
            if isinstance(known, Refused):
                return known
            subscription.last_seen_ms = entry.now_ms
            return _reserved(known)
        if subscription.has_untold_loss:
            return subscription.find(after)  # type: ignore[return-value]
        checked_out, limits = subscription.consumer.checked_out.total, entry.limits
        if len(subscription.reservations) >= limits.max_reservations or checked_out >= limits.max_outstanding:
            return Refused(
                "limit",
                f"subscription {subscription.name!r} holds {len(subscription.reservations)} reservations"
                f" with {checked_out} messages; allowed: {limits.max_reservations} with {limits.max_outstanding}",
            )
        subscription.last_seen_ms = entry.now_ms
        wanted = min(command.max_messages, limits.max_reserved, limits.max_outstanding - checked_out)
        builder, is_complete = self._take(entry, subscription, wanted, command.max_bytes)
        if not builder.count:
            return Reserved(after, entry.index, 0, 0, is_complete)
        subscription.last += 1
        made = Reservation(
            subscription.last,
            builder.first_tag,
            builder.count,
            builder.size_bytes,
            entry.index,
            entry.now_ms,
            is_complete,
        )
        subscription.reservations.append(made)
        return _reserved(made)

    def _take(
        self, entry: Entry, subscription: Subscription, wanted: int, most_bytes: int
    ) -> tuple[ReservationBuilder, bool]:
        """Takes messages for a reservation. Returns them, and whether no budget ended the search."""
        groups, group = self.groups, subscription.consumer.group
        assert group is not None
        left = entry.budget(self.messages.queue).left
        builder = ReservationBuilder(subscription, self.messages.queue, most_bytes)
        if not left.may_hand_out:
            return builder, False
        groups.shared.move(entry)
        groups.look_up_arrivals()
        taken, is_complete = groups.take(group, entry, builder, min(wanted, left.messages))
        if group.scan_position == CAUGHT_UP and groups.shared.behind is not None:
            is_complete = False
        groups.rest(group)
        if taken == left.messages < wanted:
            is_complete = False
        left.messages -= taken
        self.messages.count_redelivered(entry, builder.again)
        return builder, is_complete

    def _settle(self, entry: Entry, subscription: Subscription, to: int) -> Reply:
        if to > subscription.last:
            return subscription.find(to)  # type: ignore[return-value]
        subscription.last_seen_ms = entry.now_ms
        if to == subscription.last:
            subscription.has_untold_loss = False
        for each in [each for each in subscription.reservations if not each.disposition]:
            if each.offset > to or not self._may_move(entry, each):
                break
            self.messages.settle(self._give_up(subscription, each))
            subscription.settled = each.offset
        return subscription.state()

    def _delete(self, entry: Entry, subscription: Subscription) -> Reply:
        outstanding = subscription.state().outstanding
        subscription.release_all(Disposition.RETURNED, entry.limits.max_released)
        self.groups.leave(subscription.consumer)
        del self.by_name[subscription.name]
        self.past_generation = max(self.past_generation, subscription.generation)
        if subscription.reservations:
            self.deleted.append(subscription)
        return Ok(outstanding)

    # ---- the end of an entry

    def finish(self, entry: Entry) -> bool:
        """Releases subscriptions that were silent for too long, and moves the messages of released reservations. False
        if a budget left some of them."""
        if not self.by_name and not self.deleted:
            return True
        for subscription in self.by_name.values():
            if subscription.due_ms <= entry.now_ms:
                disposition = (
                    Disposition.RETURNED if subscription.on_expiry == "release" else Disposition.DISCARDED
                )
                subscription.release_all(disposition, entry.limits.max_released)
                subscription.has_untold_loss = entry.version >= TOLD_LOSSES
        is_done = True
        for subscription in (*self.by_name.values(), *self.deleted):
            while is_done and subscription.reservations and subscription.reservations[0].disposition:
                is_done = self._move(entry, subscription, subscription.reservations[0])
        if self.deleted:
            self.deleted = [subscription for subscription in self.deleted if subscription.reservations]
        return is_done

    def _move(self, entry: Entry, subscription: Subscription, reservation: Reservation) -> bool:
        """Carries out the disposition of a reservation. False if the budget does not allow it."""
        if not self._may_move(entry, reservation):
            return False
        ranges = self._give_up(subscription, reservation)
        if reservation.disposition == Disposition.RETURNED:
            self.messages.requeue(entry, ranges, failed=False)
        else:
            self.messages.settle(ranges, "rejected")
        return True

    def _may_move(self, entry: Entry, reservation: Reservation) -> bool:
        return entry.budget(self.messages.queue).left.may_move(reservation.count, entry.limits)

    def _give_up(self, subscription: Subscription, reservation: Reservation) -> list[tuple[int, int]]:
        subscription.reservations.remove(reservation)
        first = reservation.first_tag
        return subscription.consumer.checked_out.remove(first, first + reservation.count - 1)

    def next_due(self) -> int:
        """The group time at which the next subscription is silent for too long; NEVER if there is none."""
        return min([subscription.due_ms for subscription in self.by_name.values()], default=NEVER)


def _outdated(command: OpenSubscription | ReleaseSubscription, now: str) -> Refused:
    return Refused("outdated", f"subscription {command.subscription!r} has changed: {now}")


def _reserved(reservation: Reservation) -> Reserved:
    return Reserved(
        reservation.offset,
        reservation.index,
        reservation.count,
        reservation.size_bytes,
        reservation.is_complete,
    )


def refuse_open(command: OpenSubscription) -> Refused | None:
    """The refusal if a subscription's name or settings are not allowed, else None."""
    length = len(command.subscription.encode("utf-8", "surrogatepass"))
    if not 0 < length <= MAX_NAME_BYTES:
        return Refused(
            "bad_argument",
            f"a subscription's name has {length} bytes; allowed: 1 to {MAX_NAME_BYTES} of UTF-8",
        )
    if not MIN_TIMEOUT_MS <= command.timeout_ms <= MAX_TIMEOUT_MS:
        return Refused(
            "bad_argument",
            f"a timeout of {command.timeout_ms} ms; allowed: {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS}",
        )
    if command.start not in STARTS or command.on_expiry not in ON_EXPIRY:
        return Refused(
            "bad_argument",
            f"start {command.start!r} and on_expiry {command.on_expiry!r}; allowed: {', '.join(STARTS)}"
            f" and {', '.join(ON_EXPIRY)}",
        )
    return None
