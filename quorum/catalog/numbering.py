"""The producers of the system group, and the last number of each: the rule of `fifo.commands`, without messages.

`fifo.producers` does the same for a group of queues, with what messages and consumers add. Here a session holds
nothing.

A command with n = last + 1 of the present epoch is taken; a lower n is a repeat, a higher one is refused. Producers are
kept in the order of their last command, so that the longest silent one is the first. A producer is forgotten:

- after 24 hours of silence, open or closed, because a session holds nothing here;
- at once when it closes its session, or when a newer process of its node registers;
- never to make room for others: beyond the limits of `fifo.producers` a client's registration is refused.

Only the nodes' own sessions use this group today.

A forgotten producer leaves a fence, as in `fifo.producers`: a command of its session that is sent again is not applied
again.

Entries of version 1 forget the longest silent producer to make room, and no other before its time.
"""

from __future__ import annotations

from dataclasses import dataclass

from fifo.commands import NODE, UNKNOWN, Address, Origin, RegisterProducer
from fifo.effects import Done, Refused, Registered, Reply
from fifo.limits import PRODUCTION, Limits
from fifo.producers import Fence, refuse_more, refuse_outdated

FORGET_AFTER_MS = 24 * 3_600_000
"""Group time after which a silent producer is forgotten."""
FORGOTTEN_AT_ONCE = 64
"""Maximum number of producers forgotten by one registration. It bounds the work of one, and is still more than
registrations add."""


@dataclass(slots=True)
class Speaker:
    """A producer's epoch and the last number taken in it, at group time heard_ms. node, boot: those of its session."""

    epoch: int
    last: int
    heard_ms: int
    owner: int = UNKNOWN
    node: int = 0
    boot: int = 0


class Numbering:
    """Producers by id, the longest silent first."""

    def __init__(self, limits: Limits = PRODUCTION) -> None:
        self.limits = limits
        self.speakers: dict[bytes, Speaker] = {}
        self.fences: dict[bytes, Fence] = {}
        """The fences of forgotten producers, in the order in which they were forgotten."""
        self.fences_lost_ms = -1
        """The time of the youngest dropped fence; -1 if none was dropped."""

    def register(self, origin: Origin, command: RegisterProducer, now_ms: int, version: int) -> Reply:
        """Apply a RegisterProducer."""
        known = self.speakers.get(origin.producer)
        if known is not None and known.epoch > origin.epoch:
            return self._fenced(origin, known)
        if known is not None and known.epoch == origin.epoch:
            return Done()
        address, owner = command.address, command.owner
        speaker = Speaker(origin.epoch, 0, now_ms)
        if version >= 2:
            speaker = Speaker(origin.epoch, 0, now_ms, owner, address.node, address.boot)
            refused = None if known is not None else self._refuse_new(origin, command)
            if refused is not None:
                return refused
            if owner == NODE:
                self._forget_older(address, now_ms)
        self.speakers.pop(origin.producer, None)
        self.fences.pop(origin.producer, None)
        self.speakers[origin.producer] = speaker
        self._forget(now_ms, version)
        return Registered((), known is not None)

    def close(self, origin: Origin, now_ms: int, version: int) -> None:
        """Close the producer's present session."""
        if version >= 2:
            self._fence(origin.producer, now_ms)

    def refuse(self, origin: Origin, now_ms: int) -> Reply | None:
        """Take the number of any other command. Returns a reply if the command must not be applied."""
        known = self.speakers.get(origin.producer)
        fence = self.fences.get(origin.producer)
        if fence is not None and origin.epoch <= fence.epoch:
            return self._ended(origin)
        if known is None and origin.n > 1:
            return Refused("expired", f"producer {origin.producer.hex()} was forgotten")
        if known is None or known.epoch < origin.epoch:
            return Refused("not_registered", f"epoch {origin.epoch} has not been registered here")
        if known.epoch > origin.epoch:
            return self._fenced(origin, known)
        if origin.n <= known.last:
            return Done()
        if origin.n > known.last + 1:
            return Refused("gap", f"number {origin.n} came, {known.last + 1} is next")
        known.last, known.heard_ms = origin.n, now_ms
        self.speakers[origin.producer] = self.speakers.pop(origin.producer)
        return None

    def _fenced(self, origin: Origin, known: Speaker) -> Refused:
        return Refused("fenced", f"epoch {origin.epoch} is over: epoch {known.epoch} has been registered")

    def _ended(self, origin: Origin) -> Refused:
        return Refused("fenced", f"epoch {origin.epoch} of producer {origin.producer.hex()} has ended")

    def _refuse_new(self, origin: Origin, command: RegisterProducer) -> Refused | None:
        """The reason why an unknown producer cannot register."""
        fence, owner = self.fences.get(origin.producer), command.owner
        if fence is not None and origin.epoch <= fence.epoch:
            return self._ended(origin)
        if fence is None and command.heard_ms <= self.fences_lost_ms:
            return refuse_outdated(origin, command.heard_ms, self.fences_lost_ms)
        if owner == NODE:
            return None
        owners = [speaker.owner for speaker in self.speakers.values()]
        clients = len(owners) - owners.count(NODE)
        return refuse_more(clients, owners.count(owner), owner, self.limits.max_producers)

    def _forget_older(self, address: Address, now_ms: int) -> None:
        """Forget the sessions of earlier processes of a node, because a node has one session of its own at a time."""
        for producer, speaker in list(self.speakers.items()):
            if speaker.owner == NODE and speaker.node == address.node and speaker.boot < address.boot:
                self._fence(producer, now_ms)

    def _fence(self, producer: bytes, now_ms: int) -> None:
        """Forget the producer except for its epoch."""
        self.fences[producer] = Fence(self.speakers.pop(producer).epoch, now_ms)
        if len(self.fences) > self.limits.max_fences:
            self.fences_lost_ms = self.fences.pop(next(iter(self.fences))).ended_ms

    def _forget(self, now_ms: int, version: int) -> None:
        for _ in range(FORGOTTEN_AT_ONCE):
            producer, speaker = next(iter(self.speakers.items()))
            is_crowded = version < 2 and len(self.speakers) > self.limits.max_producers
            if not is_crowded and speaker.heard_ms + FORGET_AFTER_MS > now_ms:
                return
            if len(self.speakers) == 1:
                return
            if version >= 2:
                self._fence(producer, now_ms)
            else:
                del self.speakers[producer]
