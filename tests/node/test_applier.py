"""How much of what is committed a member applies in one step (quorum/node/replica/applier.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Applied, AttachedReply
from fifo.group_machine import GroupMachine
from quorum.log import EntryMissing
from quorum.node.replica import applier as applying
from quorum_selectors import canonical, columns, jms
from support.members.cluster import Cluster, Session, batch


def publish(session: Session, group: int, queue: int, count: int, *, with_targets: bool = False) -> None:
    """So many entries of one message each. with_targets: as the messages of an exchange."""
    for _ in range(count):
        first = session.next_sequence
        session.next_sequence += 1
        fields = columns.encode([{"application-properties.n": first}])
        command = c.Enqueue(queue, first, 1, 1, 1, columns=fields)
        if with_targets:
            command = c.Enqueue(0, first, 1, 1, 1, targets=(c.Target(queue, ((0, 1),), fields),))
        session.send(group, command, (first, first), batch([b"x"]))
        session.cluster.run(20)
    session.cluster.until(lambda: len(session.confirmed()) == session.next_sequence - 1, "all confirmed")


def most_in_a_step(cluster: Cluster, name: str, group: int, patch: pytest.MonkeyPatch) -> int:
    """Entries that a member which was away applies in one step, at most."""
    member = cluster.members[name]
    machine = member.replicas[group].machine
    step, apply = member.step, GroupMachine.apply
    counts = [0]

    def counted_step(*given: Any) -> Any:
        counts.append(0)
        return step(*given)

    def counted_apply(own: GroupMachine, meta: c.Meta, operations: Sequence[c.Operation]) -> Applied:
        counts[-1] += own is machine
        return apply(own, meta, operations)

    patch.setattr(member, "step", counted_step)
    patch.setattr(GroupMachine, "apply", counted_apply)
    cluster.run(5_000)
    assert sum(counts) >= 30, "it has caught up"
    return max(counts)


def most_after_an_absence(
    patch: pytest.MonkeyPatch, allowed: int, *, selector: str = "", with_targets: bool = False
) -> int:
    """The most entries that a member applies in one step after it was away for 40 publishes. allowed: APPLY_STEPS.
    selector: of a consumer of the queue."""
    patch.setattr(applying, "APPLY_STEPS", allowed)
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders", filter_enabled=True)
    if selector:
        attach = c.Attach(queue, "c", canonical.encode(jms.parse(selector)), 100)
        assert isinstance(Session(cluster, "n1").call(group, attach), AttachedReply)
    away = next(name for name in cluster.names if name not in ("n1", cluster.leader(group)))
    cluster.crash(away)
    publish(Session(cluster, "n1"), group, queue, 40, with_targets=with_targets)
    cluster.start(away)
    return most_in_a_step(cluster, away, group, patch)


@pytest.mark.parametrize(("allowed", "least", "most"), [(applying.TARGET_STEPS, 1, 4), (1 << 16, 6, 64)])
def test_a_member_that_lags_behind_applies_entries_for_many_queues_one_at_a_time(
    allowed: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert least <= most_after_an_absence(monkeypatch, allowed, with_targets=True) <= most


@pytest.mark.parametrize(("allowed", "least", "most"), [(1, 1, 4), (1 << 16, 6, 64)])
def test_a_member_that_lags_behind_applies_costly_entries_one_at_a_time(
    allowed: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = most_after_an_absence(monkeypatch, allowed, selector="n < 0")
    assert least <= found <= most, "entries that evaluate nothing count for nothing"


def test_an_entry_that_cannot_be_read_is_read_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    cluster.settle()
    leader = cluster.leader(group)
    member = cluster.members[next(name for name in cluster.names if name != leader)]
    raft = member.replicas[group].raft
    view, step = raft._view, member.step
    damaged, read = view.last_index + 1, view.read
    reads = [0]

    def counted_step(*given: Any) -> Any:
        reads.append(0)
        return step(*given)

    def failing_read(index: int) -> bytes | memoryview:
        if index < damaged or sum(reads[:-1]):  # mended by the next step
            return read(index)
        reads[-1] += 1
        raise EntryMissing(f"entry {index}")

    monkeypatch.setattr(member, "step", counted_step)
    monkeypatch.setattr(view, "read", failing_read)
    session = Session(cluster, leader)
    session.send(group, c.Get(queue, 1, settled=True), object())
    cluster.run(500)
    assert sum(reads) == 1
