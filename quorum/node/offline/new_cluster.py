"""A new cluster from the data of one stopped member, or from its backup: for when a majority is lost for ever.

The source is only read. Everything happens in a copy, which gets its name when it is complete (backup.building), so the
command may be killed at any moment and run again. These are the steps:

1. The copy is checked completely, as `quorum check` does. Damage, a quarantine, and a state that differs from most
   voters' are refused: such data may be wrong, and no other member is left to compare it with.
2. Each group is replayed from its newest snapshot to the end of its journal, with the machines' own code. So what the
   member will do after its start has been done once before anything is decided. Entries of which the member does not
   know whether they were committed count, too: they were on its disk, and another member may have confirmed them.
3. Each group's journal gets, in a new term, a configuration with this member as the only voter. A member uses the last
   configuration in its log, committed or not, so it elects itself and commits everything before that.
4. The system group gets the commands that remove the other members, and those that settle what its journal and the
   other groups' journals know differently (`_Corrections`). They are the same commands as administrators send.
5. node.json gets the name of a new cluster, with a random part. Members of the old cluster, and of another one that
   was made from it, are refused by their handshakes, so no vote or entry of theirs counts here.

Each group ends where this member's journal of it ends. Nothing relates these places to each other. So a transaction
over several groups may be in some of them only.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from fifo import commands as c
from fifo.frozen_dataclasses import dataclass
from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION
from fifo.persistence import checkpoint, snapshot
from fifo.queries import group as group_queries
from fifo.versions import BASE, UnknownVersion
from quorum.catalog.commands import CatalogCommand, DeclareQueue, RemovePolicy, RemoveQueue, SetPolicy
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.members import CatalogMember, DrainMember, RemoveMember, joined_id
from quorum.errors import OperatorError
from quorum.log import EntryMissing, Log, LogDamaged, LogUnknown, RealFiles
from quorum.node.errors import BodyUnreadable, PageUnreadable
from quorum.node.identity.identity import Identity, begin_new_cluster, read_identity
from quorum.node.offline.backup import (
    building,
    compare,
    copy_data,
    is_backup,
    read_manifest,
    refuse_damage,
)
from quorum.node.offline.lost_log import LOG
from quorum.node.offline.offline_check import check, locked
from quorum.node.replica.bootstrap import Bootstrap
from quorum.node.replica.checkpoints import LogPages
from quorum.node.replica.replica import SYSTEM_GROUP, TIME_BYTES, FieldSource
from quorum.node.replica.skipped_entries import SkippedEntries
from quorum.node.wire.operations import MAX_OPERATIONS, Command, OperationError, command_parts, encode
from quorum.replication.codec import COMMAND
from quorum.replication.configuration import CONFIGURATION, CONFIGURATION_BYTES, Configuration
from quorum.replication.errors import ReplicationError
from quorum.replication.journal_view import JournalView

MAX_CORRECTIONS = 100_000
"""Commands in the system group that correct it: more would mean that this is not the catalog of these groups."""
MARK = "-r"
"""Between the name of the first cluster and the random part."""
RANDOM_BYTES = 4
MAX_NAME = 64 - len(MARK) - 2 * RANDOM_BYTES


class CannotRecover(OperatorError):
    """The data cannot become a new cluster, or that was not accepted."""


class LossNotAccepted(CannotRecover):
    """Nothing was changed, because the operator has not accepted what may be lost. `found` says what there is."""

    def __init__(self, found: Found) -> None:
        super().__init__("nothing was made: what may be lost was not accepted")
        self.found = found


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """The end of a group's journal, and who voted there. term: of the last entry."""

    group: int
    last_entry: int
    term: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What is in a member's data. dropped: ids of the members that the new cluster will not have. messages: of all
    queues. unknown_queues: queues in the groups that the catalog here has never heard of; their messages are removed.
    ended_queues: names in the catalog of queues that their groups have deleted."""

    source: str
    cluster: str
    member: str
    dropped: tuple[str, ...]
    groups: tuple[FoundGroup, ...]
    queues: int
    messages: int
    unknown_queues: int
    unknown_messages: int
    ended_queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A data directory of the only member of a new cluster."""

    directory: str
    cluster: str
    found: Found


