"""Queries and their answers (quorum/node/queries.py): each is answered by somebody, and all of it is frozen."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from fifo import frozen_dataclasses
from fifo.persistence import state_crc
from quorum.node import queries
from quorum.node.queries import Query
from quorum.node.reads.query_table import QueryTable
from quorum.node.replica.replica import empty_state
from support.members.cluster import Cluster

BASES = (queries.Query, queries.GroupQuery, queries.QueueQuery)


def records(module: Any) -> Iterator[type]:
    for found in vars(module).values():
        if isinstance(found, type) and found.__module__ == module.__name__:
            yield found


def test_every_query_has_one_handler() -> None:
    cluster = Cluster(1)
    handlers = cluster.members["n1"]._queries._handlers
    kinds = {each for each in records(queries) if issubclass(each, Query) and each not in BASES}
    assert {*handlers} == kinds


def test_a_second_handler_is_refused() -> None:
    table = QueryTable()
    table.add(queries.CheckHealth, lambda query, now_ms: None)
    with pytest.raises(AssertionError, match="two handlers of CheckHealth"):
        table.add(queries.CheckHealth, lambda query, now_ms: None)


def is_frozen(record: type) -> bool:
    return (
        dataclasses.is_dataclass(record)
        and frozen_dataclasses.is_frozen(record)
        and "__slots__" in vars(record)
    )


@pytest.mark.parametrize("record", [each for each in records(queries) if each is not Query])
def test_queries_and_answers_are_frozen_and_have_no_lists(record: type) -> None:
    assert is_frozen(record)
    kinds = [str(field.type) for field in dataclasses.fields(record)]  # type: ignore[arg-type]
    assert not [kind for kind in kinds if kind.startswith(("list", "dict", "set", "Callable", "object"))]


def test_the_rule_would_notice_a_record_that_is_not_frozen() -> None:
    @dataclasses.dataclass(slots=True)
    class Open:
        group: int

    assert not is_frozen(Open)


def test_a_hash_of_the_state_that_nobody_continues_does_not_keep_a_machine_that_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_crc, "FEW_QUEUES", 0)
    cluster = Cluster(1)
    cluster.ready()
    group, _ = cluster.declare("orders")
    assert cluster.answer(cluster.ask_now("n1", queries.HashState(group))) is None, "there is more to do"
    replica = cluster.members["n1"].replicas[group]
    machine = weakref.ref(replica.machine)
    replica.restore(empty_state(replica.machine))
    gc.collect()
    assert machine() is None


def test_queries_name_the_groups_that_they_read() -> None:
    assert queries.QueueCounts(3, 7).groups == (3,)
    assert queries.ReadBarrier((0, 2)).groups == (0, 2)
    assert queries.DescribeCluster().groups == ()
