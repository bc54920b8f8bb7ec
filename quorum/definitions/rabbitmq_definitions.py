"""RabbitMQ's definitions, as `rabbitmqctl export_definitions` writes them, read for a cluster of Quorum.

Only names, types, arguments, bindings and policies of one virtual host are read. Everything that means something else
here gets a note, and everything that has no meaning here is refused; nothing is left out without a word. Whether an
argument is known, and which values it may have, is the service's to judge.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from quorum.definitions import definition_files as files
from quorum.definitions.definition_files import Contents, Definition, Fields, FieldValue, Node
from quorum.v1 import admin_pb2

MARKS = ("rabbit_version", "rabbitmq_version", "vhosts", "users", "permissions", "global_parameters")
"""Keys by which a file is known as RabbitMQ's."""
INFORMATION = (
    "rabbit_version",
    "rabbitmq_version",
    "product_name",
    "product_version",
    "rabbitmq_definition_format",
    "original_cluster_name",
    "original_vhost_name",
    "explanation",
    "description",
    "metadata",
)
"""Keys that describe the file, its cluster or its virtual host."""
READ = ("exchanges", "queues", "bindings", "policies")
DEFAULT_VHOST = "/"

PLACEMENT = {
    "x-queue-type": "",
    "x-queue-version": "how RabbitMQ stores a classic queue",
    "x-queue-leader-locator": "where RabbitMQ places the leader",
    "x-queue-master-locator": "where RabbitMQ places the leader",
    "x-quorum-initial-group-size": "a queue's group decides the number of replicas here",
    "x-quorum-target-group-size": "a queue's group decides the number of replicas here",
    "x-target-group-size": "a queue's group decides the number of replicas here",
    "x-max-in-memory-length": "messages are paged out by themselves here",
    "x-max-in-memory-bytes": "messages are paged out by themselves here",
    "x-ha-policy": "every queue is replicated here",
    "x-ha-mode": "every queue is replicated here",
    "x-ha-params": "every queue is replicated here",
    "x-ha-sync-mode": "every queue is replicated here",
    "x-ha-sync-batch-size": "every queue is replicated here",
    "x-ha-promote-on-shutdown": "every queue is replicated here",
    "x-ha-promote-on-failure": "every queue is replicated here",
}
"""Arguments that say where and how RabbitMQ stores a queue, and why they are left out; also keys of policies, after
"x-". The type has notes of its own."""

BUILT_IN = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.topic": "topic",
}
"""The exchanges that are always there, with their types."""

SAME = {"amq.match": "amq.headers"}
"""Exchanges that are always there in RabbitMQ, and the one here that does the same."""

LIMITED = "with a delivery limit (x-delivery-limit)"
"""The end of the note of a classic queue."""


def is_rabbitmq(file: Node) -> bool:
    return any(mark in file.value for mark in MARKS)


def read(file: Node, vhost: str | None = None) -> Contents:
    """The definitions of one virtual host. vhost: None for "/", and then the objects of others are refused. Raises
    DefinitionsError."""
    fields = Fields(file)
    sections = {name: fields.take_or(name, []).items() for name in READ}
    version = fields.take_or("rabbit_version", "").text()
    for name in INFORMATION:
        fields.take_or(name, "")
    notes = list(_unread(fields))
    wanted = DEFAULT_VHOST if vhost is None else vhost
    chosen: dict[str, list[Node]] = {name: [] for name in READ}
    others: Counter[tuple[str, str]] = Counter()
    for section, nodes in sections.items():
        for node in nodes:
            of = node.fields().get("vhost")
            name = wanted if of is None else of.text()
            if name == wanted:
                chosen[section].append(node)
            else:
                others[name, section] += 1
    types = dict(BUILT_IN)
    found = []
    for node in chosen["exchanges"]:
        definition = _exchange(Fields(node))
        types[definition.name] = definition.wire.type
        if not _is_always_there(definition):
            found.append(definition)
    found += [_queue(Fields(node)) for node in chosen["queues"]]
    found += [_binding(Fields(node), types) for node in chosen["bindings"]]
    found += [_policy(Fields(node)) for node in chosen["policies"]]
    files.check_names(found)
    files.check_sizes(found)
    refused = []
    for name in sorted({each for each, _ in others}):
        counts = ", ".join(
            _counted(others[name, section], section) for section in READ if others[name, section]
        )
        if vhost is None:
            why = f"{counts} of a virtual host other than '/'; `--vhost {name}` reads them instead"
            refused.append(Definition("vhost", name, "$", None, refusal=why))
        else:
            notes.append(f"virtual host {name!r}: {counts} not read")
    if version.split(".")[0] in ("2", "3") and any(map(_is_unlimited, found)):
        notes.append(
            f"RabbitMQ {version} has no delivery limit by default; queues here have one, unless x-delivery-limit is -1"
        )
    if vhost is not None and not found:
        notes.append(f"virtual host {vhost!r} has no definitions in this file")
    return Contents((*refused, *files.in_order(found)), tuple(notes))


