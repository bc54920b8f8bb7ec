"""The audit file: a line for each administrative request, for its outcome, for each request that is refused, and for
each failed log-in.

A line is a JSON object. Its first field `before` is the SHA-256 of the line before it. So a line that was changed,
removed or added later does not fit the next one (`verify`). This proves nothing against an intruder who computes all
later lines again. The log on stderr therefore has the beginning of each line's own hash: keep it on another machine, or
keep the last hash that `verify` prints.

A line is handed to the operating system at once, and is not synced: the power of the machine may take the last ones.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from fifo.frozen_dataclasses import dataclass
from quorum.errors import ConfigError, OperatorError

MAX_FILE_BYTES = 64 << 20
"""Size at which a file gets the name FILE.1, and a new one begins."""
KEPT = 8
"""Older files, FILE.1 to FILE.8. The oldest one is removed."""
MAX_LINE_BYTES = 16 << 10
"""More than any line has."""
NOTHING = "0" * 64
"""`before` of a first line."""


class AuditFile:
    """Appends to an audit file. Not for several threads at a time."""

    def __init__(self, file: Path, member: str) -> None:
        """ConfigError if the file cannot be used."""
        self._file = file
        self._member = member
        try:
            self._last = _last_hash(file)
            self._descriptor = _opened(file)
            self._size = os.fstat(self._descriptor).st_size
            if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
                self._append(b"\n")  # the process ended within a line, which counts as it is
        except OSError as error:
            raise ConfigError(f"audit_file {file} cannot be used: {error.strerror}") from error

    def write(self, event: str, **fields: str | int) -> str:
        """Append a line, and return its hash. OSError."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        whole = {"before": self._last, "time": time, "member": self._member, "event": event, **fields}
        line = json.dumps(whole, ensure_ascii=True, separators=(",", ":")).encode()
        if self._size >= MAX_FILE_BYTES:
            self._begin_another()
        self._append(line + b"\n")
        self._last = sha256(line).hexdigest()
        return self._last

    def _append(self, data: bytes) -> None:
        """Append all of it, or nothing."""
        size = self._size
        try:
            while data:
                count = os.write(self._descriptor, data)
                self._size += count
                data = data[count:]
        except OSError:
            os.ftruncate(self._descriptor, size)
            self._size = size
            raise

    def _begin_another(self) -> None:
        """OSError: nothing is lost, and the next call goes on where this one has ended."""
        fresh = self._file.with_name(f"{self._file.name}.new")
        descriptor = _opened(fresh)
        try:
            if self._file.exists():  # otherwise it has its number already
                numbers = range(1, KEPT + 1)
                gap = next((each for each in numbers if not _numbered(self._file, each).exists()), KEPT)
                for number in range(gap - 1, 0, -1):
                    _numbered(self._file, number).replace(_numbered(self._file, number + 1))
                self._file.replace(_numbered(self._file, 1))
            fresh.replace(self._file)
        except OSError:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._size = 0


def wrong_audit_file(file: Path) -> list[str]:
    """Why a member could not use this audit file; empty if it could. Nothing is written: a member may use it now."""
    try:
        _last_hash(file)
        file.parent.stat()
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        return [f"audit_file {file} cannot be used: {error.strerror}"]
    except ConfigError as error:
        return [str(error)]
    return []


def _numbered(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")


def _opened(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _last_hash(file: Path) -> str:
    """Of the last line of the file, or of the one before it if there is none. ConfigError if it is no audit file."""
    for each in (file, _numbered(file, 1)):
        try:
            with each.open("rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                opened.seek(max(0, size - MAX_LINE_BYTES))
                tail = opened.read().removesuffix(b"\n")
        except FileNotFoundError:
            continue
        if tail:
            *others, last = tail.split(b"\n")
            if not others and size > MAX_LINE_BYTES:
                raise ConfigError(f"audit_file {each} is no audit file: its last line is too long")
            return sha256(last).hexdigest()
    return NOTHING


# ---- reading


class Broken(OperatorError):
    """A line does not follow from the one before it."""


@dataclass(frozen=True, slots=True)
class Verified:
    """before: hash of the line before the first one, zeros if there was none. last: hash of the last line.
    interrupted: lines that are no JSON, because the process ended while it wrote them."""

    lines: int
    interrupted: int
    before: str
    last: str


def verify(files: list[Path]) -> Verified:
    """Read audit files, the oldest first, as one chain. Broken names the first line that does not fit; OperatorError if
    a file cannot be read."""
    first, last = "", ""
    lines = interrupted = 0
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            before = _before(line)
            if before is None:
                interrupted += 1
            elif last and before != last:
                raise Broken(
                    f"{file}, line {number}: it names {before[:16] or 'nothing'} as the hash of the line before it, "
                    f"which has {last[:16]}: one of them was changed, or lines between them are missing"
                )
            elif not last:
                first = before
            last = sha256(line).hexdigest()
            lines += 1
    return Verified(lines, interrupted, first or NOTHING, last or NOTHING)


def _before(line: bytes) -> str | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    except RecursionError:  # no member writes nested values
        return ""
    before = found.get("before") if isinstance(found, dict) else None
    return before if isinstance(before, str) else ""


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as opened:
            for line in opened:
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise OperatorError(f"{file} cannot be read: {error.strerror}") from error
