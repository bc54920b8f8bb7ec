"""The bulk client against servers that fail: repeats, other nodes, streams that go on where they were; its blocks."""

from __future__ import annotations

import copy
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pyarrow as pa
import pytest

from quorum.bulk import BulkClient
from quorum.client.bulk import calls
from quorum.client.bulk import client as bulk
from quorum.client.bulk.records import StagedPart
from quorum.client.errors import ClosedError, RefusedError, ServiceError, TimedOut, UsageError
from quorum.v1 import bulk_pb2 as pb
from quorum.v1 import bulk_pb2_grpc


class Clock:
    """Stands in for the module `time`: only sleeping takes time, and it takes none."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def block(first: int, count: int) -> pb.Block:
    batch = pa.RecordBatch.from_pydict({"sequence": list(range(first, first + count))})
    ((data, rows),) = bulk._encoded(batch)
    return pb.Block(arrow=data, rows=rows, next_sequence=first + count)


class Node(bulk_pb2_grpc.BulkServicer):
    """Answers what it is told to, after failing as often as it is told to."""

    def __init__(self) -> None:
        self.failures = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.code = grpc.StatusCode.UNAVAILABLE
        self.requests: list[Any] = []
        self.left_s: list[float] = []
        """what was left of the time of each settlement when it arrived"""
        self.fail_after_blocks = -1
        self.looked_to = 0
        self.rows_less = 0
        self.server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
        bulk_pb2_grpc.add_BulkServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def _fail(self, context: grpc.ServicerContext) -> None:
        if self.failures:
            self.failures -= 1
            context.abort(self.code, "not now")

    def Settle(self, request: pb.SettleRequest, context: grpc.ServicerContext) -> pb.SubscriptionState:
        self.requests.append(request)
        self.left_s.append(context.time_remaining())
        self.goes_on.wait()
        self._fail(context)
        return pb.SubscriptionState(generation=1, settled=request.to, last=9)

    def ReadReserved(
        self, request: pb.ReadReservedRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Block]:
        self.requests.append(request)
        self._fail(context)
        end = request.first + request.count if request.count else 50
        yield from self._blocks(request.first, end, context)

    def Browse(self, request: pb.BrowseViewRequest, context: grpc.ServicerContext) -> Iterator[pb.Block]:
        self.requests.append(request)
        self._fail(context)
        if self.looked_to:
            yield pb.Block(arrow=block(0, 0).arrow, next_sequence=self.looked_to)
        end = min(request.end_sequence or 50, request.start_sequence + (request.limit or 50))
        yield from self._blocks(request.start_sequence, end, context)

    def _blocks(self, first: int, end: int, context: grpc.ServicerContext) -> Iterator[pb.Block]:
        for number, start in enumerate(range(first, end, 10)):
            if number == self.fail_after_blocks:
                self.fail_after_blocks = -1
                context.abort(self.code, "broken off")
            yield block(start, min(10, end - start))

    def Stage(self, requests: Iterator[pb.StageRequest], context: grpc.ServicerContext) -> pb.StageResponse:
        got = list(requests)
        self.requests.append(got)
        self._fail(context)
        rows = 0
        for request in got:
            with pa.ipc.open_stream(request.arrow) as stream:
                rows += sum(batch.num_rows for batch in stream)
        self.staged = getattr(self, "staged", 0) + rows
        next_chunk = got[0].first_chunk + len(got)
        return pb.StageResponse(
            rows=self.staged - self.rows_less, next_chunk=next_chunk, index=100 + next_chunk
        )

    def Publish(
        self, request: pb.PublishStagedRequest, context: grpc.ServicerContext
    ) -> pb.PublishStagedResponse:
        self.requests.append(request)
        return pb.PublishStagedResponse()


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    found = (Node(), Node())
    yield found
    for node in found:
        node.goes_on.set()
        node.server.stop(None).wait()


def client_of(nodes: tuple[Node, ...], timeout_ms: int = 60_000) -> BulkClient:
    return BulkClient("quorum://" + ",".join(node.address for node in nodes), timeout_ms=timeout_ms)


def sequences(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch.column("sequence").to_pylist()]


def test_a_call_moves_to_the_next_node_and_stays_there(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.failures = 1
    with client_of(nodes) as client:
        assert client.settle("q", "g", 1, 4).settled == 4
        assert client.settle("q", "g", 1, 5).settled == 5
    assert (len(one.requests), len(two.requests)) == (1, 2)
    with pytest.raises(ClosedError):
        client.settle("q", "g", 1, 5)


def test_a_call_is_repeated_until_its_deadline(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    one.failures = two.failures = 3
    with client_of(nodes) as client:
        assert client.settle("q", "g", 1, 4).settled == 4
    one.failures = two.failures = 10**6
    monkeypatch.setattr(calls, "time", Clock())
    with (
        client_of(nodes, timeout_ms=10_000) as client,
        pytest.raises(TimedOut, match=r"not now.*no node was available"),
    ):
        client.settle("q", "g", 1, 4)


def test_a_node_that_says_nothing_does_not_take_all_of_the_time(nodes: tuple[Node, Node]) -> None:
    """As one whose disk hangs: its connections live. Its share of the time ends at once here."""
    one, two = nodes
    one.failures, one.code = 1, grpc.StatusCode.DEADLINE_EXCEEDED
    with client_of(nodes, timeout_ms=60_000) as client:
        assert client.settle("q", "g", 1, 4).settled == 4
        assert client.settle("q", "g", 1, 5).settled == 5
    assert (len(one.requests), len(two.requests)) == (1, 2)
    assert max(one.left_s + two.left_s) < 45, "each of the two has half of the time"


def test_a_call_ends_when_no_node_says_anything(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        node.goes_on.clear()
    with (
        client_of(nodes, timeout_ms=200) as client,
        pytest.raises(TimedOut, match="no answer came in time"),
    ):
        client.settle("q", "g", 1, 4)


def test_a_refusal_is_final(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.failures, one.code = 1, grpc.StatusCode.FAILED_PRECONDITION
    with (
        client_of(nodes) as client,
        pytest.raises(RefusedError, match="settling up to 4 for subscription 'g'"),
    ):
        client.settle("q", "g", 1, 4)
    assert two.requests == []


def test_a_copy_has_channels_of_its_own(nodes: tuple[Node, Node]) -> None:
    client = client_of(nodes)
    assert client.settle("q", "g", 1, 1).settled == 1
    twin = copy.deepcopy(client)
    client.close()
    assert twin.settle("q", "g", 1, 2).settled == 2
    twin.close()


@pytest.mark.parametrize("broken", [0, 1, 2, 4])
def test_reading_goes_on_where_it_was(nodes: tuple[Node, Node], broken: int) -> None:
    one, two = nodes
    one.fail_after_blocks = broken
    with client_of(nodes) as client:
        found = sequences(client.read_reserved("q", "g", 1, first=3, count=40, index=77, prefer=one.address))
    assert found == list(range(3, 43))
    again = [*one.requests, *two.requests][-1]
    taken = min(10 * broken, 40)
    assert (again.first, again.count, again.index) in ((3 + taken, 40 - taken, 77), (3, 40, 77))


@pytest.mark.parametrize("broken", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"limit": 25}, {"end_sequence": 35}])
def test_browsing_goes_on_where_it_was(
    nodes: tuple[Node, Node], broken: int, options: dict[str, int]
) -> None:
    one, _ = nodes
    one.fail_after_blocks = broken
    with client_of(nodes) as client:
        found = sequences(client.browse("q", 3, start_sequence=5, **options))
    assert found == list(range(5, {"limit": 30, "end_sequence": 35}.get(next(iter(options), ""), 50)))


def test_a_browse_goes_on_where_a_node_has_looked_though_it_found_nothing(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    one.looked_to = 40
    one.fail_after_blocks = 0
    with client_of(nodes) as client:
        assert sequences(client.browse("q", 3)) == list(range(40, 50))
    assert nodes[1].requests[0].start_sequence == 40


def test_what_is_staged_is_sent_again_as_it_was(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.failures = 1
    batch = pa.RecordBatch.from_pydict({"body": [bytes(1000)] * 40_000})
    with client_of(nodes) as client:
        part = client.stage("q", "p", 3, iter([batch]))
    assert part.rows == 40_000
    assert [each.SerializeToString() for each in one.requests[0]] == [
        each.SerializeToString() for each in two.requests[0]
    ]
    assert len(two.requests) == 3, "about 40 MB, 16 MiB a call"
    heads = [call[0] for call in two.requests]
    assert [head.first_chunk for head in heads] == [0, 16, 32]
    assert {(head.queue, head.producer, head.batch, head.part) for head in heads} == {
        ("q", "p", 3, part.part)
    }


def test_publishing_names_the_index_up_to_which_the_parts_were_staged(nodes: tuple[Node, Node]) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [bytes(1000)] * 40_000})
    with client_of(nodes) as client:
        part = client.stage("q", "p", 3, [batch])
        assert part.index == 139
        earlier, unknown = StagedPart(bytes(16), 1, 7), StagedPart(bytes(16), 0)
        for parts in ([earlier, part, unknown], [unknown], []):
            client.publish("q", "p", 3, parts)
    assert [each.staged_to for each in nodes[0].requests[-3:]] == [139, 0, 0]


def test_a_call_has_few_large_rows(nodes: tuple[Node, Node]) -> None:
    """A call that takes longer than a node's share of the time is repeated as a whole, and would never end."""
    large = pa.RecordBatch.from_pydict({"body": [bytes(7 << 20)] * 5})
    with client_of(nodes) as client:
        assert client.stage("q", "p", 3, [large]).rows == 5
    calls = nodes[0].requests
    assert [len(call) for call in calls] == [2, 2, 1]
    assert [call[0].first_chunk for call in calls] == [0, 2, 4]


