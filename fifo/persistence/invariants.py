"""Invariants of a group between entries, for tests and for a member that checks itself. The cost is O(state)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Container

from fifo.commands import NODE, PRODUCER_BYTES
from fifo.consumers.consumer import CheckedOut, Consumer, Embargoed, SelectorGroup
from fifo.consumers.match_cache import EVICTED
from fifo.consumers.shared_scan import CAUGHT_UP
from fifo.embargo import EmbargoedBatch, EmbargoedSettlement, Key
from fifo.group_machine import GroupMachine
from fifo.index_sets import unpack
from fifo.messages import bitsets
from fifo.messages.block_store import by_number
from fifo.messages.blocks import Block
from fifo.messages.dead_letters import CAUSES
from fifo.messages.life import COUNTED, LIFE, Place
from fifo.messages.message_groups import MessageGroups
from fifo.messages.packed_sets import unpack as unpack_set
from fifo.messages.pages import encode_block
from fifo.messages.ready_order import PriorityOrder
from fifo.messages.runs import NEVER, ONE_EACH
from fifo.persistence import snapshot
from fifo.producers import Producer
from fifo.queue_machine import IN_USE, QueueMachine
from fifo.shares import Owned
from fifo.staging import PART_BYTES
from fifo.subscriptions import Subscription
from quorum_selectors.evaluate import evaluate

PLACES = tuple(place for place in Place if place.value)
"""The places of messages that are in a queue."""


def check(group: GroupMachine, data: bytes | None = None) -> None:
    """Raises AssertionError if an invariant is broken. data: the group's snapshot, if the caller has encoded it."""
    sessions, limits = group.sessions, group.limits
    fences = sessions.fences.by_name
    owners = [producer.owner for producer in sessions.producers.values()]
    _expect(len(owners) - owners.count(NODE) <= limits.max_producers, "too many producers")
    _expect(sessions.owned == {owner: owners.count(owner) for owner in owners}, "owners are counted")
    live = Counter(
        (producer.address.node, producer.address.boot)
        for producer in sessions.producers.values()
        if producer.ended_ms < 0
    )
    _expect(sessions.live == dict(live), "live sessions are counted by process")
    ranges = Owned()
    for producer in sessions.producers.values():
        ranges.add(producer.owner, 0 if producer.owner == NODE else max(0, len(producer.accepted) - 1))
    _expect(sessions.ranges.counts == ranges.counts, "ranges of accepted messages are counted by owner")
    _expect(len(fences) <= limits.max_fences, "too many fences")
    _expect(not fences.keys() & sessions.producers.keys(), "a remembered producer has no fence")
    fenced = [fence.ended_ms for fence in fences.values()]
    _expect(fenced == sorted(fenced), "fences are listed in the order of forgetting")
    _expect(not fenced or sessions.fences.lost_ms <= fenced[0], "the oldest fences go first")
    ended = [name for name, producer in sessions.producers.items() if producer.ended_ms >= 0]
    _expect(sorted(ended) == sorted(sessions.ended), "ended producers are listed")
    times = [sessions.producers[name].ended_ms for name in sessions.ended]
    _expect(times == sorted(times), "ended producers are listed in the order of ending")
    for producer in sessions.producers.values():
        _check_producer(group, producer)
    selectors = Owned()
    for queue in sorted(group.queues):
        machine = group.queues[queue]
        _check_queue(machine, group.decisions.prepared)
        for consumer in machine.consumers.by_key.values():
            selectors.add(consumer.owner, 0 if consumer.group is None else len(consumer.group.selector))
        for name, tag in machine.consumers.by_key:
            _expect((queue, tag) in sessions.producers[name].consumers, "a session knows its consumers")
        owners = [consumer.owner for consumer in machine.consumers.by_key.values()]
        _expect(
            owners == [sessions.producers[name].owner for name, _ in machine.consumers.by_key],
            "a consumer has the owner of its session",
        )
        _expect(machine.consumers.owned.counts == dict(Counter(owners)), "owners of consumers are counted")
        _expect(group.wake_of(queue) == machine.next_expiry(), "a queue is filed under its next expiry")
        _expect(machine.unfinished == (queue in group.backlog), "unfinished queues are in the backlog")
        is_timed = machine.messages.config.expires_ms >= 0 and not machine.has_users
        _expect(
            (machine.used_ms != IN_USE) == is_timed, "a queue that may expire has the time of its last use"
        )
    _expect(group.selector_bytes.counts == selectors.counts, "the bytes of selectors are counted by owner")
    _expect(all(group.was_deleted(queue) for queue in group.expired), "an expired queue is deleted")
    having = [queue for queue, machine in sorted(group.queues.items()) if machine.messages.dead.count]
    _expect(sorted(group.with_dead) == having, "queues with dead messages are listed")
    _check_transactions(group)
    _expect(all(queue in group.queues for queue in group.backlog), "the backlog names queues that exist")
    _expect(list(group.deleted) == sorted(set(group.deleted)), "deleted ids ascend")
    _expect(not any(queue in group.queues for queue in group.deleted), "a deleted queue is gone")
    data = snapshot.encode(group) if data is None else data
    again = snapshot.decode(data, group.field_source, limits=limits)
    warm = sum(block.measured for queue in group.queues.values() for block in queue.messages.blocks.warm())
    _expect(warm == group.memory.warm_bytes, "the bytes of warm blocks are counted")
    _expect(snapshot.encode(again) == data, "a snapshot restores to itself")
    _expect(
        again.selector_bytes.counts == selectors.counts, "the bytes of selectors follow from the snapshot"
    )
    _expect(again.next_wake() == group.next_wake(), "the next wake-up follows from the snapshot")


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _check_producer(group: GroupMachine, producer: Producer) -> None:
    bound = producer.floor - 1
    for place, (first, last) in enumerate(producer.accepted):
        _expect(first <= last, "a range of accepted messages is not empty")
        _expect(first > bound, "accepted ranges ascend with gaps, above the floor")
        _expect(place == 0 or first > bound, "neighbouring ranges are one")
        bound = last + 1
    for queue, tag in producer.consumers:
        _expect((producer.name, tag) in group.queues[queue].consumers.by_key, "a session's consumers exist")
    _expect(producer.ended_ms < 0 or not producer.consumers, "an ended session has no consumers")


