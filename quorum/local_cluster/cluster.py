"""A cluster of member processes on this machine: for development, the demo, the bench, and tests with real processes.

Everything is under one directory:

    cluster.json                names and addresses; it marks a directory that `remove` may delete
    secret                      random, made once
    certificates/               of a secured cluster: its authority and its certificate for clients
    peer-certificates/          the same for members
    administrator               NAME:PASSWORD of its administrator
    NAME/node.toml              the member's configuration
    NAME/data/                  its log
    NAME/output.log             its stdout and stderr
    NAME/member.pid             pid and start time, while it runs

No command goes through a shell. Members run in their own process sessions. The program that starts them stops them: by
`stop`, by leaving the `with` block, or from another process by `LocalCluster.open(directory).stop()`.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import secrets
import shutil
import signal
import socket
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quorum.addresses import MAX_MEMBERS, host_port
from quorum.counts import counted
from quorum.errors import ClusterError
from quorum.local_cluster.cluster_file import (
    ADMINISTRATOR,
    CERTIFICATES,
    STATE_FILE,
    is_secured,
    make_url,
    read_administrator,
    read_cluster_file,
    require_cluster,
)
from quorum.local_cluster.listeners import listeners
from quorum.local_cluster.processes import LineSink, MemberProcess, ProcessId, stop
from quorum.log.files import RealFiles
from quorum.log.log import LOCK
from quorum.node.identity.identity import Identity, IdentityError, read_identity

if TYPE_CHECKING:
    from quorum.v1.admin_pb2 import ClusterStatusResponse

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections, so that a port stays free while its member is down."""
START_LIMIT_S = 60.0
STOP_GRACE_S = 10.0
POLL_S = 0.05
CALL_LIMIT_S = 2.0
OUTSIDE_S = 2.0
"""Seconds for which a starting node may report that it is no member, until it has read its log."""


@dataclass(frozen=True, slots=True)
class LocalMember:
    """A member's name and addresses; `folder` holds its files. http: empty: it has no port for HTTP."""

    name: str
    client: str
    peer: str
    folder: Path
    http: str = ""

    @property
    def config(self) -> Path:
        return self.folder / "node.toml"

    @property
    def data(self) -> Path:
        """The data directory that its configuration names. After a recovery, that may be outside of the folder."""
        try:
            return Path(str(tomllib.loads(self.config.read_text(encoding="utf-8"))["data_dir"]))
        except (OSError, ValueError, KeyError):  # no configuration yet, or not one that can be read
            return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.data / "log"

    @property
    def output(self) -> Path:
        return self.folder / "output.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "member.pid"


