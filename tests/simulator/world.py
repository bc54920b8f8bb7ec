"""One run of one seed: nodes, clients, what lies between them, and what goes wrong; in one thread, in simulated time.

Everything that happens is an event at a millisecond; events of the same one happen in the order in which they were
made. All chance comes from the seed, by name, so that what one part draws does not change what another one gets.
Everything that travels, and everything that is decided here, goes into a digest: two runs of a seed end with the
same.

The course of a run: the cluster starts and queues are declared; clients work while faults strike, with ebbs in which
nothing is published and queues drain; then faults stop, a majority comes back (not always everybody), and everything
that was confirmed has to be delivered, every queue to drain, all members to agree.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fifo.group_machine import GroupMachine
from fifo.queries import group as queries
from quorum.client.errors import UnavailableError
from quorum.log import Log
from quorum.log.errors import LogDamaged, LogFull
from quorum.node import member_config
from quorum.node.identity.identity import Founding, IdentityError
from quorum.node.member import Member
from simulator.changes import Changes, Mover
from simulator.clients.alone import alone_apps, alone_places
from simulator.clients.apps import (
    SELECTORS,
    WIDE_SELECTOR,
    Administrator,
    App,
    Consumer,
    Getter,
    NumberedProducer,
    Operator,
    Place,
    Producer,
)
from simulator.clients.bounded import bounded_apps, bounded_places, delayed_places
from simulator.clients.bulk import Browser, Reader, Writer
from simulator.clients.copies import PLACES, copy_apps
from simulator.clients.crowd import Crowd
from simulator.clients.grouped import grouped_apps, grouped_places
from simulator.clients.hostile import hostile_apps
from simulator.clients.mortals import Deaths, mortal_apps
from simulator.clients.reads import Auditor, Tally, Teller
from simulator.clients.singles import SingleProducer
from simulator.clients.transactors import Transactor
from simulator.faults import Faults, states_of
from simulator.lease_changes import FIRST_LEASE_MS, LeaseChanges
from simulator.machines.disk import FaultyDisk
from simulator.machines.loop import NEVER, Clock
from simulator.machines.machine import CLUSTER, Machine
from simulator.machines.network import IDLE_MS, PeerNetwork
from simulator.machines.node import Node
from simulator.machines.process import Process
from simulator.machines.room import room_of
from simulator.machines.wire import GONE, Connection
from simulator.rules.ledger import Ledger
from simulator.rules.rules import Broken, Rules
from simulator.upgrades import Upgrades

FAULTY_MS = 18_000
EBB_MS = 3_000
START_MS = 1_000_000
START_AGAIN_MS = 1_000
START_LIMIT_MS = 30_000
PROGRESS_LIMIT_MS = 60_000
"""Far more than elections, leases, and the client's growing patience with silent nodes take together."""
ASK_MS = 5
"""Between two looks at whether a phase of the run is over."""
MAX_RUNS_AT_ONCE = 20_000
LEASE_MS = 1_500
WIDE_SEEDS = 0.25
ROUTING_SEEDS = 0.4
TRANSACTION_SEEDS = 0.4
TRANSACTIONS_IN_A_ROW = 30
"""So many of one client are committed, with none that fails between them, once the cluster is healed."""
EXCHANGE_SEEDS = 0.3
DEAD_LETTER_SEEDS = 0.4
FEW_PART = 0.15
"""Of all seeds: the cluster is founded with one or two members, and grows to three."""
LEASES_MS = (LEASE_MS, LEASE_MS, 4_000)
"""Members are started with one of these, and differ in it: the lease that counts is the cluster's."""
SPREAD_AFTER_MS = (500, member_config.SPREAD_AFTER_MS)
"""Members spread leaders after one of these: between faults, a cluster is rarely settled for long."""


@dataclass(frozen=True, slots=True)
class Build:
    """What is run: the product, or a broken one (broken/canaries.py). patches: attribute -> what stands there."""

    name: str = "the product"
    log: type[Log] = Log
    member: type[Member] = Member
    patches: dict[str, Any] = field(default_factory=dict)
    scenario: str = ""
    """Where the bug of a broken build lives: a bounded queue that every seed has then (bounded.py), "wipe", "bulk",
    "leases" whose times change, "wide" batches, batches with "routing" keys, "few" founders, "singles" that are
    gathered, "transactions", "exchanges", "deaths", a queue with a consumer "alone", one that is "grouped", "delays" of
    messages, or "versions" that members are upgraded to."""


