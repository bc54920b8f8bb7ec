"""RabbitMQ's definitions: what is read, what means something else here, and what is refused."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quorum
from quorum.catalog.policies import matches
from quorum.client.admin.definitions import DefinitionsError, read_definitions
from quorum.client.values import values_to_dict
from quorum.definitions.definition_files import Contents, Definition
from quorum.definitions.rabbitmq_definitions import pattern_of
from support.members.served import served


def file(**sections: Any) -> dict[str, Any]:
    """Objects without a virtual host belong to /, as in a file of one virtual host."""
    for name in ("exchanges", "queues", "bindings", "policies"):
        sections[name] = [{"vhost": "/", **each} for each in sections.get(name, [])]
    return {"rabbit_version": "4.1.0", "rabbitmq_version": "4.1.0", **sections}


def read(vhost: str | None = None, **sections: Any) -> Contents:
    return read_definitions(file(**sections), vhost)


def only(contents: Contents) -> Definition:
    [found] = contents.definitions
    return found


def queue(name: str = "q", kind: str = "quorum", **more: Any) -> dict[str, Any]:
    arguments = {"x-queue-type": kind, **more.pop("arguments", {})}
    return {"name": name, "durable": True, "auto_delete": False, "arguments": arguments, **more}


# ---- queues


def test_a_quorum_queue_is_read_as_it_is() -> None:
    found = only(read(queues=[queue(arguments={"x-max-length": 5, "x-overflow": "reject-publish"})]))
    assert (found.kind, found.name, found.place) == ("queue", "q", "$.queues[0]")
    assert values_to_dict(found.wire.arguments) == {"x-max-length": 5, "x-overflow": "reject-publish"}
    assert found.notes == [] and not found.refusal


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (queue(kind="classic"), "a classic queue: it becomes a replicated queue, with a delivery limit"),
        ({"name": "q", "type": "classic", "arguments": {}}, "a classic queue"),
        ({"name": "q"}, "a classic queue"),
        (queue(kind="x-jms"), "a x-jms queue"),
        (queue(durable=False), "a transient queue: it is durable here"),
        (queue(auto_delete=True), "x-expires deletes a queue after a time without use"),
        (queue(exclusive=True), "any connection may use it here"),
        (
            queue(arguments={"x-queue-leader-locator": "balanced"}),
            "x-queue-leader-locator is left out: where",
        ),
        (
            queue(arguments={"x-max-in-memory-length": 1}),
            "x-max-in-memory-length is left out: messages are paged",
        ),
        (queue(colour="red"), "the field 'colour' is not read"),
    ],
)
def test_a_queue_that_means_something_else_here_has_a_note(given: dict[str, Any], words: str) -> None:
    found = only(read(queues=[given]))
    assert not found.refusal
    assert dict(found.wire.arguments) == {}
    assert any(words in note for note in found.notes), found.notes


def test_a_type_beside_the_arguments_is_read() -> None:
    assert only(read(queues=[{"name": "q", "type": "quorum", "arguments": []}])).notes == []
    assert "a stream" in only(read(queues=[{"name": "q", "type": "stream"}])).refusal
    assert "a stream" in only(read(queues=[queue(kind="stream")])).refusal


def test_an_argument_that_is_no_scalar_is_refused_with_its_place() -> None:
    for value in ({"a": 1}, [1], None):
        found = only(read(queues=[queue(arguments={"x-odd": value})]))
        assert (
            found.refusal
            == "argument 'x-odd' at $.queues[0].arguments[\"x-odd\"] is no boolean, number or text"
        )


def test_quorum_queues_of_releases_without_a_delivery_limit_have_a_note() -> None:
    old = {**file(queues=[queue()]), "rabbit_version": "3.13.7"}
    [note] = read_definitions(old).notes
    assert note.startswith("RabbitMQ 3.13.7 has no delivery limit by default")
    limited = {**file(queues=[queue(arguments={"x-delivery-limit": 5})]), "rabbit_version": "3.13.7"}
    assert read_definitions(limited).notes == ()
    assert read(queues=[queue()]).notes == ()
    placed = queue(arguments={"x-quorum-initial-group-size": 3})
    [note] = read_definitions({**old, "queues": [{"vhost": "/", **placed}]}).notes
    assert note.startswith("RabbitMQ 3.13.7 has no delivery limit by default"), (
        "its own note is about its place"
    )


# ---- exchanges and bindings


def test_exchanges_are_read_and_those_that_are_always_there_are_not() -> None:
    given = [
        {"name": "", "type": "direct"},
        {"name": "amq.topic", "type": "topic", "durable": True, "internal": False, "auto_delete": False},
        {"name": "shop", "type": "topic", "arguments": {"alternate-exchange": "rest"}},
    ]
    found = only(read(exchanges=given))
    assert (found.name, found.wire.type, found.notes) == ("shop", "topic", [])
    assert values_to_dict(found.wire.arguments) == {"alternate-exchange": "rest"}
    for flag, words in [
        ({"durable": False}, "a transient exchange"),
        ({"auto_delete": True}, "an auto-delete exchange"),
        ({"internal": True}, "clients may publish to it here"),
    ]:
        assert words in only(read(exchanges=[{"name": "e", "type": "direct", **flag}])).notes[0]


def bound(kind: str, **more: Any) -> Definition:
    binding = {"source": "e", "destination": "q", "destination_type": "queue", "properties_key": "x", **more}
    contents = read(exchanges=[{"name": "e", "type": kind}], bindings=[binding])
    return contents.definitions[-1]


def test_a_binding_loses_only_what_its_exchange_ignores() -> None:
    plain = bound("topic", routing_key="a.#", arguments={})
    assert (plain.name, plain.notes) == ("e -> q (a.#)", [])
    assert bound("topic", destination_type="exchange").name == "e -> exchange q"
    fanout = bound("fanout", routing_key="a", arguments={"x": 1})
    assert fanout.name == "e -> q"
    assert fanout.notes == [
        "the routing key 'a' is left out: a fanout exchange ignores it",
        "the arguments x are left out: a fanout exchange ignores them",
    ]
    headers = bound("headers", routing_key="", arguments={"x-match": "any", "x-trace": 1, "colour": "red"})
    assert values_to_dict(headers.wire.arguments) == {"colour": "red", "x-match": "any"}
    assert headers.notes == ["the argument x-trace is left out: x-match does not compare it"]
    compared = bound("headers", arguments={"x-match": "any-with-x", "x-trace": 1})
    assert values_to_dict(compared.wire.arguments) == {"x-match": "any-with-x", "x-trace": 1}
    built_in = read(bindings=[{"source": "amq.fanout", "destination": "q", "routing_key": "k"}])
    assert only(built_in).wire.routing_key == ""
    renamed = only(read(bindings=[{"source": "amq.match", "destination": "q", "arguments": {"a": 1}}]))
    assert (renamed.wire.source, renamed.notes) == (
        "amq.headers",
        ["the exchange amq.match is amq.headers here"],
    )
    unknown = bound("x-consistent-hash", routing_key="5", arguments={"a": 1})
    assert unknown.wire.routing_key == "5", "the service judges a type that is not known here"
    assert "is no boolean" in bound("headers", arguments={"a": []}).refusal
    with pytest.raises(DefinitionsError, match=r'\$\.bindings\[0\]\.destination_type: "x"; allowed'):
        bound("topic", destination_type="x")


# ---- policies

PATTERNS = [
    ("", "*"),
    (".*", "*"),
    ("^", "*"),
    ("^.*$", "*"),
    ("orders", "*orders*"),
    ("^orders", "orders*"),
    ("^orders$", "orders"),
    ("orders$", "*orders"),
    (r"^eu\.orders\.", "eu.orders.*"),
    (r"^eu\..*\.new$", "eu.*.new"),
    (r"^a\$", "a$*"),
    (r"^a\\$", "a\\"),
    ("^a-b/c:d é$", "a-b/c:d é"),
]


@pytest.mark.parametrize(("regex", "pattern"), PATTERNS)
def test_a_regular_expression_of_text_becomes_a_name_pattern(regex: str, pattern: str) -> None:
    assert pattern_of(regex) == pattern


@pytest.mark.parametrize(
    "regex",
    [
        "^$",
        "a.b",
        "^(a|b)",
        "a|b",
        "a+",
        "ab*",
        "[ab]",
        "a?",
        "a{2}",
        r"\d",
        r"a\b",
        "(?i)a",
        ".*?a",
        r"\*",
        "a^",
        "a\\",
    ],
)
def test_another_regular_expression_becomes_none(regex: str) -> None:
    assert pattern_of(regex) is None


@given(
    st.lists(
        st.sampled_from(["^", "a", "b", r"\.", ".*", "$", r"\\", r"\$", ".", "*", "(", "|"]), max_size=6
    ).map("".join),
    st.lists(st.sampled_from(["a", "b", ".", "$", "\\", "*"]), max_size=6).map("".join),
)
def test_a_pattern_matches_the_names_that_the_regular_expression_matches(regex: str, name: str) -> None:
    pattern = pattern_of(regex)
    if pattern is not None and name:
        assert matches(pattern, name) == (re.search(regex, name, re.DOTALL) is not None)


def policy(**more: Any) -> Definition:
    given = {
        "name": "p",
        "pattern": "^a",
        "apply-to": "queues",
        "definition": {"max-length": 5},
        "priority": 3,
    }
    return only(read(policies=[{**given, **more}]))


def test_a_policy_gets_the_arguments_of_queues() -> None:
    found = policy(
        definition={"max-length": 5, "message-ttl": 1_000, "ha-mode": "all", "target-group-size": 3}
    )
    assert (found.wire.pattern, found.wire.priority) == ("a*", 3)
    assert values_to_dict(found.wire.arguments) == {"x-max-length": 5, "x-message-ttl": 1_000}
    assert found.notes == [
        "ha-mode is left out: every queue is replicated here",
        "target-group-size is left out: a queue's group decides the number of replicas here",
        "the pattern '^a' becomes 'a*'",
    ]
    assert policy(pattern="^orders\\.").notes == [r"the pattern '^orders\.' becomes 'orders.*'"]
    assert "to every queue that matches" in policy(**{"apply-to": "quorum_queues"}).notes[-1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"pattern": "^a|b"}, "the pattern '^a|b' is a regular expression that no name pattern expresses"),
        ({"apply-to": "exchanges"}, "it applies to exchanges; a policy here is for queues"),
        ({"apply-to": "streams"}, "it applies to streams"),
        ({"definition": {"ha-mode": "all"}}, "nothing of its definition has a meaning here"),
        ({"definition": {"a": [1]}}, "a at $.policies[0].definition.a is no boolean, number or text"),
    ],
)
def test_a_policy_without_a_counterpart_is_refused(more: dict[str, Any], words: str) -> None:
    assert words in policy(**more).refusal


# ---- files


def test_sections_that_are_not_read_are_named() -> None:
    notes = read(
        users=[{"name": "guest"}, {"name": "a"}],
        vhosts=[{"name": "/"}],
        permissions=[{}],
        topic_permissions=[],
        parameters=[{"component": "shovel"}],
        global_parameters=[{"name": "internal_cluster_id"}],
        product_name="RabbitMQ",
        rabbitmq_definition_format="single_virtual_host",
        original_vhost_name="/",
        original_cluster_name="rabbit@host",
        description="",
        metadata={"default_queue_type": "quorum"},
        limits={"max-queues": 5},
        news=[1],
    ).notes
    assert [note.partition(":")[0] for note in notes] == [
        "1 global parameter not read",
        "1 limit not read",
        "1 entry of 'news' not read",
        "1 parameter not read",
        "1 permission not read",
        "2 users not read",
    ]


def test_another_virtual_host_has_to_be_named() -> None:
    sections = {"queues": [queue("a"), queue("b", vhost="prod")], "exchanges": [
        {"name": "e", "type": "topic", "vhost": "prod"},
    ]}  # fmt: skip
    refused, kept = read(**sections).definitions
    assert (refused.kind, refused.name) == ("vhost", "prod")
    assert refused.refusal == (
        "1 exchange, 1 queue of a virtual host other than '/'; `--vhost prod` reads them instead"
    )
    assert kept.name == "a"
    chosen = read("prod", **sections)
    assert [each.name for each in chosen.definitions] == ["e", "b"]
    assert chosen.notes == ("virtual host '/': 1 queue not read",)
    assert read("none", **sections).notes[-1] == "virtual host 'none' has no definitions in this file"
    assert only(read_definitions({"rabbit_version": "4.0.0", "queues": [{"name": "q"}]}, "x")).name == "q"


def test_a_file_with_an_object_of_another_shape_is_refused_with_the_place() -> None:
    for sections, words in [
        ({"queues": [{"name": 5}]}, r"\$\.queues\[0\]\.name: 5; allowed: text"),
        ({"queues": [{}]}, r"\$\.queues\[0\]: 'name' is missing"),
        ({"queues": [queue(durable="yes")]}, r"\$\.queues\[0\]\.durable: \"yes\"; allowed: true, false"),
        ({"queues": [queue(), queue()]}, r"\$\.queues\[1\]: queue 'q' is at \$\.queues\[0\] already"),
        ({"policies": [{"name": "p", "pattern": 1}]}, r"\$\.policies\[0\]\.pattern: 1; allowed: text"),
    ]:
        with pytest.raises(DefinitionsError, match=words):
            read(**sections)


def test_a_file_of_rabbitmq_is_imported() -> None:
    given = file(
        exchanges=[{"name": "shop", "type": "topic"}, {"name": "hash", "type": "x-consistent-hash"}],
        queues=[queue("orders", arguments={"x-max-length": 5}), queue("odd", arguments={"x-colour": "red"})],
        bindings=[
            {"source": "shop", "destination": "orders", "routing_key": "orders.#"},
            {"source": "shop", "destination": "odd", "routing_key": "#"},
        ],
        policies=[{"name": "p", "pattern": "^ord", "definition": {"message-ttl": 1_000}, "apply-to": "all"}],
    )

    async def run() -> None:
        async with asyncio.timeout(60), served() as url, quorum.connect(url) as client:
            for dry_run in (True, False):
                report = await client.import_definitions(given, dry_run=dry_run)
                shown = [(each.name, each.outcome, each.text) for each in report.results]
                assert [each[:2] for each in shown] == [
                    ("shop", "added"),
                    ("hash", "refused"),
                    ("orders", "added"),
                    ("odd", "refused"),
                    ("shop -> orders (orders.#)", "added"),
                    ("shop -> odd (#)", "refused"),
                    ("p", "added"),
                ]
                assert "unknown type 'x-consistent-hash'" in shown[1][2]
                assert "unknown argument 'x-colour'" in shown[3][2]
            assert (await client.describe("orders")).queue.policy == "p"

    asyncio.run(run())
