"""Calls that only read (quorum/api): what they show, what they write (nothing), and how much they do in one step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fifo import commands as c
from fifo.group_machine import GroupMachine
from fifo.persistence import checkpoint, snapshot
from fifo.persistence.state_crc import StateCrc
from fifo.queries import group as queries
from quorum.api.services import queue_admin_service
from quorum.catalog.commands import DeclareQueue
from quorum.catalog.machine import CatalogMachine
from quorum.log.record import crc32c
from quorum.node.reads.queue_answers import QueueAnswers
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.v1 import admin_pb2, queue_pb2
from support.members.cluster import START_MS, Cluster, Session
from support.members.services import Aborted, Api, Context, collected, on_member


def with_api(run: Callable[[Api], Coroutine[Any, Any, None]], queues: int, size: int = 3) -> None:
    cluster = Cluster(size)
    cluster.ready()
    session = Session(cluster, "n1")
    for number in range(queues):
        session.send(SYSTEM_GROUP, DeclareQueue(f"q{number:05}", ()), number)
    cluster.until(lambda: len(session.replies) == queues, "the queues are declared")
    groups = [group for group in cluster.members["n1"].replicas if group != SYSTEM_GROUP]
    cluster.until(
        lambda: sum(len(cluster.members["n1"].queue_machine(group).queues) for group in groups) == queues,
        "the queues are there",
    )
    cluster.settle()
    on_member(cluster, run)


def last_entries(cluster: Cluster) -> list[int]:
    return [replica.raft.last_index for m in cluster.members.values() for replica in m.replicas.values()]


def test_a_read_appends_no_log_entry() -> None:
    async def run(api: Api) -> None:
        reader, session = api.queues, Session(api.cluster, "n2")
        found = api.cluster.members["n1"].catalog.queue("q00000")
        assert found is not None
        session.publish(found.group, found.id, b"one", b"two")
        api.cluster.until(lambda: session.confirmed() == [1, 2], "the messages are confirmed")
        api.cluster.run(500)
        before = last_entries(api.cluster)
        listed = await api.list()
        assert [(queue.name, queue.ready) for queue in listed.queues] == [("q00000", 2), ("q00001", 0)]
        request = admin_pb2.DescribeQueueRequest(queue="q00000")
        described = await api.call(api.admin.DescribeQueue(request, Context()))  # type: ignore[arg-type]
        assert (described.queue.ready, described.queue.totals.published) == (2, 2)
        browse = reader.Browse(queue_pb2.BrowseRequest(queue="q00000"), Context())  # type: ignore[arg-type]
        [page] = await api.call(collected(browse))
        assert [each.message.body for each in page.messages] == [b"one", b"two"]
        await api.call(api.admin.ListPolicies(admin_pb2.ListPoliciesRequest(), Context()))  # type: ignore[arg-type]
        for answer in (
            api.admin.DescribeQueue(admin_pb2.DescribeQueueRequest(queue="none"), Context()),  # type: ignore[arg-type]
            reader.Get(queue_pb2.GetRequest(queue="none"), Context()),  # type: ignore[arg-type]
            collected(reader.Browse(queue_pb2.BrowseRequest(queue="none"), Context())),  # type: ignore[arg-type]
        ):
            with pytest.raises(Aborted, match="there is no queue 'none'"):
                await api.call(answer)
        assert last_entries(api.cluster) == before

    with_api(run, queues=2)


def test_a_long_list_of_queues_is_made_in_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_admin_service, "PART_QUEUES", 20)
    looked: dict[int, int] = {}

    async def run(api: Api) -> None:
        info = queries.info

        def counted(machine: GroupMachine, queue: int) -> Any:
            now = api.cluster.now_ms - START_MS
            looked[now] = looked.get(now, 0) + 1
            return info(machine, queue)

        monkeypatch.setattr(queries, "info", counted)
        names = [f"q{number:05}" for number in range(300)]
        assert [queue.name for queue in (await api.list()).queues] == names
        assert sum(looked.values()) == 300
        assert max(looked.values()) <= 20

        pages, after = [], ""
        while True:
            page = await api.list(limit=70, after=after)
            pages.append([queue.name for queue in page.queues])
            after = page.next_after
            if not after:
                break
        assert [len(page) for page in pages] == [70, 70, 70, 70, 20]
        assert [name for page in pages for name in page] == names
        assert [queue.name for queue in (await api.list(prefix="q0001", limit=4)).queues] == names[10:14]
        last = await api.list(prefix="q0001", limit=10)
        assert [queue.name for queue in last.queues] == names[10:20]
        assert not last.next_after

    with_api(run, queues=300)


def test_queues_with_many_blocks_are_listed_a_few_in_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_admin_service, "PART_BLOCKS", 2)
    monkeypatch.setattr(GroupMachine, "block_count", lambda machine, queue: 1)
    parts: list[int] = []
    made = QueueAnswers._list_queues

    def counted(*arguments: Any) -> Any:
        found = made(*arguments)
        parts.append(len(found))
        return found

    monkeypatch.setattr(QueueAnswers, "_list_queues", counted)

    async def run(api: Api) -> None:
        assert len((await api.list()).queues) == 7
        assert parts == [2, 2, 2, 1]

    with_api(run, queues=7, size=1)


def test_state_hashes_of_many_queues_are_made_over_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    queue_head = snapshot.queue_head

    async def run(api: Api) -> None:
        replicas = api.cluster.members["n1"].replicas
        expected = [
            crc32c(replica.machine.snapshot())
            if isinstance(replica.machine, CatalogMachine)
            else StateCrc(replica.machine).take()
            for replica in replicas.values()
        ]

        def counted(machine: Any, version: int) -> Any:
            hashed.append(api.cluster.now_ms)
            return queue_head(machine, version)

        monkeypatch.setattr(snapshot, "queue_head", counted)
        request = admin_pb2.ClusterStatusRequest(with_state_hash=True)
        answer = await api.call(api.admin.ClusterStatus(request, Context()))  # type: ignore[arg-type]
        assert [each.state_hash for each in answer.groups] == expected
        assert len(hashed) == 1_200
        assert len({*hashed}) >= 3

    with_api(run, queues=1_200)


def test_the_heads_of_many_queues_are_prepared_over_many_steps_of_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    section = checkpoint.section

    async def run(api: Api) -> None:
        def counted(machine: Any, version: int) -> Any:
            made.append(api.cluster.now_ms)
            return section(machine, version)

        monkeypatch.setattr(checkpoint, "section", counted)
        member = api.cluster.members["n1"]
        group = member.queue_machine(1)
        operations = [
            c.Operation(number, None, c.CreateQueue(number, c.QueueConfig(f"more-{number}")))
            for number in range(10_000, 12_000)
        ]
        group.apply(c.Meta(group.index + 1, 1, group.now_ms, 2), operations)
        replica = member.replicas[1]
        steps = 1
        while not replica.prepare_snapshot():
            assert len(made) <= 260 * steps
            steps += 1
        assert len(made) >= 2_000
        assert replica.checkpointer is not None
        assert replica.checkpointer.take().state
        assert len(made) <= 2_010, "the rest was prepared"

    with_api(run, queues=1, size=1)


def test_a_page_of_queues_ends_at_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_admin_service, "LISTED_BYTES", 40)

    async def run(api: Api) -> None:
        for limit in (0, 4):
            after, pages = "", []
            while not pages or after:
                page = await api.list(limit=limit, after=after)
                pages.append([each.name for each in page.queues])
                after = page.next_after
            assert [name for page in pages for name in page] == [f"q{number:05}" for number in range(7)]
            assert all(1 <= len(page) < 4 for page in pages)

    with_api(run, queues=7)


def test_long_arguments_do_not_reach_the_catalog() -> None:
    text = queue_pb2.Value(text="a" + " " * 5_000)
    enabled = queue_pb2.Value(boolean=True)

    async def run(api: Api) -> None:
        context: Any = Context()
        before = last_entries(api.cluster)
        names = {"x-filter-field-names": text}
        queue = admin_pb2.DeclareQueueRequest(queue="q", arguments={**names, "x-filter-enabled": enabled})
        policy = admin_pb2.SetPolicyRequest(policy=admin_pb2.Policy(name="p", pattern="*", arguments=names))
        for call in (api.admin.DeclareQueue(queue, context), api.admin.SetPolicy(policy, context)):
            with pytest.raises(Aborted, match="allowed: 4096 together"):
                await api.call(call)
        assert last_entries(api.cluster) == before

    with_api(run, queues=1, size=1)


def test_a_client_is_told_who_leads_its_queues_group() -> None:
    async def run(api: Api) -> None:
        cluster = api.cluster
        found = cluster.members["n1"].catalog.queue("q00000")
        assert found is not None

        async def leader(queue: str) -> tuple[str, str]:
            request = queue_pb2.FindLeaderRequest(queue=queue)
            answer = await api.call(api.queues.FindLeader(request, Context()))  # type: ignore[arg-type]
            return answer.node, answer.address

        for name in cluster.names:
            cluster.members[cluster.leader(found.group) or ""].replicas[found.group].raft.transfer_leadership(
                name
            )
            cluster.until(lambda name=name: cluster.leader(found.group) == name, f"{name} leads")  # type: ignore[misc]
            cluster.settle()
            assert await leader("q00000") == (name, f"{name}:2")
        cluster.crash("n3")
        cluster.until(lambda: cluster.members["n1"].replicas[found.group].raft.leader != "n3", "n3 is away")
        cluster.ready()
        assert (await leader("q00000"))[0] != "n3"
        with pytest.raises(Aborted) as refused:
            await leader("unknown")
        assert refused.value.args[0].name == "NOT_FOUND"

    with_api(run, 1)
