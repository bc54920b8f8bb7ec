"""What is shown of one file of a log (quorum/log/inspection.py), where its bytes could be taken for something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorum.log import Log, LogDamaged, inspect
from quorum.log.inspection import FileKind, inspect_snapshot, kind_of
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.segments import HEADER_BLOCK, segment_path
from support.log.disk import SimDisk
from support.log.model import DIRECTORY

ONE = segment_path(DIRECTORY, 1)


def with_a_copy(follows: bytes) -> SimDisk:
    """A segment with three entries. The second one is a copy of the header of the first one, which has 3,000 bytes, and
    what follows it there."""
    disk = SimDisk()
    log = Log.open(DIRECTORY, disk, segment_bytes=1_000_000, recent_bytes=0)
    journal = log.journal(7)
    journal.append([b"\1" * 3000], 1, 1)
    log.sync()
    header = bytes(disk.names[ONE].data[HEADER_BLOCK : HEADER_BLOCK + HEADER_BYTES])
    journal.append([header + follows], 2, 1)
    journal.append([b"last"], 3, 1)
    log.sync()
    return disk


@pytest.mark.parametrize("follows", [b"\1" * 3000, b"x"])
def test_a_header_that_a_client_has_published_is_no_record(follows: bytes) -> None:
    shown = list(inspect(ONE, with_a_copy(follows)))
    assert [(record.index, record.problem) for record in shown] == [(1, None), (2, None), (3, None)]


def test_a_header_in_a_record_that_is_lost_hides_no_record_behind_it() -> None:
    disk = with_a_copy(b"x" * 10)
    lost = HEADER_BLOCK + HEADER_BYTES + 3000
    disk.flip(ONE, (lost + 20) * 8)
    shown = list(inspect(ONE, disk))
    assert [(record.index, record.offset - lost) for record in shown] == [
        (1, -HEADER_BYTES - 3000),
        (1, HEADER_BYTES),
        (3, 2 * HEADER_BYTES + 10),
    ]
    assert [record.problem for record in shown] == [
        None,
        "the body fails its CRC",
        f"{2 * HEADER_BYTES + 10} bytes before it are no record",
    ]


def test_a_file_of_zeros_is_of_the_reserve_by_its_name_only(tmp_path: Path) -> None:
    for name, data, kind in (
        ("reserve-1.space", bytes(100), FileKind.RESERVE),
        ("other", bytes(100), None),
        ("reserve-1.space", b"QUORUMLG" + bytes(100), FileKind.SEGMENT),
    ):
        (tmp_path / name).write_bytes(data)
        assert kind_of(tmp_path / name) == kind


def test_a_snapshot_whose_header_is_damaged_cannot_be_shown(tmp_path: Path) -> None:
    (tmp_path / "1.snapshot").write_bytes(b"QUORUMSN" + bytes(100))
    with pytest.raises(LogDamaged, match=str(tmp_path)):
        inspect_snapshot(tmp_path / "1.snapshot")
