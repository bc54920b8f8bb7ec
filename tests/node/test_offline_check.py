"""The offline check of a data directory (quorum/node/offline/offline_check.py) and `quorum log inspect`: what is
damaged is found and named, what is whole is called good, and no file makes them fail."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from fifo import commands as c
from quorum.catalog.machine import CatalogMachine
from quorum.cli.commands import data_files
from quorum.cli.console import CliError
from quorum.cli.main import app
from quorum.log import Log, Retained, inspect
from quorum.log.files import RealFiles
from quorum.log.inspection import FileKind, kind_of
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.manifest import decode_manifest, encode_manifest
from quorum.log.segment_files.segments import HEADER_BLOCK
from quorum.log.table import Cut
from quorum.node.identity.identity import Founding, IdentityError, read_identity, record_start
from quorum.node.identity.log_owner import claim_log
from quorum.node.offline.lost_log import open_log
from quorum.node.offline.offline_check import (
    BLOCK,
    FETCH,
    REPLACE,
    SNAPSHOT,
    START,
    CannotCheck,
    Finding,
    Report,
    check,
)
from support.members.cluster import Cluster, Session, batch, enqueue

SEGMENT = 60_000
BODY = b"b" * 2_000


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """A member's files by name: a group of one that has published, settled some, and taken snapshots."""
    cluster = Cluster(
        size=1,
        queue_groups=1,
        snapshot_bytes=30_000,
        log={"segment_bytes": SEGMENT, "recent_bytes": 0, "reserve_segments": 1},
    )
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    for _ in range(60):
        session.publish(group, queue, BODY)
        cluster.run(5)
    cluster.until(lambda: len(session.confirmed()) == 60, "confirms")
    for _ in range(20):
        session.call(group, c.Get(queue, 1, settled=True))
    session.call(group, enqueue(queue, 61, [BODY]), batch([BODY]))
    log = cluster.logs["n1"]
    log.sync()
    log.mark_if_quiet(0)
    log.mark_if_quiet(10)
    found = {}
    for path, inode in cluster.disks["n1"].names.items():
        name = str(path.relative_to("/data"))
        found[name] = bytes(inode.data)
    assert sum(name.endswith(".snapshot") for name in found) >= 2
    assert sum(name.startswith("log/segment-") for name in found) >= 3
    return found


@pytest.fixture
def directory(files: dict[str, bytes], tmp_path: Path) -> Path:
    for name, data in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    record_start(tmp_path / "data", "n1", Founding("test", 1, ("n1",)), 1)
    return tmp_path / "data"


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def only(report: Report) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "log").glob("segment-*.log"))


def entries(path: Path) -> list[tuple[int, int, int]]:
    """(offset, group, index) of the segment's entries with a body."""
    return [
        (each.offset, each.group, each.index)
        for each in inspect(path)
        if each.kind == "ENTRY" and each.length > 100
    ]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_whole_directory_is_good_and_left_as_it_is(directory: Path) -> None:
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    report = check(directory)
    assert report.is_good, report.findings
    assert report.member == "n1 of cluster test"
    assert (report.segments, report.groups) == (len(segments(directory)), 2)
    assert report.records > 80
    assert report.snapshots >= 2
    assert report.notes == []
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    log = Log.open(directory / "log", segment_bytes=SEGMENT)
    assert log.last_lsn == report.last_lsn + 1, "but for the mark that opening writes"
    log.close()


def test_any_flipped_byte_that_means_something_is_found(directory: Path) -> None:
    """Every 1,499th byte of every file, and the first ones of each."""
    active = segments(directory)[-1]
    used = max(each.offset for each in inspect(active))
    tried = 0
    for path in sorted(directory.rglob("*")):
        if not path.is_file() or path.name == "LOCK" or path.name.startswith("reserve-"):
            continue
        data = path.read_bytes()
        end = used if path == active else len(data)  # the mark at the very end may be taken for a torn one
        for offset in [*range(0, min(64, end), 7), *range(64, end, 1_499)]:
            flip(path, offset)
            report = check(directory)
            if path.suffix == ".index":  # no damage: it can be made again
                assert report.is_good
                assert any(path.name in note for note in report.notes), f"{path.name} at {offset}"
            else:
                assert not report.is_good, f"{path.name} at {offset}"
                assert any(path.name in each.file for each in report.findings), f"{path.name} at {offset}"
            path.write_bytes(data)
            tried += 1
    assert tried > 120
    assert check(directory).is_good


