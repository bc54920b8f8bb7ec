"""The whole demo with real member processes, as `make demo` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.repository import ROOT

LIMIT_S = 280.0


def test_the_demo_loses_nothing_and_says_so(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("QUORUM_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(part) for part in (ROOT, ROOT / "selectors"))
    done = subprocess.run(
        [sys.executable, "-m", "quorum", "demo", "--dir", str(tmp_path / "cluster")],
        env=environment,
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
