"""Round robin: owners take turns, and each turn takes the oldest item of one owner.

So the oldest item of an owner waits for at most one item of each other owner, however many they have.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class RoundRobin(Generic[T]):
    """Items by owner. No item is in it twice."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Hashable, dict[T, None]] = {}
        """items in order, by owner in the order of their turns; each has one or more"""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, owner: Hashable, item: T) -> None:
        """Add an item behind the owner's others. An owner without items has the last turn."""
        self._waiting.setdefault(owner, {})[item] = None

    def take(self) -> T:
        """Remove and return the oldest item of the owner whose turn it is, whose next turn is the last one."""
        owner = next(iter(self._waiting))
        items = self._waiting.pop(owner)
        item = next(iter(items))
        del items[item]
        if items:
            self._waiting[owner] = items
        return item

    def remove(self, owner: Hashable, item: T) -> None:
        """Remove an item, if it is there."""
        items = self._waiting.get(owner)
        if items is not None:
            items.pop(item, None)
            if not items:
                del self._waiting[owner]
