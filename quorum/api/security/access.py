"""Who may call: log-in, permissions and the log of who changed what.

A call is admitted before its first request is read. A client names its user with a password (`authorization: Basic`),
with a signed token (`authorization: Bearer`, tokens.py), or by the common name of its TLS certificate. Each request is
then judged by the table in rights.py, before its service sees it; those of a session are judged by the session's
adapter, which refuses single messages.

- While there are no users, everybody who connects from a loopback address may do everything, and others nothing, unless
  the configuration says otherwise. A configured administrator may then log in from anywhere, to make the first user.
  The other addresses of this machine do not count: a proxy, or a port that a container engine forwards, connects from
  them for clients that may be anywhere.
- When a user changes, its sessions and other streams end. The client begins them again, with what the user may do now.
  A single call whose request arrives after the change is refused. One that has begun ends by itself.
- A member may learn of a new user or password later than the client does. So it asks for the present users before it
  refuses a log-in.
- A wrong password costs as much as a right one. One is checked at a time. Addresses take turns, and each may wait with
  its share. Log-ins with the same password of the same user share one check: after a restart of the member, all
  sessions of a user log in at once.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import structlog

from fifo.frozen_dataclasses import dataclass
from quorum.api import status
from quorum.api.security.audit import Audit
from quorum.api.security.passwords import is_right
from quorum.api.security.rights import AUDITED, BY_METHOD, OPEN, Need, is_met
from quorum.api.shares import Shares
from quorum.api.turns import LARGE_STEPS, Turns
from quorum.catalog.users import User, Users
from quorum.node.wire.batches import BatchLimits

MAX_LOG_INS = 256
"""Maximum number of passwords that wait to be checked; an address may have as many as are left free."""
KNOWN_LOG_INS = 1_000
"""Passwords that were right, kept as keyed hashes, so that a call need not wait for scrypt."""
CATCH_UP_S = 1.0
"""Time limit for a member to learn the present users before it refuses a log-in."""
MAX_HEADER = 8_192
NO_USERS = (
    "this cluster has no users, so this member serves only connections from a loopback address (127.0.0.1 or ::1); "
    "make an administrator from there (quorum users add NAME --administer), or log in to a member that has "
    "first_administrator_file in its configuration"
)
NO_USERS_YET = (
    "this node has not served yet and knows no users, so it answers only connections from a loopback address "
    "(127.0.0.1 or ::1); to add it to a cluster from elsewhere, give it first_administrator_file with the name and the "
    "password of an administrator of that cluster"
)
BEARER = "bearer "
CheckToken = Callable[[str], tuple[str, float]]

USER: ContextVar[User | None] = ContextVar("user", default=None)
"""The user of the call that the running task serves; None for the node's own work, and while there are no users."""


def limits_of_user(limits: BatchLimits) -> BatchLimits:
    """These limits, for what the call's user publishes: only an administrator may give another name than its own."""
    user = USER.get()
    return limits if user is None or user.administers else replace(limits, user_id=user.name)


@dataclass(frozen=True, slots=True)
class FirstAdministrator:
    """A user of the configuration, who may log in while the catalog has no users."""

    name: str
    secret: str


