"""`quorum transactions list|resolve`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorum.cli.console import (
    CliError,
    JsonOption,
    TimeoutOption,
    UrlOption,
    YesOption,
    confirm,
    print_json,
    printable,
    served,
)

if TYPE_CHECKING:
    from quorum.client.admin.records import TransactionInfo

app = typer.Typer(
    help="Show transactions that are not finished, and end those that wait for a lost Raft group.",
    no_args_is_help=True,
)


@app.command("list")
def list_(
    group: Annotated[
        int, typer.Option("--group", "-g", min=0, help="only of this Raft group; 0: of all groups")
    ] = 0,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the transactions that are open, prepared, or committed but not finished in all groups.

    A prepared one is in doubt: its group waits for the decision of another group."""
    with served(url, timeout) as client:
        found = client.transactions(group)
    if as_json:
        print_json([_as_json(each) for each in found])
        return
    # Full width: a producer is copied from here, and the output may be written to a file.
    print(
        f"group  {'producer':<32}  {'number':>8}  {'state':<9}  {'for':>9}  {'messages':>9}  {'bytes':>13}  details"
    )
    for each in found:
        age_s = max(0.0, time.time() - each.since_ms / 1000)
        is_known = each.state != "committed"
        print(
            f"{each.group:>5}  {each.producer.hex():<32}  {each.number:>8}  {each.state:<9}  {age_s:>7,.0f} s"
            f"  {f'{each.messages:,}' if is_known else '':>9}  {f'{each.bytes:,}' if is_known else '':>13}"
            f"  {_details(each)}"
        )


@app.command()
def resolve(
    group: Annotated[
        int, typer.Argument(metavar="GROUP", min=1, help="the Raft group whose part is in doubt")
    ],
    producer: Annotated[str, typer.Argument(metavar="PRODUCER", help="as `transactions list` shows it")],
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="the transaction's number")],
    commit: Annotated[
        bool, typer.Option("--commit", help="commit this part if the deciding group cannot be asked")
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="roll this part back if the deciding group cannot be asked")
    ] = False,
    yes: YesOption = False,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """End the part of a transaction that is in doubt.

    The deciding group is asked first. If it answers, its answer counts; a transaction that it has not decided is
    rolled back for ever. --commit or --rollback counts only if that group has no leader or does not serve. Then the
    transaction may count in some groups and not in others."""
    if commit and rollback:
        raise CliError("--commit and --rollback exclude each other", 2)
    try:
        name = bytes.fromhex(producer)
    except ValueError as error:
        raise CliError(f"{producer!r} is no producer; wanted: hexadecimal digits", 2) from error
    outcome = "commit" if commit else "rollback" if rollback else ""
    if outcome and not yes:
        confirm(
            f"If the deciding group cannot be asked, the part of group {group} is ended by hand ({outcome}). If the "
            "deciding group has decided otherwise, the transaction counts in some groups and not in others, for ever. "
            "Go on?"
        )
    with served(url, timeout) as client:
        found = client.resolve_transaction(group, name, number, outcome)
    done = "committed" if found.committed else "rolled back"
    print(f"{done}, {'by hand' if found.by_hand else 'as the deciding group says'}")


def _details(found: TransactionInfo) -> str:
    names = ", ".join(printable(name) for name in found.queues)
    if found.state == "prepared":
        return f"waits for group {found.deciding_group}; {names}"
    if found.state == "committed":
        return "not finished in group " + ", ".join(map(str, found.unfinished_groups))
    return names


def _as_json(found: TransactionInfo) -> dict[str, Any]:
    return {**asdict(found), "producer": found.producer.hex()}
