"""One group's Raft state, typed: what PySyncObj keeps of terms, votes, elections and positions in the log.

`RaftEngine` is the only way to the library (library.py). Members have names here; the library's nodes exist only behind
this class. This module decides nothing: each method reads, sets or calls what its text says.

Members change by `set_members`: the library's other nodes are the voters, its read-only nodes the learners. It counts
itself in every majority. So a member that is not a voter never campaigns (Campaign.should_campaign), and no leader
removes itself. The library counts its own majorities, of votes and of acknowledgements; `configuration.majority` counts
all others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from quorum.replication import library
from quorum.replication.configuration import Configuration
from quorum.replication.journal_view import JournalView
from quorum.replication.library import LibraryNode, Owner, Peer, RaftState, Timing

SLOWER = 2
"""A leader that has had nothing to do for a while sends its heartbeats so many times as slowly, and its followers'
election timeouts are so many times as long."""
_FOLLOWER = RaftState.FOLLOWER.value
"""A plain number, because it is compared with each message."""


class RaftEngine:
    """The library's object of one group. `begin` makes it, because it calls parts of the group that use the engine."""

    __slots__ = (
        "_build",
        "_clock",
        "_known",
        "_last_response",
        "_match_index",
        "_next_index",
        "_node",
        "_view",
        "connected",
        "is_leader",
        "is_tick_due",
        "learners",
        "me",
        "others",
        "term",
        "voters",
    )

    def __init__(
        self,
        node_class: type[LibraryNode],
        me: str,
        founders: Iterable[str],
        view: JournalView,
        clock: Callable[[], float],
        chance: random.Random,
        timing: Timing,
    ) -> None:
        """The engine has no other members until `set_members`."""
        self.me = me
        self._known = {name: Peer(name, number) for number, name in enumerate(founders, 1)}
        self.others: dict[str, Peer] = {}
        """The other members, voters and learners, by name."""
        self.voters: tuple[str, ...] = ()
        """The other voters."""
        self.learners: tuple[str, ...] = ()
        """The other learners."""
        self.connected: set[str] = set()
        self.is_leader = False
        """Whether this member leads. The library tells each change of its role (`role_changed`)."""
        self.term = 0
        """The current term. The library tells each new one (`term_changed`)."""
        self.is_tick_due = False
        """Whether the next tick has work and should come at once."""
        self._view = view
        self._clock = clock
        self._build = partial(library.build, node_class, self._peer(me), view, clock, chance, timing)

    def begin(self, owner: Owner) -> None:
        """Make the library's object, once, before anything else is asked of the engine. It does nothing yet."""
        node = self._node = self._build(owner)
        self.term = node._SyncObj__raftCurrentTerm
        # the library changes these in place and never replaces them
        self._match_index = node._SyncObj__raftMatchIndex
        self._next_index = node._SyncObj__raftNextIndex
        self._last_response = node._SyncObj__lastResponseTime

    def _peer(self, name: str) -> Peer:
        """The peer of this name, also one that was never heard of."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = Peer(name, len(self._known) + 1)
        return found

    # ---- term and state

    @property
    def leader(self) -> str | None:
        """The leader as far as known here; it may no longer be the leader."""
        peer = self._node._SyncObj__raftLeader
        return None if peer is None else peer.id

    @property
    def leader_and_term(self) -> tuple[str | None, int]:
        """`leader` and `term`."""
        peer = self._node._SyncObj__raftLeader
        return None if peer is None else peer.id, self.term

    def follows(self, name: str, term: int) -> bool:
        """Whether this member is a follower of that leader in this term, as it knows already."""
        node = self._node
        return (
            node._SyncObj__raftState == _FOLLOWER
            and self.term == term
            and node._SyncObj__raftLeader == self._known.get(name, 0)
        )

    def hear_leader(self, commit_index: int, now_s: float, *, is_slow: bool) -> None:
        """Note that the leader followed is alive now, and that everything up to this index is committed. The library
        does the same with an append that matches the end of the log and has no entries. is_slow: the next heartbeat
        comes later than usual, so the election timeout is longer."""
        node = self._node
        if not node._SyncObj__transferInProgress:
            timeout_s = node._SyncObj__generateRaftTimeout()
            node._SyncObj__raftElectionDeadline = now_s + (SLOWER * timeout_s if is_slow else timeout_s)
        if commit_index > node._SyncObj__raftCommitIndex:
            node._SyncObj__raftCommitIndex = min(commit_index, self._view.last_index)

    def role_changed(self, old: int, new: int) -> None:
        """For the library: note the new role, before any other part hears of it."""
        self.is_leader = new == RaftState.LEADER

    def term_changed(self, term: int) -> None:
        """For the library: note the current term, when it is in the journal."""
        self.term = term

    def forget_leader(self) -> None:
        self._node._SyncObj__raftLeader = None

    def become_follower(self, term: int) -> None:
        """Become a follower in a later term, without a vote and without a leader (Raft §5.1)."""
        self._node._SyncObj__setCurrentTerm(term, None)
        self.step_down()

    def step_down(self) -> None:
        """Become a follower in the same term, with the same vote; no leader is known."""
        self._node._SyncObj__setState(RaftState.FOLLOWER)
        self.forget_leader()

    def record_vote(self, candidate: str) -> None:
        """Record the vote in the current term."""
        self._node._SyncObj__setCurrentTerm(self.term, candidate)

    # ---- the log

    @property
    def commit_index(self) -> int:
        return self._node._SyncObj__raftCommitIndex

    @property
    def has_committed_in_term(self) -> bool:
        """Whether this leader has committed the first entry of its term."""
        node = self._node
        return node._SyncObj__raftCommitIndex >= (node._SyncObj__noopIDx or 0)

    def move_commit_to(self, index: int) -> None:
        """Note that a snapshot at this index is in place: the entries it covers are committed and are not applied."""
        self._node._SyncObj__raftCommitIndex = index
        self._node._SyncObj__raftLastApplied = index

    # ---- followers, of a leader

    def match_index(self, name: str) -> int:
        """The index up to which this member is known to have everything; 0 for one that is not followed."""
        peer = self.others.get(name)
        return 0 if peer is None else self._match_index.get(peer, 0)

    def forget_match(self, name: str) -> None:
        """Forget this member's acknowledgements: they no longer count."""
        self._match_index[self.others[name]] = 0

    def next_index(self, name: str) -> int:
        """The next entry to send to one of the `others`."""
        return self._next_index[self.others[name]]

    def set_next_index(self, name: str, index: int) -> None:
        self._next_index[self.others[name]] = index

    def has_answered_since(self, name: str, since_s: float) -> bool:
        """Whether this member, if followed now, has answered after a time on the group's clock."""
        return self._last_response.get(self._peer(name), since_s) > since_s

    # ---- time

    @property
    def election_deadline_s(self) -> float:
        """When the election timer expires."""
        return self._node._SyncObj__raftElectionDeadline

    @election_deadline_s.setter
    def election_deadline_s(self, deadline_s: float) -> None:
        self._node._SyncObj__raftElectionDeadline = deadline_s

    def restart_election_timer(self, part: float = 1.0) -> None:
        """Start a new random timeout from now, or this part of one."""
        timeout_s = self._node._SyncObj__generateRaftTimeout() * part
        self._node._SyncObj__raftElectionDeadline = self._clock() + timeout_s

    @property
    def next_append_s(self) -> float:
        """When the next heartbeat is due."""
        return self._node._SyncObj__newAppendEntriesTime

    @next_append_s.setter
    def next_append_s(self, due_s: float) -> None:
        self._node._SyncObj__newAppendEntriesTime = due_s

    @property
    def is_transfer_target(self) -> bool:
        """Whether the leader has told this member to campaign (thesis §3.10)."""
        return self._node._SyncObj__transferInProgress

    @is_transfer_target.setter
    def is_transfer_target(self, is_target: bool) -> None:
        self._node._SyncObj__transferInProgress = is_target

    # ---- driving the library

    def tick_soon(self) -> None:
        """Note that the next tick has work."""
        self.is_tick_due = True

    def tick(self) -> None:
        """Run elections, the commit index and appends; calls the owner back."""
        self.is_tick_due = False
        self._node.doTick(0.0)

    def receive(self, name: str, message: dict[str, Any]) -> None:
        """Take a message in the library's form, from any member; calls the owner back."""
        self._node._SyncObj__onMessageReceived(self._peer(name), message)

    def connect(self, name: str) -> None:
        self.connected.add(name)
        self._node._SyncObj__onNodeConnected(self._peer(name))

    def disconnect(self, name: str) -> None:
        self.connected.discard(name)
        self._node._SyncObj__onNodeDisconnected(self._peer(name))

    def set_members(self, now: Configuration) -> None:
        """Set the members. New ones are sent entries from the end of the log, and answer where to begin."""
        self.others = {name: self._peer(name) for name in now.everybody if name != self.me}
        self.voters = tuple(name for name in now.voters if name != self.me)
        self.learners = tuple(name for name in now.learners if name != self.me)
        members = set(self.others.values())
        self._node._SyncObj__otherNodes = {self.others[name] for name in self.voters}
        self._node._SyncObj__readonlyNodes = {self.others[name] for name in self.learners}
        for known in (self._next_index, self._match_index, self._last_response):
            for gone in [peer for peer in known if peer not in members]:
                del known[gone]
        if self.is_leader:
            now_s, last = self._clock(), self._view.last_index
            for peer in members:
                self._next_index.setdefault(peer, last + 1)
                self._match_index.setdefault(peer, 0)
                self._last_response.setdefault(peer, now_s)
