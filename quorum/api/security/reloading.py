"""What a member takes from its configuration while it runs, on SIGHUP.

Everything is read and checked before anything is changed. If one part is wrong, nothing changes, and a line of the log
says why. Keys that are used only at the start are named in the log, and stay as they are.

Certificates and keys of tokens are also taken without a signal, when their files change (certificates.py, tokens.py,
replication/network/tls.py). The signal takes them at once, and reports a wrong file at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from fifo.frozen_dataclasses import dataclass
from quorum.api.security.access import Access
from quorum.api.security.certificates import CLIENT_FILES, PEER_FILES, Certificates
from quorum.api.security.named_files import TOKEN_KEYS, prepare_peer_files, tokens_of
from quorum.config import NodeConfig
from quorum.errors import ConfigError

if TYPE_CHECKING:
    from quorum.api.security.tokens import Tokens
    from quorum.replication.network.tls import TlsSecurity

LEVELS = ("debug", "info", "warning", "error")
RELOADED = ("log_level", "allow_without_users", *TOKEN_KEYS)
"""The paths of CLIENT_FILES and PEER_FILES are taken as well, if the same ones of their group are set as before: TLS,
and a demand for certificates of clients, begin and end only with the process."""


@dataclass(frozen=True, slots=True)
class Source:
    """read: reads and checks the configuration again; ConfigError says what is wrong."""

    read: Callable[[], NodeConfig]
    set_log_level: Callable[[str], None]


class Reloader:
    """config: in use. certificates, security, tokens: None where there is no TLS, and no keys of tokens."""

    def __init__(
        self,
        config: NodeConfig,
        source: Source,
        access: Access,
        certificates: Certificates | None,
        security: TlsSecurity | None,
        tokens: Tokens | None,
    ) -> None:
        self._config = config
        self._source = source
        self._access = access
        self._certificates = certificates
        self._security = security
        self._tokens = tokens

    async def reload_on(self, signalled: asyncio.Event) -> None:
        """Reload whenever the event is set, for ever. Several signals at a time are one."""
        while True:
            await signalled.wait()
            signalled.clear()
            await self.reload()

    async def reload(self) -> None:
        logger = structlog.get_logger()
        try:
            take = await asyncio.to_thread(self._prepare)
        except ConfigError as error:
            logger.error("configuration not reloaded, the old one stays", error=str(error))
            return
        except Exception as error:
            # a defect; nothing has been taken, and no file may end the member
            logger.critical("configuration not reloaded, the old one stays", exc_info=error)
            return
        before = self._config.log_level
        changed, waiting = take()
        now = self._config.log_level
        self._source.set_log_level(
            min(before, now, key=LEVELS.index)
        )  # the line is seen if one of them shows it
        logger.info(
            "configuration reloaded",
            changed=", ".join(changed) or "nothing",
            needs_restart=", ".join(waiting) or "nothing",
        )
        self._source.set_log_level(now)

    def _prepare(self) -> Callable[[], tuple[list[str], list[str]]]:
        """Read and check everything. The result takes it over, and names what has changed, and which keys of the
        configuration need a restart. ConfigError if anything is wrong."""
        old, new = self._config, self._source.read()
        different = [key for key in NodeConfig.model_fields if getattr(old, key) != getattr(new, key)]
        usable = {*RELOADED}
        files: list[tuple[str, Callable[[], bool]]] = []
        if self._certificates is not None and _has_same(old, new, CLIENT_FILES):
            usable.update(CLIENT_FILES)
            assert new.tls_certificate_file is not None and new.tls_key_file is not None
            take_files = self._certificates.prepare(
                new.tls_certificate_file, new.tls_key_file, new.tls_client_ca_file
            )
            files.append(("certificates for clients", take_files))
        if self._security is not None and _has_same(old, new, PEER_FILES):
            usable.update(PEER_FILES)
            files.append(("certificates for members", prepare_peer_files(self._security, new)))
        tokens = tokens_of(new)
        waiting = [key for key in different if key not in usable]

        def take() -> tuple[list[str], list[str]]:
            changed = [key for key in different if key in usable]
            changed += [name for name, take_files in files if take_files()]
            if tokens is not None and self._tokens is not None and tokens.content != self._tokens.content:
                changed.append("keys of tokens")
            self._tokens = tokens
            self._access.reconfigure(
                None if tokens is None else tokens.check, is_open_without_users=new.allow_without_users
            )
            self._config = new.model_copy(update={key: getattr(old, key) for key in waiting})
            return changed, waiting

        return take


def _has_same(old: NodeConfig, new: NodeConfig, keys: tuple[str, ...]) -> bool:
    """Whether the same ones of these keys are set."""
    return all((getattr(old, key) is None) == (getattr(new, key) is None) for key in keys)
