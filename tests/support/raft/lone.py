"""One member of a Raft group, whose peers are the test."""

from __future__ import annotations

import random

from quorum.replication import codec
from quorum.replication.codec import PreVote, PreVoteRequest, Vote
from quorum.replication.group import Group
from support.raft.log import ModelDisk, ModelLog
from support.raft.world import GROUP, QUICK


def frame(message: codec.Message) -> bytes:
    return b"".join(codec.encode(message))


class Lone:
    """One member whose peers are this test."""

    def __init__(
        self,
        terms: str = "0",
        *,
        size: int = 3,
        hard_state: tuple[int, str | None] = (0, None),
        group_class: type[Group] = Group,
    ) -> None:
        """terms: of the entries from index 1 on, one digit each."""
        self.now = 1000.0
        self.log = ModelLog(ModelDisk())
        for index, term in enumerate(terms, 1):
            self.log.journal(GROUP).append([b"\1"], index, int(term))
        if hard_state != (0, None):
            self.log.journal(GROUP).set_hard_state(*hard_state)
        self.log.sync()
        self.sent: list[tuple[str, codec.Message]] = []
        self.installed: list[tuple[bytes, int, int]] = []
        names = [f"n{number}" for number in range(1, size + 1)]
        self.group = group_class(
            GROUP,
            "n1",
            names,
            self.log,
            lambda: self.now,
            random.Random(1),
            lambda peer, parts: self.sent.append((peer, codec.decode(b"".join(parts)))),
            lambda state, index, term: self.installed.append((state, index, term)),
            QUICK,
        )
        self.group.start()
        for name in names[1:]:
            self.group.peer_connected(name)

    def hear(self, peer: str, message: codec.Message) -> None:
        self.group.receive(peer, frame(message))

    def answers(self) -> list[tuple[str, codec.Message]]:
        """What leaves once all is synced."""
        self.log.sync()
        self.group.flush()
        sent, self.sent = self.sent, []
        return sent

    def ask(self, message: codec.Message, peer: str = "n2") -> list[codec.Message]:
        self.answers()
        self.hear(peer, message)
        return [answer for to, answer in self.answers() if to == peer]

    def become_leader(self) -> None:
        self.now += 1.0
        self.group.tick()
        (request,) = {message.round for _, message in self.answers() if isinstance(message, PreVoteRequest)}
        for peer in self.group._engine.others:
            self.hear(peer, PreVote(self.group.term, request, True))
        self.group.tick()
        self.answers()
        for peer in self.group._engine.others:
            self.hear(peer, Vote(self.group.term))
        assert self.group.is_leader
