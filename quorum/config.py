"""A node's configuration. Flags override `QUORUM_...` environment variables, these override a TOML file, and the file
overrides the defaults.

The whole configuration is checked before the node starts. All findings are reported at once, one a line, with the key,
the value and what is allowed. The configuration names only the file of the shared secret and never contains the secret
itself, because other processes can read flags and environments. docs/configuration.md contains the output of
`reference()`; a test compares the two.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from quorum.addresses import MAX_MEMBERS, check_name, host_port, is_loopback
from quorum.errors import ConfigError
from quorum.replication.group_config import GroupConfig
from quorum.replication.network.handshake import MIN_SECRET_BYTES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MIB = 1 << 20
MAX_BYTES = 1 << 60
"""Highest value of a setting in bytes, so that every message between members and clients can hold it."""
ENV_PREFIX = "QUORUM_"
MAX_JOINING_NAME = 51
"""Maximum length of a joining node's name, in characters: the member's id has at most 64 bytes, and the part that tells
data directories apart takes 13 of them."""


def _address(value: str) -> str:
    host_port(value)
    return value


Name = Annotated[str, AfterValidator(check_name)]
Address = Annotated[str, AfterValidator(_address)]


def _place(value: str) -> str:
    if not _PLACE.fullmatch(value):
        raise ValueError(f"{value!r} is not an entry; allowed: GROUP:INDEX, such as 0:1234")
    return value


_PLACE = re.compile(r"(0|[1-9][0-9]?):[1-9][0-9]{0,17}")
EntryPlace = Annotated[str, AfterValidator(_place)]


class MemberAddresses(BaseModel):
    """A member's addresses, each `host:port`: one for the other members, one for clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    peer: Address = Field(description="host:port for the other members (the usual port is 7401)")
    client: Address = Field(description="host:port for clients (the usual port is 7400)")


Members = Mapping[str, MemberAddresses]


