"""Queue arguments: what is taken, what it means, and how a refusal reads."""

from __future__ import annotations

import re

import pytest

from fifo import commands as c
from fifo.commands import QueueConfig
from fifo.effects import Refused
from fifo.versions import BASE, CURRENT, FIRST
from quorum.catalog import commands as cat
from quorum.catalog.arguments import (
    BY_POLICY,
    HAVE_NO_COUNTERPART,
    SUPPORTED,
    UNSUPPORTED_ARGUMENTS,
    Argument,
    ArgumentError,
    ArgumentValue,
    check_policy_arguments,
    differences,
    effective_config,
    with_defaults,
    with_past_defaults,
)
from quorum.catalog.machine import CatalogMachine
from quorum.definitions.rabbitmq_definitions import PLACEMENT
from quorum.node.wire.operations import needed_version
from quorum_selectors.known_fields import DEFAULT_FIELD_NAMES


def refused(arguments: dict[str, ArgumentValue], *words: str, name: str = "q") -> None:
    with pytest.raises(ArgumentError) as caught:
        effective_config(name, arguments)
    for word in words:
        assert word in str(caught.value)


def differing(given: dict[str, ArgumentValue], declared: dict[str, ArgumentValue]) -> str:
    return differences(effective_config("q", given), effective_config("q", declared), given, declared)


def test_no_arguments_mean_a_plain_queue_without_limits() -> None:
    assert effective_config("q", {}) == QueueConfig("q")


def test_every_supported_argument_reaches_the_configuration() -> None:
    flights: dict[str, ArgumentValue] = {
        "x-filter-enabled": True,
        "x-filter-field-names": "carrier, header.priority,carrier",
        "x-filter-max-in-memory-bytes-per-msg": 500,
        "x-max-length": 10,
        "x-overflow": "reject-publish",
        "x-message-ttl": 0,
        "x-delivery-limit": 3,
        "x-consumer-timeout": 1_000,
        "x-queue-mode": "lazy",
        "x-max-length-bytes": 1_000,
        "x-max-consumers": 2,
        "x-expires": 60_000,
        "x-max-priority": 9,
        "x-message-groups": True,
        "x-dead-letter-exchange": "dead",
        "x-dead-letter-routing-key": "grave",
        "x-dead-letter-strategy": "at-most-once",
    }
    assert effective_config("flights", flights) == QueueConfig(
        "flights",
        True,
        ("carrier", "header.priority"),
        500,
        10,
        "reject_publish",
        0,
        3,
        "lazy",
        consumer_timeout_ms=1_000,
        max_length_bytes=1_000,
        max_consumers=2,
        expires_ms=60_000,
        max_priority=9,
        message_groups=True,
        dead_letter_strategy="at_most_once",
        dead_letter_exchange="dead",
        dead_letter_routing_key="grave",
    )
    orders: dict[str, ArgumentValue] = {
        "x-single-active-consumer": True,
        "x-delayed-retry-min": 1_000,
        "x-delayed-retry-max": 60_000,
    }
    assert effective_config("orders", orders) == QueueConfig(
        "orders", single_active_consumer=True, delayed_retry_min_ms=1_000, delayed_retry_max_ms=60_000
    )
    assert {*flights, *orders} == set(SUPPORTED)


def test_a_single_active_consumer_and_selectors_exclude_each_other() -> None:
    refused(
        {"x-filter-enabled": True, "x-single-active-consumer": True},
        "'x-filter-enabled' and 'x-single-active-consumer' exclude each other",
    )
    for enabled, single in ((True, False), (False, True)):
        effective_config("q", {"x-filter-enabled": enabled, "x-single-active-consumer": single})


def test_a_single_active_consumer_and_message_groups_exclude_each_other() -> None:
    refused(
        {"x-message-groups": True, "x-single-active-consumer": True},
        "'x-message-groups' and 'x-single-active-consumer' exclude each other",
    )
    for groups, single in ((True, False), (False, True)):
        effective_config("q", {"x-message-groups": groups, "x-single-active-consumer": single})


