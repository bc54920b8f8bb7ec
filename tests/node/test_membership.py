"""Members of a whole cluster: who takes part, who comes, who goes, who leads (quorum/node/cluster/membership.py)."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.effects import Ok, Refused
from quorum.catalog.members import AddMember, CatalogMember, DrainMember, RemoveMember
from quorum.node import events as ev
from quorum.node.cluster.membership import Membership
from quorum.node.identity.identity import NodeState
from quorum.node.identity.member_directory import MemberDirectory
from quorum.node.queries import (
    CheckHealth,
    DescribeCluster,
    FindTransferTarget,
    PlanRebalance,
    TransferTarget,
)
from quorum.node.replica import applier
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.replica.replicas import KIND_RAFT
from quorum.node.wire.forwarding import GROUP
from support.members.cluster import Cluster, Session


def add(cluster: Cluster, member: str, name: str | None = None, *, replaces: bool = False) -> None:
    called = name or member.partition("~")[0]
    command = AddMember(
        member,
        called,
        f"{member.replace('~', '-')}:1",
        f"{member.replace('~', '-')}:2",
        cluster.node_states[member].incarnation,
        replaces,
    )
    assert cluster.administer(command) == Ok(1)


def voters_are(cluster: Cluster, *members: str) -> None:
    """Every group ends with exactly these, at all of them."""
    cluster.voters_are(*members)


def leaders(cluster: Cluster) -> set[str | None]:
    return {cluster.leader(group) for group in next(iter(cluster.members.values())).replicas}


def standing(cluster: Cluster, member: str) -> str:
    return cluster.members[member].membership.standing


# ---- founding, and who forgot


def test_a_cluster_begins_when_its_founding_members_have_met() -> None:
    cluster = Cluster(3)
    cluster.crash("n3", power=False)
    cluster.run(5_000)
    assert leaders(cluster) == {None}
    assert standing(cluster, "n1") == "meeting"
    cluster.start("n3")
    cluster.ready()
    assert {standing(cluster, name) for name in cluster.names} == {"member"}
    cluster.crash("n3")
    cluster.run(3_000)
    assert None not in leaders(cluster), "later any majority will do"
    cluster.crash("n2")
    cluster.start("n2")
    cluster.ready()


def test_the_catalog_knows_everybodys_incarnation() -> None:
    cluster = Cluster(3)
    cluster.ready()
    cluster.run(1_000)
    members = cluster.members["n2"].catalog.members.by_id
    assert [(each.number, each.id, each.incarnation) for each in members.values()] == [
        (number, name, cluster.node_states[name].incarnation) for number, name in enumerate(cluster.names, 1)
    ]


def test_a_member_that_lost_its_disk_does_not_vote_under_its_old_name() -> None:
    """With n3 emptied and n1 gone, n2 and n3 would be a majority, and what n1 and n3 have confirmed might be lost."""
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")
    cluster.crash("n3")
    cluster.wipe("n3")
    cluster.start("n3")
    cluster.run(3_000)
    assert standing(cluster, "n3") == "meeting"
    assert not cluster.is_linked("n1", "n3")
    assert cluster.members["n3"].replicas[group].raft.term == 0
    session = Session(cluster, "n1")
    session.publish(group, queue, b"a")
    cluster.until(lambda: session.confirmed() == [1], "two members go on")
    cluster.crash("n1")
    cluster.run(5_000)
    assert leaders(cluster) == {None}, "one member that remembers is no majority"
    cluster.start("n1")
    cluster.until(lambda: None not in leaders(cluster), "two that remember are")


def test_a_member_that_lost_its_disk_is_replaced_under_its_name() -> None:
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    session.publish(group, queue, b"a", b"b")
    cluster.until(lambda: len(session.confirmed()) == 2, "confirmed")
    cluster.crash("n3")
    cluster.join("n3~new")
    assert standing(cluster, "n3~new") == "waiting"
    refused = cluster.administer(AddMember("n3~new", "n3", "x:1", "x:2", "00" * 16))
    assert isinstance(refused, Refused)
    assert "quorum cluster replace n3" in refused.detail
    add(cluster, "n3~new", replaces=True)
    voters_are(cluster, "n1", "n2", "n3~new")
    cluster.ready()
    assert cluster.members["n3~new"].me == 4, "a number of its own"
    session.publish(group, queue, b"c")
    cluster.until(lambda: len(session.confirmed()) == 3, "it goes on")
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    cluster.crash("n2")
    session = Session(cluster, "n3~new")
    session.publish(group, queue, b"d")
    cluster.until(lambda: len(session.confirmed()) == 1, "the new one counts")


def test_progress_names_a_member_and_the_one_that_replaces_it_apart() -> None:
    """Clients and metrics use these names as keys."""
    cluster = Cluster(3)
    cluster.ready()
    cluster.crash("n3")
    cluster.join("n3~new")
    add(cluster, "n3~new", replaces=True)
    seen: list[set[str]] = []

    def both_are_told() -> bool:
        for name in ("n1", "n2"):
            found = cluster.members[name].answer(DescribeCluster())
            for group in found.groups:
                names = [each.name for each in group.progress]
                assert len(names) == len(set(names)), names
                seen.append(set(names))
        return any({"n3", "n3~new"} <= names for names in seen)

    cluster.until(both_are_told, "a group has both")


# ---- coming and going


def test_three_grow_to_five_and_shrink_to_three_others_under_load() -> None:
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n2")
    sent = 0

    def load() -> None:
        nonlocal sent
        session.publish(group, queue, b"%d" % sent)
        sent += 1
        cluster.run(20)

    members = ["n1", "n2", "n3"]
    for new in ("n4~a", "n5~b"):
        cluster.join(new)
        add(cluster, new)
        members.append(new)
        for _ in range(100):
            load()
        voters_are(cluster, *members)
    for old in ("n1", "n3"):
        assert cluster.administer(RemoveMember(old), at="n2") == Ok(1)
        members.remove(old)
        for _ in range(100):
            load()
        voters_are(cluster, *members)
        cluster.until(lambda old=old: standing(cluster, old) == "removed", "it has heard of it")  # type: ignore[misc]
        assert not cluster.members[old].is_ready()
    cluster.until(lambda: len(session.confirmed()) == sent, "all is confirmed")
    for old in ("n1", "n3"):
        cluster.crash(old)
    cluster.ready()
    consumer = Session(cluster, "n5~b")
    consumer.call(group, c.Attach(queue, "tag", b"", 10_000))
    cluster.until(lambda: len(consumer.received(group)) == sent, "all is there")
    assert consumer.received(group) == [b"%d" % number for number in range(sent)]


def test_a_newcomer_that_was_away_is_found_again_after_all_have_restarted() -> None:
    """Who joined is in nobody's configuration file: what a node remembers says where it is."""
    cluster = Cluster(3)
    cluster.ready()
    for new in ("n4~a", "n5~b"):
        cluster.join(new)
        add(cluster, new)
        voters_are(cluster, "n1", "n2", "n3", *(each for each in ("n4~a", "n5~b") if each in cluster.names))
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
        assert set(cluster.members[name].peers.all) == set(cluster.names) - {name}
    cluster.crash("n1")
    cluster.crash("n2")
    cluster.ready()


