"""How much memory and disk the nodes of a seed have, and what they have done because of it.

In about every second seed it is so little that within seconds garbage is collected, blocks leave the memory, and a
member that was away for a moment needs a snapshot and the bodies it refers to. The queues of a run are short, so in
these seeds the product's blocks are, too: nothing else of them depends on their size.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fifo.limits import PRODUCTION, Limits
from quorum.replication.group_config import GroupConfig

if TYPE_CHECKING:
    from simulator.machines.node import Node
    from simulator.world import World

SEGMENT_BYTES = 96 << 10
"""Small, so that logs roll."""
RECENT_BYTES = 32 << 10
"""Little, so that bodies are read from the disk."""
KEEP_ENTRIES = 40
"""In seeds with a short memory."""


@dataclass(frozen=True, slots=True)
class Room:
    """block_bits: a block has so many sequences, as a power of two. log: arguments of each node's log. member: parts of
    its configuration."""

    is_scarce: bool
    block_bits: int
    log: dict[str, Any]
    member: dict[str, Any] = field(default_factory=dict)

    @property
    def limits(self) -> Limits:
        """Of the machines of queues."""
        return replace(PRODUCTION, block_bits=self.block_bits)


def room_of(seed: int) -> Room:
    """Every third seed has a short memory: members that were away for long get snapshots."""
    chance = random.Random(f"{seed} room")
    has_short_memory = seed % 3 == 0
    if chance.random() < 0.5:
        log = {"segment_bytes": SEGMENT_BYTES, "recent_bytes": RECENT_BYTES}
        if not has_short_memory:
            return Room(False, PRODUCTION.block_bits, log)
        raft = GroupConfig(keep_entries=KEEP_ENTRIES, chunk_bytes=2_000)
        return Room(False, PRODUCTION.block_bits, log, {"raft": raft, "snapshot_bytes": 20_000})
    return Room(
        True,
        chance.choice((4, 6, 8)),
        {
            "segment_bytes": chance.choice((16 << 10, 32 << 10, 64 << 10)),
            "recent_bytes": chance.choice((1 << 10, 8 << 10)),
        },
        {
            "snapshot_bytes": chance.choice((5_000, 20_000)),
            "snapshot_ms": chance.choice((500, 2_000)),
            "queue_memory_bytes": chance.choice((1, 4 << 10)),
            "raft": GroupConfig(
                keep_bytes=chance.choice((2_000, 20_000)),
                keep_entries=KEEP_ENTRIES if has_short_memory else GroupConfig().keep_entries,
                chunk_bytes=chance.choice((500, 2_000)),
            ),
        },
    )


class Works:
    """What one life of a node has done for its memory and disk, counted where it is done."""

    def __init__(self, world: World, node: Node) -> None:
        self._counts = world.rules.counts
        self._collected = self._fetched = self._repaired = 0
        member = node.member
        self._count(member.pager, "_page_out", "blocks paged out")
        self._count(member.leader_spread, "_move", "leaders spread")
        for replica in member.replicas.values():
            self._count(replica.checkpoints, "saved", "snapshots taken")
            self._count(replica.checkpoints, "installed", "snapshots installed")
            self._watch_installations(node, replica.number)

    def _count(self, owner: Any, method: str, what: str) -> None:
        """installed() calls saved()."""
        does = getattr(owner, method)

        def counted(*arguments: Any) -> Any:
            self._counts[what] += 1
            return does(*arguments)

        setattr(owner, method, counted)

    def _watch_installations(self, node: Node, group: int) -> None:
        """A snapshot from a leader is in place: the rules look at what it refers to."""
        checkpoints = node.member.replicas[group].checkpoints
        installed = checkpoints.installed

        def watched(index: int, found: Any) -> None:
            installed(index, found)
            node.world.rules.installed(node, group, index)

        checkpoints.installed = watched  # type: ignore[method-assign]

    def stepped(self, node: Node) -> None:
        member = node.member
        collected, fetched = member.collecting.adopted, member.body_client.fetched
        if collected != self._collected:
            self._counts["collections adopted"] += collected - self._collected
            self._collected = collected
        repaired = sum(member.repairer.repaired.values())
        if repaired != self._repaired:
            self._counts["entries repaired"] += repaired - self._repaired
            self._repaired = repaired
        if fetched != self._fetched:
            self._counts["bodies fetched"] += fetched - self._fetched
            self._fetched = fetched
