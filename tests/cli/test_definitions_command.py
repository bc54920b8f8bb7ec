"""`quorum definitions` on a real member."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from quorum.cli.console import CliError
from quorum.cli.main import app
from quorum.definitions import definition_files
from support.members.served import served_in_a_thread

FILE = {
    "quorum_definitions": 1,
    "exchanges": [{"name": "shop", "type": "topic"}],
    "queues": [{"name": "orders", "arguments": {"x-max-length": 5}}],
    "bindings": [{"source": "shop", "destination": "orders", "routing_key": "orders.#"}],
}


@pytest.fixture
def url() -> Iterator[str]:
    with served_in_a_thread() as found:
        yield found


def quorum(url: str, *arguments: str, status: int = 0, stdin: str | None = None) -> Result:
    done = CliRunner().invoke(app, ["definitions", *arguments, "--url", url], input=stdin)
    assert done.exit_code == status, (done.output, done.exception)
    return done


def saved(directory: Path, value: Any) -> str:
    file = directory / "definitions.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    return str(file)


def test_definitions_are_imported_and_exported(url: str, tmp_path: Path) -> None:
    file = saved(tmp_path, FILE)
    assert quorum(url, "import", file, "--dry-run").stdout.splitlines() == [
        "added    exchange shop",
        "added    queue orders",
        "added    binding shop -> orders (orders.#)",
        "dry run, nothing is changed: 3 added, 0 same, 0 differs, 0 refused",
    ]
    assert quorum(url, "import", file).stdout.splitlines()[-1] == "3 added, 0 same, 0 differs, 0 refused"
    assert quorum(url, "import", "-", stdin=json.dumps(FILE)).stdout.splitlines() == [
        "same     exchange shop",
        "same     queue orders",
        "same     binding shop -> orders (orders.#)",
        "0 added, 3 same, 0 differs, 0 refused",
    ]
    printed = quorum(url, "export").stdout
    assert json.loads(printed)["queues"] == [{"arguments": {"x-max-length": 5}, "name": "orders"}]
    written = tmp_path / "exported.json"
    written.write_text("old", encoding="utf-8")
    told = quorum(url, "export", str(written)).stdout
    assert told == f"wrote 1 binding, 1 exchange, 0 policies, 1 queue to {written}\n"
    assert written.read_text(encoding="utf-8") == printed
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    missing = tmp_path / "missing" / "exported.json"
    failed = CliRunner().invoke(app, ["definitions", "export", str(missing), "--url", url]).exception
    assert isinstance(failed, FileNotFoundError) and failed.filename == str(missing)


def test_what_differs_or_is_refused_ends_with_status_1(url: str, tmp_path: Path) -> None:
    quorum(url, "import", saved(tmp_path, FILE))
    given = {
        "quorum_definitions": 1,
        "queues": [{"name": "orders"}, {"name": "bills", "arguments": {"x-maxlength": 5}}],
    }
    lines = quorum(url, "import", saved(tmp_path, given), status=1).stdout.splitlines()
    assert (
        lines[0].startswith("differs  queue orders: ") and "x-max-length is 5, and was not given" in lines[0]
    )
    assert lines[1].startswith("refused  queue bills: unknown argument 'x-maxlength'")
    assert lines[2] == "0 added, 0 same, 1 differs, 1 refused"
    found = json.loads(quorum(url, "import", saved(tmp_path, given), "--json", status=1).stdout)
    assert found["counts"] == {"added": 0, "same": 0, "differs": 1, "refused": 1}
    assert (found["is_complete"], found["dry_run"]) == (False, False)
    assert found["results"][1]["reason"] == "BAD_ARGUMENT" and found["results"][1]["place"] == "$.queues[1]"


def test_a_file_of_rabbitmq_is_read_with_notes(url: str, tmp_path: Path) -> None:
    given = {
        "rabbit_version": "4.1.0",
        "users": [{"name": "guest"}],
        "queues": [
            {"name": "orders", "vhost": "/", "durable": True, "arguments": {"x-queue-type": "classic"}},
            {"name": "bills", "vhost": "prod", "durable": True, "arguments": {"x-queue-type": "quorum"}},
        ],
    }
    file = saved(tmp_path, given)
    done = quorum(url, "import", file, "--dry-run", status=1)
    assert done.stdout.splitlines() == [
        "refused  vhost prod: 1 queue of a virtual host other than '/'; `--vhost prod` reads them instead",
        "added    queue orders",
        "         note: a classic queue: it becomes a replicated queue, with a delivery limit (x-delivery-limit)",
        "dry run, nothing is changed: 1 added, 0 same, 0 differs, 1 refused",
    ]
    assert "note: 1 user not read: passwords are stored in another form here" in done.stderr
    assert quorum(url, "import", file, "--vhost", "prod").stdout.splitlines()[0] == "added    queue bills"


def test_a_file_that_cannot_be_read_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path, {"quorum_definitions": 1, "queues": [{}]})
    for limit, words in [
        (1 << 20, rf"{file}: $.queues[0]: 'name' is missing"),
        (5, rf"{file}: a file of 6 bytes or more; allowed: 5"),
    ]:
        monkeypatch.setattr(definition_files, "MAX_FILE_BYTES", limit)
        error = quorum(url, "import", file, status=1).exception
        assert isinstance(error, CliError) and (str(error), error.status) == (words, 2)
    missing = quorum(url, "import", str(tmp_path / "none.json"), status=1).exception
    assert isinstance(missing, FileNotFoundError)