class NodeConfig(BaseSettings):
    """The configuration of one member. Use `load` to create it."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        extra="forbid",
        frozen=True,
        validate_default=True,
        nested_model_default_partial_update=False,
    )

    name: Name = Field(description="this member's name; it is one of the names in `members`")
    cluster: Name = Field("quorum", description="the cluster's name; members of another cluster are refused")
    members: dict[Name, MemberAddresses] = Field(
        min_length=1,
        max_length=MAX_MEMBERS,
        description="all members by name, this one included; the same on all members. In the file: `[members.NAME]` "
        "with `peer` and `client`, each `host:port`; in the environment: one JSON object",
    )
    join: bool = Field(
        False,
        description="this node joins a running cluster: `members` contains only this node, and the node waits until "
        "`quorum cluster add` (or `replace`) makes it a member",
    )
    data_dir: Path = Field(description="directory of the log, on a local disk; no other member uses it")
    secret_file: Path = Field(
        description=f"file with the members' shared secret, {MIN_SECRET_BYTES} bytes or more, the same on all members; "
        "only its owner can read it (mode 0400 or 0600)"
    )
    listen: Address | None = Field(
        None,
        description="host:port to listen on for clients, if it differs from this member's `client` address",
    )
    tls_certificate_file: Path | None = Field(
        None,
        description="certificate of this member for clients, in PEM, with those between it and the authority; with it, "
        "clients connect with TLS (`quorums://`). A renewed file is read without a restart",
    )
    tls_key_file: Path | None = Field(
        None, description="the certificate's private key, in PEM; nobody but its owner and group can read it"
    )
    tls_client_ca_file: Path | None = Field(
        None,
        description="authorities of clients' certificates, in PEM; with it, only clients with such a certificate can "
        "connect",
    )
    first_administrator_file: Path | None = Field(
        None,
        description="file with NAME:PASSWORD of an administrator who may log in while the member knows no users, to "
        "make them or to add the node to a cluster; only its owner can read it (mode 0400 or 0600)",
    )
    token_keys_file: Path | None = Field(
        None,
        description="public keys of signed tokens (JWT), as a JWK set; with it, clients may log in with a token. A "
        "renewed file is read without a restart",
    )
    token_algorithm: Literal["RS256", "PS256", "ES256", "EdDSA"] = Field(
        "RS256", description="the one algorithm of tokens that is accepted: RS256, PS256, ES256 or EdDSA"
    )
    token_audience: str = Field(
        "quorum", min_length=1, description="the audience (`aud`) that a token has to name"
    )
    token_issuer: str | None = Field(
        None, min_length=1, description="the issuer (`iss`) that a token has to name; without it, any"
    )
    token_user_claim: str = Field(
        "sub", min_length=1, description="the claim of a token with the user's name"
    )
    allow_without_users: bool = Field(
        False,
        description="while the cluster has no users, all clients may do everything; without it, only those that "
        "connect from a loopback address",
    )
    peers_certificate_file: Path | None = Field(
        None,
        description="certificate of this member for the other members, in PEM; with it, members connect with TLS 1.3. "
        "All members have one, or none",
    )
    peers_key_file: Path | None = Field(
        None, description="the private key of `peers_certificate_file`, in PEM"
    )
    peers_ca_file: Path | None = Field(
        None,
        description="the authority of the members' certificates, in PEM; it signs certificates of members only",
    )
    http_listen: Address | None = Field(
        None,
        description="host:port for `/metrics` and `/readyz` over HTTP (the usual port is 7480, docs/metrics.md); "
        "without it there is none. With `tls_certificate_file` it has TLS",
    )
    allow_plain_text: bool = Field(
        False,
        description="other machines may reach ports of this member without TLS, on a network that encrypts by itself, "
        "such as a mesh or a VPN; without it, the member does not start with such a port. Loopback addresses do not "
        "need it",
    )
    audit_file: Path | None = Field(
        None,
        description="file for a line about each administrative request, each refused one and each failed log-in, "
        "chained by hashes (docs/security.md); at 64 MiB it gets the name FILE.1, and eight older ones are kept",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level of the log lines on stderr: debug, info, warning or error"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="format of the log lines on stderr: text, or json (one object a line)"
    )
    queue_groups: int = Field(
        3,
        ge=1,
        le=64,
        description="number of Raft groups for queues; the same on all members, fixed when the cluster is founded",
    )
    lease_ms: int = Field(
        4_000,
        ge=500,
        le=60_000,
        description="time for which a member may deliver after a leader last heard from it; the cluster takes this "
        "value when it is founded",
    )
    election_timeout_min_ms: int = Field(
        500,
        ge=100,
        le=60_000,
        description="minimum election timeout: a follower that hears no leader for a random time between this and "
        "`election_timeout_max_ms` campaigns",
    )
    election_timeout_max_ms: int = Field(1_000, ge=150, le=120_000, description="maximum election timeout")
    heartbeat_ms: int = Field(
        150,
        ge=10,
        le=10_000,
        description="interval between the heartbeats of an idle leader; after a second without work it is twice as "
        "long, and so are the election timeouts",
    )
    leader_fallback_ms: int = Field(
        1_500,
        ge=500,
        le=120_000,
        description="a leader that hears no majority for this time steps down; for leases, the cluster's value counts, "
        "which it takes from here when it is founded",
    )
    max_message_bytes: int = Field(
        16 * MIB, ge=1, le=16 * MIB, description="maximum size of one message's body"
    )
    max_batch_messages: int = Field(
        16_384, ge=1, le=65_536, description="maximum number of messages in a batch"
    )
    max_batch_bytes: int = Field(
        18 * MIB, ge=1024, le=18 * MIB, description="maximum size of a batch, properties included"
    )
    session_window_bytes: int = Field(
        8 * MIB,
        ge=64 * 1024,
        le=MAX_BYTES,
        description="unconfirmed bytes of one session; above it, the member does not read the session's stream",
    )
    node_window_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        le=MAX_BYTES,
        description="unconfirmed bytes of all sessions of this node; a second limit of the same size is for the "
        "bytes of requests in progress; docs/limits.md says how clients and groups share them",
    )
    max_queues: int | None = Field(
        None,
        ge=1,
        description="maximum number of queues of the cluster, 100,000 if it is not set and at most; the member that "
        "takes a declaration decides, so it is the same on all members; queues that exist stay",
    )
    max_queues_per_user: int | None = Field(
        None,
        ge=1,
        description="maximum number of queues that one user may have declared; half of `max_queues` if it is not set "
        "(of 100,000 without that); as with `max_queues`, the same on all members, and queues that exist stay",
    )
    queue_memory_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        le=MAX_BYTES,
        description="memory for the blocks of this node's queues, filter fields included; docs/queues.md says which "
        "blocks are paged out",
    )

    disk_free_limit_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        le=MAX_BYTES,
        description="minimum free space on a member's disk, in addition to the reserve of its log (195 MiB); below it, "
        "all members refuse publishes",
    )
    max_log_bytes: int | None = Field(
        None,
        ge=2 * MIB,
        le=MAX_BYTES,
        description="maximum size of a member's log, which has the messages of all queues and what is not collected "
        "yet; when less than `disk_free_limit_bytes` of it are left, all members refuse publishes",
    )

    spread_leaders: bool = Field(
        True,
        description="whether the leader of the system group spreads the groups' leaders over the members by itself; "
        "the same on all members; docs/operations.md says when leaders move",
    )

    skip_entries: tuple[EntryPlace, ...] = Field(
        (),
        description="log entries whose commands about members and policies are skipped, each `0:INDEX`; the same on "
        "all members; docs/recovery.md says when to use it",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> NodeConfig:
        wrong = [*_misfits({key: getattr(self, key) for key in NodeConfig.model_fields})]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    @property
    def client_address(self) -> str:
        """The address at which this member listens for clients."""
        return self.listen or self.members[self.name].client

    @property
    def readable_ports(self) -> dict[str, str]:
        """The addresses of this member whose connections can be read on the network, because other machines reach them
        and they have no TLS. By who connects: clients, members, HTTP."""
        return _readable_ports(
            self.members[self.name],
            self.listen,
            self.http_listen,
            self.tls_certificate_file,
            self.peers_certificate_file,
        )

    def read_secret(self) -> bytes:
        """The shared secret, without white space around it. Raises ConfigError."""
        secret = _private(self.secret_file, "secret_file")
        if len(secret) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"secret_file {self.secret_file} holds {len(secret)} bytes; at least {MIN_SECRET_BYTES} are needed"
            )
        return secret

    def read_first_administrator(self) -> tuple[str, str] | None:
        """(name, password) of `first_administrator_file`; None without one. Raises ConfigError."""
        file = self.first_administrator_file
        if file is None:
            return None
        try:
            name, colon, password = _private(file, "first_administrator_file").decode().partition(":")
            if not colon or not name:
                raise ValueError("wanted: NAME:PASSWORD")
        except ValueError as error:
            raise ConfigError(f"first_administrator_file {file}: {error}") from error
        return name, password

    @property
    def skipped_places(self) -> tuple[tuple[int, int], ...]:
        """`skip_entries` as pairs (group, index), sorted and without duplicates."""
        pairs = (each.split(":") for each in self.skip_entries)
        return tuple(sorted({(int(group), int(index)) for group, index in pairs}))

    def raft_config(self) -> GroupConfig:
        """The timing of this member's Raft groups."""
        return GroupConfig(
            election_min_s=self.election_timeout_min_ms / 1000,
            election_max_s=self.election_timeout_max_ms / 1000,
            heartbeat_s=self.heartbeat_ms / 1000,
            leader_fallback_s=self.leader_fallback_ms / 1000,
        )


