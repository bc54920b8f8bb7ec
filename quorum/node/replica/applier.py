"""Applies committed entries to the machines here, and carries out the effects that they decided.

If a machine needs an unreadable body, it is rebuilt from its snapshot at once. It applies entries again once the body
is repaired (repair/repairer.py). Effects that were carried out before are not carried out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fifo import commands as c
from fifo.effects import Applied, QueueExpired
from fifo.group_machine import GroupMachine
from quorum.catalog.machine import CatalogMachine
from quorum.log import Log
from quorum.node import events as ev
from quorum.node.errors import BodyUnreadable
from quorum.node.repair.repairer import Repairer
from quorum.node.replica.catalog_publisher import CatalogPublisher
from quorum.node.replica.reconciler import Reconciler
from quorum.node.replica.replica import SYSTEM_GROUP, LeaderState, Replica
from quorum.node.replica.skipped_entries import SkippedEntries
from quorum.node.replica.snapshotter import Snapshotter
from quorum.node.schedule import Due
from quorum.node.sessions.session_table import SessionTable
from quorum.node.wire.operations import Command

APPLY_BYTES = 4 << 20
"""Maximum bytes of entries applied in one step of the member, so that heartbeats do not wait long."""
APPLY_STEPS = 1 << 16
"""Maximum number of evaluation steps in one step of the member. A member that lags behind applies costly entries one by
one."""
TARGET_STEPS = 16
"""Evaluation steps that take as long as placing a batch in one of several queues."""


class Comparison(Protocol):
    """Compares the members' states (cluster/state_comparison.py)."""

    def report(self, replica: Replica, claim: bytes) -> None:
        """Tells the other members a running hash, and compares it."""
        ...

    def rebuilt(self, replica: Replica) -> None:
        """A wrong or lost state was replaced."""
        ...