def test_a_bad_body_is_named_with_its_entry_and_with_the_snapshots_that_need_it(directory: Path) -> None:
    offset, group, index = next(each for each in entries(segments(directory)[1]) if each[1] == 1)
    flip(segments(directory)[1], offset + HEADER_BYTES + 50)
    found = check(directory).findings
    assert found[0].file == str(segments(directory)[1])
    assert found[0].offset == offset
    assert f"ENTRY of group {group}, term" in found[0].what
    assert f"index {index}" in found[0].what
    assert "cannot be read from this member" in found[0].means
    assert any(f"lacks entries {index}, which messages in the snapshot" in each.what for each in found[1:])


def test_a_bad_page_is_named_with_the_snapshots_that_need_it(directory: Path) -> None:
    pages = [(path, each) for path in segments(directory) for each in inspect(path) if each.kind == "PAGE"]
    path, page = pages[-1]
    flip(path, page.offset + HEADER_BYTES)
    found = check(directory).findings
    assert (found[0].file, found[0].offset) == (str(path), page.offset)
    assert any("lacks 1 pages of the snapshot at" in each.what for each in found[1:])
    assert any(f"LSN {page.lsn} first" in each.what for each in found[1:])


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (lambda d: segments(d)[0].unlink(), "the manifest lists this file, but it is missing"),
        (lambda d: segments(d)[0].write_bytes(segments(d)[0].read_bytes()[:-1]), "shorter than"),
        (
            lambda d: segments(d)[1].write_bytes(segments(d)[0].read_bytes()),
            "another file than the manifest lists",
        ),
        (lambda d: (d / "log" / "MANIFEST").unlink(), "it is gone"),
        (lambda d: flip(d / "log" / "MANIFEST", 100), "fails its CRC"),
        (lambda d: (d / "node.json").unlink(), "it is gone"),
        (lambda d: flip(d / "node.json", 12), "fails its CRC"),
        (lambda d: claim_log(d / "log", "00" * 16, RealFiles()), "is from another data directory than"),
        (lambda d: flip(sorted(d.glob("log/snapshots/*"))[-1], 60), "fails its CRC"),
    ],
)
def test_what_is_gone_or_wrong_is_told_with_what_to_do(directory: Path, do: object, said: str) -> None:
    assert callable(do)
    do(directory)
    found = check(directory).findings
    assert said in found[0].what
    assert found[0].means
    assert found[0].advice


@pytest.mark.parametrize(
    ("do", "advice", "is_set_aside"),
    [
        (lambda d: segments(d)[0].unlink(), START, True),
        (lambda d: flip(segments(d)[0], 20), BLOCK, False),
        (lambda d: flip(segments(d)[-1], 20), START, True),
        (lambda d: (d / "log" / "MANIFEST").unlink(), START, True),
        (lambda d: flip(d / "log" / "MANIFEST", 100), START, True),
        (lambda d: flip(segments(d)[0], entries(segments(d)[0])[-1][0] + HEADER_BYTES), FETCH, False),
        (lambda d: flip(sorted(d.glob("log/snapshots/*"))[-1], 60), SNAPSHOT, False),
        (lambda d: flip(d / "node.json", 12), REPLACE, False),
    ],
)
def test_the_advice_is_to_start_the_member_if_it_can_start(
    directory: Path, do: Callable[[Path], None], advice: str, is_set_aside: bool
) -> None:
    """Before, it was not to start it, although the member repairs all of this by itself."""
    do(directory)
    assert [each.advice for each in check(directory).causes] == [advice]
    if advice == REPLACE:
        with pytest.raises(IdentityError):
            read_identity(directory, RealFiles())
        return
    assert read_identity(directory, RealFiles()) is not None
    log = open_log(directory, groups=2, has_begun=True, has_others=True, segment_bytes=SEGMENT)
    log.close()
    assert (directory / "log.damaged-1").exists() == is_set_aside


