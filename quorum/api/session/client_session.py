"""A client's session, whatever protocol it speaks: its life, and what becomes of each request.

A protocol's adapter calls one method for each request, in order, and sends what `outcomes` yields;
services/session_service.py is the adapter for gRPC. `publisher` has the methods for publishing (publisher.py),
`consumers` those for consuming (consumers.py), `transactions` those for both in transactions (transactions.py). A batch
is a serialized MessageBatch for every protocol.

The queue's group decides a request. Here the request is checked and turned into a numbered command, and the group's
answer is turned into an outcome. Each command has a token that knows what its answer means.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from fifo.commands import PRODUCER_BYTES
from fifo.effects import Confirmed, Deliver, Notify, Refused, Reply
from quorum.api import status
from quorum.api.hub.deliveries import DeliveredBatch
from quorum.api.hub.hub import Hub
from quorum.api.session.commands import SessionCommands, Token
from quorum.api.session.consumers import SessionConsumers
from quorum.api.session.outcomes import Outcome, PendingDelivery, weigh
from quorum.api.session.publisher import SessionPublisher
from quorum.api.session.session_routes import SessionRoutes
from quorum.api.session.transactions import SessionTransactions
from quorum.node.errors import BodyUnreadable
from quorum.node.wire.batches import BatchLimits

MAX_UNSENT = 10_000
"""Outcomes that wait to be sent: past it, no further request is taken from a client that does not read."""
MAX_UNSENT_BYTES = 1 << 20
"""Maximum bytes of those outcomes, without deliveries."""
MAX_UNSENT_DELIVERY_BYTES = 16 << 20
"""Maximum memory of the deliveries among them (PendingDelivery.size_bytes), some 100,000 ranges of messages: more than
a consumer may have checked out. All sessions of an address together have a limit, too (shares.DeliveryWindow)."""
TURN_BYTES = 1 << 20
"""Maximum bytes of a turn; one more outcome may be added."""
TURN_RECORDS = 512
"""Maximum records of a turn, as `weigh` counts them: 256 deliveries of one range each, which take some milliseconds.
One more outcome may be added."""
MAX_UNDECIDED_ROWS = 10_000
"""Maximum number of ranges that the answers to undecided batches may have: past it, no further request is
taken. A client that keeps to its window of ranges has at most 8,192."""
MAX_UNDER_WAY = 10_000
"""Requests that their group has not answered yet, without publishes: past it, no further request is taken."""


class ClientSession:
    """One client's session at this node (raft_thread.SessionHandler)."""

    def __init__(self, hub: Hub, limits: BatchLimits | None = None) -> None:
        """limits: of its batches; None: those of clients."""
        self._hub = hub
        commands = self._commands = SessionCommands(hub)
        routes = SessionRoutes(hub, commands, limits or hub.limits)
        self.publisher = SessionPublisher(hub, commands, routes)
        self.consumers = SessionConsumers(hub, commands)
        self.transactions = SessionTransactions(hub, commands, routes, self.publisher, self.consumers)
        self.outbox = commands.outbox
        self._end: status.StatusError | None = None
        self._is_input_over = False
        self._input_error: BaseException | None = None

    @property
    def number(self) -> int:
        """0 until the session is open."""
        return self._commands.number

    # ---- its life

    def open(self, producer: bytes, epoch: int, owner: int, first_new: int = 0) -> None:
        """producer: 16 bytes that name the client's producer; its epoch grows with each session. owner: as in
        RegisterProducer. first_new: client sequences from there on were sent in no earlier session; 0: not told.
        StatusError if an argument is wrong, or if this node opens no session."""
        if len(producer) != PRODUCER_BYTES:
            raise status.invalid(
                "bad_session", f"producer_id has {len(producer)} bytes; it must have {PRODUCER_BYTES}"
            )
        if epoch < 1:
            raise status.invalid("bad_session", "epoch must be 1 or more, and grow by 1 at each reconnect")
        refusal = self._hub.published.refusal()
        if refusal is not None:
            raise status.of_ended(refusal)
        self.publisher.begin(producer, epoch, first_new)
        self._commands.open(self, producer, epoch, owner)

    def refuse(self, request_id: int, why: status.StatusError) -> None:
        """Failed follows."""
        self._commands.resume()
        self._commands.refuse(request_id, why)

    def client_closes(self) -> None:
        """The client says that it sends nothing again. The session ends cleanly if by then everything is decided, and
        the client was sent every decision."""
        self._commands.close(is_clean=not (self._commands.undecided or self.outbox.has_decisions))

    def input_over(self, error: BaseException | None) -> None:
        """No request comes any more. error: what ended the requests, if they did not end in order; `outcomes` raises
        it."""
        self._is_input_over, self._input_error = True, error
        self._commands.work.set()

    def release(self) -> None:
        """The session is over for its client: give back everything that it holds at this node."""
        if self.number:
            self._hub.sessions.end(self.number, is_clean=self._commands.is_clean)
        self.publisher.release()
        self._hub.delivering.give_all(self._commands.owner, self)

    @property
    def is_full(self) -> bool:
        """Whether no request should be taken for now: earlier ones wait for their group, or outcomes for the client."""
        return (
            self.publisher.size_bytes > self._hub.session_window
            or self.publisher.undecided_rows > MAX_UNDECIDED_ROWS
            or self._commands.under_way > MAX_UNDER_WAY
            or len(self.outbox) > MAX_UNSENT
            or self.outbox.size_bytes > MAX_UNSENT_BYTES
            or self._hub.delivering.of(self._commands.owner, self) > MAX_UNSENT_DELIVERY_BYTES
        )

    async def room(self) -> None:
        """Return when the session is not full."""
        while self.is_full:
            self._commands.room.clear()
            await self._commands.room.wait()

    async def outcomes(self, *, together: bool = True) -> AsyncGenerator[list[Outcome], None]:
        """What to tell the client, in turns. A turn is what is ready at one moment, about TURN_BYTES and TURN_RECORDS
        of it at most; without `together` it is one outcome. Send it at once: the lease for its
        deliveries was checked only for this moment.

        The turns end when the requests are over and everything is decided and told. StatusError if the service ends
        the session, and the error of `input_over`."""
        work = self._commands.work
        while True:
            work.clear()
            ready = self._ready()
            while True:
                turn, rest = self._turn(ready, together=together)
                if turn:
                    yield turn
                    self._commands.room.set()
                if isinstance(rest, BodyUnreadable):
                    await self._hub.requests.repair(rest)
                elif rest is not None:
                    raise rest
                elif not turn:
                    break
            if self._end is not None:
                raise self._end
            if self._is_input_over:
                if self._input_error is not None:
                    raise self._input_error
                if not self._commands.undecided and not self.outbox.is_owed:
                    return
            await work.wait()

    def _turn(
        self, ready: Iterator[tuple[Outcome | BodyUnreadable, int | None]], *, together: bool
    ) -> tuple[list[Outcome], BodyUnreadable | status.StatusError | None]:
        """The next outcomes, and why they are not more, unless a turn may have no more or all are there.

        Reading the bodies takes time, so the leases are checked again behind the last one."""
        turn: list[Outcome] = []
        rest: BodyUnreadable | status.StatusError | None = None
        groups: dict[int, None] = {}
        size = records = 0
        try:
            for item, group in ready:
                if isinstance(item, BodyUnreadable):
                    rest = item
                    break
                turn.append(item)
                if group is not None:
                    groups[group] = None
                more, more_bytes = weigh(item)
                records += more
                size += more_bytes
                if not together or size > TURN_BYTES or records >= TURN_RECORDS:
                    break
        except status.StatusError as error:
            rest = error
        if all(map(self._hub.published.may_deliver, groups)):
            return turn, rest
        # what follows a delivery may say that all messages have come
        first = next(place for place, each in enumerate(turn) if isinstance(each, DeliveredBatch))
        return turn[:first], status.of_ended("node_down")

    def _ready(self) -> Iterator[tuple[Outcome | BodyUnreadable, int | None]]:
        """What waits, with the group of a delivery."""
        for item in self.outbox.take():
            if not isinstance(item, PendingDelivery):
                yield item, None
                continue
            for batch in self.consumers.read(item):
                if self._end is not None and not isinstance(batch, BodyUnreadable):
                    raise self._end
                yield batch, item.group
            self._hub.delivering.give(item.size_bytes, self._commands.owner, self)
            self._commands.room.set()

    # ---- outputs of the member (raft_thread.SessionHandler)

    def answered(self, token: Token, reply: Reply | None) -> None:
        if self._is_outdated(token, reply):
            self.ended("outdated")  # the client sends it again, in order, in its next session
            return
        token.answered(reply)
        self._commands.work.set()

    def _is_outdated(self, token: Token, reply: Reply | None) -> bool:
        """Whether something was refused because the node took a queue's name for a queue that was deleted."""
        if isinstance(reply, Refused):
            is_missing = reply.reason == "not_found"
        elif isinstance(reply, Confirmed) and reply.refused:
            is_missing = any(why.reason == "not_found" for _, _, why in reply.refused)
        else:
            return False
        return is_missing and any(self._hub.catalog.is_outdated(queue) for queue in token.queues)

    def delivered(self, group: int, deliver: Deliver) -> None:
        if self._end is not None:
            return  # it would not be sent
        item = self.consumers.delivered(group, deliver)
        if self._hub.delivering.take(item.size_bytes, self._commands.owner, self):
            self.outbox.deliver(item)
        self._commands.work.set()

    def notified(self, notify: Notify) -> None:
        if notify.event == "fenced":
            self.ended("fenced")
        else:
            self.consumers.notified(notify)
        self._commands.work.set()

    def ended(self, reason: str) -> None:
        if self._end is None:
            self._end = status.of_ended(reason)
        self._commands.work.set()
        self._commands.room.set()

    def overloaded(self) -> None:
        """Too many deliveries wait (shares.Receiver). They are dropped at once: the client may not take the turn that
        is being sent to it."""
        self.outbox.drop_deliveries()
        self.ended("overloaded")

    def consumed_groups(self) -> set[int]:
        return self.consumers.groups()
