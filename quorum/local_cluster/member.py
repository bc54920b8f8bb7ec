"""A member of a local cluster: its addresses, its files, and its configuration."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalMember:
    """A member's name and addresses; `folder` holds its files. http: empty: it has no port for HTTP."""

    name: str
    client: str
    peer: str
    folder: Path
    http: str = ""

    @property
    def config(self) -> Path:
        return self.folder / "node.toml"

    @property
    def data(self) -> Path:
        """The data directory that its configuration names. After a recovery, that may be outside of the folder."""
        try:
            return Path(str(tomllib.loads(self.config.read_text(encoding="utf-8"))["data_dir"]))
        except (OSError, ValueError, KeyError):  # no configuration yet, or not one that can be read
            return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.data / "log"

    @property
    def output(self) -> Path:
        return self.folder / "output.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "member.pid"


def node_configuration(
    member: LocalMember,
    peers: Mapping[LocalMember, str],
    secret_file: Path,
    settings: Mapping[str, str | int],
    *,
    join: bool,
) -> str:
    """The text of a member's node.toml. peers: the members that it names, each with the address at which it reaches
    this one."""
    keys: dict[str, str | int] = {
        "name": member.name,
        "cluster": "local",
        "data_dir": str(member.data),
        "secret_file": str(secret_file),
        **({"http_listen": member.http} if member.http else {}),
        **settings,
    }
    lines = [f"{key} = {_toml_value(value)}" for key, value in keys.items()]
    lines += ["join = true"] if join else []
    for each, peer in peers.items():
        lines += [f"\n[members.{each.name}]", f'peer = "{peer}"', f'client = "{each.client}"']
    return "\n".join(lines) + "\n"


def _toml_value(value: str | int) -> str:
    # a JSON string is a TOML basic string, except that TOML requires DEL to be escaped
    return json.dumps(value) if isinstance(value, str) else str(value)