@pytest.mark.parametrize("argument", ["x-delayed-retry-min", "x-delayed-retry-max"])
def test_message_groups_exclude_delayed_retry(argument: str) -> None:
    refused(
        {"x-message-groups": True, argument: 1_000}, f"'{argument}' and 'x-message-groups' exclude each other"
    )
    effective_config("q", {"x-message-groups": False, argument: 1_000})


def test_a_dead_letter_target_is_an_exchange_which_may_be_the_default_one() -> None:
    none = effective_config(
        "q", {"x-dead-letter-strategy": "at-least-once", "x-dead-letter-routing-key": "k"}
    )
    assert (none.dead_letter_strategy, none.dead_letter_routing_key) == ("none", "k")
    to_queue = effective_config("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"})
    assert (to_queue.dead_letter_strategy, to_queue.dead_letter_exchange) == ("at_least_once", "")
    given: dict[str, ArgumentValue] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"}
    declared: dict[str, ArgumentValue] = {
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-routing-key": "k",
    }
    assert differences(to_queue, none, given, declared) == "x-dead-letter-exchange is not set, not ''"
    assert differences(none, to_queue, declared, given) == "x-dead-letter-exchange is '', and was not given"


@pytest.mark.parametrize("argument", ["x-dead-letter-exchange", "x-dead-letter-routing-key"])
def test_an_exchange_and_a_key_for_dead_letters_may_be_empty(argument: str) -> None:
    effective_config("q", {argument: ""})
    refused({argument: "n" * 256}, argument, "256 bytes; allowed: 0..255")


def test_a_filtering_queue_keeps_the_default_fields() -> None:
    assert effective_config("q", {"x-filter-enabled": True}).filter_field_names == tuple(
        sorted(DEFAULT_FIELD_NAMES)
    )


def test_an_unknown_argument_is_refused_with_the_nearest_known_one() -> None:
    refused({"x-max-lenght": 5}, "unknown argument 'x-max-lenght'", "did you mean 'x-max-length'?")
    refused({"x-dead-letter-exchang": "e"}, "did you mean 'x-dead-letter-exchange'?")
    refused({"colour": "red"}, "unknown argument 'colour'", "known: x-consumer-timeout")


def test_an_argument_of_rabbitmq_that_has_no_counterpart_is_to_be_left_out() -> None:
    refused(
        {"x-queue-type": "quorum"},
        "unknown argument 'x-queue-type'; leave it out: every queue is a replicated queue",
    )
    for argument in HAVE_NO_COUNTERPART:
        assert argument not in SUPPORTED and argument in PLACEMENT


@pytest.mark.parametrize("value", [0, -1, 32, True, "9", 9.0])
def test_the_highest_priority_is_from_1_to_31(value: ArgumentValue) -> None:
    refused({"x-max-priority": value}, "x-max-priority", "allowed: an integer, 1..31")


def test_the_highest_priority_is_fixed_when_the_queue_is_declared() -> None:
    with pytest.raises(ArgumentError, match="'x-max-priority' is fixed when a queue is declared"):
        check_policy_arguments({"x-max-priority": 9})
    assert differing({"x-max-priority": 9}, {}) == "x-max-priority is not set, not 9"


