"""This process's connections to clusters: one is made when it is first asked for, because Spark's workers fork."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache

from quorum.client.bulk import BulkClient
from quorum.client.errors import QuorumError
from quorum.spark.schema import Field

TIMEOUT_MS = 60_000
"""So long a call is tried, at one node after the other, and so long a read waits for its next block."""

_lock = threading.Lock()


def service(url: str) -> BulkClient:
    """One a URL, for all threads of this process; it notices by itself when it finds itself in a fork."""
    with _lock:
        return _made(url)


@lru_cache(maxsize=16)
def _made(url: str) -> BulkClient:
    return BulkClient(url, timeout_ms=TIMEOUT_MS)


def kinds(fields: Sequence[Field]) -> dict[str, str]:
    """Fields as the bulk client wants them."""
    return {each.name: each.kind for each in fields}


def is_reason(error: QuorumError, *reasons: str) -> bool:
    """Whether the service gave one of these reasons; they are written in capitals on the wire."""
    return error.reason.lower() in reasons
