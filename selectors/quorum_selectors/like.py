"""LIKE patterns, matched piece by piece, never as a regular expression.

A pattern is kept as the *segments* between its `%`. A segment matches a fixed number of characters. It alternates
between literal text (str) and runs of `_` (their number). `_` after `%` is moved before it ('%_' means the same as
'_%'), so equal patterns are mostly equal tuples:

    'ab'      (('ab',),)
    'a_%b%'   (('a', 1), ('b',), ())

The string must begin with the first segment and end with the last. Each segment between them is matched at its first
possible place. That never excludes a match, because it leaves the longest rest for the other segments; so there is no
backtracking. Literal segments are found by str.find. A segment with `_` is found in a short string by a bit-parallel
scan (shift-and) that reads each character once, and in a long one by bit sets of all places at once. A character is a
Unicode code point.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Segment = tuple[str | int, ...]
Pattern = tuple[Segment, ...]
"""At least one segment; the pattern has one `%` less than segments."""
SHORT = 64
"""Characters that are scanned one by one: bit sets cost more."""
GROWTH = 4
FEW_PLACES = 64
"""Places that are tried one by one, instead of looking at more letters at all places."""


class PatternError(ValueError):
    """The pattern ends in its escape character. `offset` is the position in the pattern."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def parse_pattern(text: str, escape: str | None = None) -> Pattern:
    """The segments of a pattern as JMS 3.1 §3.8.1.1 writes it. `escape` is one character, or None.

    An escape before an ordinary character stands for that character, because the specification does not say. Raises
    PatternError.
    """
    segments: list[Segment] = []
    runs: list[str | int] = []
    literal: list[str] = []
    ones, is_any = 0, False  # the wildcards since the last literal character

    def end_wildcards() -> None:
        nonlocal ones, is_any, runs
        if ones or is_any:
            if literal:
                runs.append("".join(literal))
                literal.clear()
            if ones:
                runs.append(ones)
            if is_any:
                segments.append(tuple(runs))
                runs = []
        ones, is_any = 0, False

    position = 0
    while position < len(text):
        character = text[position]
        if character == escape:
            position += 1
            if position == len(text):
                raise PatternError("the pattern ends in its escape character", position - 1)
            character = text[position]
        elif character == "%":
            is_any = True
            position += 1
            continue
        elif character == "_":
            ones += 1
            position += 1
            continue
        end_wildcards()
        literal.append(character)
        position += 1
    end_wildcards()
    if literal:
        runs.append("".join(literal))
    return (*segments, tuple(runs))


def prefix_pattern(text: str) -> Pattern:
    """A pattern for strings that begin with this text."""
    return ((text,) if text else (), ())


def suffix_pattern(text: str) -> Pattern:
    """A pattern for strings that end in this text."""
    return ((), (text,) if text else ())


def is_pattern(pattern: Pattern) -> bool:
    """Whether the tuples have the form that `parse_pattern` gives them."""
    if not pattern:
        return False
    for place, segment in enumerate(pattern):
        previous: type | None = None
        for run in segment:
            if type(run) is previous or not run or (isinstance(run, int) and run < 0):
                return False
            previous = type(run)
        # `_` is moved before a `%`, so no segment after a `%` begins with it; only the first and last may be empty.
        if place and segment and isinstance(segment[0], int):
            return False
        if not segment and 0 < place < len(pattern) - 1:
            return False
    return True


def literal_text(pattern: Pattern) -> str | None:
    """The one string that a pattern matches, if it has no wildcard."""
    if len(pattern) > 1 or any(isinstance(run, int) for run in pattern[0]):
        return None
    return "".join(run for run in pattern[0] if isinstance(run, str))


def least_size(pattern: Pattern) -> int:
    """Number of characters of the shortest string that matches."""
    return sum(map(_size, pattern))


def compile_pattern(pattern: Pattern) -> Callable[[str], bool]:
    """A function that says whether a whole string matches."""
    text = literal_text(pattern)
    if text is not None:
        return text.__eq__
    first, last = pattern[0], pattern[-1]
    first_size = _size(first)
    if len(pattern) == 1:
        return lambda value: len(value) == first_size and _fits(first, value, 0)
    last_size = _size(last)
    sizes = [_size(segment) for segment in pattern[1:-1]]
    finders = [_finder(segment) for segment in pattern[1:-1]]
    least = first_size + sum(sizes) + last_size

    def matches(value: str) -> bool:
        end = len(value) - last_size
        if len(value) < least or not _fits(first, value, 0) or not _fits(last, value, end):
            return False
        position = first_size
        for find, size in zip(finders, sizes, strict=True):
            position = find(value, position, end)
            if position < 0:
                return False
            position += size
        return True

    return matches


def matches(pattern: Pattern, value: str) -> bool:
    """Whether the whole of `value` matches. O(length of value + length of pattern) steps."""
    return compile_pattern(pattern)(value)


def _size(segment: Segment) -> int:
    return sum(run if isinstance(run, int) else len(run) for run in segment)


def _fits(segment: Segment, value: str, position: int) -> bool:
    """Whether the segment matches at this position; the string is known to be long enough."""
    for run in segment:
        if isinstance(run, int):
            position += run
        elif value.startswith(run, position):
            position += len(run)
        else:
            return False
    return True


def _finder(segment: Segment) -> Callable[[str, int, int], int]:
    """A function (value, start, end) -> first position of the segment within, or -1."""
    if len(segment) == 1 and isinstance(segment[0], str):
        text = segment[0]
        return lambda value, start, end: value.find(text, start, end)
    offsets: dict[str, list[int]] = {}
    size = 0
    for run in segment:
        if isinstance(run, int):
            size += run
            continue
        for character in run:
            offsets.setdefault(character, []).append(size)
            size += 1
    rarest_first = sorted(offsets.items(), key=lambda each: len(each[1]))
    masks: dict[str, int] = {}
    last = anywhere = 0
    if size <= SHORT:  # a longer segment is in no short string
        last, fixed = 1 << (size - 1), {each for found in offsets.values() for each in found}
        anywhere = sum(1 << each for each in range(size) if each not in fixed)
        masks = {
            character: anywhere | sum(1 << each for each in found) for character, found in offsets.items()
        }

    def scan(value: str, start: int, end: int) -> int:
        # shift-and: bit i of `state` is set while the last i+1 characters fit the first i+1 places of the segment
        state = 0
        for position in range(start, end):
            state = ((state << 1) | 1) & masks.get(value[position], anywhere)
            if state & last:
                return position - size + 1
        return -1

    def within(value: str, start: int, end: int) -> int:
        letters = np.frombuffer(value[start:end].encode("utf-32-le", "surrogatepass"), "<u4")
        # bit i is set while the segment may begin at the i-th character
        places = (1 << (end - start - size + 1)) - 1
        for character, found in rarest_first:
            bits = np.packbits(letters == ord(character), bitorder="little").tobytes()
            is_there = int.from_bytes(bits, "little")
            for offset in found:
                places &= is_there >> offset
            if places.bit_count() <= FEW_PLACES:
                break
        while places:
            first = (places & -places).bit_length() - 1
            if _fits(segment, value, start + first):
                return start + first
            places &= places - 1
        return -1

    def find(value: str, start: int, end: int) -> int:
        if end - start < size:
            return -1
        if end - start <= SHORT:
            return scan(value, start, end)
        width = size + SHORT
        while end - start >= size:  # in ever wider parts, because the first place is often near
            stop = min(start + width, end)
            position = within(value, start, stop)
            if position >= 0:
                return position
            start = stop - size + 1
            width *= GROWTH
        return -1

    return find
