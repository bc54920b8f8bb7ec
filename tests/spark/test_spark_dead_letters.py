"""`quorum pipeline deadletters`: what is counted of real dead letters, and which are moved back."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from quorum import sync
from quorum.cli.main import app
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark import OptionError
from quorum.spark.failures import quiet_query_errors
from quorum.spark.pipelines import dead_letters as module
from quorum.spark.pipelines.dead_letters import Counted, Group, count, letters, selector_of
from quorum.sync import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 60.0


def wait_for(client: sync.Client, queue: str, ready: int) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while (found := client.describe(queue).queue.ready) != ready:
        assert time.monotonic() < deadline_s, f"{queue} has {found} messages, {ready} are expected"
        time.sleep(0.05)


def counted(found: Counted) -> dict[tuple[Any, ...], int]:
    return {group.values: group.messages for group in found.groups}


@pytest.fixture(scope="module")
def parking(cluster: LocalCluster) -> str:
    """A dead-letter queue with 5 rejected messages of `dl-orders`, 2 that `dl-bills` dropped for its length, and one
    message that is no dead letter."""
    with sync.connect(cluster.url) as client:
        client.declare("dl-parking", {"x-filter-enabled": True})
        target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dl-parking"}
        client.declare("dl-orders", target)
        client.declare("dl-bills", {**target, "x-max-length": 1})
        rows = [{"color": ("red", "blue")[n % 2], "size": n, "subject": "own"} for n in range(5)]
        client.publish_batch("dl-orders", [Message(b"o", {"subject": "s"}, row) for row in rows])
        client.discard(client.get("dl-orders", len(rows)), wait=True)
        client.publish_batch(
            "dl-bills", [Message(b"b", {}, {"color": "red", "size": 10 + n}) for n in range(3)]
        )
        client.publish("dl-parking", b"stranger")
        wait_for(client, "dl-parking", 8)
    return "dl-parking"


def test_deaths_are_counted_by_reason_queue_and_properties(
    spark: SparkSession, cluster: LocalCluster, parking: str
) -> None:
    found = letters(spark, cluster.url, parking)
    by_death = count(found, ["reason", "queue"])
    assert by_death == Counted(
        8,
        (
            Group(("rejected", "dl-orders"), 5),
            Group(("maxlen", "dl-bills"), 2),
            Group((None, None), 1),
        ),
        0,
    )
    assert counted(count(found, ["color"])) == {("red",): 5, ("blue",): 2, (None,): 1}
    assert counted(count(found, ["subject"])) == {("s",): 5, (None,): 3}, "the message's own subject"
    assert counted(count(found, ["fields.subject"])) == {("own",): 5, (None,): 3}, "the property"
    assert counted(count(found, ["queue"], "size >= 3 AND reason <> 'maxlen'")) == {("dl-orders",): 2}
    ((hour,),) = counted(count(found, ["time"], "reason = 'rejected'"))
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    assert hour.astimezone(UTC) in (now, now - timedelta(hours=1))
    assert counted(count(found, ["Time"], "reason = 'rejected'")) == {(hour,): 5}, "Spark ignores the case"


def test_only_the_largest_groups_are_returned(
    spark: SparkSession, cluster: LocalCluster, parking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_GROUPS", 1)
    found = count(letters(spark, cluster.url, parking), ["reason"])
    assert found == Counted(8, (Group(("rejected",), 5),), 2)


def test_a_history_of_another_form_counts_as_none(
    spark: SparkSession, client: sync.Client, cluster: LocalCluster, queue: str
) -> None:
    redriven = {"queue": "p", "reason": "redriven", "count": 1, "time": 5}
    death = {"queue": "short", "reason": "expired", "time": 7_200_000}
    for own in (
        {"x-death": "no list"},
        {"x-death": json.dumps([1, "x"])},
        {"x-death": json.dumps([{"queue": 5, "reason": [], "time": "soon"}])},
        {"x-death": 7, "x-last-death-queue": True},
        {"x-death": json.dumps([{**death, "time": 10**18}])},
        {"x-death": json.dumps([redriven, death])},
        {"X-Death": "another name", "color": "red"},
    ):
        client.publish(queue, b"x", application_properties=own)
    found = letters(spark, cluster.url, queue)
    assert counted(count(found, ["queue"]))["short",] == 2
    times = counted(count(found, ["time"], "reason = 'expired'"))
    assert {None if hour is None else hour.astimezone(UTC) for (hour,) in times} == {
        None,
        datetime(1970, 1, 1, 2, tzinfo=UTC),
    }


def test_unknown_columns_and_predicates_are_one_sentence(
    spark: SparkSession, cluster: LocalCluster, parking: str, capfd: pytest.CaptureFixture[str]
) -> None:
    quiet_query_errors()
    found = letters(spark, cluster.url, parking, "color STRING")
    for by, where in ((["colour"], ""), (["reason"], "colour = 'red'"), (["reason"], "((")):
        with pytest.raises(OptionError, match="--fields 'NAME TYPE' names further properties") as told:
            count(found, by, where)
        assert "\n" not in str(told.value)
    assert capfd.readouterr().err == ""
    with pytest.raises(OptionError, match="no commas, no blanks at the ends"):
        letters(spark, cluster.url, "a,b")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("reason = 'rejected'", "a selector cannot name 'reason' of the history"),
        ("color = 'red' AND Queue = 'orders'", "--only chooses by the queue"),
        ("subject = 's'", "fields.subject is the property of this name"),
        ("sequence > 5", "column sequence is no application property"),
        ("upper(color) = 'RED'", "no selector of the same meaning"),
    ],
)
def test_a_predicate_without_a_selector_is_refused(spark: SparkSession, where: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        selector_of(where)


def test_messages_that_a_predicate_chooses_are_moved_back(
    spark: SparkSession, client: sync.Client, cluster: LocalCluster, parking: str
) -> None:
    assert selector_of("fields.subject = 'own' AND size < 2") == "(subject = 'own' AND size < 2)"
    before = client.describe(parking).queue.ready
    found = client.redrive(parking, selector_of("color = 'red' AND size < 2"))
    assert (found.moved, found.left) == ({"dl-orders": 1}, {})
    assert client.describe(parking).queue.ready == before - 1


def test_options_that_do_not_go_together_are_refused() -> None:
    for given, words in (
        (["--only", "orders"], "--only and --limit need --redrive"),
        (["--redrive", "--by", "reason"], "--redrive counts nothing"),
    ):
        done = CliRunner().invoke(app, ["pipeline", "deadletters", "parking", *given])
        assert words in str(done.exception)
