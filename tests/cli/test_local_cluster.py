"""A local cluster's files, ports and processes, as far as they need no member that serves."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorum.api.security.certificates import Certificates
from quorum.api.security.named_files import peer_security
from quorum.cli.commands import cluster as cluster_commands
from quorum.cli.commands import members as members_commands
from quorum.cli.console import CliError
from quorum.cli.main import main
from quorum.client.connection.endpoints import Service, parse_url
from quorum.config import load
from quorum.errors import ClusterError
from quorum.local_cluster import cluster as local_cluster
from quorum.local_cluster import processes
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.member import LocalMember
from quorum.local_cluster.ports import PORTS, free_ports, is_free
from quorum.local_cluster.processes import LineSink, MemberProcess, ProcessId, stop
from quorum.log.files import RealFiles
from quorum.log.log import LOCK, Log

STARTED_LIMIT_S = 60.0
"""Time for a process to be loaded."""
GRACE_S = 3.0
"""Time for a process to end, on a busy machine."""
SLEEPER = "import time; time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); " + SLEEPER


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SLEEPER])
    yield process
    process.kill()
    process.wait()


def test_each_member_gets_a_configuration_that_loads(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", 3, settings={"lease_ms": 1500})
    assert cluster.names == ("node-1", "node-2", "node-3")
    configs = [load(member.config) for member in cluster.members]
    assert [config.name for config in configs] == list(cluster.names)
    assert {tuple(sorted(config.members)) for config in configs} == {cluster.names}
    assert {config.lease_ms for config in configs} == {1500}
    assert len({config.read_secret() for config in configs}) == 1
    assert len({config.data_dir for config in configs}) == 3
    assert cluster.url == "quorum://" + ",".join(config.client_address for config in configs)
    assert cluster.url_of("node-2") == "quorum://" + configs[1].client_address


def test_members_reach_each_other_where_the_caller_says(tmp_path: Path) -> None:
    cluster = LocalCluster(
        tmp_path / "c",
        2,
        peer_address=lambda member, other: f"{other.name}.of.{member.name}:1",
        settings={"allow_plain_text": "true"},
    )
    own, other = load(cluster.member("node-1").config).members.values()
    assert (own.peer, other.peer) == ("node-1.of.node-1:1", "node-2.of.node-1:1")


def asleep(member: LocalMember, sink: LineSink | None) -> MemberProcess:
    return MemberProcess(member.name, member.config, member.output, sink, ("-c", SLEEPER))


def test_no_member_is_started_if_another_one_of_them_runs(tmp_path: Path) -> None:
    started: list[str] = []

    def start(member: LocalMember, sink: LineSink | None) -> MemberProcess:
        started.append(member.name)
        return asleep(member, sink)

    cluster = LocalCluster(tmp_path / "c", 2, launch=start)
    try:
        cluster.start(["node-2", "node-2"])
        with pytest.raises(ClusterError, match="node-2 is running already"):
            cluster.start(["node-1", "node-2"])
        assert started == ["node-2"]
        cluster.start()
        assert started == ["node-2", "node-1"]
    finally:
        cluster.stop()


def test_members_are_started_as_the_caller_says(tmp_path: Path) -> None:
    def start(member: LocalMember, sink: LineSink | None) -> MemberProcess:
        return MemberProcess(member.name, member.config, member.output, sink, ("-c", "raise SystemExit(7)"))

    cluster = LocalCluster(tmp_path / "c", 2, launch=start)
    cluster.start()
    assert cluster.processes.await_end("node-2", STARTED_LIMIT_S) == 7
    _until(lambda: cluster.processes.ended() == {"node-1": 7})
    cluster.start(["node-2"])
    cluster.stop()
    assert cluster.processes.ended() == {}


def test_the_secret_is_random_and_ours_alone(tmp_path: Path) -> None:
    secrets = [load(LocalCluster(tmp_path / name, 1).members[0].config).secret_file for name in "ab"]
    assert secrets[0].read_bytes() != secrets[1].read_bytes()
    assert stat.S_IMODE(secrets[0].stat().st_mode) == 0o600


def test_a_cluster_is_found_again_as_it_was(tmp_path: Path) -> None:
    first = LocalCluster(tmp_path / "c", 3)
    assert LocalCluster.open(tmp_path / "c").members == first.members
    assert LocalCluster(tmp_path / "c", 3).members == first.members
    with pytest.raises(ClusterError, match="holds a cluster of 3 members, not 5"):
        LocalCluster(tmp_path / "c", 5)
    with pytest.raises(ClusterError, match="there is no cluster"):
        LocalCluster.open(tmp_path)


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear", encoding="utf-8")
    with pytest.raises(ClusterError, match="is not empty"):
        LocalCluster(tmp_path)
    cluster = LocalCluster(tmp_path / "c", 1)
    (tmp_path / "c" / "cluster.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ClusterError, match="cannot be read"):
        LocalCluster.open(tmp_path / "c")
    (tmp_path / "c" / "cluster.json").unlink()
    with pytest.raises(ClusterError, match="holds no cluster; it is not deleted"):
        cluster.files.remove()
    assert cluster.member("node-1").config.exists()


def test_wrong_numbers_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    for count in (0, 16):
        with pytest.raises(ClusterError, match=f"{count} members; allowed"):
            LocalCluster(tmp_path / "c", count)
    with pytest.raises(ClusterError, match="2 client ports for 3 members"):
        LocalCluster(tmp_path / "c", 3, client_ports=[1, 2])
    assert not (tmp_path / "c").exists()


def test_each_member_has_a_port_for_http_if_ports_are_given(tmp_path: Path) -> None:
    ports = free_ports(2)
    LocalCluster(tmp_path / "c", 2, http_ports=ports)
    cluster = LocalCluster.open(tmp_path / "c")
    assert [member.http for member in cluster.members] == [f"127.0.0.1:{port}" for port in ports]
    joining = cluster.files.prepare()
    assert [load(member.config).http_listen for member in cluster.members] == [
        *(f"127.0.0.1:{port}" for port in ports),
        joining.http,
    ]
    assert load(LocalCluster(tmp_path / "without", 1).members[0].config).http_listen is None
    with pytest.raises(ClusterError, match="1 HTTP port for 2 members"):
        LocalCluster(tmp_path / "d", 2, http_ports=ports[:1])
    with pytest.raises(ClusterError, match="client ports and HTTP ports overlap"):
        LocalCluster(tmp_path / "d", 2, client_ports=ports, http_ports=ports)


def _row_of_free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in free_ports(100):
        if all(is_free(first + number) for number in range(count)):
            return first
    raise AssertionError("no free ports in a row")


def test_the_ports_of_a_joining_node_continue_those_of_the_members(tmp_path: Path) -> None:
    first = _row_of_free_ports(10)
    LocalCluster(tmp_path / "c", 2, client_ports=[first, first + 1], http_ports=[first + 5, first + 6])
    files = LocalCluster.open(tmp_path / "c").files
    made = [files.prepare() for _ in range(2)]
    assert [each.client for each in made] == [f"127.0.0.1:{first + 2}", f"127.0.0.1:{first + 3}"]
    assert [each.http for each in made] == [f"127.0.0.1:{first + 7}", f"127.0.0.1:{first + 8}"]
    files.forget("node-2")
    assert files.prepare().client == f"127.0.0.1:{first + 1}", "it is node-2 again"


@pytest.mark.parametrize("held", ["by another program", "by a member"])
def test_a_joining_node_has_another_port_if_the_next_one_is_in_use(tmp_path: Path, held: str) -> None:
    first = _row_of_free_ports(3)
    http_ports = [first + 2, free_ports(1)[0]] if held == "by a member" else None
    cluster = LocalCluster(tmp_path / "c", 2, client_ports=[first, first + 1], http_ports=http_ports)
    with socket.socket() as other:
        if http_ports is None:
            other.bind(("127.0.0.1", first + 2))
        new = cluster.files.prepare()
    used = [at for each in cluster.members for at in (each.client, each.peer, each.http) if at]
    assert new.client != f"127.0.0.1:{first + 2}"
    assert len(set(used)) == len(used)


def test_the_ports_of_a_joining_node_are_any_if_those_of_the_members_are_in_no_row(tmp_path: Path) -> None:
    first = _row_of_free_ports(4)
    cluster = LocalCluster(tmp_path / "c", 2, client_ports=[first, first + 2])
    new = cluster.files.prepare()
    assert is_free(int(new.client.rpartition(":")[2]))


def test_free_ports_are_free_and_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.socket() as held:
        held.bind(("127.0.0.1", ports[0]))
        held.listen()
        assert all(port in PORTS for port in ports)
        with pytest.raises(ClusterError, match="no 12000 free ports"):
            free_ports(len(PORTS))


def test_a_pid_file_never_leads_to_somebody_elses_process(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    cluster = LocalCluster(tmp_path / "c", 1)
    live = ProcessId.of(sleeper.pid)
    assert live is not None
    ProcessId(live.pid, live.started - 1).write(cluster.member("node-1").pid_file)
    assert cluster.process("node-1") is None
    assert cluster.stop() == []
    assert live.is_alive()
    assert not cluster.member("node-1").pid_file.exists()
    cluster.member("node-1").pid_file.write_text("rubbish", encoding="utf-8")
    assert cluster.process("node-1") is None


def test_processes_are_paused_resumed_killed_and_measured(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    cluster = LocalCluster(tmp_path / "c", 1)
    live = ProcessId.of(sleeper.pid)
    assert live is not None
    live.write(cluster.member("node-1").pid_file)
    assert cluster.processes.pids == (sleeper.pid,)
    deadline = time.monotonic() + STARTED_LIMIT_S
    while cluster.processes.resident_bytes()["node-1"] <= 1_000_000:  # it has only begun
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert cluster.processes.cpu_seconds() >= 0.0
    with pytest.raises(ClusterError, match="is running already"):
        cluster.start(["node-1"])
    with pytest.raises(ClusterError, match=r"node-1 of .* still runs"):
        cluster.files.remove()
    cluster.pause("node-1")
    _until(lambda: _state(sleeper.pid) == "T")
    with pytest.raises(
        ClusterError, match=rf"is paused \(SIGSTOP\); `kill -CONT {sleeper.pid}` continues it"
    ):
        cluster.start(["node-1"])
    cluster.resume("node-1")
    _until(lambda: _state(sleeper.pid) != "T")
    cluster.kill("node-1")
    assert sleeper.wait(STARTED_LIMIT_S) == -signal.SIGKILL
    assert cluster.running() == {}
    assert live.cpu_seconds() >= 0.0
    assert live.resident_bytes() == 0
    with pytest.raises(ClusterError, match="is not running"):
        cluster.pause("node-1")
    cluster.files.remove()
    assert not cluster.files.directory.exists()


def test_a_directory_whose_log_is_in_use_is_kept_whoever_started_the_member(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", 2)
    RealFiles().make_directory(cluster.member("node-2").log)
    lock = RealFiles().lock(cluster.member("node-2").log / LOCK)
    assert cluster.running() == {}
    assert cluster.files.started_elsewhere() == ("node-2",)
    for change in (
        cluster.files.remove,
        lambda: cluster.files.forget("node-2"),
        lambda: cluster.files.prepare("node-2"),
    ):
        with pytest.raises(ClusterError, match=r"node-2 of .* still runs; stop it first"):
            change()
    with pytest.raises(ClusterError, match="node-2 is running already"):
        cluster.start(["node-2"])
    assert cluster.member("node-2").log.is_dir()
    lock.release()
    assert cluster.files.started_elsewhere() == ()
    cluster.files.remove()
    assert not cluster.files.directory.exists()


def test_data_inside_of_the_directory_is_not_elsewhere_whatever_the_paths_look_like(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    cluster = LocalCluster(directory, 1)
    cluster.member("node-1").data.mkdir(exist_ok=True)
    (tmp_path / "link").symlink_to(directory)
    for path in (directory, tmp_path / "link", directory / ".." / "c"):
        assert LocalCluster.open(path).files.data_elsewhere() == {}


def test_a_cluster_is_deleted_with_the_link_that_names_it(tmp_path: Path) -> None:
    LocalCluster(tmp_path / "c", 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("c")
    LocalCluster.open(tmp_path / "link").files.remove()
    assert [each.name for each in tmp_path.iterdir()] == ["other"]


def test_commands_leave_a_member_alone_that_was_started_by_hand(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    cluster = LocalCluster(directory, 1)
    log = Log.open(cluster.member("node-1").log, RealFiles(), segment_bytes=20_000)  # as that member has
    for command in (
        lambda: cluster_commands.up(directory=directory, detach=True),
        lambda: cluster_commands.stop_members(["node-1"], directory),
        lambda: cluster_commands.down(directory),
        lambda: cluster_commands.down(directory, purge=True),
    ):
        with pytest.raises(
            (CliError, ClusterError), match="node-1 still runs and was not started by quorum cluster"
        ):
            command()
    with pytest.raises(ClusterError, match="node-1 is running already"):
        cluster_commands.start(["node-1"], directory)
    assert cluster.member("node-1").log.is_dir()
    log.close()
    cluster_commands.down(directory, purge=True)
    assert not directory.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_members_start_stops_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Also one that the shell ignores."""
    handlers = {
        each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    cluster = LocalCluster(tmp_path / "c", 2, launch=asleep)

    def signalled(**_: object) -> dict[str, str]:
        assert len(cluster.running()) == 2
        signal.raise_signal(number)
        return {}

    monkeypatch.setattr(cluster, "wait_ready", signalled)
    try:
        with pytest.raises(KeyboardInterrupt):
            cluster_commands._run(cluster, detach=True)
        assert cluster.running() == {}
    finally:
        cluster.stop()
        for each, handler in handlers.items():
            signal.signal(each, handler)


def test_ports_that_others_listen_on_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        taken = held.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {taken} of 127.0.0.1 is in use"):
            LocalCluster(tmp_path / "c", 1, client_ports=[taken])
    assert not (tmp_path / "c").exists()


def test_who_does_not_stop_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        assert stubborn.stdout.readline() == b"up\n"
        ids = [ProcessId.of(each.pid) for each in (sleeper, stubborn)]
        assert all(each is not None for each in ids)
        os.kill(sleeper.pid, signal.SIGSTOP)
        assert stop([each for each in ids if each is not None], GRACE_S) == [ids[1]]
        assert sleeper.wait(STARTED_LIMIT_S) == -signal.SIGTERM
        assert stubborn.wait(STARTED_LIMIT_S) == -signal.SIGKILL


def test_a_member_that_ends_at_once_is_reported_with_its_output(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", 1)
    cluster.member("node-1").config.write_text("name = 1\nleese_ms = 3\n", encoding="utf-8")
    heard: list[tuple[str, str]] = []
    cluster = LocalCluster.open(tmp_path / "c", sink=lambda name, line: heard.append((name, line)))
    cluster.start()
    with pytest.raises(ClusterError, match=r"(?s)node-1 has ended with status 2.*did you mean lease_ms"):
        cluster.wait_ready(limit_s=60)
    cluster.stop()
    assert ("node-1", heard[0][1]) == heard[0]
    assert any("lease_ms" in line for _, line in heard)
    assert cluster.processes.last_output("node-1").splitlines() == [line for _, line in heard]
    assert cluster.status() is None
    assert not cluster.is_serving("node-1")
    assert cluster.leader_of(1) is None


def test_no_channel_is_opened_to_a_closed_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start asks its members until they serve. A channel costs much more CPU time than a refused connection."""
    opened: list[str] = []
    monkeypatch.setattr(Service, "open_blocking_channel", lambda self, endpoint: opened.append(endpoint))
    cluster = LocalCluster(tmp_path / "c", 2)
    assert (cluster.is_serving("node-1"), cluster.status(), cluster.status("node-2")) == (False, None, None)
    assert opened == []


def member_of(tmp_path: Path, program: str, heard: list[str]) -> MemberProcess:
    return MemberProcess(
        "a", tmp_path / "config", tmp_path / "output", lambda _, line: heard.append(line), ("-c", program)
    )


def test_the_output_of_a_member_is_whole_when_its_end_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread takes it. `wait_ready` shows the end of it."""
    pump, goes_on = processes._pump, threading.Event()

    def late(*arguments: Any) -> None:
        assert goes_on.wait(STARTED_LIMIT_S)
        pump(*arguments)

    monkeypatch.setattr(processes, "_pump", late)
    heard: list[str] = []
    member = member_of(tmp_path, "print('the reason')", heard)
    _until(lambda: not member.id.is_alive())
    threading.Timer(0.2, goes_on.set).start()
    assert member.poll() == 0
    assert heard == ["the reason"]
    assert (tmp_path / "output").read_text(encoding="utf-8") == "the reason\n"


def test_a_member_may_end_before_its_number_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine its parent may run again only then. What was wrong is in its output."""
    start = subprocess.Popen

    def slowly(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*arguments, **options)
        _until(lambda: ProcessId.of(process.pid) is None)
        return process

    monkeypatch.setattr(subprocess, "Popen", slowly)
    heard: list[str] = []
    member = member_of(tmp_path, "raise SystemExit('the reason')", heard)
    assert (member.poll(), heard) == (1, ["the reason"])


def test_the_environment_of_whoever_starts_members_does_not_configure_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUM_NAME", "somebody-else")
    seen: list[dict[str, str]] = []

    def no_start(command: list[str], **options: object) -> None:
        seen.append(options["env"])  # type: ignore[arg-type]
        raise OSError("not started")

    monkeypatch.setattr(subprocess, "Popen", no_start)
    with pytest.raises(OSError, match="not started"):
        MemberProcess("a", tmp_path / "c", tmp_path / "o", None)
    assert "QUORUM_NAME" not in seen[0]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def _until(reached: object, limit_s: float = STARTED_LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nodes_that_join_at_the_same_time_get_names_and_ports_of_their_own(tmp_path: Path) -> None:
    LocalCluster(tmp_path / "c", 1)
    first, second = LocalCluster.open(tmp_path / "c"), LocalCluster.open(tmp_path / "c")
    made = [first.files.prepare(), second.files.prepare()]
    assert [each.name for each in made] == ["node-2", "node-3"]
    found = LocalCluster.open(tmp_path / "c")
    assert found.names == ("node-1", "node-2", "node-3")
    for each in made:
        assert load(each.config).client_address == found.member(each.name).client


def test_a_node_whose_configuration_finds_no_room_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path / "c", 1)
    write = Path.write_text

    def full(path: Path, text: str, **kwargs: str) -> int:
        if path.name == "node.toml":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, text, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        cluster.files.prepare()
    assert LocalCluster.open(tmp_path / "c").names == cluster.names == ("node-1",)
    assert not (tmp_path / "c" / "node-2").exists()


def test_an_interrupted_join_forgets_the_node_that_has_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalCluster(tmp_path / "c", 1)
    monkeypatch.setattr(LocalCluster, "start", lambda self, names: None)

    def interrupted(self: LocalCluster, name: str, standing: str, **_: object) -> None:
        assert (tmp_path / "c" / name / "node.toml").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalCluster, "wait_standing", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster_commands.join(tmp_path / "c")
    assert LocalCluster.open(tmp_path / "c").names == ("node-1",)
    assert not (tmp_path / "c" / "node-2").exists()


def test_a_node_whose_joining_is_interrupted_keeps_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, the others may have no majority."""
    cluster = LocalCluster(tmp_path / "c", 1, launch=asleep)

    def interrupted(address: str, *, url: str) -> None:
        assert (address, url) == (cluster.member("node-2").client, cluster.url)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalCluster, "open", lambda _: cluster)
    monkeypatch.setattr(cluster, "wait_standing", lambda *_, **__: None)
    monkeypatch.setattr(cluster_commands.members, "add", interrupted)
    monkeypatch.setattr(sys, "argv", ["quorum", "cluster", "join"])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 130
        assert list(cluster.running()) == ["node-2"]
    finally:
        cluster.stop()
    assert "node-2 keeps running, because it may be a member by now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("standing", "listed", "outside"),
    [
        ("waiting", "node-1", {"node-2": "waiting"}),
        ("removed", "node-1", {"node-2": "removed"}),
        ("member", "node-1", {"node-2": "removed"}),  # it missed its removal
        ("meeting", "node-1", None),
        ("waiting", "node-1 node-2", None),
        ("member", "node-1 node-2", None),
    ],
)
@pytest.mark.parametrize("names", [None, ["node-2"]])
def test_a_node_that_is_no_member_keeps_no_cluster_from_starting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    standing: str,
    listed: str,
    outside: dict[str, str] | None,
    names: list[str] | None,
) -> None:
    cluster = LocalCluster(tmp_path / "c", 2)
    monkeypatch.setattr(local_cluster, "OUTSIDE_S", -1.0)
    monkeypatch.setattr(local_cluster, "POLL_S", 0.0)
    members = [SimpleNamespace(name=name) for name in listed.split()]
    seen = {
        "node-1": SimpleNamespace(standing="member", members=members),
        "node-2": SimpleNamespace(standing=standing, members=[]),
    }
    monkeypatch.setattr(cluster, "_is_ready", lambda name: name == "node-1")
    monkeypatch.setattr(cluster, "status", seen.get)
    if outside is not None:
        assert cluster.wait_ready(names) == outside
        return
    with pytest.raises(ClusterError, match="member node-2 does not serve"):
        cluster.wait_ready(names, limit_s=0.0)


