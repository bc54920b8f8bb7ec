"""`quorum cluster up|down|start|join|status`: a local cluster for development. members.py has those for any cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.cli.commands import members
from quorum.cli.console import (
    DEFAULT_DIRECTORY,
    CliError,
    JsonOption,
    Patience,
    TimeoutOption,
    UrlOption,
    closing,
    connect,
    default_url,
    note,
    output,
    print_json,
    print_table,
    require_linux,
    shown,
)
from quorum.counts import counted
from quorum.errors import ClusterError, naming

if TYPE_CHECKING:
    from quorum.client.admin.records import ClusterStatus, DiskInfo, GroupInfo, MemberProgress
    from quorum.local_cluster.cluster import LocalCluster

app = typer.Typer(
    help="Manage a cluster's members, or a local cluster of processes for development.", no_args_is_help=True
)
members.register(app)

DirectoryOption = Annotated[Path, typer.Option("--dir", help="directory of the cluster's files")]

COLOURS = (36, 33, 35, 32, 34, 31)
"""ANSI foreground colours of the members' prefixes, in order of name."""
WATCH_S = 0.2
DEFAULT_MEMBERS = 3


class Prefixer:
    """Writes members' lines to stdout, with the member's name in its own colour."""

    def __init__(self, names: tuple[str, ...]) -> None:
        is_coloured = ("NO_COLOR" not in os.environ) and (sys.stdout.isatty() or "FORCE_COLOR" in os.environ)
        width = max(len(name) for name in names)
        self._prefixes = {}
        for number, name in enumerate(names):
            plain = f"{name:<{width}} |"
            colour = COLOURS[number % len(COLOURS)]
            self._prefixes[name] = f"\x1b[{colour}m{plain}\x1b[0m" if is_coloured else plain
        self._lock = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        with self._lock:
            print(f"{self._prefixes[name]} {line}", flush=True)


@app.command()
def up(
    count: Annotated[
        int | None,
        typer.Option(
            "--members", min=1, max=15, help="number of members; 3, or the number that the directory holds"
        ),
    ] = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65520, help="clients' port of the first member; the others follow"),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65520,
            help="port of the first member for the page, JSON and metrics over HTTP; the others follow",
        ),
    ] = None,
    secured: Annotated[
        bool,
        typer.Option("--secured", help="a new cluster has TLS on all ports, and a user who administers it"),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="end when all members serve; they keep running")
    ] = False,
) -> None:
    """Start members and show their output until Ctrl-C; with --detach, leave them running."""
    require_linux()
    from quorum.local_cluster.cluster import LocalCluster
    from quorum.local_cluster.cluster_file import STATE_FILE

    prefixer: Prefixer | None = None

    def sink(name: str, line: str) -> None:
        assert prefixer is not None
        prefixer(name, line)

    if count is None:
        has_one = (directory / STATE_FILE).exists()
        count = len(LocalCluster.open(directory).members) if has_one else DEFAULT_MEMBERS
    ports, http_ports = (
        None if first is None else [first + number for number in range(count)] for first in (port, http_port)
    )
    with naming(directory):
        cluster = LocalCluster(
            directory,
            count,
            client_ports=ports,
            http_ports=http_ports,
            sink=None if detach else sink,
            secured=secured,
        )
    if cluster.running():
        raise ClusterError(
            f"members of {directory} are running already ({', '.join(cluster.running())}); "
            f"`quorum cluster down --dir {directory}` stops them, "
            f"`quorum cluster start NODE --dir {directory}` starts one that is down"
        )
    if elsewhere := cluster.files.started_elsewhere():
        raise ClusterError(_not_ours(elsewhere))
    for option, wanted, used in (
        ("--port", ports, [member.client for member in cluster.members]),
        ("--http-port", http_ports, [member.http for member in cluster.members]),
    ):
        if wanted is not None and [each.rpartition(":")[2] for each in used] != list(map(str, wanted)):
            present = ", ".join(each for each in used if each) or "none"
            raise ClusterError(
                f"{directory} holds a cluster with other ports ({present}); omit {option}, or make a new cluster in "
                "another directory (--dir)"
            )
    prefixer = Prefixer(cluster.names)
    _run(cluster, detach)


