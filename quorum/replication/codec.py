"""The messages of one Raft group as bytes, and back. Strict: every number has bounds, every byte is accounted for.

A message is a type byte and fixed little-endian numbers; two kinds have a tail:

    AppendEntries   count x (term 8, length 4), then the bodies one after the other
    SnapshotChunk   the chunk's bytes

`decode` raises WireError and nothing else, whatever the bytes. Bodies are views into the frame: a caller that keeps one
copies it. The first byte of an entry's body is its type: the library's COMMAND or NO_OP, or our CONFIGURATION
(configuration.py). The library's other types are refused here, because it would execute them (pickled membership
changes, version switches).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from quorum.replication.configuration import CONFIGURATION, Configuration
from quorum.replication.errors import WireError

COMMAND = 0
NO_OP = 1

MAX_NUMBER = (1 << 62) - 1
"""Bound of terms, indices, sequence numbers and rounds, so that adding one never overflows a field."""
MAX_ENTRIES = 1 << 16
MAX_BODY_BYTES = 32 << 20
"""Above the largest command (one message of 16 MiB with its envelope)."""
MAX_SNAPSHOT_BYTES = 1 << 40

Body = bytes | bytearray | memoryview


class Outcome(IntEnum):
    """A follower's answer to an append."""

    ALIVE = 0
    """The leader was heard, and nothing else is confirmed."""
    MATCHES = 1
    """Everything below next_index is durable here and the same as in the leader's log."""
    RESET = 2
    """The append does not follow from this log; send again from next_index."""


@dataclass(slots=True)
class Entry:
    """One entry of a message; its index follows from its position."""

    term: int
    body: Body


@dataclass(slots=True)
class AppendEntries:
    """Raft §5.3.

    seq: the sender's own count of these messages; the answer echoes it. floor: every member has all entries up to here.
    is_quiet: an answer is wanted only if something does not match; the message announces a commit. is_slow: the leader
    has nothing to do, and sends its next heartbeat later than usual.
    """

    term: int
    seq: int
    commit_index: int
    prev_index: int
    prev_term: int
    floor: int
    entries: list[Entry]
    is_quiet: bool = False
    is_slow: bool = False


@dataclass(slots=True)
class AppendAnswer:
    """The answer to an append. (term, seq): those of the append."""

    term: int
    seq: int
    next_index: int
    outcome: Outcome


@dataclass(slots=True)
class VoteRequest:
    """Raft §5.2. is_transfer: the old leader asked for this election, so it is held although that leader is alive."""

    term: int
    last_index: int
    last_term: int
    is_transfer: bool


@dataclass(slots=True)
class Vote:
    """A granted vote."""

    term: int


@dataclass(slots=True)
class PreVoteRequest:
    """Asks whether the receiver would vote for the sender in this term (thesis §9.6). Changes nothing at the
    receiver."""

    term: int
    round: int
    last_index: int
    last_term: int


@dataclass(slots=True)
class PreVote:
    """The answer to a PreVoteRequest; term is the answering member's own."""

    term: int
    round: int
    is_granted: bool


@dataclass(slots=True)
class StaleTerm:
    """Tells a sender that its term is over, and the present term. Without it an outdated leader would never hear of its
    end."""

    term: int


@dataclass(slots=True)
class SnapshotChunk:
    """Raft §7. A piece of the state at (index, snapshot_term); crc is CRC32C of the whole state of size bytes."""

    term: int
    seq: int
    index: int
    snapshot_term: int
    size: int
    crc: int
    offset: int
    data: Body


@dataclass(slots=True)
class SnapshotAnswer:
    """The number of bytes of that snapshot that the follower has, in order. (term, seq): those of the chunk."""

    term: int
    seq: int
    index: int
    offset: int


@dataclass(slots=True)
class TimeoutNow:
    """Leadership transfer, thesis §3.10: campaign now."""

    term: int


Message = (
    AppendEntries
    | AppendAnswer
    | VoteRequest
    | Vote
    | PreVoteRequest
    | PreVote
    | StaleTerm
    | SnapshotChunk
    | SnapshotAnswer
    | TimeoutNow
)

_APPEND = struct.Struct("<BQQQQQQBI")
_QUIET, _SLOW = 1, 2
"""Flags of an append."""
_ENTRY = struct.Struct("<QI")
_ANSWER = struct.Struct("<BQQQB")
_VOTE_REQUEST = struct.Struct("<BQQQB")
_VOTE = struct.Struct("<BQ")
_PRE_VOTE_REQUEST = struct.Struct("<BQQQQ")
_PRE_VOTE = struct.Struct("<BQQB")
_CHUNK = struct.Struct("<BQQQQQIQ")
_CHUNK_ANSWER = struct.Struct("<BQQQQ")