class _LogInFailed(Exception):
    """By the users that are known here."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name
        self.why = why


async def _is_current() -> None:
    """For a member whose users change only by `users_changed`."""


class Access:
    """One per member. `users_changed` gets the users of the catalog."""

    def __init__(
        self,
        first: FirstAdministrator | None = None,
        tokens: CheckToken | None = None,
        *,
        is_open_without_users: bool = False,
        takes_certificates: bool = False,
        audit: Audit | None = None,
    ) -> None:
        """tokens: returns the user and the expiry (seconds since the epoch) of a token; ValueError says why it is not
        accepted. None: tokens are not configured. takes_certificates: whether clients may log in with certificates."""
        self._first = first
        self._tokens = tokens
        self._is_open_without_users = is_open_without_users
        self.takes_certificates = takes_certificates
        self.audit = audit or Audit()
        self._users = Users()
        self._has_served = self._is_told = False
        self._calls: dict[Any, User | None] = {}
        """calls under way, with their users; each has `end(why)` and `wire_peer()`"""
        self._expiring: dict[Any, asyncio.TimerHandle] = {}
        """of the calls with a token: what ends them"""
        self._key = os.urandom(32)
        self._known: OrderedDict[bytes, str] = OrderedDict()
        """keyed hash of a name and a password -> the user's secret, for which it was right"""
        self._checking: dict[tuple[bytes, str], asyncio.Future[bool]] = {}
        """keyed hash of a name and a password, and the user's secret -> whether it is right, once it is checked"""
        self._waiting = Shares(MAX_LOG_INS)
        self._turns = Turns()
        self.catch_up: Callable[[], Awaitable[object]] = _is_current
        """returns when `users_changed` has got all users that there were at the call; StatusError"""
        self._asking = asyncio.Lock()
        self._asked = self._answered = 0
        """numbers of the last call of `catch_up`, and of the last one that has returned"""

    def reconfigure(self, tokens: CheckToken | None, *, is_open_without_users: bool) -> None:
        """Take a new configuration, as the constructor does. Calls go on until their tokens expire. Those of clients
        elsewhere that needed no log-in end when they need one."""
        is_closed = self._is_open_without_users and not is_open_without_users
        self._tokens = tokens
        self._is_open_without_users = is_open_without_users
        for call, user in list(self._calls.items()) if is_closed else ():
            if user is None and not is_loopback(call.wire_peer()):
                call.end(_changed())

    def serves(self) -> None:
        """The member begins to serve: it knows the users of the cluster, if there are any."""
        self._has_served = True
        is_limited = not self._users and self._first is None and not self._is_open_without_users
        if is_limited and not self._is_told:
            self._is_told = True
            structlog.get_logger().info("no users yet: only connections from a loopback address are served")

    def users_changed(self, users: Users) -> None:
        self._users = users
        for call, user in list(self._calls.items()):
            if self._present(user) != user:
                call.end(_changed())

    def _present(self, user: User | None) -> User | None:
        """The user as it is now; None if there is none, or there are no users and none is needed."""
        if user is None:
            return next(iter(self._users.by_name.values()), None)
        if self._users or self._first is None:
            return self._users.by_name.get(user.name)
        return _administrator(self._first)

    def check_administrators(self, users: Users) -> None:
        """StatusError if no administrator among these users could log in. Without users, everything is right."""
        if not users or self.takes_certificates or self._tokens is not None:
            return
        names = [user.name for user in users.by_name.values() if user.administers]
        if not any(users.by_name[name].secret for name in names):
            shown = ", ".join(map(repr, names[:3])) + (" and others" if len(names) > 3 else "")
            raise status.StatusError(
                status.make(
                    status.Code.FAILED_PRECONDITION,
                    "last_administrator",
                    f"no administrator could log in afterwards: without a password, a user needs a certificate or a "
                    f"token, and this member accepts neither (tls_client_ca_file, token_keys_file); give a password "
                    f"to an administrator ({shown})",
                )
            )

    # ---- a call

    async def admit(
        self, method: str, peer: str, address: str, headers: Mapping[str, str], certificate: str = ""
    ) -> User | None:
        """The user of a call; None if none is needed. peer: as gRPC names it. address: owners.client_address.
        certificate: common name of the client's certificate; empty: it has shown none. StatusError if the call may not
        begin."""
        if method in OPEN:
            return None
        authorization, before = headers.get("authorization", ""), self._users
        try:
            return await self._user(peer, address, authorization, certificate)
        except _LogInFailed as failed:
            name = failed.name
            await self._catch_up()
            if self._users.by_name.get(name) == before.by_name.get(name):
                raise self._failed(failed, peer) from failed
        try:
            return await self._user(peer, address, authorization, certificate)
        except _LogInFailed as failed:
            raise self._failed(failed, peer) from failed

    async def _user(self, peer: str, address: str, authorization: str, certificate: str) -> User | None:
        """As `admit`, by the users that are known here. _LogInFailed if they have no such user, or its password is
        another one."""
        if not self._users and self._first is None:
            if self._is_open_without_users or is_loopback(peer):
                return None
            raise denied("no_users", NO_USERS if self._has_served else NO_USERS_YET)
        if not authorization and certificate and self._users:
            user = self._users.by_name.get(certificate)
            if user is not None:
                return user
            raise _LogInFailed(certificate, "its certificate names no user")
        if not authorization:
            if not self._users and (self._is_open_without_users or is_loopback(peer)):
                return None
            raise _unauthenticated("log_in_needed", "a user and a password are needed")
        if authorization[: len(BEARER)].lower() == BEARER:
            return self._of_token(authorization, peer)
        name, password = _credentials(authorization)
        user = self._users.by_name.get(name)
        if not self._users and self._first is not None and self._first.name == name:
            user = _administrator(self._first)
        if user is None or not await self._is_right(name, password, user.secret, address):
            if user is None:
                await self._is_right(name, password, "", address)  # it takes as long
            raise _LogInFailed(name, "wrong user or password")
        if self._present(user) != user:  # while the password was checked
            raise _changed()
        return user

    def _of_token(self, authorization: str, peer: str) -> User:
        try:
            name, _ = self._token(authorization)
        except ValueError as error:
            raise self._failed(_LogInFailed("", f"the token is not accepted: {error}"), peer) from error
        user = self._users.by_name.get(name)
        if user is None:
            raise _LogInFailed(name, "the token names no user of the cluster")
        return user

    def _token(self, authorization: str) -> tuple[str, float]:
        """(user, expiry); ValueError if the token is not accepted."""
        if self._tokens is None:
            raise ValueError("this member has no keys of tokens (token_keys_file)")
        if len(authorization) > MAX_HEADER:
            raise ValueError(f"it has more than {MAX_HEADER} characters")
        return self._tokens(authorization[len(BEARER) :].strip())

    def _expires_in_s(self, authorization: str) -> float | None:
        """Time until a token expires, None for a password."""
        if authorization[: len(BEARER)].lower() != BEARER:
            return None
        try:
            return max(self._token(authorization)[1] - time.time(), 0.0)
        except ValueError:
            return 0.0

    async def _is_right(self, name: str, password: str, secret: str, address: str) -> bool:
        digest = hashlib.blake2b(f"{name}:{password}".encode(), key=self._key).digest()
        if secret and self._known.get(digest) == secret:
            self._known.move_to_end(digest)
            return True
        same = digest, secret
        while (other := self._checking.get(same)) is not None:
            await asyncio.wait((other,))
            if not other.cancelled():
                return other.result()
        checking = self._checking[same] = asyncio.get_running_loop().create_future()
        try:
            is_known = await self._checked(password, secret, address)
            checking.set_result(is_known)
        finally:
            del self._checking[same]
            checking.cancel()  # if this log-in has ended without a result, one of those that wait checks
        if is_known:
            self._known[digest] = secret
            while len(self._known) > KNOWN_LOG_INS:
                self._known.popitem(last=False)
        return is_known

    async def _checked(self, password: str, secret: str, address: str) -> bool:
        """UNAVAILABLE if too many passwords wait, because the client may succeed when some of them are checked."""
        if not self._waiting.enter(address):
            text = "too many log-ins of this client's address wait to be checked; try again"
            raise status.unavailable("too_many_log_ins", text)
        try:
            return await self._turns.run(address, LARGE_STEPS + 1, lambda: is_right(password, secret))
        finally:
            self._waiting.leave(address)

    async def _catch_up(self) -> None:
        """Wait until this member knows the users that there were at the call, for CATCH_UP_S at most: a user that was
        made a moment ago, at another member, may log in here. All log-ins that wait share the next question."""
        wanted = self._asked + 1
        with contextlib.suppress(TimeoutError, status.StatusError):  # no leader: what is known here counts
            async with asyncio.timeout(CATCH_UP_S), self._asking:
                if self._answered < wanted:
                    self._asked = number = self._asked + 1
                    await self.catch_up()
                    self._answered = number

    def _failed(self, failed: _LogInFailed, peer: str) -> status.StatusError:
        self.audit.log_in_failed(failed.name, peer, failed.why)
        return _unauthenticated("log_in_failed", f"log-in as {failed.name[:255]!r} failed: {failed.why}")

    def begin(self, call: Any, user: User | None, headers: Mapping[str, str]) -> None:
        """A call that ends when its user changes, or when its token expires, because it may go on for long; `over`
        follows."""
        self._calls[call] = user
        left_s = self._expires_in_s(headers.get("authorization", ""))
        if left_s is not None:
            ended = status.unavailable(
                "user_changed", "the call's token has expired; begin it again with a new one"
            )
            self._expiring[call] = asyncio.get_running_loop().call_later(left_s, call.end, ended)

    def over(self, call: Any) -> None:
        self._calls.pop(call, None)
        timer = self._expiring.pop(call, None)
        if timer is not None:
            timer.cancel()

    def check(self, method: str, request: Any, user: User | None, peer: str, client_call: str = "") -> None:
        """StatusError if the user may not make this request, or was changed since its log-in: a request may come long
        after the headers. One that changes anything is written to the audit file; `audit.finish` follows. client_call:
        as for `audit.begin`."""
        if self._present(user) != user:
            raise _changed()
        refused = None if user is None else refusal(BY_METHOD[method](request), user)
        name = "" if user is None else user.name
        if refused is not None:
            self.audit.refused(method, name, peer, _target(request), refused.status.message)
            raise refused
        if method in AUDITED:
            self.audit.begin(method, name, peer, _target(request), client_call)


