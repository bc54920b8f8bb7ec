"""The machine against a list: random entries, the same answers, the invariants after each.

With blocks of 8 messages and small budgets, so that edges, wake-ups and cut-off work are everywhere. A twin that
loses its columns, its matched bits or everything but its snapshot at random moments, whose blocks are paged out, or
which goes on from a checkpoint, has to agree, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fifo import commands as c
from fifo import embargo
from fifo.budgets import Entry
from fifo.consumers.consumer import CheckedOut, Consumer
from fifo.decisions import Decision, Decisions
from fifo.effects import Applied, Refused
from fifo.embargo import Embargo, EmbargoedBatch, EmbargoedSettlement, Key
from fifo.group_machine import GroupMachine
from fifo.limits import SMALL
from fifo.messages import delays
from fifo.messages.dead_letters import DeadLetters
from fifo.messages.messages import Messages
from fifo.messages.pages import MemoryPages
from fifo.persistence import checkpoint, invariants, snapshot
from fifo.persistence.references import references
from fifo.producers import Producer
from fifo.queries import group as queries
from fifo.queue_machine import QueueMachine
from fifo.results import BrowsePage
from fifo.transactions import Transactions
from support.examples import examples
from support.fifo.local_parts import drop_columns, drop_matches, drop_summaries
from support.fifo.model.group import ModelConsumer
from support.fifo.replays import replay
from support.fifo.world import World, exported, part_name, producer, selector

TEXTS = ("", "colour = 'red'", "size > 2", "colour IS NULL", "colour <> 'red' OR size < 2", "JMSPriority = 7")
TAGS = ("a", "b", "c")

PRODUCERS = st.integers(1, 4)
QUEUES = st.sampled_from((1, 1, 1, 2, 3, 4))
PLAIN = (2, 4)
"""The queues that keep no fields."""
PASSED_MS = st.sampled_from((0, 0, 1, 5, 30, 100))
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "application-properties.colour": st.sampled_from(("red", "green", "as green as grass", 3)),
        "application-properties.size": st.sampled_from((1, 2, 3, 2.5, True)),
        "header.priority": st.sampled_from((4, 7)),
    },
)
TTLS = st.sampled_from((-1, -1, 0, 1, 20, 60))
SIZES = st.sampled_from((100, 100, 0, 1, 70, 333))
"""of messages of queue 2; those of queues that filter have 100 bytes, because the model reads them for as many"""
PRIORITY = st.sampled_from((0, 0, 1, 2, 3, 200))
PRIORITIES = st.just(()) | PRIORITY.map(lambda each: (each,)) | st.lists(PRIORITY, min_size=12, max_size=12)
DUE = st.sampled_from((0, 0, 0, -1, -5, -20, -90, 1, 30, 200))
"""above 0: a time from now"""
DUES = st.just(()) | DUE.map(lambda each: (each,)) | st.lists(DUE, min_size=12, max_size=12)

KEY = st.sampled_from((0, 1, 1, 2, 3))
KEYS = st.just(()) | KEY.map(lambda each: (each,)) | st.lists(KEY, min_size=12, max_size=12)
"""of message groups"""

IMMEDIATE = st.sampled_from((False, False, False, True))
PUBLISH = st.fixed_dictionaries(
    {
        "what": st.just("publish"),
        "who": PRODUCERS,
        "queue": QUEUES,
        "rows": st.lists(ROWS, min_size=1, max_size=12),
        "ttl": TTLS,
        "ttls": st.none() | st.lists(TTLS, min_size=12, max_size=12),
        "priorities": PRIORITIES,
        "dues": DUES,
        "keys": KEYS,
        "again": st.sampled_from((0, 0, 0, 0, 1, 5, 12)),
        "skip": st.sampled_from((0, 0, 0, 2, 4)),
        "behind": st.integers(0, 20),
        "independent": st.booleans(),
        "immediate": IMMEDIATE,
        "size": SIZES,
    }
)
SINGLES = st.fixed_dictionaries(
    {
        "what": st.just("singles"),
        "who": PRODUCERS,
        "queue": QUEUES,
        "count": st.integers(1, 4),
        "ttl": TTLS,
        "priority": PRIORITY,
        "due": DUE,
        "key": KEY,
        "immediate": IMMEDIATE,
    }
)
ROUTED = st.fixed_dictionaries(
    {
        "what": st.just("routed"),
        "who": PRODUCERS,
        "rows": st.lists(ROWS, min_size=12, max_size=12),
        "routes": st.lists(
            st.sampled_from(((1,), (1,), (2,), (3,), (1, 2), (1, 3), (1, 2, 3), (1, 4), (1, 5))),
            min_size=1,
            max_size=12,
        ),
        "gaps": st.lists(st.sampled_from((0, 0, 0, 1, 2)), min_size=12, max_size=12),
        "ttl": TTLS,
        "ttls": st.none() | st.lists(TTLS, min_size=12, max_size=12),
        "priorities": PRIORITIES,
        "dues": DUES,
        "keys": KEYS,
        "again": st.sampled_from((0, 0, 0, 0, 1, 5, 12)),
        "behind": st.integers(0, 20),
        "independent": st.booleans(),
        "immediate": IMMEDIATE,
    }
)
CONSUME = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("attach", "attach", "credit", "drain", "cancel", "get", "get_settled")),
        "who": PRODUCERS,
        "queue": QUEUES,
        "tag": st.sampled_from(TAGS),
        "text": st.sampled_from(TEXTS),
        "credit": st.sampled_from((0, 1, 2, 5, 30, 1000)),
        "requeue": st.booleans(),
        "priority": st.sampled_from((0, 0, 0, 1, 1, -1, 10, 11)),
    }
)
ATTACH = CONSUME.map(lambda step: step | {"what": "attach"})
ANSWER = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("settle", "settle", "return", "discard", "fail", "undeliverable", "wrong")),
        "who": PRODUCERS,
        "queue": QUEUES,
        "pick": st.integers(0, 7),
        "first": st.integers(-2, 20),
        "width": st.integers(0, 12),
        "more": st.booleans(),
        "credit": st.sampled_from((0, 0, 3, 30)),
    }
)
STAGE = st.fixed_dictionaries(
    {
        "what": st.just("stage"),
        "who": PRODUCERS,
        "queue": QUEUES,
        "writer": st.sampled_from(("s", "s", "t", "u")),
        "batch": st.sampled_from((1, 1, 1, 2, 0, -1)),
        "part": st.integers(0, 3),
        "chunk": st.sampled_from((0, 0, 0, 0, 0, -1, 1)),
        "chunks": st.lists(st.lists(ROWS, min_size=1, max_size=10), min_size=1, max_size=3),
        "ttl": TTLS,
        "ttls": st.none() | st.lists(TTLS, min_size=10, max_size=10),
        "priorities": PRIORITIES,
        "keys": KEYS,
        "publish": st.sampled_from((False, False, True)),
        "size": SIZES,
    }
)
STAGED = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("publish_staged", "publish_staged", "publish_staged", "discard_staged")),
        "who": PRODUCERS,
        "queue": QUEUES,
        "writer": st.sampled_from(("s", "s", "t", "u")),
        "batch": st.sampled_from((1, 1, 1, 1, 2, 0, -1)),
        "order": st.permutations(range(4)),
        "wrong": st.sampled_from(("", "", "", "", "", "short", "missing", "left_out", "empty")),
        "staged_to": st.sampled_from((0, 0, 1, 1, 2, 3, 5)),
        "forget": st.booleans(),
    }
)
TRANSACTION = st.fixed_dictionaries(
    {
        "what": st.just("transaction"),
        "who": PRODUCERS,
        "number": st.sampled_from(
            ("same", "same", "same", "same", "new", "new", "new", "far", "old", "zero")
        ),
        "parts": st.lists(PUBLISH | ROUTED | ANSWER | ANSWER, max_size=3),
        "end": st.sampled_from(
            ("", "", "", "commit", "commit", "commit", "twice", "rollback", "rollback_twice")
        ),
        "wrong": st.sampled_from((False, False, False, False, False, True)),
    }
)
NUMBERING = st.fixed_dictionaries({"what": st.sampled_from(("repeat", "gap", "stale")), "who": PRODUCERS})
ADMIN = st.fixed_dictionaries(
    {
        "what": st.sampled_from(
            (
                "purge",
                "config",
                "configured",
                "delete",
                "create",
                "use",
                "wake",
                "wake",
                "claim",
                "settle_dead",
            )
        ),
        "queue": QUEUES,
        "spared": st.sampled_from((None, None, 0, 1, 5, 40)),
        "max_length": st.sampled_from((-1, -1, 3, 20)),
        "max_length_bytes": st.sampled_from((-1, -1, 250, 1500)),
        "max_consumers": st.sampled_from((-1, -1, 1, 3)),
        "expires": st.sampled_from((-1, -1, -1, 40, 150)),
        "overflow": st.sampled_from(("drop_head", "reject_publish")),
        "strategy": st.sampled_from(("none", "at_least_once", "at_most_once")),
        "begins": st.booleans(),
        "behind": st.integers(-3, 8),
        "later": st.sampled_from((1, 1, 1, 1, 0, 2)),
        "dead_only": st.sampled_from((False, False, True)),
        "forwarded": st.integers(0, 6),
        "ttl": st.sampled_from((-1, -1, 40)),
        "limit": st.sampled_from((-1, 0, 1, 2)),
        "timeout": st.sampled_from((-1, 0, 20, 60, 200)),
        "retry": st.sampled_from(((-1, -1), (-1, 5), (1, -1), (20, -1), (20, 30), (20, 5))),
        "fields": st.sampled_from((("*", "header.priority"), ("*", "header.priority"), ("header.priority",))),
    }
)
SESSIONS = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("epoch", "epoch", "close", "node_down", "again")),
        "clean": st.booleans(),
        "who": PRODUCERS,
        "node": st.integers(1, 2),
        "heard": st.sampled_from((0, 0, 50, 200)),  # how long ago the session was opened
    }
)
ENTRY = st.lists(
    PUBLISH
    | PUBLISH
    | SINGLES
    | ROUTED
    | CONSUME
    | ANSWER
    | ANSWER
    | NUMBERING
    | STAGE
    | STAGED
    | TRANSACTION,
    min_size=1,
    max_size=5,
)


def of_keys(keys: Sequence[int]) -> bytes:
    return b"".join([key.to_bytes(8, "little") for key in keys])


unless_directed = precondition(lambda model: not model.is_directed)


class FifoAgainstModel(RuleBasedStateMachine):
    max_priorities: ClassVar = {1: -1, 2: 3, 3: 2, 4: -1}
    """by queue"""
    message_groups: ClassVar[tuple[int, ...]] = ()
    """the queues that have them"""
    max_length, overflow = 10, "drop_head"
    is_directed = False
    """whether only the rules of a subclass are followed"""
    delayed_retry = (-1, -1)
    """the shortest and the longest delay"""
    mortal: ClassVar = (1, 3)
    """queues that may have a dead-letter target"""

    @initialize()
    def begin(self) -> None:
        self.world = World(SMALL, has_model=True)
        self.world.twin = self.world.empty()
        self.boots = {1: 1, 2: 1}
        self.pending = {}
        self.numbers: dict[bytes, int] = {}
        for queue, arguments in (
            (1, {"filter_enabled": True}),
            (2, {"consumer_timeout_ms": 40, "max_length_bytes": 2_000}),
            (3, {
                "filter_enabled": True, "max_length": self.max_length, "overflow": self.overflow,
                "message_ttl_ms": 50, "delivery_limit": 1,
                "dead_letter_strategy": "at_least_once" if 3 in self.mortal else "none",
            }),
            (4, {"single_active_consumer": True, "consumer_timeout_ms": 60}),
        ):  # fmt: skip
            self.world.queue(
                queue, **arguments, **self.orders(queue), **self.retries(queue, self.delayed_retry)
            )
        for number in range(1, 5):
            name = self.world.session(number, node=1 + number % 2)
            for tag in "ab":
                attach = c.Attach(1, tag, selector(TEXTS[number + (tag == "b")]), 3 * number)
                self.world.do(name, attach)

    def orders(self, queue: int) -> dict[str, Any]:
        """What a queue's configuration says about the order of its messages."""
        has_groups = queue in self.message_groups
        return {"max_priority": self.max_priorities[queue], "message_groups": has_groups}

    def retries(self, queue: int, delays: tuple[int, int]) -> dict[str, int]:
        """What it says about delayed retry, which message groups exclude. delays: the shortest and the longest."""
        least, most = (-1, -1) if queue in self.message_groups else delays
        return {"delayed_retry_min_ms": least, "delayed_retry_max_ms": most}

    def teardown(self) -> None:
        if hasattr(self, "world"):
            replay(self.world)

    @unless_directed
    @rule(entry=ENTRY, passed_ms=PASSED_MS)
    def entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        operations: list[Any] = []
        self.pending: dict[Any, list[int]] = {}
        for step in entry:
            for operation in self.operations(step, len(operations)):
                operations.append(operation)
        self.world.apply(operations, passed_ms)

    @unless_directed
    @rule(step=ADMIN, passed_ms=PASSED_MS)
    def administration(self, step: dict[str, Any], passed_ms: int) -> None:
        queue, what = step["queue"], step["what"]
        config = c.QueueConfig(
            f"queue-{queue}", queue not in PLAIN, step["fields"], -1, step["max_length"], step["overflow"],
            step["ttl"], step["limit"], single_active_consumer=queue == 4,
            consumer_timeout_ms=step["timeout"], max_length_bytes=step["max_length_bytes"],
            max_consumers=step["max_consumers"], expires_ms=step["expires"] if queue == 3 else -1,
            **self.orders(queue), **self.retries(queue, step["retry"]),
            dead_letter_strategy=step["strategy"] if queue in self.mortal else "none",
        )  # fmt: skip
        command: Any = c.Wake()
        if what == "purge":
            info = queries.info(self.world.machine, queue)
            ended = info.next_sequence if info is not None else 0
            spared = step["spared"]
            before = None if spared is None else max(0, ended - spared)
            command = c.Purge(queue, before, dead_only=step["dead_only"])
        elif what == "config":
            command = c.UpdateConfig(queue, config)
        elif what == "configured":
            command = c.Configured(step["max_length"] + 1)
        elif what == "delete" and queue == 3:
            command = c.DeleteQueue(queue)
        elif what == "claim":
            command = c.ClaimDead(
                queue, self.epoch_of(queue) + step["later"], bytes([step["behind"] % 7] * 16)
            )
        elif what == "settle_dead":
            machine = self.world.machine.queues.get(queue)
            to = max(0, (0 if machine is None else machine.messages.dead.last_number) - step["behind"])
            epoch = self.epoch_of(queue) - (step["later"] - 1)
            command = c.SettleDead(
                queue, max(0, epoch), to, step["forwarded"], step["behind"] == 8, "full" * step["begins"]
            )
        elif what == "use":
            command = c.UseQueue(queue)
        elif what == "create":
            command = c.CreateQueue(queue, config)
        self.world.apply([(None, command)], passed_ms)

    def epoch_of(self, queue: int) -> int:
        """Of the last dead-letter worker."""
        machine = self.world.machine.queues.get(queue)
        return 0 if machine is None else machine.messages.dead.epoch

    @unless_directed
    @rule(step=SESSIONS)
    def sessions(self, step: dict[str, Any]) -> None:
        world, name, node = self.world, producer(step["who"]), step["node"]
        if step["what"] == "epoch":
            heard_ms = world.now_ms - step["heard"]
            world.session(step["who"], world.epochs[name] + 1, node, self.boots[node], heard_ms)
        elif step["what"] == "close":
            world.do(name, c.CloseSession(step["clean"]))
        elif step["what"] == "again":
            assert world.model is not None
            known = world.model.producers.get(name)
            address = c.Address(node, self.boots[node], 1) if known is None else known.address
            register = c.RegisterProducer(address, heard_ms=world.now_ms - step["heard"])
            world.apply([(c.Origin(name, world.epochs[name], 0), register)])
        else:
            world.apply([(None, c.NodeDown(node, self.boots[node]))])
            self.boots[node] += 1

    @unless_directed
    @rule()
    def wakes(self) -> None:
        self.world.wake_until_done()

    @unless_directed
    @rule(what=st.sampled_from(("columns", "matches", "both", "both", "summaries", "all")))
    def forget(self, what: str) -> None:
        twin = self.world.twin
        assert twin is not None
        if what in ("columns", "both"):
            drop_columns(twin)
        if what in ("matches", "both"):
            drop_matches(twin)
        if what == "summaries":
            drop_summaries(twin)
        if what == "all":
            self.world.twin = self.world.restored(snapshot.encode(twin))

    @unless_directed
    @rule(chosen=st.lists(st.booleans(), min_size=1, max_size=7), write_only=st.booleans())
    def page_out(self, chosen: list[bool], write_only: bool) -> None:
        """Any blocks, the last and those with held messages too."""
        twin = self.world.twin
        assert twin is not None
        place = 0
        for queue in sorted(twin.queues):
            for block in twin.queues[queue].messages.blocks.warm():
                place += 1
                if chosen[place % len(chosen)]:
                    if write_only:
                        twin.queues[queue].messages.blocks.write(block)
                    else:
                        twin.page_out(queue, block.number)
        invariants.check(twin)
        self.world.checkpointer(twin).check()
        assert snapshot.encode(twin) == snapshot.encode(self.world.machine)

    @unless_directed
    @rule(resume=st.booleans())
    def checkpoint(self, resume: bool) -> None:
        twin = self.world.twin
        assert twin is not None
        pages = twin.memory.pages
        found = self.world.checkpointer(twin).take()
        assert exported(found.state, pages) == snapshot.encode(self.world.machine)
        assert checkpoint.contents(found.state) == (found.entries, found.pages)
        stores = [queue.messages.blocks for queue in self.world.machine.queues.values()]
        blocks = [store.get(number) for store in stores for number in store.numbers()]
        staged = {i for q in self.world.machine.queues.values() for i in q.staging.indexes().tolist()}
        assert list(found.entries) == sorted(
            staged | {index for b in blocks for index in invariants.live_indexes(b)}
        )
        assert references(snapshot.encode(self.world.machine)) == found.entries
        if resume:  # with nothing but what the checkpoint names
            assert isinstance(pages, MemoryPages)
            kept = MemoryPages()
            kept.pages = {page: pages.pages[page] for page in found.pages}
            kept.last = pages.last
            self.world.twin = self.world.resumed(found.state, kept)
            invariants.check(self.world.twin)

    @precondition(lambda self: len(self.world.entries) > 3)
    @unless_directed
    @rule()
    def look(self) -> None:
        """Views change nothing and say what the model says."""
        world = self.world
        assert world.model is not None
        before = snapshot.encode(world.machine)
        for queue, model in world.model.queues.items():
            found = queries.browse(world.machine, queue, 0, 1000)
            shown = [run.first_sequence + i for run in found.runs for i in range(run.count)]  # type: ignore[union-attr]
            ready = [message.sequence for message in model.ready()]
            assert shown == ready[: len(shown)]
            assert len(shown) == len(ready) or found.next_sequence is not None  # type: ignore[union-attr]
            for limit in (1, 5):
                found = queries.upcoming(world.machine, queue, limit)
                assert isinstance(found, BrowsePage)
                shown = [run.first_sequence + i for run in found.runs for i in range(run.count)]
                assert shown == [message.sequence for message in model.in_order()[:limit]][: len(shown)]
                assert len(shown) == min(limit, len(ready)) or found.next_sequence is not None
        checked_out = sum(
            run.count for boot in range(9) for d in queries.held_by(world.machine, 1, boot) for run in d.runs
        )
        checked_out += sum(
            run.count for boot in range(9) for d in queries.held_by(world.machine, 2, boot) for run in d.runs
        )
        assert checked_out <= sum(
            len(model.messages) - len(model.ready()) for model in world.model.queues.values()
        )
        assert snapshot.encode(world.machine) == before

    @unless_directed
    @rule(text=st.sampled_from(TEXTS[1:]))
    def browse(self, text: str) -> None:
        """A look finds in cold blocks, which it may pass by their summaries, what it finds in warm ones."""
        twin = self.world.twin
        assert twin is not None
        found = matching(self.world.machine, selector(text))
        assert matching(twin, selector(text)) == found
        for queue, machine in twin.queues.items():
            for block in machine.messages.blocks.warm():
                twin.page_out(queue, block.number)
        assert matching(twin, selector(text)) == found

    # ---- from a description to an operation

    def operations(self, step: dict[str, Any], place: int) -> list[Any]:
        world, what, name = self.world, step["what"], producer(step["who"])
        if what == "publish":
            return [self.publish(step, name, place)]
        if what == "routed":
            return [self.routed(step, name, place)]
        if what == "singles":
            return [
                world.batch(
                    name,
                    1,
                    queue=step["queue"],
                    place=place + i,
                    ttl_ms=step["ttl"],
                    priorities=bytes([step["priority"]]),
                    due_times_ms=self.dues([step["due"]]),
                    group_keys=of_keys([step["key"]]),
                    immediate=step["immediate"],
                )
                for i in range(step["count"])
            ]
        if what == "stage":
            return self.stage(step, name, place)
        if what in ("publish_staged", "discard_staged"):
            return [world.op(name, self.staged(step))]
        if what == "transaction":
            return self.transaction(step, name, place)
        if what == "decision":
            return self.decision(step, name)
        if what in ("repeat", "gap", "stale"):
            number = max(world.numbers[name] + {"repeat": 0, "gap": 2, "stale": 1}[what], 1)
            epoch = world.epochs[name] - (what == "stale")
            return [(c.Origin(name, epoch, number), c.Get(1, 1, False))]
        if "text" in step:
            return [world.op(name, self.consumption(step))]
        return [world.op(name, self.answer(step, name))]

    def publish(self, step: dict[str, Any], name: bytes, place: int) -> Any:
        world, count = self.world, len(step["rows"])
        first = max(world.sequences.get(name, 1) + step["skip"] - step["again"], 0)
        world.sequences[name] = max(world.sequences.get(name, 1), first + count)
        ttls = step["ttls"]
        return world.batch(
            name,
            count,
            step["rows"] if step["queue"] not in PLAIN else (),
            place,
            step["queue"],
            first=first,
            lowest_unconfirmed=max(first - step["behind"], 0),
            ttl_ms=step["ttl"] if ttls is None else -1,
            ttls_ms=() if ttls is None else tuple(ttls[:count]),
            priorities=bytes(step["priorities"][:count]),
            due_times_ms=self.dues(step["dues"][:count]),
            group_keys=of_keys(step["keys"][:count]),
            independent=step["independent"],
            immediate=step["immediate"],
            size=step["size"] if step["queue"] == 2 else 100,
        )

    def routed(self, step: dict[str, Any], name: bytes, place: int) -> Any:
        count = len(step["routes"])
        number = max(self.world.sequences.get(name, 1) - step["again"], 0)
        numbers = []
        for gap in step["gaps"][:count]:
            numbers.append(number)
            number += 1 + gap
        ttls = step["ttls"]
        return self.world.routed(
            name,
            step["routes"],
            step["rows"][:count],
            place,
            numbers,
            plain=PLAIN,
            lowest_unconfirmed=max(numbers[0] - step["behind"], 0),
            ttl_ms=step["ttl"] if ttls is None else -1,
            ttls_ms=() if ttls is None else tuple(ttls[:count]),
            priorities=bytes(step["priorities"][:count]),
            due_times_ms=self.dues(step["dues"][:count]),
            group_keys=of_keys(step["keys"][:count]),
            independent=step["independent"],
            immediate=step["immediate"],
        )

    def dues(self, offsets: Iterable[int]) -> tuple[int, ...]:
        """Due times as a command has them."""
        return tuple([each if each <= 0 else self.world.now_ms + each for each in offsets])

    def transaction(self, step: dict[str, Any], name: bytes, place: int) -> list[Any]:
        """Some commands of a transaction, and perhaps its end."""
        change = {"new": 1, "far": 3, "old": -1}.get(step["number"], 0)
        number = 0 if step["number"] == "zero" else max(self.numbers.get(name, 1) + change, 0)
        self.numbers[name] = max(self.numbers.get(name, 1), number)
        found = []
        for part in step["parts"]:
            most = 12 if step["wrong"] else 4  # few enough for several parts
            if part["what"] == "publish":
                ttls = part["ttls"]
                count = min(len(part["rows"]), most)
                origin, command = self.world.batch(
                    name,
                    count,
                    part["rows"][:count] if part["queue"] not in PLAIN else (),
                    place + len(found),
                    part["queue"],
                    first=0,
                    ttl_ms=part["ttl"] if ttls is None else -1,
                    ttls_ms=() if ttls is None else tuple(ttls[:count]),
                    priorities=bytes(part["priorities"][:count]),
                    due_times_ms=self.dues(part["dues"][:count]),
                    group_keys=of_keys(part["keys"][:count]),
                    independent=step["wrong"],
                    immediate=part["immediate"],
                    size=part["size"] if part["queue"] == 2 else 100,
                )
            elif part["what"] == "routed":
                count = min(len(part["routes"]), most)
                origin, command = self.world.routed(
                    name, part["routes"][:count], part["rows"][:count], place + len(found), range(count), plain=PLAIN,
                    ttl_ms=part["ttl"], priorities=bytes(part["priorities"][:count]),
                    due_times_ms=self.dues(part["dues"][:count]),
                    group_keys=of_keys(part["keys"][:count]), immediate=part["immediate"],
                )  # fmt: skip
            else:
                origin, command = self.world.op(name, self.answer(part | {"held": not step["wrong"]}, name))
            found.append((origin, c.InTransaction(number, command)))
        ends = {
            "commit": [c.Commit(number, place % 4)],
            "twice": [c.Commit(number), c.Commit(number)],
            "rollback": [c.Rollback(number)],
            "rollback_twice": [c.Rollback(number), c.Rollback(number), c.Commit(number)],
        }
        return found + [self.world.op(name, each) for each in ends.get(step["end"], [])]

    def decision(self, step: dict[str, Any], name: bytes) -> list[Any]:
        """What leaders of groups say, about a transaction of perhaps a while ago."""
        number = max(self.numbers.get(name, 1) - step["before"], 1)
        says: dict[str, c.Command] = {
            "commit": c.Finish(name, number, True),
            "drop": c.Finish(name, number, False),
            "ask": c.Resolve(name, number),
            "forget": c.Finished(name, number),
        }
        return [(None, says[step["says"]])]

    def batch_of(self, step: dict[str, Any]) -> int:
        assert self.world.model is not None
        queue = self.world.model.queues.get(step["queue"])
        return max((queue.staged.published_to(step["writer"]) if queue else 0) + step["batch"], 0)

    def known_part(self, step: dict[str, Any], part: int) -> list[int]:
        """[chunks, messages] of a part, with what this entry has added so far."""
        assert self.world.model is not None
        queue, key = self.world.model.queues.get(step["queue"]), (step["writer"], self.batch_of(step), part)
        known = queue.staged.part((*key[:2], part_name(part))) if queue else None
        return self.pending.setdefault(
            (step["queue"], *key), [len(known.chunks), known.rows()] if known else [0, 0]
        )

    def stage(self, step: dict[str, Any], name: bytes, place: int) -> list[Any]:
        world, found = self.world, []
        known = self.known_part(step, step["part"])
        for rows in step["chunks"]:
            chunk = max(known[0] + step["chunk"], 0)
            if chunk == known[0]:
                known[0], known[1] = known[0] + 1, known[1] + len(rows)
            operation = world.chunk(
                name,
                self.batch_of(step),
                step["part"],
                chunk,
                len(rows),
                rows if step["queue"] not in PLAIN else (),
                place + len(found),
                step["queue"],
                step["writer"],
                ttl_ms=step["ttl"] if step["ttls"] is None else -1,
                ttls_ms=() if step["ttls"] is None else tuple(step["ttls"][: len(rows)]),
                size=step["size"] if step["queue"] == 2 else 100,
                priorities=bytes(step["priorities"][: len(rows)]),
                group_keys=of_keys(step["keys"][: len(rows)]),
            )
            found.append(operation)
        if step["publish"]:
            found.append(
                world.op(name, self.staged(step | {"order": range(4), "wrong": "", "what": "publish"}))
            )
        return found

    def staged(self, step: dict[str, Any]) -> c.PublishStaged | c.DiscardStaged:
        place = (step["queue"], step["writer"], self.batch_of(step))
        parts = [(part_name(part), self.known_part(step, part)[1]) for part in step["order"]]
        parts = [(part, count) for part, count in parts if count or step["wrong"] == "empty"]
        if step["what"] == "discard_staged":
            dropped = tuple([part for part, _ in parts[:1]]) if step["wrong"] else ()
            return c.DiscardStaged(*place, dropped, step["forget"])
        if step["wrong"] == "short" and parts:
            parts[-1] = (parts[-1][0], parts[-1][1] + 1)
        elif step["wrong"] == "missing":
            parts.insert(0, (part_name(9), 1))
        elif step["wrong"] == "left_out":
            parts = parts[1:]
        back = step.get("staged_to", 0)  # so many entries before this one
        return c.PublishStaged(
            *place, tuple(parts), staged_to=max(self.world.index + 1 - back, 0) if back else 0
        )

    def consumption(self, step: dict[str, Any]) -> Any:
        what, queue, tag = step["what"], step["queue"], step["tag"]
        if what == "attach":
            return c.Attach(queue, tag, selector(step["text"]), step["credit"], step["priority"])
        if what in ("credit", "drain"):
            return c.Credit(queue, tag, step["credit"], what == "drain")
        if what == "cancel":
            return c.Cancel(queue, tag, step["requeue"])
        return c.Get(queue, step["credit"], what == "get_settled")

    def answer(self, step: dict[str, Any], name: bytes) -> Any:
        assert self.world.model is not None
        model = self.world.model.queues.get(step["queue"])
        mine = [x for x in model.consumers if x.producer == name] if model else []
        if not mine:
            return c.Settle(step["queue"], "a", 1, ((1, 3),))
        # Rather somebody who holds something.
        mine = [x for x in mine if x.checked_out or x.timed_out] or mine
        consumer = mine[step["pick"] % len(mine)]
        first = max(next(iter(consumer.timed_out or consumer.checked_out), 1) + step["first"] // 2, 0)
        tags = [(first, first + step["width"])]
        if step["more"]:
            tags.append((first + step["width"] + 2, first + step["width"] + 4))
        if step.get("held") and consumer.checked_out:  # a few that are checked out, and held back by nothing
            kept = sorted(consumer.checked_out.keys() - self.world.model.transactions.tags(consumer))
            some = kept[step["pick"] % max(len(kept), 1) :][: 1 + step["width"] % 3]
            tags = [(tag, tag) for tag in some] or tags
        attach = consumer.attach + (step["what"] == "wrong")
        place = (
            step["queue"],
            consumer.tag,
            attach,
            tuple(tags),
            step["credit"] and step["credit"] + consumer.next_tag,
        )
        match step["what"]:
            case "return":
                return c.Return(*place)
            case "discard":
                return c.Discard(*place)
            case "fail":
                return c.Modify(*place, delivery_failed=True)
            case "undeliverable":
                return c.Modify(*place, undeliverable_here=True)
        return c.Settle(*place)


def matching(machine: GroupMachine, wanted: bytes) -> dict[int, list[int]]:
    """The sequences of the ready messages that a selector matches, in each queue that knows its fields."""
    found: dict[int, list[int]] = {}
    for queue in sorted(machine.queues):
        start: int | None = 0
        while start is not None:
            page = queries.browse(machine, queue, start, 1000, wanted)
            if isinstance(page, Refused):
                break
            found.setdefault(queue, []).extend(
                run.first_sequence + i for run in page.runs for i in range(run.count)
            )
            assert page.next_sequence is None or page.next_sequence > start
            start = page.next_sequence
    return found


class StagingAgainstModel(FifoAgainstModel):
    """The same with a preference for staging, and with silences in which parts expire."""

    @rule(
        entry=st.lists(STAGE | STAGE | STAGED | CONSUME | PUBLISH, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def staging(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    @rule(step=STAGE, order=st.permutations(range(4)), passed_ms=PASSED_MS)
    def whole(self, step: dict[str, Any], order: list[int], passed_ms: int) -> None:
        """More parts of the batch that is under way, then all of it."""
        for part in order[:2]:
            self.entry([step | {"chunk": 0, "batch": 1, "part": part, "publish": False}], passed_ms)
        self.entry([step | {"what": "publish_staged", "batch": 1, "order": order, "wrong": ""}], passed_ms)


FifoAgainstModel.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestFifoAgainstModel = FifoAgainstModel.TestCase

StagingAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestStagingAgainstModel = StagingAgainstModel.TestCase


class RoutedAgainstModel(FifoAgainstModel):
    """The same with a preference for batches for several queues, which consumers empty and limits fill."""

    @rule(
        entry=st.lists(ROUTED | ROUTED | CONSUME | ANSWER | PUBLISH, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def routed_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)


class ConsumersAgainstModel(FifoAgainstModel):
    """The same with a preference for consumers, also those of a queue with a single active one."""

    @rule(
        entry=st.lists(
            CONSUME.map(lambda step: step | {"text": "", "queue": 4}) | ATTACH | CONSUME | ANSWER | PUBLISH,
            min_size=1,
            max_size=4,
        ),
        passed_ms=PASSED_MS,
    )
    def consuming(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)


ConsumersAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestConsumersAgainstModel = ConsumersAgainstModel.TestCase


class TransactionsAgainstModel(FifoAgainstModel):
    """The same with a preference for transactions."""

    max_length, overflow = 5, "reject_publish"

    @rule(
        entry=st.lists(TRANSACTION | TRANSACTION | CONSUME | ANSWER | PUBLISH, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def transactions_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    @rule(
        steps=st.lists(TRANSACTION, min_size=1, max_size=3),
        who=PRODUCERS,
        queue=QUEUES,
        text=st.sampled_from(("", "", "size > 2")),
        credit=st.sampled_from((0, 3, 30)),
        end=st.sampled_from(("commit", "commit", "rollback", "twice", "")),
        passed_ms=PASSED_MS,
    )
    def whole_transaction(
        self,
        steps: list[dict[str, Any]],
        who: int,
        queue: int,
        text: str,
        credit: int,
        end: str,
        passed_ms: int,
    ) -> None:
        """One session consumes, publishes and settles, in several entries of one transaction."""
        name, world = producer(who), self.world
        text = text if queue not in PLAIN else ""
        self.world.apply(
            [world.batch(name, 3, queue=queue), world.op(name, c.Attach(queue, "a", selector(text), credit))]
        )
        for place, step in enumerate(steps):
            parts = [part | {"queue": queue} if part["what"] != "routed" else part for part in step["parts"]]
            whole = {"who": who, "parts": parts, "wrong": False, "end": "" if place < len(steps) - 1 else end}
            self.entry([step | whole | {"number": "same" if place else "new"}], passed_ms)

    @rule(
        publish=PUBLISH,
        answer=ANSWER,
        session=SESSIONS,
        who=PRODUCERS,
        queue=QUEUES,
        what=st.sampled_from(("session", "session", "old", "overdue", "full", "cancel", "delete")),
    )
    def cut_short(
        self,
        publish: dict[str, Any],
        answer: dict[str, Any],
        session: dict[str, Any],
        who: int,
        queue: int,
        what: str,
    ) -> None:
        """A transaction is open when something ends it; its commit comes after that."""
        name, world = producer(who), self.world
        queue = {"overdue": 2, "full": 3}.get(what, queue)
        world.apply([world.batch(name, 3, queue=queue), world.op(name, c.Attach(queue, "a", b"", 30))])
        parts = [publish | {"queue": queue}, answer | {"queue": queue}]
        if what == "full":
            limited = c.QueueConfig("queue-3", True, (), -1, self.max_length, self.overflow, **self.orders(3))
            world.apply([(None, c.UpdateConfig(3, limited))])
            parts = [
                publish
                | {"queue": queue, "rows": [{}] * 4, "ttls": None, "priorities": (), "dues": (), "keys": ()}
            ] * 2
        step = {"what": "transaction", "who": who, "wrong": False}
        self.entry([step | {"number": "new", "parts": parts, "end": ""}], 0)
        if what == "session":
            self.sessions(session | {"who": who})
        elif what == "old":
            world.wake(SMALL.transaction_ms)
        elif what == "overdue":
            world.wake(SMALL.transaction_ms - 10)
        elif what == "cancel":
            world.do(name, c.Cancel(queue, "a", True))
        elif what == "delete" and queue == 3:
            world.apply([(None, c.DeleteQueue(queue))])
        self.entry([step | {"number": "same", "parts": [], "end": "commit"}], 0)


class DecisionsAgainstModel(TransactionsAgainstModel):
    """Transactions over several groups: this group prepares its part, or decides."""

    @rule(
        steps=st.lists(TRANSACTION, min_size=1, max_size=2),
        who=PRODUCERS,
        queue=QUEUES,
        credit=st.sampled_from((3, 30)),
        between=st.sampled_from(("", "session", "session", "cancel", "attach", "settle", "late", "delete")),
        session=SESSIONS,
        says=st.sampled_from(("commit", "commit", "drop", "drop", "ask")),
        passed_ms=PASSED_MS,
    )
    def prepared(
        self,
        steps: list[dict[str, Any]],
        who: int,
        queue: int,
        credit: int,
        between: str,
        session: dict[str, Any],
        says: str,
        passed_ms: int,
    ) -> None:
        """A part is prepared, something else happens, and then the decision is heard."""
        self.whole_transaction(steps, who, queue, "", credit, "", passed_ms)
        name, world = producer(who), self.world
        number, held = self.numbers.get(name, 1), self.held_by(name, queue)
        settle = c.Settle(queue, "a", self.attach_of(name, queue), ((held, held),))
        world.do(name, c.InTransaction(number, settle))
        world.do(name, c.Prepare(number, 0, 9, 7), passed_ms)
        if between == "session":
            self.sessions(session | {"who": who})
        elif between == "cancel":
            world.do(name, c.Cancel(queue, "a", True))
        elif between == "attach":
            world.do(name, c.Attach(queue, "a", selector("TRUE"), 40))
        elif between == "settle":
            world.do(name, c.Settle(queue, "a", self.attach_of(name, queue), ((1, 99),)))
        elif between == "late":
            world.wake(SMALL.transaction_ms)
        elif between == "delete" and queue == 3:
            world.apply([(None, c.DeleteQueue(queue))])
        else:
            world.apply([world.batch(name, 3, queue=queue)])
        self.entry([{"what": "decision", "who": who, "says": says, "before": 0}], passed_ms)
        world.do(name, c.Settle(queue, "a", self.attach_of(name, queue), ((1, 2),)))

    @rule(
        steps=st.lists(TRANSACTION, min_size=1, max_size=2),
        who=PRODUCERS,
        queue=QUEUES,
        first=st.sampled_from(("", "", "ask")),
        says=st.sampled_from(("ask", "ask", "forget")),
    )
    def decided(self, steps: list[dict[str, Any]], who: int, queue: int, first: str, says: str) -> None:
        """This group decides, or was asked before; then it is asked, and the commit is repeated."""
        name = producer(who)
        self.whole_transaction(steps, who, queue, "", 3, "", 1)
        decision = {"what": "decision", "who": who, "before": 0}
        if first:
            self.entry([decision | {"says": first}], 0)
        number = self.numbers.get(name, 1)
        self.world.do(name, c.Decide(number, 0, 9, (2, 3)))
        self.entry([decision | {"says": says}], 0)
        self.world.do(name, c.Commit(number))

    def consumer(self, name: bytes, queue: int) -> ModelConsumer | None:
        assert self.world.model is not None
        model = self.world.model.queues.get(queue)
        return None if model is None else model.find(name, "a")

    def attach_of(self, name: bytes, queue: int) -> int:
        found = self.consumer(name, queue)
        return 1 if found is None else found.attach

    def held_by(self, name: bytes, queue: int) -> int:
        """The last tag that a consumer holds, 1 if it holds nothing."""
        found = self.consumer(name, queue)
        return 1 if found is None else max(found.checked_out, default=1)


DecisionsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDecisionsAgainstModel = DecisionsAgainstModel.TestCase


TransactionsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestTransactionsAgainstModel = TransactionsAgainstModel.TestCase


RoutedAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestRoutedAgainstModel = RoutedAgainstModel.TestCase


class PrioritiesAgainstModel(FifoAgainstModel):
    """The same with priorities in every queue, and a preference for what is published and handed out."""

    max_priorities: ClassVar = {1: 3, 2: 31, 3: 1, 4: 2}

    @rule(
        entry=st.lists(PUBLISH | CONSUME | ANSWER | ROUTED | SINGLES, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def usual_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)


PrioritiesAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestPrioritiesAgainstModel = PrioritiesAgainstModel.TestCase


class DelaysAgainstModel(FifoAgainstModel):
    """The same with queues that delay what is requeued, and a preference for what is published and requeued."""

    delayed_retry = (10, 25)

    @rule(
        entry=st.lists(
            PUBLISH | SINGLES | ROUTED | CONSUME | ANSWER.map(lambda step: step | {"what": "fail"}) | ANSWER,
            min_size=1,
            max_size=4,
        ),
        passed_ms=PASSED_MS,
    )
    def delaying(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    @rule(who=PRODUCERS, queue=QUEUES, step=ADMIN, passed_ms=PASSED_MS)
    def purged(self, who: int, queue: int, step: dict[str, Any], passed_ms: int) -> None:
        """A purge comes while messages are delayed."""
        name, world = producer(who), self.world
        publish = world.batch(name, 4 + step["behind"], queue=queue, ttl_ms=step["ttl"])
        world.apply([publish, world.op(name, c.Attach(queue, "a", b"", 30))])
        fail = {"what": "fail", "pick": 0, "first": 0, "width": 12, "more": False, "credit": 0}
        world.apply([world.op(name, self.answer(fail | {"queue": queue}, name))])
        self.administration(step | {"what": "purge", "queue": queue}, passed_ms)


DelaysAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDelaysAgainstModel = DelaysAgainstModel.TestCase


class MessageGroupsAgainstModel(FifoAgainstModel):
    """The same with message groups in every queue that can have them."""

    message_groups = (1, 2, 3)

    @rule(
        entry=st.lists(PUBLISH | CONSUME | ANSWER | ROUTED | SINGLES, min_size=1, max_size=4),
        passed_ms=PASSED_MS,
    )
    def usual_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)


MessageGroupsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestMessageGroupsAgainstModel = MessageGroupsAgainstModel.TestCase


class HeldGroupsAgainstModel(DecisionsAgainstModel):
    """Transactions that are prepared hold message groups, perhaps longer than their consumers are there."""

    message_groups = (1, 2, 3)

    @rule(
        who=PRODUCERS,
        other=PRODUCERS,
        queue=st.sampled_from(message_groups),
        ending=st.sampled_from(("", "session", "cancel")),
        session=SESSIONS,
        says=st.sampled_from(("commit", "drop")),
    )
    def held(self, who: int, other: int, queue: int, ending: str, session: dict[str, Any], says: str) -> None:
        """A group is held by a transaction; the twin is restored, and another consumer wants it."""
        name, world = producer(who), self.world
        twin = world.twin
        assert twin is not None
        world.apply(
            [
                world.batch(name, 3, queue=queue, group_keys=of_keys([1])),
                world.op(name, c.Attach(queue, "a", b"", 30)),
            ]
        )
        number, last = self.numbers.get(name, 0) + 1, self.held_by(name, queue)
        self.numbers[name] = number
        settle = c.Settle(queue, "a", self.attach_of(name, queue), ((last, last),))
        world.do(name, c.InTransaction(number, settle))
        world.do(name, c.Prepare(number, 0, 9, 7))
        world.do(name, c.Settle(queue, "a", self.attach_of(name, queue), ((1, 99),)))
        if ending == "session":
            self.sessions(session | {"who": who})
        elif ending == "cancel":
            world.do(name, c.Cancel(queue, "a", True))
        world.twin = world.restored(snapshot.encode(twin))
        world.do(producer(other), c.Attach(queue, "b", b"", 40))
        world.apply([world.batch(producer(other), 2, queue=queue, group_keys=of_keys([1]))])
        self.entry([{"what": "decision", "who": who, "says": says, "before": 0}], 0)


HeldGroupsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestHeldGroupsAgainstModel = HeldGroupsAgainstModel.TestCase


class DeadLettersAgainstModel(FifoAgainstModel):
    """The same with a preference for messages that die, and for what becomes of them."""

    mortal: ClassVar = (1, 2, 3, 4)
    max_length, overflow = 5, "reject_publish"

    @rule(
        entry=st.lists(
            PUBLISH
            | CONSUME
            | ANSWER.map(lambda step: step | {"what": "discard"})
            | ANSWER.map(lambda step: step | {"what": "fail"}),
            min_size=1,
            max_size=4,
        ),
        passed_ms=PASSED_MS,
    )
    def deaths(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    @rule(
        publish=PUBLISH,
        steps=st.lists(
            st.tuples(
                ADMIN, st.sampled_from(("claim", "claim", "settle_dead", "settle_dead", "purge", "config"))
            ),
            min_size=1,
            max_size=5,
        ),
        queue=QUEUES,
        passed_ms=PASSED_MS,
    )
    def lives(
        self, publish: dict[str, Any], steps: list[tuple[dict[str, Any], str]], queue: int, passed_ms: int
    ) -> None:
        """Messages are published and expire; then they get numbers and are settled."""
        self.entry([publish | {"queue": queue, "ttl": 1, "ttls": None}], passed_ms)
        self.world.wake(10)
        for step, what in steps:
            self.administration(step | {"what": what, "queue": queue}, passed_ms)


DeadLettersAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDeadLettersAgainstModel = DeadLettersAgainstModel.TestCase


class ColdAgainstModel(DelaysAgainstModel, DeadLettersAgainstModel):
    """The same with a twin that goes on from a checkpoint after every entry: all its blocks are cold then, as after a
    restart. Messages are delayed and die."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        world, apply = self.world, self.world.apply

        def cold(operations: Sequence[tuple[c.Origin | None, c.Command]], passed_ms: int = 1) -> Applied:
            assert world.twin is not None
            pages = world.twin.memory.pages
            world.twin = world.resumed(world.checkpointer(world.twin).take().state, pages)
            applied = apply(operations, passed_ms)
            invariants.check(world.twin)
            return applied

        world.apply = cold  # type: ignore[method-assign]


ColdAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestColdAgainstModel = ColdAgainstModel.TestCase


class DeadAndDelayedAgainstModel(DeadLettersAgainstModel):
    """The same with queues that delay what is requeued: delayed messages die, too."""

    delayed_retry = (10, 25)
    overflow = "drop_head"


DeadAndDelayedAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDeadAndDelayedAgainstModel = DeadAndDelayedAgainstModel.TestCase


class DeadInGroupsAgainstModel(DeadLettersAgainstModel):
    """The same with message groups: what is dead holds up nobody."""

    message_groups = (1, 2, 3)


DeadInGroupsAgainstModel.TestCase.settings = settings(
    FifoAgainstModel.TestCase.settings, max_examples=examples(60, share=10)
)
TestDeadInGroupsAgainstModel = DeadInGroupsAgainstModel.TestCase


# ---- broken machines


def shared(self: CheckedOut, ranges: Sequence[tuple[int, int]]) -> CheckedOut:
    """Other settlements may take what a transaction settles."""
    found = take(self, ranges)
    self.take_back(found)
    return found


def settled_by_rollback(self: QueueMachine, entry: Entry, key: Key) -> None:
    """A rollback keeps the settlements."""
    for part in self.staging.embargo.parts[key]:
        if isinstance(part, EmbargoedSettlement):
            self.messages.settle(part.held.ranges())
            part.held.remove_all()
    drop_embargo(self, entry, key)


def returned_by_rollback(self: QueueMachine, entry: Entry, key: Key) -> None:
    """A rollback keeps the publishes."""
    for part in self.staging.embargo.parts[key]:
        if isinstance(part, EmbargoedBatch):
            part.place(self.messages, entry)
    drop_embargo(self, entry, key)


def outcome_forgotten(self: Transactions, entry: Entry, producer: Producer, command: c.Commit) -> Any:
    """A repeated commit does not hear its outcome."""
    reply = commit(self, entry, producer, command)
    producer.committed.forget_below(command.tx + 1)
    return reply


def begun_again(self: Transactions, producer: Producer, number: int) -> Refused | None:
    """What comes late for a transaction begins it again."""
    refused = refuse_begin(self, producer, number)
    return None if refused is not None and refused.reason == "rolled_back" else refused


def unlimited(self: Transactions, *_: Any) -> None:
    """A transaction may be of any size."""


def aged_under_embargo(self: EmbargoedBatch, messages: Messages, entry: Entry) -> None:
    """Times to live begin before the commit."""
    place(self, messages, Entry(entry.index, entry.now_ms - 1, entry.version, entry.limits))


def backwards(self: QueueMachine, entry: Entry, key: Key) -> list[str]:
    """The parts of a transaction count in another order."""
    self.staging.embargo.parts[key].reverse()
    return commit_queue(self, entry, key)


def of_no_size(self: Embargo, key: Any) -> tuple[int, int]:
    """The limits of queues do not count what a transaction publishes."""
    return 0, 0


def of_one_priority(priorities: bytes, first: int) -> bytes:
    """Messages of a transaction lose their priorities."""
    return b""


def nothing(self: Transactions, *_: Any) -> None:
    """In the place of a method that ends or changes a transaction: it does nothing."""


def unreserved(self: Messages, count: int, size_bytes: int) -> None:
    """Queues keep no room for what is prepared."""


def never_released(self: QueueMachine, entry: Entry, key: Key, part: EmbargoedSettlement) -> list[str]:
    """Consumers count for ever what a transaction has settled."""
    return []


def never_given_back(self: Consumer, attach: int, held: CheckedOut) -> bool:
    """A part that is dropped requeues its messages always."""
    return False


def registered_early(self: Decisions, name: bytes) -> None:
    """A later session begins while a part of the last one waits."""


def undecided(self: Decisions, decision: Decision) -> None:
    """A group forgets at once what it has decided."""


take = CheckedOut.take


def ended_early(messages: Messages, entry: Entry) -> None:
    """Delayed messages are ready before their time."""
    end_delays(messages, Entry(entry.index, entry.now_ms + 20, entry.version, entry.limits))


def not_purged(*_: Any) -> int:
    """A purge leaves delayed messages."""
    return 0


drop_embargo, commit, refuse_begin = (
    QueueMachine.drop_embargo,
    Transactions.commit,
    Transactions._refuse_begin,
)
place, commit_queue = EmbargoedBatch.place, QueueMachine.commit
end_delays = delays.end_delays

BROKEN: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "others settle what it settles": (CheckedOut, "take", shared),
    "rollback keeps settlements": (QueueMachine, "drop_embargo", settled_by_rollback),
    "rollback keeps publishes": (QueueMachine, "drop_embargo", returned_by_rollback),
    "outcomes are forgotten": (Transactions, "commit", outcome_forgotten),
    "late commands begin again": (Transactions, "_refuse_begin", begun_again),
    "no limits": (Transactions, "_refuse_more", unlimited),
    "time to live from the publish": (EmbargoedBatch, "place", aged_under_embargo),
    "another order": (QueueMachine, "commit", backwards),
    "never too old": (Transactions, "end_overdue", nothing),
    "lost sessions keep them": (Transactions, "end_all", nothing),
    "overdue consumers keep them": (Transactions, "consumers_time_out", nothing),
    "limits of queues are not judged": (Embargo, "published", of_no_size),
    "priorities are lost": (embargo, "of_each", of_one_priority),
}
BROKEN_DECISIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "no room is kept for what is prepared": (Messages, "reserve", unreserved),
    "consumers keep what is prepared": (QueueMachine, "_release", never_released),
    "nothing prepared is given back": (Consumer, "may_have_back", never_given_back),
    "a later session does not wait": (Decisions, "refuse_register", registered_early),
    "decisions are forgotten": (Decisions, "add_decision", undecided),
    "who asks ends nothing": (Transactions, "end", nothing),
}
BROKEN_DELAYS: dict[str, tuple[Any, str, Any]] = {
    "delays end early": (delays, "end_delays", ended_early),
    "delayed ones are not counted": (Messages, "waiting_count", property(lambda self: self.ready_count)),
    "purge leaves delayed ones": (delays, "purge", not_purged),
}
"""Of which the machine with delays is to notice each."""
take_claims, purge_messages = DeadLetters.take_claims, Messages.purge


def one_too_many(self: DeadLetters, to: int) -> Any:
    """A settlement takes one message more than the target has confirmed."""
    return take_claims(self, to + 1)


def purged_alive(self: Messages, *arguments: Any, dead_only: bool = False) -> int:
    """A purge takes no dead message."""
    dead, self.dead = self.dead, DeadLetters(self.blocks, self.limits)
    try:
        return 0 if dead_only else purge_messages(self, *arguments)
    finally:
        self.dead = dead


BROKEN_DEAD: dict[str, tuple[Any, str, Any]] = {
    "nothing dies": (Messages, "has_dead_letters", property(lambda messages: False)),
    "numbers are given twice": (DeadLetters, "_claimed", lambda dead: {}),
    "one too many is settled": (DeadLetters, "take_claims", one_too_many),
    "a purge keeps them": (Messages, "purge", purged_alive),
}
MOST_EXAMPLES = 1_000


@pytest.mark.parametrize(
    ("model", "owner", "name", "broken"),
    [(TransactionsAgainstModel, *each) for each in BROKEN.values()]
    + [(DecisionsAgainstModel, *each) for each in BROKEN_DECISIONS.values()]
    + [(DelaysAgainstModel, *each) for each in BROKEN_DELAYS.values()]
    + [(DeadLettersAgainstModel, *each) for each in BROKEN_DEAD.values()],
    ids=[*BROKEN, *BROKEN_DECISIONS, *BROKEN_DELAYS, *BROKEN_DEAD],
)
def test_the_model_notices_a_broken_machine(
    model: type[FifoAgainstModel],
    owner: Any,
    name: str,
    broken: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the rules that a model adds to those of FifoAgainstModel: they lead to where the fault is."""
    monkeypatch.setattr(owner, name, broken)
    monkeypatch.setattr(model, "is_directed", True)
    only = settings(
        model.TestCase.settings,
        max_examples=MOST_EXAMPLES,
        stateful_step_count=22,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
    )
    with pytest.raises(Exception) as caught:
        run_state_machine_as_test(model, settings=only)  # type: ignore[no-untyped-call]
    assert not isinstance(caught.value, HypothesisException), "that would be an error of the test"