def _run(cluster: LocalCluster, detach: bool) -> None:
    def on_signal(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # also if the shell ignores them
        signal.signal(number, on_signal)
    try:
        cluster.start()
        # in the foreground the members' output shows why they do not serve yet
        outside = cluster.wait_ready(on_long_wait=note if detach else None)
        cluster.stop(list(outside))
        if cluster.files.is_secured:
            cluster.files.make_administrator()
    except BaseException:
        cluster.stop()
        raise
    for name, standing in outside.items():
        print(_no_member(cluster, name, standing), flush=True)
    names = [name for name in cluster.names if name not in outside]
    count = len(names)
    if count == 2:
        note("with 2 members, the cluster works only while both run; 3 members survive the loss of one")
    url = cluster.url_of(*names, logs_in=False)
    serving = f"{counted(count, 'member')} {'serves' if count == 1 else 'serve'}: {url}"
    for line in _how_to_connect(cluster, names):
        print(line, flush=True)
    if detach:
        print(serving, flush=True)
        print(f"stop them with: quorum cluster down --dir {cluster.files.directory}", flush=True)
        return
    try:
        print(serving, flush=True)  # after this line its reader may stop this process
        status = _watch(cluster, count)
    except KeyboardInterrupt:
        status = 0
        print("stopping", flush=True)
    finally:
        killed = cluster.stop()
    if killed:
        raise ClusterError(f"{', '.join(killed)} did not stop and had to be killed")
    raise typer.Exit(status)


def _no_member(cluster: LocalCluster, name: str, standing: str) -> str:
    folder = cluster.member(name).folder
    return f"{name} is no member of the cluster ({standing}) and was stopped; its files are in {folder}"


def _pages(cluster: LocalCluster, names: Sequence[str]) -> list[str]:
    scheme = "https" if cluster.files.is_secured else "http"
    return [f"{scheme}://{member.http}/" for member in map(cluster.member, names) if member.http]


def _how_to_connect(cluster: LocalCluster, names: Sequence[str]) -> Iterator[str]:
    """Lines for a person: the pages of these members, and what a client of a secured cluster sets in its shell."""
    if pages := _pages(cluster, names):
        yield f"pages of the members: {' '.join(pages)}"
    if cluster.files.is_secured:
        yield "to connect, paste into a shell:"
        yield f"export QUORUM_URL={quote(cluster.url_of(*names, logs_in=False))}"
        yield f"export QUORUM_USER={quote(cluster.files.administrator[0])}"
        yield f'export QUORUM_PASSWORD="$(cut -d: -f2- {quote(str(cluster.files.administrator_file))})"'


def _watch(cluster: LocalCluster, count: int) -> int:
    """Wait until every member has ended by itself or by `cluster down`. 0 if all ended with status 0."""
    told: dict[str, int] = {}
    while len(told) < count:
        for name, status in cluster.processes.ended().items():
            if name not in told:
                told[name] = status
                print(f"{name} has ended with status {status}", flush=True)
        time.sleep(WATCH_S)
    return 0 if not any(told.values()) else 1


@app.command()
def down(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    purge: Annotated[bool, typer.Option("--purge", help="remove the members' data too")] = False,
) -> None:
    """Stop the members; their data stays. Status 1 if a member still runs that `quorum cluster` did not start; then
    nothing is removed."""
    from quorum.local_cluster.cluster import LocalCluster

    cluster = LocalCluster.open(directory)
    running = len(cluster.running())
    killed = cluster.stop()
    elsewhere = cluster.files.started_elsewhere()
    purge_now = purge and not elsewhere
    told = [f"stopped {counted(running, 'member')}"]
    if purge_now:
        kept = cluster.files.data_elsewhere()
        cluster.files.remove()
        told += [f"removed {directory}"]
        told += [f"kept {data}, the data of {name}" for name, data in kept.items()]
    print("; ".join(told), flush=True)
    if elsewhere:
        raise CliError(_not_ours(elsewhere) + (f"; {directory} is kept" if purge else ""), 1)
    if killed:
        raise CliError(f"{', '.join(killed)} did not stop and had to be killed", 1)


@app.command()
def start(
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="members that are down")],
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Start members of a local cluster that are down; they keep running after this command. A node that has never been
    a member is left waiting for `quorum cluster add`. One that was removed is stopped again; status 1."""
    from quorum.local_cluster.cluster import LocalCluster

    cluster = LocalCluster.open(directory)
    new_nodes = [name for name in names if not cluster.files.was_member(name)]
    cluster.start(names)
    outside = cluster.wait_ready(names, new_nodes=new_nodes, on_long_wait=note)
    removed = {name: standing for name, standing in outside.items() if name not in new_nodes}
    cluster.stop(list(removed))
    for name in names:
        if name in removed:
            continue
        if name in outside:
            client = cluster.member(name).client
            print(f"{name} runs, and waits for `quorum cluster add {client}` or `quorum cluster replace`")
        else:
            print(f"{name} serves: {cluster.url_of(name, logs_in=False)}")
    if removed:
        lines = [_no_member(cluster, name, standing) for name, standing in removed.items()]
        raise CliError("\n".join([*lines, "`quorum cluster join` starts a new node"]), 1)


@app.command("stop")
def stop_members(
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="members that run")],
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Stop members of a local cluster, and return when their processes have ended."""
    from quorum.local_cluster.cluster import LocalCluster

    cluster = LocalCluster.open(directory)
    down = [name for name in names if cluster.process(name) is None]
    if elsewhere := tuple(name for name in cluster.files.started_elsewhere() if name in down):
        raise CliError(_not_ours(elsewhere), 1)
    if down:
        raise CliError(f"{', '.join(down)} {'does' if len(down) == 1 else 'do'} not run", 1)
    killed = cluster.stop(names)
    for name in names:
        print(f"stopped {name}")
    if killed:
        raise CliError(f"{', '.join(killed)} did not stop and had to be killed", 1)


