"""The system group's machine: declaring, removing, numbering, snapshots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fifo import commands as c
from fifo.effects import Done, Ok, Refused, Registered, Reply
from fifo.limits import PRODUCTION
from fifo.numbering import DAY_MS
from fifo.versions import CURRENT
from quorum.catalog.arguments import ArgumentValue
from quorum.catalog.commands import (
    NO_QUEUE,
    CatalogCommand,
    DeclareQueue,
    QueueDeclared,
    QueueRemoved,
    RemoveExpired,
    RemovePolicy,
    RemoveQueue,
    SetPolicy,
)
from quorum.catalog.layouts import DECLARE_QUEUE
from quorum.catalog.lease_times import SetLeaseTimes
from quorum.catalog.machine import HASHED_EVERY, CatalogMachine
from quorum.catalog.members import AddMember, DrainMember, RemoveMember
from quorum.catalog.numbering import Numbering
from quorum.catalog.queues import MAX_QUEUES
from quorum.catalog.users import RemoveUser, SetUser
from support.examples import examples

PRODUCER = b"p" * 16


class Client:
    """Speaks to a catalog machine as one session would, one operation an entry."""

    def __init__(self, machine: CatalogMachine, producer: bytes = PRODUCER, epoch: int = 1) -> None:
        self.machine = machine
        self.producer, self.epoch = producer, epoch
        self.n = 0
        self.index = 0
        self.now_ms = 1_000
        self.version = CURRENT
        self.register()

    def send(self, command: Any, n: int, epoch: int | None = None) -> Reply | None:
        self.index += 1
        origin = c.Origin(self.producer, self.epoch if epoch is None else epoch, n)
        applied = self.machine.apply(
            c.Meta(self.index, 1, self.now_ms, self.version), (c.Operation(0, origin, command),)
        )
        assert applied.effects == ()
        return applied.replies[0]

    def register(self) -> Reply | None:
        return self.send(c.RegisterProducer(c.Address(1, 1, 1)), 0)

    def call(self, command: Any) -> Reply | None:
        self.n += 1
        return self.send(command, self.n)

    def declare(self, name: str, **arguments: ArgumentValue) -> Reply | None:
        pairs = tuple(("x-" + key.replace("_", "-"), value) for key, value in arguments.items())
        return self.call(DeclareQueue(name, pairs))


def client(groups: tuple[int, ...] = (1, 2, 3)) -> Client:
    return Client(CatalogMachine(groups))


def switch(machine: CatalogMachine, version: int = CURRENT) -> None:
    """From here on, snapshots have the fields of this version."""
    machine.apply(c.Meta(0, 1, 0, 2), [c.Operation(0, None, c.SetVersion(version))])


def test_queues_go_to_the_group_with_the_fewest_lowest_number_first() -> None:
    me = client()
    replies = [me.declare(name) for name in "abcd"]
    assert replies == [
        QueueDeclared(1, 1, 1),
        QueueDeclared(1, 2, 2),
        QueueDeclared(1, 3, 3),
        QueueDeclared(1, 4, 1),
    ]
    me.call(RemoveQueue("b"))
    assert me.declare("e") == QueueDeclared(1, 5, 2)
    assert [queue.name for queue in me.machine.queues_of_group(1)] == ["a", "d"]
    assert me.machine.queues_of_group(9) == []


def test_an_id_is_never_given_out_twice() -> None:
    me = client((1,))
    me.declare("a")
    assert me.call(RemoveQueue("a")) == QueueRemoved(1, 1, 1)
    assert me.machine.queue("a") is None
    assert me.declare("a") == QueueDeclared(1, 2, 1)
    assert me.machine.next_queue_id == 3


def test_declaring_again_with_the_same_meaning_changes_nothing() -> None:
    me = client()
    me.declare("a", max_length=5)
    before = me.machine.queues()
    assert me.declare("a", max_length=5, overflow="drop-head") == QueueDeclared(0, 1, 1)
    assert me.machine.queues() == before


def test_declaring_again_with_another_meaning_is_refused_naming_the_difference() -> None:
    me = client()
    me.declare("a", max_length=5)
    reply = me.declare("a", max_length=6)
    assert reply == Refused(
        "different_arguments", "queue 'a' exists with other arguments: x-max-length is 5, not 6"
    )
    refused = me.declare("a", overflow="reject-publish")
    assert refused == Refused(
        "different_arguments",
        "queue 'a' exists with other arguments: x-overflow is 'drop-head', not 'reject-publish'; "
        "x-max-length is 5, and was not given",
    )


def test_the_refusal_of_other_arguments_names_none_that_neither_declaration_gives() -> None:
    me = client()
    me.declare("a", filter_enabled=True)
    assert me.declare("a") == Refused(
        "different_arguments",
        "queue 'a' exists with other arguments: x-filter-enabled is true, not false, the default",
    )


def test_what_is_refused_changes_nothing_but_its_number() -> None:
    me = client()
    me.declare("a")
    before = (me.machine.queues(), me.machine.next_queue_id)
    for reply, reason in [
        (me.declare("b", colour=1), "bad_argument"),
        (me.declare(""), "bad_argument"),
        (me.call(RemoveQueue("nobody")), "not_found"),
    ]:
        assert isinstance(reply, Refused)
        assert reply.reason == reason
    assert (me.machine.queues(), me.machine.next_queue_id) == before
    assert isinstance(me.declare("b"), QueueDeclared)


def test_queues_are_listed_by_name_and_prefix() -> None:
    me = client()
    for name in ("b", "ab", "a"):
        me.declare(name)
    assert sorted(queue.name for queue in me.machine.queues()) == ["a", "ab", "b"]


def test_numbers_are_taken_once_and_without_gaps() -> None:
    me = client()
    assert me.send(DeclareQueue("a", ()), 1) == QueueDeclared(1, 1, 1)
    assert me.send(DeclareQueue("b", ()), 1) == Done()
    assert me.machine.queue("b") is None
    reply = me.send(DeclareQueue("b", ()), 3)
    assert isinstance(reply, Refused) and reply.reason == "gap"
    assert me.register() == Done()
    assert me.send(c.Wake(), 2) == Ok()


def test_a_higher_epoch_fences_the_lower_one() -> None:
    me = client()
    me.declare("a")
    assert me.send(c.RegisterProducer(c.Address(2, 1, 1)), 0, epoch=2) == Registered((), True)
    late = me.send(DeclareQueue("b", ()), 2, epoch=1)
    assert isinstance(late, Refused) and late.reason == "fenced"
    again = me.send(c.RegisterProducer(c.Address(1, 1, 1)), 0, epoch=1)
    assert isinstance(again, Refused) and again.reason == "fenced"
    early = me.send(DeclareQueue("b", ()), 1, epoch=3)
    assert isinstance(early, Refused) and early.reason == "not_registered"
    assert me.send(DeclareQueue("b", ()), 1, epoch=2) == QueueDeclared(1, 2, 2)


def test_a_producer_nobody_knows_must_register() -> None:
    machine = CatalogMachine((1,))
    me = Client(machine)
    stranger = c.Origin(b"s" * 16, 1, 1)
    reply = machine.apply(c.Meta(9, 1, 0, CURRENT), (c.Operation(0, stranger, c.Wake()),)).replies[0]
    assert isinstance(reply, Refused) and reply.reason == "not_registered"
    forgotten = c.Origin(b"s" * 16, 1, 7)
    reply = machine.apply(c.Meta(10, 1, 0, CURRENT), (c.Operation(0, forgotten, c.Wake()),)).replies[0]
    assert isinstance(reply, Refused)
    assert reply.reason == "expired"
    assert me.declare("a") == QueueDeclared(1, 1, 1)


def test_members_own_operations_need_no_number_and_change_nothing() -> None:
    me = client()
    before = json.loads(me.machine.snapshot())
    operations = [
        c.Operation(i, None, each) for i, each in enumerate((c.Wake(), c.NodeDown(1, 1), c.SetVersion(1)))
    ]
    assert me.machine.apply(c.Meta(5, 1, 0, CURRENT), operations).replies == (None, None, None)
    after = json.loads(me.machine.snapshot())
    assert after == before | {"running_hash": after["running_hash"]}
    with pytest.raises(TypeError):
        me.machine.apply(c.Meta(6, 1, 0, CURRENT), [c.Operation(0, None, RemoveQueue("a"))])  # type: ignore[arg-type]


def register(
    numbering: Numbering,
    name: int,
    now_ms: int,
    owner: int = 5,
    version: int = CURRENT,
    boot: int = 1,
    heard_ms: int = 0,
    epoch: int = 1,
) -> Any:
    origin = c.Origin(name.to_bytes(16, "big"), epoch, 0)
    command = c.RegisterProducer(c.Address(1, boot, name), owner, heard_ms)
    return numbering.register(origin, command, now_ms, version)


def test_silent_producers_are_forgotten_after_a_day() -> None:
    numbering = Numbering()
    for number in range(10):
        register(numbering, number, number)
    assert numbering.refuse(c.Origin(bytes(16), 1, 1), 50) is None  # the first one speaks again
    register(numbering, 99, DAY_MS + 20)
    assert list(numbering.speakers) == [bytes(16), (99).to_bytes(16, "big")]


def test_a_producer_that_registers_again_is_the_one_that_was_silent_for_the_shortest_time() -> None:
    numbering = Numbering()
    for number in range(3):
        register(numbering, number, number)
    register(numbering, 0, 50, epoch=2)
    register(numbering, 99, DAY_MS + 20)
    assert list(numbering.speakers) == [bytes(16), (99).to_bytes(16, "big")]


def test_a_cluster_has_a_limited_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorum.catalog.machine.MAX_QUEUES", 3)
    me = client()
    for name in "abc":
        assert isinstance(me.declare(name), QueueDeclared)
    text = "queue 'd' cannot be declared: there are 3 queues; allowed: 3 (max_queues)"
    assert me.declare("d") == Refused("limit", text)
    assert me.declare("a") == QueueDeclared(0, 1, 1), "it exists"
    me.call(RemoveQueue("b"))
    assert isinstance(me.declare("d"), QueueDeclared), "there is space for it now"


def test_the_arguments_of_all_queues_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (("x-filter-enabled", True), ("x-filter-field-names", "a b"))
    each = sum(len(text) for text in ("x-filter-enabled", "x-filter-field-names", "a b"))
    monkeypatch.setattr("quorum.catalog.machine.MAX_ALL_ARGUMENTS_BYTES", 2 * each)
    me = client()
    for name in "ab":
        assert isinstance(me.call(DeclareQueue(name, arguments)), QueueDeclared)
    refused = me.call(DeclareQueue("c", arguments))
    assert isinstance(refused, Refused)
    assert (refused.reason, f"{3 * each} bytes; allowed: {2 * each}" in refused.detail) == ("limit", True)
    assert isinstance(me.declare("plain"), QueueDeclared)
    assert me.call(DeclareQueue("a", arguments)) == QueueDeclared(0, 1, 1), "it exists"
    me.machine = CatalogMachine.restore(me.machine.snapshot())
    assert isinstance(me.call(DeclareQueue("c", arguments)), Refused)
    me.call(RemoveQueue("b"))
    assert isinstance(me.call(DeclareQueue("c", arguments)), QueueDeclared), "there is room now"


def test_a_node_may_allow_fewer_queues() -> None:
    me = client()
    for name in "abc":
        me.declare(name)
    refused = me.call(DeclareQueue("d", (), max_queues=3))
    assert isinstance(refused, Refused) and "allowed: 3 (max_queues)" in refused.detail
    assert me.call(DeclareQueue("a", (), max_queues=3)) == QueueDeclared(0, 1, 1), "it exists"
    assert isinstance(me.call(DeclareQueue("d", (), max_queues=4)), QueueDeclared)


def owned(name: str, owner: str, allowed: int = 2) -> DeclareQueue:
    return DeclareQueue(name, (), owner=owner, max_owned=allowed)


def test_a_user_has_a_limited_number_of_queues_and_leaves_others_theirs() -> None:
    me = client()
    for name in "ab":
        assert isinstance(me.call(owned(name, "ann")), QueueDeclared)
    text = "queue 'c' cannot be declared: user 'ann' has 2 queues; allowed: 2 (max_queues_per_user)"
    assert me.call(owned("c", "ann")) == Refused("limit", text)
    assert isinstance(me.call(owned("c", "ann", 3)), QueueDeclared), "another member may allow more"
    assert isinstance(me.call(owned("d", "ben")), QueueDeclared)
    assert isinstance(me.declare("e"), QueueDeclared), "nobody's"
    owners = {queue.name: queue.owner for queue in me.machine.queues()}
    assert owners == {"a": "ann", "b": "ann", "c": "ann", "d": "ben", "e": ""}


def test_declaring_again_what_exists_is_not_refused_by_the_limit_of_a_user() -> None:
    me = client()
    me.call(owned("a", "ann"))
    me.call(owned("b", "ben"))
    before = me.machine.queues()
    for name in "ab":
        assert me.call(owned(name, "ann", 1)) == QueueDeclared(
            0, ord(name) - ord("a") + 1, ord(name) - ord("a") + 1
        )
    assert me.machine.queues() == before, "the first user stays the owner"
    assert isinstance(me.call(owned("c", "ben")), QueueDeclared), "ben has one queue"


def test_a_queue_that_is_removed_or_expires_leaves_its_place_to_its_user() -> None:
    me = client()
    switch(me.machine)
    me.call(owned("a", "ann"))
    me.call(owned("b", "ann"))
    me.call(RemoveQueue("a"))
    assert isinstance(me.call(owned("c", "ann")), QueueDeclared)
    me.machine.apply(c.Meta(90, 1, 100, CURRENT), [c.Operation(0, None, RemoveExpired(2))])
    me.machine = CatalogMachine.restore(me.machine.snapshot())
    assert isinstance(me.call(owned("d", "ann")), QueueDeclared)
    assert isinstance(me.call(owned("e", "ann")), Refused)


def test_a_user_has_half_of_the_bytes_of_arguments_unless_it_may_have_all_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = (("x-overflow", "drop-head"),)
    each = sum(map(len, arguments[0]))
    monkeypatch.setattr("quorum.catalog.machine.MAX_ALL_ARGUMENTS_BYTES", 4 * each)
    me = client()
    switch(me.machine)

    def declare(name: str, owner: str, allowed: int = 9, **given: int) -> Reply | None:
        return me.call(DeclareQueue(name, arguments, owner=owner, max_owned=allowed, **given))

    for name in "ab":
        assert isinstance(declare(name, "ann"), QueueDeclared)
    me.machine = CatalogMachine.restore(me.machine.snapshot())
    text = (
        "queue 'c' cannot be declared: the arguments of the queues of user 'ann' would have "
        f"{3 * each} bytes; allowed: {2 * each}"
    )
    assert declare("c", "ann") == Refused("limit", text)
    assert declare("a", "ann") == QueueDeclared(0, 1, 1), "it exists"
    assert isinstance(me.call(owned("plain", "ann", 9)), QueueDeclared)
    assert isinstance(declare("d", "ben"), QueueDeclared)
    assert isinstance(declare("c", "ann", max_queues=9), QueueDeclared), "it may have all queues"
    assert isinstance(me.call(owned("plain too", "ann", 9)), QueueDeclared), "it needs no bytes"
    for name in "ac":
        me.call(RemoveQueue(name))
    assert isinstance(declare("e", "ann"), QueueDeclared), "there is room now"


def test_the_queues_of_a_user_who_was_removed_are_those_of_a_later_user_of_that_name() -> None:
    me = client()
    for name, administers in (("root", True), ("ann", False)):
        me.call(SetUser(name, "secret", administers, False))
    me.call(owned("a", "ann"))
    me.call(RemoveUser("ann"))
    [queue] = me.machine.queues()
    assert queue.owner == "ann"
    me.call(SetUser("ann", "secret", False, False))
    assert isinstance(me.call(owned("b", "ann", 1)), Refused)


def test_before_version_3_a_queue_has_no_owner_and_a_user_no_limit() -> None:
    me = client()
    me.version = 2
    for name in "abc":
        assert isinstance(me.call(owned(name, "ann")), QueueDeclared)
    assert {queue.owner for queue in me.machine.queues()} == {""}
    me.version = 3
    assert me.call(owned("a", "ann")) == QueueDeclared(0, 1, 1)
    for name in "de":
        assert isinstance(me.call(owned(name, "ann")), QueueDeclared), "the others do not count"
    assert isinstance(me.call(owned("f", "ann")), Refused)


def test_the_owners_of_queues_are_in_snapshots_from_version_3_on() -> None:
    me = client()
    me.call(owned("a", "ann", 1))
    assert [len(row) for row in json.loads(me.machine.snapshot())["queues"]] == [5], "as version 2 reads it"
    switch(me.machine, 3)
    me.machine = CatalogMachine.restore(me.machine.snapshot())
    [queue] = me.machine.queues()
    assert queue.owner == "ann"
    assert isinstance(me.call(owned("b", "ann", 1)), Refused)


def test_an_expired_queue_is_removed_once_and_its_name_is_free() -> None:
    me = client()
    me.declare("a", expires=5)
    me.declare("b")
    remove = [c.Operation(0, None, RemoveExpired(1))]
    for index in (90, 91):
        assert me.machine.apply(c.Meta(index, 1, 100, CURRENT), remove).replies == (None,)
        assert me.machine.queue("a") is None
        assert (me.machine.is_gone(1, 1), me.machine.removals) == (True, 1)
    assert isinstance(me.declare("a"), QueueDeclared), "a new queue of that name"
    assert me.machine.apply(c.Meta(92, 1, 100, CURRENT), remove).replies == (None,)
    assert me.machine.queue("a") is not None


def test_past_the_limits_a_client_is_refused_and_nobody_is_forgotten() -> None:
    numbering = Numbering(replace(PRODUCTION, max_producers=4))
    replies = [register(numbering, number, 1, owner) for number, owner in enumerate((5, 5, 5, 6, 7, 8))]
    assert [isinstance(reply, Refused) for reply in replies] == [False, False, True, False, False, True]
    assert register(numbering, 9, 1, c.NODE) == Registered((), False)
    assert len(numbering.speakers) == 5


def test_a_closed_session_is_forgotten_but_for_a_fence() -> None:
    me = client()
    assert me.send(c.CloseSession(), 1) == Ok()
    again = CatalogMachine.restore(me.machine.snapshot())
    assert again.snapshot() == me.machine.snapshot()
    me.machine = again
    for late in (me.register(), me.send(DeclareQueue("a", ()), 1), me.send(DeclareQueue("a", ()), 2)):
        assert isinstance(late, Refused) and late.reason == "fenced"
    assert me.send(c.RegisterProducer(c.Address(1, 1, 2)), 0, epoch=2) == Registered((), False)
    assert not me.machine._numbering.fences.by_name, "its present session is known"


def test_a_session_that_is_older_than_a_lost_fence_cannot_register() -> None:
    numbering = Numbering(replace(PRODUCTION, max_fences=2))
    for name in range(1, 4):
        assert isinstance(register(numbering, name, 10 * name, c.NODE, heard_ms=10 * name), Registered)
        numbering.close(c.Origin(name.to_bytes(16, "big"), 1, 1), 10 * name, CURRENT)
    assert len(numbering.fences.by_name) == 2
    late = register(numbering, 1, 50, c.NODE, heard_ms=10)
    assert isinstance(late, Refused) and late.reason == "outdated"
    assert isinstance(register(numbering, 4, 50, c.NODE, heard_ms=11), Registered)


OPERATORS_COMMANDS = [
    SetPolicy("limit", "orders", 0, (("x-max-length", 5),), 0),
    RemovePolicy("limit", 0),
    AddMember("n4", "n4", "h:1", "h:2", "0" * 32, seen=0),
    RemoveMember("n3", 0),
    DrainMember("n3", True, 0),
    SetLeaseTimes(1_000, 1_000, 0),
]


@pytest.mark.parametrize("late", OPERATORS_COMMANDS, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("other", OPERATORS_COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_that_was_made_before_another_one_was_carried_out_is_refused(
    late: CatalogCommand, other: CatalogCommand
) -> None:
    me = client()
    me.call(other)
    before = json.loads(me.machine.snapshot())
    reply = me.call(late)
    assert isinstance(reply, Refused) and reply.reason == "outdated"
    after = json.loads(me.machine.snapshot())
    same = {"speakers": [], "running_hash": 0}
    assert after | same == before | same
    assert me.call(replace(late, seen=1)) != reply


def test_a_removal_takes_only_the_queue_that_it_names() -> None:
    me = client()
    me.declare("orders")
    assert me.call(RemoveQueue("orders", 1)) == QueueRemoved(1, 1, 1)
    me.declare("orders")
    late = me.call(RemoveQueue("orders", 1))
    assert isinstance(late, Refused) and late.reason == "outdated"
    never = me.call(RemoveQueue("orders", NO_QUEUE))
    assert isinstance(never, Refused) and never.reason == "outdated"
    assert me.call(RemoveQueue("orders", 2)) == QueueRemoved(1, 2, 1)


def test_a_declaration_from_before_a_removal_makes_no_queue() -> None:
    me = client()
    assert me.call(DeclareQueue("orders", (), 0)) == QueueDeclared(1, 1, 1)
    me.call(RemoveQueue("orders"))
    late = me.call(DeclareQueue("orders", (), 0))
    assert isinstance(late, Refused) and late.reason == "outdated"
    assert me.call(DeclareQueue("orders", (), 1)) == QueueDeclared(1, 2, 1)
    assert me.call(DeclareQueue("orders", (), 0)) == QueueDeclared(0, 2, 1), "it is there"


def test_a_nodes_newer_process_takes_the_place_of_its_earlier_ones() -> None:
    numbering = Numbering()
    for boot in range(1, 6):
        register(numbering, boot, 1, c.NODE, boot=boot)
    assert list(numbering.speakers) == [(5).to_bytes(16, "big")]


def test_entries_of_version_1_forget_the_longest_silent_producer_to_make_room() -> None:
    numbering = Numbering()
    for number in range(PRODUCTION.max_producers + 5):
        register(numbering, number, 21, version=1)
    assert len(numbering.speakers) == PRODUCTION.max_producers


def test_speakers_that_an_earlier_build_wrote_are_read() -> None:
    data = client().machine.snapshot()
    state = json.loads(data)
    state["speakers"] = [speaker[:4] for speaker in state["speakers"]]
    again = CatalogMachine.restore(json.dumps(state).encode())
    assert [len(speaker) for speaker in json.loads(again.snapshot())["speakers"]] == [7]


names = st.sampled_from(["a", "b", "c", "ü", "a.b"])
given_arguments = st.dictionaries(
    st.sampled_from(["x-max-length", "x-message-ttl", "x-filter-enabled", "x-overflow", "x-nonsense"]),
    st.sampled_from([True, 1, 2, "reject-publish", "drop-head", 1.0]),
    max_size=3,
)
steps = st.lists(
    st.one_of(
        st.builds(
            lambda n, a, o: DeclareQueue(n, tuple(a.items()), owner=o, max_owned=2 if o else MAX_QUEUES),
            names,
            given_arguments,
            st.sampled_from(["", "ann", "ben"]),
        ),
        st.builds(RemoveQueue, names),
        st.just(c.Wake()),
    ),
    max_size=25,
)


@settings(max_examples=examples(60))
@given(steps, st.integers(0, 25))
def test_a_snapshot_and_the_rest_of_the_log_give_the_whole(commands: list[Any], cut: int) -> None:
    whole, first = client(), client()
    for each in (whole, first):
        switch(each.machine)
    for command in commands:
        whole.call(command)
    for command in commands[:cut]:
        first.call(command)
    machine = CatalogMachine.restore(first.machine.snapshot())
    assert machine.snapshot() == first.machine.snapshot()
    first.machine = machine
    for command in commands[cut:]:
        first.call(command)
    assert machine.snapshot() == whole.machine.snapshot()
    assert machine.queues() == whole.machine.queues()
    for group in machine.queue_groups:
        assert machine.queues_of_group(group) == whole.machine.queues_of_group(group)
    counts = [len(machine.queues_of_group(group)) for group in machine.queue_groups]
    assert sum(counts) == len(machine.queues())
    owners = Counter(queue.owner for queue in machine.queues())
    assert machine._owned == owners == whole.machine._owned
    assert machine._owned_bytes == whole.machine._owned_bytes
    assert machine._owned_bytes.total() == machine._argument_bytes == whole.machine._argument_bytes
    assert all(owners[user] <= 2 for user in ("ann", "ben"))


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    for data in (b"", b"{}", b"[]", b'{"format":2}', b'{"format":1,"groups":[1]}', b"\xff"):
        with pytest.raises(ValueError, match=r"catalog|utf-8"):
            CatalogMachine.restore(data)


@given(names, given_arguments)
def test_a_declaration_survives_its_encoding_with_the_kinds_of_its_values(
    name: str, arguments: dict[str, Any]
) -> None:
    command = DeclareQueue(name, tuple(arguments.items()))
    again = DECLARE_QUEUE.load(DECLARE_QUEUE.dump(command))
    assert again == command
    assert [type(value) for _, value in again.arguments] == [type(value) for _, value in command.arguments]


@pytest.mark.parametrize(
    "data", [b"", b"1", b"[]", b'["a",[["x"]]]', b'["a",[["x",null]]]', b"[1,[]]", b"\xff\xff"]
)
def test_bytes_that_are_no_declaration_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        DECLARE_QUEUE.load(data)


SCRIPT = """
import hashlib, sys
from fifo import commands as c
from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.catalog.layouts import DECLARE_QUEUE
from quorum.catalog.machine import CatalogMachine
machine = CatalogMachine((1, 2, 3))
machine.apply(c.Meta(1, 1, 1, 2), [c.Operation(0, c.Origin(b"p" * 16, 1, 0), c.RegisterProducer(c.Address(1, 1, 1)))])
replies = []
for n in range(1, 200):
    name = f"q{n * 7 % 31}"
    command = RemoveQueue(name) if n % 3 == 0 else DeclareQueue(name, (("x-filter-enabled", True), ("x-max-length", n)))
    replies.append(machine.apply(c.Meta(n, 1, n, 2), [c.Operation(0, c.Origin(b"p" * 16, 1, n), command)]).replies)
