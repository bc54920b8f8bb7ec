"""Repairs damaged or missing bodies of this member: records them where they are met, fetches and stores good copies.

Every user of such a body waits: the replica that was to apply it, a delivery, a question. Bytes that fail their check
are never given out. A body is repaired once a copy is in the log, on disk, and reads correctly.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any, Protocol

from quorum.log import EntryMissing, LogDamaged
from quorum.node.repair.body_transfer import BodyClient, Job

ROUNDS = 5
"""After so many rounds in which no member had a body it is taken to be nowhere."""


class Reads(Protocol):
    """The part of the node's log that the repairer needs."""

    def read(self, group: int, index: int) -> bytes: ...


class Needed(Protocol):
    def is_needed(self, group: int, index: int) -> bool:
        """Whether the journal or a valid snapshot refers to this entry. Other members may have dropped an entry that is
        not needed, and it need not be repaired."""
        ...


class Waiter(Protocol):
    """Waits for a body. Waiters are hashable, and known by equality."""

    def __hash__(self) -> int: ...

    def repaired(self) -> None:
        """The body can be read."""
        ...


class Repairer:
    """The entries to repair on this member, and the waiters for them."""

    def __init__(
        self,
        log: Reads,
        body_client: BodyClient,
        logger: Any,
        needed: Needed,
    ) -> None:
        self._log = log
        self._body_client = body_client
        self._logger = logger
        self._needed = needed
        self._lost: dict[int, dict[int, int]] = {}
        """group -> index -> term, 0 where it is unknown; recorded and not yet repaired"""
        self.noted: dict[int, list[int]] = {}
        """recorded since the last tick"""
        self._jobs: list[tuple[int, array[int], Job]] = []
        self._waiting: dict[tuple[int, int], dict[Waiter, None]] = {}
        self._waits_for: dict[Waiter, tuple[int, int]] = {}
        """the same by waiter"""
        self.repaired: dict[int, int] = {}
        """repaired entries by group, since this process started"""

    def lost(self, group: int) -> int:
        """The number of entries of the group that cannot be read here."""
        return len(self._lost.get(group, ()))

    def is_lost(self, group: int, index: int) -> bool:
        return index in self._lost.get(group, ())

    def is_nowhere(self, group: int, index: int) -> bool:
        """Whether the entry cannot be read here, and the members that could be asked have said again and again that
        they do not have it."""
        return self.is_lost(group, index) and any(
            number == group and job.rounds >= ROUNDS and index in wanted for number, wanted, job in self._jobs
        )

    def note(self, group: int, index: int, term: int, reason: str) -> None:
        """Records an entry that cannot be read. term: the entry's term if it is known, else 0."""
        lost = self._lost.setdefault(group, {})
        if index in lost:
            return
        lost[index] = term
        self.noted.setdefault(group, []).append(index)
        self._logger.error("entry unreadable", group=group, index=index, term=term, reason=reason)

    def wait(self, group: int, index: int, waiter: Waiter) -> None:
        """Calls waiter.repaired() once the entry can be read; immediately if it can be read now."""
        if not self.is_lost(group, index):
            try:
                self._log.read(group, index)
            except (EntryMissing, LogDamaged) as error:
                self.note(group, index, 0, str(error))
            else:
                waiter.repaired()
                return
        self._waiting.setdefault((group, index), {})[waiter] = None
        self._waits_for[waiter] = group, index

    @property
    def waiters(self) -> int:
        """The number of waiters for a body."""
        return len(self._waits_for)

    def forget_waiter(self, waiter: Waiter) -> None:
        """Removes a waiter."""
        place = self._waits_for.pop(waiter, None)
        if place is not None:
            del self._waiting[place][waiter]
            if not self._waiting[place]:
                del self._waiting[place]

    def tick(self) -> None:
        """Starts to fetch the entries that were recorded."""
        noted, self.noted = self.noted, {}
        for group, indexes in noted.items():
            wanted = array("Q", sorted(indexes))
            terms = {index: term for index in indexes if (term := self._lost[group][index])}
            job = self._body_client.fetch(group, wanted, partial(self._arrived, group, wanted), terms=terms)
            self._jobs.append((group, wanted, job))

    def scan(self) -> None:
        """Run periodically: removes entries that were cut or replaced meanwhile, that can be read again, or that are no
        longer needed."""
        for group, lost in self._lost.items():
            for index in list(lost):
                try:
                    body = self._log.read(group, index)
                except (EntryMissing, LogDamaged):
                    if not self._needed.is_needed(group, index) and (group, index) not in self._waiting:
                        del lost[index]
                    continue
                self._healed(group, index, len(body))
        jobs, self._jobs = self._jobs, []
        for group, wanted, job in jobs:
            if job.is_complete:
                continue
            if any(index in self._lost[group] for index in wanted):
                self._jobs.append((group, wanted, job))
            else:
                self._body_client.cancel(job)

    def forget(self, group: int, to_index: int) -> None:
        """A snapshot was installed: forgets the entries at or below its index, except those with waiters."""
        lost = self._lost.get(group, {})
        for index in [each for each in lost if each <= to_index and (group, each) not in self._waiting]:
            del lost[index]

    def _arrived(self, group: int, indexes: array[int]) -> None:
        lost = self._lost[group]
        for index in indexes:
            if index not in lost:
                continue
            try:
                body = self._log.read(group, index)
            except (EntryMissing, LogDamaged) as error:
                term = lost.pop(index)
                self.note(group, index, term, str(error))
            else:
                self._healed(group, index, len(body))

    def _healed(self, group: int, index: int, size: int) -> None:
        del self._lost[group][index]
        self.repaired[group] = self.repaired.get(group, 0) + 1
        self._logger.info("entry repaired", group=group, index=index, size_bytes=size)
        for waiter in self._waiting.pop((group, index), ()):
            del self._waits_for[waiter]
            waiter.repaired()
