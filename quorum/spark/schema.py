"""The columns of the data source as Spark types, for reads and writes.

A source has all columns: `fields` only if application properties are known or named (`filterFields`), `body` unless it
is excluded. A user's schema is a projection: columns by name, with their own types or one of the alternatives below. A
sink takes `body` and the other parts of a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from quorum.columns import TEXTS
from quorum.spark.errors import OptionError

if TYPE_CHECKING:
    from quorum.spark.options import SinkOptions

COLUMNS: dict[str, tuple[DataType, ...]] = {
    "queue": (StringType(),),
    "sequence": (LongType(),),
    "raft_index": (LongType(),),
    "enqueued": (TimestampType(),),
    **{name: (StringType(),) for name in TEXTS},
    "priority": (ShortType(), IntegerType()),  # 0..255: a TINYINT would not do
    "deliveries": (IntegerType(),),
    "expires": (TimestampType(),),
    "properties": (VariantType(), StringType()),  # STRING: the JSON text as the service sends it
    "body": (BinaryType(),),
}
"""By name, the type of a source's column and the alternatives for a user's schema. The column `fields` is separate."""

FIELDS = "fields"
ORDER = (*(name for name in COLUMNS if name not in ("properties", "body")), FIELDS, "properties", "body")

NEVER_NULL = ("queue", "sequence", "raft_index", "enqueued", "deliveries", FIELDS, "body")
"""The columns that have a value in every row. For any other one that a schema calls NOT NULL, Spark fails with an error
of the JVM, or gives NULL in place of all values."""
_MAY_BE_NULL = "is NOT NULL, but a message may have no value for it; leave NOT NULL out"

FIELD_TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BOOLEAN": BooleanType(),
    "SMALLINT": ShortType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
}
"""Types of application properties as filterFields and schemas name them."""
_NAMES = {type(each): name for name, each in FIELD_TYPES.items()}
MAX_FIELDS = 256
"""Highest number of fields in one read, a limit of the service."""
SYNONYMS = {"SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT"}

KINDS: dict[type[DataType], str] = {
    StringType: "text",
    BooleanType: "boolean",
    ShortType: "integer",
    IntegerType: "integer",
    LongType: "integer",
    DoubleType: "floating",
}
"""The kind of application property for a field's type, in the words of the bulk client."""
TYPE_OF_KIND = {
    "text": StringType(),
    "boolean": BooleanType(),
    "integer": LongType(),
    "floating": DoubleType(),
}

INTEGERS = (ByteType, ShortType, IntegerType, LongType)
SINK_FIELD_TYPES = (StringType, BooleanType, *INTEGERS, FloatType, DoubleType)

