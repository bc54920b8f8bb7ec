"""What the catalog wishes of queues is carried out in the groups' own logs, by whoever leads them."""

from __future__ import annotations

from collections.abc import Mapping

from fifo import commands as c
from fifo.group import GroupMachine
from quorum.catalog.machine import CatalogMachine
from quorum.node.replica import SYSTEM_GROUP, Replica


def carry_out(catalog: CatalogMachine, replicas: Mapping[int, Replica]) -> bool:
    """What the catalog wishes and this node leads: idempotent commands in the groups' own logs.

    A queue is deleted only if the catalog has already given out a later id: its declaration is then known here,
    so that its absence means deletion and not a catalog that lags behind. Returns whether all is done.
    """
    done = True
    for number, replica in replicas.items():
        if number == SYSTEM_GROUP or not replica.raft.is_leader:
            continue
        if not replica.leads or replica.is_behind:
            done = False
            continue
        machine = replica.machine
        assert isinstance(machine, GroupMachine)
        wished = {queue.id: queue.config for queue in catalog.queues_of_group(number)}
        for queue, config in wished.items():
            if not machine.has_queue(queue):
                replica.own(c.CreateQueue(queue, config))
                done = False
        for queue in machine.queue_ids():
            if queue not in wished and queue < catalog.next_queue_id:
                replica.own(c.DeleteQueue(queue))
                done = False
    return done
