"""Policies: arguments for every queue whose name matches a pattern, present and future ones.

A pattern is a queue's whole name, with `*` for any characters, also none. It is no regular expression, because one
could run without end inside a replicated machine, or mean something else on another member. One policy applies to a
queue: of those that match, the one with the highest priority, the first by name among equals.

A change of policies costs the same whatever the number of queues, because its effect on a queue is computed on demand.
The result is local, is derived from the rest, and is in no snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable

from fifo.commands import QueueConfig
from fifo.frozen_dataclasses import dataclass
from quorum.catalog.arguments import (
    ArgumentError,
    Arguments,
    check_text,
    effective_config,
    merged,
    with_defaults,
)
from quorum.catalog.queues import CatalogQueue

MAX_POLICIES = 200
"""Maximum number of policies. Each is compared with each queue when policies change, and with each new queue."""
MAX_PRIORITY = (1 << 31) - 1
"""Maximum of a priority's absolute value, which the API's 32 bits can hold."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy. arguments: as they were given, by name."""

    name: str
    pattern: str
    priority: int
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Effective:
    """The configuration that applies to a queue. policy: the name of its policy; arguments: the queue's own and the
    policy's, and those that it has by default (`with_defaults`), by name; config: their meaning."""

    policy: str
    arguments: Arguments
    config: QueueConfig


PIECES_OF_A_STEP = 8
"""Pieces of a pattern, between two `*`, that a step looks for: each takes a tenth of a microsecond, or two."""


class Policies:
    """All policies at one moment. A change makes a new object. `effective` keeps what it has found, so an object
    belongs to one thread."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        self.by_name = {policy.name: policy for policy in sorted(policies, key=lambda each: each.name)}
        ranked = sorted(self.by_name.values(), key=lambda each: -each.priority)  # stable: then by name
        self._ranked = [(policy, policy.pattern.split("*")) for policy in ranked]
        self.steps = sum(1 + len(pieces) // PIECES_OF_A_STEP for _, pieces in self._ranked)
        """Steps of some microsecond that `effective` takes at most for a queue for the first time: one for each policy,
        and more for patterns of many pieces."""
        self._found: dict[int, Effective] = {}
        """by queue id; only the queues that were asked for"""

    def __len__(self) -> int:
        return len(self.by_name)

    def with_policy(self, policy: Policy) -> Policies:
        return Policies([*(each for each in self.by_name.values() if each.name != policy.name), policy])

    def without(self, name: str) -> Policies:
        return Policies(each for each in self.by_name.values() if each.name != name)

    def of(self, queue: str) -> Policy | None:
        """The policy that applies to a queue of this name; None if there is none."""
        return next((policy for policy, pieces in self._ranked if _fit(pieces, queue)), None)

    def effective(self, queue: CatalogQueue) -> Effective:
        """The configuration that applies to the queue. O(policies), and O(1) for a repeated call."""
        found = self._found.get(queue.id)
        if found is None:
            found = self._found[queue.id] = self._work_out(queue)
        return found

    def steps_for(self, queue: CatalogQueue) -> int:
        """The steps that `effective` takes now: 0 if the result is known."""
        return 0 if queue.id in self._found else self.steps

    def forget(self, queue: int) -> None:
        """Forget a removed queue."""
        self._found.pop(queue, None)

    def _work_out(self, queue: CatalogQueue) -> Effective:
        policy = self.of(queue.name)
        if policy is None:
            return Effective("", with_defaults(queue.arguments, queue.version), queue.config)
        arguments = with_defaults(merged(queue.arguments, policy.arguments), queue.version)
        return Effective(policy.name, arguments, effective_config(queue.name, dict(arguments)))


def check_policy(name: str, pattern: str, priority: int) -> None:
    """Check a policy without its arguments; raises ArgumentError. `arguments` checks those."""
    check_text("policy name", name)
    check_text("policy pattern", pattern)
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise ArgumentError(
            f"policy {name!r} has priority {priority}; allowed: {-MAX_PRIORITY}..{MAX_PRIORITY}"
        )


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name matches the pattern, in which `*` stands for any characters, also none. Each piece between
    two `*` is searched once, from the end of the one before it, without backtracking."""
    return _fit(pattern.split("*"), name)


def _fit(pieces: list[str], name: str) -> bool:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first == name
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    place, end = len(first), len(name) - len(last)
    for piece in pieces[1:-1]:
        found = name.find(piece, place, end)
        if found < 0:
            return False
        place = found + len(piece)
    return True