def refusal(needs: Iterable[Need], user: User | None) -> status.StatusError | None:
    """Why the user may not do what needs this; None if it may."""
    if user is None:
        return None
    for need in needs:
        if not is_met(need, user):
            right, name = need
            what = f"{right} for {name!r}" if name else right
            return denied(
                "not_permitted", f"user {user.name!r} has no permission: {what}", right=right, name=name
            )
    return None


def is_loopback(peer: str) -> bool:
    """Whether gRPC's name of a peer has a loopback address, or is a socket file."""
    scheme, _, rest = peer.partition(":")
    if scheme == "unix":
        return True
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _administrator(first: FirstAdministrator) -> User:
    return User(first.name, first.secret, administers=True)


def _credentials(authorization: str) -> tuple[str, str]:
    """(name, password). StatusError if the header has another form."""
    kind, _, text = authorization.partition(" ")
    if kind.lower() != "basic" or len(authorization) > MAX_HEADER:
        raise _unauthenticated(
            "log_in_failed", "the authorization is not of the form: Basic BASE64(user:password)"
        )
    try:
        name, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:  # no base64, no ASCII, or no UTF-8
        name, colon, password = "", "", ""
    if not colon:
        raise _unauthenticated(
            "log_in_failed", "the authorization is not of the form: Basic BASE64(user:password)"
        )
    return name, password


