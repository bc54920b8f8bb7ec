"""What a log should hold, kept the simplest way: every record in a list, every state after every LSN.

`Script` drives a log and the model side by side with seeded steps. After a crash and a reopen the log must be
in one of the model's states: that of an LSN from the last acknowledged sync on, never an invented one.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from quorum.log import Collection, EntryMissing, Log, Retained, Retention
from quorum.log.segment_files.segments import Segment
from support.log.disk import Crashed, SimDisk

DIRECTORY = Path("/disk/log")


@dataclass
class GroupModel:
    """One group: bodies by index, terms by index, the view, the hard state."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=lambda: {0: 0})
    first: int = 1
    last: int = 0
    hard: tuple[int, str | None] = (0, None)
    entry_lsns: dict[int, int] = field(default_factory=dict)
    copies: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """LSN and body of the newest copy by index."""
    pages: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> GroupModel:
        """Another one with the same content."""
        return replace(
            self,
            bodies=dict(self.bodies),
            terms=dict(self.terms),
            entry_lsns=dict(self.entry_lsns),
            copies=dict(self.copies),
            pages=dict(self.pages),
        )

    def held(self) -> dict[int, bytes]:
        """The body that holds for each index up to the last."""
        found = {index: body for index, body in self.bodies.items() if index <= self.last}
        for index, (lsn, body) in self.copies.items():
            if index < self.first and (index not in found or self.entry_lsns[index] < lsn):
                found[index] = body
        return found


class LogModel:
    """States by LSN."""

    def __init__(self, groups: int) -> None:
        self.states: list[dict[int, GroupModel]] = [{group: GroupModel() for group in range(groups)}]

    @property
    def now(self) -> dict[int, GroupModel]:
        return self.states[-1]

    def step(self) -> dict[int, GroupModel]:
        """A copy of the present state, to be changed by the next record."""
        self.states.append({group: model.copy() for group, model in self.states[-1].items()})
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
        state[group] = seen
    return state


def segment_of(log: Log, number: int) -> Segment:
    """An open segment, for tests that play with its file."""
    return log._store._segments[number]


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


@dataclass
class Told:
    """What a group's snapshots refer to, as told, and what may be gone because of it."""

    is_told: bool = False
    """In this life."""
    committed: int = 0
    """Nothing is cut up to here."""
    kept: list[Retained] = field(default_factory=list)
    pages_to: int = 0
    may_lack: set[int] = field(default_factory=set)
    may_lack_pages: set[int] = field(default_factory=set)