_TYPE_APPEND, _TYPE_ANSWER, _TYPE_VOTE_REQUEST, _TYPE_VOTE, _TYPE_PRE_VOTE_REQUEST = 1, 2, 3, 4, 5
_TYPE_PRE_VOTE, _TYPE_STALE, _TYPE_CHUNK, _TYPE_CHUNK_ANSWER, _TYPE_TIMEOUT_NOW = 6, 7, 8, 9, 10


def encode_append(m: AppendEntries) -> list[bytes]:
    """Header and table as one part, then each body as it is, not copied."""
    head = _APPEND.pack(
        _TYPE_APPEND,
        m.term,
        m.seq,
        m.commit_index,
        m.prev_index,
        m.prev_term,
        m.floor,
        m.is_quiet * _QUIET | m.is_slow * _SLOW,
        len(m.entries),
    )
    if not m.entries:
        return [head]
    table = b"".join(_ENTRY.pack(entry.term, len(entry.body)) for entry in m.entries)
    return [head + table, *(entry.body for entry in m.entries)]  # type: ignore[list-item]


def encode(m: Message) -> list[bytes]:
    """The parts of a frame."""
    if isinstance(m, AppendEntries):
        return encode_append(m)
    if isinstance(m, AppendAnswer):
        return [_ANSWER.pack(_TYPE_ANSWER, m.term, m.seq, m.next_index, m.outcome)]
    if isinstance(m, VoteRequest):
        return [_VOTE_REQUEST.pack(_TYPE_VOTE_REQUEST, m.term, m.last_index, m.last_term, m.is_transfer)]
    if isinstance(m, Vote):
        return [_VOTE.pack(_TYPE_VOTE, m.term)]
    if isinstance(m, PreVoteRequest):
        return [_PRE_VOTE_REQUEST.pack(_TYPE_PRE_VOTE_REQUEST, m.term, m.round, m.last_index, m.last_term)]
    if isinstance(m, PreVote):
        return [_PRE_VOTE.pack(_TYPE_PRE_VOTE, m.term, m.round, m.is_granted)]
    if isinstance(m, StaleTerm):
        return [_VOTE.pack(_TYPE_STALE, m.term)]
    if isinstance(m, SnapshotChunk):
        head = _CHUNK.pack(_TYPE_CHUNK, m.term, m.seq, m.index, m.snapshot_term, m.size, m.crc, m.offset)
        return [head, bytes(m.data)]
    if isinstance(m, SnapshotAnswer):
        return [_CHUNK_ANSWER.pack(_TYPE_CHUNK_ANSWER, m.term, m.seq, m.index, m.offset)]
    return [_VOTE.pack(_TYPE_TIMEOUT_NOW, m.term)]


def _check(what: str, numbers: Sequence[int], limit: int = MAX_NUMBER) -> None:
    for number in numbers:
        if number > limit:
            raise WireError(f"{what}: {number} is beyond {limit}")


def _flag(what: str, value: int) -> bool:
    if value > 1:
        raise WireError(f"{what}: a flag must be 0 or 1, not {value}")
    return value == 1


def _decode_append(view: memoryview) -> AppendEntries:
    if len(view) < _APPEND.size:
        raise WireError(f"an append has at least {_APPEND.size} bytes, not {len(view)}")
    _, term, seq, commit, prev_index, prev_term, floor, flags, count = _APPEND.unpack_from(view)
    _check("append", (term, seq, commit, prev_index, prev_term, floor))
    if flags > _QUIET | _SLOW:
        raise WireError(f"an append has flags up to {_QUIET | _SLOW}, not {flags}")
    if prev_index < 1:
        raise WireError("an append follows an entry; the first has index 1")
    if count > MAX_ENTRIES:
        raise WireError(f"an append has at most {MAX_ENTRIES} entries, not {count}")
    at = _APPEND.size + count * _ENTRY.size
    if at > len(view):
        raise WireError(f"{count} entries do not fit into {len(view)} bytes")
    entries: list[Entry] = []
    last_term = prev_term
    for entry_term, length in _ENTRY.iter_unpack(view[_APPEND.size : at]):
        if not last_term <= entry_term <= term:
            raise WireError(f"an entry's term is {last_term} to {term}, not {entry_term}")
        last_term = entry_term
        if not 1 <= length <= MAX_BODY_BYTES:
            raise WireError(f"an entry has 1 to {MAX_BODY_BYTES} bytes, not {length}")
        body = view[at : at + length]
        if len(body) != length:
            raise WireError(f"an entry of {length} bytes is cut off after {len(body)}")
        if body[0] == CONFIGURATION:
            Configuration.decode(body[1:])
        elif body[0] not in (COMMAND, NO_OP):
            raise WireError(f"entries of type {body[0]} are refused")
        at += length
        entries.append(Entry(entry_term, body))
    if at != len(view):
        raise WireError(f"{len(view) - at} bytes after the last entry")
    is_quiet, is_slow = bool(flags & _QUIET), bool(flags & _SLOW)
    return AppendEntries(term, seq, commit, prev_index, prev_term, floor, entries, is_quiet, is_slow)


