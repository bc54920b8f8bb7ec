"""Settings of glibc's memory allocator, which takes and returns the memory of batches.

By default glibc returns a batch's memory to the kernel when the batch is freed, and requests it again for the next one.
The kernel has to clear these pages each time, which costs a fifth of a loaded member's CPU time. So the allocator keeps
some MiB for the next batches, and `return_memory` returns all free memory at a fixed interval. With another C library,
without such settings, these functions do nothing.
"""

from __future__ import annotations

import asyncio
import ctypes

ARENAS = 2
"""Maximum number of separate areas from which threads get memory."""

KEPT_BYTES = 16 << 20
"""Free memory at the end of an arena that is kept for the next batches: more than the batches, frames and entries of a
few turns under full load. With 2 MiB, a member still takes three times as many pages from the kernel."""
OWN_PAGES_BYTES = 4 << 20
"""A piece of memory of at least this size is returned to the kernel as soon as it is freed."""
RETURN_S = 10.0
"""Interval between two calls that return all free memory. Such a call takes about 0.3 ms in a member of 170 MB."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of mallopt(3)


def set_up() -> None:
    """Set the limits of this process. Call it before threads start."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, OWN_PAGES_BYTES)


async def return_memory() -> None:
    """Return free memory to the kernel, every RETURN_S, until this task is cancelled."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while malloc_trim is not None:
        await asyncio.sleep(RETURN_S)
        await asyncio.to_thread(malloc_trim, 0)
