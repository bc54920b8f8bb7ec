"""Durable subscriptions and pins against lists of messages, beside consumers, expiry, limits and purges.

Like support/fifo/against_model.py: small blocks and budgets, and a twin that forgets what is local.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fifo import commands as c
from fifo import effects as e
from fifo.group_machine import GroupMachine
from fifo.limits import SMALL
from fifo.messages.pages import MemoryPages
from fifo.persistence import snapshot
from fifo.persistence.references import references
from fifo.queries import group as queries
from fifo.results import BrowsePage
from quorum_selectors import canonical
from quorum_selectors.evaluate import evaluate
from support.examples import examples
from support.fifo.local_parts import drop_columns, drop_matches
from support.fifo.model.records import Message
from support.fifo.model.subscriptions import ModelSubscription
from support.fifo.replays import replay
from support.fifo.world import World, bodies_of, producer, selector

TEXTS = ("", "", "colour = 'red'", "size > 2", "colour <> 'red' OR size < 2")
QUEUES = st.sampled_from((1, 1, 2))
NAMES = st.sampled_from(("spark", "archive", "third", "fourth"))
PASSED_MS = st.sampled_from((0, 0, 1, 1, 1, 1, 1, 5, 5, 30, 300, 1_200))
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "application-properties.colour": st.sampled_from(("red", "green")),
        "application-properties.size": st.sampled_from((1, 2, 3)),
    },
)
PUBLISH = st.fixed_dictionaries(
    {
        "what": st.just("publish"),
        "queue": QUEUES,
        "rows": st.lists(ROWS, min_size=1, max_size=14),
        "ttl": st.sampled_from((-1, -1, -1, 0, 20, 600)),
        "priority": st.sampled_from((0, 0, 1, 7)),
    }
)
READ = st.fixed_dictionaries(
    {
        "what": st.sampled_from(
            ("open", "reserve", "reserve", "reserve", "settle", "keep", "release", "delete")
        ),
        "queue": QUEUES,
        "name": NAMES,
        "text": st.sampled_from(TEXTS),
        "start": st.sampled_from(("earliest", "earliest", "latest")),
        "timeout": st.sampled_from((1_000, 1_000, 3_000, 3_000, 3_000, 0)),
        "on_expiry": st.sampled_from(("release", "discard", "keep")),
        "stale": st.sampled_from((0,) * 12 + (1,)),
        "back": st.sampled_from((0, 0, 0, 0, 1, 2, 5, -1)),
        "messages": st.sampled_from((1, 3, 8, 8, 100, 100, 100, 0)),
        "bytes": st.sampled_from((1, 250, 700, 10_000, 10_000)),
    }
)
PIN = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("pin", "pin", "pin", "unpin")),
        "queue": QUEUES,
        "ttl": st.sampled_from((1_000, 5_000, 5_000, 60_000, 60_000, 0)),
        "pick": st.integers(0, 3),
    }
)
RESERVE = READ.map(lambda step: {**step, "what": "reserve", "stale": 0, "back": 0, "messages": 100})
CONSUME = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("attach", "credit", "cancel", "get", "get_settled", "settle", "return")),
        "queue": QUEUES,
        "tag": st.sampled_from(("a", "b")),
        "text": st.sampled_from(TEXTS),
        "credit": st.sampled_from((0, 1, 4, 30)),
        "first": st.integers(1, 20),
    }
)
ENTRY = st.lists(
    PUBLISH | PUBLISH | READ | READ | RESERVE | RESERVE | CONSUME | CONSUME | PIN, min_size=1, max_size=5
)
ADMIN = st.sampled_from(("purge", "config", "config", "delete", "wake", "wake"))


class ReadersAgainstModel(RuleBasedStateMachine):
    @initialize(
        text=st.sampled_from(TEXTS), batches=st.lists(st.lists(ROWS, min_size=5, max_size=20), max_size=6)
    )
    def begin(self, text: str, batches: list[Any]) -> None:
        self.world = World(SMALL, has_model=True)
        self.world.twin = self.world.empty()
        self.world.queue(1, filter_enabled=True)
        self.world.queue(2, filter_enabled=True, max_length=15, message_ttl_ms=700, max_priority=2)
        self.name = self.world.session(1)
        self.world.session(2)
        for place, rows in enumerate(batches):
            self.world.publish(self.name, len(rows), rows, queue=1 + place % 2)
        for queue in (1, 2):
            open_it = c.OpenSubscription(queue, "spark", selector(text), "earliest", 3_000, "release")
            self.world.do(self.name, open_it)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            replay(self.world)

    @rule(entry=ENTRY, passed_ms=PASSED_MS)
    def one_entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        self.entry(entry, passed_ms)

    def entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        operations: list[Any] = []
        for step in entry:
            operations.append(self.operation(step, len(operations)))
        self.world.apply(operations, passed_ms)
        self.look_at_pins("", 1000)

    @rule(first=ENTRY, second=ENTRY, third=ENTRY, passed_ms=PASSED_MS)
    def entries(self, first: list[Any], second: list[Any], third: list[Any], passed_ms: int) -> None:
        for entry in (first, second, third):
            self.entry(entry, passed_ms)

    @rule(first=ENTRY, second=ENTRY, third=ENTRY)
    def entries_at_once(self, first: list[Any], second: list[Any], third: list[Any]) -> None:
        self.entries(first, second, third, 1)

    @rule(what=ADMIN, queue=QUEUES, max_length=st.sampled_from((-1, 4, 15)), passed_ms=PASSED_MS)
    def administration(self, what: str, queue: int, max_length: int, passed_ms: int) -> None:
        max_priority = 2 if queue == 2 else -1
        config = c.QueueConfig(f"queue-{queue}", True, ("*",), -1, max_length, max_priority=max_priority)
        command: Any = c.Wake()
        if what == "purge":
            command = c.Purge(queue)
        elif what == "config":
            command = c.UpdateConfig(queue, config)
        elif what == "delete" and queue == 2:
            command = c.DeleteQueue(queue)
        self.world.apply([(None, command)], passed_ms)

    @rule()
    def wakes(self) -> None:
        self.world.wake_until_done()

    @rule(queue=QUEUES, name=NAMES)
    def a_poll_that_may_find_nothing_finds_nothing(self, queue: int, name: str) -> None:
        """What may_reserve says is true, on members that know more or less."""
        world, subscription = self.world, self.subscription(queue, name)
        assert world.twin is not None
        if subscription is None or (
            queries.may_reserve(world.machine, queue, name) and queries.may_reserve(world.twin, queue, name)
        ):
            return
        command = c.Reserve(queue, name, subscription.generation, subscription.last, 100, 10_000)
        reply = world.do(producer(1), command, passed_ms=0)
        assert isinstance(reply, e.Refused) or (reply.offset == subscription.last and reply.count == 0)  # type: ignore[union-attr]

    @rule(what=st.sampled_from(("columns", "matches", "all", "resume")))
    def forget(self, what: str) -> None:
        twin = self.world.twin
        assert twin is not None
        if what == "columns":
            drop_columns(twin)
        elif what == "matches":
            drop_matches(twin)
        elif what == "all":
            self.world.twin = self.world.restored(snapshot.encode(twin))
        else:
            found, pages = self.world.checkpointer(twin).take(), twin.memory.pages
            assert isinstance(pages, MemoryPages)
            kept = MemoryPages()
            kept.pages = {page: pages.pages[page] for page in found.pages}
            kept.last = pages.last
            self.world.twin = self.world.resumed(found.state, kept)

    @rule(chosen=st.lists(st.booleans(), min_size=1, max_size=5))
    def page_out(self, chosen: list[bool]) -> None:
        twin = self.world.twin
        assert twin is not None
        place = 0
        for queue in sorted(twin.queues):
            for block in twin.queues[queue].messages.blocks.warm():
                place += 1
                if chosen[place % len(chosen)]:
                    twin.page_out(queue, block.number)

    @rule(first=st.integers(0, 12), count=st.integers(0, 12))
    def look(self, first: int, count: int) -> None:
        """Every reservation shows the messages that it was made of, on every member."""
        world = self.world
        assert world.model is not None
        assert world.twin is not None
        before = snapshot.encode(world.machine)
        for queue, model in world.model.queues.items():
            infos = queries.subscriptions(world.machine, queue)
            assert infos == queries.subscriptions(world.twin, queue)
            subscriptions = model.subscriptions.subscriptions
            assert [info.name for info in infos] == [subscription.name for subscription in subscriptions]
            for info, subscription in zip(infos, subscriptions, strict=True):
                assert (info.generation, info.settled, info.last, info.selector, info.start_sequence) == (
                    subscription.generation,
                    subscription.settled,
                    subscription.last,
                    subscription.selector,
                    subscription.start,
                )
                offsets = [each.offset for each in info.reservations]
                assert offsets == [each.reply.offset for each in subscription.outstanding()]
                for each in subscription.outstanding():
                    whole = (
                        queue,
                        subscription.name,
                        each.reply.offset,
                        min(first, len(each.messages)),
                        count,
                    )
                    found = queries.reserved(world.machine, *whole)
                    assert found == queries.reserved(world.twin, *whole)
                    assert not isinstance(found, e.Refused)
                    shown = each.messages[first : first + count]
                    assert bodies_of(found.runs) == [(m.sequence, *m.body) for m in shown]
                    again = [bool(found.redelivered >> i & 1) for i in range(len(shown))]
                    assert again == [m.was_delivered or each.opens > 0 for m in shown]
                    failed = dict(found.delivery_counts)
                    assert [failed.get(i, 0) for i in range(len(shown))] == [m.failures for m in shown]
        assert snapshot.encode(world.machine) == before

    @rule(text=st.sampled_from(TEXTS), limit=st.sampled_from((3, 1000)))
    def look_closely(self, text: str, limit: int) -> None:
        self.look_at_pins(text, limit)

    def look_at_pins(self, text: str, limit: int) -> None:
        """A pin shows what was ready when it was made, on every member; a checkpoint refers to it."""
        world = self.world
        assert world.model is not None
        assert world.twin is not None
        before = snapshot.encode(world.machine)
        for queue, model in world.model.queues.items():
            pins, twins = (each.queues[queue].pins.by_number for each in (world.machine, world.twin))
            assert list(map(astuple, pins.values())) == list(map(astuple, twins.values()))
            assert list(pins) == [pin.reply.pin for pin in model.pins.pins]
            for pin in model.pins.pins:
                for wanted in ("", text):
                    matching = [m for m in pin.messages if is_wanted(wanted, m)]
                    for machine in (world.machine, world.twin):
                        shown = list(pinned(machine, queue, pin.reply, wanted, limit))
                        assert shown == [(m.sequence, *m.body) for m in matching]
        assert snapshot.encode(world.machine) == before
        needed = {m.body[0] for q in world.model.queues.values() for m in q.messages}
        needed |= {m.body[0] for q in world.model.queues.values() for p in q.pins.pins for m in p.messages}
        if not any(q.pins.ended for q in world.model.queues.values()):
            assert (
                sorted(needed)
                == list(references(before))
                == list(world.checkpointer(world.twin).take().entries)
            )

    # ---- from a description to an operation

    def subscription(self, queue: int, name: str) -> ModelSubscription | None:
        assert self.world.model is not None
        model = self.world.model.queues.get(queue)
        return next((x for x in model.subscriptions.subscriptions if x.name == name), None) if model else None

    def operation(self, step: dict[str, Any], place: int) -> Any:
        world, what, queue = self.world, step["what"], step["queue"]
        if what == "publish":
            own = {"ttl_ms": step["ttl"], "priorities": bytes([step["priority"]])}
            return world.batch(self.name, len(step["rows"]), step["rows"], place, queue, **own)
        if "pick" in step:
            return world.op(self.name, self.pinning(step))
        if "name" in step:
            return world.op(self.name, self.reading(step))
        name, tag = producer(2), step["tag"]
        if what == "attach":
            return world.op(name, c.Attach(queue, tag, selector(step["text"]), step["credit"]))
        if what == "credit":
            return world.op(name, c.Credit(queue, tag, step["credit"]))
        if what == "cancel":
            return world.op(name, c.Cancel(queue, tag, True))
        if what in ("get", "get_settled"):
            return world.op(name, c.Get(queue, max(step["credit"], 1), what == "get_settled"))
        assert world.model is not None
        model = world.model.queues.get(queue)
        known = model.find(name, tag) if model else None
        attach = known.attach if known else 1
        kind = c.Settle if what == "settle" else c.Return
        return world.op(name, kind(queue, tag, attach, ((step["first"], step["first"] + 9),)))

    def pinning(self, step: dict[str, Any]) -> Any:
        assert self.world.model is not None
        model = self.world.model.queues.get(step["queue"])
        known = [pin.reply.pin for pin in model.pins.pins] if model else []
        if step["what"] == "pin":
            return c.Pin(step["queue"], step["ttl"])
        return c.Unpin(step["queue"], known[step["pick"] % len(known)] if known else step["pick"])

    def reading(self, step: dict[str, Any]) -> Any:
        what, queue, name = step["what"], step["queue"], step["name"]
        known = self.subscription(queue, name)
        if known is None and what != "delete" and not step["stale"]:
            what = "open"
        if what == "open":
            found = (known.generation if known else 0) + step["stale"] if step["back"] else None
            settings_ = step["start"], step["timeout"], step["on_expiry"]
            return c.OpenSubscription(queue, name, selector(step["text"]), *settings_, found=found)
        generation = (known.generation if known else 1) - step["stale"]
        if what == "delete":
            return c.DeleteSubscription(queue, name, generation if step["back"] else None)
        offset = (known.last if known else 0) - step["back"]
        if what == "reserve":
            return c.Reserve(queue, name, generation, max(offset, 0), step["messages"], step["bytes"])
        if what == "settle":
            return c.SettleReserved(queue, name, generation, max(offset, 0))
        if what == "keep":
            return c.KeepSubscription(queue, name, generation)
        return c.ReleaseSubscription(queue, name, generation, max(offset, 0) if step["back"] else None)


def is_wanted(text: str, message: Message) -> bool:
    return not text or evaluate(canonical.decode(selector(text)), message.fields) is True


def pinned(
    machine: GroupMachine, queue: int, pin: e.Pinned, text: str, limit: int
) -> Iterator[tuple[int, ...]]:
    """Everything a pin shows, page by page."""
    place: int | None = pin.first_sequence
    while place is not None:
        found = queries.pinned(machine, queue, pin.pin, place, pin.end_sequence, limit, selector(text))
        assert isinstance(found, BrowsePage)
        yield from bodies_of(found.runs)
        assert found.next_sequence is None or found.next_sequence > place
        place = found.next_sequence


ReadersAgainstModel.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
TestReadersAgainstModel = ReadersAgainstModel.TestCase
