"""`quorum bench selectors`: what selectors cost on one machine alone, and through a cluster."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from quorum.bench import selectors_alone, selectors_cluster
from quorum.bench.plan import Plan
from quorum.bench.run import Note, prepare
from quorum.bench.selectors_alone import AloneResult, Sizes
from quorum.bench.selectors_cluster import ClusterResult, ClusterSizes
from quorum.cli.local_cluster import LocalCluster


@dataclass(frozen=True, slots=True)
class SelectorsResult:
    """cluster: None where only the machine alone was measured."""

    plan: Plan
    alone: AloneResult
    cluster: ClusterResult | None
    seconds: float
    load: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": "selectors",
            **self.alone.to_dict(),
            **(self.cluster.to_dict() if self.cluster is not None else {}),
            "members": self.plan.members if self.cluster is not None else 0,
            "body_bytes": self.plan.body_bytes,
            "total_s": round(self.seconds, 1),
            "load_average": round(self.load, 1),
        }


def table(result: SelectorsResult) -> Table:
    view = Table(title="bench selectors")
    for column in ("what", "of", "value", "evaluations"):
        view.add_column(column, justify="left" if column == "what" else "right")
    for kind, costs in result.alone.dispatch.items():
        for number, cost in costs.items():
            view.add_row(
                f"finding receivers ({kind})",
                f"{number:,} selectors",
                f"{cost.us:.1f} µs a message; in batches {cost.batch_us:.1f} µs",
                f"{cost.evaluations:.2f}; {cost.batch_evaluations:.2f} a message",
            )
        view.add_section()
    for name, attached in (
        ("attaching, unique strings", result.alone.unique),
        ("attaching, few values", result.alone.low_cardinality),
    ):
        for messages, each in attached.items():
            view.add_row(
                name,
                f"{messages:,} waiting",
                f"{each.ms:.1f} ms; {each.entries:,} entries, at most {each.longest_entry_ms:.1f} ms",
                f"{each.evaluations:,}",
            )
        view.add_section()
    alone = result.alone.to_dict()
    view.add_row("a message comes back", "", f"{alone['return_us']} µs", f"{alone['return_evaluations']:,}")
    view.add_row("memory of a message", "", f"{alone['bytes_per_message']} bytes")
    view.add_row("  and of its unique string", "", f"{alone['bytes_per_unique_string']} bytes")
    if result.cluster is not None:
        values = result.cluster.to_dict()
        view.add_section()
        view.add_row(
            "publish to delivery, cluster",
            f"{values['cluster_consumers']:,} selectors",
            f"p50 {values['cluster_p50_ms']} ms, p99 {values['cluster_p99_ms']} ms, "
            f"{values['cluster_delivered_per_s']:,} a second",
        )
        view.add_row(
            "attaching, cluster",
            f"{values['cluster_attach_messages']:,} waiting",
            f"first {values['cluster_attach_first_ms']} ms, last {values['cluster_attach_last_ms']} ms",
        )
        view.add_row(
            "publish p99 on another queue",
            "",
            f"{values['cluster_publish_p99_ms']} ms; before {values['cluster_publish_p99_before_ms']} ms",
        )
    view.caption = f"{result.seconds:.0f} s in all; load average of the machine {result.load:.1f}"
    return view


def run(plan: Plan, note: Note, *, alone: bool) -> SelectorsResult:
    """The machine alone, then a cluster of its own, which is taken away afterwards. plan.backlog: the most messages
    that wait; 0: as many as there are in the bench."""
    began = time.monotonic()
    machine = selectors_alone.measure(Sizes().up_to(plan.backlog), note)
    cluster: ClusterResult | None = None
    if not alone:
        sizes = ClusterSizes()
        if plan.backlog:
            sizes = replace(sizes, messages=min(sizes.messages, max(plan.backlog, sizes.batch)))
        with tempfile.TemporaryDirectory(prefix="quorum-bench-") as directory:
            note(f"starting {plan.members} members")
            with LocalCluster(Path(directory), members=plan.members) as members:
                cluster = asyncio.run(_through(members, replace(plan, filter_enabled=True), sizes, note))
    return SelectorsResult(plan, machine, cluster, time.monotonic() - began, os.getloadavg()[0])


async def _through(cluster: LocalCluster, plan: Plan, sizes: ClusterSizes, note: Note) -> ClusterResult:
    places = await prepare(plan, cluster.url)
    return await selectors_cluster.measure(plan, sizes, places, cluster.url, list(cluster.pids), note)