def _check_transactions(group: GroupMachine) -> None:
    transactions, limits = group.transactions, group.limits
    by_key = transactions.by_key
    counted: dict[Key, list[int]] = {key: [0, 0, 0, 0] for key in by_key}
    touched: dict[Key, dict[int, None]] = {key: {} for key in by_key}
    for queue in sorted(group.queues):
        for key, parts in group.queues[queue].transactions.embargo.parts.items():
            _expect(bool(parts), "an embargo has parts")
            if key in group.decisions.prepared:
                _expect(key not in by_key, "a transaction is open or prepared")
                continue
            _expect(key in by_key, "a queue embargoes for open and prepared transactions only")
            touched[key][queue] = None
            for part in parts:
                more = 1, part.message_count, part.size_bytes, part.range_count
                counted[key] = [total + each for total, each in zip(counted[key], more, strict=True)]
    owned, ranges, sizes, began_ms = Owned(), Owned(), Owned(), 0
    _check_decisions(group, owned, ranges, sizes)
    for key, each in by_key.items():
        producer = group.sessions.producers.get(key[0])
        _expect(producer is each.producer and key == each.key, "a transaction belongs to its producer")
        _expect(each.producer.ended_ms < 0, "a transaction ends with its session")
        _expect(sorted(each.queues) == sorted(touched[key]), "a transaction knows its queues")
        counts = [each.operations, each.messages, each.size_bytes, each.ranges]
        _expect(counts == counted[key], "the parts of a transaction are counted")
        allowed = (
            limits.transaction_operations,
            limits.transaction_messages,
            limits.transaction_bytes,
            limits.transaction_ranges,
        )
        _expect(
            all(count <= most for count, most in zip(counts, allowed, strict=True)),
            "transactions are limited",
        )
        _expect(0 < len(each.queues) <= limits.transaction_queues, "a transaction has a few queues")
        _expect(each.began_ms >= began_ms, "transactions are in the order of their beginning")
        began_ms = each.began_ms
        owned.add(each.producer.owner)
        ranges.add(each.producer.owner, each.ranges)
        sizes.add(each.producer.owner, each.size_bytes)
    _expect(transactions.owned.counts == owned.counts, "transactions are counted by owner")
    _expect(transactions.owned_ranges.counts == ranges.counts, "their ranges are counted by owner")
    _expect(transactions.owned_bytes.counts == sizes.counts, "their bytes are counted by owner")
    _expect(owned.total <= limits.open_transactions, "open transactions are limited")
    _expect(ranges.total <= limits.embargoed_ranges, "their ranges are limited")
    _expect(sizes.total <= limits.embargoed_bytes, "their bytes are limited")
    for producer in group.sessions.producers.values():
        numbers = [number for name, number in by_key if name == producer.name]
        _expect(list(producer.open_tx) == numbers, "a producer knows its transactions")
        unnamed = [number for span in producer.unnamed_tx for number in range(span[0], span[1] + 1)]
        lowest = producer.last_tx - limits.transaction_window
        _expect(
            all(lowest < each < producer.last_tx for each in unnamed), "unnamed numbers are of the window"
        )
        _expect(not any(each in numbers for each in unnamed), "an open transaction is named")
        _expect(not numbers or max(numbers) <= producer.last_tx, "its highest number is the highest")
        committed = [number for span in producer.committed for number in range(span[0], span[1] + 1)]
        _expect(
            not any(each in committed for each in (*numbers, *unnamed)), "a transaction is open or committed"
        )
        _expect(not committed or committed[-1] <= producer.last_tx, "what was committed was named")
        span = committed[-1] - committed[0] if committed else 0
        _expect(span < limits.transaction_window, "outcomes are forgotten")


