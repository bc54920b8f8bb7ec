"""The directory of a local cluster: making it, its members, and the locks that say whether it is in use.

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
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypedDict, Unpack

from quorum.addresses import MAX_MEMBERS
from quorum.counts import counted
from quorum.errors import ClusterError
from quorum.local_cluster import ports
from quorum.local_cluster.cluster_file import (
    ADMINISTRATOR,
    CERTIFICATES,
    STATE_FILE,
    is_secured,
    make_url,
    read_administrator,
    read_cluster_file,
)
from quorum.local_cluster.member import LocalMember, node_configuration
from quorum.local_cluster.processes import ProcessId
from quorum.log.files import RealFiles
from quorum.log.log import LOCK
from quorum.node.identity.identity import Identity, IdentityError, read_identity

PeerAddress = Callable[[LocalMember, LocalMember], str]
"""The address at which the first member reaches the second one."""


def own_address(_: LocalMember, other: LocalMember) -> str:
    return other.peer


class ClusterOptions(TypedDict, total=False):
    """The arguments of ClusterDirectory and LocalCluster by name, each of which may be left out. All but
    `peer_address` are for a new cluster."""

    settings: Mapping[str, str | int] | None
    """further keys of each node's configuration"""
    client_ports: Sequence[int] | None
    """for members in order of name; free ports if not given"""
    http_ports: Sequence[int] | None
    """the same for the page, JSON and metrics; none if not given"""
    secured: bool
    """The cluster has TLS for clients and between members, with authorities for development, and `url` logs in as its
    administrator."""
    peer_address: PeerAddress
    """in the configuration of a member, the address of another one, if it is not that one's own"""


class ClusterDirectory:
    """What a local cluster has on disk: a new cluster of `members`, or the one that the directory holds already."""

    def __init__(self, directory: Path, members: int = 3, **options: Unpack[ClusterOptions]) -> None:
        assert options.keys() <= ClusterOptions.__optional_keys__, f"unknown: {list(options)}"
        self.directory = directory.absolute()
        self._peer_address = options.get("peer_address", own_address)
        if (self.directory / STATE_FILE).exists():
            self._read()
            if len(self._members) != members:
                raise ClusterError(
                    f"{self.directory} holds a cluster of {counted(len(self._members), 'member')}, not {members}; "
                    "name another directory or remove that one"
                )
            if options.get("secured") and not self.is_secured:
                raise ClusterError(
                    f"{self.directory} holds a cluster without TLS; name another directory or remove that one"
                )
        else:
            self._make(members, options)

    def _make(self, count: int, options: ClusterOptions) -> None:
        client_ports, http_ports = options.get("client_ports"), options.get("http_ports")
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
            if not ports.is_free(port):
                raise ClusterError(f"port {port} of {ports.HOST} is in use; choose another one")
        free = ports.free_ports(2 * count, taken=fixed)
        self._members = {
            name: LocalMember(
                name,
                f"{ports.HOST}:{client_ports[number] if client_ports else free[number]}",
                f"{ports.HOST}:{free[count + number]}",
                self.directory / name,
                f"{ports.HOST}:{http_ports[number]}" if http_ports else "",
            )
            for number, name in enumerate(f"node-{n}" for n in range(1, count + 1))
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._fill(options.get("settings") or {}, options.get("secured", False))
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
            for _ in write_certificates(folder, [ports.HOST]):
                pass
            found[f"{purpose}_certificate_file"] = str(folder / f"{ports.HOST}.pem")
            found[f"{purpose}_key_file"] = str(folder / f"{ports.HOST}.key")
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
            member = self._new_member(chosen)
            self._make_folder(member)
            self._members[chosen] = member
            self._write()
            return member

    def _new_member(self, name: str) -> LocalMember:
        """A node with free ports. Those for clients and for HTTP continue the members' ones if they can."""
        client = self._next_port(name, {each.name: each.client for each in self.members})
        http = self._next_port(name, {each.name: each.http for each in self.members if each.http})
        taken = [*self._ports(), *(port for port in (client, http) if port is not None)]
        peer, *free = ports.free_ports(3, taken)
        return LocalMember(
            name,
            f"{ports.HOST}:{client or free[0]}",
            f"{ports.HOST}:{peer}",
            self.directory / name,
            f"{ports.HOST}:{http or free[1]}" if self._has_http else "",
        )

    def _next_port(self, name: str, addresses: Mapping[str, str]) -> int | None:
        """The port for this name if these ports follow the numbers in the members' names, as those that `--port` gives
        do. None if they do not, or if that port is in use."""
        firsts = {int(at.rpartition(":")[2]) - _number(each) for each, at in addresses.items()}
        if len(firsts) != 1:
            return None
        port = firsts.pop() + _number(name)
        return port if port < 1 << 16 and port not in self._ports() and ports.is_free(port) else None

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
        peers = {each: self._peer_address(member, each) for each in named}
        return node_configuration(member, peers, self.directory / "secret", self._settings, join=join)

    def _read(self) -> None:
        found = read_cluster_file(self.directory / STATE_FILE)
        self._settings = dict(found.settings)
        self._members = {
            name: LocalMember(name, each.client, each.peer, self.directory / name, each.http)
            for name, each in found.members.items()
        }

    def data_elsewhere(self) -> dict[str, Path]:
        """The data directories of members that are outside of this directory, by name."""
        found = {name: each.data.resolve() for name, each in self._members.items()}
        inside = self.directory.resolve()
        return {
            name: data for name, data in found.items() if not data.is_relative_to(inside) and data.exists()
        }

    def remove(self) -> None:
        """Delete the whole directory, and nothing outside of it; a symbolic link, too, if it is named by one.
        ClusterError if a member runs."""
        if not (self.directory / STATE_FILE).exists():
            raise ClusterError(f"{self.directory} holds no cluster; it is not deleted")
        with self._unused(*self._members):
            shutil.rmtree(self.directory.resolve())
            if self.directory.is_symlink():
                self.directory.unlink()

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

    def was_member(self, name: str) -> bool:
        """Whether the node has ever been a member, as its data directory says: it knows the members of a cluster. Until
        a member has read its log, it may say that it waits to be added; so does a removed node that was restarted."""
        found = self._identity(name)
        return found is not None and (len(found.founding.members) > 0 or len(found.node_state.members) > 0)

    def incarnation(self, name: str) -> str | None:
        """Incarnation of the member's data directory; None if there is none, or it cannot be read."""
        identity = self._identity(name)
        return None if identity is None else identity.node_state.incarnation

    def _identity(self, name: str) -> Identity | None:
        """What the member's data directory says of it; None if there is none, or it cannot be read."""
        try:
            return read_identity(self.member(name).data, RealFiles())
        except (OSError, IdentityError):
            return None

    # ---- who uses it

    def process(self, name: str) -> ProcessId | None:
        """The member's running process if a LocalCluster started it, else None."""
        found = ProcessId.read(self.member(name).pid_file)
        return found if found is not None and found.is_alive() else None

    def running(self) -> dict[str, ProcessId]:
        return {name: found for name in self._members if (found := self.process(name)) is not None}

    def started_elsewhere(self) -> tuple[str, ...]:
        """Running members that no LocalCluster started, found by the locks of their logs. In order of name."""
        return tuple(name for name in self._members if self.process(name) is None and self._is_locked(name))

    def is_in_use(self, name: str) -> bool:
        """Whether the member runs, also if no LocalCluster has started it."""
        return self.process(name) is not None or self._is_locked(name)

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


def _number(name: str) -> int:
    """The number at the end of a member's name, 0 if there is none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
