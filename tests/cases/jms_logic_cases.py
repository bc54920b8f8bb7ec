"""Conditions: the three truths, what is a condition, precedence, NULL."""

from __future__ import annotations

from cases.clauses import NAN, Case, U, X, under

AND_TABLE = under(
    "JMS 3.1 §3.8.1.2 table 3-4",
    [
        (f"{a} AND {b}", {"t": True, "f": False}, result, "all nine")
        for a, b, result in [
            ("t", "t", True),
            ("t", "f", False),
            ("t", "u", U),
            ("f", "t", False),
            ("f", "f", False),
            ("f", "u", False),
            ("u", "t", U),
            ("u", "f", False),
            ("u", "u", U),
        ]
    ],
) + under(
    "JMS 3.1 §3.8.1.2 table 3-4",
    [
        ("u AND FALSE", {}, False, "FALSE decides"),
        ("u AND TRUE", {}, U, "TRUE does not"),
        ("n AND ok", {"n": 1, "ok": False}, False, "UNKNOWN AND FALSE"),
        ("NOT (f AND u)", {"f": False}, True, "FALSE decides before UNKNOWN"),
        ("t AND t AND u AND t", {"t": True}, U, "more than two"),
        ("t AND u AND f", {"t": True, "f": False}, False, "more than two"),
    ],
)

OR_TABLE = under(
    "JMS 3.1 §3.8.1.2 table 3-5",
    [
        (f"{a} OR {b}", {"t": True, "f": False}, result, "all nine")
        for a, b, result in [
            ("t", "t", True),
            ("t", "f", True),
            ("t", "u", True),
            ("f", "t", True),
            ("f", "f", False),
            ("f", "u", U),
            ("u", "t", True),
            ("u", "f", U),
            ("u", "u", U),
        ]
    ],
) + under(
    "JMS 3.1 §3.8.1.2 table 3-5",
    [
        ("u OR TRUE", {}, True, "TRUE decides"),
        ("u OR FALSE", {}, U, "FALSE does not"),
        ("n OR ok", {"n": 1, "ok": True}, True, "UNKNOWN OR TRUE"),
        ("n OR ok", {"n": 1, "ok": False}, U, "UNKNOWN OR FALSE"),
        ("a = 1 OR a IS NULL", {}, True, "UNKNOWN OR TRUE"),
        ("NOT (t OR u)", {"t": True}, False, "TRUE decides before UNKNOWN"),
        ("f OR u OR t", {"t": True, "f": False}, True, "more than two"),
        ("f OR f OR u OR f", {"f": False}, U, "more than two"),
    ],
)

NOT_TABLE = under(
    "JMS 3.1 §3.8.1.2 table 3-6",
    [
        ("NOT t", {"t": True}, False, "all three"),
        ("NOT f", {"f": False}, True, "all three"),
        ("NOT u", {}, U, "all three"),
        ("NOT NOT t", {"t": True}, True, "twice"),
        ("NOT NOT u", {}, U, "twice"),
        ("NOT NOT NOT t", {"t": True}, False, "three times"),
        ("NOT (t AND u)", {"t": True}, U, "De Morgan"),
        ("NOT (a = 'x')", {}, U, "what NULL makes UNKNOWN stays so; Broker-J selects here"),
        ("NOT (1 / 0 = 1)", {}, U, "UNKNOWN negated"),
    ],
)

CONDITIONS = [
    *under(
        "JMS 3.1 §3.8.1.1 conditional expressions",
        [
            ("t", {"t": True}, True, "a boolean identifier is a condition"),
            ("t", {"t": False}, False, "a boolean identifier is a condition"),
            ("t", {}, U, "an absent one is UNKNOWN"),
            ("1 = 1", {}, True, "two literals"),
            ("'a' = 'a'", {}, True, "two literals"),
            ("a > b", {"a": 2, "b": 1}, True, "two identifiers"),
            ("5", {}, X, "a number is no condition"),
            ("5.0", {}, X, "a number is no condition"),
            ("'a'", {}, X, "a string is no condition"),
            ("a + b", {}, X, "a sum is no condition"),
            ("a-b", {}, X, "a difference is no condition"),
            ("-a", {}, X, "a signed value is no condition"),
            ("NOT 5", {}, X, "a number is no condition"),
            ("NOT 'x'", {}, X, "a string is no condition"),
            ("a AND 'x'", {}, X, "a string is no condition"),
            ("a OR b + 1", {}, X, "a sum is no condition"),
            ("(5)", {}, X, "brackets make no condition"),
            ("a = 1 = 2", {}, X, "comparisons do not chain"),
            ("1 < a < 3", {}, X, "comparisons do not chain"),
            ("(a = 1) < TRUE", {}, X, "conditions have no order"),
            ("a = NOT b", {}, X, "NOT makes no value"),
            ("NULL", {}, X, "NULL is no condition"),
        ],
    ),
    *under(
        "JMS 3.1 §3.8.1.1 boolean literals",
        [
            ("TRUE", {}, True, "a condition"),
            ("FALSE", {}, False, "a condition"),
            ("(TRUE)", {}, True, "in brackets"),
            ("TRUE AND NOT FALSE", {}, True, "in a condition"),
            ("t = TRUE", {"t": True}, True, "in a comparison"),
            ("TRUE = t", {"t": True}, True, "on either side"),
            ("TRUE <> FALSE", {}, True, "two of them"),
        ],
    ),
    *under(
        "choice: a field that is no boolean as a condition",
        [
            ("n", {"n": 1}, U, "a number"),
            ("n", {"n": 0}, U, "nor is 0 FALSE"),
            ("n", {"n": 1.0}, U, "a double"),
            ("n", {"n": "true"}, U, "a string"),
            ("NOT n", {"n": 1}, U, "negated"),
            ("(NOT NOT a) = TRUE", {"a": 5}, U, "and so compared"),
        ],
    ),
    *under(
        "choice: a condition compared",
        [
            ("(a = 1) = TRUE", {"a": 1}, True, "with a literal"),
            ("(a = 1) = b", {"a": 2, "b": False}, True, "with a field"),
            ("(a = 1) = TRUE", {}, U, "an UNKNOWN condition is NULL"),
            ("(a = 1) <> (b = 1)", {"a": 1, "b": 2}, True, "two conditions"),
            ("(a = 1) = (b = 1)", {"a": 1}, U, "one is UNKNOWN"),
            ("(a IS NULL) = FALSE", {"a": 1}, True, "every condition"),
            ("(a = 1) = 1", {"a": 1}, False, "unlike a number"),
        ],
    ),
]

