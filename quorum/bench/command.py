"""`quorum bench MODE`: the command's options, and nothing else. `python -m quorum.bench` is the same."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from quorum.bench.plan import Plan
from quorum.bench.report import table
from quorum.bench.run import BenchFailed, run


class BenchMode(StrEnum):
    publish = "publish"
    consume = "consume"
    both = "both"


def bench(
    mode: Annotated[BenchMode, typer.Argument(help="what the load does")] = BenchMode.both,
    *,
    body: Annotated[int, typer.Option(min=0, help="bytes of a message's body")] = Plan().body_bytes,
    batch: Annotated[int, typer.Option(min=1, help="messages in a batch")] = Plan().batch,
    window: Annotated[int, typer.Option(min=1, help="batches a producer has under way")] = Plan().window,
    producers: Annotated[int, typer.Option(min=1, help="one in three on the leader")] = Plan().producers,
    consumers: Annotated[int, typer.Option(min=1, help="on followers in turn")] = Plan().consumers,
    seconds: Annotated[float, typer.Option(min=0.1, help="measured time")] = Plan().seconds,
    warmup: Annotated[float, typer.Option(min=0.0, help="time before it, not measured")] = Plan().warmup_s,
    members: Annotated[int, typer.Option(min=1, help="member processes")] = Plan().members,
    rate: Annotated[int, typer.Option(min=0, help="messages a second at most; 0: no limit")] = Plan().rate,
    backlog: Annotated[int, typer.Option(min=1, help="messages to consume (mode consume)")] = Plan().backlog,
    filter_enabled: Annotated[
        bool, typer.Option("--filter-enabled", help="five fields a message, four selectors")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object as the last line")] = False,
) -> None:
    """Measures a cluster of real member processes, started for this and taken away again."""
    console = Console(stderr=as_json)
    plan = Plan(
        mode=mode.value,
        members=members,
        body_bytes=body,
        batch=batch,
        window=window,
        producers=producers,
        consumers=consumers,
        warmup_s=warmup,
        seconds=seconds,
        filter_enabled=filter_enabled,
        rate=rate,
        backlog=backlog,
    )
    try:
        result = run(plan, lambda text: console.print(f"[dim]{text}[/dim]"))
    except BenchFailed as failure:
        console.print(f"[red]bench failed:[/red] {failure}")
        raise typer.Exit(1) from failure
    console.print(table(result))
    if as_json:
        print(json.dumps(result.to_dict()), flush=True)


app = typer.Typer(add_completion=False)
app.command()(bench)
