"""The client's calls for operators: transactions of all clients, and the end of those in doubt."""

from __future__ import annotations

from quorum.client.admin.calls import AdminCalls
from quorum.client.admin.records import ResolvedTransaction, TransactionInfo
from quorum.client.errors import UsageError
from quorum.client.values import require_text, require_whole
from quorum.v1 import admin_pb2

MAX_GROUP = (1 << 32) - 1
"""Highest number of a group that a request can name."""
MAX_NUMBER = (1 << 64) - 1
OUTCOMES = {"": "ASK_ONLY", "commit": "COMMIT", "rollback": "ROLLBACK"}


class TransactionCalls(AdminCalls):
    """The calls of Client for the transactions of all clients. `Client.transaction` begins one."""

    async def transactions(self, group: int = 0, *, timeout_ms: int | None = None) -> list[TransactionInfo]:
        """Transactions that are not finished in a Raft group, or in all for 0, by group, producer and number. This is
        the view of the node that answers, and needs no majority."""
        require_whole("group", group, 0, MAX_GROUP)
        request = admin_pb2.ListTransactionsRequest(group=group)
        found: list[TransactionInfo] = []
        left_ms = self._time_left(timeout_ms)
        while True:
            response = await self._admin("ListTransactions", request, left_ms())
            found += [TransactionInfo.of(each) for each in response.transactions]
            if not response.has_more:
                return found
            request.after.CopyFrom(response.transactions[-1].id)

    async def resolve_transaction(
        self,
        group: int,
        producer: bytes,
        number: int,
        outcome: str = "",
        *,
        timeout_ms: int | None = None,
    ) -> ResolvedTransaction:
        """End the prepared part of a transaction in a group, as the group that decides says. If that has not decided,
        the transaction is rolled back for ever.

        outcome: "commit" or "rollback", used only if the deciding group has no leader or does not serve. Then the
        transaction may count in some groups and not in others. Without an outcome such a part stays as it is
        (UnavailableError). NotFound: the part does not wait, or an earlier try has ended it.
        """
        require_whole("group", group, 0, MAX_GROUP)
        require_whole("transaction", number, 0, MAX_NUMBER)
        if not isinstance(producer, bytes):
            raise UsageError(f"producer is bytes, not {type(producer).__name__}")
        require_text("outcome", outcome)
        if outcome not in OUTCOMES:
            raise UsageError(f"outcome {outcome!r}; allowed: commit, rollback, or none")
        request = admin_pb2.ResolveTransactionRequest(
            id=admin_pb2.TransactionId(group=group, producer=producer, number=number),
            outcome=admin_pb2.ResolveTransactionRequest.Outcome.Value(OUTCOMES[outcome]),
        )
        response = await self._admin("ResolveTransaction", request, timeout_ms)
        return ResolvedTransaction(response.committed, response.by_hand)
