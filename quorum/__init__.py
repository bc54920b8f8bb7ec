"""Quorum: queues on several nodes, with selectors. `quorum.connect(url)`, `quorum.sync.connect(url)`; many messages at
a time, as Arrow: `quorum.bulk.BulkClient(url)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorum.client import Client, Message, PreparedBatch, Properties, connect, encode_batch

__all__ = ["Client", "Message", "PreparedBatch", "Properties", "connect", "encode_batch"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The client is imported when it is first asked for: a member that never publishes does without it."""
    if name in __all__:
        from quorum import client

        return getattr(client, name)
    if name in ("sync", "bulk"):
        import importlib

        return importlib.import_module(f"quorum.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
