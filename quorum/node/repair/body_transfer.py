"""Fetches bodies that this member lacks from members that have them: one mechanism for snapshots and for repair.

    question   group 4, number 8, limit 4 (bytes of bodies in all answers), count 4, then count x (index 8, term 8):
               the term of the entry that the asker has there, 0 if it has none or cannot use it
    answer     group 4, number 8, last 1, count 4, then count x (index 8, term 8, state 1, length 4, CRC32C 4), bodies

An answer takes the question's indices in their order. A question ends when its limit is reached; indices that were not
answered are asked again. Rules:

- Only entries at or below the answerer's commit index are answered. A committed entry is the only one that will ever
  be at its index, so a body is never taken from another history, whatever snapshot or journal refers to it.
- SAME (the asker's term is the committed one) proves by Log Matching (Raft §5.3) that the asker's journal is right up
  to there. No body is sent then.
- The CRC is taken from the bytes that the log has read and checked, and compared again where the body arrives.
- A member is asked for at most WINDOW_BYTES at a time, answers in slices between its other work, and keeps only the
  questions. If it is silent, gone or has no body, the next member is asked; the leader is asked last.

This module does not interpret bodies. `Member.step` drives all of it.
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from quorum.log import EntryMissing, LogDamaged, LogFull
from quorum.log.record import crc32c
from quorum.node.errors import PeerFrameError
from quorum.node.schedule import NEVER, Due
from quorum.node.wire.frames import FrameTable
from quorum.replication.codec import MAX_BODY_BYTES

KIND_FETCH, KIND_BODIES = 16, 17

WINDOW_BYTES = 8 << 20
"""Bytes asked of one member and not yet answered."""
QUESTION_BYTES = 4 << 20
"""Bytes of one question's limit: two under way keep the line busy."""
QUESTION_ENTRIES = 4_096
SERVE_BYTES = 256 << 10
SERVE_ENTRIES = 64
"""Bytes read and sent in one step, for all askers: one to two milliseconds."""
SERVE_PAUSE_MS = 6
"""Pause between two serving steps, scaled up when an entry exceeds SERVE_BYTES. Client publishes wait for at most one
step. A fetching member gets about 43 MB/s or 10,000 entries/s from a member that also has other work, whatever its
entries' size."""
MAX_QUESTIONS = 64
"""Questions of one member kept here: a member asks at most two for each of its jobs."""
SILENCE_MS = 2_000
"""A member that has been silent for this long is no longer waited for."""
ROUND_MS = 1_000
"""When no member has the wanted bodies, all members are asked again after this."""


_QUESTION = struct.Struct("<IQII")
_WANTED = struct.Struct("<QQ")
_ANSWER = struct.Struct("<IQBI")
_FOUND = struct.Struct("<QQBII")


class State(IntEnum):
    """An answer's result for one index."""

    ABSENT = 0
    """Not committed here, not kept here, or not readable here."""
    HERE = 1
    SAME = 2
    """The asker's own entry is the committed one."""


class BodyLog(Protocol):
    """The part of the node's log that the transfer needs."""

    @property
    def synced_lsn(self) -> int: ...
    def read_entry(self, group: int, index: int) -> tuple[int, bytes]: ...
    def put_copy(self, group: int, index: int, term: int, parts: Sequence[bytes | memoryview]) -> int: ...


Send = Callable[[str, int, Sequence[bytes | memoryview]], object]


