"""What AMQP property filters mean: (properties, application properties, fields of both sections, result,
why).

Results: True, False, X (refused). Sections are those of OASIS AMQP Filter Expressions 1.0 (working draft 10)
and AMQP 1.0; "choice" marks what the text leaves open and docs/selectors.md decides.
"""

from __future__ import annotations

from typing import Any

X = "refused"

Map = dict[str, Any]
Case = tuple[Map, Map, Map, Map, bool | str, str]

NAN = float("nan")


def _application(reference: Any, fields: Map, expected: bool, why: str) -> Case:
    return {}, {"k": reference}, {}, fields, expected, why


VALUES: list[Case] = [
    _application("x", {"k": "x"}, True, "same type and value"),
    _application("x", {"k": "X"}, False, "text comparisons are case-sensitive"),
    _application("x", {"k": "xy"}, False, "the lengths are identical"),
    _application("", {"k": ""}, True, "the empty string"),
    _application("", {}, False, "absent is not empty"),
    _application("x", {}, False, "absent: not UNKNOWN, an entry matches or does not"),
    _application("x", {"k": None}, False, "NULL is absent"),
    _application("x", {"other": "x"}, False, "another field"),
    _application("5", {"k": 5}, False, "strings are not numbers"),
    _application(5, {"k": "5"}, False, "numbers are not strings"),
    _application(5, {"k": 5}, True, "integers"),
    _application(5, {"k": 6}, False, "integers"),
    _application(-5, {"k": -5}, True, "integers"),
    _application(0, {"k": False}, False, "booleans are not numbers"),
    _application(1, {"k": True}, False, "booleans are not numbers"),
    _application(True, {"k": 1}, False, "numbers are not booleans"),
    _application(True, {"k": 1.0}, False, "numbers are not booleans"),
    _application(True, {"k": True}, True, "booleans"),
    _application(True, {"k": False}, False, "booleans"),
    _application(False, {"k": False}, True, "booleans"),
    _application(False, {}, False, "absent is not false"),
    _application(True, {"k": "true"}, False, "strings are not booleans"),
    _application(5, {"k": 5.0}, True, "one is floating: equal as floating"),
    _application(5.0, {"k": 5}, True, "one is floating: equal as floating"),
    _application(5.5, {"k": 5}, False, "one is floating: equal as floating"),
    _application(1.5, {"k": 1.5}, True, "floating"),
    _application(0.0, {"k": -0.0}, True, "floating: the zeros are equal"),
    _application(NAN, {"k": NAN}, False, "NaN equals nothing"),
    _application(2.0**53, {"k": 2**53 + 1}, True, "equal when treated as floating"),
    _application(2**53, {"k": 2**53 + 1}, False, "two integers are compared exactly"),
    _application(2**63 - 1, {"k": 2**63 - 1}, True, "the greatest"),
    _application(-(2**63), {"k": -(2**63)}, True, "the least"),
    _application(5, {"k": 2**64}, False, "beyond what a field can hold"),
    _application("é", {"k": "e\u0301"}, False, "ordinal values of the characters"),
    _application(None, {"k": "anything"}, True, "a NULL reference matches"),
    _application(None, {"k": 5}, True, "a NULL reference matches"),
    _application(None, {}, True, "also an absent field; RabbitMQ: not"),
    _application("%", {"k": "abc"}, False, "no wildcards"),
    _application("a*", {"k": "abc"}, False, "no wildcards"),
]

MODIFIERS: list[Case] = [
    _application("&p:ab", {"k": "abc"}, True, "prefix"),
    _application("&p:ab", {"k": "ab"}, True, "the prefix alone"),
    _application("&p:ab", {"k": "a"}, False, "too short"),
    _application("&p:ab", {"k": "xab"}, False, "not at the beginning"),
    _application("&p:ab", {"k": "ABc"}, False, "case-sensitive"),
    _application("&p:", {"k": "x"}, True, "choice: the empty prefix of any string"),
    _application("&p:", {"k": ""}, True, "choice: the empty prefix of any string"),
    _application("&p:", {"k": 5}, False, "a number has no prefix"),
    _application("&p:", {}, False, "nor has what is absent"),
    _application("&p:5", {"k": 55}, False, "a number has no prefix"),
    _application("&p:t", {"k": True}, False, "a boolean has no prefix"),
    _application("&p:%_", {"k": "%_x"}, True, "no wildcards in a prefix"),
    _application("&p:%_", {"k": "abx"}, False, "no wildcards in a prefix"),
    _application("&p:&x", {"k": "&xy"}, True, "no modifier in a modifier"),
    _application("&p:&&", {"k": "&x"}, False, "no escape in a modifier"),
    _application("&p:a\nb", {"k": "a\nbc"}, True, "line ends"),
    _application("&s:bc", {"k": "abc"}, True, "suffix"),
    _application("&s:bc", {"k": "bc"}, True, "the suffix alone"),
    _application("&s:bc", {"k": "c"}, False, "too short"),
    _application("&s:bc", {"k": "bcx"}, False, "not at the end"),
    _application("&s:", {"k": "x"}, True, "choice: the empty suffix of any string"),
    _application("&s:bc", {"k": "abc\n"}, False, "a line end is a character"),
    _application("&&", {"k": "&"}, True, "escape"),
    _application("&&abc", {"k": "&abc"}, True, "escape"),
    _application("&&abc", {"k": "&&abc"}, False, "escape"),
    _application("&&p:x", {"k": "&p:x"}, True, "escape"),
    _application("&&p:x", {"k": "xy"}, False, "escape"),
    _application("&&&x", {"k": "&&x"}, True, "only the first is taken off"),
    _application("a&p:x", {"k": "a&p:x"}, True, "only at the beginning"),
    _application(" &p:x", {"k": " &p:x"}, True, "only at the beginning"),
]

