"""`quorum cluster add|remove|replace|drain|undrain|transfer|rebalance|lease-times`: members, leaders and lease
times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.addresses import host_port
from quorum.cli.console import (
    WHERE_TO_LOOK,
    CliError,
    JsonOption,
    Patience,
    TimeoutOption,
    UrlOption,
    closing,
    connect,
    default_url,
    print_json,
    without_leader,
)

if TYPE_CHECKING:
    from quorum.client.admin.records import ClusterStatus, LeaseTimes, MemberInfo
    from quorum.client.connection.endpoints import Service
    from quorum.sync import Client

WAIT_S = 600
"""Default wait for the groups, in seconds; long, because a new member is fed the whole log."""
POLL_S = 0.2
ASK_LIMIT_S = 2.0
MEMBERS = ("member", "drained")
"""Standings of nodes that know the cluster's present state."""

NameArgument = Annotated[str, typer.Argument(metavar="NODE", help="the member's name")]
AddressArgument = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS", help="the new node's client address, host:port; it runs with join = true"
    ),
]
WaitOption = Annotated[
    int,
    typer.Option("--wait", min=0, help="seconds to wait until all groups have done it; 0: do not wait"),
]


def add(
    address: AddressArgument, url: UrlOption = None, timeout: TimeoutOption = None, wait: WaitOption = WAIT_S
) -> None:
    """Add a running node as a member: it is fed all data, then votes."""
    _join(address, None, url, wait, Patience(timeout))


def replace(
    name: NameArgument,
    address: AddressArgument,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    wait: WaitOption = WAIT_S,
) -> None:
    """Put a running node of the same name in the place of a member that has lost its data directory."""
    _join(address, name, url, wait, Patience(timeout))


def _join(address: str, replaced: str | None, url: str | None, wait_s: int, patience: Patience) -> None:
    new = _ask_new_node(url, address, patience)
    if replaced is not None and new.name != replaced:
        raise CliError(
            f"the node at {address} is called {new.name!r}, not {replaced!r}; a node can replace only a member of "
            f"its own name. Otherwise: quorum cluster add {address}, then quorum cluster remove {replaced}"
        )
    with _administer(url, patience) as client:
        client.add_member(new, replace=replaced is not None)

        def has_joined(seen: ClusterStatus) -> bool:
            joined = {each.id for each in seen.members if not each.joining}
            names = sorted(each.id if each.replaces else each.name for each in seen.members)
            return new.id in joined and all(
                list(group.members) == names and not group.learners and group.settled for group in seen.groups
            )

        _await(client, patience, wait_s, has_joined, f"{new.name} is a voter of every group", _progress)


def ask(service: Service, address: str, limit_s: float = ASK_LIMIT_S) -> ClusterStatus | None:
    """The cluster's status from one node of a service; None if it does not answer. The call uses no session, because
    a drained node, or one that is not a member, opens none."""
    from quorum.client.errors import QuorumError

    try:
        return _ask(service, address, limit_s)
    except QuorumError:
        return None


def _ask(service: Service, address: str, limit_s: float) -> ClusterStatus:
    """The same; QuorumError if it does not answer, or refuses to."""
    import grpc

    from quorum.client.admin.records import ClusterStatus
    from quorum.client.errors import from_rpc_error
    from quorum.v1 import admin_pb2, admin_pb2_grpc

    with service.open_blocking_channel(address) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        try:
            return ClusterStatus.of(stub.ClusterStatus(admin_pb2.ClusterStatusRequest(), timeout=limit_s))
        except grpc.RpcError as problem:
            raise from_rpc_error(problem, f"asking the node at {address}") from problem


def _asked(service: Service, patience: Patience) -> Iterator[tuple[str, ClusterStatus]]:
    """The addresses of the nodes that answer, one after the other, and what each says. Silent nodes take at most half
    of the time."""
    limit_s = min(ASK_LIMIT_S, patience.left_s() / 2 / len(service.endpoints))
    for address in service.endpoints:
        seen = ask(service, address, limit_s)
        if seen is not None:
            yield address, seen


