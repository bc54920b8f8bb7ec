"""A result as a table for people and as one JSON object for programs."""

from __future__ import annotations

from rich.table import Table

from quorum.bench.plan import Result


def table(result: Result) -> Table:
    values = result.to_dict()
    plan = result.plan
    title = (
        f"bench {plan.mode}: {plan.members} members, {plan.body_bytes} bytes, batches of {plan.batch}, "
        f"window {plan.window} batches"
    )
    view = Table(title=title, show_header=False)
    view.add_column("what")
    view.add_column("value", justify="right")
    what = "confirmed" if plan.mode == "publish" else "settled"
    view.add_row(f"messages {what} a second", f"{values['messages_per_s']:,}")
    if plan.mode == "both":
        view.add_row("messages confirmed a second", f"{values['published_per_s']:,}")
    if values["p50_ms"] is not None:
        view.add_row("publish to confirm, p50", f"{values['p50_ms']} ms")
        view.add_row("publish to confirm, p99", f"{values['p99_ms']} ms")
    view.add_row("CPU of all members for 100,000 messages", f"{values['server_cpu_s_per_100k']} s")
    view.add_row("CPU of the load for 100,000 messages", f"{values['client_cpu_s_per_100k']} s")
    view.add_row("resident memory of the members", ", ".join(f"{size} MB" for size in values["resident_mb"]))
    if plan.filter_enabled:
        view.add_row("filters", f"five fields, {len(plan.selectors)} selectors, {plan.consumers} consumers")
    view.add_row("measured", f"{values['seconds']} s")
    return view
