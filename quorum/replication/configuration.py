"""The members of a group: configurations in its own log, majorities, and how a learner catches up.

A configuration names the voters and the learners (Raft §6 and thesis §4). It is a log entry, and is in force from the
moment it is in a member's log, committed or not. If the entry is truncated, the configuration before it is in force
again.

Consecutive configurations differ in at most one voter, so any majority of the one has a member in common with any
majority of the other. A leader begins a change only when the previous change is committed, and an entry of its own term
too (the thesis' correction to §4.1); `GroupMembers.change` checks both.

Members are known by ids that are never reused, so two members of the same name need not be told apart here.

All configuration entries have the same fixed size: at a start a member finds them in its journal by their length,
without reading everything (`Journal.indices_of_length`). The node gives no other entry that size
(`node.replica.propose`), but older logs contain such entries. An unreadable entry of this size may be either. Until it
is repaired the member votes, but does not campaign (`JournalView.unread`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

from quorum.replication.errors import WireError

CONFIGURATION = 64
"""The type byte of a configuration entry. The library does not use this number."""
MAX_IDS = 40
"""Maximum number of voters and learners together. A cluster has at most 15 members, and some may be joining or
leaving."""
MAX_ID_BYTES = 64
CONFIGURATION_BYTES = 4_099
"""The length of a configuration entry's body, type byte included: room for MAX_IDS ids, and a rare length for other
entries."""

_HEAD = struct.Struct("<BBB")
_FORMAT = 1
_SNAPSHOT = struct.Struct("<I")


def majority(voters: int) -> int:
    """The smallest majority of this number of voters (Raft §5.2). Two majorities of the same voters have a voter in
    common; everything that counts voters compares with this number."""
    return voters // 2 + 1


class Readable(Protocol):
    """A readable snapshot (`storage.SnapshotSource`)."""

    @property
    def size(self) -> int: ...
    def read(self, offset: int, length: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Configuration:
    """The ids of voters and learners; each tuple is sorted, and no id is in both. Learners receive everything and do
    not count."""

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ids = self.voters + self.learners
        if self.voters != tuple(sorted(self.voters)) or self.learners != tuple(sorted(self.learners)):
            raise ValueError(f"ids must be sorted, not {self}")
        if len(set(ids)) != len(ids) or len(ids) > MAX_IDS:
            raise ValueError(f"each id may occur once, and at most {MAX_IDS} of them: {self}")
        for each in ids:
            if not 0 < len(each.encode()) <= MAX_ID_BYTES:
                raise ValueError(f"an id has 1 to {MAX_ID_BYTES} bytes, not {each!r}")

    @property
    def everybody(self) -> tuple[str, ...]:
        return tuple(sorted(self.voters + self.learners))

    def with_learner(self, member: str) -> Configuration:
        return Configuration(self.voters, tuple(sorted((*self.learners, member))))

    def with_voter(self, member: str) -> Configuration:
        """The configuration in which a learner has become a voter."""
        return Configuration(tuple(sorted((*self.voters, member))), _without(self.learners, member))

    def without(self, member: str) -> Configuration:
        return Configuration(_without(self.voters, member), _without(self.learners, member))

    def may_follow(self, before: Configuration) -> bool:
        """Whether any majority of one configuration has a member in common with any majority of the other: at most one
        voter differs."""
        return bool(self.voters) and len(set(self.voters) ^ set(before.voters)) <= 1

    def encode(self) -> bytes:
        """An entry's body without its type byte."""
        parts = [_HEAD.pack(_FORMAT, len(self.voters), len(self.learners))]
        for each in self.voters + self.learners:
            data = each.encode()
            parts += (bytes((len(data),)), data)
        return b"".join(parts).ljust(CONFIGURATION_BYTES - 1, b"\0")

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Configuration:
        """Decode a configuration; WireError if the bytes are none."""
        if len(data) != CONFIGURATION_BYTES - 1:
            raise WireError(f"a configuration has {CONFIGURATION_BYTES - 1} bytes, not {len(data)}")
        form, voters, learners = _HEAD.unpack_from(data)
        if form != _FORMAT:
            raise WireError(f"configuration format {form}; known: {_FORMAT}")
        if voters + learners > MAX_IDS:
            raise WireError(f"a configuration has at most {MAX_IDS} ids, not {voters + learners}")
        at, ids = _HEAD.size, []
        try:
            for _ in range(voters + learners):
                end = at + 1 + data[at]
                ids.append(str(data[at + 1 : end], "utf-8"))
                at = end
            if any(data[at:]):
                raise ValueError("there are bytes after the last id")
            return cls(tuple(ids[:voters]), tuple(ids[voters:]))
        except ValueError as error:
            raise WireError(f"no configuration: {error}") from error


