"""What `redrive` takes from a dead-letter queue, and what it reports, with a client that is not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorum.client.admin.redrive import MAX_PASSED, ROUND_BYTES, redrive
from quorum.client.errors import (
    ClosedError,
    NotFound,
    OutcomeUnknown,
    PublishRejected,
    PublishUnknown,
    RefusedError,
    TimedOut,
    VoidDelivery,
)
from quorum.redrive import MAX_REASONS, Bounds, CannotTake, Redrive, Redriven

GRAVE = "grave"


@dataclass(eq=False)
class Letter:
    """A message of the dead-letter queue. fails: why it cannot be published. failing_settles: how often its settlement
    fails."""

    sequence: int
    origin: str = "orders"
    size_bytes: int = 10
    fails: Exception | None = None
    failing_settles: int = 0
    history: str | None = None
    queue: str = GRAVE
    properties: Any = None
    is_void: bool = False

    @property
    def body(self) -> bytes:
        return b"%d" % self.sequence

    @property
    def application_properties(self) -> dict[str, str]:
        named = {"x-last-death-queue": self.origin} if self.origin else {}
        return named | ({} if self.history is None else {"x-death": self.history})


@dataclass
class Grave:
    """The service and its client: a queue whose messages are handed out in this order. `later` arrive with each round,
    above all that are there."""

    ready: list[Letter]
    later: int = 0
    end: int = 0
    moved: list[tuple[str, int]] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    queue_id: int = 1
    rounds: list[list[Letter]] = field(default_factory=list)
    open_consumers: int = 0
    most_consumers: int = 0

    def __post_init__(self) -> None:
        self.end = self.next = max((each.sequence for each in self.ready), default=0) + 1

    async def describe(self, name: str) -> Any:
        info = SimpleNamespace(id=self.queue_id, next_sequence=self.end, ready=len(self.ready), arguments={})
        return SimpleNamespace(queue=info)

    def consume(self, queue: str, selector: str | None = None, *, prefetch: int = 1000) -> Any:
        return Taking(self, prefetch)

    async def publish(self, queue: str, body: bytes, properties: Any = None, own: Any = None) -> None:
        [letter] = [each for round in self.rounds for each in round if each.body == body][-1:]
        if letter.fails is not None:
            raise letter.fails
        self.moved.append((queue, letter.sequence))

    async def settle(self, target: Any, *, wait: bool = False) -> None:
        if target.failing_settles:
            target.failing_settles -= 1
            self.ready.append(target)  # the stream has ended: the message is ready again
            raise VoidDelivery("it is void")
        self.settled.add(target.sequence)


class Taking:
    """A consumer that is drained."""

    def __init__(self, grave: Grave, prefetch: int) -> None:
        self.grave = grave
        self.prefetch = prefetch
        self.taken: list[Letter] = []
        self.begun = 0

    @property
    def held(self) -> bool:
        return any(not each.is_void and each.sequence not in self.grave.settled for each in self.taken)

    async def drain(self) -> None:
        grave = self.grave
        grave.open_consumers += 1
        grave.most_consumers = max(grave.most_consumers, grave.open_consumers)
        await self.drain_more(self.prefetch)

    async def drain_more(self, count: int) -> None:
        grave = self.grave
        taken, grave.ready = grave.ready[:count], grave.ready[count:]
        self.taken += taken
        grave.rounds.append(taken)
        for _ in range(grave.later):
            grave.ready.append(Letter(grave.next))
            grave.next += 1

    async def deliveries(self) -> AsyncIterator[Any]:
        begun, self.begun = self.begun, len(self.taken)
        for each in self.taken[begun:]:
            yield Delivered(each)

    async def cancel(self) -> None:
        self.grave.open_consumers -= 1


class Delivered(list[Letter]):
    def __init__(self, letter: Letter) -> None:
        super().__init__([letter])
        self.batch_bytes = bytes(letter.size_bytes)
        self.letter = letter

    @property
    def is_void(self) -> bool:
        return self.letter.is_void


def redriven(grave: Grave, limit: int | None = None, only: str | None = None) -> Redriven:
    found = asyncio.run(redrive(cast(Any, grave), GRAVE, None, limit, only))
    assert grave.open_consumers == 0
    return found


def letters(count: int, **same: Any) -> list[Letter]:
    return [Letter(n, **same) for n in range(1, count + 1)]


def test_all_are_moved_in_rounds_that_grow() -> None:
    grave = Grave(letters(2_000))
    assert redriven(grave) == Redriven({"orders": 2_000}, {})
    sizes = [len(each) for each in grave.rounds]
    assert sizes[:4] == [16, 32, 64, 128] and max(sizes) == 500


def test_a_round_of_large_messages_has_few_of_them() -> None:
    grave = Grave(letters(24, size_bytes=ROUND_BYTES // 4))
    redriven(grave)
    assert [len(each) for each in grave.rounds[:3]] == [16, 4, 4]


@pytest.mark.parametrize("only", [None, "bills"])
def test_a_redrive_has_one_consumer_at_a_time(only: str | None) -> None:
    grave = Grave(letters(600))
    redriven(grave, only=only)
    assert grave.most_consumers == 1


def test_the_limit_counts_what_stays_too() -> None:
    grave = Grave(letters(60, fails=PublishRejected("no such queue")))
    assert redriven(grave, 20) == Redriven({}, {"no such queue": 20})


def test_what_arrives_later_does_not_end_the_command_before_the_older_ones_were_seen() -> None:
    """A queue with priorities hands out newer ones first."""
    grave = Grave([*[Letter(1_000 + n) for n in range(600)], *letters(100)])
    grave.end = 1_000
    assert redriven(grave).moved == {"orders": 100}


def test_the_command_ends_while_others_arrive() -> None:
    grave = Grave(letters(100), later=600)
    assert redriven(grave).moved == {"orders": 100}
    assert len(grave.rounds) < 10


def test_the_command_ends_if_too_many_stay() -> None:
    grave = Grave(letters(MAX_PASSED + 600, origin="bills"))
    found = redriven(grave, only="orders")
    assert (found.moved, found.left, found.is_complete) == ({}, {}, False)
    assert len(grave.ready) < 600


def test_only_messages_of_one_origin_are_moved() -> None:
    grave = Grave([Letter(1, "orders"), Letter(2, "bills"), Letter(3, "")])
    assert redriven(grave, only="bills") == Redriven({"bills": 1}, {})


def test_reasons_are_grouped_and_their_number_is_bounded() -> None:
    grave = Grave([Letter(n, fails=PublishRejected(f"no queue {n}" + "x" * 1_000)) for n in range(1, 101)])
    left = redriven(grave).left
    assert len(left) == MAX_REASONS + 1 and sum(left.values()) == 100
    assert left["other reasons"] == 100 - MAX_REASONS
    assert max(map(len, left)) <= 200


def test_a_message_that_died_in_the_dead_letter_queue_itself_stays() -> None:
    grave = Grave([Letter(1, GRAVE)])
    found = redriven(grave)
    assert (found.moved, grave.moved, list(found.left.values())) == ({}, [], [1])


@pytest.mark.parametrize("failing", [1, 2])
def test_a_message_whose_settlement_fails_is_not_moved_twice(failing: int) -> None:
    grave = Grave([Letter(1, failing_settles=failing), Letter(2)])
    assert redriven(grave) == Redriven({"orders": 2}, {})
    assert sorted(grave.moved) == [("orders", 1), ("orders", 2)]


def test_a_queue_that_is_declared_again_meanwhile_loses_no_message() -> None:
    """Its messages have the sequences of those that the redrive has published and could not settle."""

    class Anew(Grave):
        async def settle(self, target: Any, *, wait: bool = False) -> None:
            if self.queue_id == 1:
                self.queue_id, self.ready = 2, letters(3)
                raise VoidDelivery("the queue is gone")
            await super().settle(target)

    grave = Anew(letters(1))
    assert redriven(grave) == Redriven({}, {}, {"orders": 1}, is_complete=False)
    assert (grave.moved, grave.settled) == ([("orders", 1)], set())


def test_messages_that_the_queue_has_taken_back_are_not_published() -> None:
    """The stream has ended since they were delivered, and another redrive moves them."""

    class Cut(Grave):
        async def describe(self, name: str) -> Any:
            for each in self.rounds[-1] if self.rounds else ():
                each.is_void = True
            return await super().describe(name)

    grave = Cut(letters(3))
    assert (redriven(grave), grave.moved) == (Redriven({}, {}), [])


def test_a_message_that_is_in_both_queues_is_reported_as_that() -> None:
    class Cut(Grave):
        async def settle(self, target: Any, *, wait: bool = False) -> None:
            raise VoidDelivery("it is void")

    assert redriven(Cut(letters(3))) == Redriven({}, {}, {"orders": 3})


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("no answer"),
        PublishUnknown("no answer yet", cast(Any, None)),
        RefusedError("the service has forgotten this client", reason="SESSION_EXPIRED"),
        ClosedError("the client has been closed"),
    ],
)
def test_a_publish_without_an_answer_is_in_doubt(error: Exception) -> None:
    assert redriven(Grave([Letter(1, fails=error)])) == Redriven({}, {}, {"orders": 1})


def test_a_message_that_was_never_sent_stays() -> None:
    left = redriven(Grave([Letter(1, fails=TimedOut("not sent in time"))]))
    assert left == Redriven({}, {"not sent in time": 1})


class Bare:
    """A source without a client: as many messages as are asked for. Publishes of the ones in `stuck` never end."""

    def __init__(self, count: int, stuck: tuple[int, ...] = ()) -> None:
        self.ready = letters(count)
        self.stuck = stuck
        self.is_stuck = asyncio.Event()
        self.settled: list[int] = []

    async def take(self, count: int) -> tuple[list[Letter], int]:
        taken, self.ready = self.ready[:count], self.ready[count:]
        return taken, 10 * len(taken)

    async def publish(self, letter: Letter, target: str, history: str | None) -> None:
        if letter.sequence in self.stuck:
            self.is_stuck.set()
            await asyncio.Event().wait()

    async def settle(self, letter: Letter) -> None:
        self.settled.append(letter.sequence)


def test_a_redrive_that_is_cancelled_says_what_it_has_moved_and_what_is_in_doubt() -> None:
    async def run() -> None:
        source = Bare(5, stuck=(2,))
        moving = Redrive(source, GRAVE, Bounds(500, 1 << 20), None, 6)
        running = asyncio.create_task(moving.run())
        await source.is_stuck.wait()
        while len(source.settled) < 4:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert moving.result == Redriven({"orders": 4}, {}, {"orders": 1})

    asyncio.run(run())


def test_a_redrive_is_not_complete_if_it_has_taken_all_that_it_may() -> None:
    for count, is_complete in ((19, True), (20, False), (30, False)):
        source = Bare(count)
        moving = Redrive(source, GRAVE, Bounds(500, 1 << 20, most_taken=20), None, 1_000)
        asyncio.run(moving.run())
        assert (moving.result.moved, moving.is_complete) == ({"orders": min(count, 20)}, is_complete)


@pytest.mark.parametrize("taken", [0, 16])
def test_a_source_that_ends_is_an_error_only_if_nothing_was_taken(taken: int) -> None:
    class Ending(Bare):
        async def take(self, count: int) -> tuple[list[Letter], int]:
            if not self.ready:
                raise CannotTake from NotFound("no such queue")
            return await super().take(count)

    moving = Redrive(Ending(taken), GRAVE, Bounds(500, 1 << 20), None, 1_000)
    if taken:
        asyncio.run(moving.run())
        assert moving.result == Redriven({"orders": 16}, {}, {}, False)
    else:
        with pytest.raises(NotFound):
            asyncio.run(moving.run())


def history(*deaths: tuple[str, str]) -> str:
    return json.dumps([{"queue": queue, "reason": reason} for queue, reason in deaths])


def test_a_short_history_says_where_a_message_comes_from() -> None:
    letter = Letter(1, "", history=history(("grave", "redriven"), ("orders", "expired"), ("a", "expired")))
    assert redriven(Grave([letter])).moved == {"orders": 1}


@pytest.mark.parametrize("text", ["", "{", "[]", "[7]", "[" * 60_000, '[{"queue":7}]', '[{"queue":""}]'])
def test_a_history_that_is_none_says_nothing(text: str) -> None:
    found = redriven(Grave([Letter(1, "", history=text)]))
    assert (found.moved, list(found.left.values())) == ({}, [1])
