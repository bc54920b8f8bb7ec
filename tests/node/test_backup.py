"""Backups of a stopped member (quorum/node/offline/backup.py): whole or not there, and no member runs on one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorum.api import process
from quorum.catalog.commands import DeclareQueue
from quorum.cli.main import app
from quorum.config import NodeConfig
from quorum.errors import ConfigError, OperatorError
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.segments import HEADER_BLOCK
from quorum.log.snapshots.received import received_name
from quorum.node.identity.identity import decode_line, encode_line
from quorum.node.offline.backup import BackupError, create_backup, refuse_backup, verify_backup
from support.log.data_directories import Data, tree

RECEIVED = received_name(1, 9, 1, 20, 0)
"""The file name of a snapshot that was being received."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = Data(tmp_path / "data")
    made.make()
    made.add(0, [DeclareQueue("orders", ())])
    log = made.directory / "log"
    (log / "reserve-1.space").write_bytes(bytes(1_000))
    (log / "MANIFEST.new").write_bytes(b"left by a crash")
    (log / "snapshots").mkdir(exist_ok=True)
    (log / "snapshots" / RECEIVED).write_bytes(b"left by a crash, too")
    return made.directory


def segment(directory: Path) -> Path:
    return next((directory / "log").glob("segment-*.log"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_backup_has_what_a_member_cannot_make_again(data: Path, tmp_path: Path) -> None:
    before = tree(data)
    made = create_backup(data, tmp_path / "backup")
    assert tree(data) == before
    copied = tree(tmp_path / "backup")
    left_out = {"log/reserve-1.space", "log/MANIFEST.new", f"log/snapshots/{RECEIVED}"}
    assert not segment(tmp_path / "backup").stat().st_mode & 0o007, "it has messages"
    assert (data / "log" / "LOCK").exists()
    assert not (tmp_path / "backup" / "log" / "LOCK").exists()
    assert copied.keys() - {"backup.json"} == before.keys() - left_out
    assert all(copied[name] == before[name] for name in copied.keys() & before.keys())
    assert (made.member, made.cluster, made.last_entries[0]) == ("n3", "test", 4)
    assert verify_backup(tmp_path / "backup") == made


def test_what_has_changed_in_a_backup_is_named(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    create_backup(data, backup)
    place = segment(backup)
    (backup / "log" / "strange").write_bytes(b"")
    flip(place, len(place.read_bytes()) - 1)  # never written, and copied all the same
    (backup / "node.json").unlink()
    said = rf"node.json is missing, log/strange does not belong to it, log/{place.name} has changed"
    with pytest.raises(BackupError, match=said):
        verify_backup(backup)
    flip(backup / "backup.json", 40)
    with pytest.raises(BackupError, match="cannot be read: it fails its CRC"):
        verify_backup(backup)


def test_no_backup_is_made_of_damaged_data(data: Path, tmp_path: Path) -> None:
    flip(segment(data), HEADER_BLOCK + HEADER_BYTES)
    with pytest.raises(BackupError, match="is damaged"):
        create_backup(data, tmp_path / "backup")
    assert sorted(os.listdir(tmp_path)) == ["data"]


def test_no_backup_is_made_of_a_member_that_runs(data: Path, tmp_path: Path) -> None:
    log = Data(data).log()
    with pytest.raises(OperatorError, match="a process uses"):
        create_backup(data, tmp_path / "backup")
    log.close()
    assert sorted(os.listdir(tmp_path)) == ["data"]


def test_a_backup_that_was_interrupted_is_made_again(data: Path, tmp_path: Path) -> None:
    left = tmp_path / "backup.partial"
    (left / "log").mkdir(parents=True)
    for name in ("log/half", "node.json", "node.json.new", "backup.json", "backup.json.new"):
        (left / name).write_bytes(b"x")
    create_backup(data, tmp_path / "backup")
    assert verify_backup(tmp_path / "backup").member == "n3"
    assert not left.exists()


def test_a_directory_of_something_else_is_not_removed(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "backup.partial"
    other.mkdir()
    (other / "letter.txt").write_bytes(b"not ours")
    with pytest.raises(BackupError, match=r"is in the way, and holds other files: letter\.txt"):
        create_backup(data, tmp_path / "backup")
    assert tree(other).keys() == {"letter.txt"}


def test_a_backup_goes_to_a_new_directory_elsewhere(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    for target, said in (
        (data, "exists"),
        (data / "backup", "is inside of"),
        (tmp_path / "link" / "backup", "is inside of"),
        (tmp_path / "none" / "backup", "is no directory"),
    ):
        with pytest.raises(BackupError, match=said):
            create_backup(data, target)


def test_a_backup_is_on_disk_before_it_has_its_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, partial = tmp_path / "backup", tmp_path / "backup.partial"
    done: list[Path | str] = []
    fsync, fdatasync, rename = os.fsync, os.fdatasync, os.rename

    def synced(sync: Callable[[int], None], descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def renamed(source: Path, place: Path) -> None:
        rename(source, place)
        done.append(f"renamed to {Path(place).name}")

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced(fsync, descriptor))
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced(fdatasync, descriptor))
    monkeypatch.setattr(os, "rename", renamed)
    create_backup(data, target)
    monkeypatch.undo()
    at = done.index("renamed to backup")
    folders = {partial, partial / "log", partial / "log" / "snapshots"}
    files = {partial / name for name in tree(target)} - {partial / "backup.json"}
    assert folders | files | {partial / "backup.json.new"} == set(done[:at]) - {"renamed to backup.json"}
    assert done[at + 1 :] == [tmp_path]


def test_a_copy_is_whole_where_the_disk_takes_few_bytes_at_a_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, piece: write(descriptor, piece[:10_000]))
    create_backup(data, tmp_path / "backup")
    assert verify_backup(tmp_path / "backup").size > 10_000


def test_a_backup_of_another_format_is_refused(data: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "backup" / "backup.json"
    create_backup(data, manifest.parent)
    fields = decode_line(manifest.read_bytes())
    manifest.write_bytes(encode_line({**fields, "quorum_backup": 2}))
    with pytest.raises(BackupError, match="has format 2; this release reads 1"):
        verify_backup(manifest.parent)


def test_no_member_runs_on_a_backup(data: Path, tmp_path: Path) -> None:
    create_backup(data, tmp_path / "backup")
    refuse_backup(data)
    with pytest.raises(ConfigError, match="is a backup, and no member runs on one"):
        refuse_backup(tmp_path / "backup")
    with pytest.raises(ConfigError, match="is a backup"):
        create_backup(tmp_path / "backup", tmp_path / "another")
    before = tree(tmp_path / "backup")
    config = NodeConfig(
        name="n3",
        data_dir=tmp_path / "backup",
        secret_file=tmp_path / "secret",
        members={"n3": {"peer": "127.0.0.1:7401", "client": "127.0.0.1:7400"}},
    )
    with pytest.raises(ConfigError, match="is a backup, and no member runs on one"):
        process.run(config)
    assert tree(tmp_path / "backup") == before


def test_the_commands_say_what_is_in_a_backup(data: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["backup", "create", str(data), str(tmp_path / "backup")])
    assert said.exit_code == 0
    assert "n3 of cluster test" in said.output
    assert "group 0               4    last entry" in said.output
    assert CliRunner().invoke(app, ["backup", "verify", str(tmp_path / "backup")]).output == said.output