def _without(ids: tuple[str, ...], member: str) -> tuple[str, ...]:
    return tuple(each for each in ids if each != member)


class Configurations:
    """The configurations of one member's log, by index. The last one is in force."""

    def __init__(self, first: Configuration, index: int = 1) -> None:
        """first: the configuration in force at this index, in the snapshot or when the group began."""
        self._known: list[tuple[int, Configuration]] = [(index, first)]

    @property
    def current(self) -> Configuration:
        return self._known[-1][1]

    @property
    def index(self) -> int:
        """The index of the configuration in force."""
        return self._known[-1][0]

    def at(self, index: int) -> Configuration:
        """The configuration in force when the log ended at this index."""
        return next(found for at, found in reversed(self._known) if at <= index)

    def voters_from(self, committed: int) -> tuple[str, ...]:
        """The voters of every configuration that may be in force on some member, when entries up to `committed` are
        committed: the last committed configuration and all later ones."""
        found = set(self.at(committed).voters)
        for index, configuration in self._known:
            if index > committed:
                found.update(configuration.voters)
        return tuple(sorted(found))

    def entry(self, index: int) -> Configuration | None:
        """The configuration in the entry at this index, if it is known."""
        return next((found for at, found in self._known[1:] if at == index), None)

    def appended(self, index: int, configuration: Configuration) -> None:
        self._known.append((index, configuration))

    def insert(self, index: int, configuration: Configuration) -> None:
        """Insert a configuration that was read late at its place."""
        self._known.append((index, configuration))
        self._known.sort(key=lambda known: known[0])

    def cut(self, index: int) -> None:
        """Remove the entries from this index on. The first of all stays, because it is committed."""
        while len(self._known) > 1 and self._known[-1][0] >= index:
            self._known.pop()

    def begin_at(self, index: int, configuration: Configuration, *, keeps_later: bool) -> None:
        """Begin with a snapshot that covers everything up to this index. keeps_later: later entries stay."""
        later = [known for known in self._known if known[0] > index] if keeps_later else []
        self._known = [(index, configuration), *later]


def wrap_state(configuration: Configuration, state: bytes) -> bytes:
    """The stored and sent form of a snapshot: the state with the configuration in force at its index."""
    data = configuration.encode()
    return b"".join((_SNAPSHOT.pack(len(data)), data, state))


class State:
    """Part of a snapshot stored elsewhere, from an offset on; read piece by piece."""

    def __init__(self, source: Readable, begin: int) -> None:
        self._source = source
        self._begin = begin

    @property
    def size(self) -> int:
        return self._source.size - self._begin

    def read(self, offset: int, length: int) -> bytes:
        """At most length bytes from offset; none only at the end. OSError; ValueError if the snapshot is damaged."""
        return self._source.read(self._begin + offset, length)

    def behind(self, offset: int) -> State:
        """The part of the state from this offset on."""
        return State(self._source, self._begin + offset)

    def whole(self) -> bytes:
        """The complete state in memory."""
        found = bytearray()
        while piece := self.read(len(found), self.size - len(found)):
            found += piece
        return bytes(found)


def open_state(source: Readable) -> tuple[Configuration, State]:
    """The same as `unwrap_state`, for a snapshot that is not read as a whole."""
    head = source.read(0, _SNAPSHOT.size + CONFIGURATION_BYTES)
    configuration, rest = unwrap_state(head)
    return configuration, State(source, len(head) - len(rest))


def unwrap_state(data: bytes) -> tuple[Configuration, bytes]:
    """Configuration and state of a snapshot; WireError if the bytes are no snapshot of ours."""
    if len(data) < _SNAPSHOT.size:
        raise WireError(f"a snapshot of {len(data)} bytes is too short")
    (length,) = _SNAPSHOT.unpack_from(data)
    end = _SNAPSHOT.size + length
    return Configuration.decode(data[_SNAPSHOT.size : end]), data[end:]


@dataclass(slots=True)
class CatchUp:
    """A learner's progress in rounds (thesis §4.2.1). A round consists of the entries that the log had when the round
    began. If a learner's last round took no longer than an election timeout, it will not delay the group as a voter."""

    target: int
    began_s: float
    is_done: bool = False

    def observe(self, match: int, last: int, now_s: float, limit_s: float) -> None:
        if match >= self.target:
            self.is_done = now_s - self.began_s <= limit_s
            self.target, self.began_s = last, now_s
        elif now_s - self.began_s > limit_s:
            self.is_done = False
