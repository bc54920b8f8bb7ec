"""Columns of bulk reads, and the set that a request selects."""

from __future__ import annotations

from difflib import get_close_matches

from fifo.frozen_dataclasses import dataclass
from quorum.api import status
from quorum.columns import TEXTS
from quorum.v1 import bulk_pb2 as pb

NAMES = (
    "sequence",
    "raft_index",
    "enqueued",
    *TEXTS,
    "priority",
    "deliveries",
    "expires",
    "fields",
    "properties",
    "body",
)
OF_PROPERTIES = frozenset((*TEXTS, "priority", "fields", "properties"))
"""Columns that require the messages' properties."""
KINDS: dict[pb.Field.Kind, str] = {
    kind: name.lower() for name, kind in pb.Field.Kind.items() if kind != pb.Field.KIND_UNSPECIFIED
}
"""As quorum.v1.Value calls them."""
MAX_FIELDS = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """fields: (name of the application property, kind of value)."""

    names: tuple[str, ...]
    fields: tuple[tuple[str, str], ...] = ()


def wanted(request: pb.Columns) -> Wanted:
    """StatusError for a column that does not exist."""
    names = tuple(request.names) or tuple(name for name in NAMES if name != "fields" or request.fields)
    for name in names:
        if name not in NAMES:
            close = get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(NAMES)}"
            raise status.invalid("bad_column", f"there is no column {name!r}; {hint}")
    _refuse_twice("column", names)
    if ("fields" in names) != bool(request.fields):
        raise status.invalid(
            "bad_column",
            "the column 'fields' is requested without names of fields; name each with its kind"
            if "fields" in names
            else "fields are named, but the column 'fields' is not requested",
        )
    if len(request.fields) > MAX_FIELDS:
        raise status.invalid("bad_column", f"{len(request.fields)} fields; at most {MAX_FIELDS}")
    for field in request.fields:
        if field.kind not in KINDS:
            raise status.invalid(
                "bad_column", f"field {field.name!r} has no kind; allowed: TEXT, INTEGER, FLOATING, BOOLEAN"
            )
    _refuse_twice("field", tuple(field.name for field in request.fields))
    return Wanted(names, tuple((field.name, KINDS[field.kind]) for field in request.fields))


def _refuse_twice(what: str, names: tuple[str, ...]) -> None:
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise status.invalid("bad_column", f"the {what} {twice!r} is requested twice")
