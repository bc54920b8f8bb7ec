"""Log-in with signed tokens: which are accepted, and that a session ends with its token."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from structlog.testing import capture_logs

import quorum
from quorum.api.security.access import Access
from quorum.api.security.tokens import LEEWAY_S, MAX_KEYS_BYTES, Tokens
from quorum.api.status import StatusError
from quorum.catalog.users import User, Users
from quorum.client.client import Client
from quorum.client.connection.endpoints import Service
from quorum.client.errors import PermissionRefused
from support.members.served import serving

LIMIT_S = 60.0
RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"sub": "ann", "aud": "quorum", "exp": 1 << 40}
PEER = "ipv4:192.0.2.7:41000"


def keys_in(directory: Path, **named: Any) -> Path:
    """A file with the public keys of these private ones, by their key ids."""
    keys = []
    for name, key in named.items():
        algorithm: Any = ECAlgorithm if key is EC else RSAAlgorithm
        keys.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": name})
    file = directory / "keys.new"
    file.write_text(json.dumps({"keys": keys}), encoding="utf-8")
    return file.replace(directory / "keys.jwks")


def token(key: Any = RSA, algorithm: str = "RS256", kid: str = "one", **changed: Any) -> str:
    header = {"kid": kid, **{name: changed.pop(name) for name in ("jwk", "jku") if name in changed}}
    claims = {"sub": "ann", "aud": "quorum", "exp": time.time() + 3_600, **changed}
    return jwt.encode({k: v for k, v in claims.items() if v is not None}, key, algorithm, headers=header)


def signed_with_the_public_key() -> str:
    """A token with an HMAC whose secret is the public key, which everybody knows."""
    secret = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, body = (part_of(json.dumps(each).encode()) for each in ({"alg": "HS256", "kid": "one"}, CLAIMS))
    mac = hmac.new(secret, f"{head}.{body}".encode(), "sha256").digest()
    return f"{head}.{body}.{part_of(mac)}"


def part_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def of_parts(head: bytes, body: bytes) -> str:
    return f"{part_of(head)}.{part_of(body)}.{part_of(b'signature')}"


def reason_of(access: Access, given: str) -> str:
    """The admitted user, or why the token is refused."""
    try:
        user = asyncio.run(access.admit("Queue/Get", PEER, PEER, {"authorization": f"Bearer {given}"}))
    except StatusError as error:
        return error.status.message
    assert user is not None
    return user.name


def access_with(tokens: Tokens | None) -> Access:
    access = Access(tokens=None if tokens is None else tokens.check)
    access.users_changed(Users([User("admin", "", administers=True), User("ann", "")]))
    return access


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return access_with(Tokens(keys_in(tmp_path, one=RSA, curve=EC), "RS256", "quorum", "sub"))


def test_a_signed_token_names_its_user(access: Access) -> None:
    assert reason_of(access, token()) == "ann"
    assert reason_of(access, token(aud=["other", "quorum"])) == "ann"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (token(exp=time.time() - 60), "expired"),
        (token(exp=None), 'missing the "exp" claim'),
        (token(aud="other"), "Audience"),
        (token(aud=None), 'missing the "aud" claim'),
        (token(sub=None), 'missing the "sub" claim'),
        (token(sub="nobody"), "names no user"),
        (token(nbf=time.time() + 100_000, exp=time.time() + 200_000), "not yet valid"),
        (token(OTHER_RSA), "Signature verification failed"),
        (token(kid="two"), "unknown key"),
        (token(EC, "ES256", "curve"), "alg value"),
        (token("a secret that is long enough for HS256!", "HS256"), "alg value"),
        (
            jwt.encode({"sub": "ann", "aud": "quorum", "exp": 1 << 40}, "", "none", headers={"kid": "one"}),
            "alg value",
        ),
        (token(kid="../../../etc/passwd"), "unknown key"),
        (token(kid="one\0"), "unknown key"),
        (token("", "none"), "alg value"),
        (signed_with_the_public_key(), "alg value"),
        (
            token(OTHER_RSA, jwk=json.loads(RSAAlgorithm.to_jwk(OTHER_RSA.public_key()))),
            "verification failed",
        ),
        (token(OTHER_RSA, jku="https://attacker.example/keys"), "verification failed"),
        (of_parts(b"[" * 4_000, b"{}"), "not accepted"),
        (of_parts(b'{"alg": "RS256", "kid": ["one"]}', b"{}"), "must be a string"),
        (token(exp="tomorrow"), "no text and number"),
        (token(exp=True), "no text and number"),
        (token(sub=7), "subject must be a string"),
        (token()[:-8] + "AAAAAAAA", "Signature"),
        ("x.y.z", "not accepted"),
        ("x" * 20_000, "more than"),
    ],
)
def test_any_other_token_is_refused(access: Access, given: str, why: str) -> None:
    assert why.lower() in reason_of(access, given).lower()


def test_a_token_of_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    access = access_with(Tokens(keys_in(tmp_path, one=EC), "RS256", "quorum", "sub"))
    assert "not accepted" in reason_of(access, token())


def test_the_issuer_is_compared_if_one_is_configured(tmp_path: Path) -> None:
    file = keys_in(tmp_path, one=RSA)
    access = access_with(Tokens(file, "RS256", "quorum", "sub", issuer="https://login.example"))
    assert reason_of(access, token(iss="https://login.example")) == "ann"
    assert "Invalid issuer" in reason_of(access, token(iss="https://login.example.attacker"))
    assert 'missing the "iss" claim' in reason_of(access, token())


def test_a_wrong_file_of_keys_is_told_once(tmp_path: Path) -> None:
    """Each call checks its token: it must not read a wrong file again, and log that, for each of them."""
    file = keys_in(tmp_path, one=RSA)
    access = access_with(Tokens(file, "RS256", "quorum", "sub"))
    file.write_text("no keys", encoding="utf-8")
    with capture_logs() as lines:
        for _ in range(3):
            assert reason_of(access, token()) == "ann"
    assert [line["event"] for line in lines] == ["keys of tokens not renewed"]


@pytest.mark.parametrize(
    "text", ["[]", "null", "[" * 100_000, '{"keys": [{"kid": ["one"]}]}', '{"keys": [{"alg": ["RS256"]}]}']
)
def test_json_that_is_no_set_of_keys_is_told_as_such(tmp_path: Path, text: str) -> None:
    """Before, a reload of such a file ended the member."""
    file = keys_in(tmp_path, one=RSA)
    if "keys" in text:  # in a key that is right besides
        changed = json.loads(file.read_text(encoding="utf-8"))
        changed["keys"][0] |= json.loads(text)["keys"][0]
        text = json.dumps(changed)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="no set of keys"):
        Tokens(file, "RS256", "quorum", "sub")


def test_without_keys_no_token_is_accepted() -> None:
    assert "has no keys of tokens" in reason_of(access_with(None), token())


def test_renewed_keys_are_used_and_wrong_ones_are_not(tmp_path: Path) -> None:
    file = keys_in(tmp_path, one=RSA)
    access = access_with(Tokens(file, "RS256", "quorum", "sub"))
    keys_in(tmp_path, two=OTHER_RSA)
    assert "unknown key" in reason_of(access, token())
    assert reason_of(access, token(OTHER_RSA, kid="two")) == "ann"
    file.write_text("no keys", encoding="utf-8")
    assert reason_of(access, token(OTHER_RSA, kid="two")) == "ann"
    file.unlink()
    assert reason_of(access, token(OTHER_RSA, kid="two")) == "ann"
    file.write_text("no keys", encoding="utf-8")
    with pytest.raises(ValueError, match="no set of keys"):
        Tokens(file, "RS256", "quorum", "sub")


def test_a_session_ends_with_its_token_and_goes_on_with_the_next_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        tokens = Tokens(keys_in(tmp_path, one=RSA), "RS256", "quorum", "sub")
        file = tmp_path / "token"

        def renew(for_s: float) -> None:
            (tmp_path / "token.new").write_text(token(exp=time.time() + for_s), encoding="utf-8")
            os.replace(tmp_path / "token.new", file)

        async with asyncio.timeout(LIMIT_S), serving() as (url, [api]):
            api.hub.access._tokens = tokens.check
            async with quorum.connect(url) as first:
                await first.declare("mine", {})
                await first.set_user("ann", "a long password", administers=True)
            service = Service((url.removeprefix("quorum://"),), token_file=str(file))
            renew(6)  # time enough for a slow machine to begin
            async with Client(url, channels=service.open_channel) as client:
                await client.publish("mine", b"one")
                renew(60)
                while client.reconnect_count == 0:
                    await client.publish("mine", b"more")
                    await asyncio.sleep(0.05)
                await client.publish("mine", b"with the next token")
            renew(-60)
            with pytest.raises(PermissionRefused, match="expired"):
                async with Client(url, channels=service.open_channel, connect_timeout_ms=5_000):
                    pass

    asyncio.run(scenario())


class Call:
    """A long call, which ends with the rights of its user or with its token."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def end(self, why: StatusError) -> None:
        assert why.status.reason == "user_changed"
        self.ended.set()


