"""`quorum definitions export|import`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.cli.console import (
    CliError,
    JsonOption,
    Patience,
    TimeoutOption,
    UrlOption,
    note,
    print_json,
    printable,
    served,
)
from quorum.counts import counted

if TYPE_CHECKING:
    from quorum.client.admin.definitions import DefinitionResult, ImportReport

app = typer.Typer(
    help="Definitions: exchanges, queues, bindings and policies as one file.", no_args_is_help=True
)

STANDARD = Path("-")
ONE = {"bindings": "binding", "exchanges": "exchange", "policies": "policy", "queues": "queue"}
"""The kinds of definitions, in a file and for one of them."""


@app.command("export")
def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="where to write them; - or nothing: standard output")
    ] = STANDARD,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Write the definitions of the cluster as JSON, sorted: equal definitions make an equal file."""
    from quorum.definitions.definition_files import text_of

    with served(url, timeout) as client:
        found = client.export_definitions()
    data = text_of(found).encode()
    if file == STANDARD:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    _write(file, data)
    counts = (counted(len(rows), ONE[kind], kind) for kind, rows in found.items() if isinstance(rows, list))
    print(f"wrote {', '.join(counts)} to {file}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Quorum's or RabbitMQ's; -: standard input")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="change nothing; say what an import would do")
    ] = False,
    vhost: Annotated[
        str | None, typer.Option("--vhost", help="the virtual host of RabbitMQ that is read; / otherwise")
    ] = None,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add what the cluster does not have. Nothing that exists is changed or removed. Exit status 1 if something exists
    otherwise or is refused."""
    from quorum.client.admin.definitions import DefinitionsError

    data = _read(file)
    with served(url, Patience(timeout, is_for_each_call=True)) as client:
        try:
            report = client.import_definitions(data, dry_run=dry_run, vhost=vhost)
        except DefinitionsError as error:
            raise CliError(f"{file}: {error}") from error
    if as_json:
        print_json({**asdict(report), "counts": report.counts, "is_complete": report.is_complete})
    else:
        _print(report)
    if not report.is_complete:
        raise typer.Exit(1)


def _read(file: Path) -> bytes:
    """The file's bytes, and one more than allowed if it has more: the client then says so."""
    from quorum.definitions.definition_files import MAX_FILE_BYTES

    if file == STANDARD:
        return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    with file.open("rb") as source:
        return source.read(MAX_FILE_BYTES + 1)


def _write(file: Path, data: bytes) -> None:
    """Replace the file as a whole, so that a full disk leaves the old one."""
    if file.exists() and not file.is_file():  # a pipe, or /dev/stdout
        file.write_bytes(data)
        return
    written = file.with_name(f".{file.name}.new")
    try:
        written.write_bytes(data)
        written.replace(file)
    except BaseException as error:
        written.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(file)  # the name that the user knows
        raise


def _print(report: ImportReport) -> None:
    for result in report.results:
        print(printable(_line(result)))
        for each in result.notes:
            print(printable(f"         note: {each}"))
    for each in report.notes:
        note(f"note: {each}")
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in report.counts.items())
    print(f"dry run, nothing is changed: {counts}" if report.dry_run else counts)


def _line(result: DefinitionResult) -> str:
    text = f": {result.text}" if result.text else ""
    return f"{result.outcome:8} {result.kind} {result.name}{text}"
