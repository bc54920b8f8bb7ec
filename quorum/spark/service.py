"""The bulk service as Spark's processes use it: blocking calls to any node, tried again at another one.

Every call may be repeated (quorum/v1/bulk.proto), so what fails for want of a node is asked of the next until the time is
over. Reads go on where they broke off. A process keeps one `Service` a URL: channels are opened after Spark's workers
have forked, and shared from then on. Nothing here is pickled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc
import pyarrow as pa

from quorum.client.endpoints import CHANNEL_OPTIONS, parse_url
from quorum.client.errors import QuorumError, TimedOut, UnavailableError, from_rpc_error
from quorum.spark.schema import Field
from quorum.v1 import bulk_pb2 as pb
from quorum.v1 import bulk_pb2_grpc

PATIENCE_S = 60.0
"""So long a call is tried while no node can serve it."""
ATTEMPT_S = 15.0
"""One attempt of a call that waits for nothing but a commit."""
PAUSE_S, MOST_PAUSE_S = 0.05, 1.0
READ_IDLE_S = 120.0
"""A whole stream of blocks: many times what one slice takes; then the rest is asked of another node."""

Read = Callable[[bulk_pb2_grpc.BulkStub, float], Iterator[pb.Block]]


class Service:
    """One for all threads of a process."""

    def __init__(self, url: str) -> None:
        self._endpoints = list(parse_url(url))
        self._first = 0
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()

    def stub(self, endpoint: str) -> bulk_pb2_grpc.BulkStub:
        with self._lock:
            if endpoint not in self._channels:
                self._channels[endpoint] = grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
            return bulk_pb2_grpc.BulkStub(self._channels[endpoint])

    def close(self) -> None:
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()

    def call(self, name: str, request: Any, *, attempt_s: float = ATTEMPT_S, patience_s: float = PATIENCE_S) -> Any:
        """A unary call by its name. Raises QuorumError; what a node refuses is not asked of another."""

        def ask(stub: bulk_pb2_grpc.BulkStub, timeout_s: float) -> Any:
            return getattr(stub, name)(request, timeout=timeout_s)

        return self._anywhere(ask, f"{name} of queue {request.queue!r}", attempt_s, patience_s)

    def stage(
        self, queue: str, producer: str, batch: int, part: bytes, blocks: Sequence[bytes]
    ) -> pb.StageResponse:
        """A part, whole. The blocks are sent again, as they are, where the first attempt's outcome is unknown."""

        def requests() -> Iterator[pb.StageRequest]:
            yield pb.StageRequest(queue=queue, producer=producer, batch=batch, part=part)
            for block in blocks:
                yield pb.StageRequest(arrow=block)

        def ask(stub: bulk_pb2_grpc.BulkStub, timeout_s: float) -> Any:
            return stub.Stage(requests(), timeout=timeout_s)

        answer: pb.StageResponse = self._anywhere(ask, f"Stage for queue {queue!r}", READ_IDLE_S, PATIENCE_S)
        return answer

    def browse(
        self, request: pb.BrowseSnapshotRequest, prefer: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """What Browse answers, batch after batch. The columns have to have `sequence` among them."""
        start = request.start_sequence

        def read(stub: bulk_pb2_grpc.BulkStub, timeout_s: float) -> Iterator[pb.Block]:
            again = pb.BrowseSnapshotRequest()
            again.CopyFrom(request)
            again.start_sequence = start
            return iter(stub.Browse(again, timeout=timeout_s))

        for batch in self._read(read, f"Browse of queue {request.queue!r}", prefer):
            start = batch.column("sequence")[-1].as_py() + 1
            yield batch

    def read_reserved(
        self, request: pb.ReadReservedRequest, prefer: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """What ReadReserved answers. The request has to say how many messages it wants (`count`)."""
        done = 0

        def read(stub: bulk_pb2_grpc.BulkStub, timeout_s: float) -> Iterator[pb.Block]:
            again = pb.ReadReservedRequest()
            again.CopyFrom(request)
            again.first, again.count = request.first + done, request.count - done
            return iter(stub.ReadReserved(again, timeout=timeout_s)) if again.count else iter(())

        for batch in self._read(read, f"ReadReserved of queue {request.queue!r}", prefer):
            done += batch.num_rows
            yield batch

    def _read(self, read: Read, doing: str, prefer: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The record batches of the blocks; `read` begins anew behind what was yielded."""
        deadline = time.monotonic() + PATIENCE_S
        pause = PAUSE_S
        tried = 0
        while True:
            endpoint = self._endpoint(tried, prefer)
            try:
                for block in read(self.stub(endpoint), READ_IDLE_S):
                    for batch in pa.ipc.open_stream(block.arrow):
                        if batch.num_rows:
                            yield batch
                    deadline, pause = time.monotonic() + PATIENCE_S, PAUSE_S
            except grpc.RpcError as error:
                self._give_up_or_wait(error, doing, deadline, pause)
                pause = min(2 * pause, MOST_PAUSE_S)
                tried += 1
            else:
                return

    def _anywhere(
        self, ask: Callable[[bulk_pb2_grpc.BulkStub, float], Any], doing: str, attempt_s: float, patience_s: float
    ) -> Any:
        deadline = time.monotonic() + patience_s
        pause = PAUSE_S
        while True:
            first = self._first
            endpoint = self._endpoints[first % len(self._endpoints)]
            try:
                return ask(self.stub(endpoint), attempt_s)
            except grpc.RpcError as error:
                self._give_up_or_wait(error, doing, deadline, pause)
                pause = min(2 * pause, MOST_PAUSE_S)
                # the next one, for everybody, unless another thread has gone on already
                if self._first == first:
                    self._first = first + 1

    def _endpoint(self, tried: int, prefer: Sequence[str]) -> str:
        order = [*prefer, *(each for each in self._endpoints if each not in prefer)]
        return order[tried % len(order)] if prefer else order[(self._first + tried) % len(order)]

    def _give_up_or_wait(self, error: grpc.RpcError, doing: str, deadline: float, pause: float) -> None:
        found = from_rpc_error(error, doing)
        if not isinstance(found, UnavailableError):
            raise found from None
        if time.monotonic() >= deadline:
            asked = ", ".join(self._endpoints)
            raise UnavailableError(f"{found} (tried for {PATIENCE_S:g} s at {asked})", reason=found.reason) from None
        if not isinstance(found, TimedOut):
            time.sleep(pause)


_SERVICES: dict[str, Service] = {}
_SERVICES_LOCK = threading.Lock()


def service(url: str) -> Service:
    """This process's connection to a cluster."""
    with _SERVICES_LOCK:
        if url not in _SERVICES:
            _SERVICES[url] = Service(url)
        return _SERVICES[url]


def columns(names: Iterable[str], fields: Sequence[Field]) -> pb.Columns:
    """What a read asks for."""
    return pb.Columns(
        names=names, fields=[pb.Field(name=each.name, kind=pb.Field.Kind.Value(each.kind)) for each in fields]
    )


def is_reason(error: QuorumError, *reasons: str) -> bool:
    """Whether the service gave one of these reasons; they are written in capitals on the wire."""
    return error.reason.lower() in reasons
