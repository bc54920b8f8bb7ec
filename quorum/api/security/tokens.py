"""Signed tokens (JWT) in place of passwords: a service of the organisation signs them, and members check them.

The configuration names the keys (a JWK set in a file, which may be renewed), one algorithm, the audience, the issuer if
it matters, and the claim that has the user's name. Each allowed algorithm has a private key, which only the signing
service has. A token without an expiry, for another audience, or of another algorithm is refused. Its header is used for
nothing but to find the key by its id.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
import structlog

LEEWAY_S = 5
"""Difference between the clocks of the signing service and of a member that is allowed."""
MAX_KEYS_BYTES = 1 << 20
MAX_EXPIRY_S = 1 << 53
"""Above all times, and a number that a float holds."""


class TokenRefused(ValueError):
    """Why a token is not accepted."""


class Tokens:
    """Checks the tokens of one member. ValueError or OSError if the keys cannot be read."""

    def __init__(
        self,
        keys_file: Path,
        algorithm: str,
        audience: str,
        claim: str,
        issuer: str | None = None,
    ) -> None:
        self._file = keys_file
        self._algorithm = algorithm
        self._audience = audience
        self._claim = claim
        self._issuer = issuer
        self._required = ["exp", "aud", claim, *(() if issuer is None else ("iss",))]
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self.content = ""
        """text of the keys in use"""
        self._keys: dict[str, Any] = {}
        self._read()

    def _read(self) -> None:
        """Read the keys if the file has changed. If that fails, they are read again when it changes once more."""
        found = self._file.stat()
        seen = found.st_ino, found.st_size, found.st_mtime_ns
        if seen == self._seen:
            return
        self._seen = seen
        if found.st_size > MAX_KEYS_BYTES:
            raise ValueError(f"{self._file} has {found.st_size} bytes; allowed: {MAX_KEYS_BYTES}")
        try:
            content = self._file.read_text(encoding="utf-8")
            found = json.loads(content)
            if not isinstance(found, dict):
                raise ValueError('it is no JSON object with "keys"')
            keys = {key.key_id or "": key for key in jwt.PyJWKSet.from_dict(found).keys}
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise ValueError(f"{self._file} is no set of keys (JWKS): {error}") from error
        except TypeError as error:  # of the library, which expects a text
            raise ValueError(f"{self._file} is no set of keys (JWKS): a field of a key is no text") from error
        self._keys = keys
        self.content = content

    def check(self, token: str) -> tuple[str, float]:
        """The user, and the expiry in seconds since the epoch. TokenRefused if the token is not accepted."""
        try:
            self._read()
        except (OSError, ValueError) as error:
            structlog.get_logger().warning("keys of tokens not renewed", reason=str(error))
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                raise TokenRefused("it is signed with an unknown key")
            found = jwt.decode(
                token,
                key.key,
                algorithms=[self._algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": self._required, "verify_exp": False, "verify_nbf": True},
            )
        except (jwt.PyJWTError, TypeError) as error:  # TypeError: a key of another kind than the algorithm's
            raise TokenRefused(str(error)) from error
        user, expires_s = found[self._claim], found["exp"]
        if not isinstance(user, str) or isinstance(expires_s, bool) or not isinstance(expires_s, int | float):
            raise TokenRefused(f"its claims {self._claim} and exp are no text and number")
        if not expires_s < MAX_EXPIRY_S:  # NaN and the infinities are numbers, too
            raise TokenRefused(f"its exp is {expires_s!r}; allowed: up to {MAX_EXPIRY_S}")
        if expires_s + LEEWAY_S <= time.time():
            raise TokenRefused("it has expired")
        return user, float(expires_s)
