"""PySyncObj as our engine: terms, votes, elections and the commit rule are the library's, everything else is not.

`Engine` holds the methods that stand in for the library's private ones. It is no subclass by itself: `build` puts it
before a copy of the library's class that sees our clock and randomness (library.py). What is overridden, and why:

    applyLogEntries           notes the commit index, after a word of ours on it (a lone voter's own disk); entries are
                              applied by us, between ticks, in slices
    sendAppendEntries         ours: window, one frame for many entries, bodies read when sent, snapshots (replicator.py)
    connectedToAnyone         asked before an election: True once a pre-vote has a majority (elections.py)
    loadDumpFile              ours: an unreadable or failing snapshot stops the replica, never runs on empty
    tryLogCompaction          ours, outside the tick (Group.save_snapshot)
    checkCommandsToApply      nothing: proposals are appended by the leader itself, nothing is queued or forwarded
    doApplyCommand, applyCommand, changeCluster, doChangeCluster, parseChangeClusterRequest
                              refused: nothing of the library executes what stands in an entry

Members change by `set_members`: the library's other nodes are the voters, its read-only nodes the learners. It counts
itself in every majority; so who is no voter never stands (Candidacy.may_run), and no leader removes itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from quorum.replication import library
from quorum.replication.errors import ReplicationFailed
from quorum.replication.journal_view import JournalView

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2


class Peer:
    """A member as the library sees one. Its hash is a number in the order in which they became known: sets of peers
    have the same order in every run."""

    __slots__ = ("id", "number")

    def __init__(self, name: str, number: int) -> None:
        self.id = name
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and other.id == self.id

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"Peer({self.id})"

    def _destroy(self) -> None:
        """Nothing is held."""


class Candidacy(Protocol):
    def may_run(self) -> bool: ...


class Installing(Protocol):
    def take_chunk(self, chunk: Any) -> bool: ...
    def install(self) -> None: ...


class Messages(Protocol):
    def send(self, peer: Peer, message: dict[str, Any]) -> bool: ...


class Owner(Protocol):
    """What the engine asks of the group it belongs to."""

    @property
    def last_index(self) -> int: ...
    @property
    def candidacy(self) -> Candidacy: ...
    @property
    def installing(self) -> Installing: ...
    @property
    def messages(self) -> Messages: ...

    def clamp_own_commit(self, commit_index: int, before: int) -> int: ...
    def feed_followers(self) -> None: ...
    def on_state_changed(self, old: int, new: int) -> None: ...


class Engine:
    """The overriding half; see the module's text."""

    owner: Owner
    _SyncObj__lastResponseTime: dict[Peer, float]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int | None
    _SyncObj__otherNodes: set[Peer]
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftLastApplied: int
    _SyncObj__raftLeader: Peer | None
    _SyncObj__raftMatchIndex: dict[Peer, int]
    _SyncObj__raftNextIndex: dict[Peer, int]
    _SyncObj__raftState: int
    _SyncObj__readonlyNodes: set[Peer]
    _SyncObj__transferInProgress: bool
    _SyncObj__votedForNodeId: str | None

    def _SyncObj__applyLogEntries(self) -> bool:
        """True if the commit index moved: the library then tells the followers at once."""
        before = self._SyncObj__raftLastApplied
        self._SyncObj__raftCommitIndex = self.owner.clamp_own_commit(self._SyncObj__raftCommitIndex, before)
        moved = self._SyncObj__raftCommitIndex > before
        self._SyncObj__raftLastApplied = self._SyncObj__raftCommitIndex
        return moved

    def set_members(self, voters: Sequence[Peer], learners: Sequence[Peer], now_s: float) -> None:
        """The other members from now on. Newcomers are fed from the end of the log, and say where to begin."""
        self._SyncObj__otherNodes = set(voters)
        self._SyncObj__readonlyNodes = set(learners)
        members = (*voters, *learners)
        next_index, match_index = self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex
        answered = self._SyncObj__lastResponseTime
        for gone in [peer for peer in next_index if peer not in members]:
            del next_index[gone], match_index[gone]
        for gone in [peer for peer in answered if peer not in members]:
            del answered[gone]
        if self._SyncObj__raftState == LEADER:
            last: int = self.owner.last_index
            for peer in members:
                next_index.setdefault(peer, last + 1)
                match_index.setdefault(peer, 0)
                answered.setdefault(peer, now_s)

    def _SyncObj__sendAppendEntries(self) -> None:
        self.owner.feed_followers()

    def _SyncObj__connectedToAnyone(self) -> bool:
        return self.owner.candidacy.may_run()

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        self.owner.installing.install()

    def _SyncObj__tryLogCompaction(self) -> None:
        """Ours: Group.save_snapshot."""

    def _checkCommandsToApply(self) -> None:
        """Nothing is ever queued in the library."""

    def _applyCommand(self, command: bytes, callback: object, commandType: object = None) -> NoReturn:
        raise ReplicationFailed("commands go through Group.propose")

    def _SyncObj__doApplyCommand(self, command: object) -> NoReturn:
        raise ReplicationFailed("the library executes no entries")

    def _SyncObj__changeCluster(self, request: object) -> NoReturn:
        raise ReplicationFailed("the library changes no members")

    def _SyncObj__doChangeCluster(self, request: object, reverse: bool = False) -> NoReturn:
        raise ReplicationFailed("the library changes no members")

    def _SyncObj__parseChangeClusterRequest(self, command: object) -> NoReturn:
        raise ReplicationFailed("the library reads no entries")


