"""`quorum exchanges list|show|declare|delete` and `quorum bindings list|add|remove`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.cli.commands.queues import shown_arguments
from quorum.cli.console import (
    CliError,
    JsonOption,
    TimeoutOption,
    UrlOption,
    YesOption,
    confirm,
    pairs,
    print_json,
    print_table,
    served,
    shown,
)

if TYPE_CHECKING:
    from quorum.client.admin.records import BindingInfo

app = typer.Typer(help="Exchanges, which route messages to queues.", no_args_is_help=True)
bindings_app = typer.Typer(
    help="Bindings, which say what an exchange routes to a queue or another exchange.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="EXCHANGE", help="the exchange's name")]
SourceArgument = Annotated[str, typer.Argument(metavar="EXCHANGE", help="the exchange that routes")]
DestinationArgument = Annotated[
    str, typer.Argument(metavar="DESTINATION", help="the queue or exchange that gets the messages")
]
KeyOption = Annotated[
    str, typer.Option("--key", "--routing-key", "-k", help="routing key, or a pattern of a topic exchange")
]
ToExchangeOption = Annotated[
    bool, typer.Option("--to-exchange", help="DESTINATION is an exchange, not a queue")
]
SelectorOption = Annotated[
    str | None, typer.Option("--selector", "-s", help="JMS selector, of a selector exchange")
]
BindingArgumentOption = Annotated[
    list[str] | None,
    typer.Option("--argument", "-a", metavar="NAME=VALUE", help="value to compare, of a headers exchange"),
]


@app.command("list")
def list_(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="only names that begin with this")] = "",
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all exchanges by name."""
    with served(url, timeout) as client:
        found = client.exchanges(prefix)
    if as_json:
        print_json([asdict(exchange) for exchange in found])
        return
    from rich.table import Table

    table = Table()
    for heading in ("exchange", "type"):
        table.add_column(heading, overflow="fold")
    table.add_column("bindings", justify="right", no_wrap=True)
    table.add_column("arguments", overflow="fold")
    for exchange in found:
        table.add_row(
            shown(exchange.name),
            exchange.type,
            f"{exchange.bindings:,}",
            shown_arguments(exchange.arguments),
        )
    print_table(table)


@app.command()
def show(
    exchange: NameArgument, url: UrlOption = None, timeout: TimeoutOption = None, as_json: JsonOption = False
) -> None:
    """Show one exchange with the bindings from it and to it."""
    with served(url, timeout) as client:
        found, leaving, coming = client.describe_exchange(exchange)
    if as_json:
        print_json(
            {
                "exchange": asdict(found),
                "from": [asdict(each) for each in leaving],
                "to": [asdict(each) for each in coming],
            }
        )
        return
    from rich.table import Table

    table = Table(show_header=False)
    for name, value in [
        ("exchange", shown(found.name)),
        ("type", found.type),
        ("arguments", shown_arguments(found.arguments)),
        ("bindings", f"{len(leaving):,} from it, {len(coming):,} to it"),
    ]:
        table.add_row(name, value)
    print_table(table)
    if leaving or coming:
        _print_bindings([*leaving, *coming])


@app.command()
def declare(
    exchange: NameArgument,
    kind: Annotated[
        str, typer.Option("--type", "-t", help="direct, fanout, topic, headers or selector")
    ] = "direct",
    argument: Annotated[
        list[str] | None,
        typer.Option("--argument", "-a", metavar="NAME=VALUE", help="alternate-exchange=NAME"),
    ] = None,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Declare an exchange; no error if it exists with the same type and arguments."""
    arguments = pairs(argument, "argument")
    with served(url, timeout) as client:
        created = client.declare_exchange(exchange, kind, arguments)
    print(f"{'created' if created else 'exists with this type and these arguments:'} {exchange}")


@app.command()
def delete(
    exchange: NameArgument,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="only if no binding leads from the exchange")
    ] = False,
    yes: YesOption = False,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Delete an exchange and its bindings."""
    if not yes:
        confirm(f"Delete {exchange} and its bindings?")
    with served(url, timeout) as client:
        client.delete_exchange(exchange, if_unused=if_unused)
    print(f"deleted {exchange}")


# ---- bindings


@bindings_app.command("list")
def list_bindings(
    exchange: Annotated[str, typer.Argument(metavar="EXCHANGE", help="only bindings from this one")] = "",
    queue: Annotated[str, typer.Option("--queue", "-q", help="only bindings to this queue")] = "",
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List bindings in the order in which they were added."""
    with served(url, timeout) as client:
        found = client.bindings(exchange, queue=queue)
    if as_json:
        print_json([asdict(binding) for binding in found])
        return
    _print_bindings(found)


@bindings_app.command()
def add(
    exchange: SourceArgument,
    destination: DestinationArgument,
    key: KeyOption = "",
    selector: SelectorOption = None,
    argument: BindingArgumentOption = None,
    to_exchange: ToExchangeOption = False,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Add a binding; no error if it exists."""
    arguments = _arguments(argument, selector)
    to = "exchange" if to_exchange else "queue"
    with served(url, timeout) as client:
        is_new = client.bind(exchange, destination, key, arguments, to=to)
    print(f"{'bound' if is_new else 'is bound already:'} {destination} to {exchange}")


@bindings_app.command()
def remove(
    exchange: SourceArgument,
    destination: DestinationArgument,
    key: KeyOption = "",
    selector: SelectorOption = None,
    argument: BindingArgumentOption = None,
    to_exchange: ToExchangeOption = False,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Remove the binding that was added with the same options."""
    arguments = _arguments(argument, selector)
    to = "exchange" if to_exchange else "queue"
    with served(url, timeout) as client:
        client.unbind(exchange, destination, key, arguments, to=to)
    print(f"removed the binding of {destination} to {exchange}")


def _arguments(given: list[str] | None, selector: str | None) -> dict[str, object]:
    arguments: dict[str, object] = dict(pairs(given, "argument"))
    if selector is not None:
        if "x-selector" in arguments:
            raise CliError("--selector and --argument x-selector=... exclude each other")
        arguments["x-selector"] = selector
    return arguments


def _print_bindings(found: list[BindingInfo]) -> None:
    from rich.table import Table

    table = Table()
    for heading in ("from", "to", "routing key", "arguments"):
        table.add_column(heading, overflow="fold")
    for each in found:
        destination = each.destination if each.to == "queue" else f"exchange {each.destination}"
        table.add_row(
            shown(each.source),
            shown(destination),
            shown(each.routing_key),
            shown_arguments(each.arguments),
        )
    print_table(table)