def _private(path: Path, setting: str) -> bytes:
    """The content of a file that only its owner can read, without white space around it. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read().strip()
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{setting} {path} cannot be read: {text}") from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{setting} {path} has mode {mode:04o}, so that others can use it; "
            f"allowed: 0400 or 0600 (chmod 0400 {path})"
        )
    return content


@dataclass(frozen=True, slots=True)
class Examined:
    """A configuration, as far as it can be used. config: None if it could not be read. A key of `unusable` has its
    default there, or is missing if it has none. wrong: all findings, each a line."""

    config: NodeConfig | None
    wrong: tuple[str, ...] = ()
    unusable: frozenset[str] = frozenset()

    def has(self, *keys: str) -> bool:
        """Whether all of these keys can be used."""
        return self.config is not None and self.unusable.isdisjoint(keys)


def load(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> NodeConfig:
    """Load and check a configuration.

    file: a TOML file, or None for no file. flags: key -> value from the command line; keys with the value None are
    ignored. Raises ConfigError with all findings, one a line.
    """
    examined = examine(file, flags)
    if examined.config is None or examined.wrong:
        raise ConfigError("\n".join(examined.wrong))
    return examined.config


def examine(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Examined:
    """As `load`, with the findings in the result. What does not fit together is found among the keys that are right by
    themselves."""
    given: dict[str, Any] = {}

    class Loaded(NodeConfig):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            sources = (init_settings, env_settings)
            return sources if file is None else (*sources, TomlConfigSettingsSource(settings_cls, file))

        @model_validator(mode="before")
        @classmethod
        def _keep(cls, values: dict[str, Any]) -> dict[str, Any]:
            """Keep what the sources say together."""
            given.update(values)
            return values

    origin = "the configuration" if file is None else str(file)
    if file is not None and not file.is_file():
        return Examined(None, (f"there is no configuration file {file}",))
    try:
        return Examined(Loaded(**{key: value for key, value in (flags or {}).items() if value is not None}))
    except ValidationError as error:
        errors = [each for each in error.errors(include_url=False) if each["loc"]]
        return _usable(origin, flags or {}, given, errors)
    except SettingsError as error:
        return Examined(None, (_not_json(error),))
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: not TOML, not text, a number of many digits
        return Examined(None, (f"{origin} cannot be read: {error}",))


def _usable(
    origin: str, flags: Mapping[str, Any], given: Mapping[str, Any], errors: list[ErrorDetails]
) -> Examined:
    """What is left of a configuration with findings. given: its values as the sources have them. errors: those of
    single keys."""
    unusable = {str(each["loc"][0]) for each in errors}
    fields: dict[str, Any] = {
        key: (field.annotation, field)
        for key, field in NodeConfig.model_fields.items()
        if key not in unusable
    }
    right = create_model("Right", __config__=ConfigDict(validate_default=True), **fields)
    values = dict(right.model_validate({key: value for key, value in given.items() if key in fields}))
    wrong = [f"{_source(str(each['loc'][0]), origin, flags)}: {_finding(each)}" for each in errors]
    wrong += [f"{origin}: {each}" for each in _misfits(values)]
    if fields.keys() >= {"name", "members"} and values["name"] not in values["members"]:
        unusable.add("name")
    return Examined(
        NodeConfig.model_construct(**values),
        tuple(wrong),
        frozenset(unusable),
    )


def _source(key: str, origin: str, flags: Mapping[str, Any]) -> str:
    """Where the value of a key comes from: a flag, a variable, or the file."""
    if flags.get(key) is not None:
        return "--skip-entry" if key == "skip_entries" else f"--{key.replace('_', '-')}"
    variable = f"{ENV_PREFIX}{key}".upper()
    return next((each for each in os.environ if each.upper() == variable), origin)


def _not_json(error: SettingsError) -> str:
    """Which variable is no JSON, and what it has to be. The library names the key only in its text."""
    wanted = {"members": "a JSON object", "skip_entries": 'a JSON array, such as ["0:1234"]'}
    key = next((each for each in wanted if f'"{each}"' in str(error)), "members")
    return f"{ENV_PREFIX}{key.upper()} is not {wanted[key]}: {error.__cause__ or error}"


def _finding(each: ErrorDetails) -> str:
    key = ".".join(str(part) for part in each["loc"])
    if each["type"] == "extra_forbidden":
        is_of_member = len(each["loc"]) > 1
        if is_of_member and each["loc"][-1] in NodeConfig.model_fields:
            place = "write it above the first table, [members.NAME]"
            return f"unknown key {key}; {each['loc'][-1]} is a key of the node: {place}"
        known = MemberAddresses.model_fields if is_of_member else NodeConfig.model_fields
        close = difflib.get_close_matches(str(each["loc"][-1]), list(known), n=1)
        return f"unknown key {key}" + (f"; did you mean {close[0]}?" if close else "")
    if each["type"] == "missing":
        return f"{key} is missing; it has no default"
    if wanted := WANTED.get(each["type"]):
        allowed = wanted.format(**each.get("ctx", {}))
        given = each["input"]
        shown = str(given).lower() if isinstance(given, bool) else repr(given)
        return f"{key} is {shown}; allowed: {allowed}"
    text = each["msg"].removeprefix("Value error, ")
    value = "" if not key or "Value error" in each["msg"] else f" (it is {each['input']!r})"
    return f"{key}: {text}{value}" if key else text


def _misfits(values: Mapping[str, Any]) -> Iterator[str]:
    """What does not fit together. values: by key; a relation is left out if one of its keys is absent."""
    for relation in _RELATIONS:
        keys = inspect.signature(relation).parameters
        if values.keys() >= keys.keys():
            yield from relation(**{key: values[key] for key in keys})


# The parameters of a relation are the keys that it compares.


def _own_name(name: str, members: Members) -> Iterator[str]:
    if name not in members:
        yield f"name is {name!r}, which is not among members: {', '.join(sorted(members))}"


def _joining(name: str, members: Members, join: bool) -> Iterator[str]:
    if join and len(members) > 1:
        yield f"join is set; members may then have only {name!r}, with its own addresses"
    if join and len(name) > MAX_JOINING_NAME:
        yield f"join is set; name has at most {MAX_JOINING_NAME} characters then"


def _addresses(members: Members) -> Iterator[str]:
    addresses = [address for each in members.values() for address in (each.peer, each.client)]
    for address in sorted({address for address in addresses if addresses.count(address) > 1}):
        yield f"members: the address {address} is given twice"


def _http_port(name: str, members: Members, listen: str | None, http_listen: str | None) -> Iterator[str]:
    """None of the member's other addresses can be listened on beside `http_listen`."""
    if http_listen is None or name not in members:
        return
    own = members[name]
    host, port = host_port(http_listen)
    for key, other in (("client" if listen is None else "listen", listen or own.client), ("peer", own.peer)):
        at, number = host_port(other)
        if number == port and (host == at or {host, at} & {"0.0.0.0", "::"}):
            yield f"http_listen is {http_listen}; {key} ({other}) has this port already"
            return


