"""A member with TLS and users, as it is in production, and everybody who has no business there: what its ports give to
clients without credentials, hostile connections, and where its secrets are not."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

import quorum
from quorum.api.http.calls import CALLS, PREFIX
from quorum.api.security.rights import BY_METHOD
from quorum.client.errors import RefusedError, UsageError
from quorum.local_cluster.ports import HOST
from support.hostile.connections import PREFACE, call, headers_of
from support.hostile.http2 import END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame
from support.processes.hostile import hostile_connections
from support.processes.secured_member import HEALTHY, PASSWORD, SecuredMember

CONNECTIONS = 2_000
LIMIT_S = 60.0
WRONG = "canary-of-a-wrong-password-93b7"
LISTENING = "0A"
"""The state of a socket in /proc/net."""
ALERT = 0x15
"""The type of an alert of TLS."""


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredMember]:
    with SecuredMember(tmp_path_factory.mktemp("secured") / "cluster") as member:
        asyncio.run(member.make_users())
        process = member.process(member.name)
        yield member
        assert member.process(member.name) == process, member.processes.last_output(member.name)


def sockets() -> Iterator[tuple[int, str, str]]:
    """Own port, state and name of each TCP socket of this machine."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            yield int(fields[1].rpartition(":")[2], 16), fields[3], f"socket:[{fields[9]}]"


def open_files(member: SecuredMember) -> set[str]:
    """What the descriptors of the member's process name."""
    process = member.process(member.name)
    assert process is not None
    found = set()
    for each in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(f"/proc/{process.pid}/fd/{each}"))
    return found


def ports(member: SecuredMember) -> dict[str, str]:
    """Every address at which the member listens, found by the system and not by the configuration."""
    own = open_files(member)
    found = {port for port, state, inode in sockets() if state == LISTENING and inode in own}
    known = {"clients": member.members[0].client, "peers": member.members[0].peer, "http": member.http}
    assert found == {int(each.rpartition(":")[2]) for each in known.values()}, (
        "a port that nobody has told of"
    )
    return known


