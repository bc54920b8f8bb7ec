"""The command line as its users meet it: each command is a process, against a service in memory or none."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from quorum.cli.commands.serve import allow_open_files
from quorum.cli.console import CliError, pairs, scalar
from quorum.cli.json_lines import to_line
from quorum.cli.main import app
from quorum.client.admin.records import BrowsedMessage
from quorum.v1 import admin_pb2, queue_pb2
from support.fake_server.cluster import FakeCluster, FakeConsumer
from support.fake_server.server import FakeNode
from support.forked_commands import ForkedCommands
from support.repository import ROOT, environment


class Service:
    """A FakeNode on an event loop of its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster = FakeCluster()
        self.node: FakeNode = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> FakeNode:
        return await FakeNode(self.cluster, "node-1").start()

    @property
    def url(self) -> str:
        return f"quorum://{self.node.address}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.node.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.close()


LIMIT_S = 60
SHORT_S = "5"
"""A time-out that a test waits for, and that is long enough for the connection and the messages, on a busy machine."""


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quorum]:
    with ForkedCommands(tmp_path_factory.mktemp("commands"), environment()) as commands:
        yield Quorum(commands)


class Quorum:
    """The command. Its exit status has to be `status`, and it never shows a traceback."""

    def __init__(self, commands: ForkedCommands) -> None:
        self._commands = commands

    def __call__(
        self, *arguments: str, url: str = "", stdin: bytes = b"", cwd: Path = ROOT, status: int = 0
    ) -> tuple[str, str]:
        """(stdout, stderr)"""
        variables = {"QUORUM_URL": url} if url else {}
        done = self._commands.run(*arguments, stdin=stdin, cwd=cwd, limit_s=LIMIT_S, **variables)
        return told(done, status)

    def alone(self, *arguments: str, url: str = "", stdin: bytes = b"", status: int = 0) -> tuple[str, str]:
        """The same from the start of an interpreter, where that matters."""
        done = subprocess.run(
            [sys.executable, "-m", "quorum", *arguments],
            input=stdin,
            cwd=ROOT,
            env=environment() | ({"QUORUM_URL": url} if url else {}),
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        return told(done, status)


def told(done: subprocess.CompletedProcess[bytes], status: int) -> tuple[str, str]:
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == status, f"{done.args}: {done.returncode}\n{out}\n{err}"
    assert "Traceback" not in out + err
    return out, err


@pytest.mark.parametrize(
    ("option", "form"),
    [((), "one message a line"), (("--whole",), "one message"), (("-j",), "one JSON message a line")],
)
def test_a_publish_from_a_terminal_says_what_it_reads(option: tuple[str, ...], form: str) -> None:
    terminal, stdin = pty.openpty()
    os.write(terminal, b"\x04")
    url = ["--url", "quorum://127.0.0.1:1", "--timeout", "0.1"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "quorum", "publish", "q", *option, *url],
            stdin=stdin,
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        os.close(stdin)
        os.close(terminal)
    assert f"reads {form} from the terminal; Ctrl-D ends the input\n" in told(done, 1)[1]


def test_help_and_version_come_without_anything_heavy(quorum: Quorum) -> None:
    out, _ = quorum.alone("--help")
    for command in (
        "node",
        "cluster",
        "queues",
        "exchanges",
        "bindings",
        "policies",
        "definitions",
        "subscriptions",
        "transactions",
        "publish",
        "consume",
        "browse",
        "selector",
        "pipeline",
        "bench",
        "demo",
    ):
        assert f"  {command}" in out
    groups = [match[1] for match in re.finditer(r"(?m)^  (\w+)  +\S", out.partition("Commands:")[2])]
    assert len(groups) > 20
    for group in groups:
        shown = CliRunner().invoke(app, [group, "--help"], env={"COLUMNS": "80"}).output
        listed = shown.partition("Commands:")[2]
        assert shown and "..." not in listed  # no sentence is cut off
        assert max(map(len, listed.splitlines()), default=0) <= 80
    assert "..." not in out.partition("Commands:")[2]
    assert quorum.alone("--version")[0].startswith("quorum ")
    script = "import sys, quorum.cli.main; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True
    )
    assert not {"grpc", "pyarrow", "google", "numpy", "lark", "pydantic", "structlog", "pysyncobj"} & set(
        loaded.stdout.split()
    )


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("quorum que", {"queues"}),
        ("quorum queues re", {"redrive"}),
        ("quorum publish --rou", {"--routing-key"}),
        ("quorum cluster ", {"up", "down", "status", "add", "remove"}),
    ],
)
def test_a_shell_completes_commands_and_options(line: str, completed: set[str]) -> None:
    """Bash asks the command for the words with which it can go on."""
    asked = {
        "_QUORUM_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "quorum"],
        cwd=ROOT,
        env=environment() | asked,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    found = set(told(done, 0)[0].split())
    if line.endswith(" "):
        assert completed <= found
    else:
        assert found == completed


def test_dead_letters_of_one_queue_are_moved_back(quorum: Quorum, service: Service) -> None:
    for name in ("parking", "bills"):
        quorum("queues", "declare", name, url=service.url)
    for name in ("bills", "notes"):
        quorum("publish", "parking", "a", "b", "-a", f"x-last-death-queue={name}", url=service.url)
    redrive = ("queues", "redrive", "parking")
    assert quorum(*redrive, "--only", "orders", url=service.url)[0] == "nothing to move\n"
    assert quorum(*redrive, "--only", "bills", url=service.url)[0] == "moved 2 messages to bills\n"
    said = quorum(*redrive, url=service.url, status=1)[0]
    assert said.startswith("left 2 messages: ") and "notes" in said
    found = json.loads(quorum(*redrive, "--only", "notes", "--json", url=service.url, status=1)[0])
    assert (found["moved"], found["doubtful"], found["is_complete"]) == ({}, {}, True)
    for name in ("bills", "parking"):
        quorum("queues", "delete", name, "--yes", url=service.url)


def test_queues_are_declared_listed_shown_purged_and_deleted(quorum: Quorum, service: Service) -> None:
    declare = ("queues", "declare", "orders", "-a", "x-max-length=5", "-a", "x-filter-enabled=true")
    assert quorum(*declare, url=service.url)[0] == "created orders\n"
    assert quorum(*declare, url=service.url)[0] == "exists with these arguments: orders\n"
    listed = json.loads(quorum("queues", "list", "--json", url=service.url)[0])
    assert [queue["name"] for queue in listed] == ["orders"]
    assert listed[0]["arguments"] == {"x-filter-enabled": True, "x-max-length": 5}
    assert "orders" in quorum("queues", "list", url=service.url)[0]
    assert json.loads(quorum("queues", "show", "orders", "--json", url=service.url)[0])["queue"]["ready"] == 0
    assert "x-max-length=5" in quorum("queues", "show", "orders", url=service.url)[0]
    quorum("publish", "orders", "a", "b", url=service.url)
    assert (
        quorum("queues", "purge", "orders", "--yes", url=service.url)[0] == "purged 2 messages from orders\n"
    )
    totals = json.loads(quorum("queues", "show", "orders", "--json", url=service.url)[0])["queue"]["totals"]
    assert {name: count for name, count in totals.items() if count} == {"published": 2, "purged": 2}
    assert "2 purged" in quorum("queues", "show", "orders", url=service.url)[0]
    assert (
        quorum("queues", "delete", "orders", "--yes", url=service.url)[0] == "deleted orders and 0 messages\n"
    )
    assert "orders" in quorum("queues", "delete", "orders", "--yes", url=service.url, status=1)[1]


def test_what_a_client_has_got_without_a_consumer_is_shown_as_such(quorum: Quorum, service: Service) -> None:
    quorum("queues", "declare", "orders", url=service.url)
    orders = service.cluster.queues["orders"]
    orders.consumers.append(FakeConsumer(Mock(), orders, "", attach=1, credit_to=0, matches=Mock()))
    assert "(get)" in quorum("queues", "show", "orders", url=service.url)[0]


def test_transactions_in_doubt_are_listed_and_resolved(quorum: Quorum, service: Service) -> None:
    for number in (1, 2, 3):
        service.cluster.transactions.append(
            admin_pb2.TransactionInfo(
                id=admin_pb2.TransactionId(group=2, producer=b"p" * 16, number=number),
                state=admin_pb2.TransactionInfo.PREPARED,
                since_ms=1_000,
                deciding_group=1,
                queues=["orders"],
                messages=3,
                bytes=70,
            )
        )
    _, *lines = quorum("transactions", "list", url=service.url)[0].splitlines()
    assert len(lines) == 3
    assert lines[0].split()[:4] == ["2", "70" * 16, "1", "prepared"]
    assert lines[0].endswith("  waits for group 1; orders")
    [first, *_] = json.loads(quorum("transactions", "list", "--json", url=service.url)[0])
    assert (first["producer"], first["messages"], first["deciding_group"]) == ("70" * 16, 3, 1)
    resolve = ("transactions", "resolve", "2", "70" * 16)
    said = quorum(*resolve, "1", "--commit", "--yes", url=service.url)[0]
    assert said == "committed, by hand\n"
    assert quorum(*resolve, "2", url=service.url)[0] == "rolled back, as the deciding group says\n"
    _, asked = quorum(*resolve, "3", "--rollback", url=service.url, stdin=b"n\n", status=1)
    assert "counts in some groups and not in others, for ever. Go on?" in asked
    assert [each.id.number for each in service.cluster.transactions] == [3]
    service.cluster.transactions.clear()


def test_messages_are_published_with_a_delay(quorum: Quorum, service: Service) -> None:
    quorum("queues", "declare", "later", url=service.url)
    quorum("publish", "later", "a", "--delay", "1000.5", "-p", "subject=s", url=service.url)
    shown = json.loads(quorum("browse", "later", "--json-lines", url=service.url)[0])
    assert shown["properties"] == {"delivery-delay": 1_000_500, "subject": "s"}


def test_messages_are_published_to_exchanges(quorum: Quorum, service: Service) -> None:
    for command in (
        ("queues", "declare", "routed"),
        ("exchanges", "declare", "shop", "--type", "direct", "-a", "alternate-exchange=lost"),
        ("bindings", "add", "shop", "routed", "--routing-key", "new"),
    ):
        quorum(*command, url=service.url)
    again = quorum("bindings", "add", "shop", "routed", "--key", "new", url=service.url)[0]
    assert again == "is bound already: routed to shop\n"
    publish = ("publish", "--exchange", "shop", "--key")
    assert quorum(*publish, "new", "a", "b", url=service.url)[0] == "published 2 messages to exchange shop\n"
    assert quorum(*publish, "old", "c", url=service.url)[0] == "published 1 message to exchange shop\n"
    assert "were refused" in quorum(*publish, "old", "c", "--mandatory", url=service.url, status=1)[1]
    assert quorum("browse", "routed", url=service.url)[0] == "a\nb\n"
    [shop] = json.loads(quorum("exchanges", "list", "--json", url=service.url)[0])
    assert (shop["name"], shop["type"]) == ("shop", "direct")
    assert shop["arguments"] == {"alternate-exchange": "lost"}
    assert "shop" in quorum("exchanges", "list", url=service.url)[0]
    assert "routed" in quorum("exchanges", "show", "shop", url=service.url)[0]
    shown = json.loads(quorum("exchanges", "show", "shop", "--json", url=service.url)[0])
    assert [(each["destination"], each["routing_key"]) for each in shown["from"]] == [("routed", "new")]
    assert "routed" in quorum("bindings", "list", "shop", url=service.url)[0]
    quorum("bindings", "remove", "shop", "routed", "-k", "new", url=service.url)
    assert json.loads(quorum("bindings", "list", "--json", url=service.url)[0]) == []
    quorum("exchanges", "delete", "shop", "--yes", url=service.url)
    assert "no exchange 'shop'" in quorum("exchanges", "show", "shop", url=service.url, status=1)[1]


def test_policies_are_set_listed_and_deleted(quorum: Quorum, service: Service) -> None:
    set_ = ("policies", "set", "short", "orders.*", "-a", "x-max-length=5", "-a", "x-overflow=drop-head")
    assert quorum(*set_, "--priority", "-3", url=service.url)[0] == "set short\n"
    assert quorum(*set_, "--priority", "-3", url=service.url)[0] == "is so already: short\n"
    assert json.loads(quorum("policies", "list", "--json", url=service.url)[0]) == [
        {
            "name": "short",
            "pattern": "orders.*",
            "priority": -3,
            "arguments": {"x-max-length": 5, "x-overflow": "drop-head"},
        }
    ]
    out, _ = quorum("policies", "list", url=service.url)
    assert "orders.*" in out and "x-max-length=5" in out
    quorum(*set_, "--priority", str(1 << 31), url=service.url, status=2)
    assert quorum("policies", "delete", "short", "--yes", url=service.url)[0] == "deleted short\n"
    assert "short" not in quorum("policies", "list", url=service.url)[0]
    assert "no policy 'short'" in quorum("policies", "delete", "short", "--yes", url=service.url, status=1)[1]


def test_a_pattern_that_looks_like_a_regular_expression_is_noted(quorum: Quorum, service: Service) -> None:
    for pattern in ("^orders", "orders$", r"orders\.new"):
        out, err = quorum("policies", "set", "rx", pattern, "-a", "x-max-length=5", url=service.url)
        assert (out, len(err.splitlines())) == ("set rx\n", 1)
        assert err.startswith(f"note: '{pattern}' is no regular expression: ")
    for pattern in ("orders*", "orders.*", "orders.new", "*"):
        set_ = ("policies", "set", "rx", pattern, "-a", "x-max-length=5")
        assert quorum(*set_, url=service.url) == ("set rx\n", "")
    quorum("policies", "delete", "rx", "--yes", url=service.url)


def test_lines_are_published_and_consumed(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("lines")
    out, _ = quorum.alone("publish", "lines", "--batch", "2", url=service.url, stdin=b"one\ntwo\nthr\xffee\n")
    assert out == "published 3 messages to lines\n"
    assert quorum.alone("browse", "lines", "-n", "2", url=service.url)[0] == "one\ntwo\n"
    out, _ = quorum.alone("consume", "lines", "-n", "2", url=service.url)
    assert out == "one\ntwo\n"
    out, _ = quorum.alone("consume", "lines", "--json-lines", "-n", "1", url=service.url)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"body_base64": "dGhy/2Vl", "properties": {}, "application_properties": {}}
    ]