@pytest.mark.parametrize("argument", UNSUPPORTED_ARGUMENTS)
def test_a_known_argument_without_support_is_refused_and_not_ignored(argument: str) -> None:
    refused({argument: 1}, argument, "not supported by this version")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-filter-enabled", 1),
        ("x-filter-enabled", "true"),
        ("x-max-length", True),
        ("x-max-length", 0),
        ("x-max-length", -1),
        ("x-max-length", 1.0),
        ("x-max-length", "10"),
        ("x-max-length", 1 << 62),
        ("x-max-length-bytes", 0),
        ("x-max-length-bytes", "1MB"),
        ("x-max-consumers", 0),
        ("x-expires", 0),
        ("x-expires", 1.5),
        ("x-message-ttl", -1),
        ("x-overflow", "drop_head"),
        ("x-overflow", "reject-publish-dlx"),
        ("x-overflow", 1),
        ("x-consumer-timeout", 999),
        ("x-consumer-timeout", -1),
        ("x-delayed-retry-min", 0),
        ("x-delayed-retry-max", 1.5),
        ("x-delivery-limit", -2),
        ("x-single-active-consumer", 1),
        ("x-message-groups", 1),
        ("x-filter-max-in-memory-bytes-per-msg", -1),
        ("x-filter-field-names", b"a"),
        ("x-dead-letter-exchange", 1),
        ("x-dead-letter-exchange", "n" * 256),
        ("x-dead-letter-strategy", "at_least_once"),
        ("x-dead-letter-strategy", "none"),
    ],
)
def test_a_value_of_the_wrong_kind_or_range_is_refused_naming_what_is_allowed(
    argument: str, value: ArgumentValue
) -> None:
    refused({"x-filter-enabled": True, argument: value}, argument, "allowed")


def test_field_names_have_limits() -> None:
    refused({"x-filter-enabled": True, "x-filter-field-names": "a,,b"}, "is empty")
    refused({"x-filter-enabled": True, "x-filter-field-names": ""}, "is empty")
    refused(
        {"x-filter-enabled": True, "x-filter-field-names": ",".join(map(str, range(65)))},
        "65 filter field names",
    )
    refused({"x-filter-enabled": True, "x-filter-field-names": "n" * 256}, "over 255 bytes")
    refused({"x-filter-enabled": True, "x-filter-field-names": "header.colour"}, "header.colour")


def test_filter_arguments_need_the_filter_enabled() -> None:
    refused({"x-filter-field-names": "a"}, "x-filter-enabled")
    refused({"x-filter-enabled": False, "x-filter-max-in-memory-bytes-per-msg": 5}, "x-filter-enabled")


def test_queue_names_are_short_text_without_control_characters() -> None:
    refused({}, "0 bytes", name="")
    refused({}, "256 bytes", name="é" * 128)
    refused({}, "control character", name="a\nb")
    refused({}, "control character", name="a\x85b")
    refused({}, "UTF-8", name="\ud800")
    assert effective_config("é" * 127, {}).name == "é" * 127


def test_a_queue_has_a_delivery_limit_from_version_2_on() -> None:
    assert with_defaults((), 1) == ()
    assert with_defaults((), 2) == (("x-delivery-limit", 20),)
    assert with_defaults((("x-max-length", 5),), 2) == (("x-delivery-limit", 20), ("x-max-length", 5))
    for limit in (-1, 3):
        assert with_defaults((("x-delivery-limit", limit),), 2) == (("x-delivery-limit", limit),)


def test_a_queue_of_an_earlier_version_keeps_its_meaning_where_its_defaults_are_given() -> None:
    assert with_past_defaults((("x-max-length", 5),), CURRENT) == (("x-max-length", 5),)
    for given in ((), (("x-max-length", 5),), (("x-delivery-limit", 3),)):
        moved = with_past_defaults(given, FIRST)
        declared_then = effective_config("q", dict(with_defaults(given, FIRST)))
        assert effective_config("q", dict(with_defaults(moved, CURRENT))) == declared_then
        assert effective_config("q", dict(with_defaults(moved, FIRST))) == declared_then


def test_differences_are_named_as_arguments() -> None:
    found = differing(
        {"x-message-ttl": 5, "x-overflow": "reject-publish"},
        {"x-max-length": 10, "x-overflow": "reject-publish"},
    )
    assert found == "x-message-ttl is not set, not 5; x-max-length is 10, and was not given"
    assert differing({"x-max-length": 10}, {"x-max-length": 10}) == ""
    assert differing({"x-dead-letter-exchange": "a_b"}, {"x-dead-letter-exchange": "a-b"}) == (
        "x-dead-letter-exchange is 'a-b', not 'a_b'"
    )


