"""What AMQP property filters mean, case by case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cases.clauses import INF, MAX, MIN, NAN, Fields, FilterCase, X


def application(clause: str, rows: Iterable[tuple[Any, Fields, bool, str]]) -> list[FilterCase]:
    """The application property k is compared with a reference: (reference, message's, expected, why)."""
    return [
        FilterCase({}, {"k": reference}, {}, message, expected, clause, why)
        for reference, message, expected, why in rows
    ]


def properties(clause: str, rows: Iterable[tuple[Fields, Fields, bool, str]]) -> list[FilterCase]:
    """Properties are compared: (filter's, message's, expected, why)."""
    return [
        FilterCase(references, {}, message, {}, expected, clause, why)
        for references, message, expected, why in rows
    ]


def both(clause: str, rows: Iterable[tuple[Fields, Fields, Fields, Fields, bool, str]]) -> list[FilterCase]:
    """Both sections: (filter's properties, its application properties, the message's, expected, why)."""
    return [
        FilterCase(references, of_application, message, application_message, expected, clause, why)
        for references, of_application, message, application_message, expected, why in rows
    ]


def refused(clause: str, rows: Iterable[tuple[Fields, Fields, str]]) -> list[FilterCase]:
    """Filters that cannot be: (properties, application properties, why)."""
    return [
        FilterCase(references, of_application, {}, {}, X, clause, why)
        for references, of_application, why in rows
    ]


STRINGS = ("user-id", "to", "subject", "reply-to", "content-type", "content-encoding", "group-id")
"""Properties that hold text."""
IDENTIFIERS = ("message-id", "correlation-id")
TIMES = ("absolute-expiry-time", "creation-time")

VALUES = [
    *application(
        "FILTEX 1.0 §4.1.1 same type",
        [
            (True, {"k": True}, True, "booleans"),
            (True, {"k": False}, False, "booleans"),
            (False, {"k": False}, True, "booleans"),
            (True, {"k": 1}, False, "numbers are not booleans"),
            (True, {"k": 1.0}, False, "numbers are not booleans"),
            (True, {"k": "true"}, False, "strings are not booleans"),
            (0, {"k": False}, False, "booleans are not numbers"),
            (1, {"k": True}, False, "booleans are not numbers"),
            (1.0, {"k": True}, False, "booleans are not numbers"),
            ("5", {"k": 5}, False, "numbers are not strings"),
            (5, {"k": "5"}, False, "strings are not numbers"),
            (5.0, {"k": "5.0"}, False, "strings are not numbers"),
            ("", {"k": False}, False, "booleans are not strings"),
        ],
    ),
    *application(
        "FILTEX 1.0 §4.1.1 integers",
        [
            (5, {"k": 5}, True, "equal"),
            (5, {"k": 6}, False, "not equal"),
            (-5, {"k": -5}, True, "signed"),
            (200, {"k": 2**40}, False, "any width"),
            (2**53, {"k": 2**53 + 1}, False, "compared exactly"),
            (MAX, {"k": MAX}, True, "the greatest"),
            (MIN, {"k": MIN}, True, "the least"),
            (MAX, {"k": MAX - 1}, False, "no rounding"),
        ],
    ),
    *application(
        "FILTEX 1.0 §4.1.1 floating point",
        [
            (1.5, {"k": 1.5}, True, "both floating"),
            (1.5, {"k": 2.5}, False, "both floating"),
            (5, {"k": 5.0}, True, "one is floating"),
            (5.0, {"k": 5}, True, "one is floating"),
            (5.5, {"k": 5}, False, "one is floating"),
            (5, {"k": 5.5}, False, "one is floating"),
            (2.0**53, {"k": 2**53 + 1}, True, "equal when treated as floating"),
            (0.0, {"k": -0.0}, True, "the zeros are equal"),
            (INF, {"k": INF}, True, "infinity"),
            (INF, {"k": -INF}, False, "infinity"),
            (NAN, {"k": NAN}, False, "NaN equals nothing"),
        ],
    ),
    *application(
        "FILTEX 1.0 §4.1.1 strings",
        [
            ("x", {"k": "x"}, True, "the same"),
            ("x", {"k": "y"}, False, "not the same"),
            ("x", {"k": "X"}, False, "case-sensitive"),
            ("x", {"k": "xy"}, False, "the lengths are identical"),
            ("xy", {"k": "x"}, False, "the lengths are identical"),
            ("", {"k": ""}, True, "the empty string"),
            ("", {"k": "x"}, False, "the empty string"),
            ("é", {"k": "é"}, True, "ordinal values of the characters"),
            ("é", {"k": "e\u0301"}, False, "ordinal values of the characters"),
            ("\U0001f600", {"k": "\U0001f600"}, True, "beyond 16 bits"),
            ("x\ny", {"k": "x\ny"}, True, "line ends"),
            ("%", {"k": "abc"}, False, "no wildcards"),
            ("a*", {"k": "abc"}, False, "no wildcards"),
            ("a_c", {"k": "abc"}, False, "no wildcards"),
        ],
    ),
    *application(
        "FILTEX 1.0 §4.1.1 NULL",
        [
            (None, {"k": "anything"}, True, "a string"),
            (None, {"k": 5}, True, "a number"),
            (None, {"k": False}, True, "a boolean"),
            (None, {}, True, "also what is absent; RabbitMQ: not"),
        ],
    ),
    *application(
        "FILTEX 1.0 §4 absent entries",
        [
            ("x", {}, False, "NULL equals no string"),
            ("", {}, False, "nor the empty one"),
            (0, {}, False, "nor 0"),
            (0.0, {}, False, "nor 0.0"),
            (False, {}, False, "nor false"),
            ("x", {"k": None}, False, "NULL is absent"),
            ("x", {"other": "x"}, False, "another entry"),
            ("&p:x", {}, False, "it has no prefix"),
            ("&s:x", {}, False, "nor a suffix"),
            ("&&x", {}, False, "nor is it any string"),
        ],
    ),
    *properties(
        "FILTEX 1.0 §4 absent entries",
        [
            ({"subject": "s"}, {}, False, "no properties at all"),
            ({"subject": "&p:"}, {}, False, "it has no prefix, not even an empty one"),
            ({"creation-time": 0}, {}, False, "no default"),
            ({"group-sequence": 0}, {}, False, "no default"),
        ],
    ),
    *application(
        "choice: integers beyond 64 bits in a filter",
        [(5, {"k": 2**64}, False, "in a message: equals nothing")],
    ),
]

MODIFIERS = [
    *application(
        "FILTEX 1.0 §4.1.1 prefix",
        [
            ("&p:ab", {"k": "abc"}, True, "the beginning"),
            ("&p:ab", {"k": "ab"}, True, "the prefix alone"),
            ("&p:ab", {"k": "a"}, False, "too short"),
            ("&p:ab", {"k": "xab"}, False, "not at the beginning"),
            ("&p:ab", {"k": "ABc"}, False, "case-sensitive"),
            ("&p:é", {"k": "été"}, True, "beyond ASCII"),
            ("&p:a\nb", {"k": "a\nbc"}, True, "line ends"),
            ("&p:%_", {"k": "%_x"}, True, "no wildcards"),
            ("&p:%_", {"k": "abx"}, False, "no wildcards"),
            ("&p:&x", {"k": "&xy"}, True, "no modifier in a modifier"),
            ("&p:&&", {"k": "&x"}, False, "no escape in a modifier"),
            ("&p:&p:x", {"k": "&p:xy"}, True, "no modifier in a modifier"),
        ],
    ),
    *application(
        "FILTEX 1.0 §4.1.1 suffix",
        [
            ("&s:bc", {"k": "abc"}, True, "the end"),
            ("&s:bc", {"k": "bc"}, True, "the suffix alone"),
            ("&s:bc", {"k": "c"}, False, "too short"),
            ("&s:bc", {"k": "bcx"}, False, "not at the end"),
            ("&s:bc", {"k": "aBC"}, False, "case-sensitive"),
            ("&s:bc", {"k": "abc\n"}, False, "a line end is a character"),
            ("&s:té", {"k": "été"}, True, "beyond ASCII"),
            ("&s:_%", {"k": "x_%"}, True, "no wildcards"),
            ("&s:_%", {"k": "xyz"}, False, "no wildcards"),
            ("&s:&p:x", {"k": "a&p:x"}, True, "no modifier in a modifier"),
        ],
    ),
    *application(
        "FILTEX 1.0 §4.1.1 escape",
        [
            ("&&", {"k": "&"}, True, "one & is left"),
            ("&&abc", {"k": "&abc"}, True, "one & is left"),
            ("&&abc", {"k": "&&abc"}, False, "only one"),
            ("&&abc", {"k": "abc"}, False, "not none"),
            ("&&p:x", {"k": "&p:x"}, True, "no modifier"),
            ("&&p:x", {"k": "xy"}, False, "no modifier"),
            ("&&&x", {"k": "&&x"}, True, "only the first is taken off"),
            ("a&p:x", {"k": "a&p:x"}, True, "nothing to escape but at the beginning"),
            (" &p:x", {"k": " &p:x"}, True, "nothing to escape but at the beginning"),
            ("a&&b", {"k": "a&&b"}, True, "nothing to escape but at the beginning"),
        ],
    ),
    *application(
        "choice: an empty prefix or suffix",
        [
            ("&p:", {"k": "x"}, True, "of any string"),
            ("&p:", {"k": ""}, True, "of any string"),
            ("&s:", {"k": "x"}, True, "of any string"),
            ("&p:", {"k": 5}, False, "a number is no string"),
            ("&p:", {}, False, "nor is what is absent"),
        ],
    ),
    *application(
        "choice: a prefix or suffix of what is no string",
        [
            ("&p:5", {"k": 55}, False, "a number"),
            ("&s:5", {"k": 5.5}, False, "a number"),
            ("&p:t", {"k": True}, False, "a boolean"),
        ],
    ),
    *refused(
        "choice: other modifiers",
        [
            ({}, {"k": "&"}, "none"),
            ({}, {"k": "&x"}, "none"),
            ({}, {"k": "&x:y"}, "an unknown one"),
            ({}, {"k": "&r:x.*"}, "an unknown one"),
            ({}, {"k": "&P:y"}, "they are case-sensitive"),
            ({}, {"k": "&py"}, "no colon"),
            ({}, {"k": "& p:y"}, "a blank"),
            ({"subject": "&x:y"}, {}, "in properties too"),
        ],
    ),
]

FIELDS = [
    *properties(
        "FILTEX 1.0 §4.2.4",
        [
            row
            for name in (*STRINGS, "reply-to-group-id", *IDENTIFIERS)
            for row in (
                ({name: "abc"}, {name: "abc"}, True, "each field that holds text: equal"),
                ({name: "abc"}, {name: "abd"}, False, "each field that holds text: not equal"),
                ({name: "&p:ab"}, {name: "abc"}, True, "each field that holds text: prefix"),
                ({name: "&s:bc"}, {name: "abx"}, False, "each field that holds text: suffix"),
            )
        ],
    ),
    *properties(
        "AMQP 1.0 §3.2.4",
        [
            ({"message-id": 7}, {"message-id": 7}, True, "message-id may be a ulong"),
            ({"message-id": 7}, {"message-id": "7"}, False, "which is no string"),
            ({"correlation-id": 7}, {"correlation-id": 7}, True, "correlation-id too"),
            ({"correlation-id": 7}, {"correlation-id": "7"}, False, "which is no string"),
            ({"content-type": "a/b"}, {"content-type": "a/b"}, True, "a symbol equals a string"),
            ({"creation-time": 1700000000000}, {"creation-time": 1700000000000}, True, "milliseconds"),
            ({"creation-time": 1700000000000}, {"creation-time": 1700000000001}, False, "milliseconds"),
            ({"creation-time": -1}, {"creation-time": -1}, True, "before 1970"),
            ({"absolute-expiry-time": 1}, {"absolute-expiry-time": 1}, True, "milliseconds"),
            ({"absolute-expiry-time": 1}, {"absolute-expiry-time": 2}, False, "milliseconds"),
            ({"group-sequence": 0}, {"group-sequence": 0}, True, "the first of a uint"),
            ({"group-sequence": 2**32 - 1}, {"group-sequence": 2**32 - 1}, True, "the last of a uint"),
            ({"group-sequence": 3}, {"group-sequence": 4}, False, "not equal"),
        ],
    ),
    *refused(
        "FILTEX 1.0 §4 field definitions",
        [
            *[({name: 5}, {}, "each field that holds text: no number") for name in STRINGS],
            *[({name: "now"}, {}, "each field that holds a time: no text") for name in TIMES],
            *[({name: 1.5}, {}, "each field that holds a time: no fraction") for name in TIMES],
            *[({name: 1.5}, {}, "each identifier: no double") for name in IDENTIFIERS],
            *[({name: True}, {}, "each identifier: no boolean") for name in IDENTIFIERS],
            ({"subject": True}, {}, "text: no boolean"),
            ({"creation-time": True}, {}, "a time: no boolean"),
            ({"creation-time": "&p:17"}, {}, "a time has no prefix"),
            ({"group-sequence": "1"}, {}, "a uint: no text"),
            ({"group-sequence": -1}, {}, "a uint: no sign"),
            ({"group-sequence": 2**32}, {}, "a uint: 32 bits"),
            ({"group-sequence": "&p:1"}, {}, "a uint has no prefix"),
            ({"Subject": "x"}, {}, "no such field: case"),
            ({"message_id": "x"}, {}, "no such field: names have hyphens"),
            ({"properties.subject": "x"}, {}, "no such field: no section before"),
            ({"": "x"}, {}, "no such field: no name"),
            ({"priority": 4}, {}, "a field of another section"),
            ({"durable": True}, {}, "a field of another section"),
            ({"colour": None}, {}, "no such field, also with NULL"),
            ({"subject": "s", "colour": "red"}, {}, "one of two"),
        ],
    ),
    *both(
        "FILTEX 1.0 §4.2.5",
        [
            ({}, {"properties.a": "x"}, {"a": "y"}, {"properties.a": "x"}, True, "a name is any string"),
            ({}, {"subject": "s"}, {"subject": "s"}, {}, False, "sections do not mix"),
            ({"subject": "s"}, {}, {}, {"subject": "s"}, False, "sections do not mix"),
            ({}, {"größe x": 1}, {}, {"größe x": 1}, True, "a name is any string"),
            ({}, {"JMSPriority": 4}, {}, {}, False, "no names of JMS"),
            ({}, {"K": 1}, {}, {"k": 1}, False, "names are case-sensitive"),
        ],
    ),
    *both("AMQP 1.0 §3.2.5", [({}, {"": 1}, {}, {"": 1}, True, "the empty name is a name")]),
    *refused("AMQP 1.0 §3.2.5", [({}, {5: "x"}, "names are strings")]),  # type: ignore[dict-item]
]

WHOLE_FILTERS = [
    *both(
        "FILTEX 1.0 §4 every entry",
        [
            ({"subject": "s"}, {"k": 1}, {"subject": "s"}, {"k": 1}, True, "one of each section"),
            ({"subject": "s"}, {"k": 1}, {"subject": "s"}, {"k": 2}, False, "one of each section"),
            ({"subject": "s"}, {"k": 1}, {"subject": "t"}, {"k": 1}, False, "one of each section"),
            ({"subject": "s"}, {"k": 1}, {"subject": "s"}, {}, False, "a section is absent"),
            ({"subject": "s"}, {"k": 1}, {}, {}, False, "both are absent"),
            ({"subject": "s"}, {}, {"subject": "s", "to": "t"}, {"k": 1}, True, "what else there is"),
            ({"subject": "&p:s", "to": "&s:t"}, {}, {"subject": "sx", "to": "xt"}, {}, True, "two of one"),
            ({"subject": "&p:s", "to": "&s:t"}, {}, {"subject": "sx", "to": "xu"}, {}, False, "two of one"),
            ({}, {"a": 1, "b": "x", "c": True}, {}, {"a": 1, "b": "x", "c": True}, True, "three kinds"),
            ({}, {"a": 1, "b": "x", "c": True}, {}, {"a": 1, "b": "x"}, False, "three kinds, one absent"),
            ({"subject": "s", "to": None}, {}, {"subject": "s"}, {}, True, "NULL beside another"),
            ({"subject": "s", "to": None}, {}, {"to": "t"}, {}, False, "NULL beside another"),
            ({"subject": None}, {}, {}, {}, True, "NULL alone"),
            ({"subject": None}, {"k": None}, {"to": "t"}, {"k": 1}, True, "NULL in both"),
        ],
    ),
    *both(
        "FILTEX 1.0 §4.1.2",
        [
            ({"to": "t", "subject": "s"}, {}, {"subject": "s", "to": "t"}, {}, True, "in any order"),
            ({}, {"b": 2, "a": 1}, {}, {"a": 1, "b": 2}, True, "in any order"),
        ],
    ),
    *both(
        "FILTEX 1.0 §2.1",
        [
            ({}, {"k": 5}, {}, {}, False, "absent: a filter does not match, it is not UNKNOWN"),
            ({}, {"k": 1}, {}, {"k": "x"}, False, "unlike: it does not match"),
        ],
    ),
    *both(
        "FILTEX 1.0 §7.1",
        [
            ({}, {f"k{i}": i for i in range(16)}, {}, {f"k{i}": i for i in range(16)}, True, "16 entries"),
            (
                {},
                {f"k{i}": i for i in range(16)},
                {},
                {f"k{i}": i for i in range(15)},
                False,
                "16 entries, 15 there",
            ),
        ],
    ),
    *refused(
        "FILTEX 1.0 §7.1",
        [
            ({}, {f"k{i}": i for i in range(17)}, "17 entries"),
            ({}, {f"k{i}": None for i in range(17)}, "17 entries, though they ask for nothing"),
            ({}, {"k": "x" * 4096}, "4,097 characters"),
            ({}, {"k" * 4097: 1}, "4,097 characters"),
            ({"subject": "x" * 2050}, {"k": "x" * 2050}, "4,108 characters together"),
        ],
    ),
    *refused("choice: an empty filter", [({}, {}, "nothing to filter by")]),
    *refused(
        "choice: binary, lists and maps",
        [
            ({}, {"k": b"x"}, "binary"),
            ({"user-id": b"x"}, {}, "binary, though AMQP's user-id is"),
            ({"message-id": b"x" * 16}, {}, "binary or a UUID"),
            ({}, {"k": ["x"]}, "a list"),
            ({}, {"k": ["x", "y"]}, "a list of values is no choice among them"),
            ({}, {"k": {"x": 1}}, "a map"),
        ],
    ),
    *refused(
        "AMQP 1.0 §1.6",
        [
            ({}, {"k": -(2**63) - 1}, "below a long"),
            ({}, {"k": 2**64}, "beyond a ulong"),
            ({}, {"k": 10**400}, "far beyond a ulong"),
            ({"creation-time": 2**63}, {}, "beyond a timestamp"),
        ],
    ),
    *refused(
        "choice: integers beyond 64 bits in a filter",
        [
            ({}, {"k": 2**63}, "a ulong that is no long"),
            ({"message-id": 2**64 - 1}, {}, "a ulong that is no long"),
        ],
    ),
]

CASES: list[FilterCase] = [*VALUES, *MODIFIERS, *FIELDS, *WHOLE_FILTERS]
