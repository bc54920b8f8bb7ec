"""Clients with TLS: real sockets, real certificates, the real server of a member."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

import quorum
import quorum.sync
from quorum.api.http.json_api import JsonApi
from quorum.api.http.server import HttpServer
from quorum.api.security.certificates import Certificates, shake_hands
from quorum.cli.commands.certificates import create
from quorum.cli.commands.health import health
from quorum.cli.console import CliError
from quorum.client.bulk.client import BulkClient
from quorum.client.connection.endpoints import parse_url
from quorum.client.errors import NotFound, PermissionRefused, TimedOut, TlsError, UnavailableError, UsageError
from quorum.errors import ConfigError
from quorum.local_cluster.ports import free_ports
from quorum.replication.network.tls import TlsSecurity
from support.hostile.certificates import HOST, issue
from support.members.served import serving

PATIENT_MS = 60_000
"""A client that waits so long has found out what is wrong by itself, or there would be a TimedOut."""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with an authority, certificates of 127.0.0.1 and of "client"."""
    create(["127.0.0.1", "client"], tmp_path / "own", 30)
    create(["127.0.0.1", "client"], tmp_path / "other", 30)
    return tmp_path / "own"


@contextlib.asynccontextmanager
async def secured(made: Path, *, with_clients: bool = False) -> AsyncIterator[str]:
    """host:port of a member with TLS."""
    found = Certificates(
        made / "127.0.0.1.pem", made / "127.0.0.1.key", made / "ca.pem" if with_clients else None
    )
    async with serving(credentials=found.credentials()) as (url, [api]):
        api.hub.access.takes_certificates = with_clients
        yield url.removeprefix("quorum://")


async def works(url: str) -> None:
    async with quorum.connect(url, connect_timeout_ms=60_000) as client:
        await client.declare("orders")
        await client.publish("orders", b"one")
        [message] = await client.get("orders", 1)
        assert message.body == b"one"
        await client.delete("orders")


def test_a_client_with_the_authority_publishes_and_reads(made: Path) -> None:
    async def run() -> None:
        async with secured(made) as address:
            await works(f"quorums://{address}/?ca_file={made}/ca.pem")
            port = address.rpartition(":")[2]
            await works(f"quorums://localhost:{port}/?ca_file={made}/ca.pem")

    asyncio.run(run())


def test_clients_without_tls_or_with_another_authority_reach_nothing(made: Path) -> None:
    async def run() -> None:
        async with secured(made) as address:
            other = made.parent / "other" / "ca.pem"
            for url, said in (
                (f"quorum://{address}", f"{address} speaks TLS, .* use quorums://{address}/\\?ca_file="),
                (f"quorums://{address}", "not accepted: .*the URL has to name the authority .* \\?ca_file="),
                (f"quorums://{address}/?ca_file={other}", f"not accepted: .*{other} .* is not the authority"),
                (f"quorums://{address}/?ca_file={made}/ca.key", f"^ca_file {made}/ca.key has no certificate"),
                (
                    f"quorums://{address}/?ca_file={made}/ca.pem&certificate_file={made}/client.pem"
                    f"&key_file={made}/ca.key",
                    f"^certificate_file {made}/client.pem with key_file {made}/ca.key cannot be used: ",
                ),
            ):
                with pytest.raises(TlsError, match=said):
                    await quorum.connect(url, connect_timeout_ms=PATIENT_MS)
        async with serving() as (plain, _):
            address = plain.removeprefix("quorum://")
            with pytest.raises(TlsError, match=f"{address} does not speak TLS, .* use quorum://{address}"):
                await quorum.connect(
                    f"quorums://{address}/?ca_file={made}/ca.pem", connect_timeout_ms=PATIENT_MS
                )

    asyncio.run(run())


