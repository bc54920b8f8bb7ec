"""A field that a later build adds to a record of a state (fifo/records.py)."""

from __future__ import annotations

import sys
from dataclasses import field, make_dataclass
from typing import Any

import pytest

from fifo.frozen_dataclasses import dataclass, is_frozen
from fifo.kinds import TEXT
from fifo.records import Field, Record
from fifo.versions import BASE

NEW = BASE + 1
DEFAULT, MADE = "from before", "made by the later build"
NOTE = Field("note", TEXT, since=NEW, default=DEFAULT)


def add_note(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    """From now on the record has a field `note`: MADE in new objects, DEFAULT in those of an older state."""
    kind: Any = record.kind
    parsers = [*record._parsers, (NOTE.name, TEXT.from_json, DEFAULT)]
    monkeypatch.setitem(vars(record), "_parsers", parsers)
    monkeypatch.setattr(record, "fields", (*record.fields, NOTE))
    monkeypatch.setattr(record, "_forms", {})
    if not hasattr(kind, "__dataclass_fields__"):
        monkeypatch.setattr(kind, "note", MADE, raising=False)
        return
    later = _with_note(kind)
    monkeypatch.setattr(record, "kind", later)
    packages = ("fifo.", "quorum.catalog.", "support.")
    for module in [each for name, each in sys.modules.items() if name.startswith(packages)]:
        for name in [name for name, value in vars(module).items() if value is kind]:
            monkeypatch.setattr(module, name, later)


def _with_note(kind: Any) -> Any:
    """A subclass with the field, made by the decorator that made the class."""
    frozen = is_frozen(kind)
    if frozen and not kind.__dataclass_params__.frozen:
        space = {"__annotations__": {"note": "str"}, "note": MADE}
        return dataclass(frozen=True, slots=True)(type(kind.__name__, (kind,), space))
    note = ("note", str, field(default=MADE))
    return make_dataclass(kind.__name__, [note], bases=(kind,), frozen=frozen, eq=frozen, slots=True)


def notes(objects: Any) -> set[str]:
    """Of one or more objects."""
    found = {each.note for each in objects}
    assert found, "the state has no such object"
    return found