class _Transport:
    """What the library calls a transport: it hands messages to the owner."""

    ready = True

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def send(self, node: Peer, message: dict[str, Any]) -> bool:
        return self._owner.messages.send(node, message)

    def _ignore(self, *_callback: object) -> None:
        """Messages and connections reach the engine through the group, not through callbacks."""

    setOnNodeConnectedCallback = _ignore
    setOnNodeDisconnectedCallback = _ignore
    setOnMessageReceivedCallback = _ignore
    setOnReadonlyNodeConnectedCallback = _ignore
    setOnReadonlyNodeDisconnectedCallback = _ignore
    setOnUtilityMessageCallback = _ignore

    def destroy(self) -> None:
        """Nothing is held."""


class _Snapshots:
    """What the library calls a serializer: only the receiving side is ever asked."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def setTransmissionData(self, data: Any) -> bool:
        """True when a whole, good, newer snapshot is there: the library then loads it."""
        return self._owner.installing.take_chunk(data)


class _Poller:
    """The library's place to wait; we wait elsewhere."""

    def poll(self, _timeout: float) -> None:
        """At once."""


def build(
    engine_class: type[Engine],
    owner: Owner,
    *,
    me: Peer,
    others: Sequence[Peer],
    view: JournalView,
    clock: Callable[[], float],
    chance: random.Random,
    election_min_s: float,
    election_max_s: float,
    heartbeat_s: float,
    leader_fallback_s: float,
) -> Any:
    """An engine over the journal view, at rest: nothing was sent yet."""
    made = type(
        engine_class.__name__, (engine_class, library.with_own_globals(clock, chance)), {"owner": owner}
    )
    configuration = library.configuration(
        journalFile=view,
        raftMinTimeout=election_min_s,
        raftMaxTimeout=election_max_s,
        connectionTimeout=max(3.5, election_max_s),
        appendEntriesPeriod=heartbeat_s,
        leaderFallbackTimeout=leader_fallback_s,
        onStateChanged=owner.on_state_changed,
    )
    engine = made(me, others, conf=configuration, transport=_Transport(owner), nodeClass=lambda peer: peer)
    library.check_instance(engine)
    engine._poller = _Poller()
    engine._SyncObj__serializer = _Snapshots(owner)
    engine._SyncObj__raftLastApplied = engine._SyncObj__raftCommitIndex
    return engine
