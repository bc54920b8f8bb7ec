"""Who the other members are now, as engine, guard and feeder go by it, and how far they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quorum.replication.configuration import CatchUp, Configuration
from quorum.replication.elections import PreVoteRounds
from quorum.replication.engine import Peer
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.peers import Peers
from quorum.replication.replicator import Feeder


class Members:
    """The configuration in force."""

    def __init__(
        self,
        engine: Any,
        view: JournalView,
        peers: Peers,
        guard: Guard,
        feeder: Feeder,
        rounds: PreVoteRounds,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._view = view
        self._peers = peers
        self._guard = guard
        self._feeder = feeder
        self._rounds = rounds
        self._clock = clock
        self.in_force = Configuration()
        """The configuration that engine, guard and feeder go by."""
        self._catching_up: dict[str, CatchUp] = {}

    def follow(self, now: Configuration) -> None:
        """Engine, guard and feeder go by this configuration."""
        self.in_force = now
        peers, others = self._peers, self._peers.others
        me = peers.me.id
        before = set(others)
        others.clear()
        others.update((name, peers.peer(name)) for name in now.everybody if name != me)
        voters = tuple(others[name] for name in now.voters if name != me)
        learners = tuple(others[name] for name in now.learners if name != me)
        self._engine.set_members(voters, learners, self._clock())
        self._guard.voters = voters
        self._rounds.others = frozenset(peer.id for peer in voters)
        self._feeder.set_members(tuple(others))
        for name in others:
            if name not in before and name in peers.connected:
                self._feeder.connected(name)
        self._catching_up.clear()

    def begin_anew(self) -> None:
        """Office has changed: how fast learners catch up is measured again."""
        self._catching_up.clear()

    def watch_learners(self, round_s: float) -> None:
        """With every tick of a leader. round_s: see CatchUp."""
        now, last = self._clock(), self._view.last_index
        for name in self.in_force.learners:
            found = self._catching_up.setdefault(name, CatchUp(last, now))
            found.observe(self.match_index(name), last, now, round_s)

    def is_caught_up(self, learner: str) -> bool:
        found = self._catching_up.get(learner)
        return found is not None and found.is_done

    def match_index(self, peer: str) -> int:
        """Of a leader: up to where this member is known to have everything."""
        known: Mapping[Peer, int] = self._engine._SyncObj__raftMatchIndex
        return known.get(self._peers.peer(peer), 0)

    def has_majority_of(self, voters: Sequence[str], within_s: float) -> bool:
        """Of a leader: whether most of these have answered within this time, this node included if it is one."""
        since = self._clock() - within_s
        times: Mapping[Peer, float] = self._engine._SyncObj__lastResponseTime
        others = [name for name in voters if name in self._peers.connected]
        up = (self._peers.me.id in voters) + sum(
            times.get(self._peers.peer(name), since) > since for name in others
        )
        return up * 2 > len(voters)
