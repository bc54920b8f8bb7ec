"""Predicates of Spark SQL as selectors: the same meaning, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorum.spark import OptionError, to_selector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.parametrize(
    ("predicate", "selector"),
    [
        ("color = 'red' AND size < 3", "(color = 'red' AND size < 3)"),
        ("fields.color <> 'it''s'", "color <> 'it''s'"),
        ('color != "red"', "color <> 'red'"),
        ("color IN ('a', 'b')", "color IN ('a', 'b')"),
        ("size NOT IN (1, 2)", "NOT ((size = 1 OR size = 2))"),
        ("color IS NULL OR `size` IS NOT NULL", "(color IS NULL OR size IS NOT NULL)"),
        ("color LIKE 'a%'", "color LIKE 'a%'"),
        (r"color LIKE '10\\%'", "color LIKE '10\\%' ESCAPE '\\'"),
        ("color LIKE '10!%' ESCAPE '!'", "color LIKE '10!%' ESCAPE '!'"),
        ("size BETWEEN 1 AND 5", "size BETWEEN 1 AND 5"),
        ("NOT size = -5", "size <> -5"),
        ("weight >= 1.5", "weight >= 1.5"),
        ("weight = 1e3", "weight = 1000.0"),
        ("ok", "ok"),
        ("ok = true", "ok = TRUE"),
        ("NOT ok", "NOT (ok)"),
        ("color <=> 'x'", "(color IS NOT NULL AND color = 'x')"),
        ("color <=> NULL", "color IS NULL"),
        ("size + 1 > 3", "(size + 1) > 3"),
    ],
)
def test_a_predicate_becomes_a_selector(predicate: str, selector: str) -> None:
    assert to_selector(predicate) == selector


@pytest.mark.parametrize(
    ("predicate", "words"),
    [
        ("color > 'm'", "a selector orders numbers only"),
        ("color BETWEEN 'a' AND 'b'", "a selector orders numbers only"),
        ("upper(color) = 'RED'", "has no selector of the same meaning"),
        ("color RLIKE 'x'", "has no selector of the same meaning"),
        ("size / 2 = 1", "has no selector of the same meaning"),
        ("size IN (1, NULL)", "a list in a selector has no NULL"),
        ("size = NULL", "NULL is written IS NULL"),
        ("a.b.c = 1", "a selector can name no such property"),
        ("`not an identifier` = 1", "a selector can name no such property"),
        ("color = ", "is not a predicate of Spark SQL: [PARSE_SYNTAX_ERROR]"),
        ("1 + 1", "has no selector of the same meaning"),
    ],
)
def test_what_has_no_selector_is_refused(predicate: str, words: str) -> None:
    with pytest.raises(OptionError) as raised:
        to_selector(predicate)
    assert words in str(raised.value)


def test_the_session_runs_on_the_runtime_from_pypi(spark: SparkSession) -> None:
    version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
    assert version.startswith("21.")
