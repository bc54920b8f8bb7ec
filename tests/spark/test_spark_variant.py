"""Application properties as VARIANT and back, read by PySpark's own reader of variants."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from quorum.spark import OptionError, variant

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SCALARS = st.booleans() | INT64 | st.floats() | st.text(max_size=80) | st.binary(max_size=300)
PROPERTIES = st.dictionaries(st.text(max_size=40), SCALARS, max_size=12)


def read(value: bytes, metadata: bytes) -> Any:
    return VariantVal(value, metadata).toPython()


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b


@given(PROPERTIES)
def test_every_value_comes_back_with_its_kind(properties: dict[str, Any]) -> None:
    found = read(*variant.from_json(variant.to_json(properties)))
    assert found.keys() == properties.keys()
    assert all(is_same(found[name], properties[name]) for name in properties)


def test_an_object_of_many_long_values_is_read() -> None:
    properties: dict[str, Any] = {f"name-{number}": "x" * number * 7 for number in range(400)}
    assert read(*variant.from_json(json.dumps(properties))) == properties


def test_a_floating_point_number_is_never_an_integer_nor_a_decimal() -> None:
    assert variant.to_json({"a": 1.0, "b": Decimal("1.50"), "c": 1}) == '{"a":1.0,"b":1.5,"c":1}'
    found = read(*variant.from_json('{"a":1.0,"c":1}'))
    assert (type(found["a"]), type(found["c"])) == (float, int)


def test_a_property_that_is_null_is_read_as_null() -> None:
    assert read(*variant.from_json('{"a": 1, "z": null}')) == {"a": 1, "z": None}


@pytest.mark.parametrize("number", [Decimal(1 << 63), Decimal(-(1 << 63) - 1), 1 << 63, Decimal(10**37)])
def test_an_integer_beyond_64_bits_is_refused_and_not_rounded(number: Any) -> None:
    with pytest.raises(OptionError, match=rf"property 'a' has {int(number)}, which does not fit 64 bits"):
        variant.to_json({"a": number})
    assert variant.to_json({"a": Decimal("100000000000000000000.5")}) == '{"a":1e+20}'


def test_an_absent_property_is_left_out() -> None:
    assert variant.to_json({"b": None, "a": True}) == '{"a":true}'


def test_other_values_are_refused() -> None:
    with pytest.raises(OptionError, match="property 'a' is a list; allowed: booleans"):
        variant.to_json({"a": [1]})
    with pytest.raises(ValueError, match="not a JSON object"):
        variant.from_json("[1]")
    with pytest.raises(ValueError, match="which the service never sends"):
        variant.from_json('{"a": {"b": 1}}')
