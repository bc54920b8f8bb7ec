"""The history that a dead letter carries, in RabbitMQ's words, and what it says about cycles.

A message that goes to a dead-letter target has these application properties:

- `x-death`: a text, a JSON list with an object for each pair of queue and reason, the latest first: `queue`, `reason`,
  `count`, `exchange`, `routing-keys`, `time` (ms since the epoch, of the claim), and `original-expiration` (ms, a text)
  if the message had a time to live. RabbitMQ has a list of tables; an application property here is no list.
- `x-first-death-queue`, `-reason`, `-exchange`: of its first death; `x-last-death-...`: of its last one.

The service does not keep the exchange and the key that a message was published with. So `exchange` is empty and
`routing-keys` has the queue's name: published like this, the message comes to the queue again.

The time to live is taken away, because the message would expire again, and so is a delay or delivery time, because the
message would be delayed again.

A history of another form, which a client has written, is replaced as a whole. Making a letter never fails, because a
letter that cannot be made would hold up its queue for ever.

What ends a cycle is in the history, so no publisher may be able to keep the history out of a letter. If the properties
would become too large with it, the letter has a short one: `x-death` alone, with `queue` and `reason` of the deaths
since a consumer has rejected the message, or a person has moved it back. If there is no room for that either, a message
that has died by itself goes nowhere, because it could go round for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from fifo.commands import MAX_NAME_BYTES
from fifo.frozen_dataclasses import dataclass
from quorum.catalog.queues import CatalogQueue
from quorum.node.wire.batches import MAX_MESSAGE_FIELDS, MAX_PROPERTIES_BYTES
from quorum.v1 import queue_pb2 as pb

DEATHS = "x-death"
FIRST, LAST = "x-first-death-", "x-last-death-"
EXCHANGE = ""
MAX_RECORDS = 64
"""Records of a history. The oldest ones are left out."""
MAX_COUNT = 1 << 53
"""Highest count and time in a record: JSON readers that have floating point numbers only read it exactly."""
MAX_CHAIN = 16
"""Deaths of a message in a row without a rejection or redrive. So every chain of queues ends."""
MAX_COPIED = 1
"""Deaths in a row after which a letter goes to one queue only. A letter knows its own deaths alone: where an exchange
copies letters to k queues that have it as their target, no letter comes back, and still one message would make about k!
of them. With this limit, it makes (k - 1) * MAX_CHAIN at most."""
REDRIVEN = "redriven"
"""The reason of a record that `quorum/redrive.py` writes: a person has moved the message back."""
BY_ITSELF = ("expired", "maxlen")
"""Causes of death that need no consumer."""

Record = dict[str, Any]
Ends = tuple[str, str, str]
"""Queue, reason and exchange of a first or last death."""


def _named(prefix: str, ends: Ends) -> dict[str, str]:
    """The properties of a first or last death."""
    return {prefix + name: value for name, value in zip(("queue", "reason", "exchange"), ends, strict=True)}


NAMES = (DEATHS, *_named(FIRST, ("", "", "")), *_named(LAST, ("", "", "")))


@dataclass(frozen=True, slots=True)
class Death:
    """The last death of a message. time_ms: group time of its claim, about the time since the epoch; the machine does
    not keep the time of the death."""

    queue: str
    reason: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class Letter:
    """The properties of a dead letter, and where it must not go. barred: queues to which it must not go, because it
    could go round for ever: it has been there and comes back by itself (no consumer has rejected it since, and nobody
    has moved it back). None: all, because it has died too often in a row, or has no room for the history that would end
    a cycle. is_single: it goes to one queue at most."""

    properties: pb.Properties
    barred: frozenset[str] | None
    is_single: bool

    def allowed(self, queues: tuple[CatalogQueue, ...]) -> tuple[CatalogQueue, ...]:
        """Those of the queues it is routed to that it may go to; the first by name if it is single."""
        if self.barred is None:
            return ()
        found = tuple([queue for queue in queues if queue.name not in self.barred])
        return (min(found, key=lambda queue: queue.name),) if self.is_single and found else found


def _letter(properties: pb.Properties, deaths: Sequence[Record], *, has_room: bool = True) -> Letter:
    in_a_row = [each["queue"] for each in _chain(deaths) if not _ends_chain(each)]
    is_stopped = not has_room or len(in_a_row) > MAX_CHAIN
    return Letter(properties, None if is_stopped else frozenset(in_a_row), len(in_a_row) > MAX_COPIED)


def letter_of(before: pb.Properties | None, death: Death, *, is_bare: bool = False) -> Letter:
    """The dead letter of a message with these properties. is_bare: it has only as much of the history as it needs, for
    a target that refuses the whole one as too large."""
    made = pb.Properties()
    if before is not None:
        made.CopyFrom(before)
    for name in ("ttl_ms", "delivery_delay_ms", "delivery_time"):
        made.ClearField(name)
    deaths, first = _take_history(made)
    deaths = _with(deaths, death, before)
    last = (death.queue, death.reason, EXCHANGE)
    whole = {DEATHS: _text(deaths), **_named(FIRST, first or last), **_named(LAST, last)}
    if not is_bare and _add(made, whole):
        return _letter(made, deaths)
    needs_some = death.reason in BY_ITSELF
    if is_bare and not needs_some:
        return _letter(made, deaths)
    short = [{name: each[name] for name in ("queue", "reason")} for each in _chain(deaths)]
    is_added = _add(made, {DEATHS: _text(short)})
    return _letter(made, deaths, has_room=is_added or not needs_some)


def _add(properties: pb.Properties, values: dict[str, str]) -> bool:
    """Add these application properties, if there is room. Returns whether there was."""
    own = properties.application_properties
    for name, value in values.items():
        own[name].text = value
    if len(own) <= MAX_MESSAGE_FIELDS and properties.ByteSize() <= MAX_PROPERTIES_BYTES:
        return True
    for name in values:
        del own[name]
    return False


def _text(deaths: list[Record]) -> str:
    return json.dumps(deaths, ensure_ascii=False, separators=(",", ":"))


def _ends_chain(record: Record) -> bool:
    return record["reason"] in ("rejected", REDRIVEN)


def _chain(deaths: Sequence[Record]) -> Sequence[Record]:
    """The deaths up to the last one that the message did not die by itself, this one included."""
    for place, each in enumerate(deaths):
        if _ends_chain(each):
            return deaths[: place + 1]
    return deaths


def _take_history(properties: pb.Properties) -> tuple[list[Record], Ends | None]:
    """Remove the history from the properties. Returns the deaths, the latest first, and the first death; none if this
    is no history that this module writes. All of it counts or nothing; DEATHS may be alone."""
    own = properties.application_properties
    found: dict[str, str | None] = {}
    for name in NAMES:
        if name in own:
            found[name] = own[name].text if own[name].HasField("text") else None
            del own[name]
    deaths = _read(found.pop(DEATHS, None) or "")
    if deaths and not found:
        return deaths, (deaths[-1]["queue"], deaths[-1]["reason"], EXCHANGE)
    first, last = _ends(found, FIRST), _ends(found, LAST)
    return (deaths, first) if deaths and first and last else ([], None)


def _ends(found: dict[str, str | None], prefix: str) -> Ends | None:
    queue, reason, exchange = (found.get(name) for name in _named(prefix, ("", "", "")))
    if queue and reason and exchange is not None and all(map(_is_short, (queue, reason, exchange))):
        return queue, reason, exchange
    return None


def _read(text: str) -> list[Record]:
    """The records of a history; none if one of them is wrong."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list) or len(found) > MAX_RECORDS:
        return []
    records = [made for each in found if (made := _record(each)) is not None]
    return records if len(records) == len(found) else []


