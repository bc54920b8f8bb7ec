"""What users' texts look like on an operator's terminal."""

from __future__ import annotations

import io
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console
from rich.table import Table

from quorum.cli import console
from quorum.cli.commands import cluster, members, subscriptions
from quorum.cli.commands.queues import print_list
from quorum.cli.console import CliError, Patience, closing, note, print_error, shown, still_trying
from quorum.cli.pipelines import archives
from quorum.client.admin.records import ClusterStatus, LeaseTimes, QueueInfo
from quorum.client.client import CLOSE_TIMEOUT_MS
from quorum.client.errors import PermissionRefused, QuorumError, TimedOut
from quorum.counts import counted
from quorum.spark.pipelines.selectivity import FieldUse, QueueSelectivity, Recommendation, SelectorUse
from quorum.v1 import admin_pb2

OBEYED = "g\x1b]0;title\x07\x1b[2J\x1b]52;c;cm0=\x07\x7f\x9b1m\u202e\u2028\nroot# [red]"


def test_a_table_shows_a_name_and_no_terminal_obeys_it() -> None:
    out = io.StringIO()
    table = Table("subscription")
    table.add_row(shown(OBEYED))
    Console(file=out, width=200).print(table)
    text = out.getvalue()
    assert r"g\x1b]0;title\x07\x1b[2J" in text
    assert r"\u202e\u2028\nroot# [red]" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_the_status_shows_an_address_of_ipv6(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the library that prints tables, `[fd00::7]` is markup."""
    monkeypatch.setenv("COLUMNS", "120")
    found = admin_pb2.ClusterStatusResponse(answering_node="node-1")
    found.members.add(name="node-1", client_address="[fd00::7]:7400", reachable=True)
    found.groups.add(group=1, leader="node-1", disputed="states [a] and [b] differ")
    cluster._tables(ClusterStatus.of(found))
    text = capsys.readouterr().out
    assert "[fd00::7]:7400" in text
    assert "states [a] and [b] differ" in text


def test_selectivity_shows_names_of_properties_and_no_terminal_obeys_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "size\x1b[2J"
    archives._show(
        QueueSelectivity(
            name,
            1,
            (SelectorUse(f"{name} = 1", (f"consumer {name}",), 1),),
            (FieldUse(name, 1, 1, 1, 8, 1, True), FieldUse(name, 1, 0, 0, 0, 0, False)),
            Recommendation((name,), 8, (name,), 8, (name,)),
        )
    )
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert out.count(r"size\x1b[2J") == 8


def test_a_file_of_selectors_has_one_in_each_line_and_is_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "selectors"
    file.write_bytes("\ufeffa = 1\n\nb = 'ä'\n".encode())
    assert archives._lines(file) == ["a = 1", "b = 'ä'"]
    file.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(CliError, match="selectors: byte 11 is not UTF-8"):
        archives._lines(file)


def status_of(*, index: int, leader: str) -> ClusterStatus:
    found = admin_pb2.ClusterStatusResponse(answering_node="node-1")
    found.members.add(name="node-1", client_address="127.0.0.1:7400", reachable=True)
    found.groups.add(
        group=1,
        leader=leader,
        term=12,
        commit_index=index,
        applied_index=index,
        members=["node-1", "node-2", leader],
    )
    return ClusterStatus.of(found)


@pytest.mark.parametrize(
    ("columns", "index"), [("80", 123_456_789), ("80", 10**15), ("40", 123_456_789), ("", 10**15)]
)
def test_no_table_cuts_a_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, index: int
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    else:
        monkeypatch.delenv("COLUMNS", raising=False)
    leader = "node-" + "3" * (3 if columns else 300)
    cluster._tables(status_of(index=index, leader=leader))
    lines = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines)
    if columns:
        assert max(map(len, lines)) <= int(columns)
    if (columns != "40" and index < 10**12) or not columns:
        assert all(any(word in line for line in lines) for word in ("committed", str(index)))
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    texts = {
        "".join(cells).replace(" ", "") for cells in zip(*(row for row in rows if len(row) == 8), strict=True)
    }
    assert {str(index), leader} <= texts, "what is folded is whole"


def queue_of(name: str, **counts: int) -> QueueInfo:
    return QueueInfo.of(admin_pb2.QueueInfo(name=name, group=1, leader="node-2", **counts))


@pytest.mark.parametrize(
    ("counts", "headings", "cells"),
    [
        ({}, ["ready", "checked out", "total", "consumers"], ["1,200", "1", "1,201", "0"]),
        ({"delayed": 3}, ["ready", "checked out", "delayed", "consumers"], ["1,200", "1", "3", "0"]),
        ({"dead": 9}, ["ready", "checked out", "dead", "consumers"], ["1,200", "1", "9", "0"]),
        (
            {"delayed": 3, "dead": 9},
            ["ready", "checked out", "delayed", "dead", "consumers"],
            ["1,200", "1", "3", "9", "0"],
        ),
    ],
)
def test_a_list_of_queues_has_delayed_and_dead_messages_and_fits_into_80_columns(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    counts: dict[str, int],
    headings: list[str],
    cells: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_list([queue_of("a"), queue_of("orders", ready=1_200, checked_out=1, total=1_201, **counts)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and max(map(len, lines)) <= 80
    title, _, last = [
        [cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines[1:5] if "━" not in line
    ]
    assert title == ["queue", "group", "leader", *headings]
    assert last == ["orders", "1", "node-2", *cells]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (
            (),
            [
                "group 1: node-3 is 1 entry behind",
                "group 2: how far node-2 is behind is not known yet, node-3 is 4 entries behind",
            ],
        ),
        (
            ("node-2", "node-3"),
            [
                "group 1: node-3 is 1 entry behind and cannot be reached",
                "group 2: node-2 cannot be reached, so how far it is behind is not known, node-3 is 4 entries "
                "behind and cannot be reached",
            ],
        ),
    ],
)
def test_the_status_says_who_is_behind_the_answering_node(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lost: tuple[str, ...],
    said: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found = admin_pb2.ClusterStatusResponse(answering_node="node-1")
    for name in ("node-1", "node-2", "node-3"):
        found.members.add(name=name, reachable=name not in lost)
    for group, far in enumerate(((7, 7), (7, 6), (0, 3), ())):
        wire = found.groups.add(group=group, leader="node-1", last_index=7)
        for name, index in zip(("node-2", "node-3"), far, strict=False):
            wire.progress.add(name=name, match_index=index)
    cluster._tables(ClusterStatus.of(found))
    assert [line for line in capsys.readouterr().out.splitlines() if "behind" in line] == said
    progress = ClusterStatus.of(found).groups[2].progress
    assert [(each.name, each.reachable) for each in progress] == [
        ("node-2", "node-2" not in lost),
        ("node-3", "node-3" not in lost),
    ]


@pytest.mark.parametrize(
    ("leader", "unreachable", "said", "is_well"),
    [
        ("node-1", (), "node-1", True),
        ("node-1", ("node-3",), "node-1", True),
        ("node-3", ("node-3",), "node-3 (not reachable)", False),
        ("node-3", ("node-2", "node-3"), "node-3 (not reachable) (no majority)", False),
        ("node-1", ("node-2", "node-3"), "node-1 (no majority)", False),
        ("", ("node-2", "node-3"), "none (no majority)", False),
        ("", (), "none", False),
    ],
)
def test_the_status_marks_a_group_that_cannot_work(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    leader: str,
    unreachable: tuple[str, ...],
    said: str,
    is_well: bool,
) -> None:
    """Also while the answering node still takes a lost member for the leader."""
    monkeypatch.delenv("COLUMNS", raising=False)
    found = admin_pb2.ClusterStatusResponse(answering_node="node-1", standing="member")
    names = ("node-1", "node-2", "node-3")
    for name in names:
        found.members.add(name=name, id=name, client_address="x:1", reachable=name not in unreachable)
    found.members.add(name="node-3", id="node-3~0a", replaces="node-3", client_address="x:2", reachable=False)
    found.groups.add(group=1, leader=leader, members=names)
    seen = ClusterStatus.of(found)
    monkeypatch.setattr(cluster.members, "ask_any", lambda url, patience: seen)
    for as_json in (False, True):
        with pytest.raises(typer.Exit) as ended:
            cluster.status(url="quorum://x:1", as_json=as_json)
        assert ended.value.exit_code == (0 if is_well else 1)
        out = capsys.readouterr().out
        if not as_json:
            [row] = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│ 1 ")]
            assert row[1].strip() == said


@pytest.mark.parametrize(
    ("away", "said"), [((), "they have"), (("node-3",), "they have (not reachable: node-3)")]
)
def test_the_status_of_members_that_meet_says_what_they_wait_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, away: tuple[str, ...], said: str
) -> None:
    """They do not know each other's machine version yet, so nothing is said of versions."""
    monkeypatch.setenv("COLUMNS", "200")
    found = admin_pb2.ClusterStatusResponse(answering_node="node-1", standing="meeting")
    for name in ("node-1", "node-2", "node-3"):
        version = 3 if name == "node-1" else 0
        found.members.add(name=name, reachable=name not in away, known_version=version)
    found.groups.add(group=0, version=2)
    cluster._tables(ClusterStatus.of(found))
    out = capsys.readouterr().out
    assert f"have not all met yet; it serves when {said}\n" in out
    assert "machine version" not in out


@pytest.mark.parametrize(
    ("count", "nouns", "said"),
    [
        (0, ("message",), "0 messages"),
        (1, ("message",), "1 message"),
        (12_000, ("message",), "12,000 messages"),
        (1, ("entry", "entries"), "1 entry"),
        (2, ("entry", "entries"), "2 entries"),
    ],
)
def test_a_count_has_its_noun(count: int, nouns: tuple[str, ...], said: str) -> None:
    assert counted(count, *nouns) == said


def test_errors_and_notes_keep_their_lines_and_nothing_else_that_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_error("one \x1b[2J\ntwo")
    note("three \x07\nfour ü")
    assert capsys.readouterr().err == "error: one \\x1b[2J\nerror: two\nthree \\x07\nfour ü\n"


def test_a_command_that_waits_says_what_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Timer:
        def __init__(self, after_s: float, then: Callable[..., None], arguments: list[str]) -> None:
            self.start = lambda: then(*arguments)
            self.cancel = lambda: None
            assert after_s == console.PATIENCE_S

    monkeypatch.setattr(threading, "Timer", Timer)
    with still_trying("nobody has answered yet"):
        pass
    assert capsys.readouterr().err == "nobody has answered yet; still trying\n"
    with subscriptions._client("quorum://127.0.0.1:1"):
        assert capsys.readouterr().err == "quorum://127.0.0.1:1 has not answered yet; still trying\n"


class Closed:
    """A client that records how it was closed."""

    timeout_ms = -1

    def close(self, *, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms


def test_nothing_is_waited_for_at_the_end_of_a_command_whose_time_is_over() -> None:
    client: Any = Closed()
    assert not hasattr(client, "cluster_status"), "the cause is known, and not asked for again"
    with console.closing(client, console.Patience(2.0)):
        pass
    assert console.LEAST_MS <= client.timeout_ms <= 2_000
    patience = console.Patience(0.0)
    patience.cause = "no leader"
    with (
        pytest.raises(
            console.CliError, match=r"^gave up after 0 s: asking; no leader; `quorum cluster status`"
        ),
        console.closing(client, patience),
    ):
        raise TimedOut("asking")
    assert client.timeout_ms == 0


def test_a_user_who_may_not_see_the_cluster_s_status_is_not_told_that_it_is_the_cause() -> None:
    class Refused:
        def __init__(self, error: QuorumError) -> None:
            self._error = error

        def cluster_status(self, timeout_ms: int) -> None:
            raise self._error

    refused: Any = Refused(PermissionRefused("not permitted"))
    silent: Any = Refused(TimedOut("no answer"))
    assert (console.explain(refused), console.explain(silent)) == ("", "no answer")


def test_the_time_of_a_command_is_shared_by_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    patience, usual = console.Patience(5.0), console.Patience()
    each = console.Patience(5.0, is_for_each_call=True)
    assert (patience.connect_ms(), usual.connect_ms(), usual.left_ms()) == (5_000, 10_000, 30_000)
    now_s += 3
    assert (patience.connect_ms(), patience.left_ms(), each.left_ms()) == (2_000, 2_000, 5_000)
    now_s += 3
    assert (patience.left_ms(), patience.left_s()) == (console.LEAST_MS, 0.0), "a session is still ended"
    patience.renew()
    assert patience.left_ms() == 5_000


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("", ""),
        (
            "groups without a leader: 1",
            "the service cannot answer yet. groups without a leader: 1; still trying\n",
        ),
    ],
)
def test_a_command_that_gets_no_answer_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cause: str, said: str
) -> None:
    class Timer:
        def __init__(self, after_s: float, then: Callable[..., None]) -> None:
            self.start = then
            self.cancel = lambda: None
            assert after_s == console.PATIENCE_S

    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(console, "connect", lambda url, patience: Closed())
    monkeypatch.setattr(console, "explain", lambda client: cause)
    with console.served("quorum://127.0.0.1:1", None):
        assert capsys.readouterr().err == said


