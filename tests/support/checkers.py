"""What has to be true of everything that clients saw. Each checker looks at one rule, says what broke it, and
fails as well when it saw nothing it could have judged: an empty proof is no proof.

Times are monotonic seconds of the one process that recorded the history.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

MessageKey = tuple[str, int]
"""(producer, its own number of the message), as written in the body."""

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Publish:
    """A batch of messages first..last of a producer. confirmed_at: None if it never was."""

    producer: str
    first: int
    last: int
    sent_at: float
    confirmed_at: float | None = None


@dataclass(frozen=True, slots=True)
class HandOut:
    """A message as a consumer received it. attach: which attachment of that consumer."""

    at: float
    consumer: str
    attach: int
    sequence: int
    key: MessageKey
    redelivered: bool


@dataclass(frozen=True, slots=True)
class Settle:
    """A settlement that the service has acknowledged."""

    at: float
    consumer: str
    attach: int
    sequence: int
    key: MessageKey


@dataclass(slots=True)
class History:
    """In the order in which things were seen."""

    publishes: list[Publish] = field(default_factory=list)
    hand_outs: list[HandOut] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)

    def sent(self) -> set[MessageKey]:
        return {(each.producer, n) for each in self.publishes for n in range(each.first, each.last + 1)}

    def confirmed(self) -> set[MessageKey]:
        confirmed = [each for each in self.publishes if each.confirmed_at is not None]
        return {(each.producer, n) for each in confirmed for n in range(each.first, each.last + 1)}


class Violation(AssertionError):
    """A rule was broken, or there was nothing to judge."""


def _require(is_there: object, what: str) -> None:
    if not is_there:
        raise Violation(f"nothing to judge: {what}")


def _refuse(found: list[str], what: str) -> None:
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise Violation(f"{what}: {'; '.join(found[:SHOWN])}{more}")


def nothing_confirmed_is_lost(history: History) -> int:
    """Every confirmed message reached a consumer. Says how many there were."""
    confirmed = history.confirmed()
    _require(confirmed, "no message was confirmed")
    missing = sorted(confirmed - {each.key for each in history.hand_outs})
    _refuse([f"{producer}:{n}" for producer, n in missing], "confirmed and never delivered")
    return len(confirmed)


def nothing_is_invented(history: History) -> None:
    """Only what was sent is delivered."""
    _require(history.hand_outs, "no message was delivered")
    unknown = sorted({each.key for each in history.hand_outs} - history.sent())
    _refuse([f"{producer}:{n}" for producer, n in unknown], "delivered and never sent")


def nothing_is_published_twice(history: History) -> None:
    """A message has one sequence in the queue, however often its batch was sent."""
    _require(history.hand_outs, "no message was delivered")
    places: dict[MessageKey, set[int]] = defaultdict(set)
    for each in history.hand_outs:
        places[each.key].add(each.sequence)
    twice = [f"{key} at {sorted(found)}" for key, found in sorted(places.items()) if len(found) > 1]
    _refuse(twice, "published twice")


def first_deliveries_are_in_order(history: History) -> None:
    """Among the first deliveries to one consumer, each producer's messages come as it sent them."""
    last: dict[tuple[str, str], int] = {}
    wrong: list[str] = []
    compared = 0
    for each in history.hand_outs:
        if each.redelivered:
            continue
        producer, n = each.key
        before = last.get((each.consumer, producer))
        if before is not None:
            compared += 1
            if n <= before:
                wrong.append(f"{each.consumer} got {producer}:{n} after {producer}:{before}")
        last[each.consumer, producer] = n
    _require(compared, "no consumer got two messages of one producer")
    _refuse(wrong, "out of order")


