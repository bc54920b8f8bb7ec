"""What a dead letter says of its deaths, and which of them close a cycle."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum.api.dead_letters.history import Death, Letter, letter_of
from quorum.node.wire.batches import MAX_MESSAGE_FIELDS, MAX_PROPERTIES_BYTES
from quorum.redrive import moved_back
from quorum.v1 import queue_pb2 as pb

KEYS = ("queue", "reason", "count", "exchange", "routing-keys", "time", "original-expiration")
NAMES = (
    "x-death",
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("queue", "reason", "exchange")),
)


def properties(**own: Any) -> pb.Properties:
    made = pb.Properties()
    for name, value in own.items():
        made.application_properties[name.replace("_", "-")].text = value
    return made


def died(*deaths: tuple[str, str]) -> pb.Properties:
    """The properties after these deaths: (queue, reason), the first one first."""
    made = pb.Properties()
    for time_ms, (queue, reason) in enumerate(deaths, 1):
        made = letter_of(made, Death(queue, reason, time_ms)).properties
    return made


def text(made: pb.Properties, name: str) -> str:
    return str(made.application_properties[name].text)


def test_the_latest_death_is_first_and_equal_ones_are_counted() -> None:
    made = died(("a", "expired"), ("b", "rejected"), ("a", "expired"))
    assert [(each["queue"], each["count"], each["time"]) for each in json.loads(text(made, "x-death"))] == [
        ("a", 2, 3),
        ("b", 1, 2),
    ]
    assert (text(made, "x-first-death-queue"), text(made, "x-last-death-queue")) == ("a", "a")


def test_the_first_death_stays_and_the_last_one_changes() -> None:
    made = died(("a", "expired"), ("b", "maxlen"))
    assert (text(made, "x-first-death-queue"), text(made, "x-first-death-reason")) == ("a", "expired")
    assert (text(made, "x-last-death-queue"), text(made, "x-last-death-reason")) == ("b", "maxlen")


def test_a_time_to_live_is_taken_away_and_noted() -> None:
    letter = letter_of(pb.Properties(ttl_ms=5), Death("a", "expired", 1))
    assert not letter.properties.HasField("ttl_ms")
    assert deaths_of(letter)[0]["original-expiration"] == "5"


@pytest.mark.parametrize("name", ["delivery_delay_ms", "delivery_time"])
def test_a_dead_letter_is_not_delayed_again(name: str) -> None:
    before = pb.Properties(**{name: 5})
    assert not letter_of(before, Death("a", "maxlen", 1)).properties.HasField(name)
    assert before.HasField(name)


def record(**own: Any) -> str:
    """A history of one record, with some keys of its own."""
    return json.dumps([{"queue": "b", "reason": "expired", "count": 1} | own])


@pytest.mark.parametrize(
    "history",
    [
        *("", "{", "7", "{}", "[7]", '[{"queue":1}]', "[" * 60_000),
        '[{"queue":"b","reason":"expired","count":' + "9" * 4_300 + "}]",
        '[{"queue":"b","reason":"expired","count":NaN}]',
        *(record(count=count) for count in (0, -1, (1 << 53) + 1, True, 1.0, "1")),
        *(record(queue=queue) for queue in ("\ud800", "", "q" * 256, None)),
        *(record(reason=reason) for reason in ("\ud800", "", "r" * 256, 7)),
        record(exchange=7),
        record(time=-1),
        record(**{"routing-keys": "b"}),
        record(**{"routing-keys": ["\ud800"]}),
        record(**{"original-expiration": 5}),
        json.dumps([{"queue": "b", "reason": f"r{n}", "count": 1} for n in range(65)]),
    ],
)
def test_a_history_that_is_none_is_replaced(history: str) -> None:
    letter = letter_of(properties(x_death=history), Death("a", "expired", 1))
    assert [each["queue"] for each in deaths_of(letter)] == ["a"]


@pytest.mark.parametrize("value", ["NaN", "[" * 900 + "]" * 900, "9" * 4_300, '"\\ud800"'])
def test_only_the_known_keys_of_a_record_are_kept(value: str) -> None:
    history = '[{"queue":"b","reason":"expired","count":2,"more":' + value + "}]"
    letter = letter_of(properties(x_death=history), Death("a", "expired", 1))
    assert deaths_of(letter)[1] == {"queue": "b", "reason": "expired", "count": 2}


def test_a_count_ends_at_its_limit() -> None:
    most = 1 << 53
    letter = letter_of(properties(x_death=record(count=most)), Death("b", "expired", 1))
    assert [each["count"] for each in deaths_of(letter)] == [most]


def test_a_history_has_64_records_and_loses_the_oldest_ones() -> None:
    made = died(*((f"q{n}", "rejected") for n in range(70)))
    assert [each["queue"] for each in json.loads(text(made, "x-death"))] == [
        f"q{n}" for n in range(69, 5, -1)
    ]


texts = st.text(st.characters(codec=None), max_size=5) | st.sampled_from(("a", "b"))
wrong = st.none() | st.floats() | st.integers() | st.lists(st.text(max_size=2), max_size=2) | texts
records = st.fixed_dictionaries(
    {"queue": texts, "reason": texts, "count": st.integers(1, 9) | wrong},
    optional=dict.fromkeys((*KEYS[3:], "more"), wrong),
)
histories = st.text() | st.lists(records | wrong, max_size=4).map(json.dumps)


def with_values(made: pb.Properties, values: dict[str, str | int]) -> pb.Properties:
    for name, value in values.items():
        made.application_properties[name].Clear()
        if isinstance(value, str):
            made.application_properties[name].text = value
        else:
            made.application_properties[name].integer = value
    return made


@given(histories, st.dictionaries(st.sampled_from(NAMES[1:]), st.text(max_size=300) | st.integers(0, 9)))
def test_whatever_a_publisher_writes_a_letter_is_made_and_read_again(
    history: str, others: dict[str, str | int]
) -> None:
    before = with_values(properties(x_death=history), others)
    first = letter_of(before, Death("a", "expired", 1))
    second = letter_of(first.properties, Death("b", "expired", 2))
    assert deaths_of(second)[1:] == [each for each in deaths_of(first) if each["queue"] != "b"]
    assert {*second.properties.application_properties} == {*NAMES}
    for name in NAMES[1:4]:
        assert text(second.properties, name) == text(first.properties, name)


@pytest.mark.parametrize(
    "values",
    [
        *({name: 7} for name in NAMES),
        *({name: "x" * 256} for name in NAMES),
        *({name: ""} for name in NAMES if not name.endswith("exchange")),
    ],
)
def test_a_history_of_which_one_property_is_wrong_is_replaced_as_a_whole(
    values: dict[str, str | int],
) -> None:
    letter = letter_of(with_values(died(("b", "rejected")), values), Death("a", "expired", 2))
    assert letter == letter_of(None, Death("a", "expired", 2))


@pytest.mark.parametrize("name", NAMES)
def test_a_history_of_which_one_property_is_missing_is_replaced_as_a_whole(name: str) -> None:
    made = died(("b", "rejected"))
    del made.application_properties[name]
    assert letter_of(made, Death("a", "expired", 2)) == letter_of(None, Death("a", "expired", 2))


def deaths_of(letter: Letter) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text(letter.properties, "x-death"))
    return found


def allowed(letter: Letter, *names: str) -> list[str]:
    """Those of these queues that the letter may go to."""
    queues = tuple([SimpleNamespace(name=name) for name in names])
    return [queue.name for queue in letter.allowed(queues)]  # type: ignore[arg-type]


def closes_cycle(letter: Letter, queue: str) -> bool:
    return not allowed(letter, queue)


@pytest.mark.parametrize(
    ("deaths", "queue", "is_cycle"),
    [
        ((("a", "expired"),), "b", False),
        ((("a", "expired"),), "a", True),
        ((("a", "rejected"),), "a", False),
        ((("a", "expired"), ("b", "expired")), "a", True),
        ((("a", "rejected"), ("b", "expired")), "a", False),
        ((("a", "expired"), ("b", "rejected")), "a", False),
        ((("c", "rejected"), ("a", "expired"), ("b", "expired")), "a", True),
    ],
)
def test_a_cycle_without_a_rejection_is_noticed(
    deaths: tuple[tuple[str, str], ...], queue: str, is_cycle: bool
) -> None:
    letter = letter_of(died(*deaths[:-1]), Death(*deaths[-1], 9))
    assert closes_cycle(letter, queue) is is_cycle


def many(count: int) -> pb.Properties:
    """A message with so many application properties."""
    return properties(**{f"p{n}": "" for n in range(count)})


def large(size_bytes: int) -> pb.Properties:
    """A message with so many bytes of properties."""
    made = properties(p="")
    made.application_properties["p"].text = "x" * (size_bytes - made.ByteSize() - 8)
    made.application_properties["p"].text += "x" * (size_bytes - made.ByteSize())
    assert made.ByteSize() == size_bytes
    return made


def is_within_limits(made: pb.Properties) -> bool:
    return len(made.application_properties) <= MAX_MESSAGE_FIELDS and made.ByteSize() <= MAX_PROPERTIES_BYTES


@pytest.mark.parametrize("before", [many(MAX_MESSAGE_FIELDS - 3), large(MAX_PROPERTIES_BYTES - 100)])
def test_a_history_that_does_not_fit_is_shortened(before: pb.Properties) -> None:
    letter = letter_of(letter_of(before, Death("a", "expired", 1)).properties, Death("b", "maxlen", 2))
    assert is_within_limits(letter.properties)
    history = letter.properties.application_properties.pop("x-death").text
    assert json.loads(history) == [
        {"queue": "b", "reason": "maxlen"},
        {"queue": "a", "reason": "expired"},
    ]
    assert letter.properties == before


def test_a_short_history_ends_with_what_ends_the_chain() -> None:
    before = letter_of(many(1_020), Death("a", "expired", 1)).properties
    for time_ms, (queue, reason) in enumerate([("b", "rejected"), ("c", "expired"), ("d", "maxlen")], 2):
        before = letter_of(before, Death(queue, reason, time_ms)).properties
    assert [each["queue"] for each in json.loads(text(before, "x-death"))] == ["d", "c", "b"]


def test_a_short_history_becomes_a_whole_one_when_there_is_room() -> None:
    before = letter_of(many(1_020), Death("a", "expired", 1)).properties
    for n in range(10):
        del before.application_properties[f"p{n}"]
    made = letter_of(
        letter_of(before, Death("b", "rejected", 2)).properties, Death("a", "expired", 3)
    ).properties
    assert text(made, "x-first-death-queue") == "a"
    assert [(each["queue"], each["count"]) for each in json.loads(text(made, "x-death"))] == [
        ("a", 2),
        ("b", 1),
    ]


full = [many(MAX_MESSAGE_FIELDS), large(MAX_PROPERTIES_BYTES)]


@pytest.mark.parametrize("before", full)
@pytest.mark.parametrize("reason", ["expired", "maxlen"])
def test_a_message_without_room_for_any_history_that_dies_by_itself_goes_nowhere(
    before: pb.Properties, reason: str
) -> None:
    assert closes_cycle(letter_of(before, Death("a", reason, 1)), "elsewhere")


@pytest.mark.parametrize("before", full)
@pytest.mark.parametrize("reason", ["rejected", "delivery_limit"])
def test_a_message_without_room_for_any_history_that_consumers_had_goes_on_without_one(
    before: pb.Properties, reason: str
) -> None:
    letter = letter_of(before, Death("a", reason, 1))
    assert letter.properties == before
    assert not closes_cycle(letter, "b")


@pytest.mark.parametrize(
    "before", [many(0), *full, many(1_020), many(1_023), large(MAX_PROPERTIES_BYTES - 100)]
)
def test_every_chain_of_deaths_without_a_rejection_ends(before: pb.Properties) -> None:
    """Two queues with a time to live of 0, each the other's target."""
    hops = 0
    for queue, target in [("a", "b"), ("b", "a")] * 20:
        letter = letter_of(before, Death(queue, "expired", 1))
        if closes_cycle(letter, target):
            break
        hops += 1
        before = letter.properties
    assert hops <= 1


