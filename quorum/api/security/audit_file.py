"""The audit file: a line for each administrative request, for its outcome, for each request that is refused, and for
each failed log-in.

A line is a JSON object. Its first field `before` is the SHA-256 of the line before it. So a line that was changed,
removed or added later does not fit the next one (`verify`). This proves nothing against an intruder who computes all
later lines again. The log on stderr therefore has the beginning of each line's own hash: keep it on another machine, or
keep the last hash that `verify` prints.

A line is handed to the operating system at once, and is not synced: a power cut may take the last ones, and may leave
zero bytes in their place. No member writes a zero byte, so those at the end of a file are an interrupted line, and the
member that opens the file removes them. Before each line the member looks whether the file of that name is still the
one that it has open.
"""

from __future__ import annotations

import errno
import json
import os
import re
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
            self._size = _written_size(self._descriptor)
            if self._size < os.fstat(self._descriptor).st_size:
                os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            raise ConfigError(f"audit_file {file} cannot be used: {error.strerror}") from error

    def write(self, event: str, **fields: str | int) -> str:
        """Append a line, and return its hash. OSError."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        whole = {"before": self._last, "time": time, "member": self._member, "event": event, **fields}
        line = json.dumps(whole, ensure_ascii=True, separators=(",", ":")).encode()
        self._look()
        if self._size >= MAX_FILE_BYTES:
            self._begin_another()
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            self._append(b"\n")  # the process ended within a line, which counts as it is
        self._append(line + b"\n")
        self._last = sha256(line).hexdigest()
        return self._last

    def _look(self) -> None:
        """Open the file again if it was renamed, removed or replaced. The log says so, also if it became shorter."""
        opened = os.fstat(self._descriptor)
        try:
            is_there = os.path.samestat(self._file.stat(), opened)
        except FileNotFoundError:
            is_there = False
        fields = {"file": str(self._file), "last_hash": self._last[:16]}
        if not is_there:
            descriptor = _opened(self._file)
            os.close(self._descriptor)
            self._descriptor = descriptor
            text = "the audit file was renamed, removed or replaced; the next lines go to a file of its name"
            _warn(text, **fields)
        elif opened.st_size < self._size:
            text = "the audit file has become shorter: lines were removed from it"
            _warn(text, **fields, bytes_before=self._size, bytes_now=opened.st_size)
        self._size = os.fstat(self._descriptor).st_size

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


def _warn(text: str, **fields: str | int) -> None:
    import structlog  # only a member has it, and `verify` runs on any machine

    structlog.get_logger().warning(text, **fields)


def _numbered(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")


def _opened(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _written_size(descriptor: int) -> int:
    """Size of the file without the zero bytes at its end."""
    size = os.fstat(descriptor).st_size
    while size:
        start = max(0, size - MAX_LINE_BYTES)
        part = os.pread(descriptor, size - start, start).rstrip(b"\0")
        size = start + len(part)
        if part:
            break
    return size


def _last_hash(file: Path) -> str:
    """Of the last line of the file, or of the one before it if there is none. ConfigError if it is no audit file."""
    for each in (file, _numbered(file, 1)):
        try:
            with each.open("rb") as opened:
                size = _written_size(opened.fileno())
                start = max(0, size - MAX_LINE_BYTES)
                tail = os.pread(opened.fileno(), size - start, start).removesuffix(b"\n")
        except FileNotFoundError:
            continue
        if tail:
            *others, last = tail.split(b"\n")
            if not others and size > MAX_LINE_BYTES:
                raise ConfigError(f"audit_file {each} is no audit file: its last line is too long")
            return sha256(last).hexdigest()
    return NOTHING


# ---- reading

_TEXT = rb'"(?:[ !#-\[\]-~]++|\\[ -~])*+'
"""A text without its last quotation mark. Lines are ASCII."""
_VALUE = rb"(?:" + _TEXT + rb'"|[0-9]++)'
_FIELD = _TEXT + rb'":' + _VALUE
_MARK = b'{"before":"'
_WHOLE = re.compile(_MARK + rb'([0-9a-f]{64})","time":' + _TEXT + rb'"(?:,' + _FIELD + rb")*+\}")
_CUT_OFF = re.compile(
    rb"\{(?:" + _FIELD + rb",)*+(?:" + _TEXT + rb'(?:\\|":?|":(?:' + _TEXT + rb'["\\]?|[0-9]++))?)?'
)
"""What a crash can leave of a line: any beginning of it."""


class Broken(OperatorError):
    """A line does not follow from the one before it, or is no line of an audit file."""


class NotContained(OperatorError):
    """The lines fit, but none of them has the hash that was asked for."""


@dataclass(frozen=True, slots=True)
class Verified:
    """before: hash of the line before the first one, zeros if there was none. last: hash of the last line.
    interrupted: lines that are only the beginning of one, because a crash cut them off while they were written. Zero
    bytes at the end of a file count as one, with what is before them in their line.
    is_last_interrupted: the last line is one of them. contained_at: the place of the hash that was asked for."""

    lines: int
    interrupted: int
    before: str
    last: str
    is_last_interrupted: bool
    contained_at: str


def verify(files: list[Path], contains: str = "") -> Verified:
    """Read audit files, the oldest first, as one chain. Broken names the first line that does not fit; OperatorError if
    a file cannot be read.

    contains: the beginning of the hash of one of the lines, or of the line before them. NotContained if it is not
    there."""
    first, last, contained_at = "", "", ""
    lines = interrupted = 0
    is_cut_off = False
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            if line is None:  # a power cut left only zero bytes of it
                if not is_cut_off:
                    lines, interrupted, is_cut_off = lines + 1, interrupted + 1, True
                continue
            place = f"{file}, line {number}"
            before, is_cut_off = _before(line, place)
            if not (last.startswith(before) if is_cut_off else before == last) and last:
                raise Broken(
                    f"{place}: it names {before[:16]} as the hash of the line before it, which has {last[:16]}: "
                    "one of them was changed, or lines between them are missing"
                )
            if not lines:
                first = before
                if contains and before.startswith(contains):
                    contained_at = f"the line before {place}"
            last = sha256(line).hexdigest()
            if contains and last.startswith(contains):
                contained_at = place
            lines += 1
            interrupted += is_cut_off
    if lines and lines == interrupted:
        raise Broken(f"{files[-1]} is no audit file: it has no whole line")
    if contains and not contained_at:
        raise NotContained(
            f"the {lines:,} lines fit each other, but none of them has the hash {contains}: the line was removed with "
            "all later ones, or all lines from there on were written again, or it is in a file that is not given"
        )
    return Verified(lines, interrupted, first or NOTHING, last or NOTHING, is_cut_off, contained_at)


def _before(line: bytes, place: str) -> tuple[str, bool]:
    """The hash that a line names, and whether the line was cut off; then the hash may be, too. Broken if no member can
    have written it."""
    whole = _WHOLE.fullmatch(line)
    if whole is not None:
        return whole[1].decode("ascii"), False
    if line and line.startswith(_MARK[: len(line)]) and _CUT_OFF.fullmatch(line):
        return line[len(_MARK) : len(_MARK) + len(NOTHING)].decode("ascii"), True
    raise Broken(
        f"{place}: it is no line of an audit file, nor the beginning of one; it was changed or added"
    )


def _lines(file: Path) -> Iterator[bytes | None]:
    """The lines, and None if nothing but zero bytes follows them."""
    try:
        with file.open("rb") as opened:
            while line := opened.readline(MAX_LINE_BYTES):
                if line.endswith(b"\0") and not opened.read().strip(b"\0"):
                    if written := line.rstrip(b"\0"):
                        yield written
                    yield None
                    return
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise OperatorError(f"{file} cannot be read: {error.strerror}") from error