def ask_any(url: str, patience: Patience) -> ClusterStatus | None:
    """The status from the first of these nodes that answers as a member. If no member answers: from another node, such
    as one that was removed and does not know it."""
    from quorum.client.connection.endpoints import parse_url

    other: ClusterStatus | None = None
    for _, seen in _asked(parse_url(url), patience):
        if seen.standing in MEMBERS:
            return seen
        other = other or seen
    return other


@contextmanager
def _administer(url: str | None, patience: Patience) -> Iterator[Client]:
    """A client for the calls of administration. A drained member serves no sessions; if no other member answers, the
    commands go to it without one."""
    from quorum.client.connection.endpoints import parse_url

    drained = ""
    service = parse_url(url or default_url())
    for address, seen in _asked(service, patience):
        if seen.standing == "member":
            drained = ""
            break
        if seen.standing == "drained":
            drained = drained or address
    chosen = service.url_of(drained) if drained else url
    with closing(connect(chosen, patience, has_session=not drained), patience) as client:
        yield client


def _ask_new_node(url: str | None, address: str, patience: Patience) -> MemberInfo:
    from quorum.client.connection.endpoints import parse_url
    from quorum.client.errors import UnavailableError

    try:
        host_port(address)
    except ValueError as error:
        raise CliError(str(error)) from None
    service = parse_url(url or default_url())
    try:
        seen = _ask(service, address, min(ASK_LIMIT_S, patience.left_s() / 2))
    except UnavailableError as error:
        where = "give the node's client address, such as node-4.example:7400"
        raise CliError(f"{error}; {where}", 1) from error
    if seen.standing not in ("waiting", "member"):
        raise CliError(f"the node at {address} cannot join: it is {seen.standing} in its cluster")
    return seen.own


def remove(
    name: NameArgument, url: UrlOption = None, timeout: TimeoutOption = None, wait: WaitOption = WAIT_S
) -> None:
    """Remove a member from every group for good. It need not run."""
    patience = Patience(timeout)
    with _administer(url, patience) as client:
        found = next((each for each in client.cluster_status().members if name in (each.name, each.id)), None)
        client.remove_member(name)
        gone = {name, found.id if found is not None else name}

        def has_left(seen: ClusterStatus) -> bool:
            return not any(
                gone & {*group.members, *group.learners} or not group.settled for group in seen.groups
            )

        _await(client, patience, wait, has_left, f"{name} has left every group", _progress, url=url)


def drain(
    name: NameArgument, url: UrlOption = None, timeout: TimeoutOption = None, wait: WaitOption = WAIT_S
) -> None:
    """Drain a member, for work on its machine: until undrain it serves no sessions, and leads a group only if no
    other member can."""
    patience = Patience(timeout)
    with _administer(url, patience) as client:
        client.drain_member(name)

        def leads_nothing(seen: ClusterStatus) -> bool:
            return all(group.leader not in ("", name) for group in seen.groups)

        _await(client, patience, wait, leads_nothing, f"{name} leads nothing", _leaders)


def undrain(name: NameArgument, url: UrlOption = None, timeout: TimeoutOption = None) -> None:
    """Let a drained member work again. Within half a minute the cluster gives it groups to lead; `rebalance` does
    so at once."""
    with _administer(url, Patience(timeout)) as client:
        client.drain_member(name, drained=False)
    print(f"{name} works again")


