"""quorum.v1.Bulk: what has to be known of a queue; subscriptions, views and staging are in modules of their own.

Commands go through the node's own session and are asked again where an answer was lost: all of them are idempotent.
Reads look at this node's replica. What needs pyarrow is imported when the first call comes that does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fifo.effects import Refused, Run
from fifo.queries import group as queries
from quorum.api import status
from quorum.api.bulk_calls import endpoints
from quorum.api.bulk_columns import KINDS
from quorum.api.bulk_staging import StagingCalls
from quorum.api.bulk_subscriptions import SubscriptionCalls
from quorum.api.bulk_views import ViewCalls
from quorum.api.calls import client_address
from quorum.api.handlers import Context, unary
from quorum.api.hub import Hub
from quorum.api.policy_service import set_arguments
from quorum.api.stored_rows import Part, RowReader
from quorum.catalog.queues import CatalogQueue
from quorum.config import NodeConfig
from quorum.node.errors import BodyUnreadable
from quorum.node.member import Member
from quorum.v1 import bulk_pb2 as pb
from quorum.v1 import bulk_pb2_grpc

SEEN_MESSAGES = 1_000
"""At each end of the queue so many messages are looked at for the properties they have."""
MAX_SEEN = 1_000
"""Properties that are told; those of most messages."""
_KIND = {name: number for number, name in KINDS.items()}


class BulkService(SubscriptionCalls, ViewCalls, StagingCalls, bulk_pb2_grpc.BulkServicer):
    def __init__(self, hub: Hub, config: NodeConfig) -> None:
        self._hub = hub
        self._own = (config.name, config.members[config.name].client)

    @unary
    async def QueueInfo(self, request: pb.QueueInfoRequest, context: Context) -> pb.QueueInfoResponse:
        queue = await self._queue(request.queue, request.index)

        def describe(member: Member) -> tuple[pb.QueueInfoResponse, tuple[Run, ...]] | None:
            machine = member.queue_machine(queue.group)
            info = queries.info(machine, queue.id)
            if info is None:
                return None
            response = pb.QueueInfoResponse(
                first_sequence=info.first_sequence,
                next_sequence=info.next_sequence,
                ready=info.ready,
                held=info.checked_out,
                index=machine.index,
                endpoints=endpoints(member, queue.group, self._own),
            )
            runs = _ends(member, queue, info.next_sequence) if request.with_fields else ()
            return response, runs

        found = await self._hub.ask(describe, queue.group)
        if found is None:
            raise status.no_queue(request.queue)
        response, runs = found
        effective = self._hub.member.catalog.effective(queue)
        set_arguments(response.arguments, effective.arguments)
        if queue.config.filter_enabled:
            response.filter_fields.extend(effective.config.filter_field_names)
        response.fields.extend(await self._seen(queue, runs, client_address(context.peer())))
        return response

    async def _seen(self, queue: CatalogQueue, runs: Sequence[Run], address: str) -> list[pb.SeenField]:
        rows = RowReader(self._hub.body_reader(), queue.group)
        kinds: dict[str, Counter[str | None]] = {}
        steps = _looks(rows.parts(runs), kinds)
        with self._hub.workers.answer(address, rows) as answer:
            while (step := await answer.step(steps, lambda _: 0)) is not None:
                if isinstance(step, BodyUnreadable):
                    await self._hub.mend(step)
        most = sorted(kinds, key=lambda name: -kinds[name].total())[:MAX_SEEN]
        return [
            pb.SeenField(name=name, kind=_kind_of(kinds[name]), messages=kinds[name].total())
            for name in sorted(most)
        ]


def _ends(member: Member, queue: CatalogQueue, next_sequence: int) -> tuple[Run, ...]:
    """Up to SEEN_MESSAGES ready messages from the first on, and as many sequences before the next one."""
    machine = member.queue_machine(queue.group)
    runs: tuple[Run, ...] = ()
    start = 0
    for place in (0, next_sequence - SEEN_MESSAGES):
        page = queries.browse(machine, queue.id, max(place, start), SEEN_MESSAGES)
        if isinstance(page, Refused):
            return ()
        runs += page.runs
        start = max((run.first_sequence + run.count for run in page.runs), default=next_sequence)
    return runs


def _looks(
    parts: Iterator[Part | BodyUnreadable], kinds: dict[str, Counter[str | None]]
) -> Iterator[BodyUnreadable | bool]:
    """A step for each part."""
    for part in parts:
        if isinstance(part, BodyUnreadable):
            yield part
        else:
            _look_at(part, kinds)
            yield True


def _look_at(part: Part, kinds: dict[str, Counter[str | None]]) -> None:
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
    """One that fits all values but NULL and bytes, which no column has."""
    known = {kind for kind in seen if kind in _KIND}
    if len(known) > 1:
        return pb.Field.TEXT
    return _KIND[known.pop()] if known else pb.Field.KIND_UNSPECIFIED
