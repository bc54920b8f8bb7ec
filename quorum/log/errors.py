"""The errors of a node's log, and who has to act on them.

LogError
  LogFailed         a write or sync failed: the process must stop; the log refuses every later call
    DiskFull        ... because the disk had no room for bytes that were promised to it
  LogFull           no room for another segment: no part of the append was taken, the log stays usable
  LogDamaged        bytes that were once synced are wrong or gone: an operator or a peer has to repair them
  LogUnknown        the file has a newer format than this program knows
  LogLocked         another process holds the directory
  LogClosed         used after close()
  EntryMissing      no such (group, index) here
  NotCached         the caller does not wait for the disk, and the body has to be read from there
"""

from __future__ import annotations

from dataclasses import dataclass


class LogError(Exception):
    """Base of all errors that this package raises on purpose, except misuse (ValueError)."""


class LogFailed(LogError):
    """A write or sync failed. The content of the disk is unknown; nothing is retried, and the process must stop."""


class DiskFull(LogFailed):
    """The disk refused bytes inside a segment that had been allocated."""


class LogFull(LogError):
    """There is no space for another segment. The append that raised this left no trace."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place. lsn is None if the record is not known; known is (group, term, index) if legible. For a page
    term and index are 0, and its LSN is its name."""

    path: str
    offset: int
    lsn: int | None
    reason: str
    known: tuple[int, int, int] | None = None
    kind: str | None = None
    """The record's kind if known: ENTRY, COPY, PAGE and so on."""
    groups: tuple[int, ...] | None = None
    """The groups whose records may be affected; None if that is unknown, so that it may be any."""

    def affected(self) -> tuple[int, ...] | None:
        """The groups affected, None if it may be any."""
        return self.groups if self.known is None else (self.known[0],)

    def __str__(self) -> str:
        what = "" if self.lsn is None else f", LSN {self.lsn}"
        if self.known is not None:
            group, term, index = self.known
            what += f" (group {group}, term {term}, index {index})"
        return f"{self.path} at byte {self.offset}{what}: {self.reason}"


class LogDamaged(LogError):
    """Synced bytes are wrong or missing. No file was changed."""

    def __init__(self, *damages: Damage) -> None:
        super().__init__("; ".join(str(damage) for damage in damages))
        self.damages = damages

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The groups that are affected, ascending; None if it may be any."""
        found: set[int] = set()
        for damage in self.damages:
            affected = damage.affected()
            if affected is None:
                return None
            found.update(affected)
        return tuple(sorted(found))


class LogUnknown(LogError):
    """A format number or record kind that this program does not know."""


class LogLocked(LogError):
    """Another process has this directory open."""


class LogClosed(LogError):
    """The log is closed."""


class EntryMissing(LogError, LookupError):
    """No entry of this group has this index here: never written, cut, or dropped with a snapshot."""


class NotCached(LogError):
    """The body is neither in this process's memory nor in the system's page cache."""