def _plain_text(
    name: str,
    members: Members,
    listen: str | None,
    http_listen: str | None,
    tls_certificate_file: Path | None,
    peers_certificate_file: Path | None,
    allow_plain_text: bool,
) -> Iterator[str]:
    if allow_plain_text or name not in members:
        return
    ports = _readable_ports(members[name], listen, http_listen, tls_certificate_file, peers_certificate_file)
    if not ports:
        return
    keys = []
    if of_clients := [who for who in ports if who != "members"]:
        keys.append(f"tls_certificate_file and tls_key_file ({' and '.join(of_clients)})")
    if "members" in ports:
        keys.append("peers_certificate_file, peers_key_file and peers_ca_file (members)")
    places = ", ".join(f"{address} ({who})" for who, address in ports.items())
    yield (
        f"ports that other machines reach have no TLS: {places}; wanted: {'; '.join(keys)}; or allow_plain_text = true "
        "on a network that encrypts by itself, such as a mesh or a VPN"
    )


def _readable_ports(
    own: MemberAddresses,
    listen: str | None,
    http_listen: str | None,
    tls_certificate_file: Path | None,
    peers_certificate_file: Path | None,
) -> dict[str, str]:
    """See `NodeConfig.readable_ports`."""
    places = (
        ("clients", listen or own.client, tls_certificate_file),
        ("members", own.peer, peers_certificate_file),
        ("HTTP", http_listen, tls_certificate_file),
    )
    return {
        who: address
        for who, address, certificate in places
        if address is not None and certificate is None and not is_loopback(host_port(address)[0])
    }


