"""`quorum pipeline archive|selectivity`."""

from __future__ import annotations

import signal
import threading
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorum.cli.console import (
    LONG_S,
    CliError,
    JsonOption,
    Patience,
    TimeoutOption,
    UrlOption,
    default_url,
    note,
    print_json,
    printable,
    served,
)
from quorum.cli.pipelines.spark_options import ConfOption, MasterOption, heap
from quorum.cli.pipelines.spark_sessions import MemoryOption, spark_session
from quorum.counts import counted

if TYPE_CHECKING:
    from quorum.spark.pipelines.selectivity import QueueSelectivity

WAIT_S = 1
"""Seconds between checks for Ctrl-C."""


def archive(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="the queues' names")],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="the archive; an existing one is continued")
    ],
    once: Annotated[bool, typer.Option("--once", help="archive the present messages, then end")] = False,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave", help="leave the messages in their queues; misses checked-out and delayed ones"
        ),
    ] = False,
    subscription: Annotated[
        str, typer.Option(help="name of the subscription that takes the messages")
    ] = "archive",
    selector: Annotated[str, typer.Option("--selector", "-s", help="JMS selector; other messages stay")] = "",
    fields: Annotated[
        str, typer.Option(metavar="LIST", help="application properties as columns: 'color STRING'")
    ] = "",
    batch: Annotated[int, typer.Option(min=1, max=10_000_000, help="messages of a batch, at most")] = 100_000,
    interval: Annotated[
        float, typer.Option(min=0.1, max=LONG_S, help="seconds between batches, without --once")
    ] = 10.0,
    pass_lost: Annotated[
        bool,
        typer.Option(
            "--pass-lost",
            help="continue although an unfinished batch's messages were returned to their queue",
        ),
    ] = False,
    memory: MemoryOption = "1g",
    master: MasterOption = None,
    conf: ConfOption = None,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Write queues to Parquet files, each message once. Runs until Ctrl-C, or with --once to the
    end."""
    from quorum.spark.errors import OptionError
    from quorum.spark.java import java_home
    from quorum.spark.pipelines.archive import Archive

    written: deque[int] = deque()
    wanted = Archive(
        url or default_url(),
        tuple(queues),
        to,
        subscription,
        selector,
        fields,
        takes=not leave,
        batch=batch,
        on_batch=written.append,
        passes_lost=pass_lost,
    )
    heap(memory)
    java_home()
    try:
        wanted.check()  # before Spark starts, because that takes seconds
    except OptionError as error:
        raise CliError(str(error)) from None
    with served(url, timeout) as client:
        for queue in queues:
            client.describe(queue)
    with spark_session("archive", memory, master, conf) as spark:
        interrupted = _interrupts()
        query = wanted.start(spark, None if once else interval)
        is_over = False
        try:
            while not is_over and not interrupted.is_set():
                is_over = bool(query.awaitTermination(WAIT_S))
        finally:
            query.stop()
            note(f"archived {counted(sum(written), 'message')} to {to}")
        if once and not is_over:
            raise KeyboardInterrupt
        if once:
            wanted.finish()


def _interrupts() -> threading.Event:
    """An event that the first Ctrl-C sets. KeyboardInterrupt inside a call to the JVM would print several
    tracebacks."""
    interrupted = threading.Event()

    def note_it(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupted.set()

    signal.signal(signal.SIGINT, note_it)
    return interrupted


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
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="the present selectors of the queues' consumers and durable subscriptions; --url implies it",
        ),
    ] = False,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="only of this queue")] = None,
    memory: MemoryOption = "1g",
    master: MasterOption = None,
    conf: ConfOption = None,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the archived messages that selectors match, the cost of their fields, and the fields worth keeping."""
    texts = list(selector or ())
    if selectors is not None:
        texts += _lines(selectors)
    asks_cluster = cluster or url is not None
    if not texts and not asks_cluster:
        raise CliError("no selectors; give --selector, --selectors or --cluster")
    with spark_session("selectivity", memory, master, conf) as spark:
        from quorum.cli.pipelines.live_selectors import Present, of_cluster
        from quorum.client.bulk.client import BulkClient
        from quorum.spark.pipelines.archive import queues_of, read_archive
        from quorum.spark.pipelines.selectivity import asked
        from quorum.spark.pipelines.selectivity import selectivity as judge

        wanted = list(map(asked, texts))
        archived = read_archive(spark, directory, queue or ())
        now = Present((), {}, ())
        if asks_cluster:
            names, patience = queue or queues_of(directory), Patience(timeout)
            chosen = url or default_url()
            with (
                served(chosen, patience) as client,
                BulkClient(chosen, timeout_ms=patience.left_ms) as bulk,
            ):
                now = of_cluster(client, bulk, names)
            for name in now.absent:
                note(f"the cluster has no queue {name}, so it has no selectors")
        found = judge(archived, [*wanted, *now.asked], now.names)
    if as_json:
        print_json({"queues": [_plain(each) for each in found]})
        return
    for each in found:
        _show(each)
    note(counted(sum(each.messages for each in found), "message"))


def _lines(file: Path) -> list[str]:
    """The lines of a file that are not blank. CliError if it is not UTF-8."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CliError(f"{file}: byte {error.start} is not UTF-8") from error
    return [line for line in text.splitlines() if line.strip()]


def _plain(found: QueueSelectivity) -> dict[str, Any]:
    plain = asdict(found)
    plain["recommendation"]["line"] = found.recommendation.line
    return plain


def _show(found: QueueSelectivity) -> None:
    """Print tables at their full width, because they may be written to files."""
    whole = found.messages
    print(printable(f"{found.queue}: {counted(whole, 'message')}"))
    print("\n     matched     share  selector")
    for each in found.selectors:
        users = f"  ({', '.join(each.users)})" if each.users else ""
        print(printable(f"{each.matched:>12,}  {_share(each.matched, whole)}  {each.selector}{users}"))
    if not found.selectors:
        print("              no selectors")
    print("\n   selectors   matched      NULL    distinct  bytes in memory  a message  field")
    for field in found.fields:
        if not field.archived:
            print(printable(f"{field.selectors:>12,}{'not in archives':>57}  {field.field}"))
            continue
        matched = _share(field.matched, whole) if field.selectors else "       -"
        numbers = (
            f"{field.selectors:>12,}  {matched}  {_share(whole - field.messages, whole)}  {field.distinct:>10,}"
            f"  {field.memory_bytes:>15,}  {field.memory_bytes / max(1, whole):>9.1f}"
        )
        print(printable(f"{numbers}  {field.field}"))
    wanted = found.recommendation
    now = ",".join(wanted.names_now) or "nothing"
    sizes = (
        f"  {wanted.memory_bytes / max(1, whole):.1f} bytes a message"
        f"; now {wanted.memory_bytes_now / max(1, whole):.1f}, with {now}"
    )
    print()
    for line in (wanted.line, sizes, *(f"  {reason}" for reason in wanted.reasons)):
        print(printable(line))
    print()


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:6.2f} %" if whole else "     - %"