def test_who_was_away_while_its_leader_joined_is_found_by_it() -> None:
    """Only the leader could tell n3 of the newcomer, and it is the newcomer: it has to dial the one that was there
    first."""
    cluster = Cluster(3)
    cluster.ready()
    cluster.crash("n3")
    cluster.join("n4~a")
    add(cluster, "n4~a")
    voters = ("n1", "n2", "n3", "n4~a")
    cluster.until(
        lambda: all(r.raft.configuration.voters == voters for r in cluster.members["n4~a"].replicas.values()),
        "it votes in every group",
    )
    cluster.until(
        lambda: all(r.has_applied("n4~a") for m in cluster.members.values() for r in m.replicas.values()),
        "it says that it has applied everything",
    )
    for group in cluster.members["n1"].replicas:
        cluster.submit("n1", ev.Transfer(group, "n4~a"))
    cluster.until(lambda: leaders(cluster) == {"n4~a"}, "the newcomer leads")
    assert "n4~a" not in [each.id for each in cluster.node_states["n3"].members]
    cluster.start("n3")
    voters_are(cluster, *voters)
    assert leaders(cluster) == {"n4~a"}, "n3 did not wait for another leader"
    cluster.ready()


def test_a_dead_member_is_removed_and_never_comes_back() -> None:
    cluster = Cluster(5)
    cluster.ready()
    cluster.crash("n5")
    assert cluster.administer(RemoveMember("n5")) == Ok(1)
    voters_are(cluster, "n1", "n2", "n3", "n4")
    cluster.start("n5")
    cluster.run(2_000)
    assert not any(cluster.is_linked("n5", name) for name in cluster.founders)
    again = cluster.administer(AddMember("n5", "n5", "n5:1", "n5:2", "55" * 16))
    assert isinstance(again, Refused)
    assert "emptied data directory" in again.detail


