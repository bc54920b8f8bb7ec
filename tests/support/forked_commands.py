"""Commands of `quorum` as processes of their own, without the start of an interpreter for each.

A process that has imported what most commands import waits for them, and forks for each one: `python -m
support.forked_commands`. The fork reads and writes files in place of a terminal, and ends as the command ends.
"""

from __future__ import annotations

import functools
import gc
import importlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import typer.main

from quorum.cli.console import without_log_of_grpc
from support.repository import ROOT

IMPORTED = (
    "quorum.cli.main",
    "quorum.sync",
    "quorum.v1.admin_pb2_grpc",
    "quorum.v1.queue_pb2_grpc",
    "rich.table",
)


class ForkedCommands:
    """folder: an existing directory, for the commands' files. environment: of every command."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._files = {name: folder / name for name in ("stdin", "stdout", "stderr")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.forked_commands"],
            env={**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{ROOT / 'tests'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        cwd: Path = ROOT,
        limit_s: int,
        **variables: str,
    ) -> subprocess.CompletedProcess[bytes]:
        """variables: environment variables besides those that every command has. A command that takes longer than
        limit_s is killed: its exit status is -14 (SIGALRM)."""
        self._files["stdin"].write_bytes(stdin)
        files = {name: str(path) for name, path in self._files.items()}
        wanted = {
            "arguments": arguments,
            "cwd": str(cwd),
            "limit_s": limit_s,
            "variables": variables,
            "files": files,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        out, err = self._files["stdout"].read_bytes(), self._files["stderr"].read_bytes()
        return subprocess.CompletedProcess(arguments, status, out, err)


def wait_for_commands() -> dict[str, Any]:
    """Returns in each fork, with the command that it is to be. The process that forks ends with its input."""
    # the forks' sys.stdin and sys.stdout must not have anything of these in their buffers
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "w") as statuses:
        for request in requests:
            assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"
            pid = os.fork()
            if not pid:
                wanted: dict[str, Any] = json.loads(request)
                return wanted
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), file=statuses, flush=True)
    sys.exit()


def become(wanted: dict[str, Any]) -> None:
    """This process has the files, the arguments and the environment of the command."""
    files = wanted["files"]
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(files[name], flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(wanted["cwd"])
    os.environ.update(wanted["variables"])
    sys.argv[1:] = wanted["arguments"]
    signal.alarm(wanted["limit_s"])


def import_what_commands_need() -> None:
    without_log_of_grpc()  # as commands do before they import it
    for module in IMPORTED:
        importlib.import_module(module)
    # Typer builds all commands at each call, and imports a large library when a first command reads its options
    typer.main.get_command = functools.cache(typer.main.get_command)
    command = typer.main.get_command(sys.modules["quorum.cli.main"].app)
    with redirect_stdout(io.StringIO()):
        command.main(["queues", "list", "--help"], standalone_mode=False)


if __name__ == "__main__":
    import_what_commands_need()
    gc.freeze()  # forks share these objects' memory, and do not look through them
    become(wait_for_commands())
    sys.modules["quorum.cli.main"].main()
