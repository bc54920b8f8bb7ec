"""The pinned PySyncObj, with some of its methods replaced. It keeps terms, votes, elections and the commit rule.

`LibraryNode` holds the methods that replace the library's private ones. `build` puts it before a copy of the
library's class whose methods see our clock, random source and journal instead of the globals of its module. The
installed module stays as it is, and two groups with different clocks can live in one process. What is replaced, and
why:

    applyLogEntries           notes the commit index, which the owner may hold back (a lone voter's own disk); entries
                              are applied by us, between ticks, in slices
    sendAppendEntries         ours: window, one frame for many entries, bodies read when sent, snapshots (replicator.py)
    getCurrentLogIndex        the end of the journal, which the library asks for all the time, without making an entry
    setCurrentTerm            does the same, and tells our engine
    connectedToAnyone         asked before an election: True once a pre-vote has a majority (elections.py)
    loadDumpFile              ours: an unreadable or failing snapshot stops the replica, never runs on empty
    tryLogCompaction          ours, outside the tick (Group.save_snapshot)
    checkCommandsToApply      nothing: proposals are appended by the leader itself, nothing is queued or forwarded
    doApplyCommand, applyCommand, changeCluster, doChangeCluster, parseChangeClusterRequest
                              refused: the library executes no entry

Every private name that is replaced, called, read or written is in `LibraryNode`, and is checked at import and in each
instance: a release that lacks one is refused, not half overridden. Only `engine.RaftEngine` uses these names.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import FunctionType
from typing import Any, NoReturn, Protocol, cast

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj import syncobj as _module
from pysyncobj.version import VERSION

from quorum.replication.errors import ReplicationFailed, UnsupportedLibrary
from quorum.replication.journal_view import JournalView

PINNED = "0.3.17"


class RaftState(IntEnum):
    """The library's numbers for a member's role."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class Peer(int):
    """A member as the library sees one: a number from 1 on, in the order in which members became known, so that sets of
    peers have the same order in every run. It is an int because the library looks peers up in dicts all the time, and
    then no Python code runs for hash and equality."""

    id: str

    def __new__(cls, name: str, number: int) -> Peer:
        self = super().__new__(cls, number)
        self.id = name
        return self

    def __repr__(self) -> str:
        return f"Peer({self.id})"

    __str__ = __repr__

    def _destroy(self) -> None:
        """Does nothing: a peer holds no resource."""


class Timing(Protocol):
    """Timing in seconds (GroupConfig has it)."""

    @property
    def election_min_s(self) -> float: ...
    @property
    def election_max_s(self) -> float: ...
    @property
    def heartbeat_s(self) -> float: ...
    @property
    def leader_fallback_s(self) -> float: ...


class _Engine(Protocol):
    def term_changed(self, term: int) -> None: ...
    def role_changed(self, old: int, new: int) -> None: ...


class _Campaign(Protocol):
    def should_campaign(self) -> bool: ...
    def role_changed(self, old: int, new: int) -> None: ...


class _Installer(Protocol):
    def take_chunk(self, chunk: Any) -> bool: ...
    def install(self) -> None: ...


class _Leadership(Protocol):
    def clamp_own_commit(self, commit_index: int, before: int) -> int: ...
    def replicate(self) -> None: ...
    def role_changed(self, old: int, new: int) -> None: ...


