"""The message groups of a queue: which ready messages each consumer may be given next.

A message of a group has a *key*: a hash of the group's name, which the session's node computes. Two names with the same
key are one group here. That costs some parallel work, and breaks no promise.

One consumer at a time is given messages of a group. It is the *holder* from the first message that it gets until none
of the group is checked out any more. What a transaction settles is checked out until the transaction has ended, even if
the consumer is gone by then. A group without a holder is *free*. The messages of a group leave in the order of their
sequences: only its lowest ready message, its *head*, may be handed out next. The others wait behind it, whatever their
priorities are and whatever selectors match. A delayed message is not ready, so others pass it. A message without a
group is a head by itself. So a consumer may get the heads of free groups, those of the groups that it holds, and
messages without a group.

Replicated: the keys (`Block.group_keys`) and `filed_to`. Ready messages below that sequence are *filed* under their
groups, and only these are handed out. A delayed message below it is filed when its time has come. Filing continues to
the end of the queue each time that consumers are served, as far as the entry's budget allows. It stops while
`Limits.filed_places` places (a group in a block) are filed. That bounds the memory, however many groups wait.

The rest follows from that, from the ready messages, and from what consumers and transactions hold. After a restart it
is built when the queue is first served (`build`). A message is filed once for each time that it becomes ready. From
then on a group that is held costs nothing, however many messages it has, because its head alone moves between the sets
`free` and `own`.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedDict

from fifo.budgets import Left
from fifo.effects import Refused
from fifo.messages import bitsets
from fifo.messages.block_store import BlockStore
from fifo.messages.blocks import Block, Stored
from fifo.messages.packed_sets import (
    SLOT_BYTES,
    Packed,
    is_single,
    lowest,
    pack_slots,
    united,
    unpack,
    without,
)
from fifo.messages.ready_order import ReadyOrder, SequenceOrder, levels_of

NO_GROUP = 0
"""The key of a message without a group."""
NOBODY = 0
"""The holder of a free group: attach numbers begin at 1."""
KEY_BYTES = 8
FEW_MESSAGES = 8
"""Messages up to which their groups are found one by one; above, numpy finds all at once."""

Place = tuple[int, int]
"""(rank, block), the lowest first. The rank is the negative priority; 0 without priorities."""


def _nobody(number: int) -> None:
    """Stands for a callback while none is registered."""


class Heads:
    """Heads by their places. count: the number of all heads."""

    __slots__ = ("by_place", "count")

    def __init__(self) -> None:
        self.by_place: SortedDict[Place, int] = SortedDict()
        self.count = 0

    def at(self, place: Place) -> int:
        found: int = self.by_place.get(place, 0)
        return found

    @property
    def first(self) -> Place | None:
        """The place of the head that is next; None if there is none."""
        if not self.by_place:
            return None
        found: Place = self.by_place.peekitem(0)[0]
        return found

    def add(self, place: Place, members: int) -> None:
        self.by_place[place] = self.at(place) | members
        self.count += members.bit_count()

    def remove(self, place: Place, members: int) -> None:
        """Removes those of these messages that are heads."""
        before = self.at(place)
        gone = before & members
        if not gone:
            return
        if before == gone:
            del self.by_place[place]
        else:
            self.by_place[place] = before ^ gone
        self.count -= gone.bit_count()


class Group(NamedTuple):
    """The state of a group with messages that are filed or checked out. Groups in the same state may share one, because
    an entry may change the state of very many. holder: the attach number of its consumer. held: the number of its
    messages that are checked out. numbers: the blocks where some of it are filed, ascending."""

    holder: int
    held: int
    numbers: tuple[int, ...]

    def without(self, number: int) -> Group:
        """The state when nothing of it is filed in a block any more."""
        place = bisect_left(self.numbers, number)
        return Group(self.holder, self.held, self.numbers[:place] + self.numbers[place + 1 :])


UNKNOWN = Group(NOBODY, 0, ())
"""The state of a group without messages."""


class Moves:
    """Heads that leave sets and appear in sets, by the holder and the block, as slots of 2 bytes. What many groups have
    in common is done once for all of them."""

    __slots__ = ("appeared", "left")

    def __init__(self) -> None:
        self.left: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
        self.appeared: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)


class MessageGroups:
    """The order of a queue with message groups. base: the same messages without their groups."""

    __slots__ = (
        "_blocks",
        "_limits",
        "_ranks",
        "base",
        "filed",
        "filed_count",
        "filed_to",
        "free",
        "groups",
        "has_priorities",
        "held_count",
        "is_built",
        "on_visible",
        "own",
    )

    def __init__(self, base: ReadyOrder, blocks: BlockStore, max_priority: int) -> None:
        self.base = base
        self.has_priorities = base.has_priorities
        self._ranks = range(-max(max_priority, 0), 1)
        self._blocks = blocks
        self._limits = blocks.limits
        self.filed_to = 0
        self.on_visible: Callable[[int], None] = _nobody
        """with the number of a block where some heads are new"""
        self._clear()

    def _clear(self) -> None:
        self.is_built = True
        self.groups: dict[int, Group] = {}
        """by key"""
        self.filed: dict[int, dict[int, Packed]] = {}
        """by block and key; messages without a group are in `free` alone"""
        self.filed_count = 0
        """number of the places in `filed`"""
        self.held_count = 0
        """number of the groups with a holder"""
        self.free = Heads()
        """the heads of free groups, and messages without a group"""
        self.own: dict[int, Heads] = {}
        """by attach number, the heads of the groups that a consumer holds; without those that have none"""

    # ---- changes of the ready messages (ready_order.py)

    @property
    def by_sequence(self) -> SequenceOrder:
        return self.base.by_sequence

    def arrived(self, block: Block, members: int, slot: int, priorities: bytes | memoryview) -> None:
        self.base.arrived(block, members, slot, priorities)

    def note_priorities(self, block: Block, members: int, slot: int, priorities: bytes | memoryview) -> None:
        self.base.note_priorities(block, members, slot, priorities)

    def requeued(self, block: Block, members: int) -> None:
        self.base.requeued(block, members)
        if self.is_built:
            self._file(block, members & self._below(block.number))

    def left(self, block: Block, members: int) -> None:
        """What was handed out is not filed any more when this is called."""
        self.base.left(block, members)
        members &= self._below(block.number)
        if not self.is_built or not members:
            return
        number = block.number
        if not block.ready & self._below(number):
            self._unfile_all(number)
        else:
            self._unfile_some(block, members & ~block.checked_out)
        self.on_visible(number)

    def _unfile_some(self, block: Block, members: int) -> None:
        number = block.number
        free, keys, parts = split(block, members)
        self._remove(self.free, number, free)
        here, moves, alone = self.filed.get(number, {}), Moves(), (number,)
        for key, slots in zip(keys, parts, strict=True):
            packed = here.get(key)
            if packed is None:
                continue
            group = self.groups[key]
            is_first = group.numbers[0] == number
            if is_first:
                moves.left[group.holder, number].append(lowest(packed))
            if packed == slots and not group.held and group.numbers == alone:  # of most groups of one message
                del here[key], self.groups[key]
                self.filed_count -= 1
                continue
            group = self._unfile_members(here, key, group, number, slots)
            self._keep(key, group, moves if is_first else None)
        self._tidy_block(number)
        self._carry_out(moves)

    def _unfile_all(self, number: int) -> None:
        """No message of a block is filed any more. It has a few steps for each group of the block."""
        for rank in self._ranks:
            self.free.remove((rank, number), self.free.at((rank, number)))
        found, moves, alone = self.filed.pop(number, {}), Moves(), (number,)
        self.filed_count -= len(found)
        for key, packed in found.items():
            group = self.groups[key]
            if not group.held and group.numbers == alone:
                del self.groups[key]
                continue
            is_first = group.numbers[0] == number
            if is_first and group.holder != NOBODY:
                moves.left[group.holder, number].append(lowest(packed))
            self._keep(key, group.without(number), moves if is_first else None)
        self._carry_out(moves)

    def block_left(self, block: Stored) -> None:
        self.base.block_left(block)
        if self.is_built:
            self._unfile_all(block.number)

    def restored(self, block: Block | Stored) -> None:
        self.base.restored(block)
        self.is_built = False

    def first(self, start: int) -> int | None:
        return self.base.first(start)

    def next_of(self, block: Block) -> int:
        return self.base.next_of(block)

    def last_wanted(self) -> int:
        return self.base.last_wanted()

    def least_of(self, block: Block) -> int:
        return self.base.least_of(block)

    # ---- filing

    def file(self, left: Left, next_sequence: int) -> bool:
        """Files ready messages, as far as the limit on places allows. False if the budget ended it."""
        limits = self._limits
        while self.filed_to < next_sequence:
            number = self._next_block()
            if number is None:
                self.filed_to = next_sequence
                break
            if self.filed_count >= limits.filed_places:
                return True
            if not left.may_pass:
                return False
            block = self._blocks.get(number)
            members = block.ready & ~self._below(number)
            end = bitsets.first(members) + limits.file_slots
            if end < block.size:
                members &= (1 << end) - 1
            before = self.filed_count
            self.filed_to = min(block.base + min(end, block.size), next_sequence)
            self._file(block, members)
            left.blocks -= 1
            left.steps -= members.bit_count() + (self.filed_count - before) * limits.file_steps
        return True

    def may_file(self, next_sequence: int) -> bool:
        """Whether there are ready messages that are not filed, and the limit on places allows more."""
        is_more = self.filed_to < next_sequence and self.filed_count < self._limits.filed_places
        return is_more and self._next_block() is not None

    def _next_block(self) -> int | None:
        """The first block with ready messages that are not filed."""
        numbers, block_bits = self.by_sequence.numbers, self._limits.block_bits
        for place in range(numbers.bisect_left(self.filed_to >> block_bits), len(numbers)):
            number: int = numbers[place]
            first = self.filed_to - (number << block_bits)
            if first <= 0 or self._blocks.get(number).ready >> first:
                return number
        return None

    def build(self, checked_out: Iterable[tuple[int, Iterable[tuple[Block, int]]]]) -> None:
        """Computes all that follows from the state. checked_out: by attach number, the messages that a consumer has
        or that a transaction settles for it."""
        self._clear()
        for attach, parts in checked_out:
            for block, members in parts:
                _, keys, slots_of_each = split(block, members)
                for key, slots in zip(keys, slots_of_each, strict=True):
                    group = self.groups.get(key, UNKNOWN)
                    self.held_count += group.holder == NOBODY
                    self.groups[key] = Group(attach, group.held + len(slots) // SLOT_BYTES, ())
        for number in list(self.by_sequence.numbers):
            if number << self._limits.block_bits >= self.filed_to:
                break
            block = self._blocks.get(number)
            self._file(block, block.ready & self._below(number))

    def _below(self, number: int) -> int:
        """The slots of a block below `filed_to`."""
        count = self.filed_to - (number << self._limits.block_bits)
        return (1 << min(count, self._limits.block_size)) - 1 if count > 0 else 0

    def _file(self, block: Block, members: int) -> None:
        """Files ready messages of a block."""
        number = block.number
        free, keys, parts = split(block, members)
        self._add(self.free, number, free)
        if keys:
            self._file_groups(number, keys, parts)
        self.on_visible(number)

    def _file_groups(self, number: int, keys: Sequence[int], parts: Sequence[bytes]) -> None:
        """Files messages of a block: of each of these groups, the slots."""
        groups, here, sparse = self.groups, self.filed.setdefault(number, {}), self._limits.sparse_matches
        moves, known = Moves(), len(here)
        heads, alone = moves.appeared[NOBODY, number], Group(NOBODY, 0, (number,))
        most = SLOT_BYTES * sparse
        for key, slots in zip(keys, parts, strict=True):
            group = groups.get(key)
            if group is None:
                groups[key] = alone
                here[key] = slots if len(slots) <= most else pack_slots(slots, sparse)
                heads.append(slots[:SLOT_BYTES])
                continue
            holder, held, numbers = group
            before = here.get(key)
            if before is not None:
                here[key] = united(before, slots, sparse)
                if numbers[0] == number:
                    moves.left[holder, number].append(lowest(before))
                    moves.appeared[holder, number].append(lowest(here[key]))
                continue
            here[key] = pack_slots(slots, sparse)
            place = bisect_left(numbers, number)
            if not place:
                if numbers:
                    moves.left[holder, numbers[0]].append(lowest(self.filed[numbers[0]][key]))
                moves.appeared[holder, number].append(slots[:SLOT_BYTES])
            groups[key] = Group(holder, held, (*numbers[:place], number, *numbers[place:]))
        self.filed_count += len(here) - known
        self._carry_out(moves)

    def _unfile_members(
        self, here: dict[int, Packed], key: int, group: Group, number: int, slots: bytes
    ) -> Group:
        """Messages of a group in a block are not filed any more. Some need not have been. Returns its state then."""
        rest = without(here[key], slots, self._limits.sparse_matches)
        if rest:
            here[key] = rest
            return group
        del here[key]
        self.filed_count -= 1
        return group.without(number)

    def _keep(self, key: int, group: Group, moves: Moves | None) -> None:
        """Notes the state of a group, and its next head. moves: None if its head has not left. A group of which nothing
        is left is forgotten."""
        if not group.numbers and not group.held:
            del self.groups[key]
            return
        self.groups[key] = group
        if moves is not None and group.numbers:
            first = group.numbers[0]
            moves.appeared[group.holder, first].append(lowest(self.filed[first][key]))

    def _tidy_block(self, number: int) -> None:
        """Forgets a block where nothing is filed any more."""
        if not self.filed.get(number, True):
            del self.filed[number]

    # ---- heads

    def _heads(self, holder: int) -> Heads:
        if holder == NOBODY:
            return self.free
        own = self.own.get(holder)
        if own is None:
            own = self.own[holder] = Heads()
        return own

    def _carry_out(self, moves: Moves) -> None:
        """Moves heads, and tells of the blocks where some are new."""
        self._move(moves)
        for number in {number: None for _, number in moves.appeared}:
            self.on_visible(number)

    def _move(self, moves: Moves) -> None:
        for (holder, number), slots in moves.left.items():
            self._remove(self._heads(holder), number, self._as_set(slots))
        for (holder, number), slots in moves.appeared.items():
            self._add(self._heads(holder), number, self._as_set(slots))
        for holder, _ in moves.left:
            self._tidy(holder)

    def _as_set(self, slots: list[bytes]) -> int:
        if len(slots) <= FEW_MESSAGES:
            members = 0
            for slot in slots:
                members |= 1 << int.from_bytes(slot, "little")
            return members
        found = np.frombuffer(b"".join(slots), dtype="<u2").astype(np.intp)
        return bitsets.from_positions(found, self._limits.block_size)

    def _add(self, heads: Heads, number: int, members: int) -> None:
        """Makes messages of a block heads."""
        if not members:
            return
        if not self.has_priorities:
            heads.add((0, number), members)
            return
        for priority, level in levels_of(self._blocks.get(number), members):
            heads.add((-priority, number), level & members)

    def _remove(self, heads: Heads, number: int, members: int) -> None:
        """Removes those of these messages that are heads, whatever their priority is."""
        if members:
            for rank in self._ranks:
                heads.remove((rank, number), members)

    def _tidy(self, holder: int) -> None:
        """Forgets the heads of a consumer that has none."""
        own = self.own.get(holder)
        if own is not None and not own.count:
            del self.own[holder]

    # ---- handing out

    def places_of(self, number: int) -> list[Place]:
        """The places that a block may have, ascending."""
        return [(rank, number) for rank in self._ranks]

    def next_at(self, attach: int, place: Place, block: Block, matched: int, opens: int, wanted: int) -> int:
        """The messages at a place that a consumer may get, at most `wanted`, of those that match: heads, and what
        follows them in their groups. opens: how many heads may be taken that it does not hold yet."""
        heads = 0
        if opens > 0:
            heads = bitsets.lowest(self.free.at(place) & matched, min(opens, wanted))
        own = self.own.get(attach)
        if own is not None:
            heads |= own.at(place) & matched
        heads = bitsets.lowest(heads, 1 if self.has_priorities else wanted)
        if self.has_priorities or block.group_keys is None:
            return heads
        found, filed = heads, self.filed.get(block.number, {})
        slots = np.flatnonzero(bitsets.as_flags(heads, block.size))
        for key in block.group_keys[slots].tolist():
            packed = filed.get(key)
            if packed is not None and not is_single(packed):
                members = unpack(packed)
                unmatched = members & ~matched
                found |= members & ((unmatched & -unmatched) - 1) if unmatched else members
        return bitsets.lowest(found, wanted)

    def hand_out(self, attach: int, place: Place, block: Block, members: int) -> int:
        """Notes that a consumer is given these messages of `next_at`. Returns how many heads of them it did not hold
        before."""
        number = block.number
        opened = self.free.at(place) & members
        self.free.remove(place, opened)
        own = self.own.get(attach)
        if own is not None:
            own.remove(place, members)
        _, keys, parts = split(block, members)
        here, moves, alone = self.filed.get(number, {}), Moves(), (number,)
        taken: dict[int, Group] = {}
        """by the number of messages, the state of groups of which these are all"""
        for key, slots in zip(keys, parts, strict=True):
            holder, held, numbers = self.groups[key]
            self.held_count += holder == NOBODY
            held += len(slots) // SLOT_BYTES
            if numbers == alone and here[key] == slots:
                del here[key]
                self.filed_count -= 1
                self.groups[key] = taken.get(held) or taken.setdefault(held, Group(attach, held, ()))
                continue
            group = self._unfile_members(here, key, Group(attach, held, numbers), number, slots)
            self._keep(key, group, moves)
        self._tidy_block(number)
        self._move(moves)
        self._tidy(attach)
        return opened.bit_count()

    def released(self, block: Block, members: int) -> None:
        """Messages of a block are not checked out any more: groups of which nothing else is become free."""
        if not self.is_built:
            return
        _, keys, parts = split(block, members)
        groups, moves, free = self.groups, Moves(), 0
        for key, slots in zip(keys, parts, strict=True):
            holder, held, numbers = groups[key]
            held -= len(slots) // SLOT_BYTES
            if held:
                groups[key] = Group(holder, held, numbers)
                continue
            free += 1
            if not numbers:
                del groups[key]
                continue
            head = lowest(self.filed[numbers[0]][key])
            moves.left[holder, numbers[0]].append(head)
            moves.appeared[NOBODY, numbers[0]].append(head)
            groups[key] = Group(NOBODY, 0, numbers)
        self.held_count -= free
        self._carry_out(moves)


def split(block: Block, members: int) -> tuple[int, Sequence[int], Sequence[bytes]]:
    """Those of a block's messages without a group, and the keys of the groups of the others, with the sorted slots of
    each group. The order follows from the keys."""
    keys = block.group_keys
    if keys is None or not members:
        return members, (), ()
    if members.bit_count() <= FEW_MESSAGES:
        return _split_few(keys, members)
    low = bitsets.first(members)
    head = members >> low  # messages that are near each other cost little wherever they are
    slots = np.flatnonzero(bitsets.as_flags(head, head.bit_length()).view(np.bool_)) + low
    found = keys[slots]
    order = np.argsort(found, kind="stable")
    found, slots = found[order], slots[order]
    free_count = int(np.searchsorted(found, NO_GROUP, side="right"))
    free = bitsets.from_positions(slots[:free_count], block.size) if free_count else 0
    found, packed = found[free_count:], slots[free_count:].astype("<u2")
    if not len(found):
        return free, (), ()
    starts = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
    if len(starts) == len(found):  # each group has one message
        return free, found.tolist(), packed.view(f"V{SLOT_BYTES}").tolist()
    data = packed.tobytes()
    bounds = [*(starts * SLOT_BYTES).tolist(), len(data)]
    return free, found[starts].tolist(), [data[start:end] for start, end in itertools.pairwise(bounds)]


def _split_few(keys: NDArray[np.uint64], members: int) -> tuple[int, Sequence[int], Sequence[bytes]]:
    free, parts = 0, dict[int, bytes]()
    for slot in bitsets.members(members):
        key = int(keys[slot])
        if key == NO_GROUP:
            free |= 1 << slot
        else:
            parts[key] = parts.get(key, b"") + slot.to_bytes(SLOT_BYTES, "little")
    found = sorted(parts)
    return free, found, [parts[key] for key in found]


def refuse_keys(keys: bytes | memoryview, count: int) -> Refused | None:
    """The refusal if these are not the keys of a batch of `count` messages, else None."""
    if len(keys) in (0, KEY_BYTES, KEY_BYTES * count):
        return None
    return Refused("bad_argument", f"{len(keys)} bytes of keys of groups for {count} messages")


def keys_of_each(keys: bytes | memoryview, first: int) -> bytes | memoryview:
    """The keys of the messages from `first` on of a batch, which has one for all, or one each. Nothing is copied: each
    message may be asked for."""
    return memoryview(keys)[first * KEY_BYTES :] if first and len(keys) > KEY_BYTES else keys
