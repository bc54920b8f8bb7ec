"""Clients with TLS: real sockets, real certificates, the real server of a member."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quorum
import quorum.sync
from quorum.api.certificates import Certificates
from quorum.cli.certificates import create
from quorum.client.endpoints import parse_url
from quorum.client.errors import UnavailableError, UsageError
from quorum.errors import ConfigError
from support.served_member import serving


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
    async with serving(credentials=found.credentials()) as (url, _):
        yield url.removeprefix("quorum://")


async def works(url: str) -> None:
    async with quorum.connect(url, connect_timeout_ms=8_000) as client:
        await client.declare("orders")
        await client.publish("orders", b"one")
        [message] = await client.get("orders", 1)
        assert message.body == b"one"
        await client.delete("orders")


def test_a_client_with_the_authority_publishes_and_reads(made: Path) -> None:
    async def run() -> None:
        async with secured(made) as address:
            await works(f"quorums://{address}/?ca_file={made}/ca.pem")

    asyncio.run(run())


def test_clients_without_tls_or_with_another_authority_reach_nothing(made: Path) -> None:
    async def run() -> None:
        async with secured(made) as address:
            for url in (
                f"quorum://{address}",
                f"quorums://{address}",
                f"quorums://{address}/?ca_file={made.parent}/other/ca.pem",
            ):
                with pytest.raises(UnavailableError):
                    async with quorum.connect(url, connect_timeout_ms=1_500):
                        pass

    asyncio.run(run())


def test_a_client_certificate_is_demanded_where_authorities_of_clients_are_set(made: Path) -> None:
    async def run() -> None:
        async with secured(made, with_clients=True) as address:
            ca = f"quorums://{address}/?ca_file={made}/ca.pem"
            await works(f"{ca}&certificate_file={made}/client.pem&key_file={made}/client.key")
            other = made.parent / "other"
            for url in (ca, f"{ca}&certificate_file={other}/client.pem&key_file={other}/client.key"):
                with pytest.raises(UnavailableError):
                    async with quorum.connect(url, connect_timeout_ms=1_500):
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
