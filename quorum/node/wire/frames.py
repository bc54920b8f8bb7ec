"""Frames between members: the form in which the network delivers them, and the table of the parts that take each kind.

A frame is complete, from a known peer, and of a registered kind, because the network checks these. A frame that does
not decode comes from another version: it is counted, logged and ignored. Each part registers the kinds that it knows,
and no kind has two owners. In use are 0 to 6, 16 to 24, and 255 (the network's ping).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from fifo.frozen_dataclasses import dataclass
from quorum.node.errors import PeerFrameError
from quorum.node.identity.member_directory import Address
from quorum.replication.errors import WireError

Data = bytes | memoryview
Send = Callable[[str, int, Sequence[Data]], object]
Handler = Callable[[str, Data, int], None]
"""(peer, data, now_ms). Raises PeerFrameError, WireError or struct.error where the data does not decode."""


class Network(Protocol):
    """The part of the peers' network that a member needs. `send` only queues, `flush` writes without waiting."""

    def send(self, peer: str, kind: int, parts: Sequence[Data]) -> object: ...

    def flush(self) -> None: ...

    def set_kinds(self, kinds: Mapping[int, int]) -> None:
        """Sets the kinds of frames that this node sends and takes, each with the wire version since which it exists.
        Frames of other kinds end a connection; those that the other end does not know are not sent there."""
        ...

    def links(self) -> Collection[str]:
        """The peers that are connected now."""
        ...

    def incarnation_of(self, peer: str) -> bytes:
        """The incarnation of a connected peer's data directory; zeros if it has none."""
        ...

    def is_refused(self, peer: str) -> bool:
        """Whether a handshake with this peer was refused a moment ago, by either end."""
        ...

    def event_counts(self) -> Mapping[str, int]:
        """What has happened to connections since the start, and how often."""
        ...

    def version_of(self, peer: str) -> int:
        """The highest machine version that a connected peer knows."""
        ...

    def require_version(self, version: int) -> None:
        """From now on only peers that know this machine version may be connected."""
        ...

    def set_peers(
        self,
        dial_addresses: Mapping[str, Address],
        fallback_addresses: Mapping[str, Address],
        gone: Collection[str],
    ) -> None:
        """Sets the peers to dial immediately, those to dial if they have not dialed this node, and those to refuse."""
        ...


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame from a peer: its kind, and the data without the kind."""

    peer: str
    kind: int
    data: Data


class FrameTable:
    """The handlers of one member by kind of frame, and the wire version since which each kind exists."""

    def __init__(self, logger: Any) -> None:
        self.since: dict[int, int] = {}
        """kind -> wire version"""
        self._handlers: dict[int, Handler] = {}
        self._logger = logger
        self.malformed = 0
        """frames that were ignored"""

    def add(self, kind: int, handler: Handler, since: int) -> None:
        """since: the first wire version that has this kind (replication/network/handshake.py)."""
        assert kind not in self._handlers, f"two owners of frame kind {kind}"
        self._handlers[kind] = handler
        self.since[kind] = since

    def receive(self, frame: Frame, now_ms: int) -> None:
        handler = self._handlers[frame.kind]
        try:
            handler(frame.peer, frame.data, now_ms)
        except (PeerFrameError, WireError, struct.error) as error:
            self.malformed += 1
            self._logger.warning("frame ignored", peer=frame.peer, kind=frame.kind, error=str(error))