PRECEDENCE = [
    *under(
        "JMS 3.1 §3.8.1.1 logical operators",
        [
            ("t OR f AND f", {"t": True, "f": False}, True, "AND before OR"),
            ("f AND f OR t", {"t": True, "f": False}, True, "AND before OR"),
            ("NOT f AND f", {"f": False}, False, "NOT before AND"),
            ("NOT t OR t", {"t": True}, True, "NOT before OR"),
            ("a=1 and b=2 or c=3 and d=4", {"c": 3, "d": 4}, True, "AND before OR"),
            ("f OR NOT f AND t", {"t": True, "f": False}, True, "all three"),
        ],
    ),
    *under(
        "JMS 3.1 §3.8.1.1 order of evaluation",
        [
            ("(t OR f) AND f", {"t": True, "f": False}, False, "brackets first"),
            ("NOT (f AND f)", {"f": False}, True, "brackets first"),
            ("(1 + 2) * 3 = 9", {}, True, "brackets first"),
            ("10 - (4 - 3) = 9", {}, True, "brackets first"),
            ("10 - 4 - 3 = 3", {}, True, "left to right"),
            ("100 / 10 / 5 = 2", {}, True, "left to right"),
            ("100 / 10 * 5 = 50", {}, True, "left to right"),
            ("7 * 2 / 4 = 3", {}, True, "left to right"),
            ("5 / 2 * 2 = 4", {}, True, "left to right, each step in longs"),
            ("5 / 2 * 2.0 = 4", {}, True, "left to right: the first step is still in longs"),
            ("2.0 * 5 / 2 = 5", {}, True, "left to right: a double stays one"),
            ("((((a = 1))))", {"a": 1}, True, "brackets in brackets"),
            ("(a) = (1)", {"a": 1}, True, "brackets around values"),
            ("((a) + (1)) * (2) = 4", {"a": 1}, True, "brackets around values"),
            ("(a) AND ((b))", {"a": True, "b": True}, True, "brackets around identifiers"),
        ],
    ),
    *under(
        "JMS 3.1 §3.8.1.1 arithmetic operators",
        [
            ("1 + 2 * 3 = 7", {}, True, "* before +"),
            ("10 - 6 / 2 = 7", {}, True, "/ before -"),
            ("2 * 3 + 4 * 5 = 26", {}, True, "* before +"),
            ("-2 + 5 = 3", {}, True, "sign before +"),
            ("- 2 * 3 = -6", {}, True, "sign before *"),
            ("2 * -3 = -6", {}, True, "sign after *"),
            ("2 - -3 = 5", {}, True, "sign after minus"),
            ("2 + +3 = 5", {}, True, "sign after plus"),
            ("- - 3 = 3", {}, True, "two signs"),
            ("- + - a = 3", {"a": 3}, True, "three signs"),
            ("-(a + 1) = -3", {"a": 2}, True, "sign before brackets"),
            ("a + 1 > b - 1", {"a": 1, "b": 2}, True, "arithmetic before comparison"),
            ("-a < -b", {"a": 2, "b": 1}, True, "arithmetic before comparison"),
        ],
    ),
    *under(
        "SQL-92 §8.12",
        [
            ("NOT a = 2", {"a": 1}, True, "comparison before NOT; the ActiveMQ family reads (NOT a) = 2"),
            ("NOT a = 2", {"a": 2}, False, "comparison before NOT"),
            ("NOT a = TRUE", {"a": False}, True, "comparison before NOT"),
            ("NOT a IS NULL", {"a": 2}, True, "IS NULL before NOT"),
            ("NOT a IS NOT NULL", {}, True, "IS NOT NULL before NOT"),
            ("NOT a LIKE 'x%'", {"a": "y"}, True, "LIKE before NOT"),
            ("NOT a IN ('x')", {"a": "y"}, True, "IN before NOT"),
            ("NOT a NOT IN ('x')", {"a": "y"}, False, "IN before NOT"),
            ("NOT a BETWEEN 1 AND 3 AND t", {"a": 2, "t": True}, False, "the AND of BETWEEN binds first"),
            ("a BETWEEN 1 AND 3 AND t", {"a": 2, "t": True}, True, "the AND of BETWEEN binds first"),
            ("a BETWEEN 1 AND 3 OR f", {"a": 9, "f": True}, True, "BETWEEN before OR"),
            ("t AND a BETWEEN 1 AND 3", {"a": 9, "t": True}, False, "BETWEEN before AND"),
        ],
    ),
]

