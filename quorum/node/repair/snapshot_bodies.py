"""Installs snapshots from a leader, only when every body that they refer to is here and on disk.

The state arrives in pieces (quorum/replication/snapshots.py) and names the entries that contain its messages. Bodies
that the log here lacks are fetched into copies, from any member that has them. Bodies that are here are never fetched
again, so a transfer that was cut (a crash on either side, another leader, a newer snapshot) continues where it was.

Above this member's commit index its own entries may be of another history than the snapshot's. There only two things
are accepted: a copy, or an entry that a member has said to be the committed one (which by Log Matching proves all
entries before it).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from quorum.node.repair.body_transfer import BodyClient, Job
from quorum.replication.configuration import State


class Journal(Protocol):
    """The part of the group that this module needs (quorum.replication.Group has it)."""

    @property
    def commit_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    def term_at(self, index: int) -> int: ...
    def holds(self, index: int, term: int) -> bool: ...


class Inventory(Protocol):
    """The part of the node's log that this module needs."""

    def missing(self, group: int, indexes: array[int], *, committed: int | None = None) -> array[int]: ...


class Receiver(Protocol):
    """The part of the group's replica that this module needs."""

    @property
    def raft(self) -> Journal: ...

    def references(self, state: State) -> array[int]:
        """The entries that a state refers to, sorted."""
        ...


@dataclass(slots=True, eq=False)
class _Arrival:
    index: int
    term: int
    references: array[int]
    last: tuple[int, int]
    """(index, term) of the journal's end: the proof, or its absence, holds for this journal only"""
    job: Job | None = None
    proven: int = 0


class SnapshotBodies:
    """The snapshots that are arriving at this member, at most one a group."""

    def __init__(
        self,
        log: Inventory,
        body_client: BodyClient,
        replicas: Mapping[int, Receiver],
    ) -> None:
        self._log = log
        self._body_client = body_client
        self._replicas = replicas
        self._snapshot_bodies: dict[int, _Arrival] = {}

    def prepare(self, group: int, index: int, term: int, state: State) -> int | None:
        """Returns the index up to which this member's own entries are right once every body is here; None until
        then."""
        replica = self._replicas[group]
        journal = replica.raft
        last = journal.last_index, journal.term_at(journal.last_index)
        arrival = self._snapshot_bodies.get(group)
        if arrival is None or (arrival.index, arrival.term, arrival.last) != (index, term, last):
            known = arrival is not None and (arrival.index, arrival.term) == (index, term)
            references = arrival.references if arrival and known else replica.references(state)
            self.drop(group)
            arrival = self._snapshot_bodies[group] = _Arrival(index, term, references, last)
        if arrival.job is not None:
            if not arrival.job.is_complete:
                return None
            arrival.proven = max(arrival.proven, arrival.job.proven)
            arrival.job = None
        trusted = max(journal.commit_index, arrival.proven, last[0] if journal.holds(index, term) else 0)
        missing = self._log.missing(group, arrival.references, committed=trusted)
        if missing:

            def term_here(at: int) -> int:
                return journal.term_at(at) if trusted < at <= last[0] else 0

            arrival.job = self._body_client.fetch(group, missing, lambda: None, term_here=term_here)
            return None
        self.drop(group)
        return trusted

    def missing(self, group: int) -> int:
        """The number of bodies still to arrive."""
        arrival = self._snapshot_bodies.get(group)
        return 0 if arrival is None or arrival.job is None else arrival.job.missing

    def drop(self, group: int) -> None:
        """Drops the group's arriving snapshot."""
        arrival = self._snapshot_bodies.pop(group, None)
        if arrival is not None and arrival.job is not None:
            self._body_client.cancel(arrival.job)
