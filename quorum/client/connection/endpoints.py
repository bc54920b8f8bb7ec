"""The service's endpoints, and the channels to them: quorum://user:password@host:port,host:port, and quorums:// with
TLS. Without a user in the URL, the one of the environment logs in (QUORUM_USER, QUORUM_PASSWORD)."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import grpc

from quorum.client.errors import UnreadableFile, UsageError
from quorum.client.values import require_text

SCHEME = "quorum://"
SECURE_SCHEME = "quorums://"
FILES = ("ca_file", "certificate_file", "key_file", "token_file")
USER_VARIABLE, PASSWORD_VARIABLE = "QUORUM_USER", "QUORUM_PASSWORD"
DEFAULT_PORT = 7400
CLIENT_CALL = "quorum-call"
"""Header with the id of a call, for the audit lines of members."""
LINGER = "linger_ms"
MAX_LINGER_MS = 1_000
DEFAULT_TIMEOUT_MS = 30_000
"""Maximum time of a call, including all its retries."""
MAX_FRAME_BYTES = 64 * 1024 * 1024  # a message is at most 16 MiB, a delivery a few of them

# The client detects a dead or paused node after KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS. Servers have to permit such pings.
KEEPALIVE_MS = 2000
KEEPALIVE_TIMEOUT_MS = 2000

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # a separate pool, because the back-off of an earlier channel must not delay a connection to a node that was down
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


OpenChannel = Callable[[str], grpc.aio.Channel]
"""Opens a channel to host:port."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a URL names. endpoints: host:port, in order. is_secure: with TLS. The files are in PEM: the certificates
    that the client trusts (without them, those that gRPC brings), and its own certificate with its key; and a signed
    token, with which the client logs in. user: empty: it does not log in with a password. linger_ms: see
    quorum.connect."""

    endpoints: tuple[str, ...]
    is_secure: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    token_file: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    linger_ms: int = 0

    def open_channel(self, endpoint: str) -> grpc.aio.Channel:
        """UsageError if a file cannot be read."""
        if self.is_secure:
            channel = grpc.aio.secure_channel(endpoint, self._credentials(), options=CHANNEL_OPTIONS)
        else:
            channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return self._logged_in(channel)

    def open_blocking_channel(self, endpoint: str) -> grpc.Channel:
        """The same for calls that block."""
        if self.is_secure:
            channel = grpc.secure_channel(endpoint, self._credentials(), options=CHANNEL_OPTIONS)
        else:
            channel = grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return self._logged_in(channel)

    def seen_files(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Of each file that a channel is made from: its inode, size and time of change; None if it is not there."""
        return tuple([_seen(file) for file in (self.ca_file, self.certificate_file, self.key_file) if file])

    def _logged_in(self, channel: Any) -> Any:
        if not self.user and not self.token_file:
            return channel
        return _WithHeader(channel, lambda: ("authorization", self._authorization()))

    def _authorization(self) -> str:
        """The header of one call. The token's file is read for each call, because its content changes."""
        if self.token_file:
            return f"Bearer {(_content(self.token_file) or b'').decode('ascii', 'replace').strip()}"
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return f"Basic {pair}"

    def url_of(self, *endpoints: str) -> str:
        """The URL of these endpoints of this service, with its user, its files and its linger time."""
        hosts = ",".join(endpoints)
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@" if self.user else ""
        scheme, names = (SECURE_SCHEME, (*FILES, LINGER)) if self.is_secure else (SCHEME, (LINGER,))
        settings = {name: getattr(self, name) for name in names if getattr(self, name)}
        return f"{scheme}{login}{hosts}" + (f"/?{urlencode(settings)}" if settings else "")

    def _credentials(self) -> grpc.ChannelCredentials:
        """The files are read for each channel, so a new connection uses renewed certificates."""
        return grpc.ssl_channel_credentials(
            _content(self.ca_file), _content(self.key_file), _content(self.certificate_file)
        )


