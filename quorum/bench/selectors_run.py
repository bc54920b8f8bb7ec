"""`quorum bench selectors`: the cost of selectors on the state machine alone, in three designs, and in a cluster."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from quorum.bench import selectors_alone, selectors_cluster, selectors_designs
from quorum.bench.plan import Plan
from quorum.bench.run import Note, prepare
from quorum.bench.selectors_alone import AloneResult, Sizes
from quorum.bench.selectors_cluster import ClusterResult, ClusterSizes
from quorum.bench.selectors_designs import DesignsResult
from quorum.local_cluster.cluster import LocalCluster


@dataclass(frozen=True, slots=True)
class SelectorsResult:
    """The results. cluster: None if no cluster was measured. seconds: duration of the whole bench. load: the machine's
    load average at its end."""

    plan: Plan
    alone: AloneResult
    designs: DesignsResult
    cluster: ClusterResult | None
    seconds: float
    load: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": "selectors",
            **self.alone.to_dict(),
            **self.designs.to_dict(),
            **(self.cluster.to_dict() if self.cluster is not None else {}),
            "members": self.plan.members if self.cluster is not None else 0,
            "body_bytes": self.plan.body_bytes,
            "total_s": round(self.seconds, 1),
            "load_average": round(self.load, 1),
        }


def table(result: SelectorsResult) -> Group:
    """Four tables: finding receivers, attaching, designs, everything else."""
    rest = _table("bench selectors", ("what", "value"))
    alone = result.alone.to_dict()
    rest.add_row(
        "a message is returned", f"{alone['return_us']} µs, {alone['return_evaluations']:,} evaluations"
    )
    rest.add_row("memory of a message without its unique string", f"{alone['bytes_per_message']} bytes")
    rest.add_row("memory of the unique string", f"{alone['bytes_per_unique_string']} bytes")
    if result.cluster is not None:
        values = result.cluster.to_dict()
        rest.add_section()
        times = ", ".join(f"{name} {values[f'cluster_{name}_ms']} ms" for name in ("p50", "p99"))
        rest.add_row(f"publish to delivery, {values['cluster_consumers']:,} selectors", times)
        rest.add_row("delivered a second", f"{values['cluster_delivered_per_s']:,}")
        waiting = f"attaching to {values['cluster_attach_messages']:,} messages, to the"
        rest.add_row(f"{waiting} first match", f"{values['cluster_attach_first_ms']} ms")
        rest.add_row(f"{waiting} last match", f"{values['cluster_attach_last_ms']} ms")
        rest.add_row("publish p99 on another queue, before", f"{values['cluster_publish_p99_before_ms']} ms")
        rest.add_row("publish p99 on another queue, meanwhile", f"{values['cluster_publish_p99_ms']} ms")
    rest.caption = f"{result.seconds:.0f} s in all; load average of the machine {result.load:.1f}"
    designs = _designs_table(result.designs)
    return Group(_dispatch_table(result.alone), _attach_table(result.alone), designs, rest)


def _table(title: str, columns: Sequence[str]) -> Table:
    view = Table(title=title)
    for place, column in enumerate(columns):
        view.add_column(column, justify="right" if place else "left")
    return view


def _dispatch_table(alone: AloneResult) -> Table:
    view = _table("finding receivers: µs a message (evaluations)", ("selectors", *alone.dispatch))
    by_number = [
        (number, [costs[number] for costs in alone.dispatch.values()])
        for number in next(iter(alone.dispatch.values()))
    ]
    for number, costs in by_number:
        view.add_row(f"{number:,}", *(f"{cost.us:.1f} ({cost.evaluations:.2f})" for cost in costs))
    view.add_section()
    for number, costs in by_number:
        figures = (f"{cost.batch_us:.1f} ({cost.batch_evaluations:.2f})" for cost in costs)
        view.add_row(f"{number:,}, large batches", *figures)
    return view


def _attach_table(alone: AloneResult) -> Table:
    columns = ("waiting", "ms", "longest entry", "entries", "evaluations")
    view = _table("attaching a consumer with 10 matches", columns)
    for name, costs in (("unique strings", alone.unique), ("few values", alone.low_cardinality)):
        for messages, cost in costs.items():
            view.add_row(
                f"{messages:,}, {name}",
                f"{cost.ms:.1f}",
                f"{cost.longest_entry_ms:.1f} ms",
                f"{cost.entries:,}",
                f"{cost.evaluations:,}",
            )
        view.add_section()
    return view


def _designs_table(designs: DesignsResult) -> Table:
    sizes = designs.sizes
    view = _table("designs: processor time (evaluations)", ("what", *designs.costs))
    costs = designs.costs.values()
    for number in sizes.selectors:
        figures = (f"{c.dispatch_us[number]:,.0f} µs ({c.dispatch_evaluations[number]:,.1f})" for c in costs)
        view.add_row(f"a message for one of {number:,} selectors, {sizes.waiting:,} others wait", *figures)
    view.add_row(
        f"attaching to {sizes.backlog:,} messages",
        *(f"{cost.attach_ms:,.0f} ms ({cost.attach_evaluations:,})" for cost in costs),
    )
    view.add_row(
        f"a return, {sizes.returning:,} selectors, {sizes.return_backlog:,} messages",
        *(f"{cost.returned_us:,.0f} µs ({cost.returned_evaluations:,.0f})" for cost in costs),
    )
    return view


def run(plan: Plan, note: Note, *, alone: bool) -> SelectorsResult:
    """Measure the state machine alone, then the designs, then a cluster, which is removed afterwards. alone: measure no
    cluster. plan.backlog: the highest number of waiting messages; 0: the default of each measurement."""
    began = time.monotonic()
    machine = selectors_alone.measure(Sizes().up_to(plan.backlog), note)
    designs = selectors_designs.measure(selectors_designs.Sizes().up_to(plan.backlog), note)
    cluster: ClusterResult | None = None
    if not alone:
        sizes = ClusterSizes()
        if plan.backlog:
            sizes = replace(sizes, messages=min(sizes.messages, max(plan.backlog, sizes.batch)))
        with tempfile.TemporaryDirectory(prefix="quorum-bench-") as directory:
            note(f"starting {plan.members} members")
            with LocalCluster(Path(directory), members=plan.members) as members:
                cluster = asyncio.run(_through(members, replace(plan, filter_enabled=True), sizes, note))
    return SelectorsResult(plan, machine, designs, cluster, time.monotonic() - began, os.getloadavg()[0])


async def _through(cluster: LocalCluster, plan: Plan, sizes: ClusterSizes, note: Note) -> ClusterResult:
    places = await prepare(plan, cluster.url)
    return await selectors_cluster.measure(
        plan, sizes, places, cluster.url, list(cluster.processes.pids), note
    )