def _check_decisions(group: GroupMachine, owned: Owned, ranges: Owned, sizes: Owned) -> None:
    """Checks what is prepared and decided, and counts it for the owners."""
    decisions, prepared_ms = group.decisions, 0
    for key, part in decisions.prepared.items():
        found = {
            queue: parts
            for queue in sorted(group.queues)
            if (parts := group.queues[queue].transactions.embargo.parts.get(key))
        }
        parts = [each for parts in found.values() for each in parts]
        _expect(key == part.key, "a prepared part has its key")
        _expect(sorted(part.queues) == list(found), "a prepared part knows its queues")
        counts = [
            sum(each.message_count for each in parts),
            sum(each.size_bytes for each in parts),
            sum(each.range_count for each in parts),
        ]
        _expect(counts == [part.messages, part.size_bytes, part.ranges], "prepared messages are counted")
        _expect(part.prepared_ms >= prepared_ms, "prepared parts are in the order of preparing")
        prepared_ms = part.prepared_ms
        owned.add(part.owner)
        ranges.add(part.owner, part.ranges)
        sizes.add(part.owner, part.size_bytes)
    names = Counter(part.producer for part in decisions.prepared.values())
    _expect(decisions.waiting == dict(names), "producers with prepared parts are known")
    for key, decision in decisions.decided.items():
        _expect(key == decision.key and bool(decision.groups), "a decision has its key, and groups")
        _expect(key not in group.transactions.by_key, "what is decided is not open")
        owned.add(decision.owner)
    for machine in group.queues.values():
        embargo = machine.transactions.embargo
        reserved = [embargo.published(key) for key in decisions.prepared if key in embargo.parts]
        count, size = sum(each for each, _ in reserved), sum(each for _, each in reserved)
        messages = machine.messages
        _expect((messages.reserved_count, messages.reserved_bytes) == (count, size), "room is reserved")


def _check_embargo(machine: QueueMachine, prepared: Container[Key]) -> None:
    """Checks that consumers know what open transactions settle."""
    noted: dict[tuple[bytes, str], dict[int, Embargoed]] = {}
    for key, parts in machine.transactions.embargo.parts.items():
        for part in parts:
            if isinstance(part, EmbargoedBatch):
                _expect(len(part.ordinals) == len(part.counts) == len(part.ttls), "a batch has stretches")
                _expect(len(part.dues) in (0, len(part.counts)), "a due time belongs to a stretch")
                continue
            _expect(part.held.total > 0, "a settlement has messages")
            if key in prepared:
                continue
            consumer = machine.consumers.by_key[key[0], part.consumer_tag]
            _expect(consumer.attach == part.attach, "a settlement is of the present attachment")
            known = noted.setdefault(consumer.key, {}).setdefault(key[1], Embargoed(part.held.tags[0], 0))
            known.first_tag = min(known.first_tag, part.held.tags[0])
            known.count += part.held.total
    for consumer in machine.consumers.by_key.values():
        _expect(consumer.embargoed == noted.get(consumer.key, {}), "a consumer knows what is embargoed")
        count = sum(each.count for each in consumer.embargoed.values())
        _expect(consumer.embargoed_count == count, "embargoed messages are counted")


