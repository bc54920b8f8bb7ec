"""Functions that the commands share: the service's URL, values on a command line, and error output."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from quorum.client.admin.records import ClusterStatus
    from quorum.client.values import FieldValue
    from quorum.sync import Client

WHERE_TO_LOOK = "`quorum cluster status` shows which members and groups work"
DEFAULT_DIRECTORY = Path("quorum-data")
DEFAULT_URL = "quorum://127.0.0.1:7400"

YesOption = Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")]
OWN_PACKAGES = ("quorum", "fifo", "quorum_selectors")
PATIENCE_S = 3.0
"""After this time without output a command reports what it waits for."""
EXPLAIN_LIMIT_MS = 2_000
CONNECT_S, TIMEOUT_S = 10.0, 30.0
"""Without --timeout: the wait for a connection, and the wait for the cluster in all."""
LEAST_MS = 500
"""Least time of a call, so that a command can still end its session after its time is over."""
LONG_S = 1e9
WIDTH = 200
NARROWEST = 6
"""Characters of a column of texts, at least, before columns of numbers are folded."""
MOST_NAMES = 10_000
"""Names of queues among which the nearest one is looked for, which takes some 0.3 s."""


def without_log_of_grpc(url: str | None = None) -> str | None:
    """Keep gRPC from writing its own log to stderr, unless the user's environment asks for it. It has to be called
    before gRPC is imported, so each command with --url calls it when the option is read."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return url


UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        callback=without_log_of_grpc,
        envvar="QUORUM_URL",
        help="quorum://host:port,host:port; without it the local cluster in ./quorum-data, else "
        + DEFAULT_URL,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0.0,
        help=f"seconds to wait for the cluster, at most; without it {CONNECT_S:g} for a connection and "
        f"{TIMEOUT_S:g} in all",
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