def test_a_member_is_refused_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(console.CliError, match="a member needs Linux; this is darwin"):
        console.require_linux()


class Closing:
    """A client that says how long its end waits for open publishes."""

    def __init__(self) -> None:
        self.waits_ms: list[int] = []

    def close(self, *, timeout_ms: int) -> None:
        self.waits_ms.append(timeout_ms)


@pytest.mark.parametrize("is_for_each_call", [False, True])
def test_the_end_of_a_command_waits_for_open_publishes_only_in_its_time(is_for_each_call: bool) -> None:
    """If a publish takes too long, the redrive continues with the other messages, and reports at the end which ones are
    in doubt."""
    client: Any = Closing()
    patience = Patience(3600.0, is_for_each_call=is_for_each_call)
    with closing(client, patience):
        pass
    assert client.waits_ms == [CLOSE_TIMEOUT_MS]
    patience = Patience(0.0, is_for_each_call=is_for_each_call)
    with closing(client, patience):
        pass
    assert client.waits_ms == [CLOSE_TIMEOUT_MS, 0]


def test_a_removal_through_the_removed_member_asks_another_one_for_the_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The removed member may not hear that its groups have removed it."""

    def seen_by(node: str, standing: str, *of_group: str) -> ClusterStatus:
        found = admin_pb2.ClusterStatusResponse(answering_node=node, standing=standing)
        found.groups.add(group=0, members=of_group, settled=True)
        return ClusterStatus.of(found)

    removed = seen_by("node-1", "removed", "node-1", "node-2")
    client = SimpleNamespace(remove_member=lambda name: None, cluster_status=lambda: removed)
    monkeypatch.setattr(members, "_administer", lambda url, patience: nullcontext(client))
    monkeypatch.setattr(members, "ask_any", lambda url, patience: seen_by("node-2", "member", "node-2"))
    members.remove("node-1", url="quorum://127.0.0.1:1", wait=1)
    assert capsys.readouterr().out == "node-1 has left every group\n"


def test_lease_times_in_json_say_whether_every_member_uses_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = LeaseTimes(4000, 1500, settled=True)

    def change(lease_ms: int, leader_fallback_ms: int) -> None:
        nonlocal now
        now = LeaseTimes(lease_ms, leader_fallback_ms, settled=True)

    client = SimpleNamespace(
        cluster_status=lambda: SimpleNamespace(standing="member", lease_times=now), set_lease_times=change
    )
    monkeypatch.setattr(members, "_administer", lambda url, patience: nullcontext(client))
    members.lease_times(as_json=True)
    members.lease_times(lease_ms=900, as_json=True)
    members.lease_times(leader_fallback_ms=2000, wait=0, as_json=True)
    found = [tuple(json.loads(line).values()) for line in capsys.readouterr().out.splitlines()]
    assert found == [(4000, 1500, True), (900, 1500, True), (900, 2000, False)]