def _unread(fields: Fields) -> Iterator[str]:
    """A note for each section that is not read and is not empty."""
    reasons = {
        "users": "passwords are stored in another form here; make users with `quorum users`",
        "permissions": "patterns here are no regular expressions; set them with `quorum permissions`",
        "topic_permissions": "permissions by routing key have no counterpart",
        "parameters": "federation, shovels, operator policies and limits have no counterpart",
        "global_parameters": "they describe the RabbitMQ cluster",
        "limits": "a cluster has no virtual hosts to limit",
    }
    for name in fields.left():
        node = fields.take(name)
        if name == "vhosts":
            continue  # their objects say so themselves
        if name == "vhost":
            continue  # of an export of a single one
        count = len(node.value) if isinstance(node.value, list | dict) else 1
        if count:
            unknown = f"{count} {'entry' if count == 1 else 'entries'} of {name!r}"
            what = _counted(count, name) if name in reasons else unknown
            yield f"{what} not read: {reasons.get(name, 'an unknown section')}"


def _counted(count: int, section: str) -> str:
    """The number of a section's objects: 1 policy, 2 global parameters."""
    several = section.replace("_", " ")
    one = "policy" if section == "policies" else several.removesuffix("s")
    return f"{count} {one if count == 1 else several}"


# ---- exchanges and queues


def _others(fields: Fields, known: tuple[str, ...] = ()) -> list[str]:
    """Notes for fields that are not read. known: fields that say nothing more."""
    return [f"the field {name!r} is not read" for name in fields.left() if name not in known]


def _exchange(fields: Fields) -> Definition:
    wire = admin_pb2.ExchangeDefinition(name=fields.take("name").text(), type=fields.take("type").text())
    definition = Definition("exchange", wire.name, fields.place, wire)
    fields.take_or("vhost", "")
    if not fields.take_or("durable", True).boolean():
        definition.notes.append("a transient exchange: it is durable here")
    if fields.take_or("auto_delete", False).boolean():
        definition.notes.append("an auto-delete exchange: it stays here until it is deleted")
    if fields.take_or("internal", False).boolean():
        definition.notes.append("an internal exchange: clients may publish to it here")
    _take_arguments(definition, fields)
    definition.notes += _others(fields, ("policy", "user_who_performed_action"))
    return definition


def _is_always_there(definition: Definition) -> bool:
    name = SAME.get(definition.name, definition.name)
    return not name or BUILT_IN.get(name) == definition.wire.type


def _take_arguments(definition: Definition, fields: Fields) -> dict[str, FieldValue]:
    """Set the arguments of the definition; refuse it if one of them is a list or an object."""
    node = fields.take_or("arguments", {})
    if node.value == []:  # some versions write no arguments so
        return {}
    found: dict[str, FieldValue] = {}
    for name, each in node.fields().items():
        if isinstance(each.value, dict | list) or each.value is None:
            definition.refusal = f"argument {name!r} at {each.place} is no boolean, number or text"
        else:
            found[name] = each.scalar()
    files.set_arguments(definition.wire, found)
    return found


def _queue(fields: Fields) -> Definition:
    wire = admin_pb2.QueueDefinition(name=fields.take("name").text())
    definition = Definition("queue", wire.name, fields.place, wire)
    fields.take_or("vhost", "")
    arguments = _take_arguments(definition, fields)
    kind = str(arguments.get("x-queue-type", "") or fields.take_or("type", "classic").text())
    fields.take_or("type", "")
    if kind == "stream":
        definition.refusal = "a stream: reading removes nothing there, and a queue has no such mode"
    elif kind != "quorum":
        definition.notes.append(f"a {kind} queue: it becomes a replicated queue, {LIMITED}")
    if not fields.take_or("durable", True).boolean():
        definition.notes.append("a transient queue: it is durable here")
    if fields.take_or("auto_delete", False).boolean():
        definition.notes.append(
            "an auto-delete queue: it stays here; x-expires deletes a queue after a time without use"
        )
    if fields.take_or("exclusive", False).boolean():
        definition.notes.append("an exclusive queue: any connection may use it here")
    definition.notes += _drop_placement(wire.arguments)
    definition.notes += _others(fields, ("policy", "user_who_performed_action"))
    return definition


def _is_unlimited(definition: Definition) -> bool:
    """Whether it is a quorum queue without a delivery limit. A classic one has a note of its own."""
    return (
        definition.kind == "queue"
        and "x-delivery-limit" not in definition.wire.arguments
        and not definition.refusal
        and not any(note.endswith(LIMITED) for note in definition.notes)
    )


