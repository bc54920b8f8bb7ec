"""The errors of this package, and whose fault each one is.

    SelectorsError(ValueError)
      SelectorError     the selector's author: syntax, types or limits; has line, column and a caret
      FilterError       the filter's author: an AMQP property filter that means nothing
      FieldNameError    the queue's owner: x-filter-field-names
      EncodingError     bytes that none of our encoders wrote, or an expression beyond the limits of the encoding
      ColumnsError      the same for columns of filter fields, or a value that no column can hold

Only parsing, encoding and decoding refuse. Evaluation never raises.
"""

from __future__ import annotations

from unicodedata import east_asian_width

MAX_SELECTOR_CHARACTERS = 4096
MAX_SELECTOR_TOKENS = 200
MAX_SELECTOR_PERCENTS = 200
"""Maximum number of `%` in all LIKE patterns of a selector together, equal to the maximum of its words. Each costs a
search."""
MAX_DEPTH = 100
"""Maximum nesting of an expression. It keeps every walk over a tree far from Python's recursion limit, and still allows
a sum of as many terms as MAX_SELECTOR_TOKENS allows."""

MAX_CARET_LINE = 100
"""Maximum number of characters of a long line that an error shows around its caret."""


class SelectorsError(ValueError):
    """Base of the errors of this package."""


class SelectorError(SelectorsError):
    """A selector is refused. line and column count from 1, in characters of the text."""

    def __init__(self, message: str, text: str, offset: int) -> None:
        self.message = message
        self.line, self.column, self.caret = locate(text, offset)
        super().__init__(f"line {self.line}, column {self.column}: {message}\n{self.caret}")


class FilterError(SelectorsError):
    """A property filter is refused."""


class FieldNameError(SelectorsError):
    """A field name is refused in x-filter-field-names."""


class EncodingError(SelectorsError):
    """An expression cannot be encoded, or bytes are no encoded expression."""


class ColumnsError(SelectorsError):
    """Values cannot be stored in a column, or bytes are no columns."""


def locate(text: str, offset: int) -> tuple[int, int, str]:
    """The line number, the column number, and two lines of text: the line in question (cut if long) and a caret below
    it."""
    offset = max(0, min(offset, len(text)))
    line, start, position = 1, 0, 0
    while position < offset:
        if text[position] == "\n" or (text[position] == "\r" and text[position + 1 : position + 2] != "\n"):
            line, start = line + 1, position + 1
        position += 1
    end = start
    while end < min(len(text), offset + MAX_CARET_LINE) and text[end] not in "\r\n":
        end += 1
    column = offset - start + 1
    first = max(start, min(offset - MAX_CARET_LINE // 2, end - MAX_CARET_LINE))
    last = min(end, first + MAX_CARET_LINE)
    # Characters that would move the caret away from its place (tabs, controls, lone surrogates) are shown as one blank
    # or mark.
    shown = "".join(
        " " if character == "\t" else character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in text[first:last]
    )
    cells = sum(2 if east_asian_width(character) in "WF" else 1 for character in shown[: offset - first])
    return line, column, f"{shown}\n{' ' * cells}^"