def _elections(election_timeout_min_ms: int, election_timeout_max_ms: int) -> Iterator[str]:
    if election_timeout_min_ms >= election_timeout_max_ms:
        yield (
            f"election_timeout_min_ms is {election_timeout_min_ms}; it has to be below election_timeout_max_ms, "
            f"which is {election_timeout_max_ms}"
        )


def _heartbeats(heartbeat_ms: int, election_timeout_min_ms: int) -> Iterator[str]:
    if 3 * heartbeat_ms > election_timeout_min_ms:
        yield (
            f"heartbeat_ms is {heartbeat_ms}; at most a third of election_timeout_min_ms is allowed, "
            f"{election_timeout_min_ms // 3}"
        )


def _fallback(leader_fallback_ms: int, election_timeout_max_ms: int) -> Iterator[str]:
    if leader_fallback_ms < election_timeout_max_ms:
        yield (
            f"leader_fallback_ms is {leader_fallback_ms}; at least election_timeout_max_ms is needed, "
            f"{election_timeout_max_ms}"
        )


def _log_size(max_log_bytes: int | None, disk_free_limit_bytes: int) -> Iterator[str]:
    if max_log_bytes is not None and max_log_bytes <= disk_free_limit_bytes:
        yield f"max_log_bytes is {max_log_bytes}; above disk_free_limit_bytes is allowed, {disk_free_limit_bytes}"


