"""`quorum doctor` on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import google_crc32c
import pytest
import typer

from quorum.api.process import run
from quorum.catalog.members import CatalogMember
from quorum.cli.commands import doctor
from quorum.cli.commands.certificates import create
from quorum.config import load
from quorum.errors import ConfigError, how_to_install
from quorum.local_cluster.ports import free_ports
from quorum.log.log import LOCK
from quorum.node.identity.identity import Founding, record_start
from quorum.node.offline.new_cluster import new_cluster
from support.hostile.certificates import issue
from support.log.data_directories import NAMES, Data

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
    """The findings; those about the same are one, with a line for each."""
    found: dict[str, doctor.Finding] = {}
    for each in doctor.findings(file):
        assert "\n" not in each.text
        before = found.get(each.what)
        text = each.text if before is None else f"{before.text}\n{each.text}"
        found[each.what] = dataclasses.replace(each, text=text)
    return found


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
    assert {
        found[name].level for name in ("system", "packages for a member", "configuration", "free space")
    } == {"ok"}
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
    assert "disk" in found, "the other checks go on"


def test_all_that_is_wrong_with_a_configuration_is_told_at_once(config: Path) -> None:
    """Keys, relations, files and the data directory, each a finding of its own."""
    (config.parent / "secret").chmod(0o444)
    record_start(config.parent, "z", Founding("quorum", 3, ("a", "b")), 0)
    text = config.read_text().replace(f"{config.parent}/data", str(config.parent))
    head = 'leese_ms = 1\nlease_ms = "x"\nheartbeat_ms = 9000\nhttp_listen = "7"\n'
    head += 'tls_certificate_file = "none.pem"\ntls_key_file = "none.key"\naudit_file = "/none/audit"\n'
    config.write_text(head + text)
    found = by_name(config)
    said = found["configuration"].text.splitlines()
    for word in (
        "unknown key leese_ms",
        "lease_ms is 'x'",
        "http_listen: ",
        "heartbeat_ms is 9000",
        "secret has mode 0444",
        "tls_certificate_file none.pem cannot be read",
        "tls_key_file none.key cannot be read",
        "audit_file /none/audit cannot be used",
        "belongs to node 'z'",
    ):
        assert len([line for line in said if word in line]) == 1, word
    assert len(said) == 9
    assert found["not checked"].text == (
        "encryption (correct http_listen first); port for HTTP (correct http_listen first)"
    )
    assert {"port for clients", "port for members", "disk", "b, for members"} <= found.keys()


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ('name = "a"', 'name = "c"', {"certificate for clients", "port for clients", "port for members"}),
        ('name = "a"\n', "", {"port for clients", "addresses", "other members", "data directory"}),
        ("data_dir", "data_dirr", {"disk", "data directory"}),
        ("secret_file", 'token_algorithm = "x"\nsecret_filee', {"secret", "keys of tokens"}),
    ],
)
def test_checks_whose_keys_are_wrong_are_left_out_by_name(
    config: Path, old: str, new: str, left: set[str]
) -> None:
    config.write_text(config.read_text().replace(old, new, 1))
    found = by_name(config)
    assert found["configuration"].level == "bad"
    told = {each.partition(" (")[0] for each in found["not checked"].text.split("; ")}
    assert left <= told
    assert told.isdisjoint(found)
    assert ("disk" in found) == ("disk" not in left)


def test_a_configuration_that_cannot_be_read_leaves_out_the_rest(config: Path) -> None:
    config.write_text("name = ")
    found = by_name(config)
    assert "cannot be read" in found["configuration"].text
    assert "disk" in found["not checked"].text and "disk" not in found


def test_a_data_directory_that_may_not_be_entered_is_a_finding(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = Path.stat

    def refused(path: Path, **options: bool) -> os.stat_result:
        if path.name == "data":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    found = by_name(config)
    assert "data cannot be read: Permission denied" in found["configuration"].text
    assert "data cannot be read: Permission denied" in found["disk"].text
    assert found["b, for members"].level == "warn"


def test_the_command_and_the_member_tell_the_same_in_lines(config: Path) -> None:
    (config.parent / "secret").chmod(0o444)
    config.write_text('lease_ms = "x"\nheartbeat_ms = 9000\n' + config.read_text())
    done = [
        subprocess.run(
            [sys.executable, "-m", "quorum", command, "--config", str(config)],
            env={key: value for key, value in os.environ.items() if not key.startswith("QUORUM_")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for command in ("doctor", "node")
    ]
    assert [each.returncode for each in done] == [1, 2]
    mark = "bad   configuration: "
    bad = [line.removeprefix(mark) for line in done[0].stdout.splitlines() if line.startswith(mark)]
    assert len(bad) == 3
    assert [line.removeprefix("error: ") for line in done[1].stderr.splitlines()] == bad


def test_the_findings_are_one_object_of_json(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor, "_file_system", lambda folder: "ext4"
    )  # the folder of a test may be in memory
    text = config.read_text()
    for usual, port in zip((7400, 7401), free_ports(2), strict=True):
        text = text.replace(f":{usual}", f":{port}")
    config.write_text(text)
    doctor.doctor(config, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["good"] is True
    assert {"level": "ok", "what": "system"}.items() <= found["findings"][0].items()
    config.write_text("name = ")
    with pytest.raises(typer.Exit) as ended:
        doctor.doctor(config, as_json=True)
    assert ended.value.exit_code == 1
    found = json.loads(capsys.readouterr().out)
    assert found["good"] is False
    assert "bad" in [finding["level"] for finding in found["findings"]]


def test_a_disk_that_forgets_or_is_far_is_bad(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("tmpfs", "nfs4"):
        monkeypatch.setattr(doctor, "_file_system", lambda folder, kind=kind: kind)
        assert by_name(config)["file system"].level == "bad"


def test_a_slow_disk_is_told(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_sync_times_ms", lambda folder: [1.0] * 50 + [80.0] * 50)
    assert by_name(config)["disk"].level == "warn"


@pytest.mark.parametrize(("implementation", "level"), [("c", "ok"), ("python", "warn")])
def test_slow_checksums_are_told(
    config: Path, implementation: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the package has no compiled part, a member computes each checksum in Python."""
    monkeypatch.setattr(google_crc32c, "implementation", implementation)
    told = by_name(config)["checksums"]
    assert told.level == level
    assert ("google-crc32c" in told.text) is (level == "warn")