def _check_queue(machine: QueueMachine, prepared: Container[Key]) -> None:
    attached = sum(consumer.group is not None for consumer in machine.consumers.by_key.values())
    _expect(machine.consumers.attached_count == attached, "attached consumers are counted")
    checked_out: dict[int, int] = {}
    for consumer in machine.consumers.by_key.values():
        _check_checked_out(machine, consumer.checked_out, checked_out, consumer.next_tag)
        _check_consumer(machine, consumer)
    for subscription in (*machine.subscriptions.by_name.values(), *machine.subscriptions.deleted):
        holder = subscription.consumer
        _check_checked_out(machine, holder.checked_out, checked_out, holder.next_tag)
        _check_subscription(machine, subscription)
    for parts in machine.transactions.embargo.parts.values():
        for part in parts:
            if isinstance(part, EmbargoedSettlement):
                _check_checked_out(machine, part.held, checked_out, NEVER)
    ready_count = checked_out_count = ready_bytes = delayed_count = delayed_bytes = 0
    dues: list[tuple[int, int]] = []
    numbers, index, expiries = [], [], []
    for number in machine.messages.blocks.numbers():
        block = machine.messages.blocks.view(number)
        _check_block(machine, block)
        _expect(
            block.checked_out == checked_out.pop(number, 0),
            "the held messages of a block are those that consumers hold",
        )
        ready_count += block.ready.bit_count()
        checked_out_count += block.checked_out.bit_count()
        ready_bytes += sum(size_of(block, slot) for slot in bitsets.members(block.ready))
        if block.ready:
            numbers.append(number)
        index += [(-priority, number) for priority, level in block.levels.items() if level & block.ready]
        if block.earliest != NEVER:
            expiries.append((block.earliest, number))
        delayed_count += block.delayed.bit_count()
        delayed_bytes += sum(size_of(block, slot) for slot in bitsets.members(block.delayed))
        if block.dues is not None:
            dues.append((min(block.dues.times), number))
    _expect(not checked_out, "every message that a consumer holds is in a block")
    _expect(
        (ready_count, checked_out_count, delayed_count)
        == (machine.messages.ready_count, machine.messages.checked_out_count, machine.messages.delayed_count),
        "counts are right",
    )
    delays = machine.messages.delays
    _expect(
        (sorted(dues) if dues else []) == ([] if delays is None else list(delays.tree)),
        "due blocks are filed",
    )
    _expect(
        delays is None or delays.size_bytes == (delayed_bytes if machine.messages.counts_bytes else 0),
        "the bytes of delayed messages are counted while there is a limit",
    )
    _expect(
        machine.messages.ready_bytes == (ready_bytes if machine.messages.counts_bytes else 0),
        "the bytes of ready messages are counted while there is a limit",
    )
    order, max_priority = machine.messages.order, machine.messages.config.max_priority
    if isinstance(order, MessageGroups):
        order = order.base
    _expect(list(order.by_sequence.numbers) == numbers, "the order has the blocks with ready messages")
    _expect(order.has_priorities == (max_priority > 0), "the order is the configured one")
    if isinstance(order, PriorityOrder):
        _expect(order.max_priority == max_priority, "the highest priority is the configured one")
        _expect(list(order.index) == sorted(index), "the order has the priorities of ready messages")
    _expect(list(machine.messages.expiries) == sorted(expiries), "the expiry tree has the blocks that expire")
    _expect(
        machine.messages.published_count == machine.messages.total_count + machine.messages.left_count,
        "every message is in the queue, or counted by the cause for which it has left",
    )
    causes = [move.cause for move in LIFE]
    _expect(all(cause in causes for cause in COUNTED), "causes are of the table")
    _expect(tuple(machine.messages.dropped) == COUNTED, "causes are counted in their order")
    _check_dead(machine)
    _check_groups(machine)
    _check_timeouts(machine)
    _check_single_active(machine)
    _check_message_groups(machine)
    _check_staging(machine)
    _check_embargo(machine, prepared)
    _check_pages(machine)
    _check_pins(machine)


def _check_dead(machine: QueueMachine) -> None:
    dead, messages = machine.messages.dead, machine.messages
    blocks = [messages.blocks.view(number) for number in messages.blocks.numbers()]
    having = {block.number: block.dead for block in blocks if block.deaths}
    _expect(list(dead.numbers) == list(having), "the blocks with dead messages are listed")
    _expect(
        dead.count == sum([members.bit_count() for members in having.values()]), "dead messages are counted"
    )
    size = sum([size_of(block, slot) for block in blocks for slot in bitsets.members(block.dead)])
    _expect(
        dead.size_bytes == (size if messages.counts_bytes else 0), "their bytes are counted under a limit"
    )
    for block in blocks:
        _expect(all(0 <= cause < len(CAUSES) for cause in block.deaths), "causes of death are known")
        counts = [members.bit_count() for members in block.deaths.values()]
        _expect(0 not in counts and sum(counts) == block.dead_count, "a message dies once")
    bound = -1
    claimed: dict[int, int] = {}
    for claim in dead.claims:
        _expect(claim.number > bound and claim.count > 0, "claims ascend by number")
        bound = claim.number + claim.count - 1
        _expect(claim.epoch <= dead.epoch, "the last worker has the highest epoch")
        block = messages.blocks.view(claim.sequence >> machine.limits.block_bits)
        members = bitsets.span(claim.sequence - block.base, claim.count)
        _expect(
            any(members & dead == members for dead in block.deaths.values()),
            "what is claimed has died of one cause",
        )
        _expect(not members & claimed.get(block.number, 0), "a message is claimed once")
        claimed[block.number] = claimed.get(block.number, 0) | members
    _expect(bound <= dead.last_number, "numbers of claims come from the counter")
    _expect(dead.claimed_count <= machine.limits.max_claimed, "claims are limited")
    _expect(
        len(dead.producer) == (PRODUCER_BYTES if dead.epoch else 0), "the first worker has named the producer"
    )
    _expect(bool(dead.count) or not dead.problem, "a target is at fault only while messages wait for it")


def _check_pins(machine: QueueMachine) -> None:
    pins = machine.pins
    all_pins = [*pins.by_number.values(), *pins.ended]
    _expect(len(all_pins) <= machine.limits.max_pins, "pins are bounded")
    known = {pin.number: pin for pin in all_pins}
    _expect(len(known) == len(all_pins), "pins have numbers of their own")
    _expect(all(pin.number < pins.next_pin for pin in all_pins), "numbers of pins come from the counter")
    _expect(list(pins.by_number) == sorted(pins.by_number), "pins ascend")
    sizes = sum(pin.copy_bytes for pin in pins.by_number.values())
    _expect(sizes <= machine.limits.max_copy_bytes, "the size of copies is limited")
    numbers = machine.messages.blocks.numbers()
    for number in numbers:
        block = machine.messages.blocks.view(number)
        for name in block.copies:
            _expect(name in known and number in known[name].blocks, "a copy belongs to a pin that knows it")
    for pin in all_pins:
        for number in pin.blocks:
            has_copy = number in numbers and pin.number in machine.messages.blocks.view(number).copies
            _expect(number not in numbers or has_copy, "a pin's blocks have its copies")


