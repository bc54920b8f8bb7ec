"""Message selectors: text to tree. The language is that of Jakarta Messaging 3.1 §3.8.1.1, without extensions.

    text -> limits on length -> tokens (lark, jms.lark) -> `_Tokens`: limits, words, numbers -> LALR ->
    `_Builder`

The parser is built once, when this module is first imported, and keeps its own stack. `_Builder` runs while the parser
reduces, so there is no recursion. Every part carries its kind and where it began, so that a number used as a condition
is refused with a caret under it.

docs/selectors.md has the choices where the specification leaves them open. In short: numbers are decimal, hexadecimal
or octal as in Java, without its binary form, underscores and suffixes F and D; `%`, quoted identifiers and comments are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isinf
from typing import Any
from unicodedata import category

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from quorum_selectors import like
from quorum_selectors.arithmetic import INT64_MAX
from quorum_selectors.errors import (
    MAX_DEPTH,
    MAX_SELECTOR_CHARACTERS,
    MAX_SELECTOR_PERCENTS,
    MAX_SELECTOR_TOKENS,
    SelectorError,
)
from quorum_selectors.expression import (
    EVERYTHING,
    And,
    Arithmetic,
    Comparator,
    Comparison,
    DeliveryMode,
    Expression,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Sign,
)
from quorum_selectors.known_fields import DEFAULT_PRIORITY, JMS_REFUSED, jms_key

BLANKS = " \t\f\r\n"

KEYWORDS = {
    "AND": "_AND",
    "OR": "_OR",
    "NOT": "_NOT",
    "BETWEEN": "_BETWEEN",
    "LIKE": "_LIKE",
    "ESCAPE": "_ESCAPE",
    "IN": "_IN",
    "IS": "_IS",
    "NULL": "_NULL",
    "TRUE": "TRUE",
    "FALSE": "FALSE",
}

_EXACT = re.compile(
    r"(?:0[xX](?P<hexadecimal>[0-9A-Fa-f]+)|0(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))[lL]?", re.ASCII
)
_APPROXIMATE = re.compile(r"(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?", re.ASCII)


def parse(text: str) -> Expression:
    """The tree of a selector; a blank one selects everything. Raises SelectorError."""
    if len(text) > MAX_SELECTOR_CHARACTERS:
        message = f"the selector has {len(text)} characters; at most {MAX_SELECTOR_CHARACTERS} are allowed"
        raise SelectorError(message, text, MAX_SELECTOR_CHARACTERS)
    if not text.strip(BLANKS):
        return EVERYTHING
    try:
        part: _Part = _parser().parse(text)  # type: ignore[assignment]
    except _Problem as problem:
        message, offset = problem.args
    except UnexpectedToken as unexpected:
        message, offset = _unexpected_token(unexpected, text)
    except UnexpectedCharacters as unexpected:
        message, offset = _unexpected_character(text, unexpected.pos_in_stream or 0)
    else:
        return part.node
    raise SelectorError(message, text, offset)


class _Problem(Exception):
    """(message, offset): the reason why the text is refused. It becomes a SelectorError, which also knows the text."""


# ---- tokens


class _Tokens:
    """The stage between lark's lexer and its parser: counts tokens, sorts words, and makes checks that the grammar
    cannot express."""

    always_accept = ("WORD",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth = percents = 0
        previous: Token | None = None
        for count, read in enumerate(stream, 1):
            token = _word(read) if read.type == "WORD" else read
            start = _start(token)
            if count > MAX_SELECTOR_TOKENS:
                raise _Problem(f"the selector has more than {MAX_SELECTOR_TOKENS} words and signs", start)
            if token.type == "LPAR":
                depth += 1
                if depth > MAX_DEPTH:
                    raise _Problem(f"brackets nest deeper than {MAX_DEPTH}", start)
            elif token.type == "RPAR":
                depth -= 1
            elif (
                token.type == "MINUS"
                and previous is not None
                and previous.type == "MINUS"
                and previous.end_pos == start
            ):
                raise _Problem(
                    "comments are not supported; two minus signs need a blank between them", start - 1
                )
            elif token.type == "STAR" and previous is not None and previous.type == "SLASH":
                raise _Problem("comments are not supported", _start(previous))
            elif token.type == "STRING" and previous is not None and previous.type == "_LIKE":
                percents += token.count("%")
                if percents > MAX_SELECTOR_PERCENTS:
                    raise _Problem(
                        f"the selector's LIKE patterns have more than {MAX_SELECTOR_PERCENTS} % together",
                        start,
                    )
            previous = token
            yield token


def _start(token: Token) -> int:
    return token.start_pos or 0


def _word(token: Token) -> Token:
    """A word as keyword or identifier. Keywords are ASCII, so that case folding beyond ASCII makes no new ones."""
    word = str(token)
    if word.isascii():
        if keyword := KEYWORDS.get(word.upper()):
            return Token.new_borrow_pos(keyword, word, token)
    else:
        for place, character in enumerate(word):
            if not (is_identifier_part(character) if place else is_identifier_start(character)):
                raise _Problem(
                    f"{character!a} (U+{ord(character):04X}) cannot stand in an identifier",
                    _start(token) + place,
                )
    return Token.new_borrow_pos("IDENTIFIER", word, token)


def is_identifier_start(character: str) -> bool:
    """Java's Character.isJavaIdentifierStart: letters, letter numbers, currency signs, connecting
    punctuation."""
    return category(character) in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc")


def is_identifier_part(character: str) -> bool:
    """Java's Character.isJavaIdentifierPart: besides those, digits, combining marks and ignorable
    characters."""
    return (
        is_identifier_start(character)
        or category(character) in ("Nd", "Mn", "Mc", "Cf")
        or character <= "\x08"
        or "\x0e" <= character <= "\x1b"
        or "\x7f" <= character <= "\x9f"
    )


# ---- parts


_NUMBER = "a number"
_STRING = "a string"
_BOOLEAN = "TRUE or FALSE"
_CONDITION = "a condition"
_FIELD = "an identifier"
_LEAST = "the number 9223372036854775808"
"""2**63 without its minus sign: in Java, and here, it may only follow a minus sign directly."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A parsed piece of the selector: its tree, its kind, its depth, and where it began."""

    node: Expression
    kind: str
    start: int
    depth: int = 1


