"""Members with little room on their disks, with none, and with slow ones (quorum/node/cluster/disk_monitor.py). What
the API makes of it is in tests/api/test_room.py; here sessions are by hand and publish whether or not they should."""

from __future__ import annotations

import pytest
import structlog

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from quorum.catalog.members import AddMember
from quorum.log import RESERVE_SEGMENTS
from quorum.node.leases import disk_state as disks_module
from quorum.node.leases.disk_state import REMEMBERED_MS, Disks, DiskState, SyncTimes
from support.members.cluster import Cluster, Session

SEGMENT = 100_000
LIMIT = 400_000
CAPACITY = 1_500_000
BODY = bytes(5_000)
RESERVED = RESERVE_SEGMENTS * (SEGMENT + SEGMENT // 4)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(
        log={
            "segment_bytes": SEGMENT,
            "recent_bytes": 0,
            "reserve_segments": RESERVE_SEGMENTS,
            "free_limit_bytes": LIMIT,
        }
    )
    for disk in made.disks.values():
        disk.capacity = CAPACITY
    made.ready()
    return made


def take_room(cluster: Cluster, name: str, left: int) -> None:
    """Somebody else fills the member's disk up."""
    cluster.disks[name].capacity = cluster.disks[name].used_bytes() + left


def state(cluster: Cluster, name: str) -> DiskState:
    return cluster.members[name].disk_monitor.disks.own


def should_drain_clients(cluster: Cluster, name: str) -> bool:
    member = cluster.members[name]
    return member.disk_monitor.should_drain_clients(member.now_ms)


def low_at(cluster: Cluster, name: str) -> dict[int, list[str]]:
    return {group: [each.member for each in low] for group, low in cluster.low[name].items()}


def publish(session: Session, group: int, queue: int, count: int) -> None:
    for _ in range(count):
        session.publish(group, queue, BODY)
        session.cluster.run(5)


def consume(cluster: Cluster, name: str, group: int, queue: int, count: int) -> Session:
    """Takes and settles so many messages."""
    consumer = Session(cluster, name)
    reply = consumer.call(group, c.Attach(queue, "c", b"", 10_000))
    assert isinstance(reply, AttachedReply)
    cluster.until(lambda: len(consumer.received(group)) >= count, f"{count} deliveries")
    assert consumer.call(group, c.Settle(queue, "c", reply.attach, ((1, count),))) == Ok(count)
    return consumer


def test_every_node_hears_who_is_low_and_when_there_is_room_again(cluster: Cluster) -> None:
    cluster.run(3_000)
    assert [low_at(cluster, name) for name in cluster.names] == [{}, {}, {}]
    take_room(cluster, "n2", LIMIT - 1)
    cluster.run(2_000)
    for name in cluster.names:
        assert low_at(cluster, name) == {group: ["n2"] for group in range(4)}
        (found,) = cluster.low[name][1]
        assert (found.free_bytes, found.limit_bytes) == (LIMIT - 1, LIMIT)
    take_room(cluster, "n1", 0)
    cluster.run(2_000)
    assert low_at(cluster, "n3")[2] == ["n1", "n2"]
    for name in ("n1", "n2"):
        take_room(cluster, name, LIMIT + RESERVED)  # the reserve may have to be filled up first
    cluster.run(2_000)
    assert [low_at(cluster, name) for name in cluster.names] == [{}, {}, {}]


def test_who_cannot_hear_the_low_member_hears_it_from_others_and_a_dead_one_holds_nobody_up(
    cluster: Cluster,
) -> None:
    cluster.cut("n1", "n2")
    take_room(cluster, "n2", 1_000)
    cluster.run(3_000)
    assert low_at(cluster, "n1")[1] == ["n2"]
    assert cluster.low["n1"][1][0].free_bytes == -1, "nobody told it how much"
    cluster.crash("n2")
    cluster.run(2 * disks_module.REMEMBERED_MS + 1_000)
    assert low_at(cluster, "n1") == low_at(cluster, "n3") == {}


