"""The fields of the catalog's commands, and of the records in its snapshot, in the order in which they are written
(fifo/records.py).

To add a field to a record of the snapshot: one line here, at the end of the record, with the machine version that it
comes with and its default, and the field in its class.
"""

from __future__ import annotations

from typing import Any

from fifo.commands import UNKNOWN
from fifo.kinds import FLAG, I64, OPEN_TEXT, TEXT, U64
from fifo.records import Field, Record
from fifo.versions import FIRST
from quorum.catalog import bindings as routes
from quorum.catalog import commands as cat
from quorum.catalog import exchanges as ex
from quorum.catalog import lease_times as lt
from quorum.catalog.lease_times import UNSEEN
from quorum.catalog.members import CatalogMember
from quorum.catalog.numbering import Speaker
from quorum.catalog.policies import Policy
from quorum.catalog.queues import MAX_QUEUES, CatalogQueue
from quorum.catalog.users import RemoveUser, SetPermissions, SetUser, User


class _Arguments:
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

DECLARE_QUEUE = Record(
    cat.DeclareQueue,
    (
        Field("name", TEXT),
        Field("arguments", ARGUMENTS),
        SEEN,
        Field("max_queues", U64, since=2, default=MAX_QUEUES),
        Field("owner", TEXT, since=3, default=""),
        Field("max_owned", U64, since=3, default=MAX_QUEUES),
    ),
)
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
DECLARE_EXCHANGE = Record(
    ex.DeclareExchange,
    (Field("name", TEXT), Field("type", TEXT), Field("arguments", ARGUMENTS), Field("seen", I64)),
)
DELETE_EXCHANGE = Record(
    ex.DeleteExchange, (Field("name", TEXT), Field("exchange", U64), Field("if_unused", FLAG))
)
_ENDS = (
    Field("source", TEXT),
    Field("kind", TEXT),
    Field("destination", TEXT),
    Field("routing_key", TEXT),
    Field("arguments", ARGUMENTS),
    Field("selector", TEXT),
)
BIND = Record(ex.Bind, (*_ENDS, Field("seen", I64)))
UNBIND = Record(ex.Unbind, (Field("binding", U64),))
_PATTERNS = (Field("configure", TEXT), Field("write", TEXT), Field("read", TEXT))
SET_USER = Record(
    SetUser,
    (
        Field("name", TEXT),
        Field("secret", TEXT),
        Field("administers", FLAG),
        Field("monitors", FLAG),
        Field("seen", I64),
    ),
    since=2,
)
SET_PERMISSIONS = Record(SetPermissions, (Field("name", TEXT), *_PATTERNS, Field("seen", I64)), since=2)
REMOVE_USER = Record(RemoveUser, (Field("name", TEXT), Field("seen", I64)), since=2)
"""These are JSON lists; the others are packed."""
REMOVE_QUEUE = Record(cat.RemoveQueue, (Field("name", OPEN_TEXT),))
REMOVE_EXPIRED = Record(cat.RemoveExpired, (), since=2)
REMOVE_POLICY = Record(cat.RemovePolicy, (Field("seen", I64), Field("name", OPEN_TEXT)))
LEASE_TIMES = (
    Record(lt.FoundLeaseTimes, (Field("lease_ms", U64), Field("step_down_ms", U64))),
    Record(lt.SetLeaseTimes, (Field("lease_ms", U64), Field("step_down_ms", U64), Field("seen", I64))),
    Record(lt.SettleLeaseTimes, (Field("revision", U64),)),
)

# ---- in the snapshot

QUEUE = Record(
    CatalogQueue,
    (
        Field("id", U64),
        Field("name", TEXT),
        Field("group", U64),
        Field("arguments", ARGUMENTS),
        Field("version", U64, since=2, default=FIRST),
        Field("owner", TEXT, since=3, default=""),
    ),
    others=("config",),
)
POLICY = Record(
    Policy,
    (Field("name", TEXT), Field("pattern", TEXT), Field("priority", I64), Field("arguments", ARGUMENTS)),
)
EXCHANGE = Record(
    routes.Exchange,
    (Field("id", U64), Field("name", TEXT), Field("type", TEXT), Field("arguments", ARGUMENTS)),
)
BINDING = Record(routes.Binding, (Field("id", U64), *_ENDS))
USER = Record(
    User,
    (
        Field("name", TEXT),
        Field("secret", TEXT),
        Field("administers", FLAG),
        Field("monitors", FLAG),
        *_PATTERNS,
    ),
)
TIMES = Record(lt.LeaseTimes, (Field("lease_ms", U64), Field("step_down_ms", U64)))
LEASE_SETTINGS = Record(
    lt.LeaseSettings,
    (Field("revision", U64), Field("wanted", TIMES), Field("granted", TIMES), Field("awaited", TIMES)),
)
MEMBER = Record(
    CatalogMember,
    (
        Field("number", U64),
        Field("id", TEXT),
        Field("name", TEXT),
        Field("peer", TEXT),
        Field("client", TEXT),
        Field("incarnation", TEXT),
        Field("is_drained", FLAG),
        Field("is_joining", FLAG, since=2, default=False),
        Field("replaces", TEXT, since=2, default=""),
    ),
)
"""An object; the others are lists."""
SPEAKER = Record(
    Speaker,
    (
        Field("epoch", U64),
        Field("last", U64),
        Field("heard_ms", U64),
        Field("owner", U64, since=2, default=UNKNOWN),
        Field("node", U64, since=2, default=0),
        Field("boot", U64, since=2, default=0),
    ),
)
