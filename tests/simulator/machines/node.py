"""One life of a node: the real member on its simulated disk, the real hub and services above it, and what drives them.

The member is stepped as the driver's thread does: as soon as something came in or is due, but never while its last step
still waits for the disk. What a step sent before its sync leaves at once; the rest, and what the API hears, when the
sync is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorum.api.bulk.service import BulkService
from quorum.api.dead_letters.worker import forward_dead_letters
from quorum.api.health_watch import watch_health
from quorum.api.hub.hub import Hub
from quorum.api.services.admin_service import AdminService
from quorum.api.services.queue_service import QueueService
from quorum.config import MemberAddresses, NodeConfig
from quorum.log.errors import LogError
from quorum.node import events as ev
from quorum.node.identity.identity import record_start
from quorum.node.identity.member_directory import Address
from quorum.node.member import Member
from quorum.node.member_config import MemberConfig
from quorum.node.wire.batches import BatchLimits
from quorum.node.wire.frames import Frame
from quorum.replication.network.handshake import Identity, Versions
from quorum.v1 import admin_pb2_grpc, bulk_pb2_grpc, queue_pb2_grpc
from simulator.machines.loop import NEVER
from simulator.machines.machine import CLUSTER, SECRET, Machine
from simulator.machines.process import Process
from simulator.machines.room import Works
from simulator.machines.wire import Connection, ServedCall, SimServer
from support.log.disk import Crashed
from support.members.inline import Inline

if TYPE_CHECKING:
    from simulator.rules.ledger import Note
    from simulator.world import World

WALL_MS = 1_700_000_000_000
DATA = Path("/data")
DIRECTORY = DATA / "log"


class _Network:
    """What the member sends through. Peers are ids here; the simulated network goes by machines."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def send(self, peer: str, kind: int, parts: list[bytes]) -> None:
        assert kind in self._kinds
        self._node.world.network.send(self._node, peer, kind, b"".join(parts))

    def flush(self) -> None:
        """What was sent is on its way."""

    def set_kinds(self, kinds: Mapping[int, int]) -> None:
        """All nodes speak the same wire version."""
        self._kinds = kinds

    def links(self) -> list[str]:
        return self._node.world.network.links(self._node)

    def incarnation_of(self, peer: str) -> bytes:
        other = self._node.world.network.other_end(self._node, peer)
        return bytes(16) if other is None else other.incarnation

    def is_refused(self, peer: str) -> bool:
        return False

    def event_counts(self) -> dict[str, int]:
        return {}

    def version_of(self, peer: str) -> int:
        other = self._node.world.network.other_end(self._node, peer)
        return 0 if other is None else other.identity.versions.machine

    def require_version(self, version: int) -> None:
        node = self._node
        node.identity.needed_version = version
        node.world.network.peers_changed(node)

    def set_peers(
        self, dials: Mapping[str, Address], reserve: Mapping[str, Address], gone: Collection[str]
    ) -> None:
        node = self._node
        node.dials = {peer: host for peer, (host, _) in dials.items()}
        node.reserve = {peer: host for peer, (host, _) in reserve.items()}
        node.gone = frozenset(gone)
        node.world.network.peers_changed(node)


