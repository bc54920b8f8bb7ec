"""What a member loads from the files that its configuration names: secret, certificates, keys of tokens, the first
administrator.

A member loads all of it before it changes anything on its disk. `quorum doctor` loads it in the same way, so both
refuse the same files with the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fifo.frozen_dataclasses import dataclass
from quorum.api.security.access import FirstAdministrator
from quorum.api.security.audit_file import wrong_audit_file
from quorum.api.security.certificates import CLIENT_FILES, PEER_FILES, Certificates, read_checked
from quorum.api.security.passwords import check_password, secret_of
from quorum.catalog.users import check_new_user_name
from quorum.config import Examined, NodeConfig
from quorum.errors import ConfigError

if TYPE_CHECKING:
    from quorum.api.security.tokens import Tokens
    from quorum.replication.network.tls import TlsSecurity

T = TypeVar("T")
TOKEN_KEYS = ("token_keys_file", "token_algorithm", "token_audience", "token_issuer", "token_user_claim")
"""Keys of the configuration about tokens."""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """secret: of the members. certificates, security: for clients and for members; None for plain connections. tokens,
    administrator: None if they are not configured."""

    secret: bytes
    certificates: Certificates | None
    security: TlsSecurity | None
    tokens: Tokens | None
    administrator: FirstAdministrator | None


def load_files(config: NodeConfig) -> NamedFiles:
    """Load everything. ConfigError with a line for each finding, also about `audit_file`, if a file cannot be used."""
    wrong: list[str] = []

    def loaded(load: Callable[[NodeConfig], T]) -> T | None:
        try:
            return load(config)
        except ConfigError as error:
            wrong.append(str(error))
            return None

    secret = loaded(NodeConfig.read_secret)
    certificates, security = loaded(client_certificates), loaded(peer_security)
    tokens, administrator = loaded(tokens_of), loaded(first_administrator)
    loaded(check_audit_file)
    if wrong or secret is None:
        raise ConfigError("\n".join(wrong))
    return NamedFiles(secret, certificates, security, tokens, administrator)


def wrong_files(examined: Examined) -> Iterator[str]:
    """What `load_files` would refuse, a line for each finding, of the files whose keys can be used."""
    for _, keys, check in FILE_CHECKS:
        if examined.config is not None and examined.has(*keys):
            try:
                check(examined.config)
            except ConfigError as error:
                yield from str(error).split("\n")


def check_audit_file(config: NodeConfig) -> None:
    """ConfigError if the file cannot be used. Nothing is written."""
    if config.audit_file is not None and (wrong := wrong_audit_file(config.audit_file)):
        raise ConfigError("\n".join(wrong))


def client_certificates(config: NodeConfig) -> Certificates | None:
    """None for plain text. ConfigError if a file cannot be used."""
    if config.tls_certificate_file is None or config.tls_key_file is None:
        return None
    return Certificates(config.tls_certificate_file, config.tls_key_file, config.tls_client_ca_file)


def peer_security(config: NodeConfig) -> TlsSecurity | None:
    """None for plain connections between members. ConfigError if a file cannot be used."""
    files = _peer_files(config)
    if files is None:
        return None
    from quorum.replication.network.tls import TlsSecurity

    return _tls(files, lambda: TlsSecurity(*files))


def prepare_peer_files(security: TlsSecurity, config: NodeConfig) -> Callable[[], bool]:
    """Read the files of a configuration that names them. The result takes them (TlsSecurity.prepare). ConfigError if
    one cannot be used."""
    files = _peer_files(config)
    assert files is not None
    return _tls(files, lambda: security.prepare(*files))


def _peer_files(config: NodeConfig) -> tuple[Path, Path, Path] | None:
    certificate, key, authority = config.peers_certificate_file, config.peers_key_file, config.peers_ca_file
    if certificate is None or key is None or authority is None:
        return None
    return certificate, key, authority


def _tls(files: tuple[Path, Path, Path], load: Callable[[], T]) -> T:
    read_checked(PEER_FILES, files)
    try:
        return load()
    except OSError as error:  # what OpenSSL refuses besides, such as a key that is too short
        raise ConfigError(f"{', '.join(PEER_FILES)}: {error}") from error


def tokens_of(config: NodeConfig) -> Tokens | None:
    """What checks tokens, None without `token_keys_file`. ConfigError if the keys cannot be read."""
    if config.token_keys_file is None:
        return None
    from quorum.api.security.tokens import Tokens

    try:
        return Tokens(
            config.token_keys_file,
            config.token_algorithm,
            config.token_audience,
            config.token_user_claim,
            issuer=config.token_issuer,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"token_keys_file {config.token_keys_file}: {error}") from error


def first_administrator(config: NodeConfig) -> FirstAdministrator | None:
    """The user of `first_administrator_file`, None without it. ConfigError if the file is not right."""
    found = config.read_first_administrator()
    if found is None:
        return None
    name, password = found
    try:
        check_new_user_name(name)
        check_password(password)
    except ValueError as error:
        raise ConfigError(f"first_administrator_file {config.first_administrator_file}: {error}") from error
    return FirstAdministrator(name, secret_of(password))


FILE_CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[NodeConfig], object]], ...] = (
    ("secret", ("secret_file",), NodeConfig.read_secret),
    ("files for clients", CLIENT_FILES, client_certificates),
    ("files for members", PEER_FILES, peer_security),
    ("keys of tokens", TOKEN_KEYS, tokens_of),
    ("first administrator", ("first_administrator_file",), first_administrator),
    ("audit file", ("audit_file",), check_audit_file),
)
"""What is checked, the keys that it needs, and the check, which raises ConfigError."""