class LocalCluster:
    """`members` processes under `directory`: a new cluster, or the one that the directory holds already.

    settings: further keys of each node's configuration. client_ports: for members in order of name; free ports if not
    given. http_ports: the same for the page, JSON and metrics; none if not given. sink: also gets each line of each
    member's output. secured: the cluster has TLS for clients and between members, with authorities for development, and
    `url` logs in as its administrator.
    """

    def __init__(
        self,
        directory: Path,
        members: int = 3,
        *,
        settings: Mapping[str, str | int] | None = None,
        client_ports: Sequence[int] | None = None,
        http_ports: Sequence[int] | None = None,
        sink: LineSink | None = None,
        secured: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self._sink = sink
        self._processes: dict[str, MemberProcess] = {}
        if (self.directory / STATE_FILE).exists():
            self._read()
            if len(self._members) != members:
                raise ClusterError(
                    f"{self.directory} holds a cluster of {counted(len(self._members), 'member')}, not {members}; "
                    "name another directory or remove that one"
                )
            if secured and not self.is_secured:
                raise ClusterError(
                    f"{self.directory} holds a cluster without TLS; name another directory or remove that one"
                )
        else:
            self._make(members, settings or {}, client_ports, http_ports, secured)

    @classmethod
    def open(cls, directory: Path, *, sink: LineSink | None = None) -> LocalCluster:
        """The cluster that the directory holds. ClusterError if it holds none."""
        return cls(directory, len(read_cluster_file(require_cluster(directory)).members), sink=sink)

    def _make(
        self,
        count: int,
        settings: Mapping[str, str | int],
        client_ports: Sequence[int] | None,
        http_ports: Sequence[int] | None,
        secured: bool,
    ) -> None:
        if not 1 <= count <= MAX_MEMBERS:
            raise ClusterError(f"{count} members; allowed: 1..{MAX_MEMBERS}")
        for what, given in (("client", client_ports), ("HTTP", http_ports)):
            if given is not None and len(given) != count:
                raise ClusterError(
                    f"{counted(len(given), f'{what} port')} for {counted(count, 'member')}; give one for each member"
                )
        fixed = [*(client_ports or ()), *(http_ports or ())]
        if len(set(fixed)) != len(fixed):
            raise ClusterError(f"client ports and HTTP ports overlap: {sorted(fixed)}; choose others")
        if self.directory.exists() and any(self.directory.iterdir()):
            raise ClusterError(f"{self.directory} is not empty and holds no cluster; name another directory")
        for port in fixed:
            if not _is_free(port):
                raise ClusterError(f"port {port} of {HOST} is in use; choose another one")
        ports = free_ports(2 * count, taken=fixed)
        self._members = {
            name: LocalMember(
                name,
                f"{HOST}:{client_ports[number] if client_ports else ports[number]}",
                f"{HOST}:{ports[count + number]}",
                self.directory / name,
                f"{HOST}:{http_ports[number]}" if http_ports else "",
            )
            for number, name in enumerate(f"node-{n}" for n in range(1, count + 1))
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._fill(settings, secured)
        except BaseException:  # what is half made would keep another attempt from the directory
            for made in self.directory.iterdir():
                shutil.rmtree(made) if made.is_dir() else made.unlink()
            raise

    def _fill(self, settings: Mapping[str, str | int], secured: bool) -> None:
        """Write the files of a new cluster."""
        self._write_secret("secret", secrets.token_hex(32))
        self._settings = {**(self._secure() if secured else {}), **settings}
        for member in self._members.values():
            member.folder.mkdir()
            member.config.write_text(self._toml(member, self._members.values()), encoding="utf-8")
        self._write()

    def _secure(self) -> dict[str, str | int]:
        """Make certificates and an administrator; return the settings that name them."""
        from quorum.local_cluster.certificate_files import write_certificates

        found: dict[str, str | int] = {}
        for purpose, folder in (("tls", self.certificates), ("peers", self.peer_certificates)):
            for _ in write_certificates(folder, [HOST]):
                pass
            found[f"{purpose}_certificate_file"] = str(folder / f"{HOST}.pem")
            found[f"{purpose}_key_file"] = str(folder / f"{HOST}.key")
        found["peers_ca_file"] = str(self.peer_certificates / "ca.pem")
        self._write_secret(ADMINISTRATOR, f"admin:{secrets.token_hex(16)}")
        found["first_administrator_file"] = str(self.administrator_file)
        return found

    def _write_secret(self, name: str, text: str) -> None:
        descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")

    def _write(self) -> None:
        state = {
            "members": {
                name: {
                    "client": each.client,
                    "peer": each.peer,
                    **({"http": each.http} if each.http else {}),
                }
                for name, each in self._members.items()
            },
            "settings": self._settings,
        }
        new = self.directory / (STATE_FILE + ".new")
        new.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        new.replace(self.directory / STATE_FILE)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the set of members, so that one command at a time changes it, and read it again from the directory."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._read()
            yield
        finally:
            os.close(descriptor)

    def prepare(self, name: str | None = None) -> LocalMember:
        """Make a folder and a configuration for a new node, to be started and then added. With the name of a member
        that is down: a new configuration and an empty folder, to replace it under its name."""
        with self._changing():
            if name in self._members:
                member = self.member(name)
                with self._unused(member.name):
                    shutil.rmtree(member.folder)
                self._make_folder(member)
                return member
            taken = {each.rpartition("-")[2] for each in (*self._members, *os.listdir(self.directory))}
            number = next(n for n in range(1, 10_000) if str(n) not in taken)
            chosen = name or f"node-{number}"
            client, peer, *http = (
                f"{HOST}:{port}" for port in free_ports(3 if self._has_http else 2, self._ports())
            )
            member = LocalMember(chosen, client, peer, self.directory / chosen, *http)
            self._make_folder(member)
            self._members[chosen] = member
            self._write()
            return member

    def _make_folder(self, member: LocalMember) -> None:
        """Make the folder of a node that will join; remove it again if a step fails."""
        member.folder.mkdir()
        try:
            member.config.write_text(self._toml(member, [member], join=True), encoding="utf-8")
        except OSError:
            shutil.rmtree(member.folder)
            raise

    def forget(self, name: str) -> None:
        """Drop a member that was removed from the cluster and is down from this directory's members."""
        with self._changing(), self._unused(name):
            member = self._members.pop(name)
            self._write()
            shutil.rmtree(member.folder)

    def _ports(self) -> list[int]:
        return [
            int(at.rpartition(":")[2])
            for each in self._members.values()
            for at in (each.client, each.peer, each.http)
            if at
        ]

    @property
    def _has_http(self) -> bool:
        return any(each.http for each in self._members.values())

    def _toml(self, member: LocalMember, named: Iterable[LocalMember], *, join: bool = False) -> str:
        keys: dict[str, str | int] = {
            "name": member.name,
            "cluster": "local",
            "data_dir": str(member.data),
            "secret_file": str(self.directory / "secret"),
            **({"http_listen": member.http} if member.http else {}),
            **self._settings,
        }
        lines = [f"{key} = {_toml_value(value)}" for key, value in keys.items()]
        lines += ["join = true"] if join else []
        for each in named:
            peer = self._peer_address(member, each)
            lines += [f"\n[members.{each.name}]", f'peer = "{peer}"', f'client = "{each.client}"']
        return "\n".join(lines) + "\n"

    def _peer_address(self, member: LocalMember, other: LocalMember) -> str:
        """The address at which the member reaches the other one."""
        return other.peer

    def _read(self) -> None:
        found = read_cluster_file(self.directory / STATE_FILE)
        self._settings = dict(found.settings)
        self._members = {
            name: LocalMember(name, each.client, each.peer, self.directory / name, each.http)
            for name, each in found.members.items()
        }

    # ---- what there is

    @property
    def members(self) -> tuple[LocalMember, ...]:
        """In order of name."""
        return tuple(self._members.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._members)

    @property
    def url(self) -> str:
        """URL of all members for `quorum.connect`, also of those that are down."""
        return self.url_of(*self._members)

    def url_of(self, *names: str, logs_in: bool = True) -> str:
        """URL of these members, in this order. logs_in: as the administrator, if the cluster is secured."""
        clients = [self.member(name).client for name in names]
        return make_url(self.directory, clients, secured=self.is_secured, logs_in=logs_in)

    @property
    def is_secured(self) -> bool:
        return is_secured(self._settings)

    @property
    def certificates(self) -> Path:
        """The folder of a secured cluster's authority and certificate for clients, as `quorum certificates create`
        makes it."""
        return self.directory / CERTIFICATES

    @property
    def peer_certificates(self) -> Path:
        """The same for members."""
        return self.directory / "peer-certificates"

    @property
    def administrator_file(self) -> Path:
        """NAME:PASSWORD of a secured cluster's administrator."""
        return self.directory / ADMINISTRATOR

    @property
    def administrator(self) -> tuple[str, str]:
        """(name, password) of a secured cluster's administrator, who makes the first users. It logs in afterwards only
        if it is one of them, with the same password."""
        return read_administrator(self.directory)

    def make_administrator(self) -> None:
        """Make the administrator of a secured cluster its first user, unless the cluster has users. From the first
        user on, clients of this machine need a log-in, too."""
        import quorum.sync

        name, password = self.administrator
        with quorum.sync.connect(self.url) as client:
            if not client.users():
                client.set_user(name, password, administers=True)

    def member(self, name: str) -> LocalMember:
        if name not in self._members:
            raise ClusterError(f"there is no member {name!r}; members: {', '.join(self._members)}")
        return self._members[name]

    def process(self, name: str) -> ProcessId | None:
        """The member's running process if a LocalCluster started it, else None."""
        found = ProcessId.read(self.member(name).pid_file)
        return found if found is not None and found.is_alive() else None

    def running(self) -> dict[str, ProcessId]:
        return {name: found for name in self._members if (found := self.process(name)) is not None}

    def started_elsewhere(self) -> tuple[str, ...]:
        """Running members that no LocalCluster started, found by the locks of their logs. In order of name."""
        return tuple(name for name in self._members if self.process(name) is None and self._is_locked(name))

    def _is_locked(self, name: str) -> bool:
        try:
            RealFiles().lock(self.member(name).log / LOCK).release()
        except FileNotFoundError:  # it has never run
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def _unused(self, *names: str) -> Iterator[None]:
        """Hold the locks of these members' logs, so that none of them starts meanwhile. ClusterError if one runs."""
        with ExitStack() as locks:
            running = []
            for name in names:
                if self.process(name) is not None:
                    running.append(name)
                    continue
                try:
                    locks.callback(RealFiles().lock(self.member(name).log / LOCK).release)
                except FileNotFoundError:  # it has never run
                    continue
                except BlockingIOError:
                    running.append(name)
            if running:
                still = "still runs; stop it first" if len(running) == 1 else "still run; stop them first"
                raise ClusterError(f"{', '.join(running)} of {self.directory} {still}")
            yield

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the running members, in order of name."""
        return tuple(each.pid for each in self.running().values())

    def cpu_seconds(self) -> float:
        """User and system time of all running members, in seconds."""
        return sum(each.cpu_seconds() for each in self.running().values())

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of the running members, by name."""
        return {name: each.resident_bytes() for name, each in self.running().items()}

    # ---- starting and stopping

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, names: Sequence[str] | None = None) -> None:
        """Start these members (default: all that are down) without waiting until they serve."""
        for name in self._members if names is None else names:
            member = self.member(name)
            if self.process(name) is not None or self._is_locked(name):
                if names is not None:
                    raise ClusterError(f"member {name} is running already")
                continue
            process = self._launch(member)
            process.id.write(member.pid_file)
            self._processes[name] = process

    def _launch(self, member: LocalMember) -> MemberProcess:
        return MemberProcess(member.name, member.config, member.output, self._sink)

    def stop(self, names: Sequence[str] | None = None, grace_s: float = STOP_GRACE_S) -> list[str]:
        """Stop these members (default: all), first by SIGTERM. Returns those that had to be killed."""
        chosen = tuple(self._members) if names is None else tuple(names)
        ids = {found: name for name in chosen if (found := self.process(name)) is not None}
        killed = [ids[each] for each in stop(list(ids), grace_s)]
        for name in chosen:
            self._forget(name)
        return killed

    def kill(self, name: str) -> None:
        """Send SIGKILL: the member informs no peer and flushes nothing."""
        self._signal(name, signal.SIGKILL)
        self._forget(name)

    def restart(self, name: str, limit_s: float = START_LIMIT_S) -> None:
        """Stop the member if it runs, start it, and wait until it serves."""
        self.stop([name])
        self.start([name])
        for standing in self.wait_ready([name], limit_s).values():
            raise ClusterError(f"{name} is no member of the cluster ({standing})")

    def pause(self, name: str) -> None:
        """Send SIGSTOP: the process keeps its connections and reads nothing."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def data_elsewhere(self) -> dict[str, Path]:
        """The data directories of members that are outside of this directory, by name."""
        found = {name: each.data.absolute() for name, each in self._members.items()}
        return {
            name: data
            for name, data in found.items()
            if not data.is_relative_to(self.directory) and data.exists()
        }

    def remove(self) -> None:
        """Delete the whole directory, and nothing outside of it. ClusterError if a member runs."""
        if not (self.directory / STATE_FILE).exists():
            raise ClusterError(f"{self.directory} holds no cluster; it is not deleted")
        with self._unused(*self._members):
            shutil.rmtree(self.directory)

    def _signal(self, name: str, number: signal.Signals) -> None:
        found = self.process(name)
        if found is None or not found.signal(number):
            raise ClusterError(f"member {name} is not running")

    def _forget(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None and process.wait(STOP_GRACE_S) is None:
            raise ClusterError(f"member {name} does not end")
        self.member(name).pid_file.unlink(missing_ok=True)

    # ---- asking members

    def ended(self) -> dict[str, int]:
        """Exit status of the members that this object started and that have ended by themselves."""
        return {name: status for name, each in self._processes.items() if (status := each.poll()) is not None}

    def is_serving(self, name: str) -> bool:
        """Whether the member's health service reports SERVING; False if it does not answer."""
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with self._channel(name) as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=CALL_LIMIT_S
                )
            except grpc.RpcError:
                return False
            return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def status(
        self, name: str | None = None, *, with_state_hash: bool = False
    ) -> ClusterStatusResponse | None:
        """The cluster's status from this member, or from the first one that answers; None if none answers."""
        import grpc

        for each in self._members if name is None else (name,):
            try:
                return self._status_of(each, with_state_hash=with_state_hash)
            except grpc.RpcError:
                continue
        return None

    def _status_of(self, name: str, *, with_state_hash: bool = False) -> ClusterStatusResponse:
        """grpc.RpcError if the member does not answer, or refuses."""
        from quorum.v1 import admin_pb2, admin_pb2_grpc

        with self._channel(name) as channel:
            request = admin_pb2.ClusterStatusRequest(with_state_hash=with_state_hash)
            response: ClusterStatusResponse = admin_pb2_grpc.AdminStub(channel).ClusterStatus(
                request, timeout=CALL_LIMIT_S
            )
            return response

    def leader_of(self, group: int) -> str | None:
        """The group's leader, of the highest term among the answers of all members; None if none is known."""
        best: tuple[int, str] = (-1, "")
        for name in self.running():
            status = self.status(name)
            for each in status.groups if status is not None else ():
                if each.group == group and each.leader in self._members:
                    best = max(best, (each.term, each.leader))
        return best[1] or None

    def leader_of_queue(self, queue: str) -> str | None:
        """The leader of the queue's group; None while none is known. ClusterError if there is no such queue."""
        import grpc

        from quorum.v1 import admin_pb2, admin_pb2_grpc

        for name in self.running():
            with self._channel(name) as channel:
                try:
                    request = admin_pb2.DescribeQueueRequest(queue=queue)
                    response = admin_pb2_grpc.AdminStub(channel).DescribeQueue(request, timeout=CALL_LIMIT_S)
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.NOT_FOUND:
                        raise ClusterError(f"there is no queue {queue!r}") from error
                    continue
                return self.leader_of(response.queue.group)
        return None

    def wait_ready(
        self,
        names: Sequence[str] | None = None,
        limit_s: float = START_LIMIT_S,
        *,
        new_nodes: Sequence[str] = (),
    ) -> dict[str, str]:
        """Wait until these members (default: all) serve and know a leader of every group. A member of another cluster
        that has the port of one of them does not count.

        Nodes that have not joined the cluster or were removed are not waited for, if a member that serves says so.
        new_nodes: nodes that may wait to be added. Returns the standing of those that are no members by name.

        Raises ClusterError, with the end of a member's output, if a member ends before that or the time is over.
        """
        waiting = list(self._members if names is None else names)
        new: dict[str, str] = {}
        deadline = time.monotonic() + limit_s
        since_s = time.monotonic()
        while True:
            for name, status in self.ended().items():
                raise ClusterError(f"member {name} has ended with status {status}:\n{self.last_output(name)}")
            for name in tuple(waiting):
                if self._is_ready(name):
                    waiting.remove(name)
                elif name in new_nodes and self._waits_to_be_added(name):
                    waiting.remove(name)
                    new[name] = "waiting"
            outside = self._outsiders(waiting)
            since_s = since_s if outside else time.monotonic()
            if not waiting or (outside and time.monotonic() - since_s > OUTSIDE_S):
                return outside | new
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"member {waiting[0]} does not serve after {limit_s:g} s:\n{self.last_output(waiting[0])}"
                )
            time.sleep(POLL_S)

    def wait_standing(self, name: str, standing: str) -> None:
        """Wait until this node reports this standing. Raises ClusterError as wait_ready does."""
        deadline = time.monotonic() + START_LIMIT_S
        while (seen := self.status(name)) is None or seen.standing != standing:
            if name in self.ended() or time.monotonic() > deadline:
                raise ClusterError(f"member {name} is not {standing}:\n{self.last_output(name)}")
            time.sleep(POLL_S)

    def _outsiders(self, waiting: Sequence[str]) -> dict[str, str]:
        """The standing of these nodes, if a member that serves knows none of them as a member. A node that missed the
        entry of its own removal takes itself for a member; the others do not tell it."""
        found = {}
        for name in waiting:
            seen = self.status(name)
            if seen is None or seen.standing == "meeting":
                return {}
            is_new = seen.standing == "waiting" and not self.was_member(name)
            found[name] = "waiting" if is_new else "removed"
        for name in self._members if found else ():
            if name not in found and self._is_ready(name) and (known := self.status(name)) is not None:
                return {} if any(each.name in found for each in known.members) else found
        return {}

    def _is_ready(self, name: str) -> bool:
        import grpc

        if not self.is_serving(name):
            return False
        try:
            status = self._status_of(name)
        except grpc.RpcError as error:
            wants_user = error.code() in (
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.PERMISSION_DENIED,
            )
            return wants_user and self._listens(name)  # it says no more without a user who may monitor
        return (
            (status.own.name, status.own.incarnation) == (name, self._incarnation(name))
            and len(status.groups) > 0
            and all(group.leader for group in status.groups)
        )

    def _listens(self, name: str) -> bool:
        """Whether it is this member, and no other one, that has its port for clients."""
        process = self.process(name)
        port = host_port(self.member(name).client)[1]
        return process is not None and process.pid in [each.pid for each in listeners(port)]

    def was_member(self, name: str) -> bool:
        """Whether the node has ever been a member, as its data directory says: it knows the members of a cluster. Until
        a member has read its log, it may say that it waits to be added; so does a removed node that was restarted."""
        found = self._identity(name)
        return found is not None and (len(found.founding.members) > 0 or len(found.node_state.members) > 0)

    def _waits_to_be_added(self, name: str) -> bool:
        seen = self.status(name)
        return seen is not None and (seen.standing, seen.own.incarnation) == (
            "waiting",
            self._incarnation(name),
        )

    def _incarnation(self, name: str) -> str | None:
        """Incarnation of the member's data directory; None if there is none, or it cannot be read."""
        identity = self._identity(name)
        return None if identity is None else identity.node_state.incarnation

    def _identity(self, name: str) -> Identity | None:
        """What the member's data directory says of it; None if there is none, or it cannot be read."""
        try:
            return read_identity(self.member(name).data, RealFiles())
        except (OSError, IdentityError):
            return None

    def _channel(self, name: str) -> Any:
        """A channel to a member. If the cluster is not secured, it has the user of the environment, if there is one."""
        from quorum.client.connection.endpoints import parse_url

        service = parse_url(self.url_of(name))
        return service.open_blocking_channel(service.endpoints[0])

    def last_output(self, name: str, lines: int = 15) -> str:
        """The last lines of the member's output; only those since its start, if this object has started it."""
        process = self._processes.get(name)
        try:
            with self.member(name).output.open("rb") as file:
                file.seek(0 if process is None else process.output_start)
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return "(no output)"
        return "\n".join(text.splitlines()[-lines:]) or "(no output)"


def free_ports(count: int, taken: Sequence[int] = ()) -> list[int]:
    """Free ports of this machine from PORTS, in no particular order."""
    candidates = [port for port in PORTS if port not in taken]
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if not _is_free(port):
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise ClusterError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    """Whether a member could listen on the port now. Closing connections of an earlier listener do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _toml_value(value: str | int) -> str:
    # a JSON string is a TOML basic string, except that TOML requires DEL to be escaped
    return json.dumps(value) if isinstance(value, str) else str(value)