class Selective(Cluster):
    """Nothing of the queues' groups reaches this member."""

    deaf = "n4~a"

    def carry(self, sender: str, to: str, kind: int, data: bytes) -> None:
        if to != self.deaf or kind != KIND_RAFT or GROUP.unpack_from(data)[0] == SYSTEM_GROUP:
            super().carry(sender, to, kind, data)


def test_the_system_group_keeps_who_is_removed_while_its_leader_knows_nothing_of_other_groups() -> None:
    """They would go on without hearing of it, and nobody would connect to them any more: with most of a group's voters
    replaced that was the end of the group."""
    cluster = Selective(3)
    cluster.ready()
    cluster.join("n4~a")
    add(cluster, "n4~a", "n3", replaces=True)
    newcomer = cluster.members["n4~a"].replicas[SYSTEM_GROUP].raft
    cluster.until(lambda: newcomer.is_voter and newcomer.is_settled, "it votes in the system group")
    while not newcomer.is_leader:
        leader = cluster.leader(SYSTEM_GROUP)
        if leader is not None:
            cluster.submit(leader, ev.Transfer(SYSTEM_GROUP, "n4~a"))
        cluster.run(200)
    cluster.run(5_000)
    assert newcomer.is_leader
    assert "n3" in newcomer.configuration.voters
    cluster.deaf = ""
    voters_are(cluster, "n1", "n2", "n4~a")


def test_a_learner_of_the_system_group_that_leads_another_group_hears_that_it_was_removed() -> None:
    cluster = Cluster(3, 1)
    cluster.ready()
    cluster.run(1_000)
    system = cluster.leader(SYSTEM_GROUP)
    assert system is not None
    cluster.join("x~1")
    add(cluster, "x~1")
    newcomer = cluster.members["x~1"]
    cluster.until(lambda: "x~1" in newcomer.catalog.members.by_id, "it hears that it is a member")
    assert "x~1" in cluster.members[system].replicas[SYSTEM_GROUP].raft.configuration.learners
    cluster.cut(system, "x~1")
    cluster.run(3_000)
    group = next(
        group
        for group in newcomer.replicas
        if (leader := cluster.leader(group)) not in (None, system)
        and "x~1" in cluster.members[leader].replicas[group].raft.configuration.voters
    )
    cluster.submit(str(cluster.leader(group)), ev.Transfer(group, "x~1"))
    cluster.until(lambda: cluster.leader(group) == "x~1", "the newcomer leads a group")
    assert cluster.administer(RemoveMember("x~1"), at=system) == Ok(1)
    cluster.run(1_000)
    cluster.heal()
    cluster.until(lambda: standing(cluster, "x~1") == "removed", "it hears that it is none any more")
    voters_are(cluster, "n1", "n2", "n3")


def test_a_quiet_cluster_of_one_grows_at_once() -> None:
    cluster = Cluster(1)
    cluster.ready()
    cluster.run(1_000)
    cluster.join("x~1")
    add(cluster, "x~1")
    began = cluster.now_ms
    voters_are(cluster, "n1", "x~1")
    assert cluster.now_ms - began < 1_000, "nothing waits until somebody else says something"


def test_a_group_does_not_shrink_below_who_answers() -> None:
    """Three members, one of them gone, another one removed: the two would be one, and the group waits instead."""
    cluster = Cluster(3)
    cluster.ready()
    cluster.crash("n3")
    assert cluster.administer(RemoveMember("n2"), at="n1") == Ok(1)
    cluster.run(5_000)
    assert cluster.members["n1"].replicas[1].raft.configuration.voters == ("n1", "n2", "n3")
    cluster.start("n3")
    voters_are(cluster, "n1", "n3")


