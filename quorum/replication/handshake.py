"""Who is at the other end: mutual proof of a shared secret before anything else of a connection is looked at.

    dialer    -> HELLO   magic 8, cluster 32 (SHA-256 of its name), sender 64, receiver 64, boot 8, nonce 32
    listener  -> HELLO   the same of its own, then PROOF 32: HMAC over "listener", both hellos
    dialer    -> PROOF   32: HMAC over "dialer", both hellos

Everything has a fixed size, so nothing is parsed and nothing allocated by a stranger's numbers. The proofs are
HMAC-SHA256 under the secret, compared in constant time. Each covers both nonces (nothing recorded can be replayed),
both names and the direction (nothing can be reflected), the cluster and both boot numbers (no node is taken for
another, or for its next life).

What this protects: who may open a connection. Frames behind it carry CRC32C and lengths, which find accidents, not an
attacker who can change bytes under way; against that, and for secrecy, peers need a private network or TLS (see
`Security` in wire.py).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from quorum.replication.errors import ReplicationError

MAGIC = b"QUORUMP1"
NONCE_BYTES = 32
PROOF_BYTES = 32
NAME_BYTES = 64
MIN_SECRET_BYTES = 16

_HELLO = struct.Struct("<8s32s64s64sQ32s")
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = HELLO_BYTES + PROOF_BYTES


class HandshakeError(ReplicationError):
    """The other end is not who it should be."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What one end says of itself."""

    sender: str
    receiver: str
    boot: int
    nonce: bytes


class Identity:
    """This node's end of every handshake."""

    def __init__(self, me: str, boot: int, secret: bytes, cluster: str) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the peers' secret has at least {MIN_SECRET_BYTES} bytes, not {len(secret)}")
        self.me = me
        self.boot = boot
        self._secret = secret
        self._cluster = hashlib.sha256(cluster.encode()).digest()

    def hello(self, receiver: str, nonce: bytes) -> bytes:
        """A hello to this peer."""
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        return _HELLO.pack(
            MAGIC, self._cluster, encode_name(self.me), encode_name(receiver), self.boot, nonce
        )

    def read(self, data: bytes) -> Hello:
        """A hello to this node; HandshakeError if it is none. Who sent it is not yet proved."""
        if len(data) != HELLO_BYTES:
            raise HandshakeError(f"a hello has {HELLO_BYTES} bytes, not {len(data)}")
        magic, cluster, sender, receiver, boot, nonce = _HELLO.unpack(data)
        if magic != MAGIC:
            raise HandshakeError("no peer of this version")
        if not hmac.compare_digest(cluster, self._cluster):
            raise HandshakeError("a node of another cluster, or with other members or queue_groups")
        if not hmac.compare_digest(receiver, encode_name(self.me)):
            raise HandshakeError("a hello for another node")
        return Hello(_decode_name(sender), self.me, boot, nonce)

    def prove(self, role: bytes, dialed: bytes, listened: bytes) -> bytes:
        """The proof that the end in this role (b"dialer" or b"listener") knows the secret."""
        message = b"quorum peer proof\0" + role + b"\0" + dialed + listened
        return hmac.digest(self._secret, message, "sha256")

    def check(self, proof: bytes, role: bytes, dialed: bytes, listened: bytes) -> None:
        """HandshakeError unless the other end, in this role, knows the secret."""
        if not hmac.compare_digest(proof, self.prove(role, dialed, listened)):
            raise HandshakeError("a wrong secret")


def encode_name(name: str) -> bytes:
    """A name as it stands in a hello: UTF-8, zeros behind it."""
    data = name.encode()
    if not 0 < len(data) <= NAME_BYTES or b"\0" in data:
        raise ValueError(f"a node's name has 1 to {NAME_BYTES} bytes and no zero, not {name!r}")
    return data.ljust(NAME_BYTES, b"\0")


def _decode_name(data: bytes) -> str:
    try:
        return data.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise HandshakeError("a name that is no text") from None