class World:
    """See the module's text."""

    def __init__(self, seed: int, build: Build | None = None) -> None:
        self.seed = seed
        self.build = build or Build()
        self.now_ms = START_MS
        self.room = room_of(seed)
        self.processes: list[Process] = []
        """all that ever were"""
        self.story: deque[str] = deque(maxlen=60)
        self.phase = "start"
        self.is_ebb = False
        self.drained: str | None = None
        """a member that an operator lets rest, perhaps"""
        self.stepping: Node | None = None
        """whose member makes a step, or made the last one"""
        self.client_late_ms = 0
        self.events = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._numbers = itertools.count()
        self._producers = itertools.count(100)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._runs: list[tuple[int, int, Process]] = []
        self._defects: list[tuple[str, BaseException | None]] = []
        self._lives = itertools.count(1)
        self._client_chance = self.random_of("client network")
        self.connections: dict[Connection, None] = {}
        self.bounded = bounded_places(self.random_of("bounded"), self.build.scenario)
        self.bounded += delayed_places(self.random_of("delays"), is_needed=self.build.scenario == "delays")
        self.rules = Rules(self)
        self.tally = Tally(self.rules.counts)
        self.ledger = Ledger(self)
        self.machines: dict[str, Machine] = {}
        self.nodes: dict[str, Node] = {}
        """what runs on a machine, or ran there last"""
        self.network = PeerNetwork(self)
        self._configure(self.random_of("configuration"))
        self.faults = Faults(self)
        self.changes = Changes(self)
        self.lease_changes = LeaseChanges(self)
        self.upgrades = Upgrades(self)
        self.apps: list[App] = []
        for name in self.founders:
            self.start(name)

    def _configure(self, chance: random.Random) -> None:
        few = self.random_of("founders")
        number = 5 if self.seed % 5 == 0 else 3
        if few.random() < FEW_PART or self.build.scenario == "few":
            number = few.choice((1, 2))
        self.founders = tuple(f"n{each}" for each in range(1, number + 1))
        self.loses_one = self.seed % 4 == 1 and number >= 3 and self.build.scenario != "wipe"
        """one member is dead in the end"""
        self.member_settings: dict[str, Any] = {
            "spread_after_ms": self.random_of("spread").choice(SPREAD_AFTER_MS),
            "lease_ms": LEASE_MS,
            "queue_groups": 2,
            "limits": self.room.limits,
            **self.room.member,
        }
        if self.seed % 2 == 0:  # members that apply slowly what they know to be committed
            self.member_settings["apply_entries"] = 6
        self._machine_chance = chance
        for name in self.founders:
            self.add_machine(name, self.founders)
        self.has_wide = self.random_of("wide").random() < WIDE_SEEDS or self.build.scenario == "wide"
        """some batches have more fields than a block keeps as dense columns"""
        is_routing = self.build.scenario == "routing"
        self.has_routing = self.random_of("routing").random() < ROUTING_SEEDS or is_routing
        """some batches are for several queues"""
        is_transacting = self.build.scenario == "transactions"
        self.has_transactions = self.random_of("transactions").random() < TRANSACTION_SEEDS or is_transacting
        self.outputs = [Place("paid", {}), Place("shipped", {})] if self.has_transactions else []
        """queues that only transactions publish to"""
        is_copying = self.build.scenario == "exchanges"
        self.has_exchanges = self.random_of("exchanges").random() < EXCHANGE_SEEDS or is_copying
        is_dying = self.build.scenario == "deaths"
        has_dead_letters = self.random_of("deaths").random() < DEAD_LETTER_SEEDS or is_dying
        chance = self.random_of("mortal")
        self.deaths = Deaths.of(chance) if has_dead_letters else Deaths()
        self.mortal = self.deaths.places(chance)
        self.alone = alone_places(self.random_of("alone"), self.build.scenario == "alone")
        self.grouped = grouped_places(self.random_of("grouped"), self.build.scenario == "grouped")
        self.single_active = {
            place.name for place in self.alone if "x-single-active-consumer" in place.arguments
        }
        self.consumer_timeouts = {
            place.name: place.arguments["x-consumer-timeout"]
            for place in self.alone
            if "x-consumer-timeout" in place.arguments
        }

    def add_machine(self, name: str, founders: tuple[str, ...] = ()) -> Machine:
        """One more, with nothing running on it yet. founders: what its configuration says; none: it joins."""
        chance = self._machine_chance
        clock = Clock(self, chance.randrange(20_000_000), chance.choice((-3_000, 0, 0, 3_000)))
        founding = Founding(CLUSTER, self.member_settings["queue_groups"], founders)
        machine = Machine(name, clock, FaultyDisk(chance.randrange(1 << 30)), name, founding)
        self.machines[name] = machine
        self.network.add(name)
        return machine

    def settings_of(self, name: str, life: int) -> dict[str, Any]:
        """What a node is started with."""
        lease_ms = self.random_of(f"lease {name} {life}").choice(LEASES_MS)
        if self.lease_changes.has_any:
            lease_ms = FIRST_LEASE_MS
        return self.upgrades.settings(name, {**self.member_settings, "lease_ms": lease_ms})

    def random_of(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def next_number(self) -> int:
        return next(self._numbers)

    def next_producer(self) -> int:
        return next(self._producers)

    # ---- what is written down

    def note(self, data: bytes) -> None:
        self._digest.update(data)

    def tell(self, what: str) -> None:
        line = f"{self.now_ms - START_MS}: {what}"
        self.story.append(line)
        self.note(line.encode())

    def defect(self, what: str, error: BaseException | None = None) -> None:
        self._defects.append((what, error))

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # ---- time

    def at(self, at_ms: int, work: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ms, self.next_number(), work))

    def after(self, for_ms: int, work: Callable[[], None]) -> None:
        self.at(self.now_ms + for_ms, work)

    def wake(self, process: Process) -> None:
        """It may have something to do earlier than it had."""
        if process.queued_ms <= self.now_ms:
            return
        at = process.next_ms()
        if at < process.queued_ms:
            process.queued_ms = at
            heapq.heappush(self._runs, (at, process.serial, process))

    def client_delay_ms(self) -> int:
        late = self.client_late_ms
        return self._client_chance.choice((1, 1, 2, 4)) + (self._client_chance.randrange(late) if late else 0)

    def run_for(self, for_ms: int) -> None:
        self._run_to(self.now_ms + for_ms, lambda: False)

    def run_until(self, done: Callable[[], bool], what: str, limit_ms: int) -> None:
        if not self._run_to(self.now_ms + limit_ms, done):
            raise Broken(f"no progress: {what} not within {limit_ms} ms of the world's time")

    def _run_to(self, end_ms: int, done: Callable[[], bool]) -> bool:
        """done is asked every few moments, because it may look at all members and queues."""
        runs = ask_ms = 0
        while True:
            at = min(self._events[0][0] if self._events else NEVER, self._runs[0][0] if self._runs else NEVER)
            if at > self.now_ms:
                if self.now_ms >= ask_ms:
                    ask_ms = self.now_ms + ASK_MS
                    if done():
                        return True
                if at > end_ms:
                    self.now_ms = end_ms
                    return done()
                self.now_ms, runs = at, 0
            runs += 1
            if runs > MAX_RUNS_AT_ONCE:
                raise Broken("time stands still")
            self._happen()
            if self._defects:
                what, error = self._defects[0]
                raise Broken(what) from error

    def _happen(self) -> None:
        """One event, or one turn of one process."""
        self.events += 1
        if self._events and self._events[0][0] <= self.now_ms:
            heapq.heappop(self._events)[2]()
            return
        at, _, process = heapq.heappop(self._runs)
        if at != process.queued_ms:
            return  # it was queued again, earlier
        process.queued_ms = NEVER
        if process.runs:
            process.run()
        if process.is_up:
            self.wake(process)

    # ---- nodes

    def start(self, name: str) -> None:
        """Unless it runs, or its disk is beyond recovery."""
        if name in self.nodes and self.nodes[name].is_up:
            return
        machine = self.machines[name]
        try:
            self.nodes[name] = Node(self, machine, next(self._lives))
        except (LogDamaged, IdentityError) as error:
            if not machine.disk.is_rotten:
                raise
            self.faults.land("bit rot", None)
            self.tell(f"{name} cannot start: {error}")
        except LogFull as error:
            if not machine.disk.is_full:
                raise
            self.tell(f"{name} cannot start: {error}")
            machine.disk.restart()
            self.after(START_AGAIN_MS, lambda: self._restart(name))

    def down(self, name: str, power: bool, why: str = "", back_ms: int | None = None) -> None:
        """For a while, if faults go on."""
        self._stop(name, power, why)
        if not self.faults.is_over:
            delay_ms = self.faults.chance.choice((5, 50, 300, 1_500, 4_000))
            self.after(delay_ms if back_ms is None else back_ms, lambda: self._restart(name))

    def _stop(self, name: str, power: bool, why: str) -> None:
        node = self.nodes[name]
        if power and node.is_syncing:
            self.ledger.power_cut(node)
        node.die()
        node.is_known_down = not power
        self.tell(f"{name} is down{', with its power' if power else ''} {why}")
        for connection in list(self.connections):
            if connection.node is node:
                connection.leave_node()
                if not power:
                    self.after(self.client_delay_ms(), lambda each=connection: each.leave_client(GONE))  # type: ignore[misc]
        self.network.break_node(name)
        disk = self.machines[name].disk
        if power:
            disk.power_cut(self.faults.chance.randrange(1 << 30))
        else:
            disk.restart()

    def members(self) -> list[Node]:
        """Who is up, and a member as far as anybody knows."""
        wished = self.changes.wished
        return [node for node in self.nodes.values() if node.is_up and node.id in wished]

    def lose_disk(self, name: str) -> None:
        """All of a member's data is gone, and its process starts again as if nothing had happened."""
        self.faults.land("disk lost", self.nodes[name])
        self.down(name, power=True, why="and its disk is lost", back_ms=200)
        self.machines[name].wipe(self.faults.chance.randrange(1 << 30))

    def set_up(self, name: str, node_name: str) -> None:
        """A node that waits to be made a member starts on this machine, with an empty disk."""
        if name in self.nodes and self.nodes[name].is_up:
            self._stop(name, power=False, why="to be set up anew")
        self.machines[name].set_up(node_name, self.faults.chance.randrange(1 << 30))
        self.start(name)
        self.tell(f"{self.nodes[name].id} waits on {name} to be a member")

    def retire(self, name: str) -> None:
        """Nothing more runs on this machine until it is set up anew."""
        self.machines[name].is_retired = True
        if self.nodes[name].is_up:
            self._stop(name, power=False, why="for good")

    def _restart(self, name: str) -> None:
        if self.machines[name].is_retired or (self.faults.is_over and name in self.left_dead):
            return
        self.start(name)

    left_dead: tuple[str, ...] = ()

    @property
    def may_lose_one(self) -> bool:
        """Besides those that the run has in mind."""
        return not self.loses_one and self.changes.may_lose_one

    def pause(self, node: Node, for_ms: int) -> None:
        if node.is_paused:
            return
        states = states_of(self, node)
        node.is_paused = True
        began = self.now_ms

        def idle() -> None:  # peers give it up
            if node.is_paused and self.now_ms - began >= IDLE_MS:
                self.network.break_node(node.name)

        self.after(IDLE_MS, idle)

        def wake() -> None:
            if node.is_up and node.is_paused:
                self.faults.land("pause", node, states)
                self.resume(node)

        self.after(for_ms, wake)

    def resume(self, node: Node) -> None:
        node.is_paused = False
        self.wake(node)

    # ---- clients

    def replace(self, app: App, politely: bool) -> None:
        """The client's process is killed, and another one started. Its machine says so, or not."""
        self.tell(f"{app.name} is killed")
        app.die()
        for connection in list(self.connections):
            if connection.client is app:
                connection.client_is_there = False
                if politely:
                    connection.to_node.send(connection.leave_node)
        self.apps[self.apps.index(app)] = app.successor(app.name)

    def _start_apps(self) -> None:
        plain, other, fields = self.places
        self.apps += [Producer(self, number) for number in range(1, 4)]
        self.apps += [
            Consumer(self, 11, plain, None, 0.5),
            Consumer(self, 12, plain, None, 0.002),
            Consumer(self, 13, other, None, 0.1),
            Getter(self, 14, other, None, 0.1),
            Administrator(self, 15),
            Operator(self, 20),
            Teller(self, 50),
            Auditor(self, 51),
            Auditor(self, 52),
        ]
        if self.seed % 3 == 2 or self.build.scenario == "bulk":
            self.apps += [
                Reader(self, 22, plain),
                Reader(self, 23, fields, "kind = 'red' AND n > 0"),
                Writer(self, 24, other),
                Writer(self, 25, fields),
                Browser(self, 26, plain),
            ]
        if self.seed % 3 == 1 or self.build.scenario == "singles":
            self.apps.append(SingleProducer(self, 60))
        if self.has_transactions:
            self.apps += [Transactor(self, 61, plain), Transactor(self, 62, other)]
            self.apps.append(Crowd(self, 65, self.outputs))
            self.apps += [
                Consumer(self, number, place, None, 0.3) for number, place in enumerate(self.outputs, 63)
            ]
        if self.has_exchanges:
            self.apps += copy_apps(self)
        if self.mortal:
            self.apps += mortal_apps(self)
        self.apps += alone_apps(self) + grouped_apps(self) + bounded_apps(self) + hostile_apps(self)
        if self.changes.has_any:
            self.apps.append(Mover(self, 21))
        self.apps += [
            Consumer(self, number, fields, selector, 0.1)
            for number, selector in enumerate(SELECTORS, 16)
            if self.has_wide or selector != WIDE_SELECTOR
        ]

    def _declare(self) -> None:
        self.places = [
            Place("plain", {}),
            Place("other", {"x-queue-mode": "lazy"} if self.room.is_scarce else {}),
            Place("fields", {"x-filter-enabled": True}),
        ]
        self.rules.counts["lazy queues"] += sum("x-queue-mode" in each.arguments for each in self.bounded)
        founder = _Founder(self, self.queues)
        self.run_until(lambda: founder.is_done, "queues are declared", START_LIMIT_MS)
        founder.die()

    # ---- the course

    def run(self) -> None:
        self.run_until(self._is_ready, "every group has a leader that all know", START_LIMIT_MS)
        self._declare()
        self._start_apps()
        self.run_for(300)
        self.phase = "faults"
        self.lease_changes.begin()
        self.upgrades.begin()
        self.faults.begin()
        ebb_at = self.random_of("ebb").randrange(FAULTY_MS // 2)
        for name, for_ms in (("flood", ebb_at), ("ebb", EBB_MS), ("flood", FAULTY_MS - ebb_at - EBB_MS)):
            self.is_ebb = name == "ebb"
            self.tell(name)
            self.run_for(for_ms)
            self.rules.judge_history()
        self._heal()
        self._progress()
        self._drain()
        self._close()
        self.rules.judge()

    def _is_ready(self) -> bool:
        return all(node.member.is_ready() for node in self.nodes.values() if node.is_up)

    def _heal(self) -> None:
        """A majority comes back."""
        self.tell("healed")
        self.phase = "healed"
        chance = self.random_of("heal")
        names = [name for name in self.nodes if not self.machines[name].is_retired]
        dead = [name for name in names if not self.nodes[name].is_up and self.machines[name].disk.is_rotten]
        if self.loses_one and not dead:
            dead = [chance.choice(self.founders)]
        self.left_dead = tuple(dead)
        self.faults.stop()
        self.upgrades.finish()
        for name in names:
            has_failed = self.machines[name].disk.has_failed
            if name in dead and self.nodes[name].is_up:
                self.down(name, power=chance.random() < 0.5)
            elif name not in dead:
                if has_failed and self.nodes[name].is_up:
                    self._stop(name, power=False, why="its disk has failed")
                self.start(name)
        if not all(self.nodes[name].is_up for name in names if name not in dead):
            self.left_dead = tuple(name for name in names if not self.nodes[name].is_up)
        self.tell(f"dead for good: {self.left_dead}")

    def _progress(self) -> None:
        """Publishing goes on: what is sent now is confirmed."""
        counts = self.rules.counts
        before = counts["confirmed"]
        self.run_until(lambda: counts["confirmed"] > before + 20, "publishing goes on", PROGRESS_LIMIT_MS)
        if self.has_transactions:
            self.run_until(self._transactions_go_on, "transactions from many tasks go on", PROGRESS_LIMIT_MS)
        self.phase = "draining"
        producers = [app for app in self.apps if isinstance(app, NumberedProducer)]
        self.run_until(
            lambda: (
                not any(each.unconfirmed for each in producers)
                and not any(each.batches.messages for each in self.apps if isinstance(each, Writer))
            ),
            "all is confirmed",
            PROGRESS_LIMIT_MS,
        )
        self.run_until(
            lambda: self.changes.is_done, "the groups have the members that are wished for", PROGRESS_LIMIT_MS
        )
        self.run_until(
            lambda: self.lease_changes.is_settled, "all members use the newest lease times", PROGRESS_LIMIT_MS
        )
        self.lease_changes.count()
        self.run_until(
            lambda: self.upgrades.is_done, "all groups switch to the new version", PROGRESS_LIMIT_MS
        )
        self.upgrades.count()
        self.rules.counts["clusters grown"] += len(self.founders) < len(self.changes.wished)

    def _transactions_go_on(self) -> bool:
        return any(app.in_a_row >= TRANSACTIONS_IN_A_ROW for app in self.apps if isinstance(app, Crowd))

    @property
    def queues(self) -> list[Place]:
        """Those that exist as long as the run."""
        copies = PLACES if self.has_exchanges else []
        return self.places + self.bounded + self.outputs + self.alone + self.grouped + self.mortal + copies

    @property
    def is_draining(self) -> bool:
        return self.phase == "draining"

    def _drain(self) -> None:
        """Every matching message leaves; what nobody wants stays, and leaves when somebody comes for all."""
        self.run_until(self._only_unwanted_left, "all that is wanted is delivered", PROGRESS_LIMIT_MS)
        self.rules.counts["unwanted"] += sum(self._left().values())
        self.apps.append(Consumer(self, 40, self.places[2], None, 1.0))
        self.run_until(
            lambda: not self._left() and self._nothing_is_in_doubt(), "the queues drain", PROGRESS_LIMIT_MS
        )
        self.rules.counts["queues drained"] += len(self.queues)
        self.deaths.judge()

    def _left(self) -> dict[str, int]:
        found = {}
        for node in self.members():
            for place in self.queues:
                queue = node.member.catalog.queue(place.name)
                info = (
                    None if queue is None else queries.info(node.member.queue_machine(queue.group), queue.id)
                )
                if info is not None and info.total:
                    found[place.name] = max(info.total, found.get(place.name, 0))
        return found

    def _only_unwanted_left(self) -> bool:
        """Asked every few moments, so the cheap questions come first."""
        left = self._left()
        if set(left) - {"fields"}:
            return False
        unwanted = self.rules.unwanted()
        return left.get("fields", 0) <= unwanted and self._nothing_is_held()

    def _nothing_is_held(self) -> bool:
        for node in self.members():
            queue = node.member.catalog.queue("fields")
            info = None if queue is None else queries.info(node.member.queue_machine(queue.group), queue.id)
            if info is None or info.checked_out:
                return False
        return True

    def _nothing_is_in_doubt(self) -> bool:
        """Whether all groups know all decisions about transactions: what one has prepared is in no queue yet."""
        return not any(
            replica.machine.decisions.are_waiting
            for node in self.members()
            for replica in node.member.replicas.values()
            if isinstance(replica.machine, GroupMachine)
        )

    def _close(self) -> None:
        """Clients leave, and nothing of them stays with the members, which agree."""
        self.phase = "closing"
        for app in self.apps:
            app.leave()
        for connection in list(self.connections):  # of processes that were killed without a word
            if not connection.client_is_there:
                connection.leave_node()
        self.run_until(
            lambda: all(app.client is None for app in self.apps), "clients can leave", PROGRESS_LIMIT_MS
        )
        self.run_until(self._is_settled, "members agree and forget their sessions", PROGRESS_LIMIT_MS)

    def _is_settled(self) -> bool:
        members = [node.member for node in self.members()]
        return all(
            len({(m.replicas[group].raft.applied_index, m.replicas[group].raft.last_index) for m in members})
            == 1
            for group in members[0].replicas
        ) and all(len(member.sessions) <= 1 and not member.reconciler.is_wanted for member in members)

    # ---- after it

    def bury(self) -> None:
        """Ends what is left of all processes, in a fixed order."""
        for process in self.processes:
            process.loop.bury()


class _Founder(App):
    """Declares the queues."""

    def __init__(self, world: World, places: list[Place]) -> None:
        self._places = places
        self.is_done = False
        super().__init__(world, "founder")

    async def work(self, client: Any) -> None:
        for place in self._places:
            while True:
                try:
                    await client.declare(place.name, place.arguments)
                    break
                except UnavailableError:
                    continue
        await client.close()
        self.is_done = True
