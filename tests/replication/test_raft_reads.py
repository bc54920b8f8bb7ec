"""Raft's rules about reads, one test a rule (Raft §8)."""

from __future__ import annotations

from support.raft.world import World


def test_a_read_waits_for_a_majority() -> None:
    world = World(3)
    group = world.elect("n1")
    world.propose("n1", b"a")
    world.run(0.3)
    answers: list[int | None] = []
    group.read_barrier(answers.append)
    assert answers == []
    world.run(0.05)
    assert answers == [group.commit_index]
    world.nodes["n2"].group.read_barrier(answers.append)
    assert answers[1:] == [None], "a follower cannot say"


def test_a_read_on_a_leader_that_loses_office_is_answered() -> None:
    world = World(3)
    group = world.elect("n1")
    world.isolate("n1")
    answers: list[int | None] = []
    group.read_barrier(answers.append)
    world.run(1.5)
    assert answers == [None]


def test_reads_that_come_during_a_round_share_the_next_one() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.2)
    answers: list[int | None] = []
    before = group._guard.seq
    for _ in range(50):
        group.read_barrier(answers.append)
        group.tick()
    world.run(0.06)
    assert answers == [group.commit_index] * 50
    assert group._guard.seq - before <= 2 * 2, "two rounds, each an append to both of the others"


def test_a_read_whose_round_is_lost_is_confirmed_by_the_next_heartbeat() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.2)
    answers: list[int | None] = []
    group.read_barrier(answers.append)
    group.tick()
    for link in world.links.values():
        link.clear()
    assert answers == []
    world.run(0.2)
    assert answers == [group.commit_index]


def test_no_read_is_confirmed_while_leadership_is_handed_over() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.2)
    answers: list[int | None] = []
    group.read_barrier(answers.append)
    assert group.transfer_leadership("n2")
    assert answers == [None], "one that waits is refused"
    group.read_barrier(answers.append)
    assert answers == [None, None]


def test_a_leader_that_has_committed_nothing_in_its_term_confirms_no_read() -> None:
    world = World(3)
    world.elect("n1")
    world.propose("n1", b"a")
    world.isolate("n1")
    for _ in range(1_000):
        world.run(0.01, "n2", "n3")
        new = next(
            (world.nodes[name].group for name in ("n2", "n3") if world.nodes[name].group.is_leader), None
        )
        if new is not None and not new.leader_ready:
            break
    assert new is not None
    answers: list[int | None] = []
    new.read_barrier(answers.append)
    assert answers == [None]
