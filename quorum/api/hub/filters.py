"""Selectors and property filters of clients, independent of the protocol, and the fields that queues keep for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from sys import getsizeof
from typing import TypeVar

from fifo.frozen_dataclasses import dataclass
from quorum.api import status
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.status import Status
from quorum.api.turns import Turns
from quorum.catalog.queues import CatalogQueue
from quorum_selectors import canonical, jms, properties, unparse
from quorum_selectors.errors import MAX_SELECTOR_CHARACTERS, EncodingError, FilterError, SelectorError
from quorum_selectors.expression import Expression
from quorum_selectors.known_fields import KeptFields, resolve_field_names

T = TypeVar("T")

STEPS_OF_A_FILTER = 64
"""Steps of parsing a filter, besides one for each character."""
REMEMBERED_BYTES = 4 << 20
"""Maximum bytes of the selectors that a node remembers: some thousands of usual length."""
ENTRY_BYTES = 512
"""Approximate bytes that a remembered selector takes besides its texts."""


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


def is_blank(wanted: Filter) -> bool:
    """Whether a filter selects every message because it says nothing."""
    return wanted is None or (isinstance(wanted, SelectorText) and not wanted.text.strip(jms.BLANKS))


def check_filters(queue: CatalogQueue) -> None:
    """StatusError if the queue does not filter."""
    if not queue.config.filter_enabled:
        raise status.invalid(
            "filter_not_enabled",
            f"queue {queue.name!r} keeps no filter fields: it was declared without x-filter-enabled, which cannot be "
            "changed later",
        )


class Filters:
    """Parses the filters of clients, in turns by address (turns.py), and remembers selectors. One per node.

    It remembers the encoding of a selector, or why it is refused, so that a selector is parsed once if many consumers
    have it. Property filters are not remembered: their values would have to be compared with their types.
    """

    def __init__(self, turns: Turns, remembered_bytes: int = REMEMBERED_BYTES) -> None:
        self._turns = turns
        self._most = remembered_bytes
        self._known: OrderedDict[str, bytes | Status] = OrderedDict()
        """by the selector's text; the one that was used last is the last"""
        self.remembered_bytes = 0

    async def expression(self, wanted: Filter, owner: Hashable) -> Expression | None:
        """Parse a filter when it is the owner's turn; None: every message. StatusError if the filter is invalid."""
        if is_blank(wanted):
            return None
        return await self._run(wanted, owner, lambda: self._parse(wanted))

    async def encoding(self, wanted: Filter, owner: Hashable) -> bytes:
        """The canonical encoding of a filter, parsed when it is the owner's turn; empty for every message. StatusError
        if the filter is invalid."""
        if is_blank(wanted):
            return b""
        known = self._find(wanted)
        return known if known is not None else await self._run(wanted, owner, lambda: self._encode(wanted))

    async def encoding_for(self, queue: CatalogQueue, wanted: Filter, owner: Hashable) -> bytes:
        """`encoding` of a consumer's filter. StatusError, before the filter is parsed, if the queue does not filter.

        The queue's group checks whether the queue keeps the fields, when the consumer is attached.
        """
        if not is_blank(wanted):
            check_filters(queue)
        return await self.encoding(wanted, owner)

    async def _run(self, wanted: Filter, owner: Hashable, work: Callable[[], T]) -> T:
        self._find(wanted)
        return await self._turns.run(owner, _steps(wanted), work)

    def _parse(self, wanted: Filter) -> Expression | None:
        self._find(wanted)  # it may have been refused while this one waited for its turn
        try:
            return parse(wanted)
        except (SelectorError, FilterError) as error:
            raise self._refused(wanted, status.of_error(error)) from error

    def _encode(self, wanted: Filter) -> bytes:
        known = self._find(wanted)
        if known is not None:
            return known
        try:
            expression = parse(wanted)
            encoded = b"" if expression is None else canonical.encode(expression)
        except (SelectorError, FilterError, EncodingError) as error:
            raise self._refused(wanted, status.of_error(error)) from error
        self._remember(wanted, encoded)
        return encoded

    def _find(self, wanted: Filter) -> bytes | None:
        """The encoding of a selector that is remembered. StatusError if it is remembered as refused."""
        known = self._known.get(wanted.text) if isinstance(wanted, SelectorText) else None
        if known is None or not isinstance(wanted, SelectorText):
            return None
        self._known.move_to_end(wanted.text)
        if isinstance(known, Status):
            raise status.StatusError(known)
        return known

    def _refused(self, wanted: Filter, why: Status) -> status.StatusError:
        self._remember(wanted, why)
        return status.StatusError(why)

    def _remember(self, wanted: Filter, found: bytes | Status) -> None:
        if not isinstance(wanted, SelectorText) or len(wanted.text) > MAX_SELECTOR_CHARACTERS:
            return
        self._known[wanted.text] = found
        self.remembered_bytes += _size_of(wanted.text, found)
        while self.remembered_bytes > self._most:
            self.remembered_bytes -= _size_of(*self._known.popitem(last=False))


def _steps(wanted: Filter) -> int:
    """Steps of parsing a filter (turns.py). 0 for one that is refused by its length."""
    if isinstance(wanted, SelectorText):
        size = len(wanted.text)
    elif isinstance(wanted, PropertyFilter):
        entries = [*wanted.properties.items(), *wanted.application_properties.items()]
        size = sum([len(name) + (len(value) if isinstance(value, str) else 0) for name, value in entries])
    else:
        return 0
    return 0 if size > MAX_SELECTOR_CHARACTERS else STEPS_OF_A_FILTER + size


def _size_of(text: str, found: bytes | Status) -> int:
    """Approximate bytes that a remembered selector takes."""
    size = found.size_bytes if isinstance(found, Status) else len(found)
    return getsizeof(text) + size + ENTRY_BYTES


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