def test_a_row_that_no_request_can_hold_is_refused_and_not_sent(nodes: tuple[Node, Node]) -> None:
    """gRPC would refuse it with the sizes of its own messages."""
    rows = pa.record_batch({"body": [b"", bytes(32 << 20)]})
    with (
        client_of(nodes) as client,
        pytest.raises(UsageError, match=r"a row has 33554\d+ bytes; at most 33488896"),
    ):
        client.stage("q", "p", 3, [rows])
    assert not nodes[0].requests
    assert not nodes[1].requests


def test_rows_that_are_missing_on_the_other_side_are_noticed(nodes: tuple[Node, Node]) -> None:
    nodes[0].rows_less = 1
    batch = pa.RecordBatch.from_pydict({"body": [b"x"] * 5})
    with client_of(nodes) as client, pytest.raises(ServiceError, match="has 4 of 5 rows"):
        client.stage("q", "p", 3, [batch])


def decoded(blocks: Iterator[tuple[bytes, int]]) -> list[list[Any]]:
    found = []
    for data, rows in blocks:
        with pa.ipc.open_stream(data) as stream:
            found.append([row for batch in stream for row in batch.to_pylist()])
        assert len(found[-1]) == rows
    return found


def test_blocks_put_small_batches_together_and_cut_large_ones() -> None:
    def batch(*bodies: bytes) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"body": list(bodies)})

    def counts(*batches: pa.RecordBatch) -> list[int]:
        found = decoded(bulk._blocks(batches))
        assert [row for rows in found for row in rows] == [
            row for each in batches for row in each.to_pylist()
        ]
        return [len(rows) for rows in found]

    assert counts(
        batch(b"a"), pa.RecordBatch.from_pydict({"body": pa.array([], pa.binary())}), batch(b"b")
    ) == [2]
    assert counts(*[batch(b"x")] * 9_000) == [8192, 808]
    assert counts(batch(*[b"x"] * 20_000)) == [8192, 8192, 3616]
    assert counts(batch(*[bytes(300_000)] * 7)) == [3, 3, 1]
    skewed = [bytes(12 << 20), *[b"x"] * 50, bytes(12 << 20), bytes(12 << 20)]
    assert max(map(len, decoded(bulk._blocks([batch(*skewed)])))) <= 52
    assert sum(counts(batch(*skewed))) == 53
    other = pa.RecordBatch.from_pydict({"body": [b"y"], "subject": ["s"]})
    assert counts(batch(b"x"), other, other, batch(b"z")) == [1, 2, 1]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (
            lambda client: client.open_subscription("q", "g", start="now"),
            "start 'now'; allowed: earliest, latest",
        ),
        (lambda client: client.open_subscription("q", "g", on_expiry="x"), "allowed: release, discard, keep"),
        (lambda client: next(client.browse("q", fields={"a": "x"})), "kind of field 'a' 'x'; allowed: text"),
    ],
)
def test_what_can_never_work_is_not_sent(
    nodes: tuple[Node, Node], call: Callable[[BulkClient], Any], problem: str
) -> None:
    with client_of(nodes) as client, pytest.raises(UsageError, match=problem):
        call(client)
    assert nodes[0].requests == []


