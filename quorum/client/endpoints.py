"""The service's endpoints, quorum://host:port,host:port, and the channels to them."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from quorum.client.errors import UsageError

SCHEME = "quorum://"
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


def parse_url(url: str) -> tuple[str, ...]:
    """The endpoints of a URL as host:port, in order."""
    if "@" in url:  # the text is not quoted in the error, because it may be a password
        raise UsageError(f"the address names a user before '@'; wanted: {SCHEME}host:port,host:port")
    if not url.startswith(SCHEME):
        raise UsageError(f"address {url!r} does not begin with {SCHEME}")
    endpoints = []
    for part in url[len(SCHEME) :].rstrip("/").split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part.strip(), str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"endpoint {part!r} in {url!r}; wanted: host:port,host:port")
        endpoints.append(f"{host}:{port}")
    return tuple(endpoints)


def open_channel(endpoint: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
