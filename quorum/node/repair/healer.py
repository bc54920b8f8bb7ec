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


class Reads(Protocol):
    """What is needed of the node's log."""

    def read(self, group: int, index: int) -> bytes: ...


class Needed(Protocol):
    def is_needed(self, group: int, index: int) -> bool:
        """Whether the journal or a state that counts has this entry. Others may have let go of one that is not needed,
        and nobody has to repair it."""
        ...


class Waiter(Protocol):
    """Waits for a body. Waiters are hashable, and known by equality."""

    def __hash__(self) -> int: ...

    def repaired(self) -> None:
        """The body can be read."""
        ...


class Healer:
    """What is to be mended here, and who waits for it."""

    def __init__(
        self,
        log: Reads,
        fetcher: BodyClient,
        logger: Any,
        needed: Needed,
    ) -> None:
        self._log = log
        self._fetcher = fetcher
        self._logger = logger
        self._needed = needed
        self._lost: dict[int, dict[int, int]] = {}
        """group -> index -> term, 0 where it is not known; what is noted and not healed"""
        self.noted: dict[int, list[int]] = {}
        """noted since the last tick"""
        self._jobs: list[tuple[int, array[int], Job]] = []
        self._waiting: dict[tuple[int, int], dict[Waiter, None]] = {}
        self._waits_for: dict[Waiter, tuple[int, int]] = {}
        """the same by waiter"""
        self.healed: dict[int, int] = {}
        """how many by group, in this life"""

    def lost(self, group: int) -> int:
        """How many entries of the group cannot be read here."""
        return len(self._lost.get(group, ()))

    def is_lost(self, group: int, index: int) -> bool:
        return index in self._lost.get(group, ())

    def note(self, group: int, index: int, term: int, reason: str) -> None:
        """This entry cannot be read. term: what the entry's term is known to be, else 0."""
        lost = self._lost.setdefault(group, {})
        if index in lost:
            return
        lost[index] = term
        self.noted.setdefault(group, []).append(index)
        self._logger.error("entry unreadable", group=group, index=index, term=term, reason=reason)

    def wait(self, group: int, index: int, waiter: Waiter) -> None:
        """waiter.repaired() is called once the entry can be read; at once if it can be."""
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
        """How many wait for a body."""
        return len(self._waits_for)

    def forget_waiter(self, waiter: Waiter) -> None:
        """It does not wait any more."""
        place = self._waits_for.pop(waiter, None)
        if place is not None:
            del self._waiting[place][waiter]
            if not self._waiting[place]:
                del self._waiting[place]

    def tick(self) -> None:
        """Begin to fetch what was noted."""
        noted, self.noted = self.noted, {}
        for group, indexes in noted.items():
            wanted = array("Q", sorted(indexes))
            terms = {index: term for index in indexes if (term := self._lost[group][index])}
            job = self._fetcher.fetch(group, wanted, partial(self._arrived, group, wanted), terms=terms)
            self._jobs.append((group, wanted, job))

    def review(self) -> None:
        """Now and then: what was cut or replaced meanwhile, or could not be read for a while only, is well again; what
        nobody needs any more is forgotten."""
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
                self._fetcher.cancel(job)

    def forget(self, group: int, to_index: int) -> None:
        """A snapshot was installed: what stands at or below is needed no more, unless somebody asks for it."""
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
        self.healed[group] = self.healed.get(group, 0) + 1
        self._logger.info("entry healed", group=group, index=index, size_bytes=size)
        for waiter in self._waiting.pop((group, index), ()):
            del self._waits_for[waiter]
            waiter.repaired()
