"""What is in deploy/, checked as far as it can be without a container engine."""

from __future__ import annotations

import configparser
import copy
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quorum import __version__
from quorum.api.security.certificates import Certificates
from quorum.config import load
from quorum.errors import DEFECT, TOO_OLD
from quorum.node.driver import BEGINS_ANEW, DISK_FAILED
from quorum.replication.network.tls import TlsSecurity
from support.repository import ROOT

DEPLOY = ROOT / "deploy"


@pytest.fixture
def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is a development dependency")
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def members_of(compose: dict[str, Any]) -> dict[str, Any]:
    """The services of the file that are members; the others look at them."""
    return {name: each for name, each in compose["services"].items() if name not in ("prometheus", "grafana")}


def test_the_compose_file_has_three_members_apart_from_each_other(compose: dict[str, Any]) -> None:
    services = members_of(compose)
    assert sorted(services) == ["node-1", "node-2", "node-3"]
    ports = [service["ports"][0].split(":")[1] for service in services.values()]
    volumes = [service["volumes"][1].split(":")[0] for service in services.values()]
    assert len(set(ports)) == 3
    assert sorted(volumes) == sorted(compose["volumes"])
    for name, service in services.items():
        assert service["environment"] == {"QUORUM_NAME": name}
        assert service["build"]["dockerfile"] == "deploy/Containerfile"
        source = service["volumes"][0].split(":")[0]
        assert (DEPLOY / source).is_file()
        assert set(service["secrets"]) | {"prometheus_password"} == set(compose["secrets"])
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith("./") or (DEPLOY / source).is_file()


