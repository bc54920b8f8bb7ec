"""The syntax of members' addresses, names, ids and incarnations, in configurations, calls and the catalog.

The same rules apply everywhere. They are pure, because the catalog's machine uses them, too. A valid address may still
not resolve; the lookup then fails with an OSError.
"""

from __future__ import annotations

import ipaddress
import re

MAX_HOST_CHARACTERS = 253
"""Longest name in the DNS (RFC 1035 §2.3.4)."""
MAX_PORT = 65_535
MAX_INCARNATION_DIGITS = 32
MAX_MEMBERS = 15
"""Highest number of members. With more, every write waits for more machines than a plan for failures needs."""

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
"""Names and IPv4 addresses. Host names have no underscores by the standard, but container networks use them."""
_IPV6 = re.compile(r"\[([0-9A-Fa-f:]{2,39}|[0-9A-Fa-f:]{2,30}[0-9.]{7,15})\]")
_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}")
_INCARNATION = re.compile(rf"[0-9a-f]{{{MAX_INCARNATION_DIGITS}}}")
_SHOWN = 80
"""Number of characters of a wrong value that an error text repeats."""


def host_port(address: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6, and the port. ValueError if it is not valid."""
    host, colon, port = address.rpartition(":")
    is_host = len(host) <= MAX_HOST_CHARACTERS and (_HOST.fullmatch(host) or _IPV6.fullmatch(host))
    if not colon or not is_host or not _PORT.fullmatch(port) or not 0 < int(port) <= MAX_PORT:
        raise ValueError(
            f"{shown(address)} is not an address; wanted: host:port, such as node-1.example:7400 or [::1]:7400, "
            f"with a port of 1..{MAX_PORT}"
        )
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only its own machine reaches a host: a loopback address, or `localhost`. Other names may be of any
    machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_name(name: str) -> str:
    """Check and return the name of a node or cluster. ValueError if it is not valid."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{shown(name)} is not a name; allowed: 1..64 of A-Z a-z 0-9 . _ - , beginning with a letter or digit"
        )
    return name


def check_id(member: str) -> None:
    """Check the id of a member. ValueError if it is not valid."""
    if not _ID.fullmatch(member):
        raise ValueError(
            f"{shown(member)} is not a member's id; allowed: 1..64 of A-Z a-z 0-9 . _ ~ - , "
            "beginning with a letter or digit"
        )


def check_incarnation(incarnation: str) -> None:
    """Check the incarnation of a data directory; empty if it is not known. ValueError if it is not valid."""
    if incarnation and not _INCARNATION.fullmatch(incarnation):
        raise ValueError(
            f"{shown(incarnation)} is not an incarnation; allowed: {MAX_INCARNATION_DIGITS} digits of 0-9 a-f, or empty"
        )


def shown(value: str) -> str:
    """A wrong value for an error text: quoted, and only the beginning of a long one."""
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}... ({len(value)} characters)"
