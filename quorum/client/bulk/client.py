"""The bulk client: durable subscriptions, views, staged batches. Messages are pyarrow RecordBatches.

The client blocks, needs no event loop, and may be pickled: a copy has only the configuration and opens its own
channels. While a node is unavailable, the client repeats each call at the next node until the call's deadline; a stream
of messages resumes at its position. proto/quorum/v1/bulk.proto defines the calls, docs/bulk.md shows how to use them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from quorum.client.bulk import records
from quorum.client.bulk.calls import BulkChannels, Node, streamed
from quorum.client.connection.endpoints import DEFAULT_TIMEOUT_MS
from quorum.client.errors import ServiceError, UsageError
from quorum.client.values import (
    require_flag,
    require_mapping,
    require_text,
    require_timeout,
    require_whole,
    values_to_dict,
)
from quorum.v1 import bulk_pb2 as pb

T = TypeVar("T")

BLOCK_ROWS = 8_192
BLOCK_BYTES = 1 << 20
CALL_BLOCKS, CALL_BYTES = 16, 16 << 20
"""Blocks of one call to Stage, and their bytes, if it has more than one block. The client keeps them until the service
answers, and repeats the whole call if that takes too long."""
MOST_BLOCK_BYTES = 8 << 20
MOST_ROW_BYTES = (32 << 20) - (64 << 10)
"""Bytes of a row that is a block of its own: gRPC's limit for a request, less its other fields."""
KINDS: dict[str, pb.Field.Kind] = {
    name.lower(): kind for name, kind in pb.Field.Kind.items() if kind != pb.Field.KIND_UNSPECIFIED
}
MAX_UINT32, MAX_UINT64 = (1 << 32) - 1, (1 << 64) - 1
_MOST = {FieldDescriptor.TYPE_UINT64: MAX_UINT64, FieldDescriptor.TYPE_UINT32: MAX_UINT32}
"""The highest number of an argument, by the type of its field."""
_KIND = {number: name for name, number in KINDS.items()}
STARTS = {name.lower(): number for name, number in pb.OpenSubscriptionRequest.Start.items()}
EXPIRIES = {name.lower(): number for name, number in pb.OpenSubscriptionRequest.OnExpiry.items()}
_EXPIRY = {number: name for name, number in EXPIRIES.items()}


