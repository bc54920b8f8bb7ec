"""A new cluster from the data of one member (quorum/node/offline/new_cluster.py): what it has, what is refused, and
that an interruption changes nothing. tests/processes/test_processes_recovery.py does it with real members."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fifo import commands as c
from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.catalog.members import AddMember, ConfirmMember, DrainMember, RemoveMember, joined_id
from quorum.cli.main import app
from quorum.errors import OperatorError
from quorum.log import RealFiles
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.segments import HEADER_BLOCK
from quorum.node.identity.identity import Founding, Identity, IdentityError, read_identity, record_start
from quorum.node.offline import new_cluster as module
from quorum.node.offline.backup import BackupError, create_backup
from quorum.node.offline.new_cluster import CannotRecover, Found, LossNotAccepted, new_cluster
from quorum.node.offline.offline_check import check
from quorum.node.replica.bootstrap import quarantine
from quorum.node.wire.operations import Command
from quorum.replication.codec import COMMAND
from quorum.replication.configuration import Configuration
from support.log.data_directories import NAMES, SEGMENT, Data, catalog_of, configurations, tree
from support.members.cluster import Cluster, Session

CONFIG = c.QueueConfig("q")


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """A member of three, with two queues in its catalog and in group 1."""
    made = Data(tmp_path / "data")
    made.make()
    made.add(0, [DeclareQueue("orders", ()), DeclareQueue("bills", ())])
    made.add(1, [c.CreateQueue(1, CONFIG), c.CreateQueue(2, CONFIG)], is_numbered=False)
    made.add(1, [c.Enqueue(1, 1, 1, 5, 50)])
    return made


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "new"
    assert not (tmp_path / "new.partial").exists()


def identity(directory: Path) -> Identity:
    found = read_identity(directory, RealFiles())
    assert found is not None
    return found


def found_in(directory: Path, target: Path) -> Found:
    with pytest.raises(LossNotAccepted) as caught:
        new_cluster(directory, target, accepts_loss=False)
    return caught.value.found


def change_identity(data: Data, **fields: object) -> None:
    start = record_start(data.directory, "n3", identity(data.directory).founding, 1)
    for name, value in fields.items():
        setattr(start.node_state, name, value)
    start.node_state.save()


def test_without_consent_it_tells_what_there_is_and_makes_nothing(data: Data, target: Path) -> None:
    before = tree(data.directory)
    found = found_in(data.directory, target)
    assert (found.cluster, found.member, found.dropped) == ("test", "n3", ("n1", "n2"))
    assert [(each.last_entry, each.term, each.voters) for each in found.groups] == [
        (4, 4, NAMES),
        (4, 4, NAMES),
    ]
    assert (found.queues, found.messages, found.unknown_queues, found.ended_queues) == (2, 5, 0, ())
    assert not target.exists()
    assert tree(data.directory) == before


def test_the_member_is_the_only_one_of_another_cluster(data: Data, target: Path) -> None:
    before, node_state = tree(data.directory), identity(data.directory).node_state
    made = new_cluster(data.directory, target, accepts_loss=True)
    assert tree(data.directory) == before
    assert check(target).is_good
    assert configurations(target) == [Configuration(("n3",))] * 2
    catalog = catalog_of(target)
    assert list(catalog.members.by_id) == ["n3"]
    assert catalog.members.removed == ["n1", "n2"]
    assert sorted(queue.name for queue in catalog.queues()) == ["bills", "orders"]
    known = identity(target)
    assert known.founding.cluster == made.cluster != "test"
    assert re.fullmatch(r"test-r[0-9a-f]{8}", made.cluster)
    assert (known.name, known.node_state.incarnation) == ("n3", node_state.incarnation)
    assert [each.id for each in known.node_state.members] == ["n3"]
    again = found_in(target, target.with_name("more"))
    assert (again.dropped, again.queues, again.messages) == ((), 2, 5)
    assert [each.term for each in again.groups] == [5, 5], "a term that no old leader had"
    log = Data(target).log()
    assert [log.journal(group).hard_state for group in (0, 1)] == [(5, "n3")] * 2, "no vote in it for another"
    journal = log.journal(0)
    bodies = [memoryview(journal.read(index)) for index in range(1, journal.last_index + 1)]
    times = [Command(body[1:]).now_ms for body in bodies if body[0] == COMMAND]
    assert times == sorted(times), "group time does not go back"
    log.close()


def test_it_does_not_start_under_the_old_clusters_name(data: Data, target: Path) -> None:
    new_cluster(data.directory, target, accepts_loss=True)
    with pytest.raises(IdentityError, match="belongs to node 'n3' of cluster 'test-r"):
        record_start(target, "n3", identity(data.directory).founding, 1)


def test_two_clusters_made_from_one_are_two(data: Data, target: Path) -> None:
    first = new_cluster(data.directory, target, accepts_loss=True)
    second = new_cluster(target, target.with_name("second"), accepts_loss=True)
    assert first.cluster != second.cluster
    assert re.fullmatch(r"test-r[0-9a-f]{8}", second.cluster), "the random part is replaced"


def test_the_new_term_is_above_those_of_votes_and_of_entries(data: Data, target: Path) -> None:
    """The member may have voted in a term of which it has no entry."""
    log = data.log()
    log.journal(1).set_hard_state(9, "n1")
    log.sync()
    log.close()
    new_cluster(data.directory, target, accepts_loss=True)
    assert [each.term for each in found_in(target, target.with_name("more")).groups] == [5, 10]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("eu-rack", "eu-rack-r"),
        ("eu-r0123456", "eu-r0123456-r"),
        ("eu-r01234567", "eu-r"),
        ("x" * 64, "x" * 54 + "-r"),
    ],
)
def test_the_name_of_the_new_cluster_is_the_old_one_with_a_random_part(old: str, new: str) -> None:
    made = module._new_name(old)
    assert made[:-8] == new and re.fullmatch("[0-9a-f]{8}", made[-8:])
    assert len(made) <= 64


def test_a_backup_serves_as_well(data: Data, target: Path, tmp_path: Path) -> None:
    create_backup(data.directory, tmp_path / "backup")
    before = tree(tmp_path / "backup")
    new_cluster(tmp_path / "backup", target, accepts_loss=True)
    assert tree(tmp_path / "backup") == before
    assert configurations(target) == [Configuration(("n3",))] * 2
    assert not (target / "backup.json").exists(), "a member may run on it"
    segment = next((tmp_path / "backup" / "log").glob("segment-*.log"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    with pytest.raises(BackupError, match="has changed"):
        new_cluster(tmp_path / "backup", target.with_name("other"), accepts_loss=True)


def test_entries_of_which_no_commit_is_known_count(data: Data, target: Path) -> None:
    """A change of members that was under way, too."""
    data.configure(1, Configuration(("n1", "n2", "n3", "n4~0123456789ab")))
    data.add(1, [c.Enqueue(1, 6, 1, 2, 50)])
    found = found_in(data.directory, target)
    assert found.messages == 7
    assert found.groups[1].voters == ("n1", "n2", "n3", "n4~0123456789ab")
    new_cluster(data.directory, target, accepts_loss=True)
    assert configurations(target) == [Configuration(("n3",))] * 2


def test_members_that_joined_or_are_drained(data: Data, target: Path) -> None:
    """n1 is replaced by another n1, which is joining; n3 is drained, so that it could not be the last one."""
    incarnation = "ab" * 16
    data.add(0, [AddMember(joined_id("n1", incarnation), "n1", "x:1", "x:2", incarnation, replaces=True)])
    data.add(0, [DrainMember("n3", is_drained=True)])
    assert found_in(data.directory, target).dropped == ("n1", "n2", joined_id("n1", incarnation))
    new_cluster(data.directory, target, accepts_loss=True)
    own = catalog_of(target).members.by_id
    assert list(own) == ["n3"]
    assert not own["n3"].is_drained


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_member_that_has_joined_becomes_a_cluster_and_one_that_was_joining_does_not(
    tmp_path: Path, target: Path, is_confirmed: bool
) -> None:
    data = Data(tmp_path / "data")
    incarnation = data.make(joined=True).incarnation
    own = joined_id("n3", incarnation)
    data.add(0, [AddMember(own, "n3", "x:1", "x:2", incarnation, replaces=True)], version=2)
    for group in (0, 1):
        data.configure(group, Configuration(("n1", "n2", own)))
    if not is_confirmed:
        with pytest.raises(CannotRecover, match=f"{own} was still joining, and may lack data"):
            new_cluster(data.directory, target, accepts_loss=True)
        return
    data.add(0, [ConfirmMember(own)], version=2)
    new_cluster(data.directory, target, accepts_loss=True)
    assert list(catalog_of(target).members.by_id) == [own]
    assert configurations(target) == [Configuration((own,))] * 2


def test_a_catalog_that_lags_behind_the_groups_is_corrected(data: Data, target: Path) -> None:
    """The group has heard of queues 5 and 6, and of 3 changes of policies; of queue 2 it knows that it was removed."""
    data.add(1, [c.CreateQueue(5, CONFIG), c.CreateQueue(6, CONFIG), c.DeleteQueue(6)], is_numbered=False)
    data.add(1, [c.Enqueue(5, 6, 1, 3, 30)])
    data.add(1, [c.DeleteQueue(2), c.Configured(3, 9)], is_numbered=False)
    found = found_in(data.directory, target)
    assert (found.queues, found.messages) == (2, 5)
    assert (found.unknown_queues, found.unknown_messages) == (1, 3)
    assert found.ended_queues == ("bills",)
    new_cluster(data.directory, target, accepts_loss=True)
    catalog = catalog_of(target)
    assert [queue.name for queue in catalog.queues()] == ["orders"]
    assert catalog.next_queue_id == 7, "no new queue gets the id and the messages of a lost one"
    assert catalog.is_gone(5, 1), "the group's leader deletes it"
    assert catalog.revision >= 3, "the group's leader configures queues again"
    assert len(catalog.policies) == 0


def test_the_first_queue_that_the_catalog_has_not_declared_is_unknown(data: Data, target: Path) -> None:
    data.add(1, [c.CreateQueue(3, CONFIG)], is_numbered=False)
    assert found_in(data.directory, target).unknown_queues == 1


def test_of_many_corrections_none_is_left_out(data: Data, target: Path) -> None:
    """More than fit into one entry."""
    data.add(1, [c.CreateQueue(3_000, CONFIG)], is_numbered=False)
    new_cluster(data.directory, target, accepts_loss=True)
    assert catalog_of(target).next_queue_id == 3_001


def written(cluster: Cluster, directory: Path) -> Path:
    """The disk of n3 as a data directory."""
    for path, inode in cluster.disks["n3"].names.items():
        file = directory / path.relative_to("/data")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(inode.data))
    start = record_start(directory, "n3", Founding("test", 1, NAMES), 1)
    start.node_state.is_established = True
    start.node_state.save()
    return directory


def synced_messages(cluster: Cluster, group: int) -> int:
    """The messages in the entries that n3 has synced."""
    log = cluster.logs["n3"]
    journal, found = log.journal(group), 0
    for index in range(1, journal.last_index + 1):
        body = journal.read(index)
        if body[0] == COMMAND and journal.lsn_at(index) <= log.synced_lsn:
            enqueues = (each.command for each in Command(memoryview(body)[1:]).decode())
            found += sum(each.count for each in enqueues if isinstance(each, c.Enqueue))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_everything_synced_is_there_after_a_power_cut_at_any_moment(
    tmp_path: Path, target: Path, seed: int
) -> None:
    """n3 lags behind, catches up, and loses power with the last entries half written."""
    chance = random.Random(seed)
    cluster = Cluster(size=3, queue_groups=1, seed=seed, log={"segment_bytes": SEGMENT})
    cluster.ready()
    group, queue = cluster.declare("orders")
    cluster.settle()
    session = Session(cluster, "n1" if cluster.leader(group) != "n2" else "n2")
    published = 0
    for phase in ("together", "apart", "together again"):
        if phase == "apart":
            cluster.isolate("n3")
        else:
            cluster.heal()
        for _ in range(chance.randrange(5, 25)):
            session.publish(group, queue, b"b" * chance.randrange(1, 2_000))
            published += 1
            cluster.run(chance.randrange(1, 20))
    least = synced_messages(cluster, group)
    cluster.crash("n3")
    found = new_cluster(written(cluster, tmp_path / "data"), target, accepts_loss=True).found
    assert least <= found.messages <= published
    assert least > 0


def test_groups_with_snapshots_pages_and_collected_segments(tmp_path: Path, target: Path) -> None:
    """Data of a member that has worked for a while."""
    cluster = Cluster(
        size=3,
        queue_groups=1,
        snapshot_bytes=30_000,
        log={"segment_bytes": SEGMENT, "recent_bytes": 0},
    )
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    for _ in range(60):
        session.publish(group, queue, b"b" * 2_000)
        cluster.run(5)
    cluster.until(lambda: len(session.confirmed()) == 60, "confirms")
    for _ in range(20):
        session.call(group, c.Get(queue, 1, settled=True))
    cluster.settle()
    cluster.logs["n3"].sync()
    directory = written(cluster, tmp_path / "data")
    assert len(list((directory / "log" / "snapshots").glob("*.snapshot"))) >= 2
    made = new_cluster(directory, target, accepts_loss=True)
    assert (made.found.queues, made.found.messages, made.found.dropped) == (1, 40, ("n1", "n2"))
    again = found_in(target, target.with_name("more"))
    assert (again.messages, again.dropped) == (40, ())


# ---- what is refused


def lose_promises(data: Data) -> None:
    log = data.log()
    quarantine(log, 1)
    log.sync()
    log.close()


def flip_a_body(data: Data) -> None:
    path = next((data.directory / "log").glob("segment-*.log"))
    content = bytearray(path.read_bytes())
    content[HEADER_BLOCK + HEADER_BYTES] ^= 1
    path.write_bytes(content)


REFUSED: dict[str, tuple[Callable[[Data], None], str]] = {
    "quarantined": (lose_promises, "group 1 is quarantined"),
    "damaged": (flip_a_body, "is damaged"),
    "never met": (lambda data: change_identity(data, is_established=False), "has never taken part"),
    "parted": (
        lambda data: change_identity(data, parted=((1, 3),)),
        "at entry 3 of group 1, the state of n3 differed",
    ),
    "skipped": (lambda data: change_identity(data, skipped=((0, 3),)), "leaves out entry 0:3"),
    "a learner": (
        lambda data: data.configure(1, Configuration(("n1", "n2"), ("n3",))),
        "n3 is no voter of group 1",
    ),
    "removed": (lambda data: data.add(0, [RemoveMember("n3")]), "n3 is no member in the catalog"),
    "no manifest": (lambda data: (data.directory / "log" / "MANIFEST").unlink(), "is damaged"),
    "of a newer release": (
        lambda data: data.add_body(1, bytes([COMMAND, 1, *(9_000).to_bytes(8, "little"), 0xFF, 0xFF, 0, 0])),
        "was used by a newer release",
    ),
    "back in time": (
        lambda data: data.add_body(1, bytes([COMMAND, 1, *bytes(8), 2, 0, 0, 0])),
        "entry 1:5 cannot be applied: .* must not go back",
    ),
    "too far behind": (
        lambda data: data.add(1, [c.CreateQueue(1_000_000, CONFIG)], is_numbered=False),
        "know 999998 queues",
    ),
    "too far behind in its policies": (
        lambda data: data.add(1, [c.Configured(1_000_000, 9)], is_numbered=False),
        "changes of policies more than the system group",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_doubtful_data_is_refused(data: Data, target: Path, case: str) -> None:
    spoil, said = REFUSED[case]
    spoil(data)
    before = tree(data.directory)
    with pytest.raises(OperatorError, match=said):
        new_cluster(data.directory, target, accepts_loss=True)
    assert not target.exists()
    assert tree(data.directory) == before


def test_a_refusal_of_damage_names_the_file_that_is_damaged(data: Data, target: Path) -> None:
    flip_a_body(data)
    with pytest.raises(OperatorError) as refused:
        new_cluster(data.directory, target, accepts_loss=True)
    assert f"the first: {data.directory / 'log' / 'segment-'}" in str(refused.value)
    assert ".partial" not in str(refused.value)


def test_nothing_is_made_of_nothing(data: Data, target: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source, said in (
        (tmp_path / "empty", "has no folder 'log'"),
        (tmp_path / "none", "has no folder 'log'"),
    ):
        with pytest.raises(OperatorError, match=said):
            new_cluster(source, target, accepts_loss=True)
    log = data.log()
    with pytest.raises(OperatorError, match="a process uses"):
        new_cluster(data.directory, target, accepts_loss=True)
    log.close()
    target.mkdir()
    with pytest.raises(BackupError, match="exists; name a new directory"):
        new_cluster(data.directory, target, accepts_loss=True)


def test_a_catalog_that_refuses_a_correction_is_noticed(
    data: Data, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that forgets to remove the other members."""
    monkeypatch.setattr(module, "RemoveMember", RemoveQueue)
    with pytest.raises(CannotRecover, match="has refused a command"):
        new_cluster(data.directory, target, accepts_loss=True)
    assert not target.exists()


