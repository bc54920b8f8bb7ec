"""What Spark's workers make of archived messages: the same fields, and the same matches, as message by message."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.api.bulk.json_values import Writer
from quorum.client.values import set_value
from quorum.spark.pipelines.archived_fields import columns_of, distinct_texts
from quorum.spark.pipelines.selectivity import Asked, FieldUse, _Worker, asked, recommend, spoken
from quorum.v1 import queue_pb2
from quorum_selectors import canonical, jms
from quorum_selectors.block_columns import BlockColumns
from quorum_selectors.compiled import compile_expression
from quorum_selectors.expression import Expression
from quorum_selectors.known_fields import APPLICATION, DEFAULT_FIELD_NAMES
from quorum_selectors.vectorised import Messages, select
from support.examples import examples
from support.selectors.expressions import EXPRESSIONS

A, B, C = (APPLICATION + name for name in "abc")
WHOLE = st.one_of(st.integers(-3, 10), st.sampled_from([127, 128, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]))
DOUBLES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.0**53, math.nan, math.inf, -math.inf]), st.floats())
TEXTS = st.one_of(st.text(alphabet="ab%_\\é\n\U0001f600", max_size=6), st.just("a" * 5000))
NULL = st.none()
STRUCT = pa.struct([("a", pa.string()), ("b", pa.int32()), ("d", pa.float64()), ("e", pa.bool_())])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "priority": st.one_of(NULL, st.integers(0, 255)),
            "subject": st.one_of(NULL, TEXTS),
            "fields": st.one_of(
                NULL,
                st.fixed_dictionaries(
                    {
                        "a": st.one_of(NULL, TEXTS),
                        "b": st.one_of(NULL, st.integers(-(2**31), 2**31 - 1)),
                        "d": st.one_of(NULL, DOUBLES),
                        "e": st.one_of(NULL, st.booleans()),
                    }
                ),
            ),
            "properties": st.one_of(
                NULL,
                st.dictionaries(
                    st.sampled_from("abc"),
                    st.one_of(st.booleans(), WHOLE, DOUBLES, TEXTS, st.binary(max_size=3)),
                ),
            ),
        }
    ),
    min_size=1,
    max_size=20,
)


def as_json(properties: dict[str, Any] | None) -> str | None:
    if properties is None:
        return None
    values = {name: queue_pb2.Value() for name in properties}
    for name, value in properties.items():
        set_value(values[name], value, name)
    return Writer().write(values)


def arrays_of(rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
    return {
        "priority": pa.array([row["priority"] for row in rows], pa.int16()),
        "subject": pa.array([row["subject"] for row in rows], pa.string()),
        "fields": pa.array([row["fields"] for row in rows], STRUCT),
        "properties": pa.array([as_json(row["properties"]) for row in rows], pa.string()),
    }


def as_selectors_see(row: dict[str, Any]) -> dict[str, Any]:
    found = {"header.priority": row["priority"], "properties.subject": row["subject"]}
    found |= {APPLICATION + name: value for name, value in (row["fields"] or {}).items()}
    found |= {
        APPLICATION + name: value
        for name, value in (row["properties"] or {}).items()
        if not isinstance(value, bytes)
    }
    return {key: value for key, value in found.items() if value is not None}


def told(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


@settings(max_examples=examples(300))
@given(ROWS)
def test_the_columns_have_what_each_message_has(rows: list[dict[str, Any]]) -> None:
    block = BlockColumns(len(rows))
    block.append(0, columns_of(arrays_of(rows), len(rows)), 0, len(rows))
    for slot, row in enumerate(rows):
        wanted = {key: told(value) for key, value in as_selectors_see(row).items()}
        assert {key: told(value) for key, value in block.row(slot).items()} == wanted


@settings(max_examples=examples(500))
@given(EXPRESSIONS, ROWS)
def test_a_batch_is_judged_as_its_messages_one_by_one(
    expression: Expression, rows: list[dict[str, Any]]
) -> None:
    block = BlockColumns(len(rows))
    block.append(0, columns_of(arrays_of(rows), len(rows)), 0, len(rows))
    condition = compile_expression(expression)
    found = select(expression, Messages(block, 0, len(rows))).tolist()
    assert found == [condition(as_selectors_see(row)) is True for row in rows]


def facts_of(
    texts: list[str], rows: list[dict[str, Any]], queues: list[str]
) -> dict[tuple[str, str, str], Any]:
    worker = _Worker([asked(text) for text in texts], {})
    facts = worker.facts(pa.array(queues), arrays_of(rows))
    pa.array([facts])  # what goes back to Spark
    return {(fact["queue"], fact["what"], fact["name"]): fact for fact in facts}


def row(**properties: Any) -> dict[str, Any]:
    return {"priority": None, "subject": None, "fields": None, "properties": properties}


@pytest.mark.parametrize(
    ("text", "values", "matched"),
    [
        ("a = 1", [1, 1.0, True, "1", None], 2),
        ("a = TRUE", [1, 1.0, True, "1", None], 1),
        ("a <> 1", [math.nan, 2, "1", None], 2),
        ("a = a", [math.nan, 2, "1", None], 2),
        ("a IS NULL", [math.nan, None, "", b"x"], 2),
        ("NOT (a = 'x')", ["x", "y", 1, None], 2),
        ("a LIKE '%x%'", ["a" * 70000 + "x", "a" * 70000, "x"], 2),
        ("a = 9007199254740993", [2**53, 2**53 + 1, float(2**53)], 2),
    ],
)
def test_kinds_stay_apart(text: str, values: list[Any], matched: int) -> None:
    rows = [row(**({} if value is None else {"a": value})) for value in values]
    condition = compile_expression(jms.parse(text))
    assert [condition(as_selectors_see(each)) is True for each in rows].count(True) == matched
    facts = facts_of([text], rows, ["q"] * len(rows))
    assert facts["q", "selector", "0"]["n"] == matched


def test_queues_are_judged_apart_and_values_counted_by_kind() -> None:
    rows = [row(a=1), row(a=1.0), row(a=True), row(a="1"), row(a=1), row(b="x" * 100)]
    facts = facts_of(["a = 1", "a = 1 AND b IS NULL"], rows, ["p", "p", "p", "p", "p", "q"])
    assert (facts["p", "all", ""]["n"], facts["q", "all", ""]["n"]) == (5, 1)
    assert (facts["p", "selector", "0"]["n"], facts["q", "selector", "0"]["n"]) == (3, 0)
    assert (facts["p", "used", A]["n"], facts["p", "used", B]["n"]) == (3, 3)
    assert len(set(facts["p", "field", A]["texts"])) == 4
    assert ("q", "field", A) not in facts
    assert facts["q", "field", B]["bytes"] > 100


def test_only_selectors_of_a_queue_are_asked_of_its_messages() -> None:
    encoded = canonical.encode(jms.parse("a = 1"))
    worker = _Worker([Asked(encoded, "a = 1", "p"), Asked(encoded, "a = 1", "q")], {"p": ("a",), "q": ()})
    rows = [row(a=1), row(a=1)]
    facts = {
        (f["queue"], f["what"], f["name"]): f for f in worker.facts(pa.array(["p", "q"]), arrays_of(rows))
    }
    assert ("p", "selector", "0") in facts and ("p", "selector", "1") not in facts
    assert ("q", "selector", "1") in facts and ("q", "selector", "0") not in facts
    assert facts["p", "all", ""]["bytes"] > facts["q", "all", ""]["bytes"]


def field(name: str, selectors: int, memory: int, archived: bool = True) -> FieldUse:
    return FieldUse(name, selectors, 100, 5, memory, 10 if selectors else 0, archived)


def test_what_selectors_look_at_is_recommended_with_reasons() -> None:
    fields = [field("size", 1, 200), field("color", 2, 400), field("unused", 0, 5000)]
    fields.append(field("header.durable", 1, 0, False))
    found = recommend(fields, 100, DEFAULT_FIELD_NAMES, 5600)
    assert found.line == "x-filter-field-names=color,header.durable,size"
    assert (found.memory_bytes, found.memory_bytes_now) == (600, 5600)
    assert found.reasons == (
        "size: 1 selector, which matches 10.00 % of the messages; 2.0 bytes a message",
        "color: 2 selectors, which together match 10.00 % of the messages; 4.0 bytes a message",
        "header.durable: 1 selector; not in archives, so its cost is unknown",
        "without unused, which no selector looks at: 50.0 bytes a message less",
    )
    assert recommend(fields[:2], 100, ("size",), 200).reasons[-1].startswith("not kept now: color;")


def test_where_nothing_can_be_listed() -> None:
    assert recommend([field("unused", 0, 9)], 100, (), 0).line == "x-filter-enabled=false"
    many = recommend(
        [field(f"f{n}", 1, 1) for n in range(70)] + [field("properties.to", 1, 1)], 100, ("*",), 70
    )
    assert many.line == "x-filter-field-names=*,properties.to"
    assert recommend([field("a,b", 1, 1)], 100, ("*",), 1).line == "x-filter-field-names=*"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (A, "a"),
        ("header.priority", "header.priority"),
        (APPLICATION + "header.x", APPLICATION + "header.x"),
        (APPLICATION + "*", APPLICATION + "*"),
    ],
)
def test_fields_as_x_filter_field_names_has_them(key: str, name: str) -> None:
    assert spoken(key) == name


def test_distinct_texts_of_strings_that_look_like_numbers() -> None:
    columns = columns_of(arrays_of([row(a="1 1"), row(a=1), row(a=1)]), 3).columns
    assert [len(distinct_texts(each)) for each in columns] == [1, 1]
    assert json.loads(as_json({"a": 1}) or "") == {"a": 1}
