"""From the machine's Deliver to what a client is sent (quorum/api/hub/deliveries.py)."""

from __future__ import annotations

from fifo.commands import Address, Origin, Stage
from fifo.effects import Deliver, Run
from quorum.api.hub import deliveries
from quorum.log import Damage, EntryMissing, LogDamaged
from quorum.node.errors import BodyUnreadable
from quorum.node.wire.batches import BatchBuilder
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
        self.missing: dict[int, Exception] = {}
        """the entries that cannot be read, and the errors"""

    def read(self, group: int, index: int) -> bytes:
        if index in self.missing:
            raise self.missing[index]
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


def test_a_message_larger_than_a_delivery_leaves_by_itself_in_its_turn() -> None:
    large = b"x" * (deliveries.DELIVERY_BYTES + 1)
    log = FakeLog(e5=[[large, b"a"]], e6=[[b"b", large, b"c"]])
    found = responses(log, Run(1, 2, 5, 0, 0), Run(3, 3, 6, 0, 0))
    assert [bodies_of(each.batch) for each in found] == [[large], [b"a", b"b"], [large], [b"c"]]


def test_messages_fill_a_delivery_to_its_last_byte() -> None:
    part = b"x" * (deliveries.DELIVERY_BYTES // 4)
    log = FakeLog(e5=[[part] * 3], e6=[[part, b"y"]])
    found = responses(log, Run(1, 3, 5, 0, 0), Run(4, 2, 6, 0, 0))
    assert [bodies_of(each.batch) for each in found] == [[part] * 4, [b"y"]]


def test_of_a_batch_that_a_consumer_takes_in_part_nothing_else_is_sent() -> None:
    log = FakeLog(e5=[[b"a", b"b", b"c"]])
    [first] = responses(log, Run(1, 2, 5, 0, 0))
    [last] = responses(log, Run(3, 1, 5, 0, 2))
    assert (bodies_of(first.batch), bodies_of(last.batch)) == ([b"a", b"b"], [b"c"])


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
    log.missing[6] = EntryMissing("6 is not here")
    reader = deliveries.BodyReader(log)  # type: ignore[arg-type]
    runs = (Run(1, 2, 5, 0, 0), Run(3, 2, 6, 0, 0, one_each=True))
    found = deliveries.delivered_batches(reader, 1, Deliver(ADDRESS, 7, "c", 3, 10, runs))
    obstacle = next(found)
    assert isinstance(obstacle, BodyUnreadable)
    assert (obstacle.group, obstacle.index) == (1, 6)
    assert isinstance(next(found), BodyUnreadable)
    log.missing.clear()
    [delivery] = list(found)
    assert isinstance(delivery, deliveries.DeliveredBatch)
    assert (delivery.first_tag, delivery.count) == (10, 4)
    assert pb.MessageBatch.FromString(delivery.batch).bodies == b"abcd"


def test_a_whole_batch_that_cannot_be_read_is_said_too() -> None:
    log = FakeLog(e5=[[b"a", b"b"]])
    log.missing[5] = LogDamaged(Damage("segment", 0, 1, "bad"))
    reader = deliveries.BodyReader(log)  # type: ignore[arg-type]
    found = deliveries.delivered_batches(reader, 1, Deliver(ADDRESS, 7, "c", 3, 10, (Run(1, 2, 5, 0, 0),)))
    assert isinstance(next(found), BodyUnreadable)
    log.missing.clear()
    [delivery] = list(found)
    assert isinstance(delivery, deliveries.DeliveredBatch)
    assert pb.MessageBatch.FromString(delivery.batch).bodies == b"ab"


def test_a_reader_keeps_the_batches_that_were_used_last() -> None:
    log = FakeLog(**{f"e{index}": [[bytes(1_000)]] for index in (1, 2, 3)})
    size = deliveries.PARSED * len(batch([bytes(1_000)]))
    reader = deliveries.BodyReader(log, 2 * size)  # type: ignore[arg-type]
    first, second = reader.batch(1, 1, 0), reader.batch(1, 2, 0)
    assert reader.batch(1, 1, 0) is first
    reader.batch(1, 3, 0)
    assert reader.batch(1, 1, 0) is first
    assert reader.batch(1, 2, 0) is not second
    assert reader.held_bytes == 2 * size + len(log.read(1, 2)) - 1


def test_a_batch_larger_than_the_cache_is_kept_until_the_next_one() -> None:
    log = FakeLog(e1=[[bytes(1_000)]], e2=[[bytes(1_000)]])
    reader = deliveries.BodyReader(log, 10)  # type: ignore[arg-type]
    first = reader.batch(1, 1, 0)
    assert reader.batch(1, 1, 0) is first
    reader.batch(1, 2, 0)
    assert reader.batch(1, 1, 0) is not first


def test_the_messages_of_a_run_are_parts_of_stored_batches() -> None:
    """As a browse and a bulk read take them, obstacles included."""
    log = FakeLog(e5=[[b"a", b"b", b"c"]], e6=[[b"d"], [b"e"], [b"f"]])
    log.missing = {index: EntryMissing(f"{index} is not here") for index in (5, 6)}
    reader = deliveries.BodyReader(log)  # type: ignore[arg-type]
    for run, bodies in (
        (Run(1, 2, 5, 0, 1), [b"b", b"c"]),
        (Run(9, 2, 6, 1, 0, one_each=True), [b"e", b"f"]),
    ):
        parts = reader.parts(1, run)
        assert isinstance(next(parts), BodyUnreadable)
        del log.missing[run.index]
        found: list[bytes] = []
        for part in parts:
            assert not isinstance(part, BodyUnreadable)
            stored, first, count = part
            builder = BatchBuilder()
            builder.add(stored, first, count)
            found += bodies_of(builder.build())
        assert found == bodies