class _WithHeader:
    """A channel whose calls have one header more. header: called for each call."""

    def __init__(self, channel: Any, header: Callable[[], tuple[str, str]]) -> None:
        self._channel = channel
        self._header = header

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._with_header(self._channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._with_header(self._channel.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._with_header(self._channel.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._with_header(self._channel.stream_stream(*arguments, **options))

    def _with_header(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, metadata=(), **options: method(
            *given, metadata=(*metadata, self._header()), **options
        )

    async def __aenter__(self) -> _WithHeader:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._channel.__aexit__(*error)

    def __enter__(self) -> _WithHeader:
        self._channel.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._channel.__exit__(*error)


def with_call_id(channel: Any, call_id: str) -> Any:
    """The channel for the tries of one call. Members write the id into their audit lines, so the tries count as one."""
    return _WithHeader(channel, lambda: (CLIENT_CALL, call_id))


class Channels:
    """Channels by endpoint, each opened at its first use. When the files of certificates are renewed, calls that begin
    afterwards get a new channel, because a channel keeps the certificates that it was opened with. The old one stays
    open for the calls that use it."""

    def __init__(self, service: Service, open_channel: Callable[[str], Any]) -> None:
        self._service = service
        self._open_channel = open_channel
        self._seen = service.seen_files()
        self._by_endpoint: dict[str, Any] = {}
        self._replaced: list[Any] = []

    def get(self, endpoint: str) -> Any:
        """UsageError if a file cannot be read."""
        seen = self._service.seen_files()
        if seen != self._seen and None not in seen:
            self._seen = seen
            self._replaced += self._by_endpoint.values()
            self._by_endpoint.clear()
        if endpoint not in self._by_endpoint:
            self._by_endpoint[endpoint] = self._open_channel(endpoint)
        return self._by_endpoint[endpoint]

    def take_all(self) -> list[Any]:
        """All open channels, to be closed. There are none afterwards."""
        found = [*self._by_endpoint.values(), *self._replaced]
        self._by_endpoint.clear()
        self._replaced.clear()
        return found


def _seen(file: str) -> tuple[int, int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _content(file: str) -> bytes | None:
    if not file:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{file} cannot be read: {error.strerror}") from error


def parse_url(url: str) -> Service:
    """quorum://host:port,host:port, or quorums://host:port,host:port/?ca_file=... with TLS, both also with
    user:password@ before the hosts and with linger_ms."""
    require_text("the address of a service", url)
    url, user, password = _without_login(url)
    is_secure = url.startswith(SECURE_SCHEME)
    if not is_secure and not url.startswith(SCHEME):
        raise UsageError(f"address {url!r} does not begin with {SCHEME} or {SECURE_SCHEME}")
    hosts, _, query = url[len(SECURE_SCHEME if is_secure else SCHEME) :].partition("?")
    endpoints = []
    for part in hosts.rstrip("/").split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part.strip(), str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"endpoint {part!r} in {url!r}; wanted: host:port,host:port")
        endpoints.append(f"{host}:{port}")
    files = dict(parse_qsl(query, keep_blank_values=True))
    for name in files:
        if name != LINGER and (name not in FILES or not is_secure):
            allowed = (
                f"{', '.join(FILES)}, {LINGER}"
                if is_secure
                else f"{LINGER}; files only with TLS ({SECURE_SCHEME})"
            )
            raise UsageError(f"{name!r} in {url!r}; allowed: {allowed}")
    linger_ms = _linger_ms(files.pop(LINGER, "0"), url)
    if bool(files.get("certificate_file")) != bool(files.get("key_file")):
        raise UsageError(f"{url!r}: certificate_file and key_file belong together")
    return Service(tuple(endpoints), is_secure, **files, user=user, password=password, linger_ms=linger_ms)


def _linger_ms(text: str, url: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 4 or int(text) > MAX_LINGER_MS:
        raise UsageError(f"{LINGER}={text} in {url!r}; allowed: a whole number from 0 to {MAX_LINGER_MS}")
    return int(text)


def shown_url(url: str) -> str:
    """The URL without its password, for messages."""
    where, mark, query = url.partition("?")
    login, at, hosts = where.rpartition("@")
    return f"{login.rpartition(':')[0]}@{hosts}{mark}{query}" if at else url


def _without_login(url: str) -> tuple[str, str, str]:
    """The URL without its user and password, and these; without them in the URL those of the environment. Errors quote
    the URL only without them."""
    scheme, slashes, rest = url.partition("://")
    where, mark, query = rest.partition("?")
    login, at, hosts = where.rpartition("@")
    if not at:
        user = os.environ.get(USER_VARIABLE, "")
        if user and PASSWORD_VARIABLE not in os.environ:
            raise UsageError(
                f"{USER_VARIABLE} is set, and {PASSWORD_VARIABLE} is not; wanted: both or neither"
            )
        return url, user, os.environ[PASSWORD_VARIABLE] if user else ""
    user, colon, password = login.partition(":")
    if not user or not colon:
        raise UsageError("the address has '@' without a user and a password; wanted: user:password@host:port")
    return f"{scheme}{slashes}{hosts}{mark}{query}", unquote(user), unquote(password)
