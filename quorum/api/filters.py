"""Selectors and property filters as clients write them, and what queues keep for them."""

from __future__ import annotations

from functools import lru_cache

from quorum.api import status
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.queues import CatalogQueue
from quorum.v1 import queue_pb2 as pb
from quorum_selectors import canonical, jms, printing, properties
from quorum_selectors.expression import Expression
from quorum_selectors.wellknown import KeptFields, resolve_field_names


@lru_cache(maxsize=4096)
def _resolved(names: tuple[str, ...]) -> KeptFields:
    return resolve_field_names(names)


def kept_fields(catalog: CatalogMachine, queue: CatalogQueue) -> tuple[KeptFields | None, int]:
    """(what the queue keeps of each message now, None if nothing; bytes allowed a message, -1 for no limit)."""
    if not queue.config.filter_enabled:  # no policy changes it
        return None, -1
    config = catalog.effective(queue).config
    return _resolved(config.filter_field_names), config.filter_max_in_memory_bytes_per_msg


def parse(request: pb.Attach | pb.BrowseRequest) -> Expression | None:
    """None: every message. Raises SelectorError or FilterError."""
    kind = request.WhichOneof("filter")
    if kind == "selector":
        return jms.parse(request.selector) if request.selector.strip(jms.BLANKS) else None
    if kind == "property_filter":
        return properties.parse(
            {name: _value(value) for name, value in request.property_filter.properties.items()},
            {name: _value(value) for name, value in request.property_filter.application_properties.items()},
        )
    return None


def expression_bytes(request: pb.Attach, queue: CatalogQueue) -> bytes:
    """The canonical encoding of the request's selector or filter; empty for every message.

    Whether the queue keeps the fields is judged in its group, by what it keeps when the consumer is attached there.
    Raises SelectorError or FilterError where it is wrong in itself, StatusError where the queue does not filter.
    """
    expression = parse(request)
    if expression is None:
        return b""
    if not queue.config.filter_enabled:
        raise status.invalid(
            "filter_not_enabled",
            f"queue {request.queue!r} keeps no filter fields; declare it with x-filter-enabled",
        )
    return canonical.encode(expression)


@lru_cache(maxsize=4096)
def selector_text(encoded: bytes) -> str:
    """A selector of this canonical encoding; empty for every message, and where no text on the wire says it."""
    if not encoded:
        return ""
    return printing.selector(canonical.decode(encoded)) or ""


def _value(value: pb.Value) -> bool | int | float | str | None:
    kind = value.WhichOneof("kind")
    if kind == "binary":
        raise status.invalid("bad_filter", "a property filter compares booleans, numbers and text, not bytes")
    return None if kind is None else getattr(value, kind)
