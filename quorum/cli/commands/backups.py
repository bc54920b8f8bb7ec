"""`quorum backup create|verify`, and `quorum cluster recover`: copies of a stopped member's data, and a new cluster
from one of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.cli.console import CliError, JsonOption, print_json
from quorum.counts import counted
from quorum.errors import naming

if TYPE_CHECKING:
    from quorum.node.offline.backup import Backup
    from quorum.node.offline.new_cluster import Found

app = typer.Typer(
    help="Back up the data of a stopped member; `quorum cluster recover` makes a new cluster of a backup.",
    no_args_is_help=True,
)


@app.command()
def create(
    data_dir: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="a member's data_dir; the member must not run")
    ],
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="a new directory")],
    as_json: JsonOption = False,
) -> None:
    """Check a stopped member's data, and copy it to a new directory."""
    from quorum.node.offline.backup import create_backup

    with naming(backup):
        made = create_backup(data_dir, backup)
    _show(made, backup, as_json)


@app.command()
def verify(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="a directory that `create` has made")],
    as_json: JsonOption = False,
) -> None:
    """Read every byte of a backup, and compare it with what was written. Status 1 if it differs."""
    from quorum.node.offline.backup import verify_backup

    _show(verify_backup(backup), backup, as_json)


def _show(found: Backup, directory: Path, as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
        return
    print(f"{directory}: {found.member} of cluster {found.cluster}, {found.made}")
    print(f"  files      {len(found.files):>12}    {found.size} bytes")
    print(f"  last LSN   {found.last_lsn:>12}")
    for group, index in sorted(found.last_entries.items()):
        print(f"  group {group:<4} {index:>12}    last entry")


def recover(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="a stopped member's data_dir, or a backup; it is only read"),
    ],
    data_dir: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="the new member's data_dir, a new directory")
    ],
    accepts_loss: Annotated[
        bool,
        typer.Option(
            "--i-accept-that-confirmed-messages-may-be-lost",
            help="without this option the command says what it has found, and makes nothing",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a new cluster of one member from what one member had, when a majority is lost for ever. Status 1 if
    nothing was made."""
    from quorum.node.offline.new_cluster import LossNotAccepted, new_cluster

    try:
        with naming(data_dir):
            done = new_cluster(source, data_dir, accepts_loss=accepts_loss)
    except LossNotAccepted as error:
        if as_json:
            print_json(asdict(error.found))
        else:
            _show_found(error.found)
        raise CliError(
            f"{error}; to make {data_dir} all the same, give --i-accept-that-confirmed-messages-may-be-lost",
            1,
        ) from error
    if as_json:
        print_json(asdict(done))
        return
    _show_found(done.found)
    print(f"made {done.directory}: {done.found.member} is the only member of the new cluster {done.cluster}")
    print(
        f'to start it, set data_dir = "{done.directory}" and cluster = "{done.cluster}" in its configuration'
    )


def _show_found(found: Found) -> None:
    print(f"{found.source}: {found.member} of cluster {found.cluster}")
    for each in found.groups:
        learners = f", learners {', '.join(each.learners)}" if each.learners else ""
        print(
            f"  group {each.group:<4} {each.last_entry:>12}    last entry, term {each.term}, "
            f"voters {', '.join(each.voters)}{learners}"
        )
    print(f"  queues     {found.queues:>12,}    {counted(found.messages, 'message')}")
    print(f"members that the new cluster drops: {', '.join(found.dropped) or 'none'}")
    if found.unknown_queues:
        print(
            f"queues whose declaration is lost: {found.unknown_queues}, "
            f"with {counted(found.unknown_messages, 'message')}, removed"
        )
    if found.ended_queues:
        print(f"queues that were deleted, and whose removal is lost: {', '.join(found.ended_queues)}")
    print(
        "what may be lost: everything that was confirmed, settled, declared or deleted without this member, after the "
        "entries above. Settled messages may be delivered again, and transactions over several groups may be in some "
        "of them only."
    )
