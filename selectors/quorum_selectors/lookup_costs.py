"""The highest cost of looking up a message for many expressions at once: a number of steps, from their trees alone.

The predicate index evaluates an expression for a message only if one of its indexed predicates is TRUE. Predicates are
sorted into *families*: a message meets the predicates of at most one *cell* of a family. A field has one value, so all
equalities of a field are one family, with a cell for each value; prefixes of one length are another. So for each family
a message costs the steps of the most expensive cell, and a few more for the lookup in the family.

    x = 'a', x IN (..), x, NOT x      a family for each field, a cell for each value
    x LIKE 'a%', x LIKE '%a'          a family for each field and length, a cell for each text
    x BETWEEN 1 AND 5                 a family for each field and power of two above the width, cells of that width
    everything else                   a family with one cell: every message may meet it

The cost does not depend on the order of the expressions, nor on what an index has found.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

from quorum_selectors.predicates import Begins, Between, Ends, Equal, Predicate, Requirement

LOOKUP_STEPS = 4
"""Steps of a lookup in a family for one message."""

_HUGE = 2.0**512
_LEAST_POWER = -16

Cell = tuple[Hashable, Hashable]
"""a family and its cell"""

Filed = tuple[tuple[Cell, ...], int]
"""The cells of an expression, and its steps."""

ANYTHING: Cell = ("rest", None)


def cells_of(found: Requirement | None) -> tuple[Cell, ...]:
    """The cells of an expression with this requirement, each once; none if it is never TRUE."""
    if found is None:
        return (ANYTHING,)
    if len(found) == 1 and isinstance(found[0], Equal):
        return _cells_of(found[0])
    return tuple(dict.fromkeys(cell for predicate in found for cell in _cells_of(predicate)))


def _cells_of(predicate: Predicate) -> tuple[Cell, ...]:
    match predicate:
        case Equal(place, value):
            return ((("equal", *place), (type(value), value)),)
        case Begins(place, text):
            return ((("begins", *place, len(text)), text),)
        case Ends(place, text):
            return ((("ends", *place, len(text)), text),)
        case Between(place, low, high) if -_HUGE < low <= high < _HUGE:
            power = max(math.frexp(high - low)[1], _LEAST_POWER)
            first, last = (math.floor(math.ldexp(bound, -power)) for bound in (low, high))
            return tuple([(("between", *place, power), number) for number in range(first, last + 1)])
        case _:
            return ((("any", *predicate.place), None),)


class _Family:
    """The steps of each cell of a family."""

    __slots__ = ("cells", "loads", "most")

    def __init__(self) -> None:
        self.cells: dict[Hashable, tuple[int, int]] = {}  # steps, number of expressions
        self.loads: dict[int, int] = {}  # steps -> number of cells with these steps
        self.most = 0

    def change(self, cell: Hashable, steps: int, count: int) -> None:
        before, holders = self.cells.get(cell, (0, 0))
        after, holders = before + steps, holders + count
        if before:
            self._count(before, -1)
        if holders:
            self.cells[cell] = after, holders
            self._count(after, 1)
            self.most = max(self.most, after)
        else:
            del self.cells[cell]
        if self.most not in self.loads:
            self.most = max(self.loads, default=0)

    def _count(self, load: int, change: int) -> None:
        left = self.loads.get(load, 0) + change
        if left:
            self.loads[load] = left
        else:
            del self.loads[load]


T = TypeVar("T", bound=Hashable)


class LookupCosts(Generic[T]):
    """Expressions by tokens, and the highest cost of a message: `steps`."""

    def __init__(self) -> None:
        self._families: dict[Hashable, _Family] = {}
        self._filed: dict[T, Filed] = {}
        self.steps = 0

    def __len__(self) -> int:
        return len(self._filed)

    def add(self, token: T, expression: Filed) -> None:
        """Add the expression of a token, which has none yet."""
        self._filed[token] = expression
        for cell in expression[0]:
            self._change(cell, expression[1], 1)

    def remove(self, token: T) -> None:
        """Remove a token's expression; KeyError if there is none."""
        found, count = self._filed.pop(token)
        for cell in found:
            self._change(cell, -count, -1)

    def _change(self, cell: Cell, steps: int, count: int) -> None:
        key, place = cell
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = _Family()
            self.steps += LOOKUP_STEPS
        self.steps -= family.most
        family.change(place, steps, count)
        self.steps += family.most
        if not family.cells:
            del self._families[key]
            self.steps -= LOOKUP_STEPS
