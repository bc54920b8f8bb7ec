"""A member that has lost what it promised (quorum/replication/quarantine.py): it harms nobody, and finds back."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from fifo.persistence import checkpoint
from quorum.catalog.members import AddMember
from quorum.log import Log, LogDamaged
from quorum.node import events as ev
from quorum.node.offline.lost_log import begin_again, open_log, quarantine
from quorum.node.replica.bootstrap import Bootstrap
from quorum.replication.errors import WireError
from quorum.replication.group import Group
from quorum.replication.group_config import GroupConfig
from quorum.replication.quarantine import Quarantine, RecoveryRequest, RecoveryResponse
from support.log.damage import flip_body
from support.log.disk import SimDisk
from support.members.cluster import Cluster, Session

GROUPS = 4


def lose_disk(cluster: Cluster, name: str, *, is_marked: bool = True) -> None:
    """The member is down, and its log could not be opened: a new one is in its place."""
    if name in cluster.members:
        cluster.crash(name)
    cluster.disks[name] = SimDisk(99)
    log = Log.open(Path("/data/log"), cluster.disks[name])
    for group in range(GROUPS if is_marked else 0):
        quarantine(log, group)
    log.sync()
    log.close()


def is_quarantined(cluster: Cluster, name: str) -> bool:
    return any(replica.raft.quarantine.is_on for replica in cluster.members[name].replicas.values())


def publish(session: Session, group: int, queue: int, numbers: range) -> list[bytes]:
    sent = []
    for number in numbers:
        sent.append(b"%d" % number)
        session.publish(group, queue, sent[-1])
        session.cluster.run(5)
    session.cluster.until(
        lambda: len(session.confirmed()) == session.next_sequence - 1, f"confirms of {numbers}"
    )
    return sent


def everything_is_there(cluster: Cluster, group: int, queue: int, sent: list[bytes]) -> None:
    cluster.ready()
    cluster.until(
        lambda: not any(is_quarantined(cluster, name) for name in cluster.names), "nobody is quarantined"
    )
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    consumer = Session(cluster, "n3")
    assert isinstance(consumer.call(group, c.Attach(queue, "c", b"", 10_000)), AttachedReply)
    cluster.until(lambda: len(consumer.received(group)) >= len(sent), "all messages")
    assert consumer.received(group) == sent


@pytest.mark.parametrize("raft", [GroupConfig(), GroupConfig(keep_entries=5)], ids=["entries", "snapshot"])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_member_that_lost_its_log_finds_back_by_itself(who: str, raft: GroupConfig) -> None:
    cluster = Cluster(raft=raft, snapshot_bytes=2_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    lost = leader if who == "leader" else next(name for name in cluster.names if name != leader)
    assert lost is not None
    producer = Session(cluster, next(name for name in cluster.names if name != lost))
    sent = publish(producer, group, queue, range(60))
    lose_disk(cluster, lost)
    cluster.start(lost)
    assert is_quarantined(cluster, lost)
    sent += publish(producer, group, queue, range(60, 90))
    everything_is_there(cluster, group, queue, sent)
    cluster.crash(lost)
    cluster.start(lost)
    assert not is_quarantined(cluster, lost)


def test_it_does_not_help_to_elect_a_member_without_what_it_once_acknowledged() -> None:
    for seed in range(2):
        cluster = Cluster(seed=seed)
        cluster.ready()
        group, queue = cluster.declare("orders")
        leader = cluster.leader(group)
        assert leader is not None
        lost, behind = [name for name in cluster.names if name != leader]
        cluster.isolate(behind)
        producer = Session(cluster, leader)
        sent = publish(producer, group, queue, range(20))  # by the leader and the member that will lose them
        lose_disk(cluster, lost)
        cluster.crash(leader)
        cluster.heal()
        cluster.start(lost)
        for _ in range(100):
            cluster.run(50)
            assert cluster.leader(group) is None
        assert is_quarantined(cluster, lost)
        cluster.start(leader)
        everything_is_there(cluster, group, queue, sent)


def test_without_the_mark_confirmed_messages_would_be_lost() -> None:
    """What the test before this one sees is there to be seen."""
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    lost, behind = [name for name in cluster.names if name != leader]
    cluster.isolate(behind)
    publish(Session(cluster, leader), group, queue, range(20))
    lose_disk(cluster, lost, is_marked=False)
    cluster.crash(leader)
    cluster.heal()
    cluster.start(lost)
    cluster.until(lambda: cluster.leader(group) == behind, "an election that must not be")
    assert cluster.logs[behind].journal(group).last_index < 20


def test_it_counts_for_nothing_while_another_member_has_not_answered() -> None:
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    lost, down = [name for name in cluster.names if name != leader]
    producer = Session(cluster, leader)
    sent = publish(producer, group, queue, range(5))
    lose_disk(cluster, lost)
    cluster.crash(down)
    cluster.start(lost)
    producer.publish(group, queue, b"5")
    cluster.run(5_000)
    assert len(producer.confirmed()) == 5
    assert is_quarantined(cluster, lost)
    assert cluster.members[lost].replicas[group].raft.last_index == 1
    cluster.crash(lost)
    cluster.start(lost)
    cluster.start(down)
    everything_is_there(cluster, group, queue, [*sent, b"5"])


def test_the_mark_survives_a_crash_in_the_middle() -> None:
    cluster = Cluster(seed=3)
    cluster.ready()
    group, queue = cluster.declare("orders")
    sent = publish(Session(cluster, "n1"), group, queue, range(30))
    lose_disk(cluster, "n3")
    for wait_ms in (5, 505, 510, 520, 600):
        cluster.start("n3")
        cluster.run(wait_ms)
        still = {number for number, r in cluster.members["n3"].replicas.items() if r.raft.quarantine.is_on}
        cluster.crash("n3")
        cluster.start("n3")
        again = {number for number, r in cluster.members["n3"].replicas.items() if r.raft.quarantine.is_on}
        assert still <= again
        cluster.crash("n3")
    cluster.start("n3")
    everything_is_there(cluster, group, queue, sent)


def test_two_of_three_in_quarantine_stay_there_and_nothing_is_served() -> None:
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    publish(Session(cluster, "n1"), group, queue, range(5))
    for name in ("n2", "n3"):
        lose_disk(cluster, name)
        cluster.start(name)
    cluster.run(5_000)
    assert cluster.leader(group) is None
    assert is_quarantined(cluster, "n2") and is_quarantined(cluster, "n3")


# ---- while members come and go


def grown(cluster: Cluster, member: str) -> None:
    """One more member, which votes in every group."""
    cluster.join(member)
    admit(cluster, member)
    cluster.until(
        lambda: all(
            member in each.raft.configuration.voters for each in cluster.members[member].replicas.values()
        ),
        "it votes everywhere",
    )
    cluster.ready()


def admit(cluster: Cluster, member: str) -> None:
    name = member.partition("~")[0]
    command = AddMember(
        member,
        name,
        f"{member.replace('~', '-')}:1",
        f"{member.replace('~', '-')}:2",
        cluster.node_states[member].incarnation,
    )
    assert cluster.administer(command) == Ok(1)


def lose_group(cluster: Cluster, name: str, group: int) -> None:
    """The member is down, and when it starts it finds that it has lost its share in one group."""
    if name in cluster.members:
        cluster.crash(name)
    log = Log.open(Path("/data/log"), cluster.disks[name])
    founders = cluster.founders if name in cluster.founders else ()
    Bootstrap(log, founders, GROUPS - 1, structlog.get_logger()).lose_replica(group, "as in a test")
    log.close()


@pytest.mark.parametrize("what", ["one group", "everything"])
def test_a_member_that_joined_later_and_lost_what_it_promised_finds_back(what: str) -> None:
    """Neither its configuration nor its log names any voter: the others say who they are."""
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    grown(cluster, "n4~a")
    sent = publish(Session(cluster, "n1"), group, queue, range(30))
    cluster.settle()
    cluster.crash("n4~a")
    if what == "one group":
        lose_group(cluster, "n4~a", group)
    else:
        lose_disk(cluster, "n4~a")
    cluster.crash("n2")
    cluster.start("n4~a")
    cluster.run(5_000)
    lost = {number for number, r in cluster.members["n4~a"].replicas.items() if r.raft.quarantine.is_on}
    assert lost == ({group} if what == "one group" else set(range(GROUPS))), "n2 has not said how it stands"
    cluster.start("n2")
    everything_is_there(cluster, group, queue, sent)
    assert "n4~a" in cluster.members["n4~a"].replicas[group].raft.configuration.voters


class Pair:
    """Two voters, and a third member that is on its way to be one."""

    def __init__(self, *, is_voter: bool) -> None:
        """is_voter: the entry that makes it one is in the log of a voter, and perhaps nowhere else."""
        self.cluster = cluster = Cluster(size=2)
        cluster.ready()
        self.group, self.queue = cluster.declare("orders")
        self.sent = publish(Session(cluster, "n1"), self.group, self.queue, range(20))
        cluster.settle()
        leader = cluster.leader(self.group)
        assert leader is not None
        self.leader = leader
        self.follower = "n2" if leader == "n1" else "n1"
        cluster.join("n3~a")
        admit(cluster, "n3~a")
        if is_voter:
            cluster.until(lambda: "n3~a" in self.raft(leader).configuration.voters, "the leader has it so")
        else:
            assert self.raft(leader).configuration.voters == ("n1", "n2")

    def raft(self, name: str) -> Group:
        return self.cluster.members[name].replicas[self.group].raft

    def lose(self, name: str) -> None:
        lose_group(self.cluster, name, self.group)
        self.cluster.start(name)
        assert self.raft(name).quarantine.is_on

    def finds_back(self, name: str) -> None:
        cluster, group = self.cluster, self.group
        cluster.until(lambda: not self.raft(name).quarantine.is_on, "it is sound again")
        cluster.until(
            lambda: all("n3~a" in self.raft(each).configuration.voters for each in cluster.names),
            "the newcomer votes",
        )
        cluster.ready()
        self.sent += publish(Session(cluster, "n3~a"), group, self.queue, range(20, 30))
        cluster.settle()
        assert len(cluster.snapshots(group)) == 1
        consumer = Session(cluster, name)
        assert isinstance(consumer.call(group, c.Attach(self.queue, "c", b"", 10_000)), AttachedReply)
        cluster.until(lambda: len(consumer.received(group)) >= len(self.sent), "all messages")
        assert consumer.received(group) == self.sent


@pytest.mark.parametrize("is_voter", [False, True])
def test_one_of_two_is_lost_while_a_third_is_being_added_and_the_leader_remembers(is_voter: bool) -> None:
    pair = Pair(is_voter=is_voter)
    pair.lose(pair.follower)
    pair.finds_back(pair.follower)


def test_the_leader_is_lost_when_the_third_has_just_become_a_voter() -> None:
    """The two that remember are a majority of three."""
    pair = Pair(is_voter=True)
    pair.cluster.until(
        lambda: any("n3~a" in pair.raft(each).configuration.voters for each in (pair.follower, "n3~a")),
        "somebody else has it so",
    )
    pair.lose(pair.leader)
    pair.finds_back(pair.leader)


def test_the_leader_of_two_is_lost_and_the_other_one_is_no_majority() -> None:
    """What it had committed with the newcomer's help, if that was a voter to it, the other one could not know. So it
    stays as with two of three: nobody leads, and who remembers keeps everything."""
    pair = Pair(is_voter=False)
    last = pair.raft(pair.follower).last_index
    pair.lose(pair.leader)
    pair.cluster.run(20_000)
    assert pair.cluster.leader(pair.group) is None
    assert pair.raft(pair.leader).quarantine.is_on
    assert not pair.raft(pair.follower).quarantine.is_on
    assert pair.raft(pair.follower).last_index >= last > len(pair.sent)


def test_two_members_that_have_lost_different_groups_find_back() -> None:
    """Each group has a majority that remembers; that one is quarantined elsewhere is nothing to it."""
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    sent = publish(Session(cluster, "n1"), group, queue, range(20))
    other = next(number for number in range(1, GROUPS) if number != group)
    cluster.crash("n2")
    cluster.crash("n3")
    lose_group(cluster, "n2", group)
    lose_group(cluster, "n3", other)
    cluster.start("n2")
    cluster.start("n3")
    assert is_quarantined(cluster, "n2") and is_quarantined(cluster, "n3")
    everything_is_there(cluster, group, queue, sent)


def test_with_two_of_three_in_quarantine_a_third_that_comes_back_changes_nothing() -> None:
    """Restarting whom and how often one likes never makes a majority of those that have forgotten, and the one that
    remembers keeps what it has."""
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    publish(Session(cluster, "n1"), group, queue, range(5))
    cluster.settle()
    last = cluster.members["n1"].replicas[group].raft.last_index
    for name in ("n2", "n3"):
        lose_disk(cluster, name)
        cluster.start(name)
    for name in ("n1", "n2", "n3", "n1"):
        cluster.crash(name)
        cluster.run(2_000)
        cluster.start(name)
        cluster.run(3_000)
        assert cluster.leader(group) is None
    assert is_quarantined(cluster, "n2") and is_quarantined(cluster, "n3")
    replica = cluster.members["n1"].replicas[group]
    assert replica.raft.last_index == last
    assert not replica.raft.quarantine.is_on


def snapshot_files(cluster: Cluster, name: str, group: int) -> list[Path]:
    found = [path for path in cluster.disks[name].names if path.name.startswith(f"group-{group:08x}")]
    return sorted(found)


@pytest.mark.parametrize("damaged", ["the newest", "all"])
def test_a_member_with_damaged_snapshots_goes_on_from_the_older_one_or_a_transfer(damaged: str) -> None:
    cluster = Cluster(raft=GroupConfig(keep_entries=5), snapshot_bytes=2_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    cluster.crash("n3")
    sent = publish(Session(cluster, "n1"), group, queue, range(60))
    cluster.start("n3")  # is sent a snapshot: what is before it is not in its log
    cluster.ready()
    sent += publish(Session(cluster, "n1"), group, queue, range(60, 120))
    cluster.settle()
    cluster.crash("n3")
    files = snapshot_files(cluster, "n3", group)
    assert len(files) >= 2
    for path in files if damaged == "all" else files[-1:]:
        cluster.disks["n3"].flip(path, 8 * 70)
    cluster.start("n3")
    replica = cluster.members["n3"].replicas[group]
    assert replica.raft.quarantine.is_on == (damaged == "all")
    everything_is_there(cluster, group, queue, sent)
    assert len(snapshot_files(cluster, "n3", group)) <= 2


def test_members_without_a_readable_snapshot_replay_their_journals_and_keep_their_votes() -> None:
    """The journal has all entries: two of three that lost every snapshot need no other member's state."""
    cluster = Cluster(snapshot_bytes=2_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    sent = publish(Session(cluster, "n1"), group, queue, range(120))
    cluster.settle()
    votes = {name: cluster.logs[name].journal(group).hard_state for name in ("n2", "n3")}
    groups = list(cluster.members["n1"].replicas)
    for name in cluster.names:
        cluster.crash(name)
    for name in ("n2", "n3"):
        assert snapshot_files(cluster, name, group)
        for path in [path for number in groups for path in snapshot_files(cluster, name, number)]:
            cluster.disks[name].flip(path, 8 * 70)
        cluster.start(name)
        assert cluster.logs[name].journal(group).first_index == 1
        assert cluster.logs[name].journal(group).hard_state == votes[name]
        assert not is_quarantined(cluster, name)
    cluster.ready()
    for name in ("n2", "n3"):
        assert cluster.info(name, group, queue).ready == len(sent)
    cluster.start("n1")
    everything_is_there(cluster, group, queue, sent)


def test_a_member_that_needs_a_damaged_page_is_sent_another_state_and_goes_on() -> None:
    cluster = Cluster(log={"recent_bytes": 0}, snapshot_bytes=2_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    sent = publish(Session(cluster, "n1"), group, queue, range(60))
    cluster.settle()
    cluster.crash("n3")
    cluster.start("n3")  # all blocks are cold now
    log = cluster.logs["n3"]
    replica = cluster.members["n3"].replicas[group]
    pages = checkpoint.contents(memoryview(replica.raft.rewind_applied() or b"")[8:])[1]
    assert pages
    for page in pages:
        flip_body(cluster.disks["n3"], log, group, page, is_page=True)
    Session(cluster, "n1").send(group, c.Attach(queue, "d", b"", 1), "attach")
    cluster.until(lambda: replica.wants_state, "it has met the page")
    assert not is_quarantined(cluster, "n3"), "nothing that it promised is lost"
    cluster.until(lambda: not replica.wants_state, "it has another state")
    for session in list(cluster.sessions.values()):
        cluster.submit(session.name, ev.EndSession(session.number))
    cluster.run(200)
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    assert len(sent) == 60


# ---- the rule by itself


def standing(
    term: int,
    leads: bool = False,
    last: int = 5,
    sound: bool = True,
    nonce: int = 7,
    configuration: int = 1,
    voters: tuple[str, ...] = ("a", "b", "me"),
) -> RecoveryResponse:
    return RecoveryResponse(1, nonce, term, last, leads, sound, configuration, voters)


def test_everybody_else_has_to_answer_and_be_sound() -> None:
    quarantine = Quarantine("me", 7, is_on=True)
    assert quarantine.is_deaf
    quarantine.take("a", standing(9, nonce=6))
    quarantine.take("a", standing(4))
    quarantine.take("b", standing(6, sound=False))
    assert quarantine.is_deaf
    assert quarantine.take("b", standing(6))
    assert not quarantine.is_deaf
    assert quarantine.floor == 6


def test_the_newest_configuration_says_who_has_to_answer() -> None:
    quarantine = Quarantine("me", 7, is_on=True)
    quarantine.take("a", standing(4, configuration=9, voters=("a", "c", "me")))
    quarantine.take("b", standing(5))
    assert quarantine.is_deaf
    assert quarantine.take("c", standing(3, configuration=9, voters=("a", "c", "me")))
    assert quarantine.floor == 5


def test_only_a_leader_of_the_highest_term_says_how_much_is_enough() -> None:
    quarantine = Quarantine("me", 7, is_on=True)
    quarantine.take("a", standing(4, leads=True, last=10))
    quarantine.take("b", standing(6))
    assert quarantine.target is None
    quarantine.take("a", standing(4, leads=True, last=10))
    assert quarantine.target is None
    quarantine.take("b", standing(6, leads=True, last=20))
    quarantine.take("b", standing(6, leads=True, last=30))
    assert quarantine.leader_to_record(6, 19) is None
    assert quarantine.leader_to_record(6, 20) == "b"
    assert quarantine.leader_to_record(7, 40) is None
    quarantine.take("a", standing(7, leads=True, last=50))
    assert quarantine.leader_to_record(7, 50) == "a"


def test_standings_travel_whole_or_not_at_all() -> None:
    made = standing(6, leads=True)
    data = made.encode()
    assert RecoveryResponse.decode(data) == made
    question = RecoveryRequest(3, 9)
    assert RecoveryRequest.decode(question.encode()) == question
    for wrong in (*(data[:end] for end in range(len(data))), data + b"\2", data[:-2] + b"\xff\xff"):
        with pytest.raises(WireError):
            RecoveryResponse.decode(wrong)
    with pytest.raises(WireError):
        RecoveryRequest.decode(b"x")


# ---- the log's directory


def filled(directory: Path) -> None:
    log = open_log(directory, groups=2, has_begun=False, has_others=True)
    assert log.journal(1).hard_state == (0, None)
    journal = log.journal(1)
    journal.set_hard_state(4, "n1")
    journal.append([b"\0" + b"x" * 5_000], 1, 4)
    log.sync()
    log.close()
    # which says that all of it is synced
    open_log(directory, groups=2, has_begun=False, has_others=True).close()


def test_a_log_that_cannot_be_opened_is_set_aside_and_the_new_one_is_quarantined(tmp_path: Path) -> None:
    filled(tmp_path)
    (segment,) = (tmp_path / "log").glob("segment-*.log")
    data = bytearray(segment.read_bytes())
    data[4_096 + 20] ^= 1  # in the header of the first record
    segment.write_bytes(data)
    with pytest.raises(LogDamaged):
        open_log(tmp_path, groups=2, has_begun=True, has_others=False)
    log = open_log(tmp_path, groups=2, has_begun=True, has_others=True)
    assert [log.journal(group).hard_state for group in (0, 1)] == [(0, ""), (0, "")]
    log.close()
    assert (tmp_path / "log.damaged-1" / segment.name).read_bytes() == data


def test_a_log_that_is_gone_is_noticed_where_the_member_has_served_before(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    with pytest.raises(LogDamaged):
        open_log(tmp_path, groups=2, has_begun=True, has_others=False)
    log = open_log(tmp_path, groups=2, has_begun=True, has_others=True)
    assert log.journal(1).hard_state == (0, "")
    log.close()


def test_a_crash_while_beginning_again_leaves_no_log_without_the_mark(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "log").rename(tmp_path / "log.damaged-1")  # and no further
    (tmp_path / "other").mkdir()
    begin_again(tmp_path / "other", 2)
    (tmp_path / "other" / "log").rename(tmp_path / "log.new")
    log = open_log(tmp_path, groups=2, has_begun=True, has_others=True)
    assert log.journal(0).hard_state == (0, "")
    log.close()
    assert not (tmp_path / "log.new").exists()


def test_a_log_that_can_be_opened_stays_as_it_is(tmp_path: Path) -> None:
    filled(tmp_path)
    log = open_log(tmp_path, groups=2, has_begun=True, has_others=True)
    assert log.journal(1).hard_state == (4, "n1")
    log.close()