def test_a_bare_letter_of_a_message_that_has_died_by_itself_has_a_short_history() -> None:
    """A target refuses a letter because its history is too large, and it is made again."""
    before = died(("a", "rejected"), ("b", "expired"))
    letter = letter_of(before, Death("c", "maxlen", 3), is_bare=True)
    assert [*letter.properties.application_properties] == ["x-death"]
    assert [each["queue"] for each in json.loads(text(letter.properties, "x-death"))] == ["c", "b", "a"]
    assert closes_cycle(letter_of(letter.properties, Death("d", "expired", 4)), "b")


@pytest.mark.parametrize("reason", ["rejected", "delivery_limit"])
def test_a_bare_letter_of_a_message_that_consumers_had_has_no_history(reason: str) -> None:
    letter = letter_of(died(("a", "rejected")), Death("c", reason, 3), is_bare=True)
    assert letter.properties == pb.Properties()
    assert not closes_cycle(letter, "b")


def test_a_letter_is_copied_after_the_first_death_in_a_row_only() -> None:
    names = ["d", "c", "b", "a"]
    first = letter_of(None, Death("a", "expired", 1))
    second = letter_of(first.properties, Death("b", "expired", 2))
    rejected = letter_of(second.properties, Death("c", "rejected", 3))
    after = letter_of(rejected.properties, Death("d", "expired", 4))
    assert [allowed(letter, *names) for letter in (first, second, rejected, after)] == [
        ["d", "c", "b"],
        ["c"],
        ["d", "c", "b", "a"],
        ["c", "b", "a"],
    ]


