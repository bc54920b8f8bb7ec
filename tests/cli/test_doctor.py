"""`quorum doctor` on this machine."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorum.api.process import run
from quorum.cli import doctor
from quorum.cli.certificates import create
from quorum.cli.local_cluster import free_ports
from quorum.config import load
from quorum.errors import ConfigError
from quorum.log.log import LOCK
from quorum.node.identity.identity import Founding, record_start
from support.wrong_certificates import issue

CONFIG = """
name = "a"
data_dir = "{folder}/data"
secret_file = "{folder}/secret"
[members.a]
peer = "127.0.0.1:7401"
client = "127.0.0.1:7400"
[members.b]
peer = "127.0.0.1:{port}"
client = "127.0.0.1:2"
"""


def by_name(file: Path | None) -> dict[str, doctor.Finding]:
    return {each.what: each for each in doctor.findings(file)}


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Only the first test measures the disk."""
    if "sound_machine" not in request.node.name:
        monkeypatch.setattr(doctor, "_sync_times_ms", lambda folder: [1.0] * 100)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o400)
    file = tmp_path / "node.toml"
    file.write_text(CONFIG.format(folder=tmp_path, port=1))
    return file


def test_a_sound_machine_is_told_so(config: Path) -> None:
    found = by_name(config)
    assert {found[name].level for name in ("system", "packages", "configuration", "free space")} == {"ok"}
    assert "ms" in found["disk"].text
    assert found["b, for members"].level == "warn", "it may not run yet"
    assert not any(name.startswith("a,") for name in found)


def test_a_member_that_answers_is_told_so(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config.write_text(CONFIG.format(folder=config.parent, port=port))
        assert by_name(config)["b, for members"].level == "ok"


def test_a_secret_that_others_can_read_is_bad(config: Path) -> None:
    (config.parent / "secret").chmod(0o444)
    found = by_name(config)
    assert found["configuration"].level == "bad"
    assert "disk" not in found


def test_a_disk_that_forgets_or_is_far_is_bad(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("tmpfs", "nfs4"):
        monkeypatch.setattr(doctor, "_file_system", lambda folder, kind=kind: kind)
        assert by_name(config)["file system"].level == "bad"


def test_a_slow_disk_and_a_missing_package_are_told(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_sync_times_ms", lambda folder: [1.0] * 50 + [80.0] * 50)
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["no-such-package>=1; extra == 'server'"])
    found = by_name(config)
    assert (found["disk"].level, found["packages"].level) == ("warn", "bad")
    assert "no-such-package is missing" in found["packages"].text


# ---- certificates and other files


FILES = """
tls_certificate_file = "{folder}/pki/127.0.0.1.pem"
tls_key_file = "{folder}/pki/127.0.0.1.key"
tls_client_ca_file = "{folder}/pki/ca.pem"
peers_certificate_file = "{folder}/pki/a.pem"
peers_key_file = "{folder}/pki/a.key"
peers_ca_file = "{folder}/pki/ca.pem"
first_administrator_file = "{folder}/administrator"
audit_file = "{folder}/audit.jsonl"
http_listen = "127.0.0.1:{http}"
"""


def secured(config: Path, http: int = 7480) -> Path:
    """The configuration with every file that it can name, and the folder of its certificates."""
    folder = config.parent
    create(["127.0.0.1", "a"], folder / "pki", 365)
    (folder / "administrator").write_text("admin:long password")
    (folder / "administrator").chmod(0o400)
    config.write_text(FILES.format(folder=folder, http=http) + CONFIG.format(folder=folder, port=1))
    return folder / "pki"


STRANGE_KEY = """-----BEGIN EC PRIVATE KEY-----
MC4CAQEEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4foAcGBSuBBAAB
-----END EC PRIVATE KEY-----
"""
"""Of a curve that nobody uses."""


def test_certificates_that_fit_are_told_so(config: Path) -> None:
    secured(config)
    found = by_name(config)
    assert found["configuration"].level == "ok"
    tls = {name: each.level for name, each in found.items() if "certificate" in name or "authorit" in name}
    assert set(tls.values()) == {"ok"} and len(tls) == 6


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (
            "pki/127.0.0.1.key",
            "of another",
            "tls_key_file FILE is not the key of the first certificate in tls_cert",
        ),
        ("pki/127.0.0.1.pem", None, "tls_certificate_file FILE cannot be read: No such file or directory"),
        ("pki/127.0.0.1.key", None, "tls_key_file FILE cannot be read: No such file or directory"),
        ("pki/127.0.0.1.pem", "rubbish", "tls_certificate_file FILE is no PEM file of certificates"),
        (
            "pki/a.key",
            "of another",
            "peers_key_file FILE is not the key of the first certificate in peers_cert",
        ),
        ("pki/a.pem", None, "peers_certificate_file FILE cannot be read: No such file or directory"),
        ("pki/a.key", "rubbish", "peers_key_file FILE is no PEM file of a private key"),
        ("pki/ca.pem", None, "peers_ca_file FILE cannot be read: No such file or directory"),
        ("pki/ca.pem", "rubbish", "tls_client_ca_file FILE is no PEM file of certificates"),
        ("administrator", "admin:short", "first_administrator_file FILE: "),
        ("tokens", None, "token_keys_file FILE: "),
        ("tokens", "[]", "token_keys_file FILE: FILE is no set of keys (JWKS): it is no JSON object"),
        ("pki/127.0.0.1.key", STRANGE_KEY, "tls_key_file FILE cannot be used: "),
        ("pki/a.key", STRANGE_KEY, "peers_key_file FILE cannot be used: "),
    ],
)
def test_a_file_with_which_the_member_does_not_start_is_bad(
    config: Path, file: str, content: str | None, said: str
) -> None:
    """The member itself refuses it with the same words, before it makes anything."""
    folder = secured(config)
    path = config.parent / file
    if file == "tokens":
        config.write_text(f'token_keys_file = "{path}"\n' + config.read_text())
    if path.exists():
        path.chmod(0o600)
    if content is None:
        path.unlink(missing_ok=True)
    elif content == "of another":
        issue(folder, config.parent / "another")
        path.write_bytes(next((config.parent / "another").glob("*.key")).read_bytes())
    else:
        path.write_text(content)
    found = by_name(config)
    assert found["configuration"].level == "bad"
    assert said.replace("FILE", str(path)) in found["configuration"].text
    assert "disk" in found, "the other checks go on"
    with pytest.raises(ConfigError) as caught:
        run(load(config))
    assert str(caught.value) in found["configuration"].text
    assert not (config.parent / "data").exists()