def _record(value: object) -> Record | None:
    """The known keys of a record; None if it is none."""
    if not isinstance(value, dict) or not ("queue" in value and "reason" in value):
        return None
    made = {name: value[name] for name in _CHECKS if name in value}
    return made if all(_CHECKS[name](each) for name, each in made.items()) else None


def _is_short(value: object) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:  # JSON can name half a character
        return False


def _is_name(value: object) -> bool:
    return value != "" and _is_short(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_COUNT


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _are_keys(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_short, value))


_CHECKS: dict[str, Callable[[object], bool]] = {
    "queue": _is_name,
    "reason": _is_name,
    "count": _is_count,
    "exchange": _is_short,
    "routing-keys": _are_keys,
    "time": _is_time,
    "original-expiration": _is_short,
}
"""The keys of a record, and what their values may be. Whatever else a client has written is not taken over: it may be
something that JSON cannot write, and then the letter could not be made."""


def _with(deaths: list[Record], death: Death, before: pb.Properties | None) -> list[Record]:
    """The deaths with one more, the latest first."""
    key = (death.queue, death.reason)
    made: Record = {
        "queue": death.queue,
        "reason": death.reason,
        "count": min(MAX_COUNT, 1 + sum([each.get("count", 1) for each in deaths if _key(each) == key])),
        "exchange": EXCHANGE,
        "routing-keys": [death.queue],
        "time": death.time_ms,
    }
    if before is not None and before.HasField("ttl_ms"):
        made["original-expiration"] = str(before.ttl_ms)
    return [made, *(each for each in deaths if _key(each) != key)][:MAX_RECORDS]


def _key(record: Record) -> tuple[str, str]:
    return record["queue"], record["reason"]
