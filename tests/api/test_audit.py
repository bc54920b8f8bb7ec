"""The audit file: what is written, and that a changed line is found."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import random
import re
import shlex
import stat
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from quorum.api.security import audit_file
from quorum.api.security.access import Access
from quorum.api.security.audit import DONE, REFUSALS_A_MINUTE, Audit
from quorum.api.security.audit_file import (
    MAX_LINE_BYTES,
    NOTHING,
    AuditFile,
    Broken,
    verify,
    wrong_audit_file,
)
from quorum.api.status import StatusError
from quorum.cli.main import app
from quorum.errors import ConfigError
from quorum.v1 import admin_pb2 as pb
from support.repository import ROOT

LONGEST_OF_STRANGERS = 1_200
"""More bytes than a line about a failed log-in has."""
WHO = ("ann", "ipv4:192.0.2.7:41000", "queue=orders")


def audited(path: Path, calls: int) -> None:
    """Audit this many calls, in a task of its own each."""
    audit = Audit(AuditFile(path, "node-1"))

    async def call(number: int) -> None:
        audit.begin(f"Admin/Call{number}", *WHO)
        audit.begin(f"Admin/Call{number}", *WHO)  # a further part of the same request
        audit.finish(DONE)
        audit.finish("nothing is under way")

    async def run() -> None:
        await asyncio.gather(*(asyncio.create_task(call(number)) for number in range(calls)))

    asyncio.run(run())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_a_request_has_a_line_when_it_begins_and_one_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with capture_logs() as logged:
        audited(path, 2)
    lines = lines_of(path)
    assert [(each["call"], each["outcome"]) for each in lines] == [
        ("Admin/Call0", "begun"),
        ("Admin/Call0", "done"),
        ("Admin/Call1", "begun"),
        ("Admin/Call1", "done"),
    ]
    assert [each["request"] for each in lines] == sorted(2 * list({each["request"] for each in lines}))
    assert (lines[0]["user"], lines[0]["peer"], lines[0]["target"]) == WHO
    assert lines[0]["before"] == NOTHING
    found = verify([path])
    assert (found.lines, found.interrupted) == (4, 0)
    assert found.last.startswith(logged[-1]["audit"])


def test_the_chain_goes_on_after_a_start_and_over_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "MAX_FILE_BYTES", 900)
    monkeypatch.setattr(audit_file, "KEPT", 3)
    path = tmp_path / "audit.jsonl"
    for _ in range(4):
        audited(path, 2)
    files = [path.with_name(f"{path.name}.{number}") for number in (3, 2, 1)]
    assert sorted(tmp_path.iterdir()) == sorted([path, *files]), "the oldest ones are gone"
    assert verify([*files, path]).lines == sum(len(lines_of(each)) for each in (*files, path))
    with pytest.raises(Broken, match="lines between them are missing"):
        verify([files[0], path])


@pytest.mark.parametrize(("failing", "share"), [("_opened", 0.7), ("_numbered", 0.2)])
def test_no_line_is_lost_while_another_file_cannot_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, share: float
) -> None:
    """Before, a failed open left no file, and each further attempt removed the oldest one."""
    monkeypatch.setattr(audit_file, "MAX_FILE_BYTES", 500)
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, "node-1")
    written = 0
    while not path.with_name("audit.jsonl.4").exists():
        file.write("event", number=written)
        written += 1
    real, draw, failures = getattr(audit_file, failing), random.Random(7), []

    def sometimes(*args: Any) -> Any:
        if draw.random() < share:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*args)

    monkeypatch.setattr(audit_file, failing, sometimes)
    while len(failures) < 3 or failures[-1] == written:
        try:
            file.write("event", number=written)
            written += 1
        except OSError as error:
            failures.append(written)
            if error.errno != errno.EMFILE:
                raise
    monkeypatch.undo()
    file.write("event", number=written)
    numbered = sorted(tmp_path.glob("audit.jsonl.[0-9]"), reverse=True)
    assert [each["number"] for one in (*numbered, path) for each in lines_of(one)] == list(range(written + 1))
    verify([*numbered, path])


NEW = pb.MemberInfo(name="d", client_address="d:7400", peer_address="d:7401", id="d~12", incarnation="12")
PREPARED = pb.TransactionId(group=2, producer=b"\x5d\x41", number=17)
BINDING = pb.Binding(source="logs", queue="errors", routing_key="a secret")


@pytest.mark.parametrize(
    ("call", "request_", "target"),
    [
        ("AddMember", pb.AddMemberRequest(member=NEW), "member=d clients=d:7400 peers=d:7401"),
        ("SetPolicy", pb.SetPolicyRequest(policy=pb.Policy(name="p", pattern="*")), "policy=p"),
        ("AddBinding", pb.AddBindingRequest(binding=BINDING), "binding=logs queue=errors"),
        ("RemoveBinding", pb.RemoveBindingRequest(binding=pb.Binding(id=7)), "id=7"),
        ("ResolveTransaction", pb.ResolveTransactionRequest(id=PREPARED), "transaction=2 5d41 17"),
        ("TransferLeadership", pb.TransferLeadershipRequest(group=3, to="n2"), "group=3"),
        ("SetUser", pb.SetUserRequest(user="ann", password="a secret"), "user=ann"),
        ("DeleteQueue", pb.DeleteQueueRequest(queue="q" * 300), "queue=" + "q" * 249),
    ],
)
def test_a_line_names_what_the_call_was_about(call: str, request_: Any, target: str) -> None:
    with capture_logs() as logged:
        Context().run(Access().check, f"Admin/{call}", request_, None, WHO[1])
    assert logged[0]["target"] == target


def test_the_page_shows_a_line_as_it_is_written() -> None:
    """With its fields in the same order."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if "administration  " in line]
    with capture_logs() as logged:
        audit = Audit()
        context = Context()
        context.run(audit.begin, "Admin/DeleteQueue", *WHO, "0a1b")
        context.run(audit.finish, DONE)
    assert len(shown) == len(logged) == 2
    for line, fields in zip(shown, logged, strict=True):
        names = [each.partition("=")[0] for each in shlex.split(line) if "=" in each]
        assert names == [name for name in fields if name not in ("event", "log_level")]


