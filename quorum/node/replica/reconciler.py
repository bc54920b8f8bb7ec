"""Reconciles the queues in the groups' own logs with the catalog's desired state. The leader of each group does it."""

from __future__ import annotations

from collections.abc import Mapping

from fifo import commands as c
from fifo.group_machine import GroupMachine
from quorum.catalog.commands import RemoveExpired
from quorum.catalog.machine import CatalogMachine
from quorum.node.replica.policy_reconciler import PolicyReconciler
from quorum.node.replica.replica import SYSTEM_GROUP, Replica
from quorum.node.schedule import NEVER, Due


class Reconciler:
    """Reconciles the groups that one member leads: differences from the catalog's desired state become idempotent
    commands."""

    def __init__(self, replicas: Mapping[int, Replica]) -> None:
        self._replicas = replicas
        self._policies: dict[int, PolicyReconciler] = {}
        self.goes_on_at_once = False
        """There is more to do than one turn does."""
        self.is_wanted = True
        """It was requested, or the last turn did not finish: the next upkeep takes a turn."""
        self.due = Due(next_ms=NEVER)

    def request(self) -> None:
        """The desired state, or the one here, may have changed."""
        self.is_wanted = True

    def run(self, catalog: CatalogMachine, now_ms: int) -> None:
        """Runs a turn; the next one follows with the next upkeep, or with the next step if the work can continue at
        once."""
        self.is_wanted = not self.turn(catalog, now_ms)
        if self.goes_on_at_once:
            self.due.soon()

    def turn(self, catalog: CatalogMachine, now_ms: int) -> bool:
        """Returns whether all is done. Nothing is done while the catalog here is in doubt."""
        done = True
        self.goes_on_at_once = False
        system = self._replicas[SYSTEM_GROUP]
        if system.disputed:
            return False
        if system.raft.is_leader:
            done &= system.leads and self._remove_expired(catalog)
        for number, replica in self._replicas.items():
            if number == SYSTEM_GROUP or not replica.raft.is_leader:
                self._policies.pop(number, None)
                continue
            machine = replica.machine
            assert isinstance(machine, GroupMachine)
            if not replica.leads or replica.is_behind or catalog.revision < machine.configured:
                done = False  # the machine or the catalog here lags behind
                continue
            policies = self._policies.get(number)
            if policies is None:
                policies = self._policies[number] = PolicyReconciler(replica)
            if not policies.goes_on_at_once:  # first things first: both look at all queues
                done &= _reconcile_queues(catalog, replica, machine)
            done &= policies.turn(catalog, machine, now_ms)
            self.goes_on_at_once |= policies.goes_on_at_once
        return done

    def _remove_expired(self, catalog: CatalogMachine) -> bool:
        """As the system group's leader: removes the queues that their groups have deleted because they were not used.
        What a group has deleted never comes back, so this member's replica of it may lag behind."""
        done = True
        for number, replica in self._replicas.items():
            machine = replica.machine
            if not isinstance(machine, GroupMachine):
                continue
            if replica.wants_state or replica.disputed:
                done &= not machine.expired  # it may be in doubt what has expired
                continue
            for queue in machine.expired:
                if catalog.has_queue(queue, number):
                    self._replicas[SYSTEM_GROUP].propose_internal(RemoveExpired(queue))
                    done = False
        return done


def _reconcile_queues(catalog: CatalogMachine, replica: Replica, machine: GroupMachine) -> bool:
    """Proposes what makes the queues of a group those of the catalog. Returns False if there was something to do.

    A queue is deleted only if the catalog knows that it was removed, or where else it lives. That the catalog does not
    have it means nothing: the catalog here may lag behind, or be wrong.
    """
    done = True
    desired = {queue.id: queue for queue in catalog.queues_of_group(replica.number)}
    for number, queue in desired.items():
        if not machine.has_queue(number) and not machine.was_deleted(number):
            replica.propose_internal(c.CreateQueue(number, catalog.effective(queue).config))
            done = False
    for number in machine.queue_ids():
        if number not in desired and catalog.is_gone(number, replica.number):
            replica.propose_internal(c.DeleteQueue(number))
            done = False
    for number in machine.expired:
        if catalog.is_gone(number, replica.number):
            replica.propose_internal(c.DeleteQueue(number))  # so that it is forgotten
            done = False
    return done
