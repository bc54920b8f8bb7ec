"""What the simulator records of a run is judged as any other history: each rule notices what it is there for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quorum.client.messages.batch import encode_batch
from quorum.histories import Run
from quorum.histories.records import OK
from quorum.v1 import queue_pb2 as wire
from simulator.rules.history import History
from simulator.rules.rules import Rules
from support.histories.checkers import Violation


def history() -> History:
    """A producer has sent three messages, of which the first two are confirmed; a consumer got them and settled one."""
    made = History(lambda: 5)
    made.confirms(made.sends("q", 1, range(1, 3)))
    made.sends("q", 1, range(3, 4))
    made.delivers("q", "c/t/1", [Run(1, "1", 1), Run(2, "1", 2)])
    made.done(made.settles("q", "c/t/1", [Run(1, "1", 1)]))
    return made


def found(made: History, *left: Run, is_over: bool = True) -> list[str]:
    return made.violations([("q", each) for each in left], is_over=is_over)


SETTLED_LATER = Run(2, "1", 2)


def test_what_is_still_held_is_lost_only_when_the_run_is_over() -> None:
    assert found(history(), is_over=False) == []
    [lost] = found(history())
    assert lost.startswith("1 lost: 1:2 in 'q'")


def test_what_has_left_its_queue_for_good_reason_is_not_lost() -> None:
    assert found(history(), SETTLED_LATER) == []


def test_what_may_have_been_settled_is_not_lost() -> None:
    made = history()
    made.settles("q", "c/t/1", [SETTLED_LATER])
    assert found(made) == []


def test_a_message_at_two_places_is_found_while_the_run_lasts() -> None:
    made = history()
    made.delivers("q", "d/t/2", [Run(9, "1", 2)])
    assert [each.split(":")[0] for each in found(made, is_over=False)] == ["1 duplicated"]


def test_a_settled_message_that_comes_back_is_found() -> None:
    made = history()
    made.delivers("q", "d/t/2", [Run(1, "1", 1, redelivered=True)])
    assert [each.split(":")[0] for each in found(made, SETTLED_LATER)] == ["1 settled then delivered"]


def test_a_refused_message_that_is_delivered_is_found() -> None:
    made = history()
    made.refuses(made.sends("q", 1, range(4, 5)))
    assert found(made, is_over=False) == []
    made.delivers("q", "c/t/1", [Run(4, "1", 4)])
    assert [each.split(":")[0] for each in found(made, is_over=False)] == ["1 phantom"]


def test_two_who_hold_a_message_are_found() -> None:
    made = history()
    made.delivers("q", "d/t/2", [Run(2, "1", 2, redelivered=True)])
    made.done(made.settles("q", "c/t/1", [SETTLED_LATER]))
    assert [each.split(":")[0] for each in found(made)] == ["1 held twice"]


def test_a_message_that_stands_before_an_earlier_one_is_found() -> None:
    made = history()
    made.confirms(made.sends("q", 1, range(5, 6)))
    made.confirms(made.sends("q", 1, range(6, 7)))
    made.delivers("q", "d/t/2", [Run(7, "1", 6), Run(8, "1", 5)])
    assert [each.split(":")[0] for each in found(made, is_over=False)] == ["1 reordered"]


def test_the_rules_about_attachments_are_checked() -> None:
    made = history()
    made.check_attachments(is_over=True)
    made.delivers("q", "d/t/2", [Run(2, "1", 2)])
    with pytest.raises(Violation, match="again without the flag"):
        made.check_attachments(is_over=True)
    late = history()
    late.delivers("q", "c/t/1", [Run(4, "2", 2), Run(3, "2", 1)])
    with pytest.raises(Violation, match="out of order: c/t/1 got 2:1 after 2:2"):
        late.check_attachments(is_over=True)


def test_what_is_written_to_a_client_that_has_left_is_delivered_to_nobody() -> None:
    ledger = SimpleNamespace(delivery_limit=lambda queue: -1, failures_of=lambda key: 0)
    world = SimpleNamespace(now_ms=5, ledger=ledger, single_active=(), consumer_timeouts={}, grouped=())
    rules = Rules(world)  # type: ignore[arg-type]
    rules.sent[b"1:1:"] = None
    rules.history.confirms(rules.history.sends("q", 1, range(1, 2)))
    rules.answered(served("next", is_there=True), delivery(is_redelivered=True))
    rules.answered(served("first", is_there=False), delivery(is_redelivered=False))
    rules.history.check_attachments(is_over=False)
    rules.answered(served("first", is_there=True), delivery(is_redelivered=False))
    with pytest.raises(Violation, match="1:1 again, to first/t/4"):
        rules.history.check_attachments(is_over=False)


def served(client: str, *, is_there: bool) -> Any:
    """A call of this client, or one that it has left."""
    found = SimpleNamespace(group=1)
    member = SimpleNamespace(catalog=SimpleNamespace(queue=lambda name: found))
    connection = SimpleNamespace(client=SimpleNamespace(name=client), client_is_there=is_there)
    node = SimpleNamespace(member=member)
    return SimpleNamespace(connection=connection, node=node, is_used=False, held={}, queues={"t": "q"})


def delivery(*, is_redelivered: bool) -> Any:
    one = [wire.Range(first=1, last=1)]
    batch = encode_batch([b"1:1:"]).data
    return wire.SessionResponse(
        delivery=wire.Delivery(
            consumer_tag="t",
            attach=4,
            first_tag=1,
            count=1,
            batch=batch,
            sequences=one,
            redelivered=one if is_redelivered else [],
        )
    )


def test_no_two_events_have_the_same_time() -> None:
    made = history()
    records = made._recorder.records
    assert [each["op"] for each in records] == ["publish", "publish", "deliver", "settle"]
    times = [each[key] for each in records for key in ("invoked_us", "returned_us") if key in each]
    assert len(times) == len(set(times))
    assert records[-1]["outcome"] == OK
