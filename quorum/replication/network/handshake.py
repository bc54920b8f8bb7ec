"""The handshake: both ends prove that they know a shared secret, before anything else of a connection is read.

    dialer    -> HELLO   magic 2, versions 6 (see below), cluster 32 (SHA-256 of its name), founding 32 (SHA-256 of
                         what it began with, zeros where it joined later), sender 64, receiver 64, boot 8,
                         incarnation 16, known 16, nonce 32
    listener  -> HELLO   the same of its own, then PROOF 32: HMAC over "listener", both hellos
    dialer    -> PROOF   32: HMAC over "dialer", both hellos

Every message has a fixed size, so a stranger's bytes are not parsed and cause no allocation. The proofs are HMAC-SHA256
under the secret, compared in constant time. Each proof covers:

- both nonces, so that a recording cannot be replayed;
- both names and the direction, so that a proof cannot be reflected;
- the cluster and both boot numbers, so that a node is not taken for another, or for its next life.

*incarnation* is the sender's data directory; *known* is the receiver's as the sender remembers it, zeros if it does
not. If either does not match, both ends report it and close the connection: the directory of one of them was emptied or
exchanged, and what it promised is forgotten.

*versions* are four numbers: the lowest and the highest wire version that the sender speaks (8 bits each), the highest
machine version that it knows, and the one that its groups have switched to (16 bits each). Both ends speak the highest
wire version that both know. A node that does not know the machine version that the other one's groups have switched to
is refused by both ends, and both say so in their logs.

This protects who may open a connection. Later frames carry CRC32C and lengths. Those find accidents, not an attacker
who can change bytes in transit. Against such an attacker, and for secrecy, peers need a private network or TLS
(tls.py).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass

from quorum.replication.errors import ReplicationError

MAGIC = b"QW"
OLD_MAGIC = b"QU"
"""Of releases from before there were versions in a hello."""
WIRE_VERSION = 2
"""Of frames between members. Release 0.2.0 has 1, so what is new until the next release joins 2."""
LOWEST_WIRE_VERSION = 1
"""The oldest wire version that this build still speaks."""
NONCE_BYTES = 32
PROOF_BYTES = 32
NAME_BYTES = 64
MIN_SECRET_BYTES = 32
"""Minimum length of the secret. The listener proves first, so a stranger who dials can then guess at the secret
offline."""

INCARNATION_BYTES = 16
UNKNOWN = bytes(INCARNATION_BYTES)

_HELLO = struct.Struct("<2sBBHH32s32s64s64sQ16s16s32s")
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = HELLO_BYTES + PROOF_BYTES


class HandshakeError(ReplicationError):
    """The other end is not the expected peer."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What a build knows: the wire versions that it speaks, and the highest machine version. 0: none."""

    lowest_wire: int = LOWEST_WIRE_VERSION
    highest_wire: int = WIRE_VERSION
    machine: int = 0

    def wire_with(self, other: Versions) -> int:
        """The wire version that both speak with each other, the highest that both know. HandshakeError if none."""
        found = min(self.highest_wire, other.highest_wire)
        if found < max(self.lowest_wire, other.lowest_wire):
            raise HandshakeError(
                f"a node that speaks wire versions {other.lowest_wire} to {other.highest_wire}; "
                f"this one speaks {self.lowest_wire} to {self.highest_wire}"
            )
        return found


THIS_BUILD = Versions()
"""Of a node without machines."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The claims of one end about itself."""

    sender: str
    boot: int
    incarnation: bytes
    versions: Versions
    needed_version: int
    """the machine version that its groups have switched to"""