def test_keys_that_everybody_can_read(config: Path) -> None:
    folder = secured(config)
    (folder / "127.0.0.1.key").chmod(0o644)
    (folder / "a.key").chmod(0o644)
    found = by_name(config)
    assert found["configuration"].level == "bad", "a member refuses it"
    assert "has mode 0644" in found["configuration"].text
    assert found["key for members"].level == "warn", "and takes this one"


def replaced(config: Path, name: str, **wrong: object) -> dict[str, doctor.Finding]:
    """What is found with such a certificate in the place of `name`."""
    folder = secured(config)
    for file in issue(folder, config.parent / "other", **wrong):  # type: ignore[arg-type]
        target = folder / f"{name}{file.suffix}"
        target.chmod(0o600)
        target.write_bytes(file.read_bytes())
    found = by_name(config)
    assert found["configuration"].level == "ok", "the member starts"
    return found


@pytest.mark.parametrize(("name", "of"), [("127.0.0.1", "clients"), ("a", "members")])
@pytest.mark.parametrize(
    ("days", "level"), [((-90, 10), "warn"), ((-90, -1), "bad"), ((1, 9), "bad"), ((-1, 9), "ok")]
)
def test_a_certificate_that_ends_is_told(
    config: Path, name: str, of: str, days: tuple[int, int], level: str
) -> None:
    """One that lives for ten days has its warning later than one for a year."""
    found = replaced(config, name, first_day=days[0], last_day=days[1])
    assert found[f"dates of the certificate for {of}"].level == level


