"""Conversion of the filters in gRPC requests into filters.Filter."""

from __future__ import annotations

from collections.abc import Mapping

from quorum.api.hub.filters import Filter, FilterValue, PropertyFilter, SelectorText
from quorum.v1 import queue_pb2 as pb


def filter_of(request: pb.Attach | pb.BrowseRequest) -> Filter:
    kind = request.WhichOneof("filter")
    if kind == "selector":
        return SelectorText(request.selector)
    if kind == "property_filter":
        return PropertyFilter(
            _values(request.property_filter.properties),
            _values(request.property_filter.application_properties),
        )
    return None


def _values(values: Mapping[str, pb.Value]) -> dict[str, FilterValue]:
    return {name: _value(value) for name, value in values.items()}


def _value(value: pb.Value) -> FilterValue:
    kind = value.WhichOneof("kind")
    return None if kind is None else getattr(value, kind)