class BulkClient:
    """`with BulkClient("quorum://host:7400,host:7400") as client`. Closing it is optional."""

    def __init__(self, url: str, *, timeout_ms: int | Callable[[], int] = DEFAULT_TIMEOUT_MS) -> None:
        """timeout_ms: limit of a call with all its repeats; of a stream, limit from one block to the next. Or a
        function that returns it for each call."""
        if not callable(timeout_ms):
            require_timeout("timeout_ms", timeout_ms)
        self._channels = BulkChannels(url, timeout_ms)

    def close(self) -> None:
        self._channels.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, request: Any, doing: str, **options: Any) -> Any:
        return self._channels.call(method, request, doing, **options)

    # ---- subscriptions

    def open_subscription(
        self,
        queue: str,
        subscription: str,
        *,
        selector: str = "",
        start: str = "earliest",
        timeout_ms: int = 0,
        on_expiry: str = "release",
    ) -> records.SubscriptionState:
        """Make the subscription or begin its next generation. start, for a new one: "earliest" or "latest".
        timeout_ms: 0 is a day. on_expiry: "release", "discard" or "keep"."""
        request = _request(
            pb.OpenSubscriptionRequest,
            queue=queue,
            subscription=subscription,
            selector=selector,
            start=_chosen("start", start, STARTS),
            timeout_ms=timeout_ms,
            on_expiry=_chosen("on_expiry", on_expiry, EXPIRIES),
        )
        return _state(
            self._call("OpenSubscription", request, f"opening subscription {subscription!r} of {queue!r}")
        )

    def reserve(
        self,
        queue: str,
        subscription: str,
        generation: int,
        after: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        min_messages: int = 0,
        wait_ms: int = 0,
    ) -> records.Reservation:
        """The reservation that follows offset `after`; its offset is `after` if there is nothing to reserve."""
        request = _request(
            pb.ReserveRequest,
            queue=queue,
            subscription=subscription,
            generation=generation,
            after=after,
            max_messages=max_messages,
            max_bytes=max_bytes,
            min_messages=min_messages,
            wait_ms=wait_ms,
        )
        found = self._call(
            "Reserve", request, f"reserving for subscription {subscription!r} of {queue!r}", extra_ms=wait_ms
        )
        return records.Reservation(
            found.offset, found.count, found.size_bytes, found.ready, found.index, found.unfinished
        )

    def reservations(
        self, queue: str, subscription: str, *, after: int = 0, to: int = 0, index: int = 0
    ) -> records.Reservations:
        """Outstanding reservations with after < offset <= to (0: all), and the nodes from which to read them."""
        request = _request(
            pb.DescribeReservationsRequest,
            queue=queue,
            subscription=subscription,
            after=after,
            to=to,
            index=index,
        )
        found = self._call(
            "DescribeReservations", request, f"asking for subscription {subscription!r} of {queue!r}"
        )
        return records.Reservations(
            tuple(
                records.ReservationInfo(
                    each.offset, each.count, each.size_bytes, each.opens, each.reserved_ms, each.index
                )
                for each in found.reservations
            ),
            _endpoints(found.endpoints),
            _state(found.subscription),
        )

    def read_reserved(
        self,
        queue: str,
        subscription: str,
        offset: int,
        *,
        first: int = 0,
        count: int = 0,
        columns: Sequence[str] = (),
        fields: Mapping[str, str] | None = None,
        index: int = 0,
        prefer: str = "",
    ) -> Iterator[pa.RecordBatch]:
        """The messages first .. first+count-1 (count 0: to the end) of a reservation. fields: name of an application
        property -> "text", "integer", "floating" or "boolean". prefer: the address to try first."""
        wanted = _columns(columns, fields)
        require_whole("first", first, 0, MAX_UINT32)
        require_whole("count", count, 0, MAX_UINT32)
        require_text("prefer", prefer)
        doing = f"reading reservation {offset} of subscription {subscription!r} of {queue!r}"
        come = 0

        def begin(node: Node) -> Any:
            request = _request(
                pb.ReadReservedRequest,
                queue=queue,
                subscription=subscription,
                offset=offset,
                first=first + come,
                count=count - come if count else 0,
                columns=wanted,
                index=index,
            )
            return node.stub.ReadReserved(request, timeout=node.left_s)

        def take(block: pb.Block) -> pa.RecordBatch:
            nonlocal come
            come += block.rows
            return _batch(block)

        for batch in streamed(self._channels.tries(doing, prefer=prefer), begin, take):
            yield batch
            if count and come >= count:
                return

    def settle(self, queue: str, subscription: str, generation: int, to: int) -> records.SubscriptionState:
        """Settle the messages of all reservations up to offset `to`."""
        request = _request(
            pb.SettleRequest, queue=queue, subscription=subscription, generation=generation, to=to
        )
        return _state(
            self._call(
                "Settle", request, f"settling up to {to} for subscription {subscription!r} of {queue!r}"
            )
        )

    def keep_alive(self, queue: str, subscription: str, generation: int) -> records.SubscriptionState:
        request = _request(pb.KeepAliveRequest, queue=queue, subscription=subscription, generation=generation)
        return _state(
            self._call("KeepAlive", request, f"keeping subscription {subscription!r} of {queue!r} alive")
        )

    def release_subscription(
        self, queue: str, subscription: str, generation: int
    ) -> records.SubscriptionState:
        """Return all outstanding messages to the queue."""
        request = _request(
            pb.ReleaseSubscriptionRequest, queue=queue, subscription=subscription, generation=generation
        )
        return _state(
            self._call(
                "ReleaseSubscription", request, f"releasing subscription {subscription!r} of {queue!r}"
            )
        )

    def delete_subscription(self, queue: str, subscription: str) -> None:
        """Return all outstanding messages and remove the subscription. It need not exist."""
        request = _request(pb.DeleteSubscriptionRequest, queue=queue, subscription=subscription)
        self._call("DeleteSubscription", request, f"deleting subscription {subscription!r} of {queue!r}")

    def subscriptions(self, queue: str, *, index: int = 0) -> list[records.SubscriptionInfo]:
        found = self._call(
            "ListSubscriptions",
            _request(pb.ListSubscriptionsRequest, queue=queue, index=index),
            f"listing subscriptions of {queue!r}",
        )
        return [
            records.SubscriptionInfo(
                each.subscription,
                _state(each.state),
                each.filtered,
                each.start_sequence,
                each.last_seen_ms,
                each.timeout_ms,
                _EXPIRY[each.on_expiry],
                each.reservations,
                each.selector,
                each.filter,
            )
            for each in found.subscriptions
        ]

    # ---- views

    def open_view(self, queue: str, *, ttl_ms: int = 0) -> records.View:
        """Open a view of the messages that are ready now. ttl_ms: 0 is an hour."""
        request = _request(pb.OpenViewRequest, queue=queue, ttl_ms=ttl_ms)
        found = self._call("OpenView", request, f"opening a view of {queue!r}")
        return records.View(found.view, found.first_sequence, found.end_sequence, found.count, found.index)

    def browse(
        self,
        queue: str,
        view: int = 0,
        *,
        start_sequence: int = 0,
        end_sequence: int = 0,
        selector: str = "",
        columns: Sequence[str] = (),
        fields: Mapping[str, str] | None = None,
        limit: int = 0,
        index: int = 0,
        prefer: str = "",
    ) -> Iterator[pa.RecordBatch]:
        """The matching messages of a view with start_sequence <= sequence < end_sequence (0: to the end). View 0: the
        messages that are ready when the node reads them. Other arguments as in read_reserved."""
        wanted = _columns(columns, fields)
        require_whole("limit", limit, 0, MAX_UINT64)
        require_text("prefer", prefer)
        place, come = start_sequence, 0

        def begin(node: Node) -> Any:
            request = _request(
                pb.BrowseViewRequest,
                queue=queue,
                view=view,
                start_sequence=place,
                end_sequence=end_sequence,
                selector=selector,
                columns=wanted,
                limit=limit - come if limit else 0,
                index=index,
            )
            return node.stub.Browse(request, timeout=node.left_s)

        def take(block: pb.Block) -> pa.RecordBatch:
            nonlocal place, come
            place, come = block.next_sequence, come + block.rows
            return _batch(block)

        tries = self._channels.tries(f"browsing {queue!r}", prefer=prefer)
        for batch in streamed(tries, begin, take):
            if batch.num_rows:  # an empty block only reports the node's progress
                yield batch
            if (limit and come >= limit) or (end_sequence and place >= end_sequence):
                return

    def close_view(self, queue: str, view: int) -> None:
        """Close a view. It need not exist."""
        request = _request(pb.CloseViewRequest, queue=queue, view=view)
        self._call("CloseView", request, f"closing view {view} of {queue!r}")

    # ---- staging

    def stage(
        self, queue: str, producer: str, batch: int, batches: Iterable[pa.RecordBatch], *, part: bytes = b""
    ) -> records.StagedPart:
        """Write one part of a batch; it is invisible until it is published. part: its name, 16 bytes, random if not
        given. Another attempt to write the same rows needs another name."""
        if not isinstance(batches, Iterable):
            raise UsageError(
                f"batches are a list of record batches, not a {type(batches).__name__}; "
                "a table has the method to_batches"
            )
        name = part or uuid.uuid4().bytes
        named = _request(pb.StageRequest, queue=queue, producer=producer, batch=batch, part=name)
        rows = chunk = index = 0
        doing = f"staging batch {batch} of {producer!r} for {queue!r}"
        for some in _calls(_blocks(batches)):
            requests = [pb.StageRequest(arrow=block) for block, _ in some]
            requests[0].MergeFrom(named)
            requests[0].first_chunk = chunk
            found = self._call("Stage", requests, doing)
            rows, chunk = rows + sum(count for _, count in some), found.next_chunk
            index = max(index, found.index)
            if found.rows < rows:
                raise ServiceError(f"{doing}: the service has {found.rows} of {rows} rows that were sent")
        return records.StagedPart(name, rows, index)

    def publish(
        self, queue: str, producer: str, batch: int, parts: Iterable[records.StagedPart]
    ) -> records.Published:
        """Publish the parts in this order, all at once, unless this batch or a later one was published before."""
        named = _listed("parts", parts, records.StagedPart, "what stage has returned")
        request = _request(
            pb.PublishStagedRequest,
            queue=queue,
            producer=producer,
            batch=batch,
            parts=[pb.StagedPart(part=each.part, rows=each.rows) for each in named],
            staged_to=max([each.index for each in named], default=0),
        )
        found = self._call("Publish", request, f"publishing batch {batch} of {producer!r} in {queue!r}")
        return records.Published(found.first_sequence, found.count, found.is_duplicate, found.index)

    def discard(
        self, queue: str, producer: str, batch: int, parts: Iterable[bytes] = (), *, forget: bool = False
    ) -> int:
        """Drop unpublished parts of a batch, all of them if none is named. Returns the number of dropped rows. forget:
        the producer is never used again; it gives its place in the queue back."""
        request = _request(
            pb.DiscardStagedRequest,
            queue=queue,
            producer=producer,
            batch=batch,
            parts=_listed("parts", parts, bytes, "names of parts, each of them bytes"),
            forget=forget,
        )
        return int(
            self._call("Discard", request, f"discarding batch {batch} of {producer!r} in {queue!r}").rows
        )

    # ---- queues

    def queue_info(self, queue: str, *, with_fields: bool = False, index: int = 0) -> records.BulkQueueInfo:
        """Describe the queue. with_fields: sample messages for their application properties."""
        request = _request(pb.QueueInfoRequest, queue=queue, with_fields=with_fields, index=index)
        found = self._call("QueueInfo", request, f"asking for queue {queue!r}")
        return records.BulkQueueInfo(
            values_to_dict(found.arguments),
            found.first_sequence,
            found.next_sequence,
            found.ready,
            found.checked_out,
            found.index,
            tuple(found.filter_fields),
            tuple(
                records.SeenField(each.name, _KIND.get(each.kind, ""), each.messages) for each in found.fields
            ),
            _endpoints(found.endpoints),
            found.ready_bytes,
        )