def _check_staging(machine: QueueMachine) -> None:
    staging, limits, latest = machine.staging, machine.limits, 0
    totals = [0, 0, 0, 0]
    for (producer, batch, name), part in staging.parts.items():
        _expect(len(name) == PART_BYTES, "a part has a name")
        _expect(batch > staging.last_of(producer), "no part waits of a batch that was published")
        _expect(part.last_ms >= latest, "parts are ordered by their last chunks")
        latest = part.last_ms
        chunks = list(part.chunks())
        _expect(0 < len(chunks) == len(part.indexes), "a part has chunks")
        _expect(
            (part.rows, part.size_bytes) == (sum(c[2] for c in chunks), sum(c[3] for c in chunks)), "its sums"
        )
        for _, _, count, _, stretches, _, priorities, keys in chunks:
            _expect(len(keys) in (0, 8, 8 * count), "each message has its group")
            _expect(sum(width for _, width, _ in stretches) == count, "each message has its TTL")
            _expect(len(priorities) in (0, 1, count), "each message has its priority")
        _expect(all(part.priorities.values()), "a chunk without priorities has no entry")
        _expect(all(number < len(chunks) for number in part.priorities), "priorities are of chunks")
        _expect(not part.priorities or machine.messages.order.has_priorities, "plain queues have none")
        _expect(all(part.group_keys.values()), "a chunk without groups has no entry")
        _expect(not part.group_keys or machine.messages.grouped is not None, "plain queues have none")
        counted = len(chunks), part.rows, part.size_bytes, sum(len(c[4]) for c in chunks)
        totals = [total + more for total, more in zip(totals, counted, strict=True)]
        _expect(len(part.ttls) == len(part.ttl_counts) == counted[3], "TTLs are cut at the edges of chunks")
    found = [staging.chunk_count, staging.rows, staging.size_bytes, staging.ttl_count]
    _expect(totals == found, "staged messages are counted")
    allowed = (limits.staged_chunks, limits.staged_messages, limits.staged_bytes, limits.staged_ttls)
    _expect(
        all(total <= most for total, most in zip(totals, allowed, strict=True)), "staged messages are limited"
    )
    _expect(len(staging.parts) <= limits.staged_parts, "parts are limited")
    _expect(len(staging.last_batches) <= limits.known_producers, "producers of staged messages are limited")
    owners = [last.owner for last in staging.last_batches.values()]
    _expect(staging.owned.counts == dict(Counter(owners)), "owners of producers are counted")
    used = [last.used_ms for last in staging.last_batches.values()]
    _expect(used == sorted(used), "producers of staged messages are ordered by their last use")


def _check_pages(machine: QueueMachine) -> None:
    """Checks that the record of a block says the same as the block, warm or cold."""
    for found in machine.messages.blocks.values():
        stored = found.stored if isinstance(found, Block) else found
        if stored is None:
            continue
        block = machine.messages.blocks.view(stored.number)
        _expect(
            machine.messages.blocks.page_of(stored) == bytes(encode_block(block)),
            "a valid page equals its block",
        )
        for name in (
            "ready_count",
            "checked_out_count",
            "delayed_count",
            "earliest_due",
            "delayed_bytes",
            "live",
            "first_slot",
            "ready_levels",
            "earliest",
            "placed",
            "size_bytes",
            "noted_bytes",
            "ready_bytes",
            "dead_count",
            "dead_bytes",
        ):
            _expect(getattr(stored, name) == getattr(block, name), f"a record says the {name} of its block")
        _expect(
            unpack(stored.references.packed).tolist() == sorted(live_indexes(block)),
            "a record refers to the bodies of live messages",
        )


def live_indexes(block: Block) -> dict[int, None]:
    """The Raft indexes that a block's messages refer to, found one message after the other."""
    found: dict[int, None] = {}
    for place, first in enumerate(block.runs.firsts):
        if block.kept >> first & ((1 << block.runs.counts[place]) - 1):
            found[block.runs.indexes[place]] = None
    return found


def size_of(block: Block, slot: int) -> int:
    """The bytes of one message, as a limit counts them."""
    sizes = block.runs.sizes
    if sizes is None:
        return block.size_bytes // block.placed
    return sizes[bisect_right(block.runs.firsts, slot) - 1]


def _check_checked_out(
    machine: QueueMachine, own: CheckedOut, checked_out: dict[int, int], next_tag: int
) -> None:
    total = bound = 0
    for tag, sequence, count in zip(own.tags, own.sequences, own.counts, strict=True):
        _expect(tag > bound and count > 0, "held runs ascend by tag")
        bound = tag + count - 1
        total += count
        for number, members in by_number([(sequence, count)], machine.limits).items():
            _expect(not checked_out.get(number, 0) & members, "a message is held once")
            checked_out[number] = checked_out.get(number, 0) | members
    _expect(bound < next_tag, "tags come from the counter")
    _expect(total == own.total, "the sum of held messages")


