"""A leader configures its group's queues as the catalog's current policies require.

The catalog counts the changes of its policies: its *revision*. `Configured(revision)` in a group's log says that every
queue there is configured as the catalog required at that revision or later. So no leader has to check any queue until
the catalog's revision is above it, and a leader whose catalog lags behind the log does nothing.

A leader that brings its group to a revision goes through the queues that were declared when it began, some in each
turn. It proposes UpdateConfig where a queue's configuration differs. Only a round that finds nothing to do ends the
work, with `Configured`. Earlier proposals of the leader may still be under way, or lost, and a round must not judge
before that is known. So each round waits until a mark of its own is applied: a `Configured` that says nothing new. A
queue declared later gets its configuration when it is created, from this leader or from one whose catalog is not behind
the log.
"""

from __future__ import annotations

from fifo import commands as c
from fifo.group_machine import GroupMachine
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.queues import CatalogQueue
from quorum.node.replica.replica import Replica
from quorum.node.sessions.conversation import RESEND_AFTER_MS

TURN_WORK = 1_000
"""Units of work (about 1 µs each) in one turn for a group: one or two milliseconds, as a member may lead several
groups."""
QUEUE_WORK = 20
"""Units of work for one queue; each step of the policies adds one (Policies.steps)."""


class PolicyReconciler:
    """Configures the queues of one group while this node leads it and is not behind in it."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._term = -1
        self._revision = 0
        self._queues: list[CatalogQueue] = []
        """the rest of the round, the next queue last"""
        self._is_clean = True
        """No queue of the round so far differed from its desired configuration."""
        self._is_under_way = False
        self._barrier_id = 0
        """The last one that was proposed."""
        self._proposed_ms = 0
        self.goes_on_at_once = False

    def turn(self, catalog: CatalogMachine, machine: GroupMachine, now_ms: int) -> bool:
        """Does the next step. Returns whether the group is configured."""
        self.goes_on_at_once = False
        if catalog.revision == machine.configured:
            self._is_under_way, self._queues, self._term = False, [], -1
            return True
        wanted = (self._replica.raft.term, catalog.revision)
        if wanted != (self._term, self._revision):
            self._term, self._revision = wanted
            self._is_under_way, self._queues = False, []
            self._say_new(machine.configured, now_ms)
        elif self._is_under_way:
            self._go_on(catalog, machine, now_ms)
        elif self._replica.barrier_id == self._barrier_id:
            self._begin(catalog)
            self._go_on(catalog, machine, now_ms)
        elif now_ms - self._proposed_ms > RESEND_AFTER_MS:
            self._say(machine.configured, now_ms)  # the same mark: one may be on its way that only takes long
        return False

    def _say_new(self, revision: int, now_ms: int) -> None:
        self._barrier_id = max(self._barrier_id, self._replica.barrier_id) + 1
        self._say(revision, now_ms)

    def _say(self, revision: int, now_ms: int) -> None:
        self._proposed_ms = now_ms
        self._replica.propose_internal(c.Configured(revision, self._barrier_id))

    def _begin(self, catalog: CatalogMachine) -> None:
        self._queues = catalog.queues_of_group(self._replica.number)[::-1]
        self._is_under_way = self._is_clean = True

    def _go_on(self, catalog: CatalogMachine, machine: GroupMachine, now_ms: int) -> None:
        work = TURN_WORK
        each = QUEUE_WORK + catalog.policies.steps
        while self._queues and work > 0:
            work -= each
            queue = self._queues.pop()
            known = catalog.queue(queue.name)
            if known is None or known.id != queue.id or machine.was_deleted(queue.id):
                continue  # removed meanwhile, or expired
            config = catalog.effective(queue).config
            present = machine.config_of(queue.id)
            if present != config:
                self._is_clean = False
                if present is not None:  # else it is being created
                    self._replica.propose_internal(c.UpdateConfig(queue.id, config))
        if self._queues:
            self.goes_on_at_once = True
            return
        self._is_under_way = False
        self._say_new(self._revision if self._is_clean else machine.configured, now_ms)