def test_a_bad_first_block_is_told_at_the_start_and_good_afterwards(directory: Path) -> None:
    """The rest of the segment is checked and kept."""
    good = check(directory)
    flip(segments(directory)[0], 20)
    found = check(directory)
    assert (found.records, found.last_entries) == (good.records, good.last_entries)
    assert only(found).what == "the segment's first block fails its CRC"
    with capture_logs() as told:
        open_log(directory, groups=2, has_begun=True, has_others=False, segment_bytes=SEGMENT).close()
    assert [(each["event"], each["finding"]) for each in told] == [
        (
            "file damaged",
            f"{segments(directory)[0]} at byte 0: the segment's first block fails its CRC; "
            "the segment's first block is written again",
        )
    ]
    assert check(directory).is_good


def test_one_cause_has_one_advice_and_what_follows_from_it_has_none(directory: Path) -> None:
    segments(directory)[0].unlink()
    report = check(directory)
    assert len(report.findings) > 2
    assert len(report.causes) == 1
    told = run("check", str(directory)).stdout
    assert (told.count("DAMAGE: "), told.count("  do: ")) == (1, 1)
    assert told.count("follows from this damage: group ") == len(report.findings) - 1
    assert told.endswith("\n1 finding\n")


def test_without_any_snapshot_what_the_journal_needs_is_missed(directory: Path) -> None:
    """The log begins later than the entries that are left."""
    log = Log.open(directory / "log", segment_bytes=SEGMENT)
    log.journal(1).load_snapshot()
    last = log.journal(1).last_index
    log.journal(1).reset_to_snapshot(last + 9, 5)
    log.journal(1).append([b"x"], last + 10, 5)
    log.sync()
    log.close()
    assert f"lacks entries {last + 1}..{last + 9} behind" in only(check(directory)).what


def collected(directory: Path) -> int:
    """A group's log in which entries were cut, others stand in their places, and what nobody needs was collected; its
    last one."""
    log = Log.open(directory / "log", segment_bytes=SEGMENT)
    journal = log.journal(9)
    journal.append([b"1" * 2_000], 1, 1)
    for index in range(2, 60):
        journal.append([b"cut" * 700], index, 1)
    journal.truncate_from(2)
    for index in range(2, 80):
        journal.append([b"kept" * 500], index, 2)
    log.sync()
    journal.save_snapshot(70, 2, CatalogMachine((1,)).snapshot())
    log.retain(9, [Retained(70, array("Q", [1]), array("Q"))])
    journal.compact_to(60, 2)
    for index in range(80, 120):
        journal.append([b"kept" * 500], index, 2)
    log.sync()
    log.survey()
    while (plan := log.plan_collection()) is not None:
        plan.run()
        assert log.adopt(plan)
        log.survey()
    log.close()
    assert "TRUNCATE" not in {each.kind for path in segments(directory) for each in inspect(path)}
    return 119


def of_group_nine(directory: Path) -> list[Finding]:
    """Its snapshot is no member's, and a finding."""
    return [each for each in check(directory).findings if "group 9" in each.what]


def test_what_was_cut_or_collected_on_purpose_is_no_damage(directory: Path) -> None:
    collected(directory)
    assert of_group_nine(directory) == []


def test_what_the_manifest_states_and_the_log_lacks_is_damage(directory: Path) -> None:
    """No byte of any record is wrong: the manifest alone knows that something should be there."""
    last = collected(directory)
    path = directory / "log" / "MANIFEST"
    manifest = decode_manifest(path.read_bytes(), path)
    state = manifest.groups[9]
    for changed, said in [
        (replace(state, last_index=last + 3), f"lacks entries {last + 1}..{last + 3} behind its newest"),
        (replace(state, first_index=20), "a journal from entry 20 to 119, and lacks entries 20.."),
        (replace(state, cuts=(Cut(1 << 40, 90, 92),)), "lacks entries 90..92 behind its newest"),
    ]:
        stated = replace(manifest, stated=1 << 39, groups={**manifest.groups, 9: changed})
        path.write_bytes(encode_manifest(stated))
        (found,) = of_group_nine(directory)
        assert said in found.what
        assert found.means


