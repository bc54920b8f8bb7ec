"""The catalog's record of a queue."""

from __future__ import annotations

from fifo.commands import QueueConfig
from fifo.frozen_dataclasses import dataclass
from fifo.versions import FIRST
from quorum.catalog.arguments import Arguments

MAX_QUEUES = 100_000
"""Maximum number of queues: ten times the number that a cluster is measured with. It bounds the snapshot and the damage
by a faulty client. The configuration of the node that takes a declaration may allow fewer (`max_queues`, and
`max_queues_per_user` for one user)."""


@dataclass(frozen=True, slots=True)
class CatalogQueue:
    """A queue as it was declared. arguments: as the client gave them, by name; config: their meaning, without any
    policy. version: that of the entry that declared it; it keeps the defaults of this version. owner: the user who has
    declared it, also after the user was deleted; empty without users, and in entries before versions.OWNED_QUEUES."""

    id: int
    name: str
    group: int
    arguments: Arguments
    config: QueueConfig
    version: int = FIRST
    owner: str = ""
