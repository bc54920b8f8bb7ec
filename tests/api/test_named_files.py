"""What a member loads from the files of its configuration before it starts (quorum/api/security/named_files.py)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from quorum.api.security.named_files import NamedFiles, load_files
from quorum.api.security.passwords import is_right
from quorum.cli.commands.certificates import create
from quorum.config import NodeConfig
from quorum.errors import ConfigError

PRIVATE = ec.generate_private_key(ec.SECP256R1())


def put(file: Path, content: str) -> Path:
    file.write_text(content, encoding="utf-8")
    file.chmod(0o600)
    return file


def load(folder: Path, **keys: Any) -> NamedFiles:
    place = {"peer": "127.0.0.1:7401", "client": "127.0.0.1:7400"}
    secret = put(folder / "secret", "s" * 32)
    found = {"data_dir": folder / "data", "secret_file": secret, **keys}
    return load_files(NodeConfig(name="n1", members={"n1": place}, **found))


def test_without_their_keys_there_is_only_the_secret(tmp_path: Path) -> None:
    assert load(tmp_path) == NamedFiles(b"s" * 32, None, None, None, None)


def test_all_files_are_loaded_as_the_configuration_says(tmp_path: Path) -> None:
    create(["n1"], tmp_path, 30)
    key = {**json.loads(ECAlgorithm.to_jwk(PRIVATE.public_key())), "kid": "one"}
    found = load(
        tmp_path,
        tls_certificate_file=tmp_path / "n1.pem",
        tls_key_file=tmp_path / "n1.key",
        tls_client_ca_file=tmp_path / "ca.pem",
        peers_certificate_file=tmp_path / "n1.pem",
        peers_key_file=tmp_path / "n1.key",
        peers_ca_file=tmp_path / "ca.pem",
        first_administrator_file=put(tmp_path / "administrator", "root:a long:password"),
        token_keys_file=put(tmp_path / "keys", json.dumps({"keys": [key]})),
        token_algorithm="ES256",
        token_audience="ours",
        token_user_claim="login",
        token_issuer="https://login.example",
    )
    assert found.certificates is not None and found.certificates.client_authorities == tmp_path / "ca.pem"
    assert found.security is not None and found.security.authority == tmp_path / "ca.pem"
    assert found.administrator is not None and found.administrator.name == "root"
    assert is_right("a long:password", found.administrator.secret)
    claims = {"login": "ann", "aud": "ours", "iss": "https://login.example", "exp": time.time() + 3_600}
    assert found.tokens is not None
    assert found.tokens.check(signed(claims))[0] == "ann"
    for wrong in ({"aud": "quorum"}, {"iss": "another"}):
        with pytest.raises(ValueError):
            found.tokens.check(signed({**claims, **wrong}))


def signed(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, PRIVATE, "ES256", headers={"kid": "one"})


def test_all_wrong_files_are_told_at_once(tmp_path: Path) -> None:
    rubbish = put(tmp_path / "rubbish", "rubbish")
    names = ("tls_certificate", "tls_key", "peers_certificate", "peers_key", "peers_ca")
    with pytest.raises(ConfigError) as refused:
        load(
            tmp_path,
            secret_file=put(tmp_path / "short", "short"),
            **{f"{name}_file": rubbish for name in names},
            token_keys_file=rubbish,
            token_algorithm="ES256",
            token_audience="ours",
            first_administrator_file=put(tmp_path / "administrator", "root:short"),
            audit_file=tmp_path / "no folder" / "audit.jsonl",
        )
    told = [line.partition(" ")[0] for line in str(refused.value).splitlines()]
    assert told == [
        "secret_file",
        "tls_certificate_file",
        "tls_key_file",
        "peers_certificate_file",
        "peers_key_file",
        "peers_ca_file",
        "token_keys_file",
        "first_administrator_file",
        "audit_file",
    ]


@pytest.mark.parametrize(
    "given", ["root:1234567", ":a long password", "root", f"{'r' * 256}:a long password"]
)
def test_a_first_administrator_has_a_name_and_a_password_that_a_user_may_have(
    tmp_path: Path, given: str
) -> None:
    with pytest.raises(ConfigError, match="first_administrator_file"):
        load(tmp_path, first_administrator_file=put(tmp_path / "administrator", given))


def test_a_file_of_keys_that_is_away_is_told(tmp_path: Path) -> None:
    keys = {"token_algorithm": "ES256", "token_audience": "ours"}
    with pytest.raises(ConfigError, match=r"token_keys_file .*No such file"):
        load(tmp_path, token_keys_file=tmp_path / "none", **keys)
