"""`quorum pipeline deadletters`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorum.cli.commands.queues import show_redriven
from quorum.cli.console import (
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
from quorum.cli.pipelines.spark_options import ConfOption, MasterOption
from quorum.cli.pipelines.spark_sessions import MemoryOption, spark_session
from quorum.counts import counted

if TYPE_CHECKING:
    from quorum.spark.pipelines.dead_letters import Counted


def deadletters(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="the dead-letter queue")],
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="COLUMN",
            help="reason, queue or time (hours) of the last death, or a property; may be repeated; default: reason, "
            "then queue",
        ),
    ] = None,
    where: Annotated[
        str,
        typer.Option(metavar="PREDICATE", help="only messages for which this predicate of Spark SQL holds"),
    ] = "",
    fields: Annotated[
        str, typer.Option(metavar="LIST", help="application properties as columns: 'color STRING'")
    ] = "",
    redrive: Annotated[
        bool, typer.Option("--redrive", help="move the messages back to the queues where they died")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="QUEUE", help="with --redrive: only messages that died in this queue"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="with --redrive: highest number of messages, with those that stay"),
    ] = None,
    memory: MemoryOption = "1g",
    master: MasterOption = None,
    conf: ConfOption = None,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the messages of a dead-letter queue by their last death and by properties. Removes nothing.

    With --redrive, nothing is counted: the messages go back to the queues where they died. The predicate becomes a
    selector; it is refused if no selector has the same meaning."""
    if (only is not None or limit is not None) and not redrive:
        raise CliError("--only and --limit need --redrive")
    if redrive and (by or fields):
        raise CliError("--by and --fields count messages; --redrive counts nothing")
    chosen = url or default_url()
    with served(chosen, timeout) as client:
        client.describe(queue)
    with spark_session("deadletters", memory, master, conf) as spark:
        from quorum.spark.pipelines.dead_letters import count, letters, selector_of

        if redrive:
            selector = selector_of(where) if where else None
        else:
            parts = by or ["reason", "queue"]
            found = count(letters(spark, chosen, queue, fields), parts, where)
    if not redrive:
        _show(found, parts, as_json=as_json)
        return
    if selector is not None:
        note(f"the selector is {printable(selector)}")
    with served(chosen, Patience(timeout, is_for_each_call=True)) as client:
        moved = client.redrive(queue, selector, limit=limit, only=only)
    show_redriven(queue, moved, as_json=as_json)


def _show(found: Counted, parts: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"by": parts, **asdict(found), "groups": [_plain(each) for each in asdict(found)["groups"]]}
        )
        return
    print(f"{'messages':>12}  {', '.join(printable(part) for part in parts)}")
    for group in found.groups:
        print(f"{group.messages:>12,}  {', '.join(_text(value) for value in group.values)}")
    if found.more:
        print(f"and {counted(found.more, 'smaller group')}")
    note(counted(found.messages, "message"))


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    values = [_hour(each) if isinstance(each, datetime) else each for each in group["values"]]
    return {**group, "values": values}


def _text(value: object) -> str:
    if value is None:
        return "-"
    return _hour(value) if isinstance(value, datetime) else printable(str(value))


def _hour(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
