"""The fields a selector or filter can name, and which of them a queue keeps.

A field key is `header.<name>` or `properties.<name>` with AMQP's own names (AMQP 1.0 §3.2.1, §3.2.4), or
`application-properties.<name>`. `header.ttl`, `header.first-acquirer` and `header.delivery-count` are left out on
purpose: they change while a message is in transit, so a selector on them would not stay true or false.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from quorum_selectors.errors import FieldNameError

APPLICATION = "application-properties."
HEADER = "header."
PROPERTIES = "properties."

HEADER_NAMES = ("durable", "priority")
PROPERTY_NAMES = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
WELL_KNOWN = tuple(HEADER + name for name in HEADER_NAMES) + tuple(
    PROPERTIES + name for name in PROPERTY_NAMES
)
"""Every key that is not an application property, in AMQP's order."""

DEFAULT_PRIORITY = 4

JMS_HEADERS = {
    "JMSCorrelationID": "properties.correlation-id",
    "JMSDeliveryMode": "header.durable",
    "JMSMessageID": "properties.message-id",
    "JMSPriority": "header.priority",
    "JMSTimestamp": "properties.creation-time",
    "JMSType": "properties.subject",
    "JMSXGroupID": "properties.group-id",
    "JMSXGroupSeq": "properties.group-sequence",
    "JMSXUserID": "properties.user-id",
}
"""JMS identifiers that are not application properties, mapped as in the AMQP mapping that Qpid JMS uses."""

JMS_REFUSED = {
    "JMSXDeliveryCount": "it changes with every delivery, so a selector on it would not stay true or false",
    "JMSDestination": "a selector reads no such header (JMS 3.1 §3.8.1.1)",
    "JMSReplyTo": "a selector reads no such header (JMS 3.1 §3.8.1.1)",
    "JMSExpiration": "a selector reads no such header (JMS 3.1 §3.8.1.1)",
    "JMSDeliveryTime": "a selector reads no such header (JMS 3.1 §3.8.1.1)",
    "JMSRedelivered": "a selector reads no such header (JMS 3.1 §3.8.1.1)",
}
"""Identifiers that a selector may not use, and the reason."""

ALL_APPLICATION_PROPERTIES = "*"
DEFAULT_FIELD_NAMES = ("*", "header.priority", "header.durable", "properties.subject", "properties.group-id")
MAX_FIELD_NAMES = 64
"""Maximum number of field names: the number of dense columns that a block of messages keeps."""
MAX_FIELD_NAME_BYTES = 255


def jms_key(identifier: str) -> str:
    """The field key of a selector's identifier. Identifiers in JMS_REFUSED have none; the caller has refused them."""
    return JMS_HEADERS.get(identifier) or APPLICATION + identifier


@dataclass(frozen=True, slots=True)
class KeptFields:
    """The fields that a queue keeps in memory. `keys` are sorted field keys, besides all application properties if
    these are kept too."""

    all_application_properties: bool
    keys: tuple[str, ...]

    def keeps(self, key: str) -> bool:
        return (self.all_application_properties and key.startswith(APPLICATION)) or key in self.keys

    def first_not_kept(self, keys: Iterable[str]) -> str | None:
        """The first of these keys that the queue does not keep; None if it keeps them all."""
        return next((key for key in keys if not self.keeps(key)), None)


def resolve_field_names(names: Iterable[str]) -> KeptFields:
    """The fields that a list of x-filter-field-names means. Raises FieldNameError.

    `*` means every application property; `header.x` and `properties.x` are AMQP's fields; any other name is that
    application property (`application-properties.x`, the form used in errors, is accepted for `x`).
    """
    keys = set()
    everything = False
    listed = list(names)
    if len(listed) > MAX_FIELD_NAMES:
        raise FieldNameError(f"{len(listed)} filter field names; at most {MAX_FIELD_NAMES} are allowed")
    for name in listed:
        if not name:
            raise FieldNameError("a filter field name is empty")
        if len(name.encode("utf-8", "surrogatepass")) > MAX_FIELD_NAME_BYTES:
            raise FieldNameError(f"filter field name {name[:40]!r}... has over {MAX_FIELD_NAME_BYTES} bytes")
        if name == ALL_APPLICATION_PROPERTIES:
            everything = True
        elif name.startswith((HEADER, PROPERTIES)):
            if name not in WELL_KNOWN:
                raise FieldNameError(f"unknown filter field {name!r}{nearest(name, WELL_KNOWN)}")
            keys.add(name)
        else:
            keys.add(APPLICATION + name.removeprefix(APPLICATION))
    return KeptFields(everything, tuple(sorted(keys)))


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the most similar known name, or all of them."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