def answer(address: str, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """All that comes back until the member closes, or is silent."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as plain:
        try:
            found = b""
            with context.wrap_socket(plain, server_hostname=host) if context else plain as connection:
                connection.settimeout(2.0 if context else 8.0)
                connection.sendall(data)
                while more := connection.recv(1 << 16):
                    found += more
        except (TimeoutError, ConnectionError, ssl.SSLError):
            pass
    return found


def answers(said: Sequence[tuple[Any, ...]]) -> list[bytes]:
    """The same of several, all at the same time: each may last as long as the member is silent."""
    with ThreadPoolExecutor(len(said)) as threads:
        return list(threads.map(lambda each: answer(*each), said))


def status_of(member: SecuredMember, path: str, method: str = "GET") -> int:
    """Over HTTP, without credentials."""
    request = urllib.request.Request(f"https://{member.http}{path}", b"{}" * (method != "GET"), method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S, context=member.context()) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_every_port_speaks_tls_and_nothing_else(member: SecuredMember) -> None:
    spoken = (
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        call(next(iter(BY_METHOD)), [b""], log_in=True),
    )
    said = [(address, data) for address in ports(member).values() for data in spoken]
    for found, (address, data) in zip(answers(said), said, strict=True):
        assert found == b"" or found[0] == ALERT, (address, data, found[:80])


def test_the_peers_port_takes_no_handshake_without_a_certificate(member: SecuredMember) -> None:
    assert answer(member.members[0].peer, bytes(400), member.peer_context(has_certificate=False)) == b""


def test_without_a_log_in_the_clients_port_tells_its_health_and_nothing_else(member: SecuredMember) -> None:
    async def scenario() -> dict[str, grpc.StatusCode]:
        authority = (member.files.certificates / "ca.pem").read_bytes()
        credentials = grpc.ssl_channel_credentials(authority)
        found = {}
        async with grpc.aio.secure_channel(member.members[0].client, credentials) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            health = health_pb2.HealthCheckResponse.FromString(await check(b"", timeout=LIMIT_S))
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            for name in BY_METHOD:
                package = "grpc.reflection.v1alpha" if name.startswith("ServerReflection") else "quorum.v1"
                try:
                    await channel.unary_unary(f"/{package}.{name}")(b"", timeout=LIMIT_S)
                except grpc.aio.AioRpcError as error:
                    found[name] = error.code()
        return found

    found = asyncio.run(scenario())
    assert found == dict.fromkeys(BY_METHOD, grpc.StatusCode.UNAUTHENTICATED)


def test_without_a_log_in_the_http_port_tells_its_health_and_nothing_else(member: SecuredMember) -> None:
    assert status_of(member, "/healthz") == status_of(member, "/readyz") == 200
    for path in (
        "/metrics",
        "/metrics/queues",
        "/page/",
        "/page/page.js",
        "/openapi.json",
        f"{PREFIX}/events",
    ):
        assert status_of(member, path) == 401, path
    for each in CALLS:
        assert status_of(member, PREFIX + each.path.replace("{", "").replace("}", ""), each.method) == 401, (
            each
        )


def test_a_method_whose_name_is_no_text_ends_nothing(member: SecuredMember) -> None:
    """grpcio ends its whole server for such a call (quorum/api/grpc/grpc_server.py)."""
    context = member.context()
    context.set_alpn_protocols(["h2"])
    head = headers_of("/quorum.v1.Queue/Get", log_in=False).replace(b"Queue/Get", b"Queue/\xff\xfet")
    data = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS | END_STREAM, 1, head)
    for found in answers([(member.members[0].client, data, context)] * 3):
        assert found != b""
    test_without_a_log_in_the_clients_port_tells_its_health_and_nothing_else(member)


NAMES = (
    "../../../log",
    "..",
    "mine/../../x",
    "mine é",
    "mine e\u0301",
    "mine K",
    "mine \u212a",
    "ü" * 127 + "x",
)
"""Of queues: paths, one letter in two forms, two letters that look alike, and 255 bytes."""


def test_a_name_is_never_a_path_and_one_name_is_one_queue(member: SecuredMember) -> None:
    def files() -> set[Path]:
        return {each for each in member.files.directory.parent.rglob("*") if each.is_file()}

    async def scenario() -> None:
        async with quorum.connect(member.url) as client:
            for name in NAMES:
                await client.declare(name, {})
                await client.publish(name, name.encode())
            for name in NAMES:
                [message] = await client.get(name, 5)
                assert message.body == name.encode()
            for name in ("mine\0", "mine\n", "mine\x7f", "ü" * 128, ""):
                with pytest.raises((RefusedError, UsageError)):
                    await client.declare(name, {})
            for name in NAMES:
                await client.delete(name)

    before = files()
    asyncio.run(scenario())
    new = files() - before
    assert {each.parent for each in new} <= {each.parent for each in before}
    assert not [each for each in new if "mine" in each.name or ".." in each.name]


def test_what_a_client_says_of_deliveries_and_deaths_is_not_believed(member: SecuredMember) -> None:
    """The delivery count is the service's own; properties of these names are like any others."""

    async def scenario() -> None:
        forged = {"x-delivery-count": 99, "x-acquired-count": 99, "JMSXDeliveryCount": 99, "x-death": "[]"}
        async with quorum.connect(member.url_as(HEALTHY)) as client:
            await client.declare("healthy.count", {"x-delivery-limit": 2})
            await client.publish("healthy.count", b"x", application_properties=forged)
            async with client.consume("healthy.count") as consumer:
                counts = []
                async for message in consumer:
                    counts.append((message.delivery_count, message.redelivered))
                    if len(counts) == 2:
                        await message.settle()
                        break
                    await message.modify(delivery_failed=True)
            assert counts == [(0, False), (1, True)]
            await client.delete("healthy.count")

    asyncio.run(scenario())


def test_no_secret_is_in_any_output(member: SecuredMember) -> None:
    """Of a member and of the command line: log lines, errors, figures, configuration, definitions, processes."""
    process = member.process(member.name)
    assert process is not None
    key = (member.files.certificates / f"{HOST}.key").read_text(encoding="ascii").splitlines()[1]
    name, password = member.files.administrator
    encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
    secret = (member.files.directory / "secret").read_text(encoding="ascii").strip()
    canaries = (PASSWORD, password, WRONG, encoded, key, secret, "scrypt$")
    outputs = {}
    for kind in ("cmdline", "environ"):
        outputs[kind] = Path(f"/proc/{process.pid}/{kind}").read_text(encoding="utf-8", errors="replace")
    for path in (
        "/metrics",
        "/metrics/queues",
        f"{PREFIX}/cluster",
        f"{PREFIX}/users",
        f"{PREFIX}/definitions",
    ):
        request = urllib.request.Request(
            f"https://{member.http}{path}", headers={"Authorization": f"Basic {encoded}"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S, context=member.context()) as found:
            outputs[path] = found.read().decode()
    right = {**os.environ, "QUORUM_URL": member.url_as(), "QUORUM_USER": name, "QUORUM_PASSWORD": password}
    wrong = {**right, "QUORUM_PASSWORD": WRONG}
    for words, variables in (
        (["cluster", "status"], right),
        (["users", "list"], wrong),
        (["doctor", "--config", str(member.members[0].config)], right),
    ):
        command = [sys.executable, "-m", "quorum", *words]
        said = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        outputs[" ".join(words)] = said.stdout + said.stderr
    outputs["log"] = member.output
    assert name in outputs[f"{PREFIX}/users"]
    assert "log-in failed" in outputs["log"]
    assert "log-in" in outputs["users list"]
    for where, output in outputs.items():
        assert output, where
        assert not [each for each in canaries if each in output], where


def test_the_member_dials_nobody(member: SecuredMember) -> None:
    """It has no other member, so each of its connections came to one of its ports."""
    own = {int(address.rpartition(":")[2]) for address in ports(member).values()}
    opened = open_files(member)
    assert {port for port, _, inode in sockets() if inode in opened} <= own


def test_hostile_connections_leave_no_trace(member: SecuredMember) -> None:
    """The long form is a part of campaign.py."""
    print(asyncio.run(hostile_connections(member, CONNECTIONS)))
