"""The sessions of a node on the Raft thread: which are open, their operations under way, and where their results go.

A session is known by its number (to the API), and by producer and epoch (to the groups). It stays until every group it
has spoken to has heard of its end, also when a later epoch of the same producer is already at work here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from fifo.commands import Address, Origin
from fifo.effects import Deliver, Done, Effect, Notify, Refused, Reply
from quorum.node import events as ev
from quorum.node.sessions.conversation import RESEND_AFTER_MS, Conversation, Session

RESEND_GAP_MS = 50
"""A gap in a group's answers is repaired immediately, but at most once in this time."""

LINK_BYTES = 32 << 20
"""Bytes of operations under way to one leader and not yet answered; sessions here hold further operations back. A group
may use as many as are left free, so a group whose leader decides nothing leaves room for the leader's other groups."""
MOST_LINK_BYTES = 2 * LINK_BYTES
"""Up to this many bytes a group with nothing under way may send one operation, of any size. The limit is far below what
a peer's connection buffers before it is dropped (replication/network/connection.py), so that neither publishing nor
resending breaks the connection that it needs."""


class Routes(Protocol):
    """The ways to the groups (cluster/leader_routes.py)."""

    def link(self, group: int) -> str | None:
        """The leader that operations go to now; "" if that is this node, None if there is none or no way to it."""
        ...

    def send(self, group: int, operations: Sequence[bytes]) -> None: ...

    def times(self) -> Mapping[int, int]:
        """Group time of each group, as this node knows it."""
        ...