@app.command()
def join(directory: DirectoryOption = DEFAULT_DIRECTORY) -> None:
    """Start one more node of a local cluster and add it as a member; it keeps running after this command."""
    from quorum.local_cluster.cluster import LocalCluster

    cluster = LocalCluster.open(directory)
    with naming(directory):
        new = cluster.files.prepare()
    try:
        cluster.start([new.name])
        cluster.wait_standing(new.name, "waiting", on_long_wait=note)
    except BaseException:
        cluster.stop([new.name])
        cluster.files.forget(new.name)
        raise
    try:
        members.add(new.client, url=cluster.url)
    except BaseException:
        # it may be a voter already, and without it the others may have no majority
        note(
            f"{new.name} keeps running, because it may be a member by now; `quorum cluster status` shows that, "
            f"`quorum cluster remove {new.name}` removes it"
        )
        raise
    for page in _pages(cluster, [new.name]):
        print(f"page of {new.name}: {page}")
    print(f"{new.name} serves: {cluster.url_of(new.name, logs_in=False)}")


@app.command()
def status(
    url: UrlOption = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="a local cluster's directory")] = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show members and Raft groups as the answering node sees them. A member's answer is preferred to one of a node
    that is not a member (any more). Status 1 if a group has no leader, or if the answering node cannot reach the leader
    or a majority of the voters."""
    if directory is not None:
        from quorum.local_cluster.cluster_file import read_url

        if url is not None:
            raise CliError("--url and --dir both name a cluster; give one of them")
        url = read_url(directory)
    patience = Patience(timeout)
    seen = members.ask_any(url or default_url(), patience)
    if seen is None:
        # waits for a member, and reports why none answers
        with closing(connect(url, patience), patience) as client:
            seen = client.cluster_status()
    if as_json:
        print_json(asdict(seen))
    else:
        _tables(seen)
    raise typer.Exit(0 if _is_well(seen) else 1)


def _is_well(seen: ClusterStatus) -> bool:
    """Whether every group can work, as far as the answering node knows."""
    return (
        seen.standing != "removed"
        and len(seen.groups) > 0
        and all(
            group.leader and _reaches_leader(seen, group) and _has_majority(seen, group)
            for group in seen.groups
        )
    )


def _not_ours(names: tuple[str, ...]) -> str:
    one = len(names) == 1
    return (
        f"{', '.join(names)} still {'runs' if one else 'run'} and {'was' if one else 'were'} not started by "
        f"quorum cluster; stop {'it' if one else 'them'} by SIGTERM, or by Ctrl-C in the terminal"
    )


def _disk(disk: DiskInfo | None) -> tuple[str, str]:
    """Free space and sync time, for people."""
    if disk is None:
        return "?", "?"
    free, sync = f"{disk.free_bytes / 1e9:.1f} GB free", f"{disk.sync_p99_us / 1000:.1f} ms"
    if disk.full:
        free = f"[red]FULL[/red], {free}"
    elif disk.low:
        free = f"[red]LOW[/red], {free}: publishes are refused"
    return free, f"[red]{sync}, slow[/red]" if disk.slow else sync


def _has_majority(seen: ClusterStatus, group: GroupInfo) -> bool:
    """Whether the answering node reaches a majority of the voters."""
    lost = {each.id if each.replaces else each.name for each in seen.members if not each.reachable}
    return not group.members or 2 * len(lost.intersection(group.members)) < len(group.members)


def _reaches_leader(seen: ClusterStatus, group: GroupInfo) -> bool:
    """Whether the answering node reaches the leader that it knows. Just after a failure it names the last one."""
    # while one member replaces another, both have the name
    named = [each.reachable for each in seen.members if each.name == group.leader]
    return not named or any(named)


def _leader(seen: ClusterStatus, group: GroupInfo) -> str:
    """The leader of a group, and what is wrong with it, for people."""
    found = [group.leader or "[red]none[/red]"]
    if not _reaches_leader(seen, group):
        found.append("[red](not reachable)[/red]")
    if not _has_majority(seen, group):
        found.append("[red](no majority)[/red]")
    return " ".join(found)


def _condition(group: GroupInfo) -> str:
    """The condition of the answering node's own data of a group, for people."""
    found = []
    if group.disputed:
        found.append(f"[red]not served: {shown(group.disputed)}[/red]")
    if group.quarantined:
        found.append("[red]quarantined[/red]")
    if group.unreadable:
        found.append(f"[red]{group.unreadable:,} unreadable[/red]")
    if group.fetching:
        found.append(f"{group.fetching:,} to fetch")
    if group.repaired:
        found.append(f"{group.repaired:,} repaired")
    return ", ".join(found) or "good"