def transfer(
    group: Annotated[
        int, typer.Argument(metavar="GROUP", min=0, help="a group's number; 0 is the system group")
    ],
    name: NameArgument,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Transfer the leadership of a group to a member."""
    with _administer(url, Patience(timeout)) as client:
        client.transfer_leadership(group, name)
    print(f"{name} leads group {group}")


def rebalance(url: UrlOption = None, timeout: TimeoutOption = None) -> None:
    """Spread the groups' leaders evenly over the members that can be reached and are not drained.

    Status 1: a group has no leader, so there is none to move."""
    with _administer(url, Patience(timeout)) as client:
        moved = client.rebalance_leaders()
        seen = client.cluster_status()
    for group, leader in sorted(moved.items()):
        print(f"{leader} leads group {group}")
    problem = without_leader(seen)
    if problem:
        raise CliError(f"{problem}; {WHERE_TO_LOOK}", 1)
    away = [each.name for each in seen.members if not each.reachable and not each.drained]
    if away:
        print(
            f"the leaders are spread over the members that {seen.answering_node} reaches; it cannot reach "
            + ", ".join(away)
        )
    elif not moved:
        print("the leaders are spread evenly already")


def lease_times(
    lease_ms: Annotated[
        int | None,
        typer.Option(help="ms that a member may deliver after a leader last heard from it; 500 to 60000"),
    ] = None,
    leader_fallback_ms: Annotated[
        int | None,
        typer.Option(
            help="ms that a leader may grant leases after a majority last answered it; 500 to 120000"
        ),
    ] = None,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
    wait: WaitOption = WAIT_S,
    as_json: JsonOption = False,
) -> None:
    """Show or change the cluster's lease times. A longer lease is granted only when every member, as a new leader,
    would wait for it to end.
    """
    patience = Patience(timeout)
    with _administer(url, patience) as client:
        now = client.cluster_status().lease_times
        if now is None:
            raise CliError("the cluster has no lease times yet; its members are still meeting", 1)
        if lease_ms is None and leader_fallback_ms is None:
            if as_json:
                print_json(asdict(now))
            else:
                print(_times(now))
            return
        wanted = (
            now.lease_ms if lease_ms is None else lease_ms,
            now.leader_fallback_ms if leader_fallback_ms is None else leader_fallback_ms,
        )
        client.set_lease_times(*wanted)

        def is_settled(seen: ClusterStatus) -> bool:
            times = seen.lease_times
            return (
                times is not None and times.settled and (times.lease_ms, times.leader_fallback_ms) == wanted
            )

        what = "every member uses lease_ms {} and leader_fallback_ms {}".format(*wanted)
        is_reached = _await(client, patience, wait, is_settled, what, _silent_members, quiet=as_json)
        if as_json:
            from quorum.client.admin.records import LeaseTimes

            print_json(asdict(LeaseTimes(*wanted, is_reached)))


def _times(times: LeaseTimes) -> str:
    change = "" if times.settled else "; the change to them is under way"
    return f"lease_ms {times.lease_ms}, leader_fallback_ms {times.leader_fallback_ms}{change}"


def _silent_members(seen: ClusterStatus) -> str:
    """The reason why a change of lease times waits."""
    silent = [each.name for each in seen.members if not each.reachable]
    return f"{', '.join(silent)} cannot be reached" if silent else "earlier leases have to end first"


def _await(
    client: Client,
    patience: Patience,
    wait_s: int,
    done: Callable[[ClusterStatus], bool],
    what: str,
    progress: Callable[[ClusterStatus], str],
    *,
    quiet: bool = False,
    url: str | None = None,
) -> bool:
    """Wait until `done` holds for the cluster's status, and print `what`, unless quiet. url: of the nodes that are
    asked instead, once the answering node was removed: it does not learn what the groups do then. False if wait_s is
    0: nothing was waited for. CliError if it takes longer than wait_s."""
    if not wait_s:
        if not quiet:
            print("requested; quorum cluster status shows the progress")
        return False
    deadline = time.monotonic() + wait_s
    while True:
        patience.renew()
        seen = client.cluster_status()
        if seen.standing == "removed":
            seen = ask_any(url or default_url(), patience) or seen
        if done(seen):
            if not quiet:
                print(what)
            return True
        if time.monotonic() > deadline:
            raise CliError(f"after {wait_s} s not yet: {what} ({progress(seen)}); the change continues")
        time.sleep(POLL_S)


def _progress(seen: ClusterStatus) -> str:
    return "; ".join(
        f"group {group.group}: {' '.join(group.members)}"
        + (f", learning: {' '.join(group.learners)}" if group.learners else "")
        for group in seen.groups
    )


def _leaders(seen: ClusterStatus) -> str:
    return ", ".join(f"group {group.group}: {group.leader or 'none'}" for group in seen.groups)


def register(app: typer.Typer) -> None:
    """Add these commands to `quorum cluster`."""
    for command in (add, remove, replace, drain, undrain, transfer, rebalance, lease_times):
        app.command()(command)
