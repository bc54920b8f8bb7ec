"""Whether a history of concurrent operations has an order in which each takes effect between its call and its answer
(Wing and Gong's search, with Lowe's memory of what was tried)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Operation:
    """begin, end: when it was called and answered. Without an answer it may take effect at any time after its call, or
    never."""

    client: str
    what: Hashable
    begin: float
    end: float = inf
    answer: Hashable = None

    @property
    def is_answered(self) -> bool:
        return self.end != inf


Step = Callable[[Hashable, Operation], "Hashable | None"]
"""The state after an operation in a state; None if its answer does not fit."""


def is_linearizable(history: Sequence[Operation], first: Hashable, step: Step) -> bool:
    """first: the state before the history."""
    tried: set[tuple[frozenset[int], Hashable]] = set()
    waiting = [(frozenset(range(len(history))), first)]
    while waiting:
        left, state = waiting.pop()
        if not any(history[each].is_answered for each in left):
            return True
        if (left, state) in tried:
            continue
        tried.add((left, state))
        earliest_end = min(history[each].end for each in left)
        for each in left:
            if history[each].begin <= earliest_end:
                after = step(state, history[each])
                if after is not None:
                    waiting.append((left - {each}, after))
    return False
