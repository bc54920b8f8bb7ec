"""Members that come, go, and lose their disks: what a seed has in mind, how far it is, and who carries it out.

In about every third seed spare machines stand by. An operator's process makes nodes on them members, removes members
(leaders too), puts nodes in the place of members, and mends a member whose disk was lost, all by the calls that
`quorum cluster add|remove|replace` make; and faults strike while the groups are at it.

What no Raft group survives is never done: a disk is lost only where the groups have a majority without that member and
none is about to shrink; where members leave or lose disks, no other member is lost for good (rot, dead in the end); and
a machine is cleared only when every group has let its node go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from quorum.catalog.members import CatalogMember
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.v1 import admin_pb2, admin_pb2_grpc
from simulator.clients.apps import App, excuse

if TYPE_CHECKING:
    from simulator.machines.node import Node
    from simulator.world import World

PART = 0.4
"""Of all seeds."""
STEPS = ("add", "remove", "replace", "wipe", "exchange")
THREE = 3
"""Members that a cluster grows to that was founded with fewer."""
WIPE_PART = 0.6
"""Of the seeds in which members may be removed: the first thing that happens is that a disk is lost."""
FEWEST = 2
"""Members that are left."""
STRIKES = ("kill", "kill", "power", "power", "power all", "pause", "isolated", "isolated", "halves", "reset")
STRUCK_PART = 0.8
"""Of the changes, just after they were asked for."""
WIPED_MS = 12_000
"""How long a disk waits for a moment at which it may be lost."""


@dataclass(slots=True)
class Step:
    """kind: one of STEPS. machine: where the newcomer runs, or whose disk is lost. name: of the member that comes, or
    goes."""

    kind: str
    machine: str = ""
    name: str = ""
    is_asked: bool = False
    """the service has been asked for it"""


class Changes:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.chance = world.random_of("members")
        self._named = 0
        self._index = 0
        self.wished: Mapping[str, CatalogMember] = {}
        """The members, by id, as the catalog that ever was furthest says."""
        self.current: Step | None = None
        self.steps: deque[str] = deque()
        if self.chance.random() < PART:
            kinds = ("add",) if world.loses_one or self.chance.random() < 0.2 else STEPS
            self.steps.extend(self.chance.choice(kinds) for _ in range(1 if len(kinds) == 1 else 3))
            world.add_machine("s1")
            if len(kinds) > 1:
                world.add_machine("s2")
                if world.random_of("wipe").random() < WIPE_PART:
                    self.steps[0] = "wipe"
        if world.build.scenario == "wipe":
            self.steps = deque(["wipe"])
            if "s1" not in world.machines:
                world.add_machine("s1")
        lacking = THREE - len(world.founders)
        if lacking > 0:
            self.steps = deque(["add"] * lacking)
            for name in ("s1", "s2")[:lacking]:
                if name not in world.machines:
                    world.add_machine(name)
        self.has_any = bool(self.steps)
        self.grows_early = lacking > 0
        """A cluster of one or two members becomes one of three before anything fails."""
        self.may_lose_one = not set(self.steps) - {"add"} and lacking <= 0

    def new_name(self) -> str:
        self._named += 1
        return f"x{self._named}"

    # ---- how it is

    def saw(self, node: Node) -> None:
        """A node has made a step: perhaps it has heard who shall be a member."""
        index = node.member.replicas[SYSTEM_GROUP].raft.applied_index
        if index > self._index:
            self._index = index
            self.wished = dict(node.member.catalog.members.by_id) or self.wished

    @property
    def is_carried_out(self) -> bool:
        """Every group's leader has who is wished for as voters, and nobody else; newcomers are confirmed."""
        if any(member.is_joining for member in self.wished.values()):
            return False
        wished = tuple(sorted(self.wished))
        for group in range(self._world.member_settings["queue_groups"] + 1):
            rafts = [n.member.replicas[group].raft for n in self._world.nodes.values() if n.is_up]
            leaders = [raft for raft in rafts if raft.is_leader]
            if not leaders:
                return False
            leader = max(leaders, key=lambda raft: raft.term)
            now = leader.configuration
            if not leader.is_settled or now.learners or tuple(sorted(now.voters)) != wished:
                return False
        return True

    @property
    def is_under_way(self) -> bool:
        return self.has_any and (
            (self.current is not None and self.current.is_asked) or not self.is_carried_out
        )

    @property
    def is_done(self) -> bool:
        """Nothing is half done, and the groups have followed."""
        return not self.has_any or (self.current is None and self.is_carried_out)

    def may_lose(self, member: str) -> bool:
        """Whether every group has a majority without it, now and whatever it does next: everybody is there, so nobody
        can know of members that go. (A member that has gone never comes back, so who is wished for tells the rest.)"""
        members = self._world.members()
        everybody = [set(r.raft.configuration.voters) for n in members for r in n.member.replicas.values()]
        return len(members) == len(self.wished) and all(
            voters <= set(self.wished) and 2 * len(voters - {member}) > len(voters) for voters in everybody
        )

    # ---- what is next

    def begin(self) -> Step | None:
        """The next step, if there is one that can be done."""
        kind = self.steps.popleft()
        wished, chance = self.wished, self.chance
        members = [(self.machine_of(each), each.name) for each in wished.values()]
        leaders = {
            replica.raft.leader for n in self._world.members() for replica in n.member.replicas.values()
        } & set(wished)
        machine, name = chance.choice(members)
        if leaders and chance.random() < 0.6:
            leading = wished[chance.choice(sorted(leader for leader in leaders if leader))]
            machine, name = self.machine_of(leading), leading.name
        free = self._free_machine()
        step: Step | None = None
        if kind == "add" and free:
            step = Step("add", free, self.new_name())
        elif kind == "remove" and len(wished) > FEWEST:
            step = Step("remove", machine, name)
        elif kind == "exchange" and free:
            self.steps.appendleft("remove")
            step = Step("add", free, self.new_name())
        elif kind == "replace" and free:
            step = Step("replace", free, name)
        elif kind == "wipe":
            step = Step("wipe", machine, name)
        self.current = step
        return step

    def machine_of(self, member: CatalogMember) -> str:
        return member.peer.partition(":")[0]

    def _free_machine(self) -> str:
        """One on which nothing has run yet, or nothing runs any more; empty if there is none."""
        return next(
            (
                name
                for name, machine in self._world.machines.items()
                if name not in self._world.nodes or machine.is_retired
            ),
            "",
        )