@v_args(inline=True)
class _Builder(Transformer[Token, _Part]):
    """Called by the parser for each recognised rule, innermost first."""

    def start(self, part: _Part) -> _Part:
        return _condition(part)

    def disjunction(self, *parts: _Part) -> _Part:
        return _join(Or, parts)

    def conjunction(self, *parts: _Part) -> _Part:
        return _join(And, parts)

    def negation(self, part: _Part) -> _Part:
        return _negated(_condition(part))

    def comparison(self, left: _Part, op: Token, right: _Part) -> _Part:
        for part in (left, right):
            _check_least(part)
            if part.kind == _CONDITION and op not in ("=", "<>"):
                raise _Problem(f"a condition cannot be compared with {op}", part.start)
        return _over(_CONDITION, Comparison(str(op), left.node, right.node), left, right)  # type: ignore[arg-type]

    def between(self, value: _Part, low: _Part, high: _Part) -> _Part:
        return _range(And, value, (">=", low), ("<=", high))

    def not_between(self, value: _Part, low: _Part, high: _Part) -> _Part:
        return _range(Or, value, ("<", low), (">", high))

    def like(self, operand: _Part, pattern: Token, escape: Token | None) -> _Part:
        _identifier(operand, "LIKE")
        character = None if escape is None else _unquoted(escape)
        if character is not None and len(character) != 1:
            raise _Problem("ESCAPE takes a string of one character", _start(escape or pattern))
        try:
            segments = like.parse_pattern(_unquoted(pattern), character)
        except like.PatternError as error:
            # The escape is the pattern's last character, directly before the closing quote.
            raise _Problem(str(error), (pattern.end_pos or 0) - 2) from None
        return _over(_CONDITION, Like(operand.node, segments), operand)

    def not_like(self, operand: _Part, pattern: Token, escape: Token | None) -> _Part:
        return _negated(self.like(operand, pattern, escape))

    def in_list(self, operand: _Part, *values: Token) -> _Part:
        _identifier(operand, "IN")
        return _over(_CONDITION, In(operand.node, tuple(_unquoted(value) for value in values)), operand)

    def not_in_list(self, operand: _Part, *values: Token) -> _Part:
        return _negated(self.in_list(operand, *values))

    def is_null(self, operand: _Part) -> _Part:
        _identifier(operand, "IS NULL")
        return _over(_CONDITION, IsNull(operand.node), operand)

    def is_not_null(self, operand: _Part) -> _Part:
        return _negated(self.is_null(operand))

    def arithmetic(self, left: _Part, op: Token, right: _Part) -> _Part:
        _number(left)
        _number(right)
        return _over(_NUMBER, Arithmetic(str(op), left.node, right.node), left, right)  # type: ignore[arg-type]

    def signed(self, op: Token, operand: _Part) -> _Part:
        start = _start(op)
        if operand.kind == _LEAST and op == "-":
            return _Part(Literal(-(INT64_MAX + 1)), _NUMBER, start)
        _number(operand)
        if isinstance(operand.node, Literal) and isinstance(operand.node.value, int | float):
            value = operand.node.value
            if op == "+" or value != -(INT64_MAX + 1):
                return _Part(Literal(value if op == "+" else -value), _NUMBER, start)
        part = _over(_NUMBER, Sign("+" if op == "+" else "-", operand.node), operand)
        return _Part(part.node, part.kind, start, part.depth)

    def number(self, token: Token) -> _Part:
        value = _numeral(token)
        kind = _LEAST if value == INT64_MAX + 1 and isinstance(value, int) else _NUMBER
        return _Part(Literal(value), kind, _start(token))

    def string(self, token: Token) -> _Part:
        return _Part(Literal(_unquoted(token)), _STRING, _start(token))

    def true(self, token: Token) -> _Part:
        return _Part(Literal(True), _BOOLEAN, _start(token))

    def false(self, token: Token) -> _Part:
        return _Part(Literal(False), _BOOLEAN, _start(token))

    def identifier(self, token: Token) -> _Part:
        name = str(token)
        if name in JMS_REFUSED:
            raise _Problem(f"{name} cannot be selected on: {JMS_REFUSED[name]}", _start(token))
        node: Expression
        if name == "JMSDeliveryMode":
            node = DeliveryMode()
        else:
            node = Field(jms_key(name), DEFAULT_PRIORITY if name == "JMSPriority" else None)
        return _Part(node, _FIELD, _start(token))

    def brackets(self, part: _Part) -> _Part:
        _check_least(part)
        return part


