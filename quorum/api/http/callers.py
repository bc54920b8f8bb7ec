"""Who makes a request of HTTP: a client's address, and no page of another site."""

from __future__ import annotations

import ipaddress

from starlette.requests import ClientDisconnect, Request

from quorum.api.http.calls import JSON
from quorum.api.owners import client_address
from quorum.api.shares import Shares
from quorum.api.status import Code, StatusError, make


def peer_of(request: Request) -> str:
    """The client, as gRPC would name it. ClientDisconnect if it has gone before its address was read."""
    if request.client is None:
        raise ClientDisconnect
    host, port = request.client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


class Place:
    """A place among the requests: of the client's address, and of its user once that is known."""

    def __init__(self, places: Shares, peer: str) -> None:
        """NoPlace if there is none."""
        self._places = places
        self._owner = ""
        self._enter(client_address(peer))

    def pass_to(self, caller: str) -> None:
        """From here on the place is this caller's. NoPlace if it may have no more; then there is no place."""
        if caller != self._owner:
            self.leave()
            self._enter(caller)

    def _enter(self, owner: str) -> None:
        if not self._places.enter(owner):
            raise NoPlace
        self._owner = owner

    def leave(self) -> None:
        """Give the place back, if there is one."""
        if self._owner:
            self._places.leave(self._owner)
            self._owner = ""


class NoPlace(Exception):
    """The caller has as many requests as it may have."""


def check_origin(request: Request, *, has_user: bool) -> None:
    """StatusError for a request that a page of another site makes in a browser. A browser says which site that is, and
    adds a user's password by itself. A foreign page cannot send a POST with JSON: for that, and for PUT and DELETE, a
    browser first asks with OPTIONS, which is refused. Without users, the name of this member has to be an address or
    `localhost`, because a site may give its own name the address of this machine."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if origin is not None and origin.partition("://")[2] != host:
        raise _foreign(f"a page of {origin[:255]}")
    if request.method == "POST" and kind != JSON:
        raise _foreign(
            "a POST without content-type: application/json, which a page of another site could send"
        )
    if not has_user and name != "localhost" and not _is_address(name.strip("[]")):
        raise _foreign(f"a request to {name[:255]!r}; without users, an IP address or localhost is needed")


def _foreign(what: str) -> StatusError:
    return StatusError(make(Code.PERMISSION_DENIED, "other_site", what))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
