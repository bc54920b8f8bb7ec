"""Many strings side by side, tested all at once: which equal a text, which are in a list, which match a LIKE pattern.

The strings are concatenated in one array of *letters*: the bytes of their UTF-8, or their code points where a pattern's
`_` has to match characters of several bytes. In UTF-8 one character's bytes never occur within another's, so a text
occurs where its bytes occur, and the answers are those of `like` for each string. There are three representations:

- *words*: the eight bytes at a place of every string (its beginning or end plus a multiple of eight), as one number
  each. A text is compared word by word, under a mask that leaves out `_` and what is beyond the text.
- *streams*: a bit for each letter of all strings, 64 in a number, set where a certain letter occurs. Streams shifted by
  their letters' offsets and joined by AND say where a piece of a pattern begins. Every string takes the first such
  place after the preceding pieces, as in `like`; a piece that would extend beyond the string's end does not match.
- *bits*: if all strings are short, one number for each of them that says where in it a certain letter occurs. The first
  place is then the lowest bit, and a pattern costs a few operations a letter.

All of them are made on first use and kept, so that further patterns cost a few operations on short arrays. Costs grow
with the letters plus the pattern. The exception is a text of many thousand letters that nearly matches in many places,
which would cost their product: such a pattern is tested string by string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quorum_selectors import like
from quorum_selectors.batch_columns import Array, Bits

KEPT_WORDS = 16
"""Number of words kept of each string's beginning and end: texts of 128 bytes."""
KEPT_BYTES = 1 << 23
"""Bound of the kept streams in bytes. It suffices for a hundred letters of a block of usual strings, and matters for
long ones."""
MAX_SHORT = 63
"""Maximum number of letters of a short string: a bit each, and one for its end."""
MAX_PIECE = 64
"""Maximum number of letters of a piece for which streams are joined. If many places still fit, the search continues
string by string."""
FEW_VALUES = 4
"""Up to this number of texts are compared one after the other. With more texts, up to this number of strings per text
are tested one by one."""

FEW_ROWS = 256
"""Up to this number of long strings are tested one by one for the pieces between two `%`, because a stream costs as
much."""

_WORD = 8
_BITS = 64
FRONT = _WORD * KEPT_WORDS
"""Number of arbitrary letters before the first string, because kept words of a string's end may begin there."""
BACK = FRONT + 2 * _BITS
"""The same after the last string, because kept words of a string's beginning, and whole numbers of a stream, may end
there."""
_ONE = np.uint64(1)
_PORTION = 1 << 16
"""Letters processed at once. Fresh memory costs more than the work done in it, and little memory is at hand."""
_SHRINK = 2
"""After every _SHRINK pieces, rows are removed if less than one in _SHRINK is left."""


def encode_text(text: str) -> bytes:
    """The text's bytes as columns store them."""
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment of a pattern in letters of `unit` bytes. `mask` has zero bits where any letter matches."""

    unit: int
    value: bytes
    mask: bytes

    @staticmethod
    def of(segment: like.Segment, unit: int) -> Piece:
        """unit: 1 for UTF-8, 4 for code points."""
        value, mask = bytearray(), bytearray()
        for run in segment:
            if isinstance(run, int):
                value += bytes(run * unit)
                mask += bytes(run * unit)
            else:
                part = encode_text(run) if unit == 1 else run.encode("utf-32-le", "surrogatepass")
                value += part
                mask += b"\xff" * len(part)
        return Piece(unit, bytes(value), bytes(mask))

    @property
    def size(self) -> int:
        return len(self.value) // self.unit

    def letters(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, letter)."""
        for at in range(0, len(self.value), self.unit):
            if self.mask[at]:
                yield at // self.unit, int.from_bytes(self.value[at : at + self.unit], "little")

    def words(self, is_end: bool) -> Iterator[tuple[int, Any, Any]]:
        """Yield number, value and mask of each word, from the beginning or from the end."""
        pad = bytes(-len(self.value) % _WORD)
        values, masks = (
            np.frombuffer(pad + each if is_end else each + pad, "<u8") for each in (self.value, self.mask)
        )
        if is_end:
            values, masks = values[::-1], masks[::-1]
        for number, (value, mask) in enumerate(zip(values, masks, strict=True)):
            if mask:
                yield number, value, mask