@pytest.mark.parametrize("has_tls", [True, False])
def test_the_port_of_http_is_told_from_the_port_of_clients(made: Path, has_tls: bool) -> None:
    async def run() -> None:
        certificates = Certificates(made / "127.0.0.1.pem", made / "127.0.0.1.key") if has_tls else None
        async with serving() as (_, [api]):
            http = HttpServer(api.hub, JsonApi(api.hub, api.admin, api.queues, api.bulk), certificates, None)
            [free] = free_ports(1)
            address = f"{HOST}:{await http.start(f'{HOST}:{free}')}"
            urls = [f"quorum://{address}"]
            if has_tls:
                urls.append(f"quorums://{address}/?ca_file={made}/ca.pem")
            try:
                for url in urls:
                    with pytest.raises(TlsError, match=f"{address} looks like the port of http_listen"):
                        await quorum.connect(url, connect_timeout_ms=PATIENT_MS)
                    with pytest.raises(CliError, match=f"{address} looks like the port of http_listen"):
                        await asyncio.to_thread(health, url, timeout=PATIENT_MS / 1000)
            finally:
                await http.stop()

    asyncio.run(run())


def test_an_end_without_a_word_is_no_problem_of_tls(made: Path) -> None:
    """A member that is just restarting may end a connection so, and is waited for."""

    async def run() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0)
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        for url in (f"quorum://{address}", f"quorums://{address}/?ca_file={made}/ca.pem"):
            with pytest.raises(TimedOut):
                await quorum.connect(url, connect_timeout_ms=1_000)
        server.close()

    asyncio.run(run())


def test_calls_outside_a_session_find_what_is_wrong_too(made: Path) -> None:
    def call(url: str) -> None:
        with BulkClient(url, timeout_ms=PATIENT_MS) as client:
            client.queue_info("orders")

    async def run() -> None:
        async with secured(made) as address:
            with pytest.raises(TlsError, match="speaks TLS"):
                await asyncio.to_thread(call, f"quorum://{address}")
            with pytest.raises(NotFound):
                await asyncio.to_thread(call, f"quorums://{address}/?ca_file={made}/ca.pem")

    asyncio.run(run())


def test_a_client_certificate_is_demanded_where_authorities_of_clients_are_set(made: Path) -> None:
    async def run() -> None:
        async with secured(made, with_clients=True) as address:
            ca = f"quorums://{address}/?ca_file={made}/ca.pem"
            await works(f"{ca}&certificate_file={made}/client.pem&key_file={made}/client.key")
            other = made.parent / "other"
            for url in (ca, f"{ca}&certificate_file={other}/client.pem&key_file={other}/client.key"):
                with pytest.raises(TimedOut, match="as if it refused the client's certificate"):
                    async with quorum.connect(url, connect_timeout_ms=3_000):
                        pass

    asyncio.run(run())


def test_what_answers_before_the_handshake_is_tls_and_nothing_else(made: Path) -> None:
    async def run() -> None:
        async with secured(made) as address:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(200))
            answer = await asyncio.wait_for(reader.read(), 30)
            assert answer == b"" or answer[:1] == b"\x15", "nothing, or a TLS alert"
            writer.close()

    asyncio.run(run())


def test_the_strictest_clients_and_members_accept_the_certificates(made: Path) -> None:
    """Python checks that much by itself from 3.13 on."""
    ends = []
    for purpose, name in ((ssl.Purpose.CLIENT_AUTH, HOST), (ssl.Purpose.SERVER_AUTH, "client")):
        context = ssl.create_default_context(purpose, cafile=str(made / "ca.pem"))
        context.load_cert_chain(made / f"{name}.pem", made / f"{name}.key")
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        ends.append(context)
    shake_hands(*ends, HOST)


def test_renewed_certificates_are_used_without_a_restart(made: Path) -> None:
    def shown(address: str) -> bytes:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cafile=str(made / "ca.pem"))
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            found = tls.getpeercert(binary_form=True)
            assert found is not None
            return found

    async def run() -> None:
        async with secured(made) as address:
            before = await asyncio.to_thread(shown, address)
            create(["127.0.0.1"], made, 30)
            after = await asyncio.to_thread(shown, address)
            assert before != after
            (made / "127.0.0.1.pem").write_text("rubbish")
            assert await asyncio.to_thread(shown, address) == after, "the last good ones stay"
            await works(f"quorums://{address}/?ca_file={made}/ca.pem")

    asyncio.run(run())


