"""quorum.v1.Bulk: descriptions of queues; subscriptions, views and staging have their own modules.

Commands go through the node's own session. They are idempotent, and repeated if that session ended before the answer
came (calls.repeat_while_lost). Reads use this node's replica.
Modules that need pyarrow are imported at the first call that needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fifo.effects import Run
from quorum.api import status
from quorum.api.bulk.calls import endpoints
from quorum.api.bulk.columns import KINDS
from quorum.api.bulk.staging import StagingCalls
from quorum.api.bulk.stored_rows import Part, RowReader
from quorum.api.bulk.subscriptions import SubscriptionCalls
from quorum.api.bulk.views import ViewCalls
from quorum.api.grpc.argument_values import set_arguments
from quorum.api.grpc.handlers import Context, unary
from quorum.api.hub.hub import Hub
from quorum.api.owners import client_address
from quorum.catalog.queues import CatalogQueue
from quorum.config import NodeConfig
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import DescribeForBulk
from quorum.v1 import bulk_pb2 as pb
from quorum.v1 import bulk_pb2_grpc

SEEN_MESSAGES = 1_000
"""Messages at each end of the queue that are sampled for their properties."""
MAX_SEEN = 1_000
"""Maximum number of reported properties; the most frequent ones."""
_KIND = {name: number for number, name in KINDS.items()}


class BulkService(SubscriptionCalls, ViewCalls, StagingCalls, bulk_pb2_grpc.BulkServicer):
    def __init__(self, hub: Hub, config: NodeConfig) -> None:
        self._hub = hub
        self._own_address = config.members[config.name].client

    @unary
    async def QueueInfo(self, request: pb.QueueInfoRequest, context: Context) -> pb.QueueInfoResponse:
        queue = await self._queue(request.queue, request.index)

        end_messages = SEEN_MESSAGES if request.with_fields else 0
        found = await self._hub.requests.query(DescribeForBulk(queue.group, queue.id, end_messages))
        if found is None:
            raise status.no_queue(request.queue)
        info = found.info
        response = pb.QueueInfoResponse(
            first_sequence=info.first_sequence,
            next_sequence=info.next_sequence,
            ready=info.ready,
            ready_bytes=info.ready_bytes,
            checked_out=info.checked_out,
            index=found.index,
            endpoints=endpoints(found.endpoints, self._own_address),
        )
        effective = self._hub.catalog.effective(queue)
        set_arguments(response.arguments, effective.arguments)
        if queue.config.filter_enabled:
            response.filter_fields.extend(effective.config.filter_field_names)
        response.fields.extend(await self._seen(queue, found.runs, client_address(context.peer())))
        return response

    async def _seen(self, queue: CatalogQueue, runs: Sequence[Run], address: str) -> list[pb.SeenField]:
        rows = RowReader(self._hub.body_reader(), queue.group)
        kinds: dict[str, Counter[str | None]] = {}
        steps = _examined(rows.parts(runs), kinds)
        with self._hub.workers.answer(address, rows) as answer:
            while (step := await answer.step(steps, lambda _: 0)) is not None:
                if isinstance(step, BodyUnreadable):
                    await self._hub.requests.repair(step)
        most = sorted(kinds, key=lambda name: -kinds[name].total())[:MAX_SEEN]
        return [
            pb.SeenField(name=name, kind=_kind_of(kinds[name]), messages=kinds[name].total())
            for name in sorted(most)
        ]


def _examined(
    parts: Iterator[Part | BodyUnreadable], kinds: dict[str, Counter[str | None]]
) -> Iterator[BodyUnreadable | bool]:
    """Yield after each part."""
    for part in parts:
        if isinstance(part, BodyUnreadable):
            yield part
        else:
            _examine(part, kinds)
            yield True


def _examine(part: Part, kinds: dict[str, Counter[str | None]]) -> None:
    """Counts the kinds of the properties' values. Properties that all messages share are read once."""
    batch = part.batch
    is_shared = batch.each is None
    rows = [batch.shared] if is_shared else batch.properties(part.first, part.count)
    for properties in rows or ():
        if properties is None:
            continue
        for name, value in properties.application_properties.items():
            kinds.setdefault(name, Counter())[value.WhichOneof("kind")] += part.count if is_shared else 1


def _kind_of(seen: Counter[str | None]) -> pb.Field.Kind:
    """Return a kind that fits all values except NULL and bytes, which no column has."""
    known = {kind for kind in seen if kind in _KIND}
    if len(known) > 1:
        return pb.Field.TEXT
    return _KIND[known.pop()] if known else pb.Field.KIND_UNSPECIFIED
