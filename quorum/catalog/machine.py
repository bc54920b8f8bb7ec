"""The system group's machine: the queues, with their configuration and group; policies, which change the configuration
of queues (policies.py); exchanges and bindings, by which nodes route messages to queues (exchanges.py); users and their
permissions (users.py); and the members of the cluster (members.py).

It holds the desired state. Each group's leader carries it out in that group's own log (`CreateQueue`, `UpdateConfig`,
`DeleteQueue`, changes of members). A queue's id is given out once and never again, so a queue of the same name declared
later is another queue. The machine is pure, like the machines of `fifo`: time is group time, order is defined
everywhere, and the same entries give the same bytes.
"""

from __future__ import annotations

import json
import zlib
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from fifo import commands as c
from fifo import versions
from fifo.effects import Applied, Ok, Refused, Reply
from fifo.kinds import U64
from fifo.outcome_hash import digest
from fifo.records import Field, Record
from quorum.catalog.arguments import (
    MAX_ALL_ARGUMENTS_BYTES,
    ArgumentError,
    ArgumentValue,
    check_policy_arguments,
    check_size,
    differences,
    effective_config,
    size_of,
    with_defaults,
)
from quorum.catalog.bindings import Binding, Exchange
from quorum.catalog.commands import (
    CatalogCommand,
    DeclareQueue,
    QueueDeclared,
    QueueRemoved,
    RemoveExpired,
    RemovePolicy,
    RemoveQueue,
    SeenChanges,
    SetPolicy,
)
from quorum.catalog.exchanges import Bind, DeclareExchange, DeleteExchange, Exchanges, Unbind
from quorum.catalog.layouts import LEASE_SETTINGS, POLICY, QUEUE, USER
from quorum.catalog.lease_times import (
    UNSEEN,
    FoundLeaseTimes,
    LeaseSettings,
    LeaseTimes,
    SetLeaseTimes,
    SettleLeaseTimes,
    check_times,
)
from quorum.catalog.members import (
    AddMember,
    BootstrapCluster,
    ConfirmMember,
    DrainMember,
    Members,
    RecordIncarnation,
    RemoveMember,
)
from quorum.catalog.numbering import Numbering
from quorum.catalog.policies import MAX_POLICIES, Effective, Policies, Policy, check_policy
from quorum.catalog.queues import MAX_QUEUES, CatalogQueue
from quorum.catalog.snapshot import (
    exchanges_state,
    members_state,
    numbering_state,
    restored_exchanges,
    restored_members,
    restored_numbering,
    restored_queue,
)
from quorum.catalog.users import RemoveUser, SetPermissions, SetUser, UserCommand, Users

MAY_BE_LEFT_OUT = (AddMember, RemoveMember, DrainMember, SetPolicy, RemovePolicy)
"""Commands that an operator may have skipped (CatalogMachine.leave_out). Commands about queues are not among them,
because the groups' logs depend on the queues' ids and groups."""
HASHED_EVERY = 1_000
"""The running hash includes the state itself at indices that this number divides."""
LEAP = 1 << 32
"""A skipped command about policies raises the revision by this number, above every revision with which the groups are
configured, whatever later commands change. So all queues are configured again."""
SNAPSHOT_FORMAT = 4
READABLE_FORMATS = (3, 4)
"""Format 3 has no lease settings."""
HASHED = (
    "bindings",
    "changes",
    "exchanges",
    "groups",
    "lease_settings",
    "members",
    "next_queue_id",
    "policies",
    "queues",
    "removals",
    "removed",
    "revision",
)
"""The fields of a snapshot that the running hash includes."""


