"""What a log should hold, kept the simplest way: every record in a list, every state after every LSN.

`Script` drives a log and the model side by side with seeded steps. After a crash and a reopen the log must be
in one of the model's states: that of an LSN from the last acknowledged sync on, never an invented one.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path

from quorum.log import EntryMissing, Log
from quorum.log.segments import Segment
from support.disk import SimDisk

DIRECTORY = Path("/disk/log")


@dataclass
class GroupModel:
    """One group: bodies by index, terms by index, the view, the hard state."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=lambda: {0: 0})
    first: int = 1
    last: int = 0
    hard: tuple[int, str | None] = (0, None)


class LogModel:
    """States by LSN."""

    def __init__(self, groups: int) -> None:
        self.states: list[dict[int, GroupModel]] = [{group: GroupModel() for group in range(groups)}]

    @property
    def now(self) -> dict[int, GroupModel]:
        return self.states[-1]

    def step(self) -> dict[int, GroupModel]:
        """A copy of the present state, to be changed by the next record."""
        self.states.append(copy.deepcopy(self.states[-1]))
        return self.states[-1]


def observe(log: Log, groups: int) -> dict[int, GroupModel]:
    """The whole content of a log, read through its public doors."""
    state = {}
    for group in range(groups):
        journal = log.journal(group)
        seen = GroupModel(first=journal.first_index, last=journal.last_index, hard=journal.hard_state)
        for index in range(journal.first_index - 1, journal.last_index + 1):
            seen.terms[index] = journal.term_at(index)
        for index in range(1, journal.last_index + 1):
            try:
                body = log.read(group, index)
            except EntryMissing:
                continue
            seen.bodies[index] = body
            if index >= journal.first_index:
                assert journal.length_at(index) == len(body)
            assert (
                log.read_range(group, index, len(body) // 3, len(body) // 2)
                == body[len(body) // 3 : len(body) // 3 + len(body) // 2]
            )
        state[group] = seen
    return state


def segment_of(log: Log, number: int) -> Segment:
    """An open segment, for tests that play with its file."""
    assert log._opened is not None
    return log._opened.store._segments[number]


def visible(state: dict[int, GroupModel]) -> dict[int, tuple[object, ...]]:
    """What of a model state can be observed."""
    return {
        group: (
            model.first,
            model.last,
            model.hard,
            {index: body for index, body in model.bodies.items() if index <= model.last},
            {index: model.terms[index] for index in range(model.first - 1, model.last + 1)},
        )
        for group, model in state.items()
    }


class Script:
    """Seeded steps on a log over a simulated disk, with the model beside it."""

    def __init__(self, disk: SimDisk, seed: int, *, groups: int = 2, segment_bytes: int = 10_000) -> None:
        self.disk = disk
        self.groups = groups
        self.segment_bytes = segment_bytes
        self.chance = random.Random(seed)
        self.model = LogModel(groups)
        self.now_ms = 0
        self.acknowledged = 0
        self.log = self.new_log()

    def new_log(self) -> Log:
        return Log(
            DIRECTORY,
            self.disk,
            segment_bytes=self.segment_bytes,
            recent_bytes=self.chance.choice([0, 5_000, 1 << 20]),
            random_bytes=self.chance.randbytes,
        )

    def open(self) -> None:
        self.log.open()
        self.acknowledged = self.log.synced_lsn

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        """One thing that a member may do to its log."""
        group = self.chance.randrange(self.groups)
        journal = self.log.journal(group)
        model = self.model.now[group]
        what = self.chance.choices(
            ["append", "sync", "truncate", "vote", "compact", "reset", "quiet"], [40, 25, 8, 8, 5, 1, 5]
        )[0]
        if what == "append":
            index = model.last + 1
            term = max(model.terms[model.last], model.hard[0])
            size = self.chance.choice([0, 1, 30, 400, 700, 2500])
            body = self.chance.randbytes(size)
            cut = self.chance.randint(0, size)
            self.did(journal.append([body[:cut], memoryview(body)[cut:]], index, term))
            self.change(group).bodies[index] = body
            self.model.now[group].terms[index] = term
            self.model.now[group].last = index
        elif what == "sync":
            self.log.sync()
        elif what == "truncate" and model.last >= model.first:
            index = self.chance.randint(model.first, model.last)
            self.did(journal.truncate_from(index))
            changed = self.change(group)
            changed.bodies = {at: body for at, body in changed.bodies.items() if at < index}
            changed.last = index - 1
        elif what == "vote":
            hard = (model.hard[0] + self.chance.randint(0, 2), self.chance.choice([None, "a", "node-ü"]))
            self.did(journal.set_hard_state(*hard))
            self.change(group).hard = hard
        elif what == "compact" and model.last > model.first:
            index = self.chance.randint(model.first + 1, model.last)
            self.did(journal.compact_to(index, model.terms[index]))
            self.change(group).first = index
        elif what == "reset":
            self.reset(group, model.last + self.chance.randint(1, 5))
        elif what == "quiet":
            self.now_ms += self.chance.randint(1, 20)
            before = self.log.last_lsn
            try:
                self.log.mark_if_quiet(self.now_ms)
            finally:  # a crash may come between the mark and its sync
                if self.log.last_lsn > before:
                    self.model.step()
        self.acknowledged = max(self.acknowledged, self.log.synced_lsn)
        assert self.log.last_lsn == len(self.model.states) - 1

    def reset(self, group: int, index: int) -> None:
        model = self.model.now[group]
        keep = self.chance.randint(0, model.last)
        term = max(model.terms[model.last], model.hard[0])
        self.did(self.log.journal(group).reset_to_snapshot(index, term, keep_bodies_to=keep))
        changed = self.change(group)
        changed.bodies = {at: body for at, body in changed.bodies.items() if at <= keep}
        changed.first, changed.last = index + 1, index
        changed.terms[index] = term

    def did(self, lsn: int) -> None:
        assert lsn == len(self.model.states), "LSNs are dense"

    def change(self, group: int) -> GroupModel:
        return self.model.step()[group]

    def reopen_and_compare(self) -> int:
        """Open what the crash left; the LSN that was recovered. The model goes on from there."""
        acknowledged = self.acknowledged
        self.log = self.new_log()
        self.open()
        recovered = self.log.last_lsn - 1 if self.log.last_lsn else 0
        assert acknowledged <= recovered < len(self.model.states), (
            "what was synced is there, no more than was written"
        )
        del self.model.states[recovered + 1 :]
        self.compare()
        if self.log.last_lsn:
            self.model.step()  # the mark that opening writes
        return recovered

    def compare(self) -> None:
        assert visible(observe(self.log, self.groups)) == visible(self.model.now)