class StringColumn:
    """Strings side by side."""

    __slots__ = (
        "_are_short",
        "_bits",
        "_joined",
        "_kept",
        "_longest",
        "_own",
        "_points",
        "_streams",
        "_there",
        "_words",
        "count",
        "ends",
        "letters",
        "sizes",
        "starts",
        "unit",
    )

    def __init__(self, letters: Array, ends: Array) -> None:
        """letters: FRONT arbitrary letters, the concatenated strings, and BACK arbitrary letters. ends: the end of each
        string, counted from the first one's beginning."""
        self.count = len(ends)
        self.unit = letters.itemsize
        self.ends: Array = ends + FRONT
        self.starts: Array = np.concatenate((np.full(1, FRONT, np.int64), self.ends[:-1]))[: self.count]
        self.sizes: Array = self.ends - self.starts
        last = int(self.ends[-1]) if self.count else FRONT
        self.letters: Array = letters[: last - last % _BITS + BACK]
        self._words: Array = np.ndarray((self.letters.nbytes - _WORD + 1,), "<u8", self.letters, 0, (1,))
        self._kept: dict[tuple[bool, int], Array] = {}
        self._own: dict[int, Array] = {}
        self._longest = int(self.sizes.max()) if self.count else 0
        self._are_short = self._longest <= MAX_SHORT
        self._streams: dict[int, Array] = {}
        self._bits: dict[int, Array] = {}
        self._points: StringColumn | None = None
        self._joined: bytes | None = None
        self._there: dict[str, bool] = {}
        """texts that were searched in all strings together"""

    @staticmethod
    def of(texts: Sequence[bytes]) -> StringColumn:
        """A column of these texts."""
        padded = b"".join((bytes(FRONT), *texts, bytes(BACK)))
        return StringColumn(
            np.frombuffer(padded, np.uint8), np.cumsum([len(text) for text in texts], dtype=np.int64)
        )

    def equal(self, text: str, wanted: Bits | None = None) -> Bits:
        """Which of the strings (of the wanted ones) equal this text."""
        return self.match(((text,),) if text else ((),), wanted)

    def among(self, values: Sequence[str], wanted: Bits | None = None) -> Bits:
        """Which of the strings equal one of these values."""
        pieces = sorted({encode_text(value) for value in values})
        fitting = np.ones(self.count, np.bool_) if wanted is None else wanted
        found: Bits = np.zeros(self.count, np.bool_)
        if len(pieces) > FEW_VALUES:
            rows = np.flatnonzero(fitting)
            rows = rows[self._hinted(rows, pieces)]
            if len(rows) <= FEW_VALUES * len(pieces):
                chosen = frozenset(pieces)
                found[[row for row in rows.tolist() if self._piece(row) in chosen]] = True
                return found
            fitting = np.zeros(self.count, np.bool_)
            fitting[rows] = True
        for piece in pieces:
            fitting_size = fitting & (self.sizes == len(piece))
            found = found | self._stands(fitting_size, Piece(1, piece, b"\xff" * len(piece)), is_end=False)
        return found

    def match(self, pattern: like.Pattern, wanted: Bits | None = None) -> Bits:
        """Which of the strings match the pattern."""
        has_ones = any(isinstance(run, int) for segment in pattern for run in segment)
        if has_ones and self.unit == 1 and not self._is_ascii():
            return self._code_points().match(pattern, wanted)
        first = Piece.of(pattern[0], self.unit)
        if len(pattern) == 1:
            return self._stands(_both(self.sizes == first.size, wanted), first, is_end=False)
        last = Piece.of(pattern[-1], self.unit)
        least = max(first.size + last.size, like.least_size(pattern))  # a character has at least one letter
        fitting = self._stands(_both(self.sizes >= least, wanted), first, is_end=False)
        fitting = self._stands(fitting, last, is_end=True)
        if len(pattern) == 2 or not fitting.any():
            return fitting
        if not self._have_pieces(pattern):
            return np.zeros(self.count, np.bool_)
        rows = np.flatnonzero(fitting)
        if not has_ones and not self._are_short and len(rows) <= FEW_ROWS:
            found = np.zeros(self.count, np.bool_)
            found[self._one_by_one(pattern, rows)] = True
            return found
        follow = self._follow_short if self._are_short else self._follow
        found = np.zeros(self.count, np.bool_)
        found[follow(rows, pattern, first, last)] = True
        return found

    def same(self, rows: Array, other: StringColumn, others: Array) -> Bits:
        """Pair by pair, whether the string in a row equals the other's in its row. Both in UTF-8."""
        found: Bits = self.sizes[rows] == other.sizes[others]
        words = -(-min(self._longest, other._longest) // _WORD)
        for number in range(min(words, KEPT_WORDS)):
            if not found.any():
                return found
            found &= self._own_word(number)[rows] == other._own_word(number)[others]
        if words > KEPT_WORDS:
            pairs = np.flatnonzero(found & (self.sizes[rows] > _WORD * KEPT_WORDS))
            found[pairs] = [
                self._piece(row) == other._piece(place)
                for row, place in zip(rows[pairs].tolist(), others[pairs].tolist(), strict=True)
            ]
        return found

    # ---- words

    def _hinted(self, rows: Array, pieces: list[bytes]) -> Bits:
        """Which rows begin, or end, with the same bytes as one of the pieces. Of beginning and end, the one where the
        pieces differ more is compared."""
        firsts = np.unique(
            np.frombuffer(b"".join(piece[:_WORD].ljust(_WORD, b"\0") for piece in pieces), "<u8")
        )
        lasts = np.unique(
            np.frombuffer(b"".join(piece[-_WORD:].rjust(_WORD, b"\0") for piece in pieces), "<u8")
        )
        if len(firsts) >= len(lasts):
            keys, asked = (
                firsts,
                self._word(False, 0)[rows] & _FIRST_BYTES[np.minimum(self.sizes[rows], _WORD)],
            )
        else:
            keys, asked = (
                lasts,
                self._word(True, 0)[rows] & ~_FIRST_BYTES[_WORD - np.minimum(self.sizes[rows], _WORD)],
            )
        places = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        found: Bits = keys[places] == asked
        return found

    def _stands(self, fitting: Bits, piece: Piece, *, is_end: bool) -> Bits:
        """The fitting strings, all long enough, that begin or end with the piece."""
        for number, value, mask in piece.words(is_end):
            left = np.count_nonzero(fitting)
            if not left:
                break
            is_kept = (is_end, number) in self._kept
            if is_kept or (number < KEPT_WORDS and 4 * left > self.count):
                fitting = fitting & (self._word(is_end, number) & mask == value)
            else:
                rows = np.flatnonzero(fitting)
                words = self._words[self._word_places(is_end, number, rows)]
                fitting = np.zeros(self.count, np.bool_)
                fitting[rows] = words & mask == value
        return fitting

    def _word(self, is_end: bool, number: int) -> Array:
        """This word of every string. For a shorter string it has letters of its neighbours."""
        found = self._kept.get((is_end, number))
        if found is None:
            found = self._words[self._word_places(is_end, number, slice(None))]
            self._kept[is_end, number] = found
        return found

    def _own_word(self, number: int) -> Array:
        """This word from the beginning, with zeros after the string's end."""
        found = self._own.get(number)
        if found is None:
            rest = np.minimum(np.maximum(self.sizes - _WORD * number, 0), _WORD)
            found = self._own[number] = self._word(False, number) & _FIRST_BYTES[rest]
        return found

    def _word_places(self, is_end: bool, number: int, rows: Any) -> Array:
        if is_end:
            places: Array = self.ends[rows] * self.unit - _WORD * (number + 1)
        else:
            places = self.starts[rows] * self.unit + _WORD * number
        return places

    # ---- streams

    def _follow_short(self, rows: Array, pattern: like.Pattern, first: Piece, last: Piece) -> Array:
        """The rows in which the segments between first and last follow each other. A bit stands for a letter of each
        string; `ends` has a one where the match so far ends, or none."""
        ends = np.full(len(rows), 1 << first.size, np.uint64)
        for number, segment in enumerate(pattern[1:-1], 1):
            piece = Piece.of(segment, self.unit)
            spots = np.negative(ends)  # the bits from there on
            for offset, letter in piece.letters():
                bits = self._letter_bits(letter, rows)
                spots &= bits >> np.uint64(offset) if offset else bits
            np.negative(spots, out=ends)
            ends &= spots  # the lowest of the bits
            ends <<= np.uint64(piece.size)
            if number % _SHRINK == 0:
                is_left = ends != 0
                left = np.count_nonzero(is_left)
                if _SHRINK * left < len(rows):
                    rows, ends = rows[is_left], ends[is_left]
                    if not left:
                        break
        limits = _ONE << (self.sizes[rows] - last.size).astype(np.uint64)
        return np.compress((ends != 0) & (ends <= limits), rows)

    def _letter_bits(self, letter: int, rows: Array) -> Array:
        """The positions of this letter in each of the rows, all of them short: bit i for letter i."""
        found = self._bits.get(letter)
        if found is None:
            words, bits = self.starts >> 6, (self.starts & (_BITS - 1)).astype(np.uint64)
            stream = self._packed(letter)
            found = stream[words] >> bits
            found |= (stream[words + 1] << _ONE) << (np.uint64(_BITS - 1) - bits)
            found &= (_ONE << self.sizes.astype(np.uint64)) - _ONE
            self._keep(self._bits, letter, found)
        return found if len(rows) == self.count else found[rows]

    def _follow(self, rows: Array, pattern: like.Pattern, first: Piece, last: Piece) -> Array:
        """The same for strings of any length."""
        places = self.starts[rows] + first.size
        limits = self.ends[rows] - last.size
        for segment in pattern[1:-1]:
            piece = Piece.of(segment, self.unit)
            stream = self._beginnings(piece)
            if stream is None:
                return self._one_by_one(pattern, rows)
            places = self._next(stream, places, limits) + piece.size
            is_left = places <= limits
            rows, places, limits = rows[is_left], places[is_left], limits[is_left]
            if not len(rows):
                break
        return rows

    def _packed(self, letter: int) -> Array:
        found = np.empty(len(self.letters) // 8, np.uint8)
        for start in range(0, len(self.letters), _PORTION):
            part = np.packbits(self.letters[start : start + _PORTION] == letter, bitorder="little")
            found[start // 8 : start // 8 + len(part)] = part
        return found.view("<u8")

    def _keep(self, kept: dict[int, Array], letter: int, found: Array) -> None:
        if (len(kept) + 1) * found.nbytes > KEPT_BYTES:
            kept.clear()
        kept[letter] = found

    def _stream(self, letter: int) -> Array:
        """The positions of this letter: bit i % 64 of number i // 64 for letter i."""
        found = self._streams.get(letter)
        if found is None:
            found = self._packed(letter)
            self._keep(self._streams, letter, found)
        return found

    def _beginnings(self, piece: Piece) -> Array | None:
        """The beginnings of the piece in all strings; None if that costs more than testing strings one by one."""
        found = np.full(len(self.letters) // _BITS, 2**64 - 1, "<u8")
        for count, (offset, letter) in enumerate(piece.letters()):
            if count == MAX_PIECE:
                return None
            words, bits = divmod(offset, _BITS)
            stream = self._stream(letter)[words:]
            if bits:
                moved = stream >> np.uint64(bits)
                moved[:-1] |= stream[1:] << np.uint64(_BITS - bits)
                stream = moved
            found[: len(stream)] &= stream  # the others are too near the end to be within a string
            if not found.any():
                break
        return found

    def _next(self, stream: Array, places: Array, limits: Array) -> Array:
        """The first bit of the stream at or after each place; a value beyond its limit if there is none before it."""
        words, bits = places >> 6, (places & (_BITS - 1)).astype(np.uint64)
        window = stream[words] >> bits
        window |= (stream[words + 1] << _ONE) << (np.uint64(_BITS - 1) - bits)
        found: Array = places + np.bitwise_count(~window & (window - _ONE))  # the zeros below the lowest bit
        missing = np.flatnonzero((window == 0) & (found < limits))
        if len(missing):
            all_places = np.flatnonzero(np.unpackbits(stream.view(np.uint8), bitorder="little"))
            ends = np.concatenate((all_places, np.full(1, len(self.letters))))
            found[missing] = ends[np.searchsorted(all_places, found[missing])]
        return found

    # ---- single strings

    def _have_pieces(self, pattern: like.Pattern) -> bool:
        """Whether every literal text between two `%` occurs somewhere in the strings. Each different text costs one
        search over all strings together, for all patterns that have it."""
        if self._joined is None:
            self._joined = self.letters[FRONT : self.ends.item(-1)].tobytes()
        texts = {run for segment in pattern[1:-1] for run in segment if isinstance(run, str)}
        for text in sorted(texts, key=lambda text: (-len(text), text)):
            is_there = self._there.get(text)
            if is_there is None:
                code = "utf-8" if self.unit == 1 else "utf-32-le"
                is_there = self._there[text] = text.encode(code, "surrogatepass") in self._joined
            if not is_there:
                return False
        return True

    def _piece(self, row: int) -> bytes:
        return self.letters[self.starts.item(row) : self.ends.item(row)].tobytes()

    def _one_by_one(self, pattern: like.Pattern, rows: Array) -> Array:
        matches = like.compile_pattern(pattern)
        code = "utf-8" if self.unit == 1 else "utf-32-le"
        kept = [row for row in rows.tolist() if matches(self._piece(row).decode(code, "surrogatepass"))]
        return np.array(kept, np.int64)

    def _is_ascii(self) -> bool:
        inner = self.letters[FRONT : self.ends.item(-1)]
        return not len(inner) or bool(inner.max() < 0x80)

    def _code_points(self) -> StringColumn:
        """The same strings, with a letter for each of their characters."""
        if self._points is None:
            inner = self.letters[FRONT : self.ends.item(-1)]
            first = np.zeros(len(self.letters), np.bool_)  # of a character: no continuation byte
            first[FRONT : self.ends.item(-1)] = inner & 0xC0 != 0x80
            stream = np.packbits(first, bitorder="little").view("<u8")
            before = np.concatenate(
                (np.zeros(1, np.int64), np.cumsum(np.bitwise_count(stream), dtype=np.int64))
            )
            words, bits = self.ends >> 6, (self.ends & (_BITS - 1)).astype(np.uint64)
            ends = before[words] + np.bitwise_count(stream[words] & ((_ONE << bits) - _ONE))
            padded = b"".join((bytes(FRONT), inner.tobytes(), bytes(BACK)))
            points = padded.decode("utf-8", "surrogatepass").encode("utf-32-le", "surrogatepass")
            self._points = StringColumn(np.frombuffer(points, "<u4"), ends)
        return self._points


def _both(found: Bits, wanted: Bits | None) -> Bits:
    return found if wanted is None else found & wanted


_FIRST_BYTES: Array = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