def _request(kind: Any, **given: Any) -> Any:
    """The request with these arguments. UsageError for one of a wrong type or range."""
    for name, value in given.items():
        field = kind.DESCRIPTOR.fields_by_name[name]
        if field.type == field.TYPE_STRING:
            require_text(name, value)
        elif field.type in _MOST:
            require_whole(name, value, 0, _MOST[field.type])
        elif field.type == field.TYPE_BOOL:
            require_flag(name, value)
        elif field.type == field.TYPE_BYTES and not field.is_repeated and not isinstance(value, bytes):
            raise UsageError(f"{name} is bytes, not {type(value).__name__}")
    return kind(**given)


def _listed(what: str, given: Any, kind: type[T], of: str) -> list[T]:
    """The values of an argument that takes several. UsageError if it is a single one, or has one of another type."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        found = list(given)
        if all(isinstance(each, kind) for each in found):
            return found
    raise UsageError(f"{what} are a list of {of}")


def _chosen(what: str, given: str, known: Mapping[str, Any]) -> Any:
    if not isinstance(given, str) or given not in known:
        raise UsageError(f"{what} {given!r}; allowed: {', '.join(known)}")
    return known[given]


def _state(found: pb.SubscriptionState) -> records.SubscriptionState:
    return records.SubscriptionState(
        found.generation, found.settled, found.last, found.outstanding, found.index
    )


def _endpoints(found: Iterable[pb.Endpoint]) -> tuple[records.Endpoint, ...]:
    return tuple(records.Endpoint(each.name, each.address, each.leader) for each in found)


def _columns(names: Sequence[str], fields: Mapping[str, str] | None) -> pb.Columns:
    made = pb.Columns(names=_listed("columns", names, str, "names"))
    require_mapping("fields", fields or {})
    for name, kind in (fields or {}).items():
        made.fields.add(name=name, kind=_chosen(f"the kind of field {name!r}", kind, KINDS))
    return made


def _batch(block: pb.Block) -> pa.RecordBatch:
    with pa.ipc.open_stream(block.arrow) as stream:
        batch = stream.read_next_batch()
    if batch.num_rows != block.rows:
        raise ServiceError(f"the service announced a block of {block.rows} rows; it has {batch.num_rows}")
    return batch


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, int]]:
    """Encode record batches as (block of about BLOCK_BYTES, rows); small ones are joined, large ones cut."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise UsageError(f"batches are a list of record batches; it has a {type(batch).__name__}")
        if not batch.num_rows:
            continue
        if kept and (
            rows + batch.num_rows > BLOCK_ROWS
            or size + batch.nbytes > BLOCK_BYTES
            or not batch.schema.equals(kept[0].schema)
        ):
            yield from _cut(_joined(kept))
            kept, rows, size = [], 0, 0
        kept.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if kept:
        yield from _cut(_joined(kept))


