"""The life of a message as a table: its places, and the moves between them.

Each row of `LIFE` is a move, by the method of `Messages` (messages.py) that makes it. The table decides nothing: tests
make each of its moves, and the invariants know the places from it.
"""

from __future__ import annotations

from enum import Enum

from fifo.frozen_dataclasses import dataclass


class Place(Enum):
    """The place of a message. The value names its bit set in `Block`."""

    READY = "ready"
    CHECKED_OUT = "checked_out"
    DELAYED = "delayed"
    DEAD = "dead"
    GONE = ""


@dataclass(frozen=True, slots=True)
class Move:
    """One step in the life of a message: the method of `Messages`, the place before and after, and the cause if it
    leaves."""

    method: str
    source: Place | None
    target: Place
    cause: str = ""


LIFE = (
    Move("append", None, Place.READY),
    Move("append", None, Place.DELAYED),
    Move("check_out", Place.READY, Place.CHECKED_OUT),
    Move("requeue", Place.CHECKED_OUT, Place.READY),
    Move("requeue", Place.CHECKED_OUT, Place.DELAYED),
    Move("end_delay", Place.DELAYED, Place.READY),
    Move("end_delay", Place.DELAYED, Place.GONE, "expired"),
    Move("settle", Place.CHECKED_OUT, Place.GONE, "settled"),
    Move("settle", Place.CHECKED_OUT, Place.GONE, "rejected"),
    Move("requeue", Place.CHECKED_OUT, Place.GONE, "delivery_limit"),
    Move("requeue", Place.CHECKED_OUT, Place.GONE, "expired"),
    Move("drop", Place.READY, Place.GONE, "expired"),
    Move("drop", Place.READY, Place.GONE, "maxlen"),
    Move("drop", Place.READY, Place.GONE, "purged"),
    Move("forget", Place.READY, Place.GONE, "purged"),
    Move("drop_delayed", Place.DELAYED, Place.GONE, "maxlen"),
    Move("drop_delayed", Place.DELAYED, Place.GONE, "purged"),
    Move("forget", Place.DELAYED, Place.GONE, "purged"),
    Move("settle", Place.CHECKED_OUT, Place.DEAD, "rejected"),
    Move("requeue", Place.CHECKED_OUT, Place.DEAD, "delivery_limit"),
    Move("requeue", Place.CHECKED_OUT, Place.DEAD, "expired"),
    Move("drop", Place.READY, Place.DEAD, "expired"),
    Move("drop", Place.READY, Place.DEAD, "maxlen"),
    Move("end_delay", Place.DELAYED, Place.DEAD, "expired"),
    Move("drop_delayed", Place.DELAYED, Place.DEAD, "maxlen"),
    Move("settle_dead", Place.DEAD, Place.GONE, "expired"),
    Move("settle_dead", Place.DEAD, Place.GONE, "rejected"),
    Move("settle_dead", Place.DEAD, Place.GONE, "delivery_limit"),
    Move("settle_dead", Place.DEAD, Place.GONE, "maxlen"),
    Move("drop_dead", Place.DEAD, Place.GONE, "purged"),
    Move("forget", Place.DEAD, Place.GONE, "purged"),
)

COUNTED = ("expired", "rejected", "delivery_limit", "maxlen")
"""Causes whose messages have always been counted, in the order of the snapshot. `settled` and `purged` have counts of
their own, because the snapshot has exactly these four numbers together."""
