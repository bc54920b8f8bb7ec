"""A client's session on the Raft thread: one numbered conversation with each group it uses.

A session sends operations 1, 2, 3, ... to a group and keeps each until the group's machine has answered it, as this
node's own replica applies it. If operations may have been lost on the way (a frame, a leader), all of them are resent
in order: the machine takes each number once and refuses gaps. The registration of the session's epoch precedes the
first operation, as number 0; it is resent like any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from fifo.commands import (
    NODE,
    UNKNOWN,
    Address,
    CloseSession,
    Command,
    Commit,
    Decide,
    InTransaction,
    Origin,
    Prepare,
    RegisterProducer,
    Wake,
)
from fifo.effects import Done, Refused, Reply
from quorum.catalog.commands import CatalogCommand
from quorum.node.wire.operations import encode

RESEND_AFTER_MS = 1_000
"""An operation unanswered for this long is sent again: a frame was lost, or the leader is slow. Repeats do no harm."""


@dataclass(slots=True)
class _Sent:
    n: int
    data: bytes
    token: object
    ends_with_session: bool
    """it has a batch, or is of a transaction"""
    in_flight_bytes: int = 0
    """bytes that it counts for while it is under way"""


@dataclass(slots=True)
class Conversation:
    """One session and one group."""

    group: int
    producer: bytes
    epoch: int
    address: Address
    next_n: int = 0
    unanswered: deque[_Sent] = field(default_factory=deque)
    sent_at_ms: int = 0
    sent_count: int = 0
    """number of `unanswered` operations, from the first on, that are under way to the present leader"""
    in_flight_bytes: int = 0
    link: str = ""
    """the link on which they were sent"""
    is_over: bool = False
    """the group has said that this epoch has ended"""
    withdrawn: set[object] = field(default_factory=set)
    """tokens of unanswered operations whose callers stopped waiting: see events.Withdraw"""

    def start(self, owner: int = UNKNOWN, heard_ms: int = 0) -> None:
        """Adds the registration, which is sent first."""
        self.number(RegisterProducer(self.address, owner, heard_ms), None)

    def number(
        self,
        command: Command | CatalogCommand,
        token: object,
        batch: bytes = b"",
    ) -> None:
        """Gives the command its number and queues it for sending."""
        data = encode(command, Origin(self.producer, self.epoch, self.next_n), batch)
        ends = bool(batch) or isinstance(command, InTransaction | Commit | Prepare | Decide)
        self.unanswered.append(_Sent(self.next_n, data, token, ends))
        self.next_n += 1

    def withdraw(self, token: object) -> None:
        """Records that the caller of the operation with this token stopped waiting, if the operation has no answer
        yet. Tokens of operations that were answered before are dropped when they are the greater part."""
        if self.unanswered:
            self.withdrawn.add(token)
            if len(self.withdrawn) > 2 * len(self.unanswered):
                self.withdrawn.intersection_update([sent.token for sent in self.unanswered])

    def answer(self, n: int, reply: Reply | None) -> tuple[bool, object]:
        """Takes the machine's answer to number n. Returns (it was waited for, its token).

        A gap of the numbering answers nothing: the operation's own answer comes later. A repeat (Done) answers nothing
        either, because its own answer came before. The exception is a snapshot that replaced the entry with that
        answer. Then the operations up to there were carried out with a result that this node does not know, and (True,
        None) says so.

        The numbering finds a gap only while an earlier number is unanswered here. A "gap" of the first unanswered
        number is the machine's own answer: a staged chunk was too high.
        """
        if isinstance(reply, Done):
            return bool(self.skip(n)), None
        if not self.unanswered or self.unanswered[0].n != n:
            return False, None
        return True, self._pop().token

    def _pop(self) -> _Sent:
        first = self.unanswered.popleft()
        self.in_flight_bytes -= first.in_flight_bytes
        self.sent_count = max(0, self.sent_count - 1)
        if self.withdrawn:
            self.withdrawn.discard(first.token)
            if not self.unanswered:
                self.withdrawn.clear()  # those that were answered before they were withdrawn
        return first

    def skip(self, n: int) -> list[object]:
        """Removes numbers up to n, which were applied where this node did not see the answers (a snapshot); returns
        their tokens."""
        tokens = []
        while self.unanswered and self.unanswered[0].n <= n:
            tokens.append(self._pop().token)
        return tokens

    def is_ended_by(self, n: int, reply: Refused) -> bool:
        """Whether this refusal of number n is final: the group will take nothing of this epoch any more."""
        if reply.reason == "fenced":
            return True
        is_registered = not self.unanswered or self.unanswered[0].n > 0
        return reply.reason in ("expired", "not_registered") if is_registered else n == 0

    def end(self) -> None:
        """Marks the conversation as over."""
        self.is_over = True
        self.unanswered.clear()
        self.sent_count = self.in_flight_bytes = 0

    def lighten(self, *, of_all: bool) -> None:
        """Frees the memory of a conversation whose answers are no longer awaited. Batches that may not have arrived are
        replaced by empty operations under the same numbers, so that a closed session holds no memory while its group
        has no leader. So are the commands of transactions, because a Commit must not find a transaction without its
        batches. of_all: replaces all commands, since their callers have been told to try again elsewhere.
        Operations that did arrive stay done."""
        for sent in self.unanswered:
            sent.token = None
            if sent.n and (sent.ends_with_session or of_all):
                self._empty(sent)

    def _empty(self, sent: _Sent) -> None:
        """Replaces the operation by an empty one, which only uses its number."""
        sent.data = encode(Wake(), Origin(self.producer, self.epoch, sent.n))

    @property
    def has_unsent(self) -> bool:
        return self.sent_count < len(self.unanswered)

    def next_size(self) -> int:
        """Bytes of the next operation to send."""
        return len(self.unanswered[self.sent_count].data)

    def send_next(self) -> bytes:
        """Returns the next operation to send and marks it as under way. A withdrawn one only uses its number."""
        sent = self.unanswered[self.sent_count]
        if self.withdrawn and sent.token in self.withdrawn:
            self._empty(sent)
        self.sent_count += 1
        sent.in_flight_bytes = len(sent.data)
        self.in_flight_bytes += sent.in_flight_bytes
        return sent.data

    def rewind(self) -> None:
        """Schedules everything unanswered for resending, in order, because operations under way may be lost."""
        for sent in self.unanswered:
            sent.in_flight_bytes = 0
        self.sent_count = self.in_flight_bytes = 0


@dataclass(slots=True)
class Session:
    """One client stream (or the node's own)."""

    number: int
    producer: bytes
    epoch: int
    address: Address
    owner: int = UNKNOWN
    heard_ms: Mapping[int, int] = field(default_factory=dict)
    """group -> its time as known here when the session was opened. A group that is missing registers as if from 0."""
    conversations: dict[int, Conversation] = field(default_factory=dict)
    closing: bool = False

    @property
    def origin(self) -> tuple[bytes, int]:
        return self.producer, self.epoch

    def conversation(self, group: int) -> Conversation:
        """The conversation with a group; a new one begins with the registration."""
        known = self.conversations.get(group)
        if known is None:
            known = self.conversations[group] = Conversation(group, self.producer, self.epoch, self.address)
            known.start(self.owner, self.heard_ms.get(group, 0))
        return known

    def close(self, *, is_clean: bool = False) -> list[Conversation]:
        """Closes the session; returns the conversations that must tell their groups. A node's own producer is not used
        again, so none of its operations is ever resent."""
        self.closing = True
        closing = CloseSession(is_clean or self.owner == NODE)
        left = [each for each in self.conversations.values() if not each.is_over]
        for each in left:
            each.lighten(of_all=self.owner == NODE)
            each.number(closing, None)
        return left

    def is_finished(self) -> bool:
        """Closed, and every group has heard of it."""
        return self.closing and not any(each.unanswered for each in self.conversations.values())
