"""Selectors and filters as they come from clients."""

from __future__ import annotations

import pytest

from quorum.api import filters
from quorum.v1 import queue_pb2 as pb
from quorum_selectors.errors import SelectorError


@pytest.mark.parametrize("selector", ["", " ", " \t\f\r\n"])
def test_a_blank_selector_is_none(selector: str) -> None:
    assert filters.parse(pb.Attach(selector=selector)) is None


@pytest.mark.parametrize("selector", ["\u00a0", "\x0b", " \u2003 "])
def test_what_only_looks_blank_is_refused_and_does_not_select_everything(selector: str) -> None:
    with pytest.raises(SelectorError, match="line 1, column"):
        filters.parse(pb.Attach(selector=selector))
