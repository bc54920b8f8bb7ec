"""`quorum queues list|show|declare|delete|purge|redrive`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorum.cli.console import (
    JsonOption,
    Patience,
    TimeoutOption,
    UrlOption,
    YesOption,
    confirm,
    pairs,
    print_json,
    print_table,
    printable,
    served,
    shown,
)
from quorum.counts import counted

if TYPE_CHECKING:
    from quorum.client.admin.records import ConsumerInfo, QueueInfo, QueueTotals, StorageInfo
    from quorum.client.bulk.records import SubscriptionInfo
    from quorum.redrive import Redriven

OF_GETS = "(get)"
"""Shown in place of a tag: what holds the messages that a client has got without a consumer."""

app = typer.Typer(help="Queues.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="the queue's name")]


@app.command("list")
def list_(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="only names that begin with this")] = "",
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all queues by name. If a queue has delayed or dead messages, their number is there in place of the total."""
    with served(url, timeout) as client:
        found = client.queues(prefix)
    if as_json:
        print_json([asdict(queue) for queue in found])
    else:
        print_list(found)


def print_list(found: list[QueueInfo]) -> None:
    """Print a table of queues."""
    from rich.table import Table

    table = Table()
    for heading in ("queue", "group", "leader"):
        table.add_column(heading, overflow="fold")
    counts = _counts(found)
    for heading in counts:
        table.add_column(heading, justify="right", no_wrap=True)
    for index, queue in enumerate(found):
        own = (f"{column[index]:,}" for column in counts.values())
        table.add_row(shown(queue.name), str(queue.group), queue.leader or "none", *own)
    print_table(table)


@app.command()
def show(
    queue: NameArgument, url: UrlOption = None, timeout: TimeoutOption = None, as_json: JsonOption = False
) -> None:
    """Show one queue and its consumers."""
    with served(url, timeout) as client:
        found = client.describe(queue)
    if as_json:
        print_json(
            {
                "queue": asdict(found.queue),
                "consumers": [plain_filter(each) for each in found.consumers],
                "storage": asdict(found.storage),
            }
        )
        return
    from rich.table import Table

    table = Table(show_header=False)
    info = found.queue
    for name, value in [
        ("queue", shown(info.name)),
        ("id", str(info.id)),
        ("group", str(info.group)),
        ("leader", info.leader or "none"),
        *([("owner", shown(info.owner))] if info.owner else []),
        ("arguments", shown_arguments(info.arguments)),
        ("policy", shown(info.policy) if info.policy else "none"),
        ("in effect", shown_arguments(info.effective_arguments)),
        ("ready", f"{info.ready:,} ({info.ready_bytes:,} bytes)"),
        *_priorities(info),
        ("checked out", f"{info.checked_out:,}"),
        *([("delayed", f"{info.delayed:,}")] if info.delayed else []),
        *_dead(info),
        *_message_groups(info),
        ("total", f"{info.total:,}"),
        ("sequences", f"{info.first_sequence} to before {info.next_sequence}"),
        *_totals(info.totals),
        *_places(found.storage),
    ]:
        table.add_row(name, value)
    print_table(table)
    if found.consumers:
        consumers = Table("consumer", "node", "selects", "priority", "state", "credit", "checked out")
        for each in found.consumers:
            row = (
                shown(each.consumer_tag) or OF_GETS,
                each.node,
                shown(selected(each.selector, each.filter)),
                str(each.priority),
                "timed out" if each.timed_out else "active" if each.active else "waiting",
                str(each.credit),
                f"{each.checked_out:,}",
            )
            consumers.add_row(*row)
        print_table(consumers)


@app.command()
def declare(
    queue: NameArgument,
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--argument", "-a", metavar="NAME=VALUE", help="x-max-length=1000 and the like; may be repeated"
        ),
    ] = None,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Declare a queue; no error if it exists with the same arguments."""
    arguments = pairs(argument, "argument")
    with served(url, timeout) as client:
        created = client.declare(queue, arguments)
    print(f"{'created' if created else 'exists with these arguments:'} {queue}")


@app.command()
def delete(
    queue: NameArgument, yes: YesOption = False, url: UrlOption = None, timeout: TimeoutOption = None
) -> None:
    """Delete a queue and its messages."""
    patience = Patience(timeout)
    with served(url, patience) as client:
        if not yes:
            count = client.describe(queue).queue.total
            with patience.paused():
                confirm(f"Delete {queue} with {counted(count, 'message')}?")
        count = client.delete(queue)
    print(f"deleted {queue} and {counted(count, 'message')}")


@app.command()
def purge(
    queue: NameArgument,
    dead: Annotated[
        bool, typer.Option("--dead", help="only those that wait for a dead-letter target; all others stay")
    ] = False,
    yes: YesOption = False,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Remove the messages that are ready, delayed, or wait for a dead-letter target; checked-out messages stay."""
    patience = Patience(timeout)
    with served(url, patience) as client:
        if not yes:
            found = client.describe(queue).queue
            count = found.dead if dead else found.ready + found.delayed + found.dead
            with patience.paused():
                confirm(f"Remove {counted(count, 'message')} from {queue}?")
        count = client.purge(queue, dead_only=dead)
    print(f"purged {counted(count, 'message')} from {queue}")


