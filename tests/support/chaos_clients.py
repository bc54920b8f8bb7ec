"""Clients under chaos: they resend, reconnect under a higher epoch, hold, settle and return, as the library does.

A consumer is taken to hold a message from the moment its node hands the delivery to the stream, with a valid lease,
until it sends the settlement, its session ends, its node dies, or the lease is over by its node's clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fifo import commands as c
from fifo.effects import AttachedReply, Confirmed, Deliver, Ok, Refused, Reply
from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.log.errors import EntryMissing
from quorum.node import events as ev
from quorum.node.member import SYSTEM_GROUP
from quorum_selectors import canonical, columns, jms
from support.chaos_cluster import ChaosCluster
from support.cluster import Session, batch

if TYPE_CHECKING:
    from support.chaos import World

SILENCE_MS = 3_000
"""A client that is owed an answer for so long goes to another node."""
CREDIT = 40

Key = tuple[int, int]
"""(queue, sequence)"""


class Broken(AssertionError):
    """A rule was broken, or nothing happened that could have broken it."""


@dataclass(slots=True)
class Hand:
    """Who was handed a message last."""

    session: ClientSession
    group: int
    is_open: bool = True

    def holds(self, cluster: ChaosCluster) -> bool:
        return self.is_open and self.session.is_alive and cluster.may_deliver(self.session.name, self.group)


class ClientSession(Session):
    """A session that tells its client at once what it hears, as a stream would."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.is_alive = True
        super().__init__(client.world.cluster, name, client.producer, client.epoch)

    def hear(self, output: ev.Output) -> None:
        if not self.is_alive:
            return
        if isinstance(output, ev.Answered):
            self.client.heard_ms = self.cluster.now_ms
            self.client.answered(output.token, output.reply)
        elif isinstance(output, ev.Delivered):
            self.client.delivered(output.group, output.deliver)
        elif isinstance(output, ev.Notified):
            if output.notify.event == "fenced":
                self.end()
            else:
                self.client.notified(output.notify)
        elif isinstance(output, ev.Ended):
            self.client.world.counts[f"ended {output.reason}"] += 1
            self.end()

    def lapsed(self, group: int) -> None:
        if self.is_alive and group in self.client.groups():
            self.end()

    def end(self) -> None:
        """The node closes the stream."""
        if self.is_alive:
            self.is_alive = False
            self.cluster.submit(self.name, ev.EndSession(self.number))
            self.cluster.sessions.pop((self.name, self.number), None)

    def gone(self) -> None:
        self.is_alive = False


class Client:
    """Reconnects under a higher epoch, at another node as a rule."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.producer = number.to_bytes(16, "big")
        self.epoch = 0
        self.session: ClientSession | None = None
        self.heard_ms = 0
        self.is_owed = False

    def groups(self) -> set[int]:
        """The groups in which it holds messages or may come to hold some."""
        return set()

    def connect(self) -> None:
        world = self.world
        up = [name for name in world.cluster.names if name in world.cluster.members]
        if not up:
            return
        self.epoch += 1
        self.heard_ms = world.cluster.now_ms
        self.session = ClientSession(self, world.random.choice(up))
        world.counts["sessions"] += 1
        self.opened()

    def opened(self) -> None:
        """A new session is there."""

    def leave(self, politely: bool) -> None:
        """The client gives its session up. If it is not polite, its node never hears of it."""
        session = self.session
        if session is None:
            return
        self.session = None
        if politely and session.is_alive:
            session.end()
        elif session.is_alive:
            session.is_alive = False
            self.world.abandoned.append(session)

    def live(self) -> ClientSession | None:
        """The session to use now, if there is any."""
        session = self.session
        now = self.world.cluster.now_ms
        if session is not None and session.is_alive and self.is_owed and now - self.heard_ms > SILENCE_MS:
            self.world.counts["silences"] += 1
            self.leave(politely=self.world.random.random() < 0.5)
            session = None
        if session is None or not session.is_alive:
            self.session = None
            if self.world.random.random() < 0.2:
                self.connect()
            return None
        return session

    def send(self, group: int, command: Any, token: object, data: bytes = b"") -> None:
        assert self.session is not None
        if not self.is_owed:
            self.heard_ms = self.world.cluster.now_ms
        self.is_owed = True
        self.session.send(group, command, token, data)

    def answered(self, token: Any, reply: Reply | None) -> None: ...

    def delivered(self, group: int, deliver: Deliver) -> None: ...

    def notified(self, notify: Any) -> None: ...


@dataclass(slots=True)
class Batch:
    first: int
    bodies: list[bytes]
    place: Place

    @property
    def last(self) -> int:
        return self.first + len(self.bodies) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A queue and where it lives."""

    name: str
    group: int
    queue: int
    has_fields: bool


