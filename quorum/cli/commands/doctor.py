"""`quorum doctor`: looks for what would make a member on this machine slow or unsafe, before or while it runs."""

from __future__ import annotations

import datetime
import errno
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from quorum import __version__
from quorum.addresses import host_port
from quorum.cli.console import JsonOption, print_json, printable, require_linux
from quorum.errors import ConfigError, how_to_install
from quorum.local_cluster.listeners import listeners
from quorum.local_cluster.processes import ProcessId, but_paused

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from quorum.config import Examined, NodeConfig

DISTRIBUTION = "quorum-queue"
DATA_KEYS = ("data_dir", "name", "cluster", "queue_groups", "members", "join")
"""The keys of a data directory, and of what it is compared with."""
SYNCS, SYNC_BYTES = 100, 4096
SLOW_SYNC_MS = 20.0
"""99th percentile of syncs, above which publishes take noticeably longer."""
WANTED_FILES = 65_536
CONNECT_S = 2.0
PURPOSES = {"": "a client", "server": "a member", "bulk": "bulk calls", "otel": "traces", "spark": "Spark"}
"""What each extra of the distribution is for; the empty one is always there."""
RENEW_DAYS = 30
"""Days before its end that a certificate is worth a warning; the last third of its life if that is less."""
ANY_ADDRESS = ("0.0.0.0", "::")
"""Hosts to listen on, to which nobody can connect from elsewhere."""
REMOTE = frozenset({"9p", "ceph", "cifs", "fuse.sshfs", "glusterfs", "nfs", "nfs4", "smb3"})
VOLATILE = frozenset({"ramfs", "tmpfs"})

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    what: str
    text: str


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="the member's TOML file; its disk and addresses too"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine: the packages for clients, members, bulk calls, traces and Spark, limits, and with a member's
    configuration its files, certificates, ports, disk and addresses.

    The status is 1 if something is bad."""
    require_linux()
    found = []
    for finding in findings(config):
        found.append(finding)
        if not as_json:
            print(f"{finding.level:<5} {finding.what}: {printable(finding.text)}", flush=True)
    is_good = all(finding.level != "bad" for finding in found)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in found], "good": is_good})
    if not is_good:
        raise typer.Exit(1)


def findings(file: Path | None) -> Iterator[Finding]:
    """What was found, as it is found. file: the member's configuration; None for none."""
    yield Finding("ok", "system", f"Python {platform.python_version()}, Linux {platform.release()}")
    yield from _packages(is_for_member=file is not None)
    yield _open_files()
    lacks_packages = bool(_lacking("server")[0])
    if not lacks_packages:
        yield _checksums()
    if file is None:
        return
    if lacks_packages:
        yield Finding("warn", "not checked", f"{file} and all that it names (install the packages first)")
        return
    from quorum.config import examine

    yield from _of_configuration(file, examine(file))


def _of_configuration(file: Path, examined: Examined) -> Iterator[Finding]:
    """What was found with a configuration. A check is left out if a key that it needs is wrong, and the last finding
    says so."""
    wrong = [*examined.wrong, *_wrong_files(examined)]
    yield from (Finding("bad", "configuration", each) for each in wrong)
    config = examined.config
    if config is None:
        yield Finding("warn", "not checked", "files, certificates, ports, disk and other members")
        return
    if not wrong:
        yield Finding("ok", "configuration", f"{file}, member {config.name} of {', '.join(config.members)}")
    left_out = _unchecked_files(examined)
    for what, keys, check in _checks(config):
        if examined.has(*keys):
            yield from check()
        else:
            left_out.append((what, keys))
    if left_out:
        texts = [
            f"{what} (correct {', '.join(sorted(examined.unusable.intersection(keys)))} first)"
            for what, keys in left_out
        ]
        yield Finding("warn", "not checked", "; ".join(texts))


Check = tuple[str, tuple[str, ...], Callable[[], Iterable[Finding]]]
"""What is checked, the keys that it needs, and the check."""


def _checks(config: NodeConfig) -> Iterator[Check]:
    from quorum.api.security.certificates import CLIENT_FILES, PEER_FILES

    member = ("name", "members")
    yield "certificate for clients", (*CLIENT_FILES, *member), lambda: _client_certificates(config)
    yield "certificate for members", PEER_FILES, lambda: _peer_certificates(config)
    yield (
        "encryption",
        ("listen", "http_listen", "allow_plain_text", *CLIENT_FILES, *PEER_FILES, *member),
        lambda: _plain_text(config),
    )
    yield "port for clients", ("listen", *member), lambda: [_client_port(config)]
    yield "port for members", member, lambda: [_peer_port(config)]
    yield "port for HTTP", ("http_listen",), lambda: _http_port(config)
    yield "addresses", member, lambda: _own_addresses(config)
    yield "disk", ("data_dir", "disk_free_limit_bytes"), lambda: _disk(config)
    yield "other members", member, lambda: _others(config)


