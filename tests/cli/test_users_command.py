"""`quorum users` and `quorum permissions` on a real member."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from quorum.cli.main import app
from support.served_member import served_in_a_thread

PASSWORD = "a long password"


@pytest.fixture
def url() -> Iterator[str]:
    with served_in_a_thread() as found:
        yield found


def quorum(url: str, *arguments: str, stdin: str | None = None) -> str:
    done = CliRunner().invoke(app, [*arguments, "--url", url], input=stdin)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_users_and_their_permissions(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = f"{PASSWORD}\n{PASSWORD}\n"
    assert quorum(url, "users", "add", "admin", "--administer", stdin=typed).endswith("set admin\n")
    refused = CliRunner().invoke(app, ["queues", "list", "--url", url])
    assert refused.exit_code != 0 and "a user and a password are needed" in str(refused.exception)
    monkeypatch.setenv("QUORUM_USER", "admin")
    monkeypatch.setenv("QUORUM_PASSWORD", PASSWORD)
    quorum(url, "users", "add", "ann", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert quorum(url, "permissions", "set", "ann", "--write", "orders.*") == "set ann\n"
    assert quorum(url, "permissions", "set", "ann", "--write", "orders.*") == "is so already: ann\n"
    found = json.loads(quorum(url, "users", "list", "--json"))
    assert [(each["name"], each["administers"], each["write"]) for each in found] == [
        ("admin", True, ""),
        ("ann", False, "orders.*"),
    ]
    table = quorum(url, "permissions", "list")
    assert "orders.*" in table and "administers" in table and PASSWORD not in table
    quorum(url, "users", "delete", "ann")
    assert "ann" not in quorum(url, "users", "list")
