"""What users' texts look like on an operator's terminal."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.table import Table

from quorum.cli import console, subscriptions
from quorum.cli.console import note, print_error, still_trying
from quorum.cli.queues import shown

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
    monkeypatch.setattr(console, "connect", contextlib.nullcontext)
    monkeypatch.setattr(console, "explain", lambda client: cause)
    with console.served("quorum://127.0.0.1:1"):
        assert capsys.readouterr().err == said


def test_a_member_is_refused_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(console.CliError, match="a member needs Linux; this is darwin"):
        console.require_linux()
