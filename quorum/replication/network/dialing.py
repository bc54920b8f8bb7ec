"""When and where a node dials a peer: the pauses between attempts, and the lookup of the peer's address."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Address = tuple[str, int]

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
RESERVE_AFTER_S = 2.0
"""Seconds without a connection after which a peer that should dial is dialed. Longer than BACKOFF_MAX_S, so that a peer
that knows the address has tried."""


@dataclass(slots=True)
class Dial:
    """When and where to dial a peer."""

    address: Address
    is_reserve: bool = False
    """whether the peer should dial, if it knows the address"""
    next_s: float = 0.0
    backoff_s: float = BACKOFF_MIN_S
    resolved: list[tuple[int, Any]] = field(default_factory=list)
    is_resolving: bool = False

    def begin(self, now: float, clock: Callable[[], float]) -> tuple[int, Any] | None:
        """Begin an attempt. Returns the socket family and the address, or None while the address is looked up. Of
        several addresses one is tried after the other; they are looked up again when none is left."""
        if not self.resolved:
            if not self.is_resolving:
                self.is_resolving = True
                self._resolve(clock)
            if not self.resolved:
                return None
        self.next_s = now + (RESERVE_AFTER_S if self.is_reserve else self.backoff_s)
        self.backoff_s = min(self.backoff_s * 2, BACKOFF_MAX_S)
        return self.resolved.pop(0)

    def hold_back(self, now: float) -> None:
        """Put off the attempts of a reserve, because there is a connection or one is being made."""
        if self.is_reserve:
            self.next_s = now + RESERVE_AFTER_S

    def reset_backoff(self) -> None:
        """Begin with short pauses again, because a handshake has succeeded."""
        self.backoff_s = BACKOFF_MIN_S

    def _resolve(self, clock: Callable[[], float]) -> None:
        """Look up the address. A number needs no lookup; a name is looked up on a thread, since that may take
        seconds."""
        host, port = self.address

        def look_up() -> None:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                self.resolved = [(family, address) for family, _, _, _, address in found]
            except (OSError, OverflowError, ValueError):
                # UnicodeError, a ValueError: a name that cannot be looked up. Overflow: a port out of range.
                self.next_s = clock() + BACKOFF_MAX_S
            finally:
                self.is_resolving = False

        try:
            ipaddress.ip_address(host)
        except ValueError:
            threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
        else:
            look_up()
