"""A member that starts, and one that cannot, as an operator sees it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quorum import sync
from quorum.api.listening import check_ports
from quorum.cli.console import print_error
from quorum.config import load
from quorum.errors import ClusterError, OperatorError
from quorum.local_cluster import cluster as local_cluster
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.ports import HOST, free_ports

LIMIT_S = 120.0


def started(cluster: LocalCluster) -> dict[str, str]:
    """The line of the log about the start."""
    [member] = cluster.members
    lines = [json.loads(line) for line in member.output.read_text().splitlines()]
    return next(line for line in lines if line["event"] == "started")


def test_the_line_about_the_start_names_the_ports_and_those_with_tls(tmp_path: Path) -> None:
    http = f"{HOST}:{free_ports(1)[0]}"
    for secured, settings, expected in (
        (False, {}, ("off", "off")),
        (True, {"http_listen": http}, (http, "clients, peers, http")),
    ):
        cluster = LocalCluster(
            tmp_path / str(secured), 1, secured=secured, settings={"log_format": "json", **settings}
        )
        with cluster:
            cluster.start()
            cluster.wait_ready()
        line = started(cluster)
        assert (line["http"], line["tls"]) == expected
        assert (line["clients"], line["peers"]) == (cluster.members[0].client, cluster.members[0].peer)


def refused(config: Path) -> subprocess.CompletedProcess[str]:
    """The ended process of a member that does not start."""
    return subprocess.run(
        [sys.executable, "-m", "quorum", "node", "--config", str(config)],
        env={key: value for key, value in os.environ.items() if not key.startswith("QUORUM_")},
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        text=True,
    )


def test_a_member_that_others_reach_without_tls_does_not_start(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", 1, settings={"listen": f"0.0.0.0:{free_ports(1)[0]}"})
    [member] = cluster.members
    done = refused(member.config)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {member.config}: ports that other machines reach have no TLS: 0.0.0.0:")
    assert not member.data.exists()


def test_a_member_that_may_be_reached_without_tls_says_so(tmp_path: Path) -> None:
    line = "connections without TLS can be read on the network"
    for name, settings, told in (
        ("own", {}, False),
        ("all", {"listen": f"0.0.0.0:{free_ports(1)[0]}", "allow_plain_text": "true"}, True),
    ):
        cluster = LocalCluster(tmp_path / name, 1, settings={"log_format": "json", **settings})
        [member] = cluster.members
        cluster.start()
        try:
            deadline = time.monotonic() + LIMIT_S
            while '"started"' not in (output := member.output.read_text()):
                assert time.monotonic() < deadline, output
                time.sleep(0.05)
        finally:
            cluster.stop()
        found = [
            each for each in map(json.loads, member.output.read_text().splitlines()) if each["event"] == line
        ]
        assert [each.get("clients") for each in found] == ([settings.get("listen")] if told else [])


@pytest.mark.parametrize("port", ["clients", "peers", "HTTP"])
def test_a_taken_port_is_one_line_and_no_traceback(tmp_path: Path, port: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        address = f"{HOST}:{taken.getsockname()[1]}"
        cluster = LocalCluster(tmp_path / "c", 1, settings={"http_listen": address} if port == "HTTP" else {})
        [member] = cluster.members
        if port != "HTTP":
            own = member.client if port == "clients" else member.peer
            member.config.write_text(member.config.read_text().replace(own, address))
        done = refused(member.config)
    assert done.returncode == 1
    assert not member.data.exists(), "nothing is founded, so the configuration can still be changed"
    [line] = done.stderr.splitlines()
    assert "Address already in use" in line and address in line
    assert port != "peers" or line.startswith("error: cannot listen for members on")


def test_all_taken_ports_are_told(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        client, http = (f"{HOST}:{each.getsockname()[1]}" for each in (one, other))
        cluster = LocalCluster(tmp_path / "c", 1, settings={"listen": client, "http_listen": http})
        config = load(cluster.members[0].config)
        with pytest.raises(OperatorError) as caught:
            check_ports(config)
    used = "Address already in use"
    assert str(caught.value).splitlines() == [
        f"cannot listen for clients on {client}: {used}",
        f"cannot listen for HTTP on {http}: {used}",
    ]
    check_ports(config)


def test_only_the_output_of_this_start_is_told_and_marked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = LocalCluster(tmp_path / "c", 1)
    [member] = cluster.members
    member.output.write_text("error: of an earlier start\n")
    member.config.write_text("name = 1\n")
    cluster.start()
    with pytest.raises(ClusterError) as caught:
        cluster.wait_ready()
    cluster.stop()
    assert "name is 1; allowed: a text" in str(caught.value)
    assert "of an earlier start" not in str(caught.value)
    print_error(str(caught.value))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1 and all(line.count("error:") == 1 for line in lines)


def test_a_cluster_with_users_starts_again_without_a_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUORUM_USER", "QUORUM_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    with LocalCluster(tmp_path / "c", 1) as cluster:
        with sync.connect(cluster.url) as client:
            client.set_user("admin", "of the admin", administers=True)
        [name] = cluster.names
        cluster.restart(name)
        assert cluster.status(name) is None  # who asks has to log in
        monkeypatch.setattr(local_cluster, "listeners", lambda port: [])
        with pytest.raises(ClusterError, match="does not serve"):  # another process may have its port
            cluster.wait_ready([name], 1.0)
