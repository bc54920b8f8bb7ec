"""Selectors and property filters as clients write them, checked against what a queue keeps."""

from __future__ import annotations

from functools import lru_cache

from quorum.api import status
from quorum.catalog.machine import CatalogQueue
from quorum.v1 import queue_pb2 as pb
from quorum_selectors import canonical, jms, properties
from quorum_selectors.expression import Expression, field_names
from quorum_selectors.wellknown import KeptFields, resolve_field_names


@lru_cache(maxsize=4096)
def _resolved(names: tuple[str, ...]) -> KeptFields:
    return resolve_field_names(names)


def kept_fields(queue: CatalogQueue) -> tuple[KeptFields | None, int]:
    """(what the queue keeps of each message, None if nothing; bytes allowed a message, -1 for no limit)."""
    config = queue.config
    if not config.filter_enabled:
        return None, -1
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

    Raises SelectorError or FilterError where it is wrong in itself, StatusError where the queue cannot answer it.
    """
    expression = parse(request)
    if expression is None:
        return b""
    kept, _ = kept_fields(queue)
    if kept is None:
        raise status.invalid(
            "filter_not_enabled",
            f"queue {request.queue!r} keeps no filter fields; declare it with x-filter-enabled",
        )
    for name in field_names(expression):
        if not kept.keeps(name):
            raise status.invalid(
                "field_not_kept",
                f"queue {request.queue!r} does not keep the field {name}; its x-filter-field-names are "
                + ", ".join(queue.config.filter_field_names),
                field=name,
            )
    return canonical.encode(expression)


def _value(value: pb.Value) -> bool | int | float | str | None:
    kind = value.WhichOneof("kind")
    if kind == "binary":
        raise status.invalid("bad_filter", "a property filter compares booleans, numbers and text, not bytes")
    return None if kind is None else getattr(value, kind)
