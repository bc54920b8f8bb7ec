"""`quorum pipeline`: work on many messages or operations at a time, in Spark on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from quorum.cli.console import JsonOption, note, print_json

app = typer.Typer(help="Checks and archives that run in Spark.", no_args_is_help=True)

MemoryOption = Annotated[str, typer.Option(metavar="SIZE", help="of Spark's JVM: 2g, 4096m")]


@app.command()
def verify(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="JSON lines, Parquet, or directories")
    ],
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="what remained at the end is not in the history")
    ] = False,
    examples: Annotated[int, typer.Option(min=1, max=10_000, help="of each kind of finding")] = 10,
    memory: MemoryOption = "2g",
    as_json: JsonOption = False,
) -> None:
    """Recorded histories: what was lost, duplicated, reordered, held twice (docs/histories.md). 1: something was."""
    from quorum.spark import OptionError, plain_failures, session
    from quorum.spark.verify import verify as check

    spark = session("quorum pipeline verify", **{"spark.driver.memory": memory})
    try:
        with plain_failures():
            report = check(spark, paths, is_complete=not incomplete, examples=examples)
    except OptionError as error:
        raise _complaint(error) from None
    finally:
        spark.stop()
    if as_json:
        print_json(
            {
                "operations": report.operations,
                "messages": report.messages,
                "findings": report.findings,
                "examples": report.examples,
            }
        )
    else:
        for line in report.examples:
            print(line)
        told = ", ".join(f"{kind} {count:,}" for kind, count in report.findings.items()) or "nothing wrong"
        note(f"{report.operations:,} operations, {report.messages:,} messages: {told}")
    raise typer.Exit(0 if report.is_clean else 1)


def _complaint(error: Exception) -> Exception:
    from quorum.cli.console import Complaint

    return Complaint(str(error))
