"""The rules of the members in the catalog (quorum/catalog/members.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fifo.effects import Ok, Refused, Reply
from fifo.versions import CURRENT
from quorum.addresses import MAX_MEMBERS
from quorum.catalog.members import (
    AddMember,
    BootstrapCluster,
    ConfirmMember,
    Members,
    RecordIncarnation,
    RemoveMember,
    decode_add,
    decode_bootstrap,
    decode_confirm,
    founders,
)

INCARNATION = "ab" * 16


def members(count: int) -> Members:
    """Founding members n1, n2, ... at n1:1 and n1:2, n2:1 and n2:2, ..."""
    found = Members()
    names = [f"n{number}" for number in range(1, count + 1)]
    found.bootstrap(BootstrapCluster(founders({name: (f"{name}:1", f"{name}:2") for name in names})))
    return found


def add(
    to: Members, member: str, name: str, *, peer: str = "", client: str = "", replaces: bool = False
) -> Reply:
    host = member.replace("~", "-")
    command = AddMember(
        member, name, peer or f"{host}:1", client or f"{host}:2", INCARNATION, replaces=replaces
    )
    return to.add(command, CURRENT)


def reason(reply: Reply) -> str:
    assert isinstance(reply, Refused)
    return reply.reason


def test_a_full_cluster_takes_a_member_only_in_place_of_another_one() -> None:
    full = members(MAX_MEMBERS - 1)
    assert add(full, "m~1", "m") == Ok(1)
    assert add(full, "m~1", "m") == Ok(0), "it is there already"
    assert reason(add(full, "o~1", "o")) == "limit"
    assert add(full, "m~2", "m", replaces=True) == Ok(1)
    assert full.remove(RemoveMember("n1"), CURRENT) == Ok(1)


@pytest.mark.parametrize("address", ["n1:1", "n1:2"])
def test_no_two_members_have_the_same_address(address: str) -> None:
    three = members(3)
    assert reason(add(three, "m~1", "m", peer=address)) == "bad_argument"
    assert reason(add(three, "m~1", "m", client=address)) == "bad_argument"
    assert reason(add(three, "n2~1", "n2", peer=address, replaces=True)) == "bad_argument"
    assert add(three, "n1~1", "n1", peer=address, replaces=True) == Ok(1), "it takes the place of n1"


def test_the_incarnation_of_a_founding_member_is_recorded_once() -> None:
    """A member with another one has lost its disk."""
    three = members(3)
    for incarnation in (INCARNATION, "cd" * 16):
        three.record_incarnation(RecordIncarnation("n1", incarnation))
    assert three.by_id["n1"].incarnation == INCARNATION


@pytest.mark.parametrize("data", [b"[]", b"1", b'{"members":[{"other":1}]}', b"{"])
@pytest.mark.parametrize("decode", [decode_bootstrap, decode_add, decode_confirm])
def test_bytes_that_are_no_command_are_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_a_member_that_was_removed_does_not_come_back() -> None:
    three = members(3)
    assert add(three, "n3~1", "n3", replaces=True) == Ok(1)
    three.confirm(ConfirmMember("n3~1"))
    assert list(three.by_id) == ["n1", "n2", "n3~1"]
    assert reason(add(three, "n3", "n4")) == "bad_argument"
    assert three.remove(RemoveMember("n2"), CURRENT) == Ok(1)
    assert reason(add(three, "n2", "n2")) == "bad_argument"
    assert add(three, "n2~1", "n2") == Ok(1)