def _client_key(tls_certificate_file: Path | None, tls_key_file: Path | None) -> Iterator[str]:
    if (tls_certificate_file is None) != (tls_key_file is None):
        yield "tls_certificate_file and tls_key_file belong together"


def _peer_files(
    peers_certificate_file: Path | None, peers_key_file: Path | None, peers_ca_file: Path | None
) -> Iterator[str]:
    peers = (peers_certificate_file, peers_key_file, peers_ca_file)
    if None in peers and any(peers):
        yield "peers_certificate_file, peers_key_file and peers_ca_file belong together"


def _client_authority(tls_client_ca_file: Path | None, tls_certificate_file: Path | None) -> Iterator[str]:
    if tls_client_ca_file is not None and tls_certificate_file is None:
        yield "tls_client_ca_file is of no use without tls_certificate_file and tls_key_file"


def _windows(session_window_bytes: int, node_window_bytes: int) -> Iterator[str]:
    if session_window_bytes > node_window_bytes:
        yield (
            f"session_window_bytes is {session_window_bytes}; at most node_window_bytes is allowed, "
            f"{node_window_bytes}"
        )


_RELATIONS: tuple[Callable[..., Iterator[str]], ...] = (
    _own_name,
    _joining,
    _addresses,
    _http_port,
    _plain_text,
    _elections,
    _heartbeats,
    _fallback,
    _log_size,
    _client_key,
    _peer_files,
    _client_authority,
    _windows,
)


WHOLE, YES_OR_NO, TEXT = "a whole number", "true or false", "a text"
WANTED = {
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "int_type": WHOLE,
    "int_parsing": WHOLE,
    "int_parsing_size": WHOLE,
    "int_from_float": WHOLE,
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": YES_OR_NO,
    "bool_parsing": YES_OR_NO,
    "string_type": TEXT,
    "path_type": "a path",
    "tuple_type": "a list",
}
"""What is allowed, by the library's kind of finding. It has its own wording, which is written for programmers."""


def reference() -> str:
    """A Markdown table with a row for each key: key, environment variable, default, meaning."""
    rows = ["| key | environment | default | meaning |", "|---|---|---|---|"]
    for name, field in NodeConfig.model_fields.items():
        default = "" if field.is_required() else _plain(field.default)
        rows.append(f"| `{name}` | `{ENV_PREFIX}{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def _plain(default: object) -> str:
    if isinstance(default, int) and default >= MIB and default % MIB == 0:
        return f"{default} ({default // MIB} MiB)"
    return "" if default is None or default == () else str(default)
