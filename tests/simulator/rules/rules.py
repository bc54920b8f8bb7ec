"""What has to be true of everything that happens.

Each rule about the inside of the cluster is one method or one paragraph, and is checked as it happens. What it saw is
counted, and `judge` refuses a run that showed nothing. The rules about what clients were told are those of
quorum.histories: history.py records it, and `judge_history` looks at all that was recorded so far.

A consumer is taken to hold a message from the moment its node hands the delivery to the stream, with a valid lease,
until the node has read its disposition, the call ends at either end (the client then knows that it holds nothing any
more), its node's process dies, or the lease is over by its node's clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fifo.persistence.state_crc import StateCrc
from quorum.client.messages.batch import BatchReader
from quorum.histories import Run
from quorum.histories.records import Record
from quorum.node.replica.replica import SYSTEM_GROUP, state_of
from simulator.rules.hand_outs import HandOuts, Held
from simulator.rules.history import History, attachment
from support.histories.checkers import Violation

if TYPE_CHECKING:
    from quorum.replication.group import Group
    from simulator.machines.node import Node
    from simulator.machines.wire import ServedCall
    from simulator.world import World

MAX_TAG = (1 << 64) - 1
EARLIEST_PERCENT = 85
"""By the world's clock a time that a group counts takes at least so much: a leader slews group time by up to a tenth,
and clocks drift by up to a hundredth."""
STRANGE = "strange"
"""The queue of hostile clients: what they put in there nobody else has to understand."""
Key = tuple[str, int]
"""(queue, sequence). No queue is declared twice under one name."""
Origin = tuple[int, int]
"""(producer, its number of the message), as the body says"""


class Broken(AssertionError):
    """A rule was broken, or nothing happened that could have broken it. world: where, once that is known."""

    world: World | None = None


def _parts(response: Any) -> list[Any]:
    """What a response of a session consists of; nothing for one of another call."""
    if not hasattr(response, "delivery"):
        return []
    return list(response.turn.responses) if response.HasField("turn") else [response]


def _deliveries(response: Any) -> list[Any]:
    return [each.delivery for each in _parts(response) if each.HasField("delivery")]


def origin_of(body: bytes) -> Origin:
    producer, n, _ = body.split(b":", 2)
    return int(producer), int(n)


def message_group(n: int) -> str:
    """The message group of a producer's message in the queue that has them; empty if it has none. All producers publish
    to the same groups."""
    return f"group-{n % 4}" if n % 4 else ""


MORTAL, GRAVE, TOMB = "mortal", "grave", "tomb"
"""The queues whose messages clients/mortals.py judges: the history does not know them."""
COPIES = "copy-"
"""So begin the names of queues that may have copies of one message, before their numbers."""
COPY_STEP = 1_000_000


def origin_in(queue: str, body: bytes) -> Origin:
    """The origin as the history knows it: in a queue of copies, each queue's copies have a producer of their own."""
    producer, n = origin_of(body)
    if queue.startswith(COPIES):
        producer += COPY_STEP * int(queue.removeprefix(COPIES))
    return producer, n


@dataclass(frozen=True, slots=True)
class Holder:
    """The consumer that a message was delivered to, the call of this consumer, and the Raft group of the message."""

    call: ServedCall
    consumer: str
    group: int


