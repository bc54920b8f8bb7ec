"""Functions that the commands share: the service's URL, values on a command line, and error output."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from quorum.client.values import FieldValue
    from quorum.sync import Client

DEFAULT_DIRECTORY = Path("quorum-data")
DEFAULT_URL = "quorum://127.0.0.1:7400"

YesOption = Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")]
OWN_PACKAGES = ("quorum", "fifo", "quorum_selectors")
PATIENCE_S = 3.0
"""After this time without output a command reports what it waits for."""
EXPLAIN_LIMIT_MS = 2_000
WIDTH = 200
MOST_NAMES = 10_000
"""Names of queues among which the nearest one is looked for, which takes some 0.3 s."""
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="QUORUM_URL",
        help="quorum://host:port,host:port; without it the local cluster in ./quorum-data, else "
        + DEFAULT_URL,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of a table")]
SelectorOption = Annotated[
    str | None, typer.Option("--selector", "-s", help="JMS selector; only matching messages are shown")
]
FilterPropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property", "-p", metavar="NAME=VALUE", help="AMQP filter on a property; all filters must match"
    ),
]
FilterApplicationOption = Annotated[
    list[str] | None,
    typer.Option(
        "--application-property", "-a", metavar="NAME=VALUE", help="AMQP filter on an application property"
    ),
]


class CliError(Exception):
    """A request of the user that cannot be carried out. It is reported in one line; `status` is the exit status."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


def connect(url: str | None) -> Client:
    """A connection to the service that `--url` names. Reports on stderr if it takes long."""
    from quorum import sync
    from quorum.client.endpoints import shown_url
    from quorum.client.errors import UnavailableError

    chosen = url or default_url()
    shown = shown_url(chosen)
    try:
        with still_trying(f"no member of {shown} has answered yet"):
            return sync.connect(chosen)
    except UnavailableError as error:
        hint = "" if url else "; --url names another service, `quorum cluster up` starts one here"
        raise CliError(f"no member of {shown} can be reached: {error}{hint}", 1) from error


@contextmanager
def connected(url: str | None) -> Iterator[Client]:
    """The same for a block. If it names a queue that does not exist, the error names the nearest one that does."""
    from quorum.client.errors import RefusedError

    with connect(url) as client:
        try:
            yield client
        except RefusedError as error:
            name = error.metadata.get("queue", "") if error.reason == "NOT_FOUND" else ""
            nearest = _nearest_queue(client, name)
            if not nearest:
                raise
            raise CliError(f"{error}; did you mean {nearest!r}?", 1) from error


def _nearest_queue(client: Client, name: str) -> str:
    """The name of a queue that begins with the same letter and is most like this name; empty for none."""
    from difflib import get_close_matches

    from quorum.client.errors import QuorumError

    try:
        names = [each.name for each in client.queues(name[:1], timeout_ms=EXPLAIN_LIMIT_MS)] if name else []
    except QuorumError:
        return ""
    return next(iter(get_close_matches(name, names[:MOST_NAMES], n=1)), "")


@contextmanager
def served(url: str | None) -> Iterator[Client]:
    """The same, for commands that wait for nothing but the service. If the block takes longer than PATIENCE_S, and the
    service cannot do its work, the cause is reported once."""
    with connected(url) as client:
        has_ended = threading.Event()

        def tell() -> None:
            cause = explain(client)
            if cause and not has_ended.is_set():
                note(f"the service cannot answer yet. {cause}; still trying")

        notice = threading.Timer(PATIENCE_S, tell)
        notice.daemon = True
        notice.start()
        try:
            yield client
        finally:
            has_ended.set()
            notice.cancel()


@contextmanager
def still_trying(missing: str) -> Iterator[None]:
    """Report what is missing if the block takes longer than PATIENCE_S."""
    notice = threading.Timer(PATIENCE_S, note, [f"{missing}; still trying"])
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def confirm(question: str) -> None:
    """Ask on stderr before what cannot be undone. CliError unless the answer is yes."""
    print(f"{question} [y/N, --yes answers in scripts]", end=" ", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed", 1)


def explain(client: Client) -> str:
    """A possible cause of a delay: groups without a leader, or no answer from the service. Empty if there is none."""
    from quorum.client.errors import QuorumError

    try:
        seen = client.cluster_status(timeout_ms=EXPLAIN_LIMIT_MS)
    except QuorumError as error:
        return str(error)
    missing = [
        "the system group" if not each.group else str(each.group) for each in seen.groups if not each.leader
    ]
    if not missing:
        return ""
    down = ", ".join(each.name for each in seen.members if not each.reachable) or "none"
    return (
        f"groups without a leader: {', '.join(missing)}; members {seen.answering_node} cannot reach: {down}"
    )


def require_linux() -> None:
    """Refuse to run a member on another system: it relies on Linux for its files, its clocks and its processes."""
    if sys.platform != "linux":
        raise CliError(f"a member needs Linux; this is {sys.platform}, where only clients run", 2)


def default_url() -> str:
    """The local cluster's URL if there is one in the current directory."""
    from quorum.cli.local_cluster import STATE_FILE, LocalCluster

    if (DEFAULT_DIRECTORY / STATE_FILE).exists():
        return LocalCluster.open(DEFAULT_DIRECTORY).url
    return DEFAULT_URL


def pairs(given: Iterable[str] | None, what: str) -> dict[str, FieldValue]:
    """NAME=VALUE texts as a dict. A JSON boolean, number or string is parsed; any other value is text."""
    found: dict[str, FieldValue] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CliError(f"{what} {text!r} is not of the form NAME=VALUE")
        if name in found:
            raise CliError(f"{what} {name!r} is given twice")
        found[name] = scalar(value)
    return found


def scalar(text: str) -> FieldValue:
    """Parse true, 12, 1.5 and "quoted" as JSON; everything else is text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def filter_argument(
    properties: list[str] | None, application_properties: list[str] | None
) -> dict[str, dict[str, FieldValue]] | None:
    """The property filter of --property and --application-property; None if neither is given."""
    if not properties and not application_properties:
        return None
    return {
        "properties": pairs(properties, "property"),
        "application_properties": pairs(application_properties, "application property"),
    }


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def is_user_facing(error: Exception) -> bool:
    """Whether an error is meant for users: one of the system, or one that Quorum's packages raise on purpose."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in OWN_PACKAGES


def output() -> Console:
    """Where tables are printed. In a pipe or file they have room for 200 characters a line, so that nothing is cut;
    COLUMNS sets another width."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)


def printable(text: str) -> str:
    """The text with control and formatting characters escaped, line ends too, so that a terminal does not obey them."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def note(message: str) -> None:
    """Write progress for a person to stderr."""
    for line in message.split("\n"):
        print(printable(line), file=sys.stderr, flush=True)


def print_error(message: str) -> None:
    """Write a message to stderr, with each line marked as an error."""
    is_coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    mark = "\x1b[31merror:\x1b[0m" if is_coloured else "error:"
    for line in message.split("\n"):
        print(f"{mark} {printable(line)}", file=sys.stderr, flush=True)
