"""The fields of the messages of `quorum bench selectors`, and the selectors on them.

Waiting messages have five fields: two strings with few values, a unique string, an integer and a double. A batch is
encoded once; for each further one, some numpy calls overwrite only the numbers and letters that differ. Ten million
messages therefore take only seconds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quorum_selectors import columns
from quorum_selectors.expression import FieldValue
from quorum_selectors.known_fields import APPLICATION

REGIONS = ("north", "east", "south", "west", "centre", "coast", "hills", "lakes")
KINDS = 50
"""Number of values of the second string with few values."""
AMOUNTS = 1_000
"""The integers are 0..AMOUNTS-1."""
DIGITS = 10
RECEIVERS = 10
"""Number of messages in an entry or batch, each for another consumer: the cost of finding receivers dominates."""
MATCHES = 10
"""Number of matches in a long queue."""
WANTED = "order-wanted-key"
"""The string of the messages that the unique selector matches, in place of their unique string; of the same length."""
RARE_REGION, RARE_AMOUNT = REGIONS[0], 777
"""Each value is common by itself; only messages that the other selector matches have both."""
UNIQUE_SELECTOR = f"order = '{WANTED}'"
LOW_CARDINALITY_SELECTOR = f"region = '{RARE_REGION}' AND amount = {RARE_AMOUNT}"


def unique_text(number: int) -> str:
    """The unique string of the message with this number."""
    return f"order-{number:0{DIGITS}}"


def waiting_row(ordinal: int) -> dict[str, FieldValue]:
    """The fields of a waiting message that follow from its position in its batch."""
    return {
        f"{APPLICATION}region": REGIONS[ordinal % len(REGIONS)],
        f"{APPLICATION}kind": f"kind-{ordinal * 7 % KINDS}",
        f"{APPLICATION}order": unique_text(ordinal),
        f"{APPLICATION}amount": AMOUNTS - 1 - ordinal % AMOUNTS,
        f"{APPLICATION}price": 0.5 + ordinal,
    }


def spread_matches(size: int, total: int, matches: int) -> dict[int, list[int]]:
    """Spread `matches` evenly over `total` messages in batches of `size`. Returns batch number -> positions in it."""
    found: dict[int, list[int]] = {}
    for i in range(matches):
        place = (2 * i + 1) * total // (2 * matches)
        found.setdefault(place // size, []).append(place % size)
    return found


class Batches:
    """The columns of batches of `size` messages, numbered from 0; `matches` messages of `total`, evenly spread, match
    each of the two selectors."""

    def __init__(self, size: int, total: int = 0, matches: int = 0, *, with_unique: bool = True) -> None:
        self.size = size
        self._matches = spread_matches(size, total, matches)
        rows = [waiting_row(ordinal) for ordinal in range(size)]
        if not with_unique:
            for row in rows:
                del row[f"{APPLICATION}order"]
        self._data = bytearray(columns.encode(rows))
        found = {column.key: column for column in columns.decode(memoryview(self._data), size, 0).columns}
        self._amounts: NDArray[Any] = found[
            f"{APPLICATION}amount"
        ].values  # a view: writing to it changes the bytes
        self._prices: NDArray[Any] = found[f"{APPLICATION}price"].values
        self._texts: NDArray[np.uint8] | None = None
        strings = found[f"{APPLICATION}order"].strings if with_unique else None
        if strings is not None:
            start = self._data.find(strings.blob)
            letters = np.frombuffer(self._data, np.uint8)[start : start + len(strings.blob)]
            self._texts = letters.reshape(size, len(WANTED))
        self._is_rare_region = np.arange(size) % len(REGIONS) == 0
        self._powers = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)

    def columns(self, number: int) -> bytes:
        """The columns of one batch."""
        numbers = np.arange(number * self.size, (number + 1) * self.size, dtype=np.int64)
        spread = (numbers * 2_654_435_761 >> 8) & 0xFFFFFF  # the same in every run
        amounts = spread % AMOUNTS
        amounts[self._is_rare_region & (amounts == RARE_AMOUNT)] += 1
        matches = self._matches.get(number, [])
        # the rare region occurs at regular distances: take its last occurrence before the place
        amounts[[ordinal // len(REGIONS) * len(REGIONS) for ordinal in matches]] = RARE_AMOUNT
        self._amounts[:] = amounts
        self._prices[:] = spread / 100
        texts = self._texts
        if texts is not None:
            texts[:, -DIGITS:] = numbers[:, None] // self._powers % 10 + ord("0")
            texts[matches] = np.frombuffer(WANTED.encode(), np.uint8)
        encoded = bytes(self._data)
        if texts is not None:
            texts[matches] = np.frombuffer(unique_text(0).encode(), np.uint8)
        return encoded


# ---- many consumers, each with its own messages

KINDS_OF_SELECTORS = ("equal", "range", "like", "mixed")


def selector_of(kind: str, number: int) -> str:
    """The selector of consumer `number`. It is TRUE for the rows of `row_for(number)` and for no others."""
    texts = {
        "equal": f"customer = 'c{number:05}'",
        "range": f"amount BETWEEN {number * 10} AND {number * 10 + 9}",
        "like": f"article LIKE 'a{number:05}-%'",
        "both": f"price >= 0 AND customer = 'c{number:05}'",
    }
    if kind == "mixed":
        return list(texts.values())[number % len(texts)]
    return texts[kind]


def row_for(number: int, generator: random.Random) -> Mapping[str, FieldValue]:
    """The fields of a message for consumer `number`."""
    return {
        f"{APPLICATION}customer": f"c{number:05}",
        f"{APPLICATION}article": f"a{number:05}-{generator.randrange(100)}",
        f"{APPLICATION}amount": number * 10 + generator.randrange(10),
        f"{APPLICATION}price": generator.random() * 1_000,
        f"{APPLICATION}region": generator.choice(REGIONS),
    }


def encode_rows(numbers: Sequence[int], generator: random.Random) -> bytes:
    """The columns of a batch with one message for each of these consumers."""
    return columns.encode([row_for(number, generator) for number in numbers])
