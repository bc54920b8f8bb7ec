"""A real process on a real disk, killed with SIGKILL in the middle of its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quorum.log import Log, LogLocked

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60
"""Generous: a round takes a fraction of a second on an idle machine."""

WRITER = """
import sys
from pathlib import Path
from quorum.log import Log

log = Log.open(Path(sys.argv[1]), segment_bytes=300_000)
one, two = log.journal(1), log.journal(2)
print("open", one.last_index, flush=True)
while True:
    for _ in range(7):
        index = one.last_index + 1
        one.append([b"%d:" % index, bytes([index % 251]) * (index * 37 % 5000)], index, 1)
    two.set_hard_state(one.last_index, "me")
    log.sync()
    print(one.last_index, flush=True)
"""


def check(directory: Path, confirmed: int) -> int:
    """The last index after reopening: at least what was confirmed, and every body as it was appended."""
    log = Log.open(directory, segment_bytes=300_000, recent_bytes=0)
    journal = log.journal(1)
    assert journal.last_index >= confirmed
    assert log.journal(2).hard_state[0] >= confirmed
    for index in range(1, journal.last_index + 1):
        assert log.read(1, index) == b"%d:" % index + bytes([index % 251]) * (index * 37 % 5000)
    last = journal.last_index
    log.close()
    return last


def test_a_killed_writer_loses_nothing_that_it_confirmed(tmp_path: Path) -> None:
    confirmed = 0
    for round_number in range(4):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=environment, text=True
        )
        try:
            assert writer.stdout is not None
            for line_number, line in enumerate(writer.stdout):
                if line.startswith("open"):
                    assert int(line.split()[1]) >= confirmed
                    with pytest.raises(LogLocked):
                        Log.open(tmp_path)
                else:
                    confirmed = int(line)
                if line_number >= 20 + 7 * round_number:
                    break
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().splitlines()
            confirmed = max([confirmed, *(int(line) for line in rest)])
        finally:
            writer.kill()
            writer.wait(DEADLINE_S)
            if writer.stdout is not None:
                writer.stdout.close()
        assert writer.returncode == -signal.SIGKILL
        confirmed = check(tmp_path, confirmed)
    assert confirmed > 400
    assert len(list(tmp_path.glob("segment-*.log"))) > 3
