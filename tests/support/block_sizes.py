"""Machines with small blocks: where the sizes stand that are imported by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import fifo

BESIDE = ("quorum.node.maintenance.paging",)
"""Modules outside fifo that know how large a block is."""


def places(values: Mapping[str, Any], beside: tuple[str, ...] = BESIDE) -> dict[str, Any]:
    """module.NAME -> value, wherever a module has one of these names."""
    names = [f"fifo.{each.name}" for each in pkgutil.iter_modules(fifo.__path__)]
    return {
        f"{module}.{name}": value
        for module in (*names, *beside)
        for name, value in values.items()
        if hasattr(importlib.import_module(module), name)
    }


def sizes(bits: int) -> dict[str, int]:
    """What a block of 2^bits sequences is known by."""
    return {"BLOCK_BITS": bits, "BLOCK_SIZE": 1 << bits, "SLOT_MASK": (1 << bits) - 1}
