"""The manifest: the list of segments, and the state of each group's journal up to a stated LSN.

It is text and is replaced as a whole: a title with format and CRC, then JSON lines. The CRC covers the JSON lines, so
the first of them names the format again: a changed bit in the title is damage, and never a newer format.

- One line for each segment, in the order of their LSNs. The last is active, all others are sealed.
- One line for each group: journal bounds, terms, hard state and cuts as they were at `stated` LSN. That LSN is synced,
  and is the end of the last sealed segment or later. So the only records of a sealed segment that are still needed are
  bodies and pages: opening begins with these lines, and the collector may drop the other records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorum.log.errors import Damage, LogDamaged, LogUnknown
from quorum.log.files import Files, commit_file, prepare_file, read_file
from quorum.log.record import crc32c
from quorum.log.segment_files.segments import FORMAT, Listed
from quorum.log.table import Cut, GroupState

MANIFEST = "MANIFEST"

_TITLE = "quorum-log-manifest"
_FORMAT_WITHOUT_NAME = 2
"""Manifests that were written before the first line named the format have this one."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of the manifest."""

    segments: Sequence[Listed]
    stated: int = 0
    groups: Mapping[int, GroupState] = field(default_factory=dict)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as text."""
    lines: list[dict[str, Any]] = [{"stated": manifest.stated, "format": FORMAT}]
    for item in manifest.segments:
        lines.append(
            {
                "segment": item.number,
                "file_id": item.file_id.hex(),
                "first_lsn": item.first_lsn,
                "last_lsn": item.last_lsn,
                "end": item.end,
            }
        )
    for group, state in sorted(manifest.groups.items()):
        lines.append(
            {
                "group": group,
                "first": state.first_index,
                "last": state.last_index,
                "term": state.hard_term,
                "vote": state.vote,
                "hard_state_lsn": state.hard_state_lsn,
                "runs": state.runs,
                "cuts": state.cuts,
            }
        )
    rest = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return f"{_TITLE} {FORMAT} {crc32c(rest):08x}\n".encode() + rest


def decode_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest; LogDamaged or LogUnknown if the bytes are not a complete one."""
    title, _, rest = data.partition(b"\n")
    words = title.decode("latin-1").split(" ")
    if len(words) != 3 or words[0] != _TITLE:
        raise LogDamaged(Damage(str(path), 0, None, "not a manifest"))
    if words[2] != f"{crc32c(rest):08x}":
        raise LogDamaged(Damage(str(path), 0, None, "the manifest fails its CRC"))
    head, *lines = map(json.loads, rest.decode().splitlines())
    written = head.get("format", _FORMAT_WITHOUT_NAME)
    if words[1] != str(written):
        raise LogDamaged(Damage(str(path), 0, None, "the title names another format than the lines"))
    if written != FORMAT:
        raise LogUnknown(f"{path}: format {written}, this program knows {FORMAT}")
    segments = [
        Listed(
            line["segment"], bytes.fromhex(line["file_id"]), line["first_lsn"], line["last_lsn"], line["end"]
        )
        for line in lines
        if "segment" in line
    ]
    groups = {
        line["group"]: GroupState(
            line["first"],
            line["last"],
            line["term"],
            line["vote"],
            line["hard_state_lsn"],
            tuple((start, term) for start, term in line["runs"]),
            tuple(Cut(*cut) for cut in line["cuts"]),
        )
        for line in lines
        if "group" in line
    }
    return Manifest(segments, head["stated"], groups)


def read_manifest(files: Files, directory: Path) -> Manifest | None:
    """The content of the manifest, or None if there is none."""
    path = directory / MANIFEST
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    return decode_manifest(data, path)


def prepare_manifest(files: Files, directory: Path, manifest: Manifest) -> None:
    """Write the next manifest beside the present one. An OSError changes nothing."""
    prepare_file(files, directory / MANIFEST, [encode_manifest(manifest)])


def commit_manifest(files: Files, directory: Path) -> None:
    """Put the prepared manifest in force, durably."""
    commit_file(files, directory / MANIFEST)