@dataclass(slots=True)
class Question:
    """One question as it travels."""

    group: int
    number: int
    limit_bytes: int
    wanted: list[tuple[int, int]]
    """(index, term here or 0)"""

    def encode(self) -> list[bytes | memoryview]:
        head = _QUESTION.pack(self.group, self.number, self.limit_bytes, len(self.wanted))
        return [head, b"".join(_WANTED.pack(*each) for each in self.wanted)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Question:
        view = memoryview(data)
        if len(view) < _QUESTION.size:
            raise PeerFrameError(
                f"a question for bodies has at least {_QUESTION.size} bytes, not {len(view)}"
            )
        group, number, limit, count = _QUESTION.unpack_from(view)
        if not 1 <= count <= QUESTION_ENTRIES or len(view) != _QUESTION.size + count * _WANTED.size:
            raise PeerFrameError(f"a question for {count} bodies in {len(view)} bytes")
        return cls(group, number, limit, list(_WANTED.iter_unpack(view[_QUESTION.size :])))


@dataclass(slots=True)
class Found:
    """An answer for one index; the body is a view into the frame."""

    index: int
    term: int
    state: State
    crc: int
    body: bytes | memoryview


@dataclass(slots=True)
class Answer:
    """One answer, or a part of one, as it travels."""

    group: int
    number: int
    is_last: bool
    found: list[Found]

    def encode(self) -> list[bytes | memoryview]:
        table = b"".join(
            _FOUND.pack(each.index, each.term, each.state, len(each.body), each.crc) for each in self.found
        )
        head = _ANSWER.pack(self.group, self.number, self.is_last, len(self.found)) + table
        return [head, *(each.body for each in self.found if len(each.body))]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Answer:
        view = memoryview(data)
        if len(view) < _ANSWER.size:
            raise PeerFrameError(f"an answer with bodies has at least {_ANSWER.size} bytes, not {len(view)}")
        group, number, last, count = _ANSWER.unpack_from(view)
        at = _ANSWER.size + count * _FOUND.size
        if last > 1 or count > QUESTION_ENTRIES or at > len(view):
            raise PeerFrameError(f"an answer about {count} bodies in {len(view)} bytes")
        found = []
        for index, term, state, length, crc in _FOUND.iter_unpack(view[_ANSWER.size : at]):
            if state > State.SAME or (length > 0) != (state == State.HERE) or length > MAX_BODY_BYTES:
                raise PeerFrameError(f"an answer with {length} bytes of entry {index} in state {state}")
            found.append(Found(index, term, State(state), crc, view[at : at + length]))
            at += length
        if at != len(view):
            raise PeerFrameError(f"an answer of {len(view)} bytes whose bodies end at {at}")
        return cls(group, number, bool(last), found)


# ---- answering


class Commits(Protocol):
    """The commit indices of the groups."""

    def commit_index(self, group: int) -> int:
        """0 for a group that is not here."""
        ...


class Notes(Protocol):
    """Takes notice of damaged bodies (repairer.py)."""

    def note(self, group: int, index: int, term: int, reason: str) -> None: ...


class BodyServer:
    """Answers questions from this member's own log, a slice at a time."""

    def __init__(
        self,
        log: BodyLog,
        commits: Commits,
        send: Send,
        repairer: Notes,
    ) -> None:
        """repairer: told of bodies that were found damaged while answering."""
        self._log = log
        self._commits = commits
        self._send = send
        self._repairer = repairer
        self.due = Due()
        self._asked: dict[str, deque[tuple[Question, int, int]]] = {}
        """peer -> (question, how many of its indices are answered, bytes sent for it), the oldest first"""
        self._resume_ms = 0
        self.served_bytes = 0

    def next_due_ms(self) -> int:
        """Time of the next `serve` that has work; NEVER if none has."""
        return self._resume_ms if self._asked else NEVER

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_FETCH, lambda peer, data, now_ms: self.ask(peer, Question.decode(data)), since=1)

    def ask(self, peer: str, question: Question) -> None:
        waiting = self._asked.setdefault(peer, deque())
        if len(waiting) < MAX_QUESTIONS:
            waiting.append((question, 0, 0))
        self.due.next_ms = self._resume_ms

    def forget(self, peer: str) -> None:
        """Drops the questions of a peer whose connection is gone."""
        self._asked.pop(peer, None)

    def serve(self, now_ms: int) -> None:
        """Sends one slice, if one is due: a frame to each asker, in turn."""
        if not self._asked or now_ms < self._resume_ms:
            return
        left_bytes, left_entries = SERVE_BYTES, SERVE_ENTRIES
        for peer in list(self._asked):
            if left_bytes <= 0 or left_entries <= 0:
                break
            waiting = self._asked.pop(peer)
            question, at, sent = waiting.popleft()
            answer, size = self._answer(question, at, sent, left_entries, left_bytes)
            left_bytes -= size
            left_entries -= len(answer.found)
            if not answer.is_last:
                waiting.appendleft((question, at + len(answer.found), sent + size))
            if waiting:
                self._asked[peer] = waiting  # behind the others
            self.served_bytes += size
            self._send(peer, KIND_BODIES, answer.encode())
        served_bytes = max(SERVE_BYTES, SERVE_BYTES - left_bytes)
        self._resume_ms = now_ms + SERVE_PAUSE_MS * served_bytes // SERVE_BYTES
        if self._asked:
            self.due.next_ms = self._resume_ms

    def _answer(
        self, question: Question, at: int, sent: int, most_entries: int, most_bytes: int
    ) -> tuple[Answer, int]:
        """Ends with the body that reaches one of the bounds."""
        found: list[Found] = []
        size = 0
        wanted = question.wanted
        while at < len(wanted) and len(found) < most_entries and size < most_bytes:
            if sent + size and sent + size >= question.limit_bytes:
                break
            each = self._find(question.group, *wanted[at])
            found.append(each)
            size += len(each.body)
            at += 1
        is_last = at == len(wanted) or (sent + size > 0 and sent + size >= question.limit_bytes)
        return Answer(question.group, question.number, is_last, found), size

    def _find(self, group: int, index: int, term_there: int) -> Found:
        absent = Found(index, 0, State.ABSENT, 0, b"")
        if not 1 <= index <= self._commits.commit_index(group):
            return absent
        try:
            term, body = self._log.read_entry(group, index)
        except EntryMissing:
            return absent
        except LogDamaged as error:
            self._repairer.note(group, index, 0, str(error))
            return absent
        if term == term_there:
            return Found(index, term, State.SAME, 0, b"")
        return Found(index, term, State.HERE, crc32c(body), body)


