"""Passes damage on this member's disk to the repairer, and hands leadership to other members while the damage lasts.

A damaged body is fetched from another member. A *page* of a group's state exists on this member only. If its block is
in memory, or only an older snapshot refers to it, the next snapshot is written without it. If the block itself is lost,
another member's state replaces the state here (state_requests.py), and this member hands over if it leads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fifo.group_machine import GroupMachine
from fifo.messages.blocks import Block, Stored
from fifo.queue_machine import QueueMachine
from quorum.log import Damage, Log, LogFull
from quorum.node.cluster.peers import Peers
from quorum.node.repair.repairer import Repairer
from quorum.node.replica.replica import Replica

HANDICAP = 2
"""Extra election delay, in multiples of the maximum election timeout, while any data of the group is damaged on this
member."""
STALLED_LEADER_MS = 500
"""Milliseconds a leader waits for a body before it hands over to a member that has it."""


class NeededEntries:
    """The entries whose bodies this member needs."""

    def __init__(self, log: Log, replicas: Mapping[int, Replica]) -> None:
        self._log = log
        self._replicas = replicas

    def is_needed(self, group: int, index: int) -> bool:
        """Whether the journal has this entry, a valid snapshot refers to it, or applying waits for it."""
        replica = self._replicas[group]
        first = self._log.journal(group).first_index
        return index >= first or index == replica.blocked_on_index or replica.checkpoints.refer_to(index)


class CorruptionMonitor:
    """See the module's text."""

    def __init__(
        self,
        log: Log,
        replicas: Mapping[int, Replica],
        logger: Any,
        election_max_s: float,
        repairer: Repairer,
        needed: NeededEntries,
        peers: Peers,
    ) -> None:
        self._log = log
        self._replicas = replicas
        self._logger = logger
        self._election_max_s = election_max_s
        self._needed = needed
        self._peers = peers
        self._repairer = repairer
        self._tried_ms: dict[int, int] = {}
        """group -> time of the last attempt to find a successor"""
        self._transfers = 0
        """begun for want of a body, or of a state"""
        self._bad_pages: set[tuple[int, int]] = set()
        """(group, page) of those that were found"""
        self._lost_pages: set[tuple[int, int]] = set()
        """those whose block has no other copy on this member"""

    def scan(self) -> None:
        """Handles damage that the log has found: at opening, while it checks itself, or during a read."""
        self._repairer.scan()
        for damage, (group, term, index) in self._damaged_bodies():
            if group not in self._replicas or not self._needed.is_needed(group, index):
                continue
            if self._log.in_memory(group, index):
                self._write_again(damage, group, term, index)
            else:
                self._repairer.note(group, index, term, str(damage))
        for damage in self._log.damages:
            if damage.kind == "PAGE" and damage.known is not None and damage.known[0] in self._replicas:
                self._found_page(self._replicas[damage.known[0]], damage.lsn, str(damage))
        for replica in self._replicas.values():
            for page, reason in replica.checkpoints.pages.take_unreadable().items():
                self._found_page(replica, page, reason)
        self._find_lost_pages()

    def _write_again(self, damage: Damage, group: int, term: int, index: int) -> None:
        """Rewrites an entry of which only the copy on disk is damaged. Uncommitted entries are not rewritten: a copy
        would be treated as committed."""
        if index > self._replicas[group].raft.commit_index:
            return
        try:
            self._log.put_copy(group, index, term, [self._log.read(group, index)])
        except LogFull:
            return  # the next time
        self._logger.error("entry unreadable", group=group, index=index, term=term, reason=str(damage))
        self._logger.info("entry repaired", group=group, index=index, source="memory")

    def _damaged_bodies(self) -> Iterator[tuple[Damage, tuple[int, int, int]]]:
        """With (group, term, index)."""
        for damage in self._log.damages:
            if damage.kind in ("ENTRY", "COPY") and damage.known is not None:
                yield damage, damage.known

    # ---- pages

    def _found_page(self, replica: Replica, page: int | None, reason: str) -> None:
        if page is None or (replica.number, page) in self._bad_pages:
            return
        queue, block = _block_of(replica, page)
        if block is None and not replica.checkpoints.refer_to_page(page):
            return
        self._bad_pages.add((replica.number, page))
        replica.snapshots.demand()
        if queue is not None and isinstance(block, Block):
            block.stored = None
            queue.changes += 1
        elif block is not None:
            self._lost_pages.add((replica.number, page))
        meaning = (
            "another member's state replaces the one here"
            if isinstance(block, Stored)
            else "the next snapshot does without it"
        )
        self._logger.error("page unreadable", group=replica.number, reason=reason, meaning=meaning)

    def _find_lost_pages(self) -> None:
        """Finds the lost pages of the states in use. A page is forgotten when its messages are gone or its state was
        replaced."""
        self._lost_pages = {
            (group, page)
            for group, page in self._lost_pages
            if isinstance(_block_of(self._replicas[group], page)[1], Stored)
        }
        for number, replica in self._replicas.items():
            replica.pages_lost(is_any_lost=any(group == number for group, _ in self._lost_pages))

    # ---- at a start, and while it is so

    def look_for_missing(self, replica: Replica) -> None:
        """Fetches bodies that the state refers to and that are missing at the start. A crash in the middle of an
        installation leaves the snapshot, and later entries of this member that may be wrong. The bodies are fetched
        even if no client may ever read them here, because this member counts among those that have them."""
        reasons = {
            index: (term, str(damage))
            for damage, (group, term, index) in self._damaged_bodies()
            if group == replica.number
        }
        for part in replica.checkpoints.newest_entries().parts():
            for index in self._log.missing(replica.number, part):
                term, reason = reasons.get(index, (0, "the snapshot here refers to it"))
                self._repairer.note(replica.number, index, term, reason)

    def update_leadership(self, replica: Replica, now_ms: int) -> None:
        """Hands leadership to another member while data of the group cannot be read here."""
        raft = replica.raft
        unread = raft.unread_configurations
        if unread:
            if any(not self._repairer.is_lost(replica.number, index) for index in unread):
                raft.read_configurations()
            for index, reason in unread.items():
                self._repairer.note(replica.number, index, raft.term_at(index), reason)
        has_lost_pages = replica.lacks_page
        is_damaged = self._repairer.lost(replica.number) > 0 or has_lost_pages
        replica.delay_candidacy(HANDICAP * self._election_max_s if is_damaged else 0.0)
        if not replica.blocked_on_index and not has_lost_pages and not replica.parted:
            return
        replica.wake()
        if (
            replica.blocked_on_index
            and not replica.lacks_body
            and self._repairer.is_nowhere(replica.number, replica.blocked_on_index)
        ):
            replica.body_is_nowhere()
            self._logger.error(
                "no member has the entry", group=replica.number, index=replica.blocked_on_index
            )
        since_ms = max(replica.blocked_since_ms, self._tried_ms.get(replica.number, 0))
        if raft.is_leader and now_ms - since_ms > STALLED_LEADER_MS:
            self._tried_ms[replica.number] = now_ms
            if replica.blocked_on_index:
                replica.stop_proposing()
            peers = self._peers.candidates(replica.number)
            first = self._transfers % max(
                1, len(peers)
            )  # not always the same: its state may have parted, too
            # who can lead at once first
            order = sorted(peers[first:] + peers[:first], key=lambda peer: not replica.has_applied(peer))
            if any(raft.transfer_leadership(peer) for peer in order):
                self._transfers += 1
            elif not raft.is_transferring:
                self._logger.warning("stalled leader finds no successor", group=replica.number)


def _block_of(replica: Replica, page: int) -> tuple[QueueMachine | None, Block | Stored | None]:
    """The block whose valid page this is, in memory or cold, with its queue."""
    machine = replica.machine
    for queue in machine.queues.values() if isinstance(machine, GroupMachine) else ():
        for block in queue.messages.blocks.values():
            stored = block.stored if isinstance(block, Block) else block
            if stored is not None and stored.page == page:
                return queue, block
    return None, None