def test_the_shared_configuration_loads_for_each_member(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, service in members_of(compose).items():
        for variable, value in service["environment"].items():
            monkeypatch.setenv(variable, value)
        config = load(DEPLOY / "cluster.toml")
        assert config.name == name
        assert config.client_address == "0.0.0.0:7400"
        assert str(config.secret_file) == "/run/secrets/" + next(iter(compose["secrets"]))
        assert sorted(config.members) == sorted(members_of(compose))


@pytest.fixture
def kubernetes() -> dict[tuple[str, str], dict[str, Any]]:
    """The manifests by kind and name."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is a development dependency")
    loaded = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    return {(each["kind"], each["metadata"]["name"]): each for each in loaded}


def test_the_configuration_on_kubernetes_loads_for_each_pod(
    kubernetes: dict[tuple[str, str], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = kubernetes["StatefulSet", "quorum"]["spec"]
    file = tmp_path / "node.toml"
    file.write_text(kubernetes["ConfigMap", "quorum"]["data"]["node.toml"], encoding="utf-8")
    names = [f"quorum-{number}" for number in range(pods["replicas"])]
    [container] = pods["template"]["spec"]["containers"]
    for name in names:
        for variable in container["env"]:
            value = name if "valueFrom" in variable else variable["value"].replace("$(QUORUM_NAME)", name)
            monkeypatch.setenv(variable["name"], value)
        config = load(file)
        assert config.readable_ports == {}
        assert sorted(config.members) == names
        assert all(
            each.peer.startswith(f"{each_name}.{pods['serviceName']}:")
            for each_name, each in config.members.items()
        )
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert config.http_listen == f"0.0.0.0:{ports['http']}"
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(config.secret_file.parent) in mounts
    assert str(config.data_dir.parent) in mounts


def test_the_certificates_on_kubernetes_are_those_that_the_page_makes(
    kubernetes: dict[tuple[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    [section] = re.findall(r"## Kubernetes\n(.*?)\n## ", page, re.DOTALL)
    commands = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    commands = [line for line in commands if "certificates" in line]
    program = f'quorum() {{ {shlex.quote(sys.executable)} -m quorum "$@" >/dev/null; }}'
    done = subprocess.run(
        ["sh", "-ec", "\n".join([program, """kubectl() { printf '%s\\n' "$@"; }""", *commands])],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[:4] == ["create", "secret", "generic", "quorum-certificates"]
    files = [word.removeprefix("--from-file=").rpartition("=") for word in words[4:]]
    secret = {name or Path(file).name: tmp_path / file for name, _, file in files}
    pod = kubernetes["StatefulSet", "quorum"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [volume] = [each for each in pod["volumes"] if each.get("secret", {}).get("secretName") == words[3]]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    named = re.findall(rf"{mount['mountPath']}/([\w.$()-]+)", (DEPLOY / "kubernetes.yaml").read_text("utf-8"))
    pods = [f"quorum-{number}" for number in range(3)]
    assert secret.keys() == {file.replace("$(QUORUM_NAME)", name) for file in named for name in pods}
    for name in pods:
        certificate, key = (secret[f"{name}.quorum.{kind}"] for kind in ("pem", "key"))
        assert Certificates(certificate, key).why_not(f"{name}.quorum") == ""
    TlsSecurity(secret["peer.pem"], secret["peer.key"], secret["peers-ca.pem"]).meet_itself()
    assert volume["secret"]["defaultMode"] == 0o440, "a member refuses a key that everybody can read"
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


KUBERNETES = ("1.29", "1.37")
"""Releases whose schemas are compared: an old one and the newest one that the package knows."""


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_knows_every_field_of_the_manifests(
    kubernetes: dict[tuple[str, str], dict[str, Any]], version: str
) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="it is a development dependency")
    assert len(kubernetes) == 5
    for manifest in kubernetes.values():
        assert schemas.validate(manifest, version, strict=True) == version
    wrong = copy.deepcopy(kubernetes["StatefulSet", "quorum"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(schemas.ValidationError, match="readinesProbe"):
        schemas.validate(wrong, version, strict=True)


def test_images_are_named_with_their_versions(
    kubernetes: dict[tuple[str, str], dict[str, Any]], compose: dict[str, Any]
) -> None:
    """Without a tag, two pulls may bring two different images."""
    pod = kubernetes["StatefulSet", "quorum"]["spec"]["template"]["spec"]
    images = [each["image"] for each in (*pod["containers"], *pod["initContainers"])]
    images += [service["image"] for service in compose["services"].values()]
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    images += [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    assert len(images) == 2 + 5 + 2
    for image in images:
        name, _, tag = image.partition(":")
        assert re.match(r"v?\d+\.\d+\.\d+", tag), image
        assert name != "quorum" or tag == __version__


def test_kubernetes_starts_no_member_again_that_waits_for_a_majority(
    kubernetes: dict[tuple[str, str], dict[str, Any]],
) -> None:
    [container] = kubernetes["StatefulSet", "quorum"]["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "livenessProbe" not in container
    assert kubernetes["PodDisruptionBudget", "quorum"]["spec"]["maxUnavailable"] == 1
    assert kubernetes["Service", "quorum"]["spec"]["publishNotReadyAddresses"] is True


def test_the_image_copies_what_the_wheel_needs() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    copied = [
        line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line
    ]
    names = {name for part in copied for name in part}
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    sources = {Path(each).parts[0] for each in hatch["targets"]["wheel"]["only-include"]}
    assert names == {"pyproject.toml", "README.md", "LICENSE", "requirements", *sources}
    assert all((ROOT / name).exists() for name in names)
    assert "USER quorum" in text
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in sent and names <= {line.removeprefix("!") for line in sent if line.startswith("!")}


def test_the_unit_runs_the_command_with_options_it_has() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "quorum.service", encoding="utf-8")
    assert unit["Service"]["ExecStart"] == "/opt/quorum/bin/quorum node --config /etc/quorum/node.toml"
    assert unit["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"
    never_again = {int(status) for status in unit["Service"]["RestartPreventExitStatus"].split()}
    assert never_again == {2, DEFECT, DISK_FAILED, TOO_OLD}, (
        "an operator looks first; all others are started again"
    )
    assert BEGINS_ANEW not in never_again


def test_the_unit_lets_a_member_write_where_the_pages_put_its_files() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "quorum.service", encoding="utf-8")
    service = unit["Service"]
    assert service["ProtectSystem"] == "strict", "it can write nowhere else"
    assert (service["StateDirectory"], service["StateDirectoryMode"]) == ("quorum", "0700")
    assert (service["LogsDirectory"], service["LogsDirectoryMode"]) == ("quorum", "0700")
    for page in ("deploy.md", "security.md"):
        assert 'audit_file = "/var/log/quorum/audit.jsonl"' in (ROOT / "docs" / page).read_text(
            encoding="utf-8"
        )


def test_the_unit_takes_away_what_a_member_never_uses() -> None:
    """No right of root, no other kinds of system calls, no view of other processes, no new namespaces."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "quorum.service", encoding="utf-8")
    service = unit["Service"]
    wanted = {
        "CapabilityBoundingSet": "",
        "SystemCallFilter": "@system-service",
        "SystemCallErrorNumber": "EPERM",
        "SystemCallArchitectures": "native",
        "ProtectProc": "invisible",
        **dict.fromkeys(
            (
                "NoNewPrivileges",
                "ProtectClock",
                "ProtectHostname",
                "ProtectKernelLogs",
                "RestrictNamespaces",
                "RestrictRealtime",
                "RestrictSUIDSGID",
            ),
            "yes",
        ),
    }
    assert {key: service.get(key) for key in wanted} == wanted


def test_the_user_of_a_member_cannot_log_in() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    [command] = re.findall(r"`(useradd [^`]*)`", page)
    assert "--shell /usr/sbin/nologin" in command
    image = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    [command] = re.findall(r"RUN (useradd .*)", image)
    assert "--shell /usr/sbin/nologin" in command


def test_a_container_of_the_compose_file_can_write_only_its_data(compose: dict[str, Any]) -> None:
    for member in members_of(compose).values():
        assert member["read_only"] is True
        assert member["tmpfs"] == ["/tmp"]
        assert member["cap_drop"] == ["ALL"]
        assert member["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_can_read_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "quorum.service").read_text(encoding="utf-8")
    for line, instead in [
        ("ExecStart=/opt/quorum/bin/quorum", "ExecStart=/bin/true"),
        ("User=quorum", "User=root"),
        ("Group=quorum", "Group=root"),
    ]:
        assert line in text
        text = text.replace(line, instead)
    file = tmp_path / "quorum.service"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "quorum.service" not in done.stderr