def test_a_long_wait_for_members_is_mentioned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster(tmp_path / "c", 2)
    monkeypatch.setattr(local_cluster, "LONG_WAIT_S", -1.0)
    said: list[str] = []
    looks = iter([False, False, False, True, True])
    monkeypatch.setattr(cluster, "_is_ready", lambda name: name == "node-1" or next(looks))
    monkeypatch.setattr(cluster, "status", lambda name: None)
    assert cluster.wait_ready(limit_s=60, on_long_wait=said.append) == {}
    output = cluster.member("node-2").output
    assert said == [f"node-2 does not serve yet; waiting for at most 60 s. The output of node-2: {output}"]


def test_a_long_wait_for_a_joining_node_is_mentioned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalCluster(tmp_path / "c", 1)
    monkeypatch.setattr(local_cluster, "LONG_WAIT_S", -1.0)
    monkeypatch.setattr(local_cluster, "POLL_S", 0.0)
    monkeypatch.setattr(LocalCluster, "start", lambda self, names: None)
    looks = iter([None, None, SimpleNamespace(standing="meeting"), SimpleNamespace(standing="waiting")])
    monkeypatch.setattr(LocalCluster, "status", lambda self, name: next(looks))
    monkeypatch.setattr(members_commands, "add", lambda address, url: None)
    cluster_commands.join(tmp_path / "c")
    output = tmp_path / "c" / "node-2" / "output.log"
    assert capsys.readouterr().err.splitlines() == [
        f"node-2 does not serve yet; waiting for at most 60 s. The output of node-2: {output}"
    ]