def _wrong_files(examined: Examined) -> Iterator[str]:
    """Why the member would not start with the files that its configuration names, and on its data directory, as far
    as their keys can be used."""
    from quorum.api.security.named_files import wrong_files

    yield from wrong_files(examined)
    if examined.config is not None and examined.has(*DATA_KEYS):
        yield from _wrong_data(examined.config)


def _unchecked_files(examined: Examined) -> list[tuple[str, tuple[str, ...]]]:
    """What `_wrong_files` leaves out, with the keys that it needs."""
    from quorum.api.security.named_files import FILE_CHECKS

    checks = [*((what, keys) for what, keys, _ in FILE_CHECKS), ("data directory", DATA_KEYS)]
    return [(what, keys) for what, keys in checks if not examined.has(*keys)]


def _wrong_data(config: NodeConfig) -> Iterator[str]:
    """Why the member would not start on its data directory, if there is one."""
    from quorum.api.process import founding_of
    from quorum.log.files import RealFiles
    from quorum.node.identity.identity import IdentityError, check_identity
    from quorum.node.identity.log_owner import check_owner
    from quorum.node.offline.backup import refuse_backup
    from quorum.node.offline.lost_log import LOG

    try:
        if not config.data_dir.is_dir():
            return
        refuse_backup(config.data_dir)
        check_identity(config.data_dir, config.name, founding_of(config), RealFiles())
        check_owner(config.data_dir, config.data_dir / LOG, RealFiles())
    except (ConfigError, IdentityError) as error:
        yield str(error)
    except OSError as error:
        yield f"data_dir {config.data_dir} cannot be read: {error.strerror}"


def _client_certificates(config: NodeConfig) -> Iterator[Finding]:
    from quorum.api.security.named_files import client_certificates

    what = "certificate for clients"
    try:
        found = client_certificates(config)
    except ConfigError:
        return  # `_wrong_files` has said so
    if found is None:
        return
    yield _dates("dates of the certificate for clients", found.certificate)
    if found.client_authorities is not None:
        yield _dates("dates of clients' authorities", found.client_authorities, is_authority=True)
    address = config.members[config.name].client
    why = found.why_not(host_port(address)[0])
    if why:
        text = f"clients connect to {address}, and would refuse {found.certificate}: {why}"
        yield Finding("bad", what, f"{text}; it names {_names(found.certificate)}")
    else:
        yield Finding("ok", what, f"{found.certificate} is one for {address}")


def _plain_text(config: NodeConfig) -> Iterator[Finding]:
    if not config.allow_plain_text:
        return  # the findings of the configuration name such ports
    for who, address in config.readable_ports.items():
        text = f"{address} is without TLS: what goes there can be read on the network, passwords too"
        keys = "peers_certificate_file" if who == "members" else "tls_certificate_file"
        yield Finding("warn", f"encryption, {who}", f"{text} ({keys})")


def _peer_certificates(config: NodeConfig) -> Iterator[Finding]:
    from quorum.api.security.named_files import peer_security

    what = "certificate for members"
    try:
        found = peer_security(config)
    except ConfigError:
        return
    if found is None:
        return
    dates = [
        _dates("dates of the certificate for members", found.certificate),
        _dates("dates of the members' authority", found.authority, is_authority=True),
    ]
    yield from dates
    if config.peers_key_file is not None and config.peers_key_file.stat().st_mode & 0o007:
        text = f"everybody can use peers_key_file {config.peers_key_file}"
        yield Finding("warn", "key for members", f"{text} (chmod 0400 {config.peers_key_file})")
    if any(each.level == "bad" for each in dates):
        return
    try:
        found.meet_itself()
    except OSError as error:
        text = f"members would refuse {found.certificate} with the authority {found.authority}"
        yield Finding("bad", what, f"{text}: {getattr(error, 'certificate', '') or error}")
    else:
        yield Finding("ok", what, f"{found.certificate} is one of {found.authority}")
    yield Finding("ok", "encryption between members", found.release)


