"""Passwords: what the catalog keeps in place of one, and whether a given one is right.

The text is scrypt$COST$SALT$KEY with salt and key in hexadecimal. COST is scrypt's N; r is 8 and p is 1.
"""

from __future__ import annotations

import hashlib
import hmac
import os

COST = 1 << 14
"""16 MiB of memory and some 50 ms of processor time for each password."""
MAX_COST = 1 << 17
BLOCK_SIZE = 8
SALT_BYTES = 16
KEY_BYTES = 32
MIN_PASSWORD = 8
"""Characters."""
MAX_PASSWORD_BYTES = 1_024


def check_password(password: str) -> None:
    """ValueError for a password that no user may have."""
    if len(password) < MIN_PASSWORD or len(password.encode()) > MAX_PASSWORD_BYTES:
        raise ValueError(
            f"a password of {len(password)} characters; allowed: at least {MIN_PASSWORD} characters, and at most "
            f"{MAX_PASSWORD_BYTES} bytes"
        )


def secret_of(password: str, salt: bytes | None = None) -> str:
    """The text that stands for a password. It takes some 50 ms."""
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return f"scrypt${COST}${salt.hex()}${_key(password, COST, salt).hex()}"


def is_right(password: str, secret: str) -> bool:
    """Whether this is the password that a text stands for. It takes as long as `secret_of`, also if the text stands for
    none, so that the time does not tell whether a user exists."""
    kind, _, rest = (secret or NO_PASSWORD).partition("$")
    cost, _, parts = rest.partition("$")
    salt, _, key = parts.partition("$")
    if kind != "scrypt" or not cost.isdecimal() or int(cost) > MAX_COST:
        raise ValueError("a secret of an unknown kind")
    found = _key(password, int(cost), bytes.fromhex(salt))
    return hmac.compare_digest(found, bytes.fromhex(key)) and bool(secret)


def _key(password: str, cost: int, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=cost,
        r=BLOCK_SIZE,
        p=1,
        maxmem=256 * BLOCK_SIZE * cost,
        dklen=KEY_BYTES,
    )


NO_PASSWORD = f"scrypt${COST}${bytes(SALT_BYTES).hex()}${bytes(KEY_BYTES).hex()}"
"""Stands for no password."""
