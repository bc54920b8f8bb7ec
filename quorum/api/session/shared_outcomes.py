"""The outcomes of messages that several Raft groups get, and of neighbouring messages with the same outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fifo.frozen_dataclasses import dataclass
from quorum.api import status
from quorum.api.session.group_parts import Part, groups_of
from quorum.api.session.outcomes import Outbox
from quorum.api.session.routing import Queues
from quorum.api.status import NO_CONSUMERS, Status


def neighbours(refused: Mapping[int, Status]) -> Iterator[tuple[int, int, Status]]:
    """Ranges (first, last, why) of refused ordinals with the same reason."""
    found: tuple[int, int, Status] | None = None
    for ordinal in sorted(refused):
        why = refused[ordinal]
        if found is not None:
            if ordinal == found[1] + 1 and why == found[2]:
                found = (found[0], ordinal, why)
                continue
            yield found
        found = (ordinal, ordinal, why)
    if found is not None:
        yield found


class SharedOutcomes:
    """The outcomes of messages that several groups get. A message is confirmed when all of them have taken it. If one
    of them refuses it, it is rejected when all have answered, with the queues that may have it. A group without a
    consumer for an immediate message has no part in it, unless all groups are without one."""

    def __init__(self, outbox: Outbox, groups: dict[int, int]) -> None:
        """groups: the number of groups of each message, by its client sequence; others are told at once."""
        self._outbox = outbox
        self._left = groups
        self._refused: dict[int, Status] = {}
        self._taken: dict[int, list[Queues]] = {}
        self._made: dict[tuple[Status, tuple[str, ...]], Status] = {}

    def of(self, queues: Queues) -> GroupOutcomes:
        """Where the outcomes of one group go. queues: of its part of the batch."""
        return GroupOutcomes(self, queues)

    def decide(self, first: int, last: int, why: Status | None, queues: Queues) -> None:
        for number in range(first, last + 1):
            left = self._left.get(number)
            if left is None:
                self._tell(number, why)
                continue
            if why is None:
                self._taken.setdefault(number, []).append(queues)
            elif number not in self._refused or self._refused[number].reason == NO_CONSUMERS:
                self._refused[number] = why
            if left > 1:
                self._left[number] = left - 1
                continue
            del self._left[number]
            refused, taken = self._refused.pop(number, None), self._taken.pop(number, [])
            if refused is not None and taken:
                refused = None if refused.reason == NO_CONSUMERS else self._with_queues(refused, taken)
            self._tell(number, refused)

    def _tell(self, number: int, why: Status | None) -> None:
        if why is None:
            self._outbox.confirm(number, number)
        else:
            self._outbox.reject(number, number, why)

    def _with_queues(self, why: Status, taken: list[Queues]) -> Status:
        names = tuple([queue.name for queues in taken for queue in queues])
        made = self._made.get((why, names))
        if made is None:
            made = self._made[why, names] = status.taken_elsewhere(why, names)
        return made


@dataclass(frozen=True, slots=True)
class GroupOutcomes:
    """Takes the outcomes of one group, as the outbox does."""

    shared: SharedOutcomes
    queues: Queues

    def confirm(self, first: int, last: int) -> None:
        self.shared.decide(first, last, None, self.queues)

    def reject(self, first: int, last: int, why: Status) -> None:
        self.shared.decide(first, last, why, self.queues)


def shared_outcomes(
    outbox: Outbox, routes: Sequence[Queues], parts: Sequence[Part], first: int
) -> SharedOutcomes | None:
    """What brings the outcomes of several groups together; None if no message of these parts has several groups. first:
    the client sequence of the batch's first message."""
    if len(parts) < 2:
        return None
    groups: dict[int, int] = {}
    for part in parts:
        for ordinal in part.ordinals:
            if len(routes[ordinal]) > 1 and (count := len(groups_of(routes[ordinal]))) > 1:
                groups[first + ordinal] = count
    return SharedOutcomes(outbox, groups) if groups else None
