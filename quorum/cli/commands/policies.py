"""`quorum policies list|set|delete`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from quorum.cli.commands.queues import shown_arguments
from quorum.cli.console import (
    JsonOption,
    TimeoutOption,
    UrlOption,
    YesOption,
    confirm,
    note_regular_expression,
    pairs,
    print_json,
    print_table,
    served,
    shown,
)

app = typer.Typer(
    help="Policies: arguments for every queue whose name matches a pattern.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="POLICY", help="the policy's name")]


@app.command("list")
def list_(url: UrlOption = None, timeout: TimeoutOption = None, as_json: JsonOption = False) -> None:
    """List all policies by name."""
    with served(url, timeout) as client:
        found = client.policies()
    if as_json:
        print_json([asdict(policy) for policy in found])
        return
    from rich.table import Table

    table = Table()
    for heading in ("policy", "pattern"):
        table.add_column(heading, overflow="fold")
    table.add_column("priority", justify="right", no_wrap=True)
    table.add_column("arguments", overflow="fold")
    for policy in found:
        table.add_row(
            shown(policy.name),
            shown(policy.pattern),
            str(policy.priority),
            shown_arguments(policy.arguments),
        )
    print_table(table)


@app.command("set")
def set_(
    policy: NameArgument,
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="matches whole queue names; '*' stands for any characters"),
    ],
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--argument", "-a", metavar="NAME=VALUE", help="x-max-length=1000 and the like; may be repeated"
        ),
    ] = None,
    priority: Annotated[int, typer.Option(help="the matching policy with the highest priority applies")] = 0,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Make or change a policy; ends when all queues are configured accordingly."""
    arguments = pairs(argument, "argument")
    note_regular_expression(pattern)
    with served(url, timeout) as client:
        changed = client.set_policy(policy, pattern, arguments, priority)
    print(f"{'set' if changed else 'is so already:'} {policy}")


@app.command()
def delete(
    policy: NameArgument, yes: YesOption = False, url: UrlOption = None, timeout: TimeoutOption = None
) -> None:
    """Delete a policy; ends when all queues are configured without it."""
    if not yes:
        confirm(f"Delete policy {policy}?")
    with served(url, timeout) as client:
        client.delete_policy(policy)
    print(f"deleted {policy}")