def _dates(what: str, file: Path, *, is_authority: bool = False) -> Finding:
    """When the certificates of a file end: the first of a chain to do so, or the last of several authorities."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    choose = max if is_authority else min
    first = choose(
        x509.load_pem_x509_certificates(file.read_bytes()), key=lambda each: each.not_valid_after_utc
    )
    begins, ends = first.not_valid_before_utc, first.not_valid_after_utc
    name = first.subject.rfc4514_string() or "without a name"
    if begins > now:
        return Finding("bad", what, f"{file} ({name}) is valid only from {_day(begins)} on")
    if ends <= now:
        return Finding("bad", what, f"{file} ({name}) ended on {_day(ends)}")
    is_soon = ends - now < min(datetime.timedelta(days=RENEW_DAYS), (ends - begins) / 3)
    text = f"{file} ({name}) ends on {_day(ends)}"
    return Finding("warn", what, f"{text}; renew it") if is_soon else Finding("ok", what, text)


def _day(when: datetime.datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def _names(file: Path) -> str:
    """What the first certificate of a file is for."""
    from cryptography import x509

    first: Certificate = x509.load_pem_x509_certificates(file.read_bytes())[0]
    try:
        names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "no host"
    found = [str(each) for kind in (x509.DNSName, x509.IPAddress) for each in names.get_values_for_type(kind)]
    return ", ".join(found) or "no host"


def _client_port(config: NodeConfig) -> Finding:
    return _port(config, "port for clients", config.client_address)


def _peer_port(config: NodeConfig) -> Finding:
    return _port(config, "port for members", config.members[config.name].peer)


def _http_port(config: NodeConfig) -> Iterator[Finding]:
    if config.http_listen is not None:
        yield _port(config, "port for HTTP", config.http_listen)


def _own_addresses(config: NodeConfig) -> Iterator[Finding]:
    """Addresses that cannot be the ones at which others reach this member."""
    own = config.members[config.name]
    for key, address in (("client", own.client), ("peer", own.peer)):
        if host_port(address)[0] in ANY_ADDRESS:
            text = f"members.{config.name}.{key} is {address}, to which others cannot connect"
            yield Finding("bad", "addresses", f"{text}; give it a name or an address of this machine")


def _port(config: NodeConfig, what: str, address: str) -> Finding:
    """Whether the member can listen there, or does so already. The member is known by its log's lock."""
    from quorum.api.listening import why_not
    from quorum.log.log import LOCK
    from quorum.node.offline.lost_log import LOG

    error = why_not(address)
    if error is None:
        return Finding("ok", what, f"{address} is free")
    text = f"{address}: {error.strerror or error}"
    if error.errno != errno.EADDRINUSE:
        return Finding("bad", what, text)
    found = listeners(host_port(address)[1])
    folder = _data_dir(config)
    lock = None if folder is None else str((folder / LOG / LOCK).resolve())
    for each in found:
        if lock in each.files:
            return _of_running_member(what, address, each.pid)
    by = ", ".join(f"{each.command}, process {each.pid}" for each in found) or "a process of another user"
    return Finding("bad", what, f"{text} ({by})")


def _of_running_member(what: str, address: str, pid: int) -> Finding:
    """The kernel accepts connections for a paused process, too, so only its state tells that it answers nobody."""
    paused = but_paused(ProcessId.of(pid))
    return Finding("bad" if paused else "ok", what, f"{address}, on which the running member listens{paused}")


def _packages(*, is_for_member: bool) -> Iterator[Finding]:
    """The packages of each purpose. is_for_member: a member is to run here, so its packages have to be installed."""
    for extra, purpose in PURPOSES.items():
        what = f"packages for {purpose}"
        missing, other = _lacking(extra)
        command = how_to_install(extra)
        if other or (missing and extra == "server" and is_for_member) or (missing and not extra):
            lacking = [f"not installed: {', '.join(missing)}"] if missing else []
            yield Finding("bad", what, "; ".join([*lacking, *other, command]))
        elif missing:
            level: Level = "warn" if extra == "server" else "ok"
            yield Finding(level, what, f"not installed: {', '.join(missing)}; if they are needed: {command}")
        else:
            yield Finding("ok", what, f"release {__version__} with all that is needed")


def _lacking(extra: str) -> tuple[list[str], list[str]]:
    """The packages of an extra, or of every client if it is empty: the names of those that are missing, and what is
    wrong with the versions of others. Clients do not have the library that compares versions; pip has done so."""
    from importlib import metadata

    has_library = importlib.util.find_spec("packaging") is not None
    missing, other = [], []
    for text in metadata.requires(DISTRIBUTION) or ():
        of_extra = re.search(r"""extra == ['"]([^'"]+)['"]""", text)
        if (of_extra[1] if of_extra else "") != extra:
            continue
        name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if has_library:
            from packaging.requirements import Requirement

            wanted = Requirement(text).specifier
            if not wanted.contains(installed, prereleases=True):
                other.append(f"{name} is {installed}, wanted is {wanted}")
    return missing, other


def _checksums() -> Finding:
    """How a member computes the checksums of its records: without its compiled part, the package does it in Python."""
    import google_crc32c

    if google_crc32c.implementation == "c":
        return Finding("ok", "checksums", "computed by compiled code")
    return Finding(
        "warn",
        "checksums",
        "google-crc32c has no compiled part here, so each checksum takes hundreds of times more CPU time; install a "
        "build of google-crc32c that has it",
    )