class Identity:
    """This node's end of every handshake."""

    def __init__(
        self,
        me: str,
        boot: int,
        secret: bytes,
        cluster: str,
        founding: str = "",
        incarnation: bytes = UNKNOWN,
        known: Callable[[str], bytes] = lambda _: UNKNOWN,
        skips: str = "",
        versions: Versions = THIS_BUILD,
    ) -> None:
        """founding: a text that must be the same at all founding members, empty at others. known(peer): its incarnation
        as this node remembers it, UNKNOWN if it does not. skips: the skipped entries, the same at all members.
        versions: what this node's build knows."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the peers' secret has at least {MIN_SECRET_BYTES} bytes, not {len(secret)}")
        self.me = me
        self.boot = boot
        self._secret = secret
        self._skips = skips
        self._without_skips = hashlib.sha256(cluster.encode()).digest()
        named = f"{cluster}, skip_entries {skips}" if skips else cluster
        self._cluster = hashlib.sha256(named.encode()).digest()
        self._founding = hashlib.sha256(founding.encode()).digest() if founding else bytes(32)
        self._incarnation = incarnation
        self._known = known
        self.versions = versions
        self.needed_version = 0
        """the machine version that groups here have switched to: other nodes have to know it"""

    def hello(self, receiver: str, nonce: bytes) -> bytes:
        """A hello to this peer."""
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        return _HELLO.pack(
            MAGIC,
            self.versions.lowest_wire,
            self.versions.highest_wire,
            self.versions.machine,
            self.needed_version,
            self._cluster,
            self._founding,
            encode_name(self.me),
            encode_name(receiver),
            self.boot,
            self._incarnation,
            self._known(receiver),
            nonce,
        )

    def read(self, data: bytes) -> Hello:
        """Decode a hello to this node; HandshakeError if it is none. Its sender is not yet proved; see
        `check_known`."""
        if len(data) != HELLO_BYTES:
            raise HandshakeError(f"a hello has {HELLO_BYTES} bytes, not {len(data)}")
        (
            magic,
            lowest_wire,
            highest_wire,
            machine,
            needed,
            cluster,
            founding,
            sender,
            receiver,
            boot,
            incarnation,
            known,
            _,
        ) = _HELLO.unpack(data)
        if magic == OLD_MAGIC:
            raise HandshakeError(
                "a node of a release that this one cannot speak to; start it with this release"
            )
        if magic != MAGIC:
            raise HandshakeError("no node of a cluster")
        versions = Versions(lowest_wire, highest_wire, machine)
        self.versions.wire_with(versions)
        if not hmac.compare_digest(cluster, self._cluster):
            if hmac.compare_digest(cluster, self._without_skips):
                raise HandshakeError(
                    f"a node that skips no entries, while this one skips {self._skips}: start all members with "
                    "the same skip_entries"
                )
            raise HandshakeError(
                "a node of another cluster, or with other queue_groups, or with other skip_entries "
                f"(here: {self._skips or 'none'})"
            )
        if bytes(32) not in (founding, self._founding) and founding != self._founding:
            raise HandshakeError("a node whose cluster began with other members")
        if not hmac.compare_digest(receiver, encode_name(self.me)):
            raise HandshakeError(f"a hello for {_decode_name(receiver)!r}, and this node is {self.me!r}")
        found = Hello(_decode_name(sender), boot, incarnation, versions, needed)
        if UNKNOWN not in (known, self._incarnation) and known != self._incarnation:
            raise HandshakeError(
                f"{found.sender!r} knows {self.me!r} with another data directory. If data_dir names the wrong "
                "directory, correct it. If the directory was emptied or lost, this node must not use its old name: let "
                "it join again (join = true) and replace the old member (quorum cluster replace)"
            )
        return found

    def sender_of(self, data: bytes) -> str | None:
        """The sender that a refused hello names, for the log; None if it is no hello."""
        magic, *_, sender, _, _, _, _, _ = _HELLO.unpack(data)
        if magic != MAGIC:
            return None
        try:
            return _decode_name(sender)
        except HandshakeError:
            return None

    def check_known(self, hello: Hello) -> None:
        """HandshakeError if the sender has another data directory than before, or if one end does not know the machine
        version that the other end's groups have switched to. To be called after a hello was sent to the sender, so
        that it hears of it too."""
        if hello.needed_version > self.versions.machine:
            raise HandshakeError(
                f"the cluster has switched to machine version {hello.needed_version}, and this node knows "
                f"versions up to {self.versions.machine}: start it with a newer release"
            )
        if self.needed_version > hello.versions.machine:
            raise HandshakeError(
                f"{hello.sender!r} knows machine versions up to {hello.versions.machine}, and the cluster has switched "
                f"to {self.needed_version}: start it with a newer release"
            )
        known = self._known(hello.sender)
        if UNKNOWN not in (known, hello.incarnation) and known != hello.incarnation:
            raise HandshakeError(
                f"{hello.sender!r} has come back with another data directory; its promises are lost. It must not "
                "use its old name: let it join again and replace the old member (quorum cluster replace)"
            )

    def prove(self, role: bytes, dialed: bytes, listened: bytes) -> bytes:
        """The proof that the end in this role (b"dialer" or b"listener") knows the secret."""
        message = b"quorum peer proof\0" + role + b"\0" + dialed + listened
        return hmac.digest(self._secret, message, "sha256")

    def check(self, proof: bytes, role: bytes, dialed: bytes, listened: bytes) -> None:
        """HandshakeError unless the other end, in this role, knows the secret."""
        if not hmac.compare_digest(proof, self.prove(role, dialed, listened)):
            raise HandshakeError("a wrong secret")


def encode_name(name: str) -> bytes:
    """A name as encoded in a hello: UTF-8, padded with zeros."""
    data = name.encode()
    if not 0 < len(data) <= NAME_BYTES or b"\0" in data:
        raise ValueError(f"a node's name has 1 to {NAME_BYTES} bytes and no zero, not {name!r}")
    return data.ljust(NAME_BYTES, b"\0")


def _decode_name(data: bytes) -> str:
    try:
        name = data.rstrip(b"\0").decode()
        encode_name(name)
        if not name.isprintable():  # it is logged before its sender has proved anything
            raise ValueError(f"a node's name is printable, not {name!r}")
    except ValueError as error:  # UnicodeDecodeError, too
        raise HandshakeError(f"a sender whose name no node can have: {error}") from None
    return name