def test_a_secured_cluster_has_certificates_and_an_administrator_and_is_found_again(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path / "c", 2, secured=True)
    found = LocalCluster.open(tmp_path / "c")
    assert found.files.is_secured and not LocalCluster(tmp_path / "plain", 1).files.is_secured
    name, password = found.files.administrator
    assert made.url == found.url
    service = parse_url(found.url_of("node-2"))
    assert (service.user, service.password, service.is_secure) == (name, password, True)
    assert service.endpoints == (found.member("node-2").client,)
    assert Path(service.ca_file) == found.files.certificates / "ca.pem"
    for config in (load(member.config) for member in found.members):
        assert config.read_first_administrator() == (name, password)
        assert config.tls_certificate_file is not None and config.tls_key_file is not None
        Certificates(
            config.tls_certificate_file, config.tls_key_file
        )  # ConfigError if they do not fit together
        assert peer_security(config) is not None
    authorities = {
        (folder / "ca.pem").read_bytes()
        for folder in (found.files.certificates, found.files.peer_certificates)
    }
    assert len(authorities) == 2, "a client's certificate is none of a member"
    assert password not in found.url_of("node-2", logs_in=False)
    LocalCluster(tmp_path / "c", 2, secured=True)
    with pytest.raises(ClusterError, match="holds a cluster without TLS"):
        LocalCluster(tmp_path / "plain", 1, secured=True)


def test_other_ports_for_a_cluster_that_exists_are_refused_with_both_remedies(tmp_path: Path) -> None:
    LocalCluster(tmp_path / "c", 1)
    with pytest.raises(
        ClusterError, match=r"other ports \(none\); omit --http-port, or make a new cluster in .*--dir"
    ):
        cluster_commands.up(directory=tmp_path / "c", http_port=8400, detach=True)
