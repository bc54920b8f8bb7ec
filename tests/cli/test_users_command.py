"""`quorum users` and `quorum permissions` on a real member."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from quorum.cli.console import CliError
from quorum.cli.main import app
from support.members.served import served_in_a_thread
from support.repository import ROOT

PASSWORD = "a long password"
OTHER = "another password"
NOTHING = "configure nothing, write nothing, read nothing"
EVERYTHING = "may do everything"


@pytest.fixture
def url() -> Iterator[str]:
    with served_in_a_thread() as found:
        yield found


def quorum(url: str, *arguments: str, stdin: str | None = None) -> str:
    done = CliRunner().invoke(app, [*arguments, "--url", url], input=stdin)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def refused(url: str, *arguments: str, stdin: str | None = None) -> str:
    done = CliRunner().invoke(app, [*arguments, "--url", url], input=stdin)
    assert done.exit_code != 0, done.output
    return str(done.exception)


def test_users_and_their_permissions(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = f"{PASSWORD}\n{PASSWORD}\n"
    told = quorum(url, "users", "add", "admin", "--administer", stdin=typed)
    assert told.endswith(f"set admin: administers, logs in with a password, {EVERYTHING}\n")
    assert "a user and a password are needed" in refused(url, "queues", "list")
    monkeypatch.setenv("QUORUM_USER", "admin")
    monkeypatch.setenv("QUORUM_PASSWORD", PASSWORD)
    quorum(url, "users", "add", "ann", "--password-stdin", stdin=f"{PASSWORD}\n")
    allowed = "ann: configure nothing, write 'orders.*', read nothing\n"
    assert quorum(url, "permissions", "set", "ann", "--write", "orders.*") == f"set {allowed}"
    assert quorum(url, "permissions", "set", "ann", "--write", "orders.*") == f"is so already: {allowed}"
    regular = CliRunner().invoke(app, ["permissions", "set", "ann", "--read", "^a.*$", "--url", url])
    assert regular.stderr.startswith("note: '^a.*$' is no regular expression: ") and not regular.exit_code
    quorum(url, "permissions", "set", "ann", "--write", "orders.*")
    found = json.loads(quorum(url, "users", "list", "--json"))
    assert [(each["name"], each["administers"], each["write"]) for each in found] == [
        ("admin", True, ""),
        ("ann", False, "orders.*"),
    ]
    table = quorum(url, "permissions", "list")
    assert "orders.*" in table and "administers" in table and PASSWORD not in table
    assert "nothing was changed" in refused(url, "users", "delete", "ann", stdin="n\n")
    quorum(url, "users", "delete", "ann", "--yes")
    assert "ann" not in quorum(url, "users", "list")


def test_what_a_change_of_a_user_does_not_name_stays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quorum(url, "users", "add", "admin", "--administer", "--password-stdin", stdin=f"{PASSWORD}\n")
    monkeypatch.setenv("QUORUM_USER", "admin")
    monkeypatch.setenv("QUORUM_PASSWORD", PASSWORD)
    told = quorum(url, "users", "add", "ann", "--monitor", "--no-password")
    assert told == f"set ann: monitors, logs in with a certificate or token, {NOTHING}\n"
    quorum(url, "permissions", "set", "ann", "--read", "a*")
    kept = "configure nothing, write nothing, read 'a*'\n"
    told = quorum(url, "users", "add", "ann", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert told == f"set ann: monitors, logs in with a password, {kept}"
    told = quorum(url, "users", "add", "ann", "--no-password", "--administer", "--no-monitor")
    assert told == f"set ann: administers, logs in with a password, {EVERYTHING}\n"
    assert quorum(url, "users", "add", "ann", "--no-password") == (
        f"is so already: ann: administers, logs in with a password, {EVERYTHING}\n"
    )
    told = quorum(url, "users", "add", "ann", "--no-password", "--no-administer")
    assert told == f"set ann: logs in with a password, {kept}"
    told = quorum(url, "users", "add", "admin", "--password-stdin", stdin=f"{OTHER}\n")
    assert told == f"set admin: administers, logs in with a password, {EVERYTHING}\n"
    assert "wrong user or password" in refused(url, "users", "list")
    monkeypatch.setenv("QUORUM_PASSWORD", OTHER)
    assert "only administrator" in refused(url, "users", "add", "admin", "--no-password", "--no-administer")


def test_the_users_of_queues_are_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quorum(url, "queues", "declare", "nobodys")
    quorum(url, "users", "add", "admin", "--administer", "--password-stdin", stdin=f"{PASSWORD}\n")
    monkeypatch.setenv("QUORUM_USER", "admin")
    monkeypatch.setenv("QUORUM_PASSWORD", PASSWORD)
    for name in ("orders", "bills"):
        quorum(url, "queues", "declare", name)
    [line] = [each for each in quorum(url, "users", "list").splitlines() if "admin " in each]
    assert line.rstrip("│ ").endswith(" 2")
    assert [each["queues"] for each in json.loads(quorum(url, "users", "list", "--json"))] == [2]
    found = json.loads(quorum(url, "queues", "list", "--json"))
    assert {each["name"]: each["owner"] for each in found} == {
        "bills": "admin",
        "nobodys": "",
        "orders": "admin",
    }
    shown = [line.strip("│ ").split() for line in quorum(url, "queues", "show", "orders").splitlines()]
    assert ["owner", "│", "admin"] in shown
    assert "owner" not in quorum(url, "queues", "show", "nobodys")


def test_a_refusal_names_the_user_that_was_asked_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quorum(url, "users", "add", "admin", "--administer", "--password-stdin", stdin=f"{PASSWORD}\n")
    monkeypatch.setenv("QUORUM_USER", "admin")
    monkeypatch.setenv("QUORUM_PASSWORD", PASSWORD)
    quorum(url, "users", "add", "ann", "--password-stdin", stdin=f"{PASSWORD}\n")
    monkeypatch.setenv("QUORUM_USER", "ann")
    why = "user 'ann' has no permission: administer"
    said = refused(url, "users", "add", "eve", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert said == f"setting user 'eve': listing users: {why}"
    assert refused(url, "users", "delete", "eve", "--yes") == f"deleting user 'eve': {why}"
    said = refused(url, "permissions", "set", "eve", "--read", "*")
    assert said == f"setting permissions of user 'eve': {why}"


def test_an_empty_password_changes_nothing(url: str) -> None:
    for stdin in ("", "\n", f"\n{PASSWORD}\n"):
        done = CliRunner().invoke(app, ["users", "add", "ann", "--password-stdin", "--url", url], input=stdin)
        error = done.exception
        assert isinstance(error, CliError), done.output
        assert (str(error), error.status) == ("no password on stdin: the first line is empty", 2)
    assert json.loads(quorum(url, "users", "list", "--json")) == []


def test_a_missing_user_names_the_variables(url: str) -> None:
    quorum(url, "users", "add", "admin", "--administer", "--password-stdin", stdin=f"{PASSWORD}\n")
    wanted = ": a user and a password are needed: in the URL, or in "
    for variables, words in (
        ({}, "QUORUM_USER and QUORUM_PASSWORD"),
        (
            {"QUORUM_PASSWORD": PASSWORD},
            "QUORUM_USER and QUORUM_PASSWORD; QUORUM_PASSWORD is set, and QUORUM_USER is not",
        ),
        ({"QUORUM_PASSWORD": "", "QUORUM_USER": ""}, "QUORUM_USER and QUORUM_PASSWORD"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "quorum", "users", "list", "--url", url],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("QUORUM_")}
            | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith(f"{wanted}{words}\n") and len(done.stderr.splitlines()) == 1


def test_without_a_terminal_the_option_for_stdin_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quorum", "users", "add", "ann"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[1:] == [
        "error: there is no terminal to ask for the password; --password-stdin reads it from stdin"
    ]


def test_a_node_that_refuses_the_log_in_is_not_taken_for_a_silent_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = url.removeprefix("quorum://")
    quorum(url, "users", "add", "admin", "--administer", "--password-stdin", stdin=f"{PASSWORD}\n")
    for command in (("add", address), ("replace", "n1", address)):
        said = refused(url, "cluster", *command)
        assert said.startswith(f"asking the node at {address}: a user and a password are needed")
    monkeypatch.setenv("QUORUM_USER", "admin")
    monkeypatch.setenv("QUORUM_PASSWORD", OTHER)
    said = refused(url, "cluster", "add", address)
    assert said == f"asking the node at {address}: log-in as 'admin' failed: wrong user or password"
    monkeypatch.delenv("QUORUM_USER")
    silent = refused(url, "cluster", "add", "127.0.0.1:1")
    assert silent.startswith("asking the node at 127.0.0.1:1: ")
    assert silent.endswith("; give the node's client address, such as node-4.example:7400")
