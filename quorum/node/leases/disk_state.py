"""The states of the members' disks as they tell each other: low room, a full log, slow syncs.

Every heartbeat carries its sender's own state and the names of the members that it has heard to be low. So a node that
a low member cannot reach hears of it from the others. A report that is not repeated expires, so a member that is gone
holds nothing up. All of this is local and decides nothing in a machine. It decides whether a node accepts publishes,
and to which member a leader hands its leadership.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import field

from fifo.frozen_dataclasses import dataclass

SPACE_MS = 1_000
"""Interval between measurements of the room on the disk. A shortage goes unnoticed for at most one second of writes:
far below the limit."""
REMEMBERED_MS = 2_000
"""A heartbeat's report is valid for this long: eight heartbeats."""
SLOW_SYNC_MS = 100
"""A sync that takes longer is slow: a good disk takes 1 to 10 ms."""
SLOW_AFTER_MS = 3_000
"""A disk is slow when no sync was quick for this long; with the hand-over this stays below the 10 s that a slow leader
may cost."""
SLOW_FORGOTTEN_MS = 30_000
"""A disk that was not used for this long is no longer known to be slow."""
SYNCS_KEPT = 512

_STATE = struct.Struct("<QQIBB")
_NODE = struct.Struct("<I")
_LOW, _FULL, _SLOW = 1, 2, 4


class DiskStateError(Exception):
    """Bytes that are no state of a disk."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """One member's disk. free_bytes: beside the reserve; limit_bytes: below it is low; sync_p99_us: of the latest
    syncs.

    is_low: publishes are refused; is_full: the log takes no more entries; is_slow: another member should lead.
    """

    free_bytes: int = 0
    limit_bytes: int = 0
    sync_p99_us: int = 0
    is_low: bool = False
    is_full: bool = False
    is_slow: bool = False

    @property
    def is_worse_to_lead(self) -> bool:
        """Whether another member should lead, if one has a better disk."""
        return self.is_full or self.is_slow

    def encode(self, low: Iterable[int]) -> bytes:
        """Encodes the state with the numbers of the nodes that the sender knows to be low."""
        flags = _LOW * self.is_low | _FULL * self.is_full | _SLOW * self.is_slow
        nodes = sorted(low)
        fields = _STATE.pack(self.free_bytes, self.limit_bytes, self.sync_p99_us, flags, len(nodes))
        return fields + b"".join(map(_NODE.pack, nodes))


UNKNOWN = DiskState()


def decode(data: bytes | memoryview) -> tuple[DiskState, tuple[int, ...]]:
    """The state and the nodes that the sender knows to be low. DiskStateError."""
    if len(data) < _STATE.size:
        raise DiskStateError(f"a disk's state of {len(data)} bytes; at least {_STATE.size} are needed")
    free, limit, p99, flags, count = _STATE.unpack_from(data)
    if len(data) != _STATE.size + count * _NODE.size:
        raise DiskStateError(f"{len(data)} bytes of a disk's state with {count} nodes")
    nodes = tuple(_NODE.unpack_from(data, _STATE.size + at * _NODE.size)[0] for at in range(count))
    state = DiskState(free, limit, p99, bool(flags & _LOW), bool(flags & _FULL), bool(flags & _SLOW))
    return state, nodes


@dataclass(slots=True)
class Disks:
    """One member's view. Times are of its own clock."""

    me: int
    own: DiskState = UNKNOWN
    _heard: dict[int, tuple[int, DiskState, tuple[int, ...]]] = field(default_factory=dict)
    """node -> (time, its own state, the nodes that it knows to be low)"""

    def hear(self, node: int, state: DiskState, low: tuple[int, ...], now_ms: int) -> None:
        self._heard[node] = (now_ms, state, low)

    def state(self, node: int, now_ms: int) -> DiskState | None:
        """The state of a node's disk, None if nothing recent is known."""
        if node == self.me:
            return self.own
        heard = self._heard.get(node)
        return heard[1] if heard is not None and now_ms - heard[0] <= REMEMBERED_MS else None

    def known_low(self, now_ms: int) -> list[int]:
        """The nodes that reported themselves low to this node, itself included: its heartbeats pass them on."""
        nodes = sorted({self.me, *self._heard})
        return [node for node in nodes if (found := self.state(node, now_ms)) is not None and found.is_low]

    def low(self, now_ms: int) -> list[int]:
        """All nodes known to be low, also from others. A node's own report takes precedence over what others say."""
        found = set(self.known_low(now_ms))
        for when, _, low in self._heard.values():
            if now_ms - when <= REMEMBERED_MS:
                found |= {node for node in low if self.state(node, now_ms) is None}
        return sorted(found)


class SyncTimes:
    """The durations of the latest syncs of this member's log."""

    def __init__(self) -> None:
        self._took_us: deque[int] = deque(maxlen=SYNCS_KEPT)
        self._slow_since_ms: int | None = None
        self._last_ms = 0

    def took(self, took_us: int, now_ms: int) -> None:
        """Records a sync of took_us microseconds that has just ended."""
        self._took_us.append(took_us)
        self._last_ms = now_ms
        if took_us < SLOW_SYNC_MS * 1000:
            self._slow_since_ms = None
        elif self._slow_since_ms is None:
            self._slow_since_ms = now_ms - took_us // 1000

    def is_slow(self, now_ms: int) -> bool:
        if self._slow_since_ms is None or now_ms - self._last_ms > SLOW_FORGOTTEN_MS:
            return False
        return self._last_ms - self._slow_since_ms >= SLOW_AFTER_MS

    def p99_us(self) -> int:
        """0 if there was none."""
        ordered = sorted(self._took_us)
        return ordered[len(ordered) * 99 // 100] if ordered else 0
