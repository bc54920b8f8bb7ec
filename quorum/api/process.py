"""One member's process: build the node from its configuration, serve, and shut down."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION
from fifo.versions import UnknownVersion
from quorum.addresses import host_port
from quorum.api import allocator
from quorum.api.dead_letters.worker import forward_dead_letters
from quorum.api.health_watch import watch_health
from quorum.api.hub.hub import Hub
from quorum.api.listening import check_ports
from quorum.api.security.access import Access
from quorum.api.security.audit import Audit
from quorum.api.security.audit_file import AuditFile
from quorum.api.security.named_files import NamedFiles, load_files
from quorum.api.security.reloading import Reloader, Source
from quorum.api.server import Server
from quorum.config import NodeConfig
from quorum.errors import ConfigError, OperatorError, TooOld
from quorum.log import RESERVE_SEGMENTS, Log
from quorum.log.files import NO_DESCRIPTORS, NO_ROOM, SPARE_DESCRIPTORS, Files, RealFiles
from quorum.node import events as ev
from quorum.node.driver import Driver, boottime_s
from quorum.node.identity.identity import FILE as IDENTITY
from quorum.node.identity.identity import Founding, IdentityError, ProcessStart, record_start
from quorum.node.identity.log_owner import check_owner, claim_log
from quorum.node.maintenance.garbage_collection import Threaded
from quorum.node.maintenance.scrubbing import Pace
from quorum.node.member import Member
from quorum.node.member_config import SPREAD_AFTER_MS, MemberConfig
from quorum.node.offline.backup import refuse_backup
from quorum.node.offline.lost_log import LOG, open_log
from quorum.node.queries import HasHandedOver
from quorum.node.replica.skipped_entries import shown
from quorum.node.wire.batches import BatchLimits
from quorum.replication.network.connection import PeerNetwork
from quorum.replication.network.handshake import Identity, Versions

if TYPE_CHECKING:
    from quorum.api.http.server import HttpServer
    from quorum.replication.network.tls import TlsSecurity

T = TypeVar("T")

STOP_GRACE_S = 2.0
HAND_OVER_S = 2.0
"""Maximum time that a stopping node waits until other members lead the groups that it led: the time of two leadership
transfers. The operator should not have to wait longer."""
TRANSFER_POLL_S = 0.05
SEGMENT_BYTES = 64 << 20
RECENT_BYTES = 4 << 20
"""Bytes of recent bodies kept in memory, for consumers at the tail of their queues. Older bodies come from the kernel's
page cache or the disk."""
SWITCH_INTERVAL_S = 0.001
"""Interval for switching threads. With Python's default, the Raft thread may wait 5 ms for the interpreter after a peer
has answered."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A member's storage. Only tests change the defaults, for faulty disks and small segments."""

    files: Files = field(default_factory=lambda: RealFiles(SPARE_DESCRIPTORS))
    segment_bytes: int = SEGMENT_BYTES
    snapshot_bytes: int | None = None
    """see MemberConfig"""
    pace: Pace = field(default_factory=Pace)
    """of scrubbing"""


