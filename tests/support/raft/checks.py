"""What Raft promises (Raft figure 3), checked while members run: fed by raft_world, knows nothing of how they work,
except for what a group notes of its library and of its journal."""

from __future__ import annotations

from collections.abc import Mapping

from quorum.replication.group import Group
from quorum.replication.library import RaftState
from support.raft.log import ModelDisk


class Violation(Exception):
    """A promise of Raft was broken."""


class Checks:
    """Election safety, state machine safety, leader completeness, order of application, freshness of reads; and
    beneath them, that what counts as committed or as elected stands on a majority's disks."""

    def __init__(self, group: int, size: int, disks: Mapping[str, ModelDisk]) -> None:
        """disks: empty if they cannot be looked into; what stands on them is then not checked."""
        self.group = group
        self.disks = disks
        self.size = size
        self.in_force: dict[str, tuple[str, ...]] = {}
        """the voters that each member goes by, or went by when it was last seen"""
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        """index -> (term, command), from the first member that applied it"""
        self._committed_by: dict[int, int] = {}
        """index -> a term in which it was committed at latest"""
        self.top = 1
        """the highest index that anybody applied"""
        self._standing = 1
        """everything up to here was found on most disks"""
        self.next_to_apply: dict[str, int] = {}
        self._commit: dict[str, int] = {}
        self._seen: dict[str, tuple[int, bool]] = {}
        self.reads = 0

    def started(self, name: str) -> None:
        self.next_to_apply[name] = 2
        self._commit[name] = 0
        self._seen.pop(name, None)

    def applied(self, name: str, index: int, term: int, command: bytes, current_term: int) -> None:
        """State machine safety: the same command at the same index everywhere, each once and in order."""
        if index != self.next_to_apply[name]:
            raise Violation(f"{name} applied {index}, {self.next_to_apply[name]} was next")
        self.next_to_apply[name] = index + 1
        if index not in self.committed:
            self._stands(name, index, term)
        self._committed_by.setdefault(index, current_term)
        known = self.committed.setdefault(index, (term, command))
        if known != (term, command):
            raise Violation(
                f"{name} applied {(term, command[:12])} at {index}, {known[0], known[1][:12]} elsewhere"
            )
        self.top = max(self.top, index)

    def _stands(self, name: str, index: int, term: int) -> None:
        """What counts as committed is on the disks of most of somebody's voters, seen when that is first noticed: they
        may be others soon."""
        if not self.disks or index <= self._standing:
            return
        kept = {each for each, disk in self.disks.items() if disk.holds(self.group, index, term)}
        if not any(len(kept & set(voters)) * 2 > len(voters) for voters in self.in_force.values()):
            raise Violation(f"{name} has committed {index}, which only the disks of {sorted(kept)} hold")
        self._standing = index

    def restored(self, name: str, index: int, commands: list[bytes]) -> None:
        """A snapshot holds exactly what was applied up to its index, and never moves a member back."""
        if index + 1 < self.next_to_apply[name]:
            raise Violation(f"{name} went back to {index}, it had applied {self.next_to_apply[name] - 1}")
        known = [self.committed[at][1] for at in range(2, index + 1) if at in self.committed]
        if commands != [command for command in known if command]:
            raise Violation(f"{name} restored another state at {index}")
        self.next_to_apply[name] = index + 1

    def observe(self, group: Group, name: str) -> None:
        """Election safety; a new leader has everything committed; commit never goes back."""
        self._notes_agree(group, name)
        commit = group.commit_index
        if commit < self._commit[name]:
            raise Violation(f"{name}'s commit index went from {self._commit[name]} to {commit}")
        self._commit[name] = commit
        voters = self.in_force[name] = group.configuration.voters
        if commit > self._standing:
            self._stands(name, commit, group._view.term_at(commit))
        seen = (group.term, group.is_leader)
        if seen == self._seen.get(name) or not group.is_leader:
            self._seen[name] = seen
            return
        self._seen[name] = seen
        first = self.leaders.setdefault(group.term, name)
        if first != name:
            raise Violation(f"two leaders in term {group.term}: {first} and {name}")
        if name not in voters:
            raise Violation(f"{name} leads term {group.term} and is no voter")
        states = [self.disks[each].hard_state(self.group) for each in voters if self.disks]
        votes = sum(state == (group.term, name) or state[0] > group.term for state in states)
        if self.disks and len(voters) > 1 and votes * 2 <= len(voters):
            raise Violation(f"{name} leads term {group.term} with {votes} votes of {len(voters)}")
        self._is_complete(group, name)

    def _notes_agree(self, group: Group, name: str) -> None:
        """What the engine notes of the library, and the view of the journal, is what they have."""
        engine, view, journal = group._engine, group._view, group._view.journal
        noted = engine.term, engine.is_leader, view.base, view.last_index, view.last_term
        found = (
            engine._node._SyncObj__raftCurrentTerm,
            engine._node._SyncObj__raftState == RaftState.LEADER,
            max(1, journal.first_index - 1),
            journal.last_index,
            journal.term_at(journal.last_index),
        )
        if noted != found:
            raise Violation(f"{name} noted {noted}, its library and its journal have {found}")

    def _is_complete(self, group: Group, name: str) -> None:
        view = group._view
        for index, (term, _) in self.committed.items():
            if group.term <= self._committed_by[index]:
                continue  # only later leaders must have it
            if index > view.last_index or (index >= view.base and view.term_at(index) != term):
                raise Violation(f"{name} leads term {group.term} without the committed entry {index}")

    def read(self, index: int | None, floor: int) -> None:
        """A read sees everything that was answered before it began."""
        if index is None:
            return
        self.reads += 1
        if index < floor:
            raise Violation(f"a read at {index} began when {floor} had been answered")
