"""Reads and checks cluster.json of a local cluster's directory, because a person may have edited it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorum.addresses import check_name, host_port
from quorum.errors import ClusterError

STATE_FILE = "cluster.json"


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