def _fixed(form: struct.Struct, view: memoryview) -> tuple[int, ...]:
    if len(view) != form.size:
        raise WireError(f"a message of type {view[0]} has {form.size} bytes, not {len(view)}")
    return form.unpack(view)[1:]


def _decode_answer(view: memoryview) -> AppendAnswer:
    term, seq, next_index, outcome = _fixed(_ANSWER, view)
    _check("append answer", (term, seq, next_index))
    if outcome > Outcome.RESET:
        raise WireError(f"an append answer has no outcome {outcome}")
    return AppendAnswer(term, seq, next_index, Outcome(outcome))


def _decode_vote_request(view: memoryview) -> VoteRequest:
    term, last_index, last_term, transfer = _fixed(_VOTE_REQUEST, view)
    _check("vote request", (term, last_index, last_term))
    return VoteRequest(term, last_index, last_term, _flag("vote request", transfer))


def _decode_term(view: memoryview) -> int:
    (term,) = _fixed(_VOTE, view)
    _check("term", (term,))
    return term


def _decode_pre_vote_request(view: memoryview) -> PreVoteRequest:
    numbers = _fixed(_PRE_VOTE_REQUEST, view)
    _check("pre-vote request", numbers)
    return PreVoteRequest(*numbers)


def _decode_pre_vote(view: memoryview) -> PreVote:
    term, round_number, granted = _fixed(_PRE_VOTE, view)
    _check("pre-vote", (term, round_number))
    return PreVote(term, round_number, _flag("pre-vote", granted))


def _decode_chunk(view: memoryview) -> SnapshotChunk:
    if len(view) < _CHUNK.size:
        raise WireError(f"a snapshot chunk has at least {_CHUNK.size} bytes, not {len(view)}")
    _, term, seq, index, snapshot_term, size, crc, offset = _CHUNK.unpack_from(view)
    _check("snapshot chunk", (term, seq, index, snapshot_term))
    _check("snapshot size", (size,), MAX_SNAPSHOT_BYTES)
    data = view[_CHUNK.size :]
    if index < 1 or snapshot_term > term:
        raise WireError(f"no snapshot can be at index {index}, term {snapshot_term} in term {term}")
    if offset + len(data) > size:
        raise WireError(f"a chunk of {len(data)} bytes at {offset} extends beyond the snapshot's {size}")
    return SnapshotChunk(term, seq, index, snapshot_term, size, crc, offset, data)


def _decode_chunk_answer(view: memoryview) -> SnapshotAnswer:
    numbers = _fixed(_CHUNK_ANSWER, view)
    _check("snapshot answer", numbers)
    return SnapshotAnswer(*numbers)


_DECODERS: dict[int, Callable[[memoryview], Message]] = {
    _TYPE_APPEND: _decode_append,
    _TYPE_ANSWER: _decode_answer,
    _TYPE_VOTE_REQUEST: _decode_vote_request,
    _TYPE_VOTE: lambda view: Vote(_decode_term(view)),
    _TYPE_PRE_VOTE_REQUEST: _decode_pre_vote_request,
    _TYPE_PRE_VOTE: _decode_pre_vote,
    _TYPE_STALE: lambda view: StaleTerm(_decode_term(view)),
    _TYPE_CHUNK: _decode_chunk,
    _TYPE_CHUNK_ANSWER: _decode_chunk_answer,
    _TYPE_TIMEOUT_NOW: lambda view: TimeoutNow(_decode_term(view)),
}


def decode(frame: Body) -> Message:
    """Decode the message in a frame; WireError if it is none."""
    view = memoryview(frame)
    if not view:
        raise WireError("an empty frame")
    decoder = _DECODERS.get(view[0])
    if decoder is None:
        raise WireError(f"no message has type {view[0]}")
    return decoder(view)