class Node(Process):
    """May raise LogError, IdentityError or OSError, as a process does that cannot start."""

    def __init__(self, world: World, machine: Machine, life: int) -> None:
        """life: a number that no other life of a node has."""
        super().__init__(world, machine.name, machine.clock)
        self.machine = machine
        disk = self.disk = machine.disk
        self.is_known_down = False
        """dead, and its machine says so to whoever wants to connect"""
        self._frames: list[Frame] = []
        self._wanting: set[int] = set()
        """groups whose state here is to be replaced"""
        self._inputs: list[ev.Input] = []
        self._due_ms = world.now_ms
        self._busy_until_ms = 0
        self.lease_until: dict[int, int] = {}
        self.judged: dict[int, int] = {}
        """group -> up to which entry the rules have looked at what it says is committed"""
        self.compared: dict[int, int] = {}
        """group -> the running hash that the rules have compared last"""
        self.delay_ms = 0
        """how long this step has waited for the disk by now"""
        self.unsynced: list[Note] = []
        """what the ledger may take back if the power goes before the sync of the step is done"""
        disk.node = None  # what recovery does is nobody's fault
        chance = world.random_of(f"{machine.name} {life}")
        build = world.build
        self.log = build.log.open(
            DIRECTORY,
            disk,
            **world.room.log,
            random_bytes=chance.randbytes,
        )
        founding = machine.founding
        begun = record_start(
            DATA, machine.node_name, founding, WALL_MS + self._clock_ms(), disk, chance.randbytes
        )
        self.id = begun.id
        self.incarnation = bytes.fromhex(begun.node_state.incarnation)
        self.gone: frozenset[str] = frozenset()
        """whom it takes no connection of"""
        self.dials: dict[str, str] = {}
        """whom it expects on which machine"""
        self.reserve: dict[str, str] = {}
        """the same, of those who should dial"""
        config = MemberConfig(
            self.id,
            founding.members,
            begun.boot,
            addresses={name: (f"{name}:7401", f"{name}:7400") for name in founding.members},
            **world.settings_of(machine.name, life),
        )
        network = _Network(self)
        self.identity = Identity(
            self.id,
            begun.boot,
            SECRET,
            CLUSTER,
            str(founding) if founding.members else "",
            self.incarnation,
            self._known,
            versions=Versions(machine=config.limits.newest_version),
        )
        self.member: Member = build.member(
            config, self.log, network, machine.clock.s, self._wall_ms, chance, begun.node_state, Inline()
        )
        world.upgrades.started(self)
        self._works = Works(world, self)
        self.handlers: dict[str, Any] = {}
        self.hub: Hub = self.loop.call(lambda: self._serve(chance))
        disk.node = self
        world.wake(self)

    def _known(self, peer: str) -> bytes:
        return self.member.membership.member_directory.incarnation_bytes(peer)

    def _wall_ms(self) -> int:
        if self.clock.wall_jump_ms:
            self.world.faults.land_once("clock jump", self)
        return WALL_MS + self._clock_ms()

    def _clock_ms(self) -> int:
        return self.clock.ms() + self.clock.wall_jump_ms

    def _serve(self, chance: Any) -> Hub:
        hub = Hub(
            self.id,
            self.log,
            BatchLimits(max_messages=1_000, max_message_bytes=1 << 20, max_batch_bytes=2 << 20),
            1 << 20,
            4 << 20,
            clock_s=self.clock.s,
            random_bytes=chance.randbytes,
        )
        hub.attach(self)  # type: ignore[arg-type]
        server = SimServer()
        queue_pb2_grpc.add_QueueServicer_to_server(QueueService(hub), server)
        bulk_pb2_grpc.add_BulkServicer_to_server(BulkService(hub, _config(self.machine)), server)
        admin_pb2_grpc.add_AdminServicer_to_server(AdminService(hub, _config(self.machine)), server)
        self.handlers = server.handlers
        self.loop.create_task(watch_health(hub, self))
        self.loop.create_task(forward_dead_letters(hub))
        return hub

    def set_serving(self, serving: bool) -> None:
        """What health checks would say."""

    def serve(self, connection: Connection, method: str) -> None:
        """A call has arrived."""
        if connection.node_is_there:
            connection.served = ServedCall(connection, self.handlers[method])

    @property
    def is_syncing(self) -> bool:
        """Its last step still waits for the disk."""
        return self.world.now_ms < self._busy_until_ms and self.delay_ms > 0

    # ---- the driver

    def submit(self, items: Iterable[ev.Input]) -> None:
        self._inputs.extend(items)
        self.world.wake(self)

    def leave(self, item: ev.Input) -> None:
        self._inputs.append(item)

    def receive(self, frame: Frame) -> None:
        self._frames.append(frame)
        self.world.wake(self)

    def poke(self) -> None:
        """A connection has come or gone: the next step sees to it."""
        self._due_ms = self.world.now_ms
        self.world.wake(self)

    def _step_ms(self) -> int:
        due = self.world.now_ms if self._frames or self._inputs else self._due_ms
        return max(due, self._busy_until_ms)

    def next_ms(self) -> int:
        if not self.runs:
            return NEVER
        return min(self._step_ms(), super().next_ms())

    def run(self) -> None:
        super().run()
        if self._step_ms() <= self.world.now_ms:
            self._step()

    def _step(self) -> None:
        world = self.world
        frames, self._frames = self._frames, []
        inputs, self._inputs = self._inputs, []
        self.delay_ms = 0
        self.unsynced.clear()
        world.stepping = self
        self.disk.begin_step()
        try:
            outputs = self.member.step(self.clock.ms(), frames, inputs)
        except Crashed:
            world.down(self.name, power=True, why="in the middle of a write")
            return
        except (LogError, OSError) as error:
            if not self.disk.explains(error):
                raise
            world.down(self.name, power=False, why=str(error))
            return
        wanting = {number for number, replica in self.member.replicas.items() if replica.wants_state}
        if wanting - self._wanting and self.disk.is_rotten:
            world.faults.land("bit rot", self)
        self._wanting = wanting
        self._busy_until_ms = world.now_ms + max(1, self.delay_ms)
        self._due_ms = self.clock.world_ms(self.member.next_due_ms())
        if outputs:
            world.at(world.now_ms + self.delay_ms, lambda: self.soon(self._hear, outputs))
        world.changes.saw(self)
        world.upgrades.stepped(self)
        if self.delay_ms:  # until the sync is done, nobody knows what the member makes of it
            world.after(self.delay_ms, self._judge)
        else:
            world.rules.stepped(self)
        self._works.stepped(self)
        world.faults.stepped(self)

    def _judge(self) -> None:
        if self.is_up:
            self.world.rules.stepped(self)

    def _hear(self, outputs: list[ev.Output]) -> None:
        for output in outputs:
            if isinstance(output, ev.LeaseGranted):
                self.lease_until[output.group] = output.until_ms
            elif isinstance(output, ev.LeaseLapsed):
                self.lease_until.pop(output.group, None)
        self.hub.on_outputs(outputs)
        if any(isinstance(output, ev.LeaseGranted) for output in outputs):
            self.soon(self.world.rules.granted, self)

    def may_deliver(self, group: int) -> bool:
        """Whether its lease holds, as the member has told; no matter what its API makes of that."""
        return self.is_up and self.clock.ms() < self.lease_until.get(group, 0)


def _config(machine: Machine) -> NodeConfig:
    """Only what the admin service asks for."""
    addresses = MemberAddresses(peer=f"{machine.name}:7401", client=f"{machine.name}:7400")
    return NodeConfig.model_construct(name=machine.node_name, members={machine.node_name: addresses})
