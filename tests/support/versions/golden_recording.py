"""Recording golden data (golden.py).

`python -m support.versions.golden_recording FILE` (with PYTHONPATH=.:selectors:tests, in a checkout of the version to
be recorded) runs a cluster of three members, gives it every kind of command, and writes the archive.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from fifo import commands as c
from fifo.effects import AttachedReply, Refused, Reply
from fifo.group_machine import GroupMachine
from fifo.messages.pages import MemoryPages
from fifo.persistence import checkpoint
from fifo.queries import group as queries
from fifo.versions import CURRENT
from quorum.catalog import commands as cat
from quorum.catalog import exchanges as ex
from quorum.catalog import lease_times as lt
from quorum.catalog import members as who
from quorum.catalog import users as us
from quorum.node.identity.identity import Founding, NodeState, record_start
from quorum.node.replica.replica import state_of
from quorum.node.wire.operations import Command
from quorum.replication.group import Group
from quorum_selectors import canonical, columns, jms
from support.log.disk import SimDisk
from support.members.cluster import Cluster, Session, batch
from support.versions.golden import DATA, ENTRY, MEMBERS, Replay


class Recorder:
    """Sees what one member's groups commit."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, tuple[int, bytes]]] = {}
        self._take = Group.take_committed
        recorder = self

        def take(group: Group, *given: Any) -> Any:
            taken = recorder._take(group, *given)
            for index, term, body in taken:
                if body:
                    recorder.entries.setdefault(group.group, {})[index] = (term, bytes(body))
            return taken

        Group.take_committed = take  # type: ignore[method-assign]

    def stop(self) -> None:
        Group.take_committed = self._take  # type: ignore[method-assign]


def selector(text: str) -> bytes:
    return canonical.encode(jms.parse(text))


def do(session: Session, group: int, command: c.Command, bodies: bytes = b"") -> Reply | None:
    reply = session.call(group, command, bodies)
    assert not isinstance(reply, Refused), (command, reply)
    return reply


def refused(session: Session, group: int, command: c.Command) -> None:
    reply = session.call(group, command)
    assert isinstance(reply, Refused), (command, reply)


