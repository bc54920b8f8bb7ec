"""Errors between the parts of a member.

PeerFrameError      caused by a peer: its frame does not decode
BodyUnreadable      caused by this disk: the body of an entry cannot be read; other members have it (repair/)
StateUnreadable     caused by this disk: a state cannot be read; another member's state replaces it
                    (cluster/state_requests.py)
  PageUnreadable    ... because of one of its pages
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


class StateUnreadable(Exception):
    """A group's state cannot be read from the files of this member."""

    def __init__(self, group: int, reason: str) -> None:
        super().__init__(f"group {group}, {reason}")
        self.group = group


class PageUnreadable(StateUnreadable):
    """A page of a group's state is damaged or missing. Pages belong to one member, no other member has them."""

    def __init__(self, group: int, page: int, reason: str) -> None:
        super().__init__(group, f"page {page}: {reason}")


class Diverged(Exception):
    """The state of this member differs from the state that most voters have at the same entry."""

    def __init__(self, group: int, index: int, reason: str) -> None:
        super().__init__(f"group {group}, entry {index}: {reason}")
        self.group = group
        self.index = index
