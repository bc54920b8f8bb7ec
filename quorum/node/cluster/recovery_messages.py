"""Quarantined replicas here ask the other members how they stand; theirs are answered (docs/replication.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from quorum.node.replica.replica import Replica
from quorum.replication.quarantine import Standing, StandingQuestion

KIND_STANDING_QUESTION, KIND_STANDING = 18, 19

STANDING_MS = 500
"""How often a quarantined replica asks the others."""

Send = Callable[[str, int, Sequence[bytes | memoryview]], object]


class Standings:
    """The questions and answers of one member, for all its groups."""

    def __init__(self, replicas: Mapping[int, Replica], send: Send) -> None:
        self._replicas = replicas
        self._send = send
        self._due: list[tuple[str, StandingQuestion]] = []
        self._next_ms = 0

    def asked(self, peer: str, question: StandingQuestion) -> None:
        """To be answered after the next sync."""
        self._due.append((peer, question))

    def hear(self, peer: str, standing: Standing) -> None:
        """An answer."""
        asker = self._replicas.get(standing.group)
        if asker is not None:
            asker.wake()
            asker.raft.hear_standing(peer, standing)

    def answer(self) -> None:
        """What was asked, now that everything the answers say is synced."""
        for peer, question in self._due:
            replica = self._replicas.get(question.group)
            if replica is not None:
                replica.wake()
                answer = replica.raft.standing(peer, question.life)
                self._send(peer, KIND_STANDING, [answer.encode()])
        self._due.clear()

    def ask(self, peers: Sequence[str], now_ms: int) -> None:
        """This member's own questions, when they are due."""
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + STANDING_MS
        for number, replica in self._replicas.items():
            quarantined = replica.raft.quarantine
            if quarantined.is_on:
                for peer in peers:
                    self._send(
                        peer, KIND_STANDING_QUESTION, [StandingQuestion(number, quarantined.life).encode()]
                    )