CALLS: dict[str, tuple[Any, ...]] = {
    "open_subscription": ("q", "s"),
    "reserve": ("q", "s", 1, 0),
    "reservations": ("q", "s"),
    "read_reserved": ("q", "s", 1),
    "settle": ("q", "s", 1, 1),
    "keep_alive": ("q", "s", 1),
    "release_subscription": ("q", "s", 1),
    "delete_subscription": ("q", "s"),
    "subscriptions": ("q",),
    "open_view": ("q",),
    "browse": ("q",),
    "close_view": ("q", 1),
    "stage": ("q", "p", 1, [pa.record_batch({"body": [b"x"]})]),
    "publish": ("q", "p", 1, [StagedPart(bytes(16), 1)]),
    "discard": ("q", "p", 1, [bytes(16)]),
    "queue_info": ("q",),
}
"""Every call, with arguments that are right."""
WRONG = (-1, 1.5, object(), "\ud800", 1 << 70, [object()], pa.table({"body": [b"x"]}))


@pytest.mark.parametrize("call", sorted(CALLS))
def test_an_argument_of_a_wrong_type_is_refused_and_nothing_is_sent(
    nodes: tuple[Node, Node], call: str
) -> None:
    client = client_of(nodes)
    parameters = list(inspect.signature(getattr(client, call)).parameters)
    for name, wrong in itertools.product(parameters, WRONG):
        given = {**dict(zip(parameters, CALLS[call], strict=False)), name: wrong}
        with pytest.raises(UsageError):
            list(getattr(client, call)(**given) or ())
    assert not any(node.requests for node in nodes)


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        (pa.table({"body": [b"x"]}), "not a Table; a table has the method to_batches"),
        ([{"body": b"x"}], "it has a dict"),
    ],
)
def test_what_is_no_list_of_record_batches_is_not_staged(
    nodes: tuple[Node, Node], batches: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        client_of(nodes).stage("q", "p", 1, batches)


@pytest.mark.parametrize("timeout_ms", [-1, "5", None])
def test_a_timeout_of_a_wrong_type_is_refused(timeout_ms: Any) -> None:
    with pytest.raises(UsageError, match="timeout_ms"):
        BulkClient("quorum://127.0.0.1:1", timeout_ms=timeout_ms)
