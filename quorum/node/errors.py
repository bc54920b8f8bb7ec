"""Errors between the parts of a member.

PeerFrameError      caused by a peer: its frame does not decode
BodyUnreadable      caused by this disk: the body of an entry cannot be read; other members have it (repair/)
PageUnreadable      caused by this disk: a page of a state cannot be read; another member's state replaces it
                    (cluster/state_requests.py)
Diverged            a defect of this program: the state here differs from most voters' states
                    (cluster/state_comparison.py)
"""

from __future__ import annotations


class PeerFrameError(Exception):
    """A frame of a peer's node that does not decode."""


class BodyUnreadable(Exception):
    """The body of an entry is needed, and is damaged or missing on this member."""

    def __init__(self, group: int, index: int, reason: str) -> None:
        super().__init__(f"group {group}, entry {index}: {reason}")
        self.group = group
        self.index = index
        self.reason = reason


class PageUnreadable(Exception):
    """A page of a group's state is damaged or missing. Pages belong to one member, no other member has them."""

    def __init__(self, group: int, page: int, reason: str) -> None:
        super().__init__(f"group {group}, page {page}: {reason}")
        self.group = group


class Diverged(Exception):
    """The state of this member differs from the state that most voters have at the same entry."""

    def __init__(self, group: int, index: int, reason: str) -> None:
        super().__init__(f"group {group}, entry {index}: {reason}")
        self.group = group
        self.index = index
