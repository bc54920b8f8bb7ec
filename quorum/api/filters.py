"""Selectors and property filters of clients, independent of the protocol, and the fields that queues keep for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from quorum.api import status
from quorum.api.catalog_view import CatalogView
from quorum.catalog.queues import CatalogQueue
from quorum_selectors import canonical, jms, properties, unparse
from quorum_selectors.expression import Expression
from quorum_selectors.known_fields import KeptFields, resolve_field_names


@lru_cache(maxsize=4096)
def _resolved(names: tuple[str, ...]) -> KeptFields:
    return resolve_field_names(names)


def kept_fields(catalog: CatalogView, queue: CatalogQueue) -> tuple[KeptFields | None, int]:
    """Return (fields that the queue keeps now, None for none; maximum bytes of a message's fields, -1 for no limit)."""
    if not queue.config.filter_enabled:  # no policy changes it
        return None, -1
    config = catalog.effective(queue).config
    return _resolved(config.filter_field_names), config.filter_max_in_memory_bytes_per_msg


def ordered_by(queues: Iterable[CatalogQueue]) -> dict[str, bool]:
    """Return the arguments of `batches.check` that say what decides the order of messages in some of these queues."""
    configs = [queue.config for queue in queues]  # no policy changes it
    return {
        "has_priorities": any(config.max_priority > 0 for config in configs),
        "has_groups": any(config.message_groups for config in configs),
    }


FilterValue = bool | int | float | str | bytes | None


@dataclass(frozen=True, slots=True)
class SelectorText:
    """A JMS selector. Blank: every message."""

    text: str


@dataclass(frozen=True, slots=True)
class PropertyFilter:
    """An AMQP properties filter and application-properties filter: both have to match."""

    properties: Mapping[str, FilterValue]
    application_properties: Mapping[str, FilterValue]


Filter = SelectorText | PropertyFilter | None
"""None: every message."""


def parse(wanted: Filter) -> Expression | None:
    """Parse a filter; None: every message. SelectorError, FilterError, or StatusError for a value of bytes."""
    if isinstance(wanted, SelectorText):
        return jms.parse(wanted.text) if wanted.text.strip(jms.BLANKS) else None
    if isinstance(wanted, PropertyFilter):
        return properties.parse(_checked(wanted.properties), _checked(wanted.application_properties))
    return None


def expression_bytes(wanted: Filter, queue: CatalogQueue) -> bytes:
    """The canonical encoding of a selector or filter; empty for every message.

    The queue's group checks whether the queue keeps the fields, when the consumer is attached.
    SelectorError or FilterError if the filter is invalid, StatusError if the queue does not filter.
    """
    expression = parse(wanted)
    if expression is None:
        return b""
    if not queue.config.filter_enabled:
        raise status.invalid(
            "filter_not_enabled",
            f"queue {queue.name!r} keeps no filter fields; declare it with x-filter-enabled",
        )
    return canonical.encode(expression)


@lru_cache(maxsize=4096)
def selector_text(encoded: bytes) -> str:
    """Return a selector's text for this encoding; empty for every message, and if no text expresses it."""
    if not encoded:
        return ""
    return unparse.selector(canonical.decode(encoded)) or ""


def _checked(values: Mapping[str, FilterValue]) -> dict[str, bool | int | float | str | None]:
    found: dict[str, bool | int | float | str | None] = {}
    for name, value in values.items():
        if isinstance(value, bytes):
            raise status.invalid(
                "bad_filter", "a property filter compares booleans, numbers and text, not bytes"
            )
        found[name] = value
    return found
