"""The binding keys of a topic exchange as a tree of words.

A key is words between dots. In a binding's key, `*` stands for exactly one word, and `#` for any number of words, also
none. A routing key is matched word by word: after each word, the tree's nodes that the words so far can lead to are
known, each once. So a message costs at most (its words) x (nodes), however many `#` the bindings have.

    tree = TopicTree()
    tree.add("orders.*.eu", "a")
    tree.add("orders.#", "b")
    for values in tree.match("orders.new.eu"): ...      # those of "a", then those of "b"
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
ONE, ANY = "*", "#"


class _Node(Generic[T]):
    """A node of the tree: the words that follow, and the values of the keys that end here."""

    __slots__ = ("below", "is_any", "values")

    def __init__(self, *, is_any: bool = False) -> None:
        self.below: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}
        self.is_any = is_any
        """reached by `#`"""


def words_of(key: str) -> list[str]:
    """The words of a key; none for an empty one."""
    return key.split(".") if key else []


class TopicTree(Generic[T]):
    """Values by patterns. Adding or removing one costs its words."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        """Add a value; a value that is there already is not added twice."""
        node = self._root
        for word in words_of(pattern):
            following = node.below.get(word)
            if following is None:
                following = node.below[word] = _Node(is_any=word == ANY)
            node = following
        node.values[value] = None

    def remove(self, pattern: str, value: T) -> None:
        """Remove a value; KeyError if it is not there."""
        path = [self._root]
        words = words_of(pattern)
        for word in words:
            path.append(path[-1].below[word])
        del path[-1].values[value]
        for parent, word in zip(path[-2::-1], words[::-1], strict=True):
            child = parent.below[word]
            if child.values or child.below:
                break
            del parent.below[word]

    def match(self, key: str, spend: Callable[[int], object] = int) -> Iterator[Collection[T]]:
        """Yield the values of the patterns that match a routing key, by pattern. spend: called with the number of nodes
        that each word leads to; it may raise."""
        found = _with_any([self._root])
        spend(len(found))
        for word in words_of(key):
            if not found:
                return
            following: list[_Node[T]] = []
            for node in found:
                if node.is_any:
                    following.append(node)
                for way in (word, ONE):
                    if (below := node.below.get(way)) is not None:
                        following.append(below)
            found = _with_any(following)
            spend(len(found))
        for node in found:
            if node.values:
                yield node.values.keys()


def _with_any(nodes: list[_Node[T]]) -> dict[_Node[T], None]:
    """The nodes, and those that are reached from them without a word."""
    found: dict[_Node[T], None] = {}
    for node in nodes:
        following: _Node[T] | None = node
        while following is not None and following not in found:
            found[following] = None
            following = following.below.get(ANY)
    return found
