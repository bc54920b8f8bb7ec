"""`quorum pipeline archive|selectivity`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorum.cli.console import Complaint, JsonOption, UrlOption, default_url, note, print_json
from quorum.cli.spark_options import ConfOption, MasterOption, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MemoryOption = Annotated[str, typer.Option(metavar="SIZE", help="of Spark's JVM here: 2g, 4096m")]


@contextmanager
def _spark(name: str, memory: str, master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """A session for one command. What the user wrote wrongly is a complaint, a failed query its cause."""
    from quorum.spark import OptionError, plain_failures, session
    from quorum.spark.session import LOCAL

    settings = {"spark.driver.memory": memory, **settings_of(conf)}
    with plain_failures():
        spark = session(f"quorum pipeline {name}", master or LOCAL, **settings)
    try:
        with plain_failures():
            yield spark
    except OptionError as error:
        raise Complaint(str(error)) from None
    finally:
        spark.stop()


def archive(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...")],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="the archive; goes on with one that is there")
    ],
    once: Annotated[bool, typer.Option("--once", help="what is there now, then end")] = False,
    leave: Annotated[
        bool, typer.Option("--leave", help="leave the messages in their queues, and miss what is held")
    ] = False,
    group: Annotated[str, typer.Option(help="name of the durable group that takes the messages")] = "archive",
    selector: Annotated[str, typer.Option("--selector", "-s", help="JMS selector; others stay")] = "",
    fields: Annotated[
        str, typer.Option(metavar="LIST", help="application properties as columns: 'color STRING'")
    ] = "",
    batch: Annotated[int, typer.Option(min=1, max=10_000_000, help="messages of a batch, at most")] = 100_000,
    interval: Annotated[float, typer.Option(min=0.1, help="seconds between batches, without --once")] = 10.0,
    memory: MemoryOption = "1g",
    master: MasterOption = None,
    conf: ConfOption = None,
    url: UrlOption = None,
) -> None:
    """Queues into Parquet files, each message once (docs/spark.md). Runs until Ctrl-C, or with --once to the end."""
    with _spark("archive", memory, master, conf) as spark:
        from quorum.spark.archive import Archive

        wanted = Archive(
            url or default_url(), tuple(queues), to, group, selector, fields, takes=not leave, batch=batch
        )
        query = wanted.start(spark, None if once else interval)
        try:
            query.awaitTermination()
        finally:
            count = sum(each["numInputRows"] for each in query.recentProgress)
            query.stop()
        note(f"archived {count:,} messages to {to}")


def selectivity(
    directory: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="directory of `quorum pipeline archive`")
    ],
    selector: Annotated[
        list[str] | None, typer.Option("--selector", "-s", help="JMS selector; several may be given")
    ] = None,
    selectors: Annotated[
        Path | None, typer.Option("--selectors", metavar="FILE", help="a selector a line")
    ] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="only of this queue")] = None,
    memory: MemoryOption = "1g",
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """How many archived messages selectors match, and which fields they use."""
    texts = list(selector or ())
    if selectors is not None:
        texts += [line for line in selectors.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not texts:
        raise Complaint("no selectors; give --selector or --selectors")
    with _spark("selectivity", memory, master, conf) as spark:
        from quorum.spark.archive import read_archive
        from quorum.spark.selectivity import selectivity as judge

        found = judge(read_archive(spark, directory, queue or ()), texts)
    if as_json:
        print_json(
            {
                "messages": found.messages,
                "selectors": [
                    {"selector": each.selector, "matched": each.matched} for each in found.selectors
                ],
                "fields": [_as_dict(each) for each in found.fields],
            }
        )
        return
    for each in found.selectors:
        print(f"{each.matched:>12,}  {_share(each.matched, found.messages)}  {each.selector}")
    print()
    print("   selectors  messages have it     distinct   bytes  field")
    for field in found.fields:
        share = _share(field.messages, found.messages)
        print(
            f"{field.selectors:>12,}  {share:>16}  {field.distinct:>11,}  {field.mean_bytes:>6.1f}  {field.field}"
        )
    note(f"{found.messages:,} messages, {len(texts):,} selectors")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:6.2f} %" if whole else "     - %"


def _as_dict(record: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(record)
