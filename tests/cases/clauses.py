"""What a specification case is, and the clauses that cases come from.

A clause is a section of a text, with the words of the paragraph where a section has many. "choice: ..." names a
point that the text leaves open: docs/selectors.md has it in one of its tables of choices, word for word.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

U = None
"""UNKNOWN"""
X = "refused"

MAX = 2**63 - 1
MIN = -(2**63)
NAN = float("nan")
INF = float("inf")

Fields = dict[str, Any]


class Case(NamedTuple):
    """A selector, asked of a message. fields: as a selector names them; expected: True, False, U or X."""

    selector: str
    fields: Fields
    expected: bool | str | None
    clause: str
    why: str


class FilterCase(NamedTuple):
    """A property filter, asked of a message. expected: True, False or X."""

    properties: Fields
    application_properties: Fields
    message_properties: Fields
    message_application: Fields
    expected: bool | str
    clause: str
    why: str


def under(clause: str, rows: Iterable[tuple[str, Fields, bool | str | None, str]]) -> list[Case]:
    """The cases (selector, fields, expected, why) of one clause."""
    return [Case(selector, fields, expected, clause, why) for selector, fields, expected, why in rows]


CHOICE = "choice: "

JMS_CLAUSES = {
    "JMS 3.1 §3.4.10": "JMSPriority, from 0 to 9",
    "JMS 3.1 §3.5.8": "a property that is not set is null",
    "JMS 3.1 §3.5.9": "JMSX properties: absent ones are like any other; those set on receive are undefined",
    "JMS 3.1 §3.5.10": "JMS_vendor properties",
    "JMS 3.1 §3.8.1.1 empty selector": "the empty string is no selector",
    "JMS 3.1 §3.8.1.1 order of evaluation": "left to right within a level of precedence; brackets",
    "JMS 3.1 §3.8.1.1 letter case": "predefined names in any case",
    "JMS 3.1 §3.8.1.1 string literals": "single quotes, doubled inside",
    "JMS 3.1 §3.8.1.1 exact literals": "numbers without a point, as Java writes them, in the range of long",
    "JMS 3.1 §3.8.1.1 approximate literals": "numbers with a point or exponent, in the range of double",
    "JMS 3.1 §3.8.1.1 boolean literals": "TRUE and FALSE",
    "JMS 3.1 §3.8.1.1 identifiers": "as in Java, of any length; they have upper and lower case",
    "JMS 3.1 §3.8.1.1 reserved names": "what cannot be an identifier",
    "JMS 3.1 §3.8.1.1 property types": "a property has the type it was set with; no conversion",
    "JMS 3.1 §3.8.1.1 header fields": "six of them may be referenced",
    "JMS 3.1 §3.8.1.1 white space": "blank, tab, form feed, line ends",
    "JMS 3.1 §3.8.1.1 conditional expressions": "what may stand as a condition; only TRUE matches",
    "JMS 3.1 §3.8.1.1 arithmetic expressions": "what may be calculated with",
    "JMS 3.1 §3.8.1.1 logical operators": "NOT before AND before OR",
    "JMS 3.1 §3.8.1.1 comparison": "like types; exact and approximate numbers mix",
    "JMS 3.1 §3.8.1.1 unlike types": "comparing them is FALSE",
    "JMS 3.1 §3.8.1.1 equality": "strings and booleans have = and <>; equal strings have the same characters",
    "JMS 3.1 §3.8.1.1 arithmetic operators": "signs before * and / before + and -; numeric promotion",
    "JMS 3.1 §3.8.1.1 BETWEEN": "two comparisons with AND; NOT BETWEEN two with OR",
    "JMS 3.1 §3.8.1.1 IN": "an identifier and strings; equalities with OR; NOT IN negates them",
    "JMS 3.1 §3.8.1.1 LIKE": "an identifier, a pattern of % and _, perhaps an escape",
    "JMS 3.1 §3.8.1.1 IS NULL": "an identifier: is it absent",
    "JMS 3.1 §3.8.1.1 verification": "a selector with bad syntax is refused when it is given",
    "JMS 3.1 §3.8.1.1 example": "the one at the section's end",
    "JMS 3.1 §3.8.1.2": "comparing and calculating with NULL is UNKNOWN; IS NULL is not",
    "JMS 3.1 §3.8.1.2 table 3-4": "AND",
    "JMS 3.1 §3.8.1.2 table 3-5": "OR",
    "JMS 3.1 §3.8.1.2 table 3-6": "NOT",
    "JMS 3.1 §3.8.1.3 delivery mode": "two strings",
    "JMS 3.1 §3.8.1.3 date and time": "milliseconds, as exact literals",
    "JMS 3.1 §3.8.1.3 comments": "none",
    "Java SE JLS §3.6": "white space",
    "Java SE JLS §3.8": "identifiers: letters and digits of any script",
    "Java SE JLS §3.10.1": "integer literals: hexadecimal, octal, the suffix L; 2^63 only after a minus sign",
    "Java SE JLS §3.10.2": "floating-point literals; too large or too small a one is an error",
    "Java SE JLS §4.2.3": "NaN, infinities, two zeros",
    "Java SE JLS §5.6": "binary numeric promotion: long becomes double beside a double",
    "Java SE JLS §15.15.3": "unary plus",
    "Java SE JLS §15.15.4": "unary minus",
    "Java SE JLS §15.17.1": "multiplication",
    "Java SE JLS §15.17.2": "division: of integers towards zero",
    "Java SE JLS §15.18.2": "addition and subtraction",
    "Java SE JLS §15.20.1": "order of numbers: none with NaN",
    "Java SE JLS §15.21.1": "equality of numbers: NaN is unequal to all",
    "SQL-92 §8.2": "comparison: UNKNOWN where one side is NULL",
    "SQL-92 §8.3": "BETWEEN",
    "SQL-92 §8.4": "IN",
    "SQL-92 §8.5": "LIKE: the string is cut into pieces that fit; a pattern cannot end in its escape",
    "SQL-92 §8.6": "IS NULL",
    "SQL-92 §8.12": "NOT stands over predicates, AND over NOT, OR over AND",
    "AMQP 1.0 §3.2.1": "the header section: durable (FALSE by default), priority (4)",
    "AMQP 1.0 §3.2.4": "the properties section: names and types",
}

FILTER_CLAUSES = {
    "AMQP 1.0 §1.6": "primitive types: their ranges",
    "AMQP 1.0 §3.2.4": "the properties section: names and types",
    "AMQP 1.0 §3.2.5": "application properties: a map from strings to simple values",
    "FILTEX 1.0 §2.1": "a filter that can be evaluated is TRUE or FALSE",
    "FILTEX 1.0 §4 field definitions": "names and types of a filter on properties are those of the section",
    "FILTEX 1.0 §4 absent entries": "they are NULL",
    "FILTEX 1.0 §4 every entry": "all of them have to match",
    "FILTEX 1.0 §4.1.1 NULL": "a reference that is NULL matches",
    "FILTEX 1.0 §4.1.1 same type": "equal values of one type match",
    "FILTEX 1.0 §4.1.1 integers": "of any width, by value",
    "FILTEX 1.0 §4.1.1 floating point": "if one is floating, both are",
    "FILTEX 1.0 §4.1.1 strings": "strings and symbols, character by character",
    "FILTEX 1.0 §4.1.1 prefix": "&p:",
    "FILTEX 1.0 §4.1.1 suffix": "&s:",
    "FILTEX 1.0 §4.1.1 escape": "&&",
    "FILTEX 1.0 §4.1.2": "the order of entries says nothing",
    "FILTEX 1.0 §4.2.4": "the filter on properties",
    "FILTEX 1.0 §4.2.5": "the filter on application properties",
    "FILTEX 1.0 §7.1": "limits on what a filter costs",
}
"""FILTEX 1.0: OASIS AMQP Filter Expressions 1.0, working draft 10."""