def test_an_argument_of_neither_declaration_is_not_named() -> None:
    filters: dict[str, ArgumentValue] = {"x-filter-enabled": True}
    subject: dict[str, ArgumentValue] = {**filters, "x-filter-field-names": "properties.subject"}
    defaults = ",".join(sorted(DEFAULT_FIELD_NAMES))
    for given, declared, expected in [
        ({}, filters, "x-filter-enabled is true, not false, the default"),
        (filters, {}, "x-filter-enabled is false, not true"),
        (filters, subject, f"x-filter-field-names is 'properties.subject', not '{defaults}', the default"),
        (
            {},
            subject,
            "x-filter-enabled is true, not false, the default; "
            "x-filter-field-names is 'properties.subject', and was not given",
        ),
        (
            subject,
            {},
            "x-filter-enabled is false, not true; x-filter-field-names is not set, not 'properties.subject'",
        ),
        ({"x-dead-letter-exchange": "e"}, {}, "x-dead-letter-exchange is not set, not 'e'"),
        ({}, {"x-dead-letter-exchange": "e"}, "x-dead-letter-exchange is 'e', and was not given"),
    ]:
        assert differing(given, declared) == expected


def test_the_queues_page_names_every_argument() -> None:
    from support.repository import ROOT

    page = (ROOT / "docs" / "queues.md").read_text(encoding="utf-8")
    declared, policies = (
        re.findall(r"^\| `(x-[a-z-]+)` \|", part, re.MULTILINE) for part in page.split("## Policies")
    )
    assert sorted(declared) == sorted(SUPPORTED)
    assert sorted(policies) == sorted(BY_POLICY)
    for argument in UNSUPPORTED_ARGUMENTS:
        assert f"`{argument}`" in page


# ---- an argument that came with a later version of the machine

NEWER = {"x-max-length": 5}


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SUPPORTED["x-max-length"]
    monkeypatch.setitem(
        SUPPORTED, "x-max-length", Argument(known.attribute, known.check, known.by_policy, since=CURRENT + 1)
    )


@pytest.mark.usefixtures("newer")
def test_an_argument_is_refused_before_the_version_that_it_came_with() -> None:
    for check in (check_policy_arguments, lambda given, version: effective_config("q", given, version)):
        with pytest.raises(ArgumentError, match=f"needs machine version {CURRENT + 1}.* uses {CURRENT}"):
            check(NEWER, CURRENT)
        check(NEWER, CURRENT + 1)
        check({"x-message-ttl": 5}, CURRENT)


@pytest.mark.usefixtures("newer")
def test_commands_with_a_newer_argument_need_its_version() -> None:
    pairs = tuple(NEWER.items())
    for command in (cat.DeclareQueue("q", pairs), cat.SetPolicy("p", "q", 0, pairs)):
        assert needed_version(command) == CURRENT + 1
    assert needed_version(cat.DeclareQueue("q", (("x-message-ttl", 5),))) == BASE


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("version", range(FIRST, CURRENT + 1))
def test_the_catalog_answers_as_a_build_that_does_not_know_the_argument(version: int) -> None:
    def reply(arguments: dict[str, ArgumentValue]) -> object:
        session = b"p" * 16
        operations = (
            c.Operation(0, c.Origin(session, 1, 0), c.RegisterProducer(c.Address(1, 1, 1))),
            c.Operation(0, c.Origin(session, 1, 1), cat.DeclareQueue("q", tuple(arguments.items()))),
        )
        return CatalogMachine([1]).apply(c.Meta(1, 1, 1, version), operations).replies[1]

    newer, unknown = reply(NEWER), reply({"x-of-tomorrow": 5})
    assert isinstance(newer, Refused) and isinstance(unknown, Refused)
    assert newer.reason == unknown.reason