def _behind(seen: ClusterStatus) -> Iterator[str]:
    """How far members are behind the answering node, in the groups that it leads."""
    for group in seen.groups:
        far = [
            _how_far(each, group.last_index - each.match_index)
            for each in group.progress
            if each.match_index < group.last_index
        ]
        if far:
            yield f"{_name(group)}: {', '.join(far)}"


def _how_far(member: MemberProgress, entries: int) -> str:
    """entries: that the leader has and the member does not, as far as the leader knows."""
    if member.match_index:
        lost = "" if member.reachable else " and cannot be reached"
        return f"{member.name} is {counted(entries, 'entry', 'entries')} behind{lost}"
    if not member.reachable:
        return f"{member.name} cannot be reached, so how far it is behind is not known"
    return f"how far {member.name} is behind is not known yet"


def _name(group: GroupInfo) -> str:
    return f"group {group.group}" if group.group else "system group"


def _versions(seen: ClusterStatus) -> str:
    """What an operator has to know about machine versions; empty if there is nothing to do."""
    if seen.standing == "meeting":
        return ""  # members that have not met do not know each other's version
    needed = max((group.version for group in seen.groups), default=0)
    too_old = [each.name for each in seen.members if 0 < each.known_version < needed]
    if too_old:
        return f"{', '.join(too_old)}: too old for machine version {needed}; start a newer release there"
    used = min((group.version for group in seen.groups), default=0)
    newest = max((each.known_version for each in seen.members), default=0)
    behind = [each.name for each in seen.members if each.known_version < newest]
    if newest <= used:
        return ""
    know = "knows" if len(behind) == 1 else "know"
    reason = f"until {', '.join(behind)} {know} it" if behind else "and is about to switch"
    return f"the cluster uses machine version {used} of {newest}, {reason}"


def _tables(seen: ClusterStatus) -> None:
    from rich.table import Table

    console = output()
    standing = "" if seen.standing in ("", "member") else f" ({seen.standing})"
    table = Table(title=f"as {seen.answering_node}{standing} sees it")
    for heading in ("member", "clients", "reachable", "knows", "disk", "sync p99"):
        table.add_column(heading, overflow="fold")
    for each in seen.members:
        reachable = "yes" if each.reachable else "[red]no[/red]"
        reachable += ", drained" if each.drained else ""
        reachable += ", joining" if each.joining else ""
        name = f"{each.id} for {each.replaces}" if each.replaces else each.name
        disk, sync = _disk(each.disk)
        table.add_row(name, shown(each.client_address), reachable, str(each.known_version or "?"), disk, sync)
    print_table(table)
    if seen.standing == "meeting":
        away = [each.name for each in seen.members if not each.reachable]
        console.print(
            "the members of a new cluster have not all met yet; it serves when they have"
            + (f" (not reachable: {', '.join(away)})" if away else ""),
            highlight=False,
        )
    if seen.standing == "removed":
        console.print(
            f"[red]{seen.answering_node} is not a member of the cluster any more[/red]; ask another one (--url)",
            highlight=False,
        )
    own = f"data of {seen.answering_node}"
    groups = Table()
    for heading in ("group", "leader", "term", "committed", "applied", "version", "members", own):
        groups.add_column(heading, no_wrap=heading not in ("leader", "members", own))
    for group in seen.groups:
        leader = _leader(seen, group)
        name = "system" if group.group == 0 else str(group.group)
        voters = " ".join(group.members)
        learners = f" (learning: {' '.join(group.learners)})" if group.learners else ""
        row = (
            str(group.term),
            str(group.commit_index),
            str(group.applied_index),
            str(group.version),
            voters + learners,
        )
        groups.add_row(name, leader, *row, _condition(group))
    print_table(groups)
    for behind in _behind(seen):
        console.print(behind, highlight=False)
    if versions := _versions(seen):
        console.print(versions)
    if seen.skipped_entries:
        console.print(f"{seen.answering_node} leaves out the entries {', '.join(seen.skipped_entries)}")
    times = seen.lease_times
    if times is not None and not times.settled:
        console.print(f"the change to lease_ms {times.lease_ms} is under way: not every member uses it yet")
    console.print(f"{seen.answering_node} has {seen.resident_bytes / 1e6:.0f} MB resident")
