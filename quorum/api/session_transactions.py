"""A client's transactions at its session's node: which group each is in, and why one can only be rolled back.

A transaction begins with the first publish or disposition that names it, in the group of its queue; all its queues must
belong to this group. The group keeps what belongs to it under embargo (fifo/transactions.py). Nothing of it is answered
but the Commit or Rollback: a refused request, here or at the group, ends the transaction, and its Commit says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fifo import commands as c
from fifo.effects import Refused, Reply
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.hub import Hub
from quorum.api.outcomes import Failed
from quorum.api.session_commands import SessionCommands
from quorum.api.session_consumers import Consumer, Disposition, SessionConsumers
from quorum.api.session_publisher import SessionPublisher

MAX_TRANSACTIONS = PRODUCTION.transaction_window
"""Transactions of a session that are neither committed nor rolled back."""


@dataclass(slots=True, eq=False)
class _Transaction:
    """One transaction. group: of its queues, 0 while it has none. operations, ranges: for its Commit. refusal: why it
    cannot be committed."""

    number: int
    group: int = 0
    operations: int = 0
    ranges: int = 0
    refusal: status.Status | None = None

    def embargoed(self, reply: Reply | None) -> None:
        """The group has answered a publish or settlement."""
        if isinstance(reply, Refused):
            self.refusal = self.refusal or status.of_refused(reply)


@dataclass(frozen=True, slots=True)
class _Settling:
    commands: SessionCommands
    transaction: _Transaction
    request_id: int
    queues: tuple[()] = ()

    def answered(self, reply: Reply | None) -> None:
        self.commands.answered()
        self.transaction.embargoed(reply)
        self.commands.finish(self.request_id, reply)


@dataclass(frozen=True, slots=True)
class _Ending:
    """A Commit or Rollback."""

    commands: SessionCommands
    transaction: _Transaction
    request_id: int
    queues: tuple[()] = ()

    def answered(self, reply: Reply | None) -> None:
        self.commands.answered()
        if isinstance(reply, Refused) and self.transaction.refusal is not None and self.request_id:
            self.commands.outbox.add(Failed(self.request_id, self.transaction.refusal))
        else:
            self.commands.finish(self.request_id, reply)


@dataclass(slots=True, eq=False)
class _AskingAll:
    """A Commit in all groups. left: groups that have not answered."""

    commands: SessionCommands
    request_id: int
    left: int
    is_committed: bool = False
    queues: tuple[()] = ()

    def answered(self, reply: Reply | None) -> None:
        self.commands.answered()
        self.left -= 1
        if not isinstance(reply, Refused):
            self.is_committed = True
            self.commands.finish(self.request_id, None)  # no other group says so, too
        elif not self.left and not self.is_committed:
            self.commands.finish(self.request_id, reply)


class SessionTransactions:
    """The transactions of one session."""

    def __init__(
        self, hub: Hub, commands: SessionCommands, publisher: SessionPublisher, consumers: SessionConsumers
    ) -> None:
        self._hub = hub
        self._commands = commands
        self._publisher = publisher
        self._consumers = consumers
        self._open: dict[int, _Transaction] = {}
        """by number"""

    async def publish(
        self, tx: int, batch: bytes, route: tuple[str, str, Sequence[str]], *, mandatory: bool
    ) -> None:
        """Messages of a transaction: all or none of them. route: the exchange, the routing key of all messages, and the
        routing keys if each message has its own. StatusError (UNAVAILABLE) if the session has to end."""
        self._commands.resume()
        transaction = self._find(tx)
        try:
            part = await self._publisher.part(route, batch, mandatory=mandatory)
            if part is None:
                return
            self._use(transaction, part.queues[0].group)
        except status.StatusError as error:
            if error.status.code == status.Code.UNAVAILABLE:
                raise
            self._refuse(transaction, error)
            return
        transaction.operations += len(part.targets)
        transaction.ranges += sum(len(target.ranges) for target in part.targets) + len(part.batch.ttls_ms)
        if transaction.refusal is None:
            await self._publisher.embargo(part, tx, transaction.embargoed)

    def settle(self, tx: int, request_id: int, consumer: Consumer | None, disposition: Disposition) -> None:
        """A disposition of a transaction. consumer: None if the request was refused because there is none."""
        self._commands.resume()
        transaction = self._find(tx)
        try:
            if consumer is None:
                raise status.invalid("not_attached", "the consumer of a disposition is not attached")
            command = self._consumers.checked(consumer, disposition)
            self._use(transaction, consumer.group)
        except status.StatusError as error:
            self._refuse(transaction, error)
            if consumer is not None:
                self._commands.refuse(request_id, error)
            return
        transaction.operations += 1
        transaction.ranges += len(command.tags)
        if transaction.refusal is None:
            consumer.raise_credit(command.credit_to)
            token = _Settling(self._commands, transaction, request_id)
            self._commands.submit(transaction.group, c.InTransaction(tx, command), token)
        else:
            self._commands.refuse(request_id, status.StatusError(transaction.refusal))

    def commit(self, request_id: int, tx: int) -> None:
        """Done or Failed follows."""
        self._commands.resume()
        transaction = self._open.pop(tx, None)
        if transaction is None:
            self._ask_all(request_id, tx)
            return
        if transaction.refusal is not None:
            self._commands.refuse(request_id, status.StatusError(transaction.refusal))
            return
        if not transaction.group:
            self._commands.finish(request_id, None)
            self._commands.work.set()
            return
        ranges = min(transaction.ranges, PRODUCTION.transaction_ranges)
        command = c.Commit(tx, transaction.operations, ranges)
        self._commands.submit(transaction.group, command, _Ending(self._commands, transaction, request_id))

    def rollback(self, request_id: int, tx: int) -> None:
        """Done follows."""
        self._commands.resume()
        transaction = self._open.pop(tx, None)
        if transaction is not None and transaction.group:
            token = _Ending(self._commands, transaction, request_id)
            self._commands.submit(transaction.group, c.Rollback(tx), token)
        else:
            self._commands.finish(request_id, None)
            self._commands.work.set()

    # ---- inside

    def _ask_all(self, request_id: int, tx: int) -> None:
        """Commit a transaction that began in an earlier session. It is lost, unless its group has committed it. That
        group is not known here, and each of the others refuses the number for ever."""
        groups = self._hub.catalog.queue_groups
        token = _AskingAll(self._commands, request_id, len(groups))
        for group in groups:
            self._commands.submit(group, c.Commit(tx), token)

    def _find(self, tx: int) -> _Transaction:
        """The transaction of this number, which this may begin."""
        found = self._open.get(tx)
        if found is None:
            if len(self._open) >= MAX_TRANSACTIONS:
                raise status.invalid("limit", f"a session has at most {MAX_TRANSACTIONS} open transactions")
            found = self._open[tx] = _Transaction(tx)
        return found

    def _use(self, transaction: _Transaction, group: int) -> None:
        """The transaction has a part in this group."""
        if transaction.group not in (0, group):
            raise status.several_groups()
        transaction.group = group

    def _refuse(self, transaction: _Transaction, error: status.StatusError) -> None:
        """A request of the transaction is refused here: the group drops what it has of it."""
        if transaction.refusal is None:
            transaction.refusal = error.status
            if transaction.group:
                token = _Ending(self._commands, transaction, 0)
                self._commands.submit(transaction.group, c.Rollback(transaction.number), token)