def test_nobody_is_added_twice_and_the_last_one_stays() -> None:
    cluster = Cluster(1)
    cluster.ready()
    cluster.run(500)
    assert isinstance(cluster.administer(RemoveMember("n1")), Refused)
    assert isinstance(cluster.administer(DrainMember("n1", True)), Refused)
    assert isinstance(cluster.administer(RemoveMember("nobody")), Refused)
    cluster.join("n2~a")
    add(cluster, "n2~a")
    again = AddMember("n2~a", "n2", "n2-a:1", "n2-a:2", cluster.node_states["n2~a"].incarnation)
    assert cluster.administer(again) == Ok(0)
    voters_are(cluster, "n1", "n2~a")


def test_a_node_that_waits_serves_nothing() -> None:
    cluster = Cluster(3)
    cluster.ready()
    cluster.join("n4~a")
    cluster.run(3_000)
    waiting = cluster.members["n4~a"]
    assert (waiting.me, waiting.is_ready(), waiting.membership.standing) == (0, False, "waiting")
    assert waiting.replicas[0].raft.term == 0
    assert not any(cluster.is_linked("n4~a", name) for name in cluster.founders)


# ---- leading


def test_a_drained_member_hands_over_and_leads_again_only_when_undrained() -> None:
    cluster = Cluster(3)
    cluster.ready()
    drained = cluster.leader(1)
    assert drained is not None
    assert cluster.administer(DrainMember(drained, True)) == Ok(1)
    cluster.until(lambda: drained not in leaders(cluster) | {None}, "it leads nothing")
    assert not cluster.members[drained].is_ready()
    others = [name for name in cluster.names if name != drained]
    cluster.crash(others[0])
    cluster.until(lambda: leaders(cluster) == {others[1]}, "only the other one stands")
    cluster.start(others[0])
    cluster.run(1_000)
    assert cluster.administer(DrainMember(drained, False), at=others[1]) == Ok(1)
    cluster.ready()


def test_what_is_published_while_leaders_change_hands_is_confirmed_once() -> None:
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    for number in range(60):
        session.publish(group, queue, b"%d" % number)
        if number % 10 == 0:
            target = next(name for name in cluster.names if name != cluster.leader(group))
            cluster.submit("n1", ev.Transfer(group, target))
        cluster.run(30)
    cluster.until(lambda: len(session.confirmed()) == 60, "all is confirmed")
    assert session.ended is None
    assert cluster.info("n1", group, queue).ready == 60


def test_a_node_that_is_about_to_stop_leads_nothing() -> None:
    cluster = Cluster(3)
    cluster.ready()
    leaving = cluster.leader(0)
    assert leaving is not None
    cluster.submit(leaving, ev.Leave())
    cluster.until(lambda: leaving not in leaders(cluster) | {None}, "it leads nothing", 3_000)
    assert cluster.members[leaving].membership.leads_nothing


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_quiet_member_that_is_about_to_stop_hands_over_at_once(seed: int) -> None:
    cluster = Cluster(3, seed)
    cluster.ready()
    cluster.run(1_000)
    leader = str(cluster.leader(SYSTEM_GROUP))
    led = [group for group in cluster.members[leader].replicas if cluster.leader(group) == leader]
    began = cluster.now_ms
    cluster.submit(leader, ev.Leave())
    cluster.until(lambda: all(cluster.leader(group) not in (None, leader) for group in led), "others lead")
    assert cluster.now_ms - began < 200, "no election timeout is waited for"


def test_the_plan_spreads_leaders_and_moves_no_more_than_needed() -> None:
    cluster = Cluster(3)
    cluster.ready()
    for group in range(4):
        cluster.submit("n2", ev.Transfer(group, "n1"))
        cluster.until(lambda group=group: cluster.leader(group) == "n1", "n1 leads")  # type: ignore[misc]
    cluster.run(500)
    moves = dict(cluster.members["n2"].answer(PlanRebalance()))
    assert sorted(moves.values()) == ["n2", "n3"]
    for group, name in moves.items():
        cluster.submit("n3", ev.Transfer(group, name))
    cluster.until(lambda: all(cluster.leader(group) == name for group, name in moves.items()), "moved")
    cluster.run(500)
    assert cluster.members["n2"].answer(PlanRebalance()) == ()


