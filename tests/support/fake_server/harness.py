"""Runs a test as a coroutine on an in-memory cluster, with a bound on its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from support.fake_server.cluster import FakeCluster
from support.fake_server.server import FakeNode

TEST_TIMEOUT_S = 120.0
EVENTUALLY_S = 60.0
LIMIT_MS = 20_000
"""A time limit that a test lets pass on a loop's clock (`pass_limit`), once what must come before has happened."""


@dataclass
class World:
    cluster: FakeCluster
    nodes: list[FakeNode]
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return "quorum://" + ",".join(node.address for node in self.nodes)

    def pass_limit(self) -> None:
        """LIMIT_MS pass, for all timers of the test's loop."""
        pass_limit(self.loop)


def on_cluster(nodes: int = 2) -> Callable[[Callable[[World], Awaitable[None]]], Callable[[], None]]:
    """A test on so many nodes of one cluster, which has the queue 'q'."""

    def decorate(scenario: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
        def test() -> None:
            asyncio.run(_run(scenario, nodes))

        test.__name__ = scenario.__name__  # type: ignore[attr-defined]
        test.__doc__ = scenario.__doc__
        test.__module__ = scenario.__module__
        return test

    return decorate


async def _run(scenario: Callable[[World], Awaitable[None]], count: int) -> None:
    cluster = FakeCluster()
    cluster.declare("q")
    nodes = [await FakeNode(cluster, f"n{number}").start() for number in range(1, count + 1)]
    try:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await scenario(World(cluster, nodes, asyncio.get_running_loop()))
    finally:
        for node in nodes:
            await node.stop()


def pass_limit(loop: asyncio.AbstractEventLoop) -> None:
    """LIMIT_MS pass at once on the loop's clock. Call it on the loop's thread."""
    clock = loop.time
    loop.time = lambda: clock() + LIMIT_MS / 1000  # type: ignore[method-assign]


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Waits until it holds; fails with `what` if it never does."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + EVENTUALLY_S
    while not condition():
        assert loop.time() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.002)
