"""Reads and checks cluster.json of a local cluster's directory, because a person may have edited it. It also makes the
cluster's URL of it. Clients use this module, so it needs no package of a member."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from quorum.addresses import check_name, host_port
from quorum.errors import ClusterError

STATE_FILE = "cluster.json"
ADMINISTRATOR = "administrator"
CERTIFICATES = "certificates"


@dataclass(frozen=True, slots=True)
class Addresses:
    """http: empty: the member has no port for HTTP."""

    client: str
    peer: str
    http: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """members: by name. settings: further keys of each node's configuration."""

    members: Mapping[str, Addresses]
    settings: Mapping[str, str | int]


def is_secured(settings: Mapping[str, str | int]) -> bool:
    """Whether clients need TLS, by the settings of the members."""
    return "tls_certificate_file" in settings


def read_administrator(directory: Path) -> tuple[str, str]:
    """(name, password) of a secured cluster's administrator."""
    name, _, password = (directory / ADMINISTRATOR).read_text(encoding="ascii").strip().partition(":")
    return name, password


def make_url(directory: Path, clients: Iterable[str], *, secured: bool, logs_in: bool = True) -> str:
    """URL of these addresses for clients. logs_in: as the administrator, if the cluster is secured."""
    hosts = ",".join(clients)
    if not secured:
        return f"quorum://{hosts}"
    log_in = ":".join(read_administrator(directory)) + "@" if logs_in else ""
    return f"quorums://{log_in}{hosts}/?" + urlencode({"ca_file": directory / CERTIFICATES / "ca.pem"})


def read_url(directory: Path) -> str:
    """URL of all members of the cluster that the directory holds, also of those that are down. ClusterError if it holds
    none."""
    found = read_cluster_file(require_cluster(directory))
    clients = [each.client for each in found.members.values()]
    return make_url(directory.absolute(), clients, secured=is_secured(found.settings))


def require_cluster(directory: Path) -> Path:
    """The file of the cluster that the directory holds. ClusterError if it holds none."""
    file = directory / STATE_FILE
    if not file.exists():
        raise ClusterError(f"there is no cluster in {directory} (no {STATE_FILE})")
    return file


def read_cluster_file(file: Path) -> ClusterFile:
    """Read the file. ClusterError names the wrong value and what is allowed."""
    try:
        state = _object(json.loads(file.read_text(encoding="utf-8")), "the file")
        members = _object(state.get("members"), "members")
        if not members:
            raise ValueError("members names no member; wanted: at least one")
        return ClusterFile(
            {check_name(name): _addresses(name, each) for name, each in members.items()},
            {
                key: _setting(key, each)
                for key, each in _object(state.get("settings", {}), "settings").items()
            },
        )
    except (OSError, ValueError, RecursionError) as error:
        raise ClusterError(f"{file} cannot be read: {error}") from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_kind(value)}; wanted: an object")
    return value


def _addresses(name: str, value: Any) -> Addresses:
    given = _object(value, f"member {name}")
    keys = ("client", "peer", *(["http"] if "http" in given else []))
    return Addresses(*(_address(given.get(key), f"{key} of member {name}") for key in keys))


def _address(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {_kind(value)}; wanted: host:port")
    try:
        host_port(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return value


def _setting(key: str, value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"setting {key} is {_kind(value)}; wanted: a text or an integer")
    return value


def _kind(value: Any) -> str:
    """The value's type, in the words of JSON."""
    if value is None:
        return "missing"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "an array"}
    return names.get(type(value), "an object")