def _open_files() -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = most == resource.RLIM_INFINITY or most >= WANTED_FILES
    text = "unlimited" if most == resource.RLIM_INFINITY else f"{most:,}"
    return Finding(
        "ok" if enough else "warn",
        "open files",
        f"at most {text}"
        + ("" if enough else f"; {WANTED_FILES:,} for many sessions: ulimit -n, LimitNOFILE="),
    )


def _disk(config: NodeConfig) -> Iterator[Finding]:
    folder = config.data_dir
    try:
        while not folder.exists():
            folder = folder.parent
    except OSError as error:  # a folder above it may not be entered
        yield Finding("bad", "disk", f"{folder} cannot be read: {error.strerror}")
        return
    kind = _file_system(folder)
    if kind in VOLATILE:
        yield Finding("bad", "file system", f"{folder} is {kind}: nothing of it survives a restart")
    elif kind in REMOTE:
        yield Finding("bad", "file system", f"{folder} is {kind}: a member needs a local disk")
    else:
        yield Finding("ok", "file system", f"{folder} is {kind}")
    free, wanted = shutil.disk_usage(folder).free, config.disk_free_limit_bytes
    yield Finding(
        "ok" if free > 2 * wanted else "warn" if free > wanted else "bad",
        "free space",
        f"{free / 1e9:.1f} GB; publishes are refused below {wanted / 1e9:.1f} GB",
    )
    try:
        times_ms = _sync_times_ms(folder)
    except OSError as error:
        yield Finding("bad", "disk", f"{folder} cannot be written: {error.strerror}")
        return
    middle, worst = times_ms[len(times_ms) // 2], times_ms[len(times_ms) * 99 // 100]
    yield Finding(
        "warn" if worst > SLOW_SYNC_MS else "ok",
        "disk",
        f"a sync of {SYNC_BYTES:,} bytes takes {middle:.1f} ms, the slowest of {SYNCS} {worst:.1f} ms"
        + (f"; above {SLOW_SYNC_MS:g} ms every publish is slow" if worst > SLOW_SYNC_MS else ""),
    )


def _file_system(folder: Path) -> str:
    """The type of the file system of an existing folder, as the kernel names it."""
    best, kind = "", "unknown"
    place = str(folder.resolve())
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        _, mounted, found, *_ = line.split(" ")
        at = mounted.replace("\\040", " ")
        if (place == at or place.startswith(at.rstrip("/") + "/")) and len(at) >= len(best):
            best, kind = at, found
    return kind


def _sync_times_ms(folder: Path) -> list[float]:
    """Times of appends with fdatasync to a file of this folder, ascending."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(bytes(SYNC_BYTES))
            file.flush()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return sorted(times)


def _data_dir(config: NodeConfig) -> Path | None:
    """None if the key is wrong or missing."""
    return getattr(config, "data_dir", None)


def _others(config: NodeConfig) -> Iterator[Finding]:
    """The other members, where the member itself looks for them: as its data directory remembers them from the cluster,
    before that as in the configuration. Those that were removed or dropped since the founding stay in the
    configuration, because it has to be as it was then."""
    remembered = _remembered(config)
    configured = {name: (each.peer, each.client) for name, each in config.members.items()}
    if remembered:
        for name in sorted(configured.keys() - remembered.keys() - {config.name}):
            yield Finding("ok", name, "not connected to, because the cluster has no such member any more")
    for name, (peer, client) in (remembered or configured).items():
        if name != config.name:
            yield _address(f"{name}, for members", peer)
            yield _address(f"{name}, for clients", client)


def _remembered(config: NodeConfig) -> dict[str, tuple[str, str]]:
    """The cluster's members when this one last knew them, with their addresses for members and for clients; none if it
    has never run, or its data directory cannot be used, which is another finding."""
    from quorum.api.process import founding_of
    from quorum.log.files import RealFiles
    from quorum.node.identity.identity import IdentityError, check_identity

    folder = _data_dir(config)
    try:
        if folder is None or not folder.is_dir():
            return {}
        known = check_identity(folder, config.name, founding_of(config), RealFiles())
    except (IdentityError, OSError):
        return {}
    members = () if known is None else known.node_state.members
    return {each.name: (each.peer, each.client) for each in members}


def _address(who: str, address: str) -> Finding:
    """Whether another member's address can be reached."""
    began = time.perf_counter()
    try:
        with socket.create_connection(host_port(address), timeout=CONNECT_S):
            pass
    except (OSError, ValueError) as error:  # an old catalog may have what is no address
        reason = getattr(error, "strerror", None) or str(error)
        return Finding("warn", who, f"{address} does not answer: {reason}; it may not run yet")
    return Finding("ok", who, f"{address} answers after {(time.perf_counter() - began) * 1000:.1f} ms")
