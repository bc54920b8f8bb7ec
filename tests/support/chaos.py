"""A cluster in one thread under seeded chaos: everything that may fail fails, clients behave as the client library
does, and checkers watch every step. `python -m support.chaos FIRST COUNT` runs many seeds; one seed repeats exactly.

Faults: members die with or without the machine's power, in the middle of a write, or from a failing disk; they pause
for longer than leases last; connections break, stall in one direction, delay; wall clocks jump; members' own clocks
have nothing in common but their speed.

What is checked, at every step or every delivery:
  - one leader a term; members that have applied the same entry have the same running hash
  - no message is in a queue twice; nobody is handed what another one holds; repeats carry the redelivered flag
  - first deliveries to one consumer keep each producer's order; settled messages never come back
and in the end, with all faults healed: everything confirmed has been handed to somebody, everything can be drained, all
members have the same state, and their queues are those of the catalog.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from fifo.effects import Deliver
from quorum.log.errors import LogError
from quorum.node import events as ev
from quorum.node.member import SYSTEM_GROUP
from quorum.node.operations import Command, batch_of
from quorum.replication.group import GroupConfig
from support.chaos_clients import (
    Administrator,
    Broken,
    ClientSession,
    Consumer,
    Getter,
    Hand,
    Key,
    Place,
    Producer,
)
from support.chaos_cluster import ChaosCluster
from support.cluster import STEP_MS, bodies_of
from support.disk import Crashed

FAULTY_MS = 25_000
DRAIN_LIMIT_MS = 120_000


@dataclass(slots=True)
class World:
    """One run of one seed."""

    seed: int
    random: random.Random = field(init=False)
    cluster: ChaosCluster = field(init=False)
    places: list[Place] = field(default_factory=list)
    clients: list[Any] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    hands: dict[Key, Hand] = field(default_factory=dict)
    settled: set[Key] = field(default_factory=set)
    place_of: dict[tuple[int, int], Key] = field(default_factory=dict)
    leaders: dict[tuple[int, int], str] = field(default_factory=dict)
    hashes: dict[tuple[int, int], int] = field(default_factory=dict)
    resume_ms: dict[str, int] = field(default_factory=dict)
    restart_ms: dict[str, int] = field(default_factory=dict)
    is_draining: bool = False
    abandoned: list[ClientSession] = field(default_factory=list)
    """sessions whose nodes have not noticed that the client is gone"""
    story: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        config: dict[str, Any] = {"lease_ms": 1_500}
        if self.seed % 3 == 0:  # a short memory: members that were away for long get snapshots
            config["raft"] = GroupConfig(keep_entries=40)
            config["snapshot_bytes"] = 20_000
        if self.seed % 2 == 0:  # members that apply slowly what they know to be committed
            config["apply_entries"] = 6
        self.cluster = ChaosCluster(5 if self.seed % 5 == 0 else 3, self.seed, **config)
        for number, name in enumerate(self.cluster.names):
            self.cluster.clock_offset_ms[name] = number * 7_000_003 % 20_000_000
        for name in self.cluster.names:  # they began on clock 0; begin again on their own
            self.cluster.crash(name, power=False)
            self.cluster.start(name)
        self.cluster.ready()
        for name in ("plain", "fields", "other"):
            # a member that was sent a snapshot has no bodies to read fields from: it stops at the first it needs
            has_fields = name == "fields" and "raft" not in config
            arguments: dict[str, Any] = {"filter_enabled": True} if has_fields else {}
            self.places.append(Place(name, *self.cluster.declare(name, **arguments), has_fields))
        for name, number in list(self.cluster.sessions):
            self.cluster.submit(name, ev.EndSession(number))
        plain, fields, other = self.places
        first, second = ("n > 0", "n BETWEEN 10 AND 60 OR n > 100") if fields.has_fields else ("", "")
        self.clients = [
            *(Producer(self, number) for number in range(1, 5)),
            Consumer(self, 11, plain, "", 0.1),
            Consumer(self, 12, plain, "", 0.002),
            Consumer(self, 13, fields, first, 0.02),
            Consumer(self, 14, fields, second, 0.002),
            Consumer(self, 15, other, "", 0.005),
            Consumer(self, 16, other, "", 0.001),
            Getter(self, 17, other, "", 0.01),
            Administrator(self, 21),
        ]

    # ---- what clients see

    def read(self, name: str, group: int, deliver: Deliver) -> list[tuple[int, bytes]]:
        """(sequence, body) of each message, from the node's own log."""
        found: list[tuple[int, bytes]] = []
        for run in deliver.runs:
            command = Command(memoryview(self.cluster.logs[name].read(group, run.index))[1:])
            if run.one_each:
                bodies = [
                    body
                    for number in range(run.operation, run.operation + run.count)
                    for body in bodies_of(bytes(batch_of(command.operation(number))))
                ]
            else:
                whole = bodies_of(bytes(batch_of(command.operation(run.operation))))
                bodies = whole[run.ordinal : run.ordinal + run.count]
            found += [(run.first_sequence + i, body) for i, body in enumerate(bodies)]
        return found

    def hand(
        self, who: Consumer, session: ClientSession, group: int, key: Key, body: bytes, is_again: bool
    ) -> None:
        producer, n = map(int, body.split(b":"))
        if self.place_of.setdefault((producer, n), key) != key:
            raise Broken(
                f"message {n} of producer {producer} is at {self.place_of[producer, n]} and at {key}"
            )
        if key in self.settled:
            raise Broken(f"{key}, message {n} of producer {producer}, was settled and comes again")
        before = self.hands.get(key)
        if before is not None:
            if not is_again:
                raise Broken(f"{key} was handed out before and is not flagged")
            if before.holds(self.cluster):
                there, here = before.session, session
                raise Broken(
                    f"{key} is handed to session {here.number} at {here.name} while session {there.number} "
                    f"at {there.name} holds it until {self.cluster.leases[there.name].get(group)}, "
                    f"its clock says {self.cluster.clock_ms(there.name)}"
                )
            self.counts["redelivered"] += 1
        self.hands[key] = Hand(session, group)
        self.counts["delivered"] += 1

    # ---- time

    def turn(self) -> None:
        """One step of everything."""
        cluster = self.cluster
        cluster.now_ms += STEP_MS
        cluster.mend()
        for name, at in list(self.restart_ms.items()):
            if at <= cluster.now_ms:
                del self.restart_ms[name]
                self._start(name)
        for name, at in list(self.resume_ms.items()):
            if at <= cluster.now_ms:
                del self.resume_ms[name]
                cluster.paused.discard(name)
        names = list(cluster.names)
        self.random.shuffle(names)
        for name in names:
            if name in cluster.members and name not in cluster.paused and cluster.is_due(name):
                self._step(name)
        for client in self.clients:
            client.act()

    def _step(self, name: str) -> None:
        cluster = self.cluster
        try:
            cluster.step(name)
        except Crashed:
            self.tell(f"{name} died in the middle of a write")
            self._down(name, power=True)
            return
        except (LogError, OSError) as error:
            if not cluster.disks[name].fail_at:
                raise
            self.tell(f"{name} stopped: {error}")
            self._down(name, power=self.random.random() < 0.5)
            return
        member = cluster.members[name]
        for group, replica in member.replicas.items():
            raft = replica.raft
            if raft.is_leader and self.leaders.setdefault((group, raft.term), name) != name:
                raise Broken(
                    f"{name} and {self.leaders[group, raft.term]} lead term {raft.term} of group {group}"
                )
            if group != SYSTEM_GROUP:
                machine = member.queue_machine(group)
                known = self.hashes.setdefault((group, machine.index), machine.running_hash)
                if known != machine.running_hash:
                    raise Broken(f"{name} differs from others at entry {machine.index} of group {group}")

    def _start(self, name: str) -> None:
        if name not in self.cluster.members:
            self.cluster.start(name)

    def _down(self, name: str, power: bool) -> None:
        cluster = self.cluster
        cluster.paused.discard(name)
        self.resume_ms.pop(name, None)
        cluster.crash(name, power)
        self.restart_ms[name] = cluster.now_ms + self.random.choice((5, 50, 300, 1_500, 6_000))

    def tell(self, what: str) -> None:
        self.story.append(f"{self.cluster.now_ms}: {what}")

    # ---- faults

    def fault(self) -> None:
        chance, cluster = self.random, self.cluster
        kind = chance.choice(
            (
                "kill",
                "power",
                "write",
                "disk",
                "pause",
                "pause",
                "sever",
                "isolate",
                "stall",
                "stall",
                "slow",
                "clock",
                "all",
            )
        )
        up = [name for name in cluster.names if name in cluster.members and name not in cluster.paused]
        if not up:
            return
        name = chance.choice(up)
        other = chance.choice([each for each in cluster.names if each != name])
        self.counts[f"fault {kind}"] += 1
        self.tell(f"{kind} {name} ({other})")
        if kind in ("kill", "power"):
            self._down(name, power=kind == "power")
        elif kind == "all" and chance.random() < 0.4:
            for each in list(cluster.members):
                self._down(each, power=True)
        elif kind == "write":
            disk = cluster.disks[name]
            disk.crash_at = len(disk.operations) + chance.randrange(12)
        elif kind == "disk":
            disk = cluster.disks[name]
            disk.fail_at = {len(disk.operations) + chance.randrange(12): 5}
        elif kind == "pause":
            cluster.paused.add(name)
            self.resume_ms[name] = cluster.now_ms + chance.choice((50, 400, 1_200, 2_500, 4_000, 6_000))
        elif kind == "sever":
            cluster.sever(name, other, chance.choice((5, 100, 1_000, 5_000)))
        elif kind == "isolate":
            for_ms = chance.choice((300, 2_000, 7_000))
            for each in cluster.names:
                if each != name:
                    cluster.sever(name, each, for_ms)
        elif kind == "stall":
            cluster.stalled.add((name, other))
        elif kind == "slow":
            cluster.slow_until_ms = cluster.now_ms + 2_000
        elif kind == "clock":
            cluster.wall_skew[name] = chance.choice((-3_600_000, -500, 0, 500, 86_400_000))

    def run(self) -> None:
        cluster, chance = self.cluster, self.random
        end = cluster.now_ms + FAULTY_MS
        next_fault = cluster.now_ms + 500
        ends_of_stalls: dict[tuple[str, str], int] = {}
        while cluster.now_ms < end:
            self.turn()
            if cluster.now_ms >= next_fault:
                next_fault = cluster.now_ms + chance.choice((50, 200, 800, 2_500))
                self.fault()
            for link in sorted(cluster.stalled):  # the wire gives a silent connection up after a while
                until = ends_of_stalls.setdefault(link, cluster.now_ms + chance.choice((200, 1_000, 5_000)))
                if until <= cluster.now_ms:
                    del ends_of_stalls[link]
                    cluster.stalled.discard(link)
                    if chance.random() < 0.5:
                        cluster.sever(*link, 20)

    # ---- the end

    def heal(self) -> None:
        cluster = self.cluster
        self.tell("healed")
        cluster.heal()
        self.resume_ms.clear()
        self.restart_ms.clear()
        for name in cluster.names:
            cluster.disks[name].crash_at = None
            cluster.disks[name].fail_at = {}
            if name not in cluster.members:
                cluster.start(name)

    def drain(self) -> None:
        """Nothing new is published; everything that is there is settled."""
        self.is_draining = True
        producers = [client for client in self.clients if isinstance(client, Producer)]
        for client in producers:
            client.act = client.live  # type: ignore[method-assign]
        limit = self.cluster.now_ms + DRAIN_LIMIT_MS
        while any(producer.pending for producer in producers) or self._left():
            self.turn()
            if self.cluster.now_ms > limit:
                waiting = {
                    producer.number: list(producer.pending) for producer in producers if producer.pending
                }
                raise Broken(f"no progress: unconfirmed {waiting}, in the queues {self._left()}")
        for client in self.clients:
            client.leave(politely=True)
            client.act = lambda: None  # type: ignore[method-assign]
        for session in self.abandoned:  # keepalive tells the nodes
            if session.name in self.cluster.members:
                self.cluster.submit(session.name, ev.EndSession(session.number))
        for _ in range(0, 8_000, STEP_MS):
            self.turn()

    def _left(self) -> dict[str, int]:
        """What is still in the queues that consumers with the widest selectors serve."""
        found = {}
        for place in self.places:
            for member in self.cluster.members.values():
                info = member.queue_machine(place.group).info(place.queue)
                if info is not None and info.total:
                    found[place.name] = info.total
        return found

    def judge(self) -> None:
        cluster = self.cluster
        cluster.settle()
        for group in next(iter(cluster.members.values())).replicas:
            if len(cluster.snapshots(group)) != 1:
                raise Broken(f"members differ in group {group}")
        for member in cluster.members.values():
            if member.sessions:
                raise Broken(
                    f"{member.config.name} still has sessions {list(member.sessions)} without clients"
                )
        member = next(iter(cluster.members.values()))
        for group in member.replicas:
            if group != SYSTEM_GROUP:
                wished = [queue.id for queue in member.catalog.queues_of_group(group)]
                if member.queue_machine(group).queue_ids() != wished:
                    raise Broken(
                        f"group {group} has {member.queue_machine(group).queue_ids()}, wished {wished}"
                    )
        for client in self.clients:
            if isinstance(client, Producer):
                lost = [n for n in sorted(client.confirmed) if (client.number, n) not in self.place_of]
                if lost:
                    raise Broken(f"confirmed and lost, of producer {client.number}: {lost[:20]}")
        for needed in ("confirmed", "settled", "delivered", "sessions", "declare"):
            if not self.counts[needed]:
                raise Broken(f"nothing to judge: no {needed}")
        if not any(count for kind, count in self.counts.items() if kind.startswith("fault")):
            raise Broken("nothing to judge: no fault")


def run(seed: int) -> World:
    """Runs one seed to its end; raises with its story."""
    world = World(seed)
    try:
        world.run()
        world.heal()
        world.drain()
        world.judge()
    except Exception as error:
        story = "\n  ".join(world.story)
        raise Broken(f"seed {seed}, at {world.cluster.now_ms}: {error!r}\n  {story}") from error
    return world


def main(arguments: list[str]) -> int:
    first, count = int(arguments[0]), int(arguments[1])
    total: Counter[str] = Counter()
    broken = []
    start = time.perf_counter()
    for seed in range(first, first + count):
        try:
            total.update(run(seed).counts)
        except Broken as error:
            broken.append(seed)
            print(error, *traceback.format_exception(error.__cause__)[-6:], sep="\n", flush=True)
    print(
        f"{count} seeds from {first} in {time.perf_counter() - start:.1f} s; {len(broken)} broken: {broken}"
    )
    print(", ".join(f"{kind}: {number}" for kind, number in sorted(total.items())))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