# ---- packages

REQUIRED = [
    "grpcio<2,>=1.75.1",
    "rich>=13",
    "grpcio<1.86,>=1.85.1; extra == 'server'",
    "structlog>=24; extra == 'server'",
    "pyspark<4.4,>=4.2; extra == 'spark'",
    "opentelemetry-api>=1.25; extra == 'otel'",
]


@pytest.mark.parametrize(
    ("installed", "levels"),
    [
        (
            {"grpcio": "1.85.3", "rich": "15", "structlog": "24.1", "pyspark": "4.2.0"},
            ("ok", "ok", "ok", "ok"),
        ),
        ({"grpcio": "1.85.3", "rich": "15", "structlog": "24.1"}, ("ok", "ok", "ok", "ok")),
        ({"grpcio": "1.85.3", "rich": "15"}, ("ok", "warn", "bad", "ok")),
        ({"grpcio": "1.84", "rich": "15", "structlog": "24"}, ("ok", "bad", "bad", "ok")),
        ({"grpcio": "1.85.3", "rich": "12", "structlog": "24"}, ("bad", "ok", "ok", "ok")),
        ({"grpcio": "1.85.3"}, ("bad", "warn", "bad", "ok")),
    ],
)
def test_the_packages_of_each_purpose_are_told(
    config: Path, installed: dict[str, str], levels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels: of a client, of a member without and with a configuration, and of Spark."""

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRED)
    monkeypatch.setattr(metadata, "version", version)
    alone, found = by_name(None), by_name(config)
    member = "packages for a member"
    told = (alone["packages for a client"], alone[member], found[member], found["packages for Spark"])
    assert tuple(each.level for each in told) == levels
    if "structlog" not in installed:
        assert "structlog" in told[1].text and how_to_install("server") in told[1].text
        assert "not installed: structlog; pip" in told[2].text
        assert str(config) in found["not checked"].text and "configuration" not in found
    assert all("pip install 'FILE.whl" in each.text for each in told if each.level != "ok")
    traces = found["packages for traces"]
    assert traces.level == "ok" and "not installed: opentelemetry-api; " in traces.text
    if "pyspark" not in installed:
        assert "not installed: pyspark" in told[3].text
    assert installed["grpcio"] != "1.84" or "grpcio is 1.84, wanted is <1.86,>=1.85.1" in told[1].text


def test_a_client_alone_is_told_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library that compares versions."""
    of_client = {
        re.split(r"[<>=]", each)[0] for each in metadata.requires("quorum-queue") or () if ";" not in each
    }
    real_version, real_spec = metadata.version, importlib.util.find_spec

    def version(name: str) -> str:
        if name not in of_client:
            raise metadata.PackageNotFoundError(name)
        return real_version(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setitem(sys.modules, "packaging", None)
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "packaging" else real_spec(name)
    )
    found = by_name(None)
    assert found["packages for a client"].level == "ok"
    assert found["packages for a member"].level == "warn"
    assert "not installed: cryptography, " in found["packages for a member"].text
    assert "not installed: numpy, pyarrow; " in found["packages for bulk calls"].text
    assert "pyspark" in found["packages for Spark"].text


# ---- certificates and other files


def test_ports_that_others_reach_without_tls_are_told_as_wrong_or_as_allowed(config: Path) -> None:
    """On loopback addresses nobody else listens."""
    assert not [name for name in by_name(config) if name.startswith("encryption")]
    reached = config.read_text().replace("127.0.0.1:7401", "a.example:7401")
    settings = 'listen = "0.0.0.0:7400"\nhttp_listen = "127.0.0.1:7480"\n'
    config.write_text(settings + reached)
    found = by_name(config)
    assert found["configuration"].level == "bad", "the member does not start"
    assert "have no TLS: 0.0.0.0:7400 (clients), a.example:7401 (members); " in found["configuration"].text
    assert not [name for name in found if name.startswith("encryption")], "it is told once"
    assert "disk" in found, "the other checks go on"
    config.write_text(f"{settings}allow_plain_text = true\n{reached}")
    assert by_name(config)["configuration"].level == "ok"
    told = {name: each for name, each in by_name(config).items() if name.startswith("encryption")}
    assert set(told) == {"encryption, clients", "encryption, members"}
    assert {each.level for each in told.values()} == {"warn"}
    assert "0.0.0.0:7400 is without TLS" in told["encryption, clients"].text
    assert "tls_certificate_file" in told["encryption, clients"].text
    secured(config)
    assert load(config).readable_ports == {}


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
        (
            "administrator",
            f"{'x' * 256}:long password",
            "first_administrator_file FILE: a user name of 256 bytes; allowed: 1..255",
        ),
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


def test_the_release_of_openssl_that_encrypts_between_members_is_told(config: Path) -> None:
    assert "encryption between members" not in by_name(config), "without TLS"
    secured(config)
    told = by_name(config)["encryption between members"]
    assert told.level == "ok"
    assert told.text.startswith("OpenSSL ")


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


# ---- other members


def test_members_that_a_recovery_has_dropped_are_no_warning(config: Path) -> None:
    """They stay in the configuration, because the data directory began with them."""
    source = Data(config.parent / "source")
    source.make()
    data = config.parent / "data"
    made = new_cluster(source.directory, data, accepts_loss=True)
    assert made.found.dropped == ("n1", "n2")
    lines = [f'name = "n3"\ncluster = "{made.cluster}"\nqueue_groups = 1']
    lines += [f'data_dir = "{data}"\nsecret_file = "{config.parent}/secret"']
    for number, name in enumerate(NAMES, 1):
        lines += [f'[members.{name}]\npeer = "127.0.0.1:{number}"\nclient = "127.0.0.1:{number + 10}"']
    config.write_text("\n".join(lines))
    found = by_name(config)
    assert found["configuration"].level == "ok"
    for name in ("n1", "n2"):
        assert found[name] == doctor.Finding(
            "ok", name, "not connected to, because the cluster has no such member any more"
        )
        assert not any(each.startswith(f"{name},") for each in found)
    source.directory.rename(data.with_name("kept"))
    config.write_text(
        config.read_text().replace(made.cluster, "test").replace(str(data), str(data.with_name("kept")))
    )
    assert by_name(config)["n1, for members"].level == "warn", "before the recovery it is a member"


def test_the_other_members_are_those_that_the_data_directory_remembers(config: Path) -> None:
    """The configuration of a member that has joined names only itself, and that of a founding member may have the
    earlier address of a member that was replaced."""
    data = config.parent / "data"
    data.mkdir()
    joined = record_start(data, "a", Founding("quorum", 3, ()), 0)
    own = CatalogMember(2, joined.id, "a", "127.0.0.1:7401", "127.0.0.1:7400")
    founding = config.read_text()
    alone, _ = founding.split("[members.b]")
    config.write_text(f"join = true\n{alone}")
    assert not [each for each in by_name(config) if each.startswith("b")], "it was not added yet"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        other = CatalogMember(1, "b", "b", address, "127.0.0.1:2")
        joined.node_state.members = (own, other)
        joined.node_state.save()
        found = by_name(config)
        assert found["b, for members"].level == "ok"
        assert found["b, for clients"].level == "warn"
        assert not [each for each in found if each.startswith("a,")]

        shutil.rmtree(data)
        data.mkdir()
        founded = record_start(data, "a", Founding("quorum", 3, ("a", "b")), 0)
        config.write_text(founding)
        assert by_name(config)["b, for members"].level == "warn"
        founded.node_state.members = (dataclasses.replace(own, id="a"), other)
        founded.node_state.save()
        assert by_name(config)["b, for members"].level == "ok"


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


def test_a_member_that_is_paused_is_bad(config: Path) -> None:
    lock = config.parent / "data" / "log" / LOCK
    lock.parent.mkdir(parents=True)
    with listening(lock) as (port, pid):
        config.write_text(config.read_text().replace("127.0.0.1:7400", f"127.0.0.1:{port}", 1))
        os.kill(pid, signal.SIGSTOP)
        try:
            os.waitpid(pid, os.WUNTRACED)  # returns when it is paused
            found = by_name(config)["port for clients"]
        finally:
            os.kill(pid, signal.SIGCONT)
    assert found.level == "bad"
    assert f"is paused (SIGSTOP); `kill -CONT {pid}` continues it" in found.text


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