@app.command()
def redrive(
    queue: NameArgument,
    selector: Annotated[
        str | None, typer.Option("--selector", "-s", help="only messages that match this JMS selector")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="highest number of messages, with those that stay")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="QUEUE", help="only messages that died in this queue")
    ] = None,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the messages of a dead-letter queue back to the queues where they died."""
    with served(url, Patience(timeout, is_for_each_call=True)) as client:
        found = client.redrive(queue, selector, limit=limit, only=only)
    show_redriven(queue, found, as_json=as_json)


def _counts(found: list[QueueInfo]) -> dict[str, list[int]]:
    """The columns of numbers in a list of queues. A terminal of 80 characters has no room for all."""
    rare = {"delayed": [queue.delayed for queue in found], "dead": [queue.dead for queue in found]}
    middle = {heading: column for heading, column in rare.items() if any(column)}
    return {
        "ready": [queue.ready for queue in found],
        "checked out": [queue.checked_out for queue in found],
        **(middle or {"total": [queue.total for queue in found]}),
        "consumers": [queue.consumers for queue in found],
    }


def show_redriven(queue: str, found: Redriven, *, as_json: bool) -> None:
    """Print what a redrive has done. Exits with 1 if messages stay or are in doubt."""
    if as_json:
        print_json(asdict(found))
    else:
        for name, count in sorted(found.moved.items()):
            print(f"moved {counted(count, 'message')} to {printable(name)}")
        for reason, count in sorted(found.left.items()):
            print(f"left {counted(count, 'message')}: {printable(reason)}")
        for name, count in sorted(found.doubtful.items()):
            print(f"in doubt: {counted(count, 'message')}, in {printable(name)}, {printable(queue)} or both")
        if not found.is_complete:
            print(
                "stopped early: too many messages stay, or the queue was deleted meanwhile; if too many stay, choose "
                "some with --selector, or take them out of the queue"
            )
        if not (found.moved or found.left or found.doubtful):
            print("nothing to move")
    if found.left or found.doubtful or not found.is_complete:
        raise typer.Exit(1)


def selected(selector: str, encoded: bytes) -> str:
    """The selector or filter of a consumer or subscription, for people."""
    from quorum_selectors import canonical, unparse

    return selector or (unparse.shown(canonical.decode(encoded)) if encoded else "everything")


def plain_filter(record: ConsumerInfo | SubscriptionInfo) -> dict[str, Any]:
    """The record for JSON. `selects` replaces the bytes: a selector's text, or a property filter's if `selector` is
    empty."""
    fields = asdict(record)
    fields["selects"] = selected(record.selector, fields.pop("filter"))
    return fields


def _totals(totals: QueueTotals) -> list[tuple[str, str]]:
    """The messages since the queue was declared."""
    left = {
        "settled": totals.settled,
        "expired": totals.expired,
        "rejected": totals.rejected,
        "above the delivery limit": totals.delivery_limit,
        "above the length limit": totals.maxlen,
        "purged": totals.purged,
    }
    return [
        ("published", f"{totals.published:,}"),
        ("left", ", ".join(f"{count:,} {cause}" for cause, count in left.items())),
        ("returned", f"{totals.returned:,}, {totals.redelivered:,} of them redelivered"),
        *([("dead-lettered", f"{totals.dead_lettered:,}")] if totals.dead_lettered else []),
    ]


def _places(storage: StorageInfo) -> list[tuple[str, str]]:
    """Storage of the messages on the answering node."""
    states = (
        f"{storage.alpha:,} alpha, {storage.beta:,} beta, {storage.gamma:,} gamma, {storage.delta:,} delta"
    )
    blocks = f"{storage.warm_blocks:,} in memory ({storage.warm_bytes:,} bytes), {storage.cold_blocks:,} on disk only"
    return [("messages here", states), ("blocks here", blocks)]


def _priorities(info: QueueInfo) -> list[tuple[str, str]]:
    """The ready messages of a queue with priorities."""
    counts = [f"{priority}: {count:,}" for priority, count in info.ready_by_priority.items()]
    return [("ready by priority", ", ".join(counts))] if counts else []


def _message_groups(info: QueueInfo) -> list[tuple[str, str]]:
    """The held groups of a queue with message groups."""
    has_groups = info.arguments.get("x-message-groups") is True
    return [("message groups held", f"{info.held_groups:,}")] if has_groups else []


def _dead(info: QueueInfo) -> list[tuple[str, str]]:
    """The messages that wait for the dead-letter target."""
    if not info.dead:
        return []
    problem = f": {shown(info.dead_letter_problem)}" if info.dead_letter_problem else ""
    return [("dead, waiting for their target", f"{info.dead:,}{problem}")]


def shown_arguments(arguments: Mapping[str, object]) -> str:
    return shown(" ".join(f"{name}={_value(value)}" for name, value in arguments.items()))


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
