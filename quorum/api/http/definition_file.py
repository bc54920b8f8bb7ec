"""The file of `quorum definitions export` as the request of an import, and results that say what they are about."""

from __future__ import annotations

from typing import Any, TypeGuard

from quorum.api.http.json_codec import JsonError
from quorum.definitions import definition_files
from quorum.definitions.definition_files import FORMAT_KEY, DefinitionsError
from quorum.v1 import admin_pb2

RPC = "Admin/ImportDefinitions"
FILE = {
    "type": "object",
    "description": "a file of `quorum definitions export`",
    "properties": {FORMAT_KEY: {"const": definition_files.FORMAT}, "dry_run": {"type": "boolean"}},
    "required": [FORMAT_KEY],
}
"""The schema of a body with a file."""
NAMES = {"kind": {"enum": ["exchange", "queue", "binding", "policy"]}, "name": {"type": "string"}}
"""What a result has beside its fields in the proto."""


def is_file(body: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(body, dict) and FORMAT_KEY in body


def request_of_file(body: dict[str, Any]) -> admin_pb2.ImportDefinitionsRequest:
    """body: the file's object; it may also have `dry_run`. JsonError."""
    dry_run = body.get("dry_run", False)
    if not isinstance(dry_run, bool):
        raise JsonError("dry_run: wanted: true or false")
    file = {name: value for name, value in body.items() if name != "dry_run"}
    request = admin_pb2.ImportDefinitionsRequest(dry_run=dry_run)
    made = request.definitions
    sections: dict[str, Any] = {
        "exchange": made.exchanges,
        "queue": made.queues,
        "binding": made.bindings,
        "policy": made.policies,
    }
    try:
        contents = definition_files.read(definition_files.parse(file))
    except DefinitionsError as error:
        raise JsonError(str(error)) from error
    for each in contents.definitions:
        if each.refusal:
            raise JsonError(f"{each.place}: {each.refusal}")
        sections[each.kind].append(each.wire)
    return request


def named_results(
    request: admin_pb2.ImportDefinitionsRequest, results: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The results, each with the kind and the name of its definition."""
    made = request.definitions
    names = [("exchange", each.name) for each in made.exchanges]
    names += [("queue", each.name) for each in made.queues]
    names += [("binding", definition_files.binding_name(each)) for each in made.bindings]
    names += [("policy", each.name) for each in made.policies]
    return [
        {"kind": kind, "name": name, **result} for (kind, name), result in zip(names, results, strict=True)
    ]
