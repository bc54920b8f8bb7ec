"""One member of a cluster: its Raft groups, their machines, and its sessions' conversations with them.

`step(now_ms, frames, inputs) -> outputs` is synchronous and total. It never waits and never reads a clock; clock,
random, disk and network are constructor arguments, so that the same object runs in a process and in a simulation.

The phases of a step, and the reasons for their order:
  receive   frames and inputs first, so that the group's tick in this step can commit on them
  lead      each active group ticks (elections, heartbeats, the commit index), and its leader packs pending operations
            into entries; the entries carry the new commit index, which is otherwise sent by itself
  persist   one fdatasync for all groups; messages that promise durability are sent only after it
  apply     a bounded slice of the committed entries; the rest is applied in the next step, which follows immediately
  maintain  work that is due by the schedule: bodies for other members, heartbeats, repairs, upkeep, questions
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import structlog

from fifo.group_machine import GroupMachine
from quorum.catalog.lease_times import LeaseTimes
from quorum.catalog.machine import CatalogMachine
from quorum.log import Log
from quorum.node import events as ev
from quorum.node.cluster.corruption_monitor import CorruptionMonitor, NeededEntries
from quorum.node.cluster.disk_monitor import DiskMonitor
from quorum.node.cluster.heartbeats import BEAT_KINDS, Heartbeats
from quorum.node.cluster.leader_duties import LeaderDuties
from quorum.node.cluster.leader_routes import LeaderRoutes
from quorum.node.cluster.leader_spread import LeaderSpread
from quorum.node.cluster.lease_times import LeaseTimesKeeper
from quorum.node.cluster.membership import Membership, founding_members
from quorum.node.cluster.peers import Peers
from quorum.node.cluster.recovery_messages import RecoveryMessages
from quorum.node.cluster.rollback_marks import RollbackMarks
from quorum.node.cluster.state_comparison import StateComparison
from quorum.node.cluster.state_requests import StateRequests
from quorum.node.cluster.version_switch import VersionSwitch
from quorum.node.errors import StateUnreadable
from quorum.node.identity.identity import NodeState
from quorum.node.identity.member_directory import MemberDirectory
from quorum.node.leases.leases import Leases
from quorum.node.maintenance.garbage_collection import Background, GarbageCollection
from quorum.node.maintenance.paging import Pager
from quorum.node.maintenance.scrubbing import Scrubbing
from quorum.node.member_config import SNAPSHOT_BYTES, MemberConfig
from quorum.node.opening import Opener
from quorum.node.queries import CheckHealth, Query
from quorum.node.reads.cluster_answers import ClusterAnswers
from quorum.node.reads.query_table import QueryTable
from quorum.node.reads.questions import Questions
from quorum.node.reads.queue_answers import QueueAnswers
from quorum.node.reads.read_indexes import ReadIndexes
from quorum.node.repair.body_transfer import BodyClient, BodyServer
from quorum.node.repair.repairer import Repairer
from quorum.node.repair.snapshot_bodies import SnapshotBodies
from quorum.node.replica.applier import Applier
from quorum.node.replica.bootstrap import Bootstrap
from quorum.node.replica.catalog_publisher import CatalogPublisher
from quorum.node.replica.reconciler import Reconciler
from quorum.node.replica.replica import SYSTEM_GROUP, Replica
from quorum.node.replica.replicas import KIND_RAFT, Replicas
from quorum.node.replica.skipped_entries import SkippedEntries
from quorum.node.replica.snapshotter import Snapshotter
from quorum.node.schedule import NEVER, Due, Schedule
from quorum.node.sessions.conversation import Session
from quorum.node.sessions.session_table import SessionTable
from quorum.node.wire.frames import Frame, FrameTable, Network

AnswerT = TypeVar("AnswerT")

UPKEEP_MS = 100
PATIENCE_MS = 250
"""How long the upkeep waits for a step that has another reason. (The node's heartbeats: `Heartbeats.patience_ms`.)

Regular work is done in the first step after it is due. The member makes a step for it alone only this much later. So
the members of an idle cluster fall into step with their leader's heartbeats."""
BEAT_BYTES = 64
"""A frame of a Raft group has at most this many bytes if it brings no entry."""
REVIEW_MS = 500
"""Interval between two scans for damage."""


class Member:
    """See the module's text. Not safe for threads: the Raft thread owns it."""

    def __init__(
        self,
        config: MemberConfig,
        log: Log,
        network: Network,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        random: random_module.Random,
        node_state: NodeState,
        background: Background,
    ) -> None:
        """node_state: this node's knowledge beside its log. background: runs the copying of the log's garbage and the
        log's self-check."""
        self.config = config
        self.log = log
        self.now_ms = int(clock() * 1000)
        """When the last step began, on the member's clock."""
        self._network = network
        self._node_state = node_state
        self._logger = logger = structlog.get_logger().bind(node=config.name)
        self._outputs = ev.Outputs()
        self._frames = FrameTable(logger)
        self.replicas = Replicas()
        self._build_cluster(clock, wall_ms)
        self._build_repair()
        self._skipping = SkippedEntries(config.skip_entries, node_state, logger)
        self._publisher = CatalogPublisher(self.replicas, self._outputs)
        self._standing = ""
        self._version = 0
        """as last reported to the API"""
        self._build_sessions(clock)
        self._upkeep_due, self._review_due = Due(UPKEEP_MS), Due(REVIEW_MS)
        self.reconciler = Reconciler(self.replicas)
        self._snapshotter = Snapshotter(
            log, logger, after_bytes=config.snapshot_bytes or SNAPSHOT_BYTES, after_ms=config.snapshot_ms
        )
        self.applier = Applier(
            log,
            self._table,
            self.repairer,
            self.comparing,
            self._snapshotter,
            self.reconciler,
            self._upkeep_due,
            self._skipping,
            self._publisher,
            self._outputs,
            entries=config.apply_entries,
        )
        self.pager = Pager(config.queue_memory_bytes)
        self.collecting = GarbageCollection(log, background)
        self.scrubbing = Scrubbing(log, background, node_state, logger, config.scrubbing)
        self._bootstrap = Bootstrap(log, config.members, config.queue_groups, logger, config.limits)
        self._register_frames()
        self._inputs = self._input_table()
        network.set_kinds(self._frames.since)
        self._schedule = self._scheduled()
        Opener(
            config,
            log,
            network.send,
            self.peers,
            self.replicas,
            self._bootstrap,
            self._skipping,
            self.applier,
            self.snapshot_bodies,
            self.repairer,
            self.comparing,
            self.damage,
            logger,
        ).open_all(clock, random)
        self._follow_membership()
        self.versions.begin()

    # ---- the parts

    def _build_cluster(self, clock: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        config, log, node_state = self.config, self.log, self._node_state
        logger, send = self._logger, self._network.send
        member_directory = MemberDirectory(config.name, node_state, founding_members(config))
        self.me = member_directory.number(config.name)
        """This node's number; 0 until it is a member."""
        self.names: dict[int, str] = {}
        """number -> id of each current member"""
        self.peers = Peers(config.name, self.replicas, sorted(set(member_directory.by_id) - {config.name}))
        self.disk_monitor = DiskMonitor(self.me, self.names, log, clock, logger)
        self.leases = Leases(self.me)
        step_down_ms = int(config.raft.leader_fallback_s * 1000)
        configured = LeaseTimes(config.lease_ms, step_down_ms)
        self.lease_times = LeaseTimesKeeper(self.leases, node_state, configured, logger)
        self.membership = Membership(
            config, node_state, self.replicas, self.peers, member_directory, self.lease_times, send
        )
        self.heartbeats = Heartbeats(
            self.leases,
            member_directory,
            self.peers,
            config.boot,
            self.replicas,
            self.disk_monitor,
            wall_ms,
            send,
            self._outputs,
        )
        self._duties = LeaderDuties(self.heartbeats, self.names, self._outputs)
        self.leader_spread = LeaderSpread(
            self.replicas,
            self.membership,
            self.peers,
            self.disk_monitor,
            logger,
            config.spread_after_ms,
        )
        self.versions = VersionSwitch(
            config.limits.newest_version, self.replicas, self.peers, self._network, logger
        )
        self.comparing = StateComparison(
            log, node_state, self.heartbeats, self.peers, self.replicas, send, self._outputs, logger
        )
        self.rebuilding = StateRequests(self.replicas, self.peers, send)
        self.recovery_messages = RecoveryMessages(self.replicas, self.peers, send)
        self._marks = RollbackMarks(node_state, log, range(config.queue_groups + 1), send)
        self._routes = LeaderRoutes(self.replicas, self.peers, self.leases, self.disk_monitor, send)

    def _build_repair(self) -> None:
        log, send = self.log, self._network.send
        self.body_client = BodyClient(log, send, self.peers)
        self.snapshot_bodies = SnapshotBodies(log, self.body_client, self.replicas)
        needed = NeededEntries(log, self.replicas)
        self.repairer = Repairer(log, self.body_client, self._logger, needed)
        self.body_server = BodyServer(log, self.replicas, send, self.repairer)
        election_max_s = self.config.raft.election_max_s
        self.damage = CorruptionMonitor(
            log, self.replicas, self._logger, election_max_s, self.repairer, needed, self.peers
        )

    def _build_sessions(self, clock: Callable[[], float]) -> None:
        boot, send = self.config.boot, self._network.send
        self._table = SessionTable(self.me, boot, self._routes, self._outputs)
        self.read_indexes = ReadIndexes(boot, self._routes, self.replicas, self.disk_monitor, send)
        self._queries = self._query_table()
        self.questions = Questions(
            self._queries, self.replicas, self.read_indexes, self.repairer, clock, self._outputs
        )

    def _query_table(self) -> QueryTable:
        """Returns the table in which each part registers the types of queries that it answers."""
        table = QueryTable()
        QueueAnswers(self.replicas, self.membership.member_directory, self.peers, self.log).take_queries(
            table
        )
        ClusterAnswers(
            self.replicas,
            self.membership,
            self.peers,
            self.leases,
            self.heartbeats,
            self.disk_monitor,
            self.repairer,
            self.snapshot_bodies,
            self._skipping,
            self.config.skip_entries,
            self.versions,
            self.log,
            self._network,
            self._frames,
        ).take_queries(table)
        return table

    def _register_frames(self) -> None:
        """Each part registers the kinds of frames that it owns."""
        for part in (
            self.replicas,
            self._routes,
            self.body_client,
            self.body_server,
            self.recovery_messages,
            self.rebuilding,
            self.heartbeats,
            self.read_indexes,
            self.membership,
            self._marks,
            self.comparing,
        ):
            part.take_frames(self._frames)

    def _input_table(self) -> dict[type, Callable[[Any, int], None]]:
        return {
            ev.Submit: self._table.submit,
            ev.Withdraw: self._table.withdraw,
            ev.OpenSession: self._table.open,
            ev.EndSession: self._table.close,
            ev.RunQuery: self.questions.ask,
            ev.AwaitQueue: self.questions.wait,
            ev.AwaitConfigured: self.questions.wait,
            ev.RepairBody: self.questions.wait_for_body,
            ev.Forget: self.questions.forget,
            ev.Transfer: lambda item, now_ms: self.membership.transfer(item.group, item.to),
            ev.Leave: self._leave,
        }

    def _scheduled(self) -> Schedule:
        """Returns the work that a step does after applying, in this order."""
        schedule = Schedule()
        schedule.add(self.body_server.due, self.body_server.serve)
        schedule.add(self.heartbeats.due, self.heartbeats.turn)
        schedule.add(self.recovery_messages.answering, self.recovery_messages.answer)
        schedule.add(self._review_due, self._review)
        schedule.add(self.recovery_messages.asking, self.recovery_messages.ask)
        schedule.add(self.rebuilding.asking, self.rebuilding.ask)
        schedule.add(self._upkeep_due, self._upkeep)
        schedule.add(self._duties.due, self._wake_groups)
        schedule.add(self.reconciler.due, self._reconcile)
        schedule.add(self._marks.due, lambda now_ms: self._marks.turn(self.peers.connected, now_ms))
        return schedule

    # ---- the step

    def step(self, now_ms: int, frames: Iterable[Frame], inputs: Iterable[ev.Input]) -> list[ev.Output]:
        """Runs one turn. now_ms: the member's clock, which counts suspended time. Returns the outputs for the API.

        Every exception is the end of this member.
        """
        self.now_ms = now_ms
        takes_part = self.disk_monitor.can_write_votes(now_ms) and self._node_state.is_established
        self._receive(takes_part, frames, inputs)
        active = self._active() if takes_part else []
        if active:
            self._lead(active)
        self._persist(active)
        try:
            for replica in active:
                self.applier.apply(replica, now_ms)
                replica.look_at_timers()
            self._schedule.run(now_ms)
            self._publish()
            if self.questions.is_busy:
                self.questions.answer(now_ms)
        except StateUnreadable as error:  # the next turn does the rest of this one
            if not self.peers.all:
                raise
            for replica in active:
                replica.wake()
            self.lose_state(error)
        return self._outputs.take()

    def _active(self) -> list[Replica]:
        """The groups for which this step has anything to do."""
        now_ms, replicas = self.now_ms, self.replicas.values()
        calls = [
            replica.calls_heartbeats(now_ms)
            for replica in replicas
            if replica.heard_beat or replica.due_ms <= now_ms
        ]
        if any(calls):
            for replica in replicas:
                replica.join_heartbeat()
        return self.replicas.active(now_ms)

    def _receive(self, takes_part: bool, frames: Iterable[Frame], inputs: Iterable[ev.Input]) -> None:
        now_ms = self.now_ms
        self.heartbeats.lapse(now_ms)
        for peer in self.peers.follow(self._network.links()):
            self._connection_changed(peer)
        for frame in frames:
            if takes_part or frame.kind != KIND_RAFT:
                self._frames.receive(frame, now_ms)
        for item in inputs:
            self._inputs[type(item)](item, now_ms)
        self._table.send_submitted(now_ms)
        if takes_part and self.read_indexes.is_busy:
            self.read_indexes.turn(now_ms)

    def _lead(self, active: Iterable[Replica]) -> None:
        now_ms = self.now_ms
        for replica in active:
            if replica.tick():
                self._leader_changed(replica)
            replica.propose(now_ms, self.heartbeats.wall_clocks)
            replica.raft.flush_early()

    def _persist(self, active: Iterable[Replica]) -> None:
        if self.repairer.noted:
            self.repairer.tick()
        if self.body_client.under_way:
            self.body_client.tick(self.now_ms)
        # what is sent while nothing waits for it, neither the disk nor entries, leaves with the rest of the step
        is_busy = not self.log.is_synced or any(replica.can_apply for replica in active)
        if is_busy:
            self._network.flush()
        self.disk_monitor.sync()
        for replica in active:
            replica.raft.flush()
        if is_busy:
            self._network.flush()
        if self.body_client.under_way:
            self.body_client.settle()

    def _publish(self) -> None:
        """Before queries are answered: an answer never shows more than what was published."""
        self._publisher.publish()
        standing = self.membership.standing
        if standing != self._standing:
            self._standing = standing
            self._outputs.emit(ev.StandingChanged(standing))
        if self.version != self._version:
            self._version = self.version
            self._outputs.emit(ev.VersionChanged(self._version))

    def lose_state(self, error: StateUnreadable) -> None:
        """Gives up a state that cannot be read. If there are other members, one of them sends another state; nothing
        that this member has promised is lost."""
        replica = self.replicas[error.group]
        self.comparing.lose(replica, self._bootstrap.empty_machine(error.group), str(error))

    def next_due_ms(self) -> int:
        """Time of the next step even if nothing arrives, in milliseconds on the member's clock."""
        if self.disk_monitor.is_silent or not self._node_state.is_established:
            return min(self.heartbeats.next_ms, self._upkeep_due.next_ms)
        if self.read_indexes.is_due or self.questions.is_due or self.reconciler.goes_on_at_once:
            return self.now_ms
        due = min([replica.next_due_ms for replica in self.replicas.values()])
        if not due:
            return self.now_ms
        return min(
            due,
            self.heartbeats.next_ms + self.heartbeats.patience_ms,
            self._upkeep_due.next_ms + PATIENCE_MS,
            self._duties.due.next_ms,
            self.body_client.next_due_ms(),
            self.body_server.next_due_ms(),
        )

    def may_gather(self, frames: Iterable[Frame]) -> bool:
        """Whether a step may wait a few milliseconds for more frames: these are no more than heartbeats, and nobody
        waits for anything here. Heartbeats and their answers of several peers then cost one step."""
        return (
            all(
                frame.kind in BEAT_KINDS or (frame.kind == KIND_RAFT and len(frame.data) <= BEAT_BYTES)
                for frame in frames
            )
            and not (self.questions.is_busy or self.read_indexes.is_busy)
            and all(replica.is_calm for replica in self.replicas.values())
        )

    # ---- what has changed

    def _connection_changed(self, peer: str) -> None:
        is_connected = peer in self.peers.connected
        if is_connected:
            self.membership.tell_incarnation(peer, self._network.incarnation_of(peer))
            self._marks.connected(peer, self.now_ms)
        else:
            self.body_server.forget(peer)
            self.body_client.disconnected(peer)
        for replica in self.replicas.values():
            if is_connected:
                self.comparing.introduce(replica, peer)
                replica.peer_connected(peer)
                if replica.raft.leader == peer:
                    self._table.resend(replica.number, self.now_ms)
            else:
                replica.peer_disconnected(peer)

    def _leader_changed(self, replica: Replica) -> None:
        self.heartbeats.leader_changed(replica, self.now_ms)
        if replica.raft.is_leader:
            self.reconciler.request()
        if replica.raft.leader is not None:
            self._table.resend(replica.number, self.now_ms)

    def _leave(self, item: ev.Leave, now_ms: int) -> None:
        self.membership.leave()
        self._upkeep_due.soon()

    def _follow_membership(self) -> None:
        changed = self.membership.follow()
        if changed is None:
            return
        if changed.number:
            self.me = self.leases.me = changed.number
            self.disk_monitor.become(changed.number)
            self._table.become(changed.number)
        if changed.peers:
            member_directory = self.membership.member_directory
            self.names.clear()
            self.names.update((each.number, each.id) for each in member_directory.by_id.values())
            self._network.set_peers(
                member_directory.dial_addresses(changed.peers),
                member_directory.fallback_addresses(changed.peers),
                changed.gone,
            )

    # ---- regular work

    def _review(self, now_ms: int) -> None:
        """Scans for damage, retries writes of node.json that failed, and looks at the members' versions."""
        self.damage.scan()
        self.membership.save_again()
        if self._node_state.is_established and not self.disk_monitor.is_silent:
            self.versions.turn(now_ms)
        for peer in sorted(self.peers.connected - self._node_state.known_incarnations.keys()):
            self.membership.tell_incarnation(peer, self._network.incarnation_of(peer))
        self._snapshotter.review(self.replicas.values(), now_ms)

    def _upkeep(self, now_ms: int) -> None:
        self.log.mark_if_quiet(now_ms)
        self._watch_disks(now_ms)
        if self.disk_monitor.is_silent:
            return
        self._follow_membership()
        self._follow_lease_times(now_ms)
        if self._node_state.is_established:
            self.membership.advance(now_ms)
            self.leader_spread.turn(now_ms)
        for replica in self.replicas.values():
            replica.look_at_timers()
            self._table.resend_overdue(replica.number, now_ms)
            if replica.disputed:
                self.comparing.judge(replica)  # the voters may have changed
            self.damage.update_leadership(replica, now_ms)
            if isinstance(replica.machine, GroupMachine) and replica.leads:
                self._duties.turn(replica, replica.machine, now_ms)
        self._wake_groups(now_ms)
        self.pager.turn(now_ms, self.replicas.queue_machines())
        if not self.scrubbing.is_under_way:
            self.collecting.turn(now_ms)
        if not self.collecting.is_under_way:
            self.scrubbing.turn(now_ms)
        if self.reconciler.is_wanted:
            self.reconciler.due.soon()

    def _wake_groups(self, now_ms: int) -> None:
        """Proposes what is due in the groups that this node leads, and notes when something is due next."""
        self._duties.due.next_ms = NEVER
        for number, machine in self.replicas.queue_machines().items():
            if self.replicas[number].leads:
                self._duties.wake(self.replicas[number], machine, now_ms)

    def _reconcile(self, now_ms: int) -> None:
        if self.disk_monitor.is_silent:
            self.reconciler.due.soon()
        else:
            self.reconciler.run(self.catalog, now_ms)

    def _follow_lease_times(self, now_ms: int) -> None:
        settings = self.catalog.lease_settings
        self.lease_times.follow(settings)
        if self._node_state.is_established:
            others = [self.membership.member_directory.number(peer) for peer in self.peers.all]
            self.lease_times.lead(self.replicas[SYSTEM_GROUP], settings, others, now_ms)

    def _watch_disks(self, now_ms: int) -> None:
        self.disk_monitor.look(now_ms, self.replicas.values())
        news = self.disk_monitor.low_groups(now_ms, self._voters)
        if news is not None:
            self._outputs.emit(news)
        if self.disk_monitor.disks.own.is_low:
            self._snapshotter.make_room(self.replicas.values(), now_ms)

    def _voters(self) -> dict[int, list[int]]:
        """The numbers of the members that vote in each group."""
        directory = self.membership.member_directory
        return {
            number: [directory.number(voter) for voter in replica.raft.configuration.voters]
            for number, replica in self.replicas.items()
        }

    # ---- what others may ask

    @property
    def sessions(self) -> Mapping[int, Session]:
        """The sessions here by number, those that are closing included."""
        return self._table.by_number

    @property
    def boot(self) -> int:
        """The number under which sessions are opened now; see SessionTable.declared_down."""
        return self._table.boot

    @property
    def catalog(self) -> CatalogMachine:
        return self.replicas.catalog

    @property
    def version(self) -> int:
        """The machine version that the cluster uses: all groups have switched to it."""
        return self.replicas[SYSTEM_GROUP].version

    def queue_machine(self, group: int) -> GroupMachine:
        return self.replicas.queue_machine(group)

    def answer(self, query: Query[AnswerT]) -> AnswerT:
        """Answers a query from the present state, without waiting; on the Raft thread."""
        return self._queries.answer(query, self.now_ms)

    def published(self) -> list[ev.Output]:
        """Everything published so far, for a listener that has heard nothing yet; on the Raft thread."""
        return [
            *self._publisher.whole(),
            ev.StandingChanged(self.membership.standing),
            ev.VersionChanged(self.version),
        ]

    def is_ready(self) -> bool:
        """Whether this node can serve clients."""
        return self.answer(CheckHealth()).is_ready

    def incarnation_bytes(self, peer: str) -> bytes:
        """The incarnation under which this node speaks to a peer; zeros where it speaks to any."""
        return self.membership.member_directory.incarnation_bytes(peer)
