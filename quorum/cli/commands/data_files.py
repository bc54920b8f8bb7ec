"""`quorum log inspect FILE` and `quorum check DIRECTORY`: a member's files, for people and for programs (--json)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from quorum.cli.console import CliError, JsonOption, print_json
from quorum.counts import counted

DAMAGED, CANNOT_CHECK = 1, 2


def inspect_file(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="a segment, index, snapshot, reserve or MANIFEST of a node's log"
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show the records of a log file, one a line, and change nothing. Status 1 if a record is bad."""
    from quorum.log.inspection import FileKind, inspect_manifest, inspect_snapshot, kind_of

    if file.is_dir():
        raise CliError(
            f"{file} is a directory; name one of the files in it, or use `quorum check`", CANNOT_CHECK
        )
    if file.exists() and not file.is_file():
        raise CliError(f"{file} is not a regular file; name a file of a node's log", CANNOT_CHECK)
    kind = kind_of(file)
    if kind is None:
        kinds = "segment, index, snapshot, reserve, MANIFEST"
        text = f"{file} is not a file of a log ({kinds}), or its first bytes are damaged"
        raise CliError(text, DAMAGED)
    if kind in (FileKind.SEGMENT, FileKind.INDEX):
        raise typer.Exit(_segment(file, as_json))
    if kind is FileKind.SNAPSHOT:
        found = inspect_snapshot(file)
        text = (
            f"snapshot of group {found.group} at term {found.term} index {found.index}, {found.length} bytes"
        )
        _line(asdict(found), text + (f"  BAD: {found.problem}" if found.problem else ""), as_json)
        raise typer.Exit(DAMAGED if found.problem else 0)
    if kind is FileKind.RESERVE:
        length = file.stat().st_size
        _line({"reserve_bytes": length}, f"reserve for a full disk, {length} bytes, never written", as_json)
        return
    for item in inspect_manifest(file):
        fields = asdict(item) | {"file_id": item.file_id.hex()}
        text = f"segment {item.number} LSN {item.first_lsn}.."
        text += "  active" if item.end is None else f"{item.last_lsn} ends at byte {item.end}"
        _line(fields, text, as_json)


def _segment(file: Path, as_json: bool) -> int:
    from quorum.log.inspection import inspect

    problems = 0
    for record in inspect(file):
        problems += record.problem is not None
        place = f"group {record.group} term {record.term} index {record.index}"
        text = f"{record.offset:>12} LSN {record.lsn} {record.kind} {place} {record.length} bytes"
        _line(asdict(record), text + (f"  BAD: {record.problem}" if record.problem else ""), as_json)
    return DAMAGED if problems else 0


def _line(fields: dict[str, object], text: str, as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print(text)


def check(
    directory: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="a member's data_dir; the member must not run")
    ],
    as_json: JsonOption = False,
) -> None:
    """Check every byte of a stopped member's data. Status 0: no damage; 1: damage was found; 2: the data cannot be
    checked."""
    from quorum.node.offline.offline_check import CannotCheck
    from quorum.node.offline.offline_check import check as check_directory

    try:
        report = check_directory(directory)
    except CannotCheck as error:
        raise CliError(str(error), CANNOT_CHECK) from error
    if as_json:
        print_json({**asdict(report), "good": report.is_good})
        raise typer.Exit(0 if report.is_good else DAMAGED)
    print(f"{report.directory}: {report.member or 'member unknown'}")
    print(
        f"  segments   {report.segments:>12}    {report.record_bytes:,} bytes in {counted(report.records, 'record')}"
    )
    print(f"  last LSN   {report.last_lsn:>12}")
    print(f"  groups     {report.groups:>12}")
    print(f"  snapshots  {report.snapshots:>12}")
    for note in report.notes:
        print(f"note: {note}")
    for advice in dict.fromkeys(each.advice for each in report.causes):
        for each in report.causes:
            if each.advice == advice:
                place = "" if each.offset is None else f" at byte {each.offset}"
                print(f"DAMAGE: {each.file}{place}: {each.what}")
                print(f"  means: {each.means}")
        print(f"  do:    {advice}")
    for each in report.findings:
        if each.follows:
            print(f"follows from this damage: {each.what}")
    print("good" if report.is_good else counted(len(report.causes), "finding"))
    raise typer.Exit(0 if report.is_good else DAMAGED)