class Mover(App):
    """The operator's process that changes the members; whoever comes after it when it was killed goes on."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        super().__init__(world, f"mover-{number}")

    def successor(self, name: str) -> App:
        return Mover(self.world, self.world.next_producer())

    async def work(self, client: Any) -> None:
        changes = self.world.changes
        while True:
            await asyncio.sleep(self.chance.choice((0.3, 1.0, 2.0)) * (0.1 if changes.grows_early else 1))
            step = changes.current
            if step is None and changes.steps and not self.world.faults.is_over:
                step = changes.begin()
            if step is None:
                continue
            self.world.tell(f"members: {step}")
            if step.kind == "remove":
                await self._remove(step)
            elif step.kind == "wipe":
                await self._mend(step)
            else:
                await self._add(step, replace=step.kind == "replace")
            changes.current = None

    async def _add(self, step: Step, *, replace: bool) -> None:
        """As `quorum cluster add` and `replace` do it: the new node says who it is, and any member is told."""
        world = self.world
        before = next(
            (world.changes.machine_of(m) for m in world.changes.wished.values() if m.name == step.name), ""
        )
        machine = world.machines[step.machine]
        if step.machine not in world.nodes or machine.is_retired:
            await self._at_the_machine(lambda: world.set_up(step.machine, step.name))
        new = await self._who_waits(step.machine)
        request = admin_pb2.AddMemberRequest(member=new, replace=replace)
        was_leading = self._leads(step.name)
        self._asked(step)
        await self._insist(lambda stub: stub.AddMember(request, timeout=3.0))
        counts = world.rules.counts
        counts["members replaced" if replace else "members added"] += 1
        counts["leaders replaced"] += replace and was_leading
        if self.chance.random() < 0.7:
            await self._carried_out()
            if replace and before != step.machine:
                await self._retire(before)

    async def _remove(self, step: Step) -> None:
        was_leading = self._leads(step.name)
        request = admin_pb2.RemoveMemberRequest(name=step.name)
        self._asked(step)
        await self._insist(lambda stub: stub.RemoveMember(request, timeout=3.0), grpc.StatusCode.NOT_FOUND)
        counts = self.world.rules.counts
        counts["members removed"] += 1
        counts["leaders removed"] += was_leading
        if self.chance.random() < 0.7:
            await self._carried_out()
            await self._retire(step.machine)

    async def _mend(self, step: Step) -> None:
        """A disk is lost, what ran on it comes back as if nothing were wrong, and then it is replaced."""
        world, machine = self.world, self.world.machines[step.machine]
        if not step.is_asked:
            member = world.nodes[step.machine].id
            for _ in range(WIPED_MS // 100):
                await self._at_the_machine(lambda: self._lose_disk(step, member))
                if step.is_asked or world.faults.is_over:
                    break
                await asyncio.sleep(0.1)
            if not step.is_asked:
                return
            await asyncio.sleep(self.chance.choice((0.5, 2.0, 4.0)))
        if machine.is_wiped:
            await self._at_the_machine(lambda: world.set_up(step.machine, step.name))
        await self._add(step, replace=True)
        world.rules.counts["members mended"] += 1
        await self._carried_out()

    def _lose_disk(self, step: Step, member: str) -> None:
        if not self.world.faults.is_over and self.world.changes.may_lose(member):
            step.is_asked = True
            self.world.lose_disk(step.machine)

    # ---- how it is done

    def _leads(self, name: str) -> bool:
        return any(
            replica.raft.is_leader
            for node in self.world.members()
            if node.machine.node_name == name
            for replica in node.member.replicas.values()
        )

    def _asked(self, step: Step) -> None:
        """Things go wrong just when members change."""
        step.is_asked = True
        if self.chance.random() < STRUCK_PART:
            for _ in range(self.chance.choice((1, 1, 2))):
                self.world.faults.strike_in(
                    self.chance.choice((5, 20, 100, 400, 900)), self.chance.choice(STRIKES)
                )

    async def _retire(self, machine: str) -> None:
        """Of a node that every group has let go: it is switched off, or forgotten and runs on."""
        if self.chance.random() < 0.5:
            await self._at_the_machine(lambda: self.world.retire(machine))

    async def _at_the_machine(self, work: Callable[[], None]) -> None:
        """What is done by hand, not from inside this process's loop."""
        done: list[None] = []
        self.world.after(1, lambda: done.append(work()))
        while not done:
            await asyncio.sleep(0.002)

    async def _carried_out(self) -> None:
        while not self.world.changes.is_carried_out:
            await asyncio.sleep(0.1)

    def _stub(self, machine: str) -> Any:
        return admin_pb2_grpc.AdminStub(self.channel(f"{machine}:7400"))

    async def _who_waits(self, machine: str) -> Any:
        while True:
            try:
                seen = await self._stub(machine).ClusterStatus(admin_pb2.ClusterStatusRequest(), timeout=2.0)
            except grpc.aio.AioRpcError as error:
                excuse(error)
            else:
                if seen.standing in ("waiting", "member"):
                    return seen.own
            await asyncio.sleep(0.2)

    async def _insist(self, call: Callable[[Any], Any], done: grpc.StatusCode | None = None) -> None:
        """Asks until it is so. done: what is answered when it is so already; an answer may have been lost."""
        while True:
            machine = self.chance.choice(sorted(self.world.nodes))
            try:
                await call(self._stub(machine))
                return
            except grpc.aio.AioRpcError as error:
                if error.code() == done:
                    return
                # the last member that may lead is not removed: the others are drained for the moment
                excuse(error, grpc.StatusCode.INVALID_ARGUMENT)
            await asyncio.sleep(0.3)
