"""How a member's process ends that meets a defect of its own, or data of a newer release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quorum.errors import TOO_OLD
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


OLD_RELEASE = """
import sys
from fifo.versions import CURRENT, check_version
from quorum.api import process
from quorum.cli.main import main

def meets_a_newer_state(*_, **__):
    check_version("the catalog's state", CURRENT + 1, CURRENT)

process.Member = meets_a_newer_state
sys.argv[1:] = ["node", "--config", sys.argv[1]]
main()
"""


def test_data_that_a_newer_release_has_used_is_no_reason_to_start_again(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "secret").chmod(0o600)
    peer, client = free_ports(2)
    (tmp_path / "node.toml").write_text(
        f'name = "n1"\ndata_dir = "{tmp_path}/data"\nsecret_file = "{tmp_path}/secret"\n'
        f'[members.n1]\npeer = "127.0.0.1:{peer}"\nclient = "127.0.0.1:{client}"\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", OLD_RELEASE, str(tmp_path / "node.toml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDS_S,
    )
    assert done.returncode == TOO_OLD, done.stdout + done.stderr
    assert f"error: data_dir {tmp_path}/data was used by a newer release: " in done.stderr
    assert "Traceback" not in done.stderr
