"""A client's transactions at its session's node: which groups each is in, and why one can only be rolled back.

A transaction begins with the first publish or disposition that names it, in the group of its queue. Each group keeps
what belongs to it under embargo (fifo/transactions.py). Its publishes have no answers of their own,
and a disposition has one only if it carries a request id. A refused request, here or at a group, ends the transaction,
and its Commit says why. A commit in one group is one command; shared_commit.py has those of several groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fifo import commands as c
from fifo.effects import Refused, Reply
from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.hub.hub import Hub
from quorum.api.session.commands import SessionCommands
from quorum.api.session.consumers import Consumer, Disposition, SessionConsumers
from quorum.api.session.group_parts import Part
from quorum.api.session.outcomes import Failed
from quorum.api.session.publisher import SessionPublisher
from quorum.api.session.session_routes import Route, SessionRoutes
from quorum.api.session.shared_commit import GroupPart, Parts, SharedCommit

IN_DOUBT = "in_doubt"
MAX_TRANSACTIONS = PRODUCTION.transaction_window
"""Transactions of a session that are neither committed nor rolled back."""


@dataclass(slots=True, eq=False)
class _AskingAll:
    """A Commit in all groups. left: groups that have not answered."""

    commands: SessionCommands
    request_id: int
    left: int
    is_committed: bool = False
    refused: Refused | None = None

    def answered(self, reply: Reply | None) -> None:
        self.left -= 1
        if self.is_committed:  # the client has its answer
            return
        if not isinstance(reply, Refused):
            self.is_committed = True
            self.commands.finish(self.request_id, None)
            return
        if self.refused is None or reply.reason == IN_DOUBT:
            self.refused = reply
        if not self.left:
            self.commands.finish(self.request_id, self.refused)


class SessionTransactions:
    """The transactions of one session."""

    def __init__(
        self,
        hub: Hub,
        commands: SessionCommands,
        routes: SessionRoutes,
        publisher: SessionPublisher,
        consumers: SessionConsumers,
    ) -> None:
        self._hub = hub
        self._commands = commands
        self._routes = routes
        self._publisher = publisher
        self._consumers = consumers
        self._open: dict[int, Parts] = {}
        """by number"""
        self._deciding: dict[int, SharedCommit] = {}
        """commits over several groups that are not answered, by number"""

    async def publish(
        self,
        tx: int,
        batch: bytes,
        route: Route,
        *,
        mandatory: bool,
        immediate: bool,
    ) -> None:
        """Messages of a transaction: all or none of them. StatusError (UNAVAILABLE) if the session has to end."""
        self._commands.resume()
        transaction = self._find(tx)
        try:
            parts = await self._routes.of_transaction(route, batch, mandatory=mandatory)
        except status.StatusError as error:
            if error.status.code == status.Code.UNAVAILABLE:
                raise
            self._refuse(transaction, error)
            return
        for part in parts:
            if transaction.refusal is not None:
                return
            group = part.queues[0].group
            self._use(transaction, group, len(part.targets), _range_count(part))
            told = partial(transaction.answered, group)
            await self._publisher.embargo(part, tx, told, immediate=immediate)

    def refuse(self, tx: int, why: status.StatusError) -> None:
        """Refuse messages of a transaction, and so all of it."""
        self._commands.resume()
        self._refuse(self._find(tx), why)

    def settle(self, tx: int, request_id: int, consumer: Consumer | None, disposition: Disposition) -> None:
        """A disposition of a transaction. consumer: None if the request was refused because there is none."""
        self._commands.resume()
        transaction = self._find(tx)
        try:
            if consumer is None:
                raise status.invalid("not_attached", "the consumer of a disposition is not attached")
            command = self._consumers.checked(consumer, disposition)
        except status.StatusError as error:
            self._refuse(transaction, error)
            if consumer is not None:
                self._commands.refuse(request_id, error)
            return
        consumer.raise_credit(command.credit_to)
        if transaction.refusal is None:
            self._use(transaction, consumer.group, 1, len(command.tags))
            answered = partial(self._settled, transaction, consumer.group, request_id)
            self._commands.submit(consumer.group, c.InTransaction(tx, command), answered)
            return
        if command.credit_to:  # it is no part of the transaction
            self._commands.submit(consumer.group, replace(command, tags=()), lambda _: None)
        self._commands.refuse(request_id, status.StatusError(transaction.refusal))

    def commit(self, request_id: int, tx: int) -> None:
        """Done or Failed follows."""
        self._commands.resume()
        deciding = self._deciding.get(tx)
        if deciding is not None:
            if len(deciding.request_ids) < MAX_TRANSACTIONS:
                deciding.request_ids.append(request_id)
            else:
                self._commands.refuse(request_id, _being_committed(tx))
            return
        transaction = self._open.pop(tx, None)
        if transaction is None:
            self._ask_all(request_id, tx)
            return
        if transaction.refusal is not None:
            if len(transaction.by_group) > 1:  # the others have their parts still
                self._roll_back(transaction, 0)
            self._commands.refuse(request_id, status.StatusError(transaction.refusal))
            return
        if not transaction.by_group:
            self._commands.finish(request_id, None)
            self._commands.work.set()
        elif len(transaction.by_group) == 1:
            part = transaction.by_group[transaction.record]
            command = c.Commit(tx, part.operations, part.most_ranges)
            self._commands.submit(transaction.record, command, partial(self._ended, transaction, request_id))
        else:
            self._deciding[tx] = SharedCommit(
                self._commands,
                self._hub.decisions,
                transaction,
                request_id,
                lambda: self._deciding.pop(tx, None),
            )
            self._deciding[tx].begin()

    def rollback(self, request_id: int, tx: int) -> None:
        """Done follows, or Failed if the transaction is being committed."""
        self._commands.resume()
        if tx in self._deciding:
            self._commands.refuse(request_id, _being_committed(tx))
            return
        transaction = self._open.pop(tx, None)
        if transaction is not None and transaction.by_group:
            self._roll_back(transaction, request_id)
        else:
            self._commands.finish(request_id, None)
            self._commands.work.set()

    # ---- inside

    def _ask_all(self, request_id: int, tx: int) -> None:
        """Commit a transaction that began in an earlier session. It is lost, unless its group has committed it. That
        group is not known here, and each of the others refuses the number for ever."""
        groups = self._hub.catalog.queue_groups
        asking = _AskingAll(self._commands, request_id, len(groups))
        for group in groups:
            self._commands.submit(group, c.Commit(tx), asking.answered)

    def _find(self, tx: int) -> Parts:
        """The transaction of this number, which this may begin."""
        if tx in self._deciding:
            raise _being_committed(tx)
        found = self._open.get(tx)
        if found is None:
            if len(self._open) + len(self._deciding) >= MAX_TRANSACTIONS:
                raise status.invalid("limit", f"a session has at most {MAX_TRANSACTIONS} open transactions")
            found = self._open[tx] = Parts(tx)
        return found

    def _use(self, transaction: Parts, group: int, operations: int, ranges: int) -> None:
        """The transaction gets one more request in this group."""
        part = transaction.by_group.setdefault(group, GroupPart())
        part.operations += operations
        part.ranges += ranges
        part.waiting += 1

    def _refuse(self, transaction: Parts, error: status.StatusError) -> None:
        """A request of the transaction is refused here: the groups drop what they have of it."""
        if transaction.refusal is None:
            transaction.refusal = error.status
            if transaction.by_group:
                self._roll_back(transaction, 0)

    def _roll_back(self, transaction: Parts, request_id: int) -> None:
        """Roll back in all groups. The request is done when all of them have answered."""
        left = len(transaction.by_group)

        def answered(_: Reply | None) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._commands.finish(request_id, None)

        for group in transaction.by_group:
            self._commands.submit(group, c.Rollback(transaction.number), answered)

    def _settled(self, transaction: Parts, group: int, request_id: int, reply: Reply | None) -> None:
        transaction.answered(group, reply)
        self._commands.finish(request_id, reply)

    def _ended(self, transaction: Parts, request_id: int, reply: Reply | None) -> None:
        """The only group of a transaction has committed it, or refused to."""
        if isinstance(reply, Refused) and transaction.refusal is not None and request_id:
            self._commands.outbox.add(Failed(request_id, transaction.refusal))
        else:
            self._commands.finish(request_id, reply)


def _range_count(part: Part) -> int:
    """The most ranges of messages that a group counts for a part of a batch. Messages with times of their own are
    ranges by themselves."""
    is_each = len(part.batch.ttls_ms) or len(part.batch.due_times_ms)
    return sum(
        sum(count for _, count in target.ranges) if is_each else len(target.ranges) for target in part.targets
    )


def _being_committed(tx: int) -> status.StatusError:
    return status.invalid("bad_argument", f"transaction {tx} is being committed")