def test_wrong_files_are_told_at_the_start(made: Path) -> None:
    def refused(certificate: Path, key: Path) -> str:
        with pytest.raises(ConfigError) as error:
            Certificates(certificate, key).credentials()
        return str(error.value)

    pem, key = made / "127.0.0.1.pem", made / "127.0.0.1.key"
    assert "No such file" in refused(made / "none.pem", key)
    assert "not the key" in refused(pem, made / "client.key")
    assert "no PEM file" in refused(key, key)
    os.chmod(key, 0o444)
    assert "mode 0444" in refused(pem, key)


def test_a_url_says_where_the_certificates_are(tmp_path: Path) -> None:
    found = parse_url("quorums://a:1,b/?ca_file=/x/ca.pem")
    assert (found.endpoints, found.is_secure, found.ca_file) == (("a:1", "b:7400"), True, "/x/ca.pem")
    assert parse_url(found.url_of("b:7400")) == parse_url("quorums://b:7400/?ca_file=/x/ca.pem")
    for bad in (
        "quorum://a/?ca_file=/x",
        "quorums://a/?password=x",
        "quorums://a/?certificate_file=/x",
    ):
        with pytest.raises(UsageError):
            parse_url(bad)
    with pytest.raises(UsageError, match="cannot be read"):
        parse_url(f"quorums://a/?ca_file={tmp_path}/none").open_blocking_channel("a:1")


def test_an_error_names_no_key(made: Path) -> None:
    """A key's text is in no error."""
    text = (made / "client.key").read_text()
    with pytest.raises(ConfigError) as error:
        Certificates(made / "client.key", made / "client.key").credentials()
    assert text[40:60] not in str(error.value)


# ---- certificates that are wrong in one way


async def is_served(address: str, files: str, expected: bool = True) -> bool:
    """expected: a refusal is waited for in full, because clients try again until their time is over."""
    limit_ms = PATIENT_MS if expected else 2_000
    try:
        async with quorum.connect(f"quorums://{address}/?{files}", connect_timeout_ms=limit_ms):
            return True
    except TlsError:
        raise
    except UnavailableError:
        return False


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, ""),
        ({"first_day": -3, "last_day": -1}, "certificate has expired"),
        ({"first_day": 1, "last_day": 3}, "certificate is not yet valid"),
        ({"host": "node-1.example"}, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ({"host": "127.0.0.2"}, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ({"for_server": False}, "unsuitable certificate purpose"),
    ],
    ids=["right", "expired", "not yet valid", "another name", "another address", "of a client"],
)
def test_a_client_refuses_a_member_whose_certificate_is_wrong(
    made: Path, wrong: dict[str, Any], said: str
) -> None:
    async def run() -> None:
        found = Certificates(*issue(made, made / "wrong", **wrong))
        async with serving(credentials=found.credentials()) as (url, _):
            address = url.removeprefix("quorum://")
            files = f"ca_file={made}/ca.pem"
            if not said:
                assert await is_served(address, files)
                return
            with pytest.raises(TlsError, match=f"certificate of {address} is not accepted: {said}$"):
                await is_served(address, files)
            async with secured(made) as right:  # a member with a right certificate serves all the same
                assert await is_served(f"{address},{right}", files)
                assert await is_served(f"{right},{address}", files)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("wrong", "served"),
    [
        ({}, True),
        ({"host": "any.name"}, True),
        ({"first_day": -3, "last_day": -1}, False),
        ({"first_day": 1, "last_day": 3}, False),
        ({"for_client": False}, False),
    ],
    ids=["right", "any name", "expired", "not yet valid", "of a server"],
)
def test_a_member_refuses_a_client_whose_certificate_is_wrong(
    made: Path, wrong: dict[str, Any], served: bool
) -> None:
    async def run() -> None:
        certificate, key = issue(made, made / "wrong", **wrong)
        async with secured(made, with_clients=True) as address:
            files = f"ca_file={made}/ca.pem&certificate_file={certificate}&key_file={key}"
            assert await is_served(address, files, served) == served

    asyncio.run(run())