def settled_never_comes_back(history: History) -> int:
    """What was settled, and acknowledged so, is not handed out later. Says how many settlements there
    were."""
    _require(history.settles, "no settlement was acknowledged")
    settled_at: dict[int, Settle] = {}
    for settle in history.settles:
        settled_at.setdefault(settle.sequence, settle)
    wrong = [
        f"{each.key} settled by {settled_at[each.sequence].consumer}, "
        f"{each.at - settled_at[each.sequence].at:.3f} s later to {each.consumer}"
        for each in history.hand_outs
        if each.sequence in settled_at and each.at > settled_at[each.sequence].at
    ]
    _refuse(wrong, "settled and delivered again")
    return len(settled_at)


def nothing_is_settled_twice(history: History) -> None:
    """Of several who were handed a message, the service acknowledges the settlement of one."""
    _require(history.settles, "no settlement was acknowledged")
    who: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for each in history.settles:
        who[each.sequence].add((each.consumer, each.attach))
    twice = [f"sequence {key} by {sorted(found)}" for key, found in sorted(who.items()) if len(found) > 1]
    _refuse(twice, "settled by two")


def repeats_are_flagged(history: History) -> None:
    """Whoever gets a message after somebody else gets it flagged as redelivered."""
    _require(history.hand_outs, "no message was delivered")
    seen: set[int] = set()
    wrong: list[str] = []
    for each in history.hand_outs:
        if each.sequence in seen and not each.redelivered:
            wrong.append(f"{each.key} again, to {each.consumer}")
        seen.add(each.sequence)
    _refuse(wrong, "delivered again without the flag")


def nobody_is_handed_what_another_has(history: History, *, must_repeat: bool = False) -> int:
    """Once a message of attachment A has been handed to attachment B, A is over: nothing is handed out under
    it any more, and what it held is not settled by it. (Recorded consumers settle and never return, so a
    message that moves means an attachment that ended.) Says how many messages moved from one attachment to
    another.

    must_repeat: fail if none did, because then nothing was shown.
    """
    _require(history.hand_outs, "no message was delivered")
    holder: dict[int, tuple[str, int]] = {}
    over: dict[tuple[str, int], HandOut] = {}
    wrong: list[str] = []
    moved = 0
    for each in history.hand_outs:
        me = (each.consumer, each.attach)
        if me in over and each.at > over[me].at:
            wrong.append(
                f"{each.key} to {each.consumer} under attach {each.attach}, "
                f"which was over when {over[me].consumer} got {over[me].key}"
            )
        before = holder.get(each.sequence)
        if before == me:
            wrong.append(f"{each.key} twice under attach {each.attach} of {each.consumer}")
        elif before is not None:
            moved += 1
            over.setdefault(before, each)
        holder[each.sequence] = me
    for settle in history.settles:
        end = over.get((settle.consumer, settle.attach))
        if (
            end is not None
            and settle.at > end.at
            and holder[settle.sequence] != (settle.consumer, settle.attach)
        ):
            wrong.append(f"{settle.key} settled by {settle.consumer}, whose attachment was over")
    _refuse(wrong, "in two hands at once")
    if must_repeat:
        _require(moved, "no message moved from one attachment to another")
    return moved


def check_all(history: History) -> str:
    """All rules that hold under any fault; a line for people."""
    confirmed = nothing_confirmed_is_lost(history)
    nothing_is_invented(history)
    nothing_is_published_twice(history)
    first_deliveries_are_in_order(history)
    settled = settled_never_comes_back(history)
    nothing_is_settled_twice(history)
    repeats_are_flagged(history)
    moved = nobody_is_handed_what_another_has(history)
    repeated = sum(each.redelivered for each in history.hand_outs)
    return (
        f"{confirmed:,} confirmed, {settled:,} settled, {repeated:,} redelivered, "
        f"{moved:,} moved to another attachment, none lost, none twice"
    )


def resumed_after(history: History, fault_at: float) -> float:
    """Seconds from a fault to the first confirm of something sent after it."""
    later = [
        each.confirmed_at
        for each in history.publishes
        if each.sent_at >= fault_at and each.confirmed_at is not None
    ]
    _require(later, "nothing sent after the fault was confirmed")
    return min(later) - fault_at
