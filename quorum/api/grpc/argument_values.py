"""Conversion of the arguments of queues, exchanges, bindings and policies from and to the wire."""

from __future__ import annotations

from collections.abc import Mapping

from quorum.catalog.arguments import ArgumentError, Arguments
from quorum.v1 import queue_pb2


def argument(name: str, value: queue_pb2.Value) -> bool | int | float | str:
    """Return the value of an argument. Raises ArgumentError for bytes, or if there is no value."""
    kind = value.WhichOneof("kind")
    if kind is None or kind == "binary":
        raise ArgumentError(
            f"argument {name!r}: {'no value' if kind is None else 'bytes'}; give a boolean, number or text"
        )
    found: bool | int | float | str = getattr(value, kind)
    return found


def set_arguments(target: Mapping[str, queue_pb2.Value], arguments: Arguments) -> None:
    for name, value in arguments:
        if isinstance(value, bool):
            target[name].boolean = value
        elif isinstance(value, int):
            target[name].integer = value
        elif isinstance(value, float):
            target[name].floating = value
        else:
            target[name].text = str(value)
