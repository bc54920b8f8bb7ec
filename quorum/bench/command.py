"""`quorum bench MODE`: the command's options. `python -m quorum.bench` is the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from quorum.bench import backlog as backlog_bench
from quorum.bench import report
from quorum.bench import run as batches_bench
from quorum.bench import selectors_run as selectors_bench
from quorum.bench import singles as singles_bench
from quorum.bench import sizing as sizing_bench
from quorum.bench import spark_flows as spark_bench
from quorum.bench import transfer as transfer_bench
from quorum.bench.plan import Plan
from quorum.bench.run import BenchFailed, Note
from quorum.client.connection.endpoints import MAX_LINGER_MS

BACKLOG_MESSAGES = 10_000_000
TRANSFER_MESSAGES = 2_000_000
SPARK_MESSAGES = 1_000_000
TRANSFER_BATCH, TRANSFER_RATE = 10, 1_000
"""A hundred batches a second: some thousand values for a 99th percentile, with negligible load."""
SELECTORS_RATE = 500
"""Messages a second, each for one of a hundred consumers; members on one small machine can sustain it."""

SINGLES_PRODUCERS = 2
SELECT_CONSUMERS, SELECT_RATE = 100, 1_000


class BenchMode(StrEnum):
    publish = "publish"
    consume = "consume"
    both = "both"
    backlog = "backlog"
    transfer = "transfer"
    selectors = "selectors"
    singles = "singles"
    select = "select"
    spark = "spark"
    sizing = "sizing"


@dataclass(frozen=True, slots=True)
class Mode:
    """defaults: those of this mode, by the plan's field; the others are the plan's own. In a mode with a default for
    `backlog`, the option --messages gives it."""

    run: Callable[[Plan, Note], Any]
    table: Callable[[Any], RenderableType]
    defaults: Mapping[str, int] = field(default_factory=dict)
    is_securable: bool = False


def _selectors(*, alone: bool) -> Mode:
    run = partial(selectors_bench.run, alone=alone)
    return Mode(run, selectors_bench.table, {"backlog": 0, "rate": SELECTORS_RATE})


def _singles(**defaults: int) -> Mode:
    return Mode(singles_bench.run, singles_bench.table, defaults, is_securable=True)


BATCHES = Mode(batches_bench.run, report.table, is_securable=True)
ALONE = _selectors(alone=True)
MODES = {
    BenchMode.publish: BATCHES,
    BenchMode.consume: BATCHES,
    BenchMode.both: BATCHES,
    BenchMode.backlog: Mode(
        backlog_bench.run, backlog_bench.table, {"backlog": BACKLOG_MESSAGES, "producers": 1}
    ),
    BenchMode.transfer: Mode(
        transfer_bench.run,
        transfer_bench.table,
        {"backlog": TRANSFER_MESSAGES, "batch": TRANSFER_BATCH, "rate": TRANSFER_RATE},
    ),
    BenchMode.selectors: _selectors(alone=False),
    BenchMode.singles: _singles(producers=SINGLES_PRODUCERS),
    BenchMode.select: _singles(producers=1, consumers=SELECT_CONSUMERS, rate=SELECT_RATE),
    BenchMode.spark: Mode(spark_bench.run, spark_bench.table, {"backlog": SPARK_MESSAGES, "members": 1}),
    BenchMode.sizing: Mode(sizing_bench.run, sizing_bench.table),
}


def _refuse_other_modes(
    mode: BenchMode,
    *,
    consumers: int | None,
    queues: int,
    bindings: int,
    transaction: int,
    groups: int,
    linger: int,
    secured: bool,
) -> None:
    """BadParameter for an option that this mode does not have, or not together with another one."""
    if consumers == 0 and mode != BenchMode.singles:
        raise typer.BadParameter("0; allowed: 1 and more, and 0 in mode singles", param_hint="--consumers")
    if mode != BenchMode.publish and (queues > 1 or bindings):
        raise typer.BadParameter("allowed in mode publish", param_hint="--queues, --bindings")
    if queues > 1 and bindings:
        raise typer.BadParameter("one of the two", param_hint="--queues, --bindings")
    if transaction and (mode != BenchMode.singles or consumers != 0):
        raise typer.BadParameter("allowed in mode singles with --consumers 0", param_hint="--transaction")
    if groups > 1 and not transaction:
        raise typer.BadParameter("allowed with --transaction", param_hint="--groups")
    if linger and mode not in (BenchMode.singles, BenchMode.select):
        raise typer.BadParameter("allowed in modes singles and select", param_hint="--linger")
    if secured and not MODES[mode].is_securable:
        allowed = ", ".join(name for name, each in MODES.items() if each.is_securable)
        raise typer.BadParameter(f"allowed in modes {allowed}", param_hint="--secured")


def bench(
    mode: Annotated[BenchMode, typer.Argument(help="what the load does")] = BenchMode.both,
    *,
    body: Annotated[int, typer.Option(min=0, help="bytes of a message's body")] = Plan().body_bytes,
    batch: Annotated[
        int,
        typer.Option(
            min=0, help=f"messages in a batch; 0: {Plan().batch}, in mode transfer {TRANSFER_BATCH}"
        ),
    ] = 0,
    window: Annotated[int, typer.Option(min=1, help="unconfirmed batches of a producer")] = Plan().window,
    producers: Annotated[
        int,
        typer.Option(
            min=0,
            help="one in three on the leader; 0: three, in modes backlog and select one, "
            f"in mode singles {SINGLES_PRODUCERS} processes",
        ),
    ] = 0,
    consumers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"on followers in turn; by default {Plan().consumers}, in mode select {SELECT_CONSUMERS}; "
            "0 in mode singles: publish only",
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option(min=1, help="tasks of each producer that publish message by message (mode singles)")
    ] = Plan().tasks,
    threads: Annotated[
        int,
        typer.Option(
            min=0, help="in place of the tasks, threads that share a blocking client (mode singles)"
        ),
    ] = Plan().threads,
    seconds: Annotated[float, typer.Option(min=0.1, help="measured seconds")] = Plan().seconds,
    warmup: Annotated[float, typer.Option(min=0.0, help="seconds of warm-up before it")] = Plan().warmup_s,
    members: Annotated[
        int, typer.Option(min=0, help=f"member processes; 0: {Plan().members}, in mode spark one")
    ] = 0,
    rate: Annotated[
        int,
        typer.Option(
            min=0,
            help="messages a second at most; 0: no limit, "
            f"in mode transfer {TRANSFER_RATE}, in mode selectors {SELECTORS_RATE}, in mode select {SELECT_RATE}",
        ),
    ] = Plan().rate,
    backlog: Annotated[int, typer.Option(min=1, help="messages to consume (mode consume)")] = Plan().backlog,
    messages: Annotated[
        int,
        typer.Option(
            min=0,
            help=f"messages in all; 0: in mode backlog {BACKLOG_MESSAGES:,}, in mode transfer {TRANSFER_MESSAGES:,}, "
            f"in mode spark {SPARK_MESSAGES:,}; in mode selectors the most that wait, 0: 10,000,000, "
            "in the cluster 1,000,000",
        ),
    ] = 0,
    filter_enabled: Annotated[
        bool, typer.Option("--filter-enabled", help="five fields a message, four selectors")
    ] = False,
    lazy: Annotated[bool, typer.Option("--lazy", help="the queue is paged out of memory at once")] = False,
    rounds: Annotated[
        int, typer.Option(min=1, help="number of times that a member is rebuilt (mode transfer)")
    ] = Plan().rounds,
    queues: Annotated[
        int,
        typer.Option(
            min=1, help="queues of one group that get each message, through a fanout exchange (mode publish)"
        ),
    ] = Plan().queues,
    bindings: Annotated[
        int, typer.Option(min=0, help="selector bindings; each message matches one (mode publish)")
    ] = Plan().bindings,
    transaction: Annotated[
        int, typer.Option(min=0, help="messages of a transaction; 0: no transactions (mode singles)")
    ] = Plan().transaction,
    groups: Annotated[
        int, typer.Option(min=1, help="Raft groups of each transaction, one queue each (mode singles)")
    ] = Plan().groups,
    linger: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_LINGER_MS,
            metavar="MS",
            help="linger_ms of the producers' clients (modes singles and select)",
        ),
    ] = Plan().linger_ms,
    alone: Annotated[
        bool, typer.Option("--alone", help="without a cluster, on this machine alone (mode selectors)")
    ] = False,
    secured: Annotated[
        bool,
        typer.Option(
            "--secured",
            help="TLS for clients and between members, and a user that logs in (modes publish, consume, both, singles "
            "and select)",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object as the last line")] = False,
) -> None:
    """Measure a cluster of real member processes, which is started for the bench and removed afterwards."""
    _refuse_other_modes(
        mode,
        consumers=consumers,
        queues=queues,
        bindings=bindings,
        transaction=transaction,
        groups=groups,
        linger=linger,
        secured=secured,
    )
    chosen = ALONE if alone and mode == BenchMode.selectors else MODES[mode]
    plan = Plan(
        mode=mode.value,
        body_bytes=body,
        window=window,
        warmup_s=warmup,
        seconds=seconds,
        filter_enabled=filter_enabled,
        backlog=backlog,
        lazy=lazy,
        rounds=rounds,
        tasks=tasks,
        threads=threads,
        queues=queues,
        bindings=bindings,
        transaction=transaction,
        groups=groups,
        linger_ms=linger,
        secured=secured,
    )
    given = {
        "batch": batch or None,
        "producers": producers or None,
        "consumers": consumers,
        "members": members or None,
        "rate": rate or None,
        "backlog": messages or None if "backlog" in chosen.defaults else None,
    }
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    plan = replace(plan, **(dict(chosen.defaults) | changed))
    console = Console(stderr=as_json)
    try:
        result = chosen.run(plan, lambda text: console.print(f"[dim]{text}[/dim]"))
    except BenchFailed as failure:
        console.print(f"[red]bench failed:[/red] {failure}")
        raise typer.Exit(1) from failure
    console.print(chosen.table(result))
    if as_json:
        print(json.dumps(result.to_dict()), flush=True)


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(bench)
