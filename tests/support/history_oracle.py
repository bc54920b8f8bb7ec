"""What the six kinds of violation mean, in plain Python, pair by pair, as docs/histories.md has it.

Also histories at random, in which every kind comes up.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]
Key = tuple[str, int]
"""(producer, number)."""
Place = tuple[str, int]
"""(queue, sequence)."""
CLOSING = ("settle", "return", "discard")


@dataclass(slots=True)
class Found:
    """By kind, the (queue, producer, number) that are culprits; a message may be it twice as a phantom."""

    by_kind: dict[str, list[tuple[str, str, int]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, queue: str, key: Key) -> None:
        self.by_kind[kind].append((queue, *key))

    def of_queue(self, queue: str) -> dict[str, list[tuple[str, int]]]:
        found = {
            kind: sorted((producer, number) for where, producer, number in all_ if where == queue)
            for kind, all_ in self.by_kind.items()
        }
        return {kind: keys for kind, keys in found.items() if keys}


def each_message(records: list[Record]) -> Iterator[Record]:
    for record in records:
        for step in range(record.get("count", 1)):
            one = {**record, "count": 1}
            for name in ("number", "sequence"):
                if name in one:
                    one[name] += step
            yield one


def judge(records: list[Record]) -> Found:
    events = list(each_message(records))
    found = Found()
    publishes: dict[Key, list[Record]] = defaultdict(list)
    at: dict[Place, list[Record]] = defaultdict(list)
    for each in events:
        if each["op"] == "publish":
            publishes[each["producer"], each["number"]].append(each)
        elif each["op"] != "end":  # a record 'left' that says nothing is left is of no message
            at[each["queue"], each["sequence"]].append(each)
    places: dict[Key, list[Place]] = defaultdict(list)
    owner: dict[Place, Key] = {}
    intruders: list[tuple[Place, int]] = []
    for place, there in at.items():
        keys = sorted(
            {(each["number"], each["producer"]) for each in there if each["op"] in ("deliver", "left")}
        )
        number, producer = keys[0]
        owner[place] = producer, number
        places[producer, number].append(place)
        if len(keys) > 1:
            intruders.append((place, keys[-1][0]))
    for place, number in intruders:  # counted where the place's owner is
        found.add("phantom", home(publishes, places, owner[place]), (owner[place][0], number))
    for key in {*publishes, *places}:
        _judge_message(found, key, publishes, places, at)
    _judge_order(found, publishes, places)
    ends: dict[tuple[str, str], int] = {}
    for each in events:
        if each["op"] == "end":
            who = (each["queue"], each["consumer"])
            ends[who] = min(each["invoked_us"], ends.get(who, each["invoked_us"]))
    for place, there in at.items():
        if _is_held_twice(there, ends):
            found.add("held_twice", place[0], owner[place])
    return found


def home(publishes: dict[Key, list[Record]], places: dict[Key, list[Place]], key: Key) -> str:
    """The queue where a message is counted."""
    if publishes.get(key):
        return str(publishes[key][0]["queue"])
    return min(queue for queue, _ in places[key])


def _judge_message(
    found: Found,
    key: Key,
    publishes: dict[Key, list[Record]],
    places: dict[Key, list[Place]],
    at: dict[Place, list[Record]],
) -> None:
    sent, mine = publishes.get(key, []), places.get(key, [])
    queue = home(publishes, places, key)
    there = [each for place in mine for each in at[place]]
    done = [each for each in there if each["op"] in ("settle", "discard")]
    is_confirmed = any(each["outcome"] == "confirmed" for each in sent)
    if is_confirmed and not done and not any(each["op"] == "left" for each in there):
        found.add("lost", queue, key)
    if len(mine) > 1:
        kept = [place for place in mine if all(each["op"] != "discard" for each in at[place])]
        if len(kept) > 1 or len({where for where, _ in mine}) == 1:
            found.add("duplicated", queue, key)
    if mine and all(each["outcome"] == "rejected" for each in sent):
        found.add("phantom", queue, key)
    for place in mine:
        settled = [
            each["returned_us"]
            for each in at[place]
            if each["op"] in ("settle", "discard") and each["outcome"] == "ok"
        ]
        got = [each["returned_us"] for each in at[place] if each["op"] == "deliver"]
        is_left = any(each["op"] == "left" for each in at[place])
        if settled and ((got and max(got) > min(settled)) or len(settled) > 1 or is_left):
            found.add("settled_then_delivered", queue, key)
            break


def _judge_order(found: Found, publishes: dict[Key, list[Record]], places: dict[Key, list[Place]]) -> None:
    rows: dict[tuple[str, str], list[tuple[int, int, int, int | None]]] = defaultdict(list)
    for (producer, number), sent in publishes.items():
        mine = places.get((producer, number), [])
        if all(each["outcome"] == "rejected" for each in sent):
            continue
        if {queue for queue, _ in mine} != {sent[0]["queue"]}:
            continue
        confirmed = [each["returned_us"] for each in sent if each["outcome"] == "confirmed"]
        rows[sent[0]["queue"], producer].append(
            (
                number,
                min(sequence for _, sequence in mine),
                min(each["invoked_us"] for each in sent),
                min(confirmed) if confirmed else None,
            )
        )
    for (queue, producer), placed in rows.items():
        for number in misplaced(placed):
            found.add("reordered", queue, (producer, number))


def wrong_pairs(placed: list[tuple[int, int, int, int | None]]) -> set[tuple[int, int]]:
    """(e1, e2) by their numbers, of rows (number, sequence, invoked, confirmed)."""
    return {
        (first[0], second[0])
        for first in placed
        for second in placed
        if first[3] is not None and first[3] < second[2] and first[1] > second[1]
    }


def misplaced(placed: list[tuple[int, int, int, int | None]]) -> list[int]:
    """Each e2 names the e1 that was confirmed first, each e1 the e2 that was sent last. A message is a culprit if one
    of those that name it is not named by more itself; among equals it is the e1."""
    row = {each[0]: each for each in placed}
    pairs = wrong_pairs(placed)
    late: dict[int, list[int]] = defaultdict(list)
    early: dict[int, list[int]] = defaultdict(list)
    for victim in {second for _, second in pairs}:
        firsts = [first for first, second in pairs if second == victim]
        late[min(firsts, key=lambda n: (row[n][3], n))].append(victim)
    for victim in {first for first, _ in pairs}:
        seconds = [second for first, second in pairs if first == victim]
        early[max(seconds, key=lambda n: (row[n][2], n))].append(victim)
    kept = [
        culprit
        for culprit, victims in late.items()
        if any(len(early.get(victim, ())) <= len(victims) for victim in victims)
    ]
    kept += [
        culprit
        for culprit, victims in early.items()
        if any(len(late.get(victim, ())) < len(victims) for victim in victims)
    ]
    return kept


def _is_held_twice(there: list[Record], ends: dict[tuple[str, str], int]) -> bool:
    holds = []
    for consumer in sorted({each["consumer"] for each in there if each["op"] == "deliver"}):
        steps = sorted(
            (
                (each["returned_us"], 0, each) if each["op"] == "deliver" else (each["invoked_us"], 1, each)
                for each in there
                if each.get("consumer") == consumer
                and (each["op"] == "deliver" or (each["op"] in CLOSING and each["outcome"] == "ok"))
            ),
            key=lambda step: step[:2],
        )
        for place, (time, kind, each) in enumerate(steps):
            if kind == 1:
                continue
            until = each.get("held_until_us")
            if until is None and (each["queue"], consumer) in ends:
                until = max(time, ends[each["queue"], consumer])
            if place + 1 < len(steps) and steps[place + 1][1] == 1:
                until = steps[place + 1][0]
            holds.append((consumer, time, until, each.get("redelivered", False)))
    for who, start, until, redelivered in holds:
        for other, other_start, other_until, _ in holds:
            if other == who or until is None:
                continue
            if other_until is not None and max(start, other_start) < min(until, other_until):
                return True
            if other_until is None and not redelivered and start < other_start < until:
                return True
    return False


# ---- at random


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
