"""A member's process that meets a defect of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quorum.local_cluster.ports import free_ports

ENDS_S = 120
PROGRAM = """
import asyncio, sys, threading
from quorum.api import process
from quorum.config import NodeConfig

async def fails(*_):
    await asyncio.sleep(0)
    raise ValueError("a defect")

process.watch_health = fails
directory, peer, client = sys.argv[1:]
config = NodeConfig(
    name="n1",
    data_dir=directory + "/data",
    secret_file=directory + "/secret",
    members={"n1": {"peer": "127.0.0.1:" + peer, "client": "127.0.0.1:" + client}},
)
try:
    process.run(config)
except ValueError as error:
    print(error, "raft" in [each.name for each in threading.enumerate()])
"""


def test_a_defect_ends_the_raft_thread_before_the_log_is_closed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "secret").chmod(0o600)
    ports = map(str, free_ports(2))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *ports],
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDS_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "a defect False"