sys.stdout.write(hashlib.sha256(repr(replies).encode() + machine.snapshot()).hexdigest())
"""


def test_the_same_entries_give_the_same_bytes_whatever_the_hash_seed() -> None:
    state_hashes = set()
    for seed in ("0", "1", "77"):
        environment = dict(
            os.environ, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(filter(None, sys.path))
        )
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        state_hashes.add(done.stdout)
    assert len(state_hashes) == 1


LONG = (("x-filter-enabled", True), ("x-filter-field-names", "a" + " " * 5_000))


@pytest.mark.parametrize(
    "command", [DeclareQueue("q", LONG), SetPolicy("p", "*", 0, LONG[1:])], ids=["queue", "policy"]
)
def test_arguments_of_more_than_four_kibibytes_are_refused_except_in_entries_of_version_1(
    command: DeclareQueue | SetPolicy,
) -> None:
    me = client()
    reply = me.call(command)
    assert isinstance(reply, Refused)
    assert (reply.reason, reply.detail) == (
        "bad_argument",
        f"arguments of {5_001 + sum(len(name) for name, _ in command.arguments)} bytes (names and texts); "
        "allowed: 4096 together",
    )
    me.version = 1
    assert isinstance(me.call(command), Ok)
    me.version = CURRENT
    assert me.call(command) in (Ok(0), QueueDeclared(0, 1, 1)), "as it is known already"
    assert CatalogMachine.restore(me.machine.snapshot()).snapshot() == me.machine.snapshot()


# ---- what members compare, and what is known to be gone


def test_the_running_hash_tells_other_answers_apart_and_goes_on_from_a_snapshot() -> None:
    one, other = client(), client()
    assert one.machine.running_hash == other.machine.running_hash != 0
    one.declare("orders")
    other.declare("orders")
    assert one.machine.running_hash == other.machine.running_hash
    del other.machine._by_name["orders"]
    other.machine = CatalogMachine.restore(other.machine.snapshot())
    one.call(RemoveQueue("orders"))
    other.call(RemoveQueue("orders"))
    assert one.machine.running_hash != other.machine.running_hash


def test_the_running_hash_takes_in_the_state_now_and_then() -> None:
    one, other = client(), client()
    for each in (one, other):
        each.declare("orders")
        each.declare("bills")
    del other.machine._by_name["orders"]  # nobody asks about it
    hashes = []
    for index in (HASHED_EVERY - 1, HASHED_EVERY):
        meta = c.Meta(index, 1, 0, CURRENT)
        for each in (one, other):
            each.machine.apply(meta, [c.Operation(0, None, c.Wake())])
        hashes.append((one.machine.running_hash, other.machine.running_hash))
    assert hashes[0][0] == hashes[0][1]
    assert hashes[1][0] != hashes[1][1]


def test_entries_of_the_first_version_leave_the_running_hash_alone() -> None:
    machine = CatalogMachine((1,))
    machine.apply(c.Meta(HASHED_EVERY, 1, 0, 1), [c.Operation(0, None, c.Wake())])
    assert machine.running_hash == 0


def test_only_a_queue_that_was_removed_or_lives_elsewhere_is_gone() -> None:
    me = client()
    for name in ("a", "b", "c", "d"):
        me.declare(name)  # ids 1 to 4, in groups 1, 2, 3, 1
    me.call(RemoveQueue("a"))
    me.call(RemoveQueue("d"))
    del me.machine._by_name["b"], me.machine._by_group[2][2]  # a defect
    for machine in (me.machine, CatalogMachine.restore(me.machine.snapshot())):
        assert machine.is_gone(1, 1)
        assert machine.is_gone(4, 1)
        assert machine.is_gone(3, 1), "it lives in group 3"
        assert not machine.is_gone(3, 3)
        assert not machine.is_gone(2, 2), "that it is not there means nothing"
        assert not machine.is_gone(5, 1), "it was never declared"


def test_a_snapshot_that_names_no_removed_queues_takes_all_for_removed_that_are_not_there() -> None:
    me = client()
    for name in ("a", "b", "c"):
        me.declare(name)
    me.call(RemoveQueue("b"))
    state = json.loads(me.machine.snapshot())
    assert state["removed"] == [[2, 2]]
    del state["removed"], state["running_hash"]
    again = CatalogMachine.restore(json.dumps(state).encode())
    assert [again.is_gone(queue, 2) for queue in (2, 4)] == [True, False]
    assert json.loads(again.snapshot())["removed"] == [[2, 2]]


# ---- the delivery limit that a queue has by default


def test_a_queue_keeps_the_delivery_limit_of_the_version_that_declared_it() -> None:
    catalog = client()
    catalog.version = 1
    catalog.declare("old")
    catalog.version = CURRENT
    catalog.declare("new")
    catalog.declare("endless", delivery_limit=-1)
    for machine in (catalog.machine, CatalogMachine.restore(catalog.machine.snapshot())):
        limits = {queue.name: queue.config.delivery_limit for queue in machine.queues()}
        assert limits == {"old": -1, "new": 20, "endless": -1}
        effective = {queue.name: dict(machine.effective(queue).arguments) for queue in machine.queues()}
        assert effective == {
            "old": {},
            "new": {"x-delivery-limit": 20},
            "endless": {"x-delivery-limit": -1},
        }


def test_a_queue_is_declared_again_with_the_limit_that_it_has() -> None:
    catalog = client()
    catalog.version = 1
    catalog.declare("old")
    catalog.version = CURRENT
    catalog.declare("new")
    again: list[tuple[str, dict[str, ArgumentValue]]] = [
        ("old", {}),
        ("old", {"delivery_limit": -1}),
        ("new", {}),
        ("new", {"delivery_limit": 20}),
    ]
    for name, arguments in again:
        reply = catalog.declare(name, **arguments)
        assert isinstance(reply, QueueDeclared)
        assert reply.count == 0
    refused = catalog.declare("old", delivery_limit=20)
    assert isinstance(refused, Refused)
    assert refused.detail.endswith("x-delivery-limit is not set, not 20")
    refused = catalog.declare("new", delivery_limit=-1)
    assert isinstance(refused, Refused)
    assert refused.detail.endswith("x-delivery-limit is 20, not not set")


@pytest.mark.parametrize("limit", [-1, 5, 100])
def test_a_policy_replaces_the_limit_that_a_queue_has_by_default(limit: int) -> None:
    catalog = client()
    catalog.declare("new")
    catalog.declare("own", delivery_limit=3)
    catalog.call(SetPolicy("p", "*", 0, (("x-delivery-limit", limit),)))
    new, own = (catalog.machine.queue(name) for name in ("new", "own"))
    assert new is not None and own is not None
    assert catalog.machine.effective(new).config.delivery_limit == limit
    assert catalog.machine.effective(own).config.delivery_limit == 3
    catalog.call(RemovePolicy("p"))
    assert catalog.machine.effective(new).config.delivery_limit == 20
