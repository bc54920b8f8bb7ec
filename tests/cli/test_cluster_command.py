"""`quorum cluster` and the commands that use it, with real member processes."""

from __future__ import annotations

import base64
import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorum.errors import ClusterError
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.ports import free_ports
from quorum.local_cluster.processes import ProcessId
from support.forked_commands import ForkedCommands
from support.repository import environment

UP = ("cluster", "up")
LIMIT_S = 120
"""Generous: on a busy machine three interpreters start slowly."""


VARIABLES = environment() | {"FORCE_COLOR": "1"}


class Quorum:
    """The command. Its exit status has to be `status`. `up` is a process from the start of an interpreter: it ends
    although the members that it leaves would hold its output if they had it."""

    def __init__(self, commands: ForkedCommands) -> None:
        self._commands = commands

    def __call__(self, *arguments: str, cwd: Path, status: int = 0) -> str:
        done = (
            subprocess.run(
                [sys.executable, "-m", "quorum", *arguments],
                cwd=cwd,
                env=VARIABLES,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
            if arguments[:2] == UP
            else self._commands.run(*arguments, cwd=cwd, limit_s=LIMIT_S)
        )
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout!r}\n{done.stderr!r}"
        return done.stdout.decode() + (done.stderr.decode() if status else "")


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quorum]:
    with ForkedCommands(tmp_path_factory.mktemp("commands"), VARIABLES) as commands:
        yield Quorum(commands)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A current directory; whatever still runs in it is stopped afterwards."""
    yield tmp_path
    if (tmp_path / "quorum-data" / "cluster.json").exists():
        LocalCluster.open(tmp_path / "quorum-data").stop()


def test_a_detached_cluster_serves_is_found_and_leaves_nothing_behind(quorum: Quorum, folder: Path) -> None:
    assert "3 members serve" in quorum("cluster", "up", "--detach", cwd=folder)
    cluster = LocalCluster.open(folder / "quorum-data")
    pids = cluster.processes.pids
    assert len(pids) == 3
    seen = json.loads(quorum("cluster", "status", "--json", cwd=folder))
    assert sorted(member["name"] for member in seen["members"]) == list(cluster.names)
    assert all(group["leader"] in cluster.names for group in seen["groups"])
    quorum("queues", "declare", "orders", "-a", "x-filter-enabled=true", cwd=folder)
    quorum("publish", "orders", "a", "-a", "colour=red", cwd=folder)
    quorum("publish", "orders", "b", "-a", "colour=blue", cwd=folder)
    assert quorum("browse", "orders", "-s", "colour = 'blue'", cwd=folder) == "b\n"
    assert quorum("consume", "orders", "-s", "colour = 'blue'", "-n", "1", cwd=folder) == "b\n"
    assert quorum("consume", "orders", "-n", "1", cwd=folder) == "a\n"
    quorum("cluster", "up", "--detach", cwd=folder, status=1)  # it runs already
    assert "stopped 3 members" in quorum("cluster", "down", "--purge", cwd=folder)
    assert [pid for pid in pids if ProcessId.of(pid) is not None] == []
    assert list(folder.iterdir()) == []


def test_the_printed_lines_connect_a_client_to_a_secured_cluster(quorum: Quorum, folder: Path) -> None:
    first = free_ports(1)[0]
    up = ("cluster", "up", "--secured", "--members", "1", "--http-port", str(first), "--detach")
    said = quorum(*up, cwd=folder)
    cluster = LocalCluster.open(folder / "quorum-data")
    name, password = cluster.files.administrator
    assert password not in said
    lines = [line for line in said.splitlines() if line.startswith("export ")]
    assert len(lines) == 3
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()

    def shell(*before: str) -> subprocess.CompletedProcess[str]:
        script = "\n".join((*before, f"exec {sys.executable} -m quorum users list --json"))
        return subprocess.run(
            ["sh", "-c", script],
            cwd=elsewhere,
            env=VARIABLES,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    done = shell(*lines)
    assert done.returncode == 0, done.stderr
    assert [(user["name"], user["administers"]) for user in json.loads(done.stdout)] == [(name, True)]
    refused = shell(lines[0])
    assert refused.returncode == 1 and "a user and a password are needed" in refused.stderr, refused.stderr

    page = f"https://{cluster.members[0].http}/"
    assert f"pages of the members: {page}\n" in said and page.endswith(f":{first}/")
    context = ssl.create_default_context(cafile=str(cluster.files.certificates / "ca.pem"))
    basic = base64.b64encode(f"{name}:{password}".encode()).decode()
    request = urllib.request.Request(page + "metrics", headers={"Authorization": f"Basic {basic}"})
    with urllib.request.urlopen(request, timeout=LIMIT_S, context=context) as answer:
        assert "quorum_build_info" in answer.read().decode()

    quorum("cluster", "down", cwd=folder)
    assert lines == [line for line in quorum(*up, cwd=folder).splitlines() if line.startswith("export ")]
    assert name in quorum("users", "list", cwd=folder)
    said = quorum("cluster", "join", cwd=folder)
    page = LocalCluster.open(folder / "quorum-data").member("node-2").http
    assert f"page of node-2: https://{page}/\n" in said


def test_a_cluster_in_the_foreground_shows_each_members_output_and_stops_with_it(folder: Path) -> None:
    command = [sys.executable, "-m", "quorum", "cluster", "up", "--members", "2"]
    with subprocess.Popen(
        command, cwd=folder, env=VARIABLES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        lines = []
        for raw in process.stdout:
            lines.append(raw.decode())
            if "members serve" in lines[-1]:
                break
        cluster = LocalCluster.open(folder / "quorum-data")
        pids = cluster.processes.pids
        assert len(pids) == 2
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, rest
    assert "with 2 members, the cluster works only while both run" in "".join(lines)
    prefixes = {line.partition("|")[0] for line in lines if "|" in line}
    assert len(prefixes) == 2
    assert all(prefix.startswith("\x1b[") for prefix in prefixes)
    assert [pid for pid in pids if ProcessId.of(pid) is not None] == []
    assert list((folder / "quorum-data").rglob("*.pid")) == []


def test_a_member_killed_and_started_again_catches_up(quorum: Quorum, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", 3) as cluster:
        leader = cluster.leader_of(1)
        assert leader is not None
        cluster.kill(leader)
        deadline = time.monotonic() + LIMIT_S
        while cluster.leader_of(1) in (None, leader):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        cluster.start([leader])
        cluster.wait_ready([leader])
        assert cluster.processes.ended() == {}
        assert all(size > 1_000_000 for size in cluster.processes.resident_bytes().values())
        assert cluster.processes.cpu_seconds() > 0.0
        address = cluster.member("node-1").client
        assert quorum("health", address, cwd=tmp_path) == "serves clients\n"
        answered = json.loads(quorum("health", "--json", address, cwd=tmp_path))
        assert answered == {"address": address, "serves": True}
        assert "wanted: host:port" in quorum("health", "127.0.0.1", cwd=tmp_path, status=2)
        cluster.kill("node-2")
        stopping = ("cluster", "stop", "node-3", "--dir", str(tmp_path / "c"))
        assert quorum(*stopping, cwd=tmp_path) == "stopped node-3\n"
        assert quorum(*stopping, cwd=tmp_path, status=1) == "error: node-3 does not run\n"
        deadline = time.monotonic() + LIMIT_S
        while "answers, and does not serve" not in quorum("health", "--answers", address, cwd=tmp_path):
            assert time.monotonic() < deadline
        answered = json.loads(quorum("health", "--json", address, cwd=tmp_path, status=1))
        assert answered == {"address": address, "serves": False}
        said = quorum("cluster", "status", "--url", f"quorum://{address}", cwd=tmp_path, status=1)
        assert said.count("(no majority)") == 4, said
        cluster.kill("node-1")
        assert f"{address} does not answer" in quorum("health", "--answers", address, cwd=tmp_path, status=1)
    assert cluster.running() == {}


def test_recovered_data_elsewhere_is_used_and_is_named_when_it_is_not_purged(
    quorum: Quorum, folder: Path
) -> None:
    with LocalCluster(folder / "quorum-data", 1) as cluster:
        member = cluster.member("node-1")
    accept = "--i-accept-that-confirmed-messages-may-be-lost"
    said = quorum("cluster", "recover", str(member.data), "recovered", accept, "--json", cwd=folder)
    made = json.loads(said[said.index("{") :])
    text = member.config.read_text(encoding="utf-8")
    text = text.replace(str(member.data), made["directory"]).replace('"local"', f'"{made["cluster"]}"')
    member.config.write_text(text, encoding="utf-8")
    try:
        assert "node-1 serves" in quorum("cluster", "start", "node-1", cwd=folder)
    finally:
        said = quorum("cluster", "down", "--purge", cwd=folder)
    kept = f"kept {folder / 'recovered'}, the data of node-1"
    assert said == f"stopped 1 member; removed quorum-data; {kept}\n"
    assert [each.name for each in folder.iterdir()] == ["recovered"]


def test_a_cluster_on_ports_of_another_one_says_that_it_does_not_serve(tmp_path: Path) -> None:
    [port] = free_ports(1)
    late = LocalCluster(tmp_path / "late", 1, client_ports=[port])
    with LocalCluster(tmp_path / "early", 1, client_ports=[port]):
        with (
            pytest.raises(ClusterError, match=r"(?s)node-1 has ended with status.*Address already in use"),
            late,
        ):
            pass
        assert late.running() == {}
        assert late.is_serving("node-1")  # the other cluster's member, which has the same name
        with pytest.raises(ClusterError, match="node-1 does not serve"):
            late.wait_ready(limit_s=0)


def test_removed_nodes_are_named_and_stopped(quorum: Quorum, folder: Path) -> None:
    """node-3 misses the entry of its removal, so that it takes itself for a member. node-2, which has applied it, says
    after a restart that it waits to be added."""
    directory = folder / "quorum-data"
    with LocalCluster(directory, 1) as cluster:
        for name in ("node-2", "node-3"):
            assert f"{name} serves" in quorum("cluster", "join", cwd=folder)
        quorum("cluster", "stop", "node-3", cwd=folder)
        for name in ("node-3", "node-2"):
            assert f"{name} has left every group" in quorum("cluster", "remove", name, cwd=folder)
        quorum("cluster", "stop", "node-2", cwd=folder)
    said = quorum("cluster", "up", "--detach", cwd=folder)
    assert "node-2 is no member of the cluster (removed) and was stopped" in said
    assert "node-3 is no member of the cluster (removed) and was stopped" in said
    assert f"1 member serves: {cluster.url}\n" in said
    cluster = LocalCluster.open(directory)
    assert list(cluster.running()) == ["node-1"]
    said = quorum("cluster", "start", "node-2", "node-3", cwd=folder, status=1)
    assert "node-2 is no member of the cluster (removed) and was stopped" in said
    assert "node-3 is no member of the cluster (removed) and was stopped" in said
    assert "`quorum cluster join` starts a new node" in said
    assert list(cluster.running()) == ["node-1"]


def test_members_join_are_drained_and_are_removed(quorum: Quorum, folder: Path) -> None:
    with LocalCluster(folder / "quorum-data", 2):
        assert "node-3 serves" in quorum("cluster", "join", cwd=folder)
        seen = json.loads(quorum("cluster", "status", "--json", cwd=folder))
        assert [group["members"] for group in seen["groups"]] == [["node-1", "node-2", "node-3"]] * 4
        assert "node-1 leads nothing" in quorum("cluster", "drain", "node-1", cwd=folder)
        assert "node-1 works again" in quorum("cluster", "undrain", "node-1", cwd=folder)
        for name in ("node-1", "node-2"):
            quorum("cluster", "drain", name, cwd=folder)
        LocalCluster.open(folder / "quorum-data").stop(["node-3"])
        for name in ("node-1", "node-2"):  # no member that runs serves a session now
            assert f"{name} works again" in quorum("cluster", "undrain", name, cwd=folder)
        LocalCluster.open(folder / "quorum-data").wait_ready(["node-1", "node-2"])
        assert "cannot reach node-3" in quorum("cluster", "rebalance", cwd=folder)
        quorum("cluster", "start", "node-3", cwd=folder)
        assert "node-3 leads group 2" in quorum("cluster", "transfer", "2", "node-3", cwd=folder)
        assert quorum("cluster", "lease-times", cwd=folder) == "lease_ms 4000, leader_fallback_ms 1500\n"
        said = quorum("cluster", "lease-times", "--lease-ms", "1000", cwd=folder)
        assert "every member uses lease_ms 1000 and leader_fallback_ms 1500" in said
        said = quorum("cluster", "lease-times", "--leader-fallback-ms", "499", cwd=folder, status=1)
        assert "leader_fallback_ms is 499; allowed: 500..120000" in said
        quorum("cluster", "rebalance", cwd=folder)
        assert "spread evenly already" in quorum("cluster", "rebalance", cwd=folder)
        assert "node-1 has left every group" in quorum("cluster", "remove", "node-1", cwd=folder)
        quorum("cluster", "remove", "node-1", cwd=folder, status=1)  # there is none
        # node-1 is the first in the URL of this directory, and goes on answering
        seen = json.loads(quorum("cluster", "status", "--json", cwd=folder))
        assert seen["standing"] == "member"
        assert [group["members"] for group in seen["groups"]] == [["node-2", "node-3"]] * 4
        removed = LocalCluster.open(folder / "quorum-data").url_of("node-1")
        said = quorum("cluster", "status", "--url", removed, cwd=folder, status=1)
        assert "as node-1 (removed) sees it" in said
        assert "node-1 is not a member of the cluster any more" in said
        quorum("cluster", "add", "127.0.0.1:1", cwd=folder, status=1)  # nobody answers
        new = LocalCluster.open(folder / "quorum-data").files.prepare()
        said = quorum("cluster", "start", new.name, cwd=folder)
        assert said.startswith(f"{new.name} runs, and waits for `quorum cluster add {new.client}`")
