"""Users and permissions in the catalog: what a command changes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fifo.effects import Ok, Refused, Reply
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.users import MAX_USERS, RemoveUser, SetPermissions, SetUser, User, Users
from support.catalog import Catalog


def refused(reply: Reply | None) -> str:
    assert isinstance(reply, Refused), reply
    return reply.reason


ADMIN = SetUser("admin", "scrypt$1$00$11", administers=True, monitors=False)


def test_users_are_made_changed_and_removed() -> None:
    catalog = Catalog()
    assert catalog.call(ADMIN) == Ok(1)
    assert catalog.call(ADMIN) == Ok(0)
    assert catalog.call(SetUser("ann", "secret", False, True)) == Ok(1)
    assert catalog.call(SetPermissions("ann", "a*", "", "*")) == Ok(1)
    assert catalog.call(SetUser("ann", "", False, False)) == Ok(1)
    assert list(catalog.machine.users.by_name.values()) == [
        User("admin", "scrypt$1$00$11", administers=True),
        User("ann", "secret", False, False, "a*", "", "*"),
    ]
    assert catalog.call(RemoveUser("ann")) == Ok(1)
    assert refused(catalog.call(RemoveUser("ann"))) == "not_found"
    assert refused(catalog.call(SetPermissions("ann", "", "", ""))) == "not_found"


def test_a_cluster_with_users_always_has_an_administrator() -> None:
    catalog = Catalog()
    assert refused(catalog.call(SetUser("ann", "secret", False, True))) == "last_administrator"
    catalog.call(ADMIN)
    assert refused(catalog.call(RemoveUser("admin"))) == "last_administrator"
    assert refused(catalog.call(replace(ADMIN, administers=False))) == "last_administrator"
    catalog.call(SetUser("ann", "secret", administers=True, monitors=False))
    assert catalog.call(RemoveUser("admin")) == Ok(1)


def test_names_and_patterns_are_checked_and_users_are_limited() -> None:
    users = Users()
    for bad in (
        replace(ADMIN, name=""),
        replace(ADMIN, name="a:b"),
        replace(ADMIN, name="x" * 256),
        replace(ADMIN, secret="x" * 256),
        SetPermissions("admin", "x" * 256, "", ""),
    ):
        assert refused(users.changed(bad)[1]) == "bad_argument"
    users = Users([User("admin", "s", administers=True), *(User(f"u{n}", "s") for n in range(MAX_USERS - 1))])
    assert refused(users.changed(SetUser("more", "s", False, False))[1]) == "limit"
    assert users.changed(SetUser("u1", "s", False, True))[1] == Ok(1)


def test_a_late_command_changes_no_user() -> None:
    catalog = Catalog()
    catalog.call(ADMIN)
    seen = catalog.machine.changes
    catalog.call(SetUser("ann", "secret", False, False))
    assert refused(catalog.call(RemoveUser("ann", seen))) == "outdated"


def test_users_are_in_the_snapshot_and_an_earlier_one_has_none() -> None:
    catalog = Catalog()
    assert b'"users"' not in catalog.machine.snapshot()
    catalog.call(ADMIN)
    catalog.call(SetPermissions("admin", "a", "b", "c"))
    restored = CatalogMachine.restore(catalog.machine.snapshot())
    assert restored.users.by_name == catalog.machine.users.by_name
    assert restored.snapshot() == catalog.machine.snapshot()


def test_a_permission_is_a_pattern_of_whole_names() -> None:
    user = User("ann", "", configure="mine.*", write="one", read="")
    assert user.may("configure", "mine.x") and not user.may("configure", "not.mine.x")
    assert user.may("write", "one") and not user.may("write", "one.more")
    assert not user.may("read", "") or user.read == ""
    assert not user.may("read", "mine.x")
    assert User("root", "", administers=True).may("read", "anything")


SPECIAL = st.text(r".*+?|^$\()[]{}ab/%_ é", max_size=12)


@given(SPECIAL, SPECIAL)
@example(".*", "ab")
@example("a|b", "b")
@example("^a$", "a")
@example(r"\*", "*")
@example("a?", "a")
@example("[a]", "a")
@example("%", "ab")
def test_only_a_star_is_more_than_itself_in_a_permission(pattern: str, name: str) -> None:
    """No character of regular expressions or of other patterns gives anything."""
    user = User("ann", "", read=pattern)
    pieces = pattern.split("*")
    expected = name == pattern
    if len(pieces) > 1:
        place = len(pieces[0])
        expected = name.startswith(pieces[0])
        for piece in pieces[1:-1]:
            found = name.find(piece, place)
            expected &= found >= 0
            place = found + len(piece)
        expected &= name.endswith(pieces[-1]) and len(name) - len(pieces[-1]) >= place
    assert user.may("read", name) == (expected and bool(pattern))
    assert not user.may("write", name)


@pytest.mark.parametrize("name", ["a*", ".*", "^a$", "a|b", "*"])
def test_a_name_of_a_user_or_queue_is_no_pattern(name: str) -> None:
    """A user with such a name, and a queue that is named as a pattern, match nothing but themselves."""
    catalog = Catalog()
    assert catalog.call(ADMIN) == Ok(1)
    assert catalog.call(SetUser(name, "secret", False, False)) == Ok(1)
    assert catalog.call(SetPermissions("admin", "", "", "")) == Ok(0)
    assert refused(catalog.call(RemoveUser("ab"))) == "not_found"
    user = User("ann", "", read="ab")
    assert not user.may("read", name)
