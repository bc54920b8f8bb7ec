"""Members that are upgraded one by one, under load and faults: each starts again with a build that knows one machine
version more. Nothing else differs between the two builds.

Machines that join know the new version from the start, as an operator installs the newest release there. When faults
are over, the rest is upgraded; then all groups switch, unless a member stays dead.

The rules: a group switches only when every member runs, or ran, a build that knows the version; the system group is the
last; and a build that does not know the version never has to apply it (it would stop, which ends the run).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fifo.versions import BASE
from simulator.rules.rules import Broken

if TYPE_CHECKING:
    from simulator.machines.node import Node
    from simulator.world import World

PART = 0.15
"""Of all seeds; the builds of SCENARIO have upgrades in every seed."""
SCENARIO = "versions"
NEW = BASE + 1
GAPS_MS = (500, 2_000, 5_000)
BACK_MS = (5, 300, 1_500)


class Upgrades:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.random_of("upgrades")
        self.has_any = self._chance.random() < PART or world.build.scenario == SCENARIO
        self._old = list(world.founders) if self.has_any else []
        """machines whose build does not know the new version"""
        self._knowing: set[str] = set()
        """ids of nodes that have run a build that knows it"""
        self._switched: set[int] = set()
        """groups that some node has seen switch"""

    def settings(self, machine: str, settings: dict[str, Any]) -> dict[str, Any]:
        """What a node is started with on this machine."""
        if not self.has_any:
            return settings
        is_old = machine in self._old and bool(self._world.machines[machine].founding.members)
        known = BASE if is_old else NEW
        return {**settings, "limits": replace(settings["limits"], newest_version=known)}

    def begin(self) -> None:
        if self.has_any:
            self._chance.shuffle(self._old)
            self._later()

    def _later(self) -> None:
        if self._old and not self._world.faults.is_over:
            self._world.after(self._chance.choice(GAPS_MS), self._next)

    def _next(self) -> None:
        if self._old and not self._world.faults.is_over:
            self._upgrade(self._old[-1], self._chance.choice(BACK_MS))
            self._later()

    def _upgrade(self, name: str, back_ms: int) -> None:
        self._old.remove(name)
        if self._world.nodes[name].is_up:
            self._world.down(name, power=False, why="to be upgraded", back_ms=back_ms)

    def finish(self) -> None:
        """The members that are left, when faults are over: who is stopped here is started again with the others."""
        for name in list(self._old):
            self._upgrade(name, 0)

    def started(self, node: Node) -> None:
        """A node runs: from now on it says what it knows to whoever connects."""
        if node.member.versions.known >= NEW:
            self._knowing.add(node.id)

    def stepped(self, node: Node) -> None:
        """Judges what a node's groups have switched to."""
        if not self.has_any:
            return
        member = node.member
        switched = {number for number, each in member.replicas.items() if each.version >= NEW}
        if not switched - self._switched:
            return
        self._switched |= switched
        unknowing = set(self._world.changes.wished) - self._knowing
        if unknowing:
            raise Broken(
                f"groups {sorted(switched)} have switched, and {sorted(unknowing)} do not know the version"
            )
        if 0 in self._switched and len(self._switched) < len(member.replicas):
            raise Broken(f"the system group has switched, of the others only {sorted(self._switched)}")

    @property
    def is_done(self) -> bool:
        """Every group has switched at every member. A member that stays dead may never have known the version."""
        if not self.has_any or self._world.left_dead:
            return True
        return all(
            each.version == NEW for node in self._world.members() for each in node.member.replicas.values()
        )

    def count(self) -> None:
        """In the end."""
        self._world.rules.counts["groups switched to a new version"] += len(self._switched)
