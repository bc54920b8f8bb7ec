"""The running hash (fifo/outcome_hash.py) tells all kinds of replies apart."""

from __future__ import annotations

from typing import get_args

import pytest

from fifo.effects import (
    Applied,
    AttachedReply,
    Confirmed,
    Done,
    Ok,
    Pinned,
    Published,
    Refused,
    Registered,
    Reply,
    Reserved,
    SubscriptionState,
)
from fifo.outcome_hash import digest

REPLIES = (
    Ok(),
    Done(),
    Registered((), known=False),
    Confirmed(1, 1),
    AttachedReply(1),
    SubscriptionState(1, 1, 1, 1),
    Reserved(1, 1, 1, 1, is_complete=True),
    Pinned(1, 1, 1, 1, 1),
    Published(1, 1),
    Refused("limit", ""),
    None,
)


def test_each_kind_of_reply_has_numbers_of_its_own() -> None:
    assert {type(reply) for reply in REPLIES} == {*get_args(Reply), type(None)}
    assert len({digest(1, Applied((reply,), ())) for reply in REPLIES}) == len(REPLIES)


def test_a_reply_without_numbers_is_an_error() -> None:
    class Other: ...

    with pytest.raises(TypeError, match="no numbers for a Other in the running hash"):
        digest(1, Applied((Other(),), ()))  # type: ignore[arg-type]
