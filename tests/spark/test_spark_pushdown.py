"""Push-down changes how much is read, never what comes out: the same predicates with it and without."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNull, LessThan, Not, StringContains

from quorum.spark.reading.pushdown import Pushed, push
from quorum.spark.schema import parse_fields
from quorum.spark.session import PUSH_DOWN
from quorum_selectors import jms
from support.spark.probe import ProbeSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = parse_fields(
    "color STRING, size INT, weight DOUBLE, ok BOOLEAN, big BIGINT, `a-b` STRING, JMSType STRING"
)

TEXTS = ["red", "Red", "it's", 'a"b', "100%", "a_b", "a\\b", "\\", "%", "_", "", "r%d", "été", "x" * 50]
NUMBERS = [0, 1, 2, -1, 3, (1 << 31) - 1, 1 << 31, -(1 << 31) - 1, (1 << 53) + 1, (1 << 63) - 1]
DOUBLES = [0.0, -0.0, 1.0, 1.5, 2.0, -1e300, 5e-324, float("inf"), float("-inf"), float(1 << 53)]
NAN = {"nan": True}
VALUES: dict[str, list[Any]] = {
    "color": [*TEXTS, 5, True, 1.0],
    "size": [*NUMBERS, "2", 1.0, True],
    "weight": [*DOUBLES, NAN, NAN, 1, 2, (1 << 53) + 1, "1.0"],
    "ok": [True, False, True, False, "TRUE", 1],
    "big": [*NUMBERS, 2.0, "3"],
}

PREDICATES = [
    "f.color = 'red'",
    "f.color <> 'red'",
    "f.color = 'it''s'",
    "f.color IN ('red', '100%', '')",
    "f.color NOT IN ('red', 'a_b')",
    "f.color IN ('red', NULL)",
    "NOT (f.color IN ('red', NULL))",
    "f.color IS NULL",
    "f.color IS NOT NULL",
    "f.color <=> 'red'",
    "f.color <=> NULL",
    "NOT (f.color <=> 'red')",
    "f.color LIKE 'a%'",
    "f.color LIKE '%b'",
    "f.color LIKE '%\\\\%%'",
    "f.color LIKE '%\\\\_%'",
    "contains(f.color, '\\\\')",
    "startswith(f.color, '%')",
    "endswith(f.color, '_')",
    "NOT contains(f.color, 'e')",
    "f.color LIKE 'r_d'",
    "f.color > 'm'",
    "upper(f.color) = 'RED'",
    "f.size = 2",
    "f.size <> 2",
    "f.size > 1",
    "f.size >= 1",
    "f.size < 2",
    "f.size <= 1",
    "f.size BETWEEN 0 AND 2",
    "f.size IN (1, 2, 3)",
    "f.size NOT IN (1, 2, 3)",
    "f.size IS NULL",
    "f.size = 2.0",
    "CAST(f.size AS BIGINT) = 3",
    "f.big > 9007199254740992",
    "f.big = 9223372036854775807",
    "f.weight = 1.0",
    "f.weight <> 1.0",
    "f.weight > 1.0",
    "f.weight >= 1.0",
    "f.weight < 1.0",
    "f.weight <= 1.0",
    "NOT (f.weight < 1.0)",
    "NOT (f.weight > 1.0)",
    "f.weight = CAST('NaN' AS DOUBLE)",
    "f.weight <> CAST('NaN' AS DOUBLE)",
    "f.weight < CAST('NaN' AS DOUBLE)",
    "f.weight = CAST('Infinity' AS DOUBLE)",
    "f.weight = 0.0",
    "f.weight = 9007199254740992D",
    "f.weight IN (1.0D, 1.5D)",
    "f.weight NOT IN (1.0D, 1.5D)",
    "f.ok",
    "NOT f.ok",
    "f.ok = false",
    "f.ok IS NULL",
    "f.color = 'red' AND f.size < 3",
    "f.color = 'red' OR f.size < 3",
    "sequence >= 20 AND sequence < 150 AND f.color = 'red'",
    "sequence IN (3, 5, 250)",
    "sequence = 7 OR f.size = 2",
    "sequence <> 5",
    "sequence < 0",
]
PUSHED_AT_LEAST = 45
"""How many of these are pushed, at least in part: the comparison would otherwise be with itself."""


@pytest.fixture(scope="module")
def messages() -> list[dict[str, Any]]:
    chance = random.Random(11)
    return [
        {name: chance.choice(values) for name, values in VALUES.items() if chance.random() < 0.8}
        for _ in range(300)
    ]


def test_the_same_rows_with_push_down_and_without(
    spark: SparkSession, messages: list[dict[str, Any]], tmp_path: Path
) -> None:
    spark.dataSource.register(ProbeSource)
    notes = tmp_path / "notes"

    def rows(is_on: bool) -> DataFrame:
        spark.conf.set(PUSH_DOWN, str(is_on).lower())
        frame = (
            spark.read.format("quorum_probe")
            .option("messages", json.dumps(messages))
            .option("notes", str(notes))
        )
        return frame.load().withColumnRenamed("fields", "f")

    try:
        # one query for all predicates without push-down: a column each says whether it holds
        plain = rows(False).selectExpr(
            "sequence", *(f"({each}) AS p{n}" for n, each in enumerate(PREDICATES))
        )
        expected = plain.collect()
        notes.write_text("", encoding="utf-8")
        for number, predicate in enumerate(PREDICATES):
            found = sorted(row.sequence for row in rows(True).where(predicate).select("sequence").collect())
            wanted = [row.sequence for row in expected if row[f"p{number}"] is True]
            assert found == wanted, predicate
    finally:
        spark.conf.unset(PUSH_DOWN)
    pushed = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    narrowed = [each for each in pushed if each != ["", 0, None]]
    assert len(pushed) == len(PREDICATES) - 1  # for `sequence < 0` Spark need not ask
    assert len(narrowed) >= PUSHED_AT_LEAST


def test_one_frame_is_asked_several_things(
    spark: SparkSession, messages: list[dict[str, Any]], tmp_path: Path
) -> None:
    """With push-down Spark keeps the last filter for queries that have none. Where it does not any more, session() may
    switch it on."""
    spark.dataSource.register(ProbeSource)

    def counts() -> list[int]:
        frame = spark.read.format("quorum_probe").option("messages", json.dumps(messages))
        loaded = frame.option("notes", str(tmp_path / "notes")).load()
        return [loaded.count(), loaded.where("fields.color = 'red'").count(), loaded.count()]

    found = counts()
    assert found[0] == found[2] == len(messages) > found[1] > 0
    try:
        spark.conf.set(PUSH_DOWN, "true")
        assert counts() == [len(messages), found[1], found[1]]
    finally:
        spark.conf.unset(PUSH_DOWN)


def pushed(*filters: Filter, selector: str = "") -> Pushed:
    return push(filters, FIELDS, selector)


def color(value: Any) -> Filter:
    return EqualTo(("fields", "color"), value)


def test_filters_are_joined_to_the_options_selector() -> None:
    assert pushed(color("a"), color("b"), selector="x = 1 OR y = 2") == Pushed(
        "(x = 1 OR y = 2) AND color = 'a' AND color = 'b'"
    )
    assert pushed(selector=" x = 1") == Pushed(" x = 1")


def test_bounds_of_sequences_are_a_range() -> None:
    assert pushed(GreaterThan(("sequence",), 4), LessThan(("sequence",), 9)) == Pushed("", 5, 9)
    assert pushed(In(("sequence",), [7, 3])) == Pushed("", 3, 8)
    assert pushed(GreaterThan(("sequence",), 9), LessThan(("sequence",), 4)).is_empty
    assert pushed(Not(EqualTo(("sequence",), 4)), EqualTo(("sequence",), -1)) == Pushed("", 0, 0)


def test_what_a_selector_cannot_name_or_say_is_not_pushed() -> None:
    assert pushed(EqualTo(("fields", "a-b"), "x")) == Pushed()
    assert pushed(EqualTo(("fields", "JMSType"), "x")) == Pushed()
    assert pushed(EqualTo(("fields", "other"), "x")) == Pushed()
    assert pushed(EqualTo(("body",), b"x")) == Pushed()
    assert pushed(color("\ud800"), StringContains(("fields", "color"), "\ud800")) == Pushed()
    assert pushed(IsNull(("fields", "size"))) == Pushed()


def test_filters_beyond_a_selectors_limits_are_left_to_spark() -> None:
    found = pushed(In(("fields", "color"), ["x" * 100] * 10_000), color("red"))
    assert found == Pushed("color = 'red'")
    jms.parse(found.selector)