class Script:
    """Gives a cluster every kind of command."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            3, seed=7, log={"segment_bytes": 48 << 10}, snapshot_ms=1_000, snapshot_bytes=20_000
        )
        self.cluster.ready()
        self.queues: dict[str, tuple[int, int]] = {}

    def declare(self, name: str, **arguments: bool | int | str) -> tuple[int, int]:
        self.queues[name] = self.cluster.declare(name, **arguments)
        return self.queues[name]

    def publish(self, session: Session, name: str, count: int, **more: Any) -> Reply | None:
        group, queue = self.queues[name]
        first = session.next_sequence
        session.next_sequence += count
        own = "application-properties."
        rows = [
            {f"{own}colour": ("red", "blue", "green")[i % 3], f"{own}weight": first + i}
            | ({"header.priority": i % 10} if i % 2 else {f"{own}ratio": i / 7})
            for i in range(count)
        ]  # fmt: skip
        bodies = [f"{name} {first + i}".encode().ljust(40 + i % 90, b".") for i in range(count)]
        filled = columns.encode(rows) if more.pop("filtered", False) else b""
        command = c.Enqueue(
            queue, first, more.pop("lowest", first), count, sum(map(len, bodies)), columns=filled, **more
        )
        return session.call(group, command, batch(bodies))

    def run(self) -> None:
        self._policies()
        self._consumers()
        self._blocks()
        self._readers()
        self._staging()
        self._limits()
        self._singles()
        self._arrangements()
        self._routing()
        self._transactions()
        self._dead_letters()
        self._users()
        self._node_down()
        self._members()
        self._lease_times()
        self._versions()
        self.cluster.run(3_000)
        self.cluster.settle()

    def _policies(self) -> None:
        self.declare("plain")
        self.declare("filtered", filter_enabled=True, queue_mode="lazy")
        self.declare("named", filter_enabled=True, filter_field_names="colour,header.priority")
        self.declare("short", max_length=5, overflow="reject-publish")
        self.declare("rolling", max_length=4)
        self.declare("fleeting", message_ttl=3_000)
        self.declare("tried", delivery_limit=2)
        self.declare("gone")
        administer = self.cluster.administer
        administer(cat.SetPolicy("long", "plain", 5, (("x-max-length", 100_000),)))
        administer(cat.SetPolicy("passing", "nothing*", 1, (("x-overflow", "drop-head"),)))
        administer(cat.RemovePolicy("passing"))
        administer(cat.RemoveQueue("gone"))

    def _consumers(self) -> None:
        group, queue = self.queues["filtered"]
        writer = Session(self.cluster, "n1")
        for _ in range(6):
            self.publish(writer, "filtered", 50, filtered=True)
        self.publish(writer, "filtered", 3, filtered=True, ttls_ms=(400, -1, 60_000_000))
        self.publish(writer, "filtered", 2, filtered=True, ttl_ms=50_000_000)
        reader = Session(self.cluster, "n2")
        attached = reader.call(group, c.Attach(queue, "red", selector("colour = 'red' AND weight > 20"), 12))
        attach = attached.attach  # type: ignore[union-attr]
        self.cluster.run(500)
        reader.call(group, c.Settle(queue, "red", attach, ((1, 3), (5, 5)), 20))
        reader.call(group, c.Return(queue, "red", attach, ((4, 4),)))
        reader.call(group, c.Discard(queue, "red", attach, ((6, 6),)))
        reader.call(group, c.Modify(queue, "red", attach, ((7, 8),), 0, delivery_failed=True))
        reader.call(
            group, c.Modify(queue, "red", attach, ((9, 9),), 0, delivery_failed=True, undeliverable_here=True)
        )
        reader.call(group, c.Credit(queue, "red", 30, drain=True))
        reader.call(group, c.Get(queue, 3, settled=False))
        reader.call(group, c.Get(queue, 2, settled=True))
        other = Session(self.cluster, "n3")
        other.call(group, c.Attach(queue, "like", selector("colour LIKE 'b%' OR ratio BETWEEN 1 AND 3"), 5))
        other.call(group, c.Cancel(queue, "like", True))
        other.call(group, c.CloseSession())
        again = Session(self.cluster, "n1", writer.producer, 2)  # a higher epoch: the old one is fenced
        again.next_sequence = writer.next_sequence
        self.publish(again, "filtered", 4, filtered=True)
        self.cluster.run(500)

    def _blocks(self) -> None:
        """More than one block, with holes and messages that are checked out."""
        group, queue = self.declare("long")
        writer = Session(self.cluster, "n3")
        for _ in range(36):
            bodies = [b"%05d" % (writer.next_sequence + i) for i in range(500)]
            first = writer.next_sequence
            writer.next_sequence += len(bodies)
            command = c.Enqueue(queue, first, first, len(bodies), sum(map(len, bodies)))
            writer.call(group, command, batch(bodies))
        reader = Session(self.cluster, "n1")
        attach = reader.call(group, c.Attach(queue, "front", b"", 200)).attach  # type: ignore[union-attr]
        self.cluster.run(300)
        reader.call(group, c.Settle(queue, "front", attach, ((1, 40), (50, 60), (199, 199))))

    def _readers(self) -> None:
        group, queue = self.queues["filtered"]
        session = Session(self.cluster, "n3")
        opening = c.OpenSubscription(
            queue, "archive", selector("weight < 250"), "earliest", 86_400_000, "keep"
        )
        generation = session.call(group, opening).generation  # type: ignore[union-attr]
        session.call(group, c.Reserve(queue, "archive", generation, 0, 20, 1 << 20))
        session.call(group, c.Reserve(queue, "archive", generation, 1, 20, 1 << 20))
        session.call(group, c.SettleReserved(queue, "archive", generation, 1))
        session.call(group, c.KeepSubscription(queue, "archive", generation))
        opening = c.OpenSubscription(queue, "late", b"", "latest", 86_400_000, "release")
        generation = session.call(group, opening).generation  # type: ignore[union-attr]
        session.call(group, c.Reserve(queue, "late", generation, 0, 5, 1 << 20))
        session.call(group, c.ReleaseSubscription(queue, "late", generation))
        session.call(group, c.OpenSubscription(queue, "old", b"", "earliest", 86_400_000, "discard"))
        session.call(group, c.DeleteSubscription(queue, "old"))
        pinned = session.call(group, c.Pin(queue, 10_000_000))
        session.call(group, c.Unpin(queue, pinned.pin))  # type: ignore[union-attr]
        session.call(group, c.Pin(queue, 10_000_000))

    def _staging(self) -> None:
        group, queue = self.queues["filtered"]
        session = Session(self.cluster, "n2")

        def stage(number: int, part: int, chunk: int) -> None:
            bodies = [f"staged {number} {part} {chunk} {i}".encode() for i in range(5)]
            rows = [{"application-properties.colour": "staged"}] * 5
            command = c.Stage(
                queue, "writer", number, bytes([part]) * 16, chunk, 5, sum(map(len, bodies)), 60_000_000,
                columns=columns.encode(rows),
            )  # fmt: skip
            session.call(group, command, batch(bodies))

        for part in (1, 2):
            stage(1, part, 0)
            stage(1, part, 1)
        session.call(group, c.DiscardStaged(queue, "writer", 1, (bytes([2]) * 16,)))
        session.call(group, c.PublishStaged(queue, "writer", 1, ((bytes([1]) * 16, 10),)))
        stage(2, 1, 0)
        session.call(group, c.PublishStaged(queue, "writer", 2, ((bytes([1]) * 16, 5),), staged_to=1))
        session.call(group, c.DiscardStaged(queue, "writer", 2, forget=True))
        stage(3, 1, 0)

    def _limits(self) -> None:
        writer = Session(self.cluster, "n2")
        self.publish(writer, "short", 4)
        self.publish(writer, "short", 4)  # refused
        for _ in range(3):
            self.publish(writer, "rolling", 3)
        self.publish(writer, "fleeting", 10)
        self.publish(writer, "tried", 3)
        group, queue = self.queues["tried"]
        reader = Session(self.cluster, "n1")
        attach = reader.call(group, c.Attach(queue, "failing", b"", 3)).attach  # type: ignore[union-attr]
        for time in range(3):
            self.cluster.run(200)
            first = 3 * time + 1
            reader.call(
                group,
                c.Modify(queue, "failing", attach, ((first, first + 2),), first + 5, delivery_failed=True),
            )
        self.cluster.run(4_000)

    def _singles(self) -> None:
        """Many messages that share entries, from several sessions, and a queue that is purged."""
        group, queue = self.queues["filtered"]
        sessions = [Session(self.cluster, name) for name in MEMBERS]
        for number in range(60):
            for session in sessions:
                first = session.next_sequence
                session.next_sequence += 1
                row = [{"application-properties.colour": "single", "application-properties.weight": number}]
                command = c.Enqueue(queue, first, 1, 1, 6, columns=columns.encode(row))
                session.send(group, command, first, batch([b"single"]))
        self.cluster.until(lambda: all(len(s.replies) >= 60 for s in sessions), "the singles are confirmed")
        self.publish(sessions[0], "plain", 30)
        self.publish(sessions[1], "rolling", 2)
        rolling, dropped = self.queues["rolling"]
        sessions[1].call(rolling, c.Purge(dropped))

    def _arrangements(self) -> None:
        """Queues that deliver in another order than that of arrival, or not to everybody, or not at once."""
        group, queue = self.declare("ranked", max_priority=5, consumer_timeout=1_000)
        writer = Session(self.cluster, "n1")
        self.publish(writer, "ranked", 12, priorities=bytes(n % 7 for n in range(12)))
        self.publish(writer, "ranked", 3, priorities=bytes([4]))
        slow, quick = Session(self.cluster, "n2"), Session(self.cluster, "n3")
        do(slow, group, c.Attach(queue, "slow", b"", 4, priority=-2))
        attach = self.attach(quick, group, c.Attach(queue, "quick", b"", 5, priority=3))
        do(quick, group, c.Settle(queue, "quick", attach, ((1, 2),), 8))
        self.cluster.run(2_500)  # the consumer timeout
        do(quick, group, c.Cancel(queue, "quick", False))

        group, queue = self.declare("grouped", message_groups=True)
        keys = b"".join((n % 3).to_bytes(8, "big") for n in range(15))
        self.publish(writer, "grouped", 15, group_keys=keys)
        attach = self.attach(slow, group, c.Attach(queue, "one", b"", 3))
        self.attach(quick, group, c.Attach(queue, "two", b"", 4))
        do(slow, group, c.Return(queue, "one", attach, ((2, 2),)))
        do(slow, group, c.Settle(queue, "one", attach, ((1, 1),), 6))

        group, queue = self.declare("alone", single_active_consumer=True)
        self.publish(writer, "alone", 8)
        attach = self.attach(slow, group, c.Attach(queue, "first", b"", 2))
        self.attach(quick, group, c.Attach(queue, "second", b"", 10))
        do(slow, group, c.Settle(queue, "first", attach, ((1, 1),)))
        do(slow, group, c.Cancel(queue, "first", True))

        group, queue = self.declare("later", delayed_retry_min=500, delayed_retry_max=2_000, delivery_limit=9)
        now_ms = self.machine_time_ms(group)
        self.publish(writer, "later", 4, due_times_ms=(now_ms + 800, now_ms + 400, now_ms + 90_000_000, -700))
        self.publish(writer, "later", 2, due_times_ms=(-300,))
        attach = self.attach(slow, group, c.Attach(queue, "patient", b"", 9))
        self.cluster.run(1_500)
        do(slow, group, c.Modify(queue, "patient", attach, ((1, 2),), 12, delivery_failed=True))
        self.cluster.run(2_000)

        group, queue = self.declare("small", max_length_bytes=400, max_consumers=1, overflow="reject-publish")
        self.publish(writer, "small", 12, independent=True)
        self.publish(writer, "small", 2, immediate=True)
        self.attach(slow, group, c.Attach(queue, "only", b"", 3))
        refused(quick, group, c.Attach(queue, "too many", b"", 3))
        self.publish(writer, "small", 2, immediate=True)

        group, queue = self.declare("unused", expires=4_000)
        self.cluster.run(2_000)
        do(Session(self.cluster, "n2"), group, c.UseQueue(queue))
        self.cluster.until(lambda: not self.exists("unused"), "the unused queue is removed")
        del self.queues["unused"]

    def _routing(self) -> None:
        """Exchanges and bindings in the catalog, and batches for several queues of a group."""
        self.administer(ex.DeclareExchange("lost", "fanout", ()))
        self.administer(ex.DeclareExchange("routes", "topic", (("alternate-exchange", "lost"),)))
        self.administer(ex.DeclareExchange("marks", "headers", ()))
        self.administer(ex.DeclareExchange("gone", "direct", ()))
        self.administer(ex.Bind("routes", "queue", "plain", "orders.*"))
        self.administer(ex.DeclareExchange("red", "selector", ()))
        self.administer(ex.Bind("red", "queue", "ranked", "", (), selector("colour = 'red'").hex()))
        self.administer(ex.Bind("marks", "queue", "plain", "", (("x-match", "any"), ("weight", 1))))
        self.administer(ex.Bind("lost", "exchange", "marks"))
        self.administer(ex.Bind("gone", "queue", "short", "key"))
        catalog = self.cluster.members["n1"].catalog
        [binding] = [each for each in catalog.exchanges.bindings.values() if each.source == "lost"]
        self.administer(ex.Unbind(binding.id))
        self.administer(ex.DeleteExchange("gone", catalog.exchanges.by_name["gone"].id, False))

        first, second = self.beside("beside 1", "beside 2")
        group = self.queues[first][0]
        writer = Session(self.cluster, "n2")
        numbers = [self.queues[name][1] for name in (first, second)]
        bodies = [f"routed {number}".encode() for number in range(6)]
        targets = (c.Target(numbers[0], ((0, 5),)), c.Target(numbers[1], ((2, 2), (5, 1))))
        for own_numbers in ((), ((20, 3), (30, 3))):
            first_number = own_numbers[0][0] if own_numbers else writer.next_sequence
            command = c.Enqueue(
                0, first_number, first_number, 6, sum(map(len, bodies)),
                independent=True, targets=targets, numbers=own_numbers,
            )  # fmt: skip
            writer.next_sequence += 6
            do(writer, group, command, batch(bodies))

    def _transactions(self) -> None:
        """In one group: committed, rolled back, refused. In two groups: committed, rolled back, left in doubt."""
        one, two = self.queues["plain"], self.elsewhere("other group", self.queues["plain"][0])
        session = Session(self.cluster, "n1")
        self.publish(session, "plain", 6)
        attach = self.attach(session, one[0], c.Attach(one[1], "worker", b"", 6))

        def publish(tx: int, place: tuple[int, int], count: int = 2) -> None:
            bodies = [f"transaction {tx}, {each}".encode() for each in range(count)]
            command = c.Enqueue(place[1], 0, 0, count, sum(map(len, bodies)))
            session.call(place[0], c.InTransaction(tx, command), batch(bodies))

        def settle(tx: int, tag: int) -> None:
            settlement = c.Settle(one[1], "worker", attach, ((tag, tag),))
            do(session, one[0], c.InTransaction(tx, settlement))

        publish(1, one)
        settle(1, 1)
        do(session, one[0], c.Commit(1, 2, 3))
        publish(2, one)
        settle(2, 2)
        do(session, one[0], c.Rollback(2))
        publish(3, one)
        refused(session, one[0], c.Commit(3, 7, 3))  # the number of operations is wrong

        for tx, is_committed in ((4, True), (5, False)):
            publish(tx, one)
            settle(tx, tx)
            publish(tx, two, 3)
            do(session, two[0], c.Prepare(tx, 1, 9, one[0]))
            decision = c.Decide(tx, 2, 9, (two[0],)) if is_committed else c.Rollback(tx)
            do(session, one[0], decision)
            own = Session(self.cluster, "n1")
            do(own, two[0], c.Finish(session.producer, tx, is_committed, 9))
            if is_committed:
                do(own, one[0], c.Finished(session.producer, tx))
        publish(6, one)
        publish(6, two)
        do(session, two[0], c.Prepare(6, 1, 9, one[0]))
        own = Session(self.cluster, "n2")
        refused(own, one[0], c.Resolve(session.producer, 6))  # no decision: it is rolled back
        do(own, two[0], c.Finish(session.producer, 6, False, 9))
        publish(7, one)
        publish(7, two)
        do(session, two[0], c.Prepare(7, 1, 9, one[0]))  # stays in doubt

    def _dead_letters(self) -> None:
        """Messages that die for each reason, and the worker that takes them away."""
        group, queue = self.declare(
            "mortal", dead_letter_exchange="", dead_letter_routing_key="plain", overflow="reject-publish",
            delivery_limit=1, message_ttl=2_000, filter_enabled=True,
        )  # fmt: skip
        writer = Session(self.cluster, "n3")
        self.publish(writer, "mortal", 9, filtered=True)
        attach = self.attach(writer, group, c.Attach(queue, "doctor", b"", 6))
        do(writer, group, c.Discard(queue, "doctor", attach, ((1, 2),)))
        for tag in (3, 7):
            do(writer, group, c.Modify(queue, "doctor", attach, ((tag, tag),), 9, delivery_failed=True))
            self.cluster.run(200)
        self.cluster.run(3_000)
        worker = Session(self.cluster, "n1")
        producer = b"worker".ljust(16)
        do(worker, group, c.ClaimDead(queue, 1, producer))
        do(worker, group, c.SettleDead(queue, 1, to=2, forwarded=2))
        do(worker, group, c.ClaimDead(queue, 2, producer))
        refused(worker, group, c.SettleDead(queue, 1, to=3, forwarded=1))  # an old epoch
        do(worker, group, c.SettleDead(queue, 2, to=3, forwarded=0, again_to=4, problem="queue_full"))
        do(worker, group, c.Purge(queue, dead_only=True))
        self.publish(writer, "mortal", 3, filtered=True)
        self.cluster.run(3_000)

    def _users(self) -> None:
        self.administer(us.SetUser("root", "scrypt$1$00$11", administers=True, monitors=False))
        self.administer(us.SetUser("ann", "", administers=False, monitors=True))
        self.administer(us.SetPermissions("ann", "a*", "", "*"))
        self.administer(us.SetUser("bob", "scrypt$1$22$33", administers=False, monitors=False))
        self.administer(us.RemoveUser("bob"))

    def _lease_times(self) -> None:
        catalog = self.cluster.members["n1"].catalog
        self.administer(lt.SetLeaseTimes(5_000, 1_200, catalog.changes))
        wanted = lt.LeaseTimes(5_000, 1_200)

        def settled() -> bool:
            found = self.cluster.members["n1"].catalog.lease_settings
            return found is not None and found.wanted == wanted and found.is_settled

        self.cluster.until(settled, "the new lease times are the only ones")

    # ---- inside

    def administer(self, command: cat.CatalogCommand) -> None:
        reply = self.cluster.administer(command)
        assert not isinstance(reply, Refused), (command, reply)

    def attach(self, session: Session, group: int, command: c.Attach) -> int:
        """Attaches a consumer, waits for its messages, and returns the number of the attachment."""
        reply = session.call(group, command)
        assert isinstance(reply, AttachedReply)
        self.cluster.run(300)
        return reply.attach

    def exists(self, queue: str) -> bool:
        return any(member.catalog.queue(queue) is not None for member in self.cluster.members.values())

    def machine_time_ms(self, group: int) -> int:
        leader = self.cluster.leader(group)
        assert leader is not None
        return self.cluster.members[leader].replicas[group].machine.now_ms

    def beside(self, *names: str) -> list[str]:
        """Declares queues until as many as there are names are in one group, and returns these."""
        by_group: dict[int, list[str]] = {}
        for number in range(9):
            name = f"{names[0]}{number}"
            found = by_group.setdefault(self.declare(name)[0], [])
            found.append(name)
            if len(found) == len(names):
                return found
        raise AssertionError("no two of nine queues are in one group")

    def elsewhere(self, name: str, group: int) -> tuple[int, int]:
        """Declares queues until one is in another group."""
        for number in range(9):
            place = self.declare(f"{name} {number}")
            if place[0] != group:
                return place
        raise AssertionError("all queues are in one group")

    def _node_down(self) -> None:
        group, queue = self.queues["plain"]
        session = Session(self.cluster, "n3")
        session.call(group, c.Attach(queue, "lost", b"", 4))
        self.cluster.run(500)
        self.cluster.crash("n3", power=False)
        self.cluster.run(15_000)
        self.cluster.start("n3")
        self.cluster.ready()

    def _members(self) -> None:
        administer = self.cluster.administer
        administer(who.DrainMember("n2", True))
        self.cluster.run(2_000)
        administer(who.DrainMember("n2", False))
        made = "0123456789abcdef" * 2
        administer(who.AddMember(who.joined_id("n9", made), "n9", "n9:1", "n9:2", made))
        administer(who.RemoveMember("n9"))
        self.cluster.run(2_000)
        self.cluster.grow(len(MEMBERS) + 1)
        [joined] = set(self.cluster.names) - set(MEMBERS)
        administer(who.RemoveMember("n4"))
        self.cluster.voters_are(*MEMBERS)
        self.cluster.crash(joined)

    def _versions(self) -> None:
        for group in (0, 1):
            leader = self.cluster.leader(group)
            assert leader is not None
            self.cluster.members[leader].replicas[group].propose_internal(c.SetVersion(CURRENT))
        self.cluster.run(500)


def kind_of(command: c.Command | cat.CatalogCommand) -> str:
    """Operations of a transaction have no kind of their own."""
    return type(command.command if isinstance(command, c.InTransaction) else command).__name__


def record(path: Path) -> None:
    """Writes the archive of the version that runs."""
    recorder = Recorder()
    script = Script()
    script.run()
    recorder.stop()
    cluster = script.cluster
    member = cluster.members["n1"]
    out: dict[str, bytes] = {}
    kinds = set()
    for group, replica in sorted(member.replicas.items()):
        pages = MemoryPages()
        replay = Replay(group, len(member.replicas) - 1, pages)
        entries = []
        version = 0
        for index, (term, body) in sorted(recorder.entries[group].items()):
            replay.apply(index, term, body)
            version = Command(body).version
            kinds |= {kind_of(operation.command) for operation in Command(body).decode()}
            entries.append(ENTRY.pack(index, term, replay.running_hash, len(body)) + body)
        assert state_of(replay.machine) == state_of(replica.machine), "what was recorded is not all"
        out[f"groups/{group}/entries"] = b"".join(entries)
        out[f"groups/{group}/snapshot"] = state_of(replay.machine)
        if isinstance(replay.machine, GroupMachine):
            out[f"groups/{group}/checkpoint"] = checkpoint.Checkpointer(replay.machine).take().state
            kept = sorted(pages.pages.items())
            out[f"groups/{group}/pages"] = b"".join(
                struct.pack("<QI", page, len(data)) + data for page, data in kept
            )
    queues = {
        name: {"group": group, "id": queue, "ready": info.ready, "total": info.total}
        for name, (group, queue) in script.queues.items()
        if (info := queries.info(member.queue_machine(group), queue)) is not None
    }
    for name in MEMBERS:
        cluster.crash(name, power=True)
        for found, inode in cluster.disks[name].names.items():
            out[f"members/{name}/{found.relative_to(DATA)}"] = bytes(inode.data)
        out[f"members/{name}/node.json"] = _node_json(name, cluster.node_states[name])
    about = {
        "machine_version": version,
        "queue_groups": len(member.replicas) - 1,
        "kinds": sorted(kinds),
        "queues": queues,
        "now_ms": cluster.now_ms,
        "config": {"snapshot_ms": 1_000},
    }
    out["about.json"] = json.dumps(about, indent=1).encode()
    _write(path, out)
    print(f"{path}: {path.stat().st_size:,} bytes, {len(out)} files, kinds: {', '.join(sorted(kinds))}")


def _node_json(name: str, node_state: NodeState) -> bytes:
    disk = SimDisk()
    disk.create(DATA / "log" / "LOCK")  # so that the directory is there
    start = record_start(DATA, name, Founding("golden", 3, MEMBERS), 1_700_000_000_000, disk)
    for field in ("incarnation", "is_established", "known_incarnations", "members"):
        setattr(start.node_state, field, getattr(node_state, field))
    start.node_state.save()
    return bytes(disk.names[DATA / "node.json"].data)


def _write(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(str(PurePosixPath(name)))
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