def _check_consumer(machine: QueueMachine, consumer: Consumer) -> None:
    _expect(
        consumer.held_count <= machine.limits.max_checked_out,
        "a consumer does not hold too many messages",
    )
    group = consumer.group
    is_listed = group is not None and consumer.key in group.eligible.get(consumer.priority, ())
    _expect(
        is_listed == (group is not None and consumer.credit > 0),
        "a consumer with credit is eligible",
    )
    _expect(consumer.group is None or consumer.tag != "", "the consumer of Get is in no group")
    _expect(0 < consumer.attach < machine.consumers.next_attach, "attach numbers come from the counter")


def _check_timeouts(machine: QueueMachine) -> None:
    marks, timeout_ms = machine.consumers.timeouts.marks, machine.messages.config.consumer_timeout_ms
    _expect(not marks or timeout_ms >= 0, "without a timeout there are no marks")
    _expect(list(marks) == sorted(marks), "marks ascend")
    for mark in marks.values():
        _expect(bool(mark), "a mark is not empty")
        for consumer, tag in mark.items():
            _expect(
                machine.consumers.by_key.get(consumer.key) is consumer, "a mark has consumers of the queue"
            )
            _expect(0 < tag < consumer.next_tag, "a mark has tags that were delivered")
    for consumer in machine.consumers.by_key.values():
        noted = [mark[consumer] for mark in marks.values() if consumer in mark]
        _expect(noted == sorted(noted), "the tags of later marks are higher")
        if timeout_ms >= 0 and consumer.checked_out.total:
            _expect(bool(noted), "a consumer that holds messages is in a mark")
            _expect(consumer.checked_out.tags[-1] <= noted[-1], "every tag is in a mark")
        late = consumer.timed_out
        if late is None:
            _expect(
                consumer.is_active or machine.consumers.single_active is not None or consumer.group is None,
                "it is served",
            )
            continue
        _expect(
            consumer.group is not None and not consumer.is_active,
            "a consumer that has timed out is given nothing",
        )
        _expect(0 < late.total == sum(late.counts), "a consumer that has timed out has messages to answer")
        _expect(late.total + consumer.held_count <= machine.limits.max_checked_out, "they are limited")


def _check_single_active(machine: QueueMachine) -> None:
    single, consumers = machine.consumers.single_active, list(machine.consumers.by_key.values())
    is_single = machine.messages.config.single_active_consumer
    _expect(
        (single is not None) == is_single,
        "the queue has a single active consumer if its configuration says so",
    )
    if single is None:
        return
    attached = [each for each in consumers if each.group is not None and each.timed_out is None]
    order = sorted(attached, key=lambda consumer: (-consumer.priority, consumer.attach))
    _expect(list(single.candidates.values()) == order, "attached consumers may become active")
    active = [consumer for consumer in consumers if consumer.is_active]
    _expect(active == ([] if single.active is None else [single.active]), "one consumer is active")
    holders = [consumer for consumer in consumers if consumer.held_count]
    _expect(len(holders) <= 1, "one consumer holds messages")
    first, held_count = single.first, machine.messages.checked_out_count
    _expect(
        machine.unfinished or first is single.active or (first is not None and first.held_count < held_count),
        "the first consumer is active, unless another one or a prepared transaction holds messages",
    )