# ---- asking


@dataclass(slots=True, eq=False)
class _Pending:
    peer: str
    wanted: array[int]
    answered: int
    asked_ms: int


@dataclass(slots=True, eq=False)
class Job:
    """Bodies of one group that are being fetched. `is_complete` once every body is here and on disk."""

    group: int
    on_done: Callable[[], None]
    term_here: Callable[[int], int] | None
    """Returns the term of this member's own entry at an index, to have it confirmed; 0 for none."""
    terms: Mapping[int, int]
    """The terms that are certain: a body of another one is not taken."""
    left: array[int]
    """Indices to ask for, from `at` on."""
    at: int = 0
    again: array[int] = field(default_factory=lambda: array("Q"))
    """Indices that the member asked now has left out: it is asked for them again."""
    refused: array[int] = field(default_factory=lambda: array("Q"))
    """Indices to ask the next member for."""
    peer: str | None = None
    tried: set[str] = field(default_factory=set)
    rounds: int = 0
    """Rounds in which no member had what is left."""
    resume_ms: int = 0
    lsn: int = 0
    """Of the last body put into the log."""
    proven: int = 0
    """The highest index whose entry here was said to be the committed one."""
    pending: dict[int, _Pending] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def missing(self) -> int:
        """The number of bodies that are not here yet."""
        asked = sum(len(each.wanted) - each.answered for each in self.pending.values())
        return len(self.left) - self.at + len(self.again) + len(self.refused) + asked

    def wish(self) -> None:
        """Queues the indices that the member asked now has left out, to ask it for them again."""
        if self.at >= len(self.left) and self.again:
            self.left, self.at, self.again = self.again, 0, array("Q")

    def give_up(self) -> None:
        """Gives up the member asked now, which does not answer: the next one is asked for its open indices."""
        self.wish()
        self.refused += self.left[self.at :]
        self.refused += self.again
        for each in self.pending.values():
            self.refused += each.wanted[each.answered :]
        self.left, self.at, self.again = array("Q"), 0, array("Q")
        self.pending.clear()
        self.peer = None


class Candidates(Protocol):
    """The members that may be asked."""

    def candidates(self, group: int) -> Sequence[str]:
        """The members in the order in which they should be asked."""
        ...