def _target(request: Any) -> str:
    """What a request is about, for the log: names, no values."""
    found = []
    for field, value in request.ListFields():
        if field.name == "member" and field.message_type is not None:
            found.append(f"member={value.name} clients={value.client_address} peers={value.peer_address}")
        elif field.name in ("queue", "exchange", "name", "user", "member", "node", "subscription", "group"):
            found.append(f"{field.name}={value}")
        elif field.name == "policy":
            found.append(f"policy={value.name}")
        elif field.name == "binding":
            kind = value.WhichOneof("destination") or "queue"
            named = {"binding": value.source, kind: getattr(value, kind), "id": value.id}
            found += [f"{key}={name}" for key, name in named.items() if name]
        elif field.name == "id" and field.message_type is not None:
            found.append(f"transaction={value.group} {value.producer.hex()} {value.number}")
    return " ".join(found)[:255]


def _changed() -> status.StatusError:
    return status.unavailable("user_changed", "the call's user was changed; begin it again")


def _unauthenticated(reason: str, text: str) -> status.StatusError:
    return status.StatusError(status.make(status.Code.UNAUTHENTICATED, reason, text))


def denied(reason: str, text: str, **metadata: str) -> status.StatusError:
    """A refusal for want of a permission."""
    return status.StatusError(status.make(status.Code.PERMISSION_DENIED, reason, text, **metadata))
