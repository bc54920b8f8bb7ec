"""The service's endpoints, and the channels to them: quorum://host:port,host:port, and quorums:// with TLS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import grpc

from quorum.client.errors import UsageError

SCHEME = "quorum://"
SECURE_SCHEME = "quorums://"
FILES = ("ca_file", "certificate_file", "key_file")
DEFAULT_PORT = 7400
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
    that the client trusts (without them, those that gRPC brings), and its own certificate with its key."""

    endpoints: tuple[str, ...]
    is_secure: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def open_channel(self, endpoint: str) -> grpc.aio.Channel:
        """UsageError if a file cannot be read."""
        if not self.is_secure:
            return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(endpoint, self._credentials(), options=CHANNEL_OPTIONS)

    def open_blocking_channel(self, endpoint: str) -> grpc.Channel:
        """The same for calls that block."""
        if not self.is_secure:
            return grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(endpoint, self._credentials(), options=CHANNEL_OPTIONS)

    def url_of(self, endpoint: str) -> str:
        """The URL of one endpoint of this service."""
        if not self.is_secure:
            return f"{SCHEME}{endpoint}"
        files = {name: getattr(self, name) for name in FILES if getattr(self, name)}
        return f"{SECURE_SCHEME}{endpoint}" + (f"/?{urlencode(files)}" if files else "")

    def _credentials(self) -> grpc.ChannelCredentials:
        """The files are read for each channel, so a new connection uses renewed certificates."""
        return grpc.ssl_channel_credentials(
            _content(self.ca_file), _content(self.key_file), _content(self.certificate_file)
        )


def _content(file: str) -> bytes | None:
    if not file:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def parse_url(url: str) -> Service:
    """quorum://host:port,host:port, or quorums://host:port,host:port/?ca_file=... with TLS."""
    if "@" in url.partition("?")[0]:  # the text is not quoted in the error, because it may be a password
        raise UsageError(f"the address names a user before '@'; wanted: {SCHEME}host:port,host:port")
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
        if name not in FILES or not is_secure:
            allowed = ", ".join(FILES) if is_secure else f"nothing without TLS ({SECURE_SCHEME})"
            raise UsageError(f"{name!r} in {url!r}; allowed: {allowed}")
    if bool(files.get("certificate_file")) != bool(files.get("key_file")):
        raise UsageError(f"{url!r}: certificate_file and key_file belong together")
    return Service(tuple(endpoints), is_secure, **files)