class Producer(Client):
    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.number = number
        self.next = 1
        self.pending: dict[int, Batch] = {}
        self.confirmed: set[int] = set()

    def opened(self) -> None:
        for each in self.pending.values():
            self._send(each)
        self.is_owed = bool(self.pending)
        self.world.counts["resent"] += len(self.pending)

    def act(self) -> None:
        chance = self.world.random
        if self.live() is None:
            return
        if chance.random() < 0.0003:
            self.leave(politely=chance.random() < 0.5)
        elif len(self.pending) < 12 and chance.random() < 0.05:
            count = chance.choice((1, 1, 2, 5))
            bodies = [b"%d:%d" % (self.number, self.next + i) for i in range(count)]
            made = Batch(self.next, bodies, chance.choice(self.world.places))
            self.next += count
            self.pending[made.first] = made
            self._send(made)

    def _send(self, made: Batch) -> None:
        lowest = next(iter(self.pending))
        fields = b""
        if made.place.has_fields:
            fields = columns.encode(
                [{"application-properties.n": int(body.split(b":")[1])} for body in made.bodies]
            )
        command = c.Enqueue(
            made.place.queue, made.first, lowest, len(made.bodies), sum(map(len, made.bodies)), columns=fields
        )
        self.send(made.place.group, command, made.first, batch(made.bodies))

    def answered(self, token: int, reply: Reply | None) -> None:
        made = self.pending.pop(token, None)
        if made is None:
            raise Broken(f"producer {self.number}: {token} was answered twice, now {reply}")
        if reply != Confirmed(made.first, made.last):
            raise Broken(f"producer {self.number}: {made} was answered {reply}")
        self.confirmed.update(range(made.first, made.last + 1))
        self.world.counts["confirmed"] += len(made.bodies)
        self.is_owed = bool(self.pending)