def test_a_call_ends_when_its_token_does_or_is_accepted_no_more(tmp_path: Path) -> None:
    """Between its headers and its first request, the key may have been removed, or the time of the token over."""

    async def scenario() -> None:
        access = access_with(Tokens(keys_in(tmp_path, one=RSA), "RS256", "quorum", "sub"))
        ann = User("ann", "")
        for headers in (
            {"authorization": f"Bearer {token(exp=time.time() + 0.1)}"},
            {"authorization": f"bearer {token(kid='removed')}"},
        ):
            call = Call()
            access.begin(call, ann, headers)
            await call.ended.wait()
            access.over(call)
        over, other = Call(), Call()
        access.begin(over, ann, {"authorization": f"Bearer {token(kid='removed')}"})
        access.over(over)  # it has ended by itself
        access.begin(other, ann, {"authorization": f"Bearer {token(kid='removed')}"})
        await other.ended.wait()
        assert not over.ended.is_set()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def parts_of(given: str) -> tuple[str, str, str]:
    head, claims, signature = given.split(".")
    return head, claims, signature


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


SIGNED = token(exp=4e9)
BYTES = st.binary(max_size=60) | st.sampled_from(
    [
        b"[" * 5_900,
        b'{"kid": {}}',
        b'{"alg": 5, "kid": "one"}',
        b'{"alg": "RS256", "kid": "one", "crit": 3}',
        b"1e999",
    ]
)