def new_cluster(source: Path, target: Path, *, accepts_loss: bool) -> Recovered:
    """Makes the data directory `target` of a new cluster from a stopped member's data directory or a backup.
    OperatorError if it cannot be made; LossNotAccepted, with what was found, unless accepts_loss. Then there is no
    target, and the source is as it was."""
    with building(target, apart_from=source) as copy:
        _copy(source, copy)
        report = check(copy)
        report.directory = str(source)
        # the copy is about to be removed: name the files that stay
        report.findings = [
            replace(each, file=each.file.replace(str(copy), str(source), 1)) for each in report.findings
        ]
        refuse_damage(report)
        with _opened(source, copy) as member:
            found = member.found()
            if not accepts_loss:
                raise LossNotAccepted(found)
            member.take_over()
        name = _new_name(member.known.founding.cluster)
        begin_new_cluster(copy, name, member.own, RealFiles())
        refuse_damage(check(copy))
    return Recovered(str(target.absolute()), name, found)


def _copy(source: Path, copy: Path) -> None:
    if is_backup(source):
        compare(source, read_manifest(source), copy_data(source, copy))
        return
    with locked(source):
        copy_data(source, copy)


def _new_name(cluster: str) -> str:
    """A name that no cluster has."""
    first, mark, random = cluster.rpartition(MARK)
    if mark and len(random) == 2 * RANDOM_BYTES:
        cluster = first
    return f"{cluster[:MAX_NAME]}{MARK}{secrets.token_hex(RANDOM_BYTES)}"


@contextmanager
def _opened(source: Path, copy: Path) -> Iterator[_Member]:
    known = read_identity(copy, RealFiles())
    assert known is not None, "a good directory has one"
    try:
        log = Log.open(copy / LOG)
        try:
            yield _Member(source, known, log)
        finally:
            log.close()
    except (
        LogDamaged,
        LogUnknown,
        EntryMissing,
        ReplicationError,
        BodyUnreadable,
        PageUnreadable,
        OperationError,
    ) as error:
        raise CannotRecover(f"{source} cannot be read completely: {error}") from error
    except UnknownVersion as error:
        raise CannotRecover(f"{source} was used by a newer release: {error}") from error


@dataclass(slots=True)
class _Group:
    """A group at the end of its journal. now_ms: group time there."""

    number: int
    view: JournalView
    machine: GroupMachine | CatalogMachine
    now_ms: int = 0

    @property
    def configuration(self) -> Configuration:
        return self.view.configurations.current

    @property
    def term(self) -> int:
        return max(self.view.journal.hard_state[0], self.view.last_term)