def _calls(blocks: Iterable[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    """The blocks of each call to Stage."""
    some: list[tuple[bytes, int]] = []
    size = 0
    for data, rows in blocks:
        if some and (len(some) >= CALL_BLOCKS or size + len(data) > CALL_BYTES):
            yield some
            some, size = [], 0
        some.append((data, rows))
        size += len(data)
    if some:
        yield some


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _cut(batch: pa.RecordBatch) -> Iterator[tuple[bytes, int]]:
    each = max(1, min(BLOCK_ROWS, batch.num_rows * BLOCK_BYTES // max(batch.nbytes, 1)))
    for first in range(0, batch.num_rows, each):
        yield from _encoded(batch.slice(first, each))


def _encoded(batch: pa.RecordBatch) -> Iterator[tuple[bytes, int]]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data = sink.getvalue()
    if data.size > MOST_BLOCK_BYTES and batch.num_rows > 1:  # some rows are much larger than others
        half = batch.num_rows // 2
        yield from _encoded(batch.slice(0, half))
        yield from _encoded(batch.slice(half))
    elif data.size > MOST_ROW_BYTES:
        raise UsageError(f"a row has {data.size} bytes; at most {MOST_ROW_BYTES} can be sent")
    else:
        yield data.to_pybytes(), batch.num_rows