class _Messages(Protocol):
    def send(self, peer: str, message: dict[str, Any]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Owner:
    """The parts of the group that the library calls."""

    engine: _Engine
    campaign: _Campaign
    installer: _Installer
    leadership: _Leadership
    messages: _Messages

    def role_changed(self, old: int, new: int) -> None:
        self.engine.role_changed(old, new)
        self.campaign.role_changed(old, new)
        self.leadership.role_changed(old, new)


class LibraryNode:
    """The library's class as this package sees it: its attributes, the methods called, the methods replaced."""

    owner: Owner
    _poller: object
    _SyncObj__lastResponseTime: dict[Peer, float]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int | None
    _SyncObj__otherNodes: set[Peer]
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftLastApplied: int
    _SyncObj__raftLog: JournalView
    _SyncObj__raftLeader: Peer | None
    _SyncObj__raftMatchIndex: dict[Peer, int]
    _SyncObj__raftNextIndex: dict[Peer, int]
    _SyncObj__raftState: int
    _SyncObj__readonlyNodes: set[Peer]
    _SyncObj__serializer: object
    _SyncObj__transferInProgress: bool
    _SyncObj__votedForNodeId: str | None

    _SyncObj__generateRaftTimeout: Callable[[], float]
    _SyncObj__onMessageReceived: Callable[[Peer, dict[str, Any]], None]
    _SyncObj__onNodeConnected: Callable[[Peer], None]
    _SyncObj__onNodeDisconnected: Callable[[Peer], None]
    _SyncObj__setState: Callable[[int], None]
    doTick: Callable[[float], None]

    def _SyncObj__applyLogEntries(self) -> bool:
        """Note the commit index; True if it moved: the library then tells the followers at once."""
        before = self._SyncObj__raftLastApplied
        self._SyncObj__raftCommitIndex = self.owner.leadership.clamp_own_commit(
            self._SyncObj__raftCommitIndex, before
        )
        moved = self._SyncObj__raftCommitIndex > before
        self._SyncObj__raftLastApplied = self._SyncObj__raftCommitIndex
        return moved

    def _SyncObj__sendAppendEntries(self) -> None:
        self.owner.leadership.replicate()

    def _SyncObj__getCurrentLogIndex(self) -> int:
        return self._SyncObj__raftLog.last_index

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = votedForNodeId
        self._SyncObj__raftLog.setCurrentTerm(term, votedForNodeId)
        self.owner.engine.term_changed(term)

    def _SyncObj__connectedToAnyone(self) -> bool:
        return self.owner.campaign.should_campaign()

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        self.owner.installer.install()

    def _SyncObj__tryLogCompaction(self) -> None:
        """Does nothing: Group.save_snapshot compacts."""

    def _checkCommandsToApply(self) -> None:
        """Does nothing: no command is ever queued in the library."""

    def _applyCommand(self, command: bytes, callback: object, commandType: object = None) -> NoReturn:
        raise ReplicationFailed("the library wanted to take a command: commands go through Group.propose")

    def _SyncObj__doApplyCommand(self, command: object) -> NoReturn:
        raise ReplicationFailed("the library executes no entries")

    def _SyncObj__changeCluster(self, request: object) -> NoReturn:
        raise ReplicationFailed("the library changes no members")

    def _SyncObj__doChangeCluster(self, request: object, reverse: bool = False) -> NoReturn:
        raise ReplicationFailed("the library changes no members")

    def _SyncObj__parseChangeClusterRequest(self, command: object) -> NoReturn:
        raise ReplicationFailed("the library reads no entries")


OVERRIDDEN = tuple(name for name, value in vars(LibraryNode).items() if isinstance(value, FunctionType))
ATTRIBUTES = tuple(name for name in LibraryNode.__annotations__ if name != "owner")
CALLED = tuple(name for name, kind in LibraryNode.__annotations__.items() if kind.startswith("Callable"))
GLOBALS = ("createJournal", "monotonicTime", "random")


def check(version: str = VERSION, library: type = SyncObj, names: dict[str, Any] | None = None) -> None:
    """Raise UnsupportedLibrary unless this is the pinned release, with every name that this package relies on."""
    if version != PINNED:
        raise UnsupportedLibrary(f"PySyncObj {version} is installed, {PINNED} is needed")
    missing = [name for name in OVERRIDDEN + CALLED if not callable(vars(library).get(name))]
    missing += [name for name in GLOBALS if name not in (vars(_module) if names is None else names)]
    if missing:
        raise UnsupportedLibrary(f"PySyncObj {version} lacks {', '.join(missing)}")


def check_instance(node: object) -> None:
    """Raise UnsupportedLibrary unless the object has every attribute that this package reads or writes."""
    missing = [name for name in ATTRIBUTES if not hasattr(node, name)]
    if missing:
        raise UnsupportedLibrary(f"PySyncObj {VERSION} lacks the attributes {', '.join(missing)}")


class _Transport:
    """The library's transport: it passes messages to the owner."""

    ready = True

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def send(self, node: Peer, message: dict[str, Any]) -> bool:
        return self._owner.messages.send(node.id, message)

    def _ignore(self, *_callback: object) -> None:
        """Messages and connections reach the library through RaftEngine, not through callbacks."""

    setOnNodeConnectedCallback = _ignore
    setOnNodeDisconnectedCallback = _ignore
    setOnMessageReceivedCallback = _ignore
    setOnReadonlyNodeConnectedCallback = _ignore
    setOnReadonlyNodeDisconnectedCallback = _ignore
    setOnUtilityMessageCallback = _ignore

    def destroy(self) -> None:
        """Does nothing: the transport holds no resource."""


class _Serializer:
    """The library's serializer: only the receiving side is ever called."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def setTransmissionData(self, data: Any) -> bool:
        """True when a complete, good and newer snapshot is there: the library then loads it."""
        return self._owner.installer.take_chunk(data)


class _Poller:
    """The library's poller; this package waits elsewhere."""

    def poll(self, _timeout: float) -> None:
        """Return at once."""


def _with_own_globals(clock: Callable[[], float], chance: random.Random) -> type:
    """SyncObj with its methods bound to this clock and random source; conf.journalFile is the journal itself."""
    names = dict(vars(_module))
    names.update(monotonicTime=clock, random=chance, createJournal=lambda journal: journal)

    def rebound(function: Any) -> Any:
        if not isinstance(function, FunctionType):
            return function
        copy = FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy

    members: dict[str, Any] = {}
    for name, value in vars(SyncObj).items():
        if name in ("__dict__", "__weakref__"):
            continue
        members[name] = property(rebound(value.fget)) if isinstance(value, property) else rebound(value)
    return type("SyncObj", (object,), members)


def configuration(**settings: Any) -> Any:
    """A SyncObjConf for an object that this package ticks, that keeps no files and does not change members by
    itself."""
    return SyncObjConf(
        autoTick=False,
        useFork=False,
        dynamicMembershipChange=False,
        fullDumpFile=None,
        serializer=None,
        appendEntriesUseBatch=True,
        **settings,
    )


def build(
    node_class: type[LibraryNode],
    me: Peer,
    view: JournalView,
    clock: Callable[[], float],
    chance: random.Random,
    timing: Timing,
    owner: Owner,
) -> LibraryNode:
    """The library's object over the journal view, without other members; it has sent nothing yet."""
    made = type(node_class.__name__, (node_class, _with_own_globals(clock, chance)), {"owner": owner})
    settings = configuration(
        journalFile=view,
        raftMinTimeout=timing.election_min_s,
        raftMaxTimeout=timing.election_max_s,
        connectionTimeout=max(3.5, timing.election_max_s),
        appendEntriesPeriod=timing.heartbeat_s,
        leaderFallbackTimeout=timing.leader_fallback_s,
        onStateChanged=owner.role_changed,
    )
    node = cast(
        LibraryNode, made(me, (), conf=settings, transport=_Transport(owner), nodeClass=lambda peer: peer)
    )
    check_instance(node)
    node._poller = _Poller()
    node._SyncObj__serializer = _Serializer(owner)
    node._SyncObj__raftLastApplied = node._SyncObj__raftCommitIndex
    return node


check()
