"""The event loop's view of the catalog, built from the changes that the Raft thread publishes (events.CatalogChanged).

The view belongs to the event loop, and only published changes modify it. It shows the node's applied state as of the
received outputs. `MemberRequests.current_catalog` waits until it shows everything that was answered anywhere before.
"""

from __future__ import annotations

from collections.abc import Callable

from quorum.api.hub.exchange_view import ExchangeView
from quorum.catalog.policies import Effective, Policies
from quorum.catalog.queues import CatalogQueue
from quorum.catalog.users import Users
from quorum.node.events import CatalogChanged


class CatalogView:
    """Empty until the first change, which is a whole catalog."""

    def __init__(self) -> None:
        self.policies = Policies()
        self.users = Users()
        self.on_users: Callable[[Users], None] = lambda users: None
        """called with the users when they have changed"""
        self.queue_groups: tuple[int, ...] = ()
        self.removals = 0
        self.changes = 0
        self.revision = 0
        self._next_queue_id = 1
        self._by_name: dict[str, CatalogQueue] = {}
        self._by_id: dict[int, CatalogQueue] = {}
        self.routes = ExchangeView(self._by_name)
        self._deleted: set[int] = set()
        """ids of queues that their groups have deleted, and that the catalog still has or does not have yet"""

    def apply(self, change: CatalogChanged) -> None:
        """Apply a published change. O(size of the change), plus O(policies) if policies changed."""
        if change.is_whole:
            self._by_name.clear()
            self._by_id.clear()
            self.routes.replaced()
        for number in change.removed:
            self._remove(number)
        for queue in change.queues:
            self._by_name[queue.name] = self._by_id[queue.id] = queue
        if change.routing is not None:
            self.routes.apply(change.routing)
        if change.policies is not None:
            self.policies = Policies(change.policies)
        if change.users is not None:
            self.users = Users(change.users)
            self.on_users(self.users)
        self.removals, self.changes, self.revision = change.removals, change.changes, change.revision
        self.queue_groups, self._next_queue_id = change.queue_groups, change.next_queue_id
        if change.is_whole:
            self._deleted = {number for number in self._deleted if not self._is_removed(number)}

    def _remove(self, number: int) -> None:
        self._deleted.discard(number)
        self.policies.forget(number)
        queue = self._by_id.pop(number, None)
        if queue is not None:
            del self._by_name[queue.name]

    def queue_deleted(self, number: int) -> None:
        """Record that its group has deleted the queue with this id."""
        if not self._is_removed(number):
            self._deleted.add(number)

    def _is_removed(self, number: int) -> bool:
        return number not in self._by_id and number < self._next_queue_id

    # ---- questions

    def queue(self, name: str) -> CatalogQueue | None:
        """The queue of this name."""
        return self._by_name.get(name)

    def queue_of(self, number: int) -> CatalogQueue | None:
        """The queue with this id."""
        return self._by_id.get(number)

    def queues(self) -> list[CatalogQueue]:
        """Return a new list of all queues, in no particular order."""
        return list(self._by_name.values())

    def was_deleted(self, queue: CatalogQueue) -> bool:
        """Whether the queue was removed from the catalog, or deleted by its group."""
        return queue.id in self._deleted or self._is_removed(queue.id)

    def is_outdated(self, queue: CatalogQueue) -> bool:
        """Whether the queue was deleted, as far as this node knows, and its name belongs to another one by now."""
        return self.was_deleted(queue) and self.queue(queue.name) is not None

    def effective(self, queue: CatalogQueue) -> Effective:
        """Return the queue's configuration, its policy included. O(policies), and O(1) for a repeated call."""
        return self.policies.effective(queue)
