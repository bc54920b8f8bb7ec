"""`quorum users list|add|delete` and `quorum permissions set|list`."""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict, replace
from getpass import GetPassWarning
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.cli.console import (
    CliError,
    JsonOption,
    TimeoutOption,
    UrlOption,
    YesOption,
    confirm,
    note,
    note_regular_expression,
    print_json,
    print_table,
    served,
    shown,
)

if TYPE_CHECKING:
    from quorum.client.admin.records import UserInfo

app = typer.Typer(help="Users who may log in.", no_args_is_help=True)
permissions = typer.Typer(help="What users may do with queues and exchanges.", no_args_is_help=True)

WITHOUT_PASSWORD = "certificate or token"
"""What a user without a password logs in with."""

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
    table.add_column("queues", justify="right", no_wrap=True)
    for user in found:
        cluster = "administers" if user.administers else "monitors" if user.monitors else ""
        patterns = [shown(each) for each in (user.configure, user.write, user.read)]
        log_in = "password" if user.has_password else WITHOUT_PASSWORD
        table.add_row(shown(user.name), cluster, *patterns, log_in, f"{user.queues:,}")
    print_table(table)


@app.command()
def add(
    user: UserArgument,
    administer: Annotated[
        bool | None,
        typer.Option("--administer/--no-administer", help="may do everything; not given: as it is"),
    ] = None,
    monitor: Annotated[
        bool | None,
        typer.Option("--monitor/--no-monitor", help="may see everything but messages; not given: as it is"),
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="read the password from stdin, instead of asking for it")
    ] = False,
    no_password: Annotated[
        bool,
        typer.Option(
            "--no-password", help="set no password: a new user logs in with a certificate or a token only"
        ),
    ] = False,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Make a user, or change its password and what it may do with the cluster. What is not named stays, and so do the
    permissions."""
    from quorum.client.admin.records import UserInfo
    from quorum.client.errors import PermissionRefused

    if no_password and password_stdin:
        raise CliError("--no-password and --password-stdin exclude each other")
    password = "" if no_password else _password(user, is_from_stdin=password_stdin)
    with served(url, timeout) as client:
        unknown = UserInfo(user, False, False, "", "", "", False)
        try:
            users = client.users()
        except PermissionRefused as error:
            raise PermissionRefused(
                f"setting user {user!r}: {error}", reason=error.reason, metadata=error.metadata
            ) from error
        known = next((each for each in users if each.name == user), unknown)
        made = replace(
            known,
            administers=known.administers if administer is None else administer,
            monitors=known.monitors if monitor is None else monitor,
            has_password=known.has_password or bool(password),
        )
        changed = client.set_user(user, password, administers=made.administers, monitors=made.monitors)
    _tell(made, changed)


def _password(user: str, *, is_from_stdin: bool) -> str:
    """The password that is given; never empty."""
    if is_from_stdin:
        password = sys.stdin.readline().rstrip("\n")
        if not password:
            raise CliError("no password on stdin: the first line is empty")
        return password
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", GetPassWarning)
            return str(
                typer.prompt(f"password of {user}", hide_input=True, confirmation_prompt=True, err=True)
            )
    except GetPassWarning as error:
        note("")  # ends the line of the question
        raise CliError(
            "there is no terminal to ask for the password; --password-stdin reads it from stdin"
        ) from error


def _tell(user: UserInfo, changed: bool) -> None:
    """Print what the user is now."""
    cluster = {"administers": user.administers, "monitors": user.monitors}
    rights = [word for word, has_it in cluster.items() if has_it]
    log_in = f"logs in with a {'password' if user.has_password else WITHOUT_PASSWORD}"
    patterns = _patterns(user.configure, user.write, user.read)
    told = ", ".join([*rights, log_in, "may do everything" if user.administers else patterns])
    print(f"{'set' if changed else 'is so already:'} {user.name}: {told}")


def _patterns(configure: str, write: str, read: str) -> str:
    found = {"configure": configure, "write": write, "read": read}
    return ", ".join(
        f"{right} {pattern!r}" if pattern else f"{right} nothing" for right, pattern in found.items()
    )


@app.command()
def delete(
    user: UserArgument, yes: YesOption = False, url: UrlOption = None, timeout: TimeoutOption = None
) -> None:
    """Delete a user, and end its sessions."""
    if not yes:
        confirm(f"Delete user {user} and end its sessions?")
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
    """Replace all three permissions of a user. Each is a pattern that matches whole names of queues and exchanges, '*'
    for any characters; without it there is none."""
    for pattern in (configure, write, read):
        note_regular_expression(pattern)
    with served(url, timeout) as client:
        changed = client.set_permissions(user, configure, write, read)
    print(f"{'set' if changed else 'is so already:'} {user}: {_patterns(configure, write, read)}")
