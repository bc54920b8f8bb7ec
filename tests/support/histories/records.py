"""Records of a history that are good and bad; with each bad one, a part of what is said of it."""

from __future__ import annotations

from typing import Any

from quorum.histories.records import Record

PUBLISH: Record = {
    "op": "publish",
    "queue": "q",
    "producer": "p",
    "number": 1,
    "invoked_us": 5,
    "returned_us": 6,
    "outcome": "confirmed",
}
DELIVER: Record = {
    "op": "deliver",
    "queue": "q",
    "consumer": "c",
    "sequence": 1,
    "producer": "p",
    "number": 1,
    "returned_us": 7,
}
SETTLE: Record = {
    "op": "settle",
    "queue": "q",
    "consumer": "c",
    "sequence": 1,
    "invoked_us": 8,
    "returned_us": 9,
    "outcome": "ok",
}
LEFT: Record = {"op": "left", "queue": "q", "sequence": 1, "producer": "p", "number": 1}

GOOD: list[Record] = [
    PUBLISH,
    {**PUBLISH, "count": 1_000_000},
    {**PUBLISH, "outcome": "unknown", "returned_us": None},
    {**PUBLISH, "outcome": "unknown"},
    {**PUBLISH, "outcome": "rejected", "returned_us": 5},
    DELIVER,
    {**DELIVER, "redelivered": True, "held_until_us": 7, "count": 3},
    SETTLE,
    {**SETTLE, "op": "return"},
    {**SETTLE, "op": "discard", "outcome": "unknown"},
    {"op": "end", "queue": "q", "consumer": "c", "invoked_us": 0},
    LEFT,
    {**LEFT, "count": 7},
    {"op": "left", "queue": "q", "count": 0},
]
BAD: list[tuple[Record, str]] = [
    ({}, "'op' is null; allowed: publish, deliver, settle, return, discard, end, left"),
    ({**PUBLISH, "op": "pulbish"}, "'op' is \"pulbish\""),
    ({**PUBLISH, "producer": None}, "a record 'publish' needs 'producer'"),
    ({**PUBLISH, "consumer": "c"}, "a record 'publish' has no key 'consumer'; allowed: op, queue,"),
    ({**PUBLISH, "outcome": "ok"}, "'outcome' is \"ok\"; allowed: confirmed, rejected, unknown"),
    ({**PUBLISH, "returned_us": None}, "'outcome' is \"confirmed\", so 'returned_us' is required"),
    ({**PUBLISH, "returned_us": 4}, "'returned_us' is 4, before 'invoked_us', 5"),
    ({**PUBLISH, "number": -1}, "'number' is -1; allowed: a whole number from 0 to"),
    ({**PUBLISH, "number": 1 << 62}, "'number' is 4611686018427387904; allowed"),
    ({**PUBLISH, "count": 0}, "'count' is 0; allowed: 1 to 1000000"),
    ({**PUBLISH, "count": 1_000_001}, "'count' is 1000001"),
    ({**DELIVER, "held_until_us": 6}, "'held_until_us' is 6, before 'returned_us', 7"),
    ({**DELIVER, "invoked_us": 6}, "a record 'deliver' has no key 'invoked_us'"),
    ({**SETTLE, "outcome": "confirmed"}, "allowed: ok, unknown"),
    ({**SETTLE, "number": 1}, "a record 'settle' has no key 'number'"),
    ({**LEFT, "count": 0}, "means an empty queue; omit 'sequence'"),
    ({"op": "left", "queue": "q"}, "a record 'left' needs 'sequence', or 'count' 0 if the queue is empty"),
    ({**LEFT, "number": None}, "a record 'left' needs 'number'"),
]
BAD_IN_JSON: list[tuple[Any, str]] = [
    ([PUBLISH], "a record is a JSON object"),
    ({**PUBLISH, "cuont": 2}, "a record 'publish' has no key 'cuont'"),
    ({**PUBLISH, "number": 1.5}, "'number' is 1.5"),
    ({**PUBLISH, "number": "1"}, "'number' is \"1\""),
    ({**PUBLISH, "number": True}, "'number' is true"),
    ({**PUBLISH, "producer": 5}, "'producer' is 5; allowed: a text"),
    ({**DELIVER, "redelivered": 1}, "'redelivered' is 1; allowed: true or false"),
]
