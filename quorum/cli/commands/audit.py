"""`quorum audit verify`: whether audit files are as their members wrote them."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from quorum.cli.console import CliError, JsonOption, print_json
from quorum.counts import counted

app = typer.Typer(help="Read the audit files of members.", no_args_is_help=True)

HASH = "[0-9a-f]{16,64}"
"""The beginning of a hash, at least as much as the log has of it."""


@app.callback()
def _group() -> None:
    """Keeps `verify` a command of its own while it is the only one."""


@app.command()
def verify(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="audit files of one member, the oldest first")
    ],
    contains: Annotated[
        str | None,
        typer.Option(
            "--contains",
            metavar="HASH",
            help="one of the lines has to have this hash, or one that begins so: the last hash of an earlier verify, "
            "or one of the log",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare each line with the hash that the next one has of it. Status 1 if a line was changed, removed or added.

    The newest lines have no line after them. That they were removed is only found with --contains, if their hash was
    kept elsewhere."""
    from quorum.api.security.audit_file import NOTHING
    from quorum.api.security.audit_file import verify as verified

    if contains is not None and re.fullmatch(HASH, contains) is None:
        raise CliError(f"--contains {contains!r}: allowed are 16 to 64 digits from 0 to 9 and a to f")
    found = verified(files, contains or "")
    if as_json:
        print_json(asdict(found))
        return
    print(f"{counted(found.lines, 'line')}, {found.interrupted:,} of them interrupted", end="")
    print(": only their beginnings are there, as after a crash" if found.interrupted else "")
    if found.is_last_interrupted:
        print("the last line is incomplete: a crash cut it off, or it was changed")
    older = "zeros: no line was before them" if found.before == NOTHING else "of a line in an older file"
    print(f"before them  {found.before}  ({older})")
    print(f"last         {found.last}  (keep it elsewhere for --contains)")
    if contains:
        print(f"contains     {contains}  ({found.contained_at})")
