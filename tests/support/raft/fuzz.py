"""Seeded random runs of a Raft group under everything that may go wrong, and a command for thousands of them.

    python -m support.raft.fuzz [--seeds FIRST COUNT] [--steps N] [--size 3|5] [--spares N] [--rules-off NAME]
                                                                                              (tests/ on the path)

A run is faults for a number of steps, then healing and a demand for progress. Frames are dropped, repeated and
reordered; connections break; links are cut in one or both directions or stall; members crash and lose what was not
synced, all at once too; leaders are ambushed; snapshots are taken at any applied index; syncs come late. A seed decides
all of it: the same seed is the same run, printed by its number and nothing else.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from statistics import median_high

from quorum.replication import codec
from quorum.replication.errors import ReplicationFailed
from quorum.replication.group import Group
from quorum.replication.group_config import GroupConfig
from support.raft.ablations import ABLATIONS, RULES, Rule
from support.raft.checks import Violation
from support.raft.log import ModelLog
from support.raft.world import QUICK, RealLogWorld, World

STEP_S = 0.004
LINK_LIMIT = 300
STEPS = 5_000
"""Of a run that looks for a missing rule."""
CATCHES = 5
"""Seeds that have to find each rule missing."""
MOST_SEEDS = 20
"""That it may take until one does: the median of the gaps between them."""
ECHOED_FRAMES = 300
"""So many of the last frames of each kind may arrive a second time: those of some terms."""


PATIENT = replace(QUICK, leader_fallback_s=4.0, chunk_bytes=1 << 16)
"""A leader that nobody answers stays in office for long, and a snapshot is one frame."""


class Run:
    """One seed."""

    def __init__(
        self,
        seed: int,
        size: int = 3,
        group_class: type[Group] = Group,
        *,
        is_ordered: bool | None = None,
        config: GroupConfig = QUICK,
        world_class: type[World] = World,
        spares: int = 0,
        fills_disks: bool = False,
        echoes: bool = False,
    ) -> None:
        """spares: nodes beside the founding members; with any, members come and go. fills_disks: logs run out of
        space and have it again; only with model logs. echoes: frames of long ago arrive a second time."""
        self.chance = random.Random(f"raft {seed} {size}")
        self.world = world_class(size, seed, group_class, config, spares)
        self.is_ordered = self.chance.random() < 0.5 if is_ordered is None else is_ordered
        """links keep their order and repeat nothing, as TCP does"""
        self.diligence = {name: self.chance.choice((0.1, 1.0, 1.0)) for name in self.world.names}
        """how soon a member's disk is synced"""
        self.commands = 0
        self.blocked_on_index: set[tuple[str, str]] = set()
        self._actions: list[tuple[int, Callable[[], None]]] = [
            (2800, self.tick),
            (5600, self.deliver),
            (1000, self.propose),
            (300, self.snapshot),
            (140, self.break_connection),
            (100, self.cut_or_heal),
            (80, self.stall),
            (30, self.crash),
            (200, self.restart),
            (15, self.ambush),
            (5, self.blackout),
            (30, self.transfer),
        ]
        self.changes = 0
        if spares:
            self._actions.append((200, self.change_members))
        self.refusals = 0
        if fills_disks:
            self._actions.append((150, self.fill_or_empty))
        self._sent: dict[type, deque[tuple[str, str, bytes]]] = {}
        """kind of message -> the last ones, with sender and receiver"""
        self.echoes = echoes
        if echoes:
            self._actions.append((2500, self.echo))
        self._weights = [weight for weight, _ in self._actions]

    # ---- one step

    def step(self) -> None:
        self.world.now += STEP_S
        ((_, action),) = self.chance.choices(self._actions, self._weights)
        action()
        for queue in self.world.links.values():
            if len(queue) > LINK_LIMIT:
                queue.clear()

    def up(self) -> list[str]:
        return sorted(self.world.nodes)

    def tick(self) -> None:
        name = self.chance.choice(self.up()) if self.world.nodes else None
        if name is None:
            return
        node = self.world.nodes[name]
        node.group.tick()
        self.world.checks.observe(node.group, name)
        self.settle(name, 0.6)

    def settle(self, name: str, sync: float) -> None:
        """What follows a tick or a frame: early sends, a sync or none, some application."""
        node = self.world.nodes[name]
        if self.chance.random() < 0.5:
            node.group.flush_early()
        if self.chance.random() < sync * self.diligence[name]:
            node.sync()
        if self.chance.random() < 0.7:
            node.apply(self.chance.choice((1, 100, 10_000)), self.chance.choice((1, 3, 100)))
        self.world.checks.observe(node.group, name)

    def deliver(self) -> None:
        world, chance = self.world, self.chance
        links = [
            link
            for link, queue in world.links.items()
            if queue and link[1] in world.nodes and link not in self.blocked_on_index
        ]
        if not links:
            return
        link = chance.choice(links)
        if self.echoes:
            self.remember(*link, world.links[link][0])
        if self.is_ordered:
            world.deliver(*link)
        else:
            at = 0 if chance.random() < 0.8 else chance.randrange(len(world.links[link]))
            if chance.random() < 0.03:
                world.links[link].pop(at)
                return
            world.deliver(*link, at, keep=chance.random() < 0.1)
        self.settle(link[1], 0.4)

    def propose(self) -> None:
        leaders = sorted(self.world.leaders())
        if not leaders:
            return
        name = self.chance.choice(leaders)
        node = self.world.nodes[name]
        for _ in range(self.chance.choice((1, 1, 1, 4))):
            self.commands += 1
            node.group.propose([b"c%d " % self.commands, b"." * self.chance.choice((1, 60, 150))])
        if self.chance.random() < 0.3:
            node.group.send_appends()
        if self.chance.random() < 0.4:
            checks, floor = self.world.checks, self.world.checks.top
            node.group.read_barrier(lambda index: checks.read(index, floor))

    def snapshot(self) -> None:
        if self.world.nodes:
            self.world.nodes[self.chance.choice(self.up())].snapshot()

    # ---- faults

    def break_connection(self) -> None:
        self.world.reconnect(*self.chance.sample(self.world.names, 2))

    def cut_or_heal(self) -> None:
        world = self.world
        one, other = self.chance.sample(world.names, 2)
        kind = self.chance.random()
        if (one, other) in world.cut or kind < 0.4:
            world.heal(one, other)
        elif kind < 0.6:
            world.cut.add((one, other))
            world.links[one, other].clear()
        elif kind < 0.9:
            world.separate(one, other)
        else:
            world.isolate(one)

    def remember(self, sender: str, to: str, frame: bytes) -> None:
        kind = type(codec.decode(frame))
        self._sent.setdefault(kind, deque(maxlen=ECHOED_FRAMES)).append((sender, to, frame))

    def echo(self) -> None:
        """A frame that was sent long ago, in an earlier term perhaps, arrives a second time, whatever is cut now."""
        if self._sent:
            kind = self.chance.choice(list(self._sent))
            sender, to, frame = self.chance.choice(self._sent[kind])
            if to in self.world.nodes:
                self.world.nodes[to].group.receive(sender, frame)
                self.settle(to, 0.4)

    def stall(self) -> None:
        links = sorted(self.world.links)
        self.blocked_on_index = set(self.chance.sample(links, self.chance.choice((0, 0, 1, 2))))

    def crash(self) -> None:
        if len(self.world.nodes) > self.world.checks.size // 2:
            self.world.crash(self.chance.choice(self.up()), self.chance)

    def restart(self) -> None:
        for name in self.world.names:
            if name not in self.world.nodes:
                self.world.start(name)
                return

    def ambush(self) -> None:
        """The leader dies and its best follower is cut off: what was acknowledged must be with the others."""
        leaders = sorted(self.world.leaders())
        if leaders and len(self.world.nodes) == self.world.checks.size:
            self.world.crash(leaders[-1], self.chance)
            self.world.isolate(max(self.up(), key=lambda name: self.world.nodes[name].group.last_index))

    def blackout(self) -> None:
        """The power goes everywhere."""
        for name in self.up():
            self.world.crash(name, self.chance)
        for name in self.world.names:
            self.world.start(name)

    def transfer(self) -> None:
        leaders = sorted(self.world.leaders())
        if leaders:
            others = [name for name in self.world.names if name != leaders[0]]
            self.world.nodes[leaders[0]].group.transfer_leadership(self.chance.choice(others))

    def change_members(self) -> None:
        """Some leader, in office or behind the times, wants somebody in or out."""
        leaders = sorted(self.world.leaders())
        if not leaders:
            return
        name = self.chance.choice(leaders)
        group = self.world.nodes[name].group
        self.world.checks.observe(group, name)
        now = group.configuration
        other = self.chance.choice([each for each in self.world.names if each != name])
        if other in now.learners and (group.is_caught_up(other) or self.chance.random() < 0.2):
            wanted = now.with_voter(other)
        elif other in now.everybody:
            if len(now.voters) <= self.chance.choice((1, 2, 2, 3)):
                return
            wanted = now.without(other)
        else:
            wanted = now.with_learner(other)
        self.changes += group.change_members(wanted) is not None
        self.world.checks.observe(group, name)

    def fill_or_empty(self) -> None:
        """A member's log has no more room for entries, or has it again."""
        name = self.chance.choice(self.up()) if self.world.nodes else None
        if name is not None:
            log = self.world.nodes[name].log
            assert isinstance(log, ModelLog)
            self.refusals += self.world.nodes[name].group.is_full
            log.has_room = not log.has_room

    # ---- the end

    def heal(self) -> None:
        """All is well again: within seconds everybody agrees on everything, and goes on."""
        world = self.world
        self.blocked_on_index.clear()
        world.heal()
        for name in world.names:
            if name not in world.nodes:
                world.start(name)
            log = world.nodes[name].log
            if isinstance(log, ModelLog):
                log.has_room = True
        world.run(4.0)
        leaders = [name for name in world.leaders() if world.nodes[name].group.leader_ready]
        if len(leaders) != 1:
            raise Violation(f"after healing, leaders are {leaders}")
        world.propose(leaders[0], b"the last command")
        world.run(1.0)
        members = world.nodes[leaders[0]].group.configuration.everybody
        states = {name: world.nodes[name].commands for name in members}
        first = states[leaders[0]]
        if not first or first[-1] != b"the last command":
            raise Violation("after healing, a new command is not applied")
        committed = [command for _, (_, command) in sorted(world.checks.committed.items()) if command]
        for name, state in states.items():
            if state != committed:
                raise Violation(f"after healing, {name} has {len(state)} commands of {len(committed)}")