class Script:
    """Seeded steps on a log over a simulated disk, with the model beside it."""

    def __init__(
        self,
        disk: SimDisk,
        seed: int,
        *,
        groups: int = 2,
        segment_bytes: int = 10_000,
        is_store: bool = False,
        retention: Callable[[int], Retention] = Retention,
    ) -> None:
        self.disk = disk
        self.seed = seed
        self.is_store = is_store
        """Whether the steps include pages, copies, retaining and collecting."""
        self.retention = retention
        self.told = {group: Told() for group in range(groups)}
        self.collection: Collection | None = None
        self.collected = 0
        self.groups = groups
        self.segment_bytes = segment_bytes
        self.chance = random.Random(seed)
        self.model = LogModel(groups)
        self.now_ms = 0
        self.acknowledged = 0
        self.log: Log

    def open_log(self) -> Log:
        return Log.open(
            DIRECTORY,
            self.disk,
            segment_bytes=self.segment_bytes,
            recent_bytes=self.chance.choice([0, 5_000, 1 << 20]),
            cache_bytes=self.chance.choice([0, 1 << 20]) if self.is_store else 1 << 20,
            random_bytes=self.chance.randbytes,
            retention=self.retention,
        )

    def open(self) -> None:
        self.log = self.open_log()
        self.acknowledged = self.log.synced_lsn

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        """One thing that a member may do to its log."""
        group = self.chance.randrange(self.groups)
        journal = self.log.journal(group)
        model = self.model.now[group]
        kinds = {"append": 40, "sync": 25, "truncate": 8, "vote": 8, "compact": 5, "reset": 1, "quiet": 5}
        if self.is_store:
            kinds |= {"page": 10, "copy": 3, "install": 1, "retain": 10, "collect": 20}
        what = self.chance.choices(list(kinds), list(kinds.values()))[0]
        if what == "append":
            index = model.last + 1
            term = max(model.terms[model.last], model.hard[0])
            size = self.chance.choice([0, 1, 30, 400, 700, 2500])
            body = self.chance.randbytes(size)
            cut = self.chance.randint(0, size)
            self.did(journal.append([body[:cut], memoryview(body)[cut:]], index, term))
            self.change(group).bodies[index] = body
            self.model.now[group].entry_lsns[index] = self.log.last_lsn
            self.model.now[group].terms[index] = term
            self.model.now[group].last = index
        elif what == "sync":
            self.log.sync()
        elif what == "truncate" and model.last > max(model.first - 1, self.told[group].committed):
            index = self.chance.randint(max(model.first, self.told[group].committed + 1), model.last)
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
        elif what == "page":
            page = self.log.write_page(group, [self.chance.randbytes(self.chance.choice([10, 900]))])
            self.did(page)
            self.change(group).pages[page] = self.log.read_page(group, page)
        elif what == "copy" and model.bodies and min(model.bodies) <= self.told[group].committed:
            self.copy(group)
        elif what == "install":
            self.install(group)
        elif what == "retain":
            self.retain(group)
        elif what == "collect":
            self.collect()
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
        keep = self.chance.randint(min(self.told[group].committed, model.last), model.last)
        term = max(model.terms[model.last], model.hard[0])
        self.did(self.log.journal(group).reset_to_snapshot(index, term, keep_bodies_to=keep))
        changed = self.change(group)
        changed.bodies = {at: body for at, body in changed.bodies.items() if at <= keep}
        changed.first, changed.last = index + 1, index
        changed.terms[index] = term
        if self.is_store:
            self.log.sync()
            self.told[group].committed = index

    def copy(self, group: int) -> None:
        """A body that is here comes again from another member."""
        model = self.model.now[group]
        index = self.chance.choice([at for at in model.bodies if at <= self.told[group].committed])
        body = model.bodies[index]
        self.did(self.log.put_copy(group, index, model.terms[index], [body]))
        self.change(group).copies[index] = (self.log.last_lsn, body)

    def install(self, group: int) -> None:
        """Bodies of another history arrive, then the snapshot that refers to them."""
        model = self.model.now[group]
        committed = self.told[group].committed
        target = model.last + self.chance.randint(1, 4)
        term = max(*model.terms.values(), model.hard[0]) + 1
        for index in range(committed + 1, target + 1):
            if self.chance.random() < 0.4:
                body = self.chance.randbytes(self.chance.choice([5, 300]))
                self.did(self.log.put_copy(group, index, term, [body]))
                self.change(group).copies[index] = (self.log.last_lsn, body)
        self.log.sync()
        model = self.model.now[group]
        self.did(
            self.log.journal(group).reset_to_snapshot(target, term, keep_bodies_to=min(committed, model.last))
        )
        changed = self.change(group)
        changed.bodies = {at: body for at, body in changed.bodies.items() if at <= committed}
        changed.first, changed.last = target + 1, target
        changed.terms[target] = term
        self.log.sync()
        self.told[group].committed = target

    def retain(self, group: int) -> None:
        """A snapshot at some applied index, of which the log is synced, and the one before it count."""
        told, model = self.told[group], self.model.now[group]
        if model.last < max(model.first, told.committed):
            return
        self.log.sync()
        index = self.chance.randint(max(model.first, told.committed), model.last)
        before = told.kept[-1] if told.kept else Retained(0, array("Q"), array("Q"))
        share = self.chance.choice([0.0, 0.1, 0.5, 0.9])
        entries = [
            at
            for at in sorted(model.held())
            if (at in before.entries or at > before.index) and at <= index and self.chance.random() < share
        ]
        pages = [
            page
            for page in sorted(model.pages)
            if (page in before.pages or page > told.pages_to) and self.chance.random() < share
        ]
        kept = [*told.kept[-1:], Retained(index, array("Q", entries), array("Q", pages))]
        is_newer = index > before.index or not told.is_told
        if index == before.index:
            kept = told.kept
        told.is_told = True
        self.log.retain(group, kept)
        told.committed = index
        told.kept = kept
        oldest = kept[0].index
        named = {at for retained in kept for at in retained.entries}
        told.may_lack |= {at for at in model.held() if at < min(oldest, model.first) and at not in named}
        if is_newer:
            named = {page for retained in kept for page in retained.pages}
            told.may_lack_pages |= {
                page for page in model.pages if page <= told.pages_to and page not in named
            }
            told.pages_to = self.log.last_lsn

    def collect(self) -> None:
        """Go on with a collection where the last step of this kind has left it."""
        for told, model in zip(self.told.values(), self.model.now.values(), strict=True):
            if told.is_told:  # the view may have moved on since it was told
                named = {at for retained in told.kept for at in retained.entries}
                oldest = min(told.kept[0].index, model.first)
                told.may_lack |= {at for at in model.held() if at < oldest and at not in named}
        if self.collection is None:
            self.log.survey()
            self.collection = self.log.plan_collection()
        elif not self.collection.is_run:
            self.collection.run()
        else:
            self.collected += self.log.adopt(self.collection)
            self.collection = None

    def did(self, lsn: int) -> None:
        assert lsn == len(self.model.states), "LSNs are dense"

    def change(self, group: int) -> GroupModel:
        return self.model.step()[group]

    def reopen_and_compare(self) -> int:
        """Open what the crash left; the LSN that was recovered. The model goes on from there."""
        acknowledged = self.acknowledged
        self.collection = None
        for told in self.told.values():
            told.kept = told.kept[-1:]
            told.is_told = False
        self.open()
        for told in self.told.values():
            told.pages_to = self.log.last_lsn - 1
        recovered = self.log.last_lsn - 1 if self.log.last_lsn else 0
        assert acknowledged <= recovered < len(self.model.states), (
            "what was synced is there, no more than was written"
        )
        del self.model.states[recovered + 1 :]
        self.compare()
        if self.log.last_lsn:
            self.model.step()  # the mark that opening writes
        return recovered

    def live(self, lives: Iterable[tuple[int, int, bool]]) -> None:
        """Lives of the process, one after the other: (disk operations until a crash, steps, whether the power goes)."""
        for number, (crash_after, steps, power) in enumerate(lives):
            self.disk.crash_at = len(self.disk.operations) + crash_after
            with suppress(Crashed):
                self.steps(steps)
            if power:
                self.disk.power_cut(self.seed + number)
            else:
                self.disk.restart()
            self.reopen_and_compare()

    def compare(self) -> None:
        seen = observe(self.log, self.groups)
        for group, model in self.model.now.items():
            self.compare_group(seen[group], model, self.told[group])
            for page, data in model.pages.items():
                if page not in self.told[group].may_lack_pages:
                    assert self.log.read_page(group, page) == data
                else:
                    with suppress(EntryMissing):
                        assert self.log.read_page(group, page) == data

    @staticmethod
    def compare_group(seen: GroupModel, model: GroupModel, told: Told) -> None:
        """What is here is right, and what is not was not needed."""
        assert (seen.first, seen.last, seen.hard) == (model.first, model.last, model.hard)
        view = range(model.first - 1, model.last + 1)
        assert [seen.terms[index] for index in view] == [model.terms[index] for index in view]
        held = model.held()
        assert seen.bodies == {index: body for index, body in held.items() if index in seen.bodies}
        lacking = set(held) - set(seen.bodies)
        assert lacking <= told.may_lack, f"live bodies are gone: {sorted(lacking - told.may_lack)}"
        assert all(index < model.first for index in lacking)
