"""The client's pure parts: tags, values, batches, addresses, errors, and who has decided what of a batch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sized
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from hypothesis import example, given
from hypothesis import strategies as st

import quorum.sync
from quorum.client import errors, values
from quorum.client.connection.endpoints import Channels, parse_url, shown_url
from quorum.client.errors import PublishRejected, ServiceError, UsageError
from quorum.client.messages.batch import BatchReader, Message, PreparedBatch, encode_batch
from quorum.client.messages.tags import TagRanges, count_of
from quorum.client.session.publisher import Publisher
from quorum.local_cluster.ports import HOST, free_ports
from quorum.v1 import queue_pb2

SPAN = st.tuples(st.integers(1, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(st.tuples(st.booleans(), SPAN), max_size=40))
@example([(True, (1, 3)), (True, (9, 9)), (True, (5, 7))])
def test_tag_ranges_are_a_set_of_integers(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    ranges, model = TagRanges(), set()
    for adds, (first, last) in steps:
        span = set(range(first, last + 1))
        if adds:
            ranges.add(first, last)
            model |= span
        else:
            taken = ranges.remove(first, last)
            assert {tag for a, b in taken for tag in range(a, b + 1)} == model & span
            assert taken == sorted(taken)
            assert count_of(taken) == len(model & span)
            model -= span
        pairs = ranges.ranges()
        assert {tag for a, b in pairs for tag in range(a, b + 1)} == model
        assert all(a[1] + 1 < b[0] for a, b in pairwise(pairs)), "sorted and not touching"
        assert all((tag in ranges) == (tag in model) for tag in range(75))
        assert bool(ranges) == bool(model)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "boolean"),
        (False, "boolean"),
        (1, "integer"),
        (0, "integer"),
        (-(2**63), "integer"),
        (1.0, "floating"),
        ("", "text"),
        ("é", "text"),
        (b"", "binary"),
    ],
)
def test_values_keep_their_kind(value: values.FieldValue, kind: str) -> None:
    wire = queue_pb2.Value()
    values.set_value(wire, value, "field")
    assert wire.WhichOneof("kind") == kind
    back = values.get_value(queue_pb2.Value.FromString(wire.SerializeToString()))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, None, [1], object()])
def test_what_is_no_value_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UsageError, match="'field'"):
        values.set_value(queue_pb2.Value(), value, "field")


@pytest.mark.parametrize("given", ["x-max-length", ["x-max-length"], 5])
def test_arguments_that_are_no_mapping_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=f"arguments are a mapping .* not {type(given).__name__}"):
        values.arguments(given)


@pytest.mark.parametrize("properties", [None, {"subject": "s"}, values.Properties(subject="s")])
def test_a_delay_and_a_time_are_properties(properties: Any) -> None:
    subject = "" if properties is None else "s"
    for delay, delay_ms in ((2, 2_000), (0.0001, 1), (timedelta(minutes=1), 60_000)):
        wire = values.encode_properties(values.with_delay(properties, delay, None), None)
        assert (wire.delivery_delay_ms, wire.subject) == (delay_ms, subject)
    at = datetime(2027, 1, 1, tzinfo=UTC)
    wire = values.encode_properties(values.with_delay(properties, None, at), None)
    assert (wire.delivery_time, wire.subject) == (1_798_761_600_000, subject)
    assert values.with_delay(properties, None, None) is properties


def test_delays_may_have_the_names_of_amqp_annotations() -> None:
    wire = values.encode_properties({"x-opt-delivery-delay": 1_500, "x_opt_delivery_time": 5}, None)
    assert (wire.delivery_delay_ms, wire.delivery_time) == (1_500, 5)


@pytest.mark.parametrize(
    ("delay", "at"),
    [
        (1, datetime(2027, 1, 1, tzinfo=UTC)),
        (-1, None),
        (True, None),
        ("5", None),
        (float("nan"), None),
        (values.MAX_DELAY_S + 1, None),
        (None, datetime(2027, 1, 1)),
        (None, 1_798_761_600),
    ],
)
def test_a_delay_that_cannot_be_is_refused(delay: Any, at: Any) -> None:
    with pytest.raises(UsageError):
        values.with_delay(None, delay, at)


def test_properties_by_amqp_name_and_by_keyword_are_the_same() -> None:
    by_name = values.encode_properties(
        {"correlation-id": "c", "ttl": 5, "durable": True, "group_id": None}, None
    )
    by_keyword = values.encode_properties(values.Properties(correlation_id="c", ttl_ms=5, durable=True), None)
    assert by_name == by_keyword
    assert values.decode_properties(by_name) == values.Properties(correlation_id="c", ttl_ms=5, durable=True)
    assert by_name.HasField("ttl_ms")
    assert not by_name.HasField("group_id")


@pytest.mark.parametrize(
    "properties",
    [
        {"priority": True},
        {"durable": 1},
        {"priority": -1},
        {"subject": 5},
        {"ttl": "soon"},
        {"colour": "red"},
    ],
)
def test_a_property_of_the_wrong_kind_is_refused(properties: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(properties)).replace("ttl", "ttl")):
        values.encode_properties(properties, None)


def test_arguments_take_lists_of_names() -> None:
    wire = values.arguments({"x-filter-field-names": ["*", "header.priority"], "x-max-length": 5})
    assert wire["x-filter-field-names"].text == "*,header.priority"
    assert wire["x-max-length"].integer == 5
    with pytest.raises(UsageError, match="text only"):
        values.arguments({"x": [1]})


def test_a_property_filter_has_two_sections() -> None:
    wire = values.property_filter({"properties": {"subject": "&p:a"}, "application_properties": {"n": 1}})
    assert wire.properties["subject"].text == "&p:a"
    assert wire.application_properties["n"].integer == 1
    with pytest.raises(UsageError, match="unknown section 'header'"):
        values.property_filter({"header": {}})


TEXTS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1, 1.0, True, "x"]), max_size=2)


@given(
    st.lists(st.tuples(st.binary(max_size=5), TEXTS, st.sampled_from([None, "s"])), min_size=1, max_size=8)
)
def test_a_batch_reads_back_as_it_was_written(given_messages: list[tuple[bytes, Any, str | None]]) -> None:
    batch = encode_batch(Message(body, {"subject": s}, fields) for body, fields, s in given_messages)
    reader = BatchReader(batch.data, batch.count)
    assert batch.count == len(given_messages)
    for ordinal, (body, fields, subject) in enumerate(given_messages):
        assert reader.body(ordinal) == body
        assert reader.properties(ordinal).subject == subject
        back = reader.application_properties(ordinal)
        assert {key: (type(value), value) for key, value in back.items()} == {
            key: (type(value), value) for key, value in fields.items()
        }


def test_properties_are_stored_as_seldom_as_possible() -> None:
    plain = queue_pb2.MessageBatch.FromString(encode_batch([b"a", b"b"]).data)
    assert not plain.properties
    assert not plain.HasField("shared_properties")
    same = queue_pb2.MessageBatch.FromString(encode_batch([Message(b"a", {"subject": "s"})] * 2).data)
    assert same.shared_properties.subject == "s"
    assert not same.properties
    mixed = queue_pb2.MessageBatch.FromString(encode_batch([b"a", Message(b"b", {"subject": "s"})]).data)
    assert [each.subject for each in mixed.properties] == ["", "s"]


def test_bytes_that_are_no_batch_are_refused() -> None:
    good = encode_batch([b"a", b"b"]).data
    assert PreparedBatch.parse(good).count == 2
    for bad in (b"", b"\xff", good[:-3]):
        with pytest.raises(UsageError):
            PreparedBatch.parse(bad)
    with pytest.raises(UsageError, match="a body is bytes, not str"):
        encode_batch(["text"])  # type: ignore[list-item]  # the point of the test
    with pytest.raises(ServiceError):
        BatchReader(good, 3).body(0)


def test_addresses() -> None:
    assert parse_url("quorum://a:1,b:2").endpoints == ("a:1", "b:2")
    assert parse_url("quorum://a").endpoints == ("a:7400",)
    assert parse_url("quorum://a:1, b:65535/").endpoints == ("a:1", "b:65535")
    assert parse_url("quorum://[::1]:5,[::1]").endpoints == ("[::1]:5", "[::1]:7400")
    for bad in (
        "http://a:1",
        "quorum://",
        "quorum://a:b",
        "quorum://a:0",
        "quorum://a:65536",
        "quorum://:1",
        "quorum://a:1,,b:1",
        "quorum://ann@a:1",
    ):
        with pytest.raises(UsageError):
            parse_url(bad)
    for bad in ("quorum://user:secret@a:0", "http://user:secret@a:1", "quorum://:secret@a:1"):
        with pytest.raises(UsageError) as refused:
            parse_url(bad)
        assert "secret" not in str(refused.value)


def test_a_url_may_name_a_user_and_so_may_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parse_url("quorum://ann:p%40ss:word@a:1,b")
    assert (found.user, found.password, found.endpoints) == ("ann", "p@ss:word", ("a:1", "b:7400"))
    assert parse_url(found.url_of("b:7400")).password == "p@ss:word"
    assert "p@ss" not in repr(found)
    assert parse_url("quorum://a").user == ""
    monkeypatch.setenv("QUORUM_USER", "eve")
    monkeypatch.setenv("QUORUM_PASSWORD", "of eve")
    assert (parse_url("quorum://a").user, parse_url("quorum://a").password) == ("eve", "of eve")
    assert parse_url("quorum://ann:x@a").user == "ann"
    monkeypatch.delenv("QUORUM_PASSWORD")
    with pytest.raises(UsageError, match="QUORUM_USER is set, and QUORUM_PASSWORD is not"):
        parse_url("quorum://a")
    assert shown_url("quorum://ann:x@a:1/?ca_file=c") == "quorum://ann@a:1/?ca_file=c"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (code_pb2.INVALID_ARGUMENT, errors.RefusedError),
        (code_pb2.NOT_FOUND, errors.NotFound),
        (code_pb2.RESOURCE_EXHAUSTED, errors.RefusedError),
        (code_pb2.UNAUTHENTICATED, errors.PermissionRefused),
        (code_pb2.UNAVAILABLE, errors.UnavailableError),
        (code_pb2.ABORTED, errors.UnavailableError),
        (code_pb2.DEADLINE_EXCEEDED, errors.TimedOut),
        (code_pb2.INTERNAL, errors.ServiceError),
        (12345, errors.ServiceError),
    ],
)
def test_an_error_says_whose_fault_it_is(code: int, kind: type[errors.QuorumError]) -> None:
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason="WHY", metadata={"line": "1"}))
    status = status_pb2.Status(code=code, message="because", details=[detail])
    error = errors.from_status(status, "doing it")
    assert type(error) is kind
    assert str(error) == "doing it: because"
    assert (error.reason, error.metadata) == ("WHY", {"line": "1"})


@pytest.mark.parametrize(
    ("of_grpc", "said"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9999: Failed to connect to "
            "remote host: Connection refused",
            "x: cannot connect: Connection refused",
        ),
        (
            "errors resolving node-1.invalid:7400: [field:hostname lookup error:address lookup failed for "
            "node-1.invalid:7400: Domain name not found]",
            "x: its address cannot be found: Domain name not found",
        ),
        ("Socket closed", "x: Socket closed"),
    ],
)
def test_a_member_that_cannot_be_reached_is_told_in_plain_words(of_grpc: str, said: str) -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), of_grpc
    )
    found = errors.from_rpc_error(error, "x")
    assert type(found) is errors.UnavailableError
    assert str(found) == said


def test_the_words_of_grpc_about_a_closed_port_are_known() -> None:
    with pytest.raises(errors.UnavailableError) as found:
        quorum.sync.connect(f"quorum://{HOST}:{free_ports(1)[0]}", connect_timeout_ms=2_000)
    assert str(found.value).endswith("cannot connect: Connection refused")


def test_a_call_without_details_has_its_code() -> None:
    empty = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, empty, empty, "gone")
    assert type(errors.from_rpc_error(error, "x")) is errors.NotFound
    broken = grpc.aio.Metadata((errors.DETAILS_KEY, b"\xff"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, empty, broken, "gone")
    assert type(errors.from_rpc_error(error, "x")) is errors.ServiceError


def confirms(*confirmed: tuple[int, int], rejected: tuple[tuple[int, int], ...] = ()) -> Any:
    detail = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="full")
    return queue_pb2.Confirms(
        confirmed=[queue_pb2.Range(first=first, last=last) for first, last in confirmed],
        rejected=[
            queue_pb2.Rejection(range=queue_pb2.Range(first=first, last=last), status=detail)
            for first, last in rejected
        ],
    )


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_answers_decides_every_batch_once(seed: int) -> None:
    asyncio.run(_decide_at_random(random.Random(seed)))


async def _decide_at_random(rng: random.Random) -> None:
    publisher = Publisher(lambda: None)
    sizes = [rng.randint(1, 6) for _ in range(12)]
    futures = [await publisher.admit("q", PreparedBatch(bytes(10), size), None) for size in sizes]
    total = sum(sizes)
    undecided, refused = set(range(1, total + 1)), set()
    while undecided:
        first = rng.randint(1, total)
        last = min(total, first + rng.randint(0, 9))
        is_refusal = rng.random() < 0.3
        if is_refusal:
            refused |= undecided & set(range(first, last + 1))
        publisher.decide(confirms(rejected=((first, last),)) if is_refusal else confirms((first, last)))
        undecided -= set(range(first, last + 1))
        assert publisher.lowest_unconfirmed == min(undecided, default=total + 1)
    assert publisher.is_idle
    assert publisher._bytes == 0
    start = 1
    for size, future in zip(sizes, futures, strict=True):
        wrong = {number - start for number in range(start, start + size) if number in refused}
        if wrong:
            with pytest.raises(PublishRejected) as rejected:
                future.result()
            assert {n for a, b in rejected.value.rejected for n in range(a, b + 1)} == wrong
        else:
            assert future.result() == size
        start += size


def test_answers_to_numbers_never_given_are_the_service_s_fault() -> None:
    publisher = Publisher(lambda: None)
    for pair in ((1, 1), (0, 0)):
        with pytest.raises(ServiceError, match="the service answered for numbers"):
            publisher.decide(confirms(pair))


def test_resending_gives_all_undecided_batches_in_order() -> None:
    async def scenario() -> None:
        publisher = Publisher(lambda: None)
        futures = [await publisher.admit("q", PreparedBatch(b"%d" % n, 2), None) for n in range(5)]
        sent = [publisher.next_request().publish.first_sequence for _ in range(3)]
        assert sent == [1, 3, 5]
        publisher.decide(confirms((3, 4)))
        publisher.resend_all()
        again = []
        while (request := publisher.next_request()) is not None:
            again.append((request.publish.first_sequence, request.publish.batch))
        assert again == [(1, b"0"), (5, b"2"), (7, b"3"), (9, b"4")]
        publisher.fail_all(errors.ConnectionLost("over"))
        assert [type(future.exception()) for future in futures] == [
            type(None) if n == 1 else errors.ConnectionLost for n in range(5)
        ]

    asyncio.run(scenario())


def test_a_publisher_keeps_nothing_of_batches_that_are_decided() -> None:
    async def scenario() -> None:
        publisher = Publisher(lambda: None)
        for number in range(1, 101):
            confirmation = await publisher.admit("q", PreparedBatch(b"x", 1), None)
            while publisher.next_request() is not None:
                pass
            publisher.decide(confirms((number, number)))
            await confirmation
        kept = [each for each in vars(publisher).values() if isinstance(each, Sized)]
        assert max(map(len, kept)) <= 1
        assert publisher._range_count <= 1

    asyncio.run(scenario())


def test_the_package_imports_the_client_only_when_asked() -> None:
    import subprocess
    import sys

    code = (
        "import sys, quorum; assert 'grpc' not in sys.modules; "
        "quorum.connect; quorum.sync.connect; assert 'grpc' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = quorum.nothing_like_it


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"ttl": "soon"}, "property 'ttl' cannot be 'soon'; allowed: a whole number from 0"),
        ({"ttl": -5}, "property 'ttl' cannot be -5; allowed: a whole number from 0"),
        ({"priority": True}, "property 'priority' cannot be True; allowed: a whole number from 0"),
        ({"durable": 1}, "property 'durable' cannot be 1; allowed: true or false"),
        ({"correlation_id": 7}, "property 'correlation-id' cannot be 7; allowed: text"),
        ({"subject": "\ud800"}, "property 'subject' cannot be '\\ud800'; allowed: text"),
        ({"subjct": "x"}, "unknown property 'subjct'; did you mean 'subject'?"),
        ({"zzz": "x"}, "unknown property 'zzz'; known: durable, priority, ttl, delivery-delay"),
    ],
)
def test_a_bad_property_is_named_as_it_was_given(properties: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        values.encode_properties(properties, None)
    assert str(caught.value).startswith(words)


def test_half_a_surrogate_pair_is_no_application_property() -> None:
    for properties in ({"\ud800": 1}, {"x": "\ud800"}):
        with pytest.raises(UsageError, match="half a surrogate pair"):
            values.encode_properties(None, properties)  # type: ignore[arg-type]


# ---- channels


def test_a_channel_is_opened_once_and_again_when_certificates_are_renewed(tmp_path: Path) -> None:
    authority, key, certificate = (tmp_path / name for name in ("ca.pem", "key.pem", "certificate.pem"))
    for file in (authority, key, certificate):
        file.write_bytes(b"old")
    files = f"ca_file={authority}&key_file={key}&certificate_file={certificate}"
    opened: list[str] = []

    def open_channel(endpoint: str) -> str:
        opened.append(endpoint)
        return f"{endpoint} {len(opened)}"

    channels = Channels(parse_url(f"quorums://a:1,b:1/?{files}"), open_channel)
    assert [channels.get(endpoint) for endpoint in ("a:1", "b:1", "a:1")] == ["a:1 1", "b:1 2", "a:1 1"]
    key.unlink()
    assert channels.get("a:1") == "a:1 1", "it is just being replaced"
    key.write_bytes(b"renewed")
    assert [channels.get(endpoint) for endpoint in ("a:1", "a:1")] == ["a:1 3", "a:1 3"]
    assert sorted(channels.take_all()) == ["a:1 1", "a:1 3", "b:1 2"]
    assert channels.take_all() == []
    assert channels.get("b:1") == "b:1 4"


def test_a_url_is_made_again_from_what_it_names() -> None:
    for url in (
        "quorum://a:1,b:2",
        "quorum://a%40b:p%3Aw@a:1",
        "quorums://a:1",
        "quorums://ann:x@a:1/?ca_file=%2Fca+1.pem&certificate_file=c&key_file=k&token_file=t",
    ):
        service = parse_url(url)
        assert service.url_of(*service.endpoints) == url


def test_a_program_logs_in_with_its_token_as_it_is_now_or_with_its_password(tmp_path: Path) -> None:
    file = tmp_path / "token"
    service = parse_url(f"quorums://ann:x@a:1/?token_file={file}")
    file.write_text("first\n")
    assert service._authorization() == "Bearer first"
    file.write_text("second\n")
    assert service._authorization() == "Bearer second"
    assert parse_url("quorum://ann:x:y@a:1")._authorization() == "Basic YW5uOng6eQ=="