def test_a_message_dies_in_16_queues_at_most_until_a_consumer_rejects_it() -> None:
    before = pb.Properties()
    for n in range(16):
        letter = letter_of(before, Death(f"q{n}", "expired", n))
        assert not closes_cycle(letter, "next")
        before = letter.properties
    assert closes_cycle(letter_of(before, Death("q16", "expired", 16)), "next")
    letter = letter_of(before, Death("q16", "rejected", 16))
    assert not closes_cycle(letter, "next")
    assert not closes_cycle(letter_of(letter.properties, Death("next", "expired", 17)), "q0")


@pytest.mark.parametrize("room", [0, 1_020])
def test_a_message_that_a_person_has_moved_back_begins_a_new_chain(room: int) -> None:
    before = many(room)
    for time_ms, queue in enumerate(("a", "b"), 1):
        before = letter_of(before, Death(queue, "expired", time_ms)).properties
    before.application_properties["x-death"].text = moved_back(text(before, "x-death"), "grave", 3)
    letter = letter_of(before, Death("b", "expired", 4))
    assert not closes_cycle(letter, "a")
    whole = [("b", "expired"), ("grave", "redriven"), ("a", "expired")]
    is_short = "x-last-death-queue" not in letter.properties.application_properties
    assert is_short is bool(room)
    found = [(each["queue"], each["reason"]) for each in deaths_of(letter)]
    assert found == (whole[:2] if is_short else whole)


