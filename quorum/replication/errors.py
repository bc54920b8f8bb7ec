"""The errors of replication, and who has to act on them.

ReplicationError
├── WireError             a peer's frame cannot be read: the peer's fault, the frame is dropped
├── ReplicationFailed     this replica must stop: to continue could lose acknowledged entries
│   ├── ReentryError      a callback called back into the group: our fault
│   └── TruncationError   a leader wants to remove committed entries: a member broke Raft
└── UnsupportedLibrary    the installed PySyncObj is not the one this package was made for: the operator's
"""

from __future__ import annotations


class ReplicationError(Exception):
    """Base of all errors that this package raises on purpose, except misuse (ValueError)."""


class WireError(ReplicationError):
    """Bytes from a peer that are no message. Nothing was taken from them."""


class ReplicationFailed(ReplicationError):
    """This replica has stopped for good. Every later call raises this error again; the process has to end."""


class ReentryError(ReplicationFailed):
    """The group was called from inside one of its own calls."""


class TruncationError(ReplicationFailed):
    """The log would have lost entries that are known to be committed."""


class UnsupportedLibrary(ReplicationError):
    """The installed PySyncObj has another version, or lacks a name that this package overrides."""