def _check_message_groups(machine: QueueMachine) -> None:
    messages, grouped = machine.messages, machine.messages.grouped
    _expect((grouped is not None) == messages.config.message_groups, "groups are as configured")
    _expect(messages.filed_to <= messages.next_sequence, "what is filed was published")
    if grouped is None:
        return
    keys: dict[int, int] = {}
    ready: list[tuple[int, int, int]] = []
    for number in messages.blocks.numbers():
        block = messages.blocks.view(number)
        for slot in bitsets.members(block.present):
            keys[block.base + slot] = 0 if block.group_keys is None else int(block.group_keys[slot])
        for slot in bitsets.members(block.ready):
            if block.base + slot < grouped.filed_to:
                ranks = [-priority for priority, level in block.levels.items() if level >> slot & 1]
                ready.append((block.base + slot, ranks[0] if ranks else 0, number))
    held: dict[int, tuple[int, int]] = {}
    have = [(each.attach, each.checked_out) for each in machine.consumers.by_key.values()]
    have += [(each.attach, each.held) for each in machine.transactions.embargo.settlements()]
    for attach, own in have:
        for sequence, count in own.ranges():
            _expect(sequence + count <= grouped.filed_to, "what is checked out was filed")
            for key in [keys[each] for each in range(sequence, sequence + count)]:
                if key:
                    holder, some = held.get(key, (attach, 0))
                    _expect(holder == attach, "one consumer holds a message group")
                    held[key] = holder, some + 1
    if not grouped.is_built:
        return
    heads: dict[int, dict[tuple[int, int], int]] = {}
    filed: dict[int, dict[int, int]] = {}
    for sequence, rank, number in ready:
        key, bit = keys[sequence], 1 << (sequence & machine.limits.slot_mask)
        if not key or not any(key in here for here in filed.values()):
            theirs = heads.setdefault(held.get(key, (0, 0))[0], {})
            theirs[rank, number] = theirs.get((rank, number), 0) | bit
        if key:
            here = filed.setdefault(number, {})
            here[key] = here.get(key, 0) | bit
    found = {attach: dict(each.by_place) for attach, each in [(0, grouped.free), *grouped.own.items()]}
    _expect({attach: each for attach, each in found.items() if each} == heads, "the heads are the first")
    _expect(
        all(grouped.own[attach].count for attach in grouped.own), "consumers without heads are not listed"
    )
    counts = [(each.count, each.by_place.values()) for each in (grouped.free, *grouped.own.values())]
    _expect(all(n == sum(bits.bit_count() for bits in some) for n, some in counts), "heads are counted")
    packed = {
        number: {key: unpack_set(each) for key, each in here.items()}
        for number, here in grouped.filed.items()
    }
    _expect(packed == filed, "ready messages are filed under their groups")
    _expect(grouped.filed_count == sum(len(here) for here in filed.values()), "filed places are counted")
    _expect(grouped.held_count == len(held), "groups with a holder are counted")
    for key, group in grouped.groups.items():
        _expect((group.holder, group.held) == held.get(key, (0, 0)), "a group has its holder")
        _expect(
            group.numbers == tuple([number for number in sorted(filed) if key in filed[number]]),
            "and its blocks",
        )
        _expect(bool(group.held or group.numbers), "a group has messages")
    _expect(all(key in grouped.groups for key in held), "a group that is held is known")


def _check_subscription(machine: QueueMachine, subscription: Subscription) -> None:
    subscriptions, consumer, limits = machine.subscriptions, subscription.consumer, machine.limits
    is_deleted = subscriptions.by_name.get(subscription.name) is not subscription
    group = consumer.group
    _expect((group is None) == is_deleted, "a subscription is in a group until it is deleted")
    _expect(consumer.credit == 0, "a subscription has no credit")
    _expect(
        consumer.checked_out.total <= limits.max_outstanding,
        "the messages that a subscription holds are limited",
    )
    _expect(
        len(subscription.reservations) <= limits.max_reservations, "a subscription's reservations are bounded"
    )
    _expect(
        not is_deleted or bool(subscription.reservations),
        "a deleted subscription is remembered while it holds messages",
    )
    offsets = [each.offset for each in subscription.reservations]
    _expect(offsets == sorted(offsets), "reservations ascend")
    outstanding = [each.offset for each in subscription.reservations if not each.disposition]
    _expect(
        outstanding == list(range(subscription.settled + 1, subscription.last + 1)),
        "offsets above settled are dense",
    )
    tag = total = 0
    for each in subscription.reservations:
        _expect(each.first_tag > tag and each.count > 0, "reservations have tags of their own")
        tag = each.first_tag + each.count - 1
        ranges = consumer.checked_out.between(each.first_tag, tag)
        _expect(sum(count for _, count in ranges) == each.count, "a reservation is held as a whole")
        _expect(ranges == sorted(ranges), "a reservation ascends")
        total += each.count
    _expect(total == consumer.checked_out.total, "every message that a subscription holds is reserved")
    bound = -1
    for first, last in subscription.released:
        _expect(bound + 1 < first <= last <= subscription.settled, "released ranges ascend with gaps")
        bound = last
    _expect(len(subscription.released) <= limits.max_released, "released ranges are bounded")


def _check_block(machine: QueueMachine, block: Block) -> None:
    runs = block.runs
    placed = 0
    for where in PLACES:
        members = getattr(block, where.value)
        _expect(not placed & members, "a message is in one place")
        placed |= members
    live = placed & ~block.dead
    is_tail = block.number == machine.messages.next_sequence >> machine.limits.block_bits
    _expect(block.live == live.bit_count(), "live is the number of ready, held and delayed messages")
    _check_dues(block)
    _expect(bool(block.kept) or is_tail, "only the last block may be empty")
    _expect(list(block.copies) == sorted(block.copies), "copies are in the order of their pins")
    _expect(not block.kept >> block.size, "a copy has no more slots than its block")
    _expect(live.bit_length() <= block.size, "a block has as many slots as sequences")
    _expect(
        block.base + placed.bit_length() <= machine.messages.next_sequence, "sequences come from the counter"
    )
    _expect(not block.redelivered & ~live, "only messages in the block are redelivered")
    _expect(not block.failures.nonzero() & ~block.redelivered, "a message that failed was redelivered")
    _expect(not block.failures.planes or block.failures.planes[-1] != 0, "no empty plane")
    _check_levels(block, live, machine.messages.config.max_priority)
    _expect(block.placed >= block.live, "placed counts all")
    _expect(bool(block.text_factor) == bool(block.long_texts), "long texts have a price")
    covered, bound = 0, 0
    for place, first in enumerate(runs.firsts):
        _expect(first >= bound and runs.counts[place] > 0, "runs ascend")
        bound = first + runs.counts[place]
        covered |= ((1 << runs.counts[place]) - 1) << first
        _expect(runs.sizes is None or len(runs.sizes) == len(runs), "each run has a size, or none has")
        single = runs.ordinals[place] == ONE_EACH
        _expect(single or runs.ordinals[place] + runs.counts[place] < ONE_EACH, "ordinals are in range")
    _expect(not block.kept & ~covered, "every message is in a run")
    _expect(block.earliest <= runs.earliest(block.ready), "nothing expires before its block does")