def run(
    seed: int,
    steps: int,
    size: int = 3,
    group_class: type[Group] = Group,
    *,
    is_ordered: bool | None = None,
    world_class: type[World] = World,
    spares: int = 0,
    fills_disks: bool = False,
    echoes: bool = False,
) -> Run:
    """One whole run; Violation or ReplicationFailed if it went wrong."""
    made = Run(
        seed,
        size,
        group_class,
        is_ordered=is_ordered,
        config=PATIENT if echoes else QUICK,
        world_class=world_class,
        spares=spares,
        fills_disks=fills_disks,
        echoes=echoes,
    )
    for _ in range(steps):
        made.step()
    made.heal()
    return made


def run_without(rule: Rule, seed: int, steps: int = STEPS) -> str:
    """What went wrong in a run of a build without the rule; empty if nothing did."""
    try:
        run(
            seed,
            steps,
            rule.size,
            rule.group_class,
            spares=rule.spares,
            fills_disks=rule.fills_disks,
            echoes=rule.echoes,
        )
    except Exception as error:  # whatever ends a run has noticed something
        return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


def catch(rules: Iterable[Rule], first: int, say: Callable[[str], None]) -> list[str]:
    """Looks for the first seeds that find each rule missing; the names of those that no seed finds, or too few."""
    missed = []
    for rule in rules:
        if rule.scene:
            say(f"  {rule.name:22}  not by seeds: {rule.scene}")
            continue
        seeds: list[int] = []
        noticed = ""
        for seed in range(first, first + CATCHES * MOST_SEEDS):
            if found := run_without(rule, seed):
                seeds.append(seed)
                noticed = noticed or found
                if len(seeds) == CATCHES:
                    break
        median = median_high(b - a for a, b in pairwise([first - 1, *seeds])) if seeds else 0
        if len(seeds) < CATCHES or median > MOST_SEEDS:
            missed.append(rule.name)
        say(f"  {rule.name:22}  {', '.join(map(str, seeds)):24}  {median:6}  {rule.promise}  {noticed[:100]}")
    return missed


