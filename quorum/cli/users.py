"""`quorum users list|add|delete` and `quorum permissions set|list`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from quorum.cli.console import (
    CliError,
    JsonOption,
    TimeoutOption,
    UrlOption,
    print_json,
    print_table,
    served,
)
from quorum.cli.queues import shown

app = typer.Typer(help="Users who may log in.", no_args_is_help=True)
permissions = typer.Typer(help="What users may do with queues and exchanges.", no_args_is_help=True)

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="the user's name")]


@app.command("list")
@permissions.command("list")
def list_(url: UrlOption = None, timeout: TimeoutOption = None, as_json: JsonOption = False) -> None:
    """List all users by name, with their permissions."""
    with served(url, timeout) as client:
        found = client.users()
    if as_json:
        print_json([asdict(user) for user in found])
        return
    from rich.table import Table

    table = Table()
    for heading in ("user", "cluster", "configure", "write", "read", "log-in"):
        table.add_column(heading, overflow="fold")
    for user in found:
        cluster = "administers" if user.administers else "monitors" if user.monitors else ""
        patterns = [shown(each) for each in (user.configure, user.write, user.read)]
        table.add_row(
            shown(user.name), cluster, *patterns, "password" if user.has_password else "certificate"
        )
    print_table(table)


@app.command()
def add(
    user: UserArgument,
    administer: Annotated[bool, typer.Option("--administer", help="may do everything")] = False,
    monitor: Annotated[bool, typer.Option("--monitor", help="may see everything but messages")] = False,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="read the password from stdin, instead of asking for it")
    ] = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="the user logs in with a certificate only")
    ] = False,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Make a user, or change its password and what it may do with the cluster. Its permissions stay."""
    if no_password and password_stdin:
        raise CliError("--no-password and --password-stdin exclude each other")
    password = ""
    if password_stdin:
        password = sys.stdin.readline().rstrip("\n")
    elif not no_password:
        password = typer.prompt(f"password of {user}", hide_input=True, confirmation_prompt=True)
    with served(url, timeout) as client:
        changed = client.set_user(user, password, administers=administer, monitors=monitor)
    print(f"{'set' if changed else 'is so already:'} {user}")


@app.command()
def delete(user: UserArgument, url: UrlOption = None, timeout: TimeoutOption = None) -> None:
    """Delete a user, and end its sessions."""
    with served(url, timeout) as client:
        client.delete_user(user)
    print(f"deleted {user}")


@permissions.command("set")
def set_(
    user: UserArgument,
    configure: Annotated[str, typer.Option(metavar="PATTERN", help="may declare and delete these")] = "",
    write: Annotated[str, typer.Option(metavar="PATTERN", help="may publish to these")] = "",
    read: Annotated[str, typer.Option(metavar="PATTERN", help="may consume, browse and purge these")] = "",
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Replace a user's permissions. Each is a pattern that matches whole names of queues and exchanges, '*' for any
    characters; without it there is none."""
    with served(url, timeout) as client:
        changed = client.set_permissions(user, configure, write, read)
    print(f"{'set' if changed else 'is so already:'} {user}")
