"""The command with closed or full standard files, and Ctrl-C while it begins."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import quorum.sync
from quorum.cli.main import app
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.directory import ClusterDirectory
from support.members.served import served_in_a_thread
from support.repository import ROOT, environment

LIMIT_S = 120
CLOSED = "exec {how}; exec {python} -m quorum {command}"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served_in_a_thread() as found:
        with quorum.sync.connect(found) as client:
            client.declare("orders")
            client.publish("orders", b"one")
        yield found


def run(url: str, how: str, command: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell that has closed or redirected files."""
    return subprocess.run(
        ["sh", "-c", CLOSED.format(how=how, python=sys.executable, command=command)],
        cwd=ROOT,
        env=environment() | {"QUORUM_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("publish orders", 0, ""),
        ("queues purge orders", 1, "nothing was changed"),
        ("users add ann --password-stdin", 2, "no password on stdin: the first line is empty"),
        ("selector eval", 0, ""),
    ],
)
def test_a_closed_input_is_an_empty_one(url: str, command: str, status: int, said: str) -> None:
    done = run(url, "<&-", command)
    assert (done.returncode, "defect" in done.stderr) == (status, False), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("how", "why"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
@pytest.mark.parametrize("command", ["queues list", "consume orders --count 1", "browse orders", "--help"])
def test_output_that_cannot_be_written_is_an_error_and_settles_nothing(
    url: str, how: str, why: str, command: str
) -> None:
    done = run(url, how, command)
    assert done.returncode == 1
    assert done.stderr == f"error: the output cannot be written: {why}\n"
    with quorum.sync.connect(url) as client:
        deadline = time.monotonic() + LIMIT_S
        while client.describe("orders").queue.checked_out:  # the command's session ends after the command
            assert time.monotonic() < deadline
        [message] = client.browse("orders")
        assert message.body == b"one"


def test_closed_errors_change_nothing(url: str) -> None:
    done = run(url, "2>&-", "publish orders --exchange none --key k")
    assert (done.returncode, done.stderr) == (1, "")


INTERRUPTED = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, {handler})

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["quorum", "--version"]
runpy.run_module("quorum", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("handler", "status"), [("signal.default_int_handler", -signal.SIGINT), ("signal.SIG_IGN", 0)]
)
def test_ctrl_c_ends_the_command_at_once_while_it_loads(handler: str, status: int) -> None:
    """A shell ignores Ctrl-C in commands in the background, and so does the command then."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(handler=handler)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")


def test_a_delay_that_is_too_long_is_refused_by_its_option(url: str) -> None:
    done = run(url, "2>&1", "publish orders late --delay 1e300")
    assert (done.returncode, done.stdout) == (2, "error: --delay 1e+300; allowed: 0 to 3153600000 seconds\n")


LOGS = """
import os, signal, structlog, sys
from quorum.cli.commands.serve import log_to_stderr

log_to_stderr("info", {form!r})
for number in range(3_000):  # more than a buffer takes
    structlog.get_logger().warning("disk slow", number=number)
os._exit(7)
"""


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("how", ["2>/dev/full", "2> >(exit)"])
def test_a_log_that_cannot_be_written_ends_no_member(form: str, how: str) -> None:
    """A full disk, or a reader that has ended."""
    done = subprocess.run(
        ["bash", "-c", f'exec "$0" -c "$1" {how}', sys.executable, LOGS.format(form=form)],
        cwd=ROOT,
        env=environment(),
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 7


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{path} {name}")


def test_every_argument_and_option_is_explained() -> None:
    found = list(commands(typer.main.get_command(app), "quorum"))
    assert len(found) > 60
    for path, command in found:
        for each in command.params:
            assert each.help, f"{path}: {each.name}"
            if each.param_type_name == "argument":
                assert re.fullmatch(r"[A-Z_:]+(\.\.\.)?", each.metavar or ""), f"{path}: {each.metavar}"


def small_file_system(folder: Path) -> bool:
    """Mount a full file system; False if that is not permitted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False)
    return done.returncode == 0


def test_a_full_disk_is_named_by_its_directory_and_leaves_no_half_cluster(tmp_path: Path) -> None:
    """Not as if the output could not be written."""
    folder = tmp_path / "full"
    if not small_file_system(folder):
        pytest.skip("mounting is not permitted")
    try:
        fill = folder / "fill"
        with fill.open("wb") as file, contextlib.suppress(OSError):
            file.write(bytes(1 << 20))
        for command, named in (
            (f"certificates create a --dir {folder}/pki", folder / "pki"),
            (f"cluster up --members 1 --detach --dir {folder}/c", folder / "c"),
        ):
            for _ in range(2):
                done = run("", "2>&1", command)
                assert (done.returncode, done.stdout) == (1, f"error: {named}: No space left on device\n")
        assert list((folder / "c").iterdir()) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_cluster_that_cannot_be_made_leaves_its_directory_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ClusterDirectory) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(ClusterDirectory, "_write", full)
        with pytest.raises(OSError, match="No space left"):
            LocalCluster(tmp_path / "c", 3)
    assert list((tmp_path / "c").iterdir()) == []
    assert len(LocalCluster(tmp_path / "c", 3).members) == 3
