"""Arithmetic: promotion, division, overflow, NaN."""

from __future__ import annotations

from cases.clauses import INF, MAX, MIN, NAN, Case, U, X, under

CASES: list[Case] = [
    *under(
        "JMS 3.1 §3.8.1.1 arithmetic expressions",
        [
            ("a + b = 3", {"a": 1, "b": 2}, True, "identifiers"),
            ("a + 1 = 3", {"a": 2}, True, "identifiers and literals"),
            ("a + 'x' = 1", {}, X, "no arithmetic on strings"),
            ("'x' || a = 'xy'", {}, X, "no arithmetic on strings"),
            ("a + TRUE = 1", {}, X, "no arithmetic on booleans"),
            ("-'x' = a", {}, X, "no sign on strings"),
            ("-TRUE = a", {}, X, "no sign on booleans"),
            ("(a = 1) + 1 = 2", {}, X, "no arithmetic on conditions"),
        ],
    ),
    *under(
        "choice: arithmetic on strings and booleans",
        [
            ("a + 1 = 2", {"a": "1"}, U, "a string"),
            ("a + b = 'xy'", {"a": "x", "b": "y"}, U, "two strings"),
            ("a + 1 = 2", {"a": True}, U, "a boolean"),
            ("a * 1.5 > 0", {"a": True}, U, "a boolean"),
            ("-a = 'x'", {"a": "x"}, U, "a sign"),
            ("+a = 'x'", {"a": "x"}, U, "a sign"),
            ("NOT (a + 1 = 2)", {"a": "1"}, U, "UNKNOWN negated"),
        ],
    ),
    *under(
        "Java SE JLS §5.6",
        [
            ("1 + 0.5 = 1.5", {}, True, "long and double"),
            ("a - 0.5 = 0.5", {"a": 1}, True, "long and double"),
            ("a * 2.0 = 3.0", {"a": 1.5}, True, "double and double"),
            ("a * 2 = 3", {"a": 1.5}, True, "double and long"),
            ("a + 1.0 > 0", {"a": MAX}, True, "as doubles there is room"),
            ("9007199254740993 + 0.0 = 9007199254740992", {}, True, "rounded when it becomes a double"),
        ],
    ),
    *under(
        "Java SE JLS §15.15.3",
        [
            ("+a = 5", {"a": 5}, True, "the number itself"),
            ("+a = 5.5", {"a": 5.5}, True, "the number itself"),
        ],
    ),
    *under(
        "Java SE JLS §15.15.4",
        [
            ("-a = -5", {"a": 5}, True, "a long"),
            ("-a = 5.5", {"a": -5.5}, True, "a double"),
            ("-a = 0", {"a": 0.0}, True, "the negative zero is equal"),
            ("-a < 0", {"a": INF}, True, "an infinity"),
            ("-a <> -a", {"a": NAN}, True, "NaN"),
        ],
    ),
    *under(
        "Java SE JLS §15.17.1",
        [
            ("a * b = 6", {"a": 3, "b": 2}, True, "longs"),
            ("a * b = -6", {"a": 3, "b": -2}, True, "signs"),
            ("a * 0.5 = 1.5", {"a": 3}, True, "doubles"),
            ("9223372036854775807 * 1 = 9223372036854775807", {}, True, "at the limit"),
            ("4294967296 * -2147483648 = -9223372036854775808", {}, True, "at the limit"),
            ("a * a = 9223372030926249001", {"a": 3_037_000_499}, True, "the greatest square, exactly"),
        ],
    ),
    *under(
        "Java SE JLS §15.17.2",
        [
            ("7 / 2 = 3", {}, True, "longs; other brokers say 3.5"),
            ("-7 / 2 = -3", {}, True, "towards zero"),
            ("7 / -2 = -3", {}, True, "towards zero"),
            ("-7 / -2 = 3", {}, True, "towards zero"),
            ("-1 / 2 = 0", {}, True, "towards zero"),
            ("a / b = 0", {"a": 1, "b": 3}, True, "fields"),
            ("a / 2 = 3", {"a": 7}, True, "fields"),
            ("a / 1 = -9223372036854775808", {"a": MIN}, True, "at the limit"),
            ("7.0 / 2 = 3.5", {}, True, "doubles"),
            ("7 / 2.0 = 3.5", {}, True, "doubles"),
            ("a / 2 = 3.5", {"a": 7.0}, True, "doubles"),
            ("a / 1E10 = 0", {"a": 1e-320}, True, "too small a quotient is zero"),
        ],
    ),
    *under(
        "Java SE JLS §15.18.2",
        [
            ("a - b = -1", {"a": 1, "b": 2}, True, "longs"),
            ("a + b = 1.0", {"a": 0.25, "b": 0.75}, True, "doubles"),
            ("0.1 + 0.2 = 0.3", {}, False, "doubles are binary"),
            ("a - 1 + 1 = 9223372036854775807", {"a": MAX}, True, "no overflow on the way"),
            ("a + 1 <> 1", {"a": NAN}, True, "NaN stays NaN"),
        ],
    ),
    *under(
        "choice: division by zero",
        [
            ("a / 0 = 0", {"a": 1}, U, "longs; Java raises"),
            ("a / 0 <> 0", {"a": 1}, U, "longs"),
            ("1 / 0 = 1 / 0", {}, U, "literals"),
            ("0 / 0 = 0", {}, U, "zero too"),
            ("a / 0.0 > 0", {"a": 1.0}, U, "doubles; Java has an infinity"),
            ("a / 0.0 > 0", {"a": 0.0}, U, "doubles; Java has NaN"),
            ("1 / a < 0", {"a": -0.0}, U, "the negative zero"),
            ("a / 0 = 1", {"a": 1.5}, U, "an exact zero"),
            ("a / b = 1", {"a": 1, "b": 0}, U, "fields"),
            ("1 / 0 = 1 OR TRUE", {}, True, "UNKNOWN OR TRUE"),
            ("1 / 0 = 1 AND FALSE", {}, False, "UNKNOWN AND FALSE"),
        ],
    ),
    *under(
        "choice: overflow",
        [
            ("a + 1 > 0", {"a": MAX}, U, "Java wraps round"),
            ("a + b < 0", {"a": MIN, "b": -1}, U, "a sum"),
            ("a - 1 < 0", {"a": MIN}, U, "a difference"),
            ("a - b > 0", {"a": 0, "b": MIN}, U, "a difference"),
            ("a * 2 > 0", {"a": MAX}, U, "a product"),
            ("a * a > 0", {"a": 2**32}, U, "a product that Java makes 0"),
            ("a * a > 0", {"a": 3_037_000_500}, U, "a product just too large"),
            ("a * -1 > 0", {"a": MIN}, U, "a product just too large"),
            ("a / -1 > 0", {"a": MIN}, U, "the one quotient that can"),
            ("-a > 0", {"a": MIN}, U, "the one sign that can"),
            ("a + 1 - 1 = 9223372036854775807", {"a": MAX}, U, "not mended later"),
            ("9223372036854775807 + 1 > 0", {}, U, "literals"),
            ("-9223372036854775808 - 1 < 0", {}, U, "literals"),
            ("-(-9223372036854775808) > 0", {}, U, "literals"),
            ("NOT (a + 1 > 0)", {"a": MAX}, U, "UNKNOWN negated"),
            ("a * 10.0 > 0", {"a": 1e308}, U, "a double that becomes infinite"),
            ("a + a > 0", {"a": 1.7e308}, U, "a double that becomes infinite"),
            ("a - 1E308 < 0", {"a": -1e308}, U, "a double that becomes infinite"),
            ("a / 0.5 > 0", {"a": 1.7e308}, U, "a double that becomes infinite"),
            ("1E308 * 10 > 0", {}, U, "literals"),
            ("a + 1 > 1", {"a": INF}, U, "a result that is infinite, as one operand is"),
        ],
    ),
    *under(
        "choice: a number field beyond 64 bits",
        [
            ("a = 1", {"a": 2**63}, U, "no long holds it"),
            ("a <> 1", {"a": -(2**63) - 1}, U, "no long holds it"),
            ("a > 1.5", {"a": 10**400}, U, "no double either"),
            ("a = 'x'", {"a": 2**63}, U, "before types are looked at"),
            ("a + 1 > 1", {"a": 2**63}, U, "arithmetic"),
            ("a IS NULL", {"a": 2**63}, False, "it is there all the same"),
        ],
    ),
    *under(
        "Java SE JLS §4.2.3",
        [
            ("a = 0.0", {"a": -0.0}, True, "two zeros are one"),
            ("a < 0", {"a": -0.0}, False, "two zeros are one"),
            ("a > 1", {"a": INF}, True, "infinity compares"),
            ("a = a", {"a": INF}, True, "infinity compares"),
            ("a < 1.7976931348623157E308", {"a": -INF}, True, "infinity compares"),
            ("a > 9223372036854775807", {"a": INF}, True, "infinity compares with longs"),
        ],
    ),
    *under(
        "Java SE JLS §15.20.1",
        [
            ("a < 1", {"a": NAN}, False, "NaN"),
            ("a <= 1", {"a": NAN}, False, "NaN"),
            ("a > 1", {"a": NAN}, False, "NaN"),
            ("a >= 1", {"a": NAN}, False, "NaN"),
            ("NOT (a < 1)", {"a": NAN}, True, "so NOT < is not >="),
        ],
    ),
    *under(
        "Java SE JLS §15.21.1",
        [
            ("a = a", {"a": NAN}, False, "NaN equals nothing"),
            ("a <> a", {"a": NAN}, True, "NaN: TRUE only under <>"),
            ("a = 1", {"a": NAN}, False, "NaN equals nothing"),
            ("a <> 1", {"a": NAN}, True, "NaN: TRUE only under <>"),
            ("a <> 'x'", {"a": NAN}, False, "but unlike a string it is unlike"),
        ],
    ),
]
