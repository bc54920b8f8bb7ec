"""Queries of durable subscriptions. Queries decide nothing; they may make cold blocks warm."""

from __future__ import annotations

from fifo.consumers.consumer import SelectorGroup
from fifo.consumers.delivery import Delivery
from fifo.consumers.match_cache import EVICTED
from fifo.effects import Refused
from fifo.limits import Limits
from fifo.messages import bitsets
from fifo.messages.blocks import Block
from fifo.queue_machine import QueueMachine
from fifo.results import ReservationInfo, ReservationPage, SubscriptionInfo
from fifo.subscriptions import Subscription


def infos(machine: QueueMachine) -> tuple[SubscriptionInfo, ...]:
    """A queue's subscriptions in the order of being made."""
    return tuple([_info(subscription) for subscription in machine.subscriptions.by_name.values()])


def info(machine: QueueMachine, name: str) -> SubscriptionInfo | None:
    subscription = machine.subscriptions.by_name.get(name)
    return None if subscription is None else _info(subscription)


def _info(subscription: Subscription) -> SubscriptionInfo:
    state = subscription.state()
    return SubscriptionInfo(
        name=subscription.name,
        generation=subscription.generation,
        settled=subscription.settled,
        last=subscription.last,
        outstanding=state.outstanding,
        selector=subscription.selector,
        start_sequence=subscription.start_sequence,
        last_seen_ms=subscription.last_seen_ms,
        timeout_ms=subscription.timeout_ms,
        on_expiry=subscription.on_expiry,
        has_untold_loss=subscription.has_untold_loss,
        reservations=tuple(
            [
                ReservationInfo(
                    each.offset, each.index, each.count, each.size_bytes, each.opens, each.time_ms
                )
                for each in subscription.reservations
                if not each.disposition
            ]
        ),
    )


def reserved(
    machine: QueueMachine, name: str, offset: int, first_ordinal: int, count: int
) -> ReservationPage | Refused:
    """The messages first_ordinal .. first_ordinal+count-1 of a reservation, as far as it has them and
    `Limits.reserved_blocks` and `Limits.page_runs` allow; at least one, if there is one."""
    subscription = machine.subscriptions.by_name.get(name)
    if subscription is None:
        return Refused("not_found", f"queue {machine.messages.config.name!r} has no subscription {name!r}")
    found = subscription.find(offset)
    if isinstance(found, Refused):
        return found
    if not 0 <= first_ordinal <= found.count or count < 0:
        return Refused(
            "bad_argument",
            f"{count} messages from ordinal {first_ordinal} of a reservation of {found.count};"
            f" allowed: 0 and more from 0..{found.count}",
        )
    count = min(count, found.count - first_ordinal)
    if not count:
        return ReservationPage((), 0, (), found.opens)
    first = found.first_tag + first_ordinal
    shown = Delivery(subscription.consumer, machine.queue, first)
    ranges = _of_blocks(subscription.consumer.checked_out.between(first, first + count - 1), machine.limits)
    for block, members in machine.messages.blocks.of_ranges(ranges):
        some = block.within_runs(members, machine.limits.page_runs - len(shown.runs))
        shown.describe(block, some)
        if some != members:
            break
    redelivered = bitsets.span(0, shown.count) if found.opens else shown.redelivered
    return ReservationPage(
        tuple(shown.runs), redelivered, tuple(shown.failures), found.opens, shown.count < count
    )


def _of_blocks(ranges: list[tuple[int, int]], limits: Limits) -> list[tuple[int, int]]:
    """The first of these ascending (sequence, count) ranges, up to the end of the last block that may be read."""
    found: list[tuple[int, int]] = []
    rest, number, block_bits = limits.reserved_blocks, -1, limits.block_bits
    for sequence, count in ranges:
        first, last = sequence >> block_bits, (sequence + count - 1) >> block_bits
        rest -= last - first + (first != number)
        number = last
        if rest < 0:
            end = (last + 1 + rest) << block_bits
            if end > sequence:
                found.append((sequence, end - sequence))
            break
        found.append((sequence, count))
    return found


def may_reserve(machine: QueueMachine, name: str) -> bool:
    """False if a Reserve of this subscription would certainly find nothing; else True. Reads no page."""
    subscription = machine.subscriptions.by_name.get(name)
    if subscription is None:
        return True
    if not machine.messages.ready_count:
        return False
    group, start = subscription.consumer.group, subscription.start_sequence
    assert group is not None
    if group.selector:
        return _may_match(machine, group, start)
    numbers = machine.messages.order.by_sequence.numbers
    return any(
        _has(machine, number, -1, start) for number in numbers.irange(start >> machine.limits.block_bits)
    )


def _may_match(machine: QueueMachine, group: SelectorGroup, start: int) -> bool:
    groups = machine.groups
    if groups.evaluated_by(group) < machine.messages.next_sequence:
        return True
    first_number = start >> machine.limits.block_bits
    for number in groups.match_cache.numbers(group.selector):
        if number < first_number or groups.match_cache.is_exhausted(group.selector, number):
            continue
        members = groups.match_cache.get(group.selector, number)
        if members == EVICTED or _has(machine, number, members, start):
            return True
    return False


def _has(machine: QueueMachine, number: int, members: int, start: int) -> bool:
    """Whether any of these messages of a block may be ready, from a sequence on."""
    block = machine.messages.blocks.at(number)
    if not isinstance(block, Block):
        return block.ready_count > 0
    asked = -1 << (start - block.base) if start > block.base else -1
    return bool(block.ready & members & asked)
