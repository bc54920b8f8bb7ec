"""What is kept of a log that cannot be opened (quorum/node/offline/lost_log.py). tests/node/test_member_quarantine.py
says when a member gets a new log."""

from __future__ import annotations

from pathlib import Path

from quorum.log import Log
from quorum.node.offline.lost_log import begin_again


def mark(log: Path, text: str) -> None:
    (log / "mark").write_text(text, encoding="utf-8")


def test_each_log_that_is_set_aside_is_kept(tmp_path: Path) -> None:
    """It may be the only copy of some data."""
    for number in range(3):
        begin_again(tmp_path, 2)
        mark(tmp_path / "log", str(number))
    kept = {each.name: (each / "mark").read_text() for each in tmp_path.iterdir()}
    assert kept == {"log.damaged-1": "0", "log.damaged-2": "1", "log": "2"}


def test_what_a_crash_has_left_of_a_new_log_is_no_part_of_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "log.new").mkdir()
    (tmp_path / "log.new" / "MANIFEST").write_bytes(b"half")
    begin_again(tmp_path, 2)
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    log = Log.open(tmp_path / "log")
    assert [log.journal(group).hard_state for group in (0, 1)] == [(0, ""), (0, "")]
    log.close()
