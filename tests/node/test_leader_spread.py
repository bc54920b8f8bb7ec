"""Leaders spread over the members by themselves (quorum/node/cluster/leader_spread.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from quorum.catalog.members import DrainMember
from quorum.node import events as ev
from quorum.node.cluster.leader_spread import GROUP_PAUSE, LeaderSpread, find_move
from quorum.node.cluster.membership import MAX_LAG
from quorum.node.leases.disk_state import Disks, DiskState
from quorum.node.member_config import SPREAD_AFTER_MS as SETTLED_MS
from quorum.node.replica.replica import MAX_BEHIND, SYSTEM_GROUP, Replica
from support.examples import examples
from support.members.cluster import STEP_MS, Cluster, Session

ALL = ("a", "b", "c")
RETRY_MS = 100
GROUP_PAUSE_MS = GROUP_PAUSE * SETTLED_MS


def spreading(seed: int = 1, groups: int = 5) -> Cluster:
    return Cluster(3, seed, spread_after_ms=SETTLED_MS, queue_groups=groups)


def led(cluster: Cluster) -> Counter[str | None]:
    """Member -> the number of groups that it leads."""
    replicas = next(iter(cluster.members.values())).replicas
    counts: Counter[str | None] = Counter(dict.fromkeys(cluster.members, 0))
    counts.update(cluster.leader(group) for group in replicas)
    return counts


def is_even(cluster: Cluster) -> bool:
    counts = led(cluster)
    return None not in counts and max(counts.values()) - min(counts.values()) <= 1


def gather(cluster: Cluster, name: str) -> None:
    """One member leads all groups."""
    for group in next(iter(cluster.members.values())).replicas:
        for _ in range(20):
            if cluster.leader(group) == name:
                break
            cluster.submit(name, ev.Transfer(group, name))
            cluster.run(RETRY_MS)
        assert cluster.leader(group) == name


def moves(cluster: Cluster, ms: int) -> list[tuple[int, int, str | None]]:
    """The changes of leaders in this time, in their order: (when, group, the new leader)."""
    replicas = next(iter(cluster.members.values())).replicas
    found = []
    leaders = {group: cluster.leader(group) for group in replicas}
    for _ in range(0, ms, STEP_MS):
        cluster.run(STEP_MS)
        for group in replicas:
            leader = cluster.leader(group)
            if leader not in (None, leaders[group]):
                found.append((cluster.now_ms, group, leader))
                leaders[group] = leader
    return found


# ---- the choice


def check(leaders: str, wanted: tuple[int, str] | None, able: str = "abc", fixed: str = "") -> None:
    """leaders: of groups 0, 1, ... in order. fixed: groups that cannot move."""
    voters = {group: () if str(group) in fixed else ALL for group in range(len(leaders))}
    assert find_move(dict(enumerate(leaders)), voters, tuple(able)) == wanted


def test_the_member_with_the_most_groups_gives_one_to_the_member_with_the_fewest() -> None:
    check("aabbbb", (2, "c"))
    check("aaab", (1, "c"))
    check("bbbcccc", (3, "a"))


def test_a_difference_of_one_moves_nothing() -> None:
    check("aabc", None)
    check("abc", None)
    check("aab", (1, "c"))
    check("aab", None, able="ab")


def test_the_system_group_moves_only_if_no_other_group_can() -> None:
    check("aabb", (1, "c"), fixed="")
    check("aabb", (2, "c"), fixed="1")
    check("aabb", (0, "c"), fixed="123")


def test_nothing_moves_to_a_member_that_may_not_lead_or_does_not_vote() -> None:
    check("aaaa", (1, "b"), able="ab")
    check("aaaa", None, able="a")
    check("aaaa", None, fixed="0123")


def test_a_leader_that_may_not_lead_gives_its_groups_away_first() -> None:
    check("abbcc", (0, "b"), able="bc")
    check("ccccb", (1, "a"), able="ab")


# ---- in a cluster


@pytest.mark.parametrize("seed", range(1, 1 + examples(4, share=2)))
def test_leaders_spread_one_at_a_time_with_pauses(seed: int) -> None:
    cluster = spreading(seed)
    cluster.ready()
    gather(cluster, "n2")
    assert led(cluster)["n2"] == 6
    began = cluster.now_ms - RETRY_MS
    found = moves(cluster, 12 * SETTLED_MS)
    assert is_even(cluster)
    assert len(found) == 4, "no more than needed"
    times = [began, *(when for when, _, _ in found)]
    assert all(later - earlier >= SETTLED_MS for earlier, later in pairwise(times))
    assert moves(cluster, 2 * GROUP_PAUSE_MS) == [], "and then nothing moves"


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_start_of_all_members_elects_soon_and_spreads_leaders(seed: int) -> None:
    cluster = Cluster(3, seed, queue_groups=5)
    cluster.ready()
    for name in cluster.names:
        cluster.crash(name, power=False)
    for name in cluster.names:
        cluster.start(name)
    began = cluster.now_ms
    cluster.until(lambda: None not in led(cluster), "every group has a leader")
    shortest_ms = 1_000 * cluster.members["n1"].config.raft.election_min_s
    assert cluster.now_ms - began < shortest_ms / 2, "no election timeout is waited for"
    assert led(cluster) == {"n1": 2, "n2": 2, "n3": 2}


def test_a_member_that_starts_alone_unseats_no_leader() -> None:
    cluster = Cluster(3)
    cluster.ready()
    gather(cluster, "n1")
    replicas = cluster.members["n1"].replicas
    terms = [replica.raft.term for replica in replicas.values()]
    for name in ("n2", "n3"):
        cluster.crash(name)
        cluster.run(500)
        cluster.start(name)
        cluster.run(5_000)
    assert [replica.raft.term for replica in replicas.values()] == terms
    assert led(cluster)["n1"] == len(replicas)


def test_leaders_spread_after_a_start_and_after_a_failover() -> None:
    cluster = spreading()
    cluster.ready()
    cluster.until(lambda: is_even(cluster), "leaders are spread after a start")
    victim = str(cluster.leader(1))
    cluster.crash(victim)
    cluster.until(lambda: None not in led(cluster), "every group has a leader again")
    gather(cluster, next(name for name in cluster.members))
    assert moves(cluster, 4 * SETTLED_MS) == [], "nothing moves while a member is away"
    cluster.start(victim)
    cluster.until(lambda: is_even(cluster) and led(cluster)[victim] > 0, "the restarted member leads again")


def test_leaders_spread_after_a_drain_and_none_goes_to_a_drained_member() -> None:
    cluster = spreading()
    cluster.ready()
    cluster.until(lambda: is_even(cluster), "leaders are spread")
    cluster.administer(DrainMember("n3", True))
    cluster.until(lambda: led(cluster)["n3"] == 0, "the drained member leads nothing")
    gather(cluster, "n1")
    cluster.run(8 * SETTLED_MS)
    assert led(cluster) == {"n1": 3, "n2": 3, "n3": 0}
    cluster.administer(DrainMember("n3", False))
    cluster.until(lambda: is_even(cluster), "the member leads again")


def test_nothing_moves_to_a_member_with_a_slow_disk_until_it_is_fast_again() -> None:
    cluster = spreading()
    cluster.ready()
    cluster.until(lambda: is_even(cluster), "leaders are spread")
    group, queue = cluster.declare("orders")
    gather(cluster, "n1")
    producer = Session(cluster, "n1")

    def slow() -> None:
        cluster.now_ms += 150

    def publish_for(ms: int) -> None:
        until_ms = cluster.now_ms + ms
        while cluster.now_ms < until_ms:
            producer.publish(group, queue, b"x")
            cluster.run(50)

    quick = cluster.disks["n3"].during_sync
    cluster.disks["n3"].during_sync = slow
    publish_for(8 * SETTLED_MS)
    assert cluster.members["n3"].disk_monitor.disks.own.is_slow
    assert led(cluster) == {"n1": 3, "n2": 3, "n3": 0}
    cluster.disks["n3"].during_sync = quick
    publish_for(GROUP_PAUSE_MS)
    assert is_even(cluster)
    cluster.until(lambda: len(producer.confirmed()) == producer.next_sequence - 1, "all confirms")


def test_a_group_that_a_member_cannot_keep_does_not_go_there_again_and_again() -> None:
    cluster = spreading(groups=1)
    cluster.ready()
    gather(cluster, "n1")
    found: list[int] = []
    for _ in range(0, 3 * GROUP_PAUSE_MS, SETTLED_MS):
        found += [when for when, group, leader in moves(cluster, SETTLED_MS) if leader != "n1" and group == 1]
        gather(cluster, "n1")
    assert 2 <= len(found) <= 4
    assert all(later - earlier >= GROUP_PAUSE_MS - SETTLED_MS for earlier, later in pairwise(found))


def test_a_member_that_lags_behind_gets_no_group() -> None:
    cluster = spreading(groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = str(cluster.leader(group))
    producer = Session(cluster, leader)
    late = next(name for name in cluster.names if name not in (leader, cluster.leader(SYSTEM_GROUP)))
    cluster.isolate(late)
    for _ in range(MAX_LAG + 10):
        producer.publish(group, queue, b"x")
        cluster.run(10)
    membership = cluster.members[leader].membership
    replica = cluster.members[leader].replicas[group]
    cluster.heal()
    cluster.step(leader)
    assert not membership.transfer_leadership(replica, late)
    cluster.until(lambda: replica.raft.match_index(late) == replica.raft.last_index, "it has caught up")
    cluster.until(lambda: replica.has_applied(late), "and says so")
    assert membership.transfer_leadership(replica, late)


def publishes_wait_no_longer_than_an_election(cluster: Cluster, group: int, queue: int, ms: int) -> None:
    producer = Session(cluster, "n1")
    waited = []
    for _ in range(0, ms, 50):
        token = producer.publish(group, queue, b"x")
        began = cluster.now_ms
        cluster.until(lambda token=token: token in producer.replies, "an answer", 1_000)  # type: ignore[misc]
        waited.append(cluster.now_ms - began)
        cluster.run(50)
    assert max(waited) < 1_000 * cluster.members["n1"].config.raft.election_max_s


def test_no_publish_waits_longer_than_an_election() -> None:
    cluster = spreading()
    cluster.ready()
    group, queue = cluster.declare("orders")
    gather(cluster, "n2")
    publishes_wait_no_longer_than_an_election(cluster, group, queue, 8 * SETTLED_MS)
    assert is_even(cluster)


def test_with_the_setting_off_nothing_moves() -> None:
    cluster = Cluster(3, queue_groups=5, spread_after_ms=None)
    cluster.ready()
    gather(cluster, "n2")
    assert moves(cluster, 4 * SETTLED_MS) == []


# ---- members that have a group's log and have not applied it


def applies_nothing(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, name: str) -> None:
    """From now on this member applies no entries of queue groups, as if it had many others to apply first."""
    applier = cluster.members[name].applier
    apply = applier.apply

    def held_back(replica: Replica, now_ms: int) -> None:
        if replica.number == SYSTEM_GROUP:
            apply(replica, now_ms)

    monkeypatch.setattr(applier, "apply", held_back)


def with_late(monkeypatch: pytest.MonkeyPatch, *late: str, groups: int = 1) -> tuple[Cluster, int, int]:
    """A cluster in which n1 leads everything, and these members have not applied what is in the queue's group; group
    and queue."""
    cluster = spreading(groups=groups)
    cluster.ready()
    cluster.switched()
    group, queue = cluster.declare("orders")
    gather(cluster, "n1")
    for name in late:
        applies_nothing(monkeypatch, cluster, name)
    producer = Session(cluster, "n1")
    for _ in range(MAX_BEHIND + 10):
        producer.publish(group, queue, b"x")
        cluster.run(10)
    cluster.run(500)
    replica = cluster.members["n1"].replicas[group]
    assert all(replica.raft.match_index(name) == replica.raft.last_index for name in cluster.names[1:])
    return cluster, group, queue


def hands_over(cluster: Cluster, group: int, to: str) -> bool:
    """Tells n1 to hand the group's leadership to this member; whether it tries to."""
    member = cluster.members["n1"]
    return member.membership.transfer_leadership(member.replicas[group], to)