# ---- interruptions


class Interrupting:
    """Calls of the system that make something durable; one of them is interrupted."""

    def __init__(self, patch: pytest.MonkeyPatch, moment: int) -> None:
        self._left = moment
        for name in ("fsync", "fdatasync", "rename"):
            patch.setattr(os, name, partial(self._call, getattr(os, name)))

    def _call(self, real: Callable[..., None], *arguments: object) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        real(*arguments)


def test_an_interruption_at_any_sync_or_rename_leaves_nothing_half_done(
    data: Data, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(data.directory)
    for moment in count(1):
        with monkeypatch.context() as patch:
            Interrupting(patch, moment)
            try:
                new_cluster(data.directory, target, accepts_loss=True)
                is_done = True
            except KeyboardInterrupt:
                is_done = False
        assert tree(data.directory) == before
        if target.exists():  # it is whole
            assert check(target).is_good
            assert configurations(target) == [Configuration(("n3",))] * 2
            target.rename(target.with_name(f"made-{moment}"))
        if is_done:
            break
    assert moment > 10


def test_what_a_killed_command_has_left_is_removed(data: Data, target: Path) -> None:
    left = target.with_name("new.partial")
    (left / "log").mkdir(parents=True)
    (left / "log" / "segment-1.log").write_bytes(b"half")
    new_cluster(data.directory, target, accepts_loss=True)
    assert check(target).is_good


# ---- the command


def test_the_command_tells_and_asks(data: Data, target: Path) -> None:
    command = ["cluster", "recover", str(data.directory), str(target)]
    said = CliRunner().invoke(app, command)
    assert "members that the new cluster drops: n1, n2" in said.output
    assert "give --i-accept-that-confirmed-messages-may-be-lost" in str(said.exception)
    both = subprocess.run(
        [sys.executable, "-m", "quorum", *command],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    *found, last = both.stdout.splitlines()
    assert found and last.startswith("error: nothing was made: "), "the error stands after what was found"
    accepted = [*command, "--i-accept-that-confirmed-messages-may-be-lost"]
    made = json.loads(CliRunner().invoke(app, [*accepted, "--json"]).output)
    assert made["found"]["messages"] == 5
    assert identity(target).founding.cluster == made["cluster"]
    said = CliRunner().invoke(app, accepted)
    assert "exists; name a new directory" in str(said.exception)
