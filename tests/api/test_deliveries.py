"""From the machine's Deliver to what a client is sent (quorum/api/hub/deliveries.py)."""

from __future__ import annotations

from fifo.commands import Address, Origin, Stage
from fifo.effects import Deliver, Run
from quorum.api.hub import deliveries
from quorum.log import Damage, EntryMissing, LogDamaged
from quorum.node.errors import BodyUnreadable
from quorum.node.wire.operations import command_parts, encode
from quorum.v1 import queue_pb2 as pb
from support.members.cluster import batch, bodies_of, enqueue

ADDRESS = Address(1, 1, 1)


class FakeLog:
    """Entries by index: each a list of batches, one enqueue each. Stands in for the node's log."""

    def __init__(self, **entries: list[list[bytes]]) -> None:
        self._entries = {
            int(name.removeprefix("e")): b"\0"
            + b"".join(
                command_parts(
                    [
                        encode(enqueue(1, 1, bodies), Origin(bytes(16), 1, 1), batch(bodies))
                        for bodies in batches
                    ],
                    0,
                    1,
                )
            )
            for name, batches in entries.items()
        }

    def read(self, group: int, index: int) -> bytes:
        return self._entries[index]


def responses(log: FakeLog, *runs: Run, **fields: object) -> list[deliveries.DeliveredBatch]:
    reader = deliveries.BodyReader(log)  # type: ignore[arg-type]
    found = list(deliveries.delivered_batches(reader, 1, Deliver(ADDRESS, 7, "c", 3, 10, runs, **fields)))  # type: ignore[arg-type]
    assert all(isinstance(each, deliveries.DeliveredBatch) for each in found)
    return found  # type: ignore[return-value]


def test_a_whole_stored_batch_goes_out_as_the_bytes_that_came_in() -> None:
    log = FakeLog(e5=[[b"a", b"b"]])
    [delivery] = responses(log, Run(100, 2, 5, 0, 0))
    assert delivery.batch == batch([b"a", b"b"])
    assert (delivery.first_tag, delivery.count, delivery.attach) == (10, 2, 3)
    assert delivery.sequences == ((100, 101),)


def test_parts_of_batches_are_cut_and_joined() -> None:
    log = FakeLog(e5=[[b"a", b"b", b"c"], [b"d"]], e6=[[b"e"], [b"f"], [b"g"]])
    [delivery] = responses(log, Run(1, 2, 5, 0, 1), Run(3, 1, 5, 1, 0), Run(9, 2, 6, 1, 0, one_each=True))
    assert bodies_of(delivery.batch) == [b"b", b"c", b"d", b"f", b"g"]
    assert delivery.sequences == ((1, 3), (9, 10))


def test_whole_batches_of_many_messages_are_passed_on_between_parts_of_others() -> None:
    many = [b"%d" % number for number in range(deliveries.WHOLE_MESSAGES)]
    log = FakeLog(e5=[[b"a", b"b"], many], e6=[many, [b"c"]])
    runs = (Run(1, 1, 5, 0, 1), Run(2, len(many), 5, 1, 0), Run(90, len(many), 6, 0, 0), Run(200, 1, 6, 1, 0))
    found = responses(log, *runs)
    assert [each.batch for each in found[1:3]] == [batch(many)] * 2
    assert [bodies_of(each.batch) for each in (found[0], found[3])] == [[b"b"], [b"c"]]
    assert [(each.first_tag, each.count) for each in found] == [(10, 1), (11, 64), (75, 64), (139, 1)]
    assert [list(each.sequences) for each in found] == [
        [(1, 1)],
        [(2, 65)],
        [(90, 153)],
        [(200, 200)],
    ]


def test_published_messages_are_read_from_the_chunks_they_were_staged_in() -> None:
    """Which lie before and between entries of other messages, in any order."""
    many = [b"%d" % number for number in range(deliveries.WHOLE_MESSAGES)]
    origin = Origin(bytes(16), 1, 1)

    def chunk(number: int, bodies: list[bytes]) -> bytes:
        size = sum(map(len, bodies))
        ttls = tuple(range(len(bodies)))
        staged = Stage(1, "a producer", 1, bytes(16), number, len(bodies), size, -1, ttls, b"columns")
        return encode(staged, origin, batch(bodies))

    usual = encode(enqueue(1, 1, [b"a"]), origin, batch([b"a"]))
    log = FakeLog()
    log._entries = {
        3: b"\0" + b"".join(command_parts([chunk(1, many), chunk(2, [b"b"]), usual, chunk(3, [b"c"])], 0, 1)),
        4: b"\0" + b"".join(command_parts([usual, chunk(4, [b"d", b"e"])], 0, 1)),
    }
    runs = (
        Run(1, 1, 4, 0, 0, one_each=True),
        Run(2, 2, 4, 1, 0),
        Run(4, 3, 3, 1, 0, one_each=True),
        Run(7, len(many), 3, 0, 0),
        Run(71, 1, 4, 1, 1),
    )
    found = responses(log, *runs)
    assert [bodies_of(each.batch) for each in found] == [[b"a", b"d", b"e", b"b", b"a", b"c"], many, [b"e"]]
    assert found[1].batch == batch(many)


