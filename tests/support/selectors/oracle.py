"""Every way to evaluate a selector against the plain walk, over as many pairs of expression and message as one likes.

    python -m support.selectors.oracle [--first SEED] [--pairs N] [--jobs N]                    (tests/ on the path)

A seed makes a block of messages and some expressions over it: each is asked by the plain walk, by its closure, of all
messages at once and of a run of them, and so is the expression that has travelled as bytes. Strings are made to nearly
match: few letters, shared beginnings and ends, characters of one to four bytes, lone surrogates, long and empty ones;
patterns and lists are cut out of the strings that are there.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import islice
from unittest.mock import patch

from quorum_selectors import canonical, like, string_columns, vectorised
from quorum_selectors.block_columns import BlockColumns
from quorum_selectors.compiled import compile_expression
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import (
    And,
    Arithmetic,
    Comparison,
    DeliveryMode,
    Expression,
    Field,
    FieldValue,
    In,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Not,
    Or,
    Sign,
    Truth,
)
from quorum_selectors.vectorised import Messages, truths
from support.selectors.expressions import KEYS, block_of

Fields = dict[str, FieldValue]

LIMITS = {"MAX_PIECE": 2, "KEPT_WORDS": 1, "FEW_VALUES": 0, "KEPT_BYTES": 0}
"""Of `string_columns`, set like this for every other seed: what is for long or many strings is then done for all."""

ROWS = 200
PER_BLOCK = 10
"""Over each block."""

WHOLE = (
    0,
    1,
    -1,
    2,
    3,
    7,
    2**31,
    2**32,
    3_037_000_500,
    2**53,
    2**53 + 1,
    2**62,
    2**63 - 1,
    -(2**63),
    -(2**63) + 1,
)
DOUBLES = (
    0.0,
    -0.0,
    0.5,
    1.0,
    2.0,
    3.5,
    2.0**53,
    2.0**63,
    1.7e308,
    -1.7e308,
    5e-324,
    float("nan"),
    float("inf"),
)
ALPHABETS = (
    "ab",
    "ab_%",
    "abcdef0123456789-",
    "aé",
    "a\u00e9\u20ac\U0001f600",
    "\ud800\udc00a\uffff",
    "a\x00",
    "é日",
)


class Differ(AssertionError):
    """Two ways to evaluate that do not agree."""


class World:
    """A block of messages and expressions over it, from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(f"selectors {seed}")
        self.texts: list[str] = [""]
        self.is_paired = self.chance.random() < 0.3
        """fields have values of other fields, or nearly"""
        self.makers = {key: self._maker() for key in KEYS}
        self.rows: list[Fields] = [self._row() for _ in range(ROWS)]

    # ---- messages

    def _maker(self) -> Callable[[], FieldValue | None]:
        """How the values of a field are made: mostly of one type."""
        chance = self.chance
        presence = chance.choice((1.0, 1.0, 0.9, 0.5, 0.05))
        kinds = chance.choices(
            (self._texts(), self._whole, self._double, self._boolean),
            (6, 2, 1, 1),
            k=chance.choice((1, 1, 1, 3)),
        )
        return lambda: chance.choice(kinds)() if chance.random() < presence else None

    def _texts(self) -> Callable[[], str]:
        chance = self.chance
        alphabet = chance.choice(ALPHABETS)
        longest = chance.choice((2, 5, 9, 30, 70, 200))
        head, tail = (self._letters(alphabet, chance.choice((0, 0, 3, 8, 130))) for _ in range(2))
        few = [self._letters(alphabet, longest) for _ in range(chance.choice((3, 40)))]
        is_few = chance.random() < 0.3

        def make() -> str:
            text = chance.choice(few) if is_few else self._letters(alphabet, longest)
            text = head + text + tail
            if len(self.texts) < 400:
                self.texts.append(text)
            return text

        return make

    def _letters(self, alphabet: str, longest: int) -> str:
        return "".join(self.chance.choices(alphabet, k=self.chance.randint(0, longest)))

    def _whole(self) -> int:
        return self.chance.choice(WHOLE) if self.chance.random() < 0.3 else self.chance.randint(-4, 6)

    def _double(self) -> float:
        return self.chance.choice(DOUBLES) if self.chance.random() < 0.3 else self.chance.randint(-9, 9) / 4

    def _boolean(self) -> bool:
        return self.chance.random() < 0.5

    def _row(self) -> Fields:
        made = ((key, make()) for key, make in self.makers.items())
        row = {key: value for key, value in made if value is not None}
        if self.is_paired and row:
            value = row[self.chance.choice(list(row))]
            row[self.chance.choice(KEYS)] = self._nearly(value) if isinstance(value, str) else value
        return row

    def block(self) -> tuple[BlockColumns, int]:
        """The messages as they come in, in batches, and the slot of the first."""
        first, rows = self.chance.choice((0, 0, 37)), iter(self.rows)
        batches = []
        while batch := list(islice(rows, self.chance.choice((1, 7, 60, ROWS)))):
            batches.append(batch)
        return block_of(batches, first), first

    # ---- expressions

    def expression(self, depth: int = 3) -> Expression:
        chance = self.chance
        if depth and chance.random() < 0.55:
            join = chance.choice((And, Or))
            match chance.randrange(5):
                case 0:
                    return Not(self.expression(depth - 1))
                case 1 if chance.random() < 0.3:
                    return IsTrue(self.expression(depth - 1))
                case _:
                    return join(tuple(self.expression(depth - 1) for _ in range(chance.randint(2, 4))))
        return self._condition()

    def _condition(self) -> Expression:
        chance = self.chance
        match chance.randrange(10):
            case 0 | 1 | 2:
                return Like(self._field(), self._pattern())
            case 3 | 4:
                values = [self._text() for _ in range(chance.choice((1, 2, 4, 5, 9, 40)))]
                return In(self._field(), tuple(values))
            case 5:
                return Comparison(chance.choice(("=", "<>")), self._field(), Literal(self._text()))
            case 6:
                return Comparison(chance.choice(("=", "<>")), self._field(), self._field())
            case 7:
                return IsNull(self._field())
            case 8 if chance.random() < 0.3:
                return self._field()
            case _:
                order = chance.choice(("=", "<>", "<", "<=", ">", ">="))
                return Comparison(order, self._number(2), self._number(2))

    def _field(self) -> Expression:
        key = self.chance.choice(KEYS)
        if self.chance.random() < 0.1:
            return self.chance.choice((Field(key, 4), Field(key, "a"), DeliveryMode()))
        return Field(key)

    def _number(self, depth: int) -> Expression:
        chance = self.chance
        match chance.randrange(5):
            case 0 if depth:
                operator = chance.choice(("+", "-", "*", "/"))
                return Arithmetic(operator, self._number(depth - 1), self._number(depth - 1))
            case 1 if depth:
                return Sign(chance.choice(("+", "-")), self._number(depth - 1))
            case 2:
                return Literal(chance.choice((self._whole, self._double, self._boolean, self._text))())
            case _:
                return self._field()

    def _text(self) -> str:
        """One that is there, or nearly."""
        return self._nearly(self.chance.choice(self.texts))

    def _nearly(self, text: str) -> str:
        if text and self.chance.random() < 0.3:
            at = self.chance.randrange(len(text))
            text = text[:at] + self.chance.choice(text) + text[at + self.chance.randint(0, 1) :]
        return text

    def _pattern(self) -> like.Pattern:
        """Parts of a text that is there, with `%` and `_` for what is left out."""
        chance, text = self.chance, self._text()
        if (
            text and chance.random() < 0.1
        ):  # both ends, which may overlap, and what may be between or within them
            begin, end, inner = (chance.randint(0, len(text)) for _ in range(3))
            return like.parse_pattern(f"{text[:end]}%{text[inner : inner + 2]}%{text[begin:]}")
        parts, at = [], 0
        while at < len(text) and len(parts) < 40:
            size = chance.choice((1, 1, 2, 3, 10, 100))
            part = text[at : at + size]
            match chance.randrange(5):
                case 0:
                    parts.append("%" if chance.random() < 0.8 else "")
                case 1:
                    parts.append("_" * len(part))
                case 2:
                    parts.append("%" + part.replace("%", "!%").replace("_", "!_") + "%")
                case _:
                    parts.append("".join("!" + each if each in "%_!" else each for each in part))
            at += size
        if at < len(text):
            parts.append("%")
        return (
            like.parse_pattern("".join(parts).replace("!!", "!"), None)
            if chance.random() < 0.1
            else _parsed(parts)
        )


