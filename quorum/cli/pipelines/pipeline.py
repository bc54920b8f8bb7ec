"""`quorum pipeline ...`: Spark jobs, each in its own process, on this machine or a Spark cluster."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorum.cli.console import CliError, JsonOption, note, print_json, print_table, printable, shown
from quorum.cli.pipelines.spark_options import ConfOption, MasterOption, heap, settings_of
from quorum.counts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorum.histories.report import Line, Report

app = typer.Typer(help="Run jobs on Spark.", no_args_is_help=True)

VIOLATED, CANNOT_JUDGE = 1, 2
SHOWN_LINES = 40
PARTITIONS = 16
"""Number of shuffle partitions, high enough that each fits into memory; Spark joins small ones again."""

MemoryOption = Annotated[
    str,
    typer.Option(
        "--memory", metavar="SIZE", help="Java heap, such as 2g or 800m; more data is spilled to disk"
    ),
]
ScratchOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="directory for temporary data; with --master one that all machines of the cluster share",
    ),
]


@app.callback()
def _root() -> None:
    """Run jobs on Spark. They need the extra `spark` of the distribution."""


@app.command()
def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="files of a recorded history, or directories with such files"),
    ],
    memory: MemoryOption = "2g",
    scratch: ScratchOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a recorded history of operations for messages that were lost, duplicated, reordered, held twice,
    delivered after being settled, or never published. Spark checks a history of more than 200,000 operations, and every
    history with --master or --conf.

    Status 0: no violation; 1: violations; 2: the history cannot be checked.
    """
    from quorum.errors import OperatorError

    settings = {
        "spark.driver.memory": heap(memory),
        "spark.sql.shuffle.partitions": PARTITIONS,
        "spark.local.dir": tempfile.gettempdir(),  # Java ignores TMPDIR
        **settings_of(conf),
    }
    try:
        report = None if master or conf else _judge_here(paths)
        if report is None:
            report = _judge_on_spark(paths, master, scratch, settings)
    except OperatorError as error:
        raise CliError(str(error), CANNOT_JUDGE) from error
    except OSError as error:
        raise CliError(f"{error.filename or 'a file'}: {error.strerror or error}", CANNOT_JUDGE) from error
    if as_json:
        print_json({"clean": report.is_clean, **asdict(report)})
    else:
        _show(report)
    raise typer.Exit(0 if report.is_clean else VIOLATED)


def _judge_here(paths: list[Path]) -> Report | None:
    """None if the history is too large for this process."""
    from quorum.histories.files import read
    from quorum.histories.judge import MAX_OPERATIONS, judge

    tell, started = Progress(), time.monotonic()
    records = read(paths, MAX_OPERATIONS)
    if records is None:
        tell(f"more than {MAX_OPERATIONS:,} operations: Spark judges them")
        return None
    report = judge(records)
    tell(f"{counted(report.operations, 'operation')} in {counted(report.records, 'record')}")
    report.seconds = time.monotonic() - started
    return report


def _judge_on_spark(
    paths: list[Path], master: str | None, scratch: Path | None, settings: dict[str, Any]
) -> Report:
    from quorum.histories.files import check
    from quorum.spark.errors import QuorumSparkError
    from quorum.spark.pipelines.verify import verify as judge
    from quorum.spark.session import LOCAL, is_local

    master = master or LOCAL
    if scratch is None and not is_local(master):
        raise CliError(
            f"--master {master} needs --scratch DIR, a directory that this machine and all workers share",
            CANNOT_JUDGE,
        )
    if scratch is not None and not scratch.is_dir():
        raise CliError(f"--scratch {scratch}: this directory does not exist", CANNOT_JUDGE)
    try:
        check(paths)  # before Spark starts, because that takes seconds
        spark = start(master, settings)
        try:
            return judge(spark, paths, Progress(), scratch)
        finally:
            stop(spark)
    except QuorumSparkError as error:
        raise CliError(str(error), CANNOT_JUDGE) from error


def start(master: str, settings: dict[str, Any]) -> SparkSession:
    """Start a Spark session in this process, with a note that it takes a while."""
    from quorum.spark import plain_failures, session

    note("starting Spark")
    with plain_failures():
        return session("quorum-pipeline", master, **settings)


def stop(spark: SparkSession) -> None:
    """Stop the session without log output, because tasks that are still running would report errors."""
    spark.sparkContext.setLogLevel("OFF")
    spark.stop()


class Progress:
    """Reports each stage on stderr, with the seconds since the first."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        note(f"{time.monotonic() - self._started:6.1f} s  {text}")


def _show(report: Report) -> None:
    from rich.table import Table

    from quorum.histories.report import COUNTS, KINDS, totals

    table = Table()
    for heading in ("queue", "producer"):
        table.add_column(heading, overflow="fold")
    for heading in COUNTS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("violations", overflow="fold")
    for line in _worst_first(report.lines)[:SHOWN_LINES]:
        broken = ", ".join(
            f"{kind.replace('_', ' ')}: {line.broken[kind]:,}" for kind in KINDS if line.broken[kind]
        )
        cells = [f"{each:,}" if each else "" for each in line.counts.values()]
        table.add_row(shown(line.queue), shown(line.producer), *cells, broken)
    print_table(table)
    if len(report.lines) > SHOWN_LINES:
        print(f"and {counted(len(report.lines) - SHOWN_LINES, 'more producer')} (--json shows all)")
    for kind, examples in report.culprits.items():
        total = report.total(kind)
        print(
            f"{kind.replace('_', ' ')}: {total:,}"
            + (f", {len(examples)} of them:" if total > len(examples) else ":")
        )
        for each in examples:
            print(printable(f"  queue '{each.queue}', {each.producer}:{each.number}: {each.why}"))
    counts = totals(report.lines)
    verdict = "no violation" if report.is_clean else "VIOLATED"
    print(
        f"{verdict}: {counted(report.operations, 'operation')}, {counted(counts['confirmed'], 'message')} confirmed, "
        f"{counts['settled']:,} settled, {counts['left']:,} left; {report.seconds:.1f} s"
    )


def _worst_first(lines: list[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: -sum(line.broken.values()))
