"""Who has spoken to the system group, and up to which number: the rule of `fifo.commands`, without messages.

`fifo.sessions` does the same for a group of queues, with what messages and consumers add; here a session holds nothing.

A command with n = last + 1 of the present epoch is taken; a lower n was done before, a higher one is refused. Producers
are kept in the order of their last word, so that forgetting the longest silent one is taking the first; closed and open
ones alike, because nothing here is held by a session.
"""

from __future__ import annotations

from dataclasses import dataclass

from fifo.commands import Origin
from fifo.effects import Done, Refused, Registered, Reply

FORGET_AFTER_MS = 24 * 3_600_000
"""Group time after which a silent producer is forgotten."""
MAX_PRODUCERS = 10_000
"""Beyond it the longest silent one goes earlier: a bound for the snapshot."""
FORGOTTEN_AT_ONCE = 64
"""Forgotten by one registration: bounds its work, and still outruns what registrations add."""


@dataclass(slots=True)
class Speaker:
    """A producer's epoch and the last number taken in it, at group time heard_ms."""

    epoch: int
    last: int
    heard_ms: int


class Numbering:
    """Producers by id, the longest silent first."""

    def __init__(self) -> None:
        self.speakers: dict[bytes, Speaker] = {}

    def register(self, origin: Origin, now_ms: int) -> Reply:
        """A RegisterProducer."""
        known = self.speakers.get(origin.producer)
        if known is not None and known.epoch > origin.epoch:
            return self._fenced(origin, known)
        if known is not None and known.epoch == origin.epoch:
            return Done()
        self.speakers.pop(origin.producer, None)
        self.speakers[origin.producer] = Speaker(origin.epoch, 0, now_ms)
        self._forget(now_ms)
        return Registered((), known is not None)

    def refuse(self, origin: Origin, now_ms: int) -> Reply | None:
        """Takes the number of any other command; a reply where it must not be carried out."""
        known = self.speakers.get(origin.producer)
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

    def _forget(self, now_ms: int) -> None:
        for _ in range(FORGOTTEN_AT_ONCE):
            producer, speaker = next(iter(self.speakers.items()))
            if len(self.speakers) <= MAX_PRODUCERS and speaker.heard_ms + FORGET_AFTER_MS > now_ms:
                return
            if len(self.speakers) == 1:
                return
            del self.speakers[producer]