class SessionTable:
    """The sessions of one member."""

    def __init__(self, me: int, boot: int, routes: Routes, outputs: ev.Outputs) -> None:
        self.boot = boot
        """the boot number of sessions opened now: it grows when a group has declared this process down"""
        self.me = me
        self._routes = routes
        self._outputs = outputs
        self.by_number: dict[int, Session] = {}
        self._by_producer: dict[bytes, Session] = {}
        """the newest session of each producer"""
        self._by_origin: dict[tuple[bytes, int], Session] = {}
        """every session by producer and epoch, also one that is closing while its successor is active"""
        self._waiting: dict[int, dict[tuple[bytes, int], Conversation]] = {}
        """group -> conversations with something to send, the longest waiting first"""
        self._sent: defaultdict[int, dict[tuple[bytes, int], Conversation]] = defaultdict(dict)
        """group -> conversations with operations under way, and those whose operations were answered since the last
        `resend_overdue`"""
        self._submitted: dict[int, None] = {}
        """groups for which inputs of this step have brought operations"""
        self._in_flight: defaultdict[str, Counter[int]] = defaultdict(Counter)
        """link -> group -> bytes under way there"""

    def become(self, number: int) -> None:
        """Takes this node's number when it is known or has changed; restarts sessions that were opened before."""
        if number == self.me:
            return
        self.me = number
        for session in list(self.by_number.values()):
            self._end(session, "resync")

    # ---- what the API wants

    def open(self, item: ev.OpenSession, now_ms: int) -> None:
        address = Address(self.me, self.boot, item.number)
        session = Session(item.number, item.producer, item.epoch, address, item.owner, self._routes.times())
        older = self._by_producer.get(item.producer)
        if (older is not None and older.epoch >= item.epoch) or session.origin in self._by_origin:
            self._outputs.emit(ev.Ended(item.number, "fenced"))
            return
        if older is not None:
            self._end(older, "fenced")
        self.by_number[item.number] = session
        self._by_producer[item.producer] = session
        self._by_origin[session.origin] = session

    def close(self, item: ev.EndSession, now_ms: int) -> None:
        session = self.by_number.get(item.number)
        if session is not None and not session.closing:
            self.send_submitted(now_ms)  # closing would empty what was not sent
            self._close(session, is_clean=item.is_clean)
            self._submitted.update(dict.fromkeys(session.conversations))

    def submit(self, item: ev.Submit, now_ms: int) -> None:
        """Takes an operation of a session; `send_submitted` sends it."""
        session = self.by_number.get(item.session)
        if session is None or session.closing:
            return  # the API has been told that it ended
        conversation = session.conversation(item.group)
        conversation.number(item.command, item.token, item.batch)
        self._wait(conversation)
        self._submitted[item.group] = None

    def send_submitted(self, now_ms: int) -> None:
        """Sends what the inputs of a step have brought: one frame for each group, with the operations of all
        sessions."""
        if self._submitted:
            for group in self._submitted:
                self._push(group, now_ms)
            self._submitted.clear()

    def withdraw(self, item: ev.Withdraw, now_ms: int) -> None:
        session = self.by_number.get(item.session)
        if session is not None and item.group in session.conversations:
            session.conversations[item.group].withdraw(item.token)

    # ---- what groups say

    def reply(self, group: int, origin: Origin, reply: Reply | None, now_ms: int) -> None:
        """Takes the answer of a group's machine to an operation of any node's session."""
        session = self._by_origin.get((origin.producer, origin.epoch))
        conversation = None if session is None else session.conversations.get(group)
        if session is None or conversation is None or conversation.is_over:
            return
        if isinstance(reply, Refused) and conversation.is_ended_by(origin.n, reply):
            self._release(conversation, conversation.in_flight_bytes)
            conversation.end()
            self._waiting.get(group, {}).pop(session.origin, None)
            self._end(session, self._why_ended(session, reply))
        else:
            self._take_answer(session, conversation, origin.n, reply, now_ms)
        if session.is_finished():
            self._forget(session)
        if self._waiting.get(group):
            self._push(group, now_ms)

    def _why_ended(self, session: Session, reply: Refused) -> str:
        if reply.reason == "fenced" and session.address.boot < self.boot:
            return "node_down"  # it is this process's earlier name that is fenced
        if reply.reason == "outdated":
            return "resync"
        return "expired" if reply.reason == "not_registered" else reply.reason

    def _take_answer(
        self, session: Session, conversation: Conversation, n: int, reply: Reply | None, now_ms: int
    ) -> None:
        before = conversation.in_flight_bytes
        waited, token = conversation.answer(n, reply)
        self._release(conversation, before - conversation.in_flight_bytes)
        if waited:
            conversation.sent_at_ms = now_ms
            if isinstance(reply, Done):  # its own answer was in a snapshot
                self._end(session, "resync")
            elif token is not None:  # of a session that is closing, no operation has a token
                self._outputs.emit(ev.Answered(session.number, token, reply))
        elif (
            isinstance(reply, Refused)
            and conversation.unanswered
            and now_ms - conversation.sent_at_ms > RESEND_GAP_MS
        ):
            self._rewind(conversation)

    def effect(self, group: int, effect: Effect) -> None:
        """Passes an effect on to this node's session that has to carry it out."""
        if not isinstance(effect, (Deliver, Notify)) or effect.address.node != self.me:
            return
        session = self.by_number.get(effect.address.session)
        if session is None or session.closing or session.address != effect.address:
            return
        if isinstance(effect, Deliver):
            self._outputs.emit(ev.Delivered(session.number, group, effect))
        else:
            self._outputs.emit(ev.Notified(session.number, effect))

    def declared_down(self, group: int, boot: int) -> None:
        """A group has declared this process down: messages checked out to its sessions there are no longer theirs. New
        sessions are opened under the next boot number. Heartbeats keep the process's own number: sessions of other
        groups are still alive, and the new number must not be taken as a proof of their end."""
        self.boot = max(self.boot, boot + 1)
        for session in list(self.by_number.values()):
            if session.address.boot <= boot and group in session.conversations:
                self._end(session, "node_down")

    def answers_missed(self, group: int) -> None:
        """A snapshot has replaced entries with answers: sessions that use the group start over."""
        for session in list(self.by_number.values()):
            if group in session.conversations:
                self._end(session, "resync")

    # ---- sending again

    def resend(self, group: int, now_ms: int) -> None:
        """Resends everything unanswered, because the group has a leader."""
        for conversation in self._conversations(group):
            if conversation.unanswered:
                self._rewind(conversation)
        self._push(group, now_ms)

    def resend_overdue(self, group: int, now_ms: int) -> None:
        """Resends what was unanswered for too long, in the order of the sessions. O(conversations under way)."""
        sent = self._sent[group]
        overdue = []
        for key, conversation in [*sent.items()]:
            if not conversation.sent_count:
                del sent[key]
            elif now_ms - conversation.sent_at_ms > RESEND_AFTER_MS:
                overdue.append(conversation)
        for conversation in sorted(overdue, key=lambda each: each.address.session):
            self._rewind(conversation)
        self._push(group, now_ms)

    def _rewind(self, conversation: Conversation) -> None:
        self._release(conversation, conversation.in_flight_bytes)
        conversation.rewind()
        self._wait(conversation)

    def _release(self, conversation: Conversation, size: int) -> None:
        if size:
            self._in_flight[conversation.link][conversation.group] -= size

    def _wait(self, conversation: Conversation) -> None:
        if conversation.has_unsent:
            waiting = self._waiting.setdefault(conversation.group, {})
            waiting.setdefault((conversation.producer, conversation.epoch), conversation)

    def _push(self, group: int, now_ms: int) -> None:
        """Sends waiting operations while the link to the leader has room. This node's own replica takes everything."""
        waiting = self._waiting.get(group)
        link = self._routes.link(group) if waiting else None
        if not waiting or link is None:
            return
        in_flight, sent = self._in_flight[link], self._sent[group]
        total, own = in_flight.total(), in_flight[group]
        operations: list[bytes] = []
        is_full = False
        while waiting and not is_full:
            key, conversation = next(iter(waiting.items()))
            if not conversation.has_unsent:  # all are sent, or answered meanwhile, or it is over
                del waiting[key]
                continue
            if not conversation.sent_count:
                conversation.link, conversation.sent_at_ms = link, now_ms
            elif conversation.link != link:
                break  # the leader has changed in this very step: it is about to be rewound
            sent[key] = conversation
            while conversation.has_unsent:
                size = conversation.next_size()
                if link and not _has_room(total, own, size):
                    is_full = True
                    break
                operations.append(conversation.send_next())
                total += size
                own += size
        in_flight[group] = own
        if operations:
            self._routes.send(group, operations)

    def _conversations(self, group: int) -> list[Conversation]:
        return [s.conversations[group] for s in self.by_number.values() if group in s.conversations]

    # ---- ends

    def _end(self, session: Session, reason: str) -> None:
        """Ends a session by the service's own decision: the API closes the stream, and the groups are told."""
        if session.closing:
            return
        self._outputs.emit(ev.Ended(session.number, reason))
        self._close(session)

    def _close(self, session: Session, *, is_clean: bool = False) -> None:
        for conversation in session.close(is_clean=is_clean):
            self._wait(conversation)
        if session.is_finished():
            self._forget(session)

    def _forget(self, session: Session) -> None:
        self.by_number.pop(session.number, None)
        self._by_origin.pop(session.origin, None)
        if self._by_producer.get(session.producer) is session:
            del self._by_producer[session.producer]


def _has_room(total: int, own: int, size: int) -> bool:
    """Whether an operation may be sent to a leader; `total` bytes are under way there, `own` of them of its group."""
    if not own:
        return not total or total + size <= MOST_LINK_BYTES
    return own + size <= LINK_BYTES - total
