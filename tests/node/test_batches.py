"""A MessageBatch at the edge of the cluster (quorum/node/wire/batches.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum.node.wire import batches
from quorum.node.wire.batches import BatchError, BatchLimits, group_key
from quorum.v1 import queue_pb2 as pb
from quorum_selectors import columns
from quorum_selectors.known_fields import resolve_field_names

LIMITS = BatchLimits(max_messages=100, max_message_bytes=50, max_batch_bytes=4_000)
ALL = resolve_field_names(["*", "header.priority", "properties.subject"])


def batch(*bodies: bytes, **fields: object) -> pb.MessageBatch:
    made = pb.MessageBatch(count=len(bodies), bodies=b"".join(bodies))
    end = 0
    for body in bodies:
        end += len(body)
        made.body_ends.append(end)
    made.MergeFrom(pb.MessageBatch(**fields))
    return made


def check(
    made: pb.MessageBatch, kept: object = None, max_bytes: int = -1, **more: bool
) -> batches.CheckedBatch:
    return batches.check(made.SerializeToString(), LIMITS, kept, max_bytes, **more)


def refused(
    made: pb.MessageBatch | bytes,
    reason: str,
    text: str,
    max_bytes: int = -1,
    kept: object = None,
    limits: BatchLimits = LIMITS,
) -> None:
    data = made if isinstance(made, bytes) else made.SerializeToString()
    with pytest.raises(BatchError, match=text) as caught:
        batches.check(data, limits, kept, max_bytes)
    assert caught.value.reason == reason


def test_a_plain_batch_is_counted() -> None:
    checked = check(batch(b"one", b"", b"three"))
    assert (checked.count, checked.size_bytes, checked.ttl_ms, checked.columns) == (3, 8, -1, b"")


def test_rubbish_is_refused_with_a_reason() -> None:
    refused(b"\xff\xff\xff", "bad_batch", "not a serialized MessageBatch")
    refused(pb.MessageBatch(), "bad_batch", "0 messages")
    refused(pb.MessageBatch(count=2, bodies=b"x", body_ends=[1]), "bad_batch", "1 body_ends for 2 messages")
    refused(pb.MessageBatch(count=2, bodies=b"xy", body_ends=[2, 1]), "bad_batch", "last of body_ends is 1")
    refused(
        pb.MessageBatch(count=3, bodies=b"xy", body_ends=[2, 1, 2]), "bad_batch", "decreases at message 1"
    )
    refused(pb.MessageBatch(count=1, bodies=b"xy", body_ends=[1]), "bad_batch", "last of body_ends is 1")
    refused(batch(b"x" * 51), "message_too_large", "message 0 .* has 51 bytes; allowed: 50")
    refused(batch(*[b"x" * 45] * 100), "batch_too_large", "at most 4000")
    refused(batch(*[b""] * 101), "bad_batch", "allowed: 1..100")
    refused(batch(b"a", b"b", properties=[pb.Properties()]), "bad_batch", "1 properties for 2 messages")
    both = batch(b"a", properties=[pb.Properties()], shared_properties=pb.Properties(subject="s"))
    refused(both, "bad_batch", "exclude each other")
    refused(batch(b"a", shared_properties=pb.Properties(priority=256)), "bad_batch", "allowed: 0..255")


def test_equal_times_to_live_are_one_number() -> None:
    assert check(batch(b"a", b"b", shared_properties=pb.Properties(ttl_ms=7))).ttl_ms == 7
    each = [pb.Properties(ttl_ms=7), pb.Properties(ttl_ms=7)]
    assert check(batch(b"a", b"b", properties=each)).ttl_ms == 7
    each[1].ClearField("ttl_ms")
    checked = check(batch(b"a", b"b", properties=each))
    assert (checked.ttl_ms, tuple(checked.ttls_ms)) == (-1, (7, -1))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ((None, None), ()),
        ((5, 5), (-5,)),
        ((None, 5), (0, -5)),
        ((0, 1 << 60), (0, -(1 << 53))),
    ],
)
def test_delays_are_below_zero_and_one_number_if_they_are_equal(
    said: tuple[int | None, ...], wanted: tuple[int, ...]
) -> None:
    each = [pb.Properties(delivery_delay_ms=delay) for delay in said]
    assert check(batch(b"a", b"b", properties=each)).due_times_ms == wanted


def test_a_delivery_time_is_a_due_time_and_excludes_a_delay() -> None:
    assert check(batch(b"a", shared_properties=pb.Properties(delivery_time=9))).due_times_ms == (9,)
    assert check(batch(b"a", shared_properties=pb.Properties(delivery_time=-9))).due_times_ms == ()
    both = pb.Properties(delivery_time=9, delivery_delay_ms=0)
    refused(batch(b"a", shared_properties=both), "bad_batch", "exclude each other")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ((None, None, None), b""),
        ((0, None, 0), b""),
        ((7, 7, 7), b"\x07"),
        ((7, None, 255), b"\x07\x00\xff"),
        ((0, 0, 1), b"\x00\x00\x01"),
    ],
)
def test_equal_priorities_are_one_number(said: tuple[int | None, ...], wanted: bytes) -> None:
    each = [pb.Properties() if number is None else pb.Properties(priority=number) for number in said]
    made = batch(b"a", b"b", b"c", properties=each)
    assert check(made, has_priorities=True).priorities == wanted
    assert check(made).priorities == b""


def test_shared_priorities_are_one_number() -> None:
    shared = batch(b"a", b"b", shared_properties=pb.Properties(priority=9))
    assert check(shared, has_priorities=True).priorities == b"\x09"
    assert check(batch(b"a", b"b"), has_priorities=True).priorities == b""


X, Y = group_key("x"), group_key("y")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ((None, "", None), b""),
        (("x", "x", "x"), X),
        (("x", None, "y"), X + bytes(8) + Y),
        (("", "y", "y"), bytes(8) + Y + Y),
    ],
)
def test_messages_of_one_group_have_one_key(said: tuple[str | None, ...], wanted: bytes) -> None:
    each = [pb.Properties() if name is None else pb.Properties(group_id=name) for name in said]
    made = batch(b"a", b"b", b"c", properties=each)
    assert check(made, has_groups=True).group_keys == wanted
    assert check(made).group_keys == b""


def test_a_shared_group_has_one_key() -> None:
    shared = batch(b"a", b"b", shared_properties=pb.Properties(group_id="x"))
    assert check(shared, has_groups=True).group_keys == X
    assert check(batch(b"a", b"b"), has_groups=True).group_keys == b""


def test_the_key_of_a_group_is_for_ever() -> None:
    assert (group_key("x").hex(), group_key("")) == ("4adf4367f96e584f", bytes(8))


def test_filter_fields_become_columns() -> None:
    first = pb.Properties(subject="s", priority=3)
    first.application_properties["colour"].text = "red"
    first.application_properties["count"].integer = -5
    first.application_properties["raw"].binary = b"\x00"
    second = pb.Properties(correlation_id="not kept")
    second.application_properties["colour"].boolean = True
    checked = check(batch(b"a", b"b", properties=[first, second]), kept=ALL)
    rows = columns.decode(checked.columns, 2)
    assert dict(rows.row(0)) == {
        "header.priority": 3,
        "properties.subject": "s",
        "application-properties.colour": "red",
        "application-properties.count": -5,
    }
    assert dict(rows.row(1)) == {"application-properties.colour": True}


def test_shared_fields_are_one_row() -> None:
    checked = check(batch(b"a", b"b", shared_properties=pb.Properties(subject="s")), kept=ALL)
    rows = columns.decode(checked.columns, 2)
    assert dict(rows.row(0)) == dict(rows.row(1)) == {"properties.subject": "s"}


def test_too_much_metadata_is_refused_before_the_log() -> None:
    made = batch(b"a", b"b", properties=[pb.Properties(), pb.Properties(subject="x" * 200)])
    refused(made, "metadata_too_large", "message 1 .* allows 100", max_bytes=100, kept=ALL)
    assert check(made, kept=ALL).count == 2


@pytest.mark.parametrize("kept", [None, ALL])
def test_a_message_has_a_limited_number_of_application_properties(kept: object) -> None:
    def with_fields(count: int) -> pb.Properties:
        return pb.Properties(application_properties={f"{n:x}": pb.Value(boolean=True) for n in range(count)})

    limits = BatchLimits(max_messages=100, max_message_bytes=50, max_batch_bytes=1 << 20)
    for fields, each in (
        ({"shared_properties": with_fields(1_025)}, "the shared properties"),
        ({"properties": [pb.Properties(), with_fields(1_025)]}, "message 1 of the batch"),
    ):
        with pytest.raises(BatchError, match=f"{each}: 1025 application properties; at most 1024") as caught:
            batches.check(batch(b"a", b"b", **fields).SerializeToString(), limits, kept, -1)
        assert caught.value.reason == "metadata_too_large"
    most = batch(b"a", b"b", shared_properties=with_fields(1_024))
    assert batches.check(most.SerializeToString(), limits, kept, -1).count == 2


bodies = st.lists(st.binary(max_size=20), min_size=1, max_size=12)


@given(bodies, st.data())
def test_as_many_messages_fit_as_their_bodies_allow(given_bodies: list[bytes], data: st.DataObject) -> None:
    stored = batches.StoredBatch(batch(*given_bodies).SerializeToString())
    first = data.draw(st.integers(0, len(given_bodies) - 1))
    count = data.draw(st.integers(1, len(given_bodies) - first))
    max_bytes = data.draw(st.integers(0, 60))
    fitting = stored.fitting(first, count, max_bytes)
    assert 1 <= fitting <= count
    sizes = [len(body) for body in given_bodies]
    assert fitting == 1 or sum(sizes[first : first + fitting]) <= max_bytes
    assert fitting == count or sum(sizes[first : first + fitting + 1]) > max_bytes


KINDS = st.sampled_from(["none", "shared a", "shared b", "each"])


@given(st.lists(st.tuples(bodies, KINDS, st.data()), min_size=1, max_size=4))
def test_a_built_batch_keeps_bodies_and_properties(
    parts: list[tuple[list[bytes], str, st.DataObject]],
) -> None:
    builder, expected = batches.BatchBuilder(), []
    for part, kind, data in parts:
        if kind == "none":
            made, subjects = batch(*part), [""] * len(part)
        elif kind == "each":
            subjects = [str(i) for i in range(len(part))]
            made = batch(*part, properties=[pb.Properties(subject=s) for s in subjects])
        else:
            subjects = [kind] * len(part)
            made = batch(*part, shared_properties=pb.Properties(subject=kind))
        first = data.draw(st.integers(0, len(part) - 1))
        count = data.draw(st.integers(1, len(part) - first))
        builder.add(batches.StoredBatch(made.SerializeToString()), first, count)
        expected += list(zip(part, subjects, strict=True))[first : first + count]
    built = builder.build()
    assert builder.count == pb.MessageBatch.FromString(built).count == len(expected)
    assert builder.size_bytes >= sum(len(body) for body, _ in expected)
    assert len(built) <= builder.size_bytes + 16 * (len(expected) + 1), (
        "its weight is what it takes to send it"
    )
    assert [(body, properties.subject) for body, properties in batches.messages(built)] == expected


# ---- the name of the publisher

OF_ANN = replace(LIMITS, user_id="ann")


def with_names(*names: str | None) -> pb.MessageBatch:
    """A message with each of these as its user_id."""
    each = [pb.Properties() if name is None else pb.Properties(user_id=name) for name in names]
    return batch(*[b"x"] * len(names), properties=each)


def test_the_user_id_of_a_message_is_its_publisher() -> None:
    shared = batch(b"a", b"b", shared_properties=pb.Properties(user_id="ann"))
    for made in (with_names("ann", None, "ann"), shared, batch(b"a", b"b")):
        assert batches.check(made.SerializeToString(), OF_ANN, None, -1).count == made.count
        assert wrong(made, limits=OF_ANN) == {}


@pytest.mark.parametrize("name", ["bob", "", "Ann", "ann ", "an\u0301n"])
def test_another_user_id_is_refused_to_its_message(name: str) -> None:
    made = with_names("ann", name, None, name)
    refused(
        made, "wrong_user_id", "message 1 of the batch: user_id .* is 'ann'; allowed: 'ann'", limits=OF_ANN
    )
    assert wrong(made, limits=OF_ANN) == dict.fromkeys((1, 3), "wrong_user_id")
    shared = batch(b"a", b"b", shared_properties=pb.Properties(user_id=name))
    refused(shared, "wrong_user_id", "the shared properties: user_id", limits=OF_ANN)
    assert wrong(shared, limits=OF_ANN) == dict.fromkeys((0, 1), "wrong_user_id")
    for each in (made, shared):
        assert check(each).count == each.count, "where no name is wanted, any name is right"
        assert wrong(each) == {}


def test_a_long_or_strange_user_id_is_shown_short_and_with_escapes() -> None:
    refused(
        with_names("\x1b[2J" + "x" * 99), "wrong_user_id", r"user_id '\\x1b\[2Jx{36}', and", limits=OF_ANN
    )


def test_a_user_id_of_messages_without_queues_is_not_checked() -> None:
    for made in (with_names("bob", "bob"), batch(b"a", b"b", shared_properties=pb.Properties(user_id="bob"))):
        stored = batches.read_each(made.SerializeToString(), OF_ANN)
        assert batches.refused_each(stored, OF_ANN, [(), ((None, -1),)]).keys() == {1}


# ---- batches of independent messages


def wrong(
    made: pb.MessageBatch | bytes, kept: object = None, max_bytes: int = -1, limits: BatchLimits = LIMITS
) -> dict[int, str]:
    """The messages that are refused by themselves, with the reason."""
    data = made if isinstance(made, bytes) else made.SerializeToString()
    stored = batches.read_each(data, limits)
    found = batches.refused_each(stored, limits, [((kept, max_bytes),)] * stored.count)  # type: ignore[list-item]
    return {ordinal: error.reason for ordinal, error in found.items()}


def test_each_message_is_looked_at_by_itself() -> None:
    assert wrong(batch(b"a", b"x" * 51, b"c", b"d")) == {1: "message_too_large"}
    assert wrong(batch(b"x" * 51, b"x" * 51, b"c")) == dict.fromkeys((0, 1), "message_too_large")
    odd = [pb.Properties(priority=1), pb.Properties(priority=256), pb.Properties()]
    assert wrong(batch(b"a", b"b", b"c", properties=odd)) == {1: "bad_batch"}
    wide = [pb.Properties(subject="s" * 200), pb.Properties(subject="s")]
    assert wrong(batch(b"a", b"b", properties=wide), ALL, 100) == {0: "metadata_too_large"}


def test_shared_properties_are_looked_at_once_for_what_a_queue_keeps() -> None:
    made = batch(b"a", b"b", shared_properties=pb.Properties(subject="s" * 200))
    assert wrong(made, ALL, 100) == dict.fromkeys((0, 1), "metadata_too_large")
    assert wrong(made, ALL, 1_000) == wrong(made) == {}


@pytest.mark.parametrize(
    "shared",
    [pb.Properties(subject="s" * (batches.MAX_PROPERTIES_BYTES + 1)), pb.Properties(priority=256)],
    ids=["too large", "no priority"],
)
def test_wrong_properties_that_all_messages_share_are_refused_to_all(shared: pb.Properties) -> None:
    limits = BatchLimits(max_messages=100, max_message_bytes=50, max_batch_bytes=1 << 20)
    with pytest.raises(BatchError):
        batches.read_each(batch(b"a", b"b", shared_properties=shared).SerializeToString(), limits)


def test_properties_too_large_for_a_message_are_refused_to_it_alone() -> None:
    large = pb.Properties(subject="s" * (batches.MAX_PROPERTIES_BYTES + 1))
    made = batch(b"a", b"b", properties=[pb.Properties(subject="s"), large]).SerializeToString()
    limits = BatchLimits(max_messages=100, max_message_bytes=50, max_batch_bytes=1 << 20)
    with pytest.raises(BatchError):
        batches.check(made, limits, None, -1)
    found = batches.refused_each(batches.read_each(made, limits), limits, [((None, -1),)] * 2)
    assert {ordinal: error.reason for ordinal, error in found.items()} == {1: "metadata_too_large"}


def test_bytes_that_are_no_batch_are_refused_as_a_whole() -> None:
    for made in (
        b"\xff\xff\xff",
        pb.MessageBatch(count=2, bodies=b"x", body_ends=[1]).SerializeToString(),
        pb.MessageBatch(count=2, bodies=b"xy", body_ends=[2, 1]).SerializeToString(),
        batch(*[b""] * 101).SerializeToString(),
    ):
        with pytest.raises(BatchError):
            wrong(made)


@pytest.mark.parametrize("kept", [None, ALL])
def test_an_independent_batch_has_a_limit_of_messages(kept: object) -> None:
    """Its count was looked for in a part of the bytes only."""
    count = batches.MAX_INDEPENDENT + 1
    limits = BatchLimits(max_messages=2 * count, max_message_bytes=50, max_batch_bytes=1 << 20)
    ends = pb.MessageBatch(body_ends=[0]).SerializeToString()
    data = ends * count + pb.MessageBatch(count=count).SerializeToString()
    assert batches.check(data, limits, kept, -1).count == count  # type: ignore[arg-type]
    with pytest.raises(BatchError, match="4097 independent messages; at most 4096"):
        batches.check_independent(data, limits, kept, -1)  # type: ignore[arg-type]


def test_a_shared_name_too_long_for_a_column_is_refused() -> None:
    shared = pb.Properties(application_properties={"x" * 65_520: pb.Value(integer=1)})
    data = batch(b"a", b"b", shared_properties=shared).SerializeToString()
    limits = BatchLimits(max_messages=100, max_message_bytes=50, max_batch_bytes=1 << 20)
    with pytest.raises(BatchError, match="a field key has") as caught:
        batches.check(data, limits, ALL, -1)
    assert caught.value.reason == "metadata_too_large"
    with pytest.raises(BatchError, match="a field key has"):
        batches.QueueColumns(batches.StoredBatch(data)).of([0], ALL)
