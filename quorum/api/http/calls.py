"""The table of the JSON paths: one line for each method of HTTP on a path, and the request that it makes."""

from __future__ import annotations

from typing import Any

from fifo.frozen_dataclasses import dataclass
from quorum.api.http import json_codec
from quorum.api.http.json_codec import JsonError
from quorum.v1 import admin_pb2, bulk_pb2, queue_pb2

PREFIX = "/api/v1"
JSON = "application/json"
DEAD_LETTERS_PATH, REDRIVE_PATH = "/queues/{queue}/dead-letters", "/queues/{queue}/redrive"


@dataclass(frozen=True, slots=True)
class Call:
    """One method of HTTP on one path. rpc: as in rights.BY_METHOD. query: fields that the query may have. within: the
    field that path and body fill, such as `policy`; empty: the request itself."""

    method: str
    path: str
    rpc: str
    summary: str
    query: tuple[str, ...] = ()
    has_body: bool = False
    within: str = ""

    @property
    def names(self) -> list[str]:
        """The fields in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def request(self) -> Any:
        """The class of its requests."""
        return _request_class(self.rpc)


CALLS = (
    Call("GET", "/queues", "Admin/ListQueues", "Queues by name", ("prefix", "limit", "after")),
    Call(
        "GET",
        "/queues/{queue}",
        "Admin/DescribeQueue",
        "One queue, its consumers and storage",
        ("consumers_after",),
    ),
    Call("PUT", "/queues/{queue}", "Admin/DeclareQueue", "Declare a queue", has_body=True),
    Call("DELETE", "/queues/{queue}", "Admin/DeleteQueue", "Delete a queue with its messages", ("id",)),
    Call("POST", "/queues/{queue}/purge", "Admin/PurgeQueue", "Remove waiting messages", has_body=True),
    Call(
        "GET",
        "/queues/{queue}/messages",
        "Queue/Browse",
        "Read waiting messages, and remove none",
        ("selector", "start_sequence", "limit", "delayed"),
    ),
    Call("POST", "/queues/{queue}/messages", "Queue/Publish", "Publish messages", has_body=True),
    Call(
        "POST",
        "/queues/{queue}/get",
        "Queue/Get",
        "Take messages, which leave the queue at once",
        has_body=True,
    ),
    Call(
        "GET",
        "/queues/{queue}/subscriptions",
        "Bulk/ListSubscriptions",
        "Durable subscriptions of a queue",
    ),
    Call("GET", "/policies", "Admin/ListPolicies", "Policies by name"),
    Call(
        "PUT",
        "/policies/{name}",
        "Admin/SetPolicy",
        "Make or change a policy",
        has_body=True,
        within="policy",
    ),
    Call("DELETE", "/policies/{name}", "Admin/DeletePolicy", "Delete a policy"),
    Call("GET", "/exchanges", "Admin/ListExchanges", "Exchanges by name", ("prefix", "limit", "after")),
    Call("PUT", "/exchanges/{exchange}", "Admin/DeclareExchange", "Declare an exchange", has_body=True),
    Call(
        "DELETE", "/exchanges/{exchange}", "Admin/DeleteExchange", "Delete an exchange", ("id", "if_unused")
    ),
    Call("GET", "/bindings", "Admin/ListBindings", "Bindings", ("source", "queue", "exchange", "after")),
    Call("POST", "/bindings", "Admin/AddBinding", "Make a binding", has_body=True, within="binding"),
    Call(
        "POST", "/bindings/remove", "Admin/RemoveBinding", "Remove a binding", has_body=True, within="binding"
    ),
    Call("GET", "/users", "Admin/ListUsers", "Users by name"),
    Call("PUT", "/users/{user}/permissions", "Admin/SetPermissions", "Replace permissions", has_body=True),
    Call("PUT", "/users/{user}", "Admin/SetUser", "Make or change a user", has_body=True),
    Call("DELETE", "/users/{user}", "Admin/DeleteUser", "Delete a user"),
    Call("GET", "/cluster", "Admin/ClusterStatus", "Members and Raft groups, as this member sees them"),
    Call("GET", "/transactions", "Admin/ListTransactions", "Transactions in doubt"),
    Call("GET", "/definitions", "Admin/ExportDefinitions", "Queues, exchanges, bindings and policies"),
    Call("POST", "/definitions", "Admin/ImportDefinitions", "Make what is missing of these", has_body=True),
)


def service_method(rpc: str) -> Any:
    """The descriptor of a method."""
    service, _, method = rpc.partition("/")
    return _module(service).DESCRIPTOR.services_by_name[service].methods_by_name[method]


def _module(service: str) -> Any:
    return {"Admin": admin_pb2, "Bulk": bulk_pb2, "Queue": queue_pb2}[service]


def _request_class(rpc: str) -> Any:
    return getattr(_module(rpc.partition("/")[0]), service_method(rpc).input_type.name)


CLUSTER = next(each for each in CALLS if each.rpc == "Admin/ClusterStatus")
QUEUE = next(each for each in CALLS if each.rpc == "Admin/DescribeQueue")
QUEUES = next(each for each in CALLS if each.rpc == "Admin/ListQueues")
BROWSE = next(each for each in CALLS if each.rpc == "Queue/Browse")


def request_of(call: Call, path: Any, query: Any, body: object) -> Any:
    """The request of a call. JsonError."""
    made = call.request()
    target = getattr(made, call.within) if call.within else made
    if call.within:
        target.SetInParent()
    json_codec.read(target, body, without=call.names)
    fields = target.DESCRIPTOR.fields_by_name
    for name in call.names:
        json_codec.read(target, {name: path[name]})
    for name, text in query.multi_items():
        if name not in call.query:
            raise JsonError(f"unknown query {name[:64]!r}; allowed: {', '.join(call.query) or 'none'}")
        json_codec.read(target, {name: _plain(fields[name], text, name)})
    return made


def _plain(field: Any, text: str, name: str) -> object:
    """A value of the query as its field has it."""
    if field.cpp_type == field.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise JsonError(f"{name}: wanted: true or false")
        return text == "true"
    if field.cpp_type == field.CPPTYPE_STRING:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise JsonError(f"{name}: wanted: a whole number")
    return int(text)
