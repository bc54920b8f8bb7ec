"""Turns for the questions that can be answered. Owners take turns, and each turn takes the oldest question of one.

So the oldest question of an owner waits for at most one question of each other owner, however many they have asked.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    """Items by owner. No item is in it twice."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[str, dict[T, None]] = {}
        """by owner, in the order of their turns; no line is empty"""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, owner: str, item: T) -> None:
        """Adds an item behind the owner's others. An owner without items has the last turn."""
        self._lines.setdefault(owner, {})[item] = None

    def take(self) -> T:
        """Removes and returns the oldest item of the owner whose turn it is, whose next turn is the last one."""
        owner = next(iter(self._lines))
        line = self._lines.pop(owner)
        item = next(iter(line))
        del line[item]
        if line:
            self._lines[owner] = line
        return item

    def remove(self, owner: str, item: T) -> None:
        """Removes an item, if it is there."""
        line = self._lines.get(owner)
        if line is not None:
            line.pop(item, None)
            if not line:
                del self._lines[owner]