class _Member:
    """The data of one member, replayed. CannotRecover if it cannot become a cluster."""

    def __init__(self, source: Path, known: Identity, log: Log) -> None:
        self.known = known
        self._source = source
        self._log = log
        founding = known.founding
        incarnation = known.node_state.incarnation
        self._id = known.name if founding.members else joined_id(known.name, incarnation)
        self._refuse_doubtful()
        bootstrap = Bootstrap(log, founding.members, founding.queue_groups, structlog.get_logger())
        self._groups = [self._replayed(number, bootstrap) for number in range(founding.queue_groups + 1)]
        self._refuse_outsider()
        self._refuse_left_out()
        self._corrections = _Corrections(self._catalog, self._id, self._queue_groups)

    @property
    def _system(self) -> _Group:
        return self._groups[SYSTEM_GROUP]

    @property
    def _catalog(self) -> CatalogMachine:
        machine = self._system.machine
        assert isinstance(machine, CatalogMachine)
        return machine

    @property
    def _queue_groups(self) -> dict[int, GroupMachine]:
        return {each.number: each.machine for each in self._groups if isinstance(each.machine, GroupMachine)}

    @property
    def own(self) -> CatalogMember:
        """This member in the catalog."""
        return self._catalog.members.by_id[self._id]

    # ---- what is refused

    def _refuse(self, reason: str) -> None:
        raise CannotRecover(f"{self._source} cannot become a cluster: {reason}")

    def _refuse_doubtful(self) -> None:
        state = self.known.node_state
        if not state.is_established:
            self._refuse(f"{self.known.name} has never taken part in its cluster")
        for group, index in state.parted:
            self._refuse(
                f"at entry {index} of group {group}, the state of {self.known.name} differed from most voters'"
            )

    def _refuse_outsider(self) -> None:
        own = self._catalog.members.by_id.get(self._id)
        if own is None:
            self._refuse(f"{self._id} is no member in the catalog that it has")
        elif own.is_joining:
            self._refuse(f"{self._id} was still joining, and may lack data")
        for group in self._groups:
            if self._id not in group.configuration.voters:
                self._refuse(f"{self._id} is no voter of group {group.number}, and may lack its data")

    def _refuse_left_out(self) -> None:
        """Entries that a later member would apply with another effect."""
        view = self._system.view
        for group, index in self.known.node_state.skipped:
            if SkippedEntries.is_needed(index, view.snapshot_index, view.journal.first_index):
                self._refuse(
                    f"it leaves out entry {group}:{index} (skip_entries), which its log still has; no cluster can be "
                    "made from it"
                )

    # ---- replaying

    def _replayed(self, number: int, bootstrap: Bootstrap) -> _Group:
        view = JournalView(self._log, number)
        if view.is_quarantined:
            self._refuse(f"group {number} is quarantined: this member has lost what it had promised there")
        if damaged := self._log.journal(number).damaged_snapshots:
            self._refuse(f"group {number} has a damaged snapshot: {damaged[0]}")
        view.begin(Configuration(tuple(sorted(self.known.founding.members))))
        if view.unread:
            self._refuse(
                f"group {number} has entries that cannot be read: {next(iter(view.unread.values()))}"
            )
        group = _Group(number, view, bootstrap.empty_machine(number))
        if view.snapshot_state is not None:
            group.now_ms = int.from_bytes(view.snapshot_state[:TIME_BYTES], "little")
            group.machine = self._restored(number, view.snapshot_state[TIME_BYTES:])
        for index in range(max(view.snapshot_index + 1, view.journal.first_index), view.last_index + 1):
            body = view.read(index)
            if body[0] == COMMAND:
                _apply(group, index, view.term_at(index), memoryview(body)[1:])
        return group

    def _restored(self, number: int, state: bytes) -> GroupMachine | CatalogMachine:
        if number == SYSTEM_GROUP:
            return CatalogMachine.restore(state)
        resume = checkpoint.resume if checkpoint.is_checkpoint(state) else snapshot.decode
        return resume(state, FieldSource(self._log, number), LogPages(self._log, number), PRODUCTION)

    # ---- the result

    def found(self) -> Found:
        messages = {
            (number, queue): _total(machine, queue)
            for number, machine in self._queue_groups.items()
            for queue in machine.queue_ids()
        }
        unknown = self._corrections.unknown_queues
        known = [place for place in messages if self._catalog.has_queue(place[1], place[0])]
        return Found(
            str(self._source),
            self.known.founding.cluster,
            self.known.name,
            tuple(each for each in self._catalog.members.by_id if each != self._id),
            tuple(
                FoundGroup(
                    each.number,
                    each.view.last_index,
                    each.view.last_term,
                    each.configuration.voters,
                    each.configuration.learners,
                )
                for each in self._groups
            ),
            len(self._catalog.queues()),
            sum(messages[place] for place in known),
            len(unknown),
            sum(messages[place] for place in unknown),
            self._corrections.ended_queues,
        )

    def take_over(self) -> None:
        """Makes this member the only one of all groups, durably."""
        alone = bytes([CONFIGURATION]) + Configuration((self._id,)).encode()
        for group in self._groups:
            journal, term = group.view.journal, group.term + 1
            journal.set_hard_state(term, self._id)
            journal.append([alone], journal.last_index + 1, term)
            if group is self._system:
                for body in self._corrections.entries(
                    max(BASE, self._catalog.version), group.now_ms, self.own
                ):
                    index = journal.last_index + 1
                    _apply(group, index, term, memoryview(body)[1:])
                    journal.append([body], index, term)
        self._corrections.check()
        self._log.sync()


def _apply(group: _Group, index: int, term: int, body: memoryview) -> None:
    command = Command(body)
    try:
        group.machine.apply(c.Meta(index, term, command.now_ms, command.version), command.decode())
    except UnknownVersion:
        raise
    except ValueError as error:
        raise CannotRecover(f"entry {group.number}:{index} cannot be applied: {error}") from error
    group.now_ms = max(group.now_ms, command.now_ms)