@pytest.mark.parametrize("change", ["changed", "removed", "added", "exchanged", "nested"])
def test_what_was_done_to_a_line_is_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "audit.jsonl"
    audited(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "changed":
        lines[2] = lines[2].replace(b'"ann"', b'"bob"')
    elif change == "removed":
        del lines[2]
    elif change == "added":
        lines.insert(2, lines[1])
    elif change == "nested":
        lines[3] = b"[" * 100_000 + b"]" * 100_000 + b"\n"
    else:
        lines[2], lines[3] = lines[3], lines[2]
    path.write_bytes(b"".join(lines))
    with pytest.raises(Broken, match=r"audit\.jsonl, line [34]: "):
        verify([path])
    found = CliRunner().invoke(app, ["audit", "verify", str(path)])
    assert found.exit_code == 1


def test_lines_that_are_missing_at_the_end_are_found_by_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audited(path, 2)
    last = verify([path]).last
    audited(path, 1)
    whole = path.read_bytes()

    def shown(*options: str) -> tuple[int, list[str], str]:
        done = CliRunner().invoke(app, ["audit", "verify", str(path), *options])
        return done.exit_code, done.output.splitlines(), str(done.exception)

    status, output, _ = shown("--contains", last[:16])
    assert (status, output[-1]) == (0, f"contains     {last[:16]}  ({path}, line 4)"), "the file has grown"
    assert shown("--contains", NOTHING)[:1] == (0,), "the line before the first one"
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert shown()[0] == 0
    status, _, error = shown("--contains", last)
    assert (status, error.partition(":")[0]) == (
        1,
        f"the 3 lines fit each other, but none of them has the hash {last}",
    )
    path.write_bytes(whole.replace(b"ann", b"bob", 1))
    status, _, error = shown("--contains", last)
    assert status == 1
    assert "one of them was changed" in error, "a broken chain is another finding"
    for wrong in ("", "x" * 16, last[:15], f"{last}0"):
        status, _, error = shown("--contains", wrong)
        assert "allowed are 16 to 64 digits" in error


def test_a_line_that_the_end_of_the_process_cut_off_stays_and_counts(tmp_path: Path) -> None:
    """Wherever it is cut."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, "node-1")
    file.write("event")
    file.write("event", name='"\\\x7fé😀', number=12)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first + 1, len(whole) - 1):
        path.write_bytes(whole[:length])
        cut = verify([path])
        assert (cut.lines, cut.interrupted, cut.is_last_interrupted) == (2, 1, True)
        if length % 5:
            continue
        AuditFile(path, "node-1").write("event", number=3)
        found = verify([path])
        assert (found.lines, found.interrupted, found.is_last_interrupted) == (3, 1, False)
        assert path.read_bytes().startswith(whole[:length] + b"\n")
    path.write_bytes(whole[:-20])
    shown = CliRunner().invoke(app, ["audit", "verify", str(path)])
    assert shown.exit_code == 0
    assert "the last line is incomplete: a crash cut it off, or it was changed\n" in shown.output


@pytest.mark.parametrize("zeros", [1, 300, MAX_LINE_BYTES, 100_000])
def test_zero_bytes_that_a_power_cut_left_are_an_interrupted_line(tmp_path: Path, zeros: int) -> None:
    path = tmp_path / "audit.jsonl"
    audited(path, 1)
    whole = path.read_bytes()
    number = whole.count(b"\n")
    last = whole.rindex(b'{"before"')
    for length, lines, kept in (
        (len(whole), number + 1, number),  # nothing of the next line was written
        (last + 40, number, number),  # the beginning of the last line
        (last, number, number - 1),
    ):
        path.write_bytes(whole[:length] + bytes(zeros))
        cut = verify([path])
        assert (cut.lines, cut.interrupted, cut.is_last_interrupted) == (lines, 1, True)
        assert wrong_audit_file(path) == []
        AuditFile(path, "node-1").write("event")
        found = verify([path])
        assert (found.lines, found.is_last_interrupted) == (kept + 1, False)
        assert b"\0" not in path.read_bytes()


@pytest.mark.parametrize(
    "added",
    [
        b"a line of text\n",
        b"\n",
        b"{}\n",
        b"5\n",
        b'{"before\0\n',
        b'{"before\0","time',
        b'{"event',
        b'{"before":"0123',
        b"[" * 100_000 + b"\n",
        b"rubbish" + bytes(9),
        bytes(MAX_LINE_BYTES) + b"\n",
    ],
)
def test_what_no_crash_leaves_is_a_finding(tmp_path: Path, added: bytes) -> None:
    path = tmp_path / "audit.jsonl"
    audited(path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole + added)
    with pytest.raises(Broken, match=r"audit\.jsonl, line 3: "):
        verify([path])
    if added.startswith(b'{"before":'):
        return  # what was before the first line of the oldest file is not known
    path.write_bytes(added + whole)
    with pytest.raises(Broken, match=r"audit\.jsonl, line 1: "):
        verify([path])


def test_an_overwritten_last_line_and_another_file_are_findings(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audited(path, 1)
    first, last = path.read_bytes().splitlines()
    for wrong in (b"x" * len(last), last + b"x", last[:100] + b"\x01"):
        path.write_bytes(first + b"\n" + wrong + b"\n")
        with pytest.raises(Broken, match="line 2: it is no line of an audit file"):
            verify([path])
    with pytest.raises(Broken, match=r"README\.md, line 1: it is no line"):
        verify([ROOT / "README.md"])
    path.write_bytes(first[:-1])
    with pytest.raises(Broken, match="is no audit file: it has no whole line"):
        verify([path])


def test_without_its_line_no_administrative_request_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, "node-1")
    audit = Audit(file)
    write, left = os.write, 40

    def full(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count, left = min(left, len(data)), 0
        return write(descriptor, data[:count])

    monkeypatch.setattr(os, "write", full)
    with capture_logs() as logged, pytest.raises(StatusError) as refused:
        audit.begin("Admin/DeleteQueue", *WHO)
    assert refused.value.status.reason == "audit_failed"
    assert [each["event"] for each in logged] == ["the audit file cannot be written"]
    with capture_logs() as logged:
        audit.log_in_failed("ann", "ipv4:192.0.2.7:41000", "wrong user or password")
    assert [each["event"] for each in logged] == ["log-in failed", "the audit file cannot be written"]
    monkeypatch.setattr(os, "write", write)
    assert path.read_bytes() == b"", "no part of a line stays"
    Context().run(audit.begin, "Admin/DeleteQueue", *WHO)
    assert verify([path]).lines == 1


@pytest.mark.parametrize("change", ["renamed", "removed", "replaced", "replaced within a line"])
def test_lines_go_to_the_file_of_the_name_also_if_it_was_moved(tmp_path: Path, change: str) -> None:
    path, older = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    file = AuditFile(path, "node-1")
    last = [file.write("event", number=number) for number in range(3)][-1]
    path.rename(older)
    if change == "removed":
        older.unlink()
    elif change == "replaced":
        path.write_bytes(b"")
    elif change == "replaced within a line":
        path.write_bytes(b"x")
    with capture_logs() as logged:
        file.write("event", number=3)
        file.write("event", number=4)
    assert [(each["log_level"], each["file"], each["last_hash"]) for each in logged] == [
        ("warning", str(path), last[:16])
    ]
    assert "renamed, removed or replaced" in logged[0]["event"]
    if change == "replaced within a line":
        assert path.read_bytes().startswith(b'x\n{"before":"')
        return
    assert [(each["number"], each["before"] == last) for each in lines_of(path)] == [(3, True), (4, False)]
    found = verify([path] if change == "removed" else [older, path])
    assert found.lines == (2 if change == "removed" else 5)


def open_files(folder: Path) -> int:
    """How many files of this folder the process has open."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(each).startswith(str(folder))
    return found


def test_a_member_that_goes_on_for_long_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "MAX_FILE_BYTES", 500)
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, "node-1")
    while not path.with_name("audit.jsonl.4").exists():
        file.write("event")
    assert open_files(tmp_path) == 1
    for number in range(4):
        path.rename(tmp_path / f"moved-{number}")
        file.write("event")
    assert open_files(tmp_path) == 1
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: os.rename(tmp_path / "none", path))
        with pytest.raises(FileNotFoundError):
            [file.write("event") for _ in range(10)]
    assert open_files(tmp_path) == 1


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    AuditFile(path, "node-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_chain_goes_on_after_a_file_that_was_moved_while_the_member_was_down(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    AuditFile(path, "node-1").write("event")
    path.rename(moved)
    AuditFile(path, "node-1").write("event")
    assert verify([moved, path]).lines == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none/audit.jsonl", "cannot be used: No such file or directory"),
        ("long", "is no audit file: its last line is too long"),
        ("audit.jsonl", ""),
    ],
)
def test_a_file_that_cannot_be_used_is_told_before_it_is_used(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "long").write_bytes(b"x" * 20_000)
    path = tmp_path / name
    assert wrong_audit_file(path) == ([f"audit_file {path} {why}"] if why else [])
    assert not (tmp_path / "audit.jsonl").exists()