def test_an_end_that_was_never_synced_is_no_damage(directory: Path) -> None:
    active = segments(directory)[-1]
    log = Log.open(directory / "log", segment_bytes=SEGMENT)
    log.journal(1).load_snapshot()
    for _ in range(3):
        log.journal(1).append([BODY], log.journal(1).last_index + 1, 9)
    log.sync()
    log.close()
    first = entries(active)[-3]
    flip(active, first[0] + 5)
    report = check(directory)
    assert report.is_good, report.findings
    assert any("were never synced; the next start cuts them" in note for note in report.notes)


def test_leftovers_of_a_crash_are_noted(directory: Path) -> None:
    (directory / "log" / "MANIFEST.new").write_bytes(b"half")
    (directory / "log" / "snapshots" / "mine.txt").write_bytes(b"?")
    report = check(directory)
    assert report.is_good
    assert len(report.notes) == 2


def test_a_running_member_and_a_wrong_folder_cannot_be_checked(directory: Path, tmp_path: Path) -> None:
    log = Log.open(directory / "log", segment_bytes=SEGMENT)
    with pytest.raises(CannotCheck, match="stop the member first"):
        check(directory)
    log.close()
    with pytest.raises(CannotCheck, match="name the folder above it"):
        check(directory / "log")
    with pytest.raises(CannotCheck, match="no folder 'log'"):
        check(tmp_path / "nowhere")
    (tmp_path / "node-3" / "data" / "log").mkdir(parents=True)
    with pytest.raises(CannotCheck, match=r"no folder 'log'; name the folder .*/node-3/data"):
        check(tmp_path / "node-3")


# ---- the commands


def test_the_command_tells_people_and_programs_and_its_status_tells_scripts(directory: Path) -> None:
    good = run("check", str(directory))
    assert good.exit_code == 0
    assert good.stdout.splitlines()[-1] == "good"
    offset = entries(segments(directory)[0])[-1][0]
    flip(segments(directory)[0], offset + HEADER_BYTES)
    bad = run("check", str(directory))
    assert bad.exit_code == 1
    assert f"DAMAGE: {segments(directory)[0]} at byte {offset}: the body fails its CRC" in bad.stdout
    as_json = run("check", "--json", str(directory))
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert report["good"] is False
    assert report["findings"][0]["offset"] == offset
    nowhere = run("check", str(directory / "log"))
    assert isinstance(nowhere.exception, CliError)
    assert nowhere.exception.status == data_files.CANNOT_CHECK


def test_every_kind_of_file_can_be_looked_into(directory: Path) -> None:
    kinds = {}
    for path in sorted((directory / "log").rglob("*")):
        if not path.is_file() or path.name == "LOCK":
            continue
        kind = kind_of(path)
        assert kind is not None, path
        kinds[kind] = path
        shown, lines = run("log", "inspect", str(path)), run("log", "inspect", "--json", str(path))
        assert (shown.exit_code, lines.exit_code) == (0, 0), shown.output
        assert (
            len(shown.stdout.splitlines())
            == len([json.loads(line) for line in lines.stdout.splitlines()])
            > 0
        )
    assert set(kinds) == set(FileKind)
    manifest = run("log", "inspect", str(kinds[FileKind.MANIFEST])).stdout.splitlines()
    assert manifest[0].startswith("segment 1 LSN 1..")
    assert manifest[-1].endswith("active")
    assert "of group 1 at term" in run("log", "inspect", str(kinds[FileKind.SNAPSHOT])).stdout


def test_bad_files_are_told_apart_from_files_of_others(directory: Path, tmp_path: Path) -> None:
    snapshot = sorted(directory.glob("log/snapshots/*"))[0]
    flip(snapshot, 70)
    found = run("log", "inspect", str(snapshot))
    assert found.exit_code == 1
    assert "BAD: chunk 0 fails its CRC" in found.stdout
    flip(segments(directory)[0], HEADER_BLOCK + HEADER_BYTES + 1)
    assert run("log", "inspect", str(segments(directory)[0])).exit_code == 1
    (tmp_path / "text").write_bytes(b"hello")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("text", "empty"):
        other = run("log", "inspect", str(tmp_path / name))
        assert isinstance(other.exception, CliError)
        assert "is not a file of a log" in str(other.exception)