@given(st.text(max_size=80) | st.builds(lambda *parts: ".".join(map(encoded, parts)), BYTES, BYTES, BYTES))
@example(".".join((encoded(b"[" * 5_900), encoded(b"{}"), "")))
@example(".".join((*parts_of(SIGNED)[:2], "A" * 342)))
@example(SIGNED + "A" * 9_000)
def test_any_text_is_refused_or_names_its_user(given_text: str) -> None:
    """A token comes from anybody: whatever it is, the answer is a refusal and no defect."""
    with tempfile.TemporaryDirectory() as directory:
        access = Access(tokens=Tokens(keys_in(Path(directory), one=RSA), "RS256", "quorum", "sub").check)
        access.users_changed(Users([User("ann", "", administers=True)]))
        assert "token" in reason_of(access, given_text) or "not of the form" in reason_of(access, given_text)


def test_another_claim_may_have_the_users_name(tmp_path: Path) -> None:
    access = access_with(Tokens(keys_in(tmp_path, one=RSA), "RS256", "quorum", "login"))
    assert reason_of(access, token(sub="admin", login="ann")) == "ann"
    assert "no text and number" in reason_of(access, token(login=7))
    assert 'missing the "login" claim' in reason_of(access, token())


def test_a_token_without_a_key_id_is_checked_with_the_key_that_has_none(tmp_path: Path) -> None:
    file = keys_in(tmp_path, one=RSA)
    access = access_with(Tokens(file, "RS256", "quorum", "sub"))
    without = jwt.encode({"sub": "ann", "aud": "quorum", "exp": 1 << 40}, RSA, "RS256")
    assert "unknown key" in reason_of(access, without)
    keys = json.loads(file.read_text(encoding="utf-8"))
    del keys["keys"][0]["kid"]
    file.write_text(json.dumps(keys), encoding="utf-8")
    assert reason_of(access, without) == "ann"


def test_clocks_may_differ_by_the_leeway_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(keys_in(tmp_path, one=RSA), "RS256", "quorum", "sub")
    soon = token(nbf=time.time() + LEEWAY_S)
    assert tokens.check(soon)[0] == "ann"
    now_s = 1_900_000_000.0
    monkeypatch.setattr("quorum.api.security.tokens.time", SimpleNamespace(time=lambda: now_s))
    assert tokens.check(token(exp=now_s - 4)) == ("ann", now_s - 4)
    with pytest.raises(ValueError, match="it has expired"):
        tokens.check(token(exp=now_s - 5))


def test_a_file_of_keys_has_a_limit(tmp_path: Path) -> None:
    """A member reads it while it serves."""
    file = keys_in(tmp_path, one=RSA)
    keys = file.read_text(encoding="utf-8")
    file.write_text(keys.ljust(MAX_KEYS_BYTES), encoding="utf-8")
    tokens = Tokens(file, "RS256", "quorum", "sub")
    file.write_text(keys.ljust(MAX_KEYS_BYTES + 1), encoding="utf-8")
    with capture_logs() as lines:
        assert tokens.check(token())[0] == "ann"
    assert f"has {MAX_KEYS_BYTES + 1} bytes; allowed: {MAX_KEYS_BYTES}" in lines[0]["reason"]


@pytest.mark.parametrize("expiry", [float("nan"), float("inf"), 10**400])
def test_an_expiry_that_never_comes_is_refused(tmp_path: Path, expiry: float) -> None:
    tokens = Tokens(keys_in(tmp_path, one=RSA), "RS256", "quorum", "sub")
    with pytest.raises(ValueError, match="exp"):
        tokens.check(token(exp=expiry))
