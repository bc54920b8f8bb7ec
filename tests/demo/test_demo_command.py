"""The whole demo with real member processes, as `make demo` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.repository import environment

LIMIT_S = 280.0


def test_the_demo_loses_nothing_and_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quorum", "demo", "--dir", str(tmp_path / "cluster")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost: 0" in done.stdout
    assert "with SIGKILL" in done.stdout
    assert "was started again" in done.stdout
    assert [step for step in ("routed:", "dead letter:", "transaction:") if step not in done.stdout] == []
    assert list((tmp_path / "cluster").rglob("*.pid")) == []