def test_json_lines_keep_their_properties_and_their_kinds(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("json")
    message = {
        "body": "héllo",
        "properties": {"subject": "s", "priority": 7, "durable": True},
        "application_properties": {
            "b": True,
            "i": 1,
            "d": 1.0,
            "t": "1",
            "x": {"base64": "AP8="},
            "nan": {"double": "NaN"},
            "low": {"double": "-Infinity"},
        },
    }
    line = json.dumps(message).encode() + b"\n"
    quorum("publish", "json", "-j", "-a", "i=2", "-a", "k=new", url=service.url, stdin=line + b"\n")
    out, _ = quorum("consume", "json", "-n", "1", "--positions", url=service.url)
    read = json.loads(out)
    message["application_properties"] |= {"k": "new"}  # type: ignore[operator]
    assert {key: read[key] for key in message} == message
    assert [type(read["application_properties"][key]) for key in "bid"] == [bool, int, float]
    assert read["redelivered"] is False
    quorum("publish", "json", "-j", url=service.url, stdin=out.encode())
    again = json.loads(quorum("consume", "json", "-n", "1", "-j", url=service.url)[0])
    assert again == message


def test_a_delayed_message_that_browse_has_written_can_be_published(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("later")
    wire = queue_pb2.StoredMessage(sequence=7, due_time=1_000, message=queue_pb2.Message(body=b"x"))
    line = to_line(BrowsedMessage(wire), positions=True)
    assert json.loads(line)["due_time"] == 1_000
    quorum("publish", "later", "-j", url=service.url, stdin=line.encode())
    assert quorum("consume", "later", "-n", "1", url=service.url)[0] == "x\n"


def test_kept_messages_stay_in_the_queue(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("kept")
    quorum("publish", "kept", "a", "b", url=service.url)
    assert quorum("consume", "kept", "-n", "1", "--keep", url=service.url)[0] == "a\n"
    assert quorum("browse", "kept", url=service.url)[0] == "a\nb\n"


def test_fewer_messages_than_wanted_have_a_status_of_their_own(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("few")
    quorum("publish", "few", "a", "b", url=service.url)
    out, err = quorum("consume", "few", "-n", "3", "--timeout", SHORT_S, url=service.url, status=3)
    assert (out, err) == ("a\nb\n", "received 2 of 3 messages before the time-out\n")
    out, err = quorum("consume", "few", "-n", "1", "--timeout", SHORT_S, url=service.url, status=3)
    assert (out, err) == ("", "received 0 of 1 message before the time-out\n")
    assert quorum("consume", "few", "--timeout", SHORT_S, url=service.url) == ("", "")


def test_a_selector_the_service_refuses_is_one_line(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("selected")
    _, err = quorum("consume", "selected", "-s", "colour == 1", url=service.url, status=1)
    assert err.startswith("error: attaching to 'selected': "), "without a tag that nobody has chosen"
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "stdin", "status", "words"),
    [
        (("publish", "none", "x"), b"", 1, "none"),
        (("publish", "none", "x", "-p", "subject"), b"", 2, "'subject' is not of the form NAME=VALUE"),
        (("publish", "none", "-j"), b'{"body": 1}\n', 1, "line 1: body is not a text"),
        (("publish", "none", "-j"), b"{\n", 1, "line 1: not JSON"),
        (("publish", "none", "-j", "x"), b"", 2, "arguments or from stdin, not both"),
        (("publish", "none", "x", "-p", "colour=red"), b"", 2, "unknown property 'colour'"),
        (("publish", "none", "x", "-p", "priority=high"), b"", 2, "allowed: a whole number from 0 to 255"),
        (
            ("publish", "none", "-j"),
            b'{"body": "a", "properties": {"x": 1}}\n',
            1,
            "line 1: unknown property 'x'",
        ),
        (
            ("publish", "none", "-j"),
            b'{"body": "a", "application_properties": {"\\ud800": 1}}\n',
            1,
            "line 1: ",
        ),
        (("queues", "declare", "\udcff\udcfe"), b"", 2, "is not UTF-8 text"),
        (("consume", "none", "-n", "70000", "--keep"), b"", 2, "at most 65536"),
        (("log", "inspect", "/nowhere"), b"", 1, "error: /nowhere: No such file or directory"),
        (("log", "inspect", "/"), b"", 2, "is a directory"),
        (("log", "inspect", "/dev/null"), b"", 2, "/dev/null is not a regular file"),
        (("cluster", "add", ""), b"", 2, "'' is not an address; wanted: host:port"),
        (("queues", "list", "--url", "quorum://h:x"), b"", 2, "wanted: host:port"),
        (("consume", "none"), b"", 1, "none"),
        (("consume", "none", "--keep"), b"", 2, "--keep needs --count"),
        (("consume", "none", "-s", "a", "-a", "b=c"), b"", 2, "not both"),
        (("queues", "show", "none"), b"", 1, "none"),
        (("publish",), b"", 2, "name a queue, or an exchange with --exchange"),
        (("publish", "none", "x", "--key", "k"), b"", 2, "--key and --mandatory need --exchange"),
        (("bindings", "add", "e", "q", "-s", "a", "-a", "x-selector=b"), b"", 2, "exclude each other"),
        (("queues", "declare", "q", "-a", "x=1", "-a", "x=2"), b"", 2, "given twice"),
        (("cluster", "status", "--url", "http://x"), b"", 2, "quorum://"),
        (("subscriptions", "list", "q", "--url", "quorum://h:x"), b"", 2, "wanted: host:port"),
        (
            ("transactions", "resolve", "1", "xy", "1"),
            b"",
            2,
            "'xy' is no producer; wanted: hexadecimal digits",
        ),
        (("transactions", "resolve", "1", "ab", "1", "--commit", "--rollback"), b"", 2, "exclude each other"),
        (("transactions", "resolve", "1", "ab", "1"), b"", 1, "no such part waits"),
    ],
)
def test_mistakes_are_told_in_one_line(
    quorum: Quorum, service: Service, arguments: tuple[str, ...], stdin: bytes, status: int, words: str
) -> None:
    _, err = quorum(*arguments, url=service.url, stdin=stdin, status=status)
    assert words in err
    assert len(err.splitlines()) == 1


def test_cluster_status_is_a_table_or_json(quorum: Quorum, service: Service) -> None:
    out, _ = quorum("cluster", "status", url=service.url, status=0)
    assert "node-1" in out
    seen = json.loads(quorum("cluster", "status", "--json", url=service.url)[0])
    assert seen["answering_node"] == "node-1"


def test_a_cluster_that_is_not_there(quorum: Quorum, tmp_path: Path) -> None:
    for command in ("down", "status"):
        _, err = quorum("cluster", command, "--dir", str(tmp_path), status=1)
        assert err == f"error: there is no cluster in {tmp_path} (no cluster.json)\n"
    (tmp_path / "letter").write_text("dear", encoding="utf-8")
    assert "is not empty" in quorum("cluster", "up", "--dir", str(tmp_path), status=1)[1]


def test_a_pipe_is_no_file_of_a_log(quorum: Quorum, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    _, err = quorum("log", "inspect", str(pipe), status=2)
    assert err == f"error: {pipe} is not a regular file; name a file of a node's log\n"


def test_a_password_in_an_address_is_not_repeated(quorum: Quorum) -> None:
    for command in (("queues", "list"), ("subscriptions", "list", "q"), ("cluster", "status")):
        _, err = quorum(*command, "--url", "quorum://user:secret@127.0.0.1:0", status=2)
        assert err == "error: endpoint '127.0.0.1:0' in 'quorum://127.0.0.1:0'; wanted: host:port,host:port\n"
    _, err = quorum("queues", "list", "--timeout", "1", "--url", "quorum://user:secret@127.0.0.1:1", status=1)
    assert "secret" not in err
    assert "no member of quorum://user@127.0.0.1:1 can be reached" in err


def test_a_cluster_file_of_other_types_is_refused(quorum: Quorum, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"members": {"a": {"client": 5}}}', encoding="utf-8")
    for command in ("down", "status"):
        _, err = quorum("cluster", command, "--dir", str(tmp_path), status=1)
        assert "cluster.json cannot be read: client of member a is a number; wanted: host:port" in err


def test_a_wrong_configuration_stops_a_node_before_it_starts(quorum: Quorum, tmp_path: Path) -> None:
    _, err = quorum("node", "--config", str(tmp_path / "none.toml"), status=2)
    assert err == f"error: there is no configuration file {tmp_path / 'none.toml'}\n"
    file = tmp_path / "node.toml"
    file.write_text(
        f'name = "a"\ndata_dir = "{tmp_path}/d"\nsecret_file = "{tmp_path}/none"\n'
        '[members.a]\npeer = "127.0.0.1:1"\nclient = "127.0.0.1:2"\n',
        encoding="utf-8",
    )
    _, err = quorum("node", "--config", str(file), status=2)
    assert err.startswith("error: secret_file ")
    assert not (tmp_path / "d").exists()


def test_selector_eval_answers_line_by_line(quorum: Quorum) -> None:
    lines = (
        b'{"id": 1, "dialect": "jms", "expr": "a > 1", "fields": {"a": 2}}\n'
        b"rubbish\n"
        b'{"id": 3, "dialect": "jms", "expr": "b = 1", "fields": {}}\n'
        b'{"id": "x", "dialect": "amqp-property", "expr": {"properties": {"subject": "&p:or"}},'
        b' "fields": {"properties": {"subject": "order"}}}\n'
    )
    out, _ = quorum("selector", "eval", stdin=lines)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"id": 1, "result": True},
        {"id": None, "result": "parse-error"},
        {"id": 3, "result": "unknown"},
        {"id": "x", "result": True},
    ]


def test_values_on_the_command_line_are_json_where_they_can_be() -> None:
    assert scalar("[" * 100_000) == "[" * 100_000
    assert [
        scalar(text) for text in ("true", "12", "1.5", '"12"', "red", "null", "[1]", "", "NaN", "-Infinity")
    ] == [
        True,
        12,
        1.5,
        "12",
        "red",
        "null",
        "[1]",
        "",
        "NaN",
        "-Infinity",
    ]
    assert pairs(["a=b=c"], "argument") == {"a": "b=c"}
    with pytest.raises(CliError):
        pairs(["=b"], "argument")


def test_waiting_for_ever_is_waiting_for_long(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("long")
    quorum("publish", "long", "a", url=service.url)
    assert quorum("consume", "long", "-n", "1", "--timeout", "inf", url=service.url)[0] == "a\n"


def test_a_selector_is_checked_without_a_cluster(quorum: Quorum) -> None:
    out, _ = quorum("selector", "check", "colour = 'red' AND JMSPriority > 4")
    assert out == "the selector is right; it reads application-properties.colour, header.priority\n"
    assert quorum("selector", "check", "TRUE")[0] == "the selector is right; it reads no field\n"
    assert json.loads(quorum("selector", "check", "a = 1", "--json")[0]) == {
        "selector": "a = 1",
        "fields": ["application-properties.a"],
    }
    assert json.loads(quorum("selector", "check", "TRUE", "--json")[0])["fields"] == []
    assert quorum("selector", "check", "a ==", "--json", status=1)[0] == ""
    _, err = quorum("selector", "check", "colour == 'red'", status=1)
    assert err.splitlines() == [
        "error: line 1, column 8: equal is written =",
        "error: colour == 'red'",
        "error:        ^",
    ]


def test_nobody_deletes_or_purges_a_queue_by_a_slip(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("precious")
    quorum("publish", "precious", "a", url=service.url)
    for command, question in (
        ("delete", "Delete precious with 1 message?"),
        ("purge", "Remove 1 message from precious?"),
    ):
        for answer in (b"n\n", b""):
            out, err = quorum("queues", command, "precious", url=service.url, stdin=answer, status=1)
            assert question in err
            assert (out, err.endswith("error: nothing was changed\n")) == ("", True)
    assert (
        quorum("queues", "purge", "precious", url=service.url, stdin=b"y\n")[0]
        == "purged 1 message from precious\n"
    )
    assert quorum("queues", "delete", "precious", "--yes", url=service.url) == (
        "deleted precious and 0 messages\n",
        "",
    )


def test_nobody_deletes_an_exchange_a_policy_or_a_user_by_a_slip(quorum: Quorum, service: Service) -> None:
    for command in (
        ("exchanges", "declare", "precious"),
        ("policies", "set", "precious", "kept", "-a", "x-max-length=5"),
    ):
        quorum(*command, url=service.url)
    for kind, question in (
        ("exchanges", "Delete precious and its bindings?"),
        ("policies", "Delete policy precious?"),
        ("users", "Delete user precious and end its sessions?"),
    ):
        for answer in (b"n\n", b""):
            out, err = quorum(kind, "delete", "precious", url=service.url, stdin=answer, status=1)
            assert question in err
            assert (out, err.endswith("error: nothing was changed\n")) == ("", True)
    for kind in ("exchanges", "policies"):
        deleted = quorum(kind, "delete", "precious", url=service.url, stdin=b"y\n")
        assert deleted[0] == "deleted precious\n"


def test_the_nearest_name_of_a_queue_is_told(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("orders")
    for command in (("queues", "show", "ordres"), ("consume", "ordres"), ("publish", "ordres", "a")):
        _, err = quorum(*command, url=service.url, status=1)
        assert "there is no queue 'ordres'" in err
        assert err.endswith("; did you mean 'orders'?\n")
    _, err = quorum("queues", "show", "something-else", url=service.url, status=1)
    assert "did you mean" not in err


def test_large_lines_go_in_several_batches(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("large")
    line = b"x" * 60_000 + b"\n"
    before = len(service.cluster.publish_requests)
    assert (
        quorum("publish", "large", url=service.url, stdin=line * 40)[0] == "published 40 messages to large\n"
    )
    firsts = [first for _, first, _ in service.cluster.publish_requests[before:]]
    assert firsts == [1, 18, 35]


def test_nobody_there_is_said_while_it_is_waited_for_and_at_the_end(quorum: Quorum) -> None:
    _, err = quorum("queues", "list", "--timeout", "6", url="quorum://127.0.0.1:1", status=1)
    first, last = err.splitlines()
    assert first == "no member of quorum://127.0.0.1:1 has answered yet; still trying"
    assert last.startswith("error: no member of quorum://127.0.0.1:1 can be reached: ")
    assert "Connection refused" in last


def test_a_wrong_scheme_is_told_in_one_line_without_the_log_of_grpc(
    quorum: Quorum, service: Service, tmp_path: Path
) -> None:
    address = service.node.address
    _, err = quorum.alone("queues", "list", "--timeout", "60", url=f"quorums://{address}", status=1)
    assert err == (
        f"error: no member of quorums://{address} can be reached: {address} does not speak TLS, and the URL is with "
        f"TLS; use quorum://{address}\n"
    )
    _, err = quorum.alone("health", url=f"quorums://user:secret@{address}", status=1)
    assert err == (
        f"error: {address} does not answer: {address} does not speak TLS, and the URL is with TLS; "
        f"use quorum://{address}\n"
    )


def test_a_port_that_says_nothing_has_no_more_than_the_timeout(quorum: Quorum) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        _, err = quorum.alone("health", "--timeout", "0.5", address, status=1)
        assert err == f"error: {address} does not answer: nothing came within 0.5 s\n"


def test_a_publish_that_is_not_confirmed_says_so_and_gives_up(quorum: Quorum, service: Service) -> None:
    service.cluster.declare("held")
    service.cluster.holds_confirms = True
    try:
        out, err = quorum("publish", "held", "a", "--timeout", "6", url=service.url, status=1)
    finally:
        service.cluster.holds_confirms = False
        service.cluster._held_confirms.clear()
    first, last = err.splitlines()
    assert first.startswith("no message was confirmed for 3 s; still trying.")
    assert last.startswith(
        "error: no message was confirmed for 6 s; 0 were confirmed before. Those sent since may have been published; "
        "if you publish them again, they may be there twice. "
    )
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("publish", "stuck", "a"), "no message was confirmed for 3 s"),
        (("publish", "stuck", "a", "--tx"), "gave up after 3 s: committing transaction"),
        (("consume", "stuck"), "gave up after 3 s: attaching to 'stuck'"),
        (("queues", "list"), "gave up after 3 s: listing queues: no answer came in time"),
    ],
)
def test_without_a_majority_a_command_gives_up_in_time_and_says_where_to_look(
    quorum: Quorum, service: Service, arguments: tuple[str, ...], said: str
) -> None:
    cluster, node = service.cluster, service.node
    cluster.declare("stuck")
    cluster.holds_confirms = node.holds_commits = node.is_cut_off = node.has_no_majority = True
    try:
        out, err = quorum(*arguments, "--timeout", "3", url=service.url, status=1)
    finally:
        cluster.holds_confirms = node.holds_commits = node.is_cut_off = node.has_no_majority = False
        cluster._held_confirms.clear()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith(f"error: {said}")
    assert "groups without a leader: 1; " in last
    assert last.endswith("; `quorum cluster status` shows which members and groups work")


def test_a_rebalance_does_not_call_the_leaders_spread_where_there_is_none(
    quorum: Quorum, service: Service
) -> None:
    assert quorum("cluster", "rebalance", url=service.url) == ("the leaders are spread evenly already\n", "")
    service.node.has_no_majority = True
    try:
        out, err = quorum("cluster", "rebalance", url=service.url, status=1)
    finally:
        service.node.has_no_majority = False
    assert out == ""
    assert err == (
        "error: groups without a leader: 1; members node-1 cannot reach: none; "
        "`quorum cluster status` shows which members and groups work\n"
    )


def test_every_command_of_a_cluster_has_a_time_limit() -> None:
    def without(command: Any, name: str) -> Iterator[str]:
        for each, found in getattr(command, "commands", {}).items():
            yield from without(found, f"{name} {each}")
        options = {option for each in command.params for option in each.opts}
        if "--url" in options and "--timeout" not in options:
            yield name

    assert list(without(get_command(app), "quorum")) == []


def test_no_help_names_a_page_that_an_installation_does_not_have() -> None:
    def texts(command: Any) -> Iterator[str]:
        for found in getattr(command, "commands", {}).values():
            yield from texts(found)
        yield command.help or ""
        for each in command.params:
            yield getattr(each, "help", None) or ""

    found = [each for each in texts(get_command(app)) if each]
    assert len(found) > 100
    assert [each for each in found if "docs/" in each] == []


def test_a_member_may_open_as_many_files_as_the_system_lets_it() -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, 512), most))
    try:
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
