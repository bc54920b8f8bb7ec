"""`quorum subscriptions list|delete`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.cli.commands.queues import plain_filter, selected
from quorum.cli.console import (
    CliError,
    JsonOption,
    Patience,
    TimeoutOption,
    UrlOption,
    default_url,
    output,
    print_json,
    print_table,
    shown,
    still_trying,
)
from quorum.counts import counted

if TYPE_CHECKING:
    from quorum.client.bulk.client import BulkClient

app = typer.Typer(
    help="Show and delete durable subscriptions of a queue, which Spark queries and others use to reserve messages.",
    no_args_is_help=True,
)

THEN = {"release": "released", "discard": "discarded", "keep": "kept"}

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="the queue's name")]
SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="the subscription's name")]


@contextmanager
def _client(url: str | None, timeout_s: float | None = None) -> Iterator[BulkClient]:
    from quorum.client.bulk.client import BulkClient
    from quorum.client.connection.endpoints import shown_url
    from quorum.client.errors import TlsError, UnavailableError

    chosen = url or default_url()
    patience = Patience(timeout_s)
    with (
        BulkClient(chosen, timeout_ms=patience.left_ms) as client,
        still_trying(f"{shown_url(chosen)} has not answered yet"),
    ):
        try:
            yield client
        except TlsError:
            raise
        except UnavailableError as error:
            raise patience.given_up(str(error)) from error


@app.command("list")
def list_(
    queue: QueueArgument,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the subscriptions of a queue: their progress, their outstanding messages, and their timeouts."""
    with _client(url, timeout) as client:
        found = client.subscriptions(queue)
        ready = client.queue_info(queue).ready
    if as_json:
        print_json([{**plain_filter(subscription), "ready": ready} for subscription in found])
        return
    from rich.table import Table

    table = Table(caption=f"ready in the queue: {counted(ready, 'message')}")
    table.add_column("subscription", overflow="fold")
    for heading in ("generation", "settled to", "reserved to", "outstanding", "timeout"):
        table.add_column(heading, justify="right")
    table.add_column("then what is outstanding is", overflow="fold")
    for subscription in found:
        table.add_row(
            shown(subscription.subscription),
            str(subscription.state.generation),
            f"{subscription.state.settled:,}",
            f"{subscription.state.last:,}",
            f"{subscription.state.outstanding:,}",
            f"{subscription.timeout_ms / 1000:,.0f} s",
            THEN[subscription.on_expiry],
        )
    console = output()
    print_table(table)
    for subscription in found:
        console.print(
            f"{shown(subscription.subscription)} selects {shown(selected(subscription.selector, subscription.filter))}"
        )


@app.command()
def delete(
    queue: QueueArgument,
    subscription: SubscriptionArgument,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Delete a subscription; its outstanding messages are returned to the queue."""
    with _client(url, timeout) as client:
        names = [each.subscription for each in client.subscriptions(queue)]
        if subscription not in names:
            raise CliError(
                f"queue {queue!r} has no subscription {subscription!r}; its subscriptions: {', '.join(names) or 'none'}"
            )
        client.delete_subscription(queue, subscription)
    print(f"deleted {subscription}")