NULLS = [
    *under(
        "JMS 3.1 §3.8.1.2",
        [
            ("a = 1", {}, U, "comparison"),
            ("a <> 1", {}, U, "comparison"),
            ("a < 1", {}, U, "comparison"),
            ("a <= 1", {}, U, "comparison"),
            ("a > 1", {}, U, "comparison"),
            ("a >= 1", {}, U, "comparison"),
            ("a = 1.5", {}, U, "comparison"),
            ("a = 'x'", {}, U, "comparison"),
            ("t = TRUE", {}, U, "comparison"),
            ("1 = a", {}, U, "on the right"),
            ("a = b", {"a": 1}, U, "one of two"),
            ("a < b", {"b": "x"}, U, "one of two, before types are looked at"),
            ("a < 'b'", {}, U, "NULL comes before strings that have no order"),
            ("t < TRUE", {}, U, "NULL comes before booleans that have no order"),
            ("a + 1 = 2", {}, U, "arithmetic"),
            ("a * 0 = 0", {}, U, "arithmetic"),
            ("1 - a = 0", {}, U, "arithmetic"),
            ("a / b = 1", {"a": 1}, U, "arithmetic"),
            ("-a = 1", {}, U, "arithmetic"),
            ("a + b = 'x'", {}, U, "arithmetic"),
        ],
    ),
    *under(
        "SQL-92 §8.2",
        [
            ("a = a", {}, U, "also with itself"),
            ("a <> a", {}, U, "also with itself"),
            ("a <= a", {}, U, "also with itself"),
        ],
    ),
    *under(
        "JMS 3.1 §3.5.8",
        [
            ("a = 1", {"a": None}, U, "a null value is an absent one"),
            ("a IS NULL", {"a": None}, True, "a null value is an absent one"),
            ("a IS NULL", {"b": 1}, True, "another property"),
        ],
    ),
    *under(
        "JMS 3.1 §3.8.1.1 IS NULL",
        [
            ("a IS NULL", {}, True, "never UNKNOWN"),
            ("a IS NULL", {"a": 0}, False, "0 is a value"),
            ("a IS NULL", {"a": 0.0}, False, "0.0 is a value"),
            ("a IS NULL", {"a": ""}, False, "'' is a value"),
            ("a IS NULL", {"a": False}, False, "FALSE is a value"),
            ("a IS NULL", {"a": NAN}, False, "NaN is a value"),
            ("a IS NOT NULL", {}, False, "never UNKNOWN"),
            ("a IS NOT NULL", {"a": 0}, True, "never UNKNOWN"),
            ("a IS NOT NULL", {"a": "NULL"}, True, "a string like any other"),
            ("a is not null and a > 1", {}, False, "FALSE AND UNKNOWN"),
            ("(a) IS NULL", {}, True, "brackets around an identifier"),
            ("a IS", {}, X, "unfinished"),
            ("a IS NOT", {}, X, "unfinished"),
            ("a IS TRUE", {}, X, "not in JMS"),
            ("a = 1 IS UNKNOWN", {}, X, "not in JMS"),
            ("a IS 5", {}, X, "not in JMS"),
            ("a NOT NULL", {}, X, "not in JMS"),
            ("5 IS NULL", {}, X, "it takes an identifier"),
            ("'x' IS NULL", {}, X, "it takes an identifier"),
            ("a + 1 IS NULL", {}, X, "it takes an identifier"),
            ("(a = 1) IS NULL", {}, X, "it takes an identifier"),
        ],
    ),
    *under(
        "SQL-92 §8.6",
        [
            ("a IS NULL OR b IS NOT NULL", {"a": 1, "b": 1}, True, "each for itself"),
            ("NOT (a IS NULL)", {}, False, "the same as IS NOT NULL"),
        ],
    ),
]

CASES: list[Case] = [*AND_TABLE, *OR_TABLE, *NOT_TABLE, *CONDITIONS, *PRECEDENCE, *NULLS]
