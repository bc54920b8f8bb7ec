"""The first user of a member whose address for clients is not a loopback address, as docs/security.md makes it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import quorum.sync
from quorum.client.errors import PermissionRefused
from quorum.local_cluster import ports
from quorum.local_cluster.cluster import LocalCluster
from support.repository import ROOT

LIMIT_S = 60.0
PLACE, MEMBER = "/etc/quorum", "node-1.example:7400"


def own_address() -> str:
    """An address of this machine that is not a loopback address. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has only loopback addresses")
        return str(probe.getsockname()[0])


def commands() -> list[str]:
    """The lines of the page's section that a shell runs, in order."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    [section] = re.findall(r"### The first user\n(.*?)\n### ", page, re.DOTALL)
    return [line.strip() for line in section.splitlines() if line.startswith(" " * 8)]


def test_the_commands_of_the_page_make_the_first_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "HOST", own_address())
    cluster = LocalCluster(tmp_path / "etc", 1, secured=True)
    shutil.copy(cluster.files.certificates / "ca.pem", cluster.files.directory)
    written, owned, address, *rest = commands()
    subprocess.run(["sh", "-ec", written.replace(PLACE, str(cluster.files.directory))], check=True)
    assert owned.startswith("chown ")
    assert cluster.files.administrator_file.name in written
    with cluster:
        url = address.removeprefix("export QUORUM_URL=").replace(MEMBER, cluster.member("node-1").client)
        program = f'quorum() {{ {shlex.quote(sys.executable)} -m quorum "$@"; }}'
        lines = [program, f"export QUORUM_URL={url}", *rest, "quorum users list --json"]
        done = subprocess.run(
            ["sh", "-ec", "\n".join(lines).replace(PLACE, str(cluster.files.directory))],
            env={name: value for name, value in os.environ.items() if not name.startswith("QUORUM_")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert '"name": "admin"' in done.stdout
        refused = f"quorums://{cluster.member('node-1').client}/?ca_file={cluster.files.directory}/ca.pem"
        assert "a user and a password are needed" in ending(refused)


def ending(url: str) -> str:
    """The error of a client without a log-in."""
    with pytest.raises(PermissionRefused) as found, quorum.sync.connect(url) as client:
        client.users()
    return str(found.value)