def test_records_of_a_history_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher can write thousands of records, and a member reads them between its other work."""
    compared = 0

    class Record(dict[str, Any]):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

    records = [{"queue": "grave", "reason": ("redriven", "x")[n % 2], "n": n} for n in range(200)]
    history = json.dumps(records)
    reader = SimpleNamespace(loads=lambda text: [Record(each) for each in json.loads(text)], dumps=json.dumps)
    monkeypatch.setattr("quorum.redrive.json", reader)
    found = json.loads(moved_back(history, "grave", 3))
    assert [each.get("n") for each in found] == [None, *range(1, 126, 2)]
    assert compared == 0


def test_who_moves_a_message_back_adds_one_record_at_most() -> None:
    made = died(*((f"q{n}", "rejected") for n in range(64)))
    history = text(made, "x-death")
    for _ in range(3):
        history = moved_back(history, "grave", 3)
    made.application_properties["x-death"].text = history
    letter = letter_of(made, Death("a", "expired", 4))
    assert len(deaths_of(letter)) == 64
    assert (deaths_of(letter)[1]["reason"], deaths_of(letter)[1]["count"]) == ("redriven", 3)


@pytest.mark.parametrize(
    "history",
    [
        *("", "{", "7", "[]", "[7]", "[" * 60_000, '[{"queue":"\\ud800"}]'),
        '[{"queue":"grave","reason":"redriven","count":' + "9" * 4_300 + "}]",
    ],
)
def test_a_history_that_is_none_is_moved_back_as_it_is(history: str) -> None:
    assert moved_back(history, "grave", 3) == history


@given(histories)
def test_whatever_a_publisher_writes_is_moved_back(history: str) -> None:
    letter = letter_of(properties(x_death=moved_back(history, "grave", 3)), Death("a", "expired", 1))
    assert len(deaths_of(letter)) <= 1 + max(
        1, len(deaths_of(letter_of(properties(x_death=history), Death("a", "x", 1))))
    )


def test_the_message_itself_is_not_changed() -> None:
    before = pb.Properties(ttl_ms=5)
    letter_of(before, Death("a", "expired", 1))
    assert before == pb.Properties(ttl_ms=5)