def test_large_messages_leave_in_several_deliveries_with_consecutive_tags() -> None:
    large = [bytes([65 + number]) * (deliveries.DELIVERY_BYTES * 2 // 3) for number in range(3)]
    log = FakeLog(e5=[large])
    found = responses(log, Run(1, 3, 5, 0, 0), redelivered=0b101, delivery_counts=((0, 1), (2, 4)))
    assert [(each.first_tag, each.count) for each in found] == [(10, 1), (11, 1), (12, 1)]
    assert [body for each in found for body in bodies_of(each.batch)] == large
    assert [list(each.redelivered) for each in found] == [[(10, 10)], [], [(12, 12)]]
    assert [list(each.delivery_counts) for each in found] == [[(10, 1)], [], [(12, 4)]]


def test_redelivered_messages_are_named_in_ranges_of_tags() -> None:
    log = FakeLog(e5=[[b"x"] * 8])
    [delivery] = responses(log, Run(1, 8, 5, 0, 0), redelivered=0b11100101)
    assert delivery.redelivered == ((10, 10), (12, 12), (15, 17))


def test_a_delivery_is_cut_by_its_properties_too() -> None:
    rows = [{"note": "x" * 2_000}] * 600

    def stored(shared: bool) -> bytes:
        made = pb.MessageBatch(count=600, body_ends=[0] * 600)
        if shared:
            made.shared_properties.subject = "x" * 2_000
        else:
            for row in rows:
                made.properties.add().application_properties["note"].text = row["note"]
        return made.SerializeToString()

    class Stored(FakeLog):
        def read(self, group: int, index: int) -> bytes:
            origin = Origin(bytes(16), 1, 1)
            data = stored(shared=index == 5)
            return b"\0" + b"".join(command_parts([encode(enqueue(1, 1, [b""] * 600), origin, data)], 0, 1))

    log = Stored()
    # two batches whose shared properties differ from each other's have properties one each when joined
    for runs in ([Run(1, 599, 6, 0, 0)], [Run(1, 599, 5, 0, 0), Run(700, 600, 6, 0, 0)]):
        found = responses(log, *runs)
        assert max(len(each.batch) for each in found) < 1.1 * deliveries.DELIVERY_BYTES
        assert sum(each.count for each in found) == sum(run.count for run in runs)
        assert [each.first_tag for each in found] == [
            10 + sum(e.count for e in found[:i]) for i in range(len(found))
        ]


def test_what_cannot_be_read_is_said_and_goes_on_where_it_was_once_it_can_be() -> None:
    log = FakeLog(e5=[[b"a", b"b"]], e6=[[b"c"], [b"d"]])
    missing: set[int] = {6}
    read = log.read

    def read_or_raise(group: int, index: int) -> bytes:
        if index in missing:
            raise EntryMissing(f"{index} is not here")
        return read(group, index)

    log.read = read_or_raise  # type: ignore[method-assign]
    reader = deliveries.BodyReader(log)  # type: ignore[arg-type]
    runs = (Run(1, 2, 5, 0, 0), Run(3, 2, 6, 0, 0, one_each=True))
    found = deliveries.delivered_batches(reader, 1, Deliver(ADDRESS, 7, "c", 3, 10, runs))
    obstacle = next(found)
    assert isinstance(obstacle, BodyUnreadable)
    assert (obstacle.group, obstacle.index) == (1, 6)
    assert isinstance(next(found), BodyUnreadable)
    missing.clear()
    [delivery] = list(found)
    assert isinstance(delivery, deliveries.DeliveredBatch)
    assert (delivery.first_tag, delivery.count) == (10, 4)
    assert pb.MessageBatch.FromString(delivery.batch).bodies == b"abcd"


def test_a_whole_batch_that_cannot_be_read_is_said_too() -> None:
    log = FakeLog(e5=[[b"a", b"b"]])
    read = log.read
    missing = {5}

    def read_or_raise(group: int, index: int) -> bytes:
        if index in missing:
            raise LogDamaged(Damage("segment", 0, 1, "bad"))
        return read(group, index)

    log.read = read_or_raise  # type: ignore[method-assign]
    reader = deliveries.BodyReader(log)  # type: ignore[arg-type]
    found = deliveries.delivered_batches(reader, 1, Deliver(ADDRESS, 7, "c", 3, 10, (Run(1, 2, 5, 0, 0),)))
    assert isinstance(next(found), BodyUnreadable)
    missing.clear()
    [delivery] = list(found)
    assert isinstance(delivery, deliveries.DeliveredBatch)
    assert pb.MessageBatch.FromString(delivery.batch).bodies == b"ab"
