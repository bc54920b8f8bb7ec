"""Groups of consumers with equal selectors, which share the knowledge of the messages that match.

Replicated: the *scan position* of a group. All messages below it have been evaluated, none at or above it. It advances
only while a consumer of the group has credit and no match below it is left for the group. It advances a block at a
time, as far as the entry's budget goes. A group takes only matches below its scan position. A group whose scan position
has reached the end is *caught up* (`CAUGHT_UP`): a message that arrives then is below it at once. A group without
credit keeps the scan position it had when its credit ran out. If the queue is empty, or nothing has arrived since, the
group is caught up as soon as it gets credit.

In a queue with priorities the scan does not wait until no match is left. When the group is served, its scan position
first advances as far as the budget allows, to the end if it can. Then the group takes, of its matches below the scan
position, those of the highest priority, and of these the lowest sequence. So a message waits for the scan, but never
for messages of a lower priority that the scan has found before it. A group that is caught up misses none.

Local: the matches below the scan position (`match_cache`), up to the sequence `evaluated_to`. Messages between
`evaluated_to` and the scan position are evaluated when the group asks for messages, so all of it can be dropped at any
moment. The matches of a requeued message are still known: a requeue evaluates nothing.

A block whose page or columns are not in memory is passed without being read if the summary of its fields' values rules
the selector out. It counts in the budget like any other.

A group that is caught up can become a *follower*: each arrival is looked up once for all followers in an index over
their predicates, and only the groups that the index names evaluate it. Only *active* groups take part in a checkout:
groups that do not follow, and followers for which a message has arrived or was requeued. The others are *idle*. A group
that finds nothing keeps its place in the service queue, asked or not. Which groups are idle therefore decides nothing.

In a queue with message groups no group is idle. Whether a match may be handed out changes there whenever a message
group gets or loses its holder, so every selector with credit is asked each time (`grouped_delivery`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from fifo.budgets import Budget, Entry
from fifo.consumers.consumer import Consumer, Key, SelectorGroup
from fifo.consumers.delivery import Delivery, take_first, take_some
from fifo.consumers.filter_fields import Fields, FieldSource
from fifo.consumers.grouped_delivery import take_heads
from fifo.consumers.match_cache import EVICTED, MatchCache
from fifo.consumers.selector import Selector
from fifo.consumers.shared_scan import CAUGHT_UP, SharedScan, pass_messages
from fifo.messages import bitsets, expiry
from fifo.messages.blocks import Block, Stored
from fifo.messages.messages import Messages
from fifo.versions import BUDGETED_ARRIVALS, EVALUATED_BLOCKS
from quorum_selectors.columns import BatchColumns
from quorum_selectors.predicates import PredicateIndex
from quorum_selectors.summaries import decode, may_match


class SelectorGroups:
    """The groups of one queue."""

    __slots__ = (
        "_active",
        "_filed",
        "_followed",
        "_followers",
        "_last_position",
        "_returned",
        "by_selector",
        "draining",
        "eligible_counts",
        "fields",
        "match_cache",
        "messages",
        "service_queue",
        "shared",
    )

    def __init__(self, messages: Messages, field_source: FieldSource) -> None:
        self.messages = messages
        self.fields = Fields(field_source, messages.blocks)
        self.by_selector: dict[bytes, SelectorGroup] = {}
        self.service_queue: OrderedDict[bytes, SelectorGroup] = (
            OrderedDict()
        )  # groups with eligible consumers, next first
        self.eligible_counts: dict[int, int] = {}
        """the consumers with credit of each priority that has any"""
        self.draining: dict[Key, Consumer] = {}
        self._last_position = 0
        self._active: dict[bytes, SelectorGroup] = {}
        self._filed: PredicateIndex[bytes] = PredicateIndex()
        """all groups that have ever followed; without credit they stay, because filing costs more than skipping them"""
        self._followers: dict[bytes, SelectorGroup] = {}
        self._followed = 0
        """the sequence below which all messages were looked up for the followers"""
        self.match_cache = MatchCache(messages.limits)
        self.shared = SharedScan(messages)
        self._returned: dict[int, int] = {}
        """by block, the requeued messages that no group was made active for yet"""
        messages.on_requeued = self._requeued
        messages.on_emptied = self._emptied
        if messages.grouped is not None:
            messages.grouped.on_visible = self.match_cache.invalidate_exhausted

    # ---- members of groups, and groups with credit

    def join(self, consumer: Consumer, selector: bytes) -> None:
        group = self.by_selector.get(selector)
        if group is None:
            group = self.add(selector)
        group.size += 1
        consumer.group = group

    def add(self, selector: bytes) -> SelectorGroup:
        group = self.by_selector[selector] = SelectorGroup(selector)
        return group

    def leave(self, consumer: Consumer) -> None:
        group = consumer.group
        if group is None:
            return
        consumer.credit_to = 0
        self.draining.pop(consumer.key, None)
        self.credit_changed(consumer)
        consumer.group = None
        group.size -= 1
        if not group.size:
            self._forget(group)
            del self.by_selector[group.selector]

    def credit_changed(self, consumer: Consumer, entry: Entry | None = None) -> None:
        """Adds a consumer that got credit, in an entry, to the eligible ones of its group, or removes it."""
        group = consumer.group
        if group is None:
            return
        is_eligible = consumer.key in group.eligible.get(consumer.priority, ())
        if consumer.credit > 0:
            if not is_eligible:
                self.make_eligible(group, consumer)
                if group.selector not in self.service_queue:
                    self.enqueue_group(group)
                    assert entry is not None
                    self._pass_nothing(group, entry)
        elif is_eligible:
            self._count(consumer.priority, -1)
            del group.eligible[consumer.priority][consumer.key]
            if not group.eligible[consumer.priority]:
                del group.eligible[consumer.priority]
            if not group.eligible:
                del self.service_queue[group.selector]
                self._active.pop(group.selector, None)
                self.rest(group)

    def make_eligible(self, group: SelectorGroup, consumer: Consumer) -> None:
        """Puts a consumer that has credit behind those of its priority."""
        self._count(consumer.priority, 1)
        group.eligible.setdefault(consumer.priority, OrderedDict())[consumer.key] = consumer

    def _count(self, priority: int, more: int) -> None:
        self.eligible_counts[priority] = self.eligible_counts.get(priority, 0) + more
        if not self.eligible_counts[priority]:
            del self.eligible_counts[priority]

    def rest(self, group: SelectorGroup) -> None:
        """A group without credit that is caught up keeps the present end as its scan position."""
        if group.scan_position == CAUGHT_UP and not group.eligible:
            group.evaluated_to = self.evaluated_by(group)
            self.shared.leave(group, self.shared.place)
            self._followers.pop(group.selector, None)

    def enqueue_group(self, group: SelectorGroup) -> None:
        """Puts a group that has a consumer with credit at the end of the service queue."""
        self._last_position += 1
        group.queue_position = self._last_position
        self.service_queue[group.selector] = group
        self._active[group.selector] = group

    def _pass_nothing(self, group: SelectorGroup, entry: Entry) -> None:
        """Makes a group that gets credit caught up if no message is ahead of its scan position, and idle if it has no
        known matches."""
        messages = self.messages
        is_empty = not messages.present_count
        if not group.selector or (group.scan_position < messages.next_sequence and not is_empty):
            return
        if is_empty:
            self.shared.behind = None
            group.evaluated_to = messages.next_sequence
        if not self.shared.join(group, entry):
            group.scan_position = messages.next_sequence
        elif not self.match_cache.has(group.selector):
            self.look_up_arrivals()
            self.found_all(group)

    def runnable(self, priority: int) -> list[SelectorGroup]:
        """The groups with a consumer of this priority that may find something, in the order of the service queue."""
        self.look_up_arrivals()
        self._look_up_returned()
        found = [group for group in self._active.values() if priority in group.eligible]
        return sorted(found, key=lambda group: group.queue_position)

    def continuing(self, priority: int) -> list[Consumer]:
        """The consumers of this priority with credit that hold message groups of which more is ready, in the order of
        attaching."""
        grouped = self.messages.grouped
        if grouped is None or not grouped.own:
            return []
        found = [
            consumer
            for group in self.service_queue.values()
            for consumer in group.eligible.get(priority, {}).values()
            if consumer.attach in grouped.own
        ]
        return sorted(found, key=lambda consumer: consumer.attach)

    def with_credit(self, priority: int, selectors: Iterable[bytes]) -> list[SelectorGroup]:
        """Those of these selectors' groups, and the group without a selector, that have a consumer of this priority
        with credit, in the order of the service queue."""
        found = [self.service_queue.get(selector) for selector in (b"", *selectors)]
        return sorted(
            [group for group in found if group is not None and priority in group.eligible],
            key=lambda group: group.queue_position,
        )

    def matches_of(self, batch: BatchColumns | None, rows: Sequence[tuple[int, int]]) -> dict[bytes, int]:
        """Which messages of a batch that is not in the queue match the selectors that are caught up and have credit.
        See `Fields.matches`."""
        others = [
            group
            for group in self._active.values()
            if group.scan_position == CAUGHT_UP and group.selector not in self._filed
        ]
        found = self.fields.matches(batch, rows, self._filed, self.service_queue, others)
        return {
            selector: chosen
            for selector, chosen in found.items()
            if self.service_queue[selector].scan_position == CAUGHT_UP
        }

    def may_find_more(self, priority: int) -> bool:
        """Whether a caught-up group has a consumer of this priority with credit, and arrivals that are not looked up
        yet."""
        if self.shared.behind is None:
            return False
        groups = self.service_queue.values()
        return any(group.scan_position == CAUGHT_UP for group in groups if priority in group.eligible)

    def found_all(self, group: SelectorGroup) -> None:
        """Makes a group that was given all its messages idle, if an arrival or a requeue can make it active again."""
        if not group.selector or group.scan_position != CAUGHT_UP or group.evaluated_to < self.shared.place:
            return
        if group.selector not in self._followers:
            if not self._followers:
                self._followed = group.evaluated_to
            if group.evaluated_to != self._followed:
                return
            self._followers[group.selector] = group
            if group.selector not in self._filed:
                selector = group.decoded
                self._filed.file(group.selector, selector.requirement, selector.steps)
        if self.messages.grouped is None:
            self._active.pop(group.selector, None)

    def rest_follower(self, group: SelectorGroup) -> bool:
        """Makes a follower idle if no known match of it is ready. Returns whether it did. To be called in a checkout,
        when all arrivals are looked up; a further turn would find nothing and do the same."""
        if self.messages.grouped is not None:
            return False
        if group.selector not in self._followers or not self.match_cache.is_all_exhausted(group.selector):
            return False
        self._active.pop(group.selector, None)
        return True

    def idle(self) -> list[SelectorGroup]:
        """The groups with credit that take no part in a checkout, because no message has arrived for them."""
        self._look_up_returned()
        return [group for selector, group in self.service_queue.items() if selector not in self._active]

    def _requeued(self, number: int, members: int) -> None:
        """Notes requeued messages of a block. A group that gets credit later is active anyway."""
        self.match_cache.invalidate_exhausted(number)
        if self.service_queue:
            self._returned[number] = self._returned.get(number, 0) | members

    def _look_up_returned(self) -> None:
        """Makes the groups active that match requeued messages. It has a step for each group with matches in the block,
        so it is done once for all commands of an entry."""
        for number, members in self._returned.items():
            idle = [
                selector
                for selector in self.match_cache.selectors(number)
                if selector in self.service_queue and selector not in self._active
            ]
            found, evicted = self.match_cache.that_match(number, members, idle)
            for selector in (*found, *self._look_up_evicted(number, members, evicted)):
                self._active[selector] = self.service_queue[selector]
        self._returned.clear()

    def _look_up_evicted(self, number: int, members: int, selectors: Iterable[bytes]) -> list[bytes]:
        """Those of these idle groups that match some of these messages of a block. Their matches there were evicted."""
        groups = {selector: self.service_queue[selector] for selector in selectors}
        block = self.messages.blocks.find(number) if groups else None
        if block is None or not members & block.present:
            return []
        found = self.fields.look_up(block, self._filed, groups, members & block.present)
        return list(dict.fromkeys([selector for selector, _ in found]))

    def _emptied(self, number: int) -> None:
        """No message of a block is left."""
        self.match_cache.drop_block(number)
        self._returned.pop(number, None)

    def arrivals_begin(self, entry: Entry) -> None:
        """To be called before messages are appended, and not if there are none: notes the first sequence of this entry.
        A snapshot does not tell a shared scan that stays at the end of the queue from one that is caught up."""
        entry.arrived_from.setdefault(self.messages.queue, self.messages.next_sequence)
        if entry.version >= BUDGETED_ARRIVALS:
            self.shared.stay()

    def rewind(self, sequence: int) -> None:
        """Moves the caught-up groups back to `sequence`, because more has arrived from there on than is looked up at
        once."""
        for group in self.by_selector.values():
            if group.scan_position == CAUGHT_UP:
                group.evaluated_to = self.evaluated_by(group)
                self.shared.leave(group, sequence)
                self._followers.pop(group.selector, None)
                if group.selector in self.service_queue:
                    self._active[group.selector] = group

    def rotate(self, group: SelectorGroup, consumer: Consumer) -> bool:
        """Moves both to the end of their queues. Returns whether the group still has a consumer of this priority to
        serve."""
        if consumer.credit > 0:
            group.eligible[consumer.priority].move_to_end(consumer.key)
        else:
            self.credit_changed(consumer)
        if not group.eligible:
            return False
        self.service_queue.move_to_end(group.selector)
        self._last_position += 1
        group.queue_position = self._last_position
        return consumer.priority in group.eligible

    # ---- which messages

    def take(self, group: SelectorGroup, entry: Entry, delivery: Delivery, wanted: int) -> tuple[int, bool]:
        """Hands out up to `wanted` matching messages. Returns their number, and False if the budget ended it."""
        if self.messages.grouped is not None:
            return self._take_heads(group, entry, delivery, wanted)
        if not group.selector:
            return take_first(self.messages, entry, delivery, wanted)
        budget = entry.budget(self.messages.queue)
        left = budget.left
        is_known = group.evaluated_to == group.scan_position and not self.match_cache.has(group.selector)
        if is_known and not left.may_pass:
            return 0, self._is_at_end(group, entry)  # as below, but cheap for thousands of groups
        if self.messages.order.has_priorities and not delivery.is_by_sequence:
            return self._take_by_priority(group, entry, delivery, wanted)
        blocks = self.messages.blocks
        taken = 0
        if entry.version >= EVALUATED_BLOCKS and self.evaluated_by(group) & entry.limits.slot_mask:
            # How far this member has evaluated a block is local, so no run of a delivery may end there.
            self._evaluate_next_block(group)
        first_number = delivery.start >> entry.limits.block_bits
        for number in self.match_cache.numbers(group.selector):
            if taken == wanted or delivery.is_full:
                return taken, True
            if number < first_number or self.match_cache.is_exhausted(group.selector, number):
                continue
            found_here = blocks.at(number)
            if found_here.live and not found_here.ready_count:
                continue  # all of it is checked out or delayed: needs neither its page nor evicted matches
            block = blocks.get(number)
            if self._none_of_few_ready(group, block):
                self.match_cache.mark_exhausted(group.selector, number)
                continue
            members = self._matches(group, block)
            if not members & block.present:
                self.match_cache.drop(group.selector, number)
                continue
            if not members & block.ready:
                self.match_cache.mark_exhausted(group.selector, number)
                continue
            found = self._take_from(entry, budget, delivery, block, members, wanted - taken)
            if found < 0:
                return taken, False
            taken += found
            if found and not members & block.ready:
                self.match_cache.mark_exhausted(group.selector, number)
            if taken < wanted and not left.runs and not delivery.is_full:
                return taken, False
        while taken < wanted and not delivery.is_full:
            number = self._evaluate_next_block(group)
            if number < 0:
                if self._is_at_end(group, entry):
                    break
                if not self._advance_scan(group, entry):
                    return taken, False
                continue
            if self.match_cache.get(group.selector, number):
                block = blocks.get(number)
                matched = self._matches(group, block)
                found = self._take_from(entry, budget, delivery, block, matched, wanted - taken)
                if found < 0:
                    return taken, False
                taken += found
                if taken < wanted and not left.runs and not delivery.is_full:
                    return taken, False
        return taken, True

    def _take_heads(
        self, group: SelectorGroup, entry: Entry, delivery: Delivery, wanted: int
    ) -> tuple[int, bool]:
        """`take` in a queue with message groups."""
        if not group.selector:
            return take_heads(self.messages, entry, delivery, wanted, None)
        is_scanned = self._scan_ahead(group, entry)
        taken, is_complete = take_heads(self.messages, entry, delivery, wanted, _Matches(self, group))
        return taken, is_complete and (is_scanned or taken == wanted)

    def _take_by_priority(
        self, group: SelectorGroup, entry: Entry, delivery: Delivery, wanted: int
    ) -> tuple[int, bool]:
        """`take` in a queue with priorities."""
        budget = entry.budget(self.messages.queue)
        is_scanned = self._scan_ahead(group, entry)
        taken = 0
        for priority, number in self._places(group.selector):
            block = self.messages.blocks.find(number)
            if block is None:
                continue  # all of it has expired
            if self._none_of_few_ready(group, block):
                self.match_cache.mark_exhausted(group.selector, number)
                continue
            matched = self._matches(group, block)
            level = matched & block.levels.get(priority, 0)
            found = self._take_from(entry, budget, delivery, block, level, wanted - taken)
            if found < 0:
                return taken, False
            taken += found
            if matched and not matched & block.ready:
                self._none_ready(group.selector, block, matched)
            if taken == wanted:
                return taken, True
            if not budget.left.runs:
                return taken, False
        return taken, is_scanned

    def _scan_ahead(self, group: SelectorGroup, entry: Entry) -> bool:
        """Moves a group's scan position towards the end, and evaluates all below it. False if the budget ended it."""
        while True:
            while self._evaluate_next_block(group) >= 0:
                pass
            if self._is_at_end(group, entry):
                return True
            if not self._advance_scan(group, entry):
                return False

    def _places(self, selector: bytes) -> list[tuple[int, int]]:
        """(priority, block) where a ready message may match, in the order in which they are taken. Reads no page."""
        found = []
        for number in self.match_cache.numbers(selector):
            if not self.match_cache.is_exhausted(selector, number):
                ready_levels = self.messages.blocks.at(number).ready_levels
                found += [(-priority, number) for priority, _ in ready_levels]
        return [(-rank, number) for rank, number in sorted(found)]

    def _none_ready(self, selector: bytes, block: Block, matched: int) -> None:
        """Notes that none of the selector's matches in a block is ready. The set is gone if the block is."""
        if matched & block.present:
            self.match_cache.mark_exhausted(selector, block.number)
        elif self.match_cache.get(selector, block.number):
            self.match_cache.drop(selector, block.number)

    def _take_from(
        self, entry: Entry, budget: Budget, delivery: Delivery, block: Block, matched: int, wanted: int
    ) -> int:
        """Hands out matches of a block. Returns their number; -1 if the budget allows neither that nor expiring the
        block before."""
        ready = block.ready & matched
        if not ready & delivery.asked(block):
            return 0
        if not budget.left.runs:
            return -1
        if block.earliest <= entry.now_ms and block.number not in budget.expired:
            if not budget.left.blocks:
                return -1
            expiry.expire_block(self.messages, entry, block, spares_new=True)
            ready = block.ready & matched
        return take_some(self.messages, delivery, budget.left, block, ready, wanted)

    def _evaluate_next_block(self, group: SelectorGroup) -> int:
        """Evaluates the next block below the scan position. Returns its number; -1 if all are evaluated."""
        end = min(
            group.scan_position,
            self.shared.place if group.scan_position == CAUGHT_UP else self.messages.next_sequence,
        )
        group.evaluated_to = self.evaluated_by(group)
        if group.evaluated_to >= end:
            return -1
        number = self._next_block(group.evaluated_to)
        block_bits = self.messages.limits.block_bits
        if number is None or number << block_bits >= end:
            group.evaluated_to = end
            return -1
        last = min(end, (number + 1) << block_bits)
        if self.ruled_out(group.decoded, number) is not None:
            group.evaluated_to = last
            return number
        block = self.messages.blocks.get(number)
        first = max(group.evaluated_to - block.base, 0)
        live = block.present
        members = live & bitsets.span(first, last - block.base - first)
        chosen = self.fields.select(block, group.decoded, members)
        if chosen:
            self.match_cache.add(group.selector, number, chosen, live)
        group.evaluated_to = last
        return number

    def _next_block(self, sequence: int) -> int | None:
        """The first block with a message at or above a sequence; pinned ones do not count."""
        messages = self.messages
        block_bits = messages.limits.block_bits
        return messages.blocks.next_with_messages(
            sequence >> block_bits, messages.next_sequence >> block_bits
        )

    def evaluated_by(self, group: SelectorGroup) -> int:
        """The sequence up to which the group's matches are known on this member."""
        return self._followed if group.selector in self._followers else group.evaluated_to

    def _matches(self, group: SelectorGroup, block: Block) -> int:
        """The group's matches in a block, computed again if they were evicted."""
        found = self.match_cache.get(group.selector, block.number)
        if found == EVICTED:
            found = self._select_known(group, block, block.present)
            self.match_cache.put(group.selector, block.number, found)
        return found

    def _none_of_few_ready(self, group: SelectorGroup, block: Block) -> bool:
        """Whether the group's matches in a block were evicted, and none of the few ready messages there is one. Then
        the other messages need not be evaluated again."""
        few = self.messages.limits.few_messages
        if not self.match_cache.is_evicted(group.selector, block.number) or block.ready_count > few:
            return False
        return not self._select_known(group, block, block.ready)

    def some_match(self, group: SelectorGroup, block: Block, members: int) -> bool:
        """Whether a group's matches in a block are among these messages. If they were evicted, and these are few, only
        these are evaluated."""
        few = self.messages.limits.few_messages
        if self.match_cache.is_evicted(group.selector, block.number) and members.bit_count() <= few:
            return bool(self._select_known(group, block, members))
        return bool(self._matches(group, block) & members)

    def _select_known(self, group: SelectorGroup, block: Block, members: int) -> int:
        """Those of these messages below the group's scan position that match."""
        seen = bitsets.span(0, min(self.evaluated_by(group) - block.base, block.size))
        return self.fields.select(block, group.decoded, members & seen)

    def _is_at_end(self, group: SelectorGroup, entry: Entry) -> bool:
        """Whether no message is ahead of the group's scan position. If so, the group joins the shared scan if it
        may."""
        end = self.messages.next_sequence
        if group.scan_position == CAUGHT_UP:
            return True
        if group.scan_position < end and self._next_block(group.scan_position) is not None:
            return False
        group.evaluated_to = end
        if not self.shared.join(group, entry):
            group.scan_position = end
        return True

    def _advance_scan(self, group: SelectorGroup, entry: Entry) -> bool:
        """Moves the scan past the next block, or some messages of it; False if the budget forbids it."""
        messages, budget = self.messages, entry.budget(self.messages.queue)
        number = self._next_block(group.scan_position)
        assert number is not None
        if not budget.left.may_pass:
            return False
        budget.left.blocks -= 1
        if entry.version >= BUDGETED_ARRIVALS:
            group.scan_position = pass_messages(
                messages, budget, group.scan_position, number, group.decoded.steps
            )
        else:
            limits = messages.limits
            passed = (
                group.scan_position & limits.slot_mask
                if group.scan_position >> limits.block_bits == number
                else 0
            )
            if passed:
                block = messages.blocks.get(number)
                there = (block.present >> passed).bit_count()
            else:
                there = messages.blocks.at(number).live
            budget.left.steps -= there * group.decoded.steps
            group.scan_position = min((number + 1) << limits.block_bits, messages.next_sequence)
        if group.scan_position == messages.next_sequence:
            self.shared.join(group, entry)
        return True

    def ruled_out(self, selector: Selector, number: int) -> Block | Stored | None:
        """The block as it is here, if its summary proves that no message matches and evaluating it would need a read;
        else None."""
        found = self.messages.blocks.at(number)
        if not found.summary or (isinstance(found, Block) and found.has_fields):
            return None
        return None if may_match(selector.tree, decode(found.summary)) else found

    # ---- followers

    def look_up_arrivals(self) -> None:
        """Looks up the messages that have arrived since the last call, for all followers."""
        messages, followers = self.messages, self._followers
        end, block_bits = self.shared.place, messages.limits.block_bits
        while followers and self._followed < end:
            number = self._next_block(self._followed)
            if number is None or number << block_bits >= end:
                break
            block = messages.blocks.get(number)
            first = max(self._followed - block.base, 0)
            last = min(end, (number + 1) << block_bits)
            live = block.present
            members = live & bitsets.span(first, last - block.base - first)
            if members:
                for selector, chosen in self.fields.look_up(block, self._filed, followers, members):
                    self.match_cache.add(selector, number, chosen, live)
                    self._active[selector] = followers[selector]
            self._followed = last
        self._followed = end

    def _forget(self, group: SelectorGroup) -> None:
        """Drops the local state of a group."""
        self.match_cache.forget(group.selector)
        self._followers.pop(group.selector, None)
        if group.selector in self._filed:
            self._filed.remove(group.selector)
        group.evaluated_to = 0
        if group.selector in self.service_queue:
            self._active[group.selector] = group


class _Matches:
    """The matches of a selector group, for `take_heads`."""

    __slots__ = ("_group", "_groups")

    def __init__(self, groups: SelectorGroups, group: SelectorGroup) -> None:
        self._groups = groups
        self._group = group

    def numbers(self) -> Iterator[int]:
        cache, selector = self._groups.match_cache, self._group.selector
        return (each for each in cache.numbers(selector) if not cache.is_exhausted(selector, each))

    def of(self, block: Block) -> int:
        return self._groups._matches(self._group, block)

    def are_among(self, block: Block, members: int) -> bool:
        return self._groups.some_match(self._group, block, members)

    def none_free(self, number: int) -> None:
        self._groups.match_cache.mark_exhausted(self._group.selector, number)