_FIELD = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>[^\s`,:]+))\s*[\s:]\s*(?P<type>[A-Za-z]+)\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class Field:
    """An application property as a field of the column `fields`."""

    name: str
    type: DataType

    @property
    def kind(self) -> str:
        return KINDS[type(self.type)]


def name_of(field_type: DataType) -> str:
    """The type's name in filterFields."""
    return _NAMES[type(field_type)]


def parse_fields(text: str) -> tuple[Field, ...]:
    """Parse the option filterFields: `color STRING, size INT`; names may be in backquotes. Raises OptionError."""
    found: list[Field] = []
    place = 0
    while place < len(text) or not found:
        match = _FIELD.match(text, place)
        if match is None:
            raise OptionError(
                f"option filterFields is {text!r}: at character {place} a name and a type are expected, "
                f"as in 'color STRING, size INT'"
            )
        name = match["name"] or match["quoted"].replace("``", "`")
        word = match["type"].upper()
        chosen = FIELD_TYPES.get(SYNONYMS.get(word, word))
        if chosen is None:
            raise OptionError(
                f"option filterFields: {name} has the type {match['type']}; allowed: {', '.join(FIELD_TYPES)}"
            )
        found.append(Field(name, chosen))
        place = match.end()
    return _distinct(found, "option filterFields")


def seen_fields(queues: Iterable[Mapping[str, str]]) -> tuple[Field, ...]:
    """Fields for the application properties that messages have. queues: for each queue, kind by name.

    These properties get no field and stay in `properties`:

    - bytes;
    - properties whose kind differs between queues;
    - names with a zero byte, because Spark's Arrow cuts a name there and loses the values;
    - all but one of the names that differ only in case, because Spark does not distinguish them;
    - those beyond MAX_FIELDS, in the order of names.
    """
    kinds: dict[str, set[str]] = {}
    for each in queues:
        for name, kind in each.items():
            kinds.setdefault(name, set()).add(kind)
    found: list[Field] = []
    lower: set[str] = set()
    for name in sorted(kinds):
        (kind, *others) = sorted(kinds[name])
        if not others and kind in TYPE_OF_KIND and name.lower() not in lower and "\0" not in name:
            lower.add(name.lower())
            found.append(Field(name, TYPE_OF_KIND[kind]))
    return tuple(found[:MAX_FIELDS])


def source_schema(fields: Sequence[Field], *, include_body: bool) -> StructType:
    """All columns, in the documented order."""
    columns = []
    for name in ORDER:
        if name == FIELDS:
            if fields:
                columns.append(StructField(FIELDS, StructType([StructField(f.name, f.type) for f in fields])))
        elif name != "body" or include_body:
            columns.append(StructField(name, COLUMNS[name][0]))
    return StructType(columns)


def fields_of(schema: StructType) -> tuple[Field, ...]:
    """The application properties that a schema's column `fields` names."""
    for column in schema.fields:
        if column.name == FIELDS and isinstance(column.dataType, StructType):
            return tuple(Field(each.name, each.dataType) for each in column.dataType.fields)
    return ()


def check_projection(schema: StructType) -> None:
    """Check a user's schema. OptionError if it names an unknown column or gives one a type that does not fit."""
    seen: set[str] = set()
    for column in schema.fields:
        name = column.name
        if name.lower() in seen:
            raise OptionError(f"the schema names the column {name} twice")
        seen.add(name.lower())
        if name == FIELDS:
            _check_fields(column.dataType)
        elif name not in COLUMNS:
            raise OptionError(f"the schema names a column {name}; columns are: {', '.join(ORDER)}")
        elif column.dataType not in COLUMNS[name]:
            allowed = " or ".join(each.simpleString() for each in COLUMNS[name])
            raise OptionError(f"column {name} is {allowed}; the schema says {column.dataType.simpleString()}")
        elif not column.nullable and name not in NEVER_NULL:
            raise OptionError(f"the schema says that the column {name} {_MAY_BE_NULL}")


def _check_fields(given: DataType) -> None:
    if not isinstance(given, StructType) or not given.fields:
        raise OptionError(
            f"column fields is a struct of application properties, such as struct<color:string,size:int>; "
            f"the schema says {given.simpleString()}"
        )
    for each in given.fields:
        if type(each.dataType) not in KINDS:
            raise OptionError(
                f"field {each.name} has the type {each.dataType.simpleString()}; allowed: {', '.join(FIELD_TYPES)}"
            )
        if not each.nullable:
            raise OptionError(f"the schema says that the field {each.name} {_MAY_BE_NULL}")
    _distinct([Field(each.name, each.dataType) for each in given.fields], "the schema")


def _distinct(fields: Sequence[Field], where: str) -> tuple[Field, ...]:
    if len(fields) > MAX_FIELDS:
        raise OptionError(f"{where} names {len(fields)} fields; at most {MAX_FIELDS} are read")
    seen: set[str] = set()
    for each in fields:
        _refuse_zero_byte(each.name)
        if each.name.lower() in seen:
            raise OptionError(f"{where} names the field {each.name} twice; Spark ignores the case of names")
        seen.add(each.name.lower())
    return tuple(fields)


def _refuse_zero_byte(name: str) -> None:
    if "\0" in name:
        raise OptionError(
            f"field {name!r} has a zero byte in its name, where Spark cuts it; use the column properties"
        )


# ---- the columns of a sink


def check_sink(schema: StructType, options: SinkOptions) -> tuple[str, ...]:
    """The columns that are written, in the order of the schema, `queue` among them. Raises OptionError."""
    taken: list[str] = []
    for column in schema.fields:
        name, given = column.name, column.dataType
        if name not in _SINK:
            if options.ignore_unknown_columns:
                continue
            raise OptionError(
                f"there is no column {name} in a message; columns of a sink are: {', '.join(_SINK)}; "
                "leave the others out, or set ignoreUnknownColumns=true"
            )
        if not _fits(name, given):
            raise OptionError(f"column {name} of a sink is {_SINK[name]}; {_misfit(name, given)}")
        if isinstance(given, StructType):
            for field in given.fields:
                _refuse_zero_byte(field.name)
        taken.append(name)
    if "body" not in taken:
        raise OptionError("a sink needs a column body: the messages' bytes or text")
    if "queue" not in taken and not options.queue:
        raise OptionError("a sink needs a target: set the option queue, or add a column queue")
    return tuple(taken)


_SINK = {
    "queue": "string",
    "body": "binary or string",
    **dict.fromkeys(TEXTS, "string"),
    "priority": "an integer",
    "ttl_ms": "an integer",
    "fields": "a struct of strings, integers, doubles and booleans",
    "properties": "a variant, a JSON object as a string, or map<string,string>",
}


def _misfit(name: str, given: DataType) -> str:
    """What does not fit. A struct may have a thousand fields, so only the first wrong one is named."""
    if name == FIELDS and isinstance(given, StructType):
        wrong = next(each for each in given.fields if not isinstance(each.dataType, SINK_FIELD_TYPES))
        return f"field {wrong.name} is {wrong.dataType.simpleString()}"
    return f"this one is {given.simpleString()}"


def _fits(name: str, given: DataType) -> bool:
    if name == "body":
        return isinstance(given, BinaryType | StringType)
    if name in ("priority", "ttl_ms"):
        return isinstance(given, INTEGERS)
    if name == "fields":
        return isinstance(given, StructType) and all(
            isinstance(f.dataType, SINK_FIELD_TYPES) for f in given.fields
        )
    if name == "properties":
        if isinstance(given, MapType):
            return isinstance(given.keyType, StringType) and isinstance(given.valueType, StringType)
        return isinstance(given, VariantType | StringType)
    return isinstance(given, StringType)
