"""Where the repository is, for tests that look at it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORT_PATH = os.pathsep.join((str(ROOT), str(ROOT / "selectors")))
"""PYTHONPATH of a process that runs the product from here."""


def environment() -> dict[str, str]:
    """The variables of such a process, without those that configure the product."""
    found = {key: value for key, value in os.environ.items() if not key.startswith("QUORUM_")}
    return found | {"PYTHONPATH": IMPORT_PATH}
