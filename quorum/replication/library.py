"""The pinned PySyncObj, checked and made ready to be driven by us.

The library reads its clock and its randomness from globals of its module. `with_own_globals` makes a copy of its class
whose methods see a clock, a random source and a journal of our own instead; the installed module stays as it is, and
two groups with different clocks can live in one process. Everything this package overrides or touches by a private
name is listed here and looked for at import: another release that lacks one is refused, not half overridden.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import FunctionType
from typing import Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj import syncobj as _module
from pysyncobj.version import VERSION

from quorum.replication.errors import UnsupportedLibrary

PINNED = "0.3.17"

OVERRIDDEN = (
    "_SyncObj__applyLogEntries",
    "_SyncObj__changeCluster",
    "_SyncObj__connectedToAnyone",
    "_SyncObj__doApplyCommand",
    "_SyncObj__doChangeCluster",
    "_SyncObj__loadDumpFile",
    "_SyncObj__parseChangeClusterRequest",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__tryLogCompaction",
    "_applyCommand",
    "_checkCommandsToApply",
)
CALLED = (
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__onMessageReceived",
    "_SyncObj__onNodeConnected",
    "_SyncObj__onNodeDisconnected",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "_isLeader",
    "doTick",
)
GLOBALS = ("createJournal", "monotonicTime", "random")
ATTRIBUTES = (
    "_SyncObj__lastResponseTime",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__noopIDx",
    "_SyncObj__otherNodes",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftLeader",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftNextIndex",
    "_SyncObj__raftState",
    "_SyncObj__readonlyNodes",
    "_SyncObj__serializer",
    "_SyncObj__transferInProgress",
    "_SyncObj__votedForNodeId",
    "_poller",
)


def check(version: str = VERSION, library: type = SyncObj, names: dict[str, Any] | None = None) -> None:
    """Raise UnsupportedLibrary unless this is the release we know, with every name we rely on."""
    if version != PINNED:
        raise UnsupportedLibrary(f"PySyncObj {version} is installed, {PINNED} is needed")
    missing = [name for name in OVERRIDDEN + CALLED if not callable(vars(library).get(name))]
    missing += [name for name in GLOBALS if name not in (vars(_module) if names is None else names)]
    if missing:
        raise UnsupportedLibrary(f"PySyncObj {version} lacks {', '.join(missing)}")


def check_instance(engine: object) -> None:
    """Raise UnsupportedLibrary unless the object has every attribute we read or write."""
    missing = [name for name in ATTRIBUTES if not hasattr(engine, name)]
    if missing:
        raise UnsupportedLibrary(f"PySyncObj {VERSION} lacks the attributes {', '.join(missing)}")


def with_own_globals(clock: Callable[[], float], chance: random.Random) -> type:
    """SyncObj, its methods bound to this clock and random source; conf.journalFile is the journal itself."""
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
    """A SyncObjConf for an object that we tick, that keeps no files and changes no members by itself."""
    return SyncObjConf(
        autoTick=False,
        useFork=False,
        dynamicMembershipChange=False,
        fullDumpFile=None,
        serializer=None,
        appendEntriesUseBatch=True,
        **settings,
    )


check()
