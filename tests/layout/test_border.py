"""The border between quorum/api and quorum/node: what crosses it is frozen (docs/ARCHITECTURE.md, "One member").

The event loop touches no object of the Raft thread. So the API's modules import records only (events, queries, errors,
the bytes of the wire), with a few constants. `process` puts the two threads together, and is the only one that has a
Member; it gives it away and keeps nothing of it but what the network asks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from fifo.frozen_dataclasses import is_frozen
from quorum.node import events
from support.imports import modules

RECORDS = ("quorum.node.errors", "quorum.node.events", "quorum.node.queries", "quorum.node.wire")
NAMES = {
    ("quorum.node.driver", "boottime_s"),
    ("quorum.node.replica.replica", "SYSTEM_GROUP"),
}
"""The other names that any module of the API may import: a clock, and a constant."""
READS_OF_THE_LOG = {"read"}
"""What the API may call of the node's log; the log lets any thread read."""
OF_THE_MEMBER = {"incarnation_bytes"}
"""What `process` uses of the member it has made; the network asks for it, on the Raft thread."""
NEUTRAL = (
    "allocator",
    "connections",
    "health_log",
    "health_watch",
    "hub",
    "owners",
    "security.access",
    "security.audit",
    "security.audit_file",
    "security.passwords",
    "security.rights",
    "session",
    "shares",
    "status",
    "turns",
)
"""Rooms and modules of quorum.api that any protocol's front can use."""
PROTOCOL = ("grpc", "google", "quorum.v1")

API = {
    name: ast.parse(file.read_text(encoding="utf-8"))
    for name, file in modules()
    if name.startswith("quorum.api.")
}


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of each import; the name is empty where the module itself is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def foreign(name: str, tree: ast.AST) -> list[str]:
    """What a module imports of quorum.node and may not."""
    if name == "quorum.api.process":
        return []
    return [
        f"{name}: {module} {what}"
        for module, what in imported(tree)
        if module.startswith("quorum.node")
        and not f"{module}.{what}.".startswith(tuple(f"{each}." for each in RECORDS))
        and (module, what) not in NAMES
    ]


def used(tree: ast.AST, target: str) -> set[str]:
    """The attributes of the name `target`, or of an attribute of this name, that a module uses."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            value = node.value
            name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", None)
            if name == target:
                found.add(node.attr)
    return found


def test_the_api_imports_only_what_may_cross() -> None:
    assert [problem for name, tree in API.items() for problem in foreign(name, tree)] == []


def test_the_process_uses_nothing_of_the_member_that_it_has_made() -> None:
    assert used(API["quorum.api.process"], "member") == OF_THE_MEMBER


def test_the_api_only_reads_the_log() -> None:
    for name, tree in API.items():
        if name != "quorum.api.process":
            assert used(tree, "_log") <= READS_OF_THE_LOG, name


@pytest.mark.parametrize(
    ("line", "problems"),
    [
        ("from quorum.node.member import Member", 1),
        ("import quorum.node.member", 1),
        ("from quorum.node import member", 1),
        ("from quorum.node.replica.replica import Replica", 1),
        ("from quorum.node.driver import Driver", 1),
        ("from quorum.node.events_of_another_kind import X", 1),
        ("from quorum.node.replica.replica import SYSTEM_GROUP", 0),
        ("from quorum.node import events as ev", 0),
        ("from quorum.node.wire import batches", 0),
        ("from quorum.node.queries import QueueCounts", 0),
    ],
)
def test_the_rule_would_notice_an_import(line: str, problems: int) -> None:
    assert len(foreign("quorum.api.hub.hub", ast.parse(line))) == problems


def test_the_rule_would_notice_a_use_of_the_member_or_the_log() -> None:
    assert used(ast.parse("x = member.catalog.queue('q')"), "member") == {"catalog"}
    assert used(ast.parse("hub.member.replicas[1]"), "member") == {"replicas"}
    assert used(ast.parse("self._log.append(1)"), "_log") == {"append"}


# ---- no closures, nothing that changes


def records() -> list[type]:
    return [
        each
        for each in vars(events).values()
        if isinstance(each, type) and each.__module__ == events.__name__
    ]


def carries_code(annotations: dict[str, object]) -> list[str]:
    """The fields whose type is a function, or a container that may change."""
    return [
        name
        for name, kind in annotations.items()
        if any(word in str(kind) for word in ("Callable", "list[", "dict[", "set["))
    ]


@pytest.mark.parametrize("record", [each for each in records() if each is not events.Outputs])
def test_what_passes_between_the_threads_carries_no_function_and_nothing_that_changes(record: type) -> None:
    assert is_frozen(record)
    assert carries_code(record.__annotations__) == []


def test_the_rule_would_notice_a_closure() -> None:
    assert carries_code({"group": "int", "question": "Callable[[Member], object]"}) == ["question"]


# ---- no protocol


def protocols(tree: ast.AST) -> list[str]:
    return [
        module
        for module, what in imported(tree)
        if f"{module}.{what}.".startswith(tuple(f"{each}." for each in PROTOCOL))
    ]


def is_neutral(name: str) -> bool:
    return f"{name}.".startswith(tuple(f"quorum.api.{each}." for each in NEUTRAL))


def not_neutral(tree: ast.AST) -> list[str]:
    """The modules of quorum.api that a module imports, and that only some protocols can use."""
    named = {whole if (whole := f"{module}.{what}") in API else module for module, what in imported(tree)}
    return sorted(each for each in named & API.keys() if not is_neutral(each))


@pytest.mark.parametrize("name", [name for name in API if is_neutral(name)])
def test_a_session_knows_no_protocol(name: str) -> None:
    assert protocols(API[name]) == []
    assert not_neutral(API[name]) == []


def test_every_neutral_name_is_a_module_or_a_room() -> None:
    assert [each for each in NEUTRAL if f"quorum.api.{each}" not in API] == []


def test_the_rule_would_notice_a_protocol() -> None:
    assert protocols(ast.parse("from quorum.v1 import queue_pb2 as pb")) == ["quorum.v1"]
    assert protocols(ast.parse("import grpc")) == ["grpc"]


def test_the_rule_would_notice_an_import_of_what_is_not_neutral() -> None:
    assert not_neutral(ast.parse("from quorum.api.grpc.handlers import unary")) == [
        "quorum.api.grpc.handlers"
    ]
    assert not_neutral(ast.parse("from quorum.api.security import tokens")) == ["quorum.api.security.tokens"]
    assert not_neutral(ast.parse("from quorum.api.hub.hub import Hub")) == []
