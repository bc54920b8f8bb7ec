"""The fields of the catalog's commands, in the order in which they are written (fifo/records.py)."""

from __future__ import annotations

from typing import Any

from fifo.records import I64, OPEN_TEXT, TEXT, U64, Field, Kind, Record
from quorum.catalog import commands as cat
from quorum.catalog import lease_times as lt
from quorum.catalog.lease_times import UNSEEN


class _Arguments(Kind):
    """Pairs of a name and a value. JSON tells 1, 1.0 and true apart; bytes are no value of any argument."""

    def from_json(self, value: Any) -> tuple[tuple[str, object], ...]:
        if not isinstance(value, list):
            raise ValueError(f"no arguments: {value!r}")
        found = []
        for pair in value:
            match pair:
                case [str(argument), bool() | int() | float() | str() as content]:
                    found.append((argument, content))
                case _:
                    raise ValueError(f"no argument: {pair!r}")
        return tuple(found)


ARGUMENTS = _Arguments()
SEEN = Field("seen", I64, since=2, default=UNSEEN)

DECLARE_QUEUE = Record(cat.DeclareQueue, (Field("name", TEXT), Field("arguments", ARGUMENTS), SEEN))
SET_POLICY = Record(
    cat.SetPolicy,
    (
        Field("name", TEXT),
        Field("pattern", TEXT),
        Field("priority", I64),
        Field("arguments", ARGUMENTS),
        SEEN,
    ),
)
"""Both are JSON lists; the others are packed."""
REMOVE_QUEUE = Record(cat.RemoveQueue, (Field("name", OPEN_TEXT),))
REMOVE_POLICY = Record(cat.RemovePolicy, (Field("seen", I64), Field("name", OPEN_TEXT)))
LEASE_TIMES = (
    Record(lt.FoundLeaseTimes, (Field("lease_ms", U64), Field("step_down_ms", U64))),
    Record(lt.SetLeaseTimes, (Field("lease_ms", U64), Field("step_down_ms", U64), Field("seen", I64))),
    Record(lt.SettleLeaseTimes, (Field("revision", U64),)),
)