def test_a_group_moves_to_no_member_that_has_not_applied_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, group, queue = with_late(monkeypatch, "n2", "n3", groups=3)
    publishes_wait_no_longer_than_an_election(cluster, group, queue, 4 * SETTLED_MS)
    assert cluster.leader(group) == "n1"
    assert not hands_over(cluster, group, "n3")
    monkeypatch.undo()
    cluster.until(lambda: hands_over(cluster, group, "n3"), "n3 has applied it")


def leaves(cluster: Cluster, group: int) -> None:
    cluster.submit("n1", ev.Leave())


def is_drained(cluster: Cluster, group: int) -> None:
    cluster.administer(DrainMember("n1", True))


def has_a_slow_disk(cluster: Cluster, group: int) -> None:
    monitor = cluster.members["n1"].disk_monitor
    monitor._transfer_leadership(cluster.members["n1"].replicas[group], cluster.now_ms)


def loses_a_page(cluster: Cluster, group: int) -> None:
    cluster.members["n1"].replicas[group].pages_lost(is_any_lost=True)


@pytest.mark.parametrize("goes", [leaves, is_drained, has_a_slow_disk, loses_a_page])
@pytest.mark.parametrize("late", ["n2", "n3"])
def test_a_leader_that_goes_hands_over_to_a_member_that_has_applied_the_log(
    goes: Callable[[Cluster, int], None], late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, group, _ = with_late(monkeypatch, late)
    goes(cluster, group)
    cluster.until(lambda: cluster.leader(group) not in (None, "n1"), "another leader")
    assert cluster.leader(group) not in ("n1", late)


@pytest.mark.parametrize("goes", [leaves, is_drained, has_a_slow_disk, loses_a_page])
def test_a_leader_that_goes_hands_over_even_if_nobody_has_applied_the_log(
    goes: Callable[[Cluster, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, group, _ = with_late(monkeypatch, "n2", "n3")
    goes(cluster, group)
    cluster.until(lambda: cluster.leader(group) not in (None, "n1"), "another leader")


def test_a_member_that_has_just_returned_is_not_taken_for_one_that_has_applied_the_log() -> None:
    cluster = Cluster(3)
    cluster.ready()
    gather(cluster, "n1")
    replica = cluster.members["n1"].replicas[1]
    cluster.until(lambda: replica.has_applied("n3"), "it says so")
    cluster.crash("n3")
    cluster.step("n1")
    assert not replica.has_applied("n3")
    cluster.start("n3")
    cluster.until(lambda: replica.has_applied("n3"), "it says so again")


# ---- when a leader moves


class Spreading:
    """The leader of the system group, in a cluster whose state the test sets. "a" leads all three groups."""

    def __init__(self, settled_ms: int | None = SETTLED_MS) -> None:
        self.moved: list[tuple[int, str]] = []
        self.disks = Disks(1)
        self.away: set[str] = set()
        self.groups: dict[int, Any] = {group: self._replica("a") for group in (SYSTEM_GROUP, 1, 2)}
        self.members = {
            name: SimpleNamespace(number=number, id=name, is_drained=False)
            for number, name in enumerate(ALL, 1)
        }
        self.membership: Any = SimpleNamespace(
            is_leaving=False,
            catalog=SimpleNamespace(members=SimpleNamespace(by_id=self.members)),
            member_directory=SimpleNamespace(name_of=str),
            transfer=lambda group, target: self.moved.append((group, target)),
        )
        peers: Any = SimpleNamespace(is_reachable=lambda name: name not in self.away)
        monitor: Any = SimpleNamespace(disks=self.disks)
        replicas: Any = self.groups
        self.spread = LeaderSpread(
            replicas, self.membership, peers, monitor, structlog.get_logger(), settled_ms
        )

    def _replica(self, leader: str) -> Any:
        raft = SimpleNamespace(
            leader=leader, term=1, is_settled=True, configuration=SimpleNamespace(voters=ALL)
        )
        return SimpleNamespace(raft=raft, leads=True, has_applied=lambda name: True)

    def turn(self, now_ms: int) -> list[tuple[int, str]]:
        """What is moved in this turn."""
        for node in (2, 3):
            self.disks.hear(node, DiskState(), (), now_ms)
        self.moved.clear()
        self.spread.turn(now_ms)
        return [*self.moved]


def test_a_leader_moves_once_nothing_has_changed_for_the_time() -> None:
    world = Spreading()
    assert world.turn(1_000) == []
    assert world.turn(999 + SETTLED_MS) == []
    assert world.turn(1_000 + SETTLED_MS) == [(1, "b")]
    assert world.turn(999 + 2 * SETTLED_MS) == [], "a move is a change"
    assert world.turn(1_000 + 2 * SETTLED_MS) == [(2, "b")], "the first group has moved a short time ago"


def change_of_term(world: Spreading) -> None:
    world.groups[2].raft.term = 2


def change_of_leader(world: Spreading) -> None:
    world.groups[SYSTEM_GROUP].raft.leader = "c"


def drained(world: Spreading) -> None:
    world.members["c"].is_drained = True


def away_and_back(world: Spreading) -> None:
    world.away.add("c")
    assert world.turn(1_500) == []
    world.away.clear()


def no_leader_for_a_moment(world: Spreading) -> None:
    world.spread.turn(1_500)
    world.groups[SYSTEM_GROUP].leads = False
    assert world.turn(1_600) == []
    world.groups[SYSTEM_GROUP].leads = True


@pytest.mark.parametrize(
    "change", [change_of_term, change_of_leader, drained, away_and_back, no_leader_for_a_moment]
)
def test_the_time_begins_again_with_each_change(change: Callable[[Spreading], None]) -> None:
    world = Spreading()
    world.turn(1_000)
    change(world)
    assert world.turn(2_000) == []
    assert world.turn(1_999 + SETTLED_MS) == []
    assert len(world.turn(2_000 + SETTLED_MS)) == 1


def someone_away(world: Spreading) -> None:
    world.away.add("c")


def unknown_leader(world: Spreading) -> None:
    world.groups[2].raft.leader = None


def leaving(world: Spreading) -> None:
    world.membership.is_leaving = True


def all_unsettled(world: Spreading) -> None:
    for each in world.groups.values():
        each.raft.is_settled = False


def nobody_has_applied(world: Spreading) -> None:
    for each in world.groups.values():
        each.has_applied = lambda name: name == "a"


@pytest.mark.parametrize("state", [someone_away, unknown_leader, leaving, all_unsettled, nobody_has_applied])
def test_nothing_moves_while_a_move_could_harm(state: Callable[[Spreading], None]) -> None:
    world = Spreading()
    state(world)
    assert [world.turn(now_ms) for now_ms in (1_000, 1_000 + SETTLED_MS, 1_000 + 9 * SETTLED_MS)] == [[]] * 3


def test_a_group_moves_again_after_its_pause() -> None:
    world = Spreading()
    world.groups[2].raft.is_settled = world.groups[SYSTEM_GROUP].raft.is_settled = False
    world.turn(0)
    assert world.turn(SETTLED_MS) == [(1, "b")]
    assert world.turn(SETTLED_MS + GROUP_PAUSE_MS - 1) == []
    assert world.turn(SETTLED_MS + GROUP_PAUSE_MS) == [(1, "b")]
