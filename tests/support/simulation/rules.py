"""What has to be true of everything that happens, checked as it happens. Each rule is one method or one paragraph; what
it saw is counted, and `judge` refuses a run that showed nothing.

A consumer is taken to hold a message from the moment its node hands the delivery to the stream, with a valid lease,
until the node has read its disposition, the call ends at either end (the client then knows that it holds nothing any
more), its node's process dies, or the lease is over by its node's clock.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from quorum.client.batch import BatchReader
from quorum.node.replica.replica import SYSTEM_GROUP, state_of

if TYPE_CHECKING:
    from quorum.replication.group import Group
    from support.simulation.node import Node
    from support.simulation.wire import ServedCall
    from support.simulation.world import World

STRANGE = "strange"
"""The queue of hostile clients: what they put in there nobody else has to understand."""
Key = tuple[str, int]
"""(queue, sequence). No queue is declared twice under one name."""
Held = tuple[str, int, int]
"""(consumer tag, attach, delivery tag), of one call"""
Origin = tuple[int, int]
"""(producer, its number of the message), as the body says"""


class Broken(AssertionError):
    """A rule was broken, or nothing happened that could have broken it. world: where, once that is known."""

    world: World | None = None


def origin_of(body: bytes) -> Origin:
    producer, n, _ = body.split(b":", 2)
    return int(producer), int(n)


class Rules:
    def __init__(self, world: World) -> None:
        self._world = world
        self.counts: Counter[str] = Counter()
        self._leaders: dict[tuple[int, int], str] = {}
        self._hashes: dict[tuple[int, int], tuple[int, str]] = {}
        self._committed: dict[tuple[int, int], tuple[int, str]] = {}
        """(group, index) -> the term of the entry, and who said first that it is committed"""
        self._compared = 0
        self._holders: dict[Key, tuple[ServedCall, str, int]] = {}
        """who was handed it last: call, consumer tag, group"""
        self._seen: dict[Key, None] = {}
        self._places: dict[Origin, Key] = {}
        self._settled: dict[Key, None] = {}
        self.sent: dict[bytes, None] = {}
        """every body that a client has sent, confirmed or not"""
        self.confirmed: dict[Origin, str] = {}
        """with the queue"""
        self._refused: dict[Origin, None] = {}
        """what a full queue has refused"""
        self.published: dict[Origin, bool] = {}
        """to the queue with selectors: whether anybody wants it"""
        self.taken: dict[Origin, None] = {}
        """what a client that had received it wanted to settle"""
        self._reserved: dict[Key, str] = {}
        """for whom a message is kept that was read by a durable reader"""
        self._origins: dict[Key, Origin] = {}
        """of what was reserved"""

    # ---- members

    def stepped(self, node: Node) -> None:
        """One leader a term (Raft §5.2); what is committed stays; members that have applied the same entries have given
        the same answers; who has forgotten what it promised promises nothing."""
        member = node.member
        for group, replica in member.replicas.items():
            raft = replica.raft
            if node.machine.is_wiped and raft.term:
                raise Broken(
                    f"{node.id} has lost its disk and takes part in term {raft.term} of group {group}"
                )
            if raft.is_leader:
                leader = self._leaders.setdefault((group, raft.term), node.id)
                if leader != node.id:
                    raise Broken(f"{node.id} and {leader} lead term {raft.term} of group {group}")
            self._committed_for_good(node, group, raft)
            if replica.parted and not node.disk.is_rotten:
                raise Broken(
                    f"{node.id} says that its state of group {group} has parted at entry {replica.parted}"
                )
            if group != SYSTEM_GROUP:
                machine = member.queue_machine(group)
                if node.compared.get(group) == machine.running_hash:
                    continue
                node.compared[group] = machine.running_hash
                known = self._hashes.setdefault((group, machine.index), (machine.running_hash, node.id))
                if known[0] != machine.running_hash:
                    raise Broken(f"{node.id} and {known[1]} differ at entry {machine.index} of group {group}")
                self._compared += known[1] != node.id

    def _committed_for_good(self, node: Node, group: int, raft: Group) -> None:
        """What is committed stays (Raft §5.4.3): every member commits the same entry at an index, in all its lives. An
        entry is known by index and term."""
        judged, commit_index = node.judged.get(group, 0), raft.commit_index
        if commit_index <= judged:
            return
        node.judged[group] = commit_index
        for index in range(judged + 1, commit_index + 1):
            term = raft.term_at(index)
            if term:
                known = self._committed.setdefault((group, index), (term, node.id))
                if known[0] != term:
                    raise Broken(
                        f"entry {index} of group {group} is committed in term {term}, says {node.id}, and was in term "
                        f"{known[0]}, said {known[1]}"
                    )

    def installed(self, node: Node, group: int, index: int) -> None:
        """A snapshot counts for redundancy only with the bodies it refers to: this member acknowledges its index from
        now on, and may be asked for any of them."""
        wanted = node.member.replicas[group].checkpoints.newest_entries().as_array()
        missing = node.log.missing(group, wanted, committed=index)
        if missing and not node.disk.is_rotten:
            raise Broken(
                f"{node.id} has put a snapshot of group {group} at {index} in place without the bodies of "
                f"{list(missing)}"
            )

    def refused(self, dialer: Node, listener: Node) -> None:
        """A handshake between two nodes came to nothing."""
        self.counts["wiped members refused"] += dialer.machine.is_wiped or listener.machine.is_wiped

    # ---- what nodes read and write

    def requested(self, call: ServedCall, request: Any) -> None:
        kind = request.WhichOneof("request") if hasattr(request, "open") else None
        if kind == "disposition":
            wire = request.disposition
            last = max((tag for _, _, tag in call.held), default=0)
            for each in wire.tags:
                for tag in range(each.first, min(each.last, last) + 1):
                    self._release(call, wire.consumer_tag, wire.attach, tag)
        elif kind == "attach":
            self._release_all(call, request.attach.consumer_tag)
            call.queues[request.attach.consumer_tag] = request.attach.queue
        elif kind == "cancel" and request.cancel.return_held:
            self._release_all(call, request.cancel.consumer_tag)
        elif kind == "get":
            call.queues[""] = request.get.queue

    def _release(self, call: ServedCall, consumer: str, attach: int, tag: int) -> None:
        key = call.held.pop((consumer, attach, tag), None)
        holder = None if key is None else self._holders.get(key)
        if key is not None and holder is not None and holder[0] is call:
            del self._holders[key]

    def _release_all(self, call: ServedCall, consumer: str) -> None:
        for held in [held for held in call.held if held[0] == consumer]:
            self._release(call, *held)

    def writes(self, call: ServedCall, response: Any) -> None:
        """Nothing is delivered without a lease."""
        if not hasattr(response, "delivery") or response.WhichOneof("response") != "delivery":
            return
        queue = call.queues[response.delivery.consumer_tag]
        found = call.node.member.catalog.queue(queue)
        if found is not None and not call.node.may_deliver(found.group):
            raise Broken(f"{call.node.name} delivers from {queue!r} and has no lease on group {found.group}")

    def answered(self, call: ServedCall, response: Any) -> None:
        if not hasattr(response, "delivery") or response.WhichOneof("response") != "delivery":
            return
        wire = response.delivery
        queue = call.queues[wire.consumer_tag]
        found = call.node.member.catalog.queue(queue)
        if found is None or queue == STRANGE:
            return  # deleted meanwhile: nothing of it can be with another one
        group = found.group
        reader = BatchReader(wire.batch, wire.count)
        sequences = [n for each in wire.sequences for n in range(each.first, each.last + 1)]
        again = {n for each in wire.redelivered for n in range(each.first, each.last + 1)}
        for ordinal, sequence in enumerate(sequences):
            tag = wire.first_tag + ordinal
            held = (wire.consumer_tag, wire.attach, tag)
            self._handed(call, held, group, (queue, sequence), reader.body(ordinal), tag in again)

    def _handed(
        self, call: ServedCall, held: Held, group: int, key: Key, body: bytes, is_again: bool
    ) -> None:
        if body not in self.sent:
            raise Broken(f"{key} has a body that nobody has sent: {body[:60]!r}")
        origin = origin_of(body)
        if self._places.setdefault(origin, key) != key:
            raise Broken(f"message {origin} is in the queues twice, at {self._places[origin]} and at {key}")
        if key in self._settled:
            raise Broken(f"{key}, message {origin}, was settled, answered so, and is delivered again")
        self._is_within_bounds(key, origin)
        if key in self._reserved:
            raise Broken(f"{key} is handed to {held[0]!r} while it is reserved for {self._reserved[key]}")
        before = self._holders.get(key)
        if before is not None and before[0].is_used and before[0].node.may_deliver(before[2]):
            raise Broken(
                f"{key} is handed to {held[0]!r} at {call.node.name} while {before[1]!r} at {before[0].node.name} "
                f"holds it, with a lease"
            )
        if key in self._seen and not is_again:
            raise Broken(f"{key} was handed out before and is not flagged as redelivered")
        self.counts["redelivered"] += is_again
        self._seen[key] = None
        self._holders[key] = call, held[0], group
        call.held[held] = key
        self.counts["delivered"] += 1

    def _is_within_bounds(self, key: Key, origin: Origin) -> None:
        """What has left its queue, or never came, is not handed out."""
        ledger = self._world.ledger
        if origin in self._refused:
            raise Broken(f"{key}, message {origin}, was refused, answered so, and is delivered")
        limit = ledger.delivery_limit(key[0])
        if 0 <= limit < ledger.failures_of(key):
            raise Broken(
                f"{key}, message {origin}, has failed {ledger.failures_of(key)} times and is delivered again: its "
                f"queue allows {limit}"
            )

    def granted(self, node: Node) -> None:
        """A node's lease goes on: what its consumers hold is with nobody else (if it had lapsed in between, they would
        have been ended)."""
        for connection in self._world.connections:
            call = connection.served
            if connection.node is not node or call is None or not call.is_used:
                continue
            for held, key in call.held.items():
                holder = self._holders.get(key)
                if (
                    holder is not None
                    and holder[0] is not call
                    and holder[0].is_used
                    and holder[0].node.may_deliver(holder[2])
                    and node.may_deliver(holder[2])
                ):
                    raise Broken(
                        f"{key} is with {held[0]!r} at {node.name} still, whose lease was renewed, and with "
                        f"{holder[1]!r} at {holder[0].node.name}"
                    )

    # ---- what durable readers say

    def reserved(self, reader: str, keys: list[Key], bodies: list[bytes]) -> None:
        """They were read from a reservation: kept for this reader until it settles or releases them."""
        for key, body in zip(keys, bodies, strict=True):
            if body not in self.sent:
                raise Broken(f"{key} has a body that nobody has sent: {body[:60]!r}")
            origin = self._origins[key] = origin_of(body)
            if self._places.setdefault(origin, key) != key:
                raise Broken(
                    f"message {origin} is in the queues twice, at {self._places[origin]} and at {key}"
                )
            if key in self._settled:
                raise Broken(
                    f"{key}, message {origin}, was settled, answered so, and is reserved for {reader}"
                )
            holder = self._holders.get(key)
            if holder is not None and holder[0].is_used and holder[0].node.may_deliver(holder[2]):
                raise Broken(f"{key} is reserved for {reader} while {holder[1]!r} holds it, with a lease")
            self._seen[key] = None
            self._reserved[key] = reader
        self.counts["reserved"] += len(keys)

    def released(self, keys: list[Key]) -> None:
        """From now on they may go back to the queue."""
        for key in keys:
            self._reserved.pop(key, None)

    def takes(self, keys: list[Key]) -> None:
        """A durable reader is about to settle them."""
        for key in keys:
            self.taken[self._origins[key]] = None

    # ---- what clients say

    def confirm(self, producer: int, numbers: range, queue: str) -> None:
        for n in numbers:
            self.confirmed[producer, n] = queue
        self.counts["confirmed"] += len(numbers)

    def refuse(self, producer: int, numbers: range) -> None:
        """The service has answered that it did not take these."""
        for n in numbers:
            self._refused[producer, n] = None
        self.counts["refused by max-length"] += len(numbers)

    def settle(self, keys: list[Key]) -> None:
        """The service has answered that these are settled."""
        for key in keys:
            if key in self._settled:
                raise Broken(f"{key} was settled twice, and both times answered so")
            self._settled[key] = None
            self._reserved.pop(key, None)
        self.counts["settled"] += len(keys)

    def unwanted(self) -> int:
        """How many messages may be left in the queue with selectors: those that no consumer wants."""
        return sum(1 for key, is_wanted in self.published.items() if not is_wanted and key not in self.taken)

    # ---- the end

    def judge(self) -> None:
        excused = self._world.ledger.gone
        lost = [
            origin for origin in sorted(self.confirmed) if origin not in self.taken and origin not in excused
        ]
        if lost:
            shown = [(origin, self.confirmed[origin], self._places.get(origin)) for origin in lost[:10]]
            raise Broken(f"{len(lost)} messages were confirmed and are lost: {shown}")
        self._agree()
        for needed in ("confirmed", "delivered", "settled"):
            if not self.counts[needed]:
                raise Broken(f"an empty proof: nothing was {needed}")
        if not self.counts["queues drained"]:
            raise Broken("an empty proof: no queue was drained")
        if not self._compared:
            raise Broken("an empty proof: no two members were compared")
        if not self._world.faults.landed:
            raise Broken("an empty proof: no fault has landed")

    def _agree(self) -> None:
        members = [node.member for node in self._world.members()]
        for group in members[0].replicas:
            if len({state_of(member.replicas[group].machine) for member in members}) != 1:
                raise Broken(f"members differ in the state of group {group}")
            if group != SYSTEM_GROUP:
                catalog, machine = members[0].catalog, members[0].queue_machine(group)
                wished = {queue.id: queue for queue in catalog.queues_of_group(group)}
                if machine.queue_ids() != list(wished):
                    raise Broken(f"group {group} does not have the queues of the catalog: {list(wished)}")
                if machine.configured != catalog.revision or any(
                    machine.config_of(number) != catalog.effective(queue).config
                    for number, queue in wished.items()
                ):
                    raise Broken(f"group {group} is not configured as policies say ({catalog.revision})")
        for member in members:
            if len(member.sessions) > 1:
                raise Broken(f"{member.config.name} still has the sessions {list(member.sessions)}")