SECTIONS: list[Case] = [
    ({"subject": "s"}, {}, {"subject": "s"}, {}, True, "properties"),
    ({"subject": "s"}, {}, {}, {"subject": "s"}, False, "sections do not mix"),
    ({}, {"subject": "s"}, {"subject": "s"}, {}, False, "sections do not mix"),
    ({"subject": "s"}, {"k": 1}, {"subject": "s"}, {"k": 1}, True, "every entry of both"),
    ({"subject": "s"}, {"k": 1}, {"subject": "s"}, {"k": 2}, False, "every entry of both"),
    ({"subject": "s"}, {"k": 1}, {"subject": "t"}, {"k": 1}, False, "every entry of both"),
    ({"subject": "&p:s", "to": "&s:t"}, {}, {"subject": "sx", "to": "xt"}, {}, True, "every entry"),
    ({"subject": "s", "to": None}, {}, {"subject": "s"}, {}, True, "NULL beside another"),
    ({"subject": None}, {}, {}, {}, True, "NULL alone"),
    ({"message-id": "m"}, {}, {"message-id": "m"}, {}, True, "AMQP 1.0 §3.2.4"),
    ({"message-id": 7}, {}, {"message-id": 7}, {}, True, "AMQP 1.0 §3.2.4: message-id may be a ulong"),
    ({"correlation-id": 7}, {}, {"correlation-id": "7"}, {}, False, "a number is no string"),
    ({"user-id": "u"}, {}, {"user-id": "u"}, {}, True, "AMQP 1.0 §3.2.4"),
    ({"reply-to": "&p:q"}, {}, {"reply-to": "q1"}, {}, True, "AMQP 1.0 §3.2.4"),
    ({"correlation-id": "&s:7"}, {}, {"correlation-id": "c7"}, {}, True, "AMQP 1.0 §3.2.4"),
    ({"content-type": "a/b"}, {}, {"content-type": "a/b"}, {}, True, "a symbol equals a string"),
    ({"content-encoding": "gzip"}, {}, {}, {}, False, "AMQP 1.0 §3.2.4"),
    ({"creation-time": 1700000000000}, {}, {"creation-time": 1700000000000}, {}, True, "milliseconds"),
    ({"absolute-expiry-time": 1}, {}, {"absolute-expiry-time": 2}, {}, False, "milliseconds"),
    ({"group-id": "g", "group-sequence": 3}, {}, {"group-id": "g", "group-sequence": 3}, {}, True, "group"),
    ({"reply-to-group-id": "g"}, {}, {"reply-to-group-id": "g"}, {}, True, "AMQP 1.0 §3.2.4"),
    (
        {},
        {"properties.a": "x"},
        {"a": "y"},
        {"properties.a": "x"},
        True,
        "an application property of any name",
    ),
    ({}, {"": 1}, {}, {"": 1}, True, "the empty name is a name"),
    ({}, {f"k{i}": i for i in range(16)}, {}, {f"k{i}": i for i in range(16)}, True, "16 entries"),
]

REFUSED: list[Case] = [
    ({}, {}, {}, {}, X, "nothing to filter by"),
    ({}, {"k": "&"}, {}, {}, X, "no modifier"),
    ({}, {"k": "&x"}, {}, {}, X, "no modifier"),
    ({}, {"k": "&x:y"}, {}, {}, X, "an unknown modifier"),
    ({}, {"k": "&P:y"}, {}, {}, X, "modifiers are case-sensitive"),
    ({}, {"k": "&py"}, {}, {}, X, "no colon"),
    ({}, {"k": 2**63}, {}, {}, X, "beyond 64 bits"),
    ({}, {"k": -(2**63) - 1}, {}, {}, X, "beyond 64 bits"),
    ({}, {"k": 10**5000}, {}, {}, X, "far beyond 64 bits"),
    ({}, {"k": ["x"]}, {}, {}, X, "no list"),
    ({}, {"k": {"x": 1}}, {}, {}, X, "no map"),
    ({}, {"k": b"x"}, {}, {}, X, "choice: no binary"),
    ({}, {5: "x"}, {}, {}, X, "names are strings"),
    ({"Subject": "x"}, {}, {}, {}, X, "no such field"),
    ({"message_id": "x"}, {}, {}, {}, X, "AMQP's names have hyphens"),
    ({"properties.subject": "x"}, {}, {}, {}, X, "no such field"),
    ({"priority": 4}, {}, {}, {}, X, "a field of another section"),
    ({"colour": None}, {}, {}, {}, X, "unknown also with NULL"),
    ({"subject": 5}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: a string"),
    ({"subject": True}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: a string"),
    ({"message-id": 1.5}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: string, ulong, uuid or binary"),
    ({"message-id": True}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: string, ulong, uuid or binary"),
    ({"creation-time": "now"}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: a timestamp"),
    ({"creation-time": 1.5}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: a timestamp"),
    ({"group-sequence": "1"}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: a uint"),
    ({"group-sequence": -1}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: a uint"),
    ({"group-sequence": 2**32}, {}, {}, {}, X, "AMQP 1.0 §3.2.4: a uint"),
    ({"group-sequence": "&p:1"}, {}, {}, {}, X, "modifiers are for strings"),
    ({}, {f"k{i}": i for i in range(17)}, {}, {}, X, "17 entries"),
    ({}, {"k": "x" * 4096}, {}, {}, X, "too long"),
    ({}, {"k" * 4097: 1}, {}, {}, X, "too long"),
]

CASES: list[Case] = [*VALUES, *MODIFIERS, *SECTIONS, *REFUSED]
