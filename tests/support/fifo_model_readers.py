"""Durable readers as simply as they can be said: lists of messages (beside support/fifo_model.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fifo import commands as c
from fifo import effects as e
from support.fifo_model_fronts import END
from support.fifo_model_staging import is_crowded

if TYPE_CHECKING:
    from support.fifo_model import Left, Message, ModelQueue

MESSAGE_BYTES = 100  # of every message that tests publish against the model

COMMANDS = (c.OpenReader, c.Reserve, c.SettleReserved, c.KeepReader, c.ReleaseReader, c.DeleteReader)


@dataclass(eq=False)
class ModelReservation:
    reply: e.Reserved
    messages: list[Message]
    time_ms: int
    opens: int = 0
    disposition: str = ""


@dataclass(eq=False)
class ModelReader:
    name: str
    generation: int
    start: int
    owner: int = c.UNKNOWN
    selector: bytes = b""
    timeout_ms: int = 0
    on_expiry: str = ""
    last_seen_ms: int = 0
    settled: int = 0
    last: int = 0
    reservations: list[ModelReservation] = field(default_factory=list)
    released: set[int] = field(default_factory=set)
    has_untold_loss: bool = False

    def outstanding(self) -> list[ModelReservation]:
        return [each for each in self.reservations if not each.disposition]

    def due_ms(self) -> int | None:
        silent = self.outstanding() and self.on_expiry != "keep"
        return self.last_seen_ms + self.timeout_ms if silent else None

    def state(self) -> e.ReaderState:
        messages = sum(len(each.messages) for each in self.outstanding())
        return e.ReaderState(self.generation, self.settled, self.last, messages)

    def gone(self, offset: int) -> e.Refused:
        return e.Refused("released" if offset in self.released else "settled", "")

    def release_all(self, disposition: str) -> None:
        for each in self.outstanding():
            each.disposition = disposition
        self.released |= set(range(self.settled + 1, self.last + 1))
        self.settled = self.last


class ModelReaders:
    def __init__(self, queue: ModelQueue) -> None:
        self.queue = queue
        self.readers: list[ModelReader] = []
        self.deleted: list[ModelReader] = []
        self.past_generation = 0

    def due_times(self) -> list[int]:
        return [due for reader in self.readers if (due := reader.due_ms()) is not None]

    def answer(self, meta: c.Meta, left: Left, command: Any) -> e.Reply:
        reader = next((each for each in self.readers if each.name == command.reader), None)
        if isinstance(command, c.OpenReader):
            return self.open(meta, reader, command)
        if isinstance(command, c.DeleteReader) and reader is None:
            return e.Ok()
        if reader is None:
            return e.Refused("not_found", "")
        if command.generation not in (reader.generation, None):
            return e.Refused("wrong_generation", "")
        if isinstance(command, c.DeleteReader):
            return self.delete(reader)
        if isinstance(command, c.ReleaseReader) and command.last not in (reader.last, None):
            return e.Refused("outdated", "")
        if isinstance(command, c.Reserve):
            return self.reserve(meta, left, reader, command)
        if isinstance(command, c.SettleReserved):
            if command.to > reader.last:
                return e.Refused("not_given", "")
            if command.to == reader.last:
                reader.has_untold_loss = False
            for each in reader.outstanding():
                if each.reply.offset > command.to or not self.may_move(left, each):
                    break
                reader.reservations.remove(each)
                reader.settled = each.reply.offset
                for message in each.messages:
                    self.queue.gone(message)
        if isinstance(command, c.ReleaseReader):
            reader.release_all("returned")
            reader.has_untold_loss = False
        reader.last_seen_ms = meta.now_ms
        return reader.state()

    def open(self, meta: c.Meta, reader: ModelReader | None, command: c.OpenReader) -> e.Reply:
        queue = self.queue
        if not command.reader or command.timeout_ms < 1000:
            return e.Refused("bad_argument", "")
        refused = queue.refuse_selector(command.selector)
        if refused is not None:
            return refused
        if command.found not in (reader.generation if reader else 0, None):
            return e.Refused("outdated", "")
        if reader is None:
            owners = [each.owner for each in self.readers + self.deleted]
            if is_crowded(owners, command.owner, queue.rules.max_readers):
                return e.Refused("limit", "")
            start = queue.next_sequence if command.start == "latest" else 0
            reader = ModelReader(command.reader, self.past_generation, start)
            self.readers.append(reader)
        before, reader.selector = reader.selector, command.selector
        queue.forget_group(before)
        queue.use_group(command.selector)
        reader.generation += 1
        reader.has_untold_loss = False
        reader.owner = command.owner
        reader.timeout_ms, reader.on_expiry = command.timeout_ms, command.on_expiry
        reader.last_seen_ms = meta.now_ms
        for each in reader.outstanding():
            each.opens += 1
        return reader.state()

    def reserve(self, meta: c.Meta, left: Left, reader: ModelReader, command: c.Reserve) -> e.Reply:
        rules, after = self.queue.rules, command.after
        if command.max_messages < 1 or command.max_bytes < 1:
            return e.Refused("bad_argument", "")
        if after > reader.last:
            return e.Refused("not_given", "")
        if after < reader.settled:
            return reader.gone(after + 1)
        if after == reader.last and reader.has_untold_loss:
            return e.Refused("released", "")
        held = sum(len(each.messages) for each in reader.reservations)
        is_new = after == reader.last
        if is_new and (len(reader.reservations) >= rules.max_reservations or held >= rules.max_outstanding):
            return e.Refused("limit", "")
        reader.last_seen_ms = meta.now_ms
        if not is_new:
            return next(each.reply for each in reader.outstanding() if each.reply.offset == after + 1)
        if left.rest.messages <= 0 or left.rest.runs <= 0:
            return e.Reserved(after, meta.index, 0, 0, False)
        wanted = min(command.max_messages, rules.max_reserved, rules.max_outstanding - held)
        bytes_allow = max(1, command.max_bytes // MESSAGE_BYTES)
        most = min(wanted, left.rest.messages, bytes_allow)
        group = self.queue.groups[reader.selector]
        self.queue.fronts.move(meta, left)
        queue_is_behind = self.queue.fronts.behind is not None
        chosen, is_complete = self.queue.choose(meta, left, group, most, reader.start, is_reserved=True)
        if group.front == END and queue_is_behind:
            is_complete = False
        self.queue.rest(group)
        if len(chosen) == left.rest.messages < wanted:
            is_complete = False
        left.rest.messages -= len(chosen)
        if not chosen:
            return e.Reserved(after, meta.index, 0, 0, is_complete)
        for message in chosen:
            self.queue.hold(message)
        reader.last += 1
        size = MESSAGE_BYTES * len(chosen)
        reply = e.Reserved(reader.last, meta.index, len(chosen), size, is_complete)
        reader.reservations.append(ModelReservation(reply, chosen, meta.now_ms))
        return reply

    def delete(self, reader: ModelReader) -> e.Reply:
        count = reader.state().outstanding
        reader.release_all("returned")
        self.readers.remove(reader)
        self.queue.forget_group(reader.selector)
        self.past_generation = max(self.past_generation, reader.generation)
        if reader.reservations:
            self.deleted.append(reader)
        return e.Ok(count)

    def may_move(self, left: Left, reservation: ModelReservation) -> bool:
        count = len(reservation.messages)
        if left.rest.moved and left.rest.moved + count > self.queue.rules.message_budget:
            return False
        left.rest.moved += count
        return True

    def finish(self, meta: c.Meta, left: Left) -> bool:
        for reader in self.readers:
            due = reader.due_ms()
            if due is not None and due <= meta.now_ms:
                reader.release_all("returned" if reader.on_expiry == "release" else "discarded")
                reader.has_untold_loss = meta.version >= 2
        for reader in self.readers + self.deleted:
            for each in [each for each in reader.reservations if each.disposition]:
                if not self.may_move(left, each):
                    return False
                reader.reservations.remove(each)
                if each.disposition == "returned":
                    self.queue.put_back(meta, each.messages, failed=False)
                    continue
                for message in each.messages:
                    self.queue.gone(message)
                self.queue.dropped["rejected"] += len(each.messages)
            self.deleted = [each for each in self.deleted if each.reservations]
        return True
