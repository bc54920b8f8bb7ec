"""The machine against a list: random entries, the same answers, the invariants after each.

With blocks of 8 messages and small budgets, so that edges, wake-ups and cut-off work are everywhere. A twin that
loses its columns, its matched bits or everything but its snapshot at random moments, whose blocks are paged out, or
which goes on from a checkpoint, has to agree, too.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fifo import checkpoint, invariants
from fifo import commands as c
from fifo.group import GroupMachine
from fifo.pages import MemoryPages
from support.fifo_world import SMALL, World, producer, selector, small_blocks
from support.replays import replay

TEXTS = ("", "colour = 'red'", "size > 2", "colour IS NULL", "colour <> 'red' OR size < 2", "JMSPriority = 7")
TAGS = ("a", "b", "c")

PRODUCERS = st.integers(1, 4)
QUEUES = st.sampled_from((1, 1, 1, 2, 3))
PASSED_MS = st.sampled_from((0, 0, 1, 5, 30, 100))
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "application-properties.colour": st.sampled_from(("red", "green", 3)),
        "application-properties.size": st.sampled_from((1, 2, 3, 2.5, True)),
        "header.priority": st.sampled_from((4, 7)),
    },
)
TTLS = st.sampled_from((-1, -1, 0, 1, 20, 60))

PUBLISH = st.fixed_dictionaries(
    {
        "what": st.just("publish"),
        "who": PRODUCERS,
        "queue": QUEUES,
        "rows": st.lists(ROWS, min_size=1, max_size=12),
        "ttl": TTLS,
        "ttls": st.none() | st.lists(TTLS, min_size=12, max_size=12),
        "again": st.sampled_from((0, 0, 0, 0, 1, 5, 12)),
        "skip": st.sampled_from((0, 0, 0, 2, 4)),
        "behind": st.integers(0, 20),
    }
)
SINGLES = st.fixed_dictionaries(
    {"what": st.just("singles"), "who": PRODUCERS, "queue": QUEUES, "count": st.integers(1, 4), "ttl": TTLS}
)
CONSUME = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("attach", "attach", "credit", "drain", "cancel", "get", "get_settled")),
        "who": PRODUCERS,
        "queue": QUEUES,
        "tag": st.sampled_from(TAGS),
        "text": st.sampled_from(TEXTS),
        "credit": st.sampled_from((0, 1, 2, 5, 30, 1000)),
        "return_held": st.booleans(),
    }
)
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
NUMBERING = st.fixed_dictionaries({"what": st.sampled_from(("repeat", "gap", "stale")), "who": PRODUCERS})
ADMIN = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("purge", "config", "configured", "delete", "create", "wake", "wake")),
        "queue": QUEUES,
        "max_length": st.sampled_from((-1, -1, 3, 20)),
        "overflow": st.sampled_from(("drop_head", "reject_publish")),
        "ttl": st.sampled_from((-1, -1, 40)),
        "limit": st.sampled_from((-1, 0, 1, 2)),
        "fields": st.sampled_from((("*", "header.priority"), ("*", "header.priority"), ("header.priority",))),
    }
)
SESSIONS = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("epoch", "epoch", "close", "node_down", "again")),
        "who": PRODUCERS,
        "node": st.integers(1, 2),
    }
)
ENTRY = st.lists(PUBLISH | PUBLISH | SINGLES | CONSUME | ANSWER | ANSWER | NUMBERING, min_size=1, max_size=5)


class FifoAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.context = small_blocks(SMALL)
        self.context.__enter__()
        self.world = World(SMALL)
        self.world.twin = GroupMachine(self.world.log)
        self.boots = {1: 1, 2: 1}
        self.world.queue(1, filter_enabled=True)
        self.world.queue(2)
        self.world.queue(3, filter_enabled=True, max_length=10, message_ttl_ms=50, delivery_limit=1)
        for number in range(1, 5):
            name = self.world.session(number, node=1 + number % 2)
            for tag in "ab":
                attach = c.Attach(1, tag, selector(TEXTS[number + (tag == "b")]), 3 * number)
                self.world.do(name, attach)

    def teardown(self) -> None:
        if hasattr(self, "context"):
            try:
                replay(self.world)
            finally:
                self.context.__exit__(None, None, None)

    @rule(entry=ENTRY, passed_ms=PASSED_MS)
    def entry(self, entry: list[dict[str, Any]], passed_ms: int) -> None:
        operations: list[Any] = []
        for step in entry:
            for operation in self.operations(step, len(operations)):
                operations.append(operation)
        self.world.apply(operations, passed_ms)

    @rule(step=ADMIN, passed_ms=PASSED_MS)
    def administration(self, step: dict[str, Any], passed_ms: int) -> None:
        queue, what = step["queue"], step["what"]
        config = c.QueueConfig(
            f"queue-{queue}", queue != 2, step["fields"], -1, step["max_length"], step["overflow"],
            step["ttl"], step["limit"],
        )  # fmt: skip
        command: Any = c.Wake()
        if what == "purge":
            command = c.Purge(queue)
        elif what == "config":
            command = c.UpdateConfig(queue, config)
        elif what == "configured":
            command = c.Configured(step["max_length"] + 1)
        elif what == "delete" and queue == 3:
            command = c.DeleteQueue(queue)
        elif what == "create":
            command = c.CreateQueue(queue, config)
        self.world.apply([(None, command)], passed_ms)

    @rule(step=SESSIONS)
    def sessions(self, step: dict[str, Any]) -> None:
        world, name, node = self.world, producer(step["who"]), step["node"]
        if step["what"] == "epoch":
            world.session(step["who"], world.epochs[name] + 1, node, self.boots[node])
        elif step["what"] == "close":
            world.do(name, c.CloseSession())
        elif step["what"] == "again":
            known = world.model.producers[name] if world.model else None
            assert known is not None
            world.apply([(c.Origin(name, world.epochs[name], 0), c.RegisterProducer(known.address))])
        else:
            world.apply([(None, c.NodeDown(node, self.boots[node]))])
            self.boots[node] += 1

    @rule()
    def wakes(self) -> None:
        self.world.wake_until_done()

    @rule(what=st.sampled_from(("columns", "matches", "both", "both", "summaries", "all")))
    def forget(self, what: str) -> None:
        twin = self.world.twin
        assert twin is not None
        if what in ("columns", "both"):
            twin.drop_columns()
        if what in ("matches", "both"):
            twin.drop_matches()
        if what == "summaries":
            twin.drop_summaries()
        if what == "all":
            self.world.twin = GroupMachine.restore(twin.snapshot(), self.world.log)

    @rule(chosen=st.lists(st.booleans(), min_size=1, max_size=7), write_only=st.booleans())
    def page_out(self, chosen: list[bool], write_only: bool) -> None:
        """Any blocks, the last and those with held messages too."""
        twin = self.world.twin
        assert twin is not None
        place = 0
        for queue in sorted(twin.queues):
            for block in twin.queues[queue].blocks.warm():
                place += 1
                if chosen[place % len(chosen)]:
                    if write_only:
                        twin.queues[queue].blocks.write(block)
                    else:
                        twin.page_out(queue, block.number)
        invariants.check(twin)
        assert twin.snapshot() == self.world.machine.snapshot()

    @rule(resume=st.booleans())
    def checkpoint(self, resume: bool) -> None:
        twin = self.world.twin
        assert twin is not None
        pages = twin.memory.pages
        found = twin.checkpoint()
        assert b"".join(checkpoint.export_snapshot(found.state, pages)) == self.world.machine.snapshot()
        assert checkpoint.contents(found.state) == (found.entries, found.pages)
        blocks = [
            b for q in self.world.machine.queues.values() for b in map(q.blocks.get, q.blocks.numbers())
        ]
        assert list(found.entries) == sorted({index for b in blocks for index in invariants.live_indexes(b)})
        if resume:  # with nothing but what the checkpoint names
            assert isinstance(pages, MemoryPages)
            kept = MemoryPages()
            kept.pages = {page: pages.pages[page] for page in found.pages}
            kept.last = pages.last
            self.world.twin = GroupMachine.resume(found.state, self.world.log, kept)
            invariants.check(self.world.twin)

    @precondition(lambda self: len(self.world.entries) > 3)
    @rule()
    def look(self) -> None:
        """Views change nothing and say what the model says."""
        world = self.world
        assert world.model is not None
        before = world.machine.snapshot()
        for queue, model in world.model.queues.items():
            found = world.machine.waiting(queue, 0, 1000)
            shown = [run.first_sequence + i for run in found.runs for i in range(run.count)]  # type: ignore[union-attr]
            ready = [message.sequence for message in model.ready()]
            assert shown == ready[: len(shown)]
            assert len(shown) == len(ready) or found.next_sequence is not None  # type: ignore[union-attr]
        held = sum(run.count for boot in range(9) for d in world.machine.held_by(1, boot) for run in d.runs)
        held += sum(run.count for boot in range(9) for d in world.machine.held_by(2, boot) for run in d.runs)
        assert held <= sum(len(model.messages) - len(model.ready()) for model in world.model.queues.values())
        assert world.machine.snapshot() == before

    # ---- from a description to an operation

    def operations(self, step: dict[str, Any], place: int) -> list[Any]:
        world, what, name = self.world, step["what"], producer(step["who"])
        if what == "publish":
            return [self.publish(step, name, place)]
        if what == "singles":
            return [
                world.batch(name, 1, queue=step["queue"], place=place + i, ttl_ms=step["ttl"])
                for i in range(step["count"])
            ]
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
            step["rows"] if step["queue"] != 2 else (),
            place,
            step["queue"],
            first=first,
            lowest_unconfirmed=max(first - step["behind"], 0),
            ttl_ms=step["ttl"] if ttls is None else -1,
            ttls_ms=() if ttls is None else tuple(ttls[:count]),
        )

    def consumption(self, step: dict[str, Any]) -> Any:
        what, queue, tag = step["what"], step["queue"], step["tag"]
        if what == "attach":
            return c.Attach(queue, tag, selector(step["text"]), step["credit"])
        if what in ("credit", "drain"):
            return c.Credit(queue, tag, step["credit"], what == "drain")
        if what == "cancel":
            return c.Cancel(queue, tag, step["return_held"])
        return c.Get(queue, step["credit"], what == "get_settled")

    def answer(self, step: dict[str, Any], name: bytes) -> Any:
        assert self.world.model is not None
        model = self.world.model.queues.get(step["queue"])
        mine = [x for x in model.consumers if x.producer == name] if model else []
        if not mine:
            return c.Settle(step["queue"], "a", 1, ((1, 3),))
        # Rather somebody who holds something.
        mine = [x for x in mine if x.held] or mine
        consumer = mine[step["pick"] % len(mine)]
        first = max(next(iter(consumer.held), 1) + step["first"] // 2, 0)
        tags = [(first, first + step["width"])]
        if step["more"]:
            tags.append((first + step["width"] + 2, first + step["width"] + 4))
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


FifoAgainstModel.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestFifoAgainstModel = FifoAgainstModel.TestCase
