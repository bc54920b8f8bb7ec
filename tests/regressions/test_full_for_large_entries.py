"""A leader whose log had room for small entries only, on a full disk: a large batch was sent to it again and again,
once a second, and always between two looks at the disk, so that it was never called full and never handed over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import structlog

from quorum.log import Space
from quorum.node.cluster.disk_monitor import DiskMonitor
from quorum.node.leases.disk_state import SPACE_MS
from quorum.node.replica.proposals import FULL_RETRY_MS, Proposals


class SmallLog:
    """Low, with room for what is small."""

    stats = SimpleNamespace(syncs=0, rolls=0)

    def refill_reserve(self) -> bool:
        return False

    def space(self) -> Space:
        return Space(free_bytes=0, limit_bytes=1 << 20, reserve_bytes=2 << 20, is_low=True)

    def make_room(self, _: int) -> bool:
        return True


def test_a_log_that_refuses_between_two_looks_is_full_at_both() -> None:
    watch = DiskMonitor(1, {1: "n1"}, SmallLog(), lambda: 0.0, structlog.get_logger())  # type: ignore[arg-type]
    proposals = Proposals()
    replica: Any = SimpleNamespace(proposals=proposals, raft=SimpleNamespace(is_full=False, is_leader=False))
    now_ms = 100_000
    watch.look(now_ms, [replica])
    assert not watch.disks.own.is_full, "nothing was refused"
    for _ in range(5):
        proposals.full_until_ms = now_ms + 100 + FULL_RETRY_MS  # refused soon after the look
        now_ms += SPACE_MS
        watch.look(now_ms, [replica])
        assert watch.disks.own.is_full
    now_ms += 4 * SPACE_MS
    watch.look(now_ms, [replica])
    assert not watch.disks.own.is_full, "nothing was refused lately"
