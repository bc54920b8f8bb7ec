"""What a member takes from its configuration while it runs (quorum/api/security/reloading.py).
tests/processes/test_processes_tls.py does it with a signal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from quorum.api.security.access import Access
from quorum.api.security.named_files import client_certificates, peer_security, tokens_of
from quorum.api.security.reloading import Reloader, Source
from quorum.api.status import StatusError
from quorum.catalog.users import User, Users
from quorum.cli.commands.certificates import create
from quorum.config import NodeConfig
from support.members.users import AWAY

KEYS = '{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "%s"}]}'
OLD_STAYS = "configuration not reloaded, the old one stays"


def test_a_defect_in_a_reload_ends_no_member() -> None:
    """What ends the task of reloads ends the process."""

    def read() -> Any:
        raise KeyError("a library that fails in a new way")

    async def body() -> None:
        config: Any = object()  # not looked at: the new one cannot be read
        reloader = Reloader(config, Source(read, print), Access(), None, None, None)
        signalled = asyncio.Event()
        reloading = asyncio.create_task(reloader.reload_on(signalled))
        with capture_logs() as lines:
            for _ in range(2):
                signalled.set()
                while signalled.is_set():
                    await asyncio.sleep(0)
            while len(lines) < 2:
                await asyncio.sleep(0.001)
        assert not reloading.done()
        assert {line["event"] for line in lines} == {OLD_STAYS}
        reloading.cancel()

    asyncio.run(asyncio.wait_for(body(), 30))


class Member:
    """What of a member a reload changes. The configuration has these keys beside those that every one has."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.folder = folder
        self.levels: list[str] = []
        self.access = Access()
        config = self._config(keys)
        self.certificates, self.security = client_certificates(config), peer_security(config)
        self._read = config
        source = Source(lambda: self._read, self.levels.append)
        self._reloader = Reloader(
            config, source, self.access, self.certificates, self.security, tokens_of(config)
        )

    def _config(self, keys: dict[str, Any]) -> NodeConfig:
        place = {"peer": "127.0.0.1:7401", "client": "127.0.0.1:7400"}
        folder = self.folder
        return NodeConfig(
            name="n1",
            members={"n1": place},
            data_dir=folder / "data",
            secret_file=folder / "secret",
            **keys,
        )

    def reload(self, **keys: Any) -> tuple[str, str]:
        """What has changed, and what needs a restart; or the event and the error of the log's line."""
        self._read = self._config(keys)
        with capture_logs() as lines:
            asyncio.run(self._reloader.reload())
        [line] = lines
        if line["event"] == "configuration reloaded":
            return line["changed"], line["needs_restart"]
        return line["event"], line["error"]

    def says_to_a_stranger(self) -> str:
        """anybody, or the reason of the refusal."""
        return self._admitted({})

    def says_to_a_token(self) -> str:
        return self._admitted({"authorization": "Bearer x.y.z"})

    def _admitted(self, headers: dict[str, str]) -> str:
        try:
            asyncio.run(self.access.admit("Queue/Get", AWAY, AWAY, headers))
        except StatusError as error:
            return f"{error.status.reason}: {error.status.message}"
        return "anybody"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with certificates of the authorities "own" and "other"."""
    for authority in ("own", "other"):
        create(["n1"], tmp_path / authority, 30)
    return tmp_path


def files(kind: str, folder: Path, authority: str = "") -> dict[str, Path]:
    found = {f"{kind}_certificate_file": folder / "n1.pem", f"{kind}_key_file": folder / "n1.key"}
    return {**found, **({authority: folder / "ca.pem"} if authority else {})}


def test_allow_without_users_counts_from_a_reload_on(tmp_path: Path) -> None:
    member = Member(tmp_path)
    assert "no_users" in member.says_to_a_stranger()
    assert member.reload(allow_without_users=True) == ("allow_without_users", "nothing")
    assert member.says_to_a_stranger() == "anybody"
    assert member.reload() == ("allow_without_users", "nothing")
    assert "no_users" in member.says_to_a_stranger()


def test_keys_of_tokens_begin_change_and_end_with_a_reload(tmp_path: Path) -> None:
    member = Member(tmp_path)
    member.access.users_changed(Users([User("ann", "", administers=True)]))
    keys = tmp_path / "keys.jwks"
    keys.write_text(KEYS % "one", encoding="utf-8")
    configured = {"token_keys_file": keys, "token_algorithm": "ES256", "token_audience": "ours"}
    assert "no keys of tokens" in member.says_to_a_token()
    changed, restart = member.reload(**configured)
    assert (set(changed.split(", ")), restart) == (set(configured), "nothing")
    assert "no keys of tokens" not in member.says_to_a_token()
    keys.write_text(KEYS % "two", encoding="utf-8")
    assert member.reload(**configured) == ("keys of tokens", "nothing")
    assert member.reload(**configured) == ("nothing", "nothing")
    member.reload()
    assert "no keys of tokens" in member.says_to_a_token()


def test_a_key_that_needs_a_restart_is_named_until_it_is_as_before(tmp_path: Path) -> None:
    member = Member(tmp_path, lease_ms=4_000)
    for _ in range(2):
        assert member.reload(lease_ms=5_000) == ("nothing", "lease_ms")
    assert member.reload(lease_ms=4_000) == ("nothing", "nothing")


def test_of_a_configuration_with_one_wrong_file_nothing_is_taken(made: Path) -> None:
    clients = "tls_client_ca_file"
    own = {**files("tls", made / "own", clients), **files("peers", made / "own", "peers_ca_file")}
    other = {**files("tls", made / "other", clients), **files("peers", made / "other", "peers_ca_file")}
    member = Member(made, **own)
    assert member.certificates is not None and member.security is not None
    before = member.certificates._content, member.security._content
    (made / "rubbish").write_bytes(b"rubbish")
    tokens = {"token_algorithm": "RS256", "token_audience": "quorum"}
    for wrong in (
        {"token_keys_file": made / "rubbish", **tokens},
        {"peers_certificate_file": made / "rubbish"},
        {"peers_ca_file": made / "own" / "ca.pem"},
        {"tls_client_ca_file": made / "rubbish"},
    ):
        event, error = member.reload(**{**other, **wrong, "allow_without_users": True})
        assert event == OLD_STAYS
        assert str(next(iter(wrong.values()))) in error
        assert (member.certificates._content, member.security._content) == before
        assert "no_users" in member.says_to_a_stranger()
    changed, restart = member.reload(**other)
    assert {*other, "certificates for clients", "certificates for members"} == set(changed.split(", "))
    assert restart == "nothing"
    assert member.certificates._content != before[0] and member.security._content != before[1]
    assert member.certificates.client_authorities == other[clients]


@pytest.mark.parametrize(
    ("before", "after", "restart"),
    [
        ((), ("tls",), {"tls_certificate_file", "tls_key_file"}),
        (("tls",), (), {"tls_certificate_file", "tls_key_file"}),
        (("tls",), ("tls", "clients"), {"tls_client_ca_file"}),
        (("tls", "clients"), ("tls",), {"tls_client_ca_file"}),
        ((), ("peers",), {"peers_certificate_file", "peers_key_file", "peers_ca_file"}),
        (("peers",), (), {"peers_certificate_file", "peers_key_file", "peers_ca_file"}),
    ],
)
def test_tls_and_a_demand_for_certificates_begin_and_end_with_the_process(
    made: Path, before: tuple[str, ...], after: tuple[str, ...], restart: set[str]
) -> None:
    known = {
        "tls": files("tls", made / "own"),
        "clients": {"tls_client_ca_file": made / "own" / "ca.pem"},
        "peers": files("peers", made / "own", "peers_ca_file"),
    }
    member = Member(made, **{key: file for kind in before for key, file in known[kind].items()})
    certificates = member.certificates
    taken = certificates and certificates.client_authorities
    for _ in range(2):
        changed, waiting = member.reload(
            **{key: file for kind in after for key, file in known[kind].items()}, allow_without_users=True
        )
        assert set(waiting.split(", ")) == restart
    assert changed == "nothing", "it was taken by the first of both"
    assert (certificates and certificates.client_authorities) == taken


def test_the_line_about_a_reload_is_seen_if_the_old_or_the_new_level_shows_it(tmp_path: Path) -> None:
    member = Member(tmp_path, log_level="error")
    assert member.reload(log_level="info")[0] == "log_level"
    assert member.reload(log_level="warning")[0] == "log_level"
    assert member.levels == ["info", "info", "info", "warning"]
