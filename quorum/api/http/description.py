"""The JSON paths as an OpenAPI document, from the table of calls and the descriptors of the proto."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quorum import __version__
from quorum.api.http import dead_letters, definition_file, json_codec
from quorum.api.http.calls import (
    CALLS,
    DEAD_LETTERS_PATH,
    JSON,
    PREFIX,
    REDRIVE_PATH,
    service_method,
)
from quorum.api.http.errors import HTTP_STATUS
from quorum.api.http.json_answer import JsonAnswer


def routes(refused: Callable[[Request], Awaitable[Response | None]]) -> list[Route]:
    """refused: the answer to a client that may not see the description; None if it may."""

    async def described(request: Request) -> Response:
        return await refused(request) or JsonAnswer(openapi())

    return [Route("/openapi.json", described, methods=["GET"])]


def openapi() -> dict[str, Any]:
    """The paths as an OpenAPI document."""
    known: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for call in CALLS:
        described = call.request.DESCRIPTOR
        if call.within:
            described = described.fields_by_name[call.within].message_type
        operation: dict[str, Any] = {
            "operationId": call.rpc.replace("/", ""),
            "summary": call.summary,
            "parameters": [*_parameters(call.names, "path"), *_parameters(call.query, "query", described)],
            "responses": {
                "200": _content(
                    "the answer", json_codec.schema_of(service_method(call.rpc).output_type, known)
                ),
                "default": {"$ref": "#/components/responses/Error"},
            },
        }
        if call.has_body:
            schema = json_codec.schema_of(described, known, call.names)
            if call.rpc == definition_file.RPC:
                schema = {"anyOf": [schema, definition_file.FILE]}
            operation["requestBody"] = {"content": {JSON: {"schema": schema}}}
        paths.setdefault(PREFIX + call.path, {})[call.method.lower()] = operation
    paths.update(_OWN_PATHS)
    known["DefinitionResult"]["properties"].update(definition_file.NAMES)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quorum",
            "version": __version__,
            "description": "Every error is an object like that of the response `Error`, also for a path that is not "
            "here (404, reason NO_PATH) and for a method that a path does not have (405, reason WRONG_METHOD, with "
            "the header `allow`).",
        },
        "paths": paths,
        "components": {
            "schemas": known,
            "responses": {"Error": _content(_ERRORS, ERROR)},
            "securitySchemes": {"password": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"password": []}],
    }


_ERRORS = "an error, with its reason and a text"
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"enum": [code.name for code in HTTP_STATUS]},
                "reason": {"type": "string"},
                "message": {"type": "string"},
                "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["code", "reason", "message"],
        }
    },
    "required": ["error"],
}


_NUMBER = {"type": "integer", "minimum": 0}


def _rows_of(name: str) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"type": "object", "properties": {name: {"type": "string"}, "messages": _NUMBER}},
    }


def _content(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _parameters(names: Iterable[str], place: str, described: Any = None) -> list[dict[str, Any]]:
    found = []
    for name in names:
        schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}
        if described is not None:
            schema = json_codec.one_schema(described.fields_by_name[name], {})
        found.append({"name": name, "in": place, "required": place == "path", "schema": schema})
    return found


def _own(
    name: str, summary: str, answer: dict[str, Any], body: dict[str, Any] | None = None
) -> dict[str, Any]:
    operation = {
        "operationId": name,
        "summary": summary,
        "parameters": _parameters(["queue"], "path"),
        "responses": {
            "200": _content("the answer", {"type": "object", "properties": answer, "required": list(answer)}),
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    if body is not None:
        schema = {"type": "object", "properties": body, "additionalProperties": False}
        operation["requestBody"] = {"content": {JSON: {"schema": schema}}}
    return operation


_OWN_PATHS = {
    PREFIX + DEAD_LETTERS_PATH: {
        "get": _own(
            "DeadLetters",
            "Ready messages by their last death",
            {
                "looked_at": _NUMBER,
                "is_all": {"type": "boolean"},
                "groups": _rows_of("reason"),
                "in_other_groups": _NUMBER,
                "without_history": _NUMBER,
            },
        )
    },
    PREFIX + REDRIVE_PATH: {
        "post": _own(
            "Redrive",
            "Move dead letters back to the queues where they died",
            {
                "moved": _rows_of("queue"),
                "left": _rows_of("reason"),
                "in_doubt": _rows_of("queue"),
                "is_complete": {"type": "boolean"},
            },
            {
                "only": {"type": "string"},
                "limit": {"type": "integer", "minimum": 1, "maximum": dead_letters.MAX_MOVED},
            },
        )
    },
}
"""The paths that are no single call of gRPC."""
