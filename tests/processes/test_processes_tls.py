"""A cluster with TLS, users and tokens, whose certificates, authorities, keys and configuration change while clients
publish and consume. One cluster serves all tests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

import quorum
from quorum.client.connection.endpoints import parse_url
from quorum.client.errors import PermissionRefused, UnavailableError
from quorum.local_cluster.certificate_files import write_certificates
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.ports import HOST
from support.histories import checkers
from support.processes import scenarios
from support.processes.load import CONNECT_LIMIT_MS, Recorder

LIMIT_S = 60.0
POLL_S = 0.05
ROUNDS = 1
WITNESSED = "witnessed"
"""A queue beside the load, whose producers count how often their sessions are opened again."""
KEYS = {name: rsa.generate_private_key(public_exponent=65_537, key_size=2_048) for name in ("old", "new")}


def put(file: Path, content: bytes) -> None:
    """Replace a file at once."""
    part = file.with_name(file.name + ".new")
    part.write_bytes(content)
    part.chmod(0o600)
    part.replace(file)


def write_keys(file: Path, *names: str) -> None:
    keys = [{**json.loads(RSAAlgorithm.to_jwk(KEYS[name].public_key())), "kid": name} for name in names]
    put(file, json.dumps({"keys": keys}).encode())


def write_token(file: Path, key: str, for_s: float) -> str:
    """Returns the token's signature, which must not be in any output."""
    claims = {"sub": "ann", "aud": "quorum", "exp": time.time() + for_s}
    token = jwt.encode(claims, KEYS[key], "RS256", headers={"kid": key})
    put(file, token.encode())
    return token.rpartition(".")[2]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three members with TLS, the users admin and ann, and keys of tokens."""
    folder = tmp_path_factory.mktemp("secured")
    write_keys(folder / "keys.jwks", "old")
    cluster = LocalCluster(
        folder / "cluster", secured=True, settings={"token_keys_file": str(folder / "keys.jwks")}
    )

    async def make_users() -> None:
        async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            name, password = cluster.files.administrator
            await client.set_user(name, password, administers=True)
            await client.set_user("ann")
            await client.set_permissions("ann", configure="*", write="*", read="*")
            await client.declare(WITNESSED)

    with cluster:
        asyncio.run(make_users())
        yield cluster
        assert not cluster.processes.ended(), f"members ended by themselves: {cluster.processes.ended()}"


def shown_by(cluster: LocalCluster, name: str) -> bytes:
    """The certificate that a new connection to the member gets."""
    host, _, port = cluster.member(name).client.rpartition(":")
    context = ssl.create_default_context(cafile=str(cluster.files.certificates / "ca.pem"))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), LIMIT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        found = tls.getpeercert(binary_form=True)
        assert found is not None
        return found


def output(cluster: LocalCluster, name: str) -> str:
    return cluster.member(name).output.read_text(encoding="utf-8", errors="replace")


class Rotation:
    """Replaces the certificates of one folder of the cluster, step by step, by those of a new authority."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        for _ in write_certificates(scratch, [HOST]):
            pass
        self._folder, self._scratch = folder, scratch
        self._old = (folder / "ca.pem").read_bytes()

    def trust_both(self) -> None:
        put(self._folder / "ca.pem", self._old + (self._scratch / "ca.pem").read_bytes())

    def present_new(self) -> None:
        for name in (f"{HOST}.key", f"{HOST}.pem"):
            put(self._folder / name, (self._scratch / name).read_bytes())

    def trust_new(self) -> None:
        put(self._folder / "ca.pem", (self._scratch / "ca.pem").read_bytes())
        shutil.copy(self._scratch / "ca.key", self._folder / "ca.key.new")
        os.replace(self._folder / "ca.key.new", self._folder / "ca.key")


def test_certificates_and_authorities_are_replaced_under_load(secured: LocalCluster, tmp_path: Path) -> None:
    """The streams that are open go on; then each connection is made again, with what is trusted last."""
    clients = Rotation(secured.files.certificates, tmp_path / "clients")
    peers = Rotation(secured.files.peer_certificates, tmp_path / "peers")

    async def run() -> None:
        old_authority = (secured.files.certificates / "ca.pem").read_bytes()
        before = await asyncio.to_thread(shown_by, secured, "node-1")
        async with (
            Recorder(secured, "rotated") as recorder,
            quorum.connect(secured.url, near_leader=False) as witness,
        ):
            await recorder.progress()
            for step in ("trust_both", "present_new", "trust_new"):
                for rotation in (clients, peers):
                    getattr(rotation, step)()
                await recorder.progress()
                await witness.publish(WITNESSED, b"one")
            assert witness.reconnect_count == 0
            for name in secured.names:
                assert await asyncio.to_thread(shown_by, secured, name) != before
            for name in secured.names:  # one after the other, so that members and clients connect again
                await asyncio.to_thread(secured.restart, name)
                await recorder.progress()
            await witness.publish(WITNESSED, b"one")
            assert witness.reconnect_count > 0
            await recorder.finish()
            print(checkers.check_all(recorder.history.records))
        (tmp_path / "old.pem").write_bytes(old_authority)
        old = parse_url(secured.url).url_of(*parse_url(secured.url).endpoints).partition("?")[0]
        with pytest.raises(UnavailableError):
            async with quorum.connect(f"{old}?ca_file={tmp_path}/old.pem", connect_timeout_ms=3_000):
                pass

    asyncio.run(run())