def test_a_certificate_for_another_host_is_bad_for_clients_and_not_for_members(config: Path) -> None:
    for host, level in (("127.0.0.1", "ok"), ("127.0.0.2", "bad"), ("node-1.example", "bad")):
        told = replaced(config, "127.0.0.1", host=host)["certificate for clients"]
        assert told.level == level, host
        assert level == "ok" or (f"it names {host}" in told.text and "127.0.0.1:7400" in told.text)
    assert replaced(config, "a", host="any.name")["certificate for members"].level == "ok"


def test_a_certificate_that_clients_or_members_refuse_is_bad(config: Path) -> None:
    assert replaced(config, "127.0.0.1", for_server=False)["certificate for clients"].level == "bad"
    for wrong in ({"for_server": False}, {"for_client": False}):
        assert replaced(config, "a", **wrong)["certificate for members"].level == "bad"
    folder = secured(config)
    create(["a"], config.parent / "elsewhere", 30)
    for suffix in (".pem", ".key"):
        (folder / f"a{suffix}").unlink()
        (config.parent / "elsewhere" / f"a{suffix}").rename(folder / f"a{suffix}")
    assert by_name(config)["certificate for members"].level == "bad", "of another authority"


def test_an_audit_file_that_cannot_be_used_is_bad(config: Path) -> None:
    secured(config)
    (config.parent / "audit.jsonl").mkdir()
    assert "audit_file" in by_name(config)["configuration"].text
    (config.parent / "audit.jsonl").rmdir()
    assert by_name(config)["configuration"].level == "ok"
    assert not (config.parent / "audit.jsonl").exists(), "doctor makes no file"


def test_a_data_directory_of_another_member_is_bad(config: Path) -> None:
    data = config.parent / "data"
    data.mkdir()
    for name, members in (("a", ("a", "b")), ("c", ("a", "b", "c")), ("a", ("a", "b", "c"))):
        record_start(data, name, Founding("quorum", 3, members), 0)
        found = by_name(config)["configuration"]
        if (name, members) == ("a", ("a", "b")):
            assert found.level == "ok"
        else:
            assert found.level == "bad" and ("belongs to" in found.text or "began as" in found.text)
        shutil.rmtree(data)
        data.mkdir()


# ---- ports


@contextlib.contextmanager
def listening(file: Path | None) -> Iterator[tuple[int, int]]:
    """Another process that listens, and has this file open; its port and number."""
    program = (
        "import socket, sys; held = [open(each, 'w') for each in sys.argv[1:]]; "
        "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", program, *([str(file)] if file else [])]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        process.stdin.close()


@pytest.mark.parametrize("key", ["http", "client", "peer"])
def test_a_port_that_another_process_has_is_bad_and_one_of_the_member_is_not(config: Path, key: str) -> None:
    lock = config.parent / "data" / "log" / LOCK
    lock.parent.mkdir(parents=True)
    what = {"http": "port for HTTP", "client": "port for clients", "peer": "port for members"}[key]
    for file, level in ((None, "bad"), (lock, "ok")):
        with listening(file) as (port, pid):
            secured(config, port if key == "http" else 7480)
            if key != "http":
                usual = {"client": 7400, "peer": 7401}[key]
                config.write_text(config.read_text().replace(f"127.0.0.1:{usual}", f"127.0.0.1:{port}", 1))
            found = by_name(config)[what]
            assert found.level == level
            assert level == "ok" or str(pid) in found.text


def test_an_address_of_another_machine_is_bad(config: Path) -> None:
    own = f"127.0.0.1:{free_ports(1)[0]}"
    text = config.read_text().replace("127.0.0.1:7401", own)
    config.write_text('listen = "192.0.2.1:7400"\n' + text)
    found = by_name(config)
    assert (found["port for clients"].level, found["port for members"].level) == ("bad", "ok")
    config.write_text(config.read_text().replace(f'"{own}"', '"0.0.0.0:7401"'))
    assert "members.a.peer is 0.0.0.0:7401" in by_name(config)["addresses"].text


@pytest.mark.parametrize("address", ["127.0.0.1:7400", "0.0.0.0:7400", "127.0.0.1:7401", "[::]:7401"])
def test_one_port_for_two_purposes_is_refused(config: Path, address: str) -> None:
    config.write_text(f'http_listen = "{address}"\n' + config.read_text())
    assert f"http_listen is {address}" in by_name(config)["configuration"].text
