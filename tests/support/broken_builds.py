"""What stands in the product's place in the broken builds that canaries.py lists: one promise taken away each.

The older ones are classes in canaries.py; these are functions, named for what they break.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fifo import bits
from fifo.blocks import Block
from fifo.budgets import Entry
from fifo.commands import Enqueue, Return, Settle
from fifo.delivery import Delivery
from fifo.effects import Deliver, Refused, Reply
from fifo.machine import QueueMachine
from fifo.messages import Messages
from fifo.selector_groups import SelectorGroups
from fifo.sessions import Producer
from quorum.catalog.lease_times import LeaseSettings, LeaseTimes
from quorum.log import Log
from quorum.log.references import Retention
from quorum.log.table import Ints, Mask
from quorum.node.cluster.version_switch import VersionSwitch
from quorum.node.leases.leases import Leases
from quorum.node.repair.snapshot_bodies import SnapshotBodies
from quorum.node.replica.replica import Replica
from quorum.replication.configuration import State

# ---- versions


def known_by_a_majority(switch: VersionSwitch) -> int:
    """In the place of VersionSwitch._known_by_all."""
    known = sorted([switch.known, *(switch.known_by(peer) for peer in switch._peers.all)], reverse=True)
    return known[len(known) // 2]


# ---- messages


def everything_is_fresh(producer: Producer, command: Enqueue) -> list[tuple[int, int]]:
    """In the place of Producer.fresh: what was taken before is taken again."""
    return [(0, command.count)]


_effect = Delivery.effect


def never_redelivered(delivery: Delivery, settled: bool = False) -> Deliver:
    """In the place of Delivery.effect."""
    return replace(_effect(delivery, settled), redelivered=0)


_settle = QueueMachine.settle


def returns_some(machine: QueueMachine, entry: Entry, producer: bytes, command: Settle) -> Reply:
    """In the place of QueueMachine.settle: in every 50th entry what is settled goes back to the queue."""
    if type(command) is Settle and entry.index % 50 == 0:
        returned = Return(
            command.queue, command.consumer_tag, command.attach, command.tags, command.credit_to
        )
        return _settle(machine, entry, producer, returned)  # type: ignore[arg-type]
    return _settle(machine, entry, producer, command)


def highest_first(delivery: Delivery, block: Block, members: int, wanted: int) -> int:
    """In the place of Delivery.choose."""
    return members ^ bits.lowest(members, max(0, members.bit_count() - wanted))


def skips_arrivals(groups: SelectorGroups) -> None:
    """In the place of SelectorGroups.look_up_arrivals: consumers that have seen everything see nothing new."""
    groups._followed = groups.messages.next_sequence


def loses_rare_fields(columns: object, key: str, runs: object) -> None:
    """In the place of BlockColumns._put_sparse: fields beyond a block's dense columns are not kept."""


# ---- what may leave a queue


def nothing_expires(*_: object) -> int:
    """In the place of Runs.expired."""
    return 0


_expires = Messages.expires_at


def half_the_ttl(messages: Messages, now_ms: int, ttl_ms: int) -> int:
    """In the place of Messages.expires_at."""
    expires = _expires(messages, now_ms, ttl_ms)
    return now_ms + (expires - now_ms) // 2 if 0 <= expires - now_ms < 1_000_000 else expires


def drops_nothing(messages: Messages, entry: Entry) -> bool:
    """In the place of overflow.drop_head."""
    return True


def drops_the_newest(messages: Messages, entry: Entry) -> bool:
    """In the place of overflow.drop_head."""
    limit = messages.config.max_length
    if limit < 0 or messages.config.overflow != "drop_head":
        return True
    while messages.ready_count > limit:
        block = messages.blocks.get(messages.index[-1][1])
        messages.drop(block, 1 << (block.ready.bit_length() - 1), "maxlen")
    return True


def takes_everything(messages: Messages, count: int) -> Refused | None:
    """In the place of Messages.refuse_more."""
    return None


def never_too_often(failures: bits.Counts, limit: int) -> int:
    """In the place of Counts.above: no message has failed too often."""
    return 0


_above = bits.Counts.above


def once_is_too_often(failures: bits.Counts, limit: int) -> int:
    """In the place of Counts.above."""
    return _above(failures, 0)


# ---- leases and attachments


def down_after_a_moment(leases: Leases, group: int, node: int, boot: int, now_ms: int) -> bool:
    """In the place of Leases.is_down: 0.6 s of silence is enough."""
    known = leases.heard.get(node)
    return known is not None and (known[0] > boot or now_ms - known[1] > 600)


_held_until = Leases.held_until


def too_long(leases: Leases, *arguments: Any, **more: Any) -> int:
    """In the place of Leases.held_until: 2.5 s longer than others count on."""
    until = _held_until(leases, *arguments, **more)
    return until + 2_500 if until else 0


def settled_at_once(settings: LeaseSettings, wanted: LeaseTimes) -> LeaseSettings:
    """In the place of LeaseSettings.changed: nobody waits for the leases that were granted before."""
    return LeaseSettings(settings.revision + 1, wanted, wanted, wanted)


def always_current(stream: object, deliver: Deliver) -> bool:
    """In the place of _is_current: an attachment that has ended is still written to."""
    return True


# ---- members


def believes_itself(*_: object) -> None:
    """In the place of RollbackMarks.remembered: what others remember of this member counts for nothing."""


# ---- snapshots


class ForgetsPages(Retention):
    """The pages that a snapshot names count as garbage."""

    def is_live_page(self, pages: Ints) -> Mask:
        assert self._told is not None
        live: Mask = pages > self._told.pages_to
        return live


class LogWithoutPages(Log):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, retention=ForgetsPages, **settings)


def without_bodies(arrivals: SnapshotBodies, group: int, index: int, term: int, state: State) -> int | None:
    """In the place of SnapshotBodies.prepare: a snapshot is put in place as it came."""
    journal = arrivals._journal(group)
    return max(journal.commit_index, journal.last_index if journal.holds(index, term) else 0)


def not_asked_again(table: object, group: int) -> None:
    """In the place of SessionTable.answers_missed."""


class _Unsynced:
    """A log whose sync does nothing."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def sync(self) -> None:
        return


_save_snapshot = Replica.save_snapshot


def before_its_pages(replica: Replica, log: Log, now_ms: int) -> None:
    """In the place of Replica.save_snapshot: the state is durable before the pages that it names."""
    _save_snapshot(replica, _Unsynced(log), now_ms)  # type: ignore[arg-type]


def no_entries_first(journal: object, index: int) -> None:
    """In the place of Journal._sync_to."""
