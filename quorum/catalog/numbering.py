"""The producers of the system group, and the last number of each, by the rule of `fifo.numbering`.

Producers are kept in the order of their last command, so that the longest silent one is the first. A producer is
forgotten:

- after 24 hours of silence, open or closed, because a session holds nothing here;
- at once when it closes its session, or when a newer process of its node registers;
- never to make room for others.

Only the nodes' own sessions use this group today.

Entries of version 1 forget the longest silent producer to make room, and no other before its time.
"""

from __future__ import annotations

from dataclasses import dataclass

from fifo.commands import NODE, UNKNOWN, Address, Origin, RegisterProducer
from fifo.effects import Refused, Registered, Reply
from fifo.limits import PRODUCTION, Limits
from fifo.numbering import DAY_MS, DONE, Fences, refuse_command, refuse_more, refuse_over


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
        self.fences = Fences(limits)

    def register(self, origin: Origin, command: RegisterProducer, now_ms: int, version: int) -> Reply:
        """Apply a RegisterProducer."""
        known = self.speakers.get(origin.producer)
        if known is not None and known.epoch > origin.epoch:
            return refuse_over(origin, known.epoch)
        if known is not None and known.epoch == origin.epoch:
            return DONE
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
        self.fences.remove(origin.producer)
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
        if known is None:
            return self.fences.refuse_unknown(origin)
        refused = refuse_command(origin, known.epoch, known.last)
        if refused is None:
            known.last, known.heard_ms = origin.n, now_ms
            self.speakers[origin.producer] = self.speakers.pop(origin.producer)
        return refused

    def _refuse_new(self, origin: Origin, command: RegisterProducer) -> Refused | None:
        """The reason why an unknown producer cannot register."""
        refused = self.fences.refuse(origin) or self.fences.refuse_outdated(origin, command.heard_ms)
        if refused is not None:
            return refused
        owner = command.owner
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
        self.fences.add(producer, self.speakers.pop(producer).epoch, now_ms)

    def _forget(self, now_ms: int, version: int) -> None:
        for _ in range(self.limits.forgotten_per_entry):
            producer, speaker = next(iter(self.speakers.items()))
            is_crowded = version < 2 and len(self.speakers) > self.limits.max_producers
            if not is_crowded and speaker.heard_ms + DAY_MS > now_ms:
                return
            if len(self.speakers) == 1:
                return
            if version >= 2:
                self._fence(producer, now_ms)
            else:
                del self.speakers[producer]