def test_a_common_name_counts_to_its_end(made: Path) -> None:
    """gRPC reports a name up to its first zero byte."""

    async def run() -> None:
        async with secured(made, with_clients=True) as address:

            def url_of(certificate: Path, key: Path) -> str:
                return f"quorums://{address}/?ca_file={made}/ca.pem&certificate_file={certificate}&key_file={key}"

            own = url_of(*issue(made, made / "admin", host="admin"))
            other = url_of(*issue(made, made / "another", host="admin\0.another.example"))
            async with quorum.connect(own) as client:
                await client.set_user("admin", administers=True)
                assert [each.name for each in await client.users()] == ["admin"]
            with pytest.raises(PermissionRefused, match="its certificate names no user"):
                async with quorum.connect(other, connect_timeout_ms=PATIENT_MS) as client:
                    await client.users()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("newest", "is_spoken"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
def test_members_speak_tls_1_2_and_later_with_clients(
    made: Path, newest: ssl.TLSVersion, is_spoken: bool
) -> None:
    def shake(address: str) -> str | None:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cafile=str(made / "ca.pem"))
        context.set_ciphers("ALL:@SECLEVEL=0")  # or this end would refuse TLS 1.1 itself
        context.set_alpn_protocols(["h2"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = newest
        with socket.create_connection((host, int(port))) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=host) as tls:
                    return tls.version()
            except (ssl.SSLError, ConnectionError):
                return None

    async def run() -> None:
        async with secured(made) as address:
            assert (await asyncio.to_thread(shake, address) is not None) == is_spoken

    asyncio.run(run())


def test_a_wrong_file_of_authorities_is_refused_and_the_old_one_stays(made: Path) -> None:
    async def run() -> None:
        found = Certificates(made / "127.0.0.1.pem", made / "127.0.0.1.key", made / "clients.pem")
        async with serving(credentials=found.credentials()) as (url, _):
            address = url.removeprefix("quorum://")
            files = f"ca_file={made}/ca.pem&certificate_file={made}/client.pem&key_file={made}/client.key"
            assert await is_served(address, files)
            (made / "clients.pem").write_text("rubbish")
            assert await is_served(address, files)

    shutil.copy(made / "ca.pem", made / "clients.pem")
    asyncio.run(run())
    with pytest.raises(ConfigError, match=r"tls_client_ca_file .* is no PEM file"):
        Certificates(made / "127.0.0.1.pem", made / "127.0.0.1.key", made / "clients.pem")


# ---- renewed files


def test_a_client_that_is_open_uses_a_renewed_authority_for_its_next_calls(made: Path) -> None:
    """Calls outside the session, too: a channel would keep the authority that it was opened with."""

    async def run() -> None:
        other = made.parent / "other"
        async with secured(made) as address:
            shutil.copy(made / "ca.pem", made / "trusted.pem")
            url = f"quorums://{address}/?ca_file={made}/trusted.pem"
            async with quorum.connect(url, timeout_ms=60_000) as client:
                await client.declare("orders")
                async with secured(other) as elsewhere:
                    os.replace(shutil.copy(other / "ca.pem", made / "new.pem"), made / "trusted.pem")
                    client._endpoints = (elsewhere,)
                    assert client._session is not None
                    client._session.endpoint = elsewhere
                    await client.declare("bills")

    asyncio.run(run())


def test_a_session_outlives_a_file_that_is_away_for_a_moment(made: Path) -> None:
    async def run() -> None:
        async with secured(made) as address:
            shutil.copy(made / "ca.pem", made / "trusted.pem")
            url = f"quorums://{address}/?ca_file={made}/trusted.pem"
            async with quorum.connect(url) as client:
                await client.declare("orders")
                session = client._session
                assert session is not None
                (made / "trusted.pem").unlink()
                session._call.cancel()
                while "cannot be read" not in str(session._stream.last_error):
                    await asyncio.sleep(0.01)
                shutil.copy(made / "ca.pem", made / "trusted.pem")
                await client.publish("orders", b"one")
            (made / "trusted.pem").unlink()
            with pytest.raises(UsageError, match="cannot be read"):
                async with quorum.connect(url):
                    pass

    asyncio.run(run())


def hello(name: bytes) -> bytes:
    """The first bytes of a client that asks for this name, of nine bytes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    sent = outgoing.read()
    assert sent.count(b"localhost") == 1
    return sent.replace(b"localhost", name)


def test_a_name_that_is_not_ascii_writes_nothing_at_the_http_port(
    made: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        async with serving() as (_, [api]):
            certificates = Certificates(made / "127.0.0.1.pem", made / "127.0.0.1.key")
            http = HttpServer(api.hub, JsonApi(api.hub, api.admin, api.queues, api.bulk), certificates, None)
            [free] = free_ports(1)
            port = await http.start(f"{HOST}:{free}")
            try:
                for name in (b"localhost", b"lo\x80alhost", b"loc\xff\xff\xff\xff\xff\xff"):
                    reader, writer = await asyncio.open_connection(HOST, port)
                    writer.write(hello(name))
                    assert await reader.read(1), "an answer of TLS"
                    writer.close()
            finally:
                await http.stop()

    asyncio.run(run())
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err


def test_the_http_port_has_the_renewed_certificate_too_and_metrics_say_when_it_ends(made: Path) -> None:
    def connection(port: int) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(made / "ca.pem"))
        plain = socket.create_connection((HOST, port))
        return context.wrap_socket(plain, server_hostname=HOST)

    def shown(port: int) -> bytes:
        with connection(port) as tls:
            tls.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in tls.recv(1_000)
            found = tls.getpeercert(binary_form=True)
            assert found is not None
            return found

    def ends(tls: ssl.SSLSocket) -> dict[str, int]:
        """By use, over a connection that stays: it began before the renewal."""
        tls.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        data = b""
        while b"\r\n\r\n" not in data:
            data += tls.recv(65_536)
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        [length] = re.findall(rb"content-length: (\d+)", head.lower())
        while len(body) < int(length):
            body += tls.recv(65_536)
        found = re.findall(rb'quorum_certificate_end_timestamp_seconds\{use="(\w+)"\} (\S+)', body)
        return {use.decode(): int(float(value)) for use, value in found}

    def end_in(file: Path) -> int:
        return int(x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.timestamp())

    own = made / "127.0.0.1.pem"
    create(["peer"], made, 40)
    peer_files = (made / "peer.pem", made / "peer.key", made / "ca.pem")

    async def run() -> None:
        certificates = Certificates(own, made / "127.0.0.1.key")
        async with serving() as (_, [api]):
            http = HttpServer(
                api.hub,
                JsonApi(api.hub, api.admin, api.queues, api.bulk),
                certificates,
                TlsSecurity(*peer_files),
            )
            [free] = free_ports(1)
            port = await http.start(f"{HOST}:{free}")
            tls = None
            try:
                tls = await asyncio.to_thread(connection, port)
                first = {"client": end_in(own), "http": end_in(own), "peer": end_in(peer_files[0])}
                assert await asyncio.to_thread(ends, tls) == first
                assert first["client"] < first["peer"]
                before = await asyncio.to_thread(shown, port)
                create([HOST], made, 60)
                second = first | {"client": end_in(own), "http": end_in(own)}
                assert await asyncio.to_thread(ends, tls) == second
                assert second["client"] > first["client"]
                after = await asyncio.to_thread(shown, port)
                assert before != after
                create(["peer"], made, 50)
                third = second | {"peer": end_in(peer_files[0])}
                assert await asyncio.to_thread(ends, tls) == third
                assert third["peer"] != second["peer"]
                (made / "127.0.0.1.key").chmod(0o444)
                own.write_text("rubbish")
                peer_files[0].write_text("rubbish")
                assert await asyncio.to_thread(shown, port) == after
                assert await asyncio.to_thread(ends, tls) == third
            finally:
                if tls is not None:
                    tls.close()
                await http.stop()

    asyncio.run(run())
