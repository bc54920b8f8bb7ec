"""An entry that should never have been committed is left out by all members, by an operator's word."""

from __future__ import annotations

from pathlib import Path

import pytest

from fifo import versions
from fifo.effects import Ok
from quorum.catalog.members import AddMember
from quorum.errors import ConfigError
from quorum.log.files import RealFiles
from quorum.node.identity import Founding, Memory, begin_life, read_identity
from quorum.replication.handshake import HandshakeError, Identity
from support.cluster import Cluster, Session

NOBODY = AddMember("n1~nobody", "n1", "192.0.2.1:1", "192.0.2.1:2", "ab" * 16, replaces=True)
SECRET = b"0123456789abcdef0123456789abcdef"


def poisoned(size: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, int, int, int]:
    """An older version removed n1 for an address where nobody is: (cluster, group, queue, the entry's index)."""
    cluster = Cluster(size, queue_groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    session.publish(group, queue, b"precious")
    cluster.until(lambda: session.confirmed() == [1], "confirmed")
    monkeypatch.setattr(versions, "CURRENT", 1)
    assert cluster.administer(NOBODY) == Ok(1)
    monkeypatch.undo()
    cluster.run(1_000)
    log = cluster.logs["n1"]
    last = cluster.members["n1"].replicas[0].raft.last_index
    found = [index for index in range(2, last + 1) if b"nobody" in log.read(0, index)]
    return cluster, group, queue, found[0]


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
        assert cluster.members[name].skipped_entries() == [f"0:{index}"]
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
    assert {name: member.skipped_entries() for name, member in cluster.members.items()} == {
        name: [] for name in cluster.names
    }
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


def test_members_with_another_list_are_refused_and_told_why() -> None:
    with_one = Identity("a", 1, SECRET, "test", skips="0:17")
    with_other = Identity("b", 1, SECRET, "test", skips="0:18")
    without = Identity("b", 1, SECRET, "test")
    assert with_one.read(Identity("b", 1, SECRET, "test", skips="0:17").hello("a", bytes(32))).sender == "b"
    with pytest.raises(HandshakeError, match="leaves no entries out, while this one leaves out 0:17"):
        with_one.read(without.hello("a", bytes(32)))
    for one, other in ((without, with_one), (with_one, with_other)):
        with pytest.raises(HandshakeError, match="leaves out other entries"):
            one.read(other.hello(one.me, bytes(32)))


def test_what_was_left_out_is_remembered_in_the_data_directory(tmp_path: Path) -> None:
    life = begin_life(tmp_path, "a", Founding("test", 1, ("a",)), 1)
    life.memory.skipped = ((0, 17),)
    life.memory.save()
    found = read_identity(tmp_path, RealFiles())
    assert found is not None
    assert found.memory.skipped == ((0, 17),)
    assert Memory().skipped == ()
