"""The part of an entry's outcome that is in the running hash, which members compare."""

from __future__ import annotations

import zlib
from array import array
from functools import cache

from fifo.effects import (
    Applied,
    AttachedReply,
    Confirmed,
    Deliver,
    Done,
    Notify,
    Ok,
    Pinned,
    Published,
    QueueExpired,
    Refused,
    Registered,
    Reserved,
    SubscriptionState,
)


def digest(index: int, applied: Applied) -> bytes:
    """A few numbers of each reply and effect, as bytes. If members diverge, these numbers soon differ."""
    numbers = [index, len(applied.replies), len(applied.effects)]
    for reply in applied.replies:
        match reply:
            case Confirmed(first, last, parts):
                numbers += (1, first, last)
                for start, end, why in parts:
                    numbers += (start, end, _of_word(why.reason))
            case Ok(count):
                numbers += (2, count)
            case AttachedReply(attach):
                numbers += (3, attach)
            case Registered(accepted, known):
                numbers += (4, known, len(accepted))
            case Refused(reason, _):
                numbers += (5, _of_word(reason))
            case Done():
                numbers.append(6)
            case Published(first, count, is_duplicate):
                numbers += (29, first, count, is_duplicate)
            case None:
                numbers.append(7)
            case SubscriptionState(generation, settled, last, outstanding):
                numbers += (10, generation, settled, last, outstanding)
            case Reserved(offset, at, count, size_bytes, is_complete):
                numbers += (11, offset, at, count, size_bytes, is_complete)
            case Pinned(pin, at, first, end, count):
                numbers += (12, pin, at, first, end, count)
            case _:
                raise TypeError(f"no numbers for a {type(reply).__name__} in the running hash")
    for effect in applied.effects:
        if type(effect) is Deliver:
            numbers += (8, effect.queue, effect.attach, effect.first_tag)
            for run in effect.runs:
                numbers += (run.first_sequence, run.count, run.index, run.operation)
        elif type(effect) is Notify:
            numbers += (9, effect.queue, effect.attach, effect.value)
        elif type(effect) is QueueExpired:
            numbers += (31, effect.queue)
    return array("q", numbers).tobytes()


@cache
def _of_word(reason: str) -> int:
    return zlib.crc32(reason.encode())
