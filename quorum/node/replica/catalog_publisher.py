"""Publishes changes of the catalog to the API, once a step, as events (CatalogChanged, QueueDeleted).

A step that changes nothing in the catalog costs two comparisons. A change costs in proportion to its size, however many
queues there are. While the system group's replica applies entries again, or has a wrong state, nothing is published:
the API never sees an older catalog than before.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorum.catalog.exchanges import RoutingChanges
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.policies import Policies
from quorum.catalog.queues import CatalogQueue
from quorum.catalog.users import Users
from quorum.node import events as ev
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.replica.replicas import Replicas


class CatalogPublisher:
    """One per member."""

    def __init__(self, replicas: Replicas, outputs: ev.Outputs) -> None:
        self._replicas = replicas
        self._outputs = outputs
        self._published: tuple[object, int] = (None, -1)
        """machine and applied index of what was published last"""
        self._policies: Policies | None = None
        self._users: Users | None = None

    def publish(self) -> None:
        """At the end of a step, before queries are answered."""
        replica = self._replicas[SYSTEM_GROUP]
        index = replica.raft.applied_index
        if (
            (replica.machine, index) == self._published
            or replica.parted
            or index < replica.effects_dispatched_to
        ):
            return
        catalog = self._replicas.catalog
        is_whole = catalog is not self._published[0]
        changed = catalog.take_changes()
        queues = [queue for queue in changed.values() if queue is not None]
        removed = [number for number, queue in changed.items() if queue is None]
        has_policies = is_whole or catalog.policies is not self._policies
        has_users = is_whole or catalog.users is not self._users
        self._published = (catalog, index)
        self._policies, self._users = catalog.policies, catalog.users
        routing = catalog.exchanges.take_changes()
        self._outputs.emit(
            _change(
                catalog,
                queues,
                removed,
                routing,
                has_policies=has_policies,
                has_users=has_users,
                is_whole=is_whole,
            )
        )
        for deleted in self._deleted(queues):
            self._outputs.emit(deleted)

    def queue_deleted(self, queue: int) -> None:
        """A queue's group has deleted it."""
        self._outputs.emit(ev.QueueDeleted(queue))

    def group_replaced(self, group: int) -> None:
        """Another member's state has taken the place of the one here: it may lack queues that the catalog still has."""
        for deleted in self._deleted(self._replicas.catalog.queues_of_group(group)):
            self._outputs.emit(deleted)

    def whole(self) -> list[ev.Output]:
        """Everything, for a listener that has heard nothing yet."""
        catalog = self._replicas.catalog
        queues = catalog.queues()
        routing = catalog.exchanges.whole()
        change = _change(catalog, queues, (), routing, has_policies=True, has_users=True, is_whole=True)
        return [change, *self._deleted(queues)]

    def _deleted(self, queues: Iterable[CatalogQueue]) -> list[ev.QueueDeleted]:
        """Those of these queues that their groups have deleted already: the catalog here lags behind."""
        return [
            ev.QueueDeleted(queue.id)
            for queue in queues
            if self._replicas.queue_machine(queue.group).was_deleted(queue.id)
        ]


def _change(
    catalog: CatalogMachine,
    queues: Iterable[CatalogQueue],
    removed: Iterable[int],
    routing: RoutingChanges | None,
    *,
    has_policies: bool,
    has_users: bool,
    is_whole: bool,
) -> ev.CatalogChanged:
    return ev.CatalogChanged(
        queues=tuple(queues),
        removed=tuple(removed),
        policies=tuple(catalog.policies.by_name.values()) if has_policies else None,
        next_queue_id=catalog.next_queue_id,
        removals=catalog.removals,
        changes=catalog.changes,
        revision=catalog.revision,
        queue_groups=catalog.queue_groups,
        is_whole=is_whole,
        routing=routing,
        users=tuple(catalog.users.by_name.values()) if has_users else None,
    )
