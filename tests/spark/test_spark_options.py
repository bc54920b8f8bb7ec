"""Options: what is taken, and that each wrong one is told what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from quorum.spark.errors import OptionError
from quorum.spark.options import SinkOptions, SourceOptions, apparent_use, sink_options, source_options

STREAM = {"queue": "orders", "subscription": "report"}


def stream(**given: str) -> SourceOptions:
    return source_options({**STREAM, **given}, "stream")


def test_a_batch_read_needs_a_queue_only() -> None:
    options = source_options({"queue": "orders"}, "read")
    assert options.queues == ("orders",)
    assert options.mode == "browse"
    assert options.url == "quorum://127.0.0.1:7400"
    assert options.include_body
    assert options.min_partitions is None


def test_a_stream_consumes_by_default_and_waits_a_day_for_a_group_that_is_silent() -> None:
    options = stream()
    assert (options.mode, options.starting, options.on_expiry) == ("consume", "earliest", "release")
    assert options.subscription_timeout_ms == 86_400_000
    assert options.fail_on_data_loss


def test_names_of_options_are_read_in_any_case() -> None:
    assert stream(MAXMESSAGESPERTRIGGER="50").max_messages == 50


def test_queues_are_sorted_because_offsets_are_compared_as_text() -> None:
    assert stream(queue="b, a ,c").queues == ("a", "b", "c")


def test_a_table_is_refused_with_what_works_instead() -> None:
    """Spark asks for the schema of a new table with these options. It then reads the table without any."""
    given = {"queue": "a", "option.queue": "a", "provider": "quorum", "owner": "root"}
    with pytest.raises(OptionError, match="use CREATE TEMPORARY VIEW name USING quorum"):
        source_options(given, "read")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1s", 1_000), ("500 ms", None), ("2m", 120_000), ("24h", 86_400_000), ("30d", 2_592_000_000)],
)
def test_times_have_units(text: str, ms: int | None) -> None:
    if ms is None:
        with pytest.raises(OptionError, match="from 1000ms to 720h"):
            stream(subscriptionTimeout=text)
    else:
        assert stream(subscriptionTimeout=text).subscription_timeout_ms == ms


def test_what_spark_adds_is_passed_over() -> None:
    options = sink_options({"queue": "a", "checkpointLocation": "/tmp/x", "path": "y"}, streaming=True)
    assert options == SinkOptions("quorum://127.0.0.1:7400", "a", "", None, False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queue": ""}, "option queue is missing"),
        ({"queue": "a,,b"}, "it contains an empty name"),
        ({"queue": "a,a"}, "names 'a' twice"),
        ({"queue": "q" * 256}, "at most 255"),
        ({"subscription": ""}, "option subscription is missing"),
        ({"mode": "browse"}, "'browse'; allowed: consume, tail"),
        ({"url": "http://x"}, "does not begin with quorum://"),
        ({"includeBody": "yes"}, "'yes'; allowed: true, false"),
        ({"maxMessagesPerTrigger": "0"}, "an integer from 1 to"),
        ({"maxMessagesPerTrigger": "many"}, "'many'; allowed: an integer"),
        ({"minPartitions": "-1"}, "an integer from 1 to 4096"),
        ({"subscriptionTimeout": "10"}, "such as 500ms, 30s"),
        ({"onExpiry": "explode"}, "allowed: release, discard, keep"),
        ({"startingOffsets": "17"}, "allowed with mode=consume: earliest, latest"),
        ({"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "more than maxMessagesPerTrigger, 8"),
        ({"maxTriggerDelay": "5s"}, "minMessagesPerTrigger, which is missing"),
        (
            {"startingTimestamp": "2026-05-31T08:00:00Z"},
            "option startingTimestamp is for mode=tail; mode is consume",
        ),
        ({"txnAppId": "x"}, "option txnAppId is for a sink, not for a stream"),
        ({"maxMesagesPerTriger": "5"}, "did you mean maxMessagesPerTrigger?"),
        ({"zzzz": "5"}, "unknown option 'zzzz'; known for a stream: url, queue, mode"),
        ({"url": " "}, "option url: address '' does not begin with quorum://"),
        ({"mode": ""}, "option mode is ''; allowed: consume, tail"),
        ({"failOnDataLoss": ""}, "option failOnDataLoss is ''; allowed: true, false"),
        ({"onExpiry": ""}, "option onExpiry is ''; allowed: release, discard, keep"),
        (
            {"startingOffsets": ""},
            "option startingOffsets is ''; allowed with mode=consume: earliest, latest",
        ),
    ],
)
def test_a_wrong_option_of_a_stream_is_told_what_is_allowed(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as raised:
        stream(**given)
    assert words in str(raised.value)


def test_a_misspelt_option_of_a_stream_is_told_also_while_its_schema_is_asked_for() -> None:
    """Spark does not say then that it is for a stream, and the misspelt option may be the only sign of one."""

    def told(name: str) -> str:
        given = {"queue": "orders", name: "5"}
        with pytest.raises(OptionError) as raised:
            source_options(given, apparent_use(given))
        return str(raised.value)

    assert "did you mean subscription?" in told("subscripton")
    assert "did you mean startingTimestamp?" in told("startTimestamp")
    assert "did you mean selector?" in told("selecter")
    assert "known for a batch read: url, queue" in told("zzzz")
    assert (
        "known for a stream: url, queue, mode, selector, filterFields, includeBody, minPartitions, sub"
        in told("zzzz")
    )


def test_a_batch_read_has_no_group() -> None:
    with pytest.raises(OptionError, match="option subscription is for a stream, not for a batch read"):
        source_options(STREAM, "read")


def test_tail_takes_sequences_of_just_its_queues() -> None:
    def tail(**given: str) -> Any:
        return source_options({"queue": "b,a", "mode": "tail", **given}, "stream").starting

    assert tail(startingOffsets='{"a": 3, "b": 0}') == {"a": 3, "b": 0}
    assert tail(startingOffsets="Latest") == "latest"
    with pytest.raises(OptionError, match="for the queues a; option queue names a, b"):
        tail(startingOffsets='{"a": 3}')
    with pytest.raises(OptionError, match="or sequences such as"):
        tail(startingOffsets='{"a": true, "b": 1}')
    with pytest.raises(OptionError, match="option subscription is for mode=consume; mode is tail"):
        tail(subscription="g")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-05-31T08:00:00Z", 1_780_214_400_000),
        ("2026-05-31T10:00:00+02:00", 1_780_214_400_000),
        (" 2026-05-31 08:00:00.250+00:00 ", 1_780_214_400_250),
        ("2026-05-31T08:00:00.000001Z", 1_780_214_400_001),
        ("1780214400000", 1_780_214_400_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
    ],
)
def test_a_tail_starts_by_a_time_with_its_zone_or_in_milliseconds(text: str, ms: int) -> None:
    options = source_options({"queue": "a", "mode": "tail", "startingTimestamp": text}, "stream")
    assert options.starting_ms == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-05-31",
        "2026-05-31T08:00:00",
        "2026-13-01T00:00:00Z",
        "1780214400",
        "-5",
        "1780214400000.5",
        "9999999999999999",
        "1960-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "\u0661780214400000",
    ],
)
def test_a_start_that_is_no_time_is_told_what_is_allowed(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"startingTimestamp is .*; allowed: a time after 1973 with its zone, such as"
    ):
        source_options({"queue": "a", "mode": "tail", "startingTimestamp": text}, "stream")


def test_a_stream_has_one_start() -> None:
    with pytest.raises(OptionError, match="startingTimestamp and startingOffsets exclude each other"):
        source_options(
            {"queue": "a", "mode": "tail", "startingTimestamp": "1780214400000", "startingOffsets": "latest"},
            "stream",
        )
    with pytest.raises(OptionError, match="option startingTimestamp is for a stream, not for a batch read"):
        source_options({"queue": "a", "startingTimestamp": "1780214400000"}, "read")


def test_a_batch_write_numbers_itself_with_both_options_or_neither() -> None:
    options = sink_options({"queue": "a", "txnAppId": "nightly", "txnVersion": "0"}, streaming=False)
    assert (options.txn_app_id, options.txn_version) == ("nightly", 0)
    with pytest.raises(OptionError, match="txnAppId is given without txnVersion"):
        sink_options({"txnAppId": "nightly"}, streaming=False)
    with pytest.raises(OptionError, match="txnVersion is given without txnAppId"):
        sink_options({"txnVersion": "3"}, streaming=False)
    with pytest.raises(OptionError, match="a stream numbers its batches itself"):
        sink_options({"txnAppId": "n", "txnVersion": "3"}, streaming=True)
