"""The part of quorum.v1.Admin for transactions: it lists them, and ends parts that are in doubt."""

from __future__ import annotations

import structlog

from fifo.results import PreparedPart, TransactionInfo
from quorum.api import status
from quorum.api.grpc.handlers import LISTED_BYTES, Context, unary_once
from quorum.api.hub.hub import Hub
from quorum.node import queries as q
from quorum.v1 import admin_pb2 as pb

PART = 200
"""Transactions that one query lists."""
STATES = {
    "open": pb.TransactionInfo.OPEN,
    "prepared": pb.TransactionInfo.PREPARED,
    "committed": pb.TransactionInfo.COMMITTED,
}
UNANSWERED = ("no_leader", "states_differ")
"""Reasons for which a group cannot be asked, and perhaps never can be."""


class TransactionService:
    """Methods for transactions; AdminService has the others."""

    _hub: Hub

    @unary_once
    async def ListTransactions(
        self, request: pb.ListTransactionsRequest, context: Context
    ) -> pb.ListTransactionsResponse:
        response = pb.ListTransactionsResponse()
        left, after = LISTED_BYTES, request.after
        if request.group:
            self._check_group(request.group)
        for group in (request.group,) if request.group else self._hub.catalog.queue_groups:
            if group < after.group:
                continue
            place = (after.producer, after.number) if group == after.group else (b"", 0)
            page = None
            while page is None or len(page) == PART:
                page = await self._hub.requests.query(q.ListTransactions(group, place, PART))
                for found in page:
                    shown = self._shown(group, found)
                    left -= shown.ByteSize()
                    if left < 0:
                        response.has_more = True
                        return response
                    response.transactions.append(shown)
                    place = (found.producer, found.tx)
        return response

    @unary_once
    async def ResolveTransaction(
        self, request: pb.ResolveTransactionRequest, context: Context
    ) -> pb.ResolveTransactionResponse:
        wanted, group = request.id, request.id.group
        self._check_group(group)
        if request.outcome not in pb.ResolveTransactionRequest.Outcome.values():
            raise status.invalid("bad_argument", f"outcome {request.outcome}; allowed: 0, COMMIT, ROLLBACK")
        part = await self._hub.requests.query_current(q.FindPrepared(group, wanted.producer, wanted.number))
        if part is None:
            raise status.not_found(
                f"group {group} has no prepared part of transaction {wanted.number} of producer "
                f"{wanted.producer.hex()}"
            )
        is_committed, by_hand = await self._outcome(group, part, request.outcome)
        is_told = await self._hub.decisions.tell(
            part.producer, part.tx, part.ranges, [group], is_committed=is_committed
        )
        if not is_told:
            raise status.unavailable("in_doubt", f"group {group} has not confirmed the outcome; try again")
        return pb.ResolveTransactionResponse(committed=is_committed, by_hand=by_hand)

    async def _outcome(self, group: int, part: PreparedPart, wanted: int) -> tuple[bool, bool]:
        """(is it committed, is that the wanted outcome because nobody could be asked)."""
        try:
            return await self._hub.decisions.ask(part), False
        except status.StatusError as error:
            if error.status.reason not in UNANSWERED or wanted == pb.ResolveTransactionRequest.ASK_ONLY:
                raise
        is_committed = wanted == pb.ResolveTransactionRequest.COMMIT
        structlog.get_logger().warning(
            "a transaction is resolved by hand",
            group=group,
            producer=part.producer.hex(),
            transaction=part.tx,
            deciding_group=part.record,
            is_committed=is_committed,
        )
        return is_committed, True

    def _check_group(self, group: int) -> None:
        groups = self._hub.catalog.queue_groups
        if group not in groups:
            allowed = (
                f"{groups[0]} to {groups[-1]}" if groups else "none, because this node does not know them yet"
            )
            raise status.invalid("bad_argument", f"there is no group {group} with queues; allowed: {allowed}")

    def _shown(self, group: int, found: TransactionInfo) -> pb.TransactionInfo:
        known = [self._hub.catalog.queue_of(number) for number in found.queues]
        return pb.TransactionInfo(
            id=pb.TransactionId(group=group, producer=found.producer, number=found.tx),
            state=STATES[found.state],
            since_ms=found.since_ms,
            deciding_group=found.record,
            unfinished_groups=found.unfinished,
            queues=[each.name for each in known if each is not None],
            messages=found.messages,
            bytes=found.size_bytes,
        )