def _over(kind: str, node: Expression, *below: _Part) -> _Part:
    depth = 1 + max(part.depth for part in below)
    if depth > MAX_DEPTH:
        raise _Problem(f"the selector nests deeper than {MAX_DEPTH}", below[0].start)
    return _Part(node, kind, below[0].start, depth)


def _join(join: type[And] | type[Or], parts: tuple[_Part, ...]) -> _Part:
    return _over(_CONDITION, join(tuple(_condition(part).node for part in parts)), *parts)


def _range(join: type[And] | type[Or], value: _Part, *bounds: tuple[Comparator, _Part]) -> _Part:
    for part in (value, *(bound for _, bound in bounds)):
        _number(part)
    return _join(
        join,
        tuple(
            _over(_CONDITION, Comparison(op, value.node, bound.node), value, bound) for op, bound in bounds
        ),
    )


def _negated(part: _Part) -> _Part:
    return _over(_CONDITION, Not(part.node), part)


def _condition(part: _Part) -> _Part:
    if part.kind not in (_CONDITION, _BOOLEAN, _FIELD):
        raise _Problem(f"a condition is needed here, not {part.kind}", part.start)
    return part


def _number(part: _Part) -> None:
    _check_least(part)
    if part.kind not in (_NUMBER, _FIELD):
        raise _Problem(f"a number or an identifier is needed here, not {part.kind}", part.start)


