"""Histories for tests: a queue that does nothing wrong, used by clients that fail at times; faults are planted."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Operation = dict[str, Any]


@dataclass
class History:
    """Operations as they were recorded; `settled` and `held` say which sequences are what, for planting."""

    operations: list[Operation] = field(default_factory=list)
    now: int = 0

    def write(self, file: Path) -> Path:
        file.write_text("".join(json.dumps(each) + "\n" for each in self.operations), encoding="utf-8")
        return file

    def of(self, kind: str, **fields: Any) -> list[Operation]:
        return [
            each
            for each in self.operations
            if each["kind"] == kind and all(each.get(name) == value for name, value in fields.items())
        ]


def healthy(seed: int, messages: int = 300, queues: tuple[str, ...] = ("orders", "jobs")) -> History:
    """What clients see of queues that keep every promise: lost answers, dead consumers, returned messages."""
    chance = random.Random(seed)
    history = History()
    for queue in queues:
        _one_queue(chance, history, queue, messages)
    chance.shuffle(history.operations)
    return history


def _one_queue(chance: random.Random, history: History, queue: str, messages: int) -> None:
    add = history.operations.append
    numbers = {"p1": 0, "p2": 0}
    ready: list[tuple[int, str, int]] = []
    sequence = 0
    published = 0
    clients = {"c1": 1, "c2": 1, "c3": 1}
    held: dict[str, list[tuple[int, str, int]]] = {}

    def tick(most: int = 5) -> int:
        history.now += chance.randint(1, most)
        return history.now

    while published < messages or ready or held:
        turn = chance.random()
        if published < messages and turn < 0.35:
            producer = chance.choice(sorted(numbers))
            count = chance.choice([1, 1, 3])
            sent: Operation = {
                "kind": "publish",
                "queue": queue,
                "client": producer,
                "producer": producer,
                "number": numbers[producer],
                "count": count,
                "invoked": tick(),
            }
            outcome = chance.choice(["ok"] * 8 + ["refused", "unknown"])
            if outcome == "ok":
                sent["returned"] = tick()
            else:
                sent["outcome"] = outcome
            if outcome == "ok" or (outcome == "unknown" and chance.random() < 0.5):
                for place in range(count):
                    ready.append((sequence, producer, numbers[producer] + place))
                    sequence += 1
            add(sent)
            numbers[producer] += count
            published += count
        elif ready and turn < 0.7:
            name = chance.choice(sorted(clients))
            client = f"{name}.{clients[name]}"
            message = ready.pop(0)
            place, producer, number = message
            held.setdefault(client, []).append(message)
            add(
                {
                    "kind": "deliver",
                    "queue": queue,
                    "client": client,
                    "producer": producer,
                    "number": number,
                    "sequence": place,
                    "returned": tick(),
                }
            )
        elif held:
            client = chance.choice(sorted(held))
            if chance.random() < 0.1:
                add({"kind": "release", "client": client, "queue": queue, "invoked": tick()})
                clients[client.split(".")[0]] += 1
                ready[:0] = held.pop(client)
                ready.sort()
                continue
            message = held[client].pop(chance.randrange(len(held[client])))
            if not held[client]:
                del held[client]
            kind = chance.choice(["settle"] * 6 + ["return", "discard", "late"])
            done: Operation = {
                "kind": "settle" if kind == "late" else kind,
                "queue": queue,
                "client": client,
                "sequence": message[0],
                "invoked": tick(),
            }
            if kind == "late":
                done["outcome"] = "unknown"
                if chance.random() < 0.5:
                    ready.append(message)
                    ready.sort()
            else:
                done["returned"] = tick()
            if kind == "return":
                ready.append(message)
                ready.sort()
            add(done)
        if published >= messages and not held and len(ready) <= 20:
            break
    for place, producer, number in ready:
        add({"kind": "remain", "queue": queue, "producer": producer, "number": number, "sequence": place})
