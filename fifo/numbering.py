"""How every Raft group checks the numbers of the commands of a session.

`fifo.producers` applies these rules to the groups of queues, `quorum.catalog.numbering` to the system group. The two
kinds of groups differ in what a session keeps there (in the system group: nothing), and in when they forget a producer.

A session is a producer in one epoch, and a higher epoch ends the lower ones. Its commands are numbered 1, 2, 3, ...: a
group takes the next number, says that a lower one was done, and refuses the others.

A forgotten producer leaves a *fence*, its epoch. A session with that epoch or a lower one cannot register, because its
operations may still arrive late, for example when a paused node continues.

There are at most `Limits.max_fences` fences. Above this number the group drops the oldest one, and keeps the time when
its producer was forgotten. A session of an unknown producer registers only if it was opened after that time. Otherwise
it may be a session whose fence was dropped. Each registration says the group time that the node knew when the session
was opened. This time is never later than the group time at the opening, so the check is safe however long the node was
paused. Queue groups do not check the sessions of the nodes themselves.

In entries of version 2 and later, no producer is forgotten to make room for others. Above `Limits.max_producers` a new
one is refused. An *owner* is the address of a client. It may add a producer only while it has fewer than are still
free. So a single owner can have half of all producers, and a second one half of the rest. A few owners therefore do not
lock out the others. Sessions of the nodes themselves do not count.
"""

from __future__ import annotations

from fifo.commands import NODE, Origin
from fifo.effects import Done, Refused, Reply
from fifo.frozen_dataclasses import dataclass
from fifo.limits import Limits

DAY_MS = 24 * 3600 * 1000
"""The system group forgets a producer this long after its last command, in group time. A queue group does so this long
after the end of its session, but only in entries of version 1 (later ones: `Limits.remembered_ms`)."""

DONE = Done()


def refuse_command(origin: Origin, epoch: int, last_n: int) -> Reply | None:
    """The answer to a command that is not the next one of a known producer; None if it is. epoch: the producer's
    present epoch. last_n: the highest number that was taken in this epoch."""
    if origin.epoch > epoch:
        return Refused("not_registered", f"{describe(origin)} is not registered; the present one: {epoch}")
    if origin.epoch < epoch:
        return refuse_over(origin, epoch)
    if origin.n <= last_n:
        return DONE
    if origin.n > last_n + 1:
        return Refused("gap", f"operation {origin.n} of an epoch; expected: {last_n + 1}")
    return None


def refuse_over(origin: Origin, epoch: int) -> Refused:
    """The refusal of a session that a later epoch has ended."""
    return Refused("fenced", f"{describe(origin)} is over; the present one: {epoch}")


def refuse_ended(origin: Origin) -> Refused:
    """The refusal of a session that has ended."""
    return Refused("fenced", f"{describe(origin)} has ended; a higher one has to be registered")


def refuse_more(clients: int, owned: int, owner: int, allowed: int) -> Refused | None:
    """The refusal if no producer can be added for `owner`, else None. clients: the number of all clients' producers.
    owned: the number of this owner's."""
    if owner == NODE:
        return None
    free = allowed - clients
    if free <= 0:
        return Refused("limit", f"{clients} producers have sessions or are remembered; allowed: {allowed}")
    if owned >= free:
        return Refused(
            "limit",
            f"{owned} producers of this client address have sessions or are remembered; allowed: as many as are left "
            f"free of {allowed}, {free} now",
        )
    return None


@dataclass(frozen=True, slots=True)
class Fence:
    """The remains of a forgotten producer: sessions up to this epoch are over. ended_ms: when it was forgotten."""

    epoch: int
    ended_ms: int


class Fences:
    """The fences of forgotten producers. by_name: in the order of forgetting. lost_ms: the time of the youngest dropped
    fence; -1 if none was dropped."""

    __slots__ = ("_limits", "by_name", "lost_ms")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.by_name: dict[bytes, Fence] = {}
        self.lost_ms = -1

    def add(self, name: bytes, epoch: int, now_ms: int) -> None:
        """Notes a producer that is forgotten now."""
        self.by_name[name] = Fence(epoch, now_ms)
        if len(self.by_name) > self._limits.max_fences:
            self.lost_ms = self.by_name.pop(next(iter(self.by_name))).ended_ms

    def remove(self, name: bytes) -> None:
        """Removes the fence, if there is one, of a producer that has registered again."""
        self.by_name.pop(name, None)

    def refuse(self, origin: Origin) -> Refused | None:
        """The refusal of a session that a fence has ended, else None."""
        fence = self.by_name.get(origin.producer)
        return refuse_ended(origin) if fence is not None and origin.epoch <= fence.epoch else None

    def refuse_unknown(self, origin: Origin) -> Refused:
        """The refusal of a command of a producer that is not known."""
        refused = self.refuse(origin)
        if refused is not None:
            return refused
        if origin.n > 1:
            return Refused("expired", f"producer {origin.producer.hex()} was forgotten")
        return Refused("not_registered", f"{describe(origin)} is not registered")

    def refuse_outdated(self, origin: Origin, heard_ms: int) -> Refused | None:
        """The refusal of a session of an unknown producer that was not opened after `lost_ms`: its fence may have been
        dropped. None for other sessions, and for a producer that still has a fence. heard_ms: the group time at which
        the session was opened."""
        if origin.producer in self.by_name or heard_ms > self.lost_ms:
            return None
        return Refused(
            "outdated",
            f"the session of {describe(origin)} was opened at group time {heard_ms}; "
            f"allowed: after {self.lost_ms}, up to which sessions that ended are no longer known",
        )


def describe(origin: Origin) -> str:
    """The session of a command, for the text of a refusal."""
    return f"epoch {origin.epoch} of producer {origin.producer.hex()}"