def _identifier(part: _Part, operator: str) -> None:
    if part.kind != _FIELD:
        raise _Problem(f"{operator} takes an identifier on its left, not {part.kind}", part.start)


def _check_least(part: _Part) -> None:
    if part.kind == _LEAST:
        raise _Problem("9223372036854775808 is beyond a 64-bit number", part.start)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _numeral(token: Token) -> int | float:
    """The value of a number as spelled; 2**63 passes, because its minus sign may still follow."""
    text = str(token)
    if exact := _EXACT.fullmatch(text):
        value = int(
            exact[exact.lastgroup or 0], {"hexadecimal": 16, "octal": 8, "decimal": 10}[exact.lastgroup or ""]
        )
        if value > INT64_MAX and not (value == INT64_MAX + 1 and exact.lastgroup == "decimal"):
            raise _Problem(f"{_shortened(text)} is beyond a 64-bit number", _start(token))
        return value
    if _APPROXIMATE.fullmatch(text):
        number = float(text)
        if isinf(number):
            raise _Problem(f"{_shortened(text)} is beyond a double", _start(token))
        if number == 0.0 and re.match(r"[0.]*[1-9]", text):
            raise _Problem(f"{_shortened(text)} is too small for a double", _start(token))
        return number
    raise _Problem(f"{_shortened(text)!a} is not a number{_number_advice(text)}", _start(token))


def _number_advice(text: str) -> str:
    if "_" in text:
        return "; underscores are not supported"
    if text[-1] in "fFdD" and not text.lower().startswith("0x"):
        return "; the suffixes F and D are not supported"
    if re.fullmatch(r"0[0-9]+[lL]?", text, re.ASCII):
        return "; after a leading 0 only octal digits can follow"
    if text[:2] in ("0b", "0B"):
        return "; binary numbers are not supported"
    return ""


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


# ---- errors of the parser

_SPOKEN = {
    "STRING": "a string",
    "NUMBER": "a number",
    "IDENTIFIER": "an identifier",
    "COMPARATOR": "a comparison",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "PLUS": "+",
    "MINUS": "-",
    "STAR": "*",
    "SLASH": "/",
    "$END": "the end",
}


def _unexpected_token(error: UnexpectedToken, text: str) -> tuple[str, int]:
    expected = sorted(_SPOKEN.get(name, name.lstrip("_")) for name in error.accepts or error.expected)
    wanted = f"expected {' or '.join(expected)}" if len(expected) <= 8 else "expected a value or a condition"
    token = error.token
    start = _start(token)
    if str(token) == "=" and text[start - 1 : start] == "=":
        return "equal is written =", start - 1
    if token.type == "$END":
        return f"the selector ends too early; {wanted}", len(text.rstrip(BLANKS))
    return f"{_shortened(str(token))!a} cannot stand here; {wanted}", start


def _unexpected_character(text: str, offset: int) -> tuple[str, int]:
    character = text[offset]
    advice = {
        "'": "the string has no closing quote",
        '"': "identifiers cannot be quoted, and strings take single quotes",
        "%": "there is no operator %",
        "!": "not equal is written <>",
    }.get(character)
    return advice or f"{character!a} cannot stand in a selector", offset


@cache
def _parser() -> Lark:
    """The parser. It is built for the first selector, because that takes 30 ms."""
    options: dict[str, Any] = {
        "parser": "lalr",
        "lexer": "basic",
        "keep_all_tokens": False,
        "maybe_placeholders": True,
    }
    return Lark.open("jms.lark", rel_to=__file__, transformer=_Builder(), postlex=_Tokens(), **options)