class Consumer(Client):
    tag = "c"

    def __init__(self, world: World, number: int, place: Place, selector: str, haste: float) -> None:
        """haste: how likely it settles something in a step; with little, it holds messages for seconds."""
        super().__init__(world, number)
        self.place = place
        self.selector = canonical.encode(jms.parse(selector)) if selector else b""
        self.haste = haste
        self.attach = 0
        self.held: dict[int, Key] = {}
        self.last_tag = 0
        self.disposed = 0
        self.settling: dict[object, list[Key]] = {}
        self.order: dict[int, int] = {}

    def groups(self) -> set[int]:
        return {self.place.group}

    def opened(self) -> None:
        self.attach = self.last_tag = self.disposed = 0
        self.held.clear()
        self.settling.clear()
        self.order.clear()
        self.send(self.place.group, c.Attach(self.place.queue, "c", self.selector, CREDIT), "attach")

    def act(self) -> None:
        chance = self.world.random
        if self.live() is None or not self.attach:
            return
        if chance.random() < 0.0003:
            self.leave(politely=chance.random() < 0.5)
        elif self.held and chance.random() < (0.25 if self.world.is_draining else self.haste):
            self._dispose(chance)
        elif chance.random() < 0.0004:
            self.cancel()

    def cancel(self) -> None:
        """Gives everything back and attaches anew."""
        for key in self.held.values():
            self.world.hands[key].is_open = False
        self.held.clear()
        self.settling.clear()
        self.send(self.place.group, c.Cancel(self.place.queue, "c", return_held=True), "cancel")
        self.attach = self.last_tag = self.disposed = 0
        self.order.clear()
        self.send(self.place.group, c.Attach(self.place.queue, "c", self.selector, CREDIT), "attach")
        self.world.counts["cancelled"] += 1

    def _dispose(self, chance: random.Random) -> None:
        tags = sorted(self.held)
        if chance.random() < 0.6:
            start = chance.randrange(len(tags))
            tags = tags[start : start + chance.randint(1, 20)]
        keys = [self.held.pop(tag) for tag in tags]
        for key in keys:
            self.world.hands[key].is_open = False
        self.disposed += len(keys)
        ranges = tuple(_ranges(tags))
        credit = self.disposed + CREDIT if self.tag else 0
        place, token = self.place, object()
        kind = chance.random()
        if kind < 0.8 or self.world.is_draining:
            self.settling[token] = keys
            self.send(place.group, c.Settle(place.queue, self.tag, self.attach, ranges, credit), token)
        elif kind < 0.9:
            self.send(place.group, c.Return(place.queue, self.tag, self.attach, ranges, credit), "return")
        else:
            command = c.Modify(place.queue, self.tag, self.attach, ranges, credit, delivery_failed=True)
            self.send(place.group, command, "modify")

    def answered(self, token: Any, reply: Reply | None) -> None:
        self.is_owed = bool(self.settling)
        if token == "attach":
            if not isinstance(reply, AttachedReply):
                raise Broken(f"attaching was answered {reply}")
            self.attach = reply.attach
        elif token in self.settling:
            keys = self.settling.pop(token)
            self.is_owed = bool(self.settling)
            if reply != Ok(len(keys)):
                raise Broken(f"settling {len(keys)} messages that were held was answered {reply}")
            self.world.settled.update(keys)
            self.world.counts["settled"] += len(keys)
        elif isinstance(reply, Refused):
            raise Broken(f"{token!r} was answered {reply}")

    def delivered(self, group: int, deliver: Deliver) -> None:
        session = self.session
        assert session is not None
        world = self.world
        if deliver.attach != self.attach:
            return  # of the attachment before: its stream drops it
        if not world.cluster.may_deliver(session.name, group):
            session.end()
            return
        if deliver.first_tag != self.last_tag + 1:
            raise Broken(f"a delivery with tags from {deliver.first_tag} after tag {self.last_tag}")
        try:
            bodies = list(world.read(session.name, group, deliver))
        except EntryMissing:
            world.counts["unreadable"] += 1
            session.end()
            return
        for number, (sequence, body) in enumerate(bodies):
            tag = deliver.first_tag + number
            is_again = bool(deliver.redelivered >> number & 1)
            world.hand(self, session, group, (deliver.queue, sequence), body, is_again)
            self.held[tag] = deliver.queue, sequence
            self.last_tag = tag
            if not is_again:
                producer, n = map(int, body.split(b":"))
                if n <= self.order.get(producer, 0):
                    raise Broken(f"message {n} of producer {producer} came after {self.order[producer]}")
                self.order[producer] = n


class Getter(Consumer):
    """Takes some messages when it has none, without a subscription."""

    tag = ""

    def opened(self) -> None:
        self.last_tag = 0
        self.held.clear()
        self.settling.clear()
        self.order.clear()
        self.is_owed = False

    def act(self) -> None:
        chance = self.world.random
        if self.live() is None:
            return
        if self.held:
            if chance.random() < (0.25 if self.world.is_draining else self.haste):
                self._dispose(chance)
        elif not self.is_owed:
            self.send(self.place.group, c.Get(self.place.queue, chance.randint(1, 30), settled=False), "get")
            self.world.counts["gets"] += 1

    def delivered(self, group: int, deliver: Deliver) -> None:
        self.attach = deliver.attach
        super().delivered(group, deliver)


def _ranges(tags: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for tag in tags:
        if found and found[-1][1] == tag - 1:
            found[-1] = found[-1][0], tag
        else:
            found.append((tag, tag))
    return found


class Administrator(Client):
    """Declares queues and deletes them again, with a few messages in them."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.count = 0
        self.asked: str | None = None

    def act(self) -> None:
        if self.live() is None or self.is_owed or self.world.random.random() > 0.01:
            return
        if self.asked is None:
            self.count += 1
            self.asked = f"t{self.count}"
            self.send(SYSTEM_GROUP, DeclareQueue(self.asked, ()), "declare")
        else:
            self.send(SYSTEM_GROUP, RemoveQueue(self.asked), "delete")
            self.asked = None

    def opened(self) -> None:
        self.is_owed = False

    def answered(self, token: Any, reply: Reply | None) -> None:
        self.is_owed = False
        if not isinstance(reply, Ok) and not (isinstance(reply, Refused) and reply.reason == "not_found"):
            raise Broken(f"{token} was answered {reply}")
        self.world.counts[token] += 1
