"""Messages for one of several receivers: a property names the receiver, and each selector matches one of them."""

from __future__ import annotations

FIELD = "receiver"


def selector_of(number: int) -> str:
    """The selector of a receiver; each message matches that of exactly one."""
    return f"{FIELD} = 'r{number}'"


def properties_of(number: int) -> dict[str, str]:
    """The properties of a message for this receiver."""
    return {FIELD: f"r{number}"}