def _total(machine: GroupMachine, queue: int) -> int:
    found = group_queries.info(machine, queue)
    return 0 if found is None else found.total


class _Corrections:
    """The commands that make a catalog fit the only member that is left, and the queue groups here.

    The journals of the groups do not end at the same moment. So a group may know of changes that are not in the catalog
    here:

    - a queue that the catalog has never declared: the catalog must not give its id to another queue, and the group is
      to delete it. The id is declared and removed at once.
    - a queue that the group has deleted: it is removed.
    - a newer revision of the policies, up to which the group is configured: a policy is set and removed until the
      catalog's revision is as high.
    """

    def __init__(self, catalog: CatalogMachine, own: str, groups: Mapping[int, GroupMachine]) -> None:
        self._catalog = catalog
        self._own = own
        self._ids = [
            queue for machine in groups.values() for queue in (*machine.queues, *machine.deleted[-1:])
        ]
        self._revision = max((machine.configured for machine in groups.values()), default=0)
        self.unknown_queues = tuple(
            (number, queue)
            for number, machine in groups.items()
            for queue in machine.queue_ids()
            if queue >= catalog.next_queue_id
        )
        """(group, id)"""
        ended = [
            queue
            for number, machine in groups.items()
            for queue in catalog.queues_of_group(number)
            if machine.was_deleted(queue.id)
        ]
        self.ended_queues = tuple(queue.name for queue in ended)
        self._remove = [RemoveQueue(queue.name, queue.id) for queue in ended]

    def entries(self, version: int, now_ms: int, own: CatalogMember) -> Iterator[bytes]:
        """The bodies of the entries, as a session of this member would send them."""
        producer = secrets.token_bytes(16)
        commands = list(self._commands(own, now_ms))
        operations = [encode(each, c.Origin(producer, 1, n)) for n, each in enumerate(commands)]
        for first in range(0, len(operations), MAX_OPERATIONS - 1):
            yield _entry(operations[first : first + MAX_OPERATIONS - 1], now_ms, version)

    def _commands(self, own: CatalogMember, now_ms: int) -> Iterator[c.Command | CatalogCommand]:
        catalog = self._catalog
        yield c.RegisterProducer(c.Address(own.number, 0, 0), heard_ms=now_ms)
        if own.is_drained:
            yield DrainMember(own.id, is_drained=False)
        for member in tuple(catalog.members.by_id):
            if member != own.id:
                yield RemoveMember(member)
        yield from self._remove
        name = f"lost-{secrets.token_hex(16)}"
        queues = max(self._ids, default=0) + 1 - catalog.next_queue_id
        changes = self._revision - catalog.revision
        if max(queues, changes) > MAX_CORRECTIONS:
            raise CannotRecover(
                f"the groups of queues know {queues} queues and {changes} changes of policies more than the system "
                f"group; allowed: {MAX_CORRECTIONS}"
            )
        for _ in range(queues):
            yield DeclareQueue(name, ())
            yield RemoveQueue(name)
        for _ in range((changes + 1) // 2):
            yield SetPolicy(name, name, 0, (("x-max-length", 1),))
            yield RemovePolicy(name)
        yield c.CloseSession(is_clean=True)

    def check(self) -> None:
        """CannotRecover unless the catalog, which has applied the entries, is as it has to be."""
        catalog = self._catalog
        own = catalog.members.by_id.get(self._own)
        is_alone = len(catalog.members.by_id) == 1 and own is not None and not own.is_drained
        has_names = any(catalog.queue(name) is not None for name in self.ended_queues)
        if (
            not is_alone
            or has_names
            or catalog.next_queue_id <= max(self._ids, default=0)
            or catalog.revision < self._revision
        ):
            raise CannotRecover("the catalog has refused a command that it needs, perhaps because it is full")


def _entry(operations: Sequence[bytes], now_ms: int, version: int) -> bytes:
    body = b"".join((bytes([COMMAND]), *command_parts(operations, now_ms, version)))
    if len(body) == CONFIGURATION_BYTES:  # no command has a configuration's size
        body = b"".join(
            (bytes([COMMAND]), *command_parts([*operations, encode(c.Wake(), None)], now_ms, version))
        )
    return body