class Applier:
    """Applies entries for one member. upkeep: scheduled at once when applied entries have work for it that should not
    wait."""

    def __init__(
        self,
        log: Log,
        table: SessionTable,
        repairer: Repairer,
        comparison: Comparison,
        snapshotter: Snapshotter,
        reconciler: Reconciler,
        upkeep: Due,
        skipping: SkippedEntries,
        publisher: CatalogPublisher,
        outputs: ev.Outputs,
        *,
        entries: int,
    ) -> None:
        self._log = log
        self._table = table
        self._repairer = repairer
        self._comparison = comparison
        self._reconciler = reconciler
        self._upkeep = upkeep
        self._snapshotter = snapshotter
        self._skipping = skipping
        self._publisher = publisher
        self._outputs = outputs
        self._entries = entries
        self._target_count = 0
        """of the last entry: the queues in which batches for several queues were placed"""

    def apply(self, replica: Replica, now_ms: int) -> None:
        """Applies a limited number of committed entries."""
        if replica.parted:
            return
        if replica.blocked_on_index:
            if self._repairer.is_lost(replica.number, replica.blocked_on_index):
                return
            replica.resume()
        if not self._apply_some(replica, now_ms):
            return
        unreadable = replica.raft.take_unreadable()
        if unreadable is not None:
            self._note_unreadable(replica, *unreadable, now_ms)
        replica.note_caught_up()
        replica.continue_work(now_ms)
        self._snapshotter.save_due(replica, now_ms)

    def _apply_some(self, replica: Replica, now_ms: int) -> bool:
        """False if an entry cannot be applied now."""
        machine, raft = replica.machine, replica.raft
        entries = size = steps = 0
        while (
            raft.has_unapplied
            and entries < self._entries
            and size < APPLY_BYTES
            and steps < APPLY_STEPS
            and (taken := raft.take_committed(1, 1))
        ):
            index, term, body = taken[0]
            replica.proposals.taken(index)
            if body and not self._apply_entry(replica, index, term, body, now_ms):
                return False
            entries += 1
            size += len(body)
            if body and isinstance(machine, GroupMachine):
                steps += machine.last_steps + TARGET_STEPS * self._target_count
        return True

    def _apply_entry(
        self, replica: Replica, index: int, term: int, body: bytes | memoryview, now_ms: int
    ) -> bool:
        """False if it cannot be applied now."""
        command = Command(body)
        replica.clock.observe(command.now_ms, now_ms, term)
        operations = command.decode()
        self._target_count = sum(
            [len(each.command.targets) for each in operations if isinstance(each.command, c.Enqueue)]
        )
        meta = c.Meta(index, term, command.now_ms, command.version)
        try:
            if isinstance(replica.machine, CatalogMachine) and self._skipping.names(index, operations):
                applied = replica.machine.leave_out(meta, operations)
            else:
                applied = replica.machine.apply(meta, operations)
        except BodyUnreadable as error:
            self._repairer.note(error.group, error.index, 0, error.reason)
            replica.rebuild_from_snapshot(error.index, now_ms)
            return False
        if replica.state_changed(index, len(body)):
            self._dispatch_effects(replica, operations, applied, now_ms)
        claim = replica.state_hashes.applied(index, replica.machine.running_hash)
        if claim is not None:
            self._comparison.report(replica, claim)
        return not replica.parted

    def _note_unreadable(self, replica: Replica, index: int, term: int, reason: str, now_ms: int) -> None:
        self._repairer.note(replica.number, index, term, reason)
        if index > replica.raft.commit_index:
            replica.raft.step_down()  # no member can be asked for it, and others may not need it
        elif index == replica.raft.applied_index + 1:
            replica.stall(index, now_ms)

    def _dispatch_effects(
        self, replica: Replica, operations: Sequence[c.Operation], applied: Applied, now_ms: int
    ) -> None:
        for operation, reply in zip(operations, applied.replies, strict=True):
            if operation.origin is not None:
                self._table.reply(replica.number, operation.origin, reply, now_ms)
            elif isinstance(operation.command, c.Wake):
                replica.proposals.wake_applied()
            elif isinstance(operation.command, c.NodeDown) and operation.command.node == self._table.me:
                self._table.declared_down(replica.number, operation.command.boot)
            elif isinstance(operation.command, c.CreateQueue):
                self._reconciler.request()  # it may have been removed while this was on its way
            elif isinstance(operation.command, c.DeleteQueue):
                self._publisher.queue_deleted(operation.command.queue)
            elif isinstance(operation.command, c.Configured):
                replica.barrier_applied(operation.command.mark)
                self._reconciler.request()
                self._upkeep.soon()
        if replica.number == SYSTEM_GROUP:
            self._reconciler.request()
            self._upkeep.soon()
        if isinstance(replica.machine, GroupMachine) and replica.machine.died:
            died = tuple(replica.machine.died)
            replica.machine.died.clear()
            if replica.leads:
                self._outputs.emit(ev.MessagesDied(replica.number, died))
        for effect in applied.effects:
            if isinstance(effect, QueueExpired):
                self._publisher.queue_deleted(effect.queue)
                self._reconciler.request()
            else:
                self._table.effect(replica.number, effect)

    def begin(self, replica: Replica, state: bytes) -> None:
        """Restores the machine from the snapshot that a replica has at its start."""
        replica.restore(state)
        self._know_departed(replica)

    def installed(self, replica: Replica, state: LeaderState) -> None:
        """Installs a leader's snapshot while running. If the snapshot replaces a wrong or lost state, the older
        snapshots are removed. Applying continues after the installed snapshot."""
        if replica.wants_state:
            self._log.journal(replica.number).remove_snapshots_before(replica.raft.applied_index)
        replica.install(state)
        if replica.wants_state:
            self._comparison.rebuilt(replica)
        self._know_departed(replica)
        replica.resume()
        self._repairer.forget(replica.number, replica.raft.applied_index)
        self._reconciler.request()
        if replica.number != SYSTEM_GROUP:
            self._publisher.group_replaced(replica.number)
        if replica.raft.applied_index > replica.effects_dispatched_to:
            self._table.answers_missed(replica.number)

    def _know_departed(self, replica: Replica) -> None:
        if isinstance(replica.machine, GroupMachine):
            self._table.declared_down(replica.number, replica.machine.departed_boot(self._table.me))