def main(arguments: list[str]) -> int:
    """The command: 0 if every seed was fine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs=2, type=int, default=(1, 100), metavar=("FIRST", "COUNT"))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--size", type=int, default=3)
    parser.add_argument("--spares", type=int, default=0, help="nodes that come in and go out again")
    parser.add_argument("--real-log", action="store_true", help="the node's log on a simulated disk")
    parser.add_argument(
        "--rules-off", metavar="NAME", help="an ablation of support.raft.ablations, or all of them"
    )
    options = parser.parse_args(arguments)
    first, count = options.seeds
    if options.rules_off == "all":
        missed = catch(RULES, first, print)
        print(f"{len(RULES)} rules" + (f"; missed: {missed}" if missed else ", none missed"))
        return 1 if missed else 0
    group_class = ABLATIONS[options.rules_off] if options.rules_off else Group
    bad = commands = reads = lives = changes = 0
    for seed in range(first, first + count):
        try:
            world_class = RealLogWorld if options.real_log else World
            done = run(
                seed,
                options.steps,
                options.size,
                group_class,
                world_class=world_class,
                spares=options.spares,
            )
        except (Violation, ReplicationFailed) as error:
            bad += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
        else:
            commands += len(done.world.checks.committed)
            reads += done.world.checks.reads
            lives += done.world.lives
            changes += done.changes
    print(
        f"{count} seeds of {options.steps} steps, {options.size} members: {bad} bad, "
        f"{commands} entries committed, {reads} reads, {lives} lives, {changes} changes of members"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
