"""The life of messages: each move of the table happens, no other does, and the documents show the same table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fifo.budgets import Entry
from fifo.commands import QueueConfig
from fifo.limits import SMALL
from fifo.messages.block_store import BlockMemory
from fifo.messages.blocks import Stored
from fifo.messages.dead_letters import CAUSES
from fifo.messages.life import COUNTED, LIFE, Move, Place
from fifo.messages.messages import Messages
from fifo.messages.pages import MemoryPages
from fifo.messages.purging import purge
from fifo.messages.runs import NEVER
from fifo.versions import CURRENT

PAGE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"
NOW_MS, LATER_MS, DUE_MS = 1_000, 2_000, 3_000
ALL = [(1, 20)]
"""Three blocks of eight sequences."""


def made(ttl_ms: int = -1, due_ms: int = -1, strategy: str = "none") -> Messages:
    config = QueueConfig("orders", delivery_limit=0, dead_letter_strategy=strategy)
    messages = Messages(1, config, BlockMemory(MemoryPages(), SMALL))
    messages.append(1, 0, 0, 20, messages.expires_at(NOW_MS, ttl_ms), 100, 0, due_ms=due_ms)
    return messages


def entry(now_ms: int = NOW_MS) -> Entry:
    return Entry(2, now_ms, CURRENT, SMALL)


def places(messages: Messages) -> dict[Place, int]:
    found = {Place.READY: 0, Place.CHECKED_OUT: 0, Place.DELAYED: 0, Place.DEAD: 0}
    for block in messages.blocks.warm():
        for place in found:
            found[place] += int(getattr(block, place.value)).bit_count()
    assert found == {
        Place.READY: messages.ready_count,
        Place.CHECKED_OUT: messages.checked_out_count,
        Place.DELAYED: messages.delayed_count,
        Place.DEAD: messages.dead.count,
    }
    assert messages.total_count == sum(found.values())
    return {**found, Place.GONE: 20 - sum(found.values())}


def check_out(messages: Messages) -> None:
    for block in messages.blocks.warm():
        messages.check_out(block, block.ready, block.ready.bit_count())


def drop(messages: Messages, cause: str) -> None:
    for block in messages.blocks.warm():
        messages.drop(block, block.ready, cause)


def retry_later(messages: Messages) -> None:
    messages.config = replace(messages.config, delayed_retry_min_ms=1)
    messages.requeue(entry(), ALL, failed=False)


def end_delay(messages: Messages, now_ms: int) -> None:
    for block in messages.blocks.warm():
        messages.end_delay(entry(now_ms), block)


def drop_delayed(messages: Messages, cause: str) -> None:
    for block in messages.blocks.warm():
        messages.drop_delayed(block, block.delayed, cause)


def forget(messages: Messages) -> None:
    for number in messages.blocks.numbers():
        messages.blocks.page_out(number)
        cold = messages.blocks.at(number)
        assert isinstance(cold, Stored)
        messages.forget(cold, "purged")


def drop_dead(messages: Messages) -> None:
    for block in messages.blocks.warm():
        messages.drop_dead(block, block.dead, "purged")


def settle_dead(messages: Messages) -> None:
    while messages.dead.claim(LATER_MS):
        messages.settle_dead(messages.dead.last_number, 0)


DYING: dict[Move, Callable[[Messages], object]] = {
    Move("settle", Place.CHECKED_OUT, Place.GONE, "rejected"): lambda m: m.settle(ALL, "rejected"),
    Move("requeue", Place.CHECKED_OUT, Place.GONE, "delivery_limit"): lambda m: m.requeue(
        entry(), ALL, failed=True
    ),
    Move("requeue", Place.CHECKED_OUT, Place.GONE, "expired"): lambda m: m.requeue(
        entry(LATER_MS), ALL, failed=False
    ),
    Move("drop", Place.READY, Place.GONE, "expired"): lambda m: drop(m, "expired"),
    Move("drop", Place.READY, Place.GONE, "maxlen"): lambda m: drop(m, "maxlen"),
    Move("end_delay", Place.DELAYED, Place.GONE, "expired"): lambda m: end_delay(m, DUE_MS + LATER_MS),
    Move("drop_delayed", Place.DELAYED, Place.GONE, "maxlen"): lambda m: drop_delayed(m, "maxlen"),
}
"""These moves lead to *dead* where the queue has a dead-letter target."""
MOVES: dict[Move, Callable[[Messages], object]] = {
    Move("check_out", Place.READY, Place.CHECKED_OUT): check_out,
    Move("requeue", Place.CHECKED_OUT, Place.READY): lambda m: m.requeue(entry(), ALL, failed=False),
    Move("requeue", Place.CHECKED_OUT, Place.DELAYED): retry_later,
    Move("end_delay", Place.DELAYED, Place.READY): lambda m: end_delay(m, DUE_MS),
    Move("settle", Place.CHECKED_OUT, Place.GONE, "settled"): lambda m: m.settle(ALL),
    Move("drop", Place.READY, Place.GONE, "purged"): lambda m: drop(m, "purged"),
    Move("forget", Place.READY, Place.GONE, "purged"): forget,
    Move("drop_delayed", Place.DELAYED, Place.GONE, "purged"): lambda m: drop_delayed(m, "purged"),
    Move("forget", Place.DELAYED, Place.GONE, "purged"): forget,
    **DYING,
    **{replace(move, target=Place.DEAD): act for move, act in DYING.items()},
    **{Move("settle_dead", Place.DEAD, Place.GONE, cause): settle_dead for cause in CAUSES},
    Move("drop_dead", Place.DEAD, Place.GONE, "purged"): drop_dead,
    Move("forget", Place.DEAD, Place.GONE, "purged"): forget,
}


def die(messages: Messages, cause: str) -> None:
    """All messages die; of any cause if they are to be purged."""
    move, act = next((move, act) for move, act in DYING.items() if cause in (move.cause, "purged"))
    if move.source is Place.CHECKED_OUT:
        check_out(messages)
    act(messages)


def test_every_move_of_the_table_is_tried() -> None:
    appended = Move("append", None, Place.READY), Move("append", None, Place.DELAYED)
    assert {*MOVES, *appended} == {*LIFE}
    assert places(made())[Place.READY] == places(made(due_ms=DUE_MS))[Place.DELAYED] == 20


@pytest.mark.parametrize("move", MOVES, ids=lambda move: f"{move.method} {move.cause} {move.target.name}")
def test_a_move_takes_messages_from_one_place_to_the_other(move: Move) -> None:
    is_delayed = move.source is Place.DELAYED
    messages = made(
        LATER_MS + DUE_MS - 2 * NOW_MS if is_delayed else LATER_MS - NOW_MS,
        DUE_MS if is_delayed else -1,
        "at_least_once" if Place.DEAD in (move.source, move.target) else "none",
    )
    if move.source is Place.CHECKED_OUT:
        check_out(messages)
    if move.source is Place.DEAD:
        die(messages, move.cause)
    assert move.source is not None and places(messages)[move.source] == 20
    MOVES[move](messages)
    assert places(messages)[move.target] == 20
    is_gone = move.target is Place.GONE
    assert messages.dropped == {cause: 20 * (is_gone and cause == move.cause) for cause in COUNTED}


def test_the_documents_show_the_same_table() -> None:
    words = {
        None: "-",
        Place.READY: "ready",
        Place.CHECKED_OUT: "checked out",
        Place.DELAYED: "delayed",
        Place.DEAD: "dead",
        Place.GONE: "gone",
    }
    rows = [
        f"| {move.method} | {words[move.source]} | {words[move.target]} | {move.cause} |".replace(
            "|  |", "| |"
        )
        for move in LIFE
    ]
    assert "\n".join(rows) in PAGE.read_text()


def test_a_cold_block_is_purged_unread_unless_something_reaches_into_it() -> None:
    for is_pinned, loads in ((False, 0), (True, 1)):
        memory = BlockMemory(MemoryPages(), SMALL)
        messages = Messages(1, QueueConfig("orders"), memory)
        messages.append(1, 0, 0, 20, messages.expires_at(NOW_MS, -1), 100, 0)
        messages.blocks.page_out(1)
        assert purge(messages, messages.next_sequence, lambda _, answer=is_pinned: answer) == 20  # type: ignore[misc]
        assert memory.loads == loads


class Counted(np.ndarray[Any, Any]):
    """Numbers that count how many of them numpy has compared or computed."""

    passed = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        Counted.passed += sum(each.size for each in inputs if isinstance(each, np.ndarray))
        plain = [each.view(np.ndarray) if isinstance(each, Counted) else each for each in inputs]
        found = getattr(ufunc, method)(*plain, **more)
        return found.view(Counted) if isinstance(found, np.ndarray) else found


def test_messages_of_many_blocks_are_not_compared_with_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = Messages(1, QueueConfig("q"), BlockMemory(MemoryPages(), SMALL))
    count = 400
    for _ in range(count):
        messages.append(1, 0, 0, SMALL.block_size, NEVER, 1, 0)
    ranges = [(SMALL.block_size * place + 3, 2) for place in range(count)]
    array = np.array
    with monkeypatch.context() as patch:
        patch.setattr(np, "array", lambda *arguments, **more: array(*arguments, **more).view(Counted))
        found = messages.blocks.of_ranges(ranges)
    assert [(block.number, members) for block, members in found] == [(n, 0b11000) for n in range(count)]
    assert 0 < Counted.passed < 50 * count
