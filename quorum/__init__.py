"""Quorum: replicated queues with selectors.

Clients: `quorum.connect(url)` for asyncio, `quorum.sync.connect(url)` for blocking calls, and
`quorum.bulk.BulkClient(url)` for many messages at a time, as Arrow record batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorum.client import Client, Message, PreparedBatch, Properties, connect, encode_batch

__all__ = ["Client", "Message", "PreparedBatch", "Properties", "connect", "encode_batch"]

__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """Import the client at its first use, because a member does not need it."""
    if name in __all__:
        from quorum import client

        return getattr(client, name)
    if name in ("sync", "bulk"):
        import importlib

        return importlib.import_module(f"quorum.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "bulk", "sync"])