class CatalogMachine:
    """queue_groups: numbers of the groups that may hold queues. newest_version: the highest that it applies."""

    def __init__(self, queue_groups: Sequence[int], newest_version: int = versions.CURRENT) -> None:
        if not queue_groups:
            raise ValueError("a catalog needs at least one queue group")
        self.newest_version = newest_version
        self.version = versions.FIRST
        """What the group has switched to. The system group is the last: all queue groups have switched before."""
        self.next_queue_id = 1
        self.members = Members()
        self.lease_settings: LeaseSettings | None = None
        self.policies = Policies()
        self.exchanges = Exchanges()
        self.users = Users()
        self.revision = 0
        """Number of changes of policies."""
        self.changes = 0
        """Number of commands of commands.SeenChanges that were taken, whatever they changed."""
        self.removals = 0
        """Number of removed queues, in entries of version 2 and later."""
        self.now_ms = 0
        """Group time of the latest entry that was applied here; no command depends on it."""
        self.running_hash = 0
        """Hash over (index, replies) of all entries of version 2 and later, and at some indices over the state."""
        self._removed = array("Q")
        """ids of removed queues, ascending"""
        self._numbering = Numbering()
        self._by_name: dict[str, CatalogQueue] = {}
        self._argument_bytes = 0  # of all queues; follows from them
        self._owned: Counter[str] = Counter()
        """the number of queues of each owner; this and the next one follow from the queues"""
        self._owned_bytes: Counter[str] = Counter()
        """the bytes of the arguments of these queues"""
        self._by_group: dict[int, dict[int, CatalogQueue]] = {group: {} for group in sorted(queue_groups)}
        self._changed: dict[int, CatalogQueue | None] = {}
        """see take_changes; local, never in a snapshot"""

    # ---- commands

    def apply(self, meta: c.Meta, operations: Sequence[c.Operation]) -> Applied:
        """Apply one Raft entry. Unnumbered operations are the leader's own: of those, only the ones in _LEADERS_OWN
        change anything here."""
        versions.check_version(f"entry {meta.index}", meta.version, self.newest_version)
        self.now_ms = meta.now_ms
        return self._applied(meta, (self._operation(meta, operation) for operation in operations))

    def leave_out(self, meta: c.Meta, operations: Sequence[c.Operation]) -> Applied:
        """Apply one Raft entry without its commands of MAY_BE_LEFT_OUT: each takes its number in its session, and is
        refused. Everything else in the entry is applied, because later entries build on it."""
        self.now_ms = meta.now_ms
        replies = (
            self._operation(meta, each, is_left_out=isinstance(each.command, MAY_BE_LEFT_OUT))
            for each in operations
        )
        return self._applied(meta, replies)

    def _applied(self, meta: c.Meta, replies: Iterable[Reply | None]) -> Applied:
        applied = Applied(tuple(replies), ())
        if meta.version >= 2:
            self.running_hash = zlib.crc32(digest(meta.index, applied), self.running_hash)
            if meta.index % HASHED_EVERY == 0:
                self.running_hash = zlib.crc32(self._hashed(), self.running_hash)
        return applied

    def _hashed(self) -> bytes:
        """The part of the state that the running hash includes. It belongs to the machine's version: later additions to
        the state are included for entries of a later version."""
        state = self._state()
        return _json([*(state[key] for key in HASHED), *(state[key] for key in ("users",) if key in state)])

    def _operation(self, meta: c.Meta, operation: c.Operation, *, is_left_out: bool = False) -> Reply | None:
        command: c.Command | CatalogCommand = operation.command
        handler = self._HANDLERS[type(command)]
        origin = operation.origin
        if origin is None:
            if isinstance(command, self._LEADERS_OWN):
                return handler(self, command, meta.version)
            if not isinstance(command, c.Wake | c.NodeDown):
                raise TypeError(f"{type(command).__name__} came without a number")
            return None
        if isinstance(command, c.RegisterProducer):
            return self._numbering.register(origin, command, meta.now_ms, meta.version)
        refused = self._numbering.refuse(origin, meta.now_ms)
        if refused is not None:
            return refused
        if meta.version >= 2 and isinstance(command, SeenChanges):
            if command.seen not in (UNSEEN, self.changes):
                return _outdated(type(command).__name__)
            self.changes += 1
        if is_left_out:
            return self._left_out(command)
        if isinstance(command, c.CloseSession):
            self._numbering.close(origin, meta.now_ms, meta.version)
        return handler(self, command, meta.version)

    def _left_out(self, command: c.Command | CatalogCommand) -> Reply:
        """Skip a command, without giving out again any number that the command gave out."""
        if isinstance(command, AddMember):
            self.members.next_number += 1
        elif isinstance(command, SetPolicy | RemovePolicy):
            self.revision += LEAP
        return Refused("bad_argument", "an operator has this command left out (skip_entries)")

    def _declare(self, command: DeclareQueue, version: int) -> Reply:
        arguments = dict(command.arguments)
        known = self._by_name.get(command.name)
        declared = version if known is None else known.version
        try:
            in_effect = with_defaults(tuple(arguments.items()), declared)
            config = effective_config(command.name, dict(in_effect), version)
        except ArgumentError as error:
            return Refused("bad_argument", str(error))
        if known is not None:
            if config != known.config:
                found = differences(config, known.config, arguments, dict(known.arguments))
                return Refused(
                    "different_arguments", f"queue {command.name!r} exists with other arguments: {found}"
                )
            return QueueDeclared(0, known.id, known.group)
        if command.seen not in (UNSEEN, self.removals):
            return _outdated("DeclareQueue")
        refused = _refuse_size(arguments, version)
        if refused is not None:
            return refused
        allowed = min(command.max_queues, MAX_QUEUES)
        if len(self._by_name) >= allowed:
            return Refused(
                "limit",
                f"queue {command.name!r} cannot be declared: there are {len(self._by_name)} queues; "
                f"allowed: {allowed} (max_queues)",
            )
        owner = command.owner if version >= versions.OWNED_QUEUES else ""
        own_size = size_of(arguments.items())
        refused = self._refuse_owner(command, own_size, allowed) if owner else None
        if refused is not None:
            return refused
        size = self._argument_bytes + own_size
        if size > MAX_ALL_ARGUMENTS_BYTES and version >= 2:
            return Refused(
                "limit",
                f"queue {command.name!r} cannot be declared: the arguments of all queues would have {size} bytes; "
                f"allowed: {MAX_ALL_ARGUMENTS_BYTES}",
            )
        group = min(self._by_group, key=lambda number: (len(self._by_group[number]), number))
        queue = CatalogQueue(
            self.next_queue_id,
            command.name,
            group,
            tuple((key, arguments[key]) for key in sorted(arguments)),
            config,
            version,
            owner,
        )
        self.next_queue_id += 1
        self._add(queue)
        return QueueDeclared(1, queue.id, queue.group)

    def _refuse_owner(self, command: DeclareQueue, size: int, max_queues: int) -> Refused | None:
        """The refusal of a new queue above its owner's share, None if it fits. size: the bytes of its arguments. An
        owner who may have all queues may also have all bytes of arguments."""
        what = f"queue {command.name!r} cannot be declared"
        owner, count = command.owner, self._owned[command.owner]
        if count >= command.max_owned:
            return Refused(
                "limit",
                f"{what}: user {owner!r} has {count} queues; allowed: {command.max_owned} (max_queues_per_user)",
            )
        total, allowed = self._owned_bytes[owner] + size, MAX_ALL_ARGUMENTS_BYTES // 2
        if size and total > allowed and command.max_owned < max_queues:
            return Refused(
                "limit",
                f"{what}: the arguments of the queues of user {owner!r} would have {total} bytes; allowed: {allowed}",
            )
        return None

    def _remove(self, command: RemoveQueue, version: int) -> Reply:
        queue = self._by_name.get(command.name)
        if queue is None:
            return Refused("not_found", f"there is no queue {command.name!r}")
        if command.queue not in (0, queue.id):
            return _outdated("RemoveQueue")
        self._drop(queue, version)
        return QueueRemoved(1, queue.id, queue.group)

    def _remove_expired(self, command: RemoveExpired, version: int) -> Reply | None:
        for queues in self._by_group.values():
            if command.queue in queues:
                self._drop(queues[command.queue], versions.EXPIRING_QUEUES)
                break
        return None

    def _drop(self, queue: CatalogQueue, version: int) -> None:
        del self._by_name[queue.name]
        self._count(queue, -1)
        self.removals += version >= 2
        del self._by_group[queue.group][queue.id]
        insort(self._removed, queue.id)
        self._changed[queue.id] = None
        self.policies.forget(queue.id)
        self.exchanges.forget_queue(queue.name)

    def _set_policy(self, command: SetPolicy, version: int) -> Reply:
        """Set a policy; the reply's count is 1 if that changes anything."""
        arguments = dict(command.arguments)
        try:
            check_policy(command.name, command.pattern, command.priority)
            check_policy_arguments(arguments, version)
        except ArgumentError as error:
            return Refused("bad_argument", str(error))
        known = self.policies.by_name.get(command.name)
        if known is None and len(self.policies) >= MAX_POLICIES:
            return Refused(
                "limit", f"there are {len(self.policies)} policies; at most {MAX_POLICIES} are allowed"
            )
        pairs = tuple((argument, arguments[argument]) for argument in sorted(arguments))
        policy = Policy(command.name, command.pattern, command.priority, pairs)
        if policy == known:
            return Ok(0)
        refused = _refuse_size(arguments, version)
        if refused is not None:
            return refused
        self._change_policies(self.policies.with_policy(policy))
        return Ok(1)

    def _remove_policy(self, command: RemovePolicy, version: int) -> Reply:
        if command.name not in self.policies.by_name:
            return Refused("not_found", f"there is no policy {command.name!r}")
        self._change_policies(self.policies.without(command.name))
        return Ok(1)

    def _change_policies(self, policies: Policies) -> None:
        self.policies = policies
        self.revision += 1

    def _declare_exchange(self, command: DeclareExchange, version: int) -> Reply:
        return self.exchanges.declare(command)

    def _delete_exchange(self, command: DeleteExchange, version: int) -> Reply:
        return self.exchanges.delete(command)

    def _bind(self, command: Bind, version: int) -> Reply:
        return self.exchanges.bind(command, self._by_name)

    def _unbind(self, command: Unbind, version: int) -> Reply:
        return self.exchanges.unbind(command)

    def _change_users(self, command: UserCommand, version: int) -> Reply:
        self.users, reply = self.users.changed(command)
        return reply

    def _bootstrap(self, command: BootstrapCluster, version: int) -> Reply | None:
        return self.members.bootstrap(command)

    def _record_incarnation(self, command: RecordIncarnation, version: int) -> Reply | None:
        return self.members.record_incarnation(command)

    def _found_lease_times(self, command: FoundLeaseTimes, version: int) -> Reply | None:
        if self.lease_settings is None:
            wanted = LeaseTimes(command.lease_ms, command.step_down_ms)
            is_new = not self.members.by_id
            self.lease_settings = LeaseSettings.founded(wanted, is_new=is_new)
        return None

    def _set_lease_times(self, command: SetLeaseTimes, version: int) -> Reply:
        """Set lease times; the reply's count is 1 if that changes anything."""
        wanted = LeaseTimes(command.lease_ms, command.step_down_ms)
        try:
            check_times(wanted)
        except ValueError as error:
            return Refused("bad_argument", str(error))
        if self.lease_settings is None:
            return Refused("not_found", "the cluster has no lease times yet")
        if self.lease_settings.wanted == wanted:
            return Ok(0)
        self.lease_settings = self.lease_settings.changed(wanted)
        return Ok(1)

    def _settle_lease_times(self, command: SettleLeaseTimes, version: int) -> Reply | None:
        found = self.lease_settings
        if found is not None and found.revision == command.revision and not found.is_settled:
            self.lease_settings = found.settled()
        return None

    def _add_member(self, command: AddMember, version: int) -> Reply:
        return self.members.add(command, version)

    def _confirm_member(self, command: ConfirmMember, version: int) -> Reply | None:
        return self.members.confirm(command)

    def _remove_member(self, command: RemoveMember, version: int) -> Reply:
        return self.members.remove(command, version)

    def _drain_member(self, command: DrainMember, version: int) -> Reply:
        return self.members.drain(command, version)

    def _set_version(self, command: c.SetVersion, version: int) -> Reply | None:
        versions.check_version("the system group's switch", command.version, self.newest_version)
        self.version = max(self.version, command.version)
        return None

    def _nothing(self, command: object, version: int) -> Reply:
        return Ok()

    def _add(self, queue: CatalogQueue) -> None:
        self._by_name[queue.name] = queue
        self._count(queue, 1)
        self._by_group[queue.group][queue.id] = queue
        self._changed[queue.id] = queue

    def _count(self, queue: CatalogQueue, sign: int) -> None:
        """Count a queue that is added, or no longer one that is removed (sign -1)."""
        size = size_of(queue.arguments)
        self._argument_bytes += sign * size
        for counts, more in ((self._owned, 1), (self._owned_bytes, size)):
            counts[queue.owner] += sign * more
            if not counts[queue.owner]:
                del counts[queue.owner]

    _HANDLERS: ClassVar[dict[type, Callable[[CatalogMachine, Any, int], Reply | None]]] = {
        DeclareQueue: _declare,
        RemoveQueue: _remove,
        RemoveExpired: _remove_expired,
        SetPolicy: _set_policy,
        RemovePolicy: _remove_policy,
        DeclareExchange: _declare_exchange,
        DeleteExchange: _delete_exchange,
        Bind: _bind,
        Unbind: _unbind,
        SetUser: _change_users,
        SetPermissions: _change_users,
        RemoveUser: _change_users,
        BootstrapCluster: _bootstrap,
        RecordIncarnation: _record_incarnation,
        FoundLeaseTimes: _found_lease_times,
        SetLeaseTimes: _set_lease_times,
        SettleLeaseTimes: _settle_lease_times,
        AddMember: _add_member,
        ConfirmMember: _confirm_member,
        RemoveMember: _remove_member,
        DrainMember: _drain_member,
        c.RegisterProducer: _nothing,
        c.CloseSession: _nothing,
        c.NodeDown: _nothing,
        c.SetVersion: _set_version,
        c.Wake: _nothing,
    }

    _LEADERS_OWN = (
        BootstrapCluster,
        RecordIncarnation,
        ConfirmMember,
        FoundLeaseTimes,
        SettleLeaseTimes,
        RemoveExpired,
        c.SetVersion,
    )

    # ---- queries

    def queue(self, name: str) -> CatalogQueue | None:
        """The queue of this name."""
        return self._by_name.get(name)

    def queues(self) -> list[CatalogQueue]:
        """All queues, in no particular order; cheap."""
        return list(self._by_name.values())

    def take_changes(self) -> dict[int, CatalogQueue | None]:
        """By id, the queues that were declared since the last call (all, at the first call), and None for those that
        were removed. O(what has changed)."""
        changed, self._changed = self._changed, {}
        return changed

    def queues_of_group(self, group: int) -> list[CatalogQueue]:
        """The queues of a group by id, which is the order of their declaration."""
        return list(self._by_group.get(group, {}).values())

    def has_queue(self, queue: int, group: int) -> bool:
        """Whether the group has a queue with this id."""
        return queue in self._by_group.get(group, {})

    def is_gone(self, queue: int, group: int) -> bool:
        """Whether a queue with this id was removed, or is in another group. It does not suffice that the catalog lacks
        the queue, because this member's catalog may be wrong."""
        at = bisect_left(self._removed, queue)
        is_removed = at < len(self._removed) and self._removed[at] == queue
        return is_removed or any(
            queue in queues for number, queues in self._by_group.items() if number != group
        )

    def effective(self, queue: CatalogQueue) -> Effective:
        """The configuration that applies to the queue: its own arguments and its policy's."""
        return self.policies.effective(queue)

    @property
    def queue_groups(self) -> tuple[int, ...]:
        """Numbers of the groups that may hold queues, ascending."""
        return tuple(self._by_group)

    # ---- rehearsals

    @classmethod
    def rehearsing(
        cls,
        queue_groups: Sequence[int],
        queues: Iterable[CatalogQueue],
        policies: Iterable[Policy],
        exchanges: Iterable[Exchange],
        bindings: Iterable[Binding],
    ) -> CatalogMachine:
        """A machine with these objects, for `rehearse`. It is no member's state: it has no producers and no members,
        and gives out other ids. exchanges: those that are always there may be among them. O(objects)."""
        machine = cls(queue_groups)
        machine.policies = Policies(policies)
        for queue in sorted(queues, key=attrgetter("id")):
            machine._add(queue)
            machine.next_queue_id = queue.id + 1
        for exchange in exchanges:
            if exchange.id:
                machine.exchanges.add_exchange(exchange)
                machine.exchanges.next_id = max(machine.exchanges.next_id, exchange.id + 1)
        for binding in sorted(bindings, key=attrgetter("id")):
            machine.exchanges.add_binding(binding)
            machine.exchanges.next_id = max(machine.exchanges.next_id, binding.id + 1)
        return machine

    def rehearse(self, command: CatalogCommand, version: int) -> Reply | None:
        """The reply that the command would get in an entry of this version. Changes this machine accordingly."""
        return self._HANDLERS[type(command)](self, command, version)

    # ---- snapshot

    def snapshot(self) -> bytes:
        """The complete state, canonical: equal states give equal bytes, on every member."""
        return _json(self._state())

    def _state(self) -> dict[str, Any]:
        """The state by field, in an order that is the same on every member. What came with a version is there from the
        switch to that version on: until then, older builds are members and have to read it."""
        version = self.version
        later: dict[str, Any] = {} if version <= versions.BASE else {"version": version}
        if self.users:
            later["users"] = [USER.row(user, version) for user in self.users.by_name.values()]
        state = {
            **COUNTERS.by_name(self, version),
            **exchanges_state(self.exchanges, version),
            "format": SNAPSHOT_FORMAT,
            "groups": list(self._by_group),
            "lease_settings": self.lease_settings and LEASE_SETTINGS.row(self.lease_settings, version),
            "members": members_state(self.members, version),
            "policies": [POLICY.row(policy, version) for policy in self.policies.by_name.values()],
            "queues": [
                QUEUE.row(queue, version) for queue in sorted(self._by_name.values(), key=attrgetter("id"))
            ],
            "removed": _ranges(self._removed),
        }
        return {**later, **dict(sorted(state.items())), **numbering_state(self._numbering, version)}

    @classmethod
    def restore(cls, data: bytes, newest_version: int = versions.CURRENT) -> CatalogMachine:
        """The machine of a snapshot. Raises ValueError if the bytes are no snapshot of a readable format, or of a
        version above newest_version."""
        try:
            state = json.loads(data)
            if state["format"] not in READABLE_FORMATS:
                raise ValueError(f"catalog snapshot format {state['format']}; known: {READABLE_FORMATS}")
            machine = cls(state["groups"], newest_version)
            machine.version = state.get("version", versions.FIRST)
            versions.check_version("the catalog's state", machine.version, newest_version)
            COUNTERS.set_fields(state, machine)
            machine.members = restored_members(state["members"])
            settings = state.get("lease_settings")
            machine.lease_settings = None if settings is None else LEASE_SETTINGS.from_row(settings)
            machine.policies = Policies(map(POLICY.from_row, state["policies"]))
            for row in state["queues"]:
                machine._add(restored_queue(row))
            machine.exchanges = restored_exchanges(state)
            machine.users = Users(map(USER.from_row, state.get("users", ())))
            machine._numbering = restored_numbering(state)
            machine._restore_removed(state.get("removed"))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{len(data)} bytes that are no catalog snapshot: {error}") from error
        return machine

    def _restore_removed(self, ranges: list[list[int]] | None) -> None:
        """Restore the removed ids. ranges: None if an earlier build has written the snapshot; an id without a queue
        then counted as removed."""
        if ranges is None:
            living = {queue.id for queue in self._by_name.values()}
            ids = (each for each in range(1, self.next_queue_id) if each not in living)
        else:
            ids = (each for first, last in ranges for each in range(first, last + 1))
        self._removed = array("Q", ids)


COUNTERS = Record(
    CatalogMachine,
    (
        Field("next_queue_id", U64),
        Field("revision", U64),
        Field("changes", U64, since=2, default=0),
        Field("removals", U64, since=2, default=0),
        Field("running_hash", U64, since=2, default=0),
    ),
)
"""Numbers of the state, by name."""


def _json(state: object) -> bytes:
    return json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode()


def _ranges(ids: Iterable[int]) -> list[list[int]]:
    """[first, last] of each range of ascending ids."""
    ranges: list[list[int]] = []
    for each in ids:
        if ranges and ranges[-1][1] == each - 1:
            ranges[-1][1] = each
        else:
            ranges.append([each, each])
    return ranges


def _refuse_size(arguments: Mapping[str, ArgumentValue], version: int) -> Refused | None:
    if version >= 2:
        try:
            check_size(arguments)
        except ArgumentError as error:
            return Refused("bad_argument", str(error))
    return None


def _outdated(name: str) -> Refused:
    return Refused("outdated", f"the state that {name} was made from has changed; make the command again")