class Rules:
    def __init__(self, world: World) -> None:
        self._world = world
        self.counts: Counter[str] = Counter()
        self.history = History(lambda: world.now_ms)
        self.hand_outs = HandOuts(world)
        self._leaders: dict[tuple[int, int], str] = {}
        self._hashes: dict[tuple[int, int], tuple[int, str]] = {}
        self._committed: dict[tuple[int, int], tuple[int, str]] = {}
        """(group, index) -> the term of the entry, and who said first that it is committed"""
        self._compared = 0
        self._holders: dict[Key, Holder] = {}
        """who was handed it last"""
        self._message_groups: dict[Key, str] = {}
        """of messages that were handed out in the queue with message groups"""
        self.sent: dict[bytes, None] = {}
        """every body that a client has sent, confirmed or not"""
        self.published: dict[Origin, bool] = {}
        """to the queue with selectors: whether anybody wants it"""
        self.taken: dict[Origin, None] = {}
        """what a client that had received it wanted to settle"""
        self._reserved: dict[Key, str] = {}
        """for whom a message is kept that was read by a durable reader"""
        self._origins: dict[Key, Origin] = {}
        """of what was reserved"""
        self._transactions: list[list[Origin]] = []
        """what each transaction publishes"""
        self._found: dict[Origin, bool] = {}
        """of these messages: whether one was handed out or read"""

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
            if raft.commit_index > node.judged.get(group, 0):
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
            self._disposed(call, request.disposition)
        elif kind == "turn":
            for disposition in request.turn.dispositions:
                self._disposed(call, disposition)
        elif kind == "attach":
            self._release_all(call, request.attach.consumer_tag)
            call.queues[request.attach.consumer_tag] = request.attach.queue
        elif kind == "cancel" and request.cancel.requeue:
            self._release_all(call, request.cancel.consumer_tag)
        elif kind == "get":
            call.queues[""] = request.get.queue

    def _disposed(self, call: ServedCall, wire: Any) -> None:
        last = max((tag for _, _, tag in call.held), default=0)
        for each in wire.tags:
            for tag in range(each.first, min(each.last, last) + 1):
                self._release(call, wire.consumer_tag, wire.attach, tag)

    def _release(self, call: ServedCall, consumer: str, attach: int, tag: int) -> None:
        key, _ = call.held.pop((consumer, attach, tag), (None, 0))
        holder = None if key is None else self._holders.get(key)
        if key is not None and holder is not None and holder.call is call:
            del self._holders[key]

    def _release_all(self, call: ServedCall, consumer: str, last_tag: int = MAX_TAG) -> None:
        for held in [held for held in call.held if held[0] == consumer and held[2] <= last_tag]:
            self._release(call, *held)

    def writes(self, call: ServedCall, response: Any) -> None:
        """Nothing is delivered without a lease."""
        for delivery in _deliveries(response):
            queue = call.queues[delivery.consumer_tag]
            found = call.node.member.catalog.queue(queue)
            if found is not None and not call.node.may_deliver(found.group):
                raise Broken(
                    f"{call.node.name} delivers from {queue!r} and has no lease on group {found.group}"
                )

    def answered(self, call: ServedCall, response: Any) -> None:
        for each in _parts(response):
            if each.HasField("timed_out"):
                self._release_all(call, each.timed_out.consumer_tag, each.timed_out.last_tag)
                self.counts["consumers timed out"] += 1
        for delivery in _deliveries(response):
            self._delivered(call, delivery)

    def _delivered(self, call: ServedCall, wire: Any) -> None:
        queue = call.queues[wire.consumer_tag]
        found = call.node.member.catalog.queue(queue)
        if found is None or queue == STRANGE:
            return  # deleted meanwhile: nothing of it can be with another one
        if queue in (MORTAL, GRAVE, TOMB):
            return
        group = found.group
        reader = BatchReader(wire.batch, wire.count)
        sequences = [n for each in wire.sequences for n in range(each.first, each.last + 1)]
        again = {n for each in wire.redelivered for n in range(each.first, each.last + 1)}
        messages = []
        for ordinal, sequence in enumerate(sequences):
            tag = wire.first_tag + ordinal
            if queue in self._world.consumer_timeouts and self._was_taken(group, found.id, wire, sequence):
                self.counts["deliveries after a timeout"] += 1
                continue
            origin = self._origin((queue, sequence), reader.body(ordinal))
            self._handed(call, (wire.consumer_tag, wire.attach, tag), group, (queue, sequence), origin)
            messages.append(Run(sequence, str(origin[0]), origin[1], tag in again))
        if call.connection.client_is_there:
            who = attachment(call.connection.client.name, wire.consumer_tag, wire.attach)
            self.history.delivers(queue, who, messages)
        self.counts["delivered"] += len(messages)
        self.counts["redelivered"] += sum(each.redelivered for each in messages)

    def _was_taken(self, group: int, queue: int, wire: Any, sequence: int) -> bool:
        """Whether the timeout has taken a message from its consumer before the consumer's member, which lags behind,
        hands it over. The consumer is told so next."""
        machines = [node.member.queue_machine(group) for node in self._world.members()]
        machine = max(machines, key=lambda each: each.index).queues.get(queue)
        consumers = [] if machine is None else list(machine.consumers.by_key.values())
        for each in consumers:
            if (each.tag, each.attach) == (wire.consumer_tag, wire.attach):
                held = zip(each.checked_out.sequences, each.checked_out.counts, strict=True)
                return not any(first <= sequence < first + count for first, count in held)
        return False

    def _origin(self, key: Key, body: bytes) -> Origin:
        """Of a message that is handed out: it is, byte for byte, what a client has sent."""
        if body not in self.sent:
            raise Broken(f"{key} has a body that nobody has sent: {body[:60]!r}")
        origin = origin_in(key[0], body)
        if origin in self._found:
            self._found[origin] = True
        return origin

    def _handed(self, call: ServedCall, held: Held, group: int, key: Key, origin: Origin) -> None:
        self._is_within_limit(key, origin)
        if key in self._reserved:
            raise Broken(f"{key} is handed to {held[0]!r} while it is reserved for {self._reserved[key]}")
        before = self._holders.get(key)
        if before is not None and self._holds(before, key[0]):
            raise Broken(
                f"{key} is handed to {held[0]!r} at {call.node.name} while {before.consumer!r} at "
                f"{before.call.node.name} holds it, with a lease"
            )
        if key[0] in self._world.single_active:
            self._is_alone(call, held[0], key)
        if any(place.name == key[0] for place in self._world.grouped):
            self._has_group(call, held[0], key, origin)
        self._holders[key] = Holder(call, held[0], group)
        call.held[held] = key, self.hand_outs.at_ms(held)

    def _holds(self, holder: Holder, queue: str) -> bool:
        """Whether it still has the right to the message: it has a lease, and the consumer's timeout has not passed."""
        if not holder.call.is_used or not holder.call.node.may_deliver(holder.group):
            return False
        return not self._is_overdue(holder.call, holder.consumer, queue)

    def _is_overdue(self, call: ServedCall, consumer: str, queue: str) -> bool:
        """Whether a consumer has held a message for as long as the queue allows, so that the timeout may have taken all
        that it holds, and it is not told yet. The group's time may be ahead."""
        timeout_ms = self._world.consumer_timeouts.get(queue)
        if timeout_ms is None:
            return False
        earliest = self._world.now_ms - timeout_ms * EARLIEST_PERCENT // 100
        return any(held[0] == consumer and at_ms <= earliest for held, (_, at_ms) in call.held.items())

    def _is_alone(self, call: ServedCall, consumer: str, key: Key) -> None:
        """Of a queue with a single active consumer no two hold messages at a time."""
        for other, holder in self._holders.items():
            is_another = other[0] == key[0] and (holder.call, holder.consumer) != (call, consumer)
            if is_another and self._holds(holder, key[0]):
                raise Broken(
                    f"{key} is handed to {consumer!r} at {call.node.name} while {holder.consumer!r} at "
                    f"{holder.call.node.name} holds {other}: there is one active consumer at a time"
                )

    def _has_group(self, call: ServedCall, consumer: str, key: Key, origin: Origin) -> None:
        """No two consumers hold messages of one message group at a time."""
        group = self._message_groups[key] = message_group(origin[1])
        for other, holder in self._holders.items() if group else ():
            is_another = other[0] == key[0] and (holder.call, holder.consumer) != (call, consumer)
            if is_another and self._message_groups[other] == group and self._holds(holder, key[0]):
                raise Broken(
                    f"{key} of {group!r} is handed to {consumer!r} at {call.node.name} while {holder.consumer!r} at "
                    f"{holder.call.node.name} holds {other} of it"
                )

    def _is_within_limit(self, key: Key, origin: Origin) -> None:
        """What has failed too often is not handed out."""
        ledger = self._world.ledger
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
            for held, (key, _) in call.held.items():
                holder = self._holders.get(key)
                if (
                    holder is not None
                    and holder.call is not call
                    and self._holds(holder, key[0])
                    and node.may_deliver(holder.group)
                    and not self._is_overdue(call, held[0], key[0])
                ):
                    raise Broken(
                        f"{key} is with {held[0]!r} at {node.name} still, whose lease was renewed, and with "
                        f"{holder.consumer!r} at {holder.call.node.name}"
                    )

    # ---- what durable readers say

    def reserved(self, reader: str, group: str, keys: list[Key], bodies: list[bytes]) -> None:
        """A reader has read them from a reservation: kept for its group until it settles or releases them."""
        messages = []
        for key, body in zip(keys, bodies, strict=True):
            origin = self._origins[key] = self._origin(key, body)
            holder = self._holders.get(key)
            if holder is not None and self._holds(holder, key[0]):
                raise Broken(
                    f"{key} is reserved for {reader} while {holder.consumer!r} holds it, with a lease"
                )
            self._reserved[key] = reader
            messages.append(Run(key[1], str(origin[0]), origin[1], redelivered=True))
        if keys:
            self.history.delivers(keys[0][0], group, messages)
        self.counts["reserved"] += len(keys)

    def released(self, keys: list[Key]) -> None:
        """From now on they may go back to the queue."""
        for key in keys:
            self._reserved.pop(key, None)

    def takes(self, group: str, keys: list[Key]) -> list[Record]:
        """A durable reader is about to settle them."""
        for key in keys:
            self.taken[self._origins[key]] = None
        return self.history.settles(keys[0][0], group, (Run(key[1], "", 0) for key in keys)) if keys else []

    # ---- what clients say

    def confirm(self, sent: Record) -> None:
        """The service has answered that it took these."""
        self.history.confirms(sent)
        self.counts["confirmed"] += sent.get("count", 1)

    def refuse(self, sent: Record, why: str) -> None:
        """The service has answered that it did not take these."""
        self.history.refuses(sent)
        self.counts[f"refused by {why}"] += sent.get("count", 1)

    def settle(self, keys: list[Key], asked: list[Record]) -> None:
        """The service has answered that these are settled."""
        self.history.done(asked)
        for key in keys:
            self._reserved.pop(key, None)
        self.counts["settled"] += len(keys)

    def transacts(self, origins: list[Origin]) -> None:
        """A transaction publishes these messages: all of them are found in the end, or none."""
        self._transactions.append(origins)
        self._found |= dict.fromkeys(origins, False)

    def unwanted(self) -> int:
        """How many messages may be left in the queue with selectors: those that no consumer wants."""
        return sum(1 for key, is_wanted in self.published.items() if not is_wanted and key not in self.taken)

    # ---- the end

    def judge_history(self, *, is_over: bool = False) -> None:
        """What clients were told so far. is_over: the queues are empty."""
        found = self.history.violations(self._world.ledger.left(), is_over=is_over)
        if found:
            raise Broken("; ".join(found))
        try:
            if self.counts["delivered"]:
                orders = {"x-max-priority", "x-delayed-retry-min"}
                unordered = [each.name for each in self._world.bounded if orders & each.arguments.keys()]
                unordered += [each.name for each in self._world.grouped]
                self.history.check_attachments(unordered, is_over=is_over)
        except Violation as error:
            raise Broken(str(error)) from None

    def judge(self) -> None:
        self.judge_history(is_over=True)
        for origins in self._transactions:
            if len({self._found[origin] for origin in origins}) > 1:
                raise Broken(
                    f"a transaction counts in part: {[(each, self._found[each]) for each in origins]}"
                )
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
                if len({StateCrc(member.queue_machine(group)).take() for member in members}) != 1:
                    raise Broken(f"equal states of group {group} have different numbers")
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