def _drop_placement(arguments: Any) -> list[str]:
    """Remove the arguments of PLACEMENT. Returns a note for each."""
    notes = []
    for name in sorted(set(arguments) & set(PLACEMENT)):
        del arguments[name]
        if PLACEMENT[name]:
            notes.append(f"{name} is left out: {PLACEMENT[name]}")
    return notes


# ---- bindings


def _binding(fields: Fields, types: dict[str, str]) -> Definition:
    """types: of the exchanges, by name; those of the file and those that are always there."""
    to = fields.take_or("destination_type", "queue")
    if to.value not in ("queue", "exchange"):
        raise to.wrong('"queue", "exchange"')
    fields.take_or("vhost", "")
    ends = [fields.take("source").text(), fields.take("destination").text()]
    notes = []
    for place in (0, 1) if to.value == "exchange" else (0,):
        if ends[place] in SAME:
            notes.append(f"the exchange {ends[place]} is {SAME[ends[place]]} here")
            ends[place] = SAME[ends[place]]
    wire = files.binding(ends[0], to.text(), ends[1], fields.take_or("routing_key", "").text(), {})
    definition = Definition("binding", "", fields.place, wire, notes=notes)
    given = _take_arguments(definition, fields)
    kind = types.get(wire.source, "")
    if kind in ("fanout", "headers") and wire.routing_key:
        definition.notes.append(
            f"the routing key {wire.routing_key!r} is left out: a {kind} exchange ignores it"
        )
        wire.routing_key = ""
    if kind in ("direct", "fanout", "topic") and wire.arguments:
        names = ", ".join(sorted(wire.arguments))
        definition.notes.append(f"the arguments {names} are left out: a {kind} exchange ignores them")
        wire.arguments.clear()
    if kind == "headers" and not str(given.get("x-match", "all")).endswith("-with-x"):
        for name in sorted(given):
            if name.startswith("x-") and name != "x-match":
                definition.notes.append(f"the argument {name} is left out: x-match does not compare it")
                del wire.arguments[name]
    definition.name = files.binding_name(wire)
    definition.notes += _others(fields, ("properties_key", "user_who_performed_action"))
    return definition


# ---- policies


def _policy(fields: Fields) -> Definition:
    name, regex = fields.take("name").text(), fields.take("pattern").text()
    priority = fields.take_or("priority", 0).integer(-(1 << 31), (1 << 31) - 1)
    wire = admin_pb2.Policy(name=name, priority=priority)
    definition = Definition("policy", name, fields.place, wire)
    fields.take_or("vhost", "")
    applies_to = fields.take_or("apply-to", "all").text()
    found: dict[str, FieldValue] = {}
    for key, node in fields.take_or("definition", {}).fields().items():
        argument = key if key.startswith("x-") else f"x-{key}"
        if argument in PLACEMENT:
            if PLACEMENT[argument]:
                definition.notes.append(f"{key} is left out: {PLACEMENT[argument]}")
        elif isinstance(node.value, dict | list) or node.value is None:
            definition.refusal = f"{key} at {node.place} is no boolean, number or text"
        else:
            found[argument] = node.scalar()
    files.set_arguments(wire, found)
    pattern = pattern_of(regex)
    if applies_to in ("exchanges", "streams"):
        definition.refusal = f"it applies to {applies_to}; a policy here is for queues"
    elif pattern is None:
        definition.refusal = (
            f"the pattern '{regex}' is a regular expression that no name pattern expresses; a pattern here is a whole "
            "name, with '*' for any characters"
        )
    elif not found and not definition.refusal:
        definition.refusal = "nothing of its definition has a meaning here"
    else:
        wire.pattern = pattern
        definition.notes.append(f"the pattern '{regex}' becomes '{pattern}'")
        if applies_to not in ("all", "queues"):
            definition.notes.append(f"it applies to {applies_to} there, and to every queue that matches here")
    definition.notes += _others(fields)
    return definition


_TOKEN = re.compile(r"\\(?P<escaped>[^A-Za-z0-9])|(?P<any>\.\*)|(?P<literal>[^\\.*+?()\[\]{}|^$])", re.DOTALL)


def pattern_of(regex: str) -> str | None:
    """The name pattern that matches the same names as the regular expression; None if there is none, or if it takes
    more than text, escaped characters, `.*`, and `^` and `$` at the ends to tell. An unescaped dot stands for any
    single character, which no name pattern expresses."""
    begins, ends = regex.startswith("^"), False
    text = regex[1:] if begins else regex
    if text.endswith("$") and not re.search(r"(?:^|[^\\])(?:\\\\)*\\\$$", text):
        ends, text = True, text[:-1]
    pieces = [] if begins else ["*"]
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None or token["literal"] == "*" or token["escaped"] == "*":
            return None  # a star of a name would stand for any characters here
        pieces.append("*" if token["any"] else token["escaped"] or token["literal"])
        place = token.end()
    if not ends:
        pieces.append("*")
    return re.sub(r"\*+", "*", "".join(pieces)) or None