def test_keys_of_tokens_are_replaced_under_load(secured: LocalCluster, tmp_path: Path) -> None:
    """No session ends before its token does; one that is refused by then would fail the load. No part of a token that
    proves anything is told to anybody."""
    keys, token = secured.files.directory.parent / "keys.jwks", tmp_path / "token"
    hosts = ",".join(member.client for member in secured.members)
    url = f"quorums://{hosts}/?ca_file={secured.files.certificates}/ca.pem&token_file={token}"

    async def run() -> None:
        signatures = [write_token(token, "old", 600)]
        async with (
            Recorder(secured, "tokens", producers=1, consumers=1, url=url) as recorder,
            quorum.connect(url, near_leader=False) as witness,
        ):
            await recorder.progress()
            write_keys(keys, "old", "new")
            signatures.append(write_token(token, "new", 4))
            async with quorum.connect(url, near_leader=False) as short:
                signatures.append(write_token(token, "new", 600))
                while short.reconnect_count == 0:
                    await short.publish(WITNESSED, b"one")
                    await asyncio.sleep(POLL_S)
            write_keys(keys, "new")
            await recorder.progress()
            await witness.publish(WITNESSED, b"one")
            assert witness.reconnect_count == 0
            signatures.append(write_token(token, "old", 600))
            with pytest.raises(PermissionRefused, match="unknown key") as refused:
                async with quorum.connect(url):
                    pass
            told = {"error": str(refused.value)}
            words = ["queues", "list", "--url", url]
            command = [sys.executable, "-m", "quorum", *words]
            said = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False
            )
            told["command"] = said.stdout + said.stderr
            signatures.append(write_token(token, "new", 600))
            await recorder.finish()
            print(checkers.check_all(recorder.history.records))
        for name in secured.names:
            told[name] = output(secured, name)
        assert "unknown key" in told["command"]
        assert any("unknown key" in told[name] for name in secured.names)
        for name, text in told.items():
            assert not [each for each in signatures if each in text], name

    asyncio.run(run())


def test_a_signal_makes_a_member_read_its_files(secured: LocalCluster) -> None:
    member = secured.member("node-2")
    text = member.config.read_text(encoding="utf-8")

    def reload(config: str, line: str) -> str:
        """Signal the member, and return the new line of its log that has these words."""
        seen = len(output(secured, member.name))
        put(member.config, config.encode())
        process = secured.process(member.name)
        assert process is not None and process.signal(signal.SIGHUP)
        deadline = time.monotonic() + LIMIT_S
        while not (
            new := [each for each in output(secured, member.name)[seen:].splitlines() if line in each]
        ):
            assert time.monotonic() < deadline, f"no line with {line!r}"
            time.sleep(POLL_S)
        return new[0]

    done, refused = "configuration reloaded", "configuration not reloaded"
    reload(text, done)  # what the tests before have left
    assert "changed=nothing needs_restart=nothing" in reload(text, done)
    assert "changed=nothing needs_restart=lease_ms" in reload("lease_ms = 5000\n" + text, done).replace(
        "'", ""
    )
    assert "log_levle" in reload('log_levle = "error"\n' + text, refused)
    certificate = secured.files.certificates / f"{HOST}.pem"
    right = certificate.read_bytes()
    shown = shown_by(secured, member.name)
    put(certificate, b"rubbish")
    assert "no PEM file" in reload('log_level = "warning"\n' + text, refused)
    assert shown_by(secured, member.name) == shown
    put(certificate, right)
    for _ in write_certificates(secured.files.certificates, [HOST]):
        pass
    assert "certificates for clients" in reload(text, done)
    assert shown_by(secured, member.name) != shown
    keys = secured.files.directory.parent / "keys.jwks"
    write_keys(keys, "old", "new")
    assert "keys of tokens" in reload(text, done)
    put(keys, b"rubbish")
    assert "no set of keys" in reload(text, refused)
    write_keys(keys, "old")
    assert "changed='log_level, keys of tokens'" in reload('log_level = "error"\n' + text, done)
    seen = len(output(secured, member.name))
    put(member.config, ('max_queues = 7\nlog_level = "error"\n' + text).encode())
    process = secured.process(member.name)
    assert process is not None and process.signal(signal.SIGHUP)
    reload("rubbish", refused)
    assert "[info" not in output(secured, member.name)[seen:]
    assert "changed=log_level" in reload(text, done)
    assert secured.is_serving(member.name)


def test_nothing_confirmed_is_lost_when_the_leader_of_a_secured_cluster_is_killed(
    secured: LocalCluster,
) -> None:
    print(asyncio.run(scenarios.kill_leader(secured, "secured-leader-killed", ROUNDS)))