def _parsed(parts: list[str]) -> like.Pattern:
    return like.parse_pattern("".join(parts), "!")


# ---- comparing


def compare(seed: int) -> int:
    """How many pairs agree: all of the seed's. Raises Differ."""
    with ExitStack() as stack:
        if seed % 2:
            for name, value in LIMITS.items():
                stack.enter_context(patch.object(string_columns, name, value))
            stack.enter_context(patch.object(vectorised, "_SPREAD", 0))
        return _compare(World(seed))


def _compare(world: World) -> int:
    block, first = world.block()
    messages = Messages(block, first, ROWS)
    pairs = 0
    for number in range(PER_BLOCK):
        expression = world.expression()
        expected = [evaluate(expression, row) for row in world.rows]

        travelled = canonical.decode(canonical.encode(expression))
        begin = world.chance.randrange(ROWS)
        count = world.chance.randint(1, ROWS - begin)
        found = {"a run at once": (begin, at_once(expression, Messages(block, first + begin, count)))}
        for name, tree in (("as it is", expression), ("as it travels", travelled)):
            condition = compile_expression(tree)
            found[f"compiled, {name}"] = 0, [condition(row) for row in world.rows]
            found[f"all at once, {name}"] = 0, at_once(tree, messages)
        for what, (start, truth) in found.items():
            for place, each in enumerate(truth, start):
                if each is not expected[place]:
                    raise Differ(
                        f"seed {world.seed}, expression {number}, {what}: message {place} is {each}, not "
                        f"{expected[place]}: {expression} over {world.rows[place]}"
                    )
        pairs += ROWS
    return pairs


def at_once(expression: Expression, messages: Messages) -> list[Truth]:
    true, false = truths(expression, messages)
    assert not (true & false).any()
    return [True if t else False if f else None for t, f in zip(true.tolist(), false.tolist(), strict=True)]


def compare_many(first: int, pairs: int, jobs: int, say: Callable[[str], None]) -> int:
    """At least so many pairs, from a seed on; how many there were. Raises Differ."""
    seeds = range(first, first - -pairs // (ROWS * PER_BLOCK))
    done = told = 0
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(compare, seeds, chunksize=20):
            done += found
            if done - told >= 250_000:
                told = done
                say(f"{done:,} of {pairs:,} pairs")
    return done


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "selector_oracle", description="Every way to evaluate a selector, compared."
    )
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--pairs", type=int, default=100_000, help="how many pairs of expression and message")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    given = parser.parse_args(arguments)
    try:
        done = compare_many(given.first, given.pairs, given.jobs, lambda text: print(text, flush=True))
    except Differ as difference:
        print(difference)
        return 1
    print(f"{done} pairs agree")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
