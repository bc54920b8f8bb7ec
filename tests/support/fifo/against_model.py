"""The machine against the model: random entries, the same answers, the invariants after each.

With blocks of 8 messages and small budgets, so that edges, wake-ups and cut-off work are everywhere. A twin that
loses its columns, its matched bits or everything but its snapshot at random moments, whose blocks are paged out, or
which goes on from a checkpoint, has to agree, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fifo import commands as c
from fifo.effects import Refused
from fifo.group_machine import GroupMachine
from fifo.limits import SMALL
from fifo.messages.pages import MemoryPages
from fifo.persistence import checkpoint, invariants, snapshot
from fifo.persistence.references import references
from fifo.queries import group as queries
from fifo.results import BrowsePage
from support.fifo.local_parts import drop_columns, drop_matches, drop_summaries
from support.fifo.replays import replay
from support.fifo.steps import ADMIN, ENTRY, PASSED_MS, PLAIN, SESSIONS, TEXTS
from support.fifo.world import World, exported, of_keys, part_name, producer, selector

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
        machines = world.machine.queues.values()
        checked_out = sum(
            each.held_count for machine in machines for each in machine.consumers.by_key.values()
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