def test_a_wish_that_cannot_be_is_answered_and_does_not_end_the_member() -> None:
    """It is looked at on the Raft thread, where every exception is the end."""
    cluster = Cluster(3)
    cluster.ready()
    assert cluster.administer(DrainMember("n3", True)) == Ok(1)
    told = {}
    for group, name in ((1, "n2"), (9, "n2"), (1, "nobody"), (1, "n3")):
        told[group, name] = cluster.members["n1"].answer(FindTransferTarget(group, name))
    assert told.pop((1, "n2")) == TransferTarget("n2")
    assert all(answer.problem and not answer.id for answer in told.values()), told


# ---- the roster


def test_the_elder_dials_the_newcomer_and_of_founders_the_greater_name() -> None:
    members = [
        CatalogMember(1, "a", "a", "a:1"),
        CatalogMember(2, "b", "b", "b:1"),
        CatalogMember(3, "a~1", "a", "[::1]:7401"),
        CatalogMember(4, "0~2", "0", "z:1"),
    ]
    ids = [each.id for each in members]
    dial_addresses = {
        each: MemberDirectory(each, NodeState(), members).dial_addresses(set(ids) - {each}) for each in ids
    }
    assert dial_addresses["a"] == {"a~1": ("::1", 7401), "0~2": ("z", 1)}
    assert dial_addresses["b"] == {"a": ("a", 1), "a~1": ("::1", 7401), "0~2": ("z", 1)}
    assert dial_addresses["a~1"] == {"0~2": ("z", 1)}
    assert dial_addresses["0~2"] == {}
    fallback_addresses = {
        each: MemberDirectory(each, NodeState(), members).fallback_addresses(set(ids) - {each})
        for each in ids
    }
    assert fallback_addresses["a"] == fallback_addresses["b"] == {}
    assert fallback_addresses["a~1"] == {"a": ("a", 1), "b": ("b", 1)}
    assert fallback_addresses["0~2"] == {"a": ("a", 1), "b": ("b", 1), "a~1": ("::1", 7401)}


@pytest.mark.parametrize("member", ["a", "a~1"])
def test_two_members_of_one_name_are_told_apart(member: str) -> None:
    member_directory = MemberDirectory("a", NodeState(), [CatalogMember(1, "a", "a")])
    member_directory.follow({"a~1": CatalogMember(2, "a~1", "a")})
    assert member_directory.name(member_directory.number(member)) == "a"
    assert member_directory.names_of(["a", "a~1"]) == ["a", "a"]
    assert member_directory.own is None


def test_a_joined_member_that_restarts_knows_that_it_was_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it applies entries from before it was added, it is not said to wait for `quorum cluster add`."""
    cluster = Cluster.grown(2)
    joined = cluster.names[1]
    cluster.crash(joined)
    monkeypatch.setattr(applier, "APPLY_BYTES", 1)
    seen = []
    follow = Membership.follow

    def noted(self: Membership) -> object:
        found = follow(self)
        if self.member_directory.me == joined:
            seen.append((self.standing, self.is_catching_up))
        return found

    monkeypatch.setattr(Membership, "follow", noted)
    cluster.start(joined)
    cluster.run(2_000)
    assert ("waiting", True) in seen and ("waiting", False) not in seen
    assert seen[-1] == ("member", False)
    cluster.join("x~1")
    cluster.run(100)
    assert (standing(cluster, "x~1"), cluster.members["x~1"].membership.is_catching_up) == ("waiting", False)


def test_health_tells_which_other_members_can_be_reached() -> None:
    cluster = Cluster(3)
    cluster.ready()
    assert cluster.members["n1"].answer(CheckHealth()).others == {"n2": True, "n3": True}
    cluster.crash("n3")
    cluster.run(100)
    assert cluster.members["n1"].answer(CheckHealth()).others == {"n2": True, "n3": False}


def test_a_founding_member_that_was_removed_is_still_known_after_a_restart() -> None:
    """Groups may still need it."""
    founders = [CatalogMember(1, "a", "a", "a:1"), CatalogMember(2, "b", "b", "b:1")]
    member_directory = MemberDirectory("b", NodeState(members=(founders[1],)), founders)
    assert list(member_directory.by_id) == ["b"]
    assert member_directory.dial_addresses(["a"]) == {"a": ("a", 1)}
    assert member_directory.number("a") == 1