class Patience:
    """How long a command waits for the cluster."""

    def __init__(
        self, given_s: float | None = None, *, default_s: float = TIMEOUT_S, is_for_each_call: bool = False
    ) -> None:
        """given_s: the value of --timeout, if it was given. is_for_each_call: each call may take the whole limit,
        because the command makes many of them."""
        from quorum import sync  # noqa: F401  the time for the import is not the cluster's

        if given_s is not None and math.isnan(given_s):
            raise CliError("--timeout nan is no number of seconds")
        self.limit_s = min(default_s if given_s is None else given_s, LONG_S)
        self.is_for_each_call = is_for_each_call
        self.cause = ""
        """why the cluster does not answer, as far as it is known"""
        self._connect_s = CONNECT_S if given_s is None else self.limit_s
        self.renew()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time of the block does not count, because the command waits for its user."""
        paused_s = time.monotonic()
        yield
        self._began_s += time.monotonic() - paused_s

    def renew(self) -> None:
        """The cluster has answered: the time begins again."""
        self._began_s = time.monotonic()

    def left_s(self) -> float:
        return max(0.0, self._began_s + self.limit_s - time.monotonic())

    def left_ms(self) -> int:
        """The limit of the next call."""
        return max(LEAST_MS, int((self.limit_s if self.is_for_each_call else self.left_s()) * 1000))

    def given_up(self, waited_for: str) -> CliError:
        """The error of a command whose time is over."""
        cause = f"{self.cause}; " if self.cause else ""
        return CliError(f"gave up after {self.limit_s:g} s: {waited_for}; {cause}{WHERE_TO_LOOK}", 1)

    def connect_ms(self) -> int:
        return min(self.left_ms(), max(LEAST_MS, int(self._connect_s * 1000)))


def connect(url: str | None, patience: Patience | None = None, *, has_session: bool = True) -> Client:
    """A connection to the service that `--url` names. Reports on stderr if it takes long."""
    from quorum import sync
    from quorum.client.connection.endpoints import shown_url
    from quorum.client.errors import UnavailableError

    patience = patience or Patience()
    chosen = url or default_url()
    shown = shown_url(chosen)
    try:
        with still_trying(f"no member of {shown} has answered yet"):
            return sync.connect(
                chosen,
                timeout_ms=patience.left_ms,
                connect_timeout_ms=patience.connect_ms(),
                has_session=has_session,
            )
    except UnavailableError as error:
        hint = "" if url else "; --url names another service, `quorum cluster up` starts one here"
        raise CliError(f"no member of {shown} can be reached: {error}{hint}", 1) from error


@contextmanager
def connected(url: str | None, patience: Patience) -> Iterator[Client]:
    """The same for a block. If it names a queue that does not exist, the error names the nearest one that does. If the
    cluster does not answer in time, the error says where to look."""
    from quorum.client.errors import RefusedError

    with closing(connect(url, patience), patience) as client:
        try:
            yield client
        except RefusedError as error:
            name = error.metadata.get("queue", "") if error.reason == "NOT_FOUND" else ""
            nearest = _nearest_queue(client, name)
            if not nearest:
                raise
            raise CliError(f"{error}; did you mean {nearest!r}?", 1) from error


@contextmanager
def closing(client: Client, patience: Patience) -> Iterator[Client]:
    """Close the client after the block. Nothing is waited for any more if the cluster has not answered in time, also if
    each call has a limit of its own: a publish that took too long is still open."""
    from quorum.client.client import CLOSE_TIMEOUT_MS
    from quorum.client.errors import OutcomeUnknown, TimedOut, UnavailableError

    is_given_up = False
    try:
        yield client
    except (UnavailableError, OutcomeUnknown) as error:
        is_given_up = True
        if isinstance(error, TimedOut | OutcomeUnknown) or not patience.left_s():
            patience.cause = patience.cause or explain(client, LEAST_MS)
            raise patience.given_up(str(error)) from error
        raise CliError(f"{error}; {WHERE_TO_LOOK}", 1) from error
    except CliError:
        is_given_up = True
        raise
    finally:
        left_ms = min(CLOSE_TIMEOUT_MS, int(patience.left_s() * 1000))
        client.close(timeout_ms=0 if is_given_up else left_ms)


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
def served(url: str | None, limit: float | Patience | None) -> Iterator[Client]:
    """The same, for commands that wait for nothing but the service. If the block takes longer than PATIENCE_S, and the
    service cannot do its work, the cause is reported once. limit: the value of --timeout."""
    patience = limit if isinstance(limit, Patience) else Patience(limit)
    with connected(url, patience) as client:
        has_ended = threading.Event()

        def tell() -> None:
            patience.cause = explain(client)
            if patience.cause and not has_ended.is_set():
                note(f"the service cannot answer yet. {patience.cause}; still trying")

        notice = threading.Timer(min(PATIENCE_S, patience.limit_s / 2), tell)
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


REGULAR_EXPRESSION = ("^", "$", "\\")
"""What a pattern of RabbitMQ has, and one of Quorum hardly."""


def note_regular_expression(pattern: str) -> None:
    """Say on stderr how a pattern is read that may be meant as a regular expression."""
    if any(part in pattern for part in REGULAR_EXPRESSION):
        note(
            f"note: '{pattern}' is no regular expression: it matches whole names, '*' stands for any characters, and "
            "every other character for itself"
        )


def explain(client: Client, limit_ms: int = EXPLAIN_LIMIT_MS) -> str:
    """A possible cause of a delay: groups without a leader, or no answer from the service. Empty if there is none, or
    if the user may not know it."""
    from quorum.client.errors import PermissionRefused, QuorumError

    try:
        seen = client.cluster_status(timeout_ms=limit_ms)
    except PermissionRefused:
        return ""
    except QuorumError as error:
        return str(error)
    return without_leader(seen)


def without_leader(seen: ClusterStatus) -> str:
    """The groups without a leader, and the members that cannot be reached. Empty if every group has a leader."""
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
    from quorum.local_cluster.cluster_file import STATE_FILE, read_url

    return read_url(DEFAULT_DIRECTORY) if (DEFAULT_DIRECTORY / STATE_FILE).exists() else DEFAULT_URL


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
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _refuse(word: str) -> None:
    """For NaN, Infinity and -Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{word} is no JSON")


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
    """Where lines and tables are printed. In a pipe or file there is room for 200 characters a line; COLUMNS sets
    another width."""
    from rich.console import Console

    return Console(width=None if has_width() else WIDTH)


def has_width() -> bool:
    """Whether lines have to fit into the width of a terminal, or into COLUMNS."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def print_table(table: Table) -> None:
    """Print a table, with no value cut. Columns with `no_wrap` keep their values on one line if the others then have
    room for NARROWEST characters; otherwise values go on in the next line. In a pipe or file no value does."""
    from rich.measure import Measurement
    from rich.text import Text

    console = output()
    kept = 1
    for column in table.columns:
        column.overflow = "fold"
        texts = [column.header, *column.cells] if table.show_header else [*column.cells]
        widest = max((Text.from_markup(str(each)).cell_len for each in texts), default=0)
        kept += 3 + (widest if column.no_wrap else min(widest, NARROWEST))
    if not has_width():
        whole = Measurement.get(console, console.options.update(max_width=sys.maxsize), table)
        console.width = max(WIDTH, whole.maximum)
    elif kept > console.width:
        for column in table.columns:
            column.no_wrap = False
    console.print(table)


def printable(text: str) -> str:
    """The text with control and formatting characters escaped, line ends too, so that a terminal does not obey them."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shown(text: str) -> str:
    """Users' text, escaped so that neither markup nor the terminal interprets it."""
    from rich.markup import escape

    return escape(printable(text))


def note(message: str) -> None:
    """Write progress for a person to stderr."""
    for line in message.split("\n"):
        print(printable(line), file=sys.stderr, flush=True)


def print_error(message: str) -> None:
    """Write a message to stderr, with each line marked as an error, once: lines of a member's output may be marked
    already."""
    is_coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    mark = "\x1b[31merror:\x1b[0m" if is_coloured else "error:"
    for line in message.split("\n"):
        print(f"{mark} {printable(line.removeprefix('error: '))}", file=sys.stderr, flush=True)
