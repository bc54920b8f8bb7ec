"""Raft messages as bytes: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum.replication import codec
from quorum.replication.codec import (
    AppendAnswer,
    AppendEntries,
    Entry,
    Message,
    Outcome,
    PreVote,
    PreVoteRequest,
    SnapshotAnswer,
    SnapshotChunk,
    StaleTerm,
    TimeoutNow,
    Vote,
    VoteRequest,
)
from quorum.replication.errors import WireError

EXAMPLES: list[Message] = [
    AppendEntries(5, 77, 9, 10, 3, 2, [Entry(3, b"\0abc"), Entry(5, b"\1"), Entry(5, b"\0" + bytes(1000))]),
    AppendEntries(5, 78, 9, 10, 3, 2, [], True),
    AppendAnswer(5, 77, 12, Outcome.MATCHES),
    AppendAnswer(5, 77, 12, Outcome.RESET),
    VoteRequest(6, 12, 5, True),
    Vote(6),
    PreVoteRequest(6, 3, 12, 5),
    PreVote(5, 3, True),
    StaleTerm(9),
    SnapshotChunk(5, 80, 9, 3, 100, 0xDEADBEEF, 40, b"x" * 60),
    SnapshotChunk(5, 80, 9, 3, 0, 0, 0, b""),
    SnapshotAnswer(5, 80, 9, 100),
    TimeoutNow(5),
]


def data_of(message: Message) -> bytes:
    return b"".join(codec.encode(message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_messages_come_back(message: Message) -> None:
    assert codec.decode(data_of(message)) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_byte_counts(message: Message) -> None:
    data = data_of(message)
    whole = (
        len(data_of(EXAMPLES[10])) if isinstance(message, SnapshotChunk) else len(data)
    )  # a chunk's tail is free
    for length in range(whole):
        with pytest.raises(WireError):
            codec.decode(data[:length])
    if not isinstance(message, SnapshotChunk) or message.size:
        with pytest.raises(WireError):
            codec.decode(data + b"\0")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    try:
        message = codec.decode(data)
    except WireError:
        return
    assert data_of(message) == data


@given(st.integers(0, 2**32), st.sampled_from(EXAMPLES))
def test_damaged_messages_are_a_message_or_a_wire_error(seed: int, message: Message) -> None:
    chance = random.Random(seed)
    data = bytearray(data_of(message))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(min(len(data), 90))] = chance.choice((0, 1, 255, chance.randrange(256)))
    try:
        decoded = codec.decode(bytes(data))
    except WireError:
        return
    assert data_of(decoded) == bytes(data)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (AppendEntries(5, 1, 1, 0, 0, 0, []), "follows an entry"),
        (AppendEntries(5, 1, 1, 1, 0, 0, [Entry(6, b"\0")]), "term"),
        (AppendEntries(5, 1, 1, 1, 3, 0, [Entry(2, b"\0")]), "term"),
        (AppendEntries(5, 1, 1, 1, 3, 0, [Entry(5, b"")]), "1 to"),
        (AppendEntries(5, 1, 1, 1, 3, 0, [Entry(5, b"\2pickle")]), "type 2"),
        (AppendEntries(5, 1, 1, 1, 3, 0, [Entry(5, b"\3pickle")]), "type 3"),
        (AppendEntries(1 << 62, 1, 1, 1, 3, 0, []), "beyond"),
        (SnapshotChunk(5, 1, 0, 3, 1, 0, 0, b"x"), "index 0"),
        (SnapshotChunk(5, 1, 9, 6, 1, 0, 0, b"x"), "term 6"),
        (SnapshotChunk(5, 1, 9, 3, 1, 0, 1, b"x"), "beyond"),
        (SnapshotChunk(5, 1, 9, 3, 1 << 50, 0, 0, b"x"), "beyond"),
    ],
)
def test_what_no_member_sends_is_refused(message: Message, why: str) -> None:
    with pytest.raises(WireError, match=why):
        codec.decode(data_of(message))
