"""The line of queues with dead messages, alone: in place of the member there is a loop whose clock jumps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from types import SimpleNamespace
from typing import Any

import pytest

from quorum.api.dead_letters import queues as dead_queues
from quorum.api.dead_letters.queues import DeadQueues, Key
from quorum.node.queries import FindDeadQueues
from support import virtual_time

KEYS = [(1, number) for number in range(40)]

Forward = Callable[[DeadQueues, Key, Any], Any]
Found = Callable[[FindDeadQueues], Awaitable[Any]]


def new_catalog() -> Any:
    return SimpleNamespace(changes=0, revision=0, routes=SimpleNamespace(revision=0), policies=object())


async def never() -> Any:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def in_line(forward: Forward, found: Found, catalog: Any = None) -> AsyncIterator[DeadQueues]:
    hub = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        catalog=catalog or new_catalog(),
        requests=SimpleNamespace(query_at_leisure=found),
        published=SimpleNamespace(new_dead_queues=never),
    )
    queues = DeadQueues(hub, forward)  # type: ignore[arg-type]
    running = asyncio.create_task(queues.run())
    try:
        yield queues
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def test_a_full_target_is_tried_by_one_of_its_queues_after_a_pause() -> None:
    """40 queues with the same target, which takes nothing and then everything."""

    async def scenario() -> None:
        tries: list[Key] = []
        is_full = True

        async def forward(queues: DeadQueues, key: Key, place: Any) -> Hashable:
            if queues.may_try("grave", key):
                tries.append(key)
                await asyncio.sleep(0)
                if not is_full:
                    queues.takes("grave")
                    return None
            return "grave"

        async def found(_: object) -> Any:
            return SimpleNamespace(groups=(1,), queues=KEYS if not tries else [])

        async with in_line(forward, found) as queues:
            await asyncio.sleep(0.05)
            first = len(tries)
            assert 1 <= first <= dead_queues.PLACES
            await asyncio.sleep(0.8)  # pauses of 0.2 and 0.5 s
            assert len(tries) == first + 2
            is_full = False
            await asyncio.sleep(1.0)  # the rest of the next pause
            assert len(set(tries[first:])) == 40
            assert not queues._waiting and not queues._trying and not queues._target_of

    virtual_time.run(scenario())


def test_queues_whose_target_is_another_one_by_now_do_not_wait_for_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After all have looked whether they have another target, it takes effect for them."""
    monkeypatch.setattr(dead_queues, "PAUSES_S", (0.2,))

    async def scenario() -> None:
        done: set[Key] = set()
        target = "old"

        async def forward(queues: DeadQueues, key: Key, place: Any) -> Hashable:
            queues.has_target(key, target)
            if target == "old":
                return "old"
            await asyncio.sleep(0)
            done.add(key)
            queues.takes(target)
            return None

        async def found(_: object) -> Any:
            return SimpleNamespace(groups=(1,), queues=KEYS if not done else [])

        async with in_line(forward, found) as queues:
            await asyncio.sleep(0.3)
            target = "new"
            await asyncio.sleep(0.5)
            assert len(done) == 40 and not queues._waiting

    virtual_time.run(scenario())


@pytest.mark.parametrize("changed", ["another queue", "a policy"])
def test_waiting_queues_look_for_another_target_only_after_a_change_of_policies(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_queues, "PAUSES_S", (0.1,))

    async def scenario() -> None:
        looked: list[Key] = []
        catalog = new_catalog()

        async def forward(queues: DeadQueues, key: Key, place: Any) -> Hashable:
            looked.append(key)
            return "grave"

        async def found(_: object) -> Any:
            return SimpleNamespace(groups=(1,), queues=KEYS)

        async with in_line(forward, found, catalog):
            await asyncio.sleep(0.05)
            looked.clear()
            for _ in range(10):
                catalog.changes += 1
                catalog.revision += 1
                await asyncio.sleep(0.04)
            assert len(looked) == 4, "one after each pause"
            if changed == "a policy":
                catalog.policies = object()
                await asyncio.sleep(0.15)
                assert len({*looked}) == 40

    virtual_time.run(scenario())


def test_known_queues_are_looked_at_one_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_queues, "PAGE", 4)
    monkeypatch.setattr(dead_queues, "LOOK_S", 0.1)

    async def scenario() -> None:
        keys = [(group, number) for group in (1, 2) for number in range(1, 21)]
        groups: tuple[int, ...] = (1,)
        asked: list[Key] = []

        async def forward(queues: DeadQueues, key: Key, place: Any) -> Hashable:
            return key  # it waits

        async def found(query: FindDeadQueues) -> Any:
            await asyncio.sleep(0.001)
            asked.append(query.after)
            here = [key for key in keys if key[0] in groups and key > query.after]
            return SimpleNamespace(groups=groups, queues=here[:4])

        async with in_line(forward, found) as queues:

            def known() -> set[Key]:
                return {*queues._target_of, *queues._ready, *queues._working}

            await asyncio.sleep(0.15)  # one pause; then pages with new ones follow each other at once
            assert known() == {*keys[:20]}
            asked.clear()
            await asyncio.sleep(0.5)
            assert len(asked) == 5
            groups = (1, 2)
            await asyncio.sleep(0.3)
            assert (2, 0) in asked, "those of a new group are found before the next round"
            assert known() == {*keys}

    virtual_time.run(scenario())


def test_a_queue_whose_leader_goes_before_its_work_has_begun_is_forwarded_when_it_is_back() -> None:
    async def scenario() -> None:
        done: set[Key] = set()
        looks = 0

        async def forward(queues: DeadQueues, key: Key, place: Any) -> Hashable:
            done.add(key)
            return None

        async def found(_: object) -> Any:
            nonlocal looks
            looks += 1
            if looks == 2:
                await asyncio.sleep(0)  # the tasks are made meanwhile
                assert queues._working and not done
                return SimpleNamespace(groups=(), queues=[])
            return SimpleNamespace(groups=(1,), queues=KEYS if len(done) < len(KEYS) else [])

        async with in_line(forward, found) as queues:
            await asyncio.sleep(3 * dead_queues.LOOK_S)
            assert looks > 2 and done == {*KEYS}
            assert not queues._working and queues._places._value == dead_queues.PLACES

    virtual_time.run(scenario())
