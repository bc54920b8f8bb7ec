"""The whole log of a world again, and the rest of it after a snapshot."""

from __future__ import annotations

from fifo.persistence import snapshot
from support.fifo.world import World


def replay(world: World) -> None:
    """The whole log again, and the rest of it after a snapshot in its middle: the same state."""
    fresh = world.empty()
    middle = b""
    half = len(world.entries) // 2
    for place, (meta, operations) in enumerate(world.entries):
        if place == half:
            middle = snapshot.encode(fresh)
        fresh.apply(meta, operations)
    assert snapshot.encode(fresh) == snapshot.encode(world.machine)
    assert fresh.running_hash == world.machine.running_hash
    again = world.restored(middle)
    for meta, operations in world.entries[half:]:
        again.apply(meta, operations)
    assert snapshot.encode(again) == snapshot.encode(world.machine)