class BodyClient:
    """Asks other members for bodies and puts them into the log. One a member."""

    def __init__(
        self,
        log: BodyLog,
        send: Send,
        peers: Candidates,
    ) -> None:
        self._log = log
        self._send = send
        self._peers = peers
        self.under_way: dict[int, Job] = {}
        """by their numbers, oldest first"""
        self._owner: dict[int, Job] = {}
        """question -> job"""
        self._heard_ms: dict[str, int] = {}
        """when each member last sent any answer"""
        self._numbers = 0
        self.fetched = 0

    @property
    def jobs(self) -> Iterable[Job]:
        return self.under_way.values()

    def take_frames(self, table: FrameTable) -> None:
        table.add(
            KIND_BODIES, lambda peer, data, now_ms: self.take(peer, Answer.decode(data), now_ms), since=1
        )

    def fetch(
        self,
        group: int,
        indexes: array[int],
        on_done: Callable[[], None],
        *,
        terms: Mapping[int, int] | None = None,
        term_here: Callable[[int], int] | None = None,
    ) -> Job:
        """Starts a job. on_done() is called from `settle` once all bodies are here and durable, unless the job was
        cancelled."""
        self._numbers += 1
        job = Job(group, on_done, term_here, {} if terms is None else terms, array("Q", indexes))
        self.under_way[self._numbers] = job
        return job

    def cancel(self, job: Job) -> None:
        """Cancels a job. Bodies that have arrived stay; later answers are dropped."""
        for number, known in list(self.under_way.items()):
            if known is job:
                del self.under_way[number]
        for number in job.pending:
            del self._owner[number]
        job.pending.clear()

    def next_due_ms(self) -> int:
        """Time of the next `tick` that has work if nothing arrives; NEVER if none has."""
        due_ms = NEVER
        for job in self.under_way.values():
            if job.pending:
                due_ms = min(due_ms, self._heard(job) + SILENCE_MS)
            if job.resume_ms:
                due_ms = min(due_ms, job.resume_ms)
        return due_ms

    def tick(self, now_ms: int) -> None:
        """Asks as much as the windows allow; asks another member where one is silent."""
        window: dict[str, int] = {}
        for job in self.under_way.values():
            for each in job.pending.values():
                window[each.peer] = window.get(each.peer, 0) + QUESTION_BYTES
        for job in list(self.under_way.values()):
            self._check_silence(job, now_ms)
            if now_ms >= job.resume_ms and self._choose(job, now_ms):
                self._ask(job, window, now_ms)

    def settle(self) -> None:
        """Run after the log was synced: completes the jobs that have everything."""
        synced = self._log.synced_lsn
        for number, job in list(self.under_way.items()):
            if number in self.under_way and not job.missing and job.lsn <= synced:
                job.is_complete = True
                del self.under_way[number]
                job.on_done()

    def disconnected(self, peer: str) -> None:
        """Moves a disconnected peer's questions to other members."""
        for job in self.under_way.values():
            if job.peer == peer:
                self._leave(job)

    # ---- inside

    def _leave(self, job: Job) -> None:
        for number in job.pending:
            del self._owner[number]
        if job.peer is not None:
            job.tried.add(job.peer)
        job.give_up()

    def _check_silence(self, job: Job, now_ms: int) -> None:
        if job.pending and now_ms - self._heard(job) >= SILENCE_MS:
            self._leave(job)

    def _heard(self, job: Job) -> int:
        """When the member asked now was last known not to be silent. It answers one question after the other, including
        those of other jobs and those that were given up: any answer counts."""
        asked_ms = min(each.asked_ms for each in job.pending.values())
        return max(asked_ms, self._heard_ms.get(job.peer or "", 0))

    def _choose(self, job: Job, now_ms: int) -> bool:
        """Chooses the member to ask. Returns whether there is one."""
        job.resume_ms = 0
        job.wish()
        if job.at < len(job.left):
            if job.peer is not None:
                return True
        elif job.pending or not job.refused:
            return False
        else:
            if job.peer is not None:
                job.tried.add(job.peer)
            job.left, job.at, job.refused = job.refused, 0, array("Q")
        job.peer = next((name for name in self._peers.candidates(job.group) if name not in job.tried), None)
        if job.peer is None:
            job.rounds += bool(job.tried)
            job.tried.clear()
            job.resume_ms = now_ms + ROUND_MS
        return job.peer is not None

    def _ask(self, job: Job, window: dict[str, int], now_ms: int) -> None:
        peer = job.peer
        assert peer is not None
        while job.at < len(job.left) and window.get(peer, 0) + QUESTION_BYTES <= WINDOW_BYTES:
            wanted = job.left[job.at : job.at + QUESTION_ENTRIES]
            job.at += len(wanted)
            here = job.term_here or (lambda _: 0)
            self._numbers += 1
            question = Question(
                job.group, self._numbers, QUESTION_BYTES, [(index, here(index)) for index in wanted]
            )
            job.pending[self._numbers] = _Pending(peer, wanted, 0, now_ms)
            self._owner[self._numbers] = job
            window[peer] = window.get(peer, 0) + QUESTION_BYTES
            self._send(peer, KIND_FETCH, question.encode())

    def take(self, peer: str, answer: Answer, now_ms: int) -> None:
        """Takes a member's answer. Raises PeerFrameError if it does not match a question to that member."""
        self._heard_ms[peer] = now_ms
        job = self._owner.get(answer.number)
        if job is None:
            return  # given up meanwhile
        pending = job.pending[answer.number]
        if pending.peer != peer or job.group != answer.group:
            raise PeerFrameError(f"{peer} answers question {answer.number}, which {pending.peer} was asked")
        expected = pending.wanted[pending.answered : pending.answered + len(answer.found)]
        if [each.index for each in answer.found] != expected.tolist():
            self._leave(job)
            raise PeerFrameError(f"{peer} answers question {answer.number} with other entries")
        for each in answer.found:
            pending.answered += 1
            if each.state == State.SAME:
                job.proven = max(job.proven, each.index)
            elif each.state == State.ABSENT or not self._is_good(job, each):
                job.refused.append(each.index)
            else:
                try:
                    self._put(job, each)
                except LogFull:  # perhaps there is room later
                    job.again.append(each.index)
                    job.resume_ms = now_ms + ROUND_MS
                except ValueError:  # the same entry with another length: not what was asked for
                    job.refused.append(each.index)
        if answer.is_last:
            job.again += pending.wanted[pending.answered :]
            del job.pending[answer.number]
            del self._owner[answer.number]

    @staticmethod
    def _is_good(job: Job, found: Found) -> bool:
        certain = job.terms.get(found.index, found.term)
        return certain == found.term and crc32c(bytes(found.body)) == found.crc

    def _put(self, job: Job, found: Found) -> None:
        job.lsn = self._log.put_copy(job.group, found.index, found.term, [found.body])
        self.fetched += 1
