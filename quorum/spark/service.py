"""This process's connections to clusters. Each is made at its first use, because Spark's workers fork."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache

from quorum.client.bulk.client import BulkClient
from quorum.client.errors import QuorumError
from quorum.spark.schema import Field

TIMEOUT_MS = 60_000
"""Limit for a call with its retries at all nodes, and for a read's wait for its next block."""

_lock = threading.Lock()


def service(url: str) -> BulkClient:
    """The client for a URL, shared by all threads of this process. It detects a fork by itself."""
    with _lock:
        return _made(url)


@lru_cache(maxsize=16)
def _made(url: str) -> BulkClient:
    return BulkClient(url, timeout_ms=TIMEOUT_MS)


def kinds(fields: Sequence[Field]) -> dict[str, str]:
    """Kinds by name, in the bulk client's form."""
    return {each.name: each.kind for each in fields}


def is_reason(error: QuorumError, *reasons: str) -> bool:
    """Whether the service gave one of these reasons, which are in capitals on the wire."""
    return error.reason.lower() in reasons
