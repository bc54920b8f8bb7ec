"""`quorum audit verify`: whether audit files are as their members wrote them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from quorum.cli.console import CliError, JsonOption, print_json
from quorum.cli.counts import counted

app = typer.Typer(help="Read the audit files of members.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `verify` a command of its own while it is the only one."""


@app.command()
def verify(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="audit files of one member, the oldest first")
    ],
    last: Annotated[
        str, typer.Option("--last", metavar="HASH", help="the last line has to have this hash, or begin so")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Compare each line with the hash that the next one has of it. Status 1 if a line was changed, removed or added."""
    from quorum.api.audit_file import verify as verified

    found = verified(files)
    if not found.last.startswith(last):
        raise CliError(f"{files[-1]}: the last line has the hash {found.last}, and not {last}")
    if as_json:
        print_json(asdict(found))
        return
    print(f"{counted(found.lines, 'line')}, {found.interrupted:,} of them interrupted")
    print(f"before them  {found.before}")
    print(f"last         {found.last}")
