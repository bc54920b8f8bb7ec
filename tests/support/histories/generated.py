"""Small histories at random, in which every kind of violation comes up."""

from __future__ import annotations

import random
from collections.abc import Iterator

from quorum.histories.records import Record


def some_history(chance: random.Random, queue: str) -> list[Record]:
    """A small history of one queue, and now and then of `QUEUE-dead`: mostly in order, with anything wrong in it."""
    records: list[Record] = []
    time = 0
    places: list[tuple[str, int, str, int]] = []
    sequence = 0
    for producer in [f"{queue}-p{n}" for n in range(chance.randint(1, 2))]:
        for number in range(chance.randint(1, 6)):
            time += chance.randint(0, 3)
            outcome = chance.choice(("confirmed",) * 6 + ("unknown", "rejected"))
            publish = {
                "op": "publish",
                "queue": queue,
                "producer": producer,
                "number": number,
                "invoked_us": time,
                "outcome": outcome,
            }
            if outcome != "unknown" or chance.random() < 0.5:
                publish["returned_us"] = time + chance.randint(0, 4)
            is_recorded = chance.random() < 0.95
            if is_recorded:
                records.append(publish)
            if outcome == "confirmed" or chance.random() < 0.5:
                sequence += 1
                places.append((queue, sequence, producer, number))
            if is_recorded and chance.random() < 0.05:
                places.append((chance.choice((queue, queue + "-dead")), sequence + 10, producer, number))
            if chance.random() < 0.05:
                places.append((queue, sequence, producer, number + 7))
    if places and chance.random() < 0.4:
        a, b = chance.randrange(len(places)), chance.randrange(len(places))
        (q, s, *first), (r, t, *second) = places[a], places[b]
        places[a], places[b] = (q, s, *second), (r, t, *first)  # type: ignore[assignment]
    for where, at, producer, number in places:
        records += _what_becomes(chance, where, at, producer, number, time)
    for consumer in "ab":
        if chance.random() < 0.3:
            records.append(
                {"op": "end", "queue": queue, "consumer": consumer, "invoked_us": time + chance.randint(0, 9)}
            )
    for where in sorted({queue, *(each["queue"] for each in records)}):
        records.append({"op": "left", "queue": where, "count": 0})
    for place, each in enumerate(records):  # no two deliveries at one time: nobody could say which was first
        for name in ("invoked_us", "returned_us", "held_until_us"):
            if name in each:
                each[name] = 1_000 * each[name] + (place if each["op"] == "deliver" else 0)
    return records


def _what_becomes(
    chance: random.Random, queue: str, sequence: int, producer: str, number: int, start: int
) -> Iterator[Record]:
    place = {"queue": queue, "sequence": sequence}
    message = {**place, "producer": producer, "number": number}
    time = start
    for again in range(chance.choice((0, 1, 1, 1, 2, 3))):
        consumer = chance.choice("abc")
        time += chance.randint(0, 5)
        delivery = {"op": "deliver", **message, "consumer": consumer, "returned_us": time}
        if again and chance.random() < 0.7:
            delivery["redelivered"] = True
        if chance.random() < 0.2:
            delivery["held_until_us"] = time + chance.randint(0, 6)
        yield delivery
        if chance.random() < 0.8:
            invoked = time + chance.randint(0, 6)
            outcome = chance.choice(("ok", "ok", "unknown"))
            disposal = {
                "op": chance.choice(("settle", "settle", "return", "discard")),
                **place,
                "consumer": consumer,
                "invoked_us": invoked,
                "outcome": outcome,
            }
            if outcome == "ok":
                disposal["returned_us"] = invoked + chance.randint(0, 3)
            yield disposal
    if chance.random() < 0.2:
        yield {"op": "left", **message}