def test_a_file_that_was_made_shorter_is_told_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, "node-1")
    file.write("event", number=0)
    os.truncate(path, 0)
    with capture_logs() as logged:
        last = file.write("event", number=1)
        file.write("event", number=2)
    assert ["shorter" in each["event"] for each in logged] == [True]
    assert verify([path], contains=last).lines == 2


def test_no_administrative_request_begins_while_the_folder_of_the_file_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    audit = Audit(AuditFile(folder / "audit.jsonl", "node-1"))
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StatusError) as refused:
        Context().run(audit.begin, "Admin/DeleteQueue", *WHO)
    assert refused.value.status.reason == "audit_failed"
    folder.mkdir()
    Context().run(audit.begin, "Admin/DeleteQueue", *WHO)
    assert verify([folder / "audit.jsonl"]).lines == 1


@pytest.mark.parametrize(
    ("name", "why", "written"),
    [
        ("\N{GRINNING FACE}" * 255, "the token names no user of the cluster", 38),
        ("", "the token is not accepted: " + '\N{GRINNING FACE}"\x01' * 10_000, 200),
    ],
)
def test_strangers_fill_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str, written: int
) -> None:
    path = tmp_path / "audit.jsonl"
    now_s = 6_000.0
    monkeypatch.setattr("quorum.api.security.audit.time.monotonic", lambda: now_s)
    audit = Audit(AuditFile(path, "n" * 64))
    peer = "ipv6:%5B2001:db8:ffff:ffff:ffff:ffff:ffff:ffff%5D:41000"
    for _ in range(REFUSALS_A_MINUTE + 41):
        audit.log_in_failed(name, peer, why)
    lines = lines_of(path)
    assert len(lines) == REFUSALS_A_MINUTE
    assert (lines[0]["user"], len(lines[0]["outcome"])) == (name[:64], written)
    assert path.stat().st_size < LONGEST_OF_STRANGERS * REFUSALS_A_MINUTE
    now_s += 60
    audit.refused("Queue/Browse", *WHO, "no permission")
    assert lines_of(path)[-1]["left_out"] == 41


def test_the_page_says_how_long_the_lines_are_kept_at_worst() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    shown = re.search(
        r"at most (\d+) lines of ([\d,]+) bytes a minute, so the files have the last (\d+) days", page
    )
    assert shown is not None
    assert shown[1] == str(REFUSALS_A_MINUTE)
    assert shown[2] == f"{LONGEST_OF_STRANGERS:,}"
    a_day = REFUSALS_A_MINUTE * 60 * 24 * LONGEST_OF_STRANGERS
    assert int(shown[3]) == audit_file.KEPT * audit_file.MAX_FILE_BYTES // a_day


def test_another_file_is_not_taken_for_an_audit_file(tmp_path: Path) -> None:
    path = tmp_path / "disk.img"
    path.write_bytes(b"x" * (audit_file.MAX_LINE_BYTES + 1))
    with pytest.raises(ConfigError, match="is no audit file"):
        AuditFile(path, "node-1")
    with pytest.raises(ConfigError, match="cannot be used: No such file"):
        AuditFile(tmp_path / "nowhere" / "audit.jsonl", "node-1")
