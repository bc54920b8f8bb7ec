"""An entry that should never have been committed is left out by all members, by an operator's word."""

from __future__ import annotations

from pathlib import Path

import pytest

from fifo import versions
from fifo.commands import Address, CloseSession, Meta, Operation, Origin, RegisterProducer, Wake
from fifo.effects import Done, Ok, Refused, Registered
from fifo.queries import group as queries
from quorum.catalog.commands import CatalogCommand, DeclareQueue, QueueDeclared, SetPolicy
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.members import AddMember, DrainMember
from quorum.errors import ConfigError
from quorum.log.files import RealFiles
from quorum.node.identity.identity import Founding, NodeState, read_identity, record_start
from quorum.node.queries import DescribeCluster
from quorum.replication.network.handshake import HandshakeError, Identity
from support.members.cluster import Cluster, Session

NOBODY = AddMember("n1~nobody", "n1", "192.0.2.1:1", "192.0.2.1:2", "ab" * 16, replaces=True)
JOINING = AddMember("n9~joining", "n9", "192.0.2.1:1", "192.0.2.1:2", "ab" * 16)
POLICY = SetPolicy("short", "orders", 1, (("x-max-length", 3),))
SECRET = b"0123456789abcdef0123456789abcdef"


def poisoned(size: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, int, int, int]:
    """An older version removed n1 for an address where nobody is: (cluster, group, queue, the entry's index)."""
    cluster = Cluster(size, queue_groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    session.publish(group, queue, b"precious")
    cluster.until(lambda: session.confirmed() == [1], "confirmed")
    monkeypatch.setattr(versions, "BASE", 1)
    assert cluster.administer(NOBODY) == Ok(1)
    monkeypatch.undo()
    cluster.run(1_000)
    return cluster, group, queue, entry_with(cluster, 0, b"nobody")


def entry_with(cluster: Cluster, group: int, text: bytes) -> int:
    """The first entry of a group that has these bytes."""
    last = cluster.members["n1"].replicas[group].raft.last_index
    return next(index for index in range(2, last + 1) if text in cluster.logs["n1"].read(group, index))


def start_again(cluster: Cluster, skipped: tuple[tuple[int, int], ...]) -> None:
    for name in cluster.founders:
        if name in cluster.members:
            cluster.crash(name)
        cluster.disks[name].restart()
    cluster._config["skip_entries"] = skipped
    for name in cluster.founders:
        cluster.start(name)


@pytest.mark.parametrize("size", [1, 3])
def test_members_that_leave_the_entry_out_are_as_if_it_had_never_been(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, group, queue, index = poisoned(size, monkeypatch)
    assert cluster.members["n1"].membership.standing == "removed"
    start_again(cluster, ((0, index),))
    cluster.ready()
    cluster.settle()
    for name in cluster.names:
        assert list(cluster.members[name].catalog.members.by_id) == list(cluster.founders)
        assert cluster.members[name].answer(DescribeCluster()).skipped_entries == (f"0:{index}",)
    assert len(cluster.snapshots(0)) == 1
    session = Session(cluster, "n1")
    session.publish(group, queue, b"more")
    cluster.until(lambda: session.confirmed() == [1], "it serves")


def test_the_option_is_needed_until_a_snapshot_is_past_the_entry_and_the_log_has_it_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, _, _, index = poisoned(3, monkeypatch)
    start_again(cluster, ((0, index),))
    cluster.ready()
    cluster.settle()
    with pytest.raises(ConfigError, match=f"--skip-entry 0:{index}"):
        start_again(cluster, ())
    start_again(cluster, ((0, index),))
    cluster.ready()
    cluster.run(150_000)
    assert {
        name: member.answer(DescribeCluster()).skipped_entries for name, member in cluster.members.items()
    } == dict.fromkeys(cluster.names, ())
    start_again(cluster, ())
    cluster.ready()
    cluster.settle()
    assert list(cluster.members["n2"].catalog.members.by_id) == list(cluster.founders)
    assert len(cluster.snapshots(0)) == 1


def test_a_member_whose_snapshot_has_the_effect_already_does_not_start_with_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, _, _, index = poisoned(3, monkeypatch)
    replica = cluster.members["n1"].replicas[0]
    replica.save_snapshot(cluster.logs["n1"], cluster.now_ms)
    with pytest.raises(ConfigError, match=f"the effect of entry 0:{index} is in a snapshot"):
        start_again(cluster, ((0, index),))


@pytest.mark.parametrize(
    ("command", "text"),
    [(POLICY, b"short"), (DrainMember("n2", True), b'"is_drained":true'), (JOINING, b"n9~joining")],
    ids=["policy", "drain", "add"],
)
def test_what_the_same_session_did_behind_the_entry_is_as_it_was(
    command: CatalogCommand, text: bytes
) -> None:
    cluster = Cluster(3, queue_groups=2)
    cluster.ready()
    administrator = Session(cluster, "n1")
    assert administrator.call(0, command) == Ok(1)
    declared = administrator.call(0, DeclareQueue("orders", ()))
    assert isinstance(declared, QueueDeclared)
    cluster.run(500)
    session = Session(cluster, "n3")
    session.publish(declared.group, declared.queue, b"a", b"b", b"c")
    cluster.until(lambda: session.confirmed() == [1, 2, 3], "confirmed")
    before = cluster.members["n1"].catalog
    numbers = before.next_queue_id, before.members.next_number
    start_again(cluster, ((0, entry_with(cluster, 0, text)),))
    cluster.ready()
    cluster.settle()
    for member in cluster.members.values():
        catalog = member.catalog
        assert [queue.id for queue in catalog.queues()] == [declared.queue]
        assert (catalog.next_queue_id, catalog.members.next_number) == numbers
        assert list(catalog.members.by_id) == list(cluster.founders)
        assert not any(each.is_drained for each in catalog.members.by_id.values())
        assert not catalog.policies.by_name
        info = queries.info(member.queue_machine(declared.group), declared.queue)
        assert info is not None
        assert info.ready == 3
    later = Session(cluster, "n2").call(0, DeclareQueue("others", ()))
    assert isinstance(later, QueueDeclared)
    assert later.queue > declared.queue
    cluster.run(1_000)
    assert all(
        member.queue_machine(later.group).has_queue(later.queue) for member in cluster.members.values()
    )


def test_queues_are_configured_again_without_the_policy_that_is_left_out() -> None:
    cluster = Cluster(3, queue_groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    assert cluster.administer(POLICY) == Ok(1)
    cluster.run(1_000)
    assert cluster.members["n1"].queue_machine(group).queues[queue].messages.config.max_length == 3
    start_again(cluster, ((0, entry_with(cluster, 0, b"short")),))
    cluster.ready()
    cluster.run(1_000)
    for member in cluster.members.values():
        config = member.queue_machine(group).queues[queue].messages.config
        assert config == member.catalog.effective(member.catalog.queues()[0]).config
        assert config.max_length != 3


def test_an_entry_of_other_commands_cannot_be_left_out() -> None:
    cluster = Cluster(1, queue_groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    session.publish(group, queue, b"precious")
    cluster.until(lambda: session.confirmed() == [1], "confirmed")
    declared, published = entry_with(cluster, 0, b"orders"), entry_with(cluster, group, b"precious")
    with pytest.raises(
        ConfigError, match=f"entry 0:{declared} has .*DeclareQueue; what can be left out: AddM"
    ):
        start_again(cluster, ((0, declared),))
    with pytest.raises(ConfigError, match="entry 0:1 has no command"):
        start_again(cluster, ((0, 1),))
    with pytest.raises(ConfigError, match=f"entry {group}:{published} .* only entries of the system group"):
        start_again(cluster, ((group, published),))
    start_again(cluster, ())
    cluster.ready()
    assert cluster.info("n1", group, queue).ready == 1


def test_everything_else_of_the_entry_is_carried_out() -> None:
    machine = CatalogMachine((1, 2))
    administrator, other = b"a" * 16, b"b" * 16
    operations = [
        Operation(0, Origin(administrator, 1, 0), RegisterProducer(Address(1, 1, 1))),
        Operation(1, Origin(administrator, 1, 1), JOINING),
        Operation(2, Origin(administrator, 1, 2), DeclareQueue("orders", ())),
        Operation(3, Origin(other, 1, 0), RegisterProducer(Address(2, 1, 1))),
        Operation(4, Origin(other, 1, 1), CloseSession()),
        Operation(5, None, Wake()),
    ]
    registered, refused, declared, _, closed, wake = machine.leave_out(
        Meta(1, 1, 1_000, 2), operations
    ).replies
    assert isinstance(registered, Registered)
    assert isinstance(refused, Refused)
    assert "skip_entries" in refused.detail
    assert declared == QueueDeclared(1, 1, 1)
    assert (closed, wake) == (Ok(), None)
    again = machine.apply(Meta(2, 1, 1_000, 2), operations[1:2])
    assert again.replies == (Done(),), "its number is taken"
    assert CatalogMachine.restore(machine.snapshot()).snapshot() == machine.snapshot()


def test_members_with_another_list_are_refused_and_told_why() -> None:
    with_one = Identity("a", 1, SECRET, "test", skips="0:17")
    with_other = Identity("b", 1, SECRET, "test", skips="0:18")
    without = Identity("b", 1, SECRET, "test")
    assert with_one.read(Identity("b", 1, SECRET, "test", skips="0:17").hello("a", bytes(32))).sender == "b"
    with pytest.raises(HandshakeError, match="skips no entries, while this one skips 0:17"):
        with_one.read(without.hello("a", bytes(32)))
    for one, other in ((without, with_one), (with_one, with_other)):
        with pytest.raises(HandshakeError, match="with other skip_entries"):
            one.read(other.hello(one.me, bytes(32)))


def test_what_was_left_out_is_remembered_in_the_data_directory(tmp_path: Path) -> None:
    start = record_start(tmp_path, "a", Founding("test", 1, ("a",)), 1)
    start.node_state.skipped = ((0, 17),)
    start.node_state.save()
    found = read_identity(tmp_path, RealFiles())
    assert found is not None
    assert found.node_state.skipped == ((0, 17),)
    assert NodeState().skipped == ()
