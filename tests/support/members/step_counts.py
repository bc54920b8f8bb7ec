"""What the members' steps cost for one message published by itself, and while nothing happens.

    PYTHONPATH=.:selectors:tests python -m support.members.step_counts [--profile]

The members of a cluster in one thread step as in a process: when a frame or an input has arrived, or when their own
time has come. Calls of Python functions and of builtin ones are counted exactly; times are of this machine, of the
simulated disk's cheap syncs, and without gRPC and sockets.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import structlog

from quorum.node.driver import GATHER_S
from quorum.node.wire.frames import Frame
from support.members.cluster import Cluster, Session

MESSAGES = 200
IDLE_MS = 10_000


@dataclass(slots=True)
class Counts:
    """Of all members together."""

    steps: int = 0
    frames: int = 0
    syncs: int = 0
    calls: int = 0
    seconds: float = 0.0
    by_kind: dict[int, int] = field(default_factory=dict)


class Stepped(Cluster):
    """A cluster whose members step only when they have a reason to."""

    def __init__(self, *args: Any, **config: Any) -> None:
        self.counts = Counts()
        self.counts_calls = False
        self._due_ms: dict[str, int] = {}
        self._gathered: dict[str, tuple[int, list[Frame]]] = {}
        """frames that a member has gathered, and since when"""
        super().__init__(*args, **config)

    def carry(self, sender: str, to: str, kind: int, data: bytes) -> None:
        self.counts.frames += 1
        self.counts.by_kind[kind] = self.counts.by_kind.get(kind, 0) + 1
        super().carry(sender, to, kind, data)

    def run_events(self, ms: int) -> None:
        """Runs for so long; every member at once whenever it has something to do."""
        end_ms = self.now_ms + ms
        while True:
            while sum(self._step_if_due(name) for name in self.names):
                pass
            if self.now_ms >= end_ms:
                return
            self.now_ms += 1

    def _step_if_due(self, name: str) -> bool:
        since_ms, frames = self._gathered.pop(name, (self.now_ms, []))
        for sender in self.names:
            link = self._links.get((sender, name))
            while link:
                frames.append(link.popleft()[1])
        inputs, self._inputs[name] = self._inputs[name], []
        member, counts = self.members[name], self.counts
        if not frames and not inputs and self._due_ms.get(name, 0) > self.now_ms:
            return False
        if frames and not inputs and self.now_ms < since_ms + GATHER_S * 1000 and member.may_gather(frames):
            self._gathered[name] = since_ms, frames
            return False
        syncs = self.logs[name].stats.syncs
        began = time.perf_counter()
        with counted_calls(counts) if self.counts_calls else nullcontext():
            outputs = member.step(self.clock_ms(name), frames, inputs)
            self._due_ms[name] = member.next_due_ms()
        counts.seconds += time.perf_counter() - began
        counts.steps += 1
        now = self.logs[name].stats.syncs
        counts.syncs += now - syncs
        for output in outputs:
            self._hear(name, output)
        return True


@contextmanager
def counted_calls(counts: Counts) -> Iterator[None]:
    """Counts the calls of functions."""

    def note(_frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            counts.calls += 1

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


class Load:
    """A cluster with a queue, and a session at a member that does not lead it, or at the leader."""

    def __init__(self, *, at_leader: bool = False) -> None:
        cluster = self.cluster = Stepped()
        cluster.ready()
        self.group, self.queue = cluster.declare("q")
        cluster.run_events(3_000)
        self.leader = cluster.leader(self.group)
        at = next(name for name in cluster.names if (name == self.leader) == at_leader)
        self.session = Session(cluster, at)
        self.publish(20)

    def publish(self, messages: int = MESSAGES) -> None:
        """Publishes messages one at a time, each after the confirm of the one before."""
        for _ in range(messages):
            self.begin_publish()
            self.cluster.run_events(3)

    def begin_publish(self) -> None:
        self.session.publish(self.group, self.queue, b"x" * 256)

    def idle(self) -> None:
        self.cluster.run_events(IDLE_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    apart, together = Load(), Load(at_leader=True)
    for what, count, load, work in (
        ("one publish at a follower", MESSAGES, apart, apart.publish),
        ("one publish at the leader", MESSAGES, together, together.publish),
        ("one idle second", IDLE_MS // 1000, apart, apart.idle),
    ):
        cluster = load.cluster
        if args.profile:
            profile = cProfile.Profile()
            profile.runcall(work)
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
            continue
        timed = cluster.counts = Counts()
        work()
        counted = cluster.counts = Counts()
        cluster.counts_calls = True
        work()
        cluster.counts_calls = False
        figures = {
            "steps": timed.steps / count,
            "frames": timed.frames / count,
            "syncs": timed.syncs / count,
            "calls": counted.calls / count,
            "us": timed.seconds / count * 1e6,
        }
        print(what, {name: round(value, 2) for name, value in figures.items()})
        print("   frames by kind", {kind: round(n / count, 2) for kind, n in sorted(timed.by_kind.items())})


if __name__ == "__main__":
    main()