def test_one_full_member_acknowledges_nothing_the_others_go_on_and_it_catches_up(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    full = next(name for name in cluster.names if name != leader)
    other = next(name for name in cluster.names if name not in (leader, full))
    take_room(cluster, full, 0)
    producer = Session(cluster, other)
    publish(producer, group, queue, 100)
    cluster.until(lambda: len(producer.confirmed()) == 100, "all confirms, by the other two")
    stuck = cluster.members[full].replicas[group].raft
    ahead = cluster.members[leader].replicas[group].raft
    assert stuck.last_index < ahead.commit_index - 20
    assert state(cluster, full).is_full
    assert cluster.leader(group) == leader, "a member without room does not disturb the others"
    before = stuck.last_index
    cluster.run(3_000)
    assert stuck.last_index == before
    assert should_drain_clients(cluster, full)
    assert [cluster.members[name].is_ready() for name in (full, leader, other)] == [False, True, True]
    take_room(cluster, full, 1_000_000)
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    cluster.until(lambda: not state(cluster, full).is_low, "the reserve is whole again")
    consumer = Session(cluster, full)
    consumer.call(group, c.Attach(queue, "c", b"", 1_000))
    cluster.until(lambda: len(consumer.received(group)) == 100, "all messages, from its own log")


def test_a_full_leader_hands_over_and_publishing_goes_on(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    take_room(cluster, leader, 0)
    producer = Session(cluster, next(name for name in cluster.names if name != leader))
    publish(producer, group, queue, 100)
    cluster.until(lambda: len(producer.confirmed()) == 100, "all confirms, under another leader", 15_000)
    assert cluster.leader(group) != leader
    assert state(cluster, leader).is_full
    take_room(cluster, leader, 1_000_000)
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    assert cluster.info(leader, group, queue).total == 100


def test_with_all_disks_low_queues_are_emptied_from_the_reserve(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    producer = Session(cluster, "n1")
    publish(producer, group, queue, 40)
    cluster.until(lambda: len(producer.confirmed()) == 40, "confirms")
    for name in cluster.names:
        take_room(cluster, name, 0)
        log = cluster.logs[name]
        log.make_room(SEGMENT // 2)  # the active segment is used up; the next one is of the reserve
    cluster.run(2_000)
    assert low_at(cluster, "n1")[group] == list(cluster.names)
    assert not any(state(cluster, name).is_full for name in cluster.names)
    consume(cluster, "n2", group, queue, 40)
    assert Session(cluster, "n3").call(group, c.Purge(queue)) == Ok(0)
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    for name in cluster.names:
        take_room(cluster, name, RESERVED + LIMIT)
    cluster.run(3_000)
    assert [low_at(cluster, name) for name in cluster.names] == [{}, {}, {}]
    publish(producer, group, queue, 10)
    cluster.until(lambda: len(producer.confirmed()) == 50, "confirms")


def test_with_all_disks_full_nothing_is_confirmed_nobody_stops_and_room_brings_everything_back(
    cluster: Cluster,
) -> None:
    group, queue = cluster.declare("orders")
    for name in cluster.names:
        take_room(cluster, name, 0)
    producer = Session(cluster, "n1")
    publish(producer, group, queue, 200)
    cluster.run(10_000)
    confirmed = len(producer.confirmed())
    assert 0 < confirmed < 150
    assert sorted(cluster.members) == list(cluster.names)
    assert sum(state(cluster, name).is_full for name in cluster.names) >= 2
    if all(state(cluster, name).is_full for name in cluster.names):
        assert not any(should_drain_clients(cluster, name) for name in cluster.names), "nowhere is better"
    leaders = {cluster.members[name].replicas[group].raft.leader for name in cluster.names}
    assert len(leaders) == 1, "they stand together, and wait"
    for name in cluster.names:
        take_room(cluster, name, 2_000_000)
    cluster.until(lambda: len(producer.confirmed()) == 200, "all confirms")
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    assert cluster.info("n1", group, queue).total == 200, "each once"


def test_a_member_is_added_while_all_disks_are_full_and_becomes_one_when_there_is_room(
    cluster: Cluster,
) -> None:
    def left(name: str) -> int:
        """Bytes for entries in the active segment."""
        writer = cluster.logs[name]._writer
        return writer.active.header.allocated - writer._tail - writer.position

    group, queue = cluster.declare("orders")
    cluster.join("x~1")
    cluster.run(500)
    for name in cluster.founders:
        take_room(cluster, name, 0)
    publish(Session(cluster, "n1"), group, queue, 150)
    cluster.run(3_000)
    small = Session(cluster, "n1")
    for _ in range(200):
        if min(map(left, cluster.founders)) < 2_500:
            break
        small.publish(group, queue, bytes(300))
        cluster.run(10)
    add = AddMember("x~1", "x", "x-1:1", "x-1:2", cluster.node_states["x~1"].incarnation, False)
    assert cluster.administer(add, at="n1") == Ok(1), "the wish still finds room"
    cluster.run(3_000)
    for name in cluster.founders:
        take_room(cluster, name, LIMIT + RESERVED)
    cluster.until(
        lambda: all(
            "x~1" in cluster.members[name].replicas[each].raft.configuration.voters
            for name in cluster.founders
            for each in range(4)
        ),
        "it votes everywhere",
    )


def test_a_full_cluster_that_loses_its_power_comes_back_and_drains(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    producer = Session(cluster, "n1")
    publish(producer, group, queue, 40)
    cluster.until(lambda: len(producer.confirmed()) == 40, "confirms")
    for name in cluster.names:
        take_room(cluster, name, 0)
    cluster.run(1_500)
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    consume(cluster, "n3", group, queue, 40)


def test_a_member_without_room_for_votes_stands_still_and_goes_on_later(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    name = next(name for name in cluster.names if name != cluster.leader(group))
    take_room(cluster, name, 0)
    log = cluster.logs[name]
    journal = log.journal(99)
    while log.make_room(SEGMENT // 4):
        journal.append([bytes(SEGMENT // 4)], journal.last_index + 1, 1)
    term = 1
    while log.make_small_room():
        journal.set_hard_state(term, "somebody")
        term += 1
    producer = Session(cluster, next(each for each in cluster.names if each != name))
    publish(producer, group, queue, 10)
    cluster.run(5_000)
    member = cluster.members[name]
    assert member.disk_monitor.is_silent
    assert state(cluster, name).is_full
    assert member.next_due_ms() > cluster.clock_ms(name), "it does not spin"
    assert len(producer.confirmed()) == 10
    take_room(cluster, name, 1_000_000)
    cluster.settle()
    assert not member.disk_monitor.is_silent
    assert len(cluster.snapshots(group)) == 1


def test_a_leader_on_a_slow_disk_hands_over_within_ten_seconds(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    producer = Session(cluster, next(name for name in cluster.names if name != leader))

    def slow() -> None:
        cluster.now_ms += 300

    cluster.disks[leader].during_sync = slow
    began = cluster.now_ms
    while cluster.leader(group) == leader:
        publish(producer, group, queue, 1)
        assert cluster.now_ms - began < 10_000
    assert cluster.now_ms - began >= disks_module.SLOW_AFTER_MS, "not for a moment's delay"
    assert state(cluster, leader).sync_p99_us >= 299_900
    cluster.until(lambda: len(producer.confirmed()) == producer.next_sequence - 1, "all confirms")


def test_with_all_disks_slow_nobody_hands_over(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")

    def slow() -> None:
        cluster.now_ms += disks_module.SLOW_SYNC_MS + 10

    for disk in cluster.disks.values():
        disk.during_sync = slow
    producer = Session(cluster, "n1")
    with structlog.testing.capture_logs() as events:
        for _ in range(20):
            publish(producer, group, queue, 1)
    cluster.run(2 * disks_module.SPACE_MS)
    assert [state(cluster, name).is_slow for name in cluster.names] == [True, True, True]
    said = [event["event"] for event in events]
    assert any(text.startswith("disk slow") for text in said)
    assert "handing leadership over" not in said


def test_slow_means_no_quick_sync_for_a_while() -> None:
    times = SyncTimes()
    assert times.p99_us() == 0
    for now in range(0, 2_900, 100):
        times.took(100_000, now)
        assert not times.is_slow(now)
    times.took(99_999, 2_950)
    for now in range(3_000, 6_001, 100):
        times.took(2_000_000 if now > 3_000 else 100_000, now)
    assert times.is_slow(6_000)
    assert times.p99_us() == 2_000_000
    assert not times.is_slow(6_001 + disks_module.SLOW_FORGOTTEN_MS)
    times.took(50, 6_100)
    assert not times.is_slow(6_100)
    once = SyncTimes()
    once.took(5_000_000, 5_000)
    assert once.is_slow(5_000), "one sync of five seconds is a while"


def test_slow_begins_and_is_forgotten_after_its_times() -> None:
    times = SyncTimes()
    times.took(200_000, 10_000)  # it began at 9,800 ms
    times.took(200_000, 9_799 + disks_module.SLOW_AFTER_MS)
    assert not times.is_slow(20_000)
    last_ms = 9_800 + disks_module.SLOW_AFTER_MS
    times.took(200_000, last_ms)
    assert times.is_slow(last_ms + disks_module.SLOW_FORGOTTEN_MS)
    assert not times.is_slow(last_ms + disks_module.SLOW_FORGOTTEN_MS + 1)


def test_one_sync_of_a_hundred_takes_longer_than_what_is_reported() -> None:
    times = SyncTimes()
    for took_us in (*range(100, 201), *range(100)):
        times.took(took_us, 0)
    assert times.p99_us() == 198, "of 201"
    for _ in range(disks_module.SYNCS_KEPT):
        times.took(5, 0)
    assert times.p99_us() == 5, "only the latest syncs count"


@pytest.mark.parametrize("flag", ["", "is_low", "is_full", "is_slow"])
def test_each_state_of_a_disk_is_said_by_itself(flag: str) -> None:
    said = DiskState(**{flag: True}) if flag else DiskState()
    assert disks_module.decode(said.encode(())) == (said, ())
    assert said.is_worse_to_lead == (flag in ("is_full", "is_slow"))


def test_what_a_disk_says_of_itself_survives_the_way_and_nothing_else_is_taken_for_it() -> None:
    said = DiskState(1 << 40, 1 << 28, 1_234, True, False, True)
    data = said.encode([3, 1])
    assert disks_module.decode(data) == (said, (1, 3))
    for bad in (b"", data[:-1], data + b"\0", data[:5]):
        with pytest.raises(disks_module.DiskStateError):
            disks_module.decode(bad)


LOW, FINE = DiskState(is_low=True), DiskState()


def test_a_report_counts_for_its_time_and_no_longer() -> None:
    view = Disks(3)
    view.hear(2, LOW, (5, 1), 1_000)
    for now_ms in (1_000, 1_000 + REMEMBERED_MS):
        assert (view.state(2, now_ms), view.known_low(now_ms), view.low(now_ms)) == (LOW, [2], [1, 2, 5])
    late_ms = 1_001 + REMEMBERED_MS
    assert (view.state(2, late_ms), view.known_low(late_ms), view.low(late_ms)) == (None, [], [])
    assert view.state(1, 1_000) is None, "it has said nothing itself"


def test_a_members_own_report_takes_precedence_and_only_first_hand_reports_are_passed_on() -> None:
    view = Disks(3, LOW)
    view.hear(1, FINE, (), 1_000)
    view.hear(2, LOW, (1, 3, 4), 1_000)
    assert (view.known_low(1_000), view.low(1_000)) == ([2, 3], [2, 3, 4])
    view.own = FINE
    assert (view.known_low(1_000), view.low(1_000)) == ([2], [2, 4]), "it knows its own disk best"
