"""Selectors and filters as they come from clients."""

from __future__ import annotations

import pytest

from quorum.api import filters
from quorum.api.request_filters import filter_of
from quorum.api.status import StatusError
from quorum.v1 import queue_pb2 as pb
from quorum_selectors.errors import SelectorError


@pytest.mark.parametrize("selector", ["", " ", " \t\f\r\n"])
def test_a_blank_selector_is_none(selector: str) -> None:
    assert filters.parse(filter_of(pb.Attach(selector=selector))) is None


@pytest.mark.parametrize("selector", ["\u00a0", "\x0b", " \u2003 "])
def test_what_only_looks_blank_is_refused_and_does_not_select_everything(selector: str) -> None:
    with pytest.raises(SelectorError, match="line 1, column"):
        filters.parse(filter_of(pb.Attach(selector=selector)))


def test_a_filter_of_properties_compares_no_bytes() -> None:
    request = pb.Attach()
    request.property_filter.application_properties["a"].binary = b"x"
    with pytest.raises(StatusError, match="not bytes"):
        filters.parse(filter_of(request))
    request.property_filter.application_properties["a"].integer = 3
    assert filters.parse(filter_of(request)) is not None