def _check_dues(block: Block) -> None:
    dues = block.dues
    _expect((dues is None) == (block.delayed == 0), "a block has due times while it has delayed messages")
    if dues is None:
        return
    stretches = list(zip(dues.times, dues.firsts, dues.counts, strict=True))
    found = 0
    for place, (time_ms, first, count) in enumerate(stretches):
        members = bitsets.span(first, count)
        _expect(count > 0 and not found & members, "a delayed message has one due time")
        found |= members
        if place:
            before_ms, before, some = stretches[place - 1]
            is_after = time_ms > before_ms or (time_ms == before_ms and first > before + some)
            _expect(is_after, "due times ascend, and neighbours with the same time are one stretch")
    _expect(found == block.delayed, "every delayed message has a due time")


def _check_levels(block: Block, live: int, max_priority: int) -> None:
    found = 0
    for priority, level in block.levels.items():
        _expect(0 <= priority <= max_priority, "priorities are those of the queue")
        _expect(level != 0 and not level & found, "a message has one priority")
        found |= level
    _expect(found == (live if max_priority > 0 else 0), "every message has a priority, if the queue has any")


def _check_groups(machine: QueueMachine) -> None:
    groups = machine.groups
    sizes: dict[bytes, int] = {}
    reading = [subscription.consumer for subscription in machine.subscriptions.by_name.values()]
    for consumer in (*machine.consumers.by_key.values(), *reading):
        if consumer.group is not None:
            _expect(groups.by_selector.get(consumer.group.selector) is consumer.group, "groups are listed")
            sizes[consumer.group.selector] = sizes.get(consumer.group.selector, 0) + 1
    _expect(sizes == {group.selector: group.size for group in groups.by_selector.values()}, "group sizes")
    counts: Counter[int] = Counter()
    for group in groups.by_selector.values():
        for priority, equals in group.eligible.items():
            counts[priority] += len(equals)
            _expect(bool(equals), "a priority without consumers is not listed")
            priorities = [consumer.priority for consumer in equals.values()]
            _expect(priorities == [priority] * len(equals), "consumers are listed by their priority")
    _expect(dict(counts) == groups.eligible_counts, "consumers with credit are counted by priority")
    waiting = sorted(group.selector for group in groups.by_selector.values() if group.eligible)
    _expect(waiting == sorted(groups.service_queue), "groups with credit take turns")
    for group in groups.by_selector.values():
        _check_group(machine, group)
    for group in groups.idle():
        _expect(group.scan_position == CAUGHT_UP, "an idle group is caught up")
        for number in machine.messages.blocks.numbers():
            block = machine.messages.blocks.view(number)
            seen = (1 << max(groups.shared.place - block.base, 0)) - 1
            _expect(
                not _selected(machine, group, block, block.ready & seen),
                "no ready message matches an idle group",
            )


def _selected(machine: QueueMachine, group: SelectorGroup, block: Block, members: int) -> int:
    """The messages that match, found by evaluating one message after the other."""
    columns, tree = machine.groups.fields.columns(block, members), group.decoded.tree
    return sum(1 << slot for slot in bitsets.members(members) if evaluate(tree, columns.row(slot)) is True)


def _check_group(machine: QueueMachine, group: SelectorGroup) -> None:
    _expect(
        group.scan_position <= machine.messages.next_sequence or group.scan_position == CAUGHT_UP,
        "a scan position is not beyond the end",
    )
    _expect(bool(group.eligible) or group.scan_position != CAUGHT_UP, "without credit a scan position stays")
    _expect(
        group.evaluated_to <= min(group.scan_position, machine.messages.next_sequence),
        "only messages below the scan position are evaluated",
    )
    _expect(
        group.scan_position != CAUGHT_UP or group.evaluated_to <= machine.groups.shared.place,
        "nothing beyond the shared scan is evaluated",
    )
    for number in machine.messages.blocks.numbers() if group.selector else ():
        block = machine.messages.blocks.view(number)
        if group.evaluated_to > block.base:
            seen = block.present & ((1 << (group.evaluated_to - block.base)) - 1)
            chosen = _selected(machine, group, block, seen)
            known = machine.groups.match_cache.get(group.selector, number)
            _expect(known == EVICTED or chosen == known & seen, "the match set equals the selector's matches")
