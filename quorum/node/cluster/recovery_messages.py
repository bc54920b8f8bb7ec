"""The questions of quarantined replicas here to the other members, and the answers to theirs (docs/replication.md)."""

from __future__ import annotations

from collections.abc import Mapping

from quorum.node.cluster.peers import Peers
from quorum.node.replica.replica import Replica
from quorum.node.schedule import Due
from quorum.node.wire.frames import Data, FrameTable, Send
from quorum.replication.quarantine import Standing, StandingQuestion

KIND_STANDING_QUESTION, KIND_STANDING = 18, 19

STANDING_MS = 500
"""Interval between a quarantined replica's questions to the others."""


class RecoveryMessages:
    """The questions and answers of one member, for all its groups."""

    def __init__(self, replicas: Mapping[int, Replica], peers: Peers, send: Send) -> None:
        self._replicas = replicas
        self._send = send
        self._peers = peers
        self._unanswered: list[tuple[str, StandingQuestion]] = []
        self.answering = Due()
        self.asking = Due(STANDING_MS)

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_STANDING_QUESTION, self._asked)
        table.add(KIND_STANDING, self._answered)

    def _asked(self, peer: str, data: Data, now_ms: int) -> None:
        """Answered after the next sync. A replica in quarantine has given up its state, so its claims mean nothing."""
        question = StandingQuestion.decode(data)
        self._unanswered.append((peer, question))
        self.answering.soon()
        replica = self._replicas.get(question.group)
        if replica is not None:
            replica.digests.forget(peer)

    def _answered(self, peer: str, data: Data, now_ms: int) -> None:
        standing = Standing.decode(data)
        asker = self._replicas.get(standing.group)
        if asker is not None:
            asker.wake()
            asker.raft.hear_standing(peer, standing)

    def answer(self, now_ms: int) -> None:
        """Answers the questions so far, now that everything the answers say is synced."""
        for peer, question in self._unanswered:
            replica = self._replicas.get(question.group)
            if replica is not None:
                replica.wake()
                answer = replica.raft.standing(peer, question.life)
                self._send(peer, KIND_STANDING, [answer.encode()])
        self._unanswered.clear()

    def ask(self, now_ms: int) -> None:
        """Sends this member's own questions."""
        for number, replica in self._replicas.items():
            quarantined = replica.raft.quarantine
            if quarantined.is_on:
                for peer in self._peers.all:
                    self._send(
                        peer, KIND_STANDING_QUESTION, [StandingQuestion(number, quarantined.life).encode()]
                    )