def run(config: NodeConfig, disk: Disk | None = None, source: Source | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the process's exit status: 0, or 2 under python -O. OperatorError, OSError
    or LogError if the member cannot start. source: of the configuration, for SIGHUP."""
    if not __debug__:
        print("quorum does not run under python -O: its checks are part of its safety", file=sys.stderr)
        return 2
    refuse_backup(config.data_dir)
    named = load_files(config)  # before any file is changed
    if not (config.data_dir / IDENTITY).exists():
        check_ports(config)  # a directory that is founded fixes the name, the cluster and its members
    if source is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the configuration is in use
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    allocator.set_up()
    try:
        config.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"data_dir {config.data_dir} cannot be made: {error.strerror}") from error
    disk = disk or Disk()
    try:
        check_owner(config.data_dir, config.data_dir / LOG, disk.files)
    except IdentityError as error:
        raise ConfigError(str(error)) from error
    log = open_log(
        config.data_dir,
        groups=config.queue_groups + 1,
        has_begun=(config.data_dir / IDENTITY).exists(),
        has_others=config.join or len(config.members) > 1,
        files=disk.files,
        segment_bytes=disk.segment_bytes,
        recent_bytes=RECENT_BYTES,
        reserve_segments=RESERVE_SEGMENTS,
        free_limit_bytes=config.disk_free_limit_bytes,
        max_bytes=config.max_log_bytes or 0,
    )
    try:
        try:
            start = _record_start(config, log, disk.files)
        except IdentityError as error:
            raise ConfigError(str(error)) from error
        return asyncio.run(_serve(config, named, log, start, disk, source))
    finally:
        log.close()


def _record_start(config: NodeConfig, log: Log, files: Files) -> ProcessStart:
    start = _with_room(
        log,
        lambda: record_start(
            config.data_dir, config.name, founding_of(config), int(time.time() * 1000), files
        ),
    )
    incarnation = start.node_state.incarnation
    _with_room(log, lambda: claim_log(config.data_dir / LOG, incarnation, files))
    save = start.node_state.save
    start.node_state.save = lambda: _with_room(log, save)
    return start


def _with_room(log: Log, write: Callable[[], T]) -> T:
    """Return the result of `write`, which writes a small file. If the disk is full, release a part of the log's reserve
    and call it again. So a full disk does not prevent a member from starting, or from saving which members it has
    met. OSError if nothing is left of the reserve."""
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in NO_ROOM - NO_DESCRIPTORS or not log.release_reserve():
                raise


async def _serve(
    config: NodeConfig, named: NamedFiles, log: Log, start: ProcessStart, disk: Disk, source: Source | None
) -> int:
    logger = structlog.get_logger().bind(node=config.name)

    def known(peer: str) -> bytes:
        return member.incarnation_bytes(peer)

    network = _network(config, named, start, known)
    member = _member(config, log, network, start, disk)
    limits = BatchLimits(config.max_batch_messages, config.max_message_bytes, config.max_batch_bytes)
    access = Access(
        named.administrator,
        None if named.tokens is None else named.tokens.check,
        is_open_without_users=config.allow_without_users,
        takes_certificates=config.tls_client_ca_file is not None,
        audit=Audit(None if config.audit_file is None else AuditFile(config.audit_file, config.name)),
    )
    hub = Hub(start.id, log, limits, config.session_window_bytes, config.node_window_bytes, access)
    driver = Driver(member, network, hub.on_outputs)
    hub.attach(driver)
    server = Server(hub, config, named.certificates)
    await server.start(config.client_address)
    try:
        http = await _serve_http(hub, config, server, named.security)
    except BaseException:
        await server.stop(0)  # else gRPC complains when the process ends
        raise
    gc.collect()
    gc.freeze()
    gc.enable()
    driver.start()
    try:
        tasks = [watch_health(hub, server), allocator.return_memory(), forward_dead_letters(hub)]
        if source is not None:
            reloader = Reloader(config, source, access, named.certificates, named.security, named.tokens)
            tasks.append(reloader.reload_on(_signalled(signal.SIGHUP)))
        stopping = _signalled(signal.SIGTERM, signal.SIGINT)
        logger.info(
            "started",
            clients=config.client_address,
            peers=config.members[config.name].peer,
            http=config.http_listen or "off",
            tls=", ".join(_with_tls(config, named)) or "off",
            boot=start.boot,
        )
        if config.readable_ports:
            logger.warning("connections without TLS can be read on the network", **config.readable_ports)
        await _until(stopping, tasks, [*server.tasks, *(() if http is None else http.tasks)])
        logger.info("stopping")
        await _hand_over(hub)
        await hub.stop()
        await server.stop(STOP_GRACE_S)
        if http is not None:
            await http.stop()
    finally:
        await server.stop(0)  # after a defect
        await asyncio.to_thread(driver.stop)  # it uses the log and the network
        network.close()
    return 0


def _signalled(*numbers: signal.Signals) -> asyncio.Event:
    """An event that is set by each of these signals."""
    event = asyncio.Event()
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


def _network(
    config: NodeConfig, named: NamedFiles, start: ProcessStart, known: Callable[[str], bytes]
) -> PeerNetwork:
    """The connections to the other members. known: the incarnation under which this member speaks to a peer."""
    identity = Identity(
        start.id,
        start.boot,
        named.secret,
        f"cluster {config.cluster!r}, queue_groups {config.queue_groups}",
        # founding members with different texts refuse each other's connections
        founding="" if config.join else str(founding_of(config)),
        incarnation=bytes.fromhex(start.node_state.incarnation),
        known=known,
        skips=" ".join(map(shown, config.skipped_places)),
        versions=Versions(machine=PRODUCTION.newest_version),
    )
    addresses = {
        (start.id if name == config.name else name): host_port(each.peer)
        for name, each in config.members.items()
    }
    return PeerNetwork(identity, addresses, security=named.security)


def _member(config: NodeConfig, log: Log, network: PeerNetwork, start: ProcessStart, disk: Disk) -> Member:
    """TooOld if a newer release has used the directory."""
    addresses = {name: (each.peer, each.client) for name, each in config.members.items()}
    member_config = MemberConfig(
        start.id,
        founding_of(config).members,
        start.boot,
        config.lease_ms,
        config.queue_groups,
        config.raft_config(),
        disk.snapshot_bytes,
        queue_memory_bytes=config.queue_memory_bytes,
        addresses={} if config.join else addresses,
        scrubbing=disk.pace,
        spread_after_ms=SPREAD_AFTER_MS if config.spread_leaders else None,
        skip_entries=config.skipped_places,
    )
    try:
        return Member(
            member_config,
            log,
            network,
            boottime_s,
            lambda: int(time.time() * 1000),
            random.SystemRandom(),
            start.node_state,
            Threaded(),
        )
    except UnknownVersion as error:
        raise TooOld(f"data_dir {config.data_dir} was used by a newer release: {error}") from error


async def _serve_http(
    hub: Hub, config: NodeConfig, services: Server, security: TlsSecurity | None
) -> HttpServer | None:
    """The server of `http_listen`, None without it. Its libraries are imported only if they are needed."""
    if config.http_listen is None:
        return None
    from quorum.api.http.json_api import JsonApi
    from quorum.api.http.server import HttpServer

    api = JsonApi(hub, services.admin, services.queues, services.bulk)
    server = HttpServer(hub, api, services.certificates, security)
    await server.start(config.http_listen)
    return server


def _with_tls(config: NodeConfig, named: NamedFiles) -> Iterator[str]:
    """The ports with TLS, by the names of the line about the start."""
    if named.certificates is not None:
        yield "clients"
    if named.security is not None:
        yield "peers"
    if named.certificates is not None and config.http_listen is not None:
        yield "http"


async def _until(
    stopping: asyncio.Event,
    work: Iterable[Coroutine[Any, Any, None]],
    others: Iterable[asyncio.Task[None]] = (),
) -> None:
    """Do this work until the process is to stop. Raises the defect of a part, or of the other tasks: without them the
    health status would not change any more, no dead letter would be forwarded, or a port would not be watched."""
    tasks = [asyncio.create_task(each) for each in work]
    stopped = asyncio.create_task(stopping.wait())
    waiting: set[asyncio.Task[Any]] = {stopped, *tasks, *others}
    try:
        while not stopped.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in (stopped, *tasks):
            task.cancel()


async def _hand_over(hub: Hub) -> None:
    """Transfer this node's leaderships to other members where possible, and wait up to HAND_OVER_S for that."""
    hub.submit(ev.Leave())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HAND_OVER_S):
            while not await hub.requests.query(HasHandedOver()):
                await asyncio.sleep(TRANSFER_POLL_S)


def founding_of(config: NodeConfig) -> Founding:
    """The settings with which this member's cluster began."""
    members = () if config.join else tuple(sorted(config.members))
    return Founding(config.cluster, config.queue_groups, members)
