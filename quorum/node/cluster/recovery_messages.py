"""The questions of quarantined replicas here to the other members, and the answers to theirs (docs/replication.md)."""

from __future__ import annotations

from collections.abc import Mapping

from quorum.node.cluster.peers import Peers
from quorum.node.replica.replica import Replica
from quorum.node.schedule import Due
from quorum.node.wire.frames import Data, FrameTable, Send
from quorum.replication.quarantine import RecoveryRequest, RecoveryResponse

KIND_RECOVERY_REQUEST, KIND_RECOVERY_RESPONSE = 18, 19

RECOVERY_MS = 500
"""Interval between a quarantined replica's questions to the others."""


class RecoveryMessages:
    """The questions and answers of one member, for all its groups."""

    def __init__(self, replicas: Mapping[int, Replica], peers: Peers, send: Send) -> None:
        self._replicas = replicas
        self._send = send
        self._peers = peers
        self._unanswered: list[tuple[str, RecoveryRequest]] = []
        self.answering = Due()
        self.asking = Due(RECOVERY_MS)

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_RECOVERY_REQUEST, self._asked, since=1)
        table.add(KIND_RECOVERY_RESPONSE, self._answered, since=1)

    def _asked(self, peer: str, data: Data, now_ms: int) -> None:
        """Answered after the next sync. A replica in quarantine has given up its state, so its claims mean nothing."""
        question = RecoveryRequest.decode(data)
        self._unanswered.append((peer, question))
        self.answering.soon()
        replica = self._replicas.get(question.group)
        if replica is not None:
            replica.state_hashes.forget(peer)

    def _answered(self, peer: str, data: Data, now_ms: int) -> None:
        recovery_response = RecoveryResponse.decode(data)
        asker = self._replicas.get(recovery_response.group)
        if asker is not None:
            asker.wake()
            asker.raft.take_recovery_response(peer, recovery_response)

    def answer(self, now_ms: int) -> None:
        """Answers the questions so far, now that everything the answers say is synced."""
        for peer, question in self._unanswered:
            replica = self._replicas.get(question.group)
            if replica is not None:
                replica.wake()
                answer = replica.raft.recovery_response(peer, question.nonce)
                self._send(peer, KIND_RECOVERY_RESPONSE, [answer.encode()])
        self._unanswered.clear()

    def ask(self, now_ms: int) -> None:
        """Sends this member's own questions."""
        for number, replica in self._replicas.items():
            quarantined = replica.raft.quarantine
            if quarantined.is_on:
                for peer in self._peers.all:
                    self._send(
                        peer, KIND_RECOVERY_REQUEST, [RecoveryRequest(number, quarantined.nonce).encode()]
                    )
