"""The examples in docstrings of `fifo` give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import fifo


def test_the_examples_are_right() -> None:
    attempted = {}
    for found in pkgutil.walk_packages(fifo.__path__, "fifo."):
        result = doctest.testmod(importlib.import_module(found.name))
        assert result.failed == 0, found.name
        attempted[found.name] = result.attempted
    assert attempted["fifo.consumers.consumer"] >= 4
