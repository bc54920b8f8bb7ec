"""The clients of the tests with real processes, here on an in-memory cluster: what they record is a history that can be
judged, also when streams break."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from quorum.client.connection.endpoints import parse_url
from quorum.client.errors import ClosedError, PublishRejected
from quorum.histories import MemoryRecorder
from quorum.histories.records import CONFIRMED, REJECTED, UNKNOWN, problem
from support.fake_server.harness import World, on_cluster
from support.histories import checkers
from support.histories.checkers import Violation
from support.processes.load import Load, Recorder, Sent, record_publish

LOAD = Load(5, 0.01, 40)


@on_cluster(nodes=3)
async def test_what_clients_did_while_streams_broke_is_recorded_and_judged(world: World) -> None:
    names = [node.address for node in world.nodes]
    cluster = SimpleNamespace(
        url=world.url, names=names, url_of=parse_url(world.url).url_of, processes=SimpleNamespace(ended=dict)
    )
    async with Recorder(cluster, "q", load=LOAD) as recorder:  # type: ignore[arg-type]
        await recorder.progress()
        fault_at = time.monotonic()
        for node in world.nodes:
            node.cut()
        assert await recorder.resumed(fault_at) > 0
        await recorder.progress()
        await recorder.finish()
        records = recorder.history.records
    assert [each for each in map(problem, records) if each] == []
    assert {each["op"] for each in records} == {"publish", "deliver", "settle", "left"}
    assert "none lost, none twice" in checkers.check_all(records)
    kept = [each for each in records if each["op"] != "settle" or each["sequence"] > 5]
    with pytest.raises(Violation, match="lost"):
        checkers.check_all(kept)


def test_a_batch_that_was_refused_in_parts_is_recorded_in_parts() -> None:
    history, sent = MemoryRecorder(), Sent("p", 10, 6, 1)
    outcomes = [
        (None, [(10, 6, CONFIRMED)]),
        (ClosedError("closed"), [(10, 6, UNKNOWN)]),
        (
            PublishRejected("refused", rejected=((1, 2), (5, 5))),
            [(10, 1, CONFIRMED), (11, 2, REJECTED), (13, 2, CONFIRMED), (15, 1, REJECTED)],
        ),
    ]
    for error, told in outcomes:
        found = record_publish(history, "q", sent, error)
        assert [(each["number"], each.get("count", 1), each["outcome"]) for each in found] == told
