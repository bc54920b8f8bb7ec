"""The owner of a log: the file OWNER in the log's folder names the incarnation of the data directory that it is from.

A log holds the votes of one member and the entries that it has acknowledged. If it is copied into another member's
directory, that member forgets its own. So a member refuses to start on a log of another incarnation. A log without the
file is from an earlier release, or its file was lost; the member that starts on it becomes its owner.
"""

from __future__ import annotations

from pathlib import Path

from quorum.log.files import Files, commit_file, prepare_file, read_file
from quorum.log.record import crc32c
from quorum.node.identity.identity import IdentityError, read_identity

OWNER = "OWNER"


def read_owner(log: Path, files: Files) -> str | None:
    """The incarnation of the log's owner. None if it is not known: there is no file, or it is damaged."""
    try:
        data = read_file(files, log / OWNER)
    except FileNotFoundError:
        return None
    line, _, check = data.partition(b"\n")
    return line.decode("ascii") if check == _check(line) else None


def check_owner(data_dir: Path, log: Path, files: Files) -> None:
    """IdentityError if the log is from another data directory than this one."""
    known = read_identity(data_dir, files) if data_dir.is_dir() else None
    owner = read_owner(log, files)
    if known is not None and owner is not None and owner != known.node_state.incarnation:
        raise IdentityError(
            f"{log} is from another data directory than {data_dir}, of another member or of another life: what "
            f"{known.name!r} has voted for and acknowledged is not in it. Put back the member's own log; if that is "
            "lost, move this one away, and the member takes its data from the others"
        )


def claim_log(log: Path, incarnation: str, files: Files) -> None:
    """Make this incarnation the log's owner."""
    if read_owner(log, files) != incarnation:
        line = incarnation.encode("ascii")
        prepare_file(files, log / OWNER, [line + b"\n" + _check(line)])
        commit_file(files, log / OWNER)


def _check(line: bytes) -> bytes:
    return f"crc32c {crc32c(line):08x}\n".encode("ascii")
