"""The disk with faults that member processes run on in these tests (support/log/faulty_files.py)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quorum.log.files import commit_file, prepare_file, read_file
from support.log.disk import SECTOR
from support.log.faulty_files import SIDE, Faults, FaultyFiles, PowerCut

OLD, NEW = b"o" * SECTOR, b"n" * SECTOR
LOSES_ALL, KEEPS_SOME = 6, 4
"""Seeds, as test_the_seeds_are_what_they_are_called says."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def disk(folder: Path, seed: int = LOSES_ALL) -> FaultyFiles:
    return FaultyFiles(folder.parent / "faults.json", PowerCut(folder.parent / SIDE, seed, patience_s=0.0))


def test_what_was_synced_stays_and_what_was_not_goes(folder: Path) -> None:
    files = disk(folder)
    file = files.create(folder / "a")
    files.sync_directory(folder)
    file.pwritev([OLD * 4], 0)
    file.sync_data()
    file.pwritev([NEW * 4], SECTOR)  # over three old sectors and beyond the end
    assert (folder / "a").read_bytes() == OLD + NEW * 4
    files.power.cut()
    assert (folder / "a").read_bytes() == OLD * 4


def test_a_cut_that_keeps_something_tears_writes_at_sectors(folder: Path) -> None:
    files = disk(folder, KEEPS_SOME)
    file = files.create(folder / "a")
    files.sync_directory(folder)
    file.pwritev([OLD * 64], 0)
    file.sync_data()
    file.pwritev([NEW * 64], 0)
    assert "64 sectors of 1 files were not durable" in files.power.cut()
    data = (folder / "a").read_bytes()
    sectors = [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]
    assert set(sectors) == {OLD, NEW}
    assert sectors != sorted(sectors), "not in order"


def test_a_write_while_a_sync_is_on_its_way_is_not_covered_by_it(folder: Path) -> None:
    files = disk(folder)
    file = files.create(folder / "a")
    files.sync_directory(folder)
    handle = file._handle  # type: ignore[attr-defined]
    file.pwritev([OLD], 0)
    with files.power.sync(handle):
        file.pwritev([NEW], 0)
    files.power.cut()
    assert (folder / "a").read_bytes() == OLD


def test_names_are_as_the_directory_was_last_synced(folder: Path) -> None:
    files = disk(folder)
    prepare_file(files, folder / "a", [OLD])
    commit_file(files, folder / "a")
    prepare_file(files, folder / "a", [NEW])
    files.rename(folder / "a.new", folder / "a")  # no sync of the directory
    files.create(folder / "b").close()
    assert read_file(files, folder / "a") == NEW
    files.power.cut()
    assert read_file(disk(folder), folder / "a") == OLD
    assert not (folder / "b").exists()


def test_a_removed_name_is_back_until_its_directory_is_synced(folder: Path) -> None:
    files = disk(folder)
    for name in ("a", "b"):
        prepare_file(files, folder / name, [OLD])
        commit_file(files, folder / name)
    files.unlink(folder / "a")
    files.sync_directory(folder)
    files.unlink(folder / "b")
    files.power.cut()
    assert sorted(path.name for path in folder.iterdir()) == ["b"]


def test_a_killed_process_loses_nothing(folder: Path) -> None:
    files = disk(folder)
    files.create(folder / "a").pwritev([OLD], 0)
    again = disk(folder)
    again.power.cut()
    assert (folder / "a").read_bytes() == OLD


@pytest.mark.parametrize("what", ["write", "sync"])
def test_the_nth_write_or_sync_fails_and_a_failed_sync_forgets(
    folder: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files = disk(folder)
    file = files.create(folder / "a")
    file.pwritev([OLD], 0)
    file.sync_data()
    Faults(fail=what, after=2).write(folder.parent / "faults.json")
    file.pwritev([NEW], 0)
    file.sync_data()

    def write_and_sync() -> None:
        file.pwritev([OLD], 0)
        file.sync_data()

    with pytest.raises(OSError) as failed:
        write_and_sync()
    assert failed.value.errno == errno.EIO
    assert (folder / "a").read_bytes() == NEW
    assert "touched" not in capfd.readouterr().err
    file.sync_data()
    assert "the disk was touched after it had failed: sync" in capfd.readouterr().err


def test_a_disk_has_the_room_it_is_given(folder: Path) -> None:
    files = disk(folder)
    Faults(room=3 * SECTOR).write(folder.parent / "faults.json")
    files.create(folder / "a").allocate(2 * SECTOR)
    assert files.free_bytes(folder) == SECTOR
    with pytest.raises(OSError) as refused:
        files.create(folder / "b").allocate(2 * SECTOR)
    assert refused.value.errno == errno.ENOSPC
    Faults().write(folder.parent / "faults.json")
    files.open(folder / "b", writable=True).allocate(2 * SECTOR)


def test_the_seeds_are_what_they_are_called(tmp_path: Path) -> None:
    kept = {}
    for seed in (LOSES_ALL, KEEPS_SOME):
        folder = tmp_path / f"{seed}" / "data"
        folder.mkdir(parents=True)
        files = disk(folder, seed)
        files.create(folder / "a").pwritev([NEW * 64], 0)
        kept[seed] = ", 0 kept something" not in files.power.cut()
    assert kept == {LOSES_ALL: False, KEEPS_SOME: True}
